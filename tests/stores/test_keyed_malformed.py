"""What is refused as a keyed store, with which words; and what `check` says of one that opens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headrace.stores as stores
import made
from headrace.errors import StoreError
from headrace.stores import KeyedStore
from headrace.testing.shards import vouch_for_keyed, write_keyed, write_raw_keyed
from headrace.testing.stores import numbered_documents


def entry(**changes: str) -> bytes:
    """A good entry of three uint8 values, with other JSON texts for some fields."""
    fields = {"shape": "[3]", "dtype": '"uint8"', "offsets": "[0, 1, 3]", **changes}
    return ("{" + ", ".join(f'"{name}": {text}' for name, text in fields.items() if text) + "}").encode()


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        (b"", r"meta\.json: not the meta\.json of a keyed store, .*truncated"),
        (b'{"iteration": 5}', "not the meta.json of a keyed store.*Expected `object`"),
        (b'{"a": {"shape": [3]}}', "missing required field `dtype`"),
        (b'{"a": {"shape": 3, "dtype": "uint8"}}', "Expected `array`"),
        (b'{"a": ' + entry()[:-1], "truncated"),
        (b'{"\xff": ' + entry() + b"}", "not the meta.json"),
        (b"{}", "names no key"),
        (b'{"../a": ' + entry() + b"}", r"meta\.json: '\.\./a' cannot be a key: it names the file"),
        (b'{"": ' + entry() + b"}", "'' cannot be a key"),
        (b'{".a": ' + entry() + b"}", r"'\.a' cannot be a key"),
        (b'{"a\\u0000": ' + entry() + b"}", "cannot be a key"),
        (b'{"a\\\\b": ' + entry() + b"}", "cannot be a key"),
        (b'{"a": ' + entry(dtype='"bfloat16"') + b"}", "key 'a': dtype 'bfloat16' is unknown; allowed are bool, uint8"),
        (b'{"a": ' + entry(dtype='"<u1"') + b"}", "dtype '<u1' is unknown"),
        (b'{"a": ' + entry(shape="[3, 2]") + b"}", r"key 'a': shape \[3, 2\] is not .* arrays of more dimensions"),
        (b'{"a": ' + entry(shape="[]") + b"}", r"shape \[\] is not"),
        (b'{"a": ' + entry(shape="[-3]") + b"}", r"shape \[-3\] is not"),
        (
            b'{"a": ' + entry(shape="[4]") + b"}",
            "offsets must be a list from 0 to 4, the number of values; found 0 to 3",
        ),
        (b'{"a": ' + entry(offsets="[1, 3]") + b"}", "from 0 to 3, the number of values; found 1 to 3"),
        (b'{"a": ' + entry(offsets="[]") + b"}", "offsets must be a list from 0 to 3"),
        (b'{"a": ' + entry(offsets="3") + b"}", "offsets must be a list from 0 to 3"),
        (b'{"a": ' + entry(offsets='"0, 3"') + b"}", "offsets must be a list from 0 to 3"),
        (b'{"a": ' + entry() + b', "b": ' + entry(offsets="[0, 3]") + b"}", "documents: 'a' has 2, 'b' has 1"),
        (
            b'{"a": ' + entry(shape="[4]", offsets="") + b"}",
            r"a\.bin: cut short: 4 values of uint8 take 4 bytes, .* has 3",
        ),
        (b'{"a": ' + entry(dtype='"int16"') + b"}", r"a\.bin: cut short: 3 values of int16 take 6 bytes, .* has 3"),
        (b'{"c": ' + entry() + b"}", r"c\.bin: cannot be opened: No such file"),
        (b'{"a": ' + entry(shape=f"[{2**70}]", offsets="") + b"}", "cut short"),
    ],
)
def test_refused_when_opened(tmp_path: Path, meta: bytes, message: str) -> None:
    write_raw_keyed(tmp_path / "s", meta, {"a": b"\1\2\3", "b": b"\1\2\3"})
    for path in (tmp_path / "s", tmp_path, tmp_path / "s" / "meta.json"):
        with pytest.raises(StoreError, match=message):
            stores.open(path)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ("[0, 2, 1, 3]", "key 'a': document 1 goes from 2 to 1; offsets may not decrease"),
        ("[0, 9, 3]", "document 1 goes from 9 to 3"),
        ("[0, -1, 3]", "document 0 goes from 0 to -1"),
        ("[0, 1.5, 3]", "not a list of whole numbers: Expected `int`, got `float`"),
        ("[0, [1], 3]", "not a list of whole numbers"),
        ('[0, "1", 3]', "not a list of whole numbers"),
        (f"[0, {2**64}, 3]", "not a list of whole numbers"),
    ],
)
def test_refused_when_used(tmp_path: Path, offsets: str, message: str) -> None:
    write_raw_keyed(tmp_path / "s", b'{"a": ' + entry(offsets=offsets) + b"}", {"a": b"\1\2\3"})
    store = stores.open(tmp_path / "s")
    assert store.fetch(0, 3).tolist() == [1, 2, 3]
    with pytest.raises(StoreError, match=message):
        store.document(0)
    (problem,) = store.check()
    assert problem.path == str(tmp_path / "s" / "meta.json")


def check(folder: Path, **options: int) -> list[str]:
    """The problems, without the folder in their paths."""
    return [str(problem).replace(f"{folder.parent}/", "") for problem in stores.open(folder).check(**options)]


def test_values_that_are_no_bool_and_no_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.stores.checking._VALUES_AT_ONCE", 3)
    folder = tmp_path / "s"
    ids = [np.array([0, 1]), np.array([5, 9, 9, 9, -2]), np.zeros(0, int), np.array([10])]
    write_keyed(folder, ids=("int32", ids), mask=("bool", [np.zeros(len(part)) for part in ids]))
    assert check(folder, vocab_size=9) == [
        "s/ids.bin: document 1, value 3 of the stream: id 9 is outside the vocabulary, 0 to 8",
        "s/ids.bin: document 3, value 7 of the stream: id 10 is outside the vocabulary, 0 to 8",
    ]
    assert check(folder, vocab_size=11) == [
        "s/ids.bin: document 1, value 6 of the stream: id -2 is outside the vocabulary, 0 to 10"
    ]
    (folder / "mask.bin").write_bytes(bytes([1, 0, 2, 1, 1, 1, 3, 4]))
    assert check(folder) == [
        "s/mask.bin: document 1, value 2 of the stream: byte 2 is not a bool, 0 or 1",
        "s/mask.bin: document 3, value 7 of the stream: byte 4 is not a bool, 0 or 1",
    ]


def test_many_faults_are_counted(tmp_path: Path) -> None:
    write_keyed(tmp_path / "s", tokens=("uint8", [np.array([7])] * 30))
    problems = check(tmp_path / "s", vocab_size=7)
    assert len(problems) == 21
    assert problems[-1] == "s/tokens.bin: 10 more documents with such ids at fault"


def test_bytes_that_belong_to_nothing(tmp_path: Path) -> None:
    write_keyed(tmp_path / "s", tokens=("uint16", numbered_documents([3], "uint16")))
    with (tmp_path / "s" / "tokens.bin").open("ab") as file:
        file.write(b"12345")
    assert check(tmp_path / "s") == ["s/tokens.bin: 3 values of uint16 take 6 bytes, but the file has 11"]
    assert stores.open(tmp_path / "s").fetch(0, 3).tolist() == [1, 2, 3]


def test_numbers_that_are_no_ids(tmp_path: Path) -> None:
    write_keyed(tmp_path / "s", f=("float32", [np.array([1.5])]), ids=("int32", [np.array([99])]))
    assert check(tmp_path / "s", vocab_size=5) == ["s/f.bin: float32 numbers are not token ids"]
    vouch_for_keyed(tmp_path, [KeyedStore(tmp_path / "s")])
    # The manifest says that all keys came from one tokeniser.
    assert check(tmp_path / "s", vocab_size=5)[1:] == [
        "s/ids.bin: document 0, value 0 of the stream: id 99 is outside the vocabulary, 0 to 4"
    ]


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    write_keyed(tmp_path / "s", ids=("int32", [np.array([9])]), mask=("bool", [np.array([1])]))
    store = stores.open(tmp_path / "s")
    (tmp_path / "s" / "mask.bin").unlink()
    (problem,) = store.check()
    assert (problem.path, problem.message) == (
        str(tmp_path / "s" / "mask.bin"),
        "cannot be opened: No such file or directory",
    )


class TestVouched:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("b", "a"):
            write_keyed(
                tmp_path / name,
                ids=("uint16", numbered_documents([2, len(name)], "uint16")),
                mask=("bool", [*numbered_documents([2, 1], "uint8")[:1], np.array([1])]),
            )
        vouch_for_keyed(tmp_path, [KeyedStore(tmp_path / name) for name in ("b", "a")])
        write_keyed(tmp_path / "not-listed", ids=("int64", []))
        return tmp_path

    def test_lists_what_is_opened_in_its_order(self, folder: Path) -> None:
        assert [Path(shard.folder).name for shard in stores.open(folder).shards] == ["b", "a"]
        assert stores.open(folder, key="mask").num_tokens == 6
        assert list(stores.open_keys(folder)) == ["ids", "mask"]

    def test_a_listed_shard_is_another(self, folder: Path) -> None:
        write_keyed(folder / "a", ids=("uint16", numbered_documents([7], "uint16")), mask=("bool", [np.array([1])]))
        with pytest.raises(
            StoreError, match=r"a: not the shard that the manifest lists: found 1 documents, 7 uint16 v"
        ):
            stores.open(folder)
        assert [str(problem).split(": ", 1)[1] for problem in KeyedStore(folder / "a").check()] == [
            "the manifest says 6 bytes, the file has 14",
            "the manifest says 3 bytes, the file has 1",
            *[str(problem).split(": ", 1)[1] for problem in KeyedStore(folder / "a").check()][2:3],
            "documents: the manifest says 2, the shard has 1",
            "key 'ids': the manifest says 3 of uint16, the shard has 7 of uint16",
            "key 'mask': the manifest says 3 of bool, the shard has 1 of bool",
        ]

    def test_a_listed_shard_has_other_documents_of_the_same_tokens(self, folder: Path) -> None:
        write_keyed(folder / "a", ids=("uint16", [np.arange(3)]), mask=("bool", [np.ones(3)]))
        with pytest.raises(
            StoreError,
            match=r"found 1 documents, 3 uint16 values .*but the manifest lists 2 documents, 3 uint16 values",
        ):
            stores.open(folder)

    def test_a_listed_file_of_another_size(self, folder: Path) -> None:
        with (folder / "a" / "mask.bin").open("ab") as file:
            file.write(b"1")
        with pytest.raises(
            StoreError,
            match=r"a: not the shard that the manifest lists: mask\.bin has 4 bytes, but the manifest lists 3",
        ):
            stores.open(folder)

    def test_a_listed_folder_is_missing(self, folder: Path) -> None:
        (folder / "b" / "meta.json").unlink()
        with pytest.raises(StoreError, match=r"b/meta\.json: missing, but .*headrace\.json lists it"):
            stores.open(folder)

    def test_a_changed_byte_and_a_changed_manifest(self, folder: Path) -> None:
        data = (folder / "a" / "ids.bin").read_bytes()
        (folder / "a" / "ids.bin").write_bytes(b"\7" + data[1:])
        (problem,) = KeyedStore(folder / "a").check()
        assert problem.path == str(folder / "a" / "ids.bin")
        assert (problem.place, problem.message[:23]) == ("bytes 0 to 6", "the bytes were changed:")
        path = folder / "headrace.json"
        path.write_bytes(path.read_bytes().replace(b"in.jsonl", b"on.jsonl"))
        assert [Path(problem.path).name for problem in KeyedStore(folder / "a").check()] == ["headrace.json"]

    def test_an_entry_of_the_other_format_does_not_speak_of_it(self, tmp_path: Path) -> None:
        folder = made.one_key(tmp_path / "store")
        write_keyed(folder / "text_document", ids=("uint16", numbered_documents([3], "uint16")))
        assert list(KeyedStore(folder / "text_document").check()) == []
