"""Arrays beside a text: written whole or not at all, and never over another one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.compat.megatron import caches
from headrace.compat.megatron.caches import ChunkedArray, write_cache
from headrace.errors import OutputError


def arrays(values: int = 3) -> list[ChunkedArray]:
    rows = np.arange(2 * values).reshape(values, 2)
    return [
        ChunkedArray(suffix="rows.npy", shape=(values, 2), dtype=np.int32, chunks=(rows[:1], rows[1:])),
        ChunkedArray(suffix="ids.npy", shape=(values,), dtype=np.uint32, chunks=[np.arange(values)]),
        ChunkedArray(suffix="none.npy", shape=(0,), dtype=np.int64, chunks=[]),
    ]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_bytes_are_those_of_numpy(tmp_path: Path) -> None:
    assert write_cache(tmp_path / "a" / "b", "s", "text", arrays())
    np.save(tmp_path / "rows.npy", np.arange(6, dtype=np.int32).reshape(3, 2))
    np.save(tmp_path / "none.npy", np.empty(0, dtype=np.int64))
    for name in ("rows", "none"):
        path = tmp_path / "a" / "b" / f"s-{name}.npy"
        assert path.read_bytes() == (tmp_path / f"{name}.npy").read_bytes()
    assert (tmp_path / "a/b/s-description.txt").read_text() == "text"
    assert len(files(tmp_path / "a/b")) == 4


def test_what_is_there_stays(tmp_path: Path) -> None:
    assert write_cache(tmp_path, "s", "text", arrays())
    before = {path: path.stat().st_ino for path in tmp_path.iterdir()}
    assert not write_cache(tmp_path, "s", "text", arrays())
    with pytest.raises(OutputError, match=r"s-rows.npy: another cache of this name exists, and a run may be"):
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
    with pytest.raises(
        OutputError, match=r"x.npy: the chunks hold 130 bytes, the array needs 131; nothing was written"
    ):
        write_cache(tmp_path, "s", "text", wrong)
    assert not files(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"file: cannot create: File exists"):
        write_cache(tmp_path / "file", "s", "text", arrays())


def test_the_description_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    commit = caches.commit
    monkeypatch.setattr(caches, "commit", lambda made: (seen.append([file.path.name for file in made]), commit(made)))
    write_cache(tmp_path, "s", "text", arrays())
    assert seen == [["s-rows.npy", "s-ids.npy", "s-none.npy", "s-description.txt"]]
