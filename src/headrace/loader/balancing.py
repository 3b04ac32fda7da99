"""Balanced steps: the costs of samples, and the assignment of the samples of a step to ranks by them.

Costs follow from lengths that are known before any sample is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.datasets import Dataset, PackedSequenceDataset, RaggedDataset, Run
from headrace.datasets.dataset import counted
from headrace.errors import ConfigError, StateError
from headrace.loader.spans import UNTOLD, begun_samples, check_between_steps
from headrace.plan import (
    Assignment,
    BalancedStep,
    Cursor,
    IntArray,
    Share,
    StepPart,
    balanced,
    step_order,
    unbalanced,
)
from headrace.plan.balance import ASSIGNMENT_VERSION
from headrace.plan.slots import AnyDraw

CostOfLengths = Callable[[IntArray], NDArray[Any]]
Cost = Literal["tokens", "supervised_tokens"] | CostOfLengths


class Balance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """Assigns the samples of each step so that all micro-batches of a micro-step cost about the same.

    Pass it as ``Loader(..., balance=)``. The cost of a sample is its number of tokens, or what a function says.

    Attributes:
        cost: ``"tokens"``, ``"supervised_tokens"``, or a function. The function accepts (n,) int64 lengths and returns
            (n,) numbers of at least 0, the same on every rank. The length of a record is that of the longest row that
            it makes in a batch. For packs the lengths are those of their documents, and a pack costs the sum.
        lengths: for each source, by its path, (samples of the dataset,) integers of at least 0; the path of a single
            dataset is ``""``. Needed where the dataset knows no lengths, as with media, or where something else costs.

    Raises:
        ConfigError: ``cost`` is none of these, or ``lengths`` are no such integers, or do not go with ``cost``.

    Example:
        >>> balance = headrace.loader.Balance(cost=lambda lengths: lengths * (12 * 4096 + lengths))  # with attention
        >>> dataset = headrace.PackedSequenceDataset(headrace.open("stores/web"), headrace.Packing(seq_len=512))
        >>> run = headrace.Run(dataset, global_batch_size=16)
        >>> ranks = headrace.loader.Ranks(0, 4)
        >>> loader = headrace.Loader(run, micro_batch_size=2, ranks=ranks, balance=balance)
        >>> [step] = loader.balance_figures()
        >>> step.balanced.rank_imbalance < step.unbalanced.rank_imbalance
        True
    """

    cost: Cost = "tokens"
    lengths: Mapping[str, NDArray[Any]] | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for a cost that is none of these, and for lengths that are no such integers."""
        if not callable(self.cost) and self.cost not in ("tokens", "supervised_tokens"):
            raise ConfigError(
                f"cost is {self.cost!r}; allowed are 'tokens', 'supervised_tokens' and a function of (n,) int64 lengths"
            )
        if self.lengths is not None and self.cost == "supervised_tokens":
            raise ConfigError("lengths do not say what cost='supervised_tokens' needs: leave one of them out")
        for path, values in (self.lengths or {}).items():
            if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iu":
                raise ConfigError(f"lengths of source {path!r} are {values!r:.80}; expected a (samples,) integer array")


class Costs:
    """The costs of samples of a run, by their positions. It reads no samples; loss masks only where ``Run.count`` does.

    Raises:
        ConfigError: the lengths of samples are not known, or are all equal; or ``lengths`` has a path that is no source
            of the run, or another number of samples than the source.
    """

    def __init__(self, run: Run, balance: Balance) -> None:
        self._run = run
        self._balance = balance
        self._given = {path: np.asarray(values) for path, values in (balance.lengths or {}).items()}
        if unknown := self._given.keys() - set(run.paths):
            raise ConfigError(
                f"lengths has the paths {sorted(unknown)}; the sources of the run are {sorted(run.paths)}"
            )
        for path, dataset in zip(run.paths, run.datasets, strict=True):
            given = self._given.get(path)
            if given is not None and len(given) != len(dataset):
                raise ConfigError(
                    f"there are {len(given):,} lengths for source {path!r}; its dataset has {len(dataset):,} samples"
                )
            if given is None:
                _check_known(path, dataset, balance)
        if callable(balance.cost):
            _of_lengths(balance.cost, np.ones(1, dtype=np.int64))

    def of(self, positions: IntArray) -> NDArray[Any]:
        """Return (n,) costs: int64 if the cost is a name, float64 if it is a function."""
        run, balance = self._run, self._balance
        located = run.locate(positions)
        indices = run.lookup(positions).indices if self._given else positions
        costs = np.empty(len(positions), dtype=np.float64 if callable(balance.cost) else np.int64)
        for source in np.unique(located.sources).tolist():
            rows = np.flatnonzero(located.sources == source)
            given = self._given.get(run.paths[source])
            if given is not None:
                lengths = given[indices[rows]].astype(np.int64)
                costs[rows] = _of_lengths(balance.cost, lengths) if callable(balance.cost) else lengths
            else:
                costs[rows] = _of_dataset(run.datasets[source], located.addresses[rows], balance.cost)
        return costs


def _of_dataset(dataset: Dataset, addresses: IntArray, cost: Cost) -> NDArray[Any]:
    if cost == "supervised_tokens":
        return counted(dataset).count(addresses).supervised_tokens
    if not callable(cost):
        if isinstance(dataset, RaggedDataset):
            return dataset.sample_lengths(addresses)
        return counted(dataset).count(addresses).tokens
    if isinstance(dataset, RaggedDataset):
        return _of_lengths(cost, dataset.sample_lengths(addresses))
    items = _packs(dataset).items(addresses)
    # From a pack's first piece to that of the next pack; reduceat needs that no pack is empty, and none is.
    sums: NDArray[np.float64] = np.add.reduceat(_of_lengths(cost, items.lengths), items.offsets[:-1])
    return sums


def _of_lengths(cost: CostOfLengths, lengths: IntArray) -> NDArray[np.float64]:
    costs = np.asarray(cost(lengths))
    if costs.shape != lengths.shape or costs.dtype.kind not in "iuf":
        raise ConfigError(
            f"the cost function returned {costs.dtype} of shape {costs.shape} for {lengths.shape} lengths; expected a "
            "number for each: the function must accept and return whole arrays"
        )
    return costs.astype(np.float64)


def _packs(dataset: Dataset) -> PackedSequenceDataset:
    """Return the packs that a dataset reads, possibly through other datasets."""
    while not isinstance(dataset, PackedSequenceDataset) and isinstance(
        inner := getattr(dataset, "dataset", None), Dataset
    ):
        dataset = inner
    if not isinstance(dataset, PackedSequenceDataset):
        raise ConfigError(f"the lengths of the documents in the packs of {type(dataset).__name__} are not known")
    return dataset


def _check_known(path: str, dataset: Dataset, balance: Balance) -> None:
    """Raise ConfigError if a dataset does not know what its samples cost."""
    where = f"source {path!r}: " if path else ""
    if not (dataset.traits.is_ragged or dataset.traits.is_packed):
        raise ConfigError(
            f"{where}all samples of {type(dataset).__name__} are equally long, so there is nothing to balance; "
            "if they still differ in cost, say so with Balance(lengths={...})"
        )
    give = f"pass them as Balance(lengths={{{path!r}: an array, ...}})"
    if not dataset.traits.has_tokens:
        raise ConfigError(
            f"{where}the lengths of samples of {type(dataset).__name__} are not known before they are read; {give}"
        )
    by = "tokens" if callable(balance.cost) else balance.cost
    try:
        _of_dataset(dataset, dataset.locate(np.zeros(1, dtype=np.int64)), by)
        if callable(balance.cost) and dataset.traits.is_packed:
            _packs(dataset)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}; {give}") from error


ASSIGNED_POSITIONS = 512
"""Positions assigned at a time, rounded up to whole steps. Few, since every rank assigns for all ranks, and batches
wait for it."""

MOST_STEP_PARTS = 16
"""How often one step may be interrupted and continued with other ranks. The limit keeps the state under 1 KB."""


class StepBalance(NamedTuple):
    """How the samples of a step are assigned, and how they would be without balance; ``str()`` compares the two.

    Attributes:
        step: the number of the step.
        balanced: the assignment by cost.
        unbalanced: the assignment in order.
    """

    step: int
    balanced: Assignment
    unbalanced: Assignment

    def __str__(self) -> str:
        parts = []
        for name, assignment in (("balanced", self.balanced), ("unbalanced", self.unbalanced)):
            parts.append(
                f"{name}: max over mean {assignment.micro_step_imbalance:.3f} of a micro-step, "
                f"{assignment.rank_imbalance:.3f} of the step, ranks wait {assignment.waiting:.1%}"
            )
        return f"step {self.step:,}: {'; '.join(parts)}"


class _Resumed(NamedTuple):
    """The step that a loaded state was in: which of its samples were taken without balance, then in which parts.

    ``first`` is (n,) int64: the samples taken without balance, numbered within the step, in the order of their slots.
    """

    step: int
    first: IntArray
    taken: tuple[StepPart, ...]


_NOWHERE = _Resumed(-1, np.zeros(0, dtype=np.int64), ())


class BalancedAssignment:
    """Maps the slots of a step, as `micro_batches` plans them, to the positions of the samples that fill them.

    It is a pure function of the slots and the costs. `step_order` says how a step continues in which a state was saved.

    Raises:
        ConfigError: costs are not known, see `Costs`; or the run keeps consecutive samples of one source, or of similar
            lengths, together, which balance would undo.
    """

    planned_positions = ASSIGNED_POSITIONS

    def __init__(self, run: Run, balance: Balance, share: Share) -> None:
        if not isinstance(balance, Balance):
            raise ConfigError(f"balance is {balance!r:.80}; expected a Balance, such as Balance(cost='tokens')")
        if run.block_samples is not None:
            raise ConfigError(
                f"block_samples={run.block_samples:,} keeps consecutive samples of one source together, and balance "
                "would mix them: leave one of the two out"
            )
        if run.bucketing is not None and run.bucketing.group_samples is not None:
            raise ConfigError(
                f"bucketing with group_samples={run.bucketing.group_samples} brings similar lengths together within a "
                "step, and balance would separate them: leave one of the two out, or bucket whole steps with "
                "group_samples=None"
            )
        self._run = run
        self._share = share
        self._costs = Costs(run, balance)
        self._resumed = _NOWHERE

    def start_at(self, position: int) -> None:
        """Begin at a position between two steps.

        Raises:
            ConfigError: the position is within a step.
        """
        check_between_steps(self._run, position, UNTOLD + "with balance")
        self._resumed = _NOWHERE

    def load(self, cursor: Cursor, draw: AnyDraw | None) -> None:
        """Continue from a saved state; ``draw`` says how the slots were drawn that were taken without balance.

        Raises:
            StateError: the state was saved within a step that this loader cannot continue; nothing has changed then.
        """
        begin = self._run.schedule.begin(cursor.step)
        taken = () if cursor.balanced_step is None else cursor.balanced_step.taken
        first = cursor.position - begin - sum(step_part.num_taken for step_part in taken)
        if cursor.balanced_step is not None:
            self._check(cursor.balanced_step, cursor.step, first)
        slots = np.arange(begin, begin + first, dtype=np.int64)
        self._resumed = _Resumed(cursor.step, (slots if draw is None else draw.positions(slots)) - begin, taken)

    def balanced_step(self, position: int) -> BalancedStep | None:
        """Return what a state saved at this position must hold about its step; None between two steps."""
        if not (offset := begun_samples(self._run, position)):
            return None
        step = self._run.schedule.step_of(position)
        first, taken = self._before(step)
        costs = self._step_costs(step)
        begin = len(first) + sum(step_part.num_taken for step_part in taken)
        mine = (len(costs), self._share.world_size, self._share.micro_batch_size)
        if offset > begin:
            if taken and taken[-1].is_assigned_by(*mine):
                begin -= taken[-1].num_taken
                taken = taken[:-1]
            taken = (*taken, StepPart(*mine, offset - begin))
        return BalancedStep(costs=_hash(costs[: taken[-1].num_samples]), taken=taken) if taken else None

    def positions(self, slots: IntArray) -> IntArray:
        """Return (n,) int64: the position of the sample that fills each of these slots, which are in rising order."""
        found = np.empty_like(slots)
        if not len(slots):
            return found
        first, last = (self._run.schedule.step_of(int(slot)) for slot in slots[[0, -1]])
        for step, begin, costs in self._costs_between(first, last):
            low, high = np.searchsorted(slots, [begin, begin + len(costs)]).tolist()
            if low < high:
                found[low:high] = begin + self._order(step, costs)[slots[low:high] - begin]
        return found

    def digest(self, position: int) -> bytes:
        """Return 8 bytes that are the same on all ranks if these assign the samples of the step in the same way."""
        balanced_step = self.balanced_step(position)
        is_end = position == self._run.length
        costs = _hash(np.empty(0) if is_end else self._step_costs(self._run.schedule.step_of(position)))
        return xxhash.xxh3_64_digest(repr((balanced_step, costs)).encode())

    def figures(self, step: int) -> StepBalance:
        """Return how a whole step is assigned, with balance and without."""
        costs = self._step_costs(step)
        world_size, micro = self._share.world_size, self._share.micro_batch_size
        return StepBalance(
            step,
            balanced(costs, world_size=world_size, micro_batch_size=micro),
            unbalanced(costs, world_size=world_size, micro_batch_size=micro),
        )

    def _check(self, balanced_step: BalancedStep, step: int, first: int) -> None:
        if not _fits(balanced_step.taken, first):
            raise StateError(f"the saved state is damaged: for step {step:,} it holds {balanced_step!r}")
        costs = self._step_costs(step)
        last = balanced_step.taken[-1].num_samples
        if _hash(costs[:last]) != balanced_step.costs:
            raise StateError(
                f"the saved state was taken within step {step:,}, which was balanced by other costs than here: pass "
                "the balance, at least the run length, and the version of Headrace that it was saved with, or resume "
                "from a state between two steps"
            )
        mine = (len(costs), self._share.world_size, self._share.micro_batch_size)
        if len(balanced_step.taken) >= MOST_STEP_PARTS and not balanced_step.taken[-1].is_assigned_by(*mine):
            raise StateError(
                f"step {step:,} was interrupted {len(balanced_step.taken)} times, each time with other ranks or "
                "micro-batches: resume with those that it was saved with, or from a state between two steps"
            )

    def _before(self, step: int) -> tuple[IntArray, tuple[StepPart, ...]]:
        return (self._resumed if step == self._resumed.step else _NOWHERE)[1:]

    def _order(self, step: int, costs: NDArray[np.generic]) -> IntArray:
        first, taken = self._before(step)
        world_size, micro = self._share.world_size, self._share.micro_batch_size
        return step_order(costs, taken, first=first, world_size=world_size, micro_batch_size=micro)

    def _step_costs(self, step: int) -> NDArray[np.generic]:
        return next(self._costs_between(step, step))[2]

    def _costs_between(self, first: int, last: int) -> Iterator[tuple[int, int, NDArray[np.generic]]]:
        """Yield (step, its first position, the costs of its samples); all lengths are looked up together."""
        parts = [self._run.positions(step) for step in range(first, last + 1)]
        costs = self._costs.of(np.concatenate(parts))
        begin = int(parts[0][0])
        for step, part in enumerate(parts, first):
            low = int(part[0]) - begin
            yield step, int(part[0]), costs[low : low + len(part)]


def _fits(taken: tuple[StepPart, ...], first: int) -> bool:
    """Whether a step can have been taken in these parts, after ``first`` samples in order."""
    done, size = first, 0
    for step_part in taken:
        done += step_part.num_taken
        if min(step_part) < 1 or done > step_part.num_samples or step_part.num_samples < size:
            return False
        size = step_part.num_samples
    return first >= 0 and bool(taken)


def _hash(costs: NDArray[np.generic]) -> str:
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(costs).tobytes(), seed=ASSIGNMENT_VERSION)
