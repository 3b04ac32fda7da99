"""The loader: this rank's micro-batches of a run, as torch tensors, resumable after any of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from operator import index
from pathlib import Path
from typing import Any, Literal

from headrace.datasets import Run
from headrace.datasets.homogeneous import check_micro_batches
from headrace.errors import ConfigError, StateError
from headrace.io import atomic_write
from headrace.loader.packed import add_segments, verify
from headrace.loader.ranks import Ranks, agree
from headrace.loader.reading import Reader, Reading
from headrace.loader.spans import Batch, divide, spans
from headrace.loader.totals import StepTotals, add_totals
from headrace.plan import Cursor, Recipe, Share


class Loader:
    """Iterates over the micro-batches of one data-parallel rank.

    Each batch is a dict of tensors, the fields of the run's samples stacked, for windows ``input_ids``, ``labels`` and
    ``position_ids``, each (micro_batch_size, window_tokens) int64, and ``sample_positions``, (micro_batch_size,) int64:
    the position of each sample in the run. They may be changed in place, but for ``position_ids`` that do not restart:
    those are one row expanded, as Megatron and Transformers give them.

    Batches of packed samples carry besides ``cu_seqlens`` and ``max_seqlen``, the segments of the flattened
    micro-batch, and ``num_supervised_tokens`` and ``step_supervised_tokens``, the labels in it and in the whole global
    step: the loss of a step is the sum of the token losses over the latter, whatever the ranks and micro-batches.
    Batches of records have these two as well; they are padded to their own longest record, so that their width differs
    from one to the next. Where a mask says which tokens are trained on, a step without one is an error before the run,
    see `Run.check_supervised`.

    Every rank has the same number of micro-batches in a step. Where ranks and micro-batches do not divide a step, the
    last one is smaller, possibly empty on some ranks; ``uneven="refuse"`` makes that an error instead.

    A loader goes on where its last iterator stopped delivering, whatever was read ahead: ``state_dict()`` after batch
    k resumes at k + 1. State may be loaded with other ranks, micro-batches and readers than it was saved with.
    With ``restart=True``, for validation, each iteration begins at position 0, or once at a state just loaded.

    Args:
        run: what is fed, and in which order.
        micro_batch_size: samples a batch on this rank.
        ranks: the data-parallel rank; by default ``Ranks.detect()``.
        reading: threads or workers, and how far ahead.
        uneven: what to do with steps that ranks and micro-batches do not divide.
        restart: whether each iteration begins at position 0.
        debug: check every packed micro-batch before it is handed out, each field against every other one; a
            contradiction is a HeadraceError. Takes about as long as reading it twice.
        position: where to begin, as by ``start_at``.
    """

    def __init__(
        self,
        run: Run,
        *,
        micro_batch_size: int,
        ranks: Ranks | None = None,
        reading: Reading | None = None,
        uneven: Literal["deal", "refuse"] = "deal",
        restart: bool = False,
        debug: bool = False,
        position: int = 0,
    ) -> None:
        micro_batch_size = index(micro_batch_size)
        if micro_batch_size < 1:
            raise ConfigError(f"micro_batch_size is at least 1, found {micro_batch_size}")
        if uneven not in ("deal", "refuse"):
            raise ConfigError(f"uneven is {uneven!r}; allowed are 'deal', 'refuse'")
        self.run = run
        self.ranks = ranks or Ranks.detect()
        self.reading = reading or Reading()
        self._reader = Reader(run, self.reading)
        self._share = Share(self.ranks.rank, self.ranks.world_size, micro_batch_size)
        if uneven == "refuse":
            self._refuse_uneven()
        self._restart = restart
        self._debug = debug
        self._loaded = False
        self._position = 0
        self._iteration = 0
        self.start_at(position)
        self._loaded = position > 0

    def _refuse_uneven(self) -> None:
        sizes = {size for _, size in self.run.schedule.pieces}
        if self.run.num_steps is not None:
            sizes.add(len(self.run.positions(self.run.num_steps - 1)))
        together = self._share.world_size * self._share.micro_batch_size
        if uneven := sorted(size for size in sizes if not self._share.divides(size)):
            raise ConfigError(
                f"steps of {uneven} samples are not divided by {self._share.world_size} ranks times micro-batches of "
                f"{self._share.micro_batch_size} = {together}: change one of them, drop a short last step with "
                "drop_last=True, or allow uneven micro-batches with uneven='deal'"
            )

    def _check_blocks(self, position: int) -> None:
        """Raise ConfigError where a micro-batch from a position on would be of two sources, and must not be."""
        run = self.run
        if run.block_samples is not None:
            check_micro_batches(run.block_samples, run.schedule, run.length, self._share, position)

    @property
    def position(self) -> int:
        """How many samples all ranks together have been given."""
        return self._position

    @property
    def step(self) -> int:
        """The global step that the next sample belongs to."""
        return self.run.schedule.step_of(self._position)

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the current position on. The loader follows the newest iterator; older ones end in error."""
        if self._restart and not self._loaded:
            self._position = 0
        self._loaded = False
        self._iteration += 1
        return self._batches(self._iteration)

    def _batches(self, iteration: int) -> Iterator[Batch]:
        if self.ranks.agree:
            agree(self.run, self._position, self._share)
        work = spans(self.run, self._share, self._position)
        totals = StepTotals(self.run) if self.run.is_counted else None
        if totals is not None:
            self.run.check_supervised(self._position)
        for span, rows in self._reader.filled(work):
            batches = divide(rows, span, self.run.constants)
            if totals is not None:
                add_totals(batches, span, totals)
                if self.run.is_packed:
                    add_segments(batches)
            for batch, after in zip(batches, span.afters, strict=True):
                if iteration != self._iteration:
                    raise StateError("this iterator is outdated: the loader was iterated anew or loaded another state")
                if self._debug and self.run.is_packed:
                    verify(batch)
                self._position = after
                yield batch

    def state_dict(self) -> dict[str, Any]:
        """Under 1 KB, JSON-safe, the same on every rank: one process saves it for all.

        Taken between two batches, it resumes with the second, whatever was read ahead.
        """
        return self._cursor().to_dict()

    def _cursor(self) -> Cursor:
        return Cursor(recipe=self.run.recipe.hashes(), step=self.step, position=self._position)

    def load_state_dict(
        self, state: Mapping[str, Any], *, recipe: str | os.PathLike[str] | Recipe | None = None
    ) -> None:
        """Go on from a saved state; ``recipe``, as saved by ``save_recipe``, tells the field when the runs differ.

        Raises:
            StateError: not a state, damaged, of an unknown version, or of another run; nothing has changed then.
            ConfigError: from there on a micro-batch would be of two sources, see `BlendDataset`; nothing has changed.
        """
        saved = recipe if isinstance(recipe, Recipe) or recipe is None else load_recipe(recipe)
        cursor = Cursor.from_dict(state)
        cursor.verify(self.run.recipe, self.run.schedule, self.run.length, saved=saved)
        self._check_blocks(cursor.position)
        self._position = cursor.position
        self._loaded = True
        self._iteration += 1

    def start_at(self, position: int) -> None:
        """Go on after the first ``position`` samples, Megatron's ``consumed_samples``, without a saved state.

        Raises:
            ConfigError: the run has no such position; nothing has changed then.
        """
        position = index(position)
        if position < 0 or (self.run.length is not None and position > self.run.length):
            length = "endless run" if self.run.length is None else f"run of {self.run.length:,} samples"
            raise ConfigError(f"position {position:,} is outside this {length}")
        self._check_blocks(position)
        self._position = position
        self._loaded = True
        self._iteration += 1

    def close(self) -> None:
        """End worker processes that wait for another iteration; it starts new ones. Else they end with the loader."""
        self._reader.close()

    def save_recipe(self, path: str | os.PathLike[str]) -> None:
        """Write what decides this run as JSON, once, beside the checkpoints."""
        atomic_write(Path(path), self.run.recipe.to_json())

    def __len__(self) -> int:
        """Micro-batches of this rank in the whole run; TypeError for an endless one. O(pieces of the schedule)."""
        if self.run.length is None:
            raise TypeError("an endless run has no length")
        together = self._share.world_size * self._share.micro_batch_size
        position = count = 0
        while position < self.run.length:
            _, _, size, num_equal = self.run.schedule.locate(position)
            whole = (self.run.length - position) // size
            num_steps = min(whole, num_equal) if num_equal is not None else whole
            if num_steps == 0:
                return count + -(-(self.run.length - position) // together)
            count += num_steps * -(-size // together)
            position += num_steps * size
        return count

    def __repr__(self) -> str:
        return f"<Loader: rank {self.ranks.rank} of {self.ranks.world_size}, step {self.step:,}, {self.run!r}>"


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """The recipe that ``Loader.save_recipe`` wrote. Raises StateError when it cannot be read."""
    try:
        return Recipe.from_json(Path(path).read_bytes())
    except OSError as error:
        raise StateError(f"the saved recipe cannot be read: {error}") from error
