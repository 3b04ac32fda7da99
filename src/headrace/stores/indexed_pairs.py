"""Opens a pair of ``.bin`` and ``.idx``, whichever of the formats that share these names it is."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import StoreError
from headrace.io import Reader, reader
from headrace.stores import indexed_layout, tnt
from headrace.stores.aleph_alpha import META_SUFFIX, AlephAlphaStore
from headrace.stores.indexed import IndexedStore
from headrace.stores.indexed_dialects import AS_FOUND, IndexedOptions
from headrace.stores.tnt import TntStore

SUFFIXES = (".bin", ".idx")


def open_pair(
    prefix: str | os.PathLike[str], *, using: str | Reader = "mmap", options: IndexedOptions = AS_FOUND
) -> IndexedStore:
    """The store of ``<prefix>.bin`` and ``<prefix>.idx``; the first bytes of the ``.idx`` say which format it is.

    Raises:
        StoreError: one of the two is missing, or they are malformed.
    """
    found = [suffix for suffix in SUFFIXES if Path(f"{prefix}{suffix}").is_file()]
    if not found:
        raise StoreError(f"{prefix}: nothing is there; expected {prefix}.bin and {prefix}.idx")
    for suffix in SUFFIXES:
        if suffix not in found:
            raise StoreError(
                f"{prefix}{suffix}: missing beside {prefix}{found[0]}; a store is the pair of both (an interrupted"
                " write or copy leaves one alone)"
            )
    return _kind(str(prefix))(prefix, using=reader(using), options=options)


def _kind(prefix: str) -> type[IndexedStore]:
    try:
        with Path(prefix + ".idx").open("rb") as file:
            magic = file.read(len(indexed_layout.MAGIC))
    except OSError as error:
        raise StoreError(f"{prefix}.idx: cannot be opened: {error.strerror}") from error
    if magic.startswith(tnt.MAGIC):
        return TntStore
    # Aleph Alpha's index has no magic: its first number is a start, 0.
    if magic != indexed_layout.MAGIC and Path(prefix + META_SUFFIX).is_file():
        return AlephAlphaStore
    return IndexedStore
