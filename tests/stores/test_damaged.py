"""Every reader of this room over damaged files: a HeadraceError or right data, in bounded time and memory."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import headrace.stores as stores
import made
from counts import cases
from damage import endured
from energon_prepared import prepared
from headrace.errors import HeadraceError
from headrace.stores import EnergonStore, Provenance, SampleStore, Store, load_manifest
from headrace.stores.provenance import INFO_NAME, SKIPPED_NAME, SPANS_NAME
from headrace.stores.quarantine import QUARANTINE_NAME, add_bad_samples, bad_sample
from headrace.stores.tar.store import TarStore
from headrace.testing.stores import numbered_documents
from tars_made import write_tar
from token_shards import write_keyed

GOLDEN = Path(__file__).parents[1] / "golden"
Use = Callable[[], Any]
Made = tuple[Path, Use]


def tokens_of(path: Path, **options: Any) -> Use:
    """Opens documents of tokens, and reads and checks everything."""

    def use() -> None:
        with stores.open(path, **options) as store:
            if not isinstance(store, Store):
                return  # what is in the file now is no list of numbers
            list(store.check(vocab_size=100))
            for number in range(min(store.num_documents, 8)):
                with contextlib.suppress(HeadraceError):
                    store.document(number)
            store.fetch(0, min(store.num_tokens, 100))
            store.find_documents(np.arange(min(5, store.num_tokens)))
            assert len(store.lengths) == store.num_documents
            assert store.fingerprint

    return use


def samples_of(path: Path, **options: Any) -> Use:
    """Opens samples, and reads and checks everything."""

    def use() -> None:
        with stores.open(path, **options) as store:
            assert isinstance(store, SampleStore)
            list(store.check())
            for number in range(min(len(store), 8)):
                with contextlib.suppress(HeadraceError):
                    store.read(np.array([number]))
                with contextlib.suppress(HeadraceError, KeyError):
                    store.find(store.key(number))
                with contextlib.suppress(HeadraceError):
                    store.places(number)
            assert store.fingerprint

    return use


def golden(name: str, suffix: str, **options: Any) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        opened = folder / Path(name).name
        for file in (GOLDEN / name).parent.glob(f"{opened.name}*"):
            (shutil.copytree if file.is_dir() else shutil.copy)(file, folder / file.name)
        return folder / f"{opened.name}{suffix}", tokens_of(opened, **options)

    return make


def keyed(folder: Path) -> Made:
    documents = numbered_documents([3, 0, 2], "uint16")
    write_keyed(folder / "s", ids=("uint16", documents), mask=("bool", [np.ones(len(one)) for one in documents]))
    return folder / "s" / "meta.json", tokens_of(folder / "s")


def jsonl(folder: Path) -> Made:
    path = folder / "s.jsonl"
    path.write_text('{"tokens": [1, 2, 3], "mask": [true, false, true]}\n{"tokens": [4], "mask": [true]}\n' * 3)
    return path, tokens_of(path)


def manifest(folder: Path) -> Made:
    made.one_key(folder / "s")
    return folder / "s" / "headrace.json", lambda: load_manifest(folder / "s")


def provenance(name: str) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        np.save(folder / SPANS_NAME, np.array([[0, 40, 0, 0, 42], [40, 3, 1, 5, 3]]))
        np.save(folder / SKIPPED_NAME, np.array([[0, 1, 0], [0, 2, 1]]))
        np.save(folder / "order.npy", np.arange(43)[::-1].copy())
        np.save(folder / "ids.npy", np.frombuffer(b"ab" * 43, np.uint8))
        np.save(folder / "ids_ends.npy", np.arange(2, 88, 2))
        (folder / INFO_NAME).write_text('{"version": 1, "num_documents": 43, "reasons": ["a", "b"]}')

        def use() -> None:
            found = Provenance(folder)
            found.locate(np.arange(min(found.num_documents, 43)))
            found.ids(np.arange(min(found.num_documents, 43)))

        return folder / name, use

    return make


MEMBERS = [(f"k{number}.{part}", b'{"a": 1}') for number in range(5) for part in ("json", "txt")]


def tar(name: str) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        write_tar(folder / "a.tar", MEMBERS)
        if name.endswith("idx"):
            TarStore(folder / "a.tar", index="beside").close()
        return folder / name, samples_of(folder / "a.tar")

    return make


def energon(name: str) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        others = [(f"x{name}", data) for name, data in MEMBERS[:4]]
        prepared(folder, {"a.tar": MEMBERS, "b.tar": others}, exclude=["a.tar/k1"])

        def use() -> None:
            samples_of(folder, split_part="train")()
            with EnergonStore(folder) as store:
                list(store.check())

        return folder / name, use

    return make


def lines(name: str) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        (folder / "t.jsonl").write_text('{"text": "a", "n": {"m": 1}}\n' * 20)
        stores.energon.jsonl.write_lines(folder / "t.jsonl")
        return folder / name, samples_of(folder / "t.jsonl")

    return make


def quarantine(folder: Path) -> Made:
    write_tar(folder / "a.tar", MEMBERS)
    with stores.open(folder / "a.tar") as store:
        add_bad_samples(store, [bad_sample(store, 1, "because")])
    return folder / QUARANTINE_NAME, samples_of(folder / "a.tar")


READERS: Final[dict[str, Callable[[Path], Made]]] = {
    ".idx": golden("indexed/uint16", ".idx"),
    ".idx of several modes": golden("indexed/multimodal", ".idx"),
    ".meta.json of Aleph Alpha": golden("indexed_dialects/aleph-alpha", ".meta.json"),
    ".idx of Aleph Alpha": golden("indexed_dialects/aleph-alpha", ".idx"),
    "meta.json": keyed,
    ".jsonl of tokens": jsonl,
    "manifest": manifest,
    "spans": provenance(SPANS_NAME),
    "skipped": provenance(SKIPPED_NAME),
    "ends of ids": provenance("ids_ends.npy"),
    "order": provenance("order.npy"),
    "provenance.json": provenance(INFO_NAME),
    ".tar": tar("a.tar"),
    ".tar.idx": tar("a.tar.idx"),
    "info": energon(".nv-meta/.info.json"),
    "split": energon(".nv-meta/split.yaml"),
    "index.sqlite": energon(".nv-meta/index.sqlite"),
    ".tar.idx of Energon": energon("a.tar.idx"),
    ".jsonl of samples": lines("t.jsonl"),
    ".jsonl.idx": lines("t.jsonl.idx"),
    "quarantine": quarantine,
}
VOUCHED: Final = {"manifest"}


@pytest.mark.parametrize("name", READERS)
def test_damage_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path, use = READERS[name](tmp_path)
    assert endured(path, use, count=cases(10, 3000), vouched=name in VOUCHED) == {}
