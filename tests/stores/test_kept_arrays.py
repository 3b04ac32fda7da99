"""Arrays that are kept in a folder or beside a text: whole or not at all, found again, and looked at for damage."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

import killing
from counts import cases
from headrace.compat.megatron import caches
from headrace.compat.megatron.caches import ChunkedArray, write_cache
from headrace.errors import OutputError, StoreError
from headrace.stores import check_arrays, find_arrays, find_cache, keep_arrays, kept_name
from headrace.testing.damage import other_byte
from stored import files

META = b'{"what": "numbers", "of": 3}'
ARRAYS = {
    "bounds": np.array([0, 2, 5], dtype=np.uint32),
    "ends": np.arange(2**40, 2**40 + 100),
    "none": np.zeros(0, dtype=np.uint16),
    "table": np.arange(12, dtype=np.float32).reshape(3, 4),
}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    keep_arrays(tmp_path / "kept", "n", ARRAYS, META)
    return tmp_path / "kept"


def is_whole(folder: Path) -> bool:
    found = find_arrays(folder, "n")
    assert found is not None
    arrays, meta = found
    assert json.loads(meta) == json.loads(META)
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert np.array_equal(arrays[name], array)
        assert not arrays[name].flags.writeable or not array.size
    return check_arrays(folder, "n") == []


def test_found_as_they_were_kept(kept: Path) -> None:
    assert is_whole(kept)
    assert sorted(path.name for path in kept.iterdir()) == ["n"]
    assert {path.stem for path in (kept / "n").iterdir()} == {*ARRAYS, "kept"}
    assert np.array_equal(np.load(kept / "n" / "ends.npy"), ARRAYS["ends"]), "a plain file of NumPy"
    assert find_arrays(kept, "m") is None
    assert find_arrays(kept / "nowhere", "n") is None


def test_they_are_mapped_and_outlive_the_folder(kept: Path) -> None:
    found = find_arrays(kept, "n")
    assert found is not None
    ends = found[0]["ends"]
    mapped = Path("/proc/self/maps").read_text()
    assert str(kept / "n" / "ends.npy") in mapped
    for path in (kept / "n").iterdir():
        path.unlink()
    (kept / "n").rmdir()
    assert np.array_equal(ends, ARRAYS["ends"])


def test_what_is_there_stays(kept: Path) -> None:
    before = {path.name: path.stat().st_ino for path in (kept / "n").iterdir()}
    keep_arrays(kept, "n", {"bounds": np.zeros(5)}, b"{}")
    assert {path.name: path.stat().st_ino for path in (kept / "n").iterdir()} == before
    assert sorted(path.name for path in kept.iterdir()) == ["n"]
    assert is_whole(kept)


@pytest.mark.parametrize("length", [0, 1, 6, 40, 127, 128, 200])
def test_a_truncated_array(kept: Path, length: int) -> None:
    path = kept / "n" / "ends.npy"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(StoreError, match=rf"{path}.*\b{length}\b.*928"):
        find_arrays(kept, "n")
    assert [problem.path for problem in check_arrays(kept, "n")] == [str(path)]


def test_an_array_that_is_too_long_another_or_missing(kept: Path) -> None:
    path = kept / "n" / "ends.npy"
    for change in (path.read_bytes() + b"\0", (kept / "n" / "bounds.npy").read_bytes()):
        path.write_bytes(change)
        with pytest.raises(StoreError, match=rf"{path}.*928"):
            find_arrays(kept, "n")
        assert len(check_arrays(kept, "n")) == 1
    path.unlink()
    with pytest.raises(StoreError, match=rf"{path}"):
        find_arrays(kept, "n")
    assert list(map(str, check_arrays(kept, "n"))) == [f"{path}: missing"]


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b"[]", b'{"arrays": {}}', b'{"arrays": 5, "meta": {}}'])
def test_a_damaged_list(kept: Path, damage: bytes) -> None:
    path = kept / "n" / "kept.json"
    path.write_bytes(damage)
    with pytest.raises(StoreError, match=rf"{path}"):
        find_arrays(kept, "n")
    assert [problem.path for problem in check_arrays(kept, "n")] == [str(path)]


def test_a_list_that_cannot_be_read(kept: Path) -> None:
    (kept / "n" / "kept.json").unlink()
    with pytest.raises(StoreError, match=r"kept\.json"):
        check_arrays(kept, "n")
    (kept / "n" / "kept.json").mkdir()
    with pytest.raises(StoreError, match=r"kept\.json"):
        find_arrays(kept, "n")


@pytest.mark.parametrize("name", list(ARRAYS))
def test_check_finds_every_flipped_bit_of_an_array(kept: Path, name: str) -> None:
    path = kept / "n" / f"{name}.npy"
    content = path.read_bytes()
    for at in range(0, len(content), cases(11, 1)):
        with other_byte(path, at, content[at] ^ (1 << at % 8)):
            assert [problem.path for problem in check_arrays(kept, "n")] == [str(path)]
            with pytest.raises(StoreError, match="xxh3_128"):
                find_arrays(kept, "n")
    assert is_whole(kept)


def test_a_flipped_bit_of_the_list_changes_nothing_unseen(kept: Path) -> None:
    """Not only the sums of the arrays: what the maker says of them, and every blank, too."""
    path = kept / "n" / "kept.json"
    content = path.read_bytes()
    for at in range(0, len(content), cases(7, 1)):
        with other_byte(path, at, content[at] ^ (1 << at % 8)):
            with pytest.raises(StoreError, match=rf"kept\.json.*{kept / 'n'}"):
                find_arrays(kept, "n")
            assert len(check_arrays(kept, "n")) == 1
    assert is_whole(kept)


@pytest.mark.parametrize("name", ["ends.npy", "kept.json", "none.npy"])
def test_a_damaged_cache_is_told_of_and_made_anew(kept: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    path = kept / "n" / name
    content = path.read_bytes()
    path.write_bytes(content[:-2] + b"12")
    assert find_cache(kept, "n") is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(f"{path}: damaged: ")
    assert record.getMessage().endswith("; it is made again")
    keep_arrays(kept, "n", ARRAYS, META)
    assert is_whole(kept)
    assert find_cache(kept, "n") is not None


def test_a_cache_without_its_list_is_made_anew(kept: Path) -> None:
    """As what tidies up old files leaves it: it is not found, and does not stand in the way for ever."""
    (kept / "n" / "kept.json").unlink()
    assert find_arrays(kept, "n") is None
    with pytest.raises(OutputError, match=f"remove.*{kept / 'n'}"):
        keep_arrays(kept, "n", ARRAYS, META)
    assert find_cache(kept, "n") is None
    keep_arrays(kept, "n", ARRAYS, META)
    assert is_whole(kept)


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """There is all or nothing, and what is left of it does not stand in the way of the next one."""
    moment = 0
    done = False
    while not done:
        folder = tmp_path / str(moment)
        done = killing.run(partial(keep_arrays, folder, "n", ARRAYS, META), moment=moment)
        if find_arrays(folder, "n") is None:
            assert not done
            keep_arrays(folder, "n", ARRAYS, META)
        assert is_whole(folder)
        moment += 1
    assert moment > len(ARRAYS) + 3, "at least one for each array, the list, the folder and its name"
    assert [path.name for path in folder.iterdir()] == ["n"]


def test_what_was_left_a_day_ago_is_removed(kept: Path) -> None:
    for age_h, name in ((23, ".n.partial-1-1"), (25, ".n.partial-2-2"), (25, ".m.partial-3-3"), (25, "m")):
        (kept / name).mkdir()
        (kept / name / "bounds.npy").write_bytes(b"half")
        os.utime(kept / name, (time.time() - age_h * 3600,) * 2)
    keep_arrays(kept, "n", ARRAYS, META)
    assert sorted(path.name for path in kept.iterdir()) == [".m.partial-3-3", ".n.partial-1-1", "m", "n"]


def test_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one comes to the name first, at the last moment."""
    rename = Path.rename

    def late(path: Path, target: Path) -> Path:
        monkeypatch.undo()
        keep_arrays(tmp_path, "n", ARRAYS, META)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    keep_arrays(tmp_path, "n", {"bounds": np.zeros(3)}, b"{}")
    assert is_whole(tmp_path), "that of the first one"
    assert [path.name for path in tmp_path.iterdir()] == ["n"]


@pytest.mark.parametrize("call", ["mkdir", "rename", "open"])
def test_a_refusal_names_the_path_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, call, refuse)
        with pytest.raises(OutputError, match=rf"{tmp_path}/\.n\.partial-"):
            keep_arrays(tmp_path, "n", ARRAYS, META)
    assert list(tmp_path.iterdir()) == []


def test_names_tell_facts_apart() -> None:
    facts = [("a",), ("a", 1), ("a", "1"), ("a", None), ("a", {"b": 1}), ("a", {"b": 2}), ("b",), ()]
    names = {kept_name(*fact) for fact in facts}
    assert len(names) == len(facts)
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in names)
    assert kept_name({"b": 1, "a": 2}) == kept_name({"a": 2, "b": 1})
    assert kept_name("packs", 1, "f0", 7, {"max_seq_len": 8}) == "231555670b6849439dd3b8504d27e805"
    with pytest.raises((TypeError, msgspec.MsgspecError)):
        kept_name(object())


def arrays(values: int = 3) -> list[ChunkedArray]:
    rows = np.arange(2 * values).reshape(values, 2)
    return [
        ChunkedArray(suffix="rows.npy", shape=(values, 2), dtype=np.int32, chunks=(rows[:1], rows[1:])),
        ChunkedArray(suffix="ids.npy", shape=(values,), dtype=np.uint32, chunks=[np.arange(values)]),
        ChunkedArray(suffix="none.npy", shape=(0,), dtype=np.int64, chunks=[]),
    ]


def test_bytes_are_those_of_numpy(tmp_path: Path) -> None:
    assert write_cache(tmp_path / "a" / "b", "s", "text", arrays())
    found = files(tmp_path / "a/b")
    for name, array in (("rows", np.arange(6, dtype=np.int32).reshape(3, 2)), ("none", np.empty(0, dtype=np.int64))):
        np.save(tmp_path / f"{name}.npy", array)
        assert found[f"s-{name}.npy"] == (tmp_path / f"{name}.npy").read_bytes()
    assert (len(found), found["s-description.txt"]) == (4, b"text")


def test_a_cache_that_is_there_stays(tmp_path: Path) -> None:
    assert write_cache(tmp_path, "s", "text", arrays())
    before = {path: path.stat().st_ino for path in tmp_path.iterdir()}
    assert not write_cache(tmp_path, "s", "text", arrays())
    with pytest.raises(OutputError, match=r"s-rows.npy"):
        write_cache(tmp_path, "s", "text", arrays(4))
    assert {path: path.stat().st_ino for path in tmp_path.iterdir()} == before
    assert write_cache(tmp_path, "s", "text", arrays(4), replace=True)
    assert len(np.load(tmp_path / "s-ids.npy")) == 4


@pytest.mark.parametrize("missing", ["rows.npy", "none.npy", "description.txt"])
def test_half_a_cache_is_replaced(tmp_path: Path, missing: str) -> None:
    """As a Megatron that was killed leaves it, and as it would replace it itself."""
    write_cache(tmp_path, "s", "text", arrays(5))
    (tmp_path / f"s-{missing}").unlink()
    assert write_cache(tmp_path, "s", "text", arrays())
    assert len(np.load(tmp_path / "s-ids.npy")) == 3
    assert len(files(tmp_path)) == 4


def test_nothing_is_left_of_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [*arrays(), ChunkedArray(suffix="x.npy", shape=(3,), dtype=np.int8, chunks=[np.zeros(2)])]
    with pytest.raises(OutputError, match=r"x.npy.*130.*131"):
        write_cache(tmp_path, "s", "text", wrong)
    assert not files(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="exists"):
        write_cache(tmp_path / "file", "s", "text", arrays())


def test_the_description_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    commit = caches.commit
    monkeypatch.setattr(caches, "commit", lambda made: (seen.append([file.path.name for file in made]), commit(made)))
    write_cache(tmp_path, "s", "text", arrays())
    assert seen == [["s-rows.npy", "s-ids.npy", "s-none.npy", "s-description.txt"]]
