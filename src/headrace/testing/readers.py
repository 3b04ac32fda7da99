"""The contract of readers: tests that every reader of ranges passes."""
# ruff: noqa: D102 - the names of the tests are sentences

from __future__ import annotations

import gc
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from numpy.typing import NDArray

from headrace.errors import StoreError
from headrace.io import FilePool, Reader

CONTENT = bytes(np.random.default_rng(7).integers(0, 256, 5000, dtype=np.uint8))


class ReaderContract:
    """Inherit it and define `make`; for files that are not local, also `folder`, `write` and `remove`."""

    num_reads: ClassVar[int] = 1600
    """How many reads several threads do together, and several processes."""

    def make(self, pool: FilePool) -> Reader:
        """Return a new reader that keeps its files in this pool."""
        raise NotImplementedError

    @pytest.fixture
    def reader(self) -> Reader:
        return self.make(FilePool(8))

    @pytest.fixture
    def folder(self, tmp_path: Path) -> str:
        return str(tmp_path)

    def write(self, path: str, data: bytes) -> str:
        """Write a file, in the place of another if there is one, and return its path."""
        Path(path).write_bytes(data)
        return path

    def remove(self, path: str) -> None:
        """Remove a file."""
        Path(path).unlink()

    @pytest.fixture
    def path(self, folder: str) -> str:
        return self.write(f"{folder}/content", CONTENT)

    def test_size(self, reader: Reader, path: str) -> None:
        assert reader.size(path) == len(CONTENT)

    @settings(
        max_examples=60,
        deadline=None,
        suppress_health_check=[HealthCheck.differing_executors, HealthCheck.function_scoped_fixture],
    )
    @given(
        ends=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000)), max_size=20),
        into=st.booleans(),
    )
    def test_ranges_are_read_in_the_order_given(self, path: str, ends: list[tuple[int, int]], into: bool) -> None:
        ranges = [(min(pair), max(pair)) for pair in ends]
        # A range that continues the one before, so that readers join the two.
        ranges += [(end, min(end + 10, 5000)) for _, end in ranges[-1:]]
        wanted = b"".join(CONTENT[begin:end] for begin, end in ranges)
        offsets = np.array([begin for begin, _ in ranges], np.int64)
        lengths = np.array([end - begin for begin, end in ranges], np.int64)
        out = np.zeros(len(wanted), np.uint8) if into else None
        found = self.make(FilePool(8)).read_ranges(path, offsets, lengths, out)
        assert found.dtype == np.uint8
        assert found.tobytes() == wanted
        assert found.flags.writeable
        assert out is None or found is out

    @pytest.mark.parametrize(
        ("offset", "length", "found"),
        [(4999, 2, 1), (5001, 0, 0), (-1, 1, 0), (0, -1, 0), (0, 5001, 5000), (2**62, 2**62, 0), (-5, 9, 0)],
    )
    def test_a_range_outside_is_refused(self, reader: Reader, path: str, offset: int, length: int, found: int) -> None:
        with pytest.raises(StoreError) as caught:
            reader.read_ranges(path, np.array([0, offset]), np.array([10, length]))
        assert path in str(caught.value)
        assert f"byte {offset}: wanted {length} bytes, found {found};" in str(caught.value)

    def test_an_output_of_the_wrong_shape_is_refused(self, reader: Reader, path: str) -> None:
        wrong: list[Any] = [np.zeros(9, np.uint8), np.zeros(10, np.int8), np.zeros(20, np.uint8)[::2]]
        for out in wrong:
            with pytest.raises(ValueError, match="out must be"):
                reader.read_ranges(path, np.array([0]), np.array([10]), out)

    def test_a_missing_file_is_named(self, reader: Reader, folder: str) -> None:
        path = f"{folder}/nothing"
        for read in (reader.size, reader.view, lambda path: reader.read_ranges(path, np.array([0]), np.array([1]))):
            with pytest.raises(StoreError, match="nothing"):
                read(path)

    def test_whole_files_come_in_the_order_given(self, reader: Reader, path: str, folder: str) -> None:
        sizes = (0, 1, 700, 3000)
        paths = [self.write(f"{folder}/file-{size}", CONTENT[:size]) for size in sizes]
        found = reader.read_files([*paths, path, paths[2], *paths[::-1]])
        assert [data.tobytes() for data in found] == [
            CONTENT[:size] for size in (*sizes, len(CONTENT), 700, *sizes[::-1])
        ]
        assert reader.read_files([]) == []
        with pytest.raises(StoreError, match="nothing"):
            reader.read_files([path, f"{folder}/nothing", paths[1]])

    def test_a_view_is_whole_and_read_only(self, reader: Reader, path: str) -> None:
        view = reader.view(path)
        if view is not None:
            assert view.tobytes() == CONTENT
            assert not view.flags.writeable

    def test_an_empty_file(self, reader: Reader, folder: str) -> None:
        path = self.write(f"{folder}/empty", b"")
        view = reader.view(path)
        assert view is None or view.shape == (0,)
        assert reader.size(path) == 0
        assert reader.read_ranges(path, np.array([0]), np.array([0])).shape == (0,)

    def test_a_view_outlives_the_reader_and_the_file(self, reader: Reader, path: str) -> None:
        view = reader.view(path)
        reader.close()
        self.remove(path)
        del reader
        gc.collect()
        assert view is None or view.tobytes() == CONTENT

    def test_a_kept_value_is_made_once(self, reader: Reader, path: str) -> None:
        made = []

        def make(data: NDArray[np.uint8]) -> bytes:
            made.append(len(data))
            return data.tobytes()

        for key in (1, 2, 1, 2):
            assert reader.kept(path, key, make) in (CONTENT, None)
        assert len(made) == (0 if reader.view(path) is None else 2)

    def test_a_kept_file_is_mapped_by_readers_that_map(self, reader: Reader, path: str) -> None:
        reader.keep(path)
        reader.keep(path)  # twice is no error
        view = reader.view(path)
        assert view is None or view.tobytes() == CONTENT
        assert reader.read(path, 10, 20).tobytes() == CONTENT[10:30]

    def test_the_bound_on_open_files_holds(self, folder: str) -> None:
        before = _open_files(folder)
        pool = FilePool(8)
        readers = [self.make(pool) for _ in range(20)]
        for round_ in range(2):
            for number, reader in enumerate(readers):
                path = f"{folder}/{number}"
                if not round_:
                    self.write(path, bytes([number]) * 10)
                assert reader.read_ranges(path, np.array([5]), np.array([2])).tolist() == [number, number]
                reader.kept(path, "key", lambda data: data[1:])
                assert _open_files(folder) - before <= 8
        assert len(pool) == 8
        for reader in readers:
            reader.close()
        assert len(pool) == 0
        assert _open_files(folder) == before

    def test_a_forgotten_reader_lets_go_of_its_files(self, path: str) -> None:
        pool = FilePool(8)
        self.make(pool).size(path)
        gc.collect()
        assert len(pool) == 0

    def test_a_released_file_is_closed_and_opens_again(self, path: str) -> None:
        pool = FilePool(8)
        reader = self.make(pool)
        view = reader.view(path)
        reader.release(path)
        assert len(pool) == 0
        assert view is None or view.tobytes() == CONTENT
        assert reader.size(path) == len(CONTENT)
        reader.release(path)
        reader.release(path)  # twice is no error

    def test_a_file_that_changed_is_refused_until_the_reader_is_closed(self, path: str) -> None:
        pool = FilePool(1)
        reader = self.make(pool)
        reader.size(path)
        reader.size(self.write(path + ".other", b"x"))  # takes the only slot of the pool
        self.write(path, CONTENT[:-1])
        with pytest.raises(StoreError, match="changed while it was in use"):
            reader.read(path, 0, 1)
        reader.close()
        assert reader.size(path) == len(CONTENT) - 1

    def test_pickled_as_its_configuration(self, reader: Reader, path: str) -> None:
        reader.size(path)
        again = pickle.loads(pickle.dumps(reader))
        assert type(again) is type(reader)
        assert again.size(path) == len(CONTENT)

    def test_threads(self, reader: Reader, folder: str) -> None:
        # More than the pool holds.
        paths = [self.write(f"{folder}/{number}", CONTENT[number:]) for number in range(30)]

        def read(seed: int) -> bool:
            rng = np.random.default_rng(seed)
            for number in rng.integers(0, len(paths), self.num_reads // 16).tolist():
                begin = int(rng.integers(0, 4000))
                found = reader.read_ranges(paths[number], np.array([begin]), np.array([900]))
                if found.tobytes() != CONTENT[number + begin : number + begin + 900]:
                    return False
            return True

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(read, range(16)))

    def test_fork(self, reader: Reader, path: str) -> None:
        reader.read_ranges(path, np.array([1]), np.array([1]))
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    status = int(_reads_well(reader, path, self.num_reads // 4))
                finally:
                    os._exit(42 if status == 1 else 1)
            children.append(child)
        assert _reads_well(reader, path, self.num_reads // 4)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [42] * 4


def _reads_well(reader: Reader, path: str, num_reads: int) -> bool:
    for begin in np.linspace(0, 4000, num_reads).astype(int).tolist():
        if reader.read_ranges(path, np.array([begin]), np.array([100])).tobytes() != CONTENT[begin : begin + 100]:
            return False
    return True


def _open_files(folder: str) -> int:
    """Return the number of files in a folder that this process has open."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            found += str(link.readlink()).startswith(folder)
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return found
