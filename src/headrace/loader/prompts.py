"""Prompts for reinforcement learning: dispatched one by one, and each of them has exactly one fate.

    Run --> take(n) --> outstanding --> finish   its group of responses was trained on
                                    --> filter   its group was left out, with a reason
                                    --> fail     it could not be answered, with an error

A trainer that generates responses has prompts in hand that no position describes: some groups take long, some are left
out, some are finished before earlier ones. So the state is a watermark, the number of prompts that were dispatched, and
the prompts below it that have no fate yet. These are dispatched again first.

Prompts are dispatched in the order of *turns*, the slots of the run's steps (see `headrace.plan.slots`). Rank r of R
takes the turns W + r, W + r + R, ... after the watermark W of the state that all ranks have loaded:

    W = 12, 2 ranks            rank 0 takes 12 14 16 18     rank 1 takes 13 15
    all of them together       watermark 19, and 17 was skipped: it comes first after a restart
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np

from headrace.config import convert, whole
from headrace.datasets import Run
from headrace.datasets.states import identity, verified
from headrace.errors import ConfigError, StateError
from headrace.loader.loader import load_recipe
from headrace.loader.ranks import Ranks, gathered
from headrace.loader.reading import as_tensors
from headrace.loader.spans import Batch
from headrace.plan import Cursor, IntArray, RunRecipe
from headrace.plan.cursor import state_fields
from headrace.plan.tree import MAX_POSITIONS

if TYPE_CHECKING:
    import torch

    Positions = int | Sequence[int] | IntArray | torch.Tensor

KIND = "headrace.prompts"
VERSION = 1


class DispatchedPrompt(NamedTuple):
    """A prompt that was dispatched: its position in the run, and its sample, as the dataset of the run makes it."""

    position: int
    sample: Any


class PromptAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the prompts of one rank; rank 0 also counts those of all ranks from before the loaded state.

    Attributes:
        num_dispatched: prompts that were dispatched; one that was dispatched again counts once.
        num_again: prompts that were dispatched again since the state was loaded.
        num_finished: prompts whose group was trained on.
        num_responses: the responses in these groups.
        filtered: how many prompts were filtered, by reason.
        failed: how many prompts failed, by error.
        num_outstanding: prompts without a fate.
    """

    num_dispatched: int = 0
    num_again: int = 0
    num_finished: int = 0
    num_responses: int = 0
    filtered: dict[str, int] = {}
    failed: dict[str, int] = {}
    num_outstanding: int = 0

    @property
    def num_settled(self) -> int:
        """The number of prompts that have a fate."""
        return self.num_finished + sum(self.filtered.values()) + sum(self.failed.values())

    def describe(self) -> str:
        """Return the account in a few lines."""
        lines = [
            f"dispatched  {self.num_dispatched:,}, of which again {self.num_again:,}",
            f"finished    {self.num_finished:,}, with {self.num_responses:,} responses",
        ]
        for name, counts in (("filtered", self.filtered), ("failed", self.failed)):
            by_reason = "".join(f", {reason} {count:,}" for reason, count in sorted(counts.items()))
            lines.append(f"{name:<11} {sum(counts.values()):,}{by_reason}")
        lines.append(f"outstanding {self.num_outstanding:,}")
        return "\n".join(lines)


_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_POSITIONS)]
_Stride = Annotated[int, msgspec.Meta(ge=1, le=MAX_POSITIONS)]


class _Fates(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How many prompts had each fate."""

    finished: _Count = 0
    responses: _Count = 0
    filtered: dict[str, _Count] = msgspec.field(default_factory=dict)
    failed: dict[str, _Count] = msgspec.field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.finished + sum(self.filtered.values()) + sum(self.failed.values())

    @classmethod
    def of_all(cls, fates: Sequence[_Fates]) -> _Fates:
        return cls(
            finished=sum(one.finished for one in fates),
            responses=sum(one.responses for one in fates),
            filtered=dict(sum((Counter(one.filtered) for one in fates), Counter())),
            failed=dict(sum((Counter(one.failed) for one in fates), Counter())),
        )


class _State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of one rank; that of all ranks is the state of rank 0 of 1.

    Attributes:
        version: the version of this format.
        run: the cursor that says to which run the state belongs, up to the end of the last step begun.
        rank: the rank.
        world_size: the number of ranks.
        watermark: the turns that were dispatched or skipped before turns were shared among these ranks.
        taken: how many turns after that this rank has taken.
        outstanding: positions of the prompts without a fate, in the order of their turns.
        skipped: turns before the watermark that nobody has taken, as (first, stride, count).
        fates: counts of prompts with a fate.
    """

    version: int = VERSION
    run: dict[str, Any]
    rank: _Count
    world_size: _Stride
    watermark: _Count
    taken: _Count
    outstanding: tuple[_Count, ...]
    skipped: tuple[tuple[_Count, _Stride, _Count], ...]
    fates: _Fates

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> _State:
        fields = state_fields(state, KIND, "a saved state of Prompts")
        if fields.get("version") != VERSION:
            raise StateError(
                f"the saved state has version {fields.get('version')!r}; this Headrace reads version {VERSION}: use the"
                " version of Headrace that wrote it, or a newer one"
            )
        try:
            found = convert(fields, cls)
        except (ConfigError, UnicodeEncodeError) as error:
            raise StateError(f"the saved state is damaged: {error}") from error
        if found.rank >= found.world_size or found.taken * found.world_size > MAX_POSITIONS:
            raise StateError("the saved state is damaged: its rank is none, or has taken turns that are no positions")
        return found

    def to_dict(self) -> dict[str, Any]:
        state = msgspec.to_builtins(self)
        state["outstanding"], state["skipped"] = list(self.outstanding), [list(row) for row in self.skipped]
        return {"kind": KIND, **state}

    @property
    def top(self) -> int:
        """The turn after the last one that this rank has taken."""
        return self.watermark if not self.taken else self._turn(self.taken - 1) + 1

    def _turn(self, number: int) -> int:
        return self.watermark + self.rank + number * self.world_size

    def num_left_below(self, top: int) -> int:
        """The number of turns that ``left_below`` returns."""
        return sum(count for _, _, count in self.skipped) + len(range(self._turn(self.taken), top, self.world_size))

    def left_below(self, top: int) -> IntArray:
        """(n,) int64: the turns of this rank below ``top`` that it has not taken, or skipped earlier."""
        runs = [first + stride * np.arange(count, dtype=np.int64) for first, stride, count in self.skipped]
        return np.concatenate([*runs, np.arange(self._turn(self.taken), top, self.world_size, dtype=np.int64)])


class _Turn(NamedTuple):
    """A turn that waits to be taken: its number, its position, and whether it was dispatched before."""

    turn: int
    position: int
    is_again: bool


class Prompts:
    """Dispatches the prompts of a run, and knows which of them are trained, left out, failed or still in hand.

    ``take`` dispatches prompts. Each of them then gets exactly one fate, in any order: ``finish``, ``filter`` or
    ``fail``. Call ``finish`` when the model has been updated with the group, and save ``state_dict()`` in the
    checkpoint of that model. After a restart the prompts without a fate are dispatched again first, in their order; no
    other prompt comes twice, and none is lost.

    The calls may come from several threads.

    Args:
        run: a `Run` of records, such as those of a `PromptDataset`.
        group_size: responses to each prompt. ``collate`` repeats each prompt this often.
        ranks: the data-parallel rank of this process, by default as `headrace.loader.Ranks.detect` finds it. Each rank
            dispatches prompts of its own. Where one process serves the whole job, as a controller does, pass
            ``Ranks()``.

    Raises:
        ConfigError: the run is not of records, or ``group_size`` is below 1.

    Example:
        >>> dataset = headrace.PromptDataset(headrace.open("stores/prompts"))
        >>> run = headrace.Run(dataset, global_batch_size=8, order=headrace.Order(seed=1))
        >>> prompts = headrace.Prompts(run, group_size=4)
        >>> [prompt.position for prompt in prompts.take(3)]
        [0, 1, 2]
        >>> prompts.finish(2)
        >>> prompts.filter(0, "all rewards equal")
        >>> state = prompts.state_dict()

        After a restart:

        >>> prompts = headrace.Prompts(run, group_size=4)
        >>> prompts.load_state_dict(state)
        >>> [prompt.position for prompt in prompts.take(3)]
        [1, 3, 4]
    """

    def __init__(self, run: Run, *, group_size: int, ranks: Ranks | None = None) -> None:
        if not isinstance(run, Run) or not run.traits.is_ragged:
            raise ConfigError(f"run is {run!r:.80}; expected a Run of records, such as those of a PromptDataset")
        self.group_size = whole(group_size, "group_size", 1)
        self.run = run
        self.ranks = ranks or Ranks.detect()
        self._lock = Lock()
        # Drawn as if the run had no end, so that turns lead to the same positions when the run is made longer.
        endless = copy(run)
        endless.__dict__.pop("draw", None)
        endless.length = None
        self._draw = endless.draw
        self._end: int | None = run.length
        if run.length is not None and self._draw is not None:
            self._end = run.schedule.begin(run.schedule.step_of(run.length - 1) + 1)
        self._begin(0, [], _Fates(), set())

    def _begin(self, watermark: int, waiting: list[_Turn], fates: _Fates, strides: set[int]) -> None:
        """Share what comes from here on among the ranks. Skipped turns are some of these strides apart."""
        rank, world_size = self.ranks.rank, self.ranks.world_size
        self._watermark = watermark
        self._strides = strides
        self._taken = 0
        # Of the last step, if it is short, there are turns that lead beyond the end of the run. They stay here.
        self._waiting = sorted(waiting)[rank::world_size]
        self._outstanding: dict[int, int] = {}
        self._fates = fates if rank == 0 else _Fates()
        self._num_again = 0

    @property
    def outstanding(self) -> list[int]:
        """The positions of the prompts that this rank has taken and that have no fate yet, in order."""
        with self._lock:
            return sorted(self._outstanding, key=self._outstanding.__getitem__)

    def take(self, n: int) -> list[DispatchedPrompt]:
        """Dispatch the next ``n`` prompts of this rank; fewer at the end of the run, and then none.

        If a prompt cannot be read, the error is raised and none of them counts as dispatched.
        """
        n = whole(n, "n", 1)
        with self._lock:
            waiting, num_taken = list(self._waiting), self._taken
            while (num_missing := n - sum(map(self._is_there, waiting))) > 0 and (
                fresh := self._fresh(num_taken, num_missing)
            ):
                waiting += fresh
                num_taken += len(fresh)
            turns = [one for one in waiting if self._is_there(one)][:n]
            positions = np.array([one.position for one in turns], dtype=np.int64)
            samples = self.run.samples(self.run.locate(positions)) if turns else []
            taken = set(turns)
            self._waiting, self._taken = [one for one in waiting if one not in taken], num_taken
            self._outstanding.update((one.position, one.turn) for one in turns)
            self._num_again += sum(one.is_again for one in turns)
            return [DispatchedPrompt(one.position, sample) for one, sample in zip(turns, samples, strict=True)]

    def _is_there(self, turn: _Turn) -> bool:
        return self.run.length is None or turn.position < self.run.length

    def _fresh(self, num_taken: int, n: int) -> list[_Turn]:
        """Return up to n turns of this rank that nobody has taken, after others."""
        stride = self.ranks.world_size
        first = self._watermark + self.ranks.rank + num_taken * stride
        stop = first + n * stride
        turns = np.arange(first, stop if self._end is None else min(stop, self._end), stride, dtype=np.int64)
        return self._turns(turns, is_again=False)

    def _turns(self, turns: IntArray, *, is_again: bool) -> list[_Turn]:
        order = np.sort(turns)
        positions = order if self._draw is None else self._draw.positions(order)
        return [_Turn(turn, at, is_again) for turn, at in zip(order.tolist(), positions.tolist(), strict=True)]

    def collate(self, prompts: Sequence[DispatchedPrompt]) -> Batch:
        """Return prompts as one batch of tensors, as the `Loader` does, each ``group_size`` times in a row.

        ``sample_positions`` is (prompts times group_size,) int64.
        """
        return collate_prompts(self.run, [prompt for prompt in prompts for _ in range(self.group_size)])

    def finish(self, position: Positions, *, num_responses: int | None = None) -> None:
        """Say that the model was updated with the group of a prompt, or with those of several.

        Args:
            position: the position of the prompt, or several positions, such as ``sample_positions`` of a batch; one
                that stands several times counts once.
            num_responses: how many responses each group had, if not ``group_size``.

        Raises:
            StateError: a prompt is not outstanding on this rank, since it was never taken or has its fate already.
                Nothing has changed then.
        """
        num = self.group_size if num_responses is None else whole(num_responses, "num_responses")
        if not 1 <= num <= self.group_size:
            raise ConfigError(f"num_responses is from 1 to group_size = {self.group_size}, found {num}")
        with self._lock:
            count = self._settle(position)
            self._fates.finished += count
            self._fates.responses += count * num

    def filter(self, position: Positions, reason: str) -> None:
        """Say that a prompt is not trained on, such as one whose responses all have the same reward; see ``finish``."""
        self._lose("filtered", position, reason)

    def fail(self, position: Positions, error: BaseException | str) -> None:
        """Say that a prompt could not be answered; it is counted under the type of the error; see ``finish``."""
        self._lose("failed", position, error if isinstance(error, str) else type(error).__name__)

    def _lose(self, fate: Literal["filtered", "failed"], position: Positions, reason: str) -> None:
        if not isinstance(reason, str) or not reason:
            raise ConfigError(f"a prompt is {fate} for a reason, a text; found {reason!r}")
        with self._lock:
            count = self._settle(position)
            counts = self._fates.filtered if fate == "filtered" else self._fates.failed
            counts[reason] = counts.get(reason, 0) + count

    def _settle(self, given: Positions) -> int:
        every = np.unique(np.asarray(given))
        if every.dtype.kind not in "iu" or not every.size:
            raise ConfigError(f"{given!r:.80} is neither a position nor a list, an array or a tensor of positions")
        positions = every.tolist()
        if unknown := [one for one in positions if one not in self._outstanding]:
            raise StateError(
                f"the prompts at the positions {unknown} are not outstanding on rank {self.ranks.rank} of"
                f" {self.ranks.world_size}: it has not taken them since it was made or loaded a state, or they have"
                f" their fate already. {len(self._outstanding):,} are outstanding: {list(self._outstanding)[:8]}"
            )
        for one in positions:
            del self._outstanding[one]
        return len(positions)

    def account(self) -> PromptAccount:
        """Return what became of the prompts."""
        with self._lock:
            fates = self._fates
            num_outstanding = len(self._outstanding) + sum(one.is_again for one in self._waiting)
            return PromptAccount(
                num_dispatched=fates.total + num_outstanding,
                num_again=self._num_again,
                num_finished=fates.finished,
                num_responses=fates.responses,
                filtered=dict(fates.filtered),
                failed=dict(fates.failed),
                num_outstanding=num_outstanding,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint: some hundred bytes, and a number for each outstanding prompt.

        It is safe for JSON. With several ranks it is that of this rank: save each of them, or `gather_state_dict`.

        Raises:
            StateError: with one rank, the prompts that were dispatched are not those with a fate and those without.
        """
        state = self._state()
        return (self._merged([state]) if state.world_size == 1 else state).to_dict()

    def _state(self) -> _State:
        with self._lock:
            outstanding = self._outstanding | {one.position: one.turn for one in self._waiting if one.is_again}
            skipped = sorted(one.turn for one in self._waiting if not one.is_again)
            found = _State(
                run={},
                rank=self.ranks.rank,
                world_size=self.ranks.world_size,
                watermark=self._watermark,
                taken=self._taken,
                outstanding=tuple(sorted(outstanding, key=outstanding.__getitem__)),
                skipped=_as_runs(skipped, {1, *self._strides}),
                fates=_Fates.of_all([self._fates]),
            )
        return msgspec.structs.replace(found, run=self._cursor(found.top).to_dict())

    def _cursor(self, top: int) -> Cursor:
        schedule, length = self.run.schedule, self.run.length
        position = schedule.begin(schedule.step_of(top - 1) + 1) if top else 0
        if length is not None:
            position = min(position, length)
        return Cursor(**identity(self.run, position), step=schedule.step_of(position), position=position)

    def gather_state_dict(self) -> dict[str, Any]:
        """Return the state of all ranks, on every rank. Every process of the job has to call it.

        Raises:
            StateError: there are several ranks and no process group; the account does not balance.
        """
        text = msgspec.json.encode(self._state().to_dict())
        what = "their states: save the state_dict() of every rank, and load the list of them"
        # Processes of one model-parallel group have the same rank, and the same state.
        texts = dict.fromkeys(gathered(self.ranks, text, what))
        return self._merged([_State.from_dict(msgspec.json.decode(one)) for one in texts]).to_dict()

    def load_state_dict(
        self,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        recipe: str | os.PathLike[str] | RunRecipe | None = None,
    ) -> None:
        """Continue from a saved state, on any number of ranks. If it is refused, nothing changes.

        Every rank has to load the same state. The prompts in it that have no fate are shared among the ranks anew.

        Args:
            state: what `gather_state_dict` returned, or `state_dict` of the only rank; or the list of what
                `state_dict` returned on every rank, in any order.
            recipe: the recipe of the run that was saved, or the file that `Loader.save_recipe` wrote. With it, the
                error about another run names the field that differs.

        Raises:
            StateError: the state is none, is damaged, has an unknown version, belongs to another run, or its account
                does not balance; or the state of a rank is missing.
        """
        saved = recipe if isinstance(recipe, RunRecipe) or recipe is None else load_recipe(recipe)
        given: list[Any] = list(state) if isinstance(state, list | tuple) else [state]
        states = [_State.from_dict(one) for one in given]
        for one in states:
            cursor = verified(self.run, Cursor.from_dict(one.run), saved)
            step_of = self.run.schedule.step_of
            if (one.top and step_of(one.top - 1)) != (cursor.position and step_of(cursor.position - 1)):
                raise StateError("the saved state is damaged: its position is not that of its watermark")
        merged = self._merged(states)
        skipped = self._turns(merged.left_below(merged.watermark), is_again=False)
        with self._lock:
            self._begin(
                merged.watermark,
                [*self._again(merged.outstanding), *skipped],
                merged.fates,
                {stride for _, stride, _ in merged.skipped},
            )

    def _again(self, outstanding: Sequence[int]) -> list[_Turn]:
        positions = np.array(outstanding, dtype=np.int64)
        order = np.sort(positions)
        turns = order if self._draw is None else self._draw.slots(order)
        return [_Turn(turn, at, is_again=True) for turn, at in zip(turns.tolist(), order.tolist(), strict=True)]

    def _merged(self, states: Sequence[_State]) -> _State:
        """Return the state of all ranks as that of a single one; raise StateError if it does not balance."""
        if not states:
            raise StateError("there is no saved state to load: pass those of all ranks")
        first = states[0]
        ranks = sorted(one.rank for one in states)
        if ranks != list(range(first.world_size)):
            raise StateError(
                f"there are states of the ranks {ranks} of {first.world_size}: load the list of the states of all"
                " ranks, or what gather_state_dict returned"
            )
        if len({(one.world_size, one.watermark) for one in states}) > 1:
            raise StateError("the saved states are not of one job: their ranks began at different watermarks")
        top = max(one.top for one in states)
        fates = _Fates.of_all([one.fates for one in states])
        num_skipped = sum(one.num_left_below(top) for one in states)
        num_outstanding = sum(len(one.outstanding) for one in states)
        if top != fates.total + num_outstanding + num_skipped:
            raise StateError(
                f"the account in the saved state does not balance: the watermark is {top:,}, {fates.total:,} prompts"
                f" have a fate, {num_outstanding:,} are outstanding, and {num_skipped:,} were skipped"
            )
        skipped = np.concatenate([one.left_below(top) for one in states])
        outstanding = self._again([at for one in states for at in one.outstanding])
        below = np.concatenate([skipped, np.array([one.turn for one in outstanding], dtype=np.int64)])
        if len(np.unique(below)) != len(below) or below.max(initial=-1) >= top:
            raise StateError("the saved state is damaged: a prompt is in it twice, or beyond the watermark")
        strides = {1, first.world_size, *(stride for one in states for _, stride, _ in one.skipped)}
        return _State(
            run=max((one.run for one in states), key=lambda run: int(run["position"])),
            rank=0,
            world_size=1,
            watermark=top,
            taken=0,
            outstanding=tuple(one.position for one in sorted(outstanding)),
            skipped=_as_runs(np.sort(skipped).tolist(), strides),
            fates=fates,
        )

    def __repr__(self) -> str:
        account = self.account()
        return (
            f"<Prompts: rank {self.ranks.rank} of {self.ranks.world_size}, {account.num_dispatched:,} dispatched,"
            f" {account.num_outstanding:,} outstanding, {self.run!r}>"
        )


def collate_prompts(run: Run, prompts: Sequence[DispatchedPrompt]) -> Batch:
    """Return prompts as one batch of tensors, as the `Loader` does, with their ``sample_positions``, (n,) int64."""
    batch = as_tensors(run.collate([prompt.sample for prompt in prompts]))
    positions = np.array([prompt.position for prompt in prompts], dtype=np.int64)
    return {**batch, **as_tensors({"sample_positions": positions})}


def _as_runs(numbers: Sequence[int], moduli: Iterable[int]) -> tuple[tuple[int, int, int], ...]:
    """Return rising numbers as few (first, stride, count), those of one remainder by one of these moduli together."""
    return min((_runs_by_remainder(numbers, modulus) for modulus in sorted(moduli)), key=len)


def _runs_by_remainder(numbers: Sequence[int], modulus: int) -> tuple[tuple[int, int, int], ...]:
    found: list[tuple[int, int, int]] = []
    by_remainder: dict[int, list[int]] = {}
    for number in numbers:
        by_remainder.setdefault(number % modulus, []).append(number)
    for rising in by_remainder.values():
        begin = 0
        while begin < len(rising):
            end = begin + 1
            stride = rising[end] - rising[begin] if end < len(rising) else 1
            while end < len(rising) and rising[end] - rising[end - 1] == stride:
                end += 1
            found.append((rising[begin], stride, end - begin))
            begin = end
    return tuple(found)
