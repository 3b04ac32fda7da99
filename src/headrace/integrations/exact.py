"""`exact`: trainers of Hugging Face and loops of accelerate over their own datasets, resumed exactly.

    trainer's DataLoader (its dataset, collator, columns) --> headrace.DataLoader --> TrainBatches --> Trainer.train
    accelerator.prepare(DataLoader) ------------------------> headrace.DataLoader --> the loop

Of a trainer these names are used: ``args``, ``state``, ``accelerator``, ``get_train_dataloader``,
``_train_batch_size``, ``get_tp_size``, ``get_cp_size``, ``get_sp_size``, ``_save_checkpoint``, ``_get_output_dir``, and
of TRL's GRPOTrainer ``_step`` and ``_buffered_inputs``. Of an accelerator: ``prepare``, ``prepare_data_loader``,
``skip_first_batches``, ``register_for_checkpointing``, ``gradient_state``, ``dispatch_batches``, ``split_batches``. Of
Lightning's trainer: ``fit_loop``, ``train_dataloader``, ``_load_combined_loader_states``,
``_combined_loader_states_to_load``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import partial
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import torch
import xxhash
from numpy.typing import ArrayLike
from torch.utils.data import IterableDataset, SequentialSampler

from headrace.config import whole
from headrace.datasets.map_style import Seeded
from headrace.errors import ConfigError, StateError
from headrace.integrations.transformers import Checkpointed, FromHeadrace
from headrace.integrations.transformers_batches import (
    STATE_FILE,
    TRAINER_FILE,
    Checkpoint,
    RunDataLoader,
    TrainBatches,
    saved_in,
)
from headrace.loader import DataLoader, Ranks
from headrace.loader.data_loader import DrawnOrder

__all__ = ["exact"]

_log = logging.getLogger("headrace")

_Exact = TypeVar("_Exact")
_Kind = TypeVar("_Kind", bound=DataLoader)

KNOWN: Final = {"transformers": "5.23", "accelerate": "1.15", "trl": "1.16", "lightning": "2.6"}
"""The versions whose code was read. Another one is refused."""

_TRL: Final = ("SFTTrainer", "DPOTrainer", "RewardTrainer", "KTOTrainer", "GRPOTrainer")
_TAKEN: Final = (
    *("dataset", "batch_size", "num_workers", "collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "generator", "prefetch_factor", "persistent_workers", "in_order"),
)
"""What is taken over from torch's DataLoader, beside its sampler."""


def exact(
    trainer: _Exact,
    *,
    first_position: int = 0,
    version: str | int | None = None,
    lengths: ArrayLike | None = None,
    seeded: Seeded = "batch",
    order: DrawnOrder = "full",
) -> _Exact:
    """Make a trainer of Hugging Face, or an accelerator, resume its data exactly; returns the same object.

        headrace.exact(trainer).train(resume_from_checkpoint=True)

    **Trainers**: transformers' ``Trainer``, and TRL's ``SFTTrainer``, ``DPOTrainer``, ``RewardTrainer``, ``KTOTrainer``
    and ``GRPOTrainer``, and classes made of them. The training set, its preparation and the collator stay those of the
    trainer; a `headrace.DataLoader` over them gives the batches. Its order depends on ``data_seed``, or else ``seed``,
    of the arguments. Each checkpoint gets the state of the data. A resume on any number of processes goes on with the
    next sample, and needs the samples of a step that the checkpoint has:
    ``per_device_train_batch_size x gradient_accumulation_steps x processes``. With ``dataloader_drop_last`` a last step
    that is not full is left out. Evaluation is left as it is.

    **Accelerators**: ``prepare`` makes a `headrace.DataLoader` of each of torch's that shuffles. It moves its batches
    to the device, and ``save_state`` and ``load_state`` keep its place. Loaders that do not shuffle, as those of an
    evaluation, are prepared by accelerate.

    **Lightning's** ``Trainer`` takes a `headrace.DataLoader` in ``fit`` as it is, and keeps its place in checkpoints.
    Its own count of the batches of an epoch is that of the processes that it had; with this line they are counted anew,
    and a checkpoint that was saved between the batches of a step goes on at the beginning of the step.

    Args:
        trainer: a trainer before ``train`` or ``fit``, or an ``Accelerator`` before ``prepare``.
        first_position: go on from a checkpoint without a state of the data at this position of the order, which is the
            number of samples that the trainer has counted. The error for such a checkpoint says it.
        version: a name for the contents of the dataset, see `MapStyleDataset`. By default a dataset of Hugging Face is
            known by its length, its columns and some 64 of its rows, others as there.
        lengths: (len(dataset),) integers, the length of each sample: samples of similar length share a step.
        seeded: see `MapStyleDataset`.
        order: ``"torch"`` goes on in the order that the trainer, or accelerate with ``use_seedable_sampler``, had by
            itself, bit for bit, so that a checkpoint without a state of the data needs no ``first_position``.

    Raises:
        ConfigError: it is something else, or a version that is not known; or it divides batches in another way. The
            arguments of a trainer are checked when training begins.

    Example:
        >>> trainer = Trainer(model=model, args=arguments, train_dataset=dataset)  # doctest: +SKIP
        >>> headrace.exact(trainer).train(resume_from_checkpoint=True)  # doctest: +SKIP
    """
    asked = _Asked(whole(first_position, "first_position"), version, lengths, seeded, order)
    names = {f"{one.__module__}.{one.__name__}": one.__name__ for one in type(trainer).__mro__}
    if "accelerate.accelerator.Accelerator" in names:
        _check_versions(["accelerate"])
        if first_position:
            raise ConfigError("first_position is for a trainer: a loop loads a state into its loader, or begins")
        accelerator: Any = trainer
        accelerator.prepare_data_loader = partial(_prepared, accelerator, asked, accelerator.prepare_data_loader)
        accelerator.skip_first_batches = partial(_skipped, accelerator.skip_first_batches)
        return trainer
    if "lightning.pytorch.trainer.trainer.Trainer" in names:
        _check_versions(["lightning"])
        if first_position or version is not None or lengths is not None or (seeded, order) != ("batch", "full"):
            raise ConfigError(
                "Lightning gets a headrace.DataLoader in fit: pass version=, lengths=, seeded= and order= to that, and"
                " no first_position"
            )
        from headrace.integrations.lightning import follow

        follow(trainer)
        return trainer
    if isinstance(trainer, FromHeadrace) or "transformers.trainer.Trainer" not in names:
        raise ConfigError(
            f"trainer is {trainer!r:.80}; expected a Trainer of transformers or TRL with a train_dataset, an"
            " Accelerator, or a Trainer of Lightning"
        )
    trl = [name for path, name in names.items() if path.startswith("trl.")]
    if trl and trl[0] not in _TRL:
        raise ConfigError(f"TRL's {trl[0]} feeds itself in a way that is not known here; known are {', '.join(_TRL)}")
    _check_versions(("transformers", "accelerate", *(["trl"] if trl else [])))
    if not isinstance(trainer, ExactTrainer):
        kind = type(trainer)
        trainer.__class__ = type(f"Exact{kind.__name__}", (ExactTrainer, kind), {})
    trainer._asked = asked  # type: ignore[attr-defined]
    return trainer


class _Asked(NamedTuple):
    """What the caller of `exact` says of the data."""

    first_position: int
    version: str | int | None
    lengths: Any
    seeded: Seeded
    order: DrawnOrder

    def loader(self, kind: type[_Kind], made: Any, seed: int, ranks: Ranks, accumulation: int, **changed: Any) -> _Kind:
        """Return a loader of Headrace in the place of one of torch's."""
        sampler, lengths = made.sampler, self.lengths
        options = {name: getattr(made, name) for name in _TAKEN} | changed
        if self.order == "torch":  # accelerate draws from the seed, whatever generator there is
            options["generator"], sampler = None, copy(sampler)
            sampler.generator = None
        size = options["batch_size"] or getattr(made.batch_sampler, "batch_size", 1)
        if made.batch_size is None and made.batch_sampler is not None:
            options |= {"batch_size": 1, "batch_sampler": made.batch_sampler}
        elif type(sampler).__name__ == "LengthGroupedSampler":
            options["shuffle"] = True
            lengths = sampler.lengths if lengths is None else lengths
        elif "shuffle" not in changed and not isinstance(made.dataset, IterableDataset):
            options["sampler"] = sampler
        if options["generator"] is None and getattr(sampler, "generator", None) is None:
            options["seed"] = seed
        together = size * ranks.world_size
        if self.order == "torch" and options["drop_last"] and len(made.dataset) % (together * accumulation) >= together:
            raise ConfigError(
                "drop_last leaves out a last step that is not full here, and only a last batch of all processes in"
                " accelerate, so that later epochs begin at other steps: leave order='torch' out"
            )
        return kind(
            ranks=ranks,
            global_batch_size=together * accumulation,
            lengths=lengths,
            version=_version_of(made.dataset) if self.version is None else self.version,
            seeded=self.seeded,
            order=self.order,
            **options,
        )


def _version_of(dataset: Any) -> str | None:
    """Return a name for the contents of a dataset of Hugging Face: of its columns, and some 64 of its rows.

    What TRL prepares has another fingerprint in each process of a job.
    """
    if not hasattr(dataset, "_fingerprint"):
        return None
    rows = list(range(0, len(dataset), max(1, len(dataset) // 64)))
    found = dataset.with_format("arrow")[rows].to_pylist()
    return xxhash.xxh3_128_hexdigest(repr((dataset.column_names, found)).encode())


def _check_versions(names: Iterable[str]) -> None:
    for name in names:
        found = version_of(name)
        if found.split(".")[:2] != KNOWN[name].split("."):
            raise ConfigError(
                f"{name} {found} is installed, and headrace.exact was made for {name} {KNOWN[name]}, whose methods it"
                f" overrides: install {name}~={KNOWN[name]}.0"
            )


def _check_division(accelerator: Any, order: DrawnOrder) -> None:
    for name in ("dispatch_batches", "split_batches"):
        if getattr(accelerator, name):
            raise ConfigError(
                f"{name}=True lets accelerate divide batches, and here each process makes its own: leave it out"
            )
    if order == "torch" and not accelerator.use_seedable_sampler:
        raise ConfigError(
            "order='torch' is the order of accelerate's SeedableRandomSampler, and use_seedable_sampler is False: pass"
            " DataLoaderConfiguration(use_seedable_sampler=True, data_seed=...). A training that was begun without it"
            " had an order that no seed and epoch say"
        )


class _Steps(NamedTuple):
    """How a trainer and a loader count steps: those of the loader are generations of prompts for GRPO."""

    loader: DataLoader
    accumulation: int
    repeats: int

    @property
    def per_epoch(self) -> int:
        """Steps of the trainer in an epoch."""
        return max(1, -(-len(self.loader) * self.repeats // self.accumulation))

    def of_loader(self, steps: int) -> tuple[int, int]:
        """Return how many steps of the loader are used up after steps of the trainer: whole epochs, and the rest."""
        epoch, rest = divmod(steps, self.per_epoch)
        per_epoch = -(-len(self.loader) // self.loader.accumulation_steps)
        return epoch * per_epoch, rest * self.accumulation // (self.loader.accumulation_steps * self.repeats)


class ExactTrainer(Checkpointed):
    """What `exact` puts under the class of a trainer."""

    _asked: _Asked

    def get_train_dataloader(self) -> Any:
        """Return the batches of this process, from the checkpoint on that is resumed."""
        args, ranks, asked = self.args, self._ranks(), self._asked
        _check_division(self.accelerator, asked.order)
        if args.train_sampling_strategy == "batch_rebalance":
            raise ConfigError(
                "train_sampling_strategy='batch_rebalance' makes the samples of a step depend on the number of"
                " processes: use 'random', 'sequential' or 'group_by_length'"
            )
        self.accelerator.prepare = _as_it_is  # hides the method: the loader is caught before it is divided
        try:
            made: Any = super().get_train_dataloader()  # type: ignore[misc]
        finally:
            del self.accelerator.prepare
        seed = args.seed if args.data_seed is None else args.data_seed
        sampler, repeats = made.sampler, 1
        if type(sampler).__name__ == "RepeatSampler":
            if asked.order == "torch":
                raise ConfigError("GRPOTrainer draws its prompts in an order of its own: leave order='torch' out")
            # Every process reads the prompts of a generation, and takes its rows of them.
            repeats = sampler.repeat_count
            rows = slice(ranks.rank * made.batch_size, (ranks.rank + 1) * made.batch_size)
            prompts = {"batch_size": sampler.batch_size, "shuffle": sampler.shuffle, "drop_last": True}
            prompts["collate_fn"] = partial(_rows, made.collate_fn, sampler.mini_repeat_count, rows)
            loader = asked.loader(DataLoader, made, seed, Ranks(), 1, **prompts)
        else:
            loader = asked.loader(DataLoader, made, seed, ranks, args.gradient_accumulation_steps)
        steps = _Steps(loader, args.gradient_accumulation_steps, repeats)
        skipped = 0
        if self._resumed_from is not None:
            skipped = self._resume(steps, self._resumed_from) % steps.per_epoch * steps.accumulation
        elif asked.first_position:
            raise ConfigError("first_position is for a checkpoint without a state of the data, and none is resumed")
        if hasattr(self, "_buffered_inputs"):
            # GRPOTrainer counts micro-steps from 0 in each life, and with them takes its part of a generation.
            self._step, self._buffered_inputs = skipped, None
        self._train_batches = TrainBatches(
            loader, _as_it_is, skipped, lambda: sum(steps.of_loader(self.state.global_step)), repeats
        )
        return RunDataLoader(self._train_batches, len(loader) * repeats)

    def _resume(self, steps: _Steps, folder: Path) -> int:
        """Go on from a checkpoint, and return the steps that the trainer has done."""
        loader, done = steps.loader, int(saved_in(folder, TRAINER_FILE)["global_step"])
        before, rest = steps.of_loader(done)
        epoch, first = done // steps.per_epoch, rest * loader.global_batch_size
        if (folder / STATE_FILE).exists():
            state = Checkpoint.read(folder).state
            self._check_sizes(steps, state.get("global_batch_size"))
            loader.load_state_dict(state)
        else:
            self._start(loader, folder, epoch * len(loader.dataset) + first)
        if loader.step != before + rest:
            raise StateError(
                f"{folder}: the trainer has done {done:,} steps, which are {before + rest:,} of the data, and the data"
                f" are after {loader.step:,}: these are the files of two checkpoints, or arguments have changed that"
                " say how long a step is"
            )
        loader.set_epoch(epoch)
        return done

    def _start(self, loader: DataLoader, folder: Path, position: int) -> None:
        """Go on from a checkpoint without a state of the data, after so many samples of all epochs."""
        samples = len(loader.dataset)
        if self._asked.order == "torch":
            told = float(saved_in(folder, TRAINER_FILE)["epoch"])
            if abs(told * samples - position) >= loader.global_batch_size:
                raise StateError(
                    f"{folder} was saved in epoch {told:.4g}, and its steps of {loader.global_batch_size:,} samples"
                    f" would be in epoch {position / samples:.4g}: pass arguments that make a step as long as it was"
                )
        elif self._asked.first_position != position:
            raise StateError(
                f"{folder} has no {STATE_FILE}: what was trained on before came in another order. To go on in that"
                " order, which torch's sampler draws, pass order='torch'. To go on in Headrace's order at the same"
                f" count of samples, pass first_position={position}: samples of this epoch may come twice or not at all"
            )
        loader.start_at(position)

    def _check_sizes(self, steps: _Steps, saved: Any) -> None:
        """Raise ConfigError if a step, or a generation of prompts, has another size than in the checkpoint."""
        size, args = steps.loader.global_batch_size, self.args
        if saved == size or not isinstance(saved, int):
            return
        names, divided = ["gradient_accumulation_steps"], "samples a step"
        if steps.repeats > 1 or hasattr(self, "_buffered_inputs"):
            names = [*names, "steps_per_generation"]
            divided = f"rows, of {args.num_generations} for each prompt: {size:,} prompts a generation"
        values = {name: getattr(args, name) for name in names}
        rows = self._train_batch_size * values[names[-1]] * self._ranks().world_size
        advice = "another per_device_train_batch_size"
        if not any(value * saved % size for value in values.values()):
            advice = " and ".join(f"{name}={value * saved // size}" for name, value in values.items())
        raise ConfigError(
            f"the checkpoint was saved with {saved:,} for a step, and the trainer would take"
            f" per_device_train_batch_size {self._train_batch_size} x {names[-1]} {values[names[-1]]} x"
            f" {self._ranks().world_size} data-parallel processes = {rows:,} {divided}: pass {advice}"
        )


def _as_it_is(batch: Any) -> Any:
    return batch


def _rows(collate: Callable[[list[Any]], Any], times: int, rows: slice, prompts: list[Any]) -> Any:
    """Return the rows of a rank, among all that repeat each prompt of a generation. Rewards may change a row."""
    return collate([copy(prompt) for prompt in prompts for _ in range(times)][rows])


class AcceleratedLoader(DataLoader):
    """A `headrace.DataLoader` in a loop of accelerate: on the device, and known where gradients are accumulated."""

    accelerator: Any
    is_placed: bool
    end_of_dataloader = False
    remainder = -1

    def __iter__(self) -> Iterator[Any]:
        """Iterate as `headrace.DataLoader`, and say which batch is the last one of the epoch."""
        return self._moved(super().__iter__(), self.num_left())

    def _moved(self, batches: Iterator[Any], num_left: int) -> Iterator[Any]:
        from accelerate.utils import send_to_device

        accelerator, state = self.accelerator, self.accelerator.gradient_state
        self.end_of_dataloader = False
        state._add_dataloader(self)
        try:
            for number, batch in enumerate(batches, 1):
                self.end_of_dataloader = number == num_left
                if self.is_placed:
                    batch = send_to_device(batch, accelerator.device, non_blocking=accelerator.non_blocking)
                yield batch
        finally:
            state._remove_dataloader(self)


def _prepared(accelerator: Any, asked: _Asked, theirs: Callable[..., Any], loader: Any, **options: Any) -> Any:
    """Return what ``prepare_data_loader`` returns for a loader of torch, registered with the checkpoints."""
    if isinstance(loader, DataLoader):
        return loader
    if isinstance(loader.dataset, IterableDataset) or type(loader.sampler) is SequentialSampler:
        _log.info("a loader over %.80r does not shuffle: accelerate prepares it as ever", loader.dataset)
        return theirs(loader, **options)
    _check_division(accelerator, asked.order)
    parallel, seed = accelerator.parallelism_config, accelerator.dataloader_config.data_seed
    peers = 1 if parallel is None else parallel.non_data_parallel_size
    made = asked.loader(
        AcceleratedLoader,
        loader,
        (torch.initial_seed() if asked.order == "torch" else 0) if seed is None else seed,
        Ranks(accelerator.process_index // peers, accelerator.num_processes // peers),
        accelerator.gradient_accumulation_steps,
    )
    placed = options.get("device_placement")
    made.accelerator, made.is_placed = accelerator, accelerator.device_placement if placed is None else placed
    accelerator.register_for_checkpointing(made)
    return made


def _skipped(theirs: Callable[..., Any], loader: Any, num_batches: int = 0) -> Any:
    if isinstance(loader, DataLoader):
        raise ConfigError("load_state puts this loader after its last batch by itself: leave skip_first_batches out")
    return theirs(loader, num_batches)
