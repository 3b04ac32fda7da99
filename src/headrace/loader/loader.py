"""The class `Loader`, which a training loop iterates over."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import index
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import to_builtins

from headrace.config import whole
from headrace.datasets import Run
from headrace.encoders import Fault, FaultLog
from headrace.errors import ConfigError, StateError
from headrace.io import atomic_write, check_local, read_small
from headrace.loader.faults import FaultCounter, FeedLedger, Given, original_errors, report_path
from headrace.loader.feeds import FeedOptions, SpanFeed, Uneven, check_uneven
from headrace.loader.ranks import Ranks, agree
from headrace.loader.reading import Reading
from headrace.loader.spans import Batch, Ids, check_between_steps
from headrace.plan import Cursor, RunRecipe, Share
from headrace.plan.chaptered.chapters import spans_of
from headrace.plan.slots import num_micro_batches

if TYPE_CHECKING:
    from headrace.datasets import FramedRun
    from headrace.loader.balancing import Balance, Dealing, StepBalance, StepDealing
    from headrace.loader.framed.feed import FramedFeed
    from headrace.loader.metrics import Meter, Metrics


class Loader:
    """Yields the micro-batches of a run that one data-parallel rank trains on, and resumes after any of them.

    Each process of a training job makes one loader over the same run. Iterate over it once: all epochs of the run are
    one iteration. Save ``state_dict()`` in your checkpoints, and pass it to ``load_state_dict()`` after a restart.

    **Batches.** Each batch is a dict. It holds the fields of the run's samples, stacked into tensors. For windows these
    are ``input_ids``, ``labels`` and ``position_ids``, each (micro_batch_size, seq_len) int64. Every batch also has
    ``sample_positions``, (micro_batch_size,) int64: the position of each sample in the run. Other runs add keys:

    - Packed samples: ``cu_seqlens``, (segments + 1,) int32, and ``max_seqlen``, an int, describe the segments of the
      flattened micro-batch. See `headrace.loader.varlen_arguments`.
    - Packed samples, records, and windows with a loss mask: ``num_supervised_tokens`` counts the labels of this
      micro-batch, ``step_supervised_tokens`` those of the whole global step. Sum the token losses and divide by the
      latter, and the loss of a step is the same for any number of ranks and any size of micro-batches.
    - Records and media: a batch is padded to its own longest record, so its width differs from batch to batch.
    - A `FramedRun`: the columns that its hooks return, and ``unit_numbers``, (n,) int64, the number of each unit in the
      run, in place of ``sample_positions``. Positions count units. Where lanes have ended, a batch is smaller or empty.

    You may change the tensors in place, except ``position_ids`` that do not restart at documents: these are one row,
    expanded, as in Megatron and Transformers.

    **Steps.** A global step usually takes several micro-batches; ``step`` is the step of the next sample. Every rank
    gets the same number of micro-batches in each step. If ranks times micro-batches do not divide a step, its last
    micro-batches are smaller, possibly empty on some ranks; ``uneven="refuse"`` makes that an error.

    **Resuming.** The loader continues after the last batch that it yielded, whatever was read ahead. A state taken
    after batch k resumes at batch k + 1, also with other ranks, micro-batch sizes and readers than it was saved with.
    A loader that has reached the end of its run raises StateError when it is iterated again, since nothing is left.
    With ``restart=True``, for validation, each iteration begins at position 0, except the first one after a state was
    loaded.

    If a loss mask says which tokens are trained on, a step in which it selects no token is a ConfigError, see
    `headrace.datasets.check_supervised`.

    Args:
        run: the samples and their order.
        micro_batch_size: samples in a batch on this rank.
        ranks: the data-parallel rank of this process; by default ``Ranks.detect()``, which reads the variables of
            ``torchrun``.
        reading: whether threads or worker processes read, and how far ahead. By default a thread reads windows. Two
            worker processes make samples that take Python, which are packs, records, media and all that runs your
            functions or hooks, unless workers cannot be used. ``describe()`` says what was chosen, and why.
        uneven: whether steps that ranks and micro-batches do not divide are allowed. With ``"fill"`` no rank gets an
            empty micro-batch: where fewer samples are left than there are ranks, some come to several ranks.
        restart: whether each iteration begins at position 0.
        balance: assigns the samples of each step to ranks and micro-batches so that these cost about the same. A step
            keeps its samples; only their order within the step, and the rank that takes each, differ.
        debug: check every packed micro-batch, each field against every other one, and raise HeadraceError if two
            contradict each other. This takes about as long as reading the batch twice.
        position: the number of samples to skip, as in ``start_at``.
        fault_report: a file to which the loader appends each sample that could not be made, as a line of JSON, when it
            yields the batch of that sample; see `read_fault_report`. ``{rank}`` in the name is replaced by the rank.
        journal: for a `FramedRun`, a file to which the loader appends each frame that this rank begins: 16 bytes, and
            what the frame carries on. ``headrace trace`` finds units with it. ``{rank}`` is replaced by the rank.
        metrics: where to tell what is measured: waits, rates, fill, mix and epochs.
        dealing: deals the samples of each step to the nodes whose caches hold them. A step keeps its samples.
        ids: the dtype of ``input_ids`` and ``labels`` of windows and packs. ``"int32"`` is half the memory to write and
            to copy to a device; widen the labels there, since torch's losses take int64: ``labels.long()``.

    Raises:
        ConfigError: an argument is not allowed, or does not suit the run.

    Example:
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> run = headrace.Run(dataset, global_batch_size=8, order=headrace.Order(seed=1), samples=32)
        >>> loader = headrace.Loader(run, micro_batch_size=4)
        >>> for batch in loader:
        ...     tokens = batch["input_ids"]  # here your training step
        ...     if loader.step == 2:
        ...         state = loader.state_dict()  # into your checkpoint
        ...         break
        >>> tokens.shape, state["position"]
        (torch.Size([4, 128]), 16)

        After a restart, on two ranks; this is the second one:

        >>> resumed = headrace.Loader(run, micro_batch_size=2, ranks=headrace.loader.Ranks(1, 2))
        >>> resumed.load_state_dict(state)
        >>> [batch["sample_positions"].tolist() for batch in resumed]
        [[18, 19], [22, 23], [26, 27], [30, 31]]
    """

    def __init__(
        self,
        run: Run | FramedRun,
        *,
        micro_batch_size: int,
        ranks: Ranks | None = None,
        reading: Reading | None = None,
        uneven: Uneven = "allow",
        restart: bool = False,
        balance: Balance | None = None,
        debug: bool = False,
        position: int = 0,
        fault_report: str | os.PathLike[str] | None = None,
        journal: str | os.PathLike[str] | None = None,
        metrics: Metrics | None = None,
        dealing: Dealing | None = None,
        ids: Ids = "int64",
    ) -> None:
        micro_batch_size = whole(micro_batch_size, "micro_batch_size", 1)
        self.ranks = ranks or Ranks.detect()
        self._share = Share(self.ranks.rank, self.ranks.world_size, micro_batch_size, fills=uneven == "fill")
        rank, world_size = self.ranks.rank, self.ranks.world_size
        journal = report_path(journal, rank, world_size, what="journal", instead="journal-{rank}.bin")
        self._feed = _feed_of(
            run,
            FeedOptions(
                self.ranks,
                self._share,
                reading,
                balance,
                debug,
                journal,
                dealing,
                times_files=metrics is not None,
                ids=ids,
            ),
        )
        check_uneven(uneven, run.schedule, run.length, self._share)
        self._counting = FaultCounter(report_path(fault_report, rank, world_size))
        self._meter: Meter | None = (
            None
            if metrics is None
            else resolve_name("headrace.loader.metrics:Meter")(metrics, self.ranks, self._counting)
        )
        self._restart = restart
        self._loaded = False
        self._ended = False
        self._position = 0
        self._iteration = 0
        self._has_fed = False
        self.start_at(position)
        self._loaded = position > 0

    @property
    def run(self) -> Run | FramedRun:
        """The run."""
        return self._feed.run

    @property
    def batch_size(self) -> int:
        """The number of samples of a micro-batch of this rank, as trainers call it."""
        return self._share.micro_batch_size

    @property
    def dataset(self) -> RunSamples:
        """The samples of the run by their positions. ``len(loader.dataset)`` is the number of samples it feeds."""
        return RunSamples(self.run)

    @property
    def reading(self) -> Reading:
        """How samples are read: as the loader was told, or as it decides when it is first iterated; see `describe`."""
        return self._feed.reader.reading

    @property
    def position(self) -> int:
        """The number of samples, or units of a `FramedRun`, that all ranks together have been given so far."""
        return self._position

    @property
    def step(self) -> int:
        """The global step that the next sample belongs to."""
        return self.run.schedule.step_of(self._position)

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the batches from the current position on. A new iterator outdates the ones before it.

        Raises:
            StateError: the loader has reached the end of its run, so nothing is left; or, from an older iterator, a new
                one was made.
        """
        if self._restart and not self._loaded:
            self.start_at(0, allow_repeats=True)
        if self._ended:
            raise StateError(
                f"this loader has reached the end of its run, at position {self._position:,}, and was iterated again:"
                " nothing is left. For more epochs make the run longer with epochs= or samples=, and iterate the loader"
                " once; a longer run accepts the state of a shorter one. For validation pass restart=True: each"
                " iteration then begins at position 0. To feed the same samples again, call"
                " start_at(0, allow_repeats=True)"
            )
        self._loaded = False
        self._iteration += 1
        return self._batches(self._iteration)

    def _batches(self, iteration: int) -> Iterator[Batch]:
        self._check_newest(iteration)
        begin = self._position
        if self.ranks.agree:
            agree(self._share, partial(self._agreed, begin))
        stream = self._feed.batches(begin)
        if number := os.environ.get("HEADRACE_REPLAY"):
            stream = resolve_name("headrace.loader.metrics:replayed")(stream, number)
        if self._meter is not None:
            stream = self._meter.watched(stream, self.run, self._feed.reader, begin)
        # A batch that was handed over is not kept: only its loop holds it.
        yield from map(partial(self._delivered, iteration), original_errors(stream, self._tell))
        # An iteration that began at the end, from a state saved there, is rightly empty and is no error.
        self._ended = self._position > begin

    def _agreed(self, position: int) -> dict[str, Any]:
        """Return all that decides which rank takes what, and when the iteration ends; ranks may read differently."""
        run = self.run
        return {
            "generation of the file": run.generation if isinstance(run, Run) else 0,
            "world_size": self._share.world_size,
            "micro_batch_size": self._share.micro_batch_size,
            "position": position,
            "length (samples, epochs, drop_last)": run.length,
            "restart": self._restart,
            "edits": [[edit.at_step, *edit.asked] for edit in run.edits],
            "recipe": to_builtins(run.recipe),
            **self._feed.agreed(position),
        }

    def _delivered(self, iteration: int, given: Given) -> Batch:
        """Count a micro-batch as delivered, and return it."""
        self._check_newest(iteration)
        self._counting.add(given.num_samples, given.faults, self.step if given.faults is not None else 0)
        self._position = given.after
        self._has_fed = True
        return given.batch

    def _tell(self, error: Exception, faults: Sequence[Fault]) -> None:
        """Count a sample that ends the run."""
        position = faults[-1].position
        self._counting.failed(faults, None if position is None else self._feed.step_of_sample(position))

    @property
    def faults(self) -> FaultLog:
        """The samples that could not be made, of the batches yielded so far, and the one that ended the run, if any."""
        return self._counting.faults

    def ledger(self) -> FeedLedger:
        """How many samples this loader has yielded, and how many of them were replaced by others, by reason."""
        return self._counting.ledger()

    def _check_newest(self, iteration: int) -> None:
        if iteration != self._iteration:
            raise StateError(
                "this iterator is outdated: the loader was iterated anew or loaded another state; use the newest one"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint. Taken after a batch, it resumes with the next one.

        For a `Run` it is under 1 KB, safe for JSON, and the same on every rank, so one process saves it for all.

        For a `FramedRun` it also holds the lanes that this rank serves, some dozens of bytes each. Save the state of
        each rank, or that of `gather_state_dict`.
        """
        return self._cursor().to_dict()

    def _cursor(self) -> Cursor:
        position = self._position
        return Cursor(**self._feed.identity(position), step=self.step, position=position, **self._feed.state(position))

    def gather_state_dict(self) -> dict[str, Any]:
        """Return the state of all ranks of a `FramedRun`, on every rank. For a `Run` it is the same as `state_dict`.

        Every process of the job has to call it. It takes two all-gathers, of 8 bytes and of the states, which take 4/3
        of some dozens of bytes a lane.

        Raises:
            StateError: there are several ranks and no process group, see `headrace.loader.merge_state_dicts`; or the
                ranks are not all after the same micro-step.
        """
        return self._feed.gathered(self.state_dict())

    def describe(self) -> str:
        """Describe the run, which rank this is, and where its samples are read and why, in a few lines.

        If the data are read through a cache, what was read through it so far is told too, by this process and its
        workers.
        """
        ranks = f"rank {self.ranks.rank} of {self.ranks.world_size}, micro-batches of {self.batch_size}"
        reader = self._feed.reader
        cache = [] if reader.cache is None else [f"cache: {reader.cache.describe()}"]
        return "\n".join([self.run.describe(), ranks, f"reading: {reader.describe()}", *cache])

    def serving(self) -> str:
        """Describe in one line which share of the data each rank reads, and whether any is read more than once."""
        return self._feed.describe()

    def load_state_dict(
        self, state: Mapping[str, Any], *, recipe: str | os.PathLike[str] | RunRecipe | None = None
    ) -> None:
        """Continue from a saved state. If it is refused, the loader stays as it was.

        Args:
            state: what `state_dict` or `gather_state_dict` returned.
            recipe: the recipe of the run that was saved, or the file that `save_recipe` wrote. With it, the error about
                another run names the field that differs.

        Raises:
            StateError: the state is none, is damaged, has an unknown version, or belongs to another run.
            ConfigError: a micro-batch after this position would mix two sources, which ``block_samples`` of a blend
                forbids.
        """
        saved = recipe if isinstance(recipe, RunRecipe) or recipe is None else load_recipe(recipe)
        cursor = Cursor.from_dict(state)
        cursor = self._feed.verified(cursor, saved)
        self._feed.load(cursor)
        self._position = cursor.position
        self._has_fed = cursor.position > 0
        self._loaded = True
        self._ended = False
        self._iteration += 1

    def start_at(self, position: int, *, allow_repeats: bool = False) -> None:
        """Continue after the first ``position`` samples, without a saved state. Megatron calls it ``consumed_samples``.

        Args:
            position: where a step begins, or the end of the run.
            allow_repeats: allow a jump of a loader that has fed samples, over some that then come twice or never; and a
                position within a step, where that is possible.

        Raises:
            ConfigError: the run has no such position; samples would come twice or never; or the position is within a
                step; or the run is framed, and the position is neither 0 nor the current one. The loader stays as it
                was.
        """
        position = whole(position, "position")
        last = self.run.length
        if position < 0 or (last is not None and position > last):
            length = "endless run" if last is None else f"run of {last:,} samples"
            raise ConfigError(f"position {position:,} is outside this {length}")
        if position != self._position and not allow_repeats:
            is_ordered = self._feed.assignment is None and getattr(self.run, "draw", None) is None
            fed = self._position if self._has_fed else None
            _check_jump(self.run, fed, position, is_ordered=is_ordered)
        self._feed.start_at(position)
        self._position = position
        self._loaded = True
        self._ended = False
        self._iteration += 1

    def turn_to(self, run: Run, position: int) -> None:
        """Go on with another run over the same dataset at one of its positions. Workers stay."""
        if not isinstance(self._feed, SpanFeed):
            raise ConfigError("the units of a framed run depend on those before: make a loader for another run")
        self._feed.turn_to(run)
        self._position = position
        self._loaded, self._ended, self._has_fed = True, False, False
        self._iteration += 1

    def balance_figures(self, num_steps: int = 1) -> list[StepBalance]:
        """Return how the next steps, from the current one on, are assigned, and how they would be without balance.

        This reads no samples.

        Raises:
            ConfigError: the loader has no ``balance``.
        """
        if self._feed.assignment is None:
            raise ConfigError("this loader does not balance its steps: pass it balance=headrace.loader.Balance()")
        return [self._feed.assignment.balance_figures(step) for step in self._next_steps(num_steps)]

    def dealing_figures(self, num_steps: int = 1) -> list[StepDealing]:
        """Return how many samples of the next steps are read by another node than the one whose cache holds them.

        This reads no samples.

        Raises:
            ConfigError: the loader has no ``dealing``.
        """
        if self._feed.assignment is None:
            raise ConfigError("this loader does not deal its samples to nodes: pass it dealing=headrace.Dealing()")
        return [self._feed.assignment.dealing_figures(step) for step in self._next_steps(num_steps)]

    def _next_steps(self, num_steps: int) -> range:
        last = self.step + whole(num_steps, "num_steps")
        return range(self.step, last if self.run.num_steps is None else min(last, self.run.num_steps))

    def verdict(self) -> str:
        """Say in words whether this rank waited for data so far, and for what. Needs ``metrics``."""
        return self._metered().verdict()

    def gather_verdict(self) -> str:
        """Say in words whether any rank waited for data so far, for what, and which rank most.

        Every process of the job has to call it; it takes two all-gathers of some hundred bytes.

        Raises:
            ConfigError: the loader has no ``metrics``.
            StateError: there are several ranks and no process group.
        """
        return self._metered().gather_verdict()

    def _metered(self) -> Meter:
        if self._meter is None:
            raise ConfigError("this loader measures nothing: pass it metrics=headrace.Metrics()")
        return self._meter

    def restore_sample(self, key: Any) -> Any:
        """Make a sample again, bit for bit, from its ``__restore_key__``; from the list of keys of a batch, the batch.

        This needs the data and the key, but no state. For a `Run` you can also pass a position, or a list of positions;
        you have to where several datasets have keys of the same form. What the loader adds to a batch, such as
        ``sample_positions``, is left out.

        Raises:
            ConfigError: there is no such key or position; the data have changed; a hook is not ``@stateless``.
        """
        restored: Any = resolve_name("headrace.loader.restoring:restored")
        return restored(self.run, key)

    def close(self) -> None:
        """End the worker processes, which otherwise end with the loader. The next iteration starts new ones."""
        self._feed.reader.close()

    def save_recipe(self, path: str | os.PathLike[str]) -> None:
        """Write the recipe of the run, all that decides its samples, to a JSON file. Once is enough."""
        check_local(path)
        atomic_write(Path(path), self.run.recipe.to_json())

    def __len__(self) -> int:
        """Return the number of micro-batches of this rank in the whole run, wherever it stands. O(pieces).

        Raises:
            TypeError: the run is endless, or the number of its units is not known before it has run.
        """
        if self.run.length is None:
            raise TypeError("this run is endless, or the number of its units is only known at its end: it has no len()")
        return num_micro_batches(self.run.schedule, self.run.length, self._share)

    def __repr__(self) -> str:
        return f"<Loader: rank {self.ranks.rank} of {self.ranks.world_size}, step {self.step:,}, {self.run!r}>"


def _feed_of(run: Run | FramedRun, options: FeedOptions) -> SpanFeed | FramedFeed:
    if isinstance(run, Run):
        return SpanFeed(run, options)
    if not isinstance(run, resolve_name("headrace.datasets:FramedRun")):
        raise ConfigError(f"run is {run!r:.80}; expected a Run or a FramedRun")
    feed: FramedFeed = resolve_name("headrace.loader.framed.feed:FramedFeed")(run, options)
    return feed


def _check_jump(run: Run | FramedRun, fed: int | None, position: int, *, is_ordered: bool) -> None:
    """Raise ConfigError for a jump within a step, or over samples that then come twice or never.

    Args:
        run: the run.
        fed: the position up to which the loader has fed; None if it has fed nothing.
        position: where it shall go on.
        is_ordered: whether the samples of a step are taken in the order of their positions.
    """
    if fed is not None and fed != position:
        back = position < fed
        counts = "" if not isinstance(run, Run) else _counted(run, *sorted((position, fed)))
        what = "units" if not isinstance(run, Run) else "samples"
        raise ConfigError(
            f"this loader has fed up to position {fed:,}, and start_at({position}) would go "
            f"{'back' if back else 'ahead'}: {abs(fed - position):,} {what}{counts} would come "
            f"{'twice' if back else 'never'}. To leave out steps for good, use run.skip(...); if you mean it, pass "
            "allow_repeats=True"
        )
    if isinstance(run, Run) and is_ordered:
        check_between_steps(run, position, "of which only a part would come")


def fed_between(run: Run, begin: int, end: int) -> dict[str, int]:
    """Return how many samples of each source are fed between two positions: path -> number. O(chapters x sources)."""
    found = Counter[str]()
    for chapter, first, last in spans_of(run.plan.chapters, begin, end):
        before, after = chapter.reached(first), chapter.reached(last)
        found.update({chapter.paths[source]: after[source] - before[source] for source in after})
    return dict(found)


def _counted(run: Run, begin: int, end: int) -> str:
    """Return the samples of each source between two positions, in brackets; nothing if there is one source."""
    counts = fed_between(run, begin, end)
    words = ", ".join(f"{path or '.'} {number:,}" for path, number in counts.items() if number)
    return f" ({words})" if len(counts) > 1 else ""


class RunSamples:
    """The samples of a run in the order in which they are fed: what trainers look for at ``loader.dataset``.

    Item i is the sample at position i of the run: a dict of NumPy arrays, or what its dataset makes of a record.
    Nothing is read before it is asked for.

    Raises:
        TypeError: ``len()`` of an endless run; or a unit of a `FramedRun`, which is only known when it is fed.
    """

    def __init__(self, run: Run | FramedRun) -> None:
        self.run = run

    def __len__(self) -> int:
        if self.run.length is None:
            raise TypeError("this run is endless, or the number of its units is only known at its end: it has no len()")
        return self.run.length

    def __getitem__(self, position: int) -> Any:
        position = index(position)
        if not isinstance(self.run, Run):
            raise TypeError("the units of a framed run are only known when they are fed: they have no item access")
        if position < 0 or (self.run.length is not None and position >= self.run.length):
            raise IndexError(f"no position {position:,} in {self.run!r}")
        located = self.run.locate(np.array([position], dtype=np.int64))
        if self.run.traits.is_ragged:
            return self.run.samples(located)[0]
        return {name: values[0] for name, values in self.run.read(located).items()} | self.run.constants

    def __repr__(self) -> str:
        return f"<RunSamples: {self.run!r}>"


def load_recipe(path: str | os.PathLike[str]) -> RunRecipe:
    """Read the recipe that `Loader.save_recipe` wrote.

    Raises:
        StateError: the file cannot be read, or holds no recipe.
    """
    check_local(path)
    try:
        return RunRecipe.from_json(read_small(Path(path)))
    except OSError as error:
        raise StateError(f"the saved recipe cannot be read: {error}") from error
