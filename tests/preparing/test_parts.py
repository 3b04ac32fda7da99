"""Files of parts: each reader gets the columns of its part, and nothing else, and notices any damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counts import cases
from headrace.errors import OutputError
from headrace.preparing.duplicates import Columns, parts_of, read_part, write_parts


def drawn(seed: int, count: int) -> Columns:
    rng = np.random.default_rng(seed)
    keys = np.sort(rng.integers(0, 1 << 64, count, np.uint64))
    return np.stack((keys, *rng.integers(0, 1 << 64, (2, count), np.uint64)))


@settings(deadline=None, max_examples=cases(20, 200))
@given(seed=st.integers(0, 1 << 30), count=st.integers(0, 60), bits=st.integers(0, 6))
def test_what_is_read_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, bits: int
) -> None:
    path = tmp_path_factory.mktemp("parts") / "1.0.parts"
    wanted, num_parts = drawn(seed, count), 1 << bits
    parts = parts_of(wanted[0], num_parts)
    write_parts(path, num_parts, parts, wanted)
    found = [read_part(path, part, 3) for part in range(num_parts)]
    assert [columns.shape[1] for columns in found] == np.bincount(parts, minlength=num_parts).tolist()
    assert np.array_equal(np.concatenate(found, axis=1), wanted)
    assert path.stat().st_size == 8 * (num_parts + 1) + sum(8 + columns.nbytes for columns in found)
    assert [name.name for name in path.parent.iterdir()] == [path.name]


def read_all(path: Path, num_parts: int) -> int:
    return sum(read_part(path, part, 3).shape[1] for part in range(num_parts))


def test_any_damage_is_noticed(tmp_path: Path) -> None:
    path, written = tmp_path / "1.0.parts", drawn(3, 12)
    write_parts(path, 4, parts_of(written[0], 4), written)
    data = path.read_bytes()
    assert read_all(path, 4) == 12
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(OutputError, match=r"1\.0\.parts: a part is damaged.*--restart"):
            read_all(path, 4)
    for end in range(len(data)):
        path.write_bytes(data[:end])
        with pytest.raises(OutputError, match=r"1\.0\.parts: a part is damaged.*--restart"):
            read_all(path, 4)
    path.write_bytes(bytes(len(data)))  # as after a loss of power
    with pytest.raises(OutputError, match=r"1\.0\.parts: a part is damaged: it was cut short"):
        read_part(path, 2, 3)
    path.unlink()
    with pytest.raises(OutputError, match=r"1\.0\.parts: cannot read: No such file"):
        read_part(path, 2, 3)


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"1\.0\.parts: cannot write: No such file"):
        write_parts(tmp_path / "none" / "1.0.parts", 1, np.zeros(3, np.int64), drawn(1, 3))
