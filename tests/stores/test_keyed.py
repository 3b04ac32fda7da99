"""The store contract over the keyed format, what only it has, several keys, and what is refused as a keyed store."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import headrace.stores as stores
import made
from headrace.errors import ConfigError, StoreError
from headrace.stores import KeyedStore
from headrace.testing.stores import Documents, numbered_documents
from store_contracts import OpenedContract, ShardedContract
from token_shards import vouch_for_keyed, write_keyed, write_raw_keyed

GOLDEN = Path(__file__).parents[1] / "golden" / "keyed"


class TestMapped(OpenedContract):
    def write(self, folder: Path, documents: Documents) -> Path:
        write_keyed(folder / "shard", tokens=(self.dtype, documents))
        return folder / "shard"

    def vouch(self, path: Path) -> None:
        vouch_for_keyed(path.parent, [self.open(path)])


class TestRead(TestMapped):
    test_check_finds_every_flipped_bit = None  # which is dear, and no other for another way of reading

    options: ClassVar = {"reader": "pread"}


class TestSharded(ShardedContract):
    """In several folders; shard_10 comes after shard_9."""

    def write_shard(self, folder: Path, number: int, documents: Documents) -> None:
        domain = folder / f"domain{number // 10}"
        domain.mkdir(exist_ok=True)
        write_keyed(domain / f"shard_{number}", tokens=(self.dtype, documents))

    def vouch(self, path: Path) -> None:
        vouch_for_keyed(path, self.open(path).shards)


@pytest.mark.parametrize("reader", ["mmap", "pread"])
def test_golden(reader: str) -> None:
    store = stores.open(GOLDEN / "some", reader=reader)
    assert isinstance(store, KeyedStore)
    assert store.keys == ("sequence", "loss_mask", "f")
    assert [dtype.name for dtype in store.dtypes.values()] == ["int32", "bool", "float32"]
    assert (store.num_documents, store.num_tokens, store.lengths.tolist()) == (2, 3, [2, 1])
    # The mask has no offsets of its own, and as many values: those of the sequence are its, too.
    found = store.document(1, ["sequence", "loss_mask"])
    assert {key: values.tolist() for key, values in found.items()} == {"sequence": [258], "loss_mask": [True]}
    assert store.fetch(1, 3, "loss_mask").tolist() == [False, True]
    assert store.gather(np.array([1, 0]), 2).tolist() == [[2, 258], [1, 2]]
    assert list(store.check(vocab_size=259)) == []
    assert stores.open(GOLDEN / "some", key="f").document(0).tolist() == [1.5]


def test_golden_without_offsets() -> None:
    store = stores.open(GOLDEN / "none")
    assert store.lengths.tolist() == [3]
    assert store.document(0).tolist() == [1, 2, 258]
    assert store.find_documents(np.array([0, 2])).tolist() == [0, 0]
    assert list(store.check()) == []


class TestKeys:
    """Three streams: ids, a parallel mask, and answers of other lengths."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        ids = numbered_documents([3, 0, 2], "int32")
        mask = [document % 2 for document in ids]
        answers = numbered_documents([1, 4, 2], "int32")
        write_keyed(tmp_path / "s", ids=("int32", ids), mask=("bool", mask), answers=("int32", answers))
        return tmp_path / "s"

    def test_the_first_is_the_main_one(self, folder: Path) -> None:
        store = stores.open(folder)
        assert store.keys == ("ids", "mask", "answers")
        for keys in (None, "ids", "tokens"):
            assert store.document(2, keys).tolist() == [4, 5]
            assert store.fetch(2, 4, keys).tolist() == [3, 4]
        found = store.document(2, ["tokens", "mask"])
        assert {key: values.tolist() for key, values in found.items()} == {"tokens": [4, 5], "mask": [False, True]}
        assert store.document(1, "answers").tolist() == [2, 3, 4, 5]
        with pytest.raises(ConfigError, match=r"'answers'.*7.*'ids'"):
            store.fetch(0, 1, ["ids", "answers"])

    def test_another_may_be_chosen(self, folder: Path) -> None:
        store = stores.open(folder, key="answers")
        assert store.keys == ("answers", "ids", "mask")
        assert (store.num_tokens, store.lengths.tolist()) == (7, [1, 4, 2])
        assert store.document(1).tolist() == [2, 3, 4, 5]
        assert store.gather(np.array([3]), 4).tolist() == [[4, 5, 6, 7]]
        assert store.fingerprint != stores.open(folder).fingerprint
        with pytest.raises(ConfigError, match=r"'other'.*'ids'.*'mask'"):
            stores.open(folder, key="other")

    def test_a_key_that_is_called_tokens_is_the_main_one(self, tmp_path: Path) -> None:
        part = numbered_documents([2], "int32")
        write_keyed(tmp_path / "s", prompt=("int32", [part[0] + 10]), tokens=("int32", part))
        assert stores.open(tmp_path / "s").keys == ("tokens", "prompt")
        chosen = stores.open(tmp_path / "s", key="prompt")
        assert chosen.document(0).tolist() == chosen.gather(np.array([0]), 2)[0].tolist() == [11, 12]
        assert chosen.document(0, "tokens").tolist() == [1, 2]

    def test_one_without_documents_of_its_own(self, tmp_path: Path) -> None:
        meta = b'{"a": {"shape": [3], "dtype": "uint8", "offsets": [0, 1, 3]}, "b": {"shape": [4], "dtype": "uint8"}}'
        write_raw_keyed(tmp_path / "s", meta, {"a": b"\1\2\3", "b": b"\4\5\6\7"})
        with pytest.raises(ConfigError, match=r"'b'.*1.*'a'"):
            stores.open(tmp_path / "s").document(0, "b")
        assert stores.open(tmp_path / "s", key="b").document(0).tolist() == [4, 5, 6, 7]

    def test_shards_whose_keys_are_in_another_order(self, folder: Path) -> None:
        part = numbered_documents([2], "int32")
        write_keyed(folder.parent / "t", mask=("bool", part), answers=("int32", part), ids=("int32", part))
        store = stores.open(folder.parent)
        assert [shard.keys[0] for shard in store.shards] == ["ids", "ids"]
        assert store.document(3).tolist() == [1, 2]
        assert store.fetch(3, 7, "mask").tolist() == [False, True, True, True]
        assert store.fetch(4, 4, "mask").dtype == np.bool_
        with pytest.raises(ConfigError, match="parallel"):
            store.fetch(0, 7, "answers")
        assert stores.open(folder.parent, key="answers").num_tokens == 9


def test_empty_keys(tmp_path: Path) -> None:
    meta = b'{"a": {"shape": [0], "dtype": "int32"}, "b": {"shape": [0], "dtype": "bool", "offsets": [0]}}'
    store = stores.open(write_raw_keyed(tmp_path / "s", meta, {"a": b"", "b": b""}))
    assert (store.num_documents, store.num_tokens, store.lengths.tolist()) == (0, 0, [])
    assert store.fetch(0, 0, "b").tolist() == []
    assert list(store.check(vocab_size=1)) == []


def test_offsets_are_parsed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = list(range(60))
    write_keyed(tmp_path / "s", tokens=("int32", numbered_documents(lengths, "int32")))
    for size in (1, 2, 7, 200, 10_000):
        monkeypatch.setattr("headrace.stores.keyed.layout._PIECE_BYTES", size)
        assert stores.open(tmp_path / "s").lengths.tolist() == lengths


def test_spaces_and_null_are_json_too(tmp_path: Path) -> None:
    meta = b' {"a":\n{"dtype":"uint8","offsets":[ 0 ,1,\t3 ] ,"shape":[3]},'
    meta += b'"b":{"offsets":null,"dtype":"uint8","shape":[1]}}'
    store = stores.open(write_raw_keyed(tmp_path / "s", meta, {"a": b"\1\2\3", "b": b"\4"}))
    assert store.lengths.tolist() == [1, 2]
    assert stores.open(tmp_path / "s", key="b").lengths.tolist() == [1]


def test_opening_parses_no_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_keyed(tmp_path / "s", tokens=("int32", numbered_documents([1, 2], "int32")))

    def refuse(*_: object) -> None:
        raise AssertionError("the offsets were to be left alone")

    monkeypatch.setattr("headrace.stores.keyed.store.parse_bounds", refuse)
    store = stores.open(tmp_path / "s")
    assert (store.num_documents, store.num_tokens, store.fetch(0, 2).tolist()) == (2, 3, [1, 2])
    assert store.gather(np.array([1]), 2).tolist() == [[2, 3]]
    with pytest.raises(AssertionError, match="alone"):
        store.lengths  # noqa: B018


def entry(**changes: str) -> bytes:
    """A good entry of three uint8 values, with other JSON texts for some fields."""
    fields = {"shape": "[3]", "dtype": '"uint8"', "offsets": "[0, 1, 3]", **changes}
    return ("{" + ", ".join(f'"{name}": {text}' for name, text in fields.items() if text) + "}").encode()


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        (b"", r"meta\.json.*truncated"),
        (b'{"iteration": 5}', r"meta\.json.*`object`"),
        (b'{"a": {"shape": [3]}}', "`dtype`"),
        (b'{"a": {"shape": 3, "dtype": "uint8"}}', "`array`"),
        (b'{"a": ' + entry()[:-1], "truncated"),
        (b'{"\xff": ' + entry() + b"}", r"meta\.json"),
        (b"{}", "key"),
        (b'{"../a": ' + entry() + b"}", r"meta\.json.*'\.\./a'"),
        (b'{"": ' + entry() + b"}", "''"),
        (b'{".a": ' + entry() + b"}", r"'\.a'"),
        (b'{"a\\u0000": ' + entry() + b"}", r"'a\\x00'"),
        (b'{"a\\\\b": ' + entry() + b"}", r"'a\\\\b'"),
        (b'{"a": ' + entry(dtype='"bfloat16"') + b"}", "'a'.*'bfloat16'.*bool.*uint8"),
        (b'{"a": ' + entry(dtype='"<u1"') + b"}", "'<u1'"),
        (b'{"a": ' + entry(shape="[3, 2]") + b"}", r"'a'.*\[3, 2\].*dimensions"),
        (b'{"a": ' + entry(shape="[]") + b"}", r"'a'.*\[\]"),
        (b'{"a": ' + entry(shape="[-3]") + b"}", r"'a'.*\[-3\]"),
        (b'{"a": ' + entry(shape="[4]") + b"}", "0.*4.*0.*3"),
        (b'{"a": ' + entry(offsets="[1, 3]") + b"}", "0.*3.*1.*3"),
        (b'{"a": ' + entry(offsets="[]") + b"}", "offsets.*0.*3"),
        (b'{"a": ' + entry(offsets="3") + b"}", "offsets.*0.*3"),
        (b'{"a": ' + entry(offsets='"0, 3"') + b"}", "offsets.*0.*3"),
        (b'{"a": ' + entry() + b', "b": ' + entry(offsets="[0, 3]") + b"}", "'a'.*2.*'b'.*1"),
        (b'{"a": ' + entry(shape="[4]", offsets="") + b"}", r"a\.bin.*4.*uint8.*4.*3"),
        (b'{"a": ' + entry(dtype='"int16"') + b"}", r"a\.bin.*3.*int16.*6.*3"),
        (b'{"c": ' + entry() + b"}", r"c\.bin.*file"),
        (b'{"a": ' + entry(shape=f"[{2**70}]", offsets="") + b"}", "short"),
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
        ("[0, 2, 1, 3]", "'a'.*document.*1.*2.*1"),
        ("[0, 9, 3]", "document.*1.*9.*3"),
        ("[0, -1, 3]", "document.*0.*0.*-1"),
        ("[0, 1.5, 3]", "`int`.*`float`"),
        ("[0, [1], 3]", "numbers"),
        ('[0, "1", 3]', "numbers"),
        (f"[0, {2**64}, 3]", "numbers"),
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
    assert [Path(problem.path).name for problem in store.check()] == ["mask.bin"]


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
        # First with other documents of the same tokens, then with everything another.
        write_keyed(folder / "a", ids=("uint16", [np.arange(3)]), mask=("bool", [np.ones(3)]))
        with pytest.raises(StoreError, match=r"documents: the manifest says 2, the shard has 1"):
            stores.open(folder)
        write_keyed(folder / "a", ids=("uint16", numbered_documents([7], "uint16")), mask=("bool", [np.array([1])]))
        with pytest.raises(StoreError, match=r"1.*7.*uint16"):
            stores.open(folder)
        found = [str(problem).split(": ", 1)[1] for problem in KeyedStore(folder / "a").check()]
        assert [*found[:2], *found[3:]] == [
            "the manifest says 6 bytes, the file has 14",
            "the manifest says 3 bytes, the file has 1",
            "documents: the manifest says 2, the shard has 1",
            "key 'ids': the manifest says 3 of uint16, the shard has 7 of uint16",
            "key 'mask': the manifest says 3 of bool, the shard has 1 of bool",
        ]

    def test_a_listed_file_of_another_size_or_missing(self, folder: Path) -> None:
        with (folder / "a" / "mask.bin").open("ab") as file:
            file.write(b"1")
        with pytest.raises(StoreError, match=r"mask\.bin.*4.*3"):
            stores.open(folder)
        (folder / "b" / "meta.json").unlink()
        with pytest.raises(StoreError, match=r"b/meta\.json.*headrace\.json"):
            stores.open(folder)

    def test_an_entry_of_the_other_format_does_not_speak_of_it(self, tmp_path: Path) -> None:
        folder = made.one_key(tmp_path / "store")
        write_keyed(folder / "text_document", ids=("uint16", numbered_documents([3], "uint16")))
        assert list(KeyedStore(folder / "text_document").check()) == []
