"""Samples dealt to nodes: steps stay what they are, resumes are exact, and each home block leaves the store once."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
import headrace
from children import results_of
from headrace.cache import Cache
from headrace.cache.block_store import block_name
from headrace.datasets.block_uses import BlockUses
from headrace.errors import ConfigError, StateError
from headrace.io import PreadReader
from headrace.loader import Balance, Dealing, Loader, Ranks, Reading
from loader.jobs import Job

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


def job(run: headrace.Run, topology: tuple[int, int, int], state: Any = None, **options: Any) -> Job:
    """All ranks of some nodes with some ranks each, with a micro-batch."""
    num_nodes, per_node, micro = topology
    return Job(run, num_nodes * per_node, micro, state, per_node=per_node, **{"dealing": DEALING, **options})


def fed(job: Job, most: int = 1 << 30) -> list[tuple[int, list[list[int]]]]:
    """The step of each micro-step, and the positions that each rank is given."""
    found, step = [], job.loaders[0].step
    for batches in job.micro_steps(most):
        found.append((step, [batch["sample_positions"].tolist() for batch in batches]))
        step = job.loaders[0].step
    return found


def by_step(found: list[tuple[int, list[list[int]]]]) -> dict[int, list[int]]:
    steps: dict[int, list[int]] = {}
    for step, given in found:
        steps[step] = sorted([*steps.get(step, []), *chain(*given)])
    return steps


@pytest.mark.parametrize("topology", [(2, 1, 3), (4, 2, 1), (3, 1, 2), (2, 2, 5), (1, 2, 4)])
def test_steps_keep_their_samples(prefix: str, topology: tuple[int, int, int]) -> None:
    run = windows(prefix, epochs=None, samples=250)
    found, plain = fed(job(run, topology)), fed(job(run, topology, dealing=None))
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
                for _, given in fed(job(run, (4, 1, 4), dealing=dealing))
                for rank, positions in enumerate(given)
                if positions
            ]
        )
        for dealing in (DEALING, None)
    )
    assert dealt.mean() > 0.85
    assert undealt.mean() < 0.35
    figures = job(run, (4, 1, 4)).loaders[0].dealing_figures(5)
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
        one = job(run, (1, 2, 2), state, dealing=None) if topology is None else job(run, topology, state)
        seen += fed(one, 1 << 30 if stop is None else stop)
        state = one.state()
    assert by_step(seen) == {step: run.positions(step).tolist() for step in range(5)}


def test_a_state_says_how_the_step_was_dealt(prefix: str) -> None:
    run = windows(prefix)
    begun = job(run, (2, 2, 3))
    fed(begun, 1)
    state = begun.state()
    assert state["balanced_step"]["taken"] == [[24, 4, 3, 12, 2]]
    with pytest.raises(StateError, match="dealing"):
        Loader(run, micro_batch_size=3).load_state_dict(state)
    with pytest.raises(StateError, match="blocks"):
        job(run, (2, 2, 3), state, dealing=Dealing(block=2048))
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
    both = job(run, (2, 2, 3), balance=Balance())
    assert by_step(fed(both)) == {step: run.positions(step).tolist() for step in range(10)}
    again = job(run, (2, 2, 3), balance=Balance())
    dealt = job(run, (2, 2, 3)).loaders[0]
    balanced = job(run, (2, 2, 3), dealing=None, balance=Balance()).loaders[0]
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
    job(run, (2, 1, 4), again.state(), balance=Balance())
    with pytest.raises(StateError, match="costs"):
        dealt.load_state_dict(again.state())


def test_what_is_refused(prefix: str, tmp_path: Path) -> None:
    run = windows(prefix)
    with pytest.raises(ConfigError, match="'nodes'"):
        Dealing(by="nodes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected"):
        Loader(run, micro_batch_size=4, dealing="blocks")  # type: ignore[arg-type]
    cache = Cache(tmp_path / "cache", limit="1MB", block=512)
    with pytest.raises(ConfigError, match=r"Dealing\(block=512"):
        Loader(windows(prefix, reader=cache.reader("pread")), micro_batch_size=4, dealing=DEALING)
    with pytest.raises(ConfigError, match=r"0.*dealing"):
        job(run, (2, 1, 3)).loaders[0].start_at(5)


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
