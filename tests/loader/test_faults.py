"""Samples that cannot be made, as a loader tells of them: when they are delivered, once, with position and step."""

from __future__ import annotations

from collections import Counter, deque
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import corpora
import framed_encoders
from counts import cases
from headrace import Loader, MapDataset, MediaDataset, Order, Run, WindowDataset
from headrace.datasets.encoded import EncodedDataset, Framed, FramedRun
from headrace.encoders import Cooker, ErrorPolicy, Fault, TaskEncoder, stateless
from headrace.errors import ConfigError, DecodeError, InputError, OutputError, SampleError
from headrace.loader import Ranks, Reading, merge_state_dicts, read_fault_report
from headrace.samples.media import SampleDecoder, TextSample
from headrace.stores.tar.writer import TarWriter
from loader.jobs import Job

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

COUNT, BROKEN = 18, (3, 4, 11)
SUBSTITUTE = ErrorPolicy(on_error="substitute")
HERE, AHEAD, WORKERS = Reading(num_threads=0), Reading(num_threads=2), Reading(num_workers=2)


class Plain(TaskEncoder[Any, Any, Any, Any]):
    """One output of each sample; nothing is drawn."""

    cookers = (Cooker(framed_encoders.cook),)

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if sample["n"] == 8:
            raise ValueError("eight")
        return sample


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return framed_encoders.numbers(tmp_path_factory.mktemp("faults") / "a", COUNT, broken=BROKEN)


def run_of(place: Path, errors: ErrorPolicy = SUBSTITUTE, **options: Any) -> Run:
    dataset = EncodedDataset.open(place, Plain(), errors=errors)
    given = {"global_batch_size": 4, "order": Order(kind="full", seed=5), "epochs": 2}
    return Run(dataset, **{**given, **options})


def framed_of(place: Path) -> FramedRun:
    data = Framed(MediaDataset.open(place), Plain(), frame_positions=3, errors=SUBSTITUTE)
    return FramedRun(data, global_batch_size=4, order=Order(kind="full", seed=5), epochs=2)


def due_in(run: Run) -> list[int]:
    """Which sample is due at each position."""
    return run.lookup(np.arange(run.length, dtype=np.int64)).indices.tolist()  # type: ignore[no-any-return]


def stood_in(run: Run, batches: list[Any]) -> dict[int, int]:
    """Position -> the sample that was due, of those for which another one came, by the keys of the samples."""
    due = due_in(run)
    came = [
        (p, int(n)) for batch in batches for p, n in zip(batch["sample_positions"].tolist(), batch["n"], strict=True)
    ]
    return {position: due[position] for position, n in came if due[position] != n}


@pytest.mark.parametrize("reading", [HERE, AHEAD, WORKERS], ids=["here", "threads", "workers"])
def test_faults_come_with_the_batches_that_they_belong_to(place: Path, reading: Reading) -> None:
    run = run_of(place)
    loader = Loader(run, micro_batch_size=2, reading=reading)
    batches = []
    for batch in loader:
        batches.append(batch)
        wanted = stood_in(run, batches)
        first = {one.position: one for one in loader.faults.faults if one.attempt == 0}
        # What is read ahead is not told of before its turn.
        assert {position: one.index for position, one in first.items()} == wanted
        assert all(one.step == position // 4 for position, one in first.items() if position is not None)
        ledger = loader.ledger()
        delivered = sum(len(batch["n"]) for batch in batches)
        assert (ledger.delivered, ledger.num_substituted) == (delivered, len(wanted))
    loader.close()
    assert ledger.delivered == run.length == 2 * COUNT
    assert ledger.substituted == {"DecodeError in read": 6, "ValueError in encode_sample": 2}
    again = Counter((one.position, one.attempt) for one in loader.faults.faults)
    assert max(again.values()) == 1
    fault = next(one for one in loader.faults.faults if one.index == 3)
    assert (fault.shard, fault.key, fault.hook) == ("000.tar", "0003", "read")


@pytest.mark.parametrize("reading", [HERE, WORKERS], ids=["here", "workers"])
def test_a_fault_that_ends_the_run_is_told_with_position_and_step(
    place: Path, reading: Reading, tmp_path: Path
) -> None:
    run = run_of(place, ErrorPolicy())
    loader = Loader(run, micro_batch_size=2, reading=reading, fault_report=tmp_path / "faults.jsonl")
    with pytest.raises((DecodeError, ValueError)) as caught:
        list(loader)
    loader.close()
    (fault,) = loader.faults.faults
    assert fault.position is not None
    assert due_in(run)[fault.position] == fault.index
    assert (fault.step, fault.index in (*BROKEN, 8)) == (fault.position // 4, True)
    assert f"at position {fault.position:,} of the run, step {fault.step:,}" in caught.value.__notes__
    assert read_fault_report([tmp_path / "faults.jsonl"]) == [fault]
    assert loader.ledger().num_substituted == 0


def test_a_tolerance_that_is_used_up_tells_of_all_that_failed(place: Path) -> None:
    run = run_of(place, ErrorPolicy(on_error="substitute", tolerance=1))
    loader = Loader(run, micro_batch_size=2, reading=HERE)
    with pytest.raises((SampleError, ValueError), match=r"1.*failed"):
        list(loader)
    assert loader.faults.total == 1


Leg = tuple[int, int, Reading, int, int]


@st.composite
def legs(draw: st.DrawFn) -> list[Leg]:
    """Ranks, micro-batch, readers, micro-steps, and micro-steps that are lost with the job."""
    readings = st.sampled_from([HERE, HERE, AHEAD])
    leg = st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 2]), readings, st.integers(0, 5), st.integers(0, 3))
    return draw(st.lists(leg, max_size=4))


@settings(max_examples=cases(12, 120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chain=legs(), is_framed=st.booleans())
def test_reports_of_a_chain_of_jobs_are_those_of_one(
    place: Path, tmp_path_factory: pytest.TempPathFactory, chain: list[Leg], is_framed: bool
) -> None:
    folder = tmp_path_factory.mktemp("reports")
    run: Any = framed_of(place) if is_framed else run_of(place)
    whole = Loader(run, micro_batch_size=2, reading=HERE, fault_report=folder / "whole")
    assert sum(1 for _ in whole)
    wanted = read_fault_report([folder / "whole"])
    assert len(wanted) >= 8
    state: Any = None
    for world_size, micro, reading, steps, lost in [*chain, (1, 2, HERE, 10**6, 0)]:
        options: Any = {"reading": HERE if is_framed else reading, "fault_report": folder / "part-{rank}"}
        states = []
        for loader in Job(run, world_size, micro, state, **options).loaders:
            batches = iter(loader)
            deque(islice(batches, steps), 0)
            states.append(loader.state_dict())
            deque(islice(batches, lost), 0)
            loader.close()
        state = merge_state_dicts(states)
    found = read_fault_report(sorted(folder.glob("part-*")))
    assert [one for one in found if one.step is None] == []
    assert signs(found) == signs(wanted)


def signs(faults: list[Fault]) -> list[Any]:
    return [(one.position, one.attempt, one.index, one.shard, one.key, one.kind) for one in faults]


def test_reports_are_looked_at(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "faults.jsonl"
    list(Loader(run_of(place), micro_batch_size=2, reading=HERE, fault_report=path))
    wanted = path.read_bytes()
    # A kill has cut the last line short.
    path.write_bytes(wanted[:-9])
    assert read_fault_report([path]) == read_fault_report([path, path])
    assert len(read_fault_report([path])) == wanted.count(b"\n") - 1
    list(Loader(run_of(place), micro_batch_size=2, reading=HERE, fault_report=path))
    assert path.read_bytes() == wanted
    path.write_text('{"a": 1}\n')
    with pytest.raises(InputError, match=r"faults\.jsonl.*1"):
        Loader(run_of(place), micro_batch_size=2, fault_report=path)
    with pytest.raises(InputError, match="cannot"):
        read_fault_report([tmp_path / "none"])
    with pytest.raises(ConfigError, match=r"2.*fault_report.*'faults-\{rank\}\.jsonl'"):
        Loader(run_of(place), micro_batch_size=2, ranks=Ranks(0, 2), fault_report=path)
    loader = Loader(run_of(place), micro_batch_size=2, reading=HERE, fault_report=tmp_path / "no" / "folder")
    with pytest.raises(OutputError, match="written"):
        list(loader)


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("notes") / "n.tar"
    with TarWriter(path) as tar:
        for number in range(20):
            tar.add(f"{number:04d}", {"txt": b"note %d" % number if number != 9 else b"\xff"})
    return path


def text(path: Path, **options: Any) -> MediaDataset:
    return MediaDataset.open(path, sample_type=TextSample, field_map={"text": "txt"}, **options)


def fails(sample: Any) -> Any:
    if sample.text == "note 5":
        raise KeyError("no such label")
    return sample


def finds_nothing(sample: Any) -> Any:
    next(word for word in sample.text.split() if word != "5")
    return next(iter([])) if sample.text == "note 5" else sample


def leaves_out(sample: Any) -> Any:
    return None if sample.text == "note 5" else sample


class Turned(SampleDecoder):
    """A decoder of the user's, with a mistake that no sample is to blame for."""

    def __call__(self, sample: Any) -> Any:
        return {**sample, "txt": sample["txt"].decode().missing if sample["__key__"] == "0005" else "a"}


def raised(data: Any, reading: Reading, **options: Any) -> Exception:
    given = {"global_batch_size": 4, "epochs": 1, "order": Order(kind="none"), **options}
    with pytest.raises(Exception) as caught:  # noqa: PT011 -- of any type
        list(Loader(Run(data, **given), micro_batch_size=2, reading=reading))
    return caught.value


@pytest.mark.parametrize("reading", [HERE, AHEAD, WORKERS], ids=["here", "threads", "workers"])
def test_errors_of_the_users_code_name_sample_position_and_step(notes: Path, reading: Reading) -> None:
    where = "at position 5 of the run, step 1"
    for function, kind in ((fails, KeyError), (finds_nothing, RuntimeError)):
        error = raised(MapDataset(text(notes), function), reading)
        assert type(error) is kind
        assert error.__notes__[:2] == [f"in {__name__}.{function.__name__}: sample '0005' of n.tar", where]
    error = raised(MapDataset(text(notes), leaves_out), reading)
    assert isinstance(error, ConfigError)
    assert "leaves_out returned None for sample '0005' of n.tar: MapDataset has as many samples" in str(error)
    assert error.__notes__[0] == where
    error = raised(text(notes, decoder=Turned()), reading)
    assert isinstance(error, AttributeError)
    assert error.__notes__[:2] == [f"while making sample 5 of {notes}: shard n.tar, key '0005'", where]
    # A part that cannot be decoded.
    error = raised(text(notes), reading)
    assert isinstance(error, DecodeError)
    assert "n.tar: key '0009': part 'txt'" in str(error)
    assert error.__notes__[0] == "at position 9 of the run, step 2"


@pytest.mark.parametrize("reading", [HERE, AHEAD, WORKERS], ids=["here", "threads", "workers"])
def test_errors_of_the_users_code_in_windows(corpus: list[corpora.Corpus], reading: Reading) -> None:
    windows = WindowDataset(corpus[0].store, seq_len=8)
    wanted = windows[5]["input_ids"].tolist()

    def spoiled(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["input_ids"].tolist() == wanted:
            raise ZeroDivisionError("five")
        return sample

    error = raised(MapDataset(windows, spoiled), reading, epochs=None, samples=40)
    assert isinstance(error, ZeroDivisionError)
    assert error.__notes__[0].startswith(
        f"in {__name__}.test_errors_of_the_users_code_in_windows.<locals>.spoiled: doc"
    )
    assert error.__notes__[1] == "at position 5 of the run, step 1"


@pytest.mark.parametrize("reading", [HERE, WORKERS], ids=["here", "workers"])
def test_samples_of_a_plain_dataset_are_replaced(notes: Path, reading: Reading, tmp_path: Path) -> None:
    seen: list[Fault] = []
    policy = ErrorPolicy(on_error="substitute", on_fault=lambda error, fault: seen.append(fault))
    data = text(notes, errors=policy)
    run = Run(data, global_batch_size=4, epochs=2)
    loader = Loader(run, micro_batch_size=2, reading=reading, fault_report=tmp_path / "faults.jsonl")
    keys = {
        position: key
        for batch in loader
        for position, key in zip(batch["sample_positions"].tolist(), batch["__key__"], strict=True)
    }
    loader.close()
    differ = [position for position, number in enumerate(due_in(run)) if keys[position] != f"{number:04d}"]
    assert [due_in(run)[position] for position in differ] == [9, 9]
    assert loader.ledger().substituted == {"DecodeError in read": 2}
    assert [(one.position, one.key, one.shard) for one in read_fault_report([tmp_path / "faults.jsonl"])] == [
        (position, "0009", "n.tar") for position in differ
    ]
    assert reading.num_workers or [one.index for one in seen] == [9, 9]
    # It is part of the recipe; without it nothing has changed.
    assert data.fingerprint != text(notes).fingerprint == text(notes, errors=ErrorPolicy()).fingerprint
    # A task encoder around it does the same, unless it is told otherwise.
    assert EncodedDataset(data, TaskEncoder()).errors is policy
    with pytest.raises(ConfigError, match="ErrorPolicy"):
        text(notes, errors="substitute")
