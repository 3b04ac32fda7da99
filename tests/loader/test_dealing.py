"""Samples dealt to nodes: steps stay what they are, resumes are exact, and each home block leaves the store once."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
import headrace
from children import results_of
from headrace.cache import Cache
from headrace.cache.transaction import block_name
from headrace.datasets.block_uses import BlockUses
from headrace.errors import ConfigError, StateError
from headrace.io import PreadReader
from headrace.loader import Balance, Dealing, Loader, Ranks, Reading

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


def loaders(run: headrace.Run, topology: tuple[int, int, int], **options: Any) -> list[Loader]:
    num_nodes, per_node, micro = topology
    size = num_nodes * per_node
    options = {"reading": Reading(num_threads=0), "dealing": DEALING, **options}
    ranks = [Ranks(rank, size, per_node=per_node) for rank in range(size)]
    return [Loader(run, micro_batch_size=micro, ranks=one, **options) for one in ranks]


def together(group: list[Loader], num_micro_steps: int | None = None) -> list[tuple[int, int, list[int]]]:
    """Feed all ranks side by side: (step, rank, positions) of each micro-batch."""
    found = []
    streams = [iter(loader) for loader in group]
    while num_micro_steps is None or num_micro_steps > 0:
        for rank, stream in enumerate(streams):
            step = group[rank].step
            batch = next(stream, None)
            if batch is None:
                return found
            found.append((step, rank, batch["sample_positions"].tolist()))
        num_micro_steps = None if num_micro_steps is None else num_micro_steps - 1
    return found


def by_step(found: list[tuple[int, int, list[int]]]) -> dict[int, list[int]]:
    steps: dict[int, list[int]] = {}
    for step, _, positions in found:
        steps.setdefault(step, []).extend(positions)
    return {step: sorted(positions) for step, positions in steps.items()}


@pytest.mark.parametrize("topology", [(2, 1, 3), (4, 2, 1), (3, 1, 2), (2, 2, 5), (1, 2, 4)])
def test_steps_keep_their_samples(prefix: str, topology: tuple[int, int, int]) -> None:
    run = windows(prefix, epochs=None, samples=250)
    found = together(loaders(run, topology))
    assert by_step(found) == {step: run.positions(step).tolist() for step in range(11)}
    # As many of each micro-batch as without dealing.
    plain = together(loaders(run, topology, dealing=None))
    assert [(step, rank, len(positions)) for step, rank, positions in found] == [
        (step, rank, len(positions)) for step, rank, positions in plain
    ]


def test_samples_are_read_where_their_blocks_are(prefix: str) -> None:
    run = windows(prefix, global_batch_size=64)
    group = loaders(run, (4, 1, 4))
    uses = BlockUses.of_run(run, block_bytes=BLOCK)
    is_home = [uses.homes(np.array(positions)) % 4 == rank for _, rank, positions in together(group) if len(positions)]
    undealt = [
        uses.homes(np.array(positions)) % 4 == rank
        for _, rank, positions in together(loaders(run, (4, 1, 4), dealing=None))
        if len(positions)
    ]
    assert np.concatenate(is_home).mean() > 0.85
    assert np.concatenate(undealt).mean() < 0.35
    figures = loaders(run, (4, 1, 4))[0].dealing_figures(5)
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
    seen: list[tuple[int, int, list[int]]] = []
    state: dict[str, Any] | None = None
    for topology, stop in life:
        group = loaders(run, (1, 2, 2), dealing=None) if topology is None else loaders(run, topology)
        for loader in group:
            if state is not None:
                loader.load_state_dict(state)
        seen += together(group, stop)
        states = [loader.state_dict() for loader in group]
        assert all(one == other for one, other in pairwise(states))
        state = json.loads(json.dumps(states[0]))
        assert len(json.dumps(state)) < 1024
    assert by_step(seen) == {step: run.positions(step).tolist() for step in range(5)}


def test_a_state_says_how_the_step_was_dealt(prefix: str) -> None:
    run = windows(prefix)
    group = loaders(run, (2, 2, 3))
    together(group, 1)
    state = group[0].state_dict()
    assert state["balanced_step"]["taken"] == [[24, 4, 3, 12, 2]]
    with pytest.raises(StateError, match="was dealt to nodes: pass the loader the same dealing"):
        Loader(run, micro_batch_size=3).load_state_dict(state)
    with pytest.raises(StateError, match="or dealt by other blocks"):
        loaders(run, (2, 2, 3), dealing=Dealing(block=2048))[0].load_state_dict(state)
    broken = json.loads(json.dumps(state))
    broken["balanced_step"]["taken"][0][4] = 3
    with pytest.raises(StateError, match="damaged"):
        group[0].load_state_dict(broken)
    together(group, 1)
    assert "balanced_step" not in group[0].state_dict()


def test_balance_acts_within_each_node(prefix: str) -> None:
    store = headrace.open(prefix)
    dataset = headrace.SFTDataset(store, headrace.datasets.Collation(), loss_mask_key=None)
    run = headrace.Run(dataset, global_batch_size=48, order=headrace.Order(seed=1), epochs=2)
    both = loaders(run, (2, 2, 3), balance=Balance())
    found = together(both)
    assert by_step(found) == {step: run.positions(step).tolist() for step in range(10)}
    dealt, balanced = loaders(run, (2, 2, 3)), loaders(run, (2, 2, 3), dealing=None, balance=Balance())
    foreign = [sum(one.num_foreign for one in group[0].dealing_figures(8)) for group in (both, dealt)]
    both[0].start_at(0, allow_repeats=True)
    foreign[0] = sum(one.num_foreign for one in both[0].dealing_figures(8))
    assert foreign[0] == foreign[1]
    waits = {
        name: np.mean([step.balanced.waiting for step in group[0].balance_figures(8)])
        for name, group in (("both", both), ("balanced", balanced))
    }
    plain = np.mean([step.unbalanced.waiting for step in balanced[0].balance_figures(8)])
    assert waits["balanced"] < waits["both"] < plain
    with pytest.raises(ConfigError, match="does not balance its steps"):
        dealt[0].balance_figures()
    with pytest.raises(ConfigError, match="does not deal its samples"):
        balanced[0].dealing_figures()
    # A state within such a step needs both.
    together(both, 1)
    state = both[0].state_dict()
    loaders(run, (2, 1, 4), balance=Balance())[0].load_state_dict(state)
    with pytest.raises(StateError, match="by other costs"):
        dealt[0].load_state_dict(state)


def test_what_is_refused(prefix: str, tmp_path: Path) -> None:
    run = windows(prefix)
    with pytest.raises(ConfigError, match="by is 'nodes'"):
        Dealing(by="nodes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected a Dealing"):
        Loader(run, micro_batch_size=4, dealing="blocks")  # type: ignore[arg-type]
    cache = Cache(tmp_path / "cache", limit="1MB", block=512)
    with pytest.raises(ConfigError, match=r"pass Dealing\(block=512\)"):
        Loader(windows(prefix, reader=cache.reader("pread")), micro_batch_size=4, dealing=DEALING)
    with pytest.raises(ConfigError, match=r"within step 0, .* with dealing"):
        loaders(run, (2, 1, 3))[0].start_at(5)


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
