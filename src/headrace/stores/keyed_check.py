"""Reads a whole keyed shard and says everything that is wrong with it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from headrace.errors import StoreError
from headrace.io import Reader
from headrace.stores.faults import Faults
from headrace.stores.keyed_layout import META_NAME, KeyLayout, parse_bounds, parse_meta
from headrace.stores.manifest import MANIFEST_NAME, load_manifest
from headrace.stores.manifest_output import OutputShard
from headrace.stores.store import IntArray, Problem
from headrace.stores.sums import check_file

_TOKENS_AT_ONCE = 1 << 20


def check_keyed(
    folder: str, using: Reader, *, main: str, vouched: OutputShard | None, vocab_size: int | None
) -> Iterator[Problem]:
    """Every fault of a folder's ``meta.json`` and of the ``.bin`` of each key.

    The files are opened anew, so what the store has seen before does not matter. One pass over each ``.bin`` for:
    checksums, if a manifest vouches for the shard; values of ``bool``; ids, if ``vocab_size`` is given.
    """
    using = copy.copy(using)  # which has no files yet
    try:
        yield from _check(folder, using, main, vouched, vocab_size)
    finally:
        using.close()


def _check(
    folder: str, using: Reader, main: str, vouched: OutputShard | None, vocab_size: int | None
) -> Iterator[Problem]:
    place = Path(folder)
    if vouched is None and (place.parent / MANIFEST_NAME).exists():
        try:
            entry = load_manifest(place.parent).shard(place.name)
            vouched = entry if entry is not None and entry.format == "keyed" else None
        except StoreError as error:
            yield Problem(path=str(place.parent / MANIFEST_NAME), place="", message=str(error))
    meta = str(place / META_NAME)
    layouts: dict[str, KeyLayout] = {}
    bounds: dict[str, IntArray] = {}
    try:
        size = using.size(meta)
        data = using.read_ranges(meta, np.array([0]), np.array([size])).tobytes()
        layouts = parse_meta(meta, data)
        for key, layout in layouts.items():
            if layout.num_documents is not None:
                bounds[key] = parse_bounds(meta, data, key)
    except StoreError as error:
        yield Problem(path=meta, place="", message=str(error).removeprefix(f"{meta}: "))
    if vouched is not None:
        for file in vouched.files:
            yield from check_file(place / file.name, file)
        if layouts:
            yield from _check_counts(folder, vouched, layouts)
    for key, layout in layouts.items():
        has_ids = vocab_size is not None and (key == main or (vouched is not None and layout.dtype.kind in "iu"))
        yield from _check_key(folder, using, layout, bounds.get(key), vocab_size if has_ids else None)


def _check_counts(folder: str, vouched: OutputShard, layouts: Mapping[str, KeyLayout]) -> Iterator[Problem]:
    """The numbers that the manifest gives for the shard."""
    counts = {layout.num_documents for layout in layouts.values()} - {None}
    for count in counts - {vouched.documents}:
        message = f"documents: the manifest says {vouched.documents}, the shard has {count}"
        yield Problem(path=folder, place="", message=message)
    listed = {key: f"{info.tokens} of {info.dtype}" for key, info in vouched.keys.items()}
    found = {key: f"{layout.num_tokens} of {layout.dtype.name}" for key, layout in layouts.items()}
    for key in sorted(listed.keys() | found.keys()):
        if listed.get(key) != found.get(key):
            message = f"the manifest says {listed.get(key, 'nothing')}, the shard has {found.get(key, 'nothing')}"
            yield Problem(path=folder, place=f"key {key!r}", message=message)


def _check_key(
    folder: str, using: Reader, layout: KeyLayout, bounds: IntArray | None, vocab_size: int | None
) -> Iterator[Problem]:
    path = str(Path(folder) / f"{layout.key}.bin")
    try:
        size = using.size(path)
    except StoreError as error:
        yield Problem(path=path, place="", message=str(error).removeprefix(f"{path}: "))
        return
    if size != layout.num_bytes:
        what = f"{layout.num_tokens} values of {layout.dtype.name} take {layout.num_bytes} bytes, the file has {size}"
        yield Problem(path=path, place="", message=what)
    if size < layout.num_bytes:
        return
    if vocab_size is not None and layout.dtype.kind not in "iu":
        yield Problem(path=path, place="", message=f"{layout.dtype.name} numbers are not token ids")
        vocab_size = None
    if layout.dtype.kind == "b":
        yield from _check_values(path, using, layout, np.dtype("u1"), bounds, 2, "is no bool, which is 0 or 1")
    elif vocab_size is not None:
        what = f"is outside of the vocabulary, 0 to {vocab_size - 1}"
        yield from _check_values(path, using, layout, layout.dtype, bounds, vocab_size, what)


def _check_values(
    path: str,
    using: Reader,
    layout: KeyLayout,
    dtype: np.dtype[np.generic],
    bounds: IntArray | None,
    limit: int,
    what: str,
) -> Iterator[Problem]:
    """Values outside ``[0, limit)``, the first in each document."""
    if bounds is None:
        bounds = np.array([0, layout.num_tokens])
    name = "byte" if layout.dtype.kind == "b" else "id"
    faults = Faults(path, f"documents with such {name}s")
    last = -1
    for begin in range(0, layout.num_tokens, _TOKENS_AT_ONCE):
        count = min(_TOKENS_AT_ONCE, layout.num_tokens - begin)
        offset, num_bytes = np.array([begin * dtype.itemsize]), np.array([count * dtype.itemsize])
        values = using.read_ranges(path, offset, num_bytes).view(dtype)
        wrong = np.flatnonzero((values < 0) | (values >= limit))
        of = np.searchsorted(bounds, wrong + begin, side="right") - 1
        documents, firsts = np.unique(of, return_index=True)
        # A document that goes on from the block before was named there.
        for at in faults.to_name(documents != last):
            place = f"document {documents[at]}, value {begin + wrong[firsts[at]]} of the stream"
            yield Problem(path=path, place=place, message=f"{name} {values[wrong[firsts[at]]]} {what}")
        last = int(documents[-1]) if len(documents) else last
    yield from faults.rest()
