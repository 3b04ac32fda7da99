"""Whatever reads from an object store says so if the store is away; nothing takes it for a fault, nor does a check."""

from __future__ import annotations

import contextlib
import itertools
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrow_made
import headrace
import made
import media_stores_made
import tars_made
from counts import cases
from energon_made import PNG, PRIMARY, SECONDARY, write_files
from energon_prepared import prepared as prepared_energon
from headrace.datasets.loss_masks import warn_unused_mask
from headrace.datasets.metadataset import load_dataset
from headrace.datasets.mix import tokenizer_of
from headrace.engine.shared_objects import SharedObjects
from headrace.errors import StoreAwayError, StoreError
from headrace.inspect.origins import _inputs
from headrace.preparing import PrepareOptions, TokenOptions, prepare
from headrace.preparing.energon import EnergonOptions, prepare_energon
from headrace.preparing.energon.options import SplitChoice
from headrace.preparing.shards import ShardOptions, ShardSource, prepare_shards
from headrace.stores import write_hdf5
from headrace.stores.energon import EnergonStore, MediaRow, update_media
from headrace.stores.quarantine import BadSample, add_bad_samples
from headrace.tracing import save_run
from memory_stores import Away, MemoryBucket
from shards_made import inline

TEXT = PrepareOptions(tokens=TokenOptions(backend="tokenizers"), workers=1)
JOINER = {"__module__": "megatron.energon", "__class__": "TextSample"}


class Given(NamedTuple):
    """What the acts begin with."""

    bucket: MemoryBucket
    prepared: Path
    corpus: Path
    tokenizer: Path
    folder: Path
    """An empty one."""

    def web(self) -> str:
        return self.bucket.upload(self.prepared, "web")

    def energon(self, shards: dict[str, list[tuple[str, bytes]]] = PRIMARY, name: str = "ds") -> str:
        prepared_energon(self.folder / name, shards)
        return self.bucket.upload(self.folder / name, name)

    def tars(self) -> Path:
        for shard in range(3):
            tars_made.write_tar(self.folder / "tars" / f"{shard}.tar", [(f"{shard}{n}.txt", b"x") for n in range(3)])
        return self.folder / "tars"


Act = Callable[[int], Any]


def text_that_is_prepared(given: Given) -> Act:
    def act(number: int) -> Any:
        return prepare([given.corpus], f"{given.bucket.url}/o", tokenizer=given.tokenizer, options=TEXT)

    act(0)
    return act


def files(given: Given) -> Act:
    (given.folder / "files").mkdir()
    for number in range(3):
        (given.folder / "files" / f"{number}.png").write_bytes(PNG)
    url = given.bucket.upload(given.folder / "files", "files")

    def act(number: int) -> Any:
        with inline():
            return prepare_shards([url], given.folder / f"{number}", options=ShardOptions(source=ShardSource()))

    return act


def energon_that_is_prepared(given: Given) -> Act:
    url = given.bucket.upload(given.tars(), "ds")
    prepare_energon(url, options=EnergonOptions(split=SplitChoice(ratio=(1, 0, 0))))

    def act(number: int) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SharedObjects, "sweep", lambda shared: None)  # it removes what nobody reads, if it can
            return prepare_energon(url, options=EnergonOptions())

    return act


def copies(given: Given) -> Act:
    url = given.web()

    def act(number: int) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SharedObjects, "sweep", lambda shared: None)  # it removes what nobody reads, if it can
            return headrace.merge([url, url], f"{given.bucket.url}/{number}")

    return act


def a_copy_that_is_made(given: Given) -> Act:
    url = given.web()
    headrace.merge([url, url], f"{given.bucket.url}/copy")
    return lambda number: headrace.merge([url, url], f"{given.bucket.url}/copy")


def a_member(given: Given) -> Act:
    media_stores_made.lines(given.folder)
    (given.folder / "mix.yaml").write_text(json.dumps({"splits": {"train": {"path": "t.jsonl"}}}))
    url = given.bucket.upload(given.folder, "x")
    return lambda number: load_dataset(f"{url}/mix.yaml").train()


def a_join(given: Given) -> Act:
    columns = [{"path": given.energon()}, {"path": given.energon(SECONDARY, "more"), "nonmatch": "none"}]

    def act(number: int) -> Any:
        (given.folder / f"{number}").mkdir()
        mix = given.folder / f"{number}" / "mix.yaml"
        mix.write_text(json.dumps({"splits": {"train": {"join": columns, "joiner": JOINER}}}))
        return load_dataset(mix).prepare()

    return act


def a_store_of_a_worker(given: Given) -> Act:
    sent = pickle.dumps(EnergonStore(given.energon()))
    return lambda number: pickle.loads(sent).read(np.arange(2))


def bad_samples(given: Given) -> Act:
    url = given.energon()

    def act(number: int) -> Any:
        store = EnergonStore(url)
        return add_bad_samples(store, [BadSample(shard=store.shards[0], key=store.key(0))])

    return act


def a_saved_run(given: Given) -> Act:
    dataset = headrace.WindowDataset.open(given.web(), seq_len=8)
    save_run(headrace.Run(dataset, global_batch_size=2, samples=10), given.folder / "run.json")
    return lambda number: headrace.Run.load(given.folder / "run.json")


def a_mask(given: Given) -> Act:
    [index] = given.prepared.rglob("*.idx")
    url = f"{given.web()}/{index.relative_to(given.prepared).with_suffix('')}"
    return lambda number: warn_unused_mask(headrace.open(url), "somebody")


def a_tokeniser(given: Given) -> Act:
    url = given.web()

    def act(number: int) -> Any:
        store = headrace.open(url)
        store.close()  # after which objects are looked up anew
        return tokenizer_of(store)

    return act


def lines_of_documents(given: Given) -> Act:
    url = given.web()
    return lambda number: list(_inputs(url, [0, 1]))


ACTS = (
    text_that_is_prepared,
    files,
    energon_that_is_prepared,
    copies,
    a_copy_that_is_made,
    a_member,
    a_join,
    a_store_of_a_worker,
    bad_samples,
    a_saved_run,
    a_mask,
    a_tokeniser,
    lines_of_documents,
)


@pytest.mark.parametrize("make", ACTS, ids=lambda act: act.__name__)
def test_one_request_without_an_answer(
    make: Callable[[Given], Act],
    bucket: MemoryBucket,
    away: Away,
    prepared: Path,
    corpus: Path,
    tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    act = make(Given(bucket, prepared, corpus, tokenizer, tmp_path))
    for number in itertools.count(1):
        monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / f"cache{number}"))
        away(number - 1, 1)
        with contextlib.suppress(StoreAwayError):
            told = act(number)
            if away.num_failed and "the store is away" in str(told):
                continue
            assert not away.num_failed, f"request {number} had no answer, and nobody said so"
            break
    assert number > 2


LISTS = pa.table({"input_ids": pa.array([[0, 1, 2, 3, 4], [5]], pa.list_(pa.int32()))})


def within(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Makes files in a folder that is new."""

    def made_within(folder: Path) -> None:
        folder.mkdir()
        make(folder)

    return made_within


def plain_files(folder: Path) -> None:
    names = {f"{number}.json": b"{}" for number in range(3)}
    update_media(write_files(folder, names), [MediaRow(name, "image", "{}") for name in names], [])


def a_mix(folder: Path) -> None:
    media_stores_made.ocr(folder / "ocr")
    (folder / "mix.yaml").write_text("splits: {train: {path: ocr}}\n")


TOKENS = {"tokens": [np.arange(5), np.arange(7)]}
LINES = '{"tokens": [0, 1, 2]}\n{"tokens": [3, 4]}\n'


STORES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pairs": (made.one_key, ""),
    "keyed": (lambda folder: made.two_keys(folder, "keyed"), ""),
    "hdf5": (within(lambda folder: write_hdf5(folder / "x.h5", TOKENS)), "/x.h5"),
    "lines": (within(lambda folder: (folder / "x.jsonl").write_text(LINES)), "/x.jsonl"),
    "parquet": (within(lambda folder: pq.write_table(LISTS, folder / "x.parquet")), "/x.parquet"),
    "a saved dataset": (lambda folder: arrow_made.save(folder, LISTS, num_files=2), ""),
    "tars": (within(media_stores_made.plain), ""),
    "energon": (media_stores_made.ocr, ""),
    "files": (within(plain_files), ""),
    "samples in lines": (within(media_stores_made.lines), "/t.jsonl"),
    "a metadataset": (within(a_mix), "/mix.yaml"),
}


@pytest.mark.parametrize("kind", STORES)
def test_a_store_that_goes_away_is_no_fault(
    kind: str,
    run: Any,
    bucket: MemoryBucket,
    away: Away,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After any number of answers; in the end the store answers all that the check asks."""
    make, place = STORES[kind]
    make(tmp_path / "made")
    url = bucket.upload(tmp_path / "made", "made") + place
    for num_answers in range(0, 100, cases(2, 1)):
        monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / f"cache{num_answers}"))
        away(num_answers)
        done = run("check", url)
        if done.exit_code == 0:
            break
        where = f"after {num_answers} answers: {done.output}"
        assert done.exit_code == StoreError.exit_code, where
        assert "the store is away" in done.stderr, where
        assert not done.stdout, where
    assert 3 < num_answers < 99
    assert "whole" in done.stdout
