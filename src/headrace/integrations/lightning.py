"""`HeadraceDataModule`: the batches of a run for Lightning's ``Trainer``, checkpointed and resumed by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.datasets import Run
from headrace.errors import ConfigError, MissingExtraError
from headrace.integrations.stateful import StatefulLoader
from headrace.loader import DataLoader, Loader, Ranks, Reading
from headrace.plan import RunRecipe

try:
    from lightning.pytorch import LightningDataModule
except ImportError as error:
    raise MissingExtraError("this face needs Lightning 2: pip install lightning") from error

__all__ = ["HeadraceDataModule"]


class HeadraceDataModule(LightningDataModule):
    """Feeds a run to ``Trainer.fit(model, datamodule=...)``, and puts its state into the checkpoints of the trainer.

    ``Trainer(max_epochs=E)`` divides the run into E parts of equally many steps; with ``max_steps`` alone it is one. A
    checkpoint resumes with the batch after the last one that was trained on, with another number of processes,
    micro-batch size and ``accumulate_grad_batches`` too. Lightning puts no ``DistributedSampler`` into these loaders.

    Lightning divides each loss by ``accumulate_grad_batches``, and averages gradients over the processes. For the exact
    loss of a step, add up the losses of the tokens, divide by the tokens of the whole step, and multiply by
    ``loss_scale``.

    Args:
        run: the samples to train on; it has to have an end.
        micro_batch_size: samples in a batch of a process.
        validation: one run, or name -> run; see `Run.validation`. Their ``dataloader_idx`` is their place.
        validation_micro_batch_size: samples in a batch of a validation; by default ``micro_batch_size``.
        reading: whether threads or worker processes read.

    Raises:
        ConfigError: when the trainer asks for the loader: the steps of the trainer are not those of the run, which the
            message works out; or the trainer limits the batches of an epoch.
    """

    def __init__(
        self,
        run: Run,
        *,
        micro_batch_size: int,
        validation: Run | Mapping[str, Run] | None = None,
        validation_micro_batch_size: int | None = None,
        reading: Reading | None = None,
    ) -> None:
        super().__init__()
        self.run = run
        self.micro_batch_size = micro_batch_size
        self.validation = {"validation": validation} if isinstance(validation, Run) else dict(validation or {})
        self.validation_micro_batch_size = validation_micro_batch_size or micro_batch_size
        self.reading = reading
        self._saved: dict[str, Any] = {}
        self._loader: _TrainedLoader | None = None

    @property
    def ranks(self) -> Ranks:
        """The data-parallel rank of this process: the one for which the trainer would make a sampler."""
        return ranks_of(self.trainer)

    @property
    def loss_scale(self) -> int:
        """What Lightning and DDP together divide the sum of a step's losses by."""
        return int(self.trainer.accumulate_grad_batches * self.ranks.world_size)

    def train_dataloader(self) -> StatefulLoader:
        """Return the loader of the run, the same one each time that a trainer asks."""
        if self._loader is None or self._loader.trainer is not self.trainer:
            check_trainer(self.trainer, self.run, self.micro_batch_size)
            self._loader = _TrainedLoader(self)
            if "loader" in self._saved:
                # Once: another trainer begins at the beginning, unless it loads a checkpoint itself.
                self._loader.load_state_dict(self._saved.pop("loader"))
        return self._loader

    def val_dataloader(self) -> list[Loader]:
        """Return a loader for each run of the validation, which begins at its first sample each time."""
        size = self.validation_micro_batch_size
        return [
            Loader(run, micro_batch_size=size, ranks=self.ranks, reading=self.reading, restart=True)
            for run in self.validation.values()
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return what goes into a checkpoint: the state of the loader, and the recipe to name what differs on a resume.

        The trainer saves the state of the loader, too, but not in a checkpoint that is made after ``fit``.
        """
        loader = {} if self._loader is None else {"loader": self._loader.state_dict()}
        return {"recipe": self.run.recipe.to_json().decode(), **loader}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep a state until the trainer asks for the loader."""
        self._saved = dict(state_dict)
        self._loader = None

    @property
    def saved_recipe(self) -> RunRecipe | None:
        """The recipe of the run in the checkpoint that was loaded."""
        return RunRecipe.from_json(self._saved["recipe"].encode()) if self._saved else None

    def teardown(self, stage: str) -> None:
        """End the worker processes."""
        if self._loader is not None:
            self._loader.close()


class _TrainedLoader(StatefulLoader):
    """A loader that also sets the trainer's count of the batches of the epoch to that of its own processes."""

    def __init__(self, module: HeadraceDataModule) -> None:
        self.trainer = module.trainer
        self._module = module
        most = self.trainer.max_epochs
        super().__init__(
            module.run,
            micro_batch_size=module.micro_batch_size,
            epochs=most if most and most > 0 else 1,
            ranks=module.ranks,
            reading=module.reading,
        )

    def load_state_dict(self, state: Mapping[str, Any], **options: Any) -> None:
        super().load_state_dict(state, **{"recipe": self._module.saved_recipe, **options})
        _count_batches(self.trainer, self)


def follow(trainer: Any) -> None:
    """Let a trainer count the batches of its `headrace.DataLoader` anew when that was resumed; see `headrace.exact`."""
    loop = trainer.fit_loop
    load = loop._load_combined_loader_states

    def loaded() -> None:
        is_resumed = bool(loop._combined_loader_states_to_load)
        load()
        if is_resumed and isinstance(loader := trainer.train_dataloader, DataLoader):
            # After a resume, Lightning may save within a step.
            loader.restart_step()
            _count_batches(trainer, loader)

    loop._load_combined_loader_states = loaded


def _count_batches(trainer: Any, loader: DataLoader | StatefulLoader) -> None:
    """Set the trainer's count of the batches of the epoch to that of its own processes."""
    batches, epochs = trainer.fit_loop.epoch_loop.batch_progress, trainer.fit_loop.epoch_progress
    done = len(loader) - loader.num_left()
    if done and epochs.current.processed > loader.epoch:
        # A trainer that max_steps ends within an epoch counts it as one. It is as if saved at its last batch.
        for counted in (epochs.total, epochs.current):
            counted.ready = counted.started = loader.epoch + 1
            counted.processed = counted.completed = loader.epoch
        for counted in (batches.total, batches.current):
            counted.completed = counted.processed - 1
        batches.is_last_batch = False
    if batches.current.ready and not done:
        done = len(loader)  # the state of the last batch of an epoch, which the trainer has yet to end
    shift = done - batches.current.ready
    for name in ("ready", "started", "processed", "completed"):
        setattr(batches.current, name, getattr(batches.current, name) + shift)


def ranks_of(trainer: Any) -> Ranks:
    """Return the data-parallel rank of this process, which several share under a model-parallel strategy."""
    found = trainer.distributed_sampler_kwargs or {"rank": 0, "num_replicas": 1}
    return Ranks(found["rank"], found["num_replicas"])


def check_trainer(trainer: Any, run: Run, micro_batch_size: int) -> None:
    """Raise ConfigError if a step of the trainer is not a step of the run, or an epoch not all of its batches."""
    world_size, accumulated = ranks_of(trainer).world_size, trainer.accumulate_grad_batches
    together = world_size * micro_batch_size
    for size in sorted({size for _, size in run.schedule.pieces}):
        wanted = -(-size // together)
        if wanted != accumulated:
            raise ConfigError(
                f"a step of the run has {size:,} samples, and one of the trainer {accumulated * together:,}:"
                f" {world_size} data-parallel ranks times micro-batches of {micro_batch_size} times"
                f" accumulate_grad_batches={accumulated}."
                f" Pass Trainer(accumulate_grad_batches={wanted}), or change the micro-batch size or the global batch"
            )
    if trainer.limit_train_batches != 1.0 and not trainer.fast_dev_run:
        raise ConfigError(
            f"the trainer limits an epoch to limit_train_batches={trainer.limit_train_batches}, or overfit_batches, and"
            " would go on in the middle of an epoch: give the run that many samples"
        )
