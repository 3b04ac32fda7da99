"""What the HDF5 writer refuses, and that its file appears whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.stores as stores
from headrace.errors import ConfigError, InputError, OutputError
from headrace.io import file_sum
from headrace.stores import Hdf5Writer, KeyInfo, WrittenShard, write_hdf5

pytest.importorskip("h5py", reason="pip install 'headrace[hdf5]'")

ONE = np.array([1])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "data_0000.h5"
    with Hdf5Writer(path, dtypes={"sequence": "uint16", "rewards": "float32"}, values=["rewards"]) as writer:
        writer.add_documents(
            {"sequence": np.array([1, 2, 3]), "rewards": np.array([0.5])},
            {"sequence": np.array([3, 0]), "rewards": np.array([0, 1])},
        )
        writer.add_documents({"sequence": ONE, "rewards": ONE}, {"sequence": ONE, "rewards": ONE})
        assert (writer.num_documents, writer.num_tokens) == (3, 6)
        assert names(tmp_path) != ["data_0000.h5"]
        shard = writer.finish()
    assert shard == WrittenShard(
        format="hdf5",
        prefix=str(tmp_path / "data_0000"),
        num_documents=3,
        keys={
            "sequence": KeyInfo(dtype="uint16", tokens=4),
            "rewards": KeyInfo(dtype="float32", tokens=2, ids=False),
        },
        contiguous=True,
        files=(file_sum(path),),
    )
    assert names(tmp_path) == ["data_0000.h5"]
    store = stores.open(path)
    assert store.lengths.tolist() == [3, 0, 1]
    assert store.document(1, "rewards").tolist() == [0.5]


def test_the_same_documents_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.h5", "b.h5"):
        write_hdf5(tmp_path / name, {"tokens": [np.arange(5), np.arange(3)], "mask": [np.ones(8, bool)]})
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


@pytest.mark.parametrize(
    ("name", "dtypes", "values", "message"),
    [
        ("x.bin", {"a": "int32"}, [], r"x\.bin: the name of a file of the hdf5 format must end in \.h5 or \.hdf5"),
        ("x.h5", {}, [], "dtypes names no key"),
        ("x.h5", {"a/b": "int32"}, [], "'a/b' cannot be a key"),
        ("x.h5", {"a": "complex64"}, [], "dtype complex64 is not known"),
        ("x.h5", {"a": "int32"}, ["b"], "values names 'b'; the keys are 'a'"),
    ],
)
def test_what_it_is_not_for(tmp_path: Path, name: str, dtypes: Any, values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Hdf5Writer(tmp_path / name, dtypes=dtypes, values=values)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("tokens", "lengths", "message"),
    [
        ({"a": [1]}, {"a": [1], "b": [1]}, "tokens has the keys 'a', but the writer needs 'a', 'b'"),
        ({"a": [1], "b": [1]}, {"a": [1], "c": [1]}, "lengths has the keys 'a', 'c'"),
        ({"a": [1], "b": [1]}, {"a": [1], "b": [1, 0]}, "different numbers of documents: 1 for 'a', 2 for 'b'"),
        ({"a": [1], "b": [1]}, {"a": [1], "b": [2]}, "the lengths add up to 2, but there are 1 tokens"),
        ({"a": [1], "b": [200]}, {"a": [1], "b": [1]}, "key 'b': token id 200 does not fit into int8"),
    ],
)
def test_documents_that_do_not_fit(tmp_path: Path, tokens: Any, lengths: Any, message: str) -> None:
    with Hdf5Writer(tmp_path / "x.h5", dtypes={"a": "int8", "b": "int8"}) as writer:
        with pytest.raises(InputError, match=message):
            writer.add_documents(
                {key: np.array(part) for key, part in tokens.items()},
                {key: np.array(part) for key, part in lengths.items()},
            )
        writer.add_documents({"a": ONE, "b": ONE}, {"a": ONE, "b": ONE})
        assert writer.finish().num_tokens == 2  # nothing of the call before


def test_arrays_of_different_dtypes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="key 'a' has arrays of int32, int64; a key must have one dtype"):
        write_hdf5(tmp_path / "x.h5", {"a": [np.zeros(1, "i4"), np.zeros(1, "i8")]})
    with pytest.raises(InputError, match="one-dimensional"):
        write_hdf5(tmp_path / "x.h5", {"a": [np.zeros((1, 1), "i4")]})
    assert names(tmp_path) == []


def test_a_writer_that_is_done(tmp_path: Path) -> None:
    writer = Hdf5Writer(tmp_path / "x.h5", dtypes={"a": "int8"})
    writer.finish()
    writer.discard()
    for use in (writer.finish, lambda: writer.add_documents({"a": ONE}, {"a": ONE})):
        with pytest.raises(ConfigError, match="was finished or discarded"):
            use()
    assert names(tmp_path) == ["x.h5"]


def test_what_was_there_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    write_hdf5(path, {"a": [np.arange(3)]})
    before = path.read_bytes()
    with Hdf5Writer(path, dtypes={"a": "int8"}) as writer:
        writer.add_documents({"a": ONE}, {"a": ONE})
    assert (names(tmp_path), path.read_bytes()) == (["x.h5"], before)
    write_hdf5(path, {"a": [np.arange(5)]})
    assert stores.open(path).num_tokens == 5


def test_the_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutputError, match=r"nothing/x\.h5: cannot create: "):
        Hdf5Writer(tmp_path / "nothing" / "x.h5", dtypes={"a": "int8"})
    (tmp_path / "x.h5").write_bytes(b"before")
    for call in ("os.fsync", "pathlib.Path.rename"):
        with monkeypatch.context() as patch, Hdf5Writer(tmp_path / "x.h5", dtypes={"a": "int8"}) as writer:
            patch.setattr(call, lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(OutputError, match=r"x\.h5: cannot write: No space left on device"):
                writer.finish()
        assert names(tmp_path) == ["x.h5"]
        assert (tmp_path / "x.h5").read_bytes() == b"before"


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
    assert names(tmp_path) == []


_BE_KILLED = """
import os, signal, sys
import numpy as np
from headrace.stores import Hdf5Writer
with Hdf5Writer(sys.argv[1], dtypes={"a": "int64"}) as writer:
    writer.add_documents({"a": np.arange(1000)}, {"a": np.array([1000])})
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_nothing_that_opens(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _BE_KILLED, str(tmp_path / "x.h5")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert all(name.startswith(".x.h5.") for name in names(tmp_path))
    assert not os.path.lexists(tmp_path / "x.h5")
    write_hdf5(tmp_path / "x.h5", {"a": [np.arange(2)]})
    assert stores.open(tmp_path).num_tokens == 2
