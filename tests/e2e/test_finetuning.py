"""From JSON Lines of each layout to batches of each training type: the command line, a store, the loader, resumed."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings, strategies as st
from tokenizers import Tokenizer

import faults
import headrace
import layouts_made
import recipe_runs
import recipes_made
from counts import cases
from headrace.cli import main
from headrace.datasets import Dataset
from headrace.errors import InputError
from headrace.samples.layouts import LAYOUTS
from headrace.samples.recipe.recipe import MAKES
from headrace.stores import Store, load_manifest, save_manifest
from loader.jobs import Job

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
        job = Job(run, world_size, micro_batch_size, state, reading=None)
        for batch in itertools.chain.from_iterable(job.micro_steps(micro_steps)):
            for position, row in zip(batch["sample_positions"].tolist(), rows_of(batch, kind), strict=True):
                seen.setdefault(position, []).append(row)
        state = job.state()
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


USER, YES = recipes_made.USER, recipes_made.YES
THOUGHTS = [USER, YES | {"reasoning_content": "hm"}, USER, YES | {"reasoning_content": "ha"}]
TURN = "<|start|>{{ m.role }}\n{{ m.content }}"
PROMPT = "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
TAGGED = "{% generation %}{% for m in messages %}" + TURN + "<|end|>\n{% endfor %}{% endgeneration %}"
ENDLESS = "{% for m in messages %}" + TURN + "\n{% endfor %}" + PROMPT
TWICE = "<bos>{% if messages[0].content == 'again' %}<bos>{% endif %}" + recipes_made.TEMPLATE


class Wrong(NamedTuple):
    """A template, the option that decides, conversations that are right and the one that is not, what is said of it."""

    template: str
    option: str
    good: list[Any]
    bad: list[Any]
    message: str


WRONG = {
    "no_supervised": Wrong(recipes_made.TEMPLATE, "on_no_supervised", [USER, YES], [USER], "none of its"),
    "all_supervised": Wrong(TAGGED, "generation_tags: exact, on_all_supervised", [], [USER, YES], "though"),
    "unstable_template": Wrong(
        recipe_runs.THINKING, "unstable", [USER, YES], THOUGHTS, "differently when more messages follow"
    ),
    "doubled_bos": Wrong(TWICE, "on_doubled_bos", [USER, YES], [{**USER, "content": "again"}, YES], "two BOS"),
    "untrained_end": Wrong(ENDLESS, "on_untrained_end", [], [USER, YES], "ends without a special token"),
}
"""By reason."""


def prepare_records(recipe: str, records: list[Any], template: str = recipes_made.TEMPLATE, into: str = "out") -> Any:
    recipe_runs.make_model(Path("model"), template)
    recipe_runs.write_lines(Path("data.jsonl"), records)
    Path("recipe.yaml").write_text(f"inputs: data.jsonl\ntokenizer: model\n{recipe}")
    with faults.small_run():
        return CliRunner().invoke(main, ["prepare", "--recipe", "recipe.yaml", "-o", into, "--backend", "tokenizers"])


@pytest.mark.parametrize("reason", WRONG)
def test_a_mask_that_cannot_be_right_ends_the_build_or_is_a_counted_drop(reason: str) -> None:
    wrong = WRONG[reason]
    records = [{"messages": talk} for talk in (wrong.good, wrong.good, wrong.bad) if talk]
    mask = f"type: sft\nmask: {{{wrong.option}: %s}}\n"
    result = prepare_records(mask % "error", records, wrong.template)
    assert result.exit_code == InputError.exit_code, result.output
    assert f"data.jsonl, line {len(records)}" in result.stderr
    assert wrong.message in result.stderr
    assert not Path("out/headrace.json").exists()

    result = prepare_records(mask % "drop", records, wrong.template, "other")
    if not wrong.good:
        assert f"no documents are left of 1 records: {reason} 1" in result.stderr
        return
    assert result.exit_code == 0, result.output
    manifest = load_manifest("other")
    assert (manifest.ledger.documents.kept, manifest.ledger.documents.dropped) == (2, {reason: 1})
    assert list(manifest.faults()) == []


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, headrace.stores.Store]:
    """One for each training type."""
    found = {}
    for kind, layout in (("sft", "messages"), ("dpo", "preference"), ("grpo", "group"), ("prompt", "prompt")):
        place = tmp_path_factory.mktemp(kind)
        recipe_runs.make_model(place / "model")
        records = [layouts_made.MADE[layout](number).record for number in range(12)]
        recipe_runs.write_lines(place / "data" / "a.jsonl", records)
        with faults.small_run():
            recipe_runs.prepare(f"type: {kind}\ninputs: data\ntokenizer: model\n", place, place / "out")
        found[kind] = headrace.open(place / "out")
    return found


@pytest.mark.parametrize("store_format", ["indexed", "keyed", "hdf5", "jsonl"])
def test_ids_beyond_the_vocabulary_are_found(store_format: str) -> None:
    """In every key of ids, as if another tokeniser had made them."""
    if store_format == "hdf5":
        pytest.importorskip("h5py")
    records = [layouts_made.group(number).record for number in range(5)]
    assert prepare_records(f"type: grpo\noutput: {{format: {store_format}}}\n", records).exit_code == 0
    manifest = load_manifest("out")
    assert manifest.tokenizer is not None
    smaller = msgspec.structs.replace(manifest.tokenizer, vocab_size=100)
    save_manifest("out", msgspec.structs.replace(manifest, tokenizer=smaller))
    result = CliRunner().invoke(main, ["check", "out", "--json"])
    problems = json.loads(result.stdout)["problems"]
    assert result.exit_code == 1
    assert len(problems) == 2 * len(records)  # prompts and responses, and neither masks, lengths nor rewards
    assert all("is outside the vocabulary, 0 to 99" in problem["message"] for problem in problems)


def datasets(stores: dict[str, headrace.stores.Store]) -> dict[str, Any]:
    packing = headrace.Packing(seq_len=180)
    return {
        **{kind: dataset_of(kind, store) for kind, store in stores.items()},
        "packed": headrace.PackedSequenceDataset(stores["sft"], packing, loss_mask_key="loss_mask"),
        "windows": headrace.WindowDataset(stores["sft"], seq_len=16, position_ids="restart"),
    }


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("kind", ["sft", "packed", "windows", "dpo", "grpo", "prompt"])
def test_what_is_changed_in_place_changes_nothing_later(
    stores: dict[str, headrace.stores.Store], kind: str, num_threads: int
) -> None:
    run = headrace.Run(
        datasets(stores)[kind], global_batch_size=3, order=headrace.Order(kind="none"), epochs=3, drop_last=True
    )
    found: dict[bool, list[Any]] = {True: [], False: []}
    for is_ruined in found:
        for batch in headrace.Loader(run, micro_batch_size=2, reading=headrace.loader.Reading(num_threads=num_threads)):
            found[is_ruined].append({name: v.tolist() if torch.is_tensor(v) else repr(v) for name, v in batch.items()})
            for name, value in batch.items() if is_ruined else ():
                if torch.is_tensor(value):
                    value.fill_(1)
                elif name == "columns":
                    for columns in value:
                        columns["reward_model"].clear()
    assert found[True] == found[False]


@settings(max_examples=cases(10, 200), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 8), st.sampled_from(["sft", "packed"]), st.booleans())
def test_gradients_of_any_split_are_those_of_the_whole_step(
    stores: dict[str, headrace.stores.Store], ranks: int, micro: int, size: int, kind: str, bucketed: bool
) -> None:
    """In 64 bits, without anything said between ranks; the step at once is that of its documents, one by one."""
    dataset, store = datasets(stores)[kind], stores["sft"]
    bucketing = headrace.plan.Bucketing(window_steps=2) if bucketed and kind == "sft" else None
    run = headrace.Run(dataset, global_batch_size=size, order=headrace.Order(seed=2), epochs=1, bucketing=bucketing)
    weights = np.sin(np.linspace(-9, 9, 20 * 30)).reshape(20, 30)

    def gradient(ids: Any, labels: Any, count: int) -> Any:
        """Of the cross entropy, summed and divided by the count; a token's logits are a row of the weights."""
        is_label = labels != -100
        rows, targets = ids[is_label] % 20, labels[is_label] % 30
        pulls = np.exp(weights[rows])
        pulls /= pulls.sum(axis=1, keepdims=True)
        pulls[np.arange(len(targets)), targets] -= 1
        found = np.zeros_like(weights)
        np.add.at(found, rows, pulls / count)
        return found

    split: dict[int, Any] = {}
    for rank in range(ranks):
        for batch in headrace.Loader(run, micro_batch_size=micro, ranks=headrace.loader.Ranks(rank, ranks)):
            if len(batch["sample_positions"]):
                step = int(batch["sample_positions"][0]) // size
                ids, labels = batch["input_ids"].numpy(), batch["labels"].numpy()
                split[step] = split.get(step, 0) + gradient(ids, labels, batch["step_supervised_tokens"])
    assert sorted(split) == list(range(run.num_steps or 0))
    for step, found in split.items():
        pairs = []
        for number in _documents(run, step, kind):
            own, mask = (store.document(number, key).astype(np.int64) for key in ("tokens", "loss_mask"))
            pairs.append((own[:-1], np.where(mask[1:] == 1, own[1:], -100)))
        ids, labels = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        wanted = gradient(ids, labels, np.count_nonzero(labels != -100))
        assert np.linalg.norm(found - wanted) <= 1e-12 * np.linalg.norm(wanted)


def _documents(run: headrace.Run, step: int, kind: str) -> list[int]:
    """The documents of a step, each whole."""
    if kind == "sft":
        return run.lookup(run.positions(step)).indices.tolist()  # type: ignore[no-any-return]
    found = run.step(step)["document_ids"]
    return [number for row in np.asarray(found).tolist() for number in dict.fromkeys(row) if number >= 0]
