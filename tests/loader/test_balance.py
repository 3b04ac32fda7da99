"""Steps that are balanced, or dealt to nodes: the same samples in each, on any ranks, after any resume."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import corpora
import headrace
import records_made
from children import results_of
from counts import cases
from headrace import (
    Blend,
    ConfigError,
    Loader,
    MapDataset,
    Order,
    PackedSequenceDataset,
    Packing,
    PreferenceDataset,
    Run,
    SFTDataset,
    StateError,
    WindowDataset,
)
from headrace.cache import Cache
from headrace.cache.block_store import block_name
from headrace.compat.energon import BlendDataset
from headrace.datasets import Collation, Dataset, Traits
from headrace.datasets.block_uses import BlockUses
from headrace.io import PreadReader
from headrace.loader import Balance, Dealing, Ranks, Reading
from headrace.plan import Bucketing, balanced
from headrace.stores import KeyedStore
from loader.jobs import Job, flat
from runs_made import Numbers
from token_shards import write_keyed

COUNT = 61
NOW = Reading(num_threads=0)
State = dict[str, Any]


class Pictures(Numbers):
    """As media are: of no length in tokens."""

    @property
    def traits(self) -> Traits:
        return Traits(is_ragged=True, has_tokens=False)


def attention(lengths: np.ndarray) -> np.ndarray:
    """Of a layer of width 64: its matrices, and causal attention."""
    return lengths * (12 * 64 + lengths)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    folder = tmp_path_factory.mktemp("balance")
    collation = Collation(padding_idx=0)
    sft = records_made.store(folder / "sft", records_made.sft(1, COUNT), "keyed")
    return {
        "sft": SFTDataset(sft, collation),
        "more": SFTDataset(records_made.store(folder / "more", records_made.sft(2, 40), "keyed"), collation),
        "dpo": PreferenceDataset(records_made.store(folder / "dpo", records_made.preferences(2, COUNT)), collation),
        "packs": PackedSequenceDataset(sft, Packing(seq_len=64), padding_idx=0, loss_mask_key="loss_mask"),
        "windows": WindowDataset(sft, seq_len=16),
    }


def job(run: Run, world_size: int, micro: int, state: State | None = None, **options: Any) -> Job:
    return Job(run, world_size, micro, state, **{"balance": Balance(), **options})


def loaders(run: Run, world_size: int, micro: int, state: State | None = None, **options: Any) -> list[Loader]:
    return job(run, world_size, micro, state, **options).loaders


def life(job: Job, micro_steps: int) -> tuple[list[list[list[int]]], State]:
    """For each micro-step the positions that each rank took, and the state after them."""
    return job.positions(micro_steps), job.state()


@st.composite
def runs(draw: st.DrawFn, datasets: dict[str, Dataset]) -> tuple[Run, Run]:
    """A run, and the same made longer."""
    mix = Blend({"a": datasets["sft"], "b": datasets["more"]}, weights={"a": 2, "b": 1})
    data = draw(st.sampled_from([datasets["sft"], datasets["packs"], mix]))
    ragged = data is not datasets["packs"]
    bucketing = Bucketing(window_steps=draw(st.integers(1, 3))) if ragged and draw(st.booleans()) else None
    schedule = [(0, draw(st.integers(1, 30))), (draw(st.integers(1, 3)), draw(st.integers(1, 30)))]
    samples = draw(st.integers(20, 120))
    order = Order(seed=draw(st.integers(0, 3)))
    if bucketing is not None:
        # Its last window ends with the run: such a run keeps its length.
        run = Run(data, global_batch_size=schedule, order=order, samples=samples, bucketing=bucketing)
        return run, run
    short, longer = (Run(data, global_batch_size=schedule, order=order, samples=n) for n in (samples, samples + 13))
    return short, longer


@settings(max_examples=cases(12, 3_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 7)), min_size=1, max_size=5))
def test_chains_of_resumes_lose_nothing_and_have_nothing_twice(
    datasets: dict[str, Dataset], data: st.DataObject, lives: list[tuple[int, int, int]]
) -> None:
    short, longer = data.draw(runs(datasets))
    balance = data.draw(st.sampled_from([Balance(), Balance(cost=attention), Balance(cost="supervised_tokens")]))
    state: State | None = None
    seen: list[int] = []
    lengthened = data.draw(st.integers(1, 5))
    run = short
    for number, (world_size, micro, micro_steps) in enumerate(lives):
        run = short if number < lengthened else longer
        found, state = life(job(run, world_size, micro, state, balance=balance), micro_steps)
        seen += flat(found)
        assert state["position"] == len(seen) == len(set(seen))
        begin = run.schedule.begin(state["step"])
        assert sorted(seen[:begin]) == list(range(begin)), "each step has its own samples"
        assert ("balanced_step" in state) <= (begin < len(seen) < (run.length or 0)), (
            "between two steps a position is all"
        )
    rest, end = life(job(run, 1, 7, state, balance=balance), 1_000)
    assert sorted(seen + flat(rest)) == list(range(run.length or 0))
    assert "balanced_step" not in end


@settings(max_examples=cases(15, 1_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(1, 5), st.integers(1, 4), st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_the_same_ranks_go_on_as_if_nothing_had_happened(
    datasets: dict[str, Dataset], data: st.DataObject, world_size: int, micro: int, lives: list[int]
) -> None:
    run, _ = data.draw(runs(datasets))
    whole, _ = life(job(run, world_size, micro), 1_000)
    state = None
    found: list[list[list[int]]] = []
    for micro_steps in lives:
        more, state = life(job(run, world_size, micro, state), micro_steps)
        found += more
    assert found == whole[: len(found)]
    # A loader that is iterated anew goes on, too, and what was read ahead is assigned again.
    made = job(run, world_size, micro, state, reading=Reading(num_threads=1))
    found += life(made, 2)[0]
    if made.loaders[0].position < (run.length or 0):
        found += life(made, 1_000)[0]
    assert found == whole


def test_batches_hold_the_samples_at_their_positions(datasets: dict[str, Dataset]) -> None:
    """In threads and worker processes alike, and the loss of a step is divided by as many tokens as without."""
    run = Run(datasets["sft"], global_batch_size=16, order=Order(seed=3), epochs=1)
    plain: dict[int, int] = {}
    for batch in Loader(run, micro_batch_size=16, ranks=Ranks(), reading=NOW):
        for position in batch["sample_positions"].tolist():
            plain[position] = batch["step_supervised_tokens"]
    moved = 0
    for reading in (Reading(num_threads=2), Reading(num_workers=1)):
        for loader in loaders(run, 2, 4, reading=reading):
            for number, batch in enumerate(loader):
                positions = batch["sample_positions"].tolist()
                moved += positions != run.positions(number // 2)[loader.ranks.rank * 4 :][:4].tolist()
                for row, position in enumerate(positions):
                    indices = run.lookup(np.array([position])).indices
                    sample = datasets["sft"].samples(indices)[0]["input_ids"]
                    mask = batch["attention_mask"][row].bool()
                    assert batch["input_ids"][row][mask].tolist() == sample.tolist()
                    assert batch["step_supervised_tokens"] == plain[position]
            loader.close()
    assert moved


def test_eight_ranks_have_alike(tmp_path: Path) -> None:
    """Counted from the tokens that are delivered: at most 1.05 of the mean in any micro-step, unbalanced more."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(7, 0.8, 1_024).astype(np.int64), 1, 2_048)
    ones = np.ones(int(lengths.max()), dtype=np.uint8)
    write_keyed(tmp_path, tokens=("uint8", [ones[:length] for length in lengths.tolist()]))
    dataset = SFTDataset(KeyedStore(tmp_path), Collation(padding_idx=0), loss_mask_key=None)
    run = Run(dataset, global_batch_size=512, order=Order(seed=1), epochs=1)
    with_balance, without = (
        np.array(
            [[int(batch["attention_mask"].sum()) for batch in loader] for loader in loaders(run, 8, 8, balance=balance)]
        ).T
        for balance in (Balance(), None)
    )
    assert with_balance.shape == (16, 8)
    assert with_balance.sum() == lengths.sum()
    worst, without_worst = ((cost.max(axis=1) / cost.mean(axis=1)).max() for cost in (with_balance, without))
    assert worst <= 1.05
    assert without_worst > 1.3
    figures = loaders(run, 8, 8)[0].balance_figures(9)
    assert [str(one).split(":")[0] for one in figures] == ["step 0", "step 1"]
    assert np.concatenate([one.balanced.cost for one in figures]).tolist() == with_balance.tolist()
    assert np.concatenate([one.unbalanced.cost for one in figures]).tolist() == without.tolist()
    assert max(one.balanced.micro_step_imbalance for one in figures) == pytest.approx(worst)
    assert f"balanced: max over mean {figures[0].balanced.micro_step_imbalance:.3f}" in str(figures[0])
    assert all(one.balanced.waiting < 0.03 < 0.1 < one.unbalanced.waiting for one in figures)


def cost(data: Dataset, balance: Balance) -> list[float]:
    """Of each sample of a dataset."""
    run = Run(data, global_batch_size=len(data), order=Order(kind="none"), epochs=1)
    (figures,) = loaders(run, 1, 1, balance=balance)[0].balance_figures()
    return figures.unbalanced.cost[:, 0].tolist()  # type: ignore[no-any-return]


def test_what_records_cost(datasets: dict[str, Dataset]) -> None:
    data = datasets["sft"]
    items = [data[i] for i in range(len(data))]
    lengths = [len(item["input_ids"]) for item in items]
    assert cost(data, Balance()) == lengths
    assert cost(data, Balance(cost=attention)) == [attention(length) for length in lengths]
    assert cost(data, Balance(cost="supervised_tokens")) == [int((item["labels"] != -100).sum()) for item in items]
    given = np.arange(len(data), dtype=np.int32)
    assert cost(data, Balance(lengths={"": given})) == given.tolist()
    assert cost(data, Balance(cost=attention, lengths={"": given})) == attention(given).tolist()
    pairs = datasets["dpo"]
    assert cost(pairs, Balance()) == pairs.sample_lengths(np.arange(COUNT)).tolist()


def test_what_packs_cost(datasets: dict[str, Dataset]) -> None:
    """A function is of the lengths of their documents, which are what attention takes."""
    data = datasets["packs"]
    items = [data[i] for i in range(len(data))]
    documents = [np.bincount(item["document_ids"][item["document_ids"] >= 0]) for item in items]
    assert cost(data, Balance()) == [one.sum() for one in documents]
    assert cost(data, Balance(cost="supervised_tokens")) == [int(item["loss_mask"].sum()) for item in items]
    by_attention = [attention(one[one > 0]).sum() for one in documents]
    assert len(set(by_attention)) > len(by_attention) // 2
    assert cost(data, Balance(cost=attention)) == by_attention
    assert cost(MapDataset(data, dict), Balance(cost=attention)) == by_attention


def test_lengths_that_are_given_are_by_source_and_sample(datasets: dict[str, Dataset]) -> None:
    """Also of samples that have none of their own."""
    data = {"a": datasets["windows"], "b": WindowDataset(datasets["sft"].store, seq_len=16, stride=5)}  # type: ignore[attr-defined]
    run = Run(Blend(data, weights={"a": 1, "b": 1}), global_batch_size=24, order=Order(seed=2))
    rng = np.random.default_rng(0)
    given = {name: rng.integers(1, 1_000, len(one)) for name, one in data.items()}
    loader = loaders(run, 2, 3, balance=Balance(lengths=given))[0]
    found = run.lookup(run.positions(0))
    costs = np.array([given["ab"[s]][i] for s, i in zip(found.sources, found.indices, strict=True)])
    assignment = balanced(costs, world_size=2, micro_batch_size=3)
    assert loader.balance_figures()[0].balanced.cost.tolist() == assignment.cost.tolist()
    expected = assignment.order.reshape(4, 2, 3)[:, 0].tolist()
    batches = iter(loader)
    assert [next(batches)["sample_positions"].tolist() for _ in range(4)] == expected
    with pytest.raises(ConfigError, match=r"\['c'\].*\['a'.*'b'"):
        loaders(run, 1, 1, balance=Balance(lengths={"c": given["a"]}))
    with pytest.raises(ConfigError, match=r"249.*'b'"):
        loaders(run, 1, 1, balance=Balance(lengths={"a": given["a"], "b": given["b"][1:]}))
    with pytest.raises(ConfigError, match=r"'b'.*WindowDataset"):
        loaders(run, 1, 1, balance=Balance(lengths={"a": given["a"]}))


def test_restart_begins_anew_after_a_state_within_a_step(datasets: dict[str, Dataset]) -> None:
    run = Run.validation(datasets["sft"], global_batch_size=24)
    whole, _ = life(job(run, 3, 2), 1_000)
    _, state = life(job(run, 2, 3), 1)
    made = job(run, 3, 2, state, restart=True)
    first, _ = life(made, 1_000)
    assert len(flat(first)) == COUNT - 6
    again, _ = life(made, 1_000)
    assert again == whole


def test_what_a_state_within_a_step_needs(datasets: dict[str, Dataset]) -> None:
    run = Run(datasets["sft"], global_batch_size=24, order=Order(seed=1), samples=60)
    _, state = life(job(run, 2, 3), 2)
    assert state["position"] == 12
    assert state["balanced_step"]["taken"] == [[24, 2, 3, 12, 0]]
    with pytest.raises(StateError, match="balanced"):
        loaders(run, 2, 3, state, balance=None)
    with pytest.raises(StateError, match="balanced"):
        loaders(run, 2, 3, state, balance=Balance(cost=attention))
    shorter = Run(datasets["sft"], global_batch_size=24, order=Order(seed=1), samples=20)
    with pytest.raises(StateError, match="length"):
        loaders(shorter, 2, 3, state)
    for taken in ([], [[24, 2, 3, 13]], [[24, 2, 0, 12]], [[8, 2, 3, 12]], [[24, 1, 1, 6], [23, 1, 1, 6]]):
        with pytest.raises(StateError, match="damaged"):
            loaders(run, 2, 3, {**state, "balanced_step": {**state["balanced_step"], "taken": taken}})
    with pytest.raises(StateError, match="damaged"):
        loaders(run, 2, 3, {**state, "balanced_step": {"taken": "all"}})
    loader = loaders(run, 2, 3)[0]
    with pytest.raises(ConfigError, match=r"position.*12.*0"):
        loader.start_at(12)
    loader.start_at(24)
    assert loader.step == 1
    # Without balance a position is all, and the samples before it were taken as they come.
    _, state = life(job(run, 2, 3, balance=None), 2)
    found, _ = life(job(run, 1, 4, state), 3)
    assert sorted(flat(found)) == list(range(12, 24))


def test_a_step_can_be_stopped_so_often_with_other_ranks(datasets: dict[str, Dataset]) -> None:
    run = Run(datasets["sft"], global_batch_size=60, order=Order(seed=1), samples=60)
    state = None
    seen: list[int] = []
    for number in range(16):
        found, state = life(job(run, 1, 1 + number % 2, state), 1)
        seen += flat(found)
    with pytest.raises(StateError, match=r"16.*times"):
        loaders(run, 1, 1, state)
    found, _ = life(job(run, 1, 2, state), 1_000)
    assert sorted(seen + flat(found)) == list(range(60))


def test_what_is_refused(datasets: dict[str, Dataset]) -> None:
    def refused(data: Any, named: str, balance: Any = Balance(), **options: Any) -> None:  # noqa: B008
        with pytest.raises(ConfigError, match=named):
            loaders(Run(data, global_batch_size=8, **options), 2, 2, balance=balance)

    refused(datasets["windows"], "WindowDataset.*equally")
    refused(datasets["dpo"], "balance.*'tokens'", balance="tokens")
    refused(datasets["sft"], "bucketing.*group_samples=4", bucketing=Bucketing(group_samples=4))
    refused(datasets["sft"], "function", balance=Balance(cost=lambda lengths: 1))
    refused(datasets["sft"], "function", balance=Balance(cost=lambda lengths: lengths > 3))
    refused(Pictures(9), r"Pictures.*Balance\(lengths={'':")
    blocks = BlendDataset({"a": datasets["sft"], "b": datasets["more"]}, weights={"a": 1, "b": 1}, block_samples=4)
    refused(blocks, "block_samples=4")
    for wrong, named in (
        ({"cost": "words"}, "'words'"),
        ({"cost": "supervised_tokens", "lengths": {"": np.arange(3)}}, "cost='supervised_tokens'"),
        ({"lengths": {"a": np.ones(3)}}, "'a'"),
    ):
        with pytest.raises(ConfigError, match=named):
            Balance(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="balance"):
        loaders(Run(datasets["sft"], global_batch_size=8), 1, 1, balance=None)[0].balance_figures()
    negative = loaders(Run(datasets["sft"], global_batch_size=8), 2, 2, balance=Balance(cost=lambda lengths: -lengths))
    with pytest.raises(ConfigError, match="costs"):
        next(iter(negative[0]))


def test_ranks_that_take_a_step_otherwise_do_not_agree(datasets: dict[str, Dataset]) -> None:
    """They would take samples twice, and leave others out."""
    run = Run(datasets["sft"], global_batch_size=24, samples=60)
    states = [life(job(run, *topology), 1)[1] for topology in ((2, 3), (3, 2))]
    said = [loaders(run, 2, 3, state)[0]._agreed(6) for state in states]
    assert {name for name, value in said[0].items() if said[1][name] != value} == {"assignment of the step"}
    assert loaders(run, 2, 3)[0]._agreed(60) == loaders(run, 2, 3, states[0])[1]._agreed(60), "nothing is left"


BLOCK = 1024
DEALING = Dealing(block=BLOCK)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(2)
    documents = [rng.integers(0, 60_000, rng.integers(20, 400)) for _ in range(240)]
    path = tmp_path_factory.mktemp("data") / "web"
    corpora.write(path, documents)
    return str(path)


def windows(prefix: str, **options: Any) -> headrace.Run:
    dataset = headrace.WindowDataset(headrace.open(prefix, reader=options.pop("reader", "mmap")), seq_len=50)
    return headrace.Run(dataset, **{"global_batch_size": 24, "order": headrace.Order(seed=3), "epochs": 2, **options})


def dealt_job(run: headrace.Run, topology: tuple[int, int, int], state: Any = None, **options: Any) -> Job:
    """All ranks of some nodes with some ranks each, with a micro-batch."""
    num_nodes, per_node, micro = topology
    return Job(run, num_nodes * per_node, micro, state, per_node=per_node, **{"dealing": DEALING, **options})


def fed(dealt_job: Job, most: int = 1 << 30) -> list[tuple[int, list[list[int]]]]:
    """The step of each micro-step, and the positions that each rank is given."""
    found, step = [], dealt_job.loaders[0].step
    for batches in dealt_job.micro_steps(most):
        found.append((step, [batch["sample_positions"].tolist() for batch in batches]))
        step = dealt_job.loaders[0].step
    return found


def by_step(found: list[tuple[int, list[list[int]]]]) -> dict[int, list[int]]:
    steps: dict[int, list[int]] = {}
    for step, taken in found:
        steps[step] = sorted([*steps.get(step, []), *chain(*taken)])
    return steps


@pytest.mark.parametrize("topology", [(2, 1, 3), (4, 2, 1), (3, 1, 2), (2, 2, 5), (1, 2, 4)])
def test_steps_keep_their_samples(prefix: str, topology: tuple[int, int, int]) -> None:
    run = windows(prefix, epochs=None, samples=250)
    found, plain = fed(dealt_job(run, topology)), fed(dealt_job(run, topology, dealing=None))
    assert by_step(found) == {step: run.positions(step).tolist() for step in range(11)}
    # As many of each micro-batch as without dealing.
    assert [(step, list(map(len, given))) for step, given in found] == [
        (step, list(map(len, given))) for step, given in plain
    ]


def test_samples_are_read_where_their_blocks_are(prefix: str) -> None:
    run = windows(prefix, global_batch_size=64)
    uses = BlockUses.of_run(run, block_bytes=BLOCK)
    dealt, undealt = (
        np.concatenate(
            [
                uses.homes(np.array(positions)) % 4 == rank
                for _, given in fed(dealt_job(run, (4, 1, 4), dealing=dealing))
                for rank, positions in enumerate(given)
                if positions
            ]
        )
        for dealing in (DEALING, None)
    )
    assert dealt.mean() > 0.85
    assert undealt.mean() < 0.35
    figures = dealt_job(run, (4, 1, 4)).loaders[0].dealing_figures(5)
    assert [one.step for one in figures] == [0, 1, 2, 3, 4]
    assert sum(one.num_foreign for one in figures) < 0.15 * 64 * 5
    assert sum(one.num_foreign_undealt for one in figures) > 0.6 * 64 * 5


LIVES = [
    [((2, 2, 1), 3), ((3, 1, 2), 2), ((1, 1, 4), None)],
    [((4, 1, 1), 1), ((4, 1, 1), 2), ((2, 1, 3), None)],
    [(None, 2), ((2, 2, 2), 2), (None, 6), ((2, 1, 2), None)],
]
"""Topologies, and after how many micro-steps a state is saved; None is two ranks without dealing."""


@pytest.mark.parametrize("life", LIVES)
def test_resumes_within_steps_are_exact(prefix: str, life: list[Any]) -> None:
    run = windows(prefix, epochs=None, samples=120)
    seen: list[tuple[int, list[list[int]]]] = []
    state: dict[str, Any] | None = None
    for topology, stop in life:
        one = dealt_job(run, (1, 2, 2), state, dealing=None) if topology is None else dealt_job(run, topology, state)
        seen += fed(one, 1 << 30 if stop is None else stop)
        state = one.state()
    assert by_step(seen) == {step: run.positions(step).tolist() for step in range(5)}


def test_a_state_says_how_the_step_was_dealt(prefix: str) -> None:
    run = windows(prefix)
    begun = dealt_job(run, (2, 2, 3))
    fed(begun, 1)
    state = begun.state()
    assert state["balanced_step"]["taken"] == [[24, 4, 3, 12, 2]]
    with pytest.raises(StateError, match="dealing"):
        Loader(run, micro_batch_size=3).load_state_dict(state)
    with pytest.raises(StateError, match="blocks"):
        dealt_job(run, (2, 2, 3), state, dealing=Dealing(block=2048))
    broken = json.loads(json.dumps(state))
    broken["balanced_step"]["taken"][0][4] = 3
    with pytest.raises(StateError, match="damaged"):
        begun.loaders[0].load_state_dict(broken)
    fed(begun, 1)
    assert "balanced_step" not in begun.state()


def test_balance_acts_within_each_node(prefix: str) -> None:
    store = headrace.open(prefix)
    dataset = headrace.SFTDataset(store, headrace.datasets.Collation(), loss_mask_key=None)
    run = headrace.Run(dataset, global_batch_size=48, order=headrace.Order(seed=1), epochs=2)
    both = dealt_job(run, (2, 2, 3), balance=Balance())
    assert by_step(fed(both)) == {step: run.positions(step).tolist() for step in range(10)}
    again = dealt_job(run, (2, 2, 3), balance=Balance())
    dealt = dealt_job(run, (2, 2, 3)).loaders[0]
    balanced = dealt_job(run, (2, 2, 3), dealing=None, balance=Balance()).loaders[0]
    foreign = [sum(one.num_foreign for one in loader.dealing_figures(8)) for loader in (again.loaders[0], dealt)]
    assert foreign[0] == foreign[1]
    waits = [
        np.mean([step.balanced.waiting for step in loader.balance_figures(8)])
        for loader in (balanced, again.loaders[0])
    ]
    plain = np.mean([step.unbalanced.waiting for step in balanced.balance_figures(8)])
    assert waits[0] < waits[1] < plain
    with pytest.raises(ConfigError, match="balance"):
        dealt.balance_figures()
    with pytest.raises(ConfigError, match="samples"):
        balanced.dealing_figures()
    # A state within such a step needs both.
    fed(again, 1)
    dealt_job(run, (2, 1, 4), again.state(), balance=Balance())
    with pytest.raises(StateError, match="costs"):
        dealt.load_state_dict(again.state())


def test_dealing_that_is_refused(prefix: str, tmp_path: Path) -> None:
    run = windows(prefix)
    with pytest.raises(ConfigError, match="'nodes'"):
        Dealing(by="nodes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected"):
        Loader(run, micro_batch_size=4, dealing="blocks")  # type: ignore[arg-type]
    cache = Cache(tmp_path / "cache", limit="1MB", block=512)
    with pytest.raises(ConfigError, match=r"Dealing\(block=512"):
        Loader(windows(prefix, reader=cache.reader("pread")), micro_batch_size=4, dealing=DEALING)
    with pytest.raises(ConfigError, match=r"0.*dealing"):
        dealt_job(run, (2, 1, 3)).loaders[0].start_at(5)


class Counted(PreadReader):
    """Counts the bytes that leave the store, of blocks and of ranges."""

    fetched = 0

    def _fill(self, file: Any, path: str, offsets: Any, lengths: Any, out: Any) -> None:
        self.fetched += int(lengths.sum())
        super()._fill(file, path, offsets, lengths, out)


def _node(prefix: str, folder: str, node: int) -> tuple[Any, ...]:
    cache = Cache(Path(folder) / str(node), limit="1MB", block=BLOCK)
    run = windows(prefix, reader=cache.reader(Counted()), global_batch_size=64, epochs=3)
    ranks = Ranks(node, 4, per_node=1)
    loader = Loader(run, micro_batch_size=4, ranks=ranks, dealing=DEALING, reading=Reading(num_threads=0))
    sums = [(batch["sample_positions"].tolist(), batch["input_ids"].sum(1).tolist()) for batch in loader]
    stats = cache.stats
    return node, sums, (stats.fetched_blocks, stats.bypassed_blocks, stats.evicted_blocks), stats.fetched_bytes


def test_four_nodes_fetch_each_home_block_once(prefix: str, tmp_path: Path) -> None:
    results = results_of(_node, [(prefix, str(tmp_path), node) for node in range(4)])
    run = windows(prefix, global_batch_size=64, epochs=3)
    fed = {}
    for _, sums, _, _ in results:
        for positions, totals in sums:
            fed.update(zip(positions, totals, strict=True))
    expected = run.read(run.locate(np.arange(run.length)))["input_ids"].sum(1).tolist()
    assert [fed[position] for position in range(run.length or 0)] == expected
    uses = BlockUses.of_run(run, block_bytes=BLOCK)
    identity = PreadReader().identity(uses.files[0])
    # The first and last 4 KiB are read to open the store.
    inner = set(range(4, uses.table.num_blocks - 5))
    for node, _, (fetched, bypassed, evicted), _ in results:
        files = {path.name for path in (tmp_path / str(node) / "blocks").glob("*/*")}
        kept = {number for number in inner if block_name(identity, number) in files}
        assert kept == {number for number in inner if number % 4 == node}
        assert (fetched, evicted) == (len(files), 0), "none was fetched twice"
        assert bypassed > 0, "foreign samples are read past the cache"
    # The data leave the store once, and little else: what is foreign, and what opens the store on each node.
    total = sum(num_bytes for *_, num_bytes in results)
    opened = 4 * (9 * BLOCK + Path(f"{prefix}.idx").stat().st_size)
    foreign = total - uses.table.num_bytes - opened
    assert foreign < 0.2 * 3 * uses.table.num_bytes
