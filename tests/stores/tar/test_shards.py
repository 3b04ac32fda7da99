"""Shards read by their indexes: indexes that are wrong, samples that are malformed, and random damage."""

from __future__ import annotations

import pickle
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counts import cases
from headrace.errors import HeadraceError, InputError, StoreError
from headrace.stores.kept_arrays import write_offsets
from headrace.stores.store import PartPlace, RawSample
from headrace.stores.tar import scan as runs
from headrace.stores.tar import store as shards
from headrace.stores.tar.index import index_path
from headrace.stores.tar.scan import scan_shard
from headrace.stores.tar.store import TarShards, TarStore
from headrace.testing.samples import Samples, numbered_samples
from tars_made import member, members_of, tar_bytes, write_tar

USING = ("mmap", "pread")


def one(path: Path, count: int, *, using: str = "mmap", hidden: bool = True) -> TarShards:
    return TarShards(path.parent, [path.name], np.array([count]), using=using, hidden=hidden)


def numbers(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def indexed(path: Path, members: list[tuple[str, bytes]]) -> Path:
    write_tar(path, members)
    write_offsets(index_path(path), scan_shard(path).offsets)
    return path


@pytest.mark.parametrize("using", USING)
def test_several_shards(tmp_path: Path, using: str) -> None:
    samples = numbered_samples(40)
    names = [f"{number}/s.tar" for number in range(4)]
    for number, name in enumerate(names):
        indexed(tmp_path / name, members_of(samples[10 * number : 10 * number + 10]))
    store = TarShards(str(tmp_path), [*names, names[1]], np.full(5, 10), using=using)
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(50), 2))
    found = store.read(order // 10, order % 10)
    wanted = [*samples, *samples[10:20]]
    assert [(sample.key, sample.parts) for sample in found] == [wanted[at] for at in order.tolist()]
    assert [(sample.shard, sample.index) for sample in found] == [(store.names[at // 10], at % 10) for at in order]
    assert store.read(numbers(2), numbers(3)) == [RawSample(samples[23][0], "2/s.tar", 3, samples[23][1])]
    assert store.keys(3) == [key for key, _ in samples[30:]]
    assert store.key(3, 9) == samples[39][0]
    assert store.offsets(1).tolist() == scan_shard(tmp_path / names[1]).offsets.tolist()
    path = str(tmp_path / names[0])
    place = store.places(0, 4)["txt"]
    assert isinstance(place, PartPlace)
    assert Path(path).read_bytes()[place.offset : place.offset + place.size] == samples[4][1]["txt"]
    assert store.files == tuple(path for name in names for path in (tmp_path / name, index_path(tmp_path / name)))
    again = pickle.loads(pickle.dumps(store))
    assert again.read(order // 10, order % 10) == found
    assert [list(store.check(shard)) for shard in range(5)] == [[]] * 5
    store.close()
    assert store.read(order // 10, order % 10) == found


@pytest.mark.parametrize("sizes", [(1, 0, 0), (1 << 20, 0, 1 << 30), (10_000, 1 << 20, 2000), (1 << 30, 600, 70_000)])
def test_whatever_is_read_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(runs, "_CALL_BYTES", sizes[0])
    monkeypatch.setattr(runs, "_NEAR_BYTES", sizes[1])
    monkeypatch.setattr(runs, "_PARTLY_BYTES", sizes[2])
    samples = numbered_samples(30)
    store = one(indexed(tmp_path / "x.tar", members_of(samples)), 30, using="pread")
    rng = np.random.default_rng(0)
    for together in (shards._TOGETHER_BYTES, 16):
        monkeypatch.setattr(shards, "_TOGETHER_BYTES", together)
        for parts in (None, ["txt"], ["jpg", "detail.json"], []):
            for size in (1, 2, 9, 60):
                at = rng.integers(0, 30, size)
                found = store.read(np.zeros_like(at), at, parts)
                assert [sample.key for sample in found] == [samples[number][0] for number in at.tolist()]
                assert [sample.parts for sample in found] == [
                    {name: data for name, data in samples[number][1].items() if parts is None or name in parts}
                    for number in at.tolist()
                ]


def test_only_what_is_wanted_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mapping, a caption of a large sample costs its headers."""
    path = indexed(tmp_path / "x.tar", [("a.mp4", bytes(3 << 20)), ("a.txt", b"1"), ("b.txt", b"2")])
    store = one(path, 2, using="pread")
    total = 0
    read = store.reader.read_ranges

    def counted(path: str, offsets: np.ndarray, lengths: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        nonlocal total
        total += int(lengths.sum())
        return read(path, offsets, lengths)

    monkeypatch.setattr(store.reader, "read_ranges", counted)
    assert store.read(numbers(0), numbers(0), ["txt"])[0].parts == {"txt": b"1"}
    assert total < 2 << 20
    total = 0
    assert len(store.read(numbers(0), numbers(0))[0].parts["mp4"]) == 3 << 20
    assert 3 << 20 <= total < 4 << 20


@pytest.mark.parametrize("using", USING)
@pytest.mark.parametrize(
    ("offsets", "error", "match"),
    [
        ([0, 1024, 2048], StoreError, "2 samples in 2,048 bytes.*headrace prepare"),
        ([0, 1024, 2048, 3072, 3072], StoreError, "3 samples were expected"),
        ([0, 1024, 2048, 2**40], StoreError, "cut short, or the index belongs to another"),
        ([0, 2048, 1024, 3072], StoreError, "sample 1 goes from byte 2048 to byte 1024"),
        ([0, -512, 2048, 3072], StoreError, "sample 0 goes from byte 0 to byte -512"),
        ([0, 2**62, 2048, 3072], StoreError, f"to byte {2**62} in the index"),
        ([0, 1024, 3072, 3072], InputError, "sample 1, key 'k1': byte 2048: the member 'k2.txt' of another sample"),
        ([0, 1024, 1024, 3072], InputError, "sample 1: byte 1024: there is no part of a sample up to byte 1024"),
        ([0, 1024, 2000, 3072], InputError, "sample 1: byte 1024: a member of 1 bytes goes past the end"),
        ([0, 1000, 2048, 3072], InputError, "sample 0: byte 0: a member of 1 bytes goes past the end"),
        ([0, 1024, 1030, 3072], InputError, "sample 1: byte 1024: cut short: only 6 bytes"),
        ([0, 1024, 2048, 3584], InputError, "sample 2, key 'k2': byte 3072: the archive ends here"),
        ([0, 1030, 2048, 3072], InputError, "sample 0, key 'k0': byte 1024: cut short"),
    ],
)
def test_an_index_that_is_wrong(
    tmp_path: Path, using: str, offsets: list[int], error: type[Exception], match: str
) -> None:
    path = write_tar(tmp_path / "x.tar", [(f"k{number}.txt", b"1") for number in range(3)])
    write_offsets(index_path(path), offsets)
    store = one(path, 3, using=using)
    with pytest.raises(error, match=match) as caught:
        store.read(np.zeros(3, np.int64), np.arange(3))
    assert str(path) in str(caught.value)
    assert len(list(one(path, 3, using=using).check(0))) >= 1


def test_sample_0_begins_with_the_file(tmp_path: Path) -> None:
    """As Energon reads it: its first entry may say anything."""
    path = write_tar(tmp_path / "x.tar", [("noext", b"1"), ("k0.txt", b"1"), ("k1.txt", b"1")])
    write_offsets(index_path(path), [1500, 2048, 3072])
    assert [one(path, 2).key(0, number) for number in (0, 1)] == ["k0", "k1"]


@pytest.mark.parametrize("using", USING)
def test_missing_files(tmp_path: Path, using: str) -> None:
    path = write_tar(tmp_path / "x.tar", [("k0.txt", b"1")])
    for ask in (lambda: one(path, 1, using=using).key(0, 0), lambda: one(path, 1, using=using).offsets(0)):
        with pytest.raises(
            StoreError, match=r"x\.tar\.idx: there is no such index; make it with headrace prepare .*TarStore"
        ):
            ask()
    with pytest.raises(StoreError, match=r"y\.tar"):
        one(tmp_path / "y.tar", 1, using=using).read(numbers(0), numbers(0))
    (problem,) = one(tmp_path / "y.tar", 1, using=using).check(0)
    assert "no such shard" in problem.message


@pytest.mark.parametrize("using", USING)
def test_members_that_belong_to_no_sample(tmp_path: Path, using: str) -> None:
    folder, _ = member("k0.d", type=tarfile.DIRTYPE)
    link, _ = member("lnk", type=tarfile.LNKTYPE, linkname="k0.txt")
    path = tmp_path / "x.tar"
    entries = [(folder, b""), ("k0.txt", b"1"), (link, b""), ("noext", b"x"), ("k0.jpg", b"2"), ("k1.txt", b"3")]
    path.write_bytes(tar_bytes([*entries, ("README", b"x")]))
    write_offsets(index_path(path), scan_shard(path).offsets)
    found = one(path, 2, using=using).read(numbers(0, 0), numbers(1, 0))
    assert [(sample.key, sample.parts) for sample in found] == [
        ("k1", {"txt": b"3"}),
        ("k0", {"txt": b"1", "jpg": b"2"}),
    ]


def test_keys_that_begin_like_another(tmp_path: Path) -> None:
    names = ["__a.b", "__a.b__", "__a.c", "a.b/c.txt", "a.txt", "a.b.c", "ab.txt", "d/.x", "d/.y.z", "d/a.b"]
    path = indexed(tmp_path / "x.tar", [(name, name.encode()) for name in names])
    found = one(path, 6).read(np.zeros(6, np.int64), np.arange(6))
    assert [(sample.key, list(sample.parts)) for sample in found] == [
        ("__a", ["b", "c"]),
        ("a.b/c", ["txt"]),
        ("a", ["txt", "b.c"]),
        ("ab", ["txt"]),
        ("d/", ["x", "y.z"]),
        ("d/a", ["b"]),
    ]


def small_tar(layout: int) -> tuple[bytes, Samples]:
    samples: Samples = [(f"k{number}", {"jpg": bytes([number]) * 700, "txt": b"t%d" % number}) for number in range(5)]
    samples[2] = ("k2" * 60, samples[2][1]) if layout != tarfile.USTAR_FORMAT else samples[2]
    return tar_bytes(members_of(samples), layout), samples


@settings(max_examples=cases(30, 150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layout=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=4),
    keep=st.one_of(st.none(), st.floats(0, 1)),
    faulty=st.sampled_from(["error", "skip"]),
    using=st.sampled_from(USING),
)
def test_damage(
    tmp_path: Path,
    layout: int,
    flips: list[tuple[float, int]],
    keep: float | None,
    faulty: str,
    using: str,
) -> None:
    """Whatever is flipped or cut: an error with a place, or the samples; those that were not touched stay the same."""
    data, samples = small_tar(layout)
    damaged = bytearray(data)
    touched = [int(place * len(data)) for place, _ in flips]
    for at, (_, bit) in zip(touched, flips, strict=True):
        damaged[at] ^= 1 << bit
    cut = len(data) if keep is None else int(keep * len(data))
    path = tmp_path / "x.tar"
    path.write_bytes(damaged[:cut])
    (tmp_path / "good.tar").write_bytes(data)
    good = scan_shard(tmp_path / "good.tar").offsets.tolist()
    found: list[RawSample] = []
    error: HeadraceError | None = None
    try:
        with TarStore(path, using=using, index="memory", faulty=faulty) as store:  # type: ignore[arg-type]
            found = [store[number] for number in range(len(store))]
            list(store.check())
    except HeadraceError as caught:
        error = caught
    if error is not None:
        assert str(path) in str(error)
        assert re.search(r"byte \d+", str(error))
        assert bytes(damaged[:cut]) != data
        return
    # Samples none of whose bytes were touched are as they were, and in order, wherever the damage is.
    spans = list(zip([0, *good[1:-1]], good[1:], strict=True))
    untouched = [end <= cut and not any(begin <= at < end for at in touched) for begin, end in spans]
    same = {key for (key, _), kept in zip(samples, untouched, strict=True) if kept}
    assert [(sample.key, sample.parts) for sample in found if sample.key in same] == [
        (key, parts) for key, parts in samples if key in same and key in {sample.key for sample in found}
    ]
    # What lies before the damage is there; without a next header nobody knows whether the last of them is whole.
    before = len(samples) if all(untouched) else untouched.index(False)
    assert len(found) >= before - (faulty == "skip")
    sure = max(0, before - 1)
    assert [sample.key for sample in found[:sure]] == [key for key, _ in samples[:sure]]
