"""Every document leads back to its line: against a plain model; and a table that is not complete does not open."""

from __future__ import annotations

import contextlib
import os
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import faults
from counts import cases
from headrace.errors import ConfigError, HeadraceError, OutputError, StoreError
from headrace.io import file_sum
from headrace.stores import Provenance, ProvenanceWriter, provenance as provenance_files
from headrace.stores.provenance import MAX_REASONS

REASONS = ["blank", "bad", "min_chars", "filter:not English", "duplicate"]


class Model(NamedTuple):
    """What a run met: spans of lines, each line a document ("") or the reason why it is none; and the order."""

    spans: list[tuple[int, list[str]]]
    order: list[int] | None
    ids: list[str] | None

    def places(self) -> list[tuple[int, int]]:
        """File and line of each document, in the order of the store."""
        found = []
        reached: Counter[int] = Counter()
        for file, lines in self.spans:
            found += [(file, reached[file] + line) for line, reason in enumerate(lines) if not reason]
            reached[file] += len(lines)
        return found if self.order is None else [found[ordinal] for ordinal in self.order]

    def names(self) -> list[str]:
        """The id of each document, in the order of the store."""
        ids = self.ids or []
        return ids if self.order is None else [ids[ordinal] for ordinal in self.order]

    def open(self, folder: Path) -> ProvenanceWriter:
        return ProvenanceWriter(folder, with_order=self.order is not None, with_ids=self.ids is not None)

    def steps(self) -> list[Any]:
        """The calls that write it, a step each."""
        steps: list[Any] = []
        reached: Counter[int] = Counter()
        first = 0
        for file, lines in self.spans:
            skipped = [line for line, reason in enumerate(lines) if reason]
            count = len(lines) - len(skipped)
            reasons = [reason for reason in lines if reason]
            span = (first, count, file, reached[file], len(lines), np.array(skipped, np.int64), reasons)
            ids = None if self.ids is None else self.ids[first : first + count]
            steps.append(lambda writer, span=span, ids=ids: (writer.add_span(*span), ids and writer.add_ids(ids)))
            reached[file] += len(lines)
            first += count
        for at in range(0, len(self.order or ()), 3):
            part = np.array(self.order[at : at + 3], np.int64)
            steps.append(lambda writer, part=part: writer.add_order(part))
        return steps

    def write(self, folder: Path) -> tuple[Any, ...]:
        with self.open(folder) as writer:
            for step in self.steps():
                step(writer)
            assert writer.finish() == writer.finish()
            return writer.finish()


@st.composite
def models(draw: st.DrawFn) -> Model:
    line = st.sampled_from(["", "", "", *REASONS])
    spans = draw(st.lists(st.tuples(st.integers(0, 3), st.lists(line, max_size=12)), max_size=8))
    spans.sort(key=lambda span: span[0])
    count = sum(not reason for _, lines in spans for reason in lines)
    order = draw(st.none() | st.permutations(range(count)))
    ids = draw(st.none() | st.lists(st.text(max_size=5), min_size=count, max_size=count))
    return Model(spans, order, ids)


SMALL = Model([(0, ["", "blank", "bad", ""]), (0, []), (2, ["duplicate"]), (2, ["", ""])], [2, 0, 3, 1], list("abcd"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@given(model=models())
@settings(max_examples=cases(12, 2000), deadline=None)
def test_leads_back(model: Model, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("table") / "provenance"
    sums = model.write(folder)
    assert sums == tuple(file_sum(path) for path in sorted(folder.iterdir()))
    provenance = Provenance(folder)
    places = model.places()
    everything = np.arange(len(places))
    files, lines = provenance.locate(everything)
    assert list(zip(files.tolist(), lines.tolist(), strict=True)) == places
    backwards = provenance.locate(everything[::-1])
    assert (backwards[0].tolist(), backwards[1].tolist()) == (files.tolist()[::-1], lines.tolist()[::-1])
    assert [array.shape for array in provenance.locate([])] == [(0,), (0,)]
    assert provenance.num_documents == len(places)
    assert provenance.ordinals(everything).tolist() == (model.order or everything.tolist())
    assert (provenance.is_shuffled, provenance.has_ids) == (model.order is not None, model.ids is not None)
    if model.ids is not None:
        assert provenance.ids(everything) == model.names()


@given(model=models(), at_once=st.sampled_from([8, 1 << 22]))
@settings(max_examples=cases(12, 2000), deadline=None)
def test_is_found_again(model: Model, at_once: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """By line, and by id; also where an id lies over the border of two pieces of the scan."""
    folder = tmp_path_factory.mktemp("table") / "provenance"
    model.write(folder)
    provenance = Provenance(folder)
    places = model.places()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance_files, "_SEARCHED_AT_ONCE", at_once)
        num_lines: Counter[int] = Counter()
        for file, lines in model.spans:
            num_lines[file] += len(lines)
        for file in range(5):
            for line in range(num_lines[file] + 2):
                expected = places.index((file, line)) if (file, line) in places else None
                assert provenance.find_line(file, line) == expected
        for name in set(model.ids or ()):
            ordinal = (model.ids or []).index(name)
            assert provenance.find_id(name) == (ordinal if model.order is None else model.order.index(ordinal))
        if model.ids is not None:
            assert provenance.find_id("no such id") is None


def test_how_far_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SMALL.write(tmp_path / "provenance")
    provenance = Provenance(tmp_path / "provenance")
    monkeypatch.setattr(provenance_files, "_SEARCHED_AT_ONCE", 8)
    monkeypatch.setattr(provenance_files, "SEARCHED_BYTES", 2)
    with pytest.raises(StoreError, match=r"2.*bytes"):
        provenance.find_id("d")
    monkeypatch.setattr(provenance_files, "SEARCHED_BYTES", 16)
    with pytest.raises(StoreError, match=r"2.*shuffled"):
        provenance.find_line(0, 3)
    plain = SMALL._replace(order=None, ids=None)
    plain.write(tmp_path / "plain")
    for ask in (lambda: Provenance(tmp_path / "plain").find_id("a"), lambda: Provenance(tmp_path / "plain").ids([0])):
        with pytest.raises(StoreError, match="id"):
            ask()


@contextlib.contextmanager
def full_after(num_bytes: int) -> Iterator[None]:
    """No file of this process may have more bytes than this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("num_buffered", [256, 1 << 20])
def test_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_buffered: int) -> None:
    """Wherever the disk is full, the error names a file, and nothing is left."""
    monkeypatch.setattr(provenance_files, "_BUFFER_BYTES", num_buffered)
    SMALL.write(tmp_path / "whole")
    limits = sorted({len(data) for data in contents(tmp_path / "whole").values()})
    for limit in [0, 127, 128, *(size - 1 for size in limits)]:
        SMALL.write(tmp_path / "table")
        with full_after(limit), pytest.raises(OutputError, match=r"table/\w+\.(npy|json): cannot (create|write)"):
            SMALL.write(tmp_path / "table")
        assert contents(tmp_path / "table") == {}, limit
    with full_after(limits[-1]):
        SMALL.write(tmp_path / "table")
    assert contents(tmp_path / "table") == contents(tmp_path / "whole")


def test_killed_at_any_moment(tmp_path: Path) -> None:
    SMALL.write(tmp_path / "whole")
    wanted = contents(tmp_path / "whole")
    moment, is_done = 0, False
    while not is_done:
        folder = tmp_path / f"{moment}"
        SMALL.write(folder)
        is_done = faults.run_killed(lambda: SMALL.write(folder), moment)  # noqa: B023
        if (folder / "provenance.json").exists() and moment:
            assert contents(folder).items() >= wanted.items()
        SMALL.write(folder)
        assert {name: data for name, data in contents(folder).items() if not name.startswith(".")} == wanted
        moment += 1
    assert moment > 20


def test_the_files_are_as_numpy_writes_them(tmp_path: Path) -> None:
    SMALL.write(tmp_path / "provenance")
    wanted = {
        "spans.npy": np.array([[0, 2, 0, 0, 4], [2, 0, 0, 4, 0], [2, 0, 2, 0, 1], [2, 2, 2, 1, 2]]),
        "skipped.npy": np.array([[0, 1, 0], [0, 2, 1], [2, 0, 2]]),
        "order.npy": np.array([2, 0, 3, 1]),
        "ids.npy": np.frombuffer(b"abcd", np.uint8),
        "ids_ends.npy": np.array([1, 2, 3, 4]),
    }
    for name, array in wanted.items():
        np.save(tmp_path / name, array)
        assert (tmp_path / "provenance" / name).read_bytes() == (tmp_path / name).read_bytes(), name
    info = msgspec.json.decode((tmp_path / "provenance" / "provenance.json").read_bytes())
    assert info == {"version": 1, "num_documents": 4, "reasons": ["blank", "bad", "duplicate"]}
    assert sorted(contents(tmp_path / "provenance")) == sorted([*wanted, "provenance.json"])


def test_large_numbers(tmp_path: Path) -> None:
    """Lines and ordinals beyond 2^31, and a span with many skipped lines."""
    writer = ProvenanceWriter(tmp_path, with_order=False, with_ids=False)
    big = 3 << 31
    writer.add_span(0, big, 0, 0, big, np.zeros(0, np.int64), [])
    skipped = np.arange(0, 200_000, 2)
    writer.add_span(big, 100_000, 1, big, 200_000, skipped, ["blank"] * len(skipped))
    writer.finish()
    files, lines = Provenance(tmp_path).locate(np.array([big - 1, big, big + 99_999, big + 5]))
    assert files.tolist() == [0, 1, 1, 1]
    assert lines.tolist() == [big - 1, big + 1, big + 199_999, big + 11]


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance_files, "_BUFFER_BYTES", 64)
    with ProvenanceWriter(tmp_path, with_order=True, with_ids=False) as writer:
        writer.add_span(0, 1000, 0, 0, 1000, np.zeros(0, np.int64), [])
        writer.add_order(np.arange(1000))
        assert (tmp_path / "order.npy").stat().st_size >= 128 + 8000 - 64


def test_nothing_opens_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance_files, "_BUFFER_BYTES", 2)
    SMALL.write(tmp_path)
    with SMALL.open(tmp_path) as writer:
        for step in SMALL.steps():
            step(writer)
        names = ["spans.npy", "skipped.npy", "order.npy", "ids.npy", "ids_ends.npy"]
        assert sorted(contents(tmp_path)) == sorted(names)
        for name in names:
            assert (tmp_path / name).stat().st_size > 128
            with pytest.raises(ValueError, match="pickle"):
                np.load(tmp_path / name)
        with pytest.raises(StoreError, match=r"provenance\.json"):
            Provenance(tmp_path)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    "span",
    [
        (0, 2, 0, 0, 4, [1], ["bad"]),
        (0, 3, 0, 0, 4, [1], []),
        (0, 2, 0, 0, 4, [2, 1], ["bad", "bad"]),
        (0, 2, 0, 0, 4, [1, 1], ["bad", "bad"]),
        (0, 3, 0, 0, 4, [4], ["bad"]),
        (0, 3, 0, 0, 4, [-1], ["bad"]),
        (1, 4, 0, 0, 4, [], []),
    ],
)
def test_a_lost_line_is_noticed(span: tuple[Any, ...], tmp_path: Path) -> None:
    with ProvenanceWriter(tmp_path, with_order=False, with_ids=False) as writer:
        with pytest.raises(HeadraceError, match=rf"{span[4]}.*{span[1]}.*{span[0]}.*{len(span[5])}.*{len(span[6])}"):
            writer.add_span(*span[:5], np.array(span[5], np.int64), span[6])
        writer.add_span(0, 4, 0, 0, 4, np.zeros(0, np.int64), [])


def test_a_lost_document_is_noticed(tmp_path: Path) -> None:
    writer = ProvenanceWriter(tmp_path, with_order=True, with_ids=True)
    writer.add_span(0, 2, 0, 0, 2, np.zeros(0, np.int64), [])
    writer.add_ids(["a"])
    for wrong in ([2], [-1]):
        with pytest.raises(HeadraceError, match=r"2.*documents"):
            writer.add_order(np.array(wrong))
    writer.add_order(np.array([0]))
    with pytest.raises(HeadraceError, match=r"order\.npy.*1.*2"):
        writer.finish()
    writer.add_order(np.array([1]))
    with pytest.raises(HeadraceError, match=r"ids_ends\.npy.*1.*2"):
        writer.finish()
    writer.add_ids(["b"])
    writer.finish()


def test_too_many_reasons(tmp_path: Path) -> None:
    reasons = [f"filter:{number}" for number in range(MAX_REASONS)]
    with ProvenanceWriter(tmp_path, with_order=False, with_ids=False) as writer:
        writer.add_span(0, 0, 0, 0, MAX_REASONS, np.arange(MAX_REASONS), reasons)
        with pytest.raises(ConfigError, match=r"1,000.*'filter:x'"):
            writer.add_span(0, 0, 0, MAX_REASONS, 1, np.array([0]), ["filter:x"])


def test_documents_that_are_not_there(tmp_path: Path) -> None:
    SMALL.write(tmp_path)
    provenance = Provenance(tmp_path)
    for wrong in (4, -1):
        with pytest.raises(IndexError, match=rf"{wrong}.*0.*4"):
            provenance.locate([0, wrong])
        with pytest.raises(IndexError, match=rf"{wrong}"):
            provenance.ids([wrong])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("spans.npy", None, "file"),
        ("spans.npy", b"", "complete"),
        ("spans.npy", b"\x93NUMPY\x01\x00", "complete"),
        ("skipped.npy", -1, "complete"),
        ("skipped.npy", np.zeros((3, 2), np.int64), r"\(3,.2\).*\(any,.3\)"),
        ("order.npy", np.zeros(5, np.int64), r"\(5,\).*\(4\)"),
        ("order.npy", np.zeros(4, np.float64), "float64.*int64"),
        ("order.npy", np.array([None] * 4), "complete"),
        ("spans.npy", np.asfortranarray(np.zeros((4, 5), np.int64)), "C.*order"),
        ("spans.npy", np.zeros((0, 5), np.int64), r"0.*provenance\.json.*4"),
        ("ids.npy", np.zeros(3, np.uint8), "uint8"),
        ("ids.npy", None, "file"),
        ("provenance.json", b"{}", "version"),
        ("provenance.json", b"\xff", "table"),
        ("provenance.json", b'{"version":2,"num_documents":4,"reasons":[]}', "2.*4.*1"),
        ("provenance.json", b'{"version":1,"num_documents":-4,"reasons":[]}', "1.*-4.*1"),
    ],
)
def test_damaged_files(name: str, content: Any, message: str, tmp_path: Path) -> None:
    SMALL.write(tmp_path)
    path = tmp_path / name
    if content is None:
        path.unlink()
    elif isinstance(content, int):
        os.truncate(path, path.stat().st_size + content)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content)
    with pytest.raises(StoreError, match=message) as caught:
        Provenance(tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "array", "ask", "message"),
    [
        ("skipped.npy", [[3, 0, 0], [3, 1, 0]], "locate", r"spans\.npy.*skipped\.npy"),
        ("ids.npy", [255, 255, 255, 255], "ids", r"ids\.npy.*2.*UTF-8"),
        ("order.npy", [4, 0, 3, 1], "locate", "contradict"),
    ],
)
def test_damage_that_is_found_in_use(name: str, array: Any, ask: str, message: str, tmp_path: Path) -> None:
    SMALL.write(tmp_path)
    np.save(tmp_path / name, np.array(array, np.uint8 if name == "ids.npy" else np.int64))
    provenance = Provenance(tmp_path)
    with pytest.raises(StoreError, match=message):
        getattr(provenance, ask)(np.arange(4))
