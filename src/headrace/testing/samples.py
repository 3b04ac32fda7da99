"""The contract of stores of samples: tests that every store passes, whatever its layout."""
# ruff: noqa: D102 - the names of the tests are sentences

from __future__ import annotations

import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from headrace.errors import HeadraceError, StoreError
from headrace.io import OPEN_FILES, reader
from headrace.stores.store import SampleStore
from headrace.testing.damage import restored

Samples = list[tuple[str, dict[str, bytes]]]
"""Key and parts of each sample, in order."""

_SIZES = (0, 1, 511, 512, 513, 3000, 70_000)


def numbered_samples(count: int, *, prefix: str = "") -> Samples:
    """Return samples of two or three parts with different contents, whose sizes include those around a tar block."""
    samples: Samples = []
    for number in range(count):
        rng = np.random.default_rng(number)
        parts = {"jpg": rng.bytes(_SIZES[number % len(_SIZES)]), "txt": f"caption {number}".encode()}
        if number % 3 == 0:
            parts["detail.json"] = b'{"number": %d}' % number
        samples.append((f"{prefix}{number // 5}/{number:04d}-\u00e9", parts))
    return samples


class SampleStoreContract:
    """Inherit it and define `write` and `open`, and `samples` if a layout cannot hold all keys and parts."""

    count: ClassVar[int] = 23

    def samples(self) -> Samples:
        """Return the samples that are written. All keys differ, and each sample has a part."""
        return numbered_samples(self.count)

    def write(self, folder: Path, samples: Samples) -> Path:
        """Write the samples below an empty folder, in several shards if possible, and return what `open` accepts."""
        raise NotImplementedError

    def open(self, path: Path) -> SampleStore:
        """Open the store that `write` wrote."""
        raise NotImplementedError

    @pytest.fixture
    def written(self) -> Samples:
        return self.samples()

    @pytest.fixture
    def path(self, tmp_path: Path, written: Samples) -> Path:
        (tmp_path / "one").mkdir()
        return self.write(tmp_path / "one", written)

    @pytest.fixture
    def store(self, path: Path) -> SampleStore:
        return self.open(path)

    def test_counts(self, store: SampleStore, written: Samples) -> None:
        assert len(store) == len(written)
        assert store.shard_bounds.dtype == np.int64
        assert store.shard_bounds.shape == (len(store.shards) + 1,)
        assert (store.shard_bounds[0], store.shard_bounds[-1]) == (0, len(written))
        assert not (np.diff(store.shard_bounds) < 0).any()
        assert store.files
        assert all(file.is_file() for file in store.files)
        assert f"{len(written)} samples" in repr(store)
        assert store.format in repr(store)

    def test_every_sample(self, store: SampleStore, written: Samples) -> None:
        for number, (key, parts) in enumerate(written):
            for index in (number, number - len(written)):
                sample = store[index]
                assert (sample.key, sample.parts) == (key, parts)
                assert list(sample.parts) == list(parts)
                assert all(type(content) is bytes for content in sample.parts.values())
            shard = int(np.searchsorted(store.shard_bounds, number, side="right")) - 1
            assert sample.shard == store.shards[shard]
            assert store.key(number) == key

    def test_places(self, store: SampleStore, written: Samples) -> None:
        """The bytes of a part are where the store says. A layout without such bytes names no places."""
        files = {str(file): file for file in store.files}
        for number, (_, parts) in enumerate(written):
            places = store.places(number)
            assert list(places) == list(parts)
            for part, place in places.items():
                content = files[place.file].read_bytes()[place.offset : place.offset + place.size]
                assert content == parts[part]

    @pytest.mark.parametrize("seed", range(6))
    def test_batches_are_the_singles_in_any_order(self, store: SampleStore, written: Samples, seed: int) -> None:
        rng = np.random.default_rng(seed)
        size = int(rng.choice([1, 2, 7, 3 * len(written)]))
        indices = rng.integers(0, len(written), size)  # some of them more than once
        found = store.read(indices)
        assert [(sample.key, sample.parts) for sample in found] == [written[index] for index in indices.tolist()]
        assert found == [store[index] for index in indices.tolist()]
        negative = (indices - len(written)).tolist()
        assert store.__getitems__(negative) == found

    def test_all_at_once(self, store: SampleStore, written: Samples) -> None:
        for order in (np.arange(len(written)), np.arange(len(written))[::-1]):
            assert [sample.key for sample in store.read(order)] == [written[index][0] for index in order.tolist()]

    def test_one_sample_twice_is_two(self, store: SampleStore) -> None:
        first, second = store.read(np.array([1, 1]))
        first.parts.clear()
        assert second.parts

    def test_an_empty_batch(self, store: SampleStore) -> None:
        assert store.read(np.zeros(0, np.int64)) == []
        assert store.__getitems__([]) == []

    def test_only_some_parts(self, store: SampleStore, written: Samples) -> None:
        names = sorted({part for _, parts in written for part in parts})
        every = np.arange(len(written))
        for wanted in ([], names[:1], names[-1:], names[:2], names, ["none"], [*names, "none"]):
            for parts in (wanted, tuple(wanted), frozenset(wanted)):
                assert [(sample.key, sample.parts) for sample in store.read(every, parts)] == [
                    (key, {part: content for part, content in has.items() if part in wanted}) for key, has in written
                ]

    @pytest.mark.parametrize("beyond", [0, 1, 2**40])
    def test_out_of_range(self, store: SampleStore, written: Samples, beyond: int) -> None:
        count = len(written)
        for index in (count + beyond, -count - 1 - beyond):
            with pytest.raises(IndexError, match=rf"{index}.*out of range"):
                store[index]
            with pytest.raises(IndexError):
                store.read(np.array([0, index, 1]))
        for ask in (store.key, store.places):
            with pytest.raises(IndexError):
                ask(count + beyond)

    def test_numbers_must_be_whole(self, store: SampleStore) -> None:
        with pytest.raises(TypeError, match="integers"):
            store.__getitems__([0.5])  # type: ignore[list-item]

    def test_find(self, store: SampleStore, written: Samples) -> None:
        for number, (key, _) in enumerate(written):
            assert store.find(key) == number
        for key in ("", "no such key", f"{written[0][0]}."):
            with pytest.raises(KeyError):
                store.find(key)

    def test_samples_outlive_the_store(self, path: Path, written: Samples) -> None:
        with self.open(path) as store:
            found = store.read(np.arange(len(written)))
        del store
        assert [(sample.key, sample.parts) for sample in found] == written

    def test_a_closed_store_opens_its_files_again(self, store: SampleStore, written: Samples) -> None:
        assert store[0].parts == written[0][1]
        store.close()
        assert store[len(written) - 1].parts == written[-1][1]

    def test_few_files_open_at_once(
        self, store: SampleStore, written: Samples, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(OPEN_FILES, "max_open", 1)
        OPEN_FILES.make_room()  # whatever other tests have opened
        order = np.random.default_rng(0).permutation(len(written))
        assert [sample.parts for sample in store.read(order)] == [written[index][1] for index in order.tolist()]
        assert [store[index].parts for index in order.tolist()] == [written[index][1] for index in order.tolist()]
        assert len(OPEN_FILES) <= 1

    def test_a_file_that_changes_under_use(
        self, store: SampleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.read(np.arange(len(store)))
        (place, *_) = store.places(0).values()
        with Path(place.file).open("ab") as file:
            file.write(b"\n" * 512)
        (tmp_path / "other").write_bytes(b"")
        monkeypatch.setattr(OPEN_FILES, "max_open", 1)
        reader("pread").size(str(tmp_path / "other"))  # Now no file of the store is open.
        with pytest.raises(StoreError, match="changed while it was in use"):
            store[0]

    def test_pickled_as_what_opens_it(self, store: SampleStore, written: Samples) -> None:
        data = pickle.dumps(store)
        assert len(data) < 4000
        again = pickle.loads(data)
        assert (again.path, again.fingerprint, again.shards) == (store.path, store.fingerprint, store.shards)
        every = np.arange(len(written))
        assert again.read(every) == store.read(every)

    def test_a_pickled_store_that_changed_is_refused(self, store: SampleStore, tmp_path: Path) -> None:
        data = pickle.dumps(store)
        shutil.rmtree(tmp_path / "one")
        (tmp_path / "one").mkdir()
        self.write(tmp_path / "one", self.samples()[:-1])
        with pytest.raises(StoreError, match="changed since"):
            pickle.loads(data)

    def test_threads(self, store: SampleStore, written: Samples) -> None:
        def read(seed: int) -> bool:
            order = np.random.default_rng(seed).permutation(len(written))
            wanted = [written[index][1] for index in order.tolist()]
            return all([sample.parts for sample in store.read(order)] == wanted for _ in range(4))

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(read, range(16)))

    def test_fork(self, store: SampleStore, written: Samples) -> None:
        store.read(np.array([0]))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                every = store.read(np.arange(len(written)))
                code = 42 if [(sample.key, sample.parts) for sample in every] == written else 2
            finally:
                os._exit(code)
        assert store[1].parts == written[1][1]
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42

    def test_fingerprint(self, tmp_path: Path, path: Path, written: Samples) -> None:
        prints = {self.open(path).fingerprint, self.open(path).fingerprint}
        (tmp_path / "elsewhere").mkdir()
        prints.add(self.open(self.write(tmp_path / "elsewhere", written)).fingerprint)
        assert len(prints) == 1
        key, parts = written[1]
        longer = {part: content + b" " * 600 for part, content in parts.items()}
        others = [written[:-1], [written[0], (key, longer), *written[2:]]]
        for number, other in enumerate(others):
            (tmp_path / str(number)).mkdir()
            prints.add(self.open(self.write(tmp_path / str(number), other)).fingerprint)
        assert len(prints) == 1 + len(others)

    def test_check_finds_nothing_wrong(self, store: SampleStore) -> None:
        assert list(store.check()) == []

    def test_check_finds_a_file_that_was_cut_short(self, path: Path, store: SampleStore) -> None:
        files = {place.file for number in range(len(store)) for place in store.places(number).values()}
        store.close()
        assert files
        for file in files:
            with restored(Path(file)) as content:
                Path(file).write_bytes(content[: len(content) // 2 + 1])
                assert self._is_found_at_fault(path), file

    def _is_found_at_fault(self, path: Path) -> bool:
        try:
            with self.open(path) as store:
                return any(True for _ in store.check())
        except HeadraceError:
            return True
