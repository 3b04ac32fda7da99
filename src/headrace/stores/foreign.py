"""Names data of other programs that Headrace does not read, for the errors of those who open them.

MosaicML Streaming and litdata describe the shards of a folder in its ``index.json``; nanoGPT and llm.c write a ``.bin``
without an index. A folder of such folders, as ``train`` and ``val``, counts as well.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.errors import StoreAwayError, StoreError
from headrace.io import AnyPath, Reader, path_at, read_small

_MOST: Final = 1000
"""Names of a folder that are looked at."""

_INDEX_NAME: Final = "index.json"
_NANOGPT: Final = re.compile(r"(train|val|test)\.bin")
_LLMC_MAGICS: Final = (20240520, 20240801)
"""What the first four bytes of llm.c's files hold, with 16 and 32 bits for a token."""


def foreign_format(path: AnyPath | str, using: str | Reader = "mmap") -> str:
    """Return whose data lie at a path and which page says how to move them; empty if that is not known."""
    place = path_at(path, using)
    try:
        if not place.is_dir():
            prefix = place.with_name(f"{place.name}.bin")
            return _of_file(prefix if prefix.is_file() else place)
        inside: list[AnyPath] = list(itertools.islice(place.iterdir(), _MOST))
        below = (one / name for one in inside for name in (_INDEX_NAME, "train.bin") if one.is_dir())
        return next(filter(None, map(_of_file, [place / _INDEX_NAME, *inside, *below])), "")
    except StoreAwayError:
        raise
    except (OSError, StoreError):  # a web server lists no folder
        return ""


def _of_file(file: AnyPath) -> str:
    name = file.name
    index = _read_index(file.with_name(_INDEX_NAME)) if name == _INDEX_NAME or name.startswith("chunk-") else {}
    if ".mds" in name or isinstance(index.get("shards"), list):
        return _told("MosaicML Streaming (MDS)", "mosaicml")
    if isinstance(index.get("chunks"), list):
        return _told("litdata", "litdata")
    if file.suffix != ".bin" or not file.is_file() or file.with_suffix(".idx").is_file():
        return ""
    if isinstance(file, Path):
        with file.open("rb") as opened:
            if int.from_bytes(opened.read(4), "little") in _LLMC_MAGICS:
                return _told("llm.c", "nanogpt")
    return _told("nanoGPT", "nanogpt") if _NANOGPT.fullmatch(name) else ""


def _read_index(file: AnyPath) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(read_small(file))
    except (OSError, UnicodeDecodeError, RecursionError, msgspec.DecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _told(program: str, page: str) -> str:
    return f"these are data of {program}, which Headrace does not read; docs/migrate/{page}.md says how to move them"
