"""Assigned steps: the samples of a step are balanced over the ranks by costs, or dealt to the nodes that hold them.

Costs follow from lengths that are known before any sample is read, and blocks from where samples lie in their files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.config import check_choice
from headrace.datasets import Dataset, PackedSequenceDataset, RaggedDataset, Run
from headrace.datasets.block_uses import BlockUses
from headrace.datasets.dataset import counted
from headrace.environment import ranks_on_each_node
from headrace.errors import ConfigError, StateError
from headrace.io.paths import parse_size
from headrace.loader.ranks import Ranks
from headrace.loader.spans import UNTOLD, begun_samples, check_between_steps
from headrace.plan import (
    Assignment,
    BalancedStep,
    Cursor,
    IntArray,
    Share,
    StepPart,
    step_order,
    unbalanced,
)
from headrace.plan.balance import ASSIGNMENT_VERSION, costs_of
from headrace.plan.dealing import dealt_order, home_nodes, nodes_of
from headrace.plan.recipe import recorded_name
from headrace.plan.slots import AnyDraw

if TYPE_CHECKING:
    from headrace.cache import Cache

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

    @property
    def recipe(self) -> dict[str, Any]:
        """What decides the costs, safe for JSON: the name of a cost function, and hashes of the lengths. O(lengths)."""
        lengths = {path: np.ascontiguousarray(one, np.int64) for path, one in (self.lengths or {}).items()}
        return {
            "cost": recorded_name(self.cost) if callable(self.cost) else self.cost,
            "lengths": {path: xxhash.xxh3_128_hexdigest(one.data) for path, one in lengths.items()},
        }


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


class StepDealing(NamedTuple):
    """How many samples of a step are read by another node than the home of their block.

    Attributes:
        step: the number of the step.
        num_samples: the samples of the step.
        num_foreign: those that are read by another node.
        num_foreign_undealt: those that would be without dealing.
    """

    step: int
    num_samples: int
    num_foreign: int
    num_foreign_undealt: int


class Dealing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Deals the samples of each step to the nodes that hold them, so that the caches of all nodes become one.

    Pass it as ``Loader(..., dealing=)``, with ``Ranks(..., per_node=)`` where torchrun's variables do not say how many
    ranks a node has. Each node is the home of an equal share of the blocks of all files. A sample goes to the home of
    the block that holds most of it, in equal counts for all nodes; the few that are too many for their home are read by
    others, past their caches. The samples of every step stay what they are. A `Balance` acts within each node.

    Attributes:
        by: ``"blocks"``, the only way.
        block: the bytes of a block; that of the cache of the node.

    Raises:
        ConfigError: ``by`` or ``block`` is not allowed.

    Example:
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=32)
        >>> run = headrace.Run(dataset, global_batch_size=64)
        >>> ranks = headrace.loader.Ranks(0, 4, per_node=2)
        >>> dealing = headrace.Dealing(block="4KiB")
        >>> loader = headrace.Loader(run, micro_batch_size=4, ranks=ranks, dealing=dealing)
        >>> [step] = loader.dealing_figures()
        >>> step.num_foreign < step.num_foreign_undealt
        True
    """

    by: Literal["blocks"] = "blocks"
    block: str | int = "8MiB"

    def __post_init__(self) -> None:
        """Raise ConfigError for another way, and for a size that is none."""
        check_choice("by", self.by, ("blocks",))
        parse_size(self.block, "block")

    @property
    def block_bytes(self) -> int:
        """The bytes of a block."""
        return parse_size(self.block, "block")


class BlockDealing(NamedTuple):
    """How a run is dealt: where its samples lie, and how many ranks a node has."""

    uses: BlockUses
    per_node: int

    @classmethod
    def of(cls, run: Run, dealing: Dealing, ranks: Ranks) -> BlockDealing:
        """Return how a run is dealt.

        Raises:
            ConfigError: ``dealing`` is none, or it is not known where the samples of a dataset lie.
        """
        if not isinstance(dealing, Dealing):
            raise ConfigError(f"dealing is {dealing!r:.80}; expected a Dealing, as headrace.Dealing(by='blocks')")
        per_node = ranks_on_each_node(ranks.world_size, ranks.per_node)
        return cls(BlockUses.of_run(run, block_bytes=dealing.block_bytes), per_node)

    def tell(self, cache: Cache, ranks: Ranks) -> None:
        """Tell the cache of this node which blocks have their home here, so that it keeps no others.

        Raises:
            ConfigError: samples are dealt by other blocks than those of the cache.
        """
        table = self.uses.table
        if table.block_bytes != cache.block_bytes:
            raise ConfigError(
                f"samples are dealt by blocks of {table.block_bytes:,} bytes, and the cache has blocks of"
                f" {cache.block_bytes:,}: pass Dealing(block={cache.block_bytes})"
            )
        num_nodes, node = ranks.world_size // self.per_node, ranks.rank // self.per_node
        cache.keep_homes(self.uses.files, table.firsts[:-1].tolist(), num_nodes=num_nodes, node=node)


class _Resumed(NamedTuple):
    """The step that a loaded state was in: which of its samples were taken without balance, then in which parts.

    ``first`` is (n,) int64: the samples taken without balance, numbered within the step, in the order of their slots.
    """

    step: int
    first: IntArray
    taken: tuple[StepPart, ...]


_NOWHERE = _Resumed(-1, np.zeros(0, dtype=np.int64), ())


class StepFacts(NamedTuple):
    """By what the samples of a step are assigned: their costs, or the blocks that they lie in, or both; (n,) each."""

    costs: NDArray[Any] | None
    blocks: IntArray | None

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return len(self.blocks if self.costs is None else self.costs)  # type: ignore[arg-type] # one of them is there

    def rows(self, begin: int, end: int) -> StepFacts:
        """Return the facts of some of the samples."""
        return StepFacts(*(None if one is None else one[begin:end] for one in self))

    def digest(self) -> str:
        """Return a hash of all facts."""
        hasher = xxhash.xxh3_128(seed=ASSIGNMENT_VERSION)
        for one in self:
            if one is not None:
                hasher.update(np.ascontiguousarray(one).tobytes())
        return hasher.hexdigest()


class StepAssignment:
    """Maps the slots of a step, as `micro_batches` plans them, to the positions of the samples that fill them.

    It is a pure function of the slots and the facts of the samples: their costs, by which ranks are balanced, or the
    blocks that they lie in, by which they are dealt to nodes, or both. `step_order` and `dealt_order` say how a step
    continues in which a state was saved.

    Raises:
        ConfigError: costs are not known, see `Costs`, or blocks are not; or the run keeps consecutive samples of one
            source, or of similar lengths, together, which an assignment would undo.
    """

    planned_positions = ASSIGNED_POSITIONS

    def __init__(
        self, run: Run, share: Share, *, balance: Balance | None = None, dealing: BlockDealing | None = None
    ) -> None:
        if balance is not None and not isinstance(balance, Balance):
            raise ConfigError(f"balance is {balance!r:.80}; expected a Balance, such as Balance(cost='tokens')")
        what = "dealing" if balance is None else "balance"
        if run.block_samples is not None:
            raise ConfigError(
                f"block_samples={run.block_samples:,} keeps consecutive samples of one source together, and {what} "
                "would mix them: leave one of the two out"
            )
        if run.bucketing is not None and run.bucketing.group_samples is not None:
            raise ConfigError(
                f"bucketing with group_samples={run.bucketing.group_samples} brings similar lengths together within a "
                f"step, and {what} would separate them: leave one of the two out, or bucket whole steps with "
                "group_samples=None"
            )
        self._run = run
        self._share = share
        self._sizes = {"world_size": share.world_size, "micro_batch_size": share.micro_batch_size}
        self._costs = None if balance is None else Costs(run, balance)
        self._dealing = dealing
        self._per_node = 0 if dealing is None else dealing.per_node
        self._resumed = _NOWHERE

    def start_at(self, position: int) -> None:
        """Begin at a position between two steps.

        Raises:
            ConfigError: the position is within a step.
        """
        how = "with dealing" if self._costs is None else "with balance"
        check_between_steps(self._run, position, UNTOLD + how)
        self._resumed = _NOWHERE

    def load(self, cursor: Cursor, draw: AnyDraw | None) -> None:
        """Continue from a saved state; ``draw`` says how the slots were drawn that were taken without assignment.

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
        facts = self._step_facts(step)
        begin = len(first) + sum(step_part.num_taken for step_part in taken)
        mine = (facts.num_samples, self._share.world_size, self._share.micro_batch_size)
        if offset > begin:
            if taken and taken[-1].is_assigned_by(*mine, self._per_node):
                begin -= taken[-1].num_taken
                taken = taken[:-1]
            taken = (*taken, StepPart(*mine, offset - begin, self._per_node))
        return BalancedStep(costs=facts.rows(0, taken[-1].num_samples).digest(), taken=taken) if taken else None

    def positions(self, slots: IntArray) -> IntArray:
        """Return (n,) int64: the position of the sample that fills each of these slots, which are in rising order."""
        found = np.empty_like(slots)
        if not len(slots):
            return found
        first, last = (self._run.schedule.step_of(int(slot)) for slot in slots[[0, -1]])
        for step, begin, facts in self._facts_between(first, last):
            low, high = np.searchsorted(slots, [begin, begin + facts.num_samples]).tolist()
            if low < high:
                found[low:high] = begin + self._order(step, facts)[slots[low:high] - begin]
        return found

    def digest(self, position: int) -> bytes:
        """Return 8 bytes that are the same on all ranks if these assign the samples of the step in the same way."""
        balanced_step = self.balanced_step(position)
        is_end = position == self._run.length
        none = StepFacts(np.empty(0), None)
        facts = (none if is_end else self._step_facts(self._run.schedule.step_of(position))).digest()
        told = (balanced_step, facts, self._per_node) if self._per_node else (balanced_step, facts)
        return xxhash.xxh3_64_digest(repr(told).encode())

    def balance_figures(self, step: int) -> StepBalance:
        """Return how a whole step is balanced, and how it would be without balance.

        Raises:
            ConfigError: steps are not balanced.
        """
        facts = self._step_facts(step)
        if facts.costs is None:
            raise ConfigError("this loader does not balance its steps: pass it balance=headrace.loader.Balance()")
        order = self._ordered(facts, (), None)
        found = Assignment(order, costs_of(facts.costs, order, **self._sizes))
        return StepBalance(step, found, unbalanced(facts.costs, **self._sizes))

    def dealing_figures(self, step: int) -> StepDealing:
        """Return how many samples of a whole step are read by another node than their home, with dealing and without.

        Raises:
            ConfigError: samples are not dealt to nodes.
        """
        facts = self._step_facts(step)
        if facts.blocks is None:
            raise ConfigError("this loader does not deal its samples to nodes: pass it dealing=headrace.Dealing()")
        nodes = nodes_of(facts.num_samples, **self._sizes, per_node=self._per_node)
        homes = home_nodes(facts.blocks, self._share.world_size // self._per_node)
        orders = self._ordered(facts, (), None), np.arange(len(homes))
        foreign = [int((homes[order] != nodes).sum()) for order in orders]
        return StepDealing(step, facts.num_samples, *foreign)

    def _check(self, balanced_step: BalancedStep, step: int, first: int) -> None:
        if not _fits(balanced_step.taken, first):
            raise StateError(f"the saved state is damaged: for step {step:,} it holds {balanced_step!r}")
        facts = self._step_facts(step)
        last = balanced_step.taken[-1].num_samples
        if facts.rows(0, last).digest() != balanced_step.costs:
            raise StateError(
                f"the saved state was taken within step {step:,}, which was balanced by other costs than here, or dealt"
                " by other blocks: pass the balance, the dealing, at least the run length, and the version of Headrace"
                " that it was saved with, or resume from a state between two steps"
            )
        mine = (facts.num_samples, self._share.world_size, self._share.micro_batch_size, self._per_node)
        if len(balanced_step.taken) >= MOST_STEP_PARTS and not balanced_step.taken[-1].is_assigned_by(*mine):
            raise StateError(
                f"step {step:,} was interrupted {len(balanced_step.taken)} times, each time with other ranks or "
                "micro-batches: resume with those that it was saved with, or from a state between two steps"
            )

    def _before(self, step: int) -> tuple[IntArray, tuple[StepPart, ...]]:
        return (self._resumed if step == self._resumed.step else _NOWHERE)[1:]

    def _order(self, step: int, facts: StepFacts) -> IntArray:
        first, taken = self._before(step)
        return self._ordered(facts, taken, first)

    def _ordered(self, facts: StepFacts, taken: Sequence[StepPart], first: IntArray | None) -> IntArray:
        if facts.blocks is not None:
            return dealt_order(facts.blocks, facts.costs, taken, first=first, **self._sizes, per_node=self._per_node)
        costs = np.empty(0) if facts.costs is None else facts.costs
        return step_order(costs, taken, first=first, **self._sizes)

    def _step_facts(self, step: int) -> StepFacts:
        return next(self._facts_between(step, step))[2]

    def _facts_between(self, first: int, last: int) -> Iterator[tuple[int, int, StepFacts]]:
        """Yield (step, its first position, the facts of its samples); all samples are looked up together."""
        parts = [self._run.positions(step) for step in range(first, last + 1)]
        positions = np.concatenate(parts)
        facts = StepFacts(
            None if self._costs is None else self._costs.of(positions),
            None if self._dealing is None else self._dealing.uses.homes(positions),
        )
        begin = int(parts[0][0])
        for step, part in enumerate(parts, first):
            low = int(part[0]) - begin
            yield step, int(part[0]), facts.rows(low, low + len(part))


def _fits(taken: tuple[StepPart, ...], first: int) -> bool:
    """Whether a step can have been taken in these parts, after ``first`` samples in order."""
    done, size = first, 0
    for step_part in taken:
        done += step_part.num_taken
        is_dealt = step_part.per_node == 0 or (
            step_part.per_node > 0 and step_part.world_size % step_part.per_node == 0
        )
        if min(step_part[:4]) < 1 or not is_dealt or done > step_part.num_samples or step_part.num_samples < size:
            return False
        size = step_part.num_samples
    return first >= 0 and bool(taken)
