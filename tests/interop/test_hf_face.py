"""What the face for trainers of Hugging Face checks, gives the model, and counts; its padding-free collator."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn.functional import cross_entropy

import hf_training
import packs_made
from counts import cases
from headrace import (
    Blend,
    ConfigError,
    Loader,
    Order,
    PackedSequenceDataset,
    Packing,
    Prompts,
    Run,
    StateError,
    WindowDataset,
    open as open_store,
)
from headrace.loader import Ranks
from headrace.loader.attention import flatten, flatten_packed
from headrace.plan.segments import cu_seqlens, seq_idx

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("calm")]

SIZES = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 6}


@pytest.fixture(scope="module")
def folder(hf_stores: Path) -> Path:
    pytest.importorskip("transformers.trainer")
    return hf_stores


def windows(folder: Path, **options: Any) -> WindowDataset:
    return WindowDataset(open_store(folder / "text"), seq_len=8, **{"labels": "same", **options})


def trainer_of(
    run: Any, out: Path, *, eval_runs: Any = None, model: Any = None, compute_loss_func: Any = None, **arguments: Any
) -> Any:
    from transformers import Trainer, TrainingArguments

    from headrace.integrations.transformers import FromHeadrace

    class Mine(FromHeadrace, Trainer):  # type: ignore[misc]
        pass

    options = {"report_to": "none", "use_cpu": True, "bf16": False, "disable_tqdm": True, "logging_steps": 1}
    options |= {"save_strategy": "no", "dataloader_pin_memory": False, **SIZES}
    made = TrainingArguments(str(out), **{**options, **arguments})
    model = model or hf_training.model_of()
    return Mine(model=model, args=made, run=run, eval_runs=eval_runs, compute_loss_func=compute_loss_func)


def losses_of(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def plain_loss(model: Any, run: Run, steps: range) -> float:
    """The loss of all tokens of some steps, by hand."""
    total, count = 0.0, 0
    with torch.no_grad():
        for step in steps:
            for row in range(len(run.positions(step))):
                batch = run.read(run.locate(run.positions(step)[row : row + 1]))
                ids, labels = (torch.from_numpy(batch[name]) for name in ("input_ids", "labels"))
                logits = model(input_ids=ids).logits[:, :-1]
                total += float(cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"))
                count += int((labels[:, 1:] != -100).sum())
    return total / count


@pytest.mark.parametrize(
    ("kind", "sizes", "average"), [("windows", (2, 6), False), ("records", (5, 3), True), ("records", (12, 1), True)]
)
def test_the_loss_of_a_step_is_that_of_its_tokens(
    kind: str, sizes: tuple[int, int], average: bool, folder: Path, tmp_path: Path
) -> None:
    """Whatever the micro-batches, one size that does not divide the step among them; and in the short last step."""
    run = hf_training.run_of(kind, folder)
    micro, accumulation = sizes
    trainer = trainer_of(
        run, tmp_path, per_device_train_batch_size=micro, gradient_accumulation_steps=accumulation, learning_rate=0.0,
        average_tokens_across_devices=average,
    )  # fmt: skip
    model = hf_training.model_of()
    trainer.train()
    assert trainer.state.global_step == hf_training.STEPS == trainer.args.max_steps
    wanted = [plain_loss(model, run, range(step, step + 1)) for step in range(hf_training.STEPS)]
    assert losses_of(trainer) == pytest.approx(wanted, rel=1e-5)


def test_evaluation_by_name_is_over_all_tokens(folder: Path, tmp_path: Path) -> None:
    chats = Run.validation(hf_training.dataset_of("records", folder), global_batch_size=50)
    text = Run.validation(windows(folder), global_batch_size=7)
    runs = {"chats": chats, "text": text}
    run = hf_training.run_of("windows", folder)
    trainer = trainer_of(
        run, tmp_path, eval_runs=runs, per_device_eval_batch_size=9, eval_strategy="steps", eval_steps=7
    )
    found = trainer.evaluate()
    for name, one in runs.items():
        assert one.num_steps is not None
        wanted = plain_loss(trainer.model, one, range(one.num_steps))
        assert found[f"eval_{name}_loss"] == pytest.approx(wanted, rel=1e-5)
        assert trainer.evaluate("text" if name == "text" else one)["eval_loss"] == pytest.approx(wanted, rel=1e-5)
    trainer.train()
    assert sum("eval_chats_loss" in entry for entry in trainer.state.log_history) == 1


def test_packs_are_apart(folder: Path, tmp_path: Path) -> None:
    """The loss of packs is that of their documents alone."""
    store = open_store(folder / "text")
    dataset = PackedSequenceDataset(store, Packing(seq_len=24), labels="same")
    run = Run(dataset, global_batch_size=12, order=Order(seed=1), epochs=1)
    trainer = trainer_of(run, tmp_path, max_steps=1, learning_rate=0.0)
    model = hf_training.model_of()
    trainer.train()
    total, count = 0.0, 0
    batch = run.step(0)
    with torch.no_grad():
        for ids, documents in zip(batch["input_ids"], batch["document_ids"], strict=True):
            for document in sorted(set(documents.tolist()) - {-1}):
                part = torch.from_numpy(ids[documents == document])[None]
                logits = model(input_ids=part).logits[0, :-1]
                total += float(cross_entropy(logits, part[0, 1:], reduction="sum"))
                count += part.shape[1] - 1
    assert losses_of(trainer) == pytest.approx([total / count], rel=1e-5)


def test_flash_attention_gets_one_row_without_pads(folder: Path, tmp_path: Path) -> None:
    run = hf_training.run_of("packs", folder)
    model = hf_training.model_of()
    trainer = trainer_of(run, tmp_path, model=model)
    rows = next(iter(trainer.get_train_dataloader()))
    model.config._attn_implementation_internal = "flash_attention_2"
    flat = next(iter(trainer.get_train_dataloader()))
    assert sorted(rows) == ["input_ids", "labels", "position_ids"]
    assert flat["input_ids"].shape[0] == 1
    assert flat["cu_seq_lens_q"].tolist() == [
        *(flat["position_ids"][0] == 0).nonzero().flatten().tolist(),
        flat["input_ids"].shape[1],
    ]
    is_token = torch.from_numpy(run.step(0)["document_ids"][:2] >= 0)
    for name in ("input_ids", "labels", "position_ids"):
        assert flat[name][0].tolist() == rows[name][is_token].tolist()


def refused(run: Any, out: Path, named: str, **options: Any) -> None:
    with pytest.raises(ConfigError, match=named):
        trainer_of(run, out, **options).train()


def test_sizes_that_do_not_make_the_global_batch(folder: Path, tmp_path: Path) -> None:
    run = Run(windows(folder), global_batch_size=12, samples=120)
    refused(
        run,
        tmp_path,
        r"12.*per_device_train_batch_size.*6.*gradient_accumulation_steps=6",
        gradient_accumulation_steps=3,
    )
    refused(run, tmp_path, r"gradient_accumulation_steps=3.*15.*3", per_device_train_batch_size=5)
    ramp = Run(windows(folder), global_batch_size=[(0, 12), (5, 24)], samples=120)
    refused(ramp, tmp_path, r"12.*24.*Trainer")
    # A change that the run does not live to see is none.
    trainer_of(Run(windows(folder), global_batch_size=[(0, 12), (5, 24)], samples=60), tmp_path).train()


def test_a_batch_that_grows_is_trained_in_parts(folder: Path, tmp_path: Path) -> None:
    run = Run(windows(folder), global_batch_size=[(0, 12), (2, 24)], samples=12 * 2 + 24 + 10)
    model = hf_training.model_of()
    wanted = [plain_loss(model, run, range(step, step + 1)) for step in range(4)]
    sizes = {"learning_rate": 0.0, "save_strategy": "steps", "save_steps": 1}
    trainer_of(run, tmp_path, max_steps=2, **sizes).train()
    trainer = trainer_of(run, tmp_path, gradient_accumulation_steps=12, **sizes)
    trainer.train(resume_from_checkpoint=True)
    assert losses_of(trainer) == pytest.approx(wanted, rel=1e-5)


def test_steps_are_those_of_the_run(folder: Path, tmp_path: Path) -> None:
    run = Run(windows(folder), global_batch_size=12, samples=50)
    refused(run, tmp_path, r"max_steps.*6.*5", max_steps=6)
    endless = Run(windows(folder), global_batch_size=12)
    refused(endless, tmp_path, r"endless.*max_steps")
    with pytest.raises(ConfigError, match=r"Run\.validation"):
        trainer_of(run, tmp_path, eval_runs={"run": endless}).evaluate()
    trainer = trainer_of(Run(windows(folder), global_batch_size=12), tmp_path, max_steps=3)
    trainer.train()
    assert len(losses_of(trainer)) == 3
    # Again from the beginning.
    trainer.train()
    assert trainer.state.global_step == 3


def test_labels_that_are_shifted_already(folder: Path, tmp_path: Path) -> None:
    """By what the dataset says, and by the first batch where nothing does."""
    shifted = Run(windows(folder, labels="next"), global_batch_size=12)
    refused(shifted, tmp_path, r"^run:.*labels='same'")
    run = hf_training.run_of("windows", folder)
    refused(run, tmp_path, r"eval_runs\['some'\].*labels", eval_runs={"some": shifted})
    blend = Blend({"a": windows(folder, labels="next"), "b": windows(folder, labels="next")}, weights={"a": 1, "b": 1})
    refused(Run(blend, global_batch_size=12), tmp_path, r"^run,.*a:.*labels", max_steps=1)

    class Unnamed(WindowDataset):
        labels = property(lambda self: "mine", lambda self, value: None)  # type: ignore[assignment]

    unnamed = Unnamed(open_store(folder / "text"), seq_len=8)
    refused(Run(unnamed, global_batch_size=12), tmp_path, r"batch:.*labels", max_steps=1)


def test_a_loss_of_ones_own_has_the_labels_that_it_wants(folder: Path, tmp_path: Path) -> None:
    """As `cross_entropy(logits, labels)` of a run whose labels are the next tokens: one more in each window."""

    def loss_of(outputs: Any, labels: Any, num_items_in_batch: Any) -> Any:
        return cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), reduction="sum") / num_items_in_batch

    run = Run(windows(folder, labels="next"), global_batch_size=12, samples=24)
    trainer = trainer_of(run, tmp_path, compute_loss_func=loss_of, learning_rate=0.0)
    trainer.train()
    model = hf_training.model_of()
    wanted = []
    with torch.no_grad():
        for step in range(2):
            ids, labels = (torch.from_numpy(run.step(step)[name]) for name in ("input_ids", "labels"))
            wanted.append(float(cross_entropy(model(input_ids=ids).logits.flatten(0, 1), labels.flatten())))
    assert losses_of(trainer) == pytest.approx(wanted, rel=1e-5)


def test_a_checkpoint_is_written_again(folder: Path, tmp_path: Path) -> None:
    """By a run without the edit that the one of an earlier life had."""
    run = hf_training.run_of("windows", folder)
    for one in (run.edit(2, global_batch_size=11), run):
        sizes = {"save_strategy": "steps", "save_steps": 3}
        trainer_of(one, tmp_path, **sizes).train()
        assert Run.load(tmp_path / "checkpoint-3/run.json").recipe == one.recipe


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    run = hf_training.run_of("windows", folder)
    trainer_of(run, out, save_strategy="steps", save_steps=3).train()
    return out


def test_resumed_with_another_option_that_trainers_have(trained: Path, folder: Path, tmp_path: Path) -> None:
    """``ignore_data_skip`` would count micro-batches anew; and micro-batches of another size."""
    out = shutil.copytree(trained, tmp_path / "out")
    shutil.rmtree(out / "checkpoint-6")
    shutil.rmtree(out / "checkpoint-7")
    sizes = {"per_device_train_batch_size": 5, "gradient_accumulation_steps": 3}
    resumed = trainer_of(hf_training.run_of("windows", folder), out, ignore_data_skip=True, **sizes)
    resumed.train(resume_from_checkpoint=True)
    whole = json.loads((trained / "checkpoint-7/trainer_state.json").read_text())["log_history"]
    assert losses_of(resumed) == pytest.approx([entry["loss"] for entry in whole], rel=1e-4)


def test_dropout_goes_on_as_it_was(folder: Path, tmp_path: Path) -> None:
    """The same losses to the last bit on the same ranks: nothing here draws from torch's generator."""

    def made(**options: Any) -> Any:
        model = hf_training.model_of()
        model.config.attention_dropout = 0.3
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.3
        run = hf_training.run_of("windows", folder)
        return trainer_of(run, tmp_path, model=model, save_strategy="steps", save_steps=4, **options)

    whole = made()
    whole.train()
    resumed = made()
    resumed.train(resume_from_checkpoint=tmp_path / "checkpoint-4")
    assert losses_of(resumed) == losses_of(whole)
    assert len(set(losses_of(whole))) == hf_training.STEPS


def test_checkpoints_that_are_not_complete(trained: Path, folder: Path, tmp_path: Path) -> None:
    out = shutil.copytree(trained, tmp_path / "out")
    (out / "checkpoint-7/trainer_state.json").write_text("{")
    (out / "checkpoint-6/trainer_state.json").unlink()
    resumed = trainer_of(hf_training.run_of("windows", folder), out)
    with pytest.warns(UserWarning, match=r"checkpoint-[67]"):
        resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 7
    (out / "checkpoint-3/headrace_state.json").unlink()
    with pytest.raises(StateError, match=r"checkpoint-3.*headrace_state.json"):
        trainer_of(hf_training.run_of("windows", folder), out).train(resume_from_checkpoint=out / "checkpoint-3")
    shutil.copy(trained / "checkpoint-6/headrace_state.json", out / "checkpoint-3")
    with pytest.raises(StateError, match=r"3.*after.*6"):
        trainer_of(hf_training.run_of("windows", folder), out).train(resume_from_checkpoint=out / "checkpoint-3")


def test_another_run_is_refused_by_field(trained: Path, folder: Path, tmp_path: Path) -> None:
    other = Run(windows(folder), global_batch_size=12, order=Order(seed=4), samples=77)
    with pytest.raises(StateError, match=r"order\.seed.*4.*3"):
        trainer_of(other, tmp_path).train(resume_from_checkpoint=str(trained / "checkpoint-3"))


def test_a_run_that_is_made_longer(trained: Path, folder: Path, tmp_path: Path) -> None:
    longer = Run(windows(folder), global_batch_size=12, order=Order(seed=3), samples=120)
    with pytest.raises(StateError, match=r"6.*longer"):
        trainer_of(longer, tmp_path).train(resume_from_checkpoint=str(trained / "checkpoint-7"))
    trainer = trainer_of(longer, tmp_path)
    trainer.train(resume_from_checkpoint=str(trained / "checkpoint-6"))
    assert trainer.state.global_step == 10
    # A run that is at its end has no more steps.
    again = trainer_of(hf_training.run_of("windows", folder), tmp_path)
    again.train(resume_from_checkpoint=str(trained / "checkpoint-7"))
    assert again.state.global_step == 7


@pytest.mark.parametrize("workers", [0, 2] if cases(0, 1) else [0])
def test_what_is_fetched_ahead_is_not_in_the_state(workers: int, folder: Path, tmp_path: Path) -> None:
    """As by a trainer that prefetches: batches of two more steps have been fetched when step 1 is saved."""
    run = hf_training.run_of("windows", folder)
    trainer = trainer_of(run, tmp_path, dataloader_num_workers=workers)
    batches = iter(trainer.get_train_dataloader())
    for _ in range(3 * 6):
        next(batches)
    trainer.state.global_step = 1
    trainer._train_batches.save(tmp_path)
    assert json.loads((tmp_path / "headrace_state.json").read_text())["state"]["position"] == 12
    trainer.state.global_step = 9
    with pytest.raises(StateError, match=r"trainer.*9"):
        trainer._train_batches.save(tmp_path)


def test_accelerate_leaves_a_loader_alone_and_saves_its_state(folder: Path, tmp_path: Path) -> None:
    import accelerate

    run = hf_training.run_of("windows", folder)
    accelerator = accelerate.Accelerator(cpu=True)
    loader = Loader(run, micro_batch_size=4)
    _, prepared = accelerator.prepare(torch.nn.Linear(2, 2), loader)
    assert prepared is loader
    accelerator.register_for_checkpointing(loader)
    for batch in prepared:
        if batch["sample_positions"][0] == 20:
            break
    accelerator.save_state(str(tmp_path / "state"))
    next(iter(loader))
    accelerator.load_state(str(tmp_path / "state"))
    assert loader.position == 24


def prompts_of(folder: Path, **sizes: int) -> tuple[Any, Any]:
    """Prompts of the suite's run, and how a generation takes them: 12, each twice, in two steps of six micro-steps."""
    from headrace.integrations.transformers_batches import GenerationLayout

    values = {"num_generations": 2, "rows": 24, "micro_steps": 12, "rank": 0, "world_size": 1, **sizes}
    layout = GenerationLayout(**values, decode=str)
    return Prompts(hf_training.run_of("prompts", folder), group_size=2, ranks=Ranks()), layout


def test_prompts_of_a_generation_are_finished_after_its_last_step(folder: Path, tmp_path: Path) -> None:
    """Whatever a trainer fetches ahead; and not before the optimiser has used all of their rows."""
    from headrace.integrations.transformers_batches import PromptBatches, load_prompts

    prompts, layout = prompts_of(folder)
    trained = 0
    batches = PromptBatches(prompts, layout, 0, lambda: trained)
    rows = iter(batches)
    for _ in range(3 * 12):
        next(rows)
    for trained, finished in ((0, 0), (6, 0), (12, 12), (18, 12), (24, 24)):
        account = batches.settled().account()
        assert (account.num_finished, account.num_outstanding) == (finished, 36 - finished)
        batches.save(tmp_path)
        (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": trained // 6}))
        again, _ = prompts_of(folder)
        assert load_prompts(again, tmp_path, layout, 6) == trained // 6
        assert again.take(1)[0].position == finished
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 3}))
    with pytest.raises(StateError, match=r"3.*1.*generations"):
        load_prompts(prompts_of(folder)[0], tmp_path, layout, 6)
    # Four times as many micro-steps in a generation: the steps of the trainer would no longer end generations.
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 4}))
    _, longer = prompts_of(folder, micro_steps=48)
    with pytest.raises(StateError, match="generations"):
        load_prompts(prompts_of(folder)[0], tmp_path, longer, 6)


def test_only_prompts_have_fates(folder: Path, tmp_path: Path) -> None:
    trainer = trainer_of(hf_training.run_of("windows", folder), tmp_path)
    with pytest.raises(ConfigError, match="prompts"):
        _ = trainer.prompts


FLAGS = ("return_position_ids", "return_flash_attn_kwargs", "return_seq_idx")
KINDS = {"list": list, "numpy": np.array, "tensor": torch.tensor}


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(found) == set(expected)
    for name, values in expected.items():
        if isinstance(values, int):
            assert type(found[name]) is int
            assert found[name] == values, name
        else:
            assert found[name].dtype == values.dtype, name
            assert torch.equal(found[name], values), name


@settings(max_examples=cases(40, 1_500), deadline=None)
@given(st.data())
def test_flattened_as_theirs(hf: Any, data: st.DataObject) -> None:
    has_labels = data.draw(st.booleans())
    kind = KINDS[data.draw(st.sampled_from(sorted(KINDS)))]
    features = []
    for length in data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)):
        ids = data.draw(st.lists(st.integers(0, 60_000), min_size=length, max_size=length))
        feature = {"input_ids": kind(ids)}
        if has_labels:
            feature["labels"] = kind([-100 if token % 3 == 0 else token for token in ids])
        features.append(feature)
    options = {flag: data.draw(st.booleans()) for flag in FLAGS}
    options |= {
        "separator_id": data.draw(st.sampled_from([-100, -1])),
        "position_ids_start": data.draw(st.integers(0, 2)),
    }
    assert_equal(flatten(features, **options), hf.DataCollatorWithFlattening(**options)(features))


@settings(max_examples=cases(40, 1_500), deadline=None)
@given(st.sampled_from([1, 4]).flatmap(lambda multiple: packs_made.drawn_rows(seq_len=12, multiple=multiple)))
def test_packed_batches_as_their_documents(hf: Any, rows: list[list[packs_made.Piece]]) -> None:
    """A packed batch without its pads is its documents flattened by their collator."""
    batch = {
        name: torch.from_numpy(values) if isinstance(values, np.ndarray) else values
        for name, values in packs_made.make(rows, 12).items()
    }
    features = [
        {
            "input_ids": list(piece.tokens),
            "labels": [token if trained else -100 for token, trained in zip(piece.tokens, piece.trained, strict=True)],
        }
        for row in rows
        for piece in row
    ]
    found = flatten_packed(batch)
    if not features:
        assert {name: getattr(value, "shape", value) for name, value in found.items()} == {
            "input_ids": (1, 0), "labels": (1, 0), "position_ids": (1, 0), "seq_idx": (1, 0),
            "cu_seq_lens_q": (1,), "cu_seq_lens_k": (1,), "max_length_q": 0, "max_length_k": 0,
        }  # fmt: skip
        return
    collate = hf.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    assert_equal(found, collate(features))


@settings(max_examples=cases(40, 1_500), deadline=None)
@given(st.sampled_from([1, 4]).flatmap(lambda multiple: packs_made.drawn_rows(seq_len=12, multiple=multiple)))
def test_borders_as_transformers_derives_them(hf: Any, rows: list[list[packs_made.Piece]]) -> None:
    """Both of its ways, which disagree elsewhere, find our segments: for flash attention, and for masks."""
    batch = packs_made.make(rows, 12)
    position_ids = torch.from_numpy(batch["position_ids"])
    flash = hf.modeling_flash_attention_utils
    (for_q, for_k), (longest_q, longest_k) = flash.prepare_fa_kwargs_from_position_ids(position_ids)
    for theirs in (for_q, for_k):
        assert theirs.dtype == torch.int32
        assert theirs.tolist() == batch["cu_seqlens"].tolist() == cu_seqlens(batch["position_ids"]).tolist()
    assert int(longest_q) == int(longest_k) == batch["max_seqlen"]
    find = hf.masking_utils.find_packed_sequence_indices
    indices = find(position_ids)
    ours = seq_idx(batch["position_ids"])
    if indices is None:
        assert not ours.any(), "one segment a row"
    else:
        assert indices.tolist() == ours.tolist()
    # The same rows as one.
    flat = position_ids.reshape(1, -1)
    is_packed = bool(flash._is_packed_sequence(flat, 1))
    assert is_packed == (len(batch["cu_seqlens"]) > 2) == (find(flat) is not None)
