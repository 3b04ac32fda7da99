"""AstrAI's first store, one JSON object, is converted: the same lists, or an error that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counts import cases
from headrace import convert, stores
from headrace.copying import CopyOptions
from headrace.copying.json_object import JsonObjectStore
from headrace.errors import StoreError
from headrace.io import PreadReader
from headrace.testing.damage import endured

CONTENT: dict[str, Any] = {"sequence": [[1, 2], [], [3]], "rewards": [[0.5], [1], []], "mask": [[True], [], [False]]}


@pytest.mark.parametrize("name", ["x.json", "x.jsonl"])
def test_all_lists_are_there_after(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(json.dumps(CONTENT, indent=1 if name == "x.json" else None))
    convert(tmp_path / name, tmp_path / "out", format="keyed")
    with stores.open(tmp_path / "out") as store:
        assert store.keys == ("sequence", "rewards", "mask")
        for key, documents in CONTENT.items():
            assert [store.document(at, key).tolist() for at in range(3)] == documents
        assert {key: dtype.name for key, dtype in store.dtypes.items()} == {
            "sequence": "int64", "rewards": "float64", "mask": "bool"
        }  # fmt: skip


def test_a_list_of_numbers_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": [1, 2],\n "b": [3]}')
    convert(tmp_path / "x.json", tmp_path / "out", format="keyed")
    with stores.open(tmp_path / "out") as store:
        assert [store.document(0, key).tolist() for key in "ab"] == [[1, 2], [3]]


def test_to_pairs_with_another_dtype(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"tokens": [[1, 2], [900]]}')
    convert(tmp_path / "x.json", tmp_path / "out", format="indexed", options=CopyOptions(dtype="uint16"))
    with stores.open(tmp_path / "out") as store:
        assert store.dtypes["tokens"] == np.uint16
        assert store.fetch(0, 3).tolist() == [1, 2, 900]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": ["text"]}', "not a store of tokens: .*; expected a JSON object with a list of lists of numbers"),
        ('{"a": [[1], 2]}', "not a store of tokens"),
        ('{"a": [[1], [true]]}', "document 1: key 'a' holds both truth values \\(true, false\\) and numbers"),
        ('{"a": [[1], [2]], "b": [[3]]}', "the keys have different numbers of documents"),
        ("{}", "has no key"),
        ('{"a": [[1]', "not a store of tokens.*truncated"),
        ('{"a": [[9223372036854775808]]}', "not a store of tokens|beyond|out of"),
    ],
)
def test_what_is_no_such_object_leaves_nothing(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(StoreError, match=rf"x\.json: .*({message})|x\.json: {message}"):
        convert(tmp_path / "x.json", tmp_path / "out", format="keyed")
    assert not (tmp_path / "out").exists()


numbers = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5) | st.lists(
    st.floats(allow_nan=False, allow_infinity=False), max_size=5
)


@settings(max_examples=cases(10, 50), deadline=None)
@given(records=st.lists(st.tuples(numbers, st.lists(st.booleans(), max_size=3)), min_size=1, max_size=8))
def test_any_lists(tmp_path_factory: pytest.TempPathFactory, records: list[tuple[list[Any], list[bool]]]) -> None:
    folder = tmp_path_factory.mktemp("j")
    content = {"a": [one for one, _ in records], "b\u00e9 \n": [two for _, two in records]}
    (folder / "x.json").write_text(json.dumps(content))
    with JsonObjectStore(folder / "x.json", using=PreadReader()) as store:
        for key, documents in content.items():
            dtype = store.dtypes[key]
            assert [store.document(at, key).tolist() for at in range(len(records))] == [
                np.array(one, dtype).tolist() for one in documents
            ]
            assert (
                store.with_main(key).stream_view().tolist()
                == np.concatenate(  # type: ignore[union-attr]
                    [np.array(one, dtype) for one in documents]
                ).tolist()
            )


def test_damage_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"tokens": [[1, 2, 3], [4], []], "mask": [[1, 0, 1], [1], []]}')

    def use() -> list[list[int]]:
        with JsonObjectStore(path, using=PreadReader()) as store:
            return [store.document(at).tolist() for at in range(len(store))]

    assert endured(path, use, count=cases(10, 2000), vouched=False) == {}
