"""Data sets with the same names, sizes and offsets and other contents: states, files, edits and facts know which."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import framed_made
import headrace
from energon_prepared import prepared
from headrace import ConfigError, MediaDataset, StateError, StoreError
from headrace.datasets import MapDataset
from headrace.datasets.encoded import Framed, FramedRun
from headrace.datasets.measuring import measure
from headrace.encoders import ErrorPolicy, TaskEncoder, stateless
from headrace.io import ObjectReader
from headrace.plan.recipe import CONTENTS
from headrace.samples.media import TextSample
from headrace.stores import EnergonStore, FilesystemStore, JoinedStore, SampleStore
from headrace.stores.energon import JoinColumn, write_join
from headrace.stores.tar.store import TarStore
from headrace.tracing import save_run
from memory_stores import memory_bucket
from tars_made import write_tar


def members(letter: str, count: int = 50) -> list[tuple[str, bytes]]:
    first = 100 if letter == "t" else 200
    return [(f"{number:05d}.txt", str(first + number).encode()) for number in range(count)]


def tar(root: Path, letter: str) -> TarStore:
    return TarStore(write_tar(root / "0.tar", members(letter)))


def energon(root: Path, letter: str) -> EnergonStore:
    root.mkdir()
    return EnergonStore(prepared(root, {"0.tar": members(letter)}), split_part="train")


def files(root: Path, letter: str) -> FilesystemStore:
    root.mkdir()
    for name, content in members(letter, 200):
        (root / name).write_bytes(content)
    return FilesystemStore(root)


def without_some(root: Path, letter: str) -> TarStore:
    return tar(root, letter).without(np.array([3, 5]))


def joined(root: Path, letter: str) -> JoinedStore:
    root.mkdir()
    (root / "other").mkdir()
    (root / "own").mkdir()
    prepared(root / "own", {"0.tar": members("o")})
    prepared(root / "other", {"0.tar": members(letter)})
    columns = [JoinColumn(store=EnergonStore(root / name, split_part="train")) for name in ("own", "other")]
    write_join(root / "cache", columns)
    return JoinedStore(columns, root / "cache")


MAKES: dict[str, Callable[[Path, str], SampleStore]] = {
    "tar": tar,
    "energon": energon,
    "files": files,
    "quarantined": without_some,
    "joined": joined,
}


@pytest.mark.parametrize("kind", MAKES)
def test_fingerprints_see_the_ends_of_files(kind: str, tmp_path: Path) -> None:
    make = MAKES[kind]
    one, two, again = (make(tmp_path / f"{number}", letter) for number, letter in enumerate("tut"))
    assert one.layout_fingerprint == two.layout_fingerprint
    assert one.contents_fingerprint != two.contents_fingerprint
    assert one.contents_fingerprint == again.contents_fingerprint, "wherever the files are"
    assert one.contents_fingerprint != one.layout_fingerprint
    assert one.fingerprint == (one.layout_fingerprint if kind == "files" else one.contents_fingerprint)


class Doubled(TaskEncoder[Any, Any, Any, Any]):
    decoder = None

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return sample


def dataset(root: Path, kind: str = "energon", letter: str = "t") -> MediaDataset:
    return MediaDataset(MAKES[kind](root, letter), TextSample, {"text": "txt"})


def loader_of(data: Any) -> headrace.Loader:
    run = data if isinstance(data, FramedRun) else headrace.Run(data, global_batch_size=4)
    return headrace.Loader(run, micro_batch_size=4 if not isinstance(data, FramedRun) else 1)


def _same(sample: Any) -> Any:
    return sample


@pytest.mark.parametrize("kind", ["tar", "energon", "files", "mapped", "framed"])
def test_a_state_of_other_contents_is_refused(kind: str, tmp_path: Path) -> None:
    def made(number: int, letter: str) -> headrace.Loader:
        data: Any = dataset(tmp_path / f"{number}", kind if kind in MAKES else "tar", letter)
        if kind == "mapped":
            data = MapDataset(data, _same)
        if kind == "framed":
            framed = Framed(data, framed_made.Packs(), errors=ErrorPolicy(on_error="substitute"))
            data = FramedRun(framed, global_batch_size=1)
        return loader_of(data)

    first = made(0, "t")
    next(iter(first))
    state = first.state_dict()
    with pytest.raises(StateError, match=rf"{CONTENTS}.*data's"):
        made(1, "u").load_state_dict(state)
    made(2, "t").load_state_dict(state)
    # As it is saved where contents are not known.
    assert state["recipe"].pop(CONTENTS)
    made(3, "u").load_state_dict(state)


def test_a_run_file_and_an_edit_know_contents(tmp_path: Path) -> None:
    one = dataset(tmp_path / "one")
    run = headrace.Run(headrace.Blend({"a": one}, weights={"a": 1}), global_batch_size=4)
    save_run(run, tmp_path / "run.json")
    headrace.Run.load(tmp_path / "run.json", trust_code=True)
    two = dataset(tmp_path / "two", letter="u")
    with pytest.raises(ConfigError, match="other"):
        run.edit(3, data=headrace.Blend({"a": two}, weights={"a": 1}))
    for source in (tmp_path / "two").iterdir():
        if source.is_file():
            (tmp_path / "one" / source.name).write_bytes(source.read_bytes())
    with pytest.raises(StoreError, match="from"):
        headrace.Run.load(tmp_path / "run.json", trust_code=True)


def test_random_numbers_do_not_depend_on_contents(tmp_path: Path) -> None:
    one, two = (MapDataset(dataset(tmp_path / letter, letter=letter), _same, seeded=True) for letter in "tu")
    assert one.recipe != two.recipe
    assert one._key == two._key


def test_facts_of_other_contents_are_not_taken(tmp_path: Path) -> None:
    both = [dataset(tmp_path / letter, letter=letter) for letter in "tu"]
    facts = [measure(one, Doubled(), folder=tmp_path / "facts") for one in both]
    assert facts[0].path != facts[1].path
    for letter, found in zip("tu", facts, strict=True):
        again = dataset(tmp_path / f"{letter} again", letter=letter)
        assert found.is_of(again)
        assert measure(again, Doubled(), folder=tmp_path / "facts").path == found.path


def test_the_ends_of_many_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    tars = [write_tar(tmp_path / "tars" / f"{number}.tar", members("t", 2)) for number in range(70)]
    known = TarStore(tmp_path / "tars").fingerprint
    with monkeypatch.context() as patch:
        patch.setattr(headrace.io.Reader, "ends", None)
        assert TarStore(tmp_path / "tars").fingerprint == known
    [kept] = (tmp_path / "cache" / "ends").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1] + b"!")
    assert TarStore(tmp_path / "tars").fingerprint == known, "what is kept is compared"
    write_tar(tars[40], members("u", 2))
    os.utime(tars[40].with_name("40.tar.idx"))
    assert TarStore(tmp_path / "tars").fingerprint != known


@pytest.mark.parametrize("kind", ["tar", "energon", "files"])
def test_a_url_has_the_fingerprint_of_the_disk(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    local = MAKES[kind](tmp_path / "data", "t")
    with memory_bucket() as bucket:
        url = bucket.upload(tmp_path / "data", "data")

        opened: dict[str, Callable[..., SampleStore]] = {
            "tar": partial(TarStore, f"{url}/0.tar"),
            "energon": partial(EnergonStore, url, split_part="train"),
            "files": partial(FilesystemStore, url),
        }
        for _ in range(2):
            using = ObjectReader()
            assert opened[kind](using=using).fingerprint == local.fingerprint
        assert using.stats.gets <= (1 if kind == "tar" else 0), "the ends are kept"


def test_a_state_of_a_folder_goes_on_at_a_url(tmp_path: Path) -> None:
    """Where contents are not known. A web server or a bucket takes a GET for each file."""
    one = dataset(tmp_path / "files", "files")
    loader = loader_of(one)
    next(iter(loader))
    with memory_bucket() as bucket:
        url = bucket.upload(tmp_path / "files", "files")
        there = MediaDataset(FilesystemStore(url, using=ObjectReader()), TextSample, {"text": "txt"})
        loader_of(there).load_state_dict(loader.state_dict())
