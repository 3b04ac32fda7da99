"""Runs that are made again from their files: the same samples, or a reason."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import media_texts
import states_made
from headrace import Blend, Exclude, Order, Packing, Run
from headrace.datasets.encoded import EncodedDataset
from headrace.datasets.recipes import Maker
from headrace.encoders import DefaultTaskEncoder
from headrace.errors import ConfigError, StateError, StoreError
from headrace.tracing import read_run_file, save_run
from states_made import KINDS, NOT_MADE, blend, indexed, run_of, texts, windows


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the data, which the kinds share."""
    return tmp_path_factory.mktemp("rebuilding")


@pytest.fixture(autouse=True)
def _there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def reloaded(run: Any, **options: Any) -> Run:
    save_run(run, "run.json", position=0)
    found = Run.load("run.json", **options)
    Path("run.json").unlink()
    return found


def check_same(made: Run, run: Run, steps: range = range(8)) -> None:
    assert made.recipe.hashes() == run.recipe.hashes()
    assert (made.length, made.schedule, made.edits) == (run.length, run.schedule, made.edits)
    for position in (0, 1, 17, 40, 100):
        assert made.past(position).hashes() == run.past(position).hashes()
    for step in steps:
        assert states_made.digest(made.step(step)) == states_made.digest(run.step(step))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind: str) -> None:
    run = KINDS[kind]().run
    for name, reason in NOT_MADE.items():
        if kind.startswith(name):
            with pytest.raises(ConfigError, match=rf"{reason}.*save_run"):
                reloaded(run, trust_code=True)
            Path("run.json").unlink()
            return
    assert isinstance(run, Run)
    check_same(reloaded(run, trust_code=True), run)


def edited() -> Run:
    run = run_of(blend(), samples=None)
    run = run.edit(3, weights={"a": 1, "bb": 1, "ccc": 2}, reason="decay", global_batch_size=[(0, 8), (2, 12)])
    run = run.skip(range(5, 7), then="defer", reason="spike")
    run = run.edit(8, weights={"a": 1, "bb": 1, "d": 1}, add={"d": windows("dd")}, remove=["ccc"])
    finer = windows("bb", stride=4)
    data = Blend({"x": Blend({"a": windows("a"), "d": windows("dd")}, weights={"a": 1, "d": 1}), "fine": finer},
                 weights={"x": 1, "fine": 1})  # fmt: skip
    run = run.edit(11, data=data, renamed={"fine": "bb"}, order=Order(seed=9), samples=700)
    return run.edit(14, data=Blend({"x": data.children["x"], "ccc": windows("ccc")}, weights={"x": 0.1, "ccc": 0.3}))


def test_edited_runs() -> None:
    run = edited()
    made = reloaded(run)
    check_same(made, run, range(30))
    assert made.recipe.digest() == run.recipe.digest()
    facts = [(edit.at_step, edit.reason, edit.date, edit.asked) for edit in run.edits]
    assert [(edit.at_step, edit.reason, edit.date, edit.asked) for edit in made.edits] == facts
    assert made.generation == 1
    # What was loaded can be edited on.
    later = [one.edit(20, weights={"x": 3, "ccc": 1}, order=Order(kind="none")) for one in (run, made)]
    check_same(later[1], later[0], range(19, 30))
    check_same(reloaded(later[1]), later[0], range(19, 30))


def test_by_tokens_and_other_mixes() -> None:
    run = run_of(blend(weights={"a": 3, "bb": 2, "ccc": 1}, unit="tokens"), samples=None)
    run = run.edit(3, weights={"a": 1, "bb": 2, "ccc": 1})
    made = reloaded(run)
    check_same(made, run)
    limited = KINDS["limit, repeat, subset"]().run
    assert isinstance(limited, Run)
    finite = limited.edit(2, global_batch_size=4)
    check_same(reloaded(finite), finite)
    made = reloaded(finite)
    moved = Blend({"moved": made.data.children["limited"]}, weights={"moved": 1})  # type: ignore[union-attr]
    found = made.edit(3, data=moved)
    assert [path for path in found.paths if path.startswith("moved")] == ["moved"], "it is a mix like any other"


def shifted(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "labels": np.where(rng.random(len(sample["labels"])) < 0.2, -100, sample["labels"])}


@pytest.mark.parametrize("kind", ["windows", "packs", "mapped"])
def test_exclusions(kind: str) -> None:
    """Masks add up, hold through a new cut of the same store, and need no data to be planned again."""

    def cut(name: str, size: int) -> Any:
        if kind == "packs":
            return headrace.PackedSequenceDataset(indexed(name), Packing(seq_len=size, over_long="split"))
        found = headrace.WindowDataset(indexed(name), seq_len=size)
        return found if kind == "windows" else headrace.MapDataset(found, shifted, seeded=True)

    def data(**strides: int) -> Blend:
        return Blend({name: cut(name, size) for name, size in strides.items()}, weights=dict.fromkeys(strides, 1))

    run = run_of(data(a=16, bb=16), samples=None)
    run = run.edit(3, exclude={"a": Exclude(documents=[0, 3, 4, 5], pad_id=0)}, reason="takedown")
    run = run.edit(5, exclude={"a": Exclude(documents=[9], pad_id=0), "bb": Exclude(documents=[2], how="drop")})
    run = run.edit(7, data=data(a=16, bb=16), global_batch_size=6)
    fed = Blend({"a": run.datasets[-1], "bb": cut("bb", 16)}, weights={"a": 2, "bb": 1})
    if run.datasets[-1].recipe.get("documents"):
        run = run.edit(9, data=fed)
    made = reloaded(run, trust_code=True)
    check_same(made, run, range(20))
    assert [edit.exclude for edit in made.edits] == [edit.exclude for edit in run.edits]
    assert [one.documents for edit in made.edits for one in edit.exclude.values()] == ["0 3-5", "9", "2"]
    save_run(run, "run.json", position=0)
    (saved,) = read_run_file("run.json").runs
    assert saved.run().recipe.hashes() == run.recipe.hashes()
    later = [one.edit(15, weights={"a": 1, "bb": 3}) for one in (run, saved.run(), made)]
    assert len({one.recipe.digest() for one in later}) == 1
    Path("run.json").unlink()


def test_dropped_documents_of_a_source_that_is_cut_anew() -> None:
    """What a new cut leaves out is written, so that the file can be read without the data."""
    blends = [Blend({"a": windows("a", stride=stride)}, weights={"a": 1}) for stride in (16, 8)]
    run = run_of(blends[0], samples=None).edit(3, exclude={"a": Exclude(documents=[1, 2], how="drop")})
    run = run.edit(6, data=blends[1])
    assert run.edits[1].left_out["a"]
    check_same(reloaded(run), run, range(20))
    save_run(run, "run.json", position=0)
    assert read_run_file("run.json").runs[0].run().past(500).hashes() == run.past(500).hashes()
    Path("run.json").unlink()


def test_stores_that_are_gone_or_others(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree("data", folder)
    store = headrace.open(folder / "a")
    save_run(run_of(Blend({"web": headrace.WindowDataset(store, seq_len=16)}, weights={"web": 1})), "run.json")
    for name in ("a.bin", "a.idx"):
        shutil.copy(f"data/{name.replace('a', 'bb', 1)}", folder / name)
    with pytest.raises(StoreError, match="'web'"):
        Run.load("run.json")
    for name in ("a.bin", "a.idx"):
        (folder / name).unlink()
    with pytest.raises(StoreError, match="'web'"):
        Run.load("run.json")
    Path("run.json").unlink()


def test_code_runs_only_if_it_is_trusted() -> None:
    run = run_of(headrace.MapDataset(windows(), states_made.doubled))
    with pytest.raises(ConfigError, match=r"states_made.doubled.*trust_code"):
        reloaded(run)
    Path("run.json").unlink()
    inner = run_of(headrace.MapDataset(windows(), lambda sample: sample))
    with pytest.raises(ConfigError, match="imported"):
        reloaded(inner, trust_code=True)
    Path("run.json").unlink()
    fields = {**windows().fields, "length": ((1,), np.dtype(np.int64))}
    shaped = run_of(headrace.MapDataset(windows(), with_length, fields=fields, seeded=True))
    made = reloaded(shaped, trust_code=True)
    assert made.recipe.hashes() == shaped.recipe.hashes()


@pytest.mark.parametrize("name", ["headrace:io.places.os.getcwd", "headrace:datasets.recipes.Maker"])
def test_only_a_task_encoder_of_headrace_is_made_without_trust(name: str) -> None:
    media = headrace.MediaDataset.open(texts("t"), **media_texts.TEXT)
    maker = Maker(lambda _: media.store, trust_code=False)
    recipe = EncodedDataset(media, DefaultTaskEncoder()).recipe
    assert isinstance(maker.dataset(recipe), EncodedDataset)
    with pytest.raises(ConfigError, match=f"task encoder is {name}, .*derived from TaskEncoder"):
        maker.dataset({**recipe, "encoder": name})


def with_length(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "length": rng.integers(9, size=1)}


def test_one_of_several_runs() -> None:
    save_run(run_of(windows()), "run.json", position=0)
    save_run(run_of(windows(), order=Order(seed=5)), "run.json", position=80)
    assert Run.load("run.json").order.seed == 5
    assert [Run.load("run.json", at_step=step).order.seed for step in (0, 9, 10, 50)] == [3, 3, 5, 5]
    with pytest.raises(ConfigError, match=r"there.*-1"):
        Run.load("run.json", at_step=-1)
    Path("run.json").write_text("{}")
    with pytest.raises(StateError, match="saved"):
        Run.load("run.json")
    Path("run.json").unlink()
