"""Megatron-LM's training scripts, fed by Headrace: its own datasets, or a run behind ``--dataloader-type external``.

    pretrain(..., train_valid_test_datasets_provider, ...)     Megatron's samples in Megatron's order and loaders
    a provider that returns dataloaders(args, train=run)       any run: windows, packs, blends; Megatron reads no data

In both, the position is Megatron's ``consumed_train_samples``. External loaders read once for all peers of a tensor- or
context-parallel group: Megatron itself sends a batch to the former, the loader to the latter.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from headrace.compat.megatron import GPTBlend, GPTDataset, GPTMasks
from headrace.datasets import Dataset, Run
from headrace.errors import ConfigError, StateError
from headrace.loader import Loader, Ranks, Reading
from headrace.plan import BatchSchedule
from headrace.plan.megatron import SURPLUS

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Batch = dict[str, torch.Tensor]

WHOLE: Final = {"train": "1,0,0", "valid": "0,1,0", "test": "0,0,1"}
"""The splits of parts that have data of their own."""

KEYS: Final = ("tokens", "labels", "loss_mask", "position_ids", "attention_mask", "cu_seqlens", "max_seqlen")
"""What Megatron's ``get_batch`` takes from a batch."""


def train_valid_test_datasets_provider(
    train_val_test_num_samples: Sequence[int | None], vp_stage: int | None = None
) -> tuple[Dataset | None, ...]:
    """Stand in for the function of this name in ``pretrain_gpt.py``: the same samples, without indices and caches.

    Every process builds the datasets itself; none waits for another, and nothing is written.
    """
    from megatron.training import get_args, get_tokenizer

    return datasets(get_args(), get_tokenizer(), train_val_test_num_samples)


train_valid_test_datasets_provider.is_distributed = True  # type: ignore[attr-defined]  # so Megatron calls it everywhere


def datasets(args: Any, tokenizer: Any, num_samples: Sequence[int | None]) -> tuple[Dataset | None, ...]:
    """Make the datasets for training, validation and test that Megatron's arguments ask for, None for an empty part.

    Args:
        args: Megatron's arguments.
        tokenizer: Megatron's tokeniser; its ``eod`` and ``pad`` are used.
        num_samples: how many samples Megatron asks for, by part; None for one epoch.

    Raises:
        ConfigError: the arguments ask for other datasets than GPT's, or as for `GPTDataset` and `GPTBlend`.
    """
    for option in ("mock_data", "fim_data", "sft", "multiple_validation_sets"):
        if getattr(args, option, False):
            raise ConfigError(
                f"--{option.replace('_', '-')} is not served by this provider: use Megatron's own, or build the"
                " datasets with headrace.compat.megatron, see docs/megatron.md"
            )
    masking = getattr(args, "dataloader_inter_document_masking", False)
    surplus = getattr(args, "mid_level_dataset_surplus", SURPLUS)
    masks = GPTMasks.of(
        tokenizer,
        allow_ambiguous_pad_tokens=getattr(args, "allow_ambiguous_pad_tokens", False),
        eod_mask_loss=args.eod_mask_loss,
        reset_position_ids=args.reset_position_ids,
        reset_attention_mask=args.reset_attention_mask,
        create_attention_mask=args.create_attention_mask_in_dataloader,
        **({"inter_document_masking": True} if masking else {}),
    )

    def part(name: Any, wanted: int | None) -> Dataset | None:
        data, split, is_own = _data_of(args, name)
        share = dict(zip(WHOLE, [*map(float, split.split(",")), 0, 0], strict=False))[name]

        def build(prefix: str, count: int | None) -> GPTDataset:
            options: dict[str, Any] = {"sequence_length": args.seq_length, "seed": args.seed}
            return GPTDataset(prefix, num_samples=count, masks=masks, split=split, split_part=name, **options)

        if not (data and share) or wanted == 0:
            return None
        return GPTBlend.of(data, num_samples=wanted, build=build, one_part=is_own, surplus=surplus)

    return tuple(map(part, WHOLE, num_samples))


def _data_of(args: Any, name: str) -> tuple[list[str] | None, str, bool]:
    """Return the words of a part's blend, the split, and whether the part has data of its own and so takes all."""
    if path := getattr(args, "data_args_path", None):
        return Path(path).read_text(encoding="utf-8").split(), args.split, False
    if args.data_path:
        return args.data_path, args.split, False
    if path := getattr(args, "per_split_data_args_path", None):
        words = json.loads(Path(path).read_text(encoding="utf-8"))[name]
        return words.split() if isinstance(words, str) else words, WHOLE[name], True
    return getattr(args, f"{name}_data_path"), WHOLE[name], True


def batch_schedule(args: Any) -> BatchSchedule:
    """Return the global batch sizes of Megatron's arguments, for the run of the training.

    Raises:
        ConfigError: ``--step-batch-size-schedule`` or ``--phase-transition-iterations``, which are not supported; or
            ``--rampup-batch-size`` with a megatron-core that ignores it, as 0.19 and later do.
    """
    for option in ("step_batch_size_schedule", "phase_transition_iterations"):
        if getattr(args, option, None):
            raise ConfigError(
                f"--{option.replace('_', '-')} is not supported: use --global-batch-size and, before megatron-core"
                " 0.19, --rampup-batch-size"
            )
    if (ramp := getattr(args, "rampup_batch_size", None)) is None:
        return BatchSchedule.of(args.global_batch_size)
    sizes = sys.modules.get("megatron.core.num_microbatches_calculator")
    if sizes is not None and not hasattr(sizes, "RampupBatchsizeNumMicroBatchesCalculator"):
        raise ConfigError(
            "--rampup-batch-size is ignored by this megatron-core, as by all from 0.19 on, which would train steps of"
            f" {args.global_batch_size} samples from the beginning: leave it out"
        )
    start, increment, samples = map(int, ramp)
    rounded = getattr(args, "decrease_batch_size_if_needed", False)
    return BatchSchedule.ramp_up(
        start=start,
        increment=increment,
        samples=samples,
        global_batch_size=args.global_batch_size,
        multiple_of=args.micro_batch_size * args.data_parallel_size if rounded else 1,
    )


def dataloaders(
    args: Any, *, train: Run, valid: Run | None = None, test: Run | None = None, reading: Reading | None = None
) -> tuple[ExternalLoader | None, ...]:
    """Return what a provider returns for ``--dataloader-type external``: loaders for training, validation and test.

    Call it in a provider whose ``is_distributed`` is True, since it decides by itself which processes read: those of
    tensor-parallel rank 0. Among them, each context-parallel group reads once.

    Training goes on at ``args.consumed_train_samples``, at any data-parallel size. With ``--dataloader-save``, the
    state beside the checkpoint must fit the run. If there is none, the newest one before it must, and you are warned.
    Validation begins again at its first sample after its last one: with
    ``samples=args.eval_iters * args.eval_global_batch_size`` each evaluation has the same samples.

    Args:
        args: Megatron's arguments, once a checkpoint is loaded, as in a provider.
        train: the run of the training; its batches are ``batch_schedule(args)``.
        valid: the run of validation; its batches are ``--eval-global-batch-size``, or else ``--global-batch-size``.
        test: the run of the test, as for ``valid``.
        reading: how samples are read, as for a `Loader`.

    Raises:
        ConfigError: a run does not suit Megatron's batches, its sequence length or its number of samples.
        StateError: the saved state belongs to another run.
    """
    from megatron.core import parallel_state

    if args.dataloader_type != "external":
        raise ConfigError(f"these are external loaders: pass --dataloader-type external, not {args.dataloader_type}")
    if parallel_state.get_tensor_model_parallel_rank() != 0:
        return None, None, None
    eval_size = getattr(args, "eval_global_batch_size", None) or args.global_batch_size
    eval_micro = getattr(args, "eval_micro_batch_size", None) or args.micro_batch_size
    _check_batches("train", train, batch_schedule(args), args)
    wanted = args.train_samples or args.train_iters * args.global_batch_size
    if train.length is not None and train.length < wanted:
        raise ConfigError(
            f"Megatron trains on {wanted:,} samples, the run has {train.length:,}: give the run more epochs= or"
            " samples=, or lower --train-iters or --train-samples"
        )
    size, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    ranks = Ranks(rank, size, agree=dist.get_world_size() == size)
    group = parallel_state.get_context_parallel_group()

    def loader(run: Run, micro: int, *, repeats: bool) -> ExternalLoader:
        fed = Loader(run, micro_batch_size=micro, ranks=ranks, reading=reading, uneven="refuse")
        return ExternalLoader(fed, group if dist.get_world_size(group) > 1 else None, repeats=repeats)

    training = loader(train, args.micro_batch_size, repeats=False)
    _restore(training.loader, args)
    evaluating: list[ExternalLoader | None] = []
    for name, run in (("valid", valid), ("test", test)):
        if run is None:
            evaluating.append(None)
            continue
        _check_batches(name, run, BatchSchedule.of(eval_size), args)
        one = loader(run, eval_micro, repeats=True)
        if name == "valid" and not getattr(args, "full_validation", False):
            consumed = args.consumed_valid_samples
            one.loader.start_at(consumed if run.length is None else consumed % run.length)
        evaluating.append(one)
    return training, *evaluating


def _check_batches(name: str, run: Run, schedule: BatchSchedule, args: Any) -> None:
    """Check what Megatron assumes about the batches of a run."""
    if run.schedule.pieces != schedule.pieces:
        raise ConfigError(
            f"the global batches of the run for {name} are {list(run.schedule.pieces)}, those of Megatron's arguments"
            f" {list(schedule.pieces)}, as (first step, size): make the run with global_batch_size="
            "batch_schedule(args), or for validation and test with --eval-global-batch-size"
        )
    names = [field for field in ("tokens", "input_ids") if field in run.fields]
    if not names or run.fields[names[0]][0] != (args.seq_length,):
        raise ConfigError(
            f"--seq-length is {args.seq_length:,}; the run for {name} has samples of the fields {run.fields}. Use"
            " windows, packs or GPTDataset of this length"
        )
    if run.traits.is_unshifted:
        raise ConfigError(
            f'the run for {name} has labels="same", but Megatron\'s models do not shift labels: make its dataset with'
            ' labels="next", the default'
        )
    if run.traits.is_packed and not (
        getattr(args, "dataloader_inter_document_masking", False) or getattr(args, "sft", 0)
    ):
        raise ConfigError(
            f"the run for {name} has packs, whose borders Megatron takes with --dataloader-inter-document-masking"
        )
    if run.traits.is_packed and args.context_parallel_size > 1:
        raise ConfigError("packs are not divided among context-parallel ranks: set --context-parallel-size 1")


def _restore(loader: Loader, args: Any) -> None:
    """Go on where the checkpoint was saved, and compare the run with the newest state in ``--dataloader-save``."""
    consumed, folder = int(args.consumed_train_samples), getattr(args, "dataloader_save", None)
    loader.start_at(consumed)
    if folder and consumed:
        wanted = int(args.iteration)
        found, path = _newest_state(Path(folder), wanted)
        if path is not None:
            loader.load_state_dict(torch.load(path, weights_only=True)["dataloader_state_dict"])
            if loader.position > consumed or (found == wanted and loader.position != consumed):
                raise StateError(
                    f"{path} was saved at position {loader.position:,}, the checkpoint at {consumed:,} consumed"
                    " samples: the two are of different trainings"
                )
        if found != wanted:
            compared = "nothing says that this is the run that was trained on"
            if path is not None:
                compared = f"the run was compared with the state of iteration {found:,}, {path}"
                loader.start_at(consumed, allow_repeats=True)
            warnings.warn(
                f"{folder} has no state of the loader for iteration {wanted:,}, {_STATE.format(wanted)}: training goes"
                f" on at the {consumed:,} consumed samples of the checkpoint, and {compared}",
                stacklevel=3,
            )


_STATE: Final = "iter_{:07d}/mp_rank_00*/train_dataloader_dprank000.pt"
"""Where Megatron saves the state of a loader. It is the same on every rank, so that of rank 0 does for any number."""


def _newest_state(folder: Path, last: int) -> tuple[int, Path | None]:
    """Return the newest state that was saved up to an iteration, and its iteration; (0, None) if there is none."""
    found = {}
    for path in sorted(folder.glob("iter_*/mp_rank_00*/train_dataloader_dprank000.pt"), reverse=True):
        name = path.parents[1].name.removeprefix("iter_")
        if name.isdecimal() and int(name) <= last:
            found[int(name)] = path
    return max(found.items(), default=(0, None))


class ExternalLoader:
    """An iterator over the micro-batches of a rank with Megatron's keys, for ``--dataloader-type external``.

    ``tokens``, ``labels`` and ``position_ids`` are (micro_batch_size, seq_length) int64, ``loss_mask`` float32. Packs
    have ``cu_seqlens``, (micro_batch_size, borders) int32, filled up with ``seq_length``, and ``max_seqlen``.

    Args:
        loader: gives the batches; of a context-parallel group only the first process iterates it.
        group: the context-parallel group if it has several processes; each batch is sent to all of them.
        repeats: begin again at the first sample after the last one.
    """

    def __init__(self, loader: Loader, group: ProcessGroup | None = None, *, repeats: bool = False) -> None:
        self.loader = loader
        self._group = group
        self._reads = group is None or dist.get_rank(group) == 0
        self._repeats = repeats
        self._batches: Iterator[Any] | None = None

    def __len__(self) -> int:
        """Return the number of steps, which Megatron takes for its number of evaluations with ``--full-validation``."""
        if (steps := self.loader.run.num_steps) is None:
            raise TypeError("this run is endless: it has no len()")
        return steps

    def __iter__(self) -> ExternalLoader:
        """Return itself: iteration goes on where it is."""
        return self

    def __next__(self) -> Batch:
        """Return the next micro-batch. The processes of a context-parallel group call it together."""
        batch = self._next() if self._reads else None
        if self._group is not None:
            batch = _shared(batch, self._group)
        if batch is None:
            raise StopIteration
        return batch

    def _next(self) -> Batch | None:
        if self._batches is None:
            self._batches = iter(self.loader)
        batch = next(self._batches, None)
        if batch is None and self._repeats:
            self.loader.start_at(0, allow_repeats=True)
            self._batches = iter(self.loader)
            batch = next(self._batches, None)
        return None if batch is None else _with_megatrons_keys(batch)

    def save_state(self) -> dict[str, Any] | None:
        """Return the state after the last micro-batch, which Megatron saves with ``--dataloader-save``."""
        return self.loader.state_dict() if self._reads else None


def _with_megatrons_keys(batch: dict[str, Any]) -> Batch:
    if "tokens" in batch:
        return {key: batch[key].contiguous() for key in KEYS if key in batch}
    tokens, labels = batch["input_ids"], batch["labels"]
    found = {
        "tokens": tokens,
        "labels": labels.clamp(min=0),  # a label of a masked token must be an id all the same
        "loss_mask": (labels >= 0).float(),
        "position_ids": batch["position_ids"].contiguous(),
    }
    if "cu_seqlens" in batch:
        rows, size = tokens.shape
        borders = [batch["cu_seqlens"] - row * size for row in range(rows)]
        parts = [one[(one >= 0) & (one <= size)] for one in borders]
        widest = max(map(len, parts))
        found["cu_seqlens"] = torch.stack([pad(part, (0, widest - len(part)), value=size) for part in parts])
        found["max_seqlen"] = torch.full((rows,), batch["max_seqlen"], dtype=torch.int32)
    return found


def _shared(batch: Batch | None, group: ProcessGroup) -> Batch | None:
    """Return the batch of a group's first process in all of them: names and shapes are sent, then all bytes at once."""
    source = dist.get_process_group_ranks(group)[0]
    specs: list[Any] = [None if batch is None else [(name, one.shape, one.dtype) for name, one in batch.items()]]
    dist.broadcast_object_list(specs, src=source, group=group)
    if specs[0] is None:
        return None
    device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in dist.get_backend(group) else None
    sizes = [shape.numel() * dtype.itemsize for _, shape, dtype in specs[0]]
    if batch is None:
        data = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    else:
        data = torch.cat([one.contiguous().flatten().view(torch.uint8) for one in batch.values()]).to(device)
    dist.broadcast(data, src=source, group=group)
    if batch is not None:
        return batch
    pieces = zip(specs[0], torch.split(data, sizes), strict=True)
    return {name: piece.clone().view(dtype).view(shape) for (name, shape, dtype), piece in pieces}
