"""`headrace.convert` and `headrace.split`: the same bytes, dtypes, shards, borders, and what a format cannot hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import headrace
import made
from copies_made import GOLDEN, content, documents, drawn, files, pair, pair_bytes
from counts import cases
from damage import endured
from headrace import convert, stores
from headrace.copying import FORMATS, CopyOptions, copied_documents
from headrace.errors import ConfigError, InputError, StoreError
from headrace.io import PreadReader
from headrace.plan.megatron.sampling import split_ranges
from headrace.stores import (
    IndexedStore,
    JsonObjectStore,
    KeyedStore,
    KeyedWriter,
    load_manifest,
    open_keys,
    save_manifest,
)
from token_shards import write_raw

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
DTYPES += ["float16", "float32", "float64"]


def keyed(folder: Path, keys: dict[str, tuple[str, list[list[int]]]]) -> Path:
    """A folder of the keyed format: of each key its dtype and documents."""
    with KeyedWriter(folder, dtypes={key: dtype for key, (dtype, _) in keys.items()}) as writer:
        writer.add_documents(
            {key: np.concatenate([np.array(one, dtype) for one in found]) for key, (dtype, found) in keys.items()},
            {key: np.array(list(map(len, found))) for key, (_, found) in keys.items()},
        )
        writer.finish()
    return folder


@pytest.mark.parametrize("layout", ["indexed", "keyed"])
def test_there_and_back_every_byte_is_the_same(tmp_path: Path, layout: str) -> None:
    """The contract: two keys over two shards, some documents empty."""
    other = {"indexed": "keyed", "keyed": "indexed"}[layout]
    source = made.two_keys(tmp_path / "source", layout)
    headrace.convert(source, tmp_path / "there", format=other)  # type: ignore[arg-type]
    headrace.convert(tmp_path / "there", tmp_path / "back", format=layout)  # type: ignore[arg-type]
    assert content(tmp_path / "there") == content(source)
    assert load_manifest(tmp_path / "back").outputs[0].format == layout
    found, wanted = files(tmp_path / "back"), files(source)
    assert found.keys() == wanted.keys()
    assert {name for name in wanted if found[name] != wanted[name]} == {"headrace.json"}


@settings(max_examples=cases(10, 200), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.lists(st.integers(0, 65_535), max_size=5), max_size=12), st.integers(1, 9))
def test_any_documents_in_any_shards(
    tmp_path_factory: pytest.TempPathFactory, found: list[list[int]], shard_tokens: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    source = pair(folder / "a", [[one] if one else [] for one in found])
    headrace.convert(source, folder / "there", format="keyed", options=CopyOptions(shards=shard_tokens))
    headrace.convert(folder / "there", folder / "back", format="indexed", options=CopyOptions(shards="single"))
    assert documents(folder / "there") == found
    assert pair_bytes(folder / "back" / "text_document") == pair_bytes(source)


def test_the_shards_of_the_source_are_kept(tmp_path: Path) -> None:
    for number in range(3):
        drawn(tmp_path / "in" / f"part-{number}", number, 4)
    counts = [len(shard) for shard in headrace.open(tmp_path / "in").shards]  # type: ignore[attr-defined]
    headrace.convert(tmp_path / "in", tmp_path / "out", format="keyed")
    assert [shard.documents for shard in load_manifest(tmp_path / "out").outputs] == counts
    assert [shard.prefix for shard in load_manifest(tmp_path / "out").outputs] == [f"shard_000{n}" for n in range(3)]
    headrace.convert(tmp_path / "in", tmp_path / "one", format="indexed", options=CopyOptions(shards="single"))
    assert len(load_manifest(tmp_path / "one").outputs) == 1


def test_a_format_with_short_shards_gets_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = pair(tmp_path / "a", [[[number]] for number in range(10)])
    monkeypatch.setattr(FORMATS["keyed"], "max_documents", 4)
    report = headrace.convert(source, tmp_path / "out", format="keyed", options=CopyOptions(shards="single"))
    assert [shard.documents for shard in load_manifest(tmp_path / "out").outputs] == [3, 3, 4]
    assert "holds at most 4 documents, so there are several" in report.warnings[0]
    assert documents(tmp_path / "out") == documents(source)


def test_what_are_ids_is_carried_over(tmp_path: Path) -> None:
    source = made.two_keys(tmp_path / "a", "keyed")
    manifest = load_manifest(source)
    outputs = [
        msgspec.structs.replace(
            shard, keys={key: msgspec.structs.replace(info, ids=key == "title") for key, info in shard.keys.items()}
        )
        for shard in manifest.outputs
    ]
    save_manifest(source, msgspec.structs.replace(manifest, outputs=tuple(outputs)))
    headrace.convert(source, tmp_path / "out", format="indexed")
    for shard in load_manifest(tmp_path / "out").outputs:
        assert {key: info.ids for key, info in shard.keys.items()} in ({"title": True}, {"body": False})


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_held_or_refused(tmp_path: Path, name: str) -> None:
    source = keyed(tmp_path / "in", {"sequence": (name, [[1, 0], [], [1]])})
    if name in ("uint32", "uint64", "float16"):
        with pytest.raises(ConfigError, match=rf"'text'.*{name}.*--dtype"):
            headrace.convert(source, tmp_path / "out", format="indexed")
        return
    report = headrace.convert(source, tmp_path / "out", format="indexed")
    kept = "uint8" if name == "bool" else name
    assert report.keys == {"text": kept}
    assert bool(report.warnings) == (name == "bool")
    assert documents(tmp_path / "out") == [[1, 0], [], [1]]
    options = CopyOptions(dtype=name)
    headrace.convert(tmp_path / "out", tmp_path / "back", format="keyed", options=options)
    found = files(tmp_path / "back")
    assert found["shard_0000/sequence.bin"] == (source / "sequence.bin").read_bytes()
    assert found["shard_0000/meta.json"] == (source / "meta.json").read_bytes()


def test_ids_that_do_not_fit_name_their_document(tmp_path: Path) -> None:
    source = keyed(tmp_path / "in", {"sequence": ("uint32", [[1], [], [2, 3], [5, 2**31]])})
    options = CopyOptions(dtype="int32")
    with pytest.raises(InputError, match=r"'text'.*3.*2147483648"):
        headrace.convert(source, tmp_path / "out", format="indexed", options=options)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    fits = keyed(tmp_path / "fits", {"sequence": ("uint32", [[1], [2**31 - 1]])})
    headrace.convert(fits, tmp_path / "out", format="indexed", options=options)
    assert documents(tmp_path / "out") == [[1], [2**31 - 1]]
    negative = keyed(tmp_path / "negative", {"sequence": ("int32", [[1], [-1]])})
    with pytest.raises(InputError, match=r"1.*-1.*uint16"):
        headrace.convert(negative, tmp_path / "x", format="keyed", options=CopyOptions(dtype="uint16"))
    truth = keyed(tmp_path / "truth", {"loss_mask": ("uint8", [[1], [1, 2]])})
    with pytest.raises(InputError, match=r"document.*1.*2"):
        headrace.convert(truth, tmp_path / "x", format="keyed", options=CopyOptions(dtype="bool"))


def test_dtypes_by_key(tmp_path: Path) -> None:
    rows = [[1, 0], [1]]
    keys = {"sequence": ("uint32", rows), "loss_mask": ("bool", rows), "score": ("float64", rows)}
    source = keyed(tmp_path / "in", keys)
    report = headrace.convert(source, tmp_path / "a", format="indexed", options=CopyOptions(dtype="int32"))
    assert report.keys == {"sequence": "int32", "loss_mask": "uint8", "score": "float64"}
    asked = {"sequence": "int64", "score": "float32", "loss_mask": "bool"}
    headrace.convert(tmp_path / "a", tmp_path / "b", format="keyed", options=CopyOptions(dtype=asked))
    stores = open_keys(tmp_path / "b")
    assert {key: store.dtypes[key].name for key, store in stores.items()} == asked
    assert content(tmp_path / "b") == content(source)
    bytes_only = {"sequence": ("uint16", [[1]]), "loss_mask": ("uint8", [[1]])}
    report = headrace.convert(
        keyed(tmp_path / "bytes", bytes_only), tmp_path / "d", format="keyed", options=CopyOptions(dtype="int32")
    )
    assert report.keys == {"sequence": "int32", "loss_mask": "uint8"}
    for dtype, message in [
        ({"labels": "int32"}, "'labels'.*sequence, loss_mask, score"),
        ({"score": "int32"}, "'score'.*float64.*int32"),
        ({"sequence": "float32"}, "uint32.*float32"),
        ("int33", "dtype='int33'"),
        ("str", "dtype"),
    ]:
        with pytest.raises(ConfigError, match=message):
            headrace.convert(source, tmp_path / "c", format="keyed", options=CopyOptions(dtype=dtype))
    odd = keyed(tmp_path / "odd", {"score": ("float64", [[1, 2, 3]])})
    np.array([np.nan, np.inf, 0.5]).tofile(odd / "score.bin")
    headrace.convert(odd, tmp_path / "narrow", format="keyed", options=CopyOptions(dtype="float32"))
    assert np.fromfile(tmp_path / "narrow/shard_0000/score.bin", "<f4").astype(str).tolist() == ["nan", "inf", "0.5"]
    third = keyed(tmp_path / "third", {"score": ("float64", [[1]])})
    whole = np.fromfile(third / "score.bin")
    (whole / 3).tofile(third / "score.bin")
    with pytest.raises(InputError, match=r"0.*0.33.*float32"):
        headrace.convert(third, tmp_path / "c", format="keyed", options=CopyOptions(dtype="float32"))


def test_sequences_that_a_format_has_not_are_counted(tmp_path: Path) -> None:
    """Three sequences in one document, and one empty sequence: two inner borders and a sequence are lost, no token."""
    source = pair(tmp_path / "a", [[[1], [2], [3]], [[]], [], [[4]]])
    report = headrace.convert(source, tmp_path / "keyed", format="keyed")
    assert "the result lacks 3 inner borders" in report.warnings[0]
    assert documents(tmp_path / "keyed") == [[1, 2, 3], [], [], [4]]
    report = headrace.convert(source, tmp_path / "indexed", format="indexed")
    assert report.warnings == ()
    assert pair_bytes(tmp_path / "indexed" / "text_document") == pair_bytes(source)


def test_modes_are_kept_or_refused(tmp_path: Path) -> None:
    source = GOLDEN / "indexed" / "multimodal"
    headrace.convert(source, tmp_path / "same", format="indexed")
    assert pair_bytes(tmp_path / "same" / "text_document") == pair_bytes(source)
    with pytest.raises(ConfigError, match="--drop-modes"):
        headrace.convert(source, tmp_path / "keyed", format="keyed")
    report = headrace.convert(source, tmp_path / "keyed", format="keyed", options=CopyOptions(drop_modes=True))
    assert any("are left out" in warning for warning in report.warnings)
    assert documents(tmp_path / "keyed") == [[1, 2, 3, 4, 5]]
    wide = GOLDEN / "indexed_dialects" / "modes-int32"
    headrace.convert(wide, tmp_path / "wide", format="indexed")
    narrow = IndexedStore(tmp_path / "wide" / "text_document").modes
    found = IndexedStore(wide).modes
    assert found is not None
    assert narrow is not None
    assert (found.dtype, narrow.dtype) == (np.int32, np.int8)
    assert found.tolist() == narrow.tolist()


def test_permuted_pointers_are_put_in_order(tmp_path: Path) -> None:
    write_raw(tmp_path / "a", "uint16", [2, 1], [2, 0], [0, 1, 2], np.array([7, 8, 9], "<u2").tobytes())
    headrace.convert(tmp_path / "a", tmp_path / "out", format="indexed")
    assert documents(tmp_path / "out") == [[8, 9], [7]]
    assert pair_bytes(tmp_path / "out" / "text_document") == pair_bytes(pair(tmp_path / "b", [[[8, 9]], [[7]]]))


def test_the_name_of_a_key_alone(tmp_path: Path) -> None:
    """One that says nothing has the name that programs expect; another keeps its own."""
    headrace.convert(pair(tmp_path / "a", [[[1]]]), tmp_path / "keyed", format="keyed")
    assert KeyedStore(tmp_path / "keyed" / "shard_0000").keys == ("sequence",)
    named = keyed(tmp_path / "named", {"title": ("uint16", [[1]])})
    headrace.convert(named, tmp_path / "pairs", format="indexed")
    assert load_manifest(tmp_path / "pairs").keys == ("title",)
    assert (tmp_path / "pairs" / "title_document.bin").exists()


def test_what_cannot_be(tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[1]]])
    with pytest.raises(ConfigError, match=r"format='hdf5'.*'indexed'.*'keyed'"):
        headrace.convert(source, tmp_path / "out", format="hdf5")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'keyed'"):
        headrace.convert(source, tmp_path / "out", format="indexed", options=CopyOptions(format="keyed"))
    Path(f"{source}.bin").write_bytes(b"")
    with pytest.raises(StoreError, match="short"):
        headrace.convert(source, tmp_path / "out", format="keyed")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("era", ["core", "legacy"])
def test_the_parts_of_megatrons_split(tmp_path: Path, era: str) -> None:
    """49 documents: core and legacy differ by one."""
    source = pair(tmp_path / "a", [[[number]] for number in range(49)])
    report = headrace.split(source, tmp_path / era, into="969,30,1", era=era)  # type: ignore[arg-type]
    ranges = split_ranges("969,30,1", 49, era=era)  # type: ignore[arg-type]
    names = ("train", "valid", "test")
    for name, part in zip(names, ranges, strict=True):
        assert part is not None
        assert documents(tmp_path / era / name) == [[number] for number in range(*part)]
        assert load_manifest(tmp_path / era / name).options["copy"]["request"]["part"] == name
    assert [store.documents for store in report.stores] == [47 + (era == "legacy"), 2 - (era == "legacy"), 0]
    assert report.warnings == ("test has no documents",)


def test_equal_parts_are_all_of_the_source(tmp_path: Path) -> None:
    source = drawn(tmp_path / "a", 1, 60)
    report = headrace.split(source, tmp_path / "parts", into=5, options=CopyOptions(shards=30))
    everything = documents(source)
    names = [f"part_{part:05d}" for part in range(5)]
    assert [store.name for store in report.stores] == names
    assert [one for name in names for one in documents(tmp_path / "parts" / name)] == everything
    longest = max(map(len, everything))
    assert all(abs(store.tokens - report.tokens / 5) <= longest for store in report.stores)
    assert all(store.num_shards > 1 for store in report.stores)
    for store in report.stores:
        manifest = load_manifest(store.path)
        part = documents(Path(store.path))
        for document, found in enumerate(copied_documents(manifest, range(len(part)))):
            assert everything[found.document] == part[document]


def test_all_keys_are_cut_at_the_same_documents(tmp_path: Path) -> None:
    source = made.two_keys(tmp_path / "a", "keyed")
    headrace.split(source, tmp_path / "out", into="2,1", names=["big", "small"])
    whole, big, small = (content(path) for path in (source, tmp_path / "out" / "big", tmp_path / "out" / "small"))
    assert whole == {key: big[key] + small[key] for key in whole}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["big", "small"]
    manifest = load_manifest(tmp_path / "out" / "big")
    assert manifest.tokenizer == load_manifest(source).tokenizer


def test_documents_of_several_sequences_are_not_cut(tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[1], [2]], [[3], [4]], [[5], [6]], [[7], [8]]])
    report = headrace.split(source, tmp_path / "out", into="1,1")
    assert documents(tmp_path / "out" / "train") == [[1, 2], [3, 4]]
    assert "Megatron counts sequences" in report.warnings[0]
    assert not headrace.split(source, tmp_path / "parts", into=2).warnings


def test_parts_that_keep_the_shards_of_the_source(tmp_path: Path) -> None:
    for number in range(2):
        pair(tmp_path / "in" / str(number), [[[1]], [[2]]])
    options = CopyOptions(shards="source")
    halves = headrace.split(tmp_path / "in", tmp_path / "a", into=2, options=options).stores
    assert [store.num_shards for store in halves] == [1, 1]
    unequal = headrace.split(tmp_path / "in", tmp_path / "b", into="3,1", options=options).stores
    assert [store.num_shards for store in unequal] == [2, 1]


def test_a_split_is_replaced_as_a_whole(tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[number]] for number in range(10)])
    headrace.split(source, tmp_path / "out", into="8,1,1")
    headrace.split(source, tmp_path / "out", into=2, options=CopyOptions(overwrite=True))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["part_00000", "part_00001"]


def test_splits_that_cannot_be(tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[1]]])
    for into, names, message in [
        (0, None, "0"),
        (2, ["a"], "1.*2"),
        (2, ["a", "a"], "same"),
        (2, ["a", "../b"], "'../b'"),
        (2, ["a", ".b"], "'.b'"),
        (2, ["a", "b/c"], "'b/c'"),
        ("8,1,1", ["a", "b"], "3"),
        ("x", None, "'x'"),
        ("0,0", None, "share"),
    ]:
        with pytest.raises(ConfigError, match=message):
            headrace.split(source, tmp_path / "out", into=into, names=names)
    assert not (tmp_path / "out").exists()


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": ["text"]}', "lists"),
        ('{"a": [[1], 2]}', "lists"),
        ('{"a": [[1], [true]]}', "document.*1.*'a'.*true"),
        ('{"a": [[1], [2]], "b": [[3]]}', "numbers"),
        ("{}", "key"),
        ('{"a": [[1]', "truncated"),
        ('{"a": [[9223372036854775808]]}', "lists"),
    ],
)
def test_what_is_no_such_object_leaves_nothing(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(StoreError, match=rf"x\.json.*{message}"):
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
            main = store.with_main(key)
            assert (
                main.fetch(0, main.num_tokens).tolist()
                == np.concatenate([np.array(one, dtype) for one in documents]).tolist()
            )


def test_damage_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"tokens": [[1, 2, 3], [4], []], "mask": [[1, 0, 1], [1], []]}')

    def use() -> list[list[int]]:
        with JsonObjectStore(path, using=PreadReader()) as store:
            return [store.document(at).tolist() for at in range(len(store))]

    assert endured(path, use, count=cases(10, 2000), vouched=False) == {}
