"""Whatever reads from an object store says so if the store is away for one request; nothing takes it for a fault."""

from __future__ import annotations

import contextlib
import itertools
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import headrace
import media_stores_made
import tars_made
from energon_made import PNG, PRIMARY, SECONDARY
from energon_prepared import prepared as prepared_energon
from headrace.datasets.loss_masks import warn_unused_mask
from headrace.datasets.metadataset import load_dataset
from headrace.datasets.mix import tokenizer_of
from headrace.errors import StoreAwayError
from headrace.inspect.origins import _inputs
from headrace.preparing import TextOptions, TokenOptions, prepare_text
from headrace.preparing.energon import EnergonOptions, prepare_energon
from headrace.preparing.energon.options import SplitChoice
from headrace.preparing.shards import ShardOptions, ShardSource, prepare_shards
from headrace.stores.energon import EnergonStore
from headrace.stores.quarantine import BadSample, add_bad_samples
from headrace.tracing import save_run
from memory_stores import Away, MemoryBucket
from shards_made import inline

TEXT = TextOptions(tokens=TokenOptions(backend="tokenizers"), workers=1)
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

    def shard(self) -> str:
        [index] = self.prepared.rglob("*.idx")
        return f"{self.web()}/{index.relative_to(self.prepared).with_suffix('')}"

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
        return prepare_text([given.corpus], f"{given.bucket.url}/o", tokenizer=given.tokenizer, options=TEXT)

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

    def act(number: int) -> list[str]:
        notices: list[str] = []
        prepare_energon(url, options=EnergonOptions(), on_notice=notices.append)
        return notices  # that the field map could not be checked, in a dataset that is complete

    return act


def copies(given: Given) -> Act:
    url = given.web()
    return lambda number: headrace.merge([url, url], f"{given.bucket.url}/{number}")


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
    url = given.shard()
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
