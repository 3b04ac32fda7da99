"""`headrace.DataLoader`: torch's batches, and every sample once an epoch, whatever is killed or resumed."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import event, given, settings, strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader as TorchLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from children import results_of
from counts import cases
from headrace import Blend, ConfigError, DataLoader, StateError
from headrace.encoders import ErrorPolicy
from headrace.loader import Ranks
from headrace.loader.data_loader import EpochsAccount
from waiting import descendants, workers_now


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    others = descendants()
    yield
    assert not descendants() - others


def again(state: Any) -> Any:
    """A state as a checkpoint brings it back."""
    text = json.dumps(state)
    assert len(text) < 1024
    return json.loads(text)


class Ranked:
    """The loaders of all ranks of a job, in one process."""

    def __init__(self, data: Any, world_size: int, state: Any = None, **options: Any) -> None:
        self.loaders = [DataLoader(data, ranks=Ranks(rank, world_size), **options) for rank in range(world_size)]
        if state is not None:
            for loader in self.loaders:
                loader.load_state_dict(again(state))

    def state(self) -> Any:
        states = [loader.state_dict() for loader in self.loaders]
        assert all(one == states[0] for one in states)
        return states[0]

    def epoch(self) -> Iterator[list[Any]]:
        """Yield the batches of all ranks after each micro-step; they all have equally many."""
        return zip(*map(iter, self.loaders), strict=True)  # type: ignore[arg-type]


def order_of(data: Any, epochs: int, **options: Any) -> list[list[Any]]:
    """The samples of each epoch in order, from a training of one rank that is left alone."""
    loader = DataLoader(data, collate_fn=list, ranks=Ranks(), **options)
    return [[sample for batch in loader for sample in batch] for _ in range(epochs)]


SIZES = st.one_of(
    st.integers(1, 40),
    st.integers(0, 6).flatmap(lambda k: st.sampled_from([2**k, 2**k + 1])),
)


class Life:
    """What one life of a job is: its ranks, batches and steps, and after how many micro-steps it leaves each epoch."""

    def __init__(self, draw: st.DrawFn, step: int | None) -> None:
        self.world_size = draw(st.integers(1, 4), label="ranks")
        self.batch = draw(st.integers(1, 5), label="batch")
        if step is not None:
            self.world_size = draw(st.sampled_from([n for n in range(1, 5) if not step % n]), label="ranks")
            fits = step // self.world_size
            self.batch = draw(st.sampled_from([n for n in range(1, fits + 1) if not fits % n]), label="batch")
        self.step = step or self.world_size * self.batch
        left = st.one_of(st.none(), st.integers(0, 12))
        self.leaves = draw(st.lists(left, min_size=1, max_size=3), label="micro-steps until an epoch is left")


@settings(max_examples=cases(12, 1500))
@given(st.data())
def test_each_sample_comes_once_an_epoch_whatever_is_killed(data: st.DataObject) -> None:
    """Beside a plain model: which samples every micro-step gives, and what becomes of all others."""
    draw = data.draw
    num_samples = draw(SIZES, label="samples")
    shuffle, drop_last = draw(st.booleans(), label="shuffle"), draw(st.booleans(), label="drop_last")
    step = draw(st.one_of(st.none(), st.integers(1, 24)), label="global_batch_size")
    order = order_of(range(num_samples), 13, shuffle=shuffle, seed=3)
    assert all(sorted(epoch) == list(range(num_samples)) for epoch in order)

    account: Counter[str] = Counter()
    epoch, at, begin, size, is_over = 0, 0, 0, step or 0, False
    state: Any = None
    for _ in range(draw(st.integers(1, 4), label="lives")):
        life = Life(draw, step)
        job = Ranked(
            *(range(num_samples), life.world_size, state),
            batch_size=life.batch,
            shuffle=shuffle,
            drop_last=drop_last,
            global_batch_size=step,
            collate_fn=list,
            seed=3,
        )
        if state is not None and life.step != size:
            begin = at
        size, resumes = life.step, account["epochs"] > 0 and not is_over
        end = begin + (num_samples - begin) // size * size if drop_last else num_samples
        for leaves in life.leaves:
            if not resumes:
                if at and not is_over:
                    account["left"] += end - at
                    account["dropped"] += num_samples - end
                    event("an epoch is left")
                epoch, at, begin = epoch + (at > 0 or is_over), 0, 0
                end = num_samples // size * size if drop_last else num_samples
                is_over = False
            assert at or len(job.loaders[0]) == -(-end // (life.batch * life.world_size))
            micro_steps = job.epoch()
            done = 0
            while done != leaves and at < end:
                stop = min(begin + ((at - begin) // size + 1) * size, end)
                took = order[epoch][at : min(at + life.world_size * life.batch, stop)]
                batches = next(micro_steps)
                came = Counter(sample for batch in batches for sample in batch)
                assert set(came) == set(took)
                assert came.total() == max(len(took), life.world_size)
                assert all(len(batch) <= life.batch for batch in batches)
                account["epochs"] += not at
                account["given"] += len(took)
                account["repeated"] += came.total() - len(took)
                at, done, resumes = at + len(took), done + 1, False
                if came.total() > len(took):
                    event("samples come to two ranks")
            if at == end and not is_over and (done != leaves or not done):
                assert next(micro_steps, None) is None
                account["epochs"] += not at
                account["dropped"] += num_samples - at
                is_over, resumes = True, False
            found = {name: count for name, count in account.items() if count}
            kept = EpochsAccount(**found)
            assert [loader.account() for loader in job.loaders] == [kept] * life.world_size
            place = (epoch + is_over, 0 if is_over else at)
            assert {(loader.epoch, loader.position) for loader in job.loaders} == {place}
        for one in job.loaders:
            one.close()
        state = job.state()
        event("a step is cut by a kill" if (at - begin) % size else "a kill between two steps")


@settings(max_examples=cases(12, 500))
@given(SIZES, st.integers(1, 9), st.booleans(), st.integers(1, 4))
def test_batches_and_lengths_are_torchs(num_samples: int, batch: int, drop_last: bool, world_size: int) -> None:
    options: dict[str, Any] = {"batch_size": batch, "drop_last": drop_last}
    data = [{"number": number, "row": torch.full((2,), float(number))} for number in range(num_samples)]
    ours, theirs = DataLoader(data, **options), TorchLoader(data, **options)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    sampler = DistributedSampler(data, world_size, 0, drop_last=drop_last)  # type: ignore[arg-type, var-annotated]
    ranked = Ranked(data, world_size, **options)
    assert {len(loader) for loader in ranked.loaders} == {len(TorchLoader(data, sampler=sampler, **options))}
    assert len(list(ranked.epoch())) == len(ranked.loaders[0])


def test_single_samples_without_a_batch_size() -> None:
    data = [np.arange(3), np.arange(3) + 1]
    for options in ({}, {"collate_fn": np.sum}):
        ours, theirs = list(DataLoader(data, None, **options)), list(TorchLoader(data, None, **options))
        assert len(ours) == len(theirs) == 2
        assert all(type(one) is type(other) and (one == other).all() for one, other in zip(ours, theirs, strict=True))
    loader = DataLoader(data, batch_size=None)
    next(iter(loader))
    other = DataLoader(data, batch_size=None)
    other.load_state_dict(again(loader.state_dict()))
    assert (next(iter(other)).numpy() == data[1]).all()


class Recorder:
    """Numbers, with the numbers in the order in which they were asked for."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, number: int) -> int:
        self.asked.append(number)
        return number


def test_each_iteration_is_an_epoch_with_a_permutation_of_its_own() -> None:
    """Of the seed of the loader, not of torch's."""
    found = []
    for seed in (0, 1, 0):
        torch.manual_seed(len(found))
        found += order_of(range(64), 3, batch_size=8, shuffle=True, seed=seed)
    assert len({tuple(epoch) for epoch in found}) == 6
    assert found[:3] == found[6:]


def test_epochs_are_counted_with_and_without_set_epoch() -> None:
    expected = order_of(range(10), 5, batch_size=4, shuffle=True)
    loader = DataLoader(range(10), batch_size=4, shuffle=True, collate_fn=list)
    for epoch in range(3):
        loader.set_epoch(epoch)
        assert samples_of(loader) == expected[epoch]
        assert loader.epoch == epoch + 1
    assert loader.account() == EpochsAccount(epochs=3, given=30)
    loader.set_epoch(4)
    loader.set_epoch(4)
    assert samples_of(loader) == expected[4]
    assert loader.account() == EpochsAccount(epochs=4, given=40)


def test_an_iterator_that_is_not_used_changes_nothing() -> None:
    """Trainers make one to see whether they can; Lightning does so before each fit."""
    expected = order_of(range(10), 2, batch_size=4, shuffle=True)
    loader = DataLoader(range(10), batch_size=4, shuffle=True, collate_fn=list)
    iter(loader)
    assert next(iter(loader)) == expected[0][:4]
    resumed = DataLoader(range(10), batch_size=4, shuffle=True, collate_fn=list)
    resumed.load_state_dict(again(loader.state_dict()))
    assert resumed.num_left() == 2
    iter(resumed)
    assert [samples_of(resumed) for _ in range(2)] == [expected[0][4:], expected[1]]
    iter(resumed)
    assert resumed.account() == EpochsAccount(epochs=2, given=20)


def test_set_epoch_beside_a_state() -> None:
    loader = DataLoader(range(8), batch_size=4, collate_fn=list)
    next(iter(loader))
    within = again(loader.state_dict())
    list(loader)
    at_end = again(loader.state_dict())
    resumed = DataLoader(range(8), batch_size=4, collate_fn=list)
    resumed.load_state_dict(within)
    with pytest.raises(StateError, match=r"3.*0.*loader\.epoch"):
        resumed.set_epoch(3)
    resumed.set_epoch(0)
    assert list(resumed) == [[4, 5, 6, 7]]
    for epoch, batches in ((1, 0), (2, 2)):
        resumed = DataLoader(range(8), batch_size=4)
        resumed.load_state_dict(at_end)
        resumed.set_epoch(epoch)
        assert len(list(resumed)) == batches
        assert resumed.epoch == epoch + 1


def test_random_states_of_the_trainer_are_left_alone() -> None:
    loader = DataLoader(Drawing(12), batch_size=4, shuffle=True)
    random.seed(1)
    np.random.seed(2)  # noqa: NPY002 -- the trainer's
    torch.manual_seed(3)
    before = drawn_states()
    batches = [[batch, drawn_states()] for batch in loader]
    assert all(states == before for _, states in batches)
    assert len({str(batch) for batch, _ in batches}) == 3


def drawn_states() -> tuple[Any, ...]:
    numpy = np.random.get_state()  # noqa: NPY002
    return random.getstate(), str(numpy), torch.get_rng_state().tolist()


class Drawing:
    """Numbers, each with random numbers of all three libraries."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, number: int) -> tuple[int, float, float, float]:
        return number, random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002


def drawn_of(job: Ranked) -> dict[int, tuple[float, ...]]:
    return {sample[0]: sample[1:] for batches in job.epoch() for batch in batches for sample in batch}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_random_numbers_are_drawn_again(num_workers: int) -> None:
    """By batch: after a resume on as many ranks. By sample: on any number of ranks, and for any size of batches."""
    options: dict[str, Any] = {"shuffle": True, "collate_fn": list, "num_workers": num_workers}
    whole = {
        (seeded, epoch): drawn
        for seeded in ("batch", "sample")
        for job in [Ranked(Drawing(13), 2, batch_size=2, seeded=seeded, **options)]
        for epoch, drawn in enumerate([drawn_of(job), drawn_of(job)])
    }
    for seeded in ("batch", "sample"):
        assert not set(whole[seeded, 0].values()) & set(whole[seeded, 1].values())
    for seeded, world_size, batch in (("batch", 2, 2), ("sample", 3, 1), ("sample", 1, 4)):
        job = Ranked(Drawing(13), 2, batch_size=2, seeded=seeded, **options)
        before = {sample[0]: sample[1:] for one in next(iter(job.epoch())) for sample in one}
        later = Ranked(Drawing(13), world_size, job.state(), batch_size=batch, seeded=seeded, **options)
        random.seed(5)
        assert {**before, **drawn_of(later)} == whole[seeded, 0]
        assert drawn_of(later) == whole[seeded, 1] or world_size == 3
        for one in (*job.loaders, *later.loaders):
            one.close()


def test_random_numbers_are_left_alone_if_asked() -> None:
    random.seed(7)
    expected = [random.random() for _ in range(3)]
    random.seed(7)
    loader = DataLoader(Drawing(3), batch_size=None, seeded=False)
    assert [sample[1] for sample in loader] == expected


def test_a_fault_that_passes_changes_no_random_numbers(tmp_path: Path) -> None:
    class Once(Drawing):
        def __getitem__(self, number: int) -> tuple[int, float, float, float]:
            if number == 2 and not (tmp_path / "failed").exists():
                (tmp_path / "failed").touch()
                raise OSError("the disk was away")
            return super().__getitem__(number)

    found, expected = (list(DataLoader(kind(4), batch_size=4, collate_fn=list)) for kind in (Once, Drawing))
    assert (tmp_path / "failed").exists()
    assert found == expected


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sample_that_raises_is_named_and_nothing_is_lost(num_workers: int) -> None:
    class Bad(Recorder):
        def __getitem__(self, number: int) -> int:
            if number == 5:
                raise ValueError("no such picture")
            return number

    loader = DataLoader(Bad(8), batch_size=2, collate_fn=list, num_workers=num_workers)
    came: list[Any] = []
    with pytest.raises(ValueError, match="picture") as raised:
        came.extend(loader)
    notes = "\n".join(raised.value.__notes__)
    assert "sample 5 of" in notes
    assert "Bad" in notes
    assert "at position 5 of the run, step 2" in notes
    assert loader.position == 2 * len(came)
    later = DataLoader(Bad(8), batch_size=2, collate_fn=list, errors=ErrorPolicy(on_error="substitute"))
    later.load_state_dict(again(loader.state_dict()))
    came += list(later)
    samples = [sample for batch in came for sample in batch]
    assert len(samples) == 8
    assert 5 not in samples
    assert set(samples) >= {0, 1, 2, 3, 4, 6, 7}
    loader.close()


def test_a_dataset_that_changes_its_length_is_refused() -> None:
    data = list(range(8))
    loader = DataLoader(data, batch_size=2, collate_fn=list)
    batches = iter(loader)
    next(batches)
    data.append(8)
    with pytest.raises(ConfigError, match=r"8.*samples.*9"):
        list(batches)


class Fingerprinted(Recorder):
    def __init__(self, num_samples: int, fingerprint: str) -> None:
        super().__init__(num_samples)
        self._fingerprint = fingerprint


def test_states_that_are_refused_change_nothing() -> None:
    loader = DataLoader(Fingerprinted(8, "a"), batch_size=2, shuffle=True, collate_fn=list)
    next(iter(loader))
    state = again(loader.state_dict())
    for data, options, named in (
        (Fingerprinted(9, "a"), {}, "num_samples.*8.*9"),
        (Fingerprinted(8, "b"), {}, r"fingerprint.*'a'.*'b'.*version="),
        (list(range(8)), {}, "dataset.*type"),
        (Fingerprinted(8, "a"), {"seed": 4}, "order.*seed.*0.*4"),
        (Fingerprinted(8, "a"), {"shuffle": False}, "order.*kind.*'full'.*'none'"),
    ):
        other = DataLoader(data, **{"batch_size": 2, "shuffle": True, **options})
        before = other.state_dict()
        with pytest.raises(StateError, match=named):
            other.load_state_dict(state)
        assert other.state_dict() == before
    for wrong in ({}, {"position": 4}, {**state, "version": 2}, {**state, "place": {"epoch": -1, "position": 2}}):
        with pytest.raises(StateError):
            loader.load_state_dict(wrong)
    for given_ in ("a", "b"):
        one = DataLoader(Fingerprinted(8, given_), batch_size=2, version="v1")
        one.load_state_dict(again(DataLoader(Fingerprinted(8, "c"), batch_size=2, version="v1").state_dict()))


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"dataset": Numbers()}, "stream.*from_parquet"),
        ({"dataset": iter([1])}, "__len__.*__getitem__"),
        ({"dataset": Blend({"a": [1], "b": [2]}, weights={"a": 1, "b": 1})}, "headrace.Run"),
        ({"sampler": WeightedRandomSampler([1.0] * 4, 4)}, "sampler.*shuffle=True"),
        ({"sampler": RandomSampler(range(4), replacement=True)}, "sampler.*iterated"),
        ({"sampler": RandomSampler(range(4), num_samples=2)}, "num_samples"),
        ({"sampler": [3, 1]}, "sampler.*headrace.Blend"),
        ({"batch_sampler": [[0, 1], [2, 3]]}, "batch_sampler.*lengths="),
        ({"batch_sampler": BatchSampler(range(4), 2, False), "shuffle": True}, "batch_sampler.*batch_size"),
        ({"sampler": SequentialSampler(range(4)), "shuffle": True}, "sampler.*shuffle"),
        ({"in_order": False}, "in_order=False"),
        ({"prefetch_factor": 4}, "prefetch_factor.*num_workers"),
        ({"multiprocessing_context": "fork"}, "multiprocessing_context"),
        ({"timeout": 3}, "timeout"),
        ({"persistent_workers": True}, "persistent_workers"),
        ({"generator": torch.Generator().manual_seed(4), "seed": 5}, "seed.*5.*generator.*4"),
        ({"batch_size": 2, "global_batch_size": 9, "ranks": Ranks(0, 2)}, "global_batch_size.*9.*2.*2.*4"),
        ({"batch_size": 0}, "batch_size.*0"),
        ({"global_batch_size": 0}, "global_batch_size.*0"),
        ({"seeded": "epoch"}, "seeded.*'batch'.*'sample'"),
        ({"lengths": [1, 2]}, "2.*lengths.*4"),
        ({"collate_fn": 3}, "collate_fn.*3"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as raised:
        DataLoader(**{"dataset": range(4), **arguments})
    assert "\n" not in str(raised.value)


def samples_of(loader: DataLoader) -> list[Any]:
    return [sample for batch in loader for sample in batch]


def test_samplers_of_torch_are_translated() -> None:
    generator = torch.Generator().manual_seed(11)
    data, expected = range(9), order_of(range(9), 1, batch_size=2, shuffle=True, seed=11)[0]
    torch.manual_seed(99)
    for options in (
        {"shuffle": True, "generator": generator},
        {"sampler": RandomSampler(data, generator=generator)},
        {"sampler": RandomSampler(data), "seed": 11},
        {"batch_sampler": BatchSampler(RandomSampler(data, generator=generator), 2, False)},
    ):
        assert samples_of(DataLoader(data, collate_fn=list, **options)) == expected
    assert samples_of(DataLoader(data, sampler=SequentialSampler(data), collate_fn=list)) == list(data)
    some = DataLoader(data, 2, sampler=SubsetRandomSampler([7, 1, 4]), collate_fn=list)
    assert len(some) == 2
    first, second = samples_of(some), samples_of(some)
    assert sorted(first) == sorted(second) == [1, 4, 7]
    batched = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 4, True), collate_fn=list)
    assert list(batched) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_distributed_sampler_gives_ranks_and_seed(caplog: pytest.LogCaptureFixture) -> None:
    data = list(range(11))
    expected = order_of(data, 1, batch_size=2, shuffle=True, seed=6)[0]
    found: list[Any] = []
    for rank in range(2):
        sampler = DistributedSampler(data, 2, rank, seed=6, drop_last=True)  # type: ignore[arg-type, var-annotated]
        loader = DataLoader(data, 2, sampler=sampler, collate_fn=list)
        assert (loader.ranks, loader.drop_last) == (Ranks(rank, 2), True)
        found.append(list(loader))
    assert [one + other for one, other in zip(*found, strict=True)] == [expected[:4], expected[4:8]]
    assert sum("a DistributedSampler is replaced" in record.getMessage() for record in caplog.records) == 2


def _agrees(folder: str, rank: int, case: str) -> str:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    meeting = f"file://{folder}/{case}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    try:
        if case == "mesh":
            with init_device_mesh("cpu", (1, 2), mesh_dim_names=("pp", "tp")):
                DataLoader(range(8))
        seed = rank if case == "seed" else 0
        return str(list(DataLoader(range(8), 2, shuffle=case == "seed", seed=seed, collate_fn=list)))
    except (StateError, ConfigError) as error:
        return str(error)
    finally:
        dist.destroy_process_group()


def test_the_process_group_gives_ranks_and_has_to_agree(tmp_path: Path) -> None:
    calls = [(str(tmp_path), rank, "same") for rank in range(2)]
    assert results_of(_agrees, calls) == ["[[0, 1], [4, 5]]", "[[2, 3], [6, 7]]"]
    for case, words in (("seed", "seed"), ("mesh", "name the data-parallel ones")):
        found = results_of(_agrees, [(str(tmp_path), rank, case) for rank in range(2)])
        assert all(words in one for one in found), found


def test_tails_are_filled_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    job = Ranked(range(9), 4, batch_size=2, collate_fn=list)
    for _ in range(2):
        assert [[len(batch) for batch in batches] for batches in job.epoch()] == [[2] * 4, [1] * 4]
    told = [record.getMessage() for record in caplog.records]
    assert sum("3 come twice" in words for words in told) == 4, "once for each rank"


def test_on_another_world_size(caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"batch_size": 2, "collate_fn": list}
    one = Ranked(range(40), 2, **options)
    next(one.epoch())
    caplog.clear()
    Ranked(range(40), 3, one.state(), **options)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 3
    for named in ("sample 4", "steps of 4 samples", "steps of 6", "global_batch_size=4"):
        assert named in told[0]
    caplog.clear()
    kept = Ranked(range(40), 4, global_batch_size=16, **options)
    assert {loader.accumulation_steps for loader in kept.loaders} == {2}
    next(kept.epoch())
    later = Ranked(range(40), 1, kept.state(), global_batch_size=16, **options)
    assert later.loaders[0].accumulation_steps == 8
    list(later.epoch())
    assert later.loaders[0].step == 3, "the last step of an epoch is short"
    assert not caplog.records


@pytest.mark.parametrize("how", ["state", "epoch", "iter"])
def test_an_iterator_that_was_overtaken_says_so(how: str) -> None:
    """It would count its batches in an epoch that they are not of."""
    loader = DataLoader(range(10), 2, collate_fn=list)
    state = again(loader.state_dict())
    for taken in (2, 5):  # within an epoch, and after its last batch
        old = iter(loader)
        for _ in range(taken):
            next(old)
        if how == "state":
            loader.load_state_dict(state)
        elif how == "epoch":
            loader.set_epoch(7)
        else:
            iter(loader)
        with pytest.raises(StateError, match="outdated"):
            next(old)
        assert (loader.position, list(loader)) == (0, [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]])


def test_a_step_that_a_state_is_within_can_begin_again() -> None:
    options: dict[str, Any] = {"global_batch_size": 4, "collate_fn": list}
    for taken, first in ((1, 0), (2, 4), (3, 4), (5, 10)):  # the last step of the epoch has 2 samples
        loader = DataLoader(range(10), 2, **options)
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        resumed = DataLoader(range(10), 1, **options)
        resumed.load_state_dict(again(loader.state_dict()))
        resumed.restart_step()
        assert resumed.account().given == resumed.position == first
        assert [sample for batch in resumed for sample in batch] == list(range(first, 10))


def test_steps_are_counted_over_epochs_and_sizes() -> None:
    loader = DataLoader(range(10), 2, global_batch_size=4, collate_fn=list)
    seen = []
    for _ in range(2):
        for _ in loader:
            seen.append(loader.step)
    assert seen == [0, 1, 1, 2, 3, 3, 4, 4, 5, 6]


def test_samples_of_similar_length_share_a_batch() -> None:
    lengths = np.random.default_rng(1).integers(1, 500, 300)
    options: dict[str, Any] = {"shuffle": True, "lengths": lengths, "collate_fn": list}
    loader = DataLoader(range(300), 10, **options)
    epochs = [list(loader) for _ in range(3)]
    assert all(sorted(chain.from_iterable(epoch)) == list(range(300)) for epoch in epochs)
    plain = DataLoader(range(300), 10, shuffle=True, collate_fn=list)
    alike, drawn = (np.mean([np.ptp(lengths[batch]) for batch in found]) for found in (epochs[2], plain))
    assert alike < drawn / 4
    first = DataLoader(range(300), 10, **options)
    batches = iter(first)
    for _ in range(7):
        next(batches)
    job = Ranked(range(300), 2, first.state_dict(), **{**options, "batch_size": 5})
    found = [sorted(chain.from_iterable(batches)) for batches in job.epoch()]
    assert found == [sorted(batch) for batch in epochs[0][7:]]
    other = DataLoader(range(300), 20, **options)
    with pytest.raises(ConfigError, match=r"10.*20.*global_batch"):
        other.load_state_dict(first.state_dict())


class Asking(Recorder):
    """Samples that tell of the worker that made them."""

    def __getitem__(self, number: int) -> tuple[int, int | None, bool, Any]:
        info = get_worker_info()
        mine = info is not None and info.dataset is self and info.num_workers == 2
        return number, None if info is None else info.id, mine, os.environ.get("HEADRACE_TEST_INIT")


def _init(worker: int) -> None:
    os.environ["HEADRACE_TEST_INIT"] = str(worker)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_have_their_info_and_are_initialised(method: str) -> None:
    loader = DataLoader(
        Asking(12), 2, num_workers=2, collate_fn=list, worker_init_fn=_init, multiprocessing_context=method
    )
    # To start anew takes a second, to fork none.
    for _ in range(2 if method == "fork" else 1):
        samples = samples_of(loader)
        assert [sample[0] for sample in samples] == list(range(12))
        assert {sample[1] for sample in samples} <= {0, 1}
        assert all(sample[2] and sample[3] == str(sample[1]) for sample in samples)
        assert not descendants(), "they end with an epoch"
    assert samples_of(DataLoader(Asking(3), collate_fn=list)) == [(n, None, False, None) for n in range(3)]


def test_persistent_workers_stay() -> None:
    options: Any = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}
    loader = DataLoader(Recorder(12), 2, collate_fn=list, **options)
    next(iter(loader))
    first = workers_now()
    assert samples_of(loader) == list(range(12))
    assert workers_now() == first
    loader.close()


def test_a_list_of_a_billion_is_no_work() -> None:
    loader = DataLoader(Recorder(10**9), 4, shuffle=True, collate_fn=list)
    state = loader.state_dict()
    state["place"]["position"] = 10**8
    loader.load_state_dict(state)
    batch = next(iter(loader))
    assert len(set(batch)) == 4
    assert loader.dataset.asked == batch
