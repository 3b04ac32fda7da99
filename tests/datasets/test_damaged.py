"""What datasets and runs read, damaged: a HeadraceError or right data, in bounded time and memory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pytest

import corpora
import headrace
from counts import cases
from damage import endured
from energon_prepared import prepared
from headrace.compat.megatron import GPTDataset
from headrace.compat.megatron.caches import read_description
from headrace.datasets import MeasuredFacts
from headrace.datasets.metadataset import load_dataset
from headrace.encoders import Fault, read_fault_report
from headrace.errors import InputError, StateError, StoreError
from headrace.plan.cursor import Cursor
from headrace.stores import keep_arrays
from headrace.tracing import read_run_file, save_run
from token_shards import write_raw

GOLDEN = Path(__file__).parents[1] / "golden" / "megatron_cache" / "cache"
TRAIN = "bcb2920e883e4c70d54391dab1f3d247"
Made = tuple[Path, Callable[[], Any]]


def windows(folder: Path) -> headrace.Run:
    sources = {}
    for name in "ab":
        corpora.write(folder / name, [np.arange(50), np.arange(20)])
        sources[name] = headrace.WindowDataset(headrace.open(folder / name), seq_len=8)
    blend = headrace.Blend(sources, weights={"a": 3.0, "b": 1.0})
    return headrace.Run(blend, global_batch_size=[(0, 2), (5, 4)], order=headrace.Order(seed=3), samples=200)


def run_json(folder: Path) -> Made:
    path = folder / "run.json"
    save_run(windows(folder), path)

    def use() -> None:
        for run in read_run_file(path).runs:
            made = run.run()
            made.plan.lookup(np.arange(20))
            made.schedule.step_of(50)

    return path, use


def recipe(folder: Path) -> Made:
    path = folder / "recipe.json"
    path.write_bytes(windows(folder).recipe.to_json())
    return path, lambda: headrace.plan.RunRecipe.from_json(path.read_bytes()).hashes()


def state(folder: Path) -> Made:
    path = folder / "state.json"
    run = windows(folder)
    cursor = Cursor(recipe=run.recipe.hashes(), step=2, position=4)
    path.write_text(json.dumps(cursor.to_dict()))

    def use() -> None:
        try:
            found = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:  # whoever saved it, reads it
            raise StateError("no JSON") from error
        if isinstance(found, dict):
            Cursor.from_dict(found).verified(run.recipe, run.schedule, 200, saved=None)

    return path, use


def facts(name: str) -> Callable[[Path], Made]:
    def make(folder: Path) -> Made:
        arrays = {"is_good": np.ones(40, bool), "num_outputs": np.ones(40, np.uint8), "faults": np.zeros(0, np.uint8)}
        summary = {
            "kind": "headrace.facts", "version": 1, "dataset": "d", "encoder": {}, "settings": {}, "samples": 40,
            "bad_samples": 0, "skipped_samples": 0, "outputs": 40, "tokens": None, "groups": [], "faults": [],
            "xxh3_128": "",
        }  # fmt: skip
        keep_arrays(folder, "facts", arrays, json.dumps(summary).encode())

        def use() -> Any:
            found = MeasuredFacts.find(folder / "facts")
            return None if found is None else (found.summary, {k: v.tolist() for k, v in found.arrays.items()})

        return folder / "facts" / name, use

    return make


def plan(name: str) -> Callable[[Path], Made]:
    """A plan that is damaged is made anew: the packs are always the same."""

    def make(folder: Path) -> Made:
        corpora.write(folder / "a", [np.arange(length) for length in (50, 3, 20, 7, 9, 31, 12)])
        store = headrace.open(folder / "a")
        packing = headrace.Packing(seq_len=20, over_long="split")

        def use() -> Any:
            dataset = headrace.PackedSequenceDataset(store, packing, plan_folder=folder / "plans")
            return [dataset[number]["input_ids"].tolist() for number in range(len(dataset))]

        use()
        (place,) = (folder / "plans").iterdir()
        return place / name, use

    return make


def description(folder: Path) -> Made:
    (golden,) = GOLDEN.glob(f"{TRAIN}-*-description.txt")
    path = Path(shutil.copy(golden, folder))
    return path, lambda: read_description(str(path))


def megatron_idx(folder: Path) -> Made:
    corpora.write(folder / "a", [np.arange(length) for length in (50, 3, 20, 7, 9, 31, 12)])

    def use() -> None:
        dataset = GPTDataset(folder / "a", sequence_length=8, num_samples=30)
        assert len(dataset.shuffle_index)
        dataset.read(np.arange(min(10, len(dataset))))

    return folder / "a.idx", use


MIX = """splits:
  train:
    blend:
      - path: a
        weight: 3.5
        subset: {range: [0%, 50%]}
      - blend_epochized:
          - {path: a, repetitions: 2, limit: 4}
          - {path: ./b, repetitions: 0.5, split_part: val, shuffle_over_epochs_multiplier: 3}
        weight: 1
  val:
    path: a
"""


def metadataset(folder: Path) -> Made:
    for name in "ab":
        shards = {f"{number}.tar": [(f"{name}{number}{each}.txt", b"t") for each in range(4)] for number in range(3)}
        (folder / name).mkdir()
        prepared(folder / name, shards, {"train": ["0.tar", "1.tar"], "val": ["2.tar"]})
        (folder / name / ".nv-meta" / "dataset.yaml").write_text(
            "sample_type: {__module__: megatron.energon, __class__: TextSample}\nfield_map: {text: txt}\n"
        )
    (folder / "mix.yaml").write_text(MIX)

    def use() -> None:
        found = load_dataset(folder / "mix.yaml")
        if "val" in found.splits:
            found.validation("val")
        run = headrace.Run(found.train("train"), global_batch_size=4)
        run.step(0)
        run.step(3)

    return folder / "mix.yaml", use


def dataset_yaml(folder: Path) -> Made:
    _, use = metadataset(folder)
    return folder / "a" / ".nv-meta" / "dataset.yaml", use


def report(folder: Path) -> Made:
    fault = Fault(
        source="s", index=1, shard="a.tar", key="k", address=0, attempt=0, hook="h", kind="K", reason="é", position=7
    )
    path = folder / "faults.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(fault) + b"\n" for _ in range(3)))
    return path, lambda: read_fault_report([path])


READERS: Final[dict[str, Callable[[Path], Made]]] = {
    "run.json": run_json,
    "recipe": recipe,
    "state": state,
    "list of facts": facts("kept.json"),
    "array of facts": facts("num_outputs.npy"),
    "list of a plan": plan("kept.json"),
    "array of a plan": plan("pieces.npy"),
    "description": description,
    "Megatron's .idx": megatron_idx,
    "metadataset": metadataset,
    "dataset.yaml": dataset_yaml,
    "report of faults": report,
}
VOUCHED: Final = {"list of facts", "array of facts", "list of a plan", "array of a plan"}


@pytest.fixture
def here() -> Iterator[None]:
    before = Path.cwd()
    yield
    os.chdir(before)


@pytest.mark.usefixtures("here")
@pytest.mark.filterwarnings("ignore:.*(weight|the documents are lost):UserWarning")
@pytest.mark.parametrize("name", READERS)
def test_damage_is_refused_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    path, use = READERS[name](tmp_path)
    assert endured(path, use, count=cases(10, 2000), vouched=name in VOUCHED) == {}


def test_what_outside_fuzzers_met(tmp_path: Path) -> None:
    """Each was another exception than ours."""
    path = tmp_path / "file"
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(StateError, match="damaged"):
        read_run_file(path)
    path.write_bytes(b'{"source": "\xff"}\n')
    with pytest.raises(InputError, match=r"1.*report"):
        read_fault_report([path])
    with pytest.raises(StoreError, match="5,000"):
        headrace.open("x" * 5000)
    with pytest.raises(StoreError, match=r"'a.x00b'"):
        headrace.open("a\0b")


def test_absurd_sizes_of_megatrons_index_take_no_memory(tmp_path: Path) -> None:
    """A shuffle index over 10^10 samples was made, as far as the memory went."""
    sizes = [2**31 - 1] * 5
    write_raw(tmp_path / "x", "uint16", sizes, [0, 4, 8, 12, 16], [0, 1, 2, 3, 4, 5], bytes(20))
    with pytest.raises(StoreError, match="x"):
        GPTDataset(tmp_path / "x", sequence_length=1)
    sizes = [2, 2**31 - 1, 2, 2, 2]
    write_raw(tmp_path / "y", "uint16", sizes, [0, 4, 8, 12, 16], [0, 1, 2, 3, 4, 5], bytes(20))
    with pytest.raises(StoreError, match=r"1.*2,147,483,647.*10"):
        GPTDataset(tmp_path / "y", sequence_length=1)
