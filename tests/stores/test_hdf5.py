"""The store contract over HDF5, datasets in order, files that others wrote, and a file that appears whole or not."""

from __future__ import annotations

import contextlib
import json
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import headrace.stores as stores
from counts import cases
from headrace.errors import ConfigError, InputError, MissingExtraError, StoreError
from headrace.io import file_sum
from headrace.stores import (
    Hdf5Writer,
    KeyInfo,
    OutputShard,
    save_manifest,
    write_hdf5,
)
from headrace.testing.stores import Documents, numbered_documents
from store_contracts import OpenedContract, ShardedContract
from stored import files
from token_shards import manifest_of

h5py = pytest.importorskip("h5py", reason="pip install 'headrace[hdf5]'")

GOLDEN = Path(__file__).parents[1] / "golden" / "hdf5"


def write_shard(path: Path, documents: Documents, dtype: str, **other: tuple[str, Documents]) -> OutputShard:
    keys = {"tokens": (dtype, documents), **other}
    with Hdf5Writer(path, dtypes={key: kind for key, (kind, _) in keys.items()}) as writer:
        tokens = {key: np.concatenate([np.empty(0, kind), *parts]) for key, (kind, parts) in keys.items()}
        lengths = {key: np.array([len(part) for part in parts], np.int64) for key, (_, parts) in keys.items()}
        writer.add_documents({key: tokens[key].astype(kind) for key, (kind, _) in keys.items()}, lengths)
        return writer.finish()


class TestMapped(OpenedContract):
    test_check_finds_every_flipped_bit = None  # every byte of a file of 10 KB is too dear: a sample of them is below

    def write(self, folder: Path, documents: Documents) -> Path:
        write_shard(folder / "s.h5", documents, self.dtype)
        return folder / "s.h5"

    def test_check_finds_flipped_bits(self, tmp_path: Path, documents: Documents) -> None:
        path = tmp_path / "s.h5"
        shard = write_shard(path, documents, self.dtype)
        save_manifest(tmp_path, manifest_of([OutputShard.of(shard, tmp_path)]))
        assert list(self.open(path).check()) == []
        content = path.read_bytes()
        for at in range(0, len(content), 61):
            path.write_bytes(content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :])
            assert self._is_found_at_fault(path), f"bit {at % 8} of byte {at}"


class TestRead(TestMapped):
    test_check_finds_flipped_bits = None

    options: ClassVar = {"reader": "pread"}


class TestSharded(ShardedContract):
    """In several folders."""

    test_check_finds_every_flipped_bit = None
    dtype = "int32"

    def write_shard(self, folder: Path, number: int, documents: Documents) -> None:
        domain = folder / f"domain{number // 10}"
        domain.mkdir(exist_ok=True)
        write_shard(domain / f"data_{number}{'.h5' if number % 2 else '.hdf5'}", documents, self.dtype)


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
    with pytest.raises(ConfigError, match=r"'size'.*'number'.*'name'"):
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
    found = store.document(1, ["chosen", "rejected"])
    assert {key: values.tolist() for key, values in found.items()} == {"chosen": [0, 1], "rejected": [0, 1, 2]}
    with pytest.raises(ConfigError, match=r"'rejected'.*'chosen'"):
        store.fetch(0, 1, "rejected")
    for ask in (lambda: store.stream_view("one"), lambda: store.document(0, "one")):
        with pytest.raises(ConfigError, match=r"'one'.*1.*'chosen'"):
            ask()
    assert stores.open_keys(path)["rejected"].document(1).tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"'two'.*'chosen'.*'one'"):
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


NOT_IN_THIS_LAYOUT: dict[str, tuple[str, dict[str, Any] | None, str]] = {
    "chunked": ("tokens/data_2", {"data": [1, 2], "chunks": (1,), "compression": "gzip"}, "chunked"),
    "never written": ("tokens/data_2", {"shape": (5,), "dtype": "i8"}, "written"),
    "two dimensions": ("tokens/data_2", {"data": [[1, 2]]}, r"\(1, 2\)"),
    "another dtype": ("tokens/data_2", {"data": np.array([1, 2], "i4")}, "int32.*int64"),
    "big endian": ("a/data_0", {"data": np.array([1, 2], ">i4")}, ">i4.*bool.*little-endian"),
    "text": ("a/data_0", {"data": [b"ab"]}, r"\|O.*bool"),
    "a dataset as a key": ("a", {"data": [1]}, "/a/data_0"),
    "a group in a group": ("tokens/data_2", None, "group"),
}
"""What is added to a file, with the arguments of `create_dataset` or as a group, and what is said of it."""


@pytest.mark.parametrize("name", NOT_IN_THIS_LAYOUT)
def test_what_is_not_in_this_layout(tmp_path: Path, name: str) -> None:
    place, options, message = NOT_IN_THIS_LAYOUT[name]
    path = plain(tmp_path / "x.h5", tokens=[np.arange(3), np.arange(2)])
    with h5py.File(path, "a") as file:
        file.create_group(place) if options is None else file.create_dataset(place, **options)
    with pytest.raises(StoreError, match=f"/{place}.*{message}"):
        stores.open(path)


@pytest.mark.parametrize("link", [h5py.ExternalLink("/etc/passwd", "/x"), h5py.SoftLink("/tokens/data_0")])
def test_links_are_not_followed(tmp_path: Path, link: Any) -> None:
    path = plain(tmp_path / "x.h5", tokens=[np.arange(3), np.arange(2)])
    with h5py.File(path, "a") as file:
        file["tokens"]["data_2"] = link
    with pytest.raises(StoreError, match=r"/tokens/data_2.*link"):
        stores.open(path)


def test_no_key(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="group"):
        stores.open(plain(tmp_path / "x.h5"))
    store = stores.open(plain(tmp_path / "y.h5", tokens=[]))
    assert (store.num_documents, store.num_tokens, list(store.check())) == (0, 0, [])


def test_a_torn_file(tmp_path: Path) -> None:
    path = plain(tmp_path / "x.h5", tokens=[np.arange(3), np.arange(2000)])
    content = path.read_bytes()
    for torn in (*(content[:size] for size in (0, 7, 100, 2000, len(content) - 1)), bytes(4096)):
        path.write_bytes(torn)
        with pytest.raises(StoreError, match=r"x\.h5.*HDF5"):
            stores.open(path)
    with pytest.raises(StoreError, match=r"no\.h5"):
        stores.open(tmp_path / "no.h5")


def test_a_dataset_that_would_lie_beyond_the_file(tmp_path: Path) -> None:
    path = plain(tmp_path / "x.h5", tokens=[np.arange(3), np.arange(50)])
    with h5py.File(path, "r") as file:
        offset = file["tokens/data_1"].id.get_offset()
    content = path.read_bytes()
    assert content.count(struct.pack("<Q", offset)) == 1
    # HDF5 2.0 sees it itself; older ones leave it to us.
    path.write_bytes(content.replace(struct.pack("<Q", offset), struct.pack("<Q", len(content) - 8)))
    with pytest.raises(StoreError, match=r"400|corruption"):
        stores.open(path)


def test_any_damage_is_an_error_or_other_values(tmp_path: Path) -> None:
    """Never another exception, and never a read beyond the file."""
    path = plain(tmp_path / "x.h5", tokens=[np.arange(3), np.arange(50)], mask=[np.ones(3, bool)])
    content = path.read_bytes()
    rng = np.random.default_rng(3)
    for at in rng.integers(0, len(content), 300):
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << int(rng.integers(8)))]) + content[at + 1 :])
        with contextlib.suppress(StoreError), stores.open(path) as store:
            store.fetch(0, store.num_tokens)
            list(store.check(vocab_size=100))


def test_a_bool_that_is_none(tmp_path: Path) -> None:
    path = plain(tmp_path / "x.h5", tokens=[np.arange(3), np.arange(2)], mask=[np.ones(3, bool), np.ones(2, bool)])
    at = h5py.File(path, "r")["mask/data_1"].id.get_offset()
    content = path.read_bytes()
    path.write_bytes(content[: at + 1] + b"\2" + content[at + 2 :])
    assert [problem.place for problem in stores.open(path).check()] == ["key 'mask', document 1, value 4 of the stream"]


def test_a_dataset_that_is_missing(tmp_path: Path) -> None:
    path = plain(tmp_path / "x.h5", tokens=[[1], [2], [3]])
    with h5py.File(path, "a") as file:
        del file["tokens/data_1"]
    store = stores.open(path)
    assert store.fetch(0, 2).tolist() == [1, 3]
    assert [(one.place, one.message.partition(" ")[0]) for one in store.check()] == [("/tokens", "data_1")]
    with h5py.File(path, "a") as file:
        file["tokens"].move("data_2", "last")
    assert list(stores.open(path).check()) == [], "names that are no numbers miss none"


def test_a_key_that_a_shard_lacks(tmp_path: Path) -> None:
    plain(tmp_path / "data_0000.h5", sequence=[[1, 2]], loss_mask=[[True, False]])
    plain(tmp_path / "data_0001.h5", sequence=[[3]])
    with pytest.raises(StoreError, match=r"data_0000\.h5.*int64.*loss_mask"):
        stores.open(tmp_path)
    plain(tmp_path / "data_0001.h5", loss_mask=[[True]])
    with pytest.raises(StoreError, match=r"data_0001\.h5.*'sequence'"):
        stores.open(tmp_path)


def test_a_manifest_lists_what_is_opened(tmp_path: Path) -> None:
    outputs = []
    for number in (1, 0):
        documents = numbered_documents([2, number], "uint16")
        masks = [np.array([True, False]), np.ones(number, bool)]
        shard = write_shard(tmp_path / f"data_{number:04d}.h5", documents, "uint16", masks=("bool", masks))
        outputs.append(OutputShard.of(shard, tmp_path))
    save_manifest(tmp_path, manifest_of(outputs))
    plain(tmp_path / "not_listed.h5", tokens=[[9]])
    store = stores.open(tmp_path)
    assert store.lengths.tolist() == [2, 1, 2, 0]
    assert store.document(1, "masks").tolist() == [True]
    assert list(store.check(vocab_size=4)) == []
    path = tmp_path / "data_0000.h5"
    plain(path, tokens=[[1], [2]], masks=[[True], [True]])
    with pytest.raises(StoreError, match=r"'tokens'.*int64.*uint16"):
        stores.open(tmp_path)
    plain(path, tokens=[np.array([1, 2], "u2")], masks=[[True, True]])
    with pytest.raises(StoreError, match=r"found 1 documents.*2.*lists 2"):
        stores.open(tmp_path)
    path.unlink()
    with pytest.raises(StoreError, match=r"data_0000\.h5.*headrace\.json"):
        stores.open(tmp_path)


def test_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = plain(tmp_path / "x.h5", tokens=[[1]])
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"x\.h5.*HDF5.*h5py"):
        stores.open(path)
    with pytest.raises(MissingExtraError, match=r"y\.h5.*HDF5.*h5py"):
        Hdf5Writer(tmp_path / "y.h5", dtypes={"a": "int32"})


ONE = np.array([1])


def test_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "data_0000.h5"
    with Hdf5Writer(path, dtypes={"sequence": "uint16", "rewards": "float32"}, values=["rewards"]) as writer:
        writer.add_documents(
            {"sequence": np.array([1, 2, 3]), "rewards": np.array([0.5])},
            {"sequence": np.array([3, 0]), "rewards": np.array([0, 1])},
        )
        writer.add_documents({"sequence": ONE, "rewards": ONE}, {"sequence": ONE, "rewards": ONE})
        assert (writer.num_documents, writer.num_tokens) == (3, 6)
        assert all(name.startswith(".data_0000.h5.") for name in files(tmp_path))
        shard = writer.finish()
    assert (shard.format, shard.prefix, shard.documents) == ("hdf5", str(tmp_path / "data_0000"), 3)
    assert (shard.contiguous, shard.files) == (True, (file_sum(path),))
    assert shard.keys == {
        "sequence": KeyInfo(dtype="uint16", tokens=4),
        "rewards": KeyInfo(dtype="float32", tokens=2, ids=False),
    }
    assert list(files(tmp_path)) == ["data_0000.h5"]
    store = stores.open(path)
    assert store.lengths.tolist() == [3, 0, 1]
    assert store.document(1, "rewards").tolist() == [0.5]


def test_the_same_documents_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.h5", "b.h5"):
        write_hdf5(tmp_path / name, {"tokens": [np.arange(5), np.arange(3)], "mask": [np.ones(8, bool)]})
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_arrays_of_different_dtypes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'a'.*int32.*int64"):
        write_hdf5(tmp_path / "x.h5", {"a": [np.zeros(1, "i4"), np.zeros(1, "i8")]})
    with pytest.raises(InputError, match="one-dimensional"):
        write_hdf5(tmp_path / "x.h5", {"a": [np.zeros((1, 1), "i4")]})
    assert list(files(tmp_path)) == []


_FILL_THE_DISK = """
import resource, signal, sys
import numpy as np
from headrace.errors import OutputError
from headrace.stores import Hdf5Writer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    with Hdf5Writer(sys.argv[1], dtypes={"a": "int64"}) as writer:
        for _ in range(40):
            writer.add_documents({"a": np.arange(1000)}, {"a": np.array([1000])})
        writer.finish()
except OutputError as error:
    print(error)
"""


@pytest.mark.parametrize("size", [100, 5_000, 200_000])
def test_a_full_disk(tmp_path: Path, size: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FILL_THE_DISK, str(tmp_path / "x.h5"), str(size)],
        capture_output=True,
        check=False,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "x.h5: cannot " in done.stdout
    assert list(files(tmp_path)) == []
