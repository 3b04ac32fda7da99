"""The contract of stores of tokens: tests that every store passes, whatever its layout."""
# ruff: noqa: D102 - the names of the tests are sentences

from __future__ import annotations

import gc
import os
import pickle
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from numpy.typing import DTypeLike, NDArray

from headrace.errors import ConfigError, StoreError
from headrace.stores.store import Store
from headrace.testing.damage import other_byte

Documents = list[NDArray[Any]]


def documents(dtype: DTypeLike, *, max_documents: int = 12, max_length: int = 20) -> st.SearchStrategy[Documents]:
    """Return a strategy for lists of documents, which may be empty.

    Tokens count up through the whole store and wrap within the dtype, so a token that is read from a wrong place is a
    wrong token.
    """
    lengths = st.lists(st.integers(0, max_length), max_size=max_documents)
    return lengths.map(lambda drawn: numbered_documents(drawn, dtype))


def numbered_documents(lengths: list[int], dtype: DTypeLike) -> Documents:
    """Return documents of these lengths, whose tokens count up from 1 and wrap within the dtype."""
    # The number at which int64 wraps does not fit into int64.
    values = min(int(np.iinfo(np.dtype(dtype)).max), 2**62) + 1
    tokens = (np.arange(1, sum(lengths) + 1) % values).astype(dtype)
    return np.split(tokens, np.cumsum(lengths)[:-1]) if lengths else []


LENGTHS = [0, 0, 3, 1, 0, 20, 7, 0, 5, 300, 2, 0]
"""Lengths with empty documents at the beginning, in the middle, two in a row, and at the end."""


def _views_hold(data: bytes) -> bool:
    """Whether the arrays that a store returned hold all tokens, and keep their bytes after the store is gone."""
    store: Store = pickle.loads(data)
    views = [store.document(number) for number in range(len(store))] + [store.fetch(0, store.num_tokens)]
    views += store.pieces(np.cumsum(store.lengths) - store.lengths, store.lengths)
    if (stream := store.stream_view()) is not None:
        views.append(stream)
    before = [view.tobytes() for view in views]
    # As documents, at once, in pieces, and as a view of the stream if the store has one.
    wanted = (3 if stream is None else 4) * store.num_tokens * store.dtypes[store.keys[0]].itemsize
    store.close()
    del store
    gc.collect()
    return [view.tobytes() for view in views] == before and sum(map(len, before)) == wanted


def _forked(holds: Callable[[], bool]) -> int:
    """Fork a process that checks whether something holds, and return its number; `_code` is 42 if it does."""
    child = os.fork()
    if child == 0:
        code = 1
        gc.freeze()  # what is to be collected here may wait for threads, which a fork does not have
        try:
            code = 42 if holds() else 2
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return child


def _code(child: int) -> int:
    """Wait for a process, and return its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class StoreContract:
    """Inherit it and define `write` and `open`, and `vouch` if a manifest can hold hashes of the format."""

    dtype: ClassVar[str] = "uint16"

    keys: ClassVar[tuple[str, ...]] = ("tokens",)
    """Keys of the store; the documents of ``write`` are those of the first key."""

    flip_every: ClassVar[int] = 1
    """A bit is flipped in every n-th byte of the files; 1 means in all bytes."""

    range_every: ClassVar[int] = 3
    """Ranges are read from every n-th token on, to each token that follows."""

    def write(self, folder: Path, documents: Documents) -> Path:
        """Write the documents in this format below an empty folder, and return what `open` takes."""
        raise NotImplementedError

    def open(self, path: Path) -> Store:
        """Open the store that `write` wrote."""
        raise NotImplementedError

    def vouch(self, path: Path) -> None:
        """Write a manifest for what `write` wrote; by default this skips the test that needs one."""
        pytest.skip("a manifest cannot hold hashes of this format")

    @pytest.fixture
    def documents(self) -> Documents:
        return numbered_documents(LENGTHS, self.dtype)

    @pytest.fixture
    def path(self, tmp_path: Path, documents: Documents) -> Path:
        (tmp_path / "one").mkdir()
        return self.write(tmp_path / "one", documents)

    @pytest.fixture
    def store(self, path: Path) -> Store:
        return self.open(path)

    @pytest.fixture
    def stream(self, documents: Documents) -> NDArray[Any]:
        return np.concatenate(documents)

    def test_counts(self, store: Store, stream: NDArray[Any]) -> None:
        assert len(store) == store.num_documents == len(LENGTHS)
        assert store.num_tokens == len(stream) == sum(LENGTHS)
        assert store.keys == tuple(store.dtypes) == self.keys
        assert store.dtypes[self.keys[0]] == np.dtype(self.dtype)
        assert store.lengths.dtype == np.int64
        assert store.lengths.tolist() == LENGTHS
        assert f"{len(LENGTHS)} documents" in repr(store)

    def test_documents(self, store: Store, documents: Documents) -> None:
        for number, wanted in enumerate(documents):
            for index in (number, number - len(documents), np.int64(number)):
                found = store.document(int(index))
                assert found.dtype == np.dtype(self.dtype)
                assert not found.flags.writeable
                np.testing.assert_array_equal(found, wanted)

    @pytest.mark.parametrize("index", [len(LENGTHS), -len(LENGTHS) - 1, 2**63])
    def test_a_document_out_of_range(self, store: Store, index: int) -> None:
        with pytest.raises(IndexError, match=str(len(LENGTHS))):
            store.document(index)

    def test_keys(self, store: Store, documents: Documents, stream: NDArray[Any]) -> None:
        np.testing.assert_array_equal(store.document(5, ["tokens"])["tokens"], documents[5])
        np.testing.assert_array_equal(store.fetch(2, 9, ("tokens",))["tokens"], stream[2:9])
        for ask in (lambda: store.document(5, "token"), lambda: store.fetch(0, 1, ["tokens", "token"])):
            with pytest.raises(ConfigError, match=r"'token'.*'tokens'"):
                ask()

    def test_fetch_every_range(self, store: Store, stream: NDArray[Any]) -> None:
        for begin in range(0, len(stream) + 1, self.range_every):
            for end in range(begin, len(stream) + 1):
                found = store.fetch(begin, end)
                assert not found.flags.writeable
                assert found.dtype == stream.dtype
                assert found.tobytes() == stream[begin:end].tobytes()

    @pytest.mark.parametrize(("begin", "end"), [(-1, 2), (2, 1), (0, sum(LENGTHS) + 1), (-3, -1), (2**63, 2**63)])
    def test_fetch_out_of_range(self, store: Store, begin: int, end: int) -> None:
        with pytest.raises(IndexError, match=str(sum(LENGTHS))):
            store.fetch(begin, end)

    def test_pieces(self, store: Store, stream: NDArray[Any]) -> None:
        rng = np.random.default_rng(2)
        for rows in (0, 1, 3, 200):
            begins = rng.integers(0, len(stream) + 1, rows)
            lengths = np.minimum(rng.integers(0, rng.choice([2, 30, 400]), rows), len(stream) - begins)
            found = store.pieces(begins, lengths)
            assert [piece.tolist() for piece in found] == [
                stream[begin : begin + length].tolist() for begin, length in zip(begins, lengths, strict=True)
            ]
            assert all(piece.dtype == stream.dtype and not piece.flags.writeable for piece in found)
            again = store.pieces(begins, lengths, "tokens")
            assert [piece.tobytes() for piece in again] == [piece.tobytes() for piece in found]

    def test_pieces_of_no_tokens(self, store: Store, stream: NDArray[Any]) -> None:
        """Empty pieces at the beginning, where documents and shards meet, and at the end."""
        begins = np.arange(len(stream) + 1)
        found = store.pieces(begins, np.zeros_like(begins))
        assert [piece.tolist() for piece in found] == [[]] * len(begins)
        assert {piece.dtype for piece in found} == {stream.dtype}

    @pytest.mark.parametrize(
        ("begin", "length"),
        [(-1, 2), (-1, 0), (0, sum(LENGTHS) + 1), (sum(LENGTHS), 1), (sum(LENGTHS) + 1, 0), (3, -1), (2**63 - 1, 1),
         (1, 2**63 - 1), (-(2**63), 2**63 - 1)],
    )  # fmt: skip
    def test_pieces_out_of_range(self, store: Store, begin: int, length: int) -> None:
        with pytest.raises(IndexError, match=f"the stream has {sum(LENGTHS)} tokens"):
            store.pieces(np.array([0, begin, 1]), np.array([1, length, 2]))

    def test_pieces_of_an_unknown_key(self, store: Store) -> None:
        with pytest.raises(ConfigError, match=r"'token'.*'tokens'"):
            store.pieces(np.array([0]), np.array([1]), "token")

    def test_stream_view(self, store: Store, stream: NDArray[Any]) -> None:
        for key in (None, "tokens"):
            view = store.stream_view(key)
            if view is not None:
                assert view.dtype == stream.dtype
                assert not view.flags.writeable
                np.testing.assert_array_equal(view, stream)

    @pytest.mark.parametrize("num_documents", [1, 2, 5, len(LENGTHS) - 1, len(LENGTHS), 1000])
    def test_length_chunks(self, store: Store, num_documents: int) -> None:
        for _ in range(2):
            chunks = list(store.length_chunks(num_documents))
            assert {chunk.dtype for chunk in chunks} == {np.dtype(np.int64)}
            assert np.concatenate(chunks).tolist() == LENGTHS
            assert all(len(chunk) <= num_documents for chunk in chunks)

    def test_gather(self, store: Store, stream: NDArray[Any]) -> None:
        rng = np.random.default_rng(1)
        for length in (1, 2, 33, len(stream) - 1, len(stream), 0):
            for rows in (1, 3, 50):
                begins = rng.integers(0, len(stream) - length + 1, rows)
                found = store.gather(begins, length)
                assert found.shape == (rows, length)
                assert found.dtype == stream.dtype
                np.testing.assert_array_equal(found, [stream[begin : begin + length] for begin in begins])
                found[:] = 0  # The array is new, so the store does not change.
                np.testing.assert_array_equal(store.gather(begins[:1], length)[0], stream[begins[0] :][:length])

    def test_gather_no_rows(self, store: Store) -> None:
        assert store.gather(np.zeros(0, np.int64), 7).shape == (0, 7)
        assert store.gather(np.zeros(0, np.int64), 10_000).shape == (0, 10_000)

    @pytest.mark.parametrize("begin", [-1, sum(LENGTHS) - 4, sum(LENGTHS), 2**62, -(2**63)])
    def test_gather_out_of_range(self, store: Store, begin: int) -> None:
        with pytest.raises(IndexError, match=str(begin)):
            store.gather(np.array([0, begin, 1]), 5)
        with pytest.raises(IndexError):
            store.gather(np.array([0]), sum(LENGTHS) + 1)

    def test_positions_must_be_whole_numbers(self, store: Store) -> None:
        for wrong in (np.array([1.5]), np.array([[1]])):
            with pytest.raises(TypeError, match="begins must be"):
                store.gather(wrong, 1)
            with pytest.raises(TypeError, match="must be"):
                store.find_documents(wrong)

    def test_find_documents(self, store: Store) -> None:
        wanted = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
        found = store.find_documents(np.arange(sum(LENGTHS)))
        assert found.dtype == np.int64
        assert found.tolist() == wanted.tolist()
        assert store.find_documents(np.zeros(0, np.int64)).tolist() == []
        for wrong in (-1, sum(LENGTHS)):
            with pytest.raises(IndexError, match=str(wrong)):
                store.find_documents(np.array([0, wrong]))

    def test_document_begins(self, store: Store) -> None:
        wanted = np.concatenate(([0], np.cumsum(LENGTHS)))
        for documents in (np.arange(len(LENGTHS) + 1), np.array([5, 1, len(LENGTHS), 5])):
            found = store.document_begins(documents)
            assert found.dtype == np.int64
            assert found.tolist() == wanted[documents].tolist()
        for wrong in (-1, len(LENGTHS) + 1):
            with pytest.raises(IndexError, match=str(wrong)):
                store.document_begins(np.array([0, wrong]))

    def test_no_documents(self, tmp_path: Path) -> None:
        store = self.open(self.write(tmp_path, []))
        assert (store.num_documents, store.num_tokens, store.lengths.tolist()) == (0, 0, [])
        assert store.fetch(0, 0).tolist() == []
        assert store.gather(np.zeros(0, np.int64), 3).shape == (0, 3)
        assert store.document_begins(np.array([0])).tolist() == [0]
        assert store.find_documents(np.zeros(0, np.int64)).tolist() == []
        assert [len(piece) for piece in store.pieces(np.zeros(2, np.int64), np.zeros(2, np.int64))] == [0, 0]
        assert [len(view) for view in [store.stream_view()] if view is not None] in ([], [0])
        assert sum(map(len, store.length_chunks(7))) == 0
        assert list(store.check(vocab_size=5)) == []
        assert store.fingerprint
        for wrong in (0, -1):
            with pytest.raises(IndexError):
                store.document(wrong)
        with pytest.raises(IndexError):
            store.gather(np.array([0]), 1)

    def test_only_empty_documents(self, tmp_path: Path) -> None:
        store = self.open(self.write(tmp_path, numbered_documents([0, 0, 0], self.dtype)))
        assert (store.num_documents, store.num_tokens, store.lengths.tolist()) == (3, 0, [0, 0, 0])
        assert store.document(1).tolist() == []
        assert store.document_begins(np.arange(4)).tolist() == [0, 0, 0, 0]
        assert list(store.check()) == []

    @settings(deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @example(lengths=[0, 0, 1, 0, 0], seed=0)
    @given(lengths=st.lists(st.integers(0, 20), min_size=1, max_size=12), seed=st.integers(0, 100))
    def test_any_documents(self, lengths: list[int], seed: int) -> None:
        documents = numbered_documents(lengths, self.dtype)
        stream = np.concatenate(documents)
        with tempfile.TemporaryDirectory() as folder, self.open(self.write(Path(folder), documents)) as store:
            assert store.lengths.tolist() == np.concatenate(list(store.length_chunks(seed % 5 + 1))).tolist() == lengths
            counts = np.array(lengths, np.int64)
            assert [piece.tolist() for piece in store.pieces(np.cumsum(counts) - counts, counts)] == [
                d.tolist() for d in documents
            ]
            assert [store.document(number).tolist() for number in range(len(lengths))] == [
                d.tolist() for d in documents
            ]
            if len(stream):
                rng = np.random.default_rng(seed)
                begins = rng.integers(0, len(stream), 9)
                length = int(rng.integers(0, len(stream) - begins.max() + 1))
                wanted = np.array([stream[begin : begin + length] for begin in begins])
                np.testing.assert_array_equal(store.gather(begins, length), wanted)
                wanted = np.repeat(np.arange(len(lengths)), lengths)[begins]
                np.testing.assert_array_equal(store.find_documents(begins), wanted)
            assert list(store.check()) == []

    def test_arrays_outlive_the_store(self, store: Store) -> None:
        data = pickle.dumps(store)
        assert (
            _code(_forked(lambda: _views_hold(data))) == 42
        )  # In this process, memory that is gone would end all tests.

    def test_a_closed_store_opens_its_files_again(self, store: Store, stream: NDArray[Any]) -> None:
        assert store.fetch(0, 5).tolist() == stream[:5].tolist()
        store.close()
        assert store.fetch(0, 5).tolist() == stream[:5].tolist()

    def test_pickled_as_its_path(self, store: Store, path: Path) -> None:
        data = pickle.dumps(store)
        assert len(data) < 4000
        again = pickle.loads(data)
        assert again.path == store.path
        assert again.fingerprint == store.fingerprint
        assert again.fetch(0, again.num_tokens).tobytes() == store.fetch(0, store.num_tokens).tobytes()

    def test_a_pickled_store_that_changed_is_refused(self, tmp_path: Path, path: Path, documents: Documents) -> None:
        data = pickle.dumps(self.open(path))
        shutil.rmtree(tmp_path / "one")
        (tmp_path / "one").mkdir()
        self.write(tmp_path / "one", documents[::-1])
        with pytest.raises(StoreError, match="changed since"):
            pickle.loads(data)

    def test_threads(self, store: Store, stream: NDArray[Any]) -> None:
        def read(seed: int) -> bool:
            begins = np.random.default_rng(seed).integers(0, len(stream) - 30, 8)
            wanted = np.array([stream[begin : begin + 30] for begin in begins])
            return all(np.array_equal(store.gather(begins, 30), wanted) for _ in range(20))

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(read, range(16)))

    def test_fork(self, store: Store, stream: NDArray[Any]) -> None:
        store.fetch(0, 1)

        def same() -> bool:
            found = store.fetch(0, store.num_tokens)
            return found.tobytes() == stream.tobytes() and store.gather(np.array([3]), 4).tolist() == [
                stream[3:7].tolist()
            ]

        child = _forked(same)
        assert store.gather(np.array([4]), 4).tolist() == [stream[4:8].tolist()]
        assert _code(child) == 42

    def test_fingerprint(self, tmp_path: Path, path: Path, documents: Documents) -> None:
        prints = {self.open(path).fingerprint, self.open(path).fingerprint}
        (tmp_path / "elsewhere").mkdir()
        prints.add(self.open(self.write(tmp_path / "elsewhere", documents)).fingerprint)
        assert len(prints) == 1
        others = [documents[:-1], documents[::-1], [*documents[:9], documents[9] + 1, *documents[10:]]]
        for number, other in enumerate(others):
            (tmp_path / str(number)).mkdir()
            prints.add(self.open(self.write(tmp_path / str(number), other)).fingerprint)
        assert len(prints) == 1 + len(others)

    def test_check_finds_nothing_wrong(self, store: Store, path: Path) -> None:
        assert list(store.check(vocab_size=int(store.fetch(0, store.num_tokens).max()) + 1)) == []

    def test_check_finds_ids_outside_of_the_vocabulary(self, store: Store, stream: NDArray[Any]) -> None:
        (problem,) = store.check(vocab_size=int(stream.max()))
        assert f"id {stream.max()} " in problem.message
        assert problem.place.startswith("document ")
        # No token is 0, so every document that is not empty is named.
        assert len(list(store.check(vocab_size=1))) == np.count_nonzero(LENGTHS)

    def test_check_finds_every_flipped_bit(self, path: Path) -> None:
        self.vouch(path)
        assert list(self.open(path).check()) == []
        root = path if path.is_dir() else path.parent
        files = [file for file in root.rglob("*") if file.is_file()]
        assert files
        for file in files:
            content = file.read_bytes()
            for at in range(0, len(content), self.flip_every):
                with other_byte(file, at, content[at] ^ (1 << at % 8)):
                    assert self._is_found_at_fault(path), f"{file.name}: bit {at % 8} of byte {at}"
            assert file.read_bytes() == content
        assert list(self.open(path).check()) == []

    def _is_found_at_fault(self, path: Path) -> bool:
        try:
            with self.open(path) as store:
                return any(True for _ in store.check())
        except StoreError:
            return True
