"""Every prompt has one fate, whatever is killed when, on any number of ranks, and nothing is lost or comes twice."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, strategies as st

import headrace
import records_made
from headrace.loader import PromptAccount, Ranks

RECORDS = {"math": 29, "code": 13}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, headrace.PromptDataset]:
    folder = tmp_path_factory.mktemp("prompts")
    found = {}
    for name, count in RECORDS.items():
        records: list[Any] = [
            {"prompts": [number + 1] * (1 + number % 3), "columns": list(json.dumps({"n": number}).encode())}
            for number in range(count)
        ]
        found[name] = headrace.PromptDataset(records_made.store(folder / name, records, "keyed"))
    return found


def single(data: dict[str, headrace.PromptDataset], samples: int | None = 40, seed: int = 1) -> headrace.Run:
    return headrace.Run(data["math"], global_batch_size=6, order=headrace.Order(seed=seed), samples=samples)


def blended(data: dict[str, headrace.PromptDataset], samples: int | None = 40) -> headrace.Run:
    blend = headrace.Blend(data, weights={"math": 3, "code": 1})
    return headrace.Run(blend, global_batch_size=6, order=headrace.Order(seed=1), samples=samples)


def alone(run: headrace.Run, group_size: int = 2) -> headrace.Prompts:
    return headrace.Prompts(run, group_size=group_size, ranks=Ranks())


def positions(prompts: headrace.Prompts, n: int) -> list[int]:
    return [prompt.position for prompt in prompts.take(n)]


class Job:
    """Ranks that train slowly, and all that was trained before the last checkpoint or after it."""

    def __init__(self, run: headrace.Run) -> None:
        self.run = run
        self.fates: dict[int, str] = {}
        self.since: dict[int, str] = {}
        self.state: Any = None
        self.start(1)

    def start(self, world_size: int) -> None:
        """Kill what runs, and start from the checkpoint: what was trained since it is forgotten with its model."""
        self.since = {}
        self.ranks = [
            headrace.Prompts(self.run, group_size=2, ranks=Ranks(rank, world_size)) for rank in range(world_size)
        ]
        waiting: list[int] = []
        if self.state is not None:
            for rank in self.ranks:
                rank.load_state_dict(json.loads(json.dumps(self.state)))
            known = [set(one["outstanding"]) for one in self.state]
            waiting = sorted(set().union(*known))
        self.again = set(waiting)

    def save(self) -> None:
        self.state = [rank.state_dict() for rank in self.ranks]
        self.fates |= self.since
        self.since = {}

    def settle(self, rank: headrace.Prompts, at: int, fate: str) -> None:
        assert at not in self.fates
        assert at not in self.since
        if fate == "finished":
            rank.finish(at)
        elif fate == "filtered":
            rank.filter(at, "all rewards equal")
        else:
            rank.fail(at, TimeoutError("too long"))
        self.since[at] = fate

    def account(self) -> Counter[str]:
        accounts = [rank.account() for rank in self.ranks]
        return Counter(
            finished=sum(one.num_finished for one in accounts),
            filtered=sum(one.filtered.get("all rewards equal", 0) for one in accounts),
            failed=sum(one.failed.get("TimeoutError", 0) for one in accounts),
        )


FATES = ("finished", "filtered", "failed")
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 3), st.integers(1, 7)),
        st.tuples(st.sampled_from(FATES), st.integers(0, 3), st.integers(0, 20)),
        st.tuples(st.just("save"), st.just(0), st.just(0)),
        st.tuples(st.just("kill"), st.integers(1, 4), st.just(0)),
    ),
    max_size=60,
)


@given(actions=ACTIONS, is_blended=st.booleans(), last=st.integers(1, 4))
def test_whatever_is_killed_each_prompt_has_one_fate(
    data: dict[str, headrace.PromptDataset], actions: list[tuple[str, int, int]], is_blended: bool, last: int
) -> None:
    run = blended(data) if is_blended else single(data)
    job = Job(run)
    for action, number, more in actions:
        if action == "save":
            job.save()
        elif action == "kill":
            job.start(number)
        else:
            rank = job.ranks[number % len(job.ranks)]
            if action == "take":
                before = set(rank.outstanding)
                found = positions(rank, more)
                assert not before & set(found)
            elif rank.outstanding:
                job.settle(rank, rank.outstanding[more % len(rank.outstanding)], action)
        assert job.account() == Counter((job.fates | job.since).values())
    # The rest is trained without a kill, on yet another number of ranks.
    job.save()
    job.start(last)
    for rank in job.ranks:
        while taken := rank.take(5):
            for prompt in taken:
                job.settle(rank, prompt.position, "finished")
    job.save()
    assert sorted(job.fates) == list(range(40))
    assert job.account() == Counter(job.fates.values())
    assert all(not one["outstanding"] for one in job.state)


@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=5), world_size=st.integers(1, 5))
def test_ranks_that_were_not_equally_fast_leave_a_small_state(
    data: dict[str, headrace.PromptDataset], counts: list[int], world_size: int
) -> None:
    run = single(data, samples=None)
    states = []
    taken = []
    for rank, count in enumerate(counts):
        prompts = headrace.Prompts(run, group_size=1, ranks=Ranks(rank, len(counts)))
        if count:
            taken += positions(prompts, count)
            prompts.finish(taken[-count:])
        states.append(prompts.state_dict())
    top = max(taken, default=-1) + 1
    skipped = sorted(set(range(top)) - set(taken))
    found = []
    after = []
    for rank in range(world_size):
        prompts = headrace.Prompts(run, group_size=1, ranks=Ranks(rank, world_size))
        prompts.load_state_dict(states[::-1])
        after.append(prompts.state_dict())
        found += positions(prompts, len(skipped[rank::world_size]) + 1)
    assert sorted(found) == [*skipped, *range(top, top + world_size)]
    # However many turns were skipped: each rank that fell behind adds a run to those of the others, at most.
    assert all(len(one["skipped"]) <= 2 * len(counts) ** 2 for one in after)


def test_outstanding_prompts_come_first_and_in_order(data: dict[str, headrace.PromptDataset]) -> None:
    prompts = alone(single(data))
    assert positions(prompts, 8) == list(range(8))
    prompts.finish([6, 2])
    prompts.filter(0, "too easy")
    prompts.fail(5, TimeoutError())
    state = json.loads(json.dumps(prompts.state_dict()))
    assert state["watermark"] == 8
    assert state["outstanding"] == [1, 3, 4, 7]
    assert len(json.dumps(state)) < 1024
    resumed = alone(single(data))
    resumed.load_state_dict(state)
    assert resumed.account().num_outstanding == 4
    assert resumed.state_dict() == state
    assert positions(resumed, 3) == [1, 3, 4]
    resumed.finish(np.array([3]))
    # Killed once more, before the last of them was taken.
    again = alone(single(data))
    again.load_state_dict(resumed.state_dict())
    assert positions(again, 5) == [1, 4, 7, 8, 9]
    assert again.account() == PromptAccount(
        num_dispatched=10,
        num_again=3,
        num_finished=3,
        num_responses=6,
        filtered={"too easy": 1},
        failed={"TimeoutError": 1},
        num_outstanding=5,
    )
    assert "filtered    1, too easy 1" in again.account().describe()


def test_samples_are_those_of_the_run(data: dict[str, headrace.PromptDataset]) -> None:
    run = blended(data)
    prompts = alone(run, group_size=3)
    taken = prompts.take(6)
    batch = prompts.collate(taken)
    assert isinstance(batch["input_ids"], torch.Tensor)
    assert batch["sample_positions"].tolist() == [one.position for one in taken for _ in range(3)]
    expected = run.step(0)
    rows = {int(at): row for row, at in enumerate(expected["sample_positions"])}
    for row, at in enumerate(batch["sample_positions"].tolist()):
        assert batch["columns"][row] == expected["columns"][rows[at]]
        assert (batch["input_ids"][row].numpy() == expected["input_ids"][rows[at]]).all()
    prompts.finish(batch["sample_positions"], num_responses=2)
    assert (prompts.account().num_finished, prompts.account().num_responses) == (6, 12)


def test_ranks_of_a_blend_are_not_bound_to_a_source(data: dict[str, headrace.PromptDataset]) -> None:
    run = headrace.Run(headrace.Blend(data, weights={"math": 1, "code": 1}), global_batch_size=8)
    for rank in range(2):
        prompts = headrace.Prompts(run, group_size=1, ranks=Ranks(rank, 2))
        sources = run.lookup(np.sort(positions(prompts, 40))).sources
        assert 0 < np.count_nonzero(sources) < 40


def test_processes_gather_one_state(data: dict[str, headrace.PromptDataset], tmp_path: Path) -> None:
    run = single(data)
    children = []
    for rank in range(2):
        if not (child := os.fork()):
            try:
                dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=rank, world_size=2)
                prompts = headrace.Prompts(run, group_size=2)
                prompts.finish(positions(prompts, 2 + 3 * rank)[1:])
                (tmp_path / f"{rank}.json").write_text(json.dumps(prompts.gather_state_dict()))
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    states = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert states[0] == states[1]
    prompts = alone(run)
    prompts.load_state_dict(states[0])
    assert positions(prompts, 6) == [0, 1, 4, 6, 8, 10]
    with pytest.raises(headrace.StateError, match="process"):
        headrace.Prompts(run, group_size=2, ranks=Ranks(0, 2)).gather_state_dict()


@pytest.mark.parametrize("make", [single, blended])
def test_a_run_can_be_made_longer(data: dict[str, headrace.PromptDataset], make: Any) -> None:
    # 40 = 6 * 6 + 4: the last step is short.
    prompts = alone(make(data))
    first = positions(prompts, 100)
    assert sorted(first) == list(range(40))
    assert prompts.take(1) == []
    prompts.finish(first[3:])
    longer = alone(make(data, samples=50))
    longer.load_state_dict(prompts.state_dict())
    found = positions(longer, 100)
    assert found[:3] == first[:3]
    assert sorted(found[3:]) == list(range(40, 50))
    with pytest.raises(headrace.StateError, match=r"30.*samples"):
        alone(make(data, samples=30)).load_state_dict(prompts.state_dict())


def test_a_run_can_be_edited_after_what_was_dispatched(data: dict[str, headrace.PromptDataset]) -> None:
    run = blended(data, samples=None)
    prompts = alone(run)
    prompts.finish(positions(prompts, 8)[2:])
    state = prompts.state_dict()
    edited = alone(run.edit(2, weights={"math": 1, "code": 3}))
    edited.load_state_dict(state)
    assert sorted(positions(edited, 12)[2:]) == sorted(set(range(18)) - {one.position for one in alone(run).take(8)})
    with pytest.raises(headrace.StateError, match=r"before.*1"):
        alone(run.edit(1, weights={"math": 1, "code": 3})).load_state_dict(state)


def test_a_prompt_that_is_not_outstanding_has_no_second_fate(data: dict[str, headrace.PromptDataset]) -> None:
    prompts = alone(single(data))
    prompts.take(4)
    prompts.finish(2)
    before = prompts.state_dict()
    for act in (
        lambda: prompts.finish(2),
        lambda: prompts.finish([1, 4]),
        lambda: prompts.filter([0, 2], "equal"),
        lambda: prompts.fail(-1, "lost"),
    ):
        with pytest.raises(headrace.StateError, match=r"0.*1.*3"):
            act()
    for refused in (
        lambda: prompts.finish([]),
        lambda: prompts.finish(1.0),  # type: ignore[arg-type]
        lambda: prompts.finish(True),
        lambda: prompts.finish(1, num_responses=3),
        lambda: prompts.filter(1, ""),
        lambda: prompts.take(0),
    ):
        with pytest.raises(headrace.ConfigError):
            refused()
    assert prompts.state_dict() == before


def test_what_is_refused(data: dict[str, headrace.PromptDataset]) -> None:
    run = single(data)
    with pytest.raises(headrace.ConfigError, match=r"group_size.*1"):
        headrace.Prompts(run, group_size=0)
    with pytest.raises(headrace.ConfigError, match="expected"):
        headrace.Prompts(data["math"], group_size=1)  # type: ignore[arg-type]
    prompts = alone(run)
    prompts.take(7)
    prompts.finish(3)
    state = prompts.state_dict()
    damaged: list[tuple[dict[str, Any], str]] = [
        ({"kind": "headrace.cursor"}, "Prompts"),
        ({"version": 2}, "version.*2"),
        ({"extra": 1}, "damaged"),
        ({"watermark": 8}, "balance.*watermark.*8"),
        ({"watermark": 13}, "watermark"),
        ({"watermark": 1 << 70}, "damaged.*watermark"),
        ({"taken": -1}, "damaged.*taken"),
        ({"taken": 1 << 61}, "no positions|balance|damaged"),
        ({"skipped": [[0, 0, 1]]}, "damaged.*skipped"),
        ({"outstanding": [0, 1, 2, 4, 5]}, "balance"),
        ({"outstanding": [0, 1, 2, 4, 5, 5]}, "twice"),
        ({"outstanding": [0, 1, 2, 4, 5, 7]}, "beyond"),
        ({"skipped": [[0, 1, 1 << 40]]}, "balance"),
        ({"rank": 1, "world_size": 2}, r"\[1\].*2"),
    ]
    for change, named in damaged:
        with pytest.raises(headrace.StateError, match=named):
            prompts.load_state_dict(state | change)
    junk: Any
    for junk in ([], None, 5, "x", [None], [5]):
        with pytest.raises(headrace.StateError, match="state"):
            prompts.load_state_dict(junk)
    other = alone(single(data, seed=2))
    with pytest.raises(headrace.StateError, match=r"order\.seed.*2.*1"):
        other.load_state_dict(state, recipe=run.recipe)
    assert positions(prompts, 1) == [7]
    assert positions(other, 1) == [0]


def test_a_prompt_that_cannot_be_read_is_not_dispatched(
    data: dict[str, headrace.PromptDataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = alone(single(data))

    def broken(*_: Any) -> Any:
        raise headrace.InputError("record 3: broken")

    with monkeypatch.context() as patched:
        patched.setattr(headrace.PromptDataset, "samples", broken)
        with pytest.raises(headrace.InputError, match="broken"):
            prompts.take(2)
    assert prompts.account().num_dispatched == 0
    assert positions(prompts, 2) == [0, 1]


def test_threads_may_take_and_finish(data: dict[str, headrace.PromptDataset]) -> None:
    prompts = alone(single(data, samples=400))
    found: list[int] = []

    def work() -> None:
        while taken := prompts.take(3):
            found.extend(one.position for one in taken)
            prompts.finish([one.position for one in taken])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(400))
    assert prompts.account().num_finished == 400
