"""Of a blend it is drawn who takes which sample of a step; which samples make it, and all that is said of it, stays."""

from __future__ import annotations

import json
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import corpora
import media_texts
import runs_made
from columned import get_savable_loader
from counts import cases
from headrace import Blend, ConfigError, Loader, MediaDataset, Order, Packing, Run, StateError
from headrace.compat.energon import BlendDataset, WorkerConfig, get_train_dataset
from headrace.datasets import Framed, FramedRun, WindowDataset
from headrace.encoders import TaskEncoder, stateless
from headrace.loader import Balance, Ranks, Reading
from headrace.plan import Branch, Leaf, Share, micro_batches, quantised
from headrace.plan.framed import Lanes, lanes_key
from headrace.tracing import Topology, history_of, trace_sample, trace_step
from loader.jobs import Job, flat

PLAIN = Reading(num_threads=0, pin_memory=False)
MICRO_STEPS = 200


def numbers(weights: list[int], **options: Any) -> Run:
    """A run over a blend of numbers, for what is asked of the plan alone."""
    leaves = tuple(Leaf(f"s{i}", 100) for i in range(len(weights)))
    tree = Branch("", leaves, tuple(quantised([float(weight) for weight in weights])), None)
    return Run(runs_made.Tree(tree), **{"order": Order(seed=1), **options})


def windows(corpus: list[corpora.Corpus], **options: Any) -> Run:
    """A run over a blend of two small stores."""
    data = {name: WindowDataset(one.store, seq_len=8) for name, one in zip("ab", corpus, strict=False)}
    given = {"global_batch_size": 8, "order": Order(seed=1), **options}
    return Run(Blend(data, weights={"a": 1, "b": 1}), **given)


def check_share(sources: np.ndarray[Any, Any], weights: list[int]) -> None:
    """As a random assignment gives them.

    The bound is met by all of 10^9 random assignments, those of few samples included, which 6 standard deviations alone
    are not; and a blend may be off by 2.
    """
    for source, weight in enumerate(weights):
        share = weight / sum(weights)
        off = abs(int((sources == source).sum()) - len(sources) * share)
        assert off <= 6 * (len(sources) * share * (1 - share)) ** 0.5 + 2 + 6, (source, share, off)


@settings(max_examples=cases(12, 2_000), deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
    st.integers(1, 8),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 3),
)
def test_no_rank_or_worker_is_bound_to_a_source(
    weights: list[int], world_size: int, micro: int, micro_steps: int, workers: int, seed: int
) -> None:
    run = numbers(weights, global_batch_size=world_size * micro * micro_steps, order=Order(seed=seed))
    assert run.draw is not None or world_size * micro * micro_steps == 1
    if run.draw is None:
        return
    end = MICRO_STEPS * world_size * micro
    for rank in range(world_size):
        taken = micro_batches(run.schedule, Share(rank, world_size, micro), position=0, end=end, at_least=end)
        sources = run.lookup(run.draw.positions(taken.slots())).sources
        check_share(sources, weights)
        # A worker that reads whole steps reads what the blend gives to every n-th step: of a short pattern, always the
        # same part. That is a matter of the worker's load, and no batch depends on it.
        for worker in range(workers if world_size * micro_steps > 1 else 1):
            check_share(sources.reshape(-1, micro)[worker::workers].ravel(), weights)


@settings(max_examples=cases(12, 1_000), deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(2, 16), st.integers(0, 3))
def test_no_lane_is_bound_to_a_source(weights: list[int], num_lanes: int, seed: int) -> None:
    run = numbers(weights, global_batch_size=1)
    lanes = Lanes(num_lanes=num_lanes, frame_positions=MICRO_STEPS, key=lanes_key(seed))
    for lane in range(num_lanes):
        check_share(run.lookup(lanes.at(lane, np.arange(MICRO_STEPS))).sources, weights)


@settings(max_examples=cases(12, 2_000), deadline=None)
@given(st.integers(1, 9), st.integers(1, 100), st.integers(0, 2**64 - 1))
def test_lanes_share_all_positions(num_lanes: int, length: int, key: int) -> None:
    lanes = Lanes(num_lanes=num_lanes, frame_positions=3, num_positions=length, key=key)
    taken = []
    for lane in range(num_lanes):
        mine = [lanes.positions(lane, frame) for frame in range(lanes.num_frames(lane) or 0)]
        found = np.concatenate([np.zeros(0, dtype=np.int64), *mine])
        assert len(found) == lanes.lane_positions(lane)
        assert (found // num_lanes).tolist() == list(range(len(found))), "one of each group"
        assert (lanes.lanes_of(found) == lane).all()
        taken += found.tolist()
    assert sorted(taken) == list(range(length))


def test_the_steps_are_as_they_were(corpus: list[corpora.Corpus]) -> None:
    """Which samples make a step, and the order in which they are told, knows nothing of the draw."""
    run = windows(corpus, samples=60)
    assert run.draw is not None
    assert run.recipe.format == {"order": 1, "blend": 1, "split": 2}
    assert run.lookup(np.arange(8)).sources.tolist() in ([0, 1] * 4, [1, 0] * 4)
    taken = Job(run, 1, 8).positions()
    for step in range(8):
        positions = list(range(step * 8, min(60, step * 8 + 8)))
        assert run.positions(step).tolist() == run.step(step)["sample_positions"].tolist() == positions
        assert [one.position for one in trace_step(run, step)] == positions
        assert sorted(flat([taken[step]])) == positions
    assert any(batch != sorted(batch) for [batch] in taken)


def test_what_is_not_drawn_has_a_format_of_its_own(corpus: list[corpora.Corpus]) -> None:
    one = WindowDataset(corpus[0].store, seq_len=8)
    several = windows(corpus).data
    assert isinstance(several, Blend)
    for run in (Run(one, global_batch_size=8), Run(several, global_batch_size=8, order=Order(kind="none"))):
        assert run.draw is None
        assert run.recipe.format["split"] == 1
    loader = Loader(Run(one, global_batch_size=8), micro_batch_size=2, ranks=Ranks(1, 2), reading=PLAIN)
    assert [batch["sample_positions"].tolist() for batch in islice(loader, 3)] == [[2, 3], [6, 7], [10, 11]]


@settings(max_examples=cases(10, 2_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_chains_within_steps_of_a_run_that_is_made_longer(corpus: list[corpora.Corpus], data: st.DataObject) -> None:
    """Each life has ranks, a micro-batch and a length of its own, and some are balanced: every position once."""
    size = data.draw(st.integers(2, 24))
    block = data.draw(st.sampled_from([1, 1, 4]))
    children = {name: WindowDataset(one.store, seq_len=8) for name, one in zip("ab", corpus, strict=False)}
    mix = BlendDataset(children, weights={"a": 2, "b": 1}, block_samples=block)
    costs = {name: np.arange(len(child)) * 7 % 11 for name, child in children.items()}
    length = data.draw(st.integers(1, 40))
    state: dict[str, Any] | None = None
    seen: list[int] = []
    run = Run(mix, global_batch_size=size, samples=length, order=Order(seed=4))
    for _ in range(data.draw(st.integers(2, 5))):
        run = Run(mix, global_batch_size=size, samples=length, order=Order(seed=4))
        world_size = data.draw(st.integers(1, 4)) if block == 1 else 1
        micro = data.draw(st.integers(1, 3)) if block == 1 else 1
        # A step that is balanced goes on with balance; one that is not may go on with it.
        is_balanced = bool(state and "balanced_step" in state) or (block == 1 and data.draw(st.integers(0, 3)) == 0)
        balance = Balance(lengths=costs) if is_balanced else None
        job = Job(run, world_size, micro, state, balance=balance)
        seen += flat(job.positions(data.draw(st.integers(0, 12))))
        state = json.loads(json.dumps(job.state()))
        assert len(set(seen)) == len(seen) == job.loaders[0].position, "none twice"
        length += data.draw(st.integers(0, 20))
    balance = Balance(lengths=costs) if state is not None and "balanced_step" in state else None
    seen += flat(Job(run, 1, 1, state, balance=balance).positions())
    assert run.length is not None
    assert sorted(seen) == list(range(run.length)), "none is missing"


def test_a_state_says_how_a_short_last_step_was_drawn(corpus: list[corpora.Corpus]) -> None:
    """And only there: every other state is as it was."""
    loader = Loader(windows(corpus, samples=13), micro_batch_size=1, ranks=Ranks(), reading=PLAIN)
    found = []
    for _ in loader:
        found.append(loader.state_dict().get("drawn_to"))
    assert found == [None] * 8 + [[13]] * 5
    state = loader.state_dict()
    single = Run(WindowDataset(corpus[0].store, seq_len=8), global_batch_size=8)
    other = Loader(single, micro_batch_size=1, ranks=Ranks())
    other.start_at(13, allow_repeats=True)
    state["recipe"] = other.state_dict()["recipe"]
    with pytest.raises(StateError, match="slots"):
        other.load_state_dict(state)


def test_a_number_of_samples_within_a_step_says_not_which(corpus: list[corpora.Corpus]) -> None:
    loader = Loader(windows(corpus, samples=13), micro_batch_size=1, ranks=Ranks(), reading=PLAIN)
    with pytest.raises(ConfigError, match=r"begins.*0"):
        loader.start_at(5)
    loader.start_at(13)
    loader.start_at(8)
    assert sorted(p for batch in loader for p in batch["sample_positions"].tolist()) == [8, 9, 10, 11, 12]


def test_a_trace_tells_who_took_a_sample(corpus: list[corpora.Corpus]) -> None:
    run = windows(corpus, samples=61)
    topology = Topology(ranks=3, micro_batch_size=2)
    took: dict[int, tuple[int, int, int]] = {}
    job = Job(run, 3, 2)
    for batches in job.micro_steps():
        given = [batch["sample_positions"].tolist() for batch in batches]
        step = max(chain(*given)) // 8
        # The micro-steps of a step by how far the run has come after each.
        micro_step = (job.loaders[0].position - 8 * step - 1) // 6
        for rank, positions in enumerate(given):
            took |= dict.fromkeys(positions, (step, rank, micro_step))
    for step in range(8):
        for one in history_of(run).step(step, topology=topology):
            assert one.position is not None
            assert (one.step, one.rank, one.micro_step) == took[one.position]
    assert [one.rank for one in history_of(run).sample("a", 3, topology=topology).shown] == [
        took[one.position][1] for one in trace_sample(run, "a", 3).shown if one.position is not None
    ]


class Packed(TaskEncoder[Any, Any, Any, Any]):
    """Texts of one length, four to a pack."""

    decoder = None

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return {"of": sample.__subflavors__["of"], "__restore_key__": ()}

    @stateless
    def sample_length(self, sample: Any) -> int:
        return 1

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {"of": "".join(sample["of"] for sample in samples), "__restore_key__": ()}

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        return {"of": [sample["of"] for sample in samples]}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MediaDataset]:
    folder = tmp_path_factory.mktemp("drawn")
    return {
        name: MediaDataset.open(
            media_texts.shards(folder / name, (23, 20)), subflavors={"of": name}, **media_texts.TEXT
        )
        for name in "ab"
    }


def test_packs_on_the_fly_mix_the_sources(texts: dict[str, MediaDataset]) -> None:
    blend = Blend(texts, weights={"a": 1, "b": 1})
    assert Framed(blend, Packed(), form=Packing(seq_len=4)).frame_positions == 1_000, "if nothing is said"
    data = Framed(blend, Packed(), form=Packing(seq_len=4), frame_positions=32)
    for rank in range(2):
        run = FramedRun(data, global_batch_size=2, order=Order(seed=1))
        assert run.recipe.format == {"order": 1, "blend": 1, "split": 1, "framed": 2}
        loader = Loader(run, micro_batch_size=1, ranks=Ranks(rank, 2))
        packs = [pack for batch in islice(loader, 60) for pack in batch["of"]]
        assert sum(len(set(pack)) == 2 for pack in packs) > 40, "each is of one with a chance of 1 in 8"


@pytest.mark.parametrize("drop", [False, True])
def test_passes_of_energons_face_that_end_within_a_step(texts: dict[str, MediaDataset], drop: bool) -> None:
    """86 samples a pass in steps of 8: each pass has its own once, also where it is saved and goes on elsewhere."""
    mix = Blend(texts, repeats={"a": 1, "b": 1})

    def loader_of(rank: int, world_size: int, state: dict[str, Any] | None) -> Any:
        config = WorkerConfig(rank, world_size, 0, seed_offset=5)
        made = get_train_dataset(
            mix, worker_config=config, batch_size=1, repeat=False, batch_drop_last=drop, global_batch_size=8
        )
        loader = get_savable_loader(made)
        loader.restore_state_rank(state)
        return loader

    state: dict[str, Any] | None = None
    seen: list[int] = []
    for world_size, num_batches in ((2, 42), (1, 1), (2, None), (2, 2), (1, None), (2, 41), (3, None)):
        loaders = [loader_of(rank, world_size, state) for rank in range(world_size)]
        for loader in loaders:
            seen += [p for batch in islice(loader, num_batches) for p in batch["sample_positions"].tolist()]
        states = [json.loads(json.dumps(loader.save_state_rank())) for loader in loaders]
        assert all(one == states[0] for one in states)
        state = states[0]
        assert len(set(seen)) == len(seen), "none twice"
        if state["position"] % 86 == 0:
            left = sorted(set(range(state["position"])) - set(seen))
            assert len(left) <= drop * (state["position"] // 86), left
    assert state is not None
    # Where the last sample of the first pass is dropped, the third iteration is a pass of its own.
    assert state["position"] == (3 + drop) * 86
