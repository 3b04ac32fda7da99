"""Balanced steps: what samples cost, who takes which position of a step, and what comes of that for the loader.

What samples cost, by their lengths, before any is read: what a balanced step is assigned by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.datasets import Dataset, PackedSequenceDataset, Run
from headrace.errors import ConfigError, StateError
from headrace.plan import (
    Assignment,
    BalancedStep,
    Cursor,
    Draw,
    IntArray,
    Share,
    StepPart,
    balanced,
    step_order,
    unbalanced,
)
from headrace.plan.balance import DEAL_VERSION

CostOfLengths = Callable[[IntArray], NDArray[Any]]
Cost = Literal["tokens", "supervised_tokens"] | CostOfLengths


class Balance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """The samples of each step are assigned so that all micro-batches of a micro-step cost alike.

        Balance()                                                    by tokens
        Balance(cost=lambda lengths: lengths * (12 * 4096 + lengths))  of layers of width 4,096, attention and all

    A function takes (n,) int64 lengths and gives (n,) numbers of at least 0, the same on every rank; of packs the
    lengths are those of their documents, and a pack costs their sum.

    Attributes:
        cost: ``"tokens"``, ``"supervised_tokens"``, or a function of lengths. The tokens of a record are those of the
            longest row that it makes in a batch.
        lengths: (samples of the dataset,) integers of at least 0 for sources by their path, ``""`` for a single
            dataset: where the dataset knows no lengths, as of media, or what counts is something else.
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
            raise ConfigError("lengths say nothing of cost='supervised_tokens': leave one of them out")
        for path, values in (self.lengths or {}).items():
            if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iu":
                raise ConfigError(f"lengths of source {path!r} are {values!r:.80}; expected a (samples,) integer array")


class Costs:
    """The costs of samples of a run, by their positions; reads no samples, and marks only where ``Run.count`` does.

    Raises:
        ConfigError: samples of which no length is known, or all of one length; lengths of no source of the run, or of
            another number of samples.
    """

    def __init__(self, run: Run, balance: Balance) -> None:
        self._run = run
        self._balance = balance
        self._given = {path: np.asarray(values) for path, values in (balance.lengths or {}).items()}
        if unknown := self._given.keys() - set(run.paths):
            raise ConfigError(f"lengths are given of {sorted(unknown)}; the sources are {sorted(run.paths)}")
        for path, dataset in zip(run.paths, run.datasets, strict=True):
            given = self._given.get(path)
            if given is not None and len(given) != len(dataset):
                raise ConfigError(
                    f"lengths of source {path!r} are {len(given):,}; the dataset has {len(dataset):,} samples"
                )
            if given is None:
                _check_known(path, dataset, balance)
        if callable(balance.cost):
            _of_lengths(balance.cost, np.ones(1, dtype=np.int64))

    def of(self, positions: IntArray) -> NDArray[Any]:
        """(n,) int64 of the costs by name, (n,) float64 of a function."""
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
        return dataset.count(addresses).supervised_tokens
    if not callable(cost):
        return dataset.sample_lengths(addresses) if dataset.is_ragged else dataset.count(addresses).tokens
    if dataset.is_ragged:
        return _of_lengths(cost, dataset.sample_lengths(addresses))
    items = _packs(dataset).items(addresses)
    # Of a pack's first piece to that of the next one: no pack is without.
    sums: NDArray[np.float64] = np.add.reduceat(_of_lengths(cost, items.lengths), items.offsets[:-1])
    return sums


def _of_lengths(cost: CostOfLengths, lengths: IntArray) -> NDArray[np.float64]:
    costs = np.asarray(cost(lengths))
    if costs.shape != lengths.shape or costs.dtype.kind not in "iuf":
        raise ConfigError(
            f"the cost of {lengths.shape} lengths is {costs.dtype} of shape {costs.shape}; expected a number for each: "
            "the function takes and gives whole arrays"
        )
    return costs.astype(np.float64)


def _packs(dataset: Dataset) -> PackedSequenceDataset:
    """The packs that a dataset hands on, whose documents have lengths."""
    while not isinstance(dataset, PackedSequenceDataset) and isinstance(
        inner := getattr(dataset, "dataset", None), Dataset
    ):
        dataset = inner
    if not isinstance(dataset, PackedSequenceDataset):
        raise ConfigError(f"of the packs of {type(dataset).__name__} the documents' lengths are not known")
    return dataset


def _check_known(path: str, dataset: Dataset, balance: Balance) -> None:
    """Raise ConfigError where a dataset cannot say what its samples cost, and say what can be done."""
    where = f"source {path!r}: " if path else ""
    if not (dataset.is_ragged or dataset.is_packed):
        raise ConfigError(
            f"{where}samples of {type(dataset).__name__} are all equally long, there is nothing to balance; "
            "if they cost differently all the same, say how by Balance(lengths={...})"
        )
    give = f"give them as Balance(lengths={{{path!r}: an array, ...}})"
    if not dataset.has_tokens:
        raise ConfigError(f"{where}samples of {type(dataset).__name__} have no lengths that are known before; {give}")
    by = "tokens" if callable(balance.cost) else balance.cost
    try:
        _of_dataset(dataset, dataset.locate(np.zeros(1, dtype=np.int64)), by)
        if callable(balance.cost) and dataset.is_packed:
            _packs(dataset)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}; {give}") from error


ASSIGNED_POSITIONS = 512
"""Positions assigned at a time, in whole steps: every rank assigns for all, and batches wait for it."""

MOST_STEP_PARTS = 16
"""How often one step may be stopped in its midst and go on with other ranks; the state stays under 1 KB."""


class StepBalance(NamedTuple):
    """How a step is assigned, and how it would be without balance."""

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
    """The step that a loaded state was in: the samples of it that were taken without balance, and then in which parts.

    ``first`` is (n,) int64, numbered within the step, in the order of the slots that took them.
    """

    step: int
    first: IntArray
    taken: tuple[StepPart, ...]


_NOWHERE = _Resumed(-1, np.zeros(0, dtype=np.int64), ())


class BalancedAssignment:
    """Maps the slots of steps, as ``split`` assigns them, to the positions that take them; a pure function of both.

    A step in whose midst a state was loaded goes on as `step_order` says.

    Raises:
        ConfigError: costs are not known, see `Costs`; micro-batches of one source each, or groups of like lengths
            within a step, which balance would undo.
    """

    def __init__(self, run: Run, balance: Balance, share: Share) -> None:
        if not isinstance(balance, Balance):
            raise ConfigError(f"balance is {balance!r:.80}; expected a Balance, as Balance(cost='tokens')")
        if run.block_samples is not None:
            raise ConfigError(
                f"{run.block_samples:,} consecutive samples are of one source, and balance would mix them: leave out "
                "one of block_samples and balance"
            )
        if run.bucketing is not None and run.bucketing.group_samples is not None:
            raise ConfigError(
                f"bucketing by group_samples={run.bucketing.group_samples} brings like lengths together within a step, "
                "and balance would part them: leave out one of them, or bucket whole steps with group_samples=None"
            )
        self._run = run
        self._share = share
        self._costs = Costs(run, balance)
        self._resumed = _NOWHERE

    def start_at(self, position: int) -> None:
        """Begin between two steps.

        Raises:
            ConfigError: the position is in the midst of one.
        """
        check_between_steps(self._run, position, "with balance")
        self._resumed = _NOWHERE

    def load(self, cursor: Cursor, draw: Draw | None) -> None:
        """Go on from a saved state; ``draw``: how the slots were drawn that were taken without balance.

        Raises:
            StateError: it was saved within a step that this loader cannot go on with; nothing has changed then.
        """
        begin = self._run.schedule.begin(cursor.step)
        taken = () if cursor.balanced_step is None else cursor.balanced_step.taken
        first = cursor.position - begin - sum(step_part.num_taken for step_part in taken)
        if cursor.balanced_step is not None:
            self._check(cursor.balanced_step, cursor.step, first)
        slots = np.arange(begin, begin + first, dtype=np.int64)
        self._resumed = _Resumed(cursor.step, (slots if draw is None else draw.positions(slots)) - begin, taken)

    def balanced_step(self, position: int) -> BalancedStep | None:
        """What a state must hold besides a position; None between two steps."""
        if not (offset := _offset(self._run, position)):
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
        """(n,) int64: the position that each of some rising slots takes."""
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
        """8 bytes, the same on all ranks if they assign alike."""
        balanced_step = self.balanced_step(position)
        is_end = position == self._run.length
        costs = _hash(np.empty(0) if is_end else self._step_costs(self._run.schedule.step_of(position)))
        return xxhash.xxh3_64_digest(repr((balanced_step, costs)).encode())

    def figures(self, step: int) -> StepBalance:
        """How a whole step is assigned."""
        costs = self._step_costs(step)
        world_size, micro = self._share.world_size, self._share.micro_batch_size
        return StepBalance(
            step,
            balanced(costs, world_size=world_size, micro_batch_size=micro),
            unbalanced(costs, world_size=world_size, micro_batch_size=micro),
        )

    def _check(self, balanced_step: BalancedStep, step: int, first: int) -> None:
        if not _fits(balanced_step.taken, first):
            raise StateError(f"the saved state is damaged: of step {step:,} it says {balanced_step!r}")
        costs = self._step_costs(step)
        last = balanced_step.taken[-1].num_samples
        if _hash(costs[:last]) != balanced_step.costs:
            raise StateError(
                f"the saved state was taken within step {step:,}, which was balanced by other costs than here: give "
                "the balance, at least the length, and the version of Headrace that it was saved with, or go on from "
                "a state between two steps"
            )
        mine = (len(costs), self._share.world_size, self._share.micro_batch_size)
        if len(balanced_step.taken) >= MOST_STEP_PARTS and not balanced_step.taken[-1].is_assigned_by(*mine):
            raise StateError(
                f"step {step:,} was stopped in its midst {len(balanced_step.taken)} times, with other ranks or "
                "micro-batches each: go on with those it was saved with, or from a state between two steps"
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
        """(step, its first position, the costs of its samples) for some steps, whose lengths are looked up together."""
        parts = [self._run.positions(step) for step in range(first, last + 1)]
        costs = self._costs.of(np.concatenate(parts))
        begin = int(parts[0][0])
        for step, part in enumerate(parts, first):
            low = int(part[0]) - begin
            yield step, int(part[0]), costs[low : low + len(part)]


def _offset(run: Run, position: int) -> int:
    """How much of its step is taken; 0 where a step begins, and at the end of the run."""
    return 0 if position == run.length else position - run.schedule.begin(run.schedule.step_of(position))


def check_between_steps(run: Run, position: int, why: str) -> None:
    """Raise ConfigError for a position in the midst of a step, where it does not say which samples were taken."""
    if _offset(run, position):
        step = run.schedule.step_of(position)
        raise ConfigError(
            f"position {position:,} is within step {step:,}, and how many samples were taken does not tell which, "
            f"{why}: begin where a step does, as {run.schedule.begin(step):,}, or load a saved state"
        )


def _fits(taken: tuple[StepPart, ...], first: int) -> bool:
    """Whether parts can be one after another, behind samples that were taken as they come."""
    done, size = first, 0
    for step_part in taken:
        done += step_part.num_taken
        if min(step_part) < 1 or done > step_part.num_samples or step_part.num_samples < size:
            return False
        size = step_part.num_samples
    return first >= 0 and bool(taken)


def _hash(costs: NDArray[np.generic]) -> str:
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(costs).tobytes(), seed=DEAL_VERSION)
