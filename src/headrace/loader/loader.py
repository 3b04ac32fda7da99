"""The loader: this rank's micro-batches of a run, as torch tensors, resumable after any of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any, Literal

from headrace.datasets import FramedRun, Run
from headrace.encoders import Fault, FaultLog, carried
from headrace.errors import ConfigError, StateError
from headrace.io import atomic_write, check_local
from headrace.loader.balancing import Balance, StepBalance
from headrace.loader.faults import FaultCounter, FeedLedger, report_path
from headrace.loader.feeds import Feed, SpanFeed, check_uneven, num_micro_batches
from headrace.loader.framed import FramedFeed, gathered_state
from headrace.loader.ranks import Ranks
from headrace.loader.reading import Reading
from headrace.loader.restoring import restored
from headrace.loader.spans import Batch
from headrace.plan import Cursor, RunRecipe, Share


class Loader:
    """Iterates over the micro-batches of one data-parallel rank.

    Each batch is a dict of tensors, the fields of the run's samples stacked, for windows ``input_ids``, ``labels`` and
    ``position_ids``, each (micro_batch_size, seq_len) int64, and ``sample_positions``, (micro_batch_size,) int64:
    the position of each sample in the run. They may be changed in place, but for ``position_ids`` that do not restart:
    those are one row expanded, as Megatron and Transformers give them.

    Batches of packed samples carry besides ``cu_seqlens`` and ``max_seqlen``, the segments of the flattened
    micro-batch, and ``num_supervised_tokens`` and ``step_supervised_tokens``, the labels in it and in the whole global
    step: the loss of a step is the sum of the token losses over the latter, whatever the ranks and micro-batches.
    Batches of records have these two as well; they are padded to their own longest record, so that their width differs
    from one to the next. Where a mask says which tokens are trained on, a step without one is an error before the run,
    see `Run.check_supervised`.

    Of a `FramedRun` batches have the columns that its hooks give, and ``unit_numbers``, (n,) int64: the number of each
    unit in the run; where lanes have ended they are smaller, or empty. A position counts units.

    Every rank has the same number of micro-batches in a step. Where ranks and micro-batches do not divide a step, the
    last one is smaller, possibly empty on some ranks; ``uneven="refuse"`` makes that an error instead.

    A loader goes on where its last iterator stopped delivering, whatever was read ahead: ``state_dict()`` after batch
    k resumes at k + 1. State may be loaded with other ranks, micro-batches and readers than it was saved with.
    With ``restart=True``, for validation, each iteration begins at position 0, or once at a state just loaded. Without,
    a loader that has come to the end of its run and is iterated again is an error: an epoch would be empty.

    Args:
        run: what is fed, and in which order.
        micro_batch_size: samples a batch on this rank.
        ranks: the data-parallel rank; by default ``Ranks.detect()``.
        reading: threads or workers, and how far ahead.
        uneven: what to do with steps that ranks and micro-batches do not divide.
        restart: whether each iteration begins at position 0.
        balance: assign the samples of each step so that micro-batches cost alike. Steps have the samples that they have
            without; who takes which, and their order within the step, differs. ``dealt`` in a state is of this.
        debug: check every packed micro-batch before it is handed out, each field against every other one; a
            contradiction is a HeadraceError. Takes about as long as reading it twice.
        position: where to begin, as by ``start_at``.
        fault_report: a file to which each sample that could not be made is added as a line of JSON, when its batch is
            handed over, see `read_fault_report`; ``{rank}`` in its name stands for the rank.
        journal: of a `FramedRun`, a file to which the frames that this rank begins are added, 16 bytes each and what
            they carry on: ``headrace trace`` finds units by it. ``{rank}`` stands for the rank.
    """

    def __init__(
        self,
        run: Run | FramedRun,
        *,
        micro_batch_size: int,
        ranks: Ranks | None = None,
        reading: Reading | None = None,
        uneven: Literal["allow", "refuse"] = "allow",
        restart: bool = False,
        balance: Balance | None = None,
        debug: bool = False,
        position: int = 0,
        fault_report: str | os.PathLike[str] | None = None,
        journal: str | os.PathLike[str] | None = None,
    ) -> None:
        micro_batch_size = index(micro_batch_size)
        if micro_batch_size < 1:
            raise ConfigError(f"micro_batch_size is at least 1, found {micro_batch_size}")
        self.run = run
        self.ranks = ranks or Ranks.detect()
        self._share = Share(self.ranks.rank, self.ranks.world_size, micro_batch_size)
        rank, world_size = self.ranks.rank, self.ranks.world_size
        journal = report_path(journal, rank, world_size, what="journal", instead="journal-{rank}.bin")
        self._given, self._journal = run, journal
        self._feed = self._feed_of(run, reading, balance, debug=debug)
        check_uneven(uneven, run.schedule, self.run.length, self._share)
        self._counting = FaultCounter(report_path(fault_report, rank, world_size))
        self._restart = restart
        self._loaded = False
        self._ended = False
        self._position = 0
        self._iteration = 0
        self.start_at(position)
        self._loaded = position > 0

    def _feed_of(
        self,
        run: Run | FramedRun,
        reading: Reading | None,
        balance: Balance | None,
        *,
        debug: bool,
    ) -> Feed:
        if isinstance(run, Run):
            if self._journal is not None:
                raise ConfigError(
                    "a journal is of the frames of a FramedRun; what a Run feeds is known without: Run.save"
                )
            self.reading = reading or Reading()
            return SpanFeed(run, self.ranks, self._share, self.reading, balance=balance, debug=debug)
        if not isinstance(run, FramedRun):
            raise ConfigError(f"run is {run!r:.80}; expected a Run or a FramedRun")
        if balance is not None:
            raise ConfigError("balance assigns samples by what is known of them before; of a FramedRun nothing is")
        # Hooks that draw random numbers cannot run in threads, so none are taken unless they are asked for.
        self.reading = reading or Reading(num_threads=0)
        return FramedFeed(run, self.ranks, self._share, self.reading, journal=self._journal)

    @property
    def position(self) -> int:
        """How many samples all ranks together have been given."""
        return self._position

    @property
    def step(self) -> int:
        """The global step that the next sample belongs to."""
        return self.run.schedule.step_of(self._position)

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the current position on. The loader follows the newest iterator; older ones end in error.

        Raises:
            StateError: the last batch was handed out before, and nothing is left for another epoch.
        """
        if self._restart and not self._loaded:
            self.start_at(0)
        if self._ended:
            raise StateError(
                f"this loader has come to the end of its run, at position {self._position:,}, and is iterated again:"
                " nothing is left. For more passes give the run epochs= or samples=, and iterate the loader once; a"
                " longer run takes the state of a shorter one. For validation say restart=True: each iteration then"
                " begins anew. To feed the same again: start_at(0)"
            )
        self._loaded = False
        self._iteration += 1
        return self._batches(self._iteration)

    def _batches(self, iteration: int) -> Iterator[Batch]:
        self._check_newest(iteration)
        begin = self._position
        try:
            for given in self._feed.batches(self._position):
                self._check_newest(iteration)
                self._counting.add(given.num_samples, given.faults, self.step if given.faults is not None else 0)
                self._position = given.after
                yield given.batch
            # Where nothing was left from the first, as of a state taken at the end, the iteration is empty by right.
            self._ended = self._position > begin
        except Exception as error:
            if faults := carried(error):
                self._tell(error, faults)
            raise

    def _tell(self, error: Exception, faults: Sequence[Fault]) -> None:
        """Count a sample that ends the run, and say where in it the sample is."""
        position = faults[-1].position
        # A position of a framed run is of a sample, and its unit is not known.
        step = None if position is None or isinstance(self.run, FramedRun) else self.run.schedule.step_of(position)
        if position is not None:
            error.add_note(f"at position {position:,} of the run" + ("" if step is None else f", step {step:,}"))
        self._counting.failed(faults, step)

    @property
    def faults(self) -> FaultLog:
        """The samples of the batches handed over so far that could not be made, and one that ended the run."""
        return self._counting.faults

    def ledger(self) -> FeedLedger:
        """How many samples this loader has handed over, and for how many of them others stand in, by reason."""
        return self._counting.ledger()

    def _check_newest(self, iteration: int) -> None:
        if iteration != self._iteration:
            raise StateError("this iterator is outdated: the loader was iterated anew or loaded another state")

    def state_dict(self) -> dict[str, Any]:
        """Under 1 KB, JSON-safe, the same on every rank: one process saves it for all.

        Of a `FramedRun` it has, besides, the lanes that this rank serves, some dozens of bytes each: save that of each
        rank, or `gather_state_dict`.

        Taken between two batches, it resumes with the second, whatever was read ahead.
        """
        return self._cursor().to_dict()

    def _cursor(self) -> Cursor:
        position = self._position
        return Cursor(recipe=self.run.recipe.hashes(), step=self.step, position=position, **self._feed.state(position))

    def gather_state_dict(self) -> dict[str, Any]:
        """The state of all ranks, on every one of them: of a `FramedRun`, `state_dict` has the lanes of this rank only.

        Every process of the job has to call it: two all-gathers, of 8 bytes and of the states, which are 4/3 of some
        dozens of bytes a lane. Of a `Run` it is `state_dict`.

        Raises:
            StateError: there are other ranks and no process group, see `headrace.loader.merge_state_dicts`; or the
                ranks are not all after the same micro-step.
        """
        state = self.state_dict()
        return state if isinstance(self.run, Run) else gathered_state(state, self.ranks.world_size)

    def serving(self) -> str:
        """One line: which share of the data each rank reads, and whether any is read more than once."""
        return self._feed.describe()

    def load_state_dict(
        self, state: Mapping[str, Any], *, recipe: str | os.PathLike[str] | RunRecipe | None = None
    ) -> None:
        """Go on from a saved state; ``recipe``, as saved by ``save_recipe``, tells the field when the runs differ.

        Raises:
            StateError: not a state, damaged, of an unknown version, or of another run; or within a step of a blend,
                saved before who takes what of it was drawn. Nothing has changed then.
            ConfigError: from there on a micro-batch would be of two sources, see `BlendDataset`; nothing has changed.
        """
        saved = recipe if isinstance(recipe, RunRecipe) or recipe is None else load_recipe(recipe)
        cursor = Cursor.from_dict(state)
        run = self._given if isinstance(self._given, Run) else self._given.as_saved(cursor.recipe)
        cursor = cursor.verified(run.recipe, run.schedule, run.length, saved=saved)
        feed = self._feed
        if isinstance(run, FramedRun) and isinstance(self.run, FramedRun) and run.lanes != self.run.lanes:
            feed = FramedFeed(run, self.ranks, self._share, self.reading, journal=self._journal)
        feed.load(cursor)
        if feed is not self._feed:
            self._feed.close()
        self.run, self._feed = run, feed
        self._position = cursor.position
        self._loaded = True
        self._ended = False
        self._iteration += 1

    def start_at(self, position: int) -> None:
        """Go on after the first ``position`` samples, Megatron's ``consumed_samples``, without a saved state.

        Raises:
            ConfigError: the run has no such position, or it is within a step that is balanced, or of a blend; nothing
                has changed then.
        """
        position = index(position)
        last = self.run.length
        if position < 0 or (last is not None and position > last):
            length = "endless run" if last is None else f"run of {last:,} samples"
            raise ConfigError(f"position {position:,} is outside this {length}")
        self._feed.start_at(position)
        self._position = position
        self._loaded = True
        self._ended = False
        self._iteration += 1

    def balance_figures(self, num_steps: int = 1) -> list[StepBalance]:
        """How some steps from the current one on are assigned, and would be without balance. Reads no samples.

        Raises:
            ConfigError: the loader has no ``balance``.
        """
        if self._feed.assignment is None:
            raise ConfigError("this loader does not balance: give it balance=headrace.loader.Balance()")
        last = self.step + index(num_steps)
        if self.run.num_steps is not None:
            last = min(last, self.run.num_steps)
        return [self._feed.assignment.figures(step) for step in range(self.step, last)]

    def restore_sample(self, key: Any) -> Any:
        """A sample that was given before, bit for bit, by its ``__restore_key__``; of the list of a batch, the batch.

        Needs the data and the key, no state. A position of a `Run`, or a list of them, serves as well; where several
        datasets have keys that look alike it has to. What the loader adds to a batch, such as ``sample_positions``, is
        not in it.

        Raises:
            ConfigError: no such key or position; the data have changed; a hook is not ``@stateless``.
        """
        return restored(self.run, key)

    def close(self) -> None:
        """End worker processes that wait for another iteration; it starts new ones. Else they end with the loader."""
        self._feed.close()

    def save_recipe(self, path: str | os.PathLike[str]) -> None:
        """Write what decides this run as JSON, once, beside the checkpoints."""
        check_local(path)
        atomic_write(Path(path), self.run.recipe.to_json())

    def __len__(self) -> int:
        """Micro-batches of this rank in the whole run; TypeError for an endless one. O(pieces of the schedule)."""
        if self.run.length is None:
            raise TypeError("a run without an end, or whose number of units shows while it runs, has no length")
        return num_micro_batches(self.run.schedule, self.run.length, self._share)

    def __repr__(self) -> str:
        return f"<Loader: rank {self.ranks.rank} of {self.ranks.world_size}, step {self.step:,}, {self.run!r}>"


def load_recipe(path: str | os.PathLike[str]) -> RunRecipe:
    """The recipe that ``Loader.save_recipe`` wrote. Raises StateError when it cannot be read."""
    check_local(path)
    try:
        return RunRecipe.from_json(Path(path).read_bytes())
    except OSError as error:
        raise StateError(f"the saved recipe cannot be read: {error}") from error
