"""Where the part lies that a sample could not be made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.errors import HeadraceError, SampleError
from headrace.stores import PartPlace, RawSample

Places = Callable[[], Mapping[str, PartPlace]]


def placed(error: SampleError, raw: RawSample, path: str, places: Places) -> SampleError:
    """The error with file, key and, of a part that is there, the byte where its content begins.

    Args:
        error: names the part, if it is one.
        raw: the sample.
        path: of the dataset.
        places: looks where its parts lie.
    """
    try:
        there = places()
    except HeadraceError:  # the error that is told is the one that was met first
        there = {}
    place = None if error.part is None else there.get(error.part)
    file = place or next(iter(there.values()), None)
    shard = str(Path(path, raw.shard)) if file is None else file.file
    return error.at(shard=shard, key=raw.key, offset=None if place is None else place.offset)
