"""Restore keys of what a framed source gives: they hold all that it takes to make it again.

    output   ("Framed", path, address, output, ...)     then the key that the encoded sample had within
    pack     ("FramedPack", part, key, key, ...)        the keys of the outputs in it; which of several packs of them

The path is that of the dataset in the mix, the address the number of the sample with bits of its epoch.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from headrace.datasets.encoded.keys import restore_key_of
from headrace.encoders.pipeline import Output
from headrace.errors import ConfigError

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
