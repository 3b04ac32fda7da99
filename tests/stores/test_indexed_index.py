from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.io import reader
from headrace.stores.indexed.index import ArrayPlace, IntegerColumn
from headrace.stores.indexed.layout import IdxLayout


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", ["mmap", "pread"])
@pytest.mark.parametrize("count", [1, 2, 511, 512, 513, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("repeats", [1, 3, 700])
def test_search(tmp_path: Path, name: str, count: int, repeats: int) -> None:
    """Against NumPy, at an odd offset, with runs of equal entries."""
    entries = np.arange(count) // repeats * 5
    (tmp_path / "x").write_bytes(b"odd" + entries.astype("<i8").tobytes() + b"rest")
    column = IntegerColumn(reader(name), str(tmp_path / "x"), ArrayPlace("", 3, "<i8", count))
    values = np.unique(np.concatenate([entries - 1, entries, entries + 1, [2**62]]).clip(0))
    np.testing.assert_array_equal(column.last_at_most(values), np.searchsorted(entries, values, side="right") - 1)
    assert column.last_at_most(values[:0]).tolist() == []
    np.testing.assert_array_equal(column.read(0, count), entries)
    at = np.array([count - 1, 0])
    np.testing.assert_array_equal(column.take(at), entries[at])


def test_what_bytes_hold() -> None:
    layout = IdxLayout(8, 5, 6)
    assert layout.describe(0, 34) == "header"
    assert layout.describe(33, 35) == "header, sizes of sequences 0 to 0"
    assert layout.describe(62, 95) == "pointers of sequences 1 to 4, document indices 0 to 0"
    assert layout.describe(0, 142) == (
        "header, sizes of sequences 0 to 4, pointers of sequences 0 to 4, document indices 0 to 5"
    )
    assert layout.describe(142, 150) == "unused bytes"
