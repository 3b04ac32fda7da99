"""Loaders with epochs, as trainers know them from torchdata's ``StatefulDataLoader``.

Run --> StatefulLoader             --> batches; the state is that of the last one that was handed out
Run --> Prompts --> PromptLoader   --> prompts; the state holds those that have no fate yet
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from headrace.config import whole
from headrace.datasets import Run
from headrace.errors import ConfigError, StateError
from headrace.loader import DispatchedPrompt, Loader, Prompts, Ranks, Reading
from headrace.loader.epochs import EpochLoader
from headrace.loader.loader import RunSamples
from headrace.loader.prompts import collate_prompts
from headrace.plan.slots import num_micro_batches

__all__ = ["PromptLoader", "StatefulLoader"]

_NO_END = (
    "a trainer that counts epochs needs a run that ends: pass the run samples= or epochs=. The length is not part of a"
    " state, and can be made longer at any time"
)


class StatefulLoader(EpochLoader, Loader):
    """A `Loader` for trainers that count epochs: each iteration is one epoch of ``len(loader)`` batches.

    The run is divided into ``epochs`` parts of equally many steps. ``iter(loader)`` goes on at the position of the
    loader, to the end of the epoch that this lies in. So the iteration after the last batch of an epoch is the next
    epoch, and the one after a state was loaded is the rest of its epoch. No iteration is empty: after the last epoch,
    another one is a StateError. An iteration that was left early goes on where it was left.

    What a trainer calls an epoch need not be a pass through the data: a run over three passes can be one epoch, or ten.

    Args:
        run: the samples and their order; it has to have an end.
        micro_batch_size: samples in a batch on this rank. A trainer with one controller, which hands out the batches
            itself, wants the whole global batch.
        epochs: the number of epochs that the trainer is told to make.
        ranks: the data-parallel rank of this process; by default ``Ranks.detect()``.
        reading: whether threads or worker processes read.
        collate_fn: makes of each batch what the trainer takes. The batch is that of a `Loader`.

    Attributes:
        epoch_steps: the number of steps of an epoch.

    Raises:
        ConfigError: the run is endless, or ``epochs`` does not divide its steps, or epochs differ in their batches.

    Example:
        >>> from headrace.integrations.stateful import StatefulLoader
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> run = headrace.Run(dataset, global_batch_size=8, samples=48)
        >>> loader = StatefulLoader(run, micro_batch_size=8, epochs=2)
        >>> for epoch in range(2):
        ...     print(epoch, len(loader), [batch["sample_positions"][0].item() for batch in loader])
        0 3 [0, 8, 16]
        1 3 [24, 32, 40]
    """

    epochs: int

    def __init__(
        self,
        run: Run,
        *,
        micro_batch_size: int,
        epochs: int = 1,
        ranks: Ranks | None = None,
        reading: Reading | None = None,
        collate_fn: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        super().__init__(run, micro_batch_size=micro_batch_size, ranks=ranks, reading=reading)
        self.epochs = whole(epochs, "epochs", least=1)
        self._collate = collate_fn
        self._bounds = epoch_bounds(run, self.epochs)
        self.epoch_steps = (run.num_steps or 0) // self.epochs
        lengths = [num_micro_batches(run.schedule, end, self._share, begin) for begin, end in pairwise(self._bounds)]
        if len(set(lengths)) > 1:
            raise ConfigError(
                f"the {self.epochs} epochs have {', '.join(map(str, sorted(set(lengths))))} batches, and a trainer"
                " expects equally many in each: leave the short last step out with drop_last=True, or divide a run"
                " whose global batch grows into one epoch"
            )
        self._len = lengths[0]

    def _agreed(self, position: int) -> dict[str, Any]:
        return {**super()._agreed(position), "epochs of the loader": self.epochs}

    @property
    def epoch(self) -> int:
        """The epoch that the next sample belongs to; ``epochs`` at the end."""
        return self.epochs if self.position >= self._bounds[-1] else self.step // self.epoch_steps

    def __len__(self) -> int:
        """Return the number of micro-batches of this rank in an epoch, the same for every epoch. O(1)."""
        return self._len

    def num_left(self) -> int:
        """Return the number of micro-batches of this rank that are left of the epoch. O(pieces of the schedule)."""
        end = self._bounds[min(self.epoch + 1, self.epochs)]
        return num_micro_batches(self.run.schedule, end, self._share, self.position)

    def _rest(self) -> Iterator[Any]:
        end = self._bounds[self.epoch + 1]
        for batch in Loader.__iter__(self):
            is_last = self.position >= end
            yield batch if self._collate is None else self._collate(batch)
            if is_last:
                return


class PromptLoader(EpochLoader):
    """The prompts of a `Prompts`, for trainers with one controller that count epochs: verl, NeMo-RL, OpenRLHF.

    A batch dispatches ``batch_size`` prompts. The trainer, or a few lines of glue in it, gives each of them its fate by
    ``loader.prompts``: ``finish`` after the update, ``filter`` or ``fail``. The state is that of the `Prompts`, so that
    what is in hand when it is saved is dispatched again first.

    The run is divided into ``epochs`` parts of equally many prompts, and an iteration goes on until all prompts of a
    part were dispatched. Batches are full but for the last one of the run: after a restart with prompts in hand, which
    are dispatched again, the last batch of an epoch may begin the next one.

    Args:
        prompts: of a run that has an end, with ``ranks=Ranks()``, since one controller dispatches all of them.
        batch_size: prompts in a batch. The trainer repeats each of them for its responses.
        epochs: the number of epochs that the trainer is told to make.
        collate_fn: makes of the prompts of a batch what the trainer takes; by default the tensors of
            `Prompts.collate`, with each prompt once. What it makes has to carry the positions, for the fates.

    Raises:
        ConfigError: the run is endless, or ``epochs`` times ``batch_size`` does not divide its samples; or the prompts
            are those of one rank of several.

    Example:
        >>> from headrace.integrations.stateful import PromptLoader
        >>> dataset = headrace.PromptDataset(headrace.open("stores/prompts"))
        >>> run = headrace.Run(dataset, global_batch_size=8, samples=48)
        >>> prompts = headrace.Prompts(run, group_size=4, ranks=headrace.loader.Ranks())
        >>> loader = PromptLoader(prompts, batch_size=8, epochs=2)
        >>> for epoch in range(2):
        ...     for batch in loader:
        ...         loader.prompts.finish(batch["sample_positions"])
        >>> len(loader), loader.epoch, prompts.account().num_finished
        (3, 2, 48)
    """

    epochs: int

    def __init__(
        self,
        prompts: Prompts,
        *,
        batch_size: int,
        epochs: int = 1,
        collate_fn: Callable[[list[DispatchedPrompt]], Any] | None = None,
    ) -> None:
        length = prompts.run.length
        if prompts.ranks.world_size > 1:
            raise ConfigError(
                f"these are the prompts of rank {prompts.ranks.rank} of {prompts.ranks.world_size}, and one controller"
                " hands out all of them: pass ranks=headrace.loader.Ranks() to Prompts"
            )
        epochs, batch_size = whole(epochs, "epochs", least=1), whole(batch_size, "batch_size", least=1)
        if length is None:
            raise ConfigError(_NO_END)
        if left := length % (epochs * batch_size):
            raise ConfigError(
                f"the run has {length:,} prompts, which {epochs} epochs of batches of {batch_size} do not divide: pass"
                f" the run samples={max(length - left, epochs * batch_size)}, or other epochs or another batch_size"
            )
        self.prompts = prompts
        self.batch_size = batch_size
        self.epochs = epochs
        self._collate = collate_fn or partial(collate_prompts, prompts.run)
        self._epoch_prompts = length // self.epochs

    @property
    def dataset(self) -> RunSamples:
        """The samples of the run by their positions."""
        return RunSamples(self.prompts.run)

    @property
    def epoch(self) -> int:
        """The epoch that the next prompt belongs to; ``epochs`` at the end."""
        return self._num_started() // self._epoch_prompts

    def _num_started(self) -> int:
        """The number of prompts that are settled or were dispatched in this life."""
        account = self.prompts.account()
        return account.num_settled + len(self.prompts.outstanding)

    def __len__(self) -> int:
        """Return the number of batches in an epoch. O(1)."""
        return self._epoch_prompts // self.batch_size

    def _rest(self) -> Iterator[Any]:
        last = (self.epoch + 1) * self._epoch_prompts
        while self._num_started() < last:
            yield self._collate(self.prompts.take(self.batch_size))

    def set_epoch(self, epoch: int) -> None:
        """Check that a trainer that goes on has loaded its state. The order of an epoch is that of the run.

        Raises:
            StateError: a later epoch begins, and no prompt was ever dispatched.
        """
        if whole(epoch, "epoch") > 0 and not self.prompts.account().num_dispatched:
            raise StateError(
                f"the trainer begins epoch {epoch}, and no prompt was dispatched yet: load the state that was saved"
                " with the model"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the prompts, to save with the model; see `headrace.Prompts.state_dict`."""
        return self.prompts.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state: prompts that had no fate come first; see `headrace.Prompts.load_state_dict`."""
        self.prompts.load_state_dict(state)


def epoch_bounds(run: Run, epochs: int) -> list[int]:
    """Return (epochs + 1) positions: where each epoch of a trainer begins, and the end of the run.

    Raises:
        ConfigError: the run is endless, or ``epochs`` does not divide its steps.
    """
    if run.length is None or run.num_steps is None:
        raise ConfigError(_NO_END)
    steps, left = divmod(run.num_steps, epochs)
    if left:
        nearest = run.schedule.begin(steps * epochs) if steps else run.schedule.begin(epochs)
        raise ConfigError(
            f"the run has {run.num_steps:,} steps, which {epochs} epochs do not divide: pass the run"
            f" samples={nearest}, which makes {max(steps, 1):,} steps in each epoch, or pass another number of epochs"
        )
    return [run.schedule.begin(epoch * steps) for epoch in range(epochs)] + [run.length]
