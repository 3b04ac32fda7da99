"""What users of fine-tuning data rely on: masks that are right or refused, the right loss, arrays of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import faults
import headrace
import layouts_made
import recipe_runs
import recipes_made
from counts import cases
from headrace.cli import main
from headrace.errors import InputError
from headrace.stores import load_manifest, save_manifest

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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with a model in it."""
    recipe_runs.make_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepare(recipe: str, records: list[Any], template: str = recipes_made.TEMPLATE, into: str = "out") -> Any:
    recipe_runs.make_model(Path("model"), template)
    recipe_runs.write_lines(Path("data.jsonl"), records)
    Path("recipe.yaml").write_text(f"inputs: data.jsonl\ntokenizer: model\n{recipe}")
    with faults.small_run():
        return CliRunner().invoke(main, ["prepare", "--recipe", "recipe.yaml", "-o", into, "--backend", "tokenizers"])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("reason", WRONG)
def test_a_mask_that_cannot_be_right_ends_the_build_or_is_a_counted_drop(reason: str) -> None:
    wrong = WRONG[reason]
    records = [{"messages": talk} for talk in (wrong.good, wrong.good, wrong.bad) if talk]
    mask = f"type: sft\nmask: {{{wrong.option}: %s}}\n"
    result = prepare(mask % "error", records, wrong.template)
    assert result.exit_code == InputError.exit_code, result.output
    assert f"data.jsonl, line {len(records)}" in result.stderr
    assert wrong.message in result.stderr
    assert not Path("out/headrace.json").exists()

    result = prepare(mask % "drop", records, wrong.template, "other")
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
@pytest.mark.usefixtures("folder")
def test_any_flipped_bit_is_found_and_its_file_named(store_format: str) -> None:
    if store_format == "hdf5":
        pytest.importorskip("h5py")
    records = [layouts_made.group(number).record for number in range(5)]
    assert prepare(f"type: grpo\noutput: {{format: {store_format}}}\n", records).exit_code == 0
    names = [
        (Path("out", shard.prefix) if store_format == "keyed" else Path("out", shard.prefix).parent) / file.name
        for shard in load_manifest("out").outputs
        for file in shard.files
    ]
    assert len(names) == {"indexed": 10, "keyed": 6, "hdf5": 1, "jsonl": 1}[store_format]
    for number, path in enumerate(names):
        whole = path.read_bytes()
        place = number * 37 % len(whole)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        result = CliRunner().invoke(main, ["check", "out"])
        assert result.exit_code != 0
        assert path.name in result.output
        path.write_bytes(whole)
    assert CliRunner().invoke(main, ["check", "out"]).exit_code == 0


@pytest.mark.parametrize("store_format", ["indexed", "keyed", "hdf5", "jsonl"])
@pytest.mark.usefixtures("folder")
def test_ids_beyond_the_vocabulary_are_found_in_every_key_of_ids(store_format: str) -> None:
    if store_format == "hdf5":
        pytest.importorskip("h5py")
    records = [layouts_made.group(number).record for number in range(3)]
    assert prepare(f"type: grpo\noutput: {{format: {store_format}}}\n", records).exit_code == 0
    assert CliRunner().invoke(main, ["check", "out"]).exit_code == 0
    manifest = load_manifest("out")
    assert manifest.tokenizer is not None
    # As if another tokeniser had made the ids: its largest is below these.
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
        "sft": headrace.SFTDataset(stores["sft"]),
        "packed": headrace.PackedSequenceDataset(stores["sft"], packing, loss_mask_key="loss_mask"),
        "windows": headrace.WindowDataset(stores["sft"], seq_len=16, position_ids="restart"),
        "dpo": headrace.PreferenceDataset(stores["dpo"]),
        "grpo": headrace.GroupDataset(stores["grpo"]),
        "prompt": headrace.PromptDataset(stores["prompt"]),
    }


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("kind", ["sft", "packed", "windows", "dpo", "grpo", "prompt"])
def test_what_is_changed_in_place_changes_nothing_later(
    stores: dict[str, headrace.stores.Store], kind: str, num_threads: int
) -> None:
    run = headrace.Run(
        datasets(stores)[kind], global_batch_size=3, order=headrace.Order(kind="none"), epochs=3, drop_last=True
    )

    def batches(*, ruined: bool) -> list[Any]:
        found = []
        for batch in headrace.Loader(run, micro_batch_size=2, reading=headrace.loader.Reading(num_threads=num_threads)):
            found.append({name: v.tolist() if torch.is_tensor(v) else repr(v) for name, v in batch.items()})
            if ruined:
                for name, value in batch.items():
                    if torch.is_tensor(value):
                        value.fill_(1)
                    elif name == "columns":
                        for columns in value:
                            columns["reward_model"].clear()
        return found

    assert batches(ruined=True) == batches(ruined=False)


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
