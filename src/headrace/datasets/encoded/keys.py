"""`RestoreKey`: the restore key of an encoded sample or unit. It holds everything that is needed to make it again.

    fixed output       ("Encoded", address, ...)                 the number of the sample, with bits of its epoch
    measured output    ("Measured", address, number, ...)        that of the unit, and the number of the output in it
    framed output      ("Framed", path, address, number, ...)    the dataset in the mix, the sample, and its output
    framed pack        ("FramedPack", number, key, key, ...)     which of several packs, and the keys of its outputs

The key of an output ends with the key that the encoded sample had before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from headrace.errors import ConfigError

Kind = Literal["Encoded", "Measured", "Framed", "FramedPack"]


class RestoreKey(NamedTuple):
    """What a restore key says; parts that the keys of a ``kind`` do not have are 0 or empty.

    ``within`` is the key that the sample had before, or the keys of the outputs of a pack.
    """

    kind: Kind
    within: tuple[Any, ...]
    address: int = 0
    number: int = 0
    path: str = ""

    @property
    def outputs(self) -> tuple[RestoreKey, ...]:
        """The keys of the outputs in a pack; the key itself for an output."""
        return self.within if self.kind == "FramedPack" else (self,)

    def written(self) -> tuple[Any, ...]:
        """Return the key as it stands in ``__restore_key__``."""
        match self.kind:
            case "Encoded":
                return (self.kind, self.address, *self.within)
            case "Measured":
                return (self.kind, self.address, self.number, *self.within)
            case "Framed":
                return (self.kind, self.path, self.address, self.number, *self.within)
        return (self.kind, self.number, *(one.written() for one in self.within))


def parsed(key: Any) -> RestoreKey | None:
    """Return what a restore key says; None if it is not one of an encoded sample or unit."""
    match key:
        case ("Encoded" as kind, int(address), *within):
            return RestoreKey(kind, tuple(within), address)
        case ("Measured" as kind, int(address), int(number), *within):
            return RestoreKey(kind, tuple(within), address, number)
        case ("Framed" as kind, str(path), int(address), int(number), *within):
            return RestoreKey(kind, tuple(within), address, number, path)
        case ("FramedPack" as kind, int(number), *keys):
            outputs = tuple(one for one in map(parsed, keys) if one is not None and one.kind == "Framed")
            return RestoreKey(kind, outputs, number=number) if 0 < len(outputs) == len(keys) else None
    return None


def of_framed(key: Any) -> RestoreKey:
    """Return what the restore key of a framed output or pack says. Raises ConfigError for any other key."""
    found = parsed(key)
    if found is None or found.kind not in ("Framed", "FramedPack"):
        raise ConfigError(f"{key!r:.80} is not a restore key of a framed source")
    return found


def restore_key_of(sample: Any) -> tuple[Any, ...]:
    """Return the restore key of a sample or a dict; empty if it has none."""
    found = sample.get("__restore_key__") if isinstance(sample, Mapping) else getattr(sample, "__restore_key__", None)
    return tuple(found or ())


def keyed(sample: Any, key: RestoreKey, encoder: str) -> Any:
    """Return the sample with a restore key.

    Raises:
        ConfigError: the sample has no place for a restore key.
    """
    written = key.written()
    if isinstance(sample, dict):
        sample["__restore_key__"] = written
        return sample
    if isinstance(sample, tuple) and "__restore_key__" in getattr(sample, "_fields", ()):
        return sample._replace(__restore_key__=written)  # type: ignore[attr-defined]
    try:
        sample.__restore_key__ = written
    except (AttributeError, TypeError):
        raise ConfigError(
            f"{encoder} returned a {type(sample).__name__} without __restore_key__; derive its type from Sample, and"
            " make it by derive_from(sample, ...), or return a dict"
        ) from None
    return sample
