"""Every store of this room does what every store of samples does."""

from __future__ import annotations

import itertools
from pathlib import Path

from energon_made import names_of, write_files
from energon_prepared import prepared
from headrace.stores import EnergonStore, FilesystemStore, JoinedStore, JsonlSamplesStore
from headrace.stores.energon import (
    JoinColumn,
    write_join,
    write_lines,
)
from headrace.stores.store import SampleStore
from headrace.testing.samples import Samples, SampleStoreContract, numbered_samples


def in_shards(samples: Samples, *cuts: int) -> dict[str, list[tuple[str, bytes]]]:
    bounds = [0, *cuts, len(samples)]
    return {
        f"s/{at}.tar": [(f"{key}.{part}", data) for key, parts in samples[begin:end] for part, data in parts.items()]
        for at, (begin, end) in enumerate(itertools.pairwise(bounds))
    }


class TestEnergon(SampleStoreContract):
    """The part ``train``: one shard before and behind is of another part, a shard and two samples are left out."""

    def write(self, folder: Path, samples: Samples) -> Path:
        shards = in_shards([*numbered_samples(2, prefix="x"), *samples, *numbered_samples(2, prefix="y")], 2, 9, 17, 22)
        shards["s/2.tar"] = [*shards["s/2.tar"], ("left.txt", b"out")]
        shards["s/3.tar"] = [("out.txt", b"left"), *shards["s/3.tar"]]
        shards["s/4.tar"] = shards["s/4.tar"][:-5]  # the samples of y, of three and two parts
        shards["no.tar"] = [("no.txt", b"")]
        train = [f"s/{at}.tar" for at in range(1, 5)]
        train.insert(2, "no.tar")
        return prepared(folder, shards, {"train": train, "val": ["s/0.tar"]}, ["no.tar", "s/2.tar/left", "s/3.tar/out"])

    def open(self, path: Path) -> SampleStore:
        return EnergonStore(path, split_part="train")


class TestEnergonByPread(TestEnergon):
    """The same without a mapping, and without ``index.sqlite``."""

    def write(self, folder: Path, samples: Samples) -> Path:
        path = super().write(folder, samples)
        (path / ".nv-meta/index.sqlite").unlink()
        return path

    def open(self, path: Path) -> SampleStore:
        return EnergonStore(path, split_part="train", using="pread")


class TestJsonl(SampleStoreContract):
    def samples(self) -> Samples:
        return [(str(number), {"json": b'{"number": %d, "%s": 1}' % (number, b"x" * number)}) for number in range(23)]

    def write(self, folder: Path, samples: Samples) -> Path:
        path = folder / "records.jsonl"
        path.write_bytes(b"\n" + b"\n \r\n".join(parts["json"] for _, parts in samples))
        write_lines(path)
        return path

    def open(self, path: Path) -> SampleStore:
        return JsonlSamplesStore(path)


class TestFiles(SampleStoreContract):
    def samples(self) -> Samples:
        return [(key, dict(sorted(parts.items()))) for key, parts in super().samples()]

    def write(self, folder: Path, samples: Samples) -> Path:
        return write_files(folder, names_of(samples))

    def open(self, path: Path) -> SampleStore:
        return FilesystemStore(path)

    def test_a_pickled_store_that_changed_is_refused(self, store: SampleStore, tmp_path: Path) -> None:
        len(store)  # before it has a list of its files, it knows nothing that could change
        super().test_a_pickled_store_that_changed_is_refused(store, tmp_path)

    def test_check_finds_a_file_that_was_cut_short(self, path: Path, store: SampleStore) -> None:
        """Nothing says how long a plain file should be; one that goes is found."""
        len(store)
        next(path.rglob("*.jpg")).unlink()
        (problem,) = store.check()
        assert problem.path.endswith(".jpg")


class TestJoined(SampleStoreContract):
    """The parts of a sample in two datasets; the second has them in another order, with others between."""

    def samples(self) -> Samples:
        return [
            (key, {("b." if part == "txt" else "a.") + part: data for part, data in parts.items()})
            for key, parts in (
                (key, dict(sorted(parts.items(), key=lambda item: item[0] == "txt")))
                for key, parts in super().samples()
            )
        ]

    def write(self, folder: Path, samples: Samples) -> Path:
        first = [(key, {part[2:]: data for part, data in parts.items() if part[0] == "a"}) for key, parts in samples]
        second = [(key, {part[2:]: data for part, data in parts.items() if part[0] == "b"}) for key, parts in samples]
        prepared(folder / "first", in_shards(first, 7, 14))
        prepared(folder / "second", in_shards([*numbered_samples(3, prefix="z"), *second[::-1]], 13))
        write_join(folder / "cache", self.columns(folder))
        return folder

    def columns(self, folder: Path) -> list[JoinColumn]:
        return [
            JoinColumn(store=EnergonStore(folder / place, split_part="train"), name=name)
            for place, name in (("first", "a"), ("second", "b"))
        ]

    def open(self, path: Path) -> SampleStore:
        store = JoinedStore(self.columns(path), path / "cache")
        store.close()  # the look at the rows opened shards, and a test of the contract counts what reading opens
        return store
