"""What a loader promises around its batches: shapes, state, errors, memory."""

from __future__ import annotations

import gc
import itertools
import json
import random
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
import torch

import corpora
import headrace
import media_texts
import warm
from counts import PATIENCE_S
from headrace import Blend, ConfigError, Loader, MediaDataset, Metrics, Order, Run, StateError, WindowDataset
from headrace.loader import Ranks, Reading, ranks
from headrace.loader.memory import Blocks
from headrace.loader.reading import GIVES_WAY_S, MOST_THREADS, Pending, in_threads
from headrace.plan import Share

READINGS = [Reading(num_threads=0), Reading(num_threads=1), Reading(num_threads=3, prefetch=1), Reading(num_workers=2)]


@pytest.fixture
def run(corpus: list[corpora.Corpus]) -> Run:
    return Run(WindowDataset(corpus[0].store, seq_len=8, stride=3), global_batch_size=12, order=Order(seed=3))


@pytest.mark.parametrize("reading", READINGS, ids=["asked", "thread", "threads", "workers"])
def test_shapes_dtypes_and_positions(run: Run, reading: Reading) -> None:
    loader = Loader(run, micro_batch_size=4, ranks=Ranks(1, 3), reading=reading)
    first, second = itertools.islice(loader, 2)
    assert {name: (tuple(value.shape), value.dtype) for name, value in first.items()} == {
        "input_ids": ((4, 8), torch.int64),
        "labels": ((4, 8), torch.int64),
        "position_ids": ((4, 8), torch.int64),
        "sample_positions": ((4,), torch.int64),
    }
    for name, value in first.items():
        assert value.is_contiguous() == (name != "position_ids")
    with pytest.raises(RuntimeError, match="location"):
        first["position_ids"] += 1
    first["position_ids"][0] += 1
    assert second["position_ids"][0].tolist() == list(range(8)), "what is done to a batch changes no other"
    assert first["sample_positions"].tolist() == [4, 5, 6, 7]
    assert second["sample_positions"].tolist() == [16, 17, 18, 19]
    assert (loader.step, loader.position) == (2, 24)


def test_a_change_of_one_batch_spoils_no_gradient_of_another(run: Run) -> None:
    """Autograd keeps the ids of a batch; labels that are masked in place meanwhile are other tensors to it."""
    batches = list(itertools.islice(Loader(run, micro_batch_size=4, ranks=Ranks(0, 3), reading=Reading()), 3))
    weights = torch.ones(1 + max(int(batch["input_ids"].max()) for batch in batches), 2, requires_grad=True)
    losses = [torch.nn.functional.embedding(batch["input_ids"], weights).sum() for batch in batches]
    losses[1] += torch.nn.functional.embedding(batches[1]["position_ids"], weights).sum()
    batches[1]["labels"][:, :2] = -100
    batches[2]["input_ids"] += 1
    batches[2]["position_ids"][0] += 1
    losses[1].backward()
    assert weights.grad is not None
    assert weights.grad.sum() == 4 * batches[1]["input_ids"].numel()


@pytest.mark.parametrize("length", [1, 3, 40, 600, 601])
def test_borders_of_packs(tmp_path: Path, length: int) -> None:
    """They are found in one way where segments are many and short, in another where they are few and long."""
    corpora.write(tmp_path / "web", [np.arange(length)] * (10_000 // length))
    dataset = headrace.PackedSequenceDataset(
        headrace.open(tmp_path / "web"), headrace.Packing(seq_len=1200), border_labels="keep"
    )
    for batch in Loader(Run(dataset, global_batch_size=4, epochs=1), micro_batch_size=4):
        begins = np.flatnonzero(batch["position_ids"].numpy() == 0)
        assert batch["cu_seqlens"].tolist() == [*begins, batch["labels"].numel()]
        assert batch["max_seqlen"] == np.diff(batch["cu_seqlens"]).max()


def test_borders_of_positions_that_code_of_the_user_made(tmp_path: Path) -> None:
    """They are where the positions are 0, though the last position says otherwise."""
    corpora.write(tmp_path / "web", [np.arange(600)] * 4)
    packs = headrace.PackedSequenceDataset(headrace.open(tmp_path / "web"), headrace.Packing(seq_len=1200))

    def first_masked(sample: Any) -> Any:
        return {**sample, "position_ids": np.where(np.arange(1200) < 300, 0, np.arange(1200))}

    run = Run(headrace.MapDataset(packs, first_masked), global_batch_size=1, epochs=1)
    for batch in Loader(run, micro_batch_size=1, reading=Reading(num_threads=0)):
        assert batch["cu_seqlens"].tolist() == [*range(300), 1200]


@pytest.mark.parametrize("reading", READINGS, ids=["asked", "thread", "threads", "workers"])
@pytest.mark.parametrize("metrics", [None, Metrics()], ids=["unmeasured", "measured"])
def test_a_batch_is_gone_when_its_loop_lets_it_go(
    run: Run, metrics: Metrics | None, reading: Reading, tmp_path: Path
) -> None:
    """No stream keeps it, of tokens or of media, so that its memory is free before the loop asks for the next one."""
    media = MediaDataset.open(media_texts.shards(tmp_path / "shards", (40,)), **media_texts.TEXT)
    for dataset_run in (run, Run(media, global_batch_size=4)):
        loader = Loader(dataset_run, micro_batch_size=2, uneven="allow", reading=reading, metrics=metrics)
        for batch in itertools.islice(loader, 8):
            held = weakref.ref(batch["sample_positions"])
            del batch
            assert held() is None


def test_memory_in_the_hands_of_threads_is_not_lent_again() -> None:
    """They pass tensors and views of it on to each other; who has it last does not matter, nor who looks meanwhile."""
    blocks, hands = Blocks(), SimpleQueue[Any]()
    wrong: list[int] = []

    def hold(seed: int) -> None:
        draw = random.Random(seed)
        kept: deque[tuple[int, Any]] = deque()
        while (found := hands.get()) is not None:
            number, held = found
            held = [held, held[1:], held[-1:], torch.as_tensor(held)[:], np.asarray(held)][draw.randrange(5)]
            kept.append((number, held))
            del found, held
            if len(kept) > draw.randrange(6):
                number, held = kept.popleft()
                if not (torch.as_tensor(held) == number).all():
                    wrong.append(number)
                if draw.random() < 0.3:
                    hands.put((number, held))
                del held

    threads = [threading.Thread(target=hold, args=(seed,)) for seed in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        addresses = set()
        for number in range(2_000):
            # On a busy machine they come late, and would hold all of it.
            while hands.qsize() > 8 and any(thread.is_alive() for thread in threads):
                time.sleep(0)
            block = blocks.take(392)
            x, y = block[:384].view(np.int64).reshape(3, 16), block[384:387]
            addresses.add(x.ctypes.data)
            x[:] = y[:] = number % 200
            hands.put((number % 200, torch.from_numpy(x) if number % 2 else x))
            hands.put((number % 200, y))
            del block, x, y
    finally:
        for _ in threads:
            hands.put(None)
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert not wrong
    assert len(addresses) < 2_000, "memory is used again"


def test_another_run_is_refused_by_field(run: Run, corpus: list[corpora.Corpus], tmp_path: Path) -> None:
    loader = Loader(run, micro_batch_size=4)
    next(iter(loader))
    loader.save_recipe(tmp_path / "recipe.json")
    here, other = (WindowDataset(one.store, seq_len=8, stride=3) for one in corpus[:2])
    for data, changed, named in (
        (here, {"order": Order(seed=4)}, r"order\.seed.*4.*3"),
        (here, {"global_batch_size": 24}, r"batch\.pieces\[0\]\[1\].*24.*12"),
        (WindowDataset(corpus[0].store, seq_len=9, stride=3), {}, "window_tokens.*9.*8"),
        (other, {}, "store:"),
        (Blend({"a": here}, weights={"a": 1}), {}, r"blend\.children"),
    ):
        resumed = Loader(
            Run(data, **{"global_batch_size": 12, "order": Order(seed=3), **changed}),  # type: ignore[arg-type]
            micro_batch_size=4,
        )
        with pytest.raises(StateError, match=named):
            resumed.load_state_dict(loader.state_dict(), recipe=tmp_path / "recipe.json")
        assert resumed.position == 0, "nothing has changed"
    resumed = Loader(run, micro_batch_size=3)
    resumed.load_state_dict(loader.state_dict(), recipe=tmp_path / "recipe.json")
    assert resumed.position == 4
    with pytest.raises(StateError, match=r"nothing\.json"):
        resumed.load_state_dict(loader.state_dict(), recipe=tmp_path / "nothing.json")


def test_a_new_iterator_goes_on_and_the_one_before_is_outdated(run: Run) -> None:
    loader = Loader(run, micro_batch_size=6)
    old = iter(loader)
    found = next(old)["sample_positions"].tolist()
    new = iter(loader)
    found += next(new)["sample_positions"].tolist()
    assert found == list(range(12))
    with pytest.raises(StateError, match="outdated"):
        next(old)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match="outdated"):
        next(new)
    assert repr(loader) == "<Loader: rank 0 of 1, step 1, <Run: 1 sources, endless>>"


@pytest.mark.parametrize("reading", READINGS, ids=["asked", "thread", "threads", "workers"])
def test_a_failing_read_reaches_the_training_loop(run: Run, reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    if reading.num_workers:  # others would not have the fault
        reading = msgspec.structs.replace(reading, start_method="fork")
    loader = Loader(run, micro_batch_size=12, reading=reading)
    gather = type(run.datasets[0].store).gather  # type: ignore[attr-defined]
    calls = itertools.count()

    def failing(*arguments: Any) -> Any:
        if next(calls) == 2:
            raise OSError("the disk is gone")
        return gather(*arguments)

    monkeypatch.setattr(type(run.datasets[0].store), "gather", failing)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="gone"):
        list(itertools.islice(loader, 10_000))
    assert loader.position % 12 == 0
    before = loader.position
    monkeypatch.undo()
    assert next(iter(loader))["sample_positions"].tolist()[0] == before, "and can go on from there"


def test_the_next_span_is_read_while_the_loop_has_a_batch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even at prefetch=1: the thread needs no further call of the training loop."""
    gather = type(run.datasets[0].store).gather  # type: ignore[attr-defined]
    calls: list[int] = []

    def counting(*arguments: Any) -> Any:
        calls.append(1)
        return gather(*arguments)

    monkeypatch.setattr(type(run.datasets[0].store), "gather", counting)  # type: ignore[attr-defined]
    batches = iter(Loader(run, micro_batch_size=12, reading=Reading(num_threads=1, prefetch=1)))
    next(batches)
    deadline = time.monotonic() + PATIENCE_S
    while len(calls) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(calls) == 2, "one span delivered, one read ahead, and no more than that"


def test_threads_end_with_their_iterator(run: Run) -> None:
    for _ in range(5):
        batches = iter(Loader(run, micro_batch_size=4, reading=Reading(num_threads=2)))
        next(batches)
        del batches
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-read"]


@pytest.mark.parametrize(
    ("bad", "samples", "named"),
    [
        ({"micro_batch_size": 0}, None, "micro_batch_size"),
        ({"uneven": "ignore"}, None, "uneven"),
        ({"uneven": "refuse", "ranks": Ranks(0, 5)}, None, r"\[12\].*5.*1"),
        ({"uneven": "refuse", "micro_batch_size": 4}, 30, r"\[6\]"),
    ],
)
def test_bad_options_are_refused(run: Run, bad: dict[str, Any], samples: int | None, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Loader(Run(run.data, global_batch_size=12, samples=samples), **{"micro_batch_size": 1, **bad})


def test_even_steps_are_not_refused(run: Run) -> None:
    Loader(run, micro_batch_size=2, ranks=Ranks(0, 3), uneven="refuse")
    whole = Run(run.data, global_batch_size=12, samples=30, drop_last=True)
    assert whole.length == 24
    assert len(list(Loader(whole, micro_batch_size=4, uneven="refuse"))) == 6


def test_starting_at_a_position_is_going_on_from_there(run: Run) -> None:
    """Without a state, and on any ranks: what Megatron's ``consumed_samples`` says."""
    loader = Loader(run, micro_batch_size=4)
    outdated = iter(loader)
    next(outdated)
    loader.start_at(29, allow_repeats=True)
    assert (loader.position, loader.step) == (29, 2)
    found = [batch["sample_positions"].tolist() for batch in itertools.islice(loader, 3)]
    assert found == [[29, 30, 31, 32], [33, 34, 35], [36, 37, 38, 39]]
    with pytest.raises(StateError, match="outdated"):
        next(outdated)
    with pytest.raises(ConfigError, match=r"position.*-1"):
        loader.start_at(-1)
    ended = Loader(Run(run.data, global_batch_size=12, samples=50), micro_batch_size=4, restart=True)
    ended.start_at(50)
    assert list(ended) == []
    assert next(iter(ended))["sample_positions"].tolist() == [0, 1, 2, 3], "restart: once at the position, then anew"
    with pytest.raises(ConfigError, match=r"position.*51.*50"):
        ended.start_at(51)
    assert ended.position == 4, "nothing has changed"


def test_reading_ahead_by_bytes(tmp_path: Path) -> None:
    """The same batches, with many reads under way, and the first one does not wait for all of them to be sent."""
    corpus = corpora.make(tmp_path, 3, 400, max_length=2000)
    run = Run(WindowDataset(corpus.store, seq_len=64), global_batch_size=8, samples=4096)
    wanted = [batch["input_ids"] for batch in Loader(run, micro_batch_size=8)]
    reading = Reading(ahead="1GB")
    loader = Loader(run, micro_batch_size=8, reading=reading)
    found = [batch["input_ids"] for batch in loader]
    assert all((one == other).all() for one, other in zip(found, wanted, strict=True))
    for options in ({"num_workers": 2}, {"prefetch": 2}, {"num_threads": 0}):
        with pytest.raises(ConfigError, match="prefetch"):
            Reading(ahead="1GB", **options)
    with pytest.raises(ConfigError, match="number"):
        Reading(ahead="lots")


def test_tasks_are_sent_ahead_of_their_answers() -> None:
    """Up to as many as `ahead` allows, but an answer that is there does not wait for that."""
    begun: list[int] = []

    def work() -> Iterator[int]:
        for number in range(100):
            begun.append(number)
            yield number

    reading = Reading(ahead=128 << 20)  # 14 spans
    reads = [lambda number: 2 * number] * 3
    stream = in_threads(reads, work(), reading, str)
    assert next(stream) == (0, 0)
    assert len(begun) <= 15
    rest = list(stream)
    assert rest == [(number, 2 * number) for number in range(1, 100)]


def test_threads_are_started_while_the_loop_waits_for_a_store() -> None:
    """Answers come in order all the same."""
    threads = set()
    barrier = threading.Barrier(5)

    def read(number: int) -> int:
        threads.add(threading.get_ident())
        if number >= 10:
            time.sleep(0.01)
            barrier.wait(PATIENCE_S)  # until five of them wait, which one thread could not
        else:
            time.sleep(0.02)
        if number == 19:
            raise ValueError("a fault of task 19")
        return -number

    stream = in_threads([read], iter(range(20)), Reading(ahead=1 << 30), str)
    assert list(itertools.islice(stream, 19)) == [(number, -number) for number in range(19)]
    with pytest.raises(ValueError, match=r"fault.*19"):
        next(stream)
    assert 5 <= len(threads) <= MOST_THREADS


def test_threads_that_work_get_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the loop waits: they would only slow each other down."""
    threads = set()

    def read(number: int) -> int:
        threads.add(threading.get_ident())
        time.sleep(0.02)
        return number

    monkeypatch.setattr("headrace.loader.reading.thread_time", time.monotonic)  # as if they worked
    stream = in_threads([read] * 2, iter(range(20)), Reading(ahead=1 << 28), str)
    assert list(stream) == [(number, number) for number in range(20)]
    assert len(threads) == 2


def test_tasks_that_never_wait_are_read_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.loader.reading.thread_time", time.monotonic)  # the system may stop it
    threads = set()

    def read(number: int) -> int:
        threads.add(threading.get_ident())
        return number

    stream = in_threads([read], iter(range(500)), Reading(ahead=1 << 28), str)
    assert list(stream) == [(number, number) for number in range(500)]
    assert len(threads) == 1


def test_nothing_is_asked_for_before_the_first_result() -> None:
    """The first batch had better not share the way to the store with those that nobody waits for yet."""
    is_waiting, are_sent = threading.Event(), threading.Event()
    before = set(threading.enumerate())
    beside: list[str] = []

    def read(number: int) -> int:
        if number == 0:
            is_waiting.set()
            assert are_sent.wait(PATIENCE_S)
            time.sleep(0.05)
            beside.extend(one.name for one in {*threading.enumerate()} - before)
        return number

    def numbers() -> Iterator[int]:
        for number in range(4):
            yield number
            assert is_waiting.wait(PATIENCE_S)
        are_sent.set()

    assert list(in_threads([read], numbers(), Reading(ahead=1 << 28), str)) == [(number, number) for number in range(4)]
    assert beside == ["headrace-read"]


def num_ready(sent: deque[Any]) -> int:
    return sum(one.done() for one in sent)


def test_a_loop_with_a_batch_in_hand_lets_the_thread_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on when the thread has read what it was sent."""
    monkeypatch.setattr("headrace.loader.reading.GIVES_WAY_S", 60.0)
    monkeypatch.setattr("headrace.loader.reading._APART", 0)
    monkeypatch.setattr("headrace.loader.reading._LEAST_STEP_S", 0.0)
    sent: deque[Any] = deque()
    stream = in_threads([str], iter(range(9)), Reading(prefetch=2), str, sent)
    for _ in range(4):
        next(stream)
        # The answers are there when the loop asks for the next one.
        while num_ready(sent) < len(sent):
            time.sleep(0.001)
    for _ in range(3):
        next(stream)
        assert num_ready(sent) == len(sent) == 2, "all was read meanwhile"


READS = threading.Event()


class ClockedPending(Pending[Any, Any]):
    """Tasks whose waits take as long as they may, by a clock of the test, or a tenth of that if there is a result."""

    now: ClassVar[float] = 0.0
    waited_at: ClassVar[list[float]] = []

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if timeout != GIVES_WAY_S:
            return super().exception(timeout)
        ClockedPending.waited_at.append(ClockedPending.now)
        ClockedPending.now += GIVES_WAY_S / 10 if READS.is_set() else GIVES_WAY_S
        return super().exception(None if READS.is_set() else 0.0)


@pytest.mark.parametrize(("reads", "step_s", "apart_s"), [(True, 0.007, 0.03), (False, 0.03, 1.5)])
def test_a_loop_waits_for_its_thread_for_a_bounded_share_of_the_time(
    reads: bool, step_s: float, apart_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of the time where the thread reads meanwhile, and a fiftieth where it waits for its disk."""
    monkeypatch.setattr("headrace.loader.reading.Pending", ClockedPending)
    monkeypatch.setattr("headrace.loader.reading.monotonic", lambda: ClockedPending.now)
    monkeypatch.setattr(ClockedPending, "waited_at", [])
    READS.set()

    def read(number: int) -> int:
        READS.wait()
        return number

    sent: deque[Any] = deque()
    stream = in_threads([read], iter(range(400)), Reading(prefetch=200), str, sent)
    taken = [next(stream)]
    while len(sent) < 200:
        taken.append(next(stream))
    while num_ready(sent) < 200:
        time.sleep(0.001)
    if not reads:
        READS.clear()
    for _ in range(150):
        ClockedPending.now += step_s
        taken.append(next(stream))
    READS.set()
    waits = ClockedPending.waited_at
    gaps = [after - before for before, after in itertools.pairwise(waits)]
    assert gaps, "there were several waits"
    assert all(apart_s - 1e-6 < gap < apart_s + 0.05 for gap in gaps), gaps
    assert [*taken, *stream] == [(number, number) for number in range(400)]


# The data-parallel rank, from wherever it is known, and the agreement of all processes on one run.


WORKER = Path(__file__).parent / "agreeing.py"


def test_torchruns_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert Ranks.detect() == Ranks(0, 1)
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(ConfigError, match=r"RANK.*WORLD_SIZE"):
        Ranks.detect()
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert Ranks.detect() == Ranks(3, 8)
    with pytest.raises(ConfigError, match="model_parallel_size=2"):
        Ranks.detect(model_parallel_size=2)


@pytest.mark.parametrize(("variable", "value"), [("RANK", "first"), ("RANK", ""), ("WORLD_SIZE", "8.0")])
def test_a_variable_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=rf"{variable}"):
        Ranks.detect()


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0)])
def test_impossible_ranks_are_refused(rank: int, world_size: int) -> None:
    with pytest.raises(ConfigError, match=r"ranks.*0"):
        Ranks(rank, world_size)


def processes(process: warm.Warm, tmp_path: Path, num: int, case: str) -> list[warm.Ended]:
    """``num`` processes of one gloo group over a small store."""
    corpora.make(tmp_path / "store", 5, 50)
    command = [str(WORKER), str(tmp_path / "store" / "shard-0"), str(tmp_path / "meeting")]
    return warm.together(process, [[*command, str(rank), str(num), case] for rank in range(num)], tmp_path, PATIENCE_S)


def test_peers_of_a_data_parallel_rank_get_the_same_bytes(tmp_path: Path, warm_torch: warm.Warm) -> None:
    """A 2 x 2 mesh of data- and tensor-parallel ranks, and the group of its data-parallel dimension."""
    ended = processes(warm_torch, tmp_path, 4, "mesh")
    assert [code for code, _, _ in ended] == [0] * 4, ended
    said = [json.loads(output) for _, output, _ in ended]
    assert [one["mesh"] for one in said] == [one["group"] for one in said] == [[0, 2], [0, 2], [1, 2], [1, 2]]
    assert said[0]["rows"] == said[1]["rows"]
    assert said[2]["rows"] == said[3]["rows"]
    assert said[0]["rows"] != said[2]["rows"]
    assert said[0]["flat"] == [0, 4]
    assert "name the data-parallel ones" in said[0]["unnamed"]
    assert "no dimension" in said[0]["unknown"]


def test_all_ranks_say_the_same_of_what_they_waited(tmp_path: Path, warm_torch: warm.Warm) -> None:
    ended = processes(warm_torch, tmp_path, 2, "verdict")
    assert [code for code, _, _ in ended] == [0] * 2, ended
    one, other = (json.loads(output)["verdict"] for _, output, _ in ended)
    assert one == other
    assert "and most by rank " in one


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("recipe", "recipe.order.seed: 0 in [0]; 1 in [1]"),
        ("generation", "generation of the file: 4 in [0]; 5 in [1]"),
        ("position", "position: 0 in [0]; 8 in [1]"),
        ("micro-batch", "micro_batch_size: 2 in [0]; 3 in [1]"),
        ("world size", "world_size: 2 in [0]; 3 in [1]"),
        ("samples", "length (samples, epochs, drop_last): 240 in [0]; 160 in [1]"),
        ("drop_last", "length (samples, epochs, drop_last): 245 in [0]; 240 in [1]"),
        ("schedule", "recipe.batch.pieces: [[0,8],[20,8]] in [0]; [[0,8],[20,16]] in [1]"),
        ("edit", 'edits: [] in [0]; [[20,"skip"]] in [1]'),
        ("lengths", 'balance.lengths.: "'),
        ("cost", "assignment of the step: "),
        ("dealing", "dealing.block: 4096 in [0]; 8192 in [1]"),
        ("restart", "restart: false in [0]; true in [1]"),
        ("trainer's epochs", "epochs of the loader: 4 in [0]; 2 in [1]"),
        ("same rank", "have the data-parallel ranks [0, 0] of 2"),
    ],
)
def test_a_mismatch_between_processes_is_refused(
    tmp_path: Path, warm_torch: warm.Warm, case: str, message: str
) -> None:
    for code, _, errors in processes(warm_torch, tmp_path, 2, case):
        assert code != 0
        assert message in errors, errors


def test_ranks_may_read_differently(tmp_path: Path, warm_torch: warm.Warm) -> None:
    ended = processes(warm_torch, tmp_path, 2, "reading")
    assert [code for code, _, _ in ended] == [0] * 2, ended


def test_of_many_processes_and_large_recipes_a_part_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {str(source): {"words": "x" * 1_000} for source in range(99)}
    recipe: dict[str, Any] = {"order": {"seed": 1}, "dataset": sources}
    other = {**recipe, "dataset": {**sources, "98": {"words": "y"}}}
    hashes = [ranks._AGREED.pack(bytes([rank > 9]) * 24, rank) for rank in range(30)]
    texts = [ranks.told({"recipe": other if rank > 9 else recipe}) for rank in range(30)]
    assert len(texts[0]) < 8_000
    monkeypatch.setattr(ranks, "is_alone", lambda: False)
    monkeypatch.setattr(ranks, "all_gathered", lambda _: hashes)
    monkeypatch.setattr(ranks, "all_gathered_texts", lambda _: texts)
    with pytest.raises(StateError) as found:
        ranks.agree(Share(0, 30, 1), lambda: {"recipe": recipe})
    [line] = [one for one in str(found.value).splitlines() if one.startswith("  ")]
    assert line.startswith('  recipe.dataset.98: "')
    assert line.endswith(" in [10, 11, 12, 13, 14, 15, 16, 17, 18, 19,...")


def test_the_process_group_gives_the_rank(tmp_path: Path, warm_torch: warm.Warm) -> None:
    ended = processes(warm_torch, tmp_path, 2, "detect")
    assert [code for code, _, _ in ended] == [0] * 2, ended
    said = [json.loads(output) for _, output, _ in ended]
    assert [one["detected"] for one in said] == [[0, 2], [1, 2]]
    assert ["contradict the process group" in one["contradiction"] for one in said] == [True, True]
    assert said[0]["rows"] != said[1]["rows"]
