"""The store contract over HDF5, and what only it has: datasets in order, and files that others wrote."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace.stores as stores
from counts import cases
from headrace.errors import ConfigError, MissingExtraError, StoreError
from headrace.io import file_sum
from headrace.stores import (
    Hdf5Store,
    Hdf5Writer,
    OutputShard,
    ShardedStore,
    Store,
    WrittenShard,
    save_manifest,
    write_hdf5,
)
from headrace.testing.shards import manifest_of
from headrace.testing.stores import Documents, StoreContract, numbered_documents

h5py = pytest.importorskip("h5py", reason="pip install 'headrace[hdf5]'")

GOLDEN = Path(__file__).parents[1] / "golden" / "hdf5"


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests read; what they wrote need not survive the machine."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


def write_shard(path: Path, documents: Documents, dtype: str, **other: tuple[str, Documents]) -> WrittenShard:
    keys = {"tokens": (dtype, documents), **other}
    with Hdf5Writer(path, dtypes={key: kind for key, (kind, _) in keys.items()}) as writer:
        tokens = {key: np.concatenate([np.empty(0, kind), *parts]) for key, (kind, parts) in keys.items()}
        lengths = {key: np.array([len(part) for part in parts], np.int64) for key, (_, parts) in keys.items()}
        writer.add_documents({key: tokens[key].astype(kind) for key, (kind, _) in keys.items()}, lengths)
        return writer.finish()


def vouch(folder: Path, shards: list[Store]) -> None:
    """A manifest that lists the shards as they are."""
    outputs = []
    for store in shards:
        assert isinstance(store, Hdf5Store)
        keys = {
            key: stores.KeyInfo(dtype=dtype.name, tokens=int(store._bounds[key][-1]))
            for key, dtype in store.dtypes.items()
        }
        written = WrittenShard(
            format="hdf5",
            prefix=str(Path(store.file).with_suffix("")),
            num_documents=store.num_documents,
            keys=keys,
            contiguous=True,
            files=(file_sum(store.file),),
        )
        outputs.append(OutputShard.of(written, folder))
    save_manifest(folder, manifest_of(outputs))


class TestMapped(StoreContract):
    test_check_finds_every_flipped_bit = None  # every byte of a file of 10 KB is too dear: a sample of them is below

    def write(self, folder: Path, documents: Documents) -> Path:
        write_shard(folder / "s.h5", documents, self.dtype)
        return folder / "s.h5"

    def open(self, path: Path) -> Store:
        return stores.open(path)

    def test_check_finds_flipped_bits(self, path: Path) -> None:
        vouch(path.parent, [self.open(path)])
        assert list(self.open(path).check()) == []
        content = path.read_bytes()
        for at in range(0, len(content), 61):
            path.write_bytes(content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :])
            assert self._is_found_at_fault(path), f"bit {at % 8} of byte {at}"


class TestRead(TestMapped):
    test_check_finds_flipped_bits = None

    def open(self, path: Path) -> Store:
        return stores.open(path, reader="pread")


class TestSharded(TestMapped):
    """Every four documents a file, in folders of several depths, and files of nothing between."""

    test_check_finds_flipped_bits = None
    dtype = "int32"

    def write(self, folder: Path, documents: Documents) -> Path:
        parts = [documents[at : at + 4] for at in range(0, len(documents), 4)]
        for number, part in enumerate([*parts[:1], [], *parts[1:], []], start=8):
            place = folder / "data" / f"domain{number // 10}"
            place.mkdir(parents=True, exist_ok=True)
            write_shard(place / f"data_{number}{'.h5' if number % 2 else '.hdf5'}", part, self.dtype)
        return folder / "data"

    def open(self, path: Path) -> Store:
        store = stores.open(path)
        assert isinstance(store, ShardedStore)
        return store


def plain(path: Path, **keys: list[Any]) -> Path:
    """A file made with h5py alone, as AstrAI's ``save_h5`` makes it."""
    with h5py.File(path, "w") as file:
        for key, parts in keys.items():
            group = file.create_group(key)
            for number, part in enumerate(parts):
                group.create_dataset(f"data_{number}", data=part)
    return path


def content(path: Path) -> dict[str, list[tuple[str, str, list[Any], Any]]]:
    """All that h5py says of a file."""
    with h5py.File(path, "r") as file:
        assert not dict(file.attrs)
        return {
            key: [
                (name, file[key][name].dtype.str, file[key][name][:].tolist(), file[key][name].chunks)
                for name in file[key]
            ]
            for key in file
        }


def test_datasets_by_number_or_as_astrai_read_them(tmp_path: Path) -> None:
    path = plain(tmp_path / "x.h5", sequence=[np.array([number] * 2, "i4") for number in range(12)])
    store = stores.open(path)
    assert [int(store.document(at)[0]) for at in range(12)] == list(range(12))
    by_name = stores.open(path, dataset_order="name")
    assert by_name.fetch(0, 24)[::2].tolist() == [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]
    assert pickle.loads(pickle.dumps(by_name)).fetch(4, 5).tolist() == [10]
    assert by_name.fingerprint != store.fingerprint
    assert stores.open(tmp_path, dataset_order="name").fetch(4, 5).tolist() == [10]
    with pytest.raises(ConfigError, match=r"order is 'size'; allowed are 'number', 'name'"):
        stores.open(path, dataset_order="size")  # type: ignore[arg-type]


@pytest.mark.parametrize("reader", ["mmap", "pread"])
def test_golden(reader: str) -> None:
    """A file that AstrAI wrote, and what its own reader made of it, in its order of names."""
    wanted = json.loads((GOLDEN / "loaded.json").read_text())
    by_name = stores.open_keys(GOLDEN / "astrai.h5", reader=reader, dataset_order="name")
    found = {
        key: [[store.document(number).tolist(), store.dtypes[key].name] for number in range(len(store))]
        for key, store in by_name.items()
    }
    assert found == wanted
    store = stores.open(GOLDEN, reader=reader)
    assert store.keys[0] == "sequence"
    assert store.lengths.tolist() == [0, 1, 2, 3] * 3
    assert [store.document(at).tolist() for at in (3, 11)] == [[3, 4, 5], [11, 12, 13]]
    assert store.document(11, "loss_mask").tolist() == [True, False, True]
    assert store.fetch(5, 9, "loss_mask").tolist() == [True, True, True, False]
    assert list(store.check(vocab_size=14)) == []


def test_golden_content(tmp_path: Path) -> None:
    """What we write of the same arrays is the same to h5py; where in the file it lies may differ."""
    arrays = {key: [one.document(at) for at in range(len(one))] for key, one in stores.open_keys(GOLDEN).items()}
    write_hdf5(tmp_path / "x.h5", arrays)
    assert content(tmp_path / "x.h5") == content(GOLDEN / "astrai.h5")


def test_the_pipelines_own_files(tmp_path: Path) -> None:
    """Each key is one dataset; keys that are parallel can be read as streams."""
    plain(tmp_path / "data_0000.h5", sequence=[np.arange(9, dtype="i4")], loss_mask=[np.arange(9) % 2 == 0])
    store = stores.open(tmp_path)
    assert store.keys == ("sequence", "loss_mask")  # by name the mask is first, but it is no stream of ids
    assert store.fetch(3, 6, ["sequence", "loss_mask"])["loss_mask"].tolist() == [False, True, False]
    view = store.stream_view("loss_mask")
    assert view is not None
    assert not view.flags.owndata
    assert store.gather(np.array([0, 5]), 3).tolist() == [[0, 1, 2], [5, 6, 7]]
    assert stores.open(tmp_path, key="loss_mask").keys == ("loss_mask", "sequence")
    assert {key: one.num_tokens for key, one in stores.open_keys(tmp_path).items()} == {"sequence": 9, "loss_mask": 9}


def test_keys_that_are_not_parallel(tmp_path: Path) -> None:
    path = plain(
        tmp_path / "x.h5", chosen=[np.arange(3), np.arange(2)], rejected=[np.arange(2), np.arange(3)], one=[[7]]
    )
    store = stores.open(path)
    assert store.keys == ("chosen", "one", "rejected")
    assert {key: values.tolist() for key, values in store.document(1, ["chosen", "rejected"]).items()} == {
        "chosen": [0, 1],
        "rejected": [0, 1, 2],
    }
    with pytest.raises(ConfigError, match="key 'rejected' has documents of other lengths than the main key 'chosen'"):
        store.fetch(0, 1, "rejected")
    with pytest.raises(
        ConfigError, match="key 'one' has 1 values, but the main key 'chosen' has 5: the streams are not"
    ):
        store.stream_view("one")
    with pytest.raises(
        ConfigError, match="key 'one' has 1 documents, but the main key 'chosen' has 2; open the store with key="
    ):
        store.document(0, "one")
    assert stores.open_keys(path)["rejected"].document(1).tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"no key 'two'; its keys are 'chosen', 'one', 'rejected'"):
        stores.open(path, key="two")


DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


@settings(max_examples=cases(12, 30), deadline=None)
@given(
    keys=st.dictionaries(
        st.sampled_from(["sequence", "loss_mask", "rewards", "a b"]),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.lists(st.integers(0, 1), max_size=4), max_size=13)),
        min_size=1,
    )
)
def test_what_is_written_is_what_save_h5_writes(
    tmp_path_factory: pytest.TempPathFactory, keys: dict[str, tuple[str, list[list[int]]]]
) -> None:
    folder = tmp_path_factory.mktemp("h")
    arrays = {key: [np.array(part, dtype) for part in parts] for key, (dtype, parts) in keys.items()}
    write_hdf5(folder / "ours.h5", arrays)
    plain(folder / "theirs.h5", **arrays)
    assert content(folder / "ours.h5") == content(folder / "theirs.h5")
    for name, store in ((name, stores.open(folder / name)) for name in ("ours.h5", "theirs.h5")):
        assert set(store.keys) == set(keys), name
        for key, one in stores.open_keys(folder / name).items():
            assert [one.document(number).tolist() for number in range(len(one))] == [p.tolist() for p in arrays[key]]
            if arrays[key]:
                assert one.dtypes[key] == np.dtype(keys[key][0])
            assert list(one.check()) == []


def chunked(file: Any) -> None:
    file["tokens"].create_dataset("data_2", data=[1, 2], chunks=(1,), compression="gzip")


def never_written(file: Any) -> None:
    file["tokens"].create_dataset("data_2", shape=(5,), dtype="i8")


def outside(file: Any) -> None:
    file["tokens"]["data_2"] = h5py.ExternalLink("/etc/passwd", "/x")


def in_place(file: Any) -> None:
    file["tokens"]["data_2"] = h5py.SoftLink("/tokens/data_0")


def two_dimensional(file: Any) -> None:
    file["tokens"].create_dataset("data_2", data=[[1, 2]])


def another_dtype(file: Any) -> None:
    file["tokens"].create_dataset("data_2", data=np.array([1, 2], "i4"))


def big_endian(file: Any) -> None:
    file.create_group("a").create_dataset("data_0", data=np.array([1, 2], ">i4"))


def text(file: Any) -> None:
    file.create_group("a").create_dataset("data_0", data=[b"ab"])


def nested(file: Any) -> None:
    file["tokens"].create_group("data_2")


def loose(file: Any) -> None:
    file.create_dataset("a", data=[1])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (chunked, r"/tokens/data_2 is chunked, compressed, external or was never written; .* h5repack"),
        (never_written, r"/tokens/data_2 is chunked, compressed, external or was never written"),
        (outside, r"/tokens/data_2 is a link; only objects in the file itself are read"),
        (in_place, r"/tokens/data_2 is a link"),
        (two_dimensional, r"/tokens/data_2 has the shape \(1, 2\); a document must be one-dimensional"),
        (
            another_dtype,
            r"/tokens/data_2 is of int32, but the datasets before it are of int64; a key must have one dtype",
        ),
        (big_endian, r"/a/data_0 is of >i4; allowed are bool, .* little-endian"),
        (text, r"/a/data_0 is of \|O; allowed are bool"),
        (nested, r"/tokens/data_2 is a group; a key may hold only datasets"),
        (loose, r"/a is a dataset; a key is a group, with its values in /a/data_0"),
    ],
)
def test_what_is_not_in_this_layout(tmp_path: Path, spoil: Any, message: str) -> None:
    path = plain(tmp_path / "x.h5", tokens=[np.arange(3), np.arange(2)])
    with h5py.File(path, "a") as file:
        spoil(file)
    with pytest.raises(StoreError, match=message):
        stores.open(path)


def test_no_key(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no key; a store has a group for each key"):
        stores.open(plain(tmp_path / "x.h5"))
    store = stores.open(plain(tmp_path / "y.h5", tokens=[]))
    assert (store.num_documents, store.num_tokens, list(store.check())) == (0, 0, [])


def test_a_torn_file(tmp_path: Path) -> None:
    path = plain(tmp_path / "x.h5", tokens=[np.arange(3), np.arange(2000)])
    content = path.read_bytes()
    for size in (0, 7, 100, 2000, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(StoreError, match=r"x\.h5: not a complete HDF5 file: "):
            stores.open(path)
    path.write_bytes(b"\0" * 4096)
    with pytest.raises(StoreError, match=r"x\.h5: not a complete HDF5 file: .*signature"):
        stores.open(path)
    with pytest.raises(StoreError, match=r"no\.h5: nothing is there"):
        stores.open(tmp_path / "no.h5")


def test_a_dataset_that_would_lie_beyond_the_file(tmp_path: Path) -> None:
    path = plain(tmp_path / "x.h5", tokens=[np.arange(3), np.arange(50)])
    with h5py.File(path, "r") as file:
        offset = file["tokens/data_1"].id.get_offset()
    content = path.read_bytes()
    assert content.count(struct.pack("<Q", offset)) == 1
    # HDF5 2.0 sees it itself; older ones leave it to us.
    path.write_bytes(content.replace(struct.pack("<Q", offset), struct.pack("<Q", len(content) - 8)))
    with pytest.raises(StoreError, match=r"(400 bytes .* do not lie in the file|likely file corruption)"):
        stores.open(path)


def test_any_damage_is_an_error_or_other_values(tmp_path: Path) -> None:
    """Never another exception, and never a read beyond the file."""
    path = plain(tmp_path / "x.h5", tokens=[np.arange(3), np.arange(50)], mask=[np.ones(3, bool)])
    content = path.read_bytes()
    rng = np.random.default_rng(3)
    for at in rng.integers(0, len(content), 300):
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << int(rng.integers(8)))]) + content[at + 1 :])
        try:
            with stores.open(path) as store:
                store.fetch(0, store.num_tokens)
                list(store.check(vocab_size=100))
        except StoreError:
            pass


def test_a_bool_that_is_none(tmp_path: Path) -> None:
    path = plain(tmp_path / "x.h5", tokens=[np.arange(3), np.arange(2)], mask=[np.ones(3, bool), np.ones(2, bool)])
    at = h5py.File(path, "r")["mask/data_1"].id.get_offset()
    content = path.read_bytes()
    path.write_bytes(content[: at + 1] + b"\2" + content[at + 2 :])
    (problem,) = stores.open(path).check()
    assert str(problem) == f"{path}: document 1, value 4 of the stream: byte 2 is not a bool, 0 or 1"


def test_a_dataset_that_is_missing(tmp_path: Path) -> None:
    path = plain(tmp_path / "x.h5", tokens=[[1], [2], [3]])
    with h5py.File(path, "a") as file:
        del file["tokens/data_1"]
    store = stores.open(path)
    assert store.fetch(0, 2).tolist() == [1, 3]
    (problem,) = store.check()
    assert (problem.place, problem.message) == ("/tokens", "data_1 is missing among 2 datasets")


def test_a_key_that_a_shard_lacks(tmp_path: Path) -> None:
    plain(tmp_path / "data_0000.h5", sequence=[[1, 2]], loss_mask=[[True, False]])
    plain(tmp_path / "data_0001.h5", sequence=[[3]])
    with pytest.raises(
        StoreError, match=r"data_0000\.h5 has sequence of int64, loss_mask of bool, .*data_0001\.h5 has seq"
    ):
        stores.open(tmp_path)
    plain(tmp_path / "data_0001.h5", loss_mask=[[True]])
    with pytest.raises(StoreError, match=r"data_0001\.h5: has no key 'sequence'; .*; shards of different kinds"):
        stores.open(tmp_path)


def test_files_in_natural_order_at_any_depth(tmp_path: Path) -> None:
    for number, name in enumerate(["b/data_10.h5", "b/data_9.hdf5", "a/data_11.h5", ".hidden/data_0.h5"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        plain(tmp_path / name, tokens=[[number]])
    assert stores.open(tmp_path).fetch(0, 3).tolist() == [2, 1, 0]


def test_both_formats_below_a_folder(tmp_path: Path) -> None:
    plain(tmp_path / "x.h5", tokens=[[1]])
    with stores.KeyedWriter(tmp_path / "s", dtypes={"tokens": "int32"}) as writer:
        writer.finish()
    with pytest.raises(
        StoreError, match=r"the folder holds shards of two formats: .*s/meta\.json and .*x\.h5; name a folder"
    ):
        stores.open(tmp_path)
    assert stores.open(tmp_path / "x.h5").num_tokens == 1


def test_options_for_pairs(tmp_path: Path) -> None:
    path = plain(tmp_path / "x.h5", tokens=[[1]])
    with pytest.raises(ConfigError, match=r"dialect and documents are for pairs .*; this is the hdf5 format"):
        stores.open(path, dialect="neox")


class TestManifest:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        outputs = []
        for number in (1, 0):
            shard = write_shard(
                tmp_path / f"data_{number:04d}.h5",
                numbered_documents([2, number], "uint16"),
                "uint16",
                masks=("bool", [np.array([True, False]), np.ones(number, bool)]),
            )
            outputs.append(OutputShard.of(shard, tmp_path))
        save_manifest(tmp_path, manifest_of(outputs))
        return tmp_path

    def test_lists_what_is_opened_in_its_order(self, folder: Path) -> None:
        plain(folder / "not_listed.h5", tokens=[[9]])
        store = stores.open(folder)
        assert store.lengths.tolist() == [2, 1, 2, 0]
        assert store.document(1, ["tokens", "masks"])["masks"].tolist() == [True]
        assert list(store.check(vocab_size=4)) == []
        assert stores.load_manifest(folder).keys == ("masks", "tokens")

    def test_vouches(self, folder: Path) -> None:
        path = folder / "data_0000.h5"
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert any("the bytes were changed" in problem.message for problem in stores.open(path).check())
        plain(path, tokens=[[1], [2]], masks=[[True], [True]])
        with pytest.raises(StoreError, match="not the shard that the manifest lists: found 2 documents"):
            stores.open(folder)
        path.unlink()
        with pytest.raises(StoreError, match=r"data_0000\.h5: missing, but .*headrace\.json lists it"):
            stores.open(folder)


def test_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plain(tmp_path / "x.h5", tokens=[[1]])
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"x\.h5: HDF5 needs h5py: pip install 'headrace\[hdf5\]'"):
        stores.open(path)
    with pytest.raises(MissingExtraError, match=r"y\.h5: HDF5 needs h5py"):
        Hdf5Writer(tmp_path / "y.h5", dtypes={"a": "int32"})
