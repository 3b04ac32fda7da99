"""Restore keys of encoded samples and framed units: they hold all that it takes to make them again.

Restore keys of what a framed source gives: they hold all that it takes to make it again.

    output   ("Framed", path, address, output, ...)     then the key that the encoded sample had within
    pack     ("FramedPack", part, key, key, ...)        the keys of the outputs in it; which of several packs of them

The path is that of the dataset in the mix, the address the number of the sample with bits of its epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from headrace.encoders.pipeline import Output
from headrace.errors import ConfigError

RESTORE: Final = "Encoded"


def restore_key_of(sample: Any) -> Any:
    """What a sample or a dict has as its restore key, or None."""
    return sample.get("__restore_key__") if isinstance(sample, Mapping) else getattr(sample, "__restore_key__", None)


def address_of(restore_key: Any) -> int | None:
    """The address in a restore key of `EncodedDataset`, None where it is another."""
    if isinstance(restore_key, tuple) and len(restore_key) > 1 and restore_key[0] == RESTORE:
        return restore_key[1] if isinstance(restore_key[1], int) else None
    return None


def marked(sample: Any, address: int, encoder: str) -> Any:
    """The sample with its restore key, the one that it had within. Raises ConfigError: it has no place for one."""
    return keyed(sample, (RESTORE, address, *(restore_key_of(sample) or ())), encoder)


def keyed(sample: Any, key: tuple[Any, ...], encoder: str) -> Any:
    """The sample with a restore key.

    Raises:
        ConfigError: it has no place for one.
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
            f"{encoder} gave a {type(sample).__name__} without __restore_key__; derive its type from Sample, and make"
            " it by derive_from(sample, ...), or give a dict"
        ) from None
    return sample


OUTPUT: Final = "Framed"
PACK: Final = "FramedPack"


class OutputKey(NamedTuple):
    """Which output of which sample of which dataset, and the key that it has within."""

    path: str
    address: int
    output: int
    within: tuple[Any, ...]


class PackKey(NamedTuple):
    """The outputs in a pack, and which of several packs of them it is."""

    part: int
    outputs: tuple[OutputKey, ...]


def output_key(path: str, one: Output) -> tuple[Any, ...]:
    """The key of an output at its place."""
    return (OUTPUT, path, one.place.position, one.place.output, *(restore_key_of(one.sample) or ()))


def pack_key(keys: list[tuple[Any, ...]], part: int) -> tuple[Any, ...]:
    """The key of a pack of outputs with these keys."""
    return (PACK, part, *keys)


def parsed(key: Any) -> OutputKey | PackKey:
    """What a restore key says.

    Raises:
        ConfigError: it is none of a framed source.
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
