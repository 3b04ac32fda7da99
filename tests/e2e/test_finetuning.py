"""From JSON Lines of each layout to batches of each training type: the command line, a store, the loader, resumed."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer

import faults
import headrace
import layouts_made
import recipe_runs
import recipes_made
from counts import PATIENCE_S
from headrace.cli import main
from headrace.datasets import Dataset
from headrace.preparing.output_folder import WORK_NAME
from headrace.samples.layouts import LAYOUTS
from headrace.samples.recipe.recipe import MAKES
from headrace.stores import Store, load_manifest

COUNT, EPOCHS, GLOBAL = 13, 2, 5
WINDOW = 16
CASES = [(layout, kind) for layout, made in layouts_made.MADE.items() for kind in made(0).becomes]
LIVES = [[(3, 1, 2), (2, 4, 1), (1, 2, 3), (5, 1, 99)], [(2, 3, 1), (4, 2, 1), (1, 5, 99)]]
"""(ranks, micro-batch, micro-steps until the kill) of each life of a job."""

TOKENIZER = Tokenizer.from_str(recipes_made.tokenizer_json().decode())
Row = dict[str, Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current one, with a model in it."""
    recipe_runs.make_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)


def invoke(*arguments: Any) -> Any:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


def prepare(layout: str, kind: str, more: str = "", count: int = COUNT) -> dict[str, Any]:
    """``headrace prepare --recipe`` into ``out``, its workers in this process: what it says."""
    Path("data.jsonl").write_text(layouts_made.lines(layout, count), encoding="utf-8")
    recipe = f"type: {kind}\ninputs: data.jsonl\ntokenizer: model\n{more}"
    if (layout, kind) == ("text", "sft"):
        recipe += "mask: {on_all_supervised: allow}\n"
    Path("recipe.yaml").write_text(recipe)
    with faults.small_run():
        result = invoke("prepare", "--recipe", "recipe.yaml", "--output", "out", "--backend", "tokenizers", "--json")
    assert f"inputs[0] is of the layout {layout}: " in result.stderr
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def dataset_of(kind: str, store: Store) -> Dataset:
    collation = headrace.datasets.Collation(multiple_of=4, padding_idx=7)
    if kind == "seq":
        return headrace.WindowDataset(store, seq_len=WINDOW)
    classes = {
        "sft": headrace.SFTDataset,
        "dpo": headrace.PreferenceDataset,
        "grpo": headrace.GroupDataset,
        "prompt": headrace.PromptDataset,
    }
    return classes[kind](store, collation)


def make_run(kind: str, **options: Any) -> headrace.Run:
    order = headrace.Order(seed=3)
    return headrace.Run(
        dataset_of(kind, headrace.open("out")), global_batch_size=GLOBAL, order=order, epochs=EPOCHS, **options
    )


def rows_of(batch: dict[str, Any], kind: str) -> list[Row]:
    """The samples of a batch without pads."""
    found: list[Row] = []
    for row in range(len(batch["sample_positions"])):

        def kept(name: str, mask: str, row: int = row) -> list[Any]:
            return batch[name][row][batch[mask][row].bool()].tolist()  # type: ignore[no-any-return]

        if kind == "seq":
            found.append({name: batch[name][row].tolist() for name in ("input_ids", "labels")})
        elif kind == "sft":
            found.append({name: kept(name, "attention_mask") for name in ("input_ids", "labels", "position_ids")})
        elif kind == "dpo":
            names = [f"{side}_{name}" for side in ("chosen", "rejected") for name in ("input_ids", "labels")]
            found.append({name: kept(name, f"{name.partition('_')[0]}_attention_mask") for name in names})
        elif kind == "prompt":
            found.append({"input_ids": kept("input_ids", "attention_mask"), "columns": batch["columns"][row]})
        else:
            group = [index for index, is_there in enumerate(batch["group_mask"][row].tolist()) if is_there]
            found.append(
                {
                    "prompts": kept("prompts", "prompt_mask"),
                    "rewards": batch["rewards"][row][group].tolist(),
                    **{
                        name: [batch[name][row, one][batch["response_mask"][row, one]].tolist() for one in group]
                        for name in ("responses", "masks")
                    },
                }
            )
    return found


def fed(run: headrace.Run, kind: str, lives: list[tuple[int, int, int]]) -> dict[int, list[Row]]:
    """By position what was trained on by a job that is killed at the end of each life but its last."""
    seen: dict[int, list[Row]] = {}
    state: dict[str, Any] | None = None
    for world_size, micro_batch_size, micro_steps in lives:
        states = []
        for rank in range(world_size):
            ranks = headrace.loader.Ranks(rank, world_size)
            loader = headrace.Loader(run, micro_batch_size=micro_batch_size, ranks=ranks)
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            for batch in itertools.islice(loader, micro_steps):
                for position, row in zip(batch["sample_positions"].tolist(), rows_of(batch, kind), strict=True):
                    seen.setdefault(position, []).append(row)
            states.append(loader.state_dict())
        assert all(other == states[0] for other in states)
        state = states[0]
    return seen


def said(ids: list[int]) -> str:
    return TOKENIZER.decode([token for token in ids if token != -100], skip_special_tokens=False)  # type: ignore[no-any-return]


def check_shift(ids: list[int], labels: list[int]) -> None:
    """A label stands beside the token before it."""
    assert all(label in (-100, after) for label, after in zip(labels, [*ids[1:], -100], strict=True))


def check_words(kind: str, row: Row, words: dict[str, Any], *, first_is_label: bool) -> None:
    """One sample says what its record should have become."""
    if kind == "sft":
        whole, trained = words["tokens"]
        assert said(row["input_ids"]) == whole
        assert said(row["labels"]) == (said(row["input_ids"][1:]) if first_is_label else trained)
        assert row["position_ids"] == list(range(len(row["input_ids"])))
        check_shift(row["input_ids"], row["labels"])
    elif kind == "dpo":
        for side, (whole, trained) in words.items():
            assert (said(row[f"{side}_input_ids"]), said(row[f"{side}_labels"])) == (whole, trained)
            check_shift(row[f"{side}_input_ids"], row[f"{side}_labels"])
    elif kind == "prompt":
        assert (said(row["input_ids"]), row["columns"]) == (words["prompts"], words["columns"])
    else:
        assert said(row["prompts"]) == words["prompts"]
        assert list(map(said, row["responses"])) == words["responses"]
        assert all(all(mask) for mask in row["masks"])
        assert row["rewards"] == words["rewards"]


def test_every_layout_has_every_type_that_it_can_become() -> None:
    assert set(layouts_made.MADE) == set(LAYOUTS)
    wanted = [
        (name, kind) for name, layout in LAYOUTS.items() for kind, makes in MAKES.items() if layout.makes in makes
    ]
    assert sorted(CASES) == sorted(wanted)


@pytest.mark.parametrize(("layout", "kind"), CASES)
@pytest.mark.sampled(7)
def test_to_batches_killed_and_resumed_on_other_ranks(layout: str, kind: str) -> None:
    report = prepare(layout, kind)
    assert report["documents"] == report["records"] == COUNT
    assert list(load_manifest("out").faults()) == []
    invoke("check", "out")

    run = make_run(kind)
    whole = fed(run, kind, [(1, 2, 99)])
    assert sorted(whole) == list(range(EPOCHS * len(run.datasets[0])))
    for lives in LIVES:
        assert fed(run, kind, lives) == whole
    assert all(len(rows) == 1 for rows in whole.values()), "nothing comes twice"

    examples = [layouts_made.MADE[layout](number).becomes[kind] for number in range(COUNT)]
    found = run.lookup(np.arange(len(whole)))
    if kind == "seq":
        stream = "".join(words["tokens"][0] for words in examples)
        ids = TOKENIZER.encode(stream, add_special_tokens=False).ids
        for position, window in enumerate(found.indices.tolist()):
            begin = window * WINDOW
            [row] = whole[position]
            assert row["input_ids"] == ids[begin : begin + WINDOW]
            assert row["labels"] == ids[begin + 1 : begin + WINDOW + 1]
        return
    for position, record in enumerate(found.indices.tolist()):
        check_words(kind, whole[position][0], examples[record], first_is_label=layout == "text")
    for epoch in range(EPOCHS):
        assert sorted(found.indices[found.epochs == epoch].tolist()) == list(range(COUNT))


@pytest.mark.parametrize("layout", ["messages", "preference", "group", "prompt"])
@pytest.mark.sampled(2)
def test_every_format_feeds_the_same(layout: str) -> None:
    kind = {"messages": "sft", "preference": "dpo", "group": "grpo", "prompt": "prompt"}[layout]
    rows = []
    for store_format in ("indexed", "keyed", "jsonl", "hdf5"):
        if store_format == "hdf5":
            pytest.importorskip("h5py")
        shutil.rmtree("out", ignore_errors=True)
        prepare(layout, kind, f"output: {{format: {store_format}, shard_tokens: 400}}\n")
        assert len({shard.prefix for shard in load_manifest("out").outputs}) > 1
        rows.append(fed(make_run(kind), kind, [(2, 2, 1), (1, 3, 99)]))
    assert all(row == rows[0] for row in rows)


@pytest.mark.parametrize("bucketed", [False, True])
def test_the_labels_of_a_step_are_known_without_asking_other_ranks(bucketed: bool) -> None:
    prepare("messages", "sft", "length: {max_tokens: 60, truncate: keep_start}\n")
    bucketing = headrace.plan.Bucketing(window_steps=3) if bucketed else None
    run = make_run("sft", bucketing=bucketing)
    by_step: dict[int, int] = {}
    told: dict[int, set[int]] = {}
    for rank in range(3):
        for batch in headrace.Loader(run, micro_batch_size=1, ranks=headrace.loader.Ranks(rank, 3)):
            if len(batch["sample_positions"]):
                step = int(batch["sample_positions"][0]) // GLOBAL
                labels = int((batch["labels"] != -100).sum())
                assert batch["num_supervised_tokens"] == labels
                by_step[step] = by_step.get(step, 0) + labels
                told.setdefault(step, set()).add(batch["step_supervised_tokens"])
    assert told == {step: {labels} for step, labels in by_step.items()}
    samples = load_manifest("out").ledger.samples
    assert samples is not None
    assert samples.keys["tokens"].truncated["length"] > 0
    assert sum(by_step.values()) == EPOCHS * samples.supervised


def test_the_same_conversations_packed() -> None:
    """Each conversation once an epoch, in packs, with the same labels; killed and resumed on other ranks."""
    prepare("messages", "sft")
    store = headrace.open("out")
    packing = headrace.Packing(seq_len=160)
    dataset = headrace.PackedSequenceDataset(store, packing, loss_mask_key="loss_mask")
    run = headrace.Run(dataset, global_batch_size=2, order=headrace.Order(seed=1), epochs=1)

    def packs(lives: list[tuple[int, int, int]]) -> dict[int, Any]:
        seen: dict[int, Any] = {}
        state = None
        for world_size, micro_batch_size, micro_steps in lives:
            for rank in range(world_size):
                loader = headrace.Loader(
                    run, micro_batch_size=micro_batch_size, ranks=headrace.loader.Ranks(rank, world_size)
                )
                if state is not None:
                    loader.load_state_dict(state)
                for batch in itertools.islice(loader, micro_steps):
                    for row, position in enumerate(batch["sample_positions"].tolist()):
                        assert position not in seen
                        seen[position] = [batch[name][row].tolist() for name in ("input_ids", "labels", "document_ids")]
            state = loader.state_dict()
        return seen

    whole = packs([(1, 1, 99)])
    assert packs([(2, 1, 1), (1, 2, 99)]) == whole
    found = []
    for row in whole.values():
        ids, labels, documents = map(np.array, row)
        for document in set(documents.tolist()) - {-1}:
            found.append((said(ids[documents == document].tolist()), said(labels[documents == document].tolist())))
    wanted = sorted(layouts_made.messages(number).becomes["sft"]["tokens"] for number in range(COUNT))
    assert sorted(found) == wanted


PROGRAM = (
    "from headrace.preparing import recipes, run_plan; run_plan.MIN_PENDING_BYTES = 50_000; "
    "recipes.choose_task_bytes = lambda total: 50_000; "
    "from headrace.cli import main; main()"
)
"""The command, with many tasks and checkpoints."""


@pytest.mark.soak
def test_a_command_that_is_killed_goes_on_to_the_same_bytes() -> None:
    """SIGKILL for the real processes, workers too, when a part of the work is done."""
    count = 3000
    Path("data.jsonl").write_text(layouts_made.lines("messages", count), encoding="utf-8")
    Path("recipe.yaml").write_text("type: sft\ninputs: data.jsonl\ntokenizer: model\noutput: {shard_tokens: 200000}\n")
    command = [sys.executable, "-c", PROGRAM, "prepare", "--recipe", "recipe.yaml", "--backend", "tokenizers"]
    subprocess.run([*command, "-q", "--output", "wanted", "--workers", "1"], check=True, timeout=PATIENCE_S)
    process = subprocess.Popen([*command, "-q", "--output", "out", "--workers", "2"])
    until, work = time.monotonic() + PATIENCE_S, Path("out", WORK_NAME)
    while not ((work / "state").exists() and any(work.glob("parts.*/*.piece"))):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.002)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
    assert process.wait() == -signal.SIGKILL
    with pytest.raises(headrace.StoreError):
        headrace.open("out")
    done = subprocess.run(
        [*command, "--output", "out", "--workers", "2"], check=True, timeout=PATIENCE_S, capture_output=True, text=True
    )
    assert "note: continuing the unfinished run in this folder" in done.stderr
    assert faults.content(Path("out")) == faults.content(Path("wanted"))
    assert load_manifest("out").ledger.documents.kept == count
    dataset = dataset_of("sft", headrace.open("out"))
    for number in (0, count - 1):
        _, trained = layouts_made.messages(number).becomes["sft"]["tokens"]
        assert said(dataset[number]["labels"].tolist()) == trained
