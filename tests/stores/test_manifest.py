from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.errors import OutputError, StoreError
from headrace.io import FileSum, hash_bytes
from headrace.stores import (
    MANIFEST_NAME,
    DocumentLedger,
    Ledger,
    Manifest,
    OutputShard,
    TokenLedger,
    WrittenShard,
    load_manifest,
    save_manifest,
)
from headrace.testing.indexed import manifest_of


def shard(prefix: str = "a", **changes: object) -> OutputShard:
    name = prefix.rpartition("/")[2]
    files = [
        FileSum(name=f"{name}{suffix}", size=20, xxh3_128="22", block_bytes=16, xxh3_64=("33", "44"))
        for suffix in (".bin", ".idx")
    ]
    fields = {"dtype": "uint16", "documents": 3, "tokens": 10, "contiguous": True, "files": tuple(files), **changes}
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
    assert data.startswith(b'{\n  "inputs": [\n    {\n      "path": "in.jsonl",\n')
    assert data.endswith(b"}\n")
    # Anyone can compute the hash: blank the field, hash the file.
    assert hash_bytes(data.replace(saved.xxh3_128.encode(), b"")) == saved.xxh3_128
    save_manifest(tmp_path, saved)
    assert (tmp_path / MANIFEST_NAME).read_bytes() == data


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"in.jsonl", b"on.jsonl", "own hash .* is not that of its content"),
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


def ledger(read: int, kept: int, dropped: dict[str, int], tokens: int) -> Ledger:
    return Ledger(documents=DocumentLedger(read=read, kept=kept, dropped=dropped), tokens=TokenLedger(kept=tokens))


FILE = FileSum(name="a.bin", size=20, xxh3_128="22", block_bytes=16, xxh3_64=("33",))


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (Manifest(outputs=(shard(),), ledger=ledger(5, 3, {"empty": 1}, 10)), "5 documents read, but 3 kept and 1"),
        (Manifest(outputs=(shard(),), ledger=ledger(4, 4, {}, 10)), "the shards have 3 documents, the ledger kept 4"),
        (Manifest(outputs=(shard(),), ledger=ledger(3, 3, {}, 9)), "the shards have 10 tokens, the ledger kept 9"),
        (Manifest(outputs=(shard(),), ledger=ledger(2, 3, {"x": -1}, 10)), "a negative count"),
        (manifest_of([shard(), shard()]), "listed twice"),
        (manifest_of([shard("../a")]), "may not leave"),
        (manifest_of([shard("/a")]), "may not leave"),
        (manifest_of([shard(files=shard("b").files)]), r"must list the files a\.bin and a\.idx"),
        (manifest_of([shard(files=shard().files[:1])]), r"must list the files a\.bin and a\.idx"),
        (manifest_of([shard(files=(FILE, shard().files[1]))]), r"a: a\.bin of 20 bytes has 1 blocks"),
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


def test_the_entry_of_a_shard_is_relative(tmp_path: Path) -> None:
    written = WrittenShard(
        prefix=str(tmp_path / "sub" / "x"), num_documents=3, num_tokens=10, dtype="uint16", contiguous=True, files=()
    )
    entry = OutputShard.of(written, tmp_path)
    assert entry == shard("sub/x", files=())
