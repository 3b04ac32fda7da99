"""Restore keys of encoded samples and framed units. A key holds everything that is needed to make its sample again.

    fixed output    ("Encoded", address, ...)                  then the key that the encoded sample had before
    framed output   ("Framed", path, address, output, ...)     then the key that the encoded sample had before
    framed pack     ("FramedPack", part, key, key, ...)        which of several packs, and the keys of its outputs

The path is that of the dataset in the mix; the address is the number of the sample with bits of its epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from headrace.encoders.pipeline import Output
from headrace.errors import ConfigError

RESTORE: Final = "Encoded"


def restore_key_of(sample: Any) -> Any:
    """Return the restore key of a sample or a dict; None if it has none."""
    return sample.get("__restore_key__") if isinstance(sample, Mapping) else getattr(sample, "__restore_key__", None)


def address_of(restore_key: Any) -> int | None:
    """Return the address in a restore key of `EncodedDataset`; None for other keys."""
    if isinstance(restore_key, tuple) and len(restore_key) > 1 and restore_key[0] == RESTORE:
        return restore_key[1] if isinstance(restore_key[1], int) else None
    return None


def marked(sample: Any, address: int, encoder: str) -> Any:
    """Return the sample with its restore key, which holds its former key. Raises ConfigError as `keyed`."""
    return keyed(sample, (RESTORE, address, *(restore_key_of(sample) or ())), encoder)


def keyed(sample: Any, key: tuple[Any, ...], encoder: str) -> Any:
    """Return the sample with a restore key.

    Raises:
        ConfigError: the sample has no place for a restore key.
    """
    if isinstance(sample, dict):
        sample["__restore_key__"] = key
        return sample
    if isinstance(sample, tuple) and "__restore_key__" in getattr(sample, "_fields", ()):
        return sample._replace(__restore_key__=key)  # type: ignore[attr-defined]
    try:
        sample.__restore_key__ = key
    except (AttributeError, TypeError):
        raise ConfigError(
            f"{encoder} returned a {type(sample).__name__} without __restore_key__; derive its type from Sample, and"
            " make it by derive_from(sample, ...), or return a dict"
        ) from None
    return sample


OUTPUT: Final = "Framed"
PACK: Final = "FramedPack"


class OutputKey(NamedTuple):
    """Identifies an output: dataset, sample address, number of the output; ``within`` is the key it had before."""

    path: str
    address: int
    output: int
    within: tuple[Any, ...]


class PackKey(NamedTuple):
    """Identifies a pack: the outputs in it, and which of several packs of these outputs it is."""

    part: int
    outputs: tuple[OutputKey, ...]


def output_key(path: str, one: Output) -> tuple[Any, ...]:
    """Return the restore key of an output."""
    return (OUTPUT, path, one.place.position, one.place.output, *(restore_key_of(one.sample) or ()))


def pack_key(keys: list[tuple[Any, ...]], part: int) -> tuple[Any, ...]:
    """Return the restore key of a pack of outputs with these keys."""
    return (PACK, part, *keys)


def parsed(key: Any) -> OutputKey | PackKey:
    """Return the parts of a restore key.

    Raises:
        ConfigError: it is not a restore key of a framed source.
    """
    match key:
        case (str(kind), str(path), int(address), int(output), *within) if kind == OUTPUT:
            return OutputKey(path, address, output, tuple(within))
        case (str(kind), int(part), *outputs) if kind == PACK and outputs:
            inner = tuple(parsed(one) for one in outputs)
            found = tuple(one for one in inner if isinstance(one, OutputKey))
            if len(found) == len(inner):
                return PackKey(part, found)
    raise ConfigError(f"{key!r:.80} is not a restore key of a framed source")
