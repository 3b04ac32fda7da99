from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.errors import ConfigError, OutputError, StoreError
from headrace.io import FileSum, hash_bytes
from headrace.stores import (
    MANIFEST_NAME,
    DocumentLedger,
    InputOrder,
    KeyInfo,
    Ledger,
    Manifest,
    OutputShard,
    SampleLedger,
    TokenLedger,
    load_manifest,
    save_manifest,
)
from token_shards import manifest_of


def file(name: str, **changes: object) -> FileSum:
    return FileSum(
        **{"name": name, "size": 20, "xxh3_128": "22", "block_bytes": 16, "xxh3_64": ("33", "44"), **changes}
    )


def shard(prefix: str = "a", key: str = "text", **changes: object) -> OutputShard:
    name = prefix.rpartition("/")[2]
    fields = {
        "documents": 3,
        "keys": {key: KeyInfo(dtype="uint16", tokens=10)},
        "contiguous": True,
        "files": (file(f"{name}.bin"), file(f"{name}.idx")),
        **changes,
    }
    return OutputShard(prefix=prefix, **fields)


def keyed(prefix: str = "s", **changes: object) -> OutputShard:
    keys = {"title": KeyInfo(dtype="uint16", tokens=4), "body": KeyInfo(dtype="uint16", tokens=6)}
    files = (file("title.bin"), file("body.bin"), file("meta.json"))
    fields = {"format": "keyed", "documents": 3, "keys": keys, "contiguous": True, "files": files, **changes}
    return OutputShard(prefix=prefix, **fields)


def test_there_and_back(tmp_path: Path) -> None:
    manifest = manifest_of([shard(), shard("sub/b")])
    saved = save_manifest(tmp_path, manifest)
    assert load_manifest(tmp_path) == saved
    assert msgspec.structs.replace(saved, xxh3_128="") == manifest
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_NAME]
    assert saved.shard("sub/b") == shard("sub/b")
    assert saved.shard("b") is None


def test_the_bytes_are_canonical(tmp_path: Path) -> None:
    saved = save_manifest(tmp_path, manifest_of([shard()]))
    data = (tmp_path / MANIFEST_NAME).read_bytes()
    assert data.startswith(b'{\n  "backend": {\n    "from_task_by": "",\n')
    assert data.endswith(b"}\n")
    # Anyone can compute the hash: blank the field, hash the file.
    assert hash_bytes(data.replace(saved.xxh3_128.encode(), b"")) == saved.xxh3_128
    save_manifest(tmp_path, saved)
    assert (tmp_path / MANIFEST_NAME).read_bytes() == data


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"path": "in.jsonl"', b'"path": "on.jsonl"', "hash"),
        (b'"size": 5', b'"size":  5', "canonical"),
        (b"}\n", b"}\n\n", "canonical"),
        (b'"seed": 1', b'"seed": 1.0', "hash|canonical"),
        (b'"version": 1', b'"version": 2', "version.*1.*2"),
        (b'"kind": "headrace.manifest"', b'"kind": "other"', "manifest"),
        (b'"options"', b'"optionen"', "optionen"),
        (b"{", b"[", "manifest"),
        (b"in.jsonl", b"in\xff.jsonl", "manifest"),
    ],
)
def test_a_change_is_found(tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    save_manifest(tmp_path, manifest_of([shard()]))
    path = tmp_path / MANIFEST_NAME
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    with pytest.raises(StoreError, match=message) as caught:
        load_manifest(tmp_path)
    assert str(path) in str(caught.value)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"headrace\.json"):
        load_manifest(tmp_path)
    with pytest.raises(OutputError, match="file"):
        save_manifest(tmp_path / "nothing", manifest_of([shard()]))


def ledger(documents: dict[str, object], tokens: dict[str, object]) -> Ledger:
    """Of three documents and ten tokens, but for these fields."""
    return Ledger(
        documents=DocumentLedger(**{"read": 3, "kept": 3, **documents}),  # type: ignore[arg-type]
        tokens=TokenLedger(**{"made": 10, "kept": 10, **tokens}),  # type: ignore[arg-type]
    )


def with_documents(**changes: object) -> Manifest:
    return Manifest(outputs=(shard(),), ledger=ledger(changes, {}))


def with_tokens(**changes: object) -> Manifest:
    return Manifest(outputs=(shard(),), ledger=ledger({}, changes))


def with_provenance(*names: str, **changes: object) -> Manifest:
    files = tuple(file(name, **changes) for name in names)
    return Manifest(outputs=(shard(),), ledger=ledger({}, {}), provenance=files)


TWO_KEYS = (shard("title", "title"), shard("body", "body"))


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (with_documents(read=5, dropped={"empty": 1}), "5.*3.*1"),
        (with_documents(read=4, kept=4), "3.*'text'.*4"),
        (with_tokens(made=9, kept=9), "10.*9"),
        (with_tokens(made=11), "11.*10.*0.*0"),
        (with_tokens(made=12, truncated={"long": 1}), "12.*10.*0.*1"),
        (with_tokens(eod=6, bos=5), "11.*10"),
        (with_documents(read=2, dropped={"x": -1}), "negative"),
        (with_tokens(eod=-1), "negative"),
        (with_tokens(made=9, dropped={"x": -1}), "negative"),
        (with_tokens(made=9, truncated={"x": -1}), "negative"),
        (with_tokens(made=10, dropped={"x": 1}), "10.*10.*1.*0"),
        (with_documents(empty=4), "empty"),
        (with_documents(with_special_tokens=4), "special"),
        (manifest_of([shard(), shard()]), "twice"),
        (manifest_of([shard(), keyed(keys={"text": KeyInfo(dtype="uint16", tokens=1)})]), "formats"),
        (manifest_of([shard("../a")]), r"'\.\./a'"),
        (manifest_of([shard("/a")]), "'/a'"),
        (manifest_of([keyed("..")]), r"'\.\.'"),
        (manifest_of([shard(files=shard("b").files)]), r"a\.bin.*a\.idx"),
        (manifest_of([shard(files=shard().files[:1])]), r"a\.bin.*a\.idx"),
        (manifest_of([shard(files=(file("a.bin", xxh3_64=("33",)), shard().files[1]))]), r"a\.bin.*20.*1"),
        (manifest_of([shard(keys={})]), "key.*0"),
        (manifest_of([shard(keys=keyed().keys)]), "key.*2"),
        (manifest_of([shard(keys={"text": KeyInfo(dtype="uint16", tokens=-1)})]), "negative"),
        (manifest_of([keyed(keys={}, files=(file("meta.json"),))]), "key"),
        (manifest_of([keyed(files=keyed().files[1:])]), r"body\.bin.*title\.bin.*meta\.json"),
        (manifest_of([keyed(files=keyed().files[::-1])]), r"body\.bin.*title\.bin.*meta\.json"),
        (manifest_of([*TWO_KEYS, shard("more", "body")]), "6.*'body'.*3"),
        (Manifest(outputs=(), ledger=ledger({}, {"made": 0, "kept": 0})), "shards.*3"),
        (with_provenance("a", "a"), "twice"),
        (with_provenance("a/b"), "'a/b'"),
        (with_provenance(".."), r"'\.\.'"),
        (with_provenance("a", size=50), "50.*2"),
    ],
)
def test_what_does_not_add_up_is_neither_written_nor_read(tmp_path: Path, manifest: Manifest, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        save_manifest(tmp_path, manifest)
    assert list(tmp_path.iterdir()) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Manifest, "faults", lambda _: iter(()))
        save_manifest(tmp_path, manifest)
    with pytest.raises(StoreError, match=message):
        load_manifest(tmp_path)


@pytest.mark.parametrize(
    "outputs", [TWO_KEYS, (keyed(), keyed("sub/t")), (*TWO_KEYS, shard("t1", "title", documents=0))]
)
def test_several_keys(tmp_path: Path, outputs: tuple[OutputShard, ...]) -> None:
    saved = save_manifest(tmp_path, manifest_of(outputs))
    assert load_manifest(tmp_path) == saved
    assert sorted(saved.keys) == ["body", "title"]
    assert saved.ledger.tokens.kept == 10 * len(outputs)


def test_the_order_of_the_documents(tmp_path: Path) -> None:
    manifest = manifest_of([shard()])
    for order, text in ((manifest.order, b'"kind": "shuffle",\n    "seed": 5'), (InputOrder(), b'"kind": "input"\n')):
        saved = save_manifest(tmp_path, msgspec.structs.replace(manifest, order=order))
        assert text in (tmp_path / MANIFEST_NAME).read_bytes()
        assert load_manifest(tmp_path) == saved


def written(layout: str, prefix: Path, *keys: str) -> OutputShard:
    infos = {key: KeyInfo(dtype="uint16", tokens=10) for key in keys}
    return OutputShard(format=layout, prefix=str(prefix), documents=3, keys=infos, contiguous=True, files=())


def test_the_entry_of_a_shard_is_relative(tmp_path: Path) -> None:
    shard_written = written("indexed", tmp_path / "sub" / "x", "tokens")
    assert OutputShard.of(shard_written, tmp_path) == shard("sub/x", "tokens", files=())
    assert OutputShard.of(shard_written, tmp_path, key="title") == shard("sub/x", "title", files=())
    two = OutputShard.of(written("keyed", tmp_path / "s", "b", "a"), tmp_path)
    assert (two.prefix, two.format, list(two.keys), two.tokens) == ("s", "keyed", ["b", "a"], 20)
    with pytest.raises(ConfigError, match="key='c'"):
        OutputShard.of(written("keyed", tmp_path / "s", "b", "a"), tmp_path, key="c")


@pytest.mark.parametrize("name", ["made", "kept", "truncated", "dropped"])
def test_the_tokens_of_all_keys_are_those_of_the_ledger(name: str) -> None:
    """Each sum by itself: tokens that are cut in one book and dropped in the other still balance in both."""
    half = TokenLedger(made=10, kept=6, truncated={"length": 3}, dropped={"bad": 1})
    whole = TokenLedger(made=20, kept=12, truncated={"length": 6}, dropped={"bad": 2})
    samples = SampleLedger(records=1, keys={"chosen": half, "rejected": half})
    assert not list(Ledger(documents=DocumentLedger(read=1, kept=1), tokens=whole, samples=samples).faults())
    value = getattr(whole, name)
    other = value + 1 if isinstance(value, int) else {**value, "more": 1}
    changed = msgspec.structs.replace(whole, **{name: other})
    faults = list(Ledger(documents=DocumentLedger(read=1, kept=1), tokens=changed, samples=samples).faults())
    assert any(f"tokens {name}, but" in fault for fault in faults)
