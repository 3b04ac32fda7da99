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
    TokenLedger,
    WrittenShard,
    load_manifest,
    save_manifest,
)
from headrace.testing.shards import manifest_of


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
        (b'"path": "in.jsonl"', b'"path": "on.jsonl"', "its content does not match its own hash"),
        (b'"size": 5', b'"size":  5', "not in the canonical form"),
        (b"}\n", b"}\n\n", "not in the canonical form"),
        (b'"seed": 1', b'"seed": 1.0', "own hash|canonical"),
        (b'"version": 1', b'"version": 2', "not a Headrace manifest of version 1: Invalid enum value 2"),
        (b'"kind": "headrace.manifest"', b'"kind": "other"', "not a Headrace manifest"),
        (b'"options"', b'"optionen"', "not a Headrace manifest .*optionen"),
        (b"{", b"[", "not a Headrace manifest"),
        (b"in.jsonl", b"in\xff.jsonl", "not a Headrace manifest"),
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


def test_a_missing_manifest(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"headrace\.json: cannot be read: No such file"):
        load_manifest(tmp_path)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No such file"):
        save_manifest(tmp_path / "nothing", manifest_of([shard()]))


def ledger(
    read: int = 3, kept: int = 3, dropped: dict[str, int] | None = None, tokens: int = 10, **changes: object
) -> Ledger:
    return Ledger(
        documents=DocumentLedger(read=read, kept=kept, dropped=dropped or {}),
        tokens=TokenLedger(**{"made": tokens, "kept": tokens, **changes}),
    )


def with_ledger(**changes: object) -> Manifest:
    return Manifest(outputs=(shard(),), ledger=ledger(**changes))


def with_documents(**changes: int) -> Manifest:
    return Manifest(
        outputs=(shard(),),
        ledger=Ledger(documents=DocumentLedger(read=3, kept=3, **changes), tokens=TokenLedger(made=10, kept=10)),
    )


def with_provenance(*names: str, **changes: object) -> Manifest:
    files = tuple(file(name, **changes) for name in names)
    return Manifest(outputs=(shard(),), ledger=ledger(), provenance=files)


def with_tokens(**changes: object) -> Manifest:
    documents = DocumentLedger(read=3, kept=3)
    return Manifest(outputs=(shard(),), ledger=Ledger(documents=documents, tokens=TokenLedger(kept=10, **changes)))


TWO_KEYS = (shard("title", "title"), shard("body", "body"))


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (with_ledger(read=5, dropped={"empty": 1}), "5 documents read, but 3 kept and 1 dropped"),
        (with_ledger(read=4, kept=4), "the shards have 3 documents with the key 'text', but the ledger kept 4"),
        (with_ledger(tokens=9), "the shards have 10 tokens, but the ledger kept 9"),
        (with_ledger(made=11), "11 tokens made, but 10 kept, 0 dropped and 0 truncated"),
        (with_ledger(made=12, dropped={}, truncated={"long": 1}), "12 tokens made, but 10 kept, 0 dropped and 1 trunc"),
        (with_ledger(eod=6, bos=5), "11 added tokens, more than the 10 made"),
        (with_ledger(read=2, dropped={"x": -1}), "a negative count"),
        (with_ledger(eod=-1), "a negative count"),
        (with_tokens(made=9, dropped={"x": -1}), "a negative count"),
        (with_tokens(made=9, truncated={"x": -1}), "a negative count"),
        (with_tokens(made=10, dropped={"x": 1}), "10 tokens made, but 10 kept, 1 dropped and 0 truncated"),
        (with_documents(empty=4), "more empty documents than it kept"),
        (with_documents(with_special_tokens=4), "more with special tokens than it read"),
        (manifest_of([shard(), shard()]), "listed twice"),
        (manifest_of([shard(), keyed(keys={"text": KeyInfo(dtype="uint16", tokens=1)})]), "several formats"),
        (manifest_of([shard("../a")]), "may not leave"),
        (manifest_of([shard("/a")]), "may not leave"),
        (manifest_of([keyed("..")]), "may not leave"),
        (manifest_of([shard(files=shard("b").files)]), r"must list the files a\.bin and a\.idx"),
        (manifest_of([shard(files=shard().files[:1])]), r"must list the files a\.bin and a\.idx"),
        (
            manifest_of([shard(files=(file("a.bin", xxh3_64=("33",)), shard().files[1]))]),
            r"a: a\.bin of 20 bytes has 1 b",
        ),
        (manifest_of([shard(keys={})]), "must list one key, not 0"),
        (manifest_of([shard(keys=keyed().keys)]), "must list one key, not 2"),
        (manifest_of([shard(keys={"text": KeyInfo(dtype="uint16", tokens=-1)})]), "has a negative count"),
        (manifest_of([keyed(keys={}, files=(file("meta.json"),))]), "lists no key"),
        (manifest_of([keyed(files=keyed().files[1:])]), r"must list the files body\.bin and title\.bin and meta\.json"),
        (
            manifest_of([keyed(files=keyed().files[::-1])]),
            r"must list the files body\.bin and title\.bin and meta\.json",
        ),
        (manifest_of([*TWO_KEYS, shard("more", "body")]), "6 documents with the key 'body', but the ledger kept 3"),
        (Manifest(outputs=(), ledger=ledger(tokens=0)), "there are no shards, but the ledger kept 3 documents"),
        (with_provenance("a", "a"), "a file of provenance is listed twice"),
        (with_provenance("a/b"), "provenance: 'a/b' is not the base name"),
        (with_provenance(".."), "may not leave"),
        (with_provenance("a", size=50), "provenance: a of 50 bytes has 2 blocks"),
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


def written(layout: str, prefix: Path, *keys: str) -> WrittenShard:
    infos = {key: KeyInfo(dtype="uint16", tokens=10) for key in keys}
    return WrittenShard(format=layout, prefix=str(prefix), num_documents=3, keys=infos, contiguous=True, files=())


def test_the_entry_of_a_shard_is_relative(tmp_path: Path) -> None:
    shard_written = written("indexed", tmp_path / "sub" / "x", "tokens")
    assert OutputShard.of(shard_written, tmp_path) == shard("sub/x", "tokens", files=())
    assert OutputShard.of(shard_written, tmp_path, key="title") == shard("sub/x", "title", files=())
    two = OutputShard.of(written("keyed", tmp_path / "s", "b", "a"), tmp_path)
    assert (two.prefix, two.format, list(two.keys), two.tokens) == ("s", "keyed", ["b", "a"], 20)
    with pytest.raises(ConfigError, match="key='c' names one key, but the shard has b, a"):
        OutputShard.of(written("keyed", tmp_path / "s", "b", "a"), tmp_path, key="c")
