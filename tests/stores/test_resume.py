"""Writers that are killed and continued end in the same bytes, in every format."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headrace.stores as stores
import killing
from counts import cases
from headrace.errors import ConfigError, OutputError, StateError, StoreError
from headrace.io import partial_path
from headrace.stores import IndexedWriter, KeyedWriter, Writer, WriterState, token_file

Make = Callable[..., Writer]
LENGTHS = np.array([3, 0, 1, 4, 0, 0, 2, 5, 1, 0])
STEPS = 5
"""Documents are added two at a time."""


def indexed(folder: Path, **options: object) -> IndexedWriter:
    return IndexedWriter(folder / "x", dtype="uint16", **options)


def keyed(folder: Path, **options: object) -> KeyedWriter:
    return KeyedWriter(folder / "x", dtypes={"ids": "int32", "mask": "bool"}, **options)


FORMATS = pytest.mark.parametrize("make", [indexed, keyed])


def add(writer: Writer, step: int) -> None:
    lengths = LENGTHS[2 * step : 2 * step + 2]
    tokens = np.arange(lengths.sum()) + 100 * step
    if isinstance(writer, IndexedWriter):
        writer.add_documents(tokens, lengths)
    else:
        # The second key has documents of other lengths.
        mask = np.arange(lengths.sum() + 2) % 2
        writer.add_documents({"ids": tokens, "mask": mask}, {"ids": lengths, "mask": lengths + 1})


def content(folder: Path) -> dict[str, bytes]:
    """All files, also hidden ones."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def undisturbed(make: Make, folder: Path) -> dict[str, bytes]:
    with make(folder) as writer:
        for step in range(STEPS):
            add(writer, step)
        writer.finish()
    return content(folder)


def has_store(folder: Path) -> bool:
    """Whether a store opens there; what opens must be whole."""
    try:
        with stores.open(folder / "x") as store:
            assert list(store.check()) == []
            return store.num_documents > 0
    except StoreError:
        return False


def go_on(make: Make, folder: Path, journal: Path) -> None:
    """Add what is missing, with a state in the journal after every second step, and finish."""
    step, state = 0, None
    if journal.exists():
        step, state = msgspec.msgpack.decode(journal.read_bytes(), type=tuple[int, WriterState])
    with make(folder, state=state, resumable=True) as writer:
        assert writer.num_documents == 2 * step
        for number in range(step, STEPS):
            add(writer, number)
            if number % 2 == 0:
                new = journal.with_suffix(".new")
                new.write_bytes(msgspec.msgpack.encode((number + 1, writer.checkpoint())))
                new.replace(journal)
        writer.finish()


@FORMATS
@pytest.mark.parametrize("has_old", [False, True])
@pytest.mark.sampled(1)
def test_killed_at_any_moment_and_once_more(tmp_path: Path, make: Make, has_old: bool) -> None:
    (tmp_path / "good").mkdir()
    good = undisturbed(make, tmp_path / "good")
    moments = 0
    is_done = False
    while not is_done:
        folder, journal = tmp_path / f"try{moments}", tmp_path / f"journal{moments}"
        folder.mkdir()
        if has_old:
            with make(folder) as writer:
                add(writer, 3)
                writer.finish()
        is_done = killing.run(lambda: go_on(make, folder, journal), moment=moments)  # noqa: B023
        has_store(folder)
        # The second run is killed too, at a moment that differs each time; a third may finish what is left.
        killing.run(lambda: go_on(make, folder, journal), moment=moments * 7 % 31)  # noqa: B023
        has_store(folder)
        go_on(make, folder, journal)
        assert content(folder) == good, f"killed at change {moments}"
        moments += 1
    assert moments > 30, "the process was to be killed at each change that it makes"


@FORMATS
def test_nothing_opens_before_the_end(tmp_path: Path, make: Make) -> None:
    with make(tmp_path, resumable=True) as writer:
        for step in range(STEPS):
            add(writer, step)
            writer.checkpoint()
            assert not has_store(tmp_path)
        writer.suspend()
        assert not has_store(tmp_path)
    assert all(Path(name).name.startswith(".") for name in content(tmp_path))


@FORMATS
def test_a_shard_that_is_taken_back_is_gone_until_it_is_finished_again(tmp_path: Path, make: Make) -> None:
    with make(tmp_path, resumable=True) as writer:
        add(writer, 0)
        state = writer.checkpoint()
        add(writer, 1)
        writer.finish()
    good = content(tmp_path)
    # Left by a kill in the middle of taking back.
    for name in [name for name in good if name.endswith(".bin")]:
        path = token_file.lengths_path(tmp_path / name)
        partial_path(partial_path(path)).write_bytes(b"half")
    with make(tmp_path, state=state) as writer:
        names = {Path(name).name for name in content(tmp_path)}
        assert all(name.startswith(".") and name.count(".partial") == 1 for name in names), names
        add(writer, 1)
        writer.finish()
    assert content(tmp_path) == good
    partial_path(partial_path(path)).write_bytes(b"half")
    with make(tmp_path, resumable=True) as writer:
        add(writer, 0)
        add(writer, 1)
        writer.finish()
    assert content(tmp_path) == good


@settings(deadline=None, max_examples=cases(12, 30))
@example(lengths=[1, 0, 0, 0, 0, 0, 0, 2], cuts=[], chunk=3)  # the second chunk has no sequence
@given(
    lengths=st.lists(st.integers(0, 4), max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=3),
    chunk=st.integers(1, 5),
)
def test_suspended_anywhere(lengths: list[int], cuts: list[int], chunk: int) -> None:
    documents = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1]) if lengths else []
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_file, "CHUNK", chunk)
        patch.setattr("headrace.stores.indexed.writer.CHUNK", chunk)
        patch.setattr("headrace.stores.keyed.writer.CHUNK", chunk)
        folder = Path(name)
        with IndexedWriter(folder / "whole", dtype="uint16") as writer:
            writer.add_documents(np.arange(sum(lengths)), np.array(lengths, int))
            writer.finish()
        state = None
        ends = [*sorted(cut for cut in cuts if cut < len(lengths)), len(lengths)]
        for begin, end in zip([0, *ends], ends, strict=False):
            with IndexedWriter(folder / "parts", dtype="uint16", state=state, resumable=True) as writer:
                part = documents[begin:end]
                writer.add_documents(
                    np.concatenate(part) if part else np.zeros(0, int), np.array(lengths[begin:end], int)
                )
                state = writer.checkpoint()
                if end % 2:
                    writer.finish()  # and the state before it is gone on from
        with IndexedWriter(folder / "parts", dtype="uint16", state=state) as writer:
            writer.finish()
        for suffix in (".bin", ".idx"):
            assert (folder / f"parts{suffix}").read_bytes() == (folder / f"whole{suffix}").read_bytes()


@contextlib.contextmanager
def refusing(moment: int) -> Iterator[None]:
    """The write, sync or rename of this number, counted from 0, finds the disk full."""
    calls = itertools.count()

    def counted(whole):
        def call(*args):
            if next(calls) == moment:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return whole(*args)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((os, "write"), (os, "fsync"), (Path, "rename")):
            patch.setattr(owner, name, counted(getattr(owner, name)))
        yield


@FORMATS
@pytest.mark.parametrize("has_old", [False, True])
def test_no_space_leaves_the_old_store_or_none(tmp_path: Path, make: Make, has_old: bool) -> None:
    for moment in range(100):
        folder = tmp_path / str(moment)
        folder.mkdir()
        old = undisturbed(make, folder) if has_old else {}
        try:
            with refusing(moment), make(folder) as writer:
                add(writer, 3)
                writer.finish()
        except OutputError as error:
            assert str(folder) in str(error)  # noqa: PT017
        else:
            break
        found = content(folder)
        assert not any(Path(name).name.startswith(".") for name in found)
        assert found == old or not has_store(folder)
    assert 8 < moment < 99


@FORMATS
def test_no_space_in_finish_and_then_there_is(tmp_path: Path, make: Make) -> None:
    (tmp_path / "good").mkdir()
    good = undisturbed(make, tmp_path / "good")
    moment = 0
    refused = True
    while refused:
        folder = tmp_path / str(moment)
        folder.mkdir()
        writer = make(folder, resumable=True)
        for step in range(STEPS):
            add(writer, step)
        state = writer.checkpoint()
        with refusing(moment):
            try:
                writer.finish()
                refused = False
            except OutputError as error:
                assert "No space left" in str(error)  # noqa: PT017
        assert has_store(folder) is not refused
        with make(folder, state=state) as writer:
            writer.finish()
        assert content(folder) == good
        moment += 1
    assert moment > 8


def suspended(make: Make, folder: Path) -> WriterState:
    with make(folder, resumable=True) as writer:
        add(writer, 0)
        add(writer, 1)
        return writer.checkpoint()


@FORMATS
@pytest.mark.parametrize("file", ["data", "lengths"])
@pytest.mark.parametrize("change", ["cut", "flip", "remove"])
def test_files_that_are_not_what_the_state_says(tmp_path: Path, make: Make, file: str, change: str) -> None:
    state = suspended(make, tmp_path)
    suffix = ".bin.partial" if file == "data" else ".lengths.partial"
    path = sorted(path for path in tmp_path.rglob(f"*{suffix}"))[-1]
    data = path.read_bytes()
    if change == "remove":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if change == "cut" else bytes([data[0] ^ 1]) + data[1:])
    before = content(tmp_path)
    named = {"cut": rf"{len(data) - 1}.*{len(data)}", "flip": rf"{len(data)}.*xxh3_128", "remove": rf"{len(data)}"}
    with pytest.raises(StoreError, match=f"partial.*{named[change]}"):
        make(tmp_path, state=state)
    assert content(tmp_path) == before


@FORMATS
def test_bytes_of_an_older_store_are_not_taken_for_ours(tmp_path: Path, make: Make) -> None:
    with make(tmp_path) as writer:
        add(writer, 3)
        writer.finish()
    old = content(tmp_path)
    state = suspended(make, tmp_path)
    for path in tmp_path.rglob("*.partial"):
        path.unlink()
    with pytest.raises(StoreError, match="again"):
        make(tmp_path, state=state)
    assert content(tmp_path) == old


def test_a_state_of_another_writer(tmp_path: Path) -> None:
    state = suspended(indexed, tmp_path)
    with pytest.raises(StateError, match="'uint16'"):
        keyed(tmp_path, state=state)
    with pytest.raises(StateError, match=r"'uint16'.*'int32'"):
        IndexedWriter(tmp_path / "x", dtype="int32", state=state)
    with pytest.raises(StateError, match=r"y\.bin\.partial.*x\.bin.*x\.lengths"):
        IndexedWriter(tmp_path / "y", dtype="uint16", state=state)


@FORMATS
def test_an_ordinary_writer_cannot_be_continued(tmp_path: Path, make: Make) -> None:
    with make(tmp_path) as writer:
        for action in (writer.checkpoint, writer.suspend):
            with pytest.raises(ConfigError, match="resumable=True"):
                action()
        add(writer, 0)
        writer.finish()


@FORMATS
@pytest.mark.parametrize("end", ["finish", "suspend", "discard"])
def test_a_writer_that_is_done(tmp_path: Path, make: Make, end: str) -> None:
    writer = make(tmp_path, resumable=True)
    getattr(writer, end)()
    for action in (writer.finish, writer.checkpoint, lambda: add(writer, 0)):
        with pytest.raises(ConfigError, match="discarded"):
            action()
    before = content(tmp_path)
    writer.discard()
    writer.suspend()
    assert content(tmp_path) == before
    assert bool(before) == (end != "discard")


def test_two_ordinary_writers_of_one_prefix_do_not_meet(tmp_path: Path) -> None:
    good = undisturbed(indexed, tmp_path)
    with indexed(tmp_path) as one, indexed(tmp_path) as two:
        for step in range(STEPS):
            add(one, step)
            add(two, STEPS - 1 - step)
        one.finish()
        assert content(tmp_path).keys() >= good.keys()
        assert {name: content(tmp_path)[name] for name in good} == good
        two.finish()
    assert content(tmp_path).keys() == good.keys()


def test_a_state_is_small_and_survives_json(tmp_path: Path) -> None:
    state = suspended(keyed, tmp_path)
    assert (state.format, state.num_documents, state.num_tokens) == ("keyed", 4, 8 + 12)
    assert len(msgspec.json.encode(state)) < 700
    assert msgspec.json.decode(msgspec.json.encode(state), type=WriterState) == state
