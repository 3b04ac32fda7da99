"""Megatron-LM's external loaders, by `headrace.integrations.megatron`: killed within a step, resumed on other ranks.

The steps are those of `megatron_training.py`, in processes of a gloo group, with megatron-core.
"""

from __future__ import annotations

import random
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace.compat.megatron import GPTDataset, GPTMasks
from headrace.integrations import megatron as face
from interop import trainer_processes

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

PROGRAM = Path(__file__).parent / "megatron_training.py"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trainer_processes.write_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def core() -> Any:
    return pytest.importorskip("megatron.core", reason="megatron-core is missing: pip install 'headrace[interop]'")


@pytest.fixture
def groups(core: Any, alone: None) -> Iterator[None]:
    """Megatron's process groups, with this process alone in them."""
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()


@pytest.mark.usefixtures("core")
def test_killed_and_resumed_on_other_ranks(store: str, tmp_path: Path) -> None:
    """One rank, two data-parallel, two tensor-parallel, two context-parallel ones; a blend, while batches ramp up."""
    from interop import megatron_training

    kills = [(0, random.randrange(4, 14)), (random.randrange(2), random.randrange(5, 11))]
    kills.append((random.randrange(2), random.randrange(12, 24)))
    print("killed (rank, micro-step):", kills)
    # The folder, ranks, tensor- and context-parallel sizes.
    lives: list[Any] = [("whole", 1, 1, 1, None), ("chain", 1, 1, 1, kills[0]), ("chain", 2, 1, 1, kills[1])]
    lives += [("chain", 2, 2, 1, kills[2]), ("chain", 2, 1, 2, None)]
    told, positions, reading = [], [], []
    for number, (name, world_size, tensor, context, kill) in enumerate(lives):
        report, folder = tmp_path / f"said-{number}", tmp_path / name
        folder.mkdir(exist_ok=True)
        said = trainer_processes.train(PROGRAM, [store, folder, report, tensor, context], report, world_size, kill)
        told.append(trainer_processes.samples_and_losses(said))
        reading.append([one["reads"] for one in said if "reads" in one])
        positions.append([one["position"] for one in said if "position" in one])
    samples, _ = told[0]
    run = megatron_training.make_run(store, megatron_training.arguments())
    assert [len(rows) for rows in samples.values()] == [4, 4, 8, 12, 12, 12, 12, 12]
    assert [min(fed) for fed, _ in told[1:]] == [0, 2, 4, 6]
    assert max(told[-1][1]) == 7
    trainer_processes.check_lives(told, run)
    assert reading == [[True], [True], [True, True], [True, False], [True, True]]
    assert positions[0] == [76]
    assert positions[-1] == [76, 52], "a context-parallel peer reads nothing, and stays where it began"


def arguments(**changed: Any) -> Namespace:
    wanted = {"global_batch_size": 4, "micro_batch_size": 2, "seq_length": 16, "train_iters": 10, "train_samples": None}
    wanted |= {"dataloader_type": "external", "context_parallel_size": 1, "iteration": 0, "eval_iters": 3}
    return Namespace(**wanted | {"consumed_train_samples": 0, "consumed_valid_samples": 0} | changed)


def make_run(store: str, samples: int | None = 40, **changed: Any) -> headrace.Run:
    dataset = headrace.WindowDataset(headrace.open(store), **{"seq_len": 16} | changed)
    return headrace.Run(dataset, global_batch_size=4, samples=samples)


@pytest.mark.usefixtures("groups")
def test_validation_goes_round_and_goes_on(store: str) -> None:
    run = make_run(store, samples=12)
    train, valid, test = face.dataloaders(
        arguments(consumed_valid_samples=20), train=make_run(store), valid=run, test=run
    )
    assert (len(train), len(valid), len(test)) == (10, 3, 3)
    whole = np.concatenate([run.step(step)["input_ids"] for step in range(3)])
    rows = [row.tolist() for _ in range(12) for row in next(valid)["tokens"]]
    assert rows == np.concatenate([whole[8:], whole, whole])[: len(rows)].tolist()
    assert next(test)["tokens"].tolist() == whole[:2].tolist()


@pytest.mark.usefixtures("groups")
def test_labels_without_loss_and_packs(store: str) -> None:
    packs = headrace.PackedSequenceDataset(headrace.open(store), headrace.Packing(seq_len=128))
    run = headrace.Run(packs, global_batch_size=4, samples=20)
    args = arguments(seq_length=128, train_iters=5, dataloader_inter_document_masking=True)
    train, _, _ = face.dataloaders(args, train=run)
    batch, expected = next(train), next(iter(headrace.Loader(run, micro_batch_size=2)))
    assert sorted(batch) == sorted(set(face.KEYS) - {"attention_mask"})
    kept = expected["labels"] >= 0
    assert torch.equal(batch["loss_mask"], kept.float())
    assert not kept.all()
    assert torch.equal(batch["labels"][kept], expected["labels"][kept])
    assert int(batch["labels"].min()) >= 0
    borders = torch.cat([row.unique() + 128 * n for n, row in enumerate(batch["cu_seqlens"])]).unique()
    assert borders.tolist() == expected["cu_seqlens"].tolist()
    assert batch["cu_seqlens"].dtype == batch["max_seqlen"].dtype == torch.int32
    assert batch["max_seqlen"].tolist() == [expected["max_seqlen"]] * 2


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("options", [["create_attention_mask", "reset_attention_mask"], ["inter_document_masking"]])
def test_megatrons_own_samples_pass_as_they_are(store: str, options: list[str]) -> None:
    masks = GPTMasks(eod=0, **dict.fromkeys(options, True))
    dataset = GPTDataset(f"{store}/text_document", sequence_length=16, num_samples=40, masks=masks)
    run = headrace.Run(dataset, global_batch_size=4, order=headrace.Order(kind="none"), samples=40)
    args = arguments(dataloader_inter_document_masking="inter_document_masking" in options, consumed_train_samples=8)
    batch = next(face.dataloaders(args, train=run)[0])
    assert set(batch) == set(dataset[0])
    for name, values in batch.items():
        assert values.tolist() == [np.asarray(dataset[row][name]).tolist() for row in (8, 9)], name


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(
    ("changed", "of_run", "named"),
    [
        ({"dataloader_type": "single"}, {}, "--dataloader-type external"),
        ({"global_batch_size": 8}, {}, r"train.*\[\(0, 4\)\].*\[\(0, 8\)\]"),
        ({"seq_length": 32}, {}, "--seq-length.*32"),
        ({"train_iters": 11}, {}, "44.*40"),
        ({"step_batch_size_schedule": "0:4"}, {}, "--step-batch-size-schedule"),
        ({"phase_transition_iterations": [4]}, {}, "--phase-transition-iterations"),
        ({}, {"labels": "same"}, 'labels="same"'),
        ({"consumed_train_samples": 6}, {}, "position 6"),
    ],
)
def test_what_does_not_fit_is_refused(store: str, changed: Any, of_run: Any, named: str) -> None:
    with pytest.raises(headrace.ConfigError, match=named):
        face.dataloaders(arguments(**changed), train=make_run(store, **of_run))


def test_a_ramp_up_that_megatron_ignores_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As megatron-core does from 0.19 on, whose calculator of it is gone."""
    args = arguments(rampup_batch_size=["2", "2", "12"])
    assert face.batch_schedule(args).pieces[0] == (0, 2)
    monkeypatch.setitem(sys.modules, "megatron.core.num_microbatches_calculator", ModuleType("without"))
    with pytest.raises(headrace.ConfigError, match=r"--rampup-batch-size is ignored.*steps of 4"):
        face.batch_schedule(args)


@pytest.mark.usefixtures("groups")
def test_packs_need_their_borders(store: str) -> None:
    run = headrace.Run(
        headrace.PackedSequenceDataset(headrace.open(store), headrace.Packing(seq_len=64)), global_batch_size=4
    )
    for changed, named in (
        ({}, "--dataloader-inter-document-masking"),
        ({"context_parallel_size": 2}, "divided"),
    ):
        args = arguments(seq_length=64, dataloader_inter_document_masking=bool(changed), **changed)
        with pytest.raises(headrace.ConfigError, match=named):
            face.dataloaders(args, train=run)


@pytest.mark.usefixtures("groups")
def test_a_saved_state_of_another_run_is_refused(store: str, tmp_path: Path) -> None:
    train, _, _ = face.dataloaders(arguments(), train=make_run(store))
    batches = [next(train)["tokens"] for _ in range(6)]
    place = tmp_path / "iter_0000002" / "mp_rank_00_000"
    place.mkdir(parents=True)
    other = headrace.Loader(make_run(store), micro_batch_size=2)
    for count, _ in enumerate(other, 1):
        if count == 4:
            break
    torch.save({"dataloader_state_dict": other.state_dict()}, place / "train_dataloader_dprank000.pt")
    args = arguments(iteration=2, consumed_train_samples=8, dataloader_save=str(tmp_path))
    assert torch.equal(next(face.dataloaders(args, train=make_run(store))[0])["tokens"], batches[4])
    with pytest.raises(headrace.StateError, match="dataset"):
        face.dataloaders(args, train=make_run(store, stride=8))
    args.consumed_train_samples = 12
    with pytest.raises(headrace.StateError, match="trainings"):
        face.dataloaders(args, train=make_run(store))
    # A later checkpoint whose state is lost: the one before it still says which run it was.
    args.iteration = 3
    with pytest.warns(UserWarning, match=r"iter_0000003/.*12.*2.*dprank000"):
        train, _, _ = face.dataloaders(args, train=make_run(store))
    assert next(train)["tokens"].tolist() == make_run(store).step(3)["input_ids"][:2].tolist()
    with pytest.raises(headrace.StateError, match="dataset"):
        face.dataloaders(args, train=make_run(store, stride=8))
    args.consumed_train_samples = 4
    with pytest.raises(headrace.StateError, match="trainings"):
        face.dataloaders(args, train=make_run(store))
    # None at all, but for one of an iteration that this checkpoint has not reached.
    args.iteration = 1
    with pytest.warns(UserWarning, match=r"4.*consumed"):
        train, _, _ = face.dataloaders(args, train=make_run(store))
    assert torch.equal(next(train)["tokens"], batches[2])


def test_data_from_files(store: str, tmp_path: Path) -> None:
    prefix = f"{store}/text_document"
    args = Namespace(seq_length=16, seed=1, split="90,10", data_path=[prefix], eod_mask_loss=False)
    vars(args).update(reset_position_ids=False, reset_attention_mask=False, create_attention_mask_in_dataloader=False)
    tokenizer = Namespace(eod=0)
    expected = face.datasets(args, tokenizer, [40, 4, 0])
    args.data_path, args.data_args_path = None, tmp_path / "words"
    args.data_args_path.write_text(f"{prefix}\n")
    assert [one and one.fingerprint for one in face.datasets(args, tokenizer, [40, 4, 0])] == [
        one and one.fingerprint for one in expected
    ]
    args.data_args_path, args.per_split_data_args_path = None, tmp_path / "parts.json"
    args.per_split_data_args_path.write_text(f'{{"train": "{prefix}", "valid": ["{prefix}"], "test": null}}')
    train, valid, test = face.datasets(args, tokenizer, [40, 4, 4])
    assert train is not None
    assert valid is not None
    assert test is None
    args.fim_data = True
    with pytest.raises(headrace.ConfigError, match="--fim-data"):
        face.datasets(args, tokenizer, [40, 4, 4])
