"""Reads a whole keyed shard and says everything that is wrong with it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from headrace.errors import StoreError
from headrace.io import Reader
from headrace.stores.keyed_layout import META_NAME, KeyLayout, parse_bounds, parse_meta
from headrace.stores.manifest import MANIFEST_NAME, load_manifest
from headrace.stores.manifest_output import OutputShard
from headrace.stores.store import IntArray, Problem, TokenArray
from headrace.stores.sums import check_file
from headrace.stores.values import check_values


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
        info = None if vouched is None else vouched.keys.get(key)
        has_ids = key == main if info is None else info.ids and (key == main or layout.dtype.kind in "iu")
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

    def read(begin: int, end: int) -> TokenArray:
        item = layout.dtype.itemsize
        return using.read_ranges(path, np.array([begin * item]), np.array([(end - begin) * item])).view(layout.dtype)

    if bounds is None:
        bounds = np.array([0, layout.num_tokens])
    yield from check_values(path, layout.dtype, read, bounds, vocab_size)
