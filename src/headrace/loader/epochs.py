"""`EpochLoader`, the base of all loaders that trainers iterate epoch by epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from headrace.config import whole
from headrace.errors import StateError


class EpochLoader(ABC):
    """Each iteration is one epoch of ``len(loader)`` batches, or what is left of it after a state was loaded.

    A loader says where its epochs end. If an epoch was left early, a `DataLoader` begins the next one, and the others
    go on in it.

    Attributes:
        epochs: the number of epochs; None if there are as many as are asked for.
    """

    epochs: int | None = None

    @property
    def sampler(self) -> Any:
        """None. Trainers that look for a sampler to put another one in its place, or to set its epoch, find none."""
        return None

    @property
    @abstractmethod
    def epoch(self) -> int:
        """The epoch that the next sample belongs to; ``epochs`` at the end."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches of this rank in an epoch. O(1)."""

    @abstractmethod
    def _rest(self) -> Iterator[Any]:
        """Yield what an iteration that begins now yields."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches up to the end of an epoch.

        Raises:
            StateError: all epochs are over; or, from an older iterator, a new one was used.
        """
        if self.epoch == self.epochs:
            raise StateError(
                f"all {self.epochs} epochs of this loader are over, and the trainer began another one. Tell it to stop"
                f" after {self.epochs * len(self):,} batches, or give a longer run and more epochs; a longer run"
                " accepts this state"
            )
        return self._rest()

    def set_epoch(self, epoch: int) -> None:
        """Check that the trainer begins the epoch that this loader is in. The order of an epoch is that of the run.

        Raises:
            StateError: it is another epoch, as when a trainer was resumed, and the state of its loader was not loaded.
        """
        if whole(epoch, "epoch") != self.epoch:
            raise StateError(
                f"the trainer begins epoch {epoch}, and this loader is in epoch {self.epoch} (from 0): {self!r}. Load"
                " the state that was saved with the model, and let each iteration run to the end of its epoch"
            )
