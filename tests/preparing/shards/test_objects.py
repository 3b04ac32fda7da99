"""Tables, and folders of files, in a store in memory: what the local run writes, and what is said of objects."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import faults
from headrace import preparing
from headrace.errors import ConfigError, InputError, StoreError
from headrace.preparing import ErrorOptions
from headrace.preparing.shards import (
    PartSpec,
    ShardOptions,
    ShardOutput,
    ShardSource,
    estimate_shards,
    prepare_shards,
)
from headrace.preparing.shards.packing import Packer
from memory_stores import MemoryBucket
from shards_made import PNG, image, rows, write_pictures, write_table

pytestmark = pytest.mark.usefixtures("small_tasks")
SKIP = ErrorOptions(on_error="skip")
SMALL = ShardOutput(samples_per_shard=13, shuffle=4)


def source(*parts: str, **others: Any) -> ShardSource:
    return ShardSource(parts=tuple(map(PartSpec.parse, parts)), **others)


def described(folder: Path, at: str) -> dict[str, Any]:
    """The manifest, with the inputs named as if they were at another place."""
    text = (folder / "headrace.json").read_text().replace(at, "PLACE")
    # Pillow prints the name of the file, if it has one.
    found: dict[str, Any] = json.loads(re.sub(r" name='PLACE[^']*'", "", text))
    return {name: value for name, value in found.items() if name != "xxh3_128"}


def data(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in faults.content(folder).items() if name != "headrace.json"}


def same(bucket: MemoryBucket, folder: Path, out: Path, inputs: list[str], options: ShardOptions) -> None:
    """Prepare what is in a folder from there and from the store, and compare the outputs."""
    url = bucket.upload(folder, "x")

    def placed(place: str) -> tuple[list[str], ShardOptions]:
        root, captions = options.source.root, options.source.captions
        given = msgspec.structs.replace(
            options.source,
            root=None if root is None else f"{place}/{root}",
            captions=None if captions is None else f"{place}/{captions}",
        )
        return [f"{place}/{name}" for name in inputs], msgspec.structs.replace(options, source=given)

    for name, place in (("local", str(folder)), ("made", url)):
        names, chosen = placed(place)
        prepare_shards(names, out / name, options=chosen)
    assert data(out / "made") == data(out / "local")
    assert described(out / "made", url) == described(out / "local", str(folder))
    estimates = []
    for place in (url, str(folder)):
        names, chosen = placed(place)
        estimate = estimate_shards(names, options=chosen)
        estimates.append(msgspec.structs.replace(estimate, first_error=estimate.first_error.replace(place, "")))
    assert estimates[0] == estimates[1]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "arrow"])
def test_tables(bucket: MemoryBucket, tmp_path: Path, kind: str) -> None:
    write_pictures(tmp_path / "in", 40)
    write_table(tmp_path / "in" / f"t.{kind}", rows(40))
    given = source("image=path:file", "txt=column:caption", "json=row", key_field="id")
    same(bucket, tmp_path / "in", tmp_path, [f"t.{kind}"], ShardOptions(source=given, output=SMALL))


def test_tables_with_their_files_elsewhere(bucket: MemoryBucket, tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 20)
    (tmp_path / "in" / "tables").mkdir()
    for number in range(2):
        table = [{"image": row["file"].removeprefix("pictures/")} for row in rows(20)[number::2]]
        write_table(tmp_path / "in" / "tables" / f"{number}.jsonl", table)
    options = ShardOptions(source=ShardSource(root="pictures"), output=SMALL)
    same(bucket, tmp_path / "in", tmp_path / "a", ["tables/{0..1}.jsonl"], options)
    same(bucket, tmp_path / "in", tmp_path / "b", ["tables/*.jsonl"], options)
    same(bucket, tmp_path / "in", tmp_path / "c", ["tables"], options)


@pytest.mark.parametrize("captions", [None, "captions.jsonl"])
def test_folders(bucket: MemoryBucket, tmp_path: Path, captions: str | None) -> None:
    write_pictures(tmp_path / "in" / "all", 30)
    (tmp_path / "in" / "all" / ".hidden").mkdir()
    (tmp_path / "in" / "all" / ".hidden" / "a.jpg").write_bytes(b"x")
    (tmp_path / "in" / "all" / "README").write_bytes(b"x")
    table = tmp_path / "in" / (captions or "all/metadata.csv")
    write_table(table, [{"file_name": row["file"], "caption": row["caption"]} for row in rows(30)])
    options = ShardOptions(source=ShardSource(captions=captions), output=SMALL)
    same(bucket, tmp_path / "in", tmp_path, ["all"], options)


def test_looks_at_contents(bucket: MemoryBucket, tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    (tmp_path / "in").mkdir()
    for number in range(12):
        made = io.BytesIO()
        pillow.new("RGB", (4 + number, 3)).save(made, format="PNG")
        (tmp_path / "in" / f"{number}.png").write_bytes(made.getvalue() if number % 5 else PNG)
        (tmp_path / "in" / f"{number}.json").write_text("{}" if number % 3 else "{")
    options = ShardOptions(source=ShardSource(verify=True), errors=SKIP)
    same(bucket, tmp_path / "in", tmp_path, [""], options)
    errors = json.loads((tmp_path / "made" / "headrace.json").read_text())["errors"]
    assert len(errors) == 6


def test_a_local_table_of_objects_by_their_urls(bucket: MemoryBucket, tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 9)
    url = bucket.upload(tmp_path / "in", "x")
    for name, place in (("local", str(tmp_path / "in")), ("made", url)):
        write_table(tmp_path / "t.jsonl", [{"image_path": f"{place}/{row['file']}"} for row in rows(9)])
        given = ShardOptions(source=ShardSource(root=place))
        prepare_shards([tmp_path / "t.jsonl"], tmp_path / name, options=given)
    assert (tmp_path / "made" / "shard-000000.tar").read_bytes() == (
        tmp_path / "local" / "shard-000000.tar"
    ).read_bytes()


def test_objects_that_are_missing_empty_or_elsewhere(bucket: MemoryBucket, tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 9)
    (tmp_path / "in" / "pictures" / "empty.jpg").write_bytes(b"")
    records = [{"image": row["file"]} for row in rows(11)]
    records += [{"image": name} for name in ("pictures/empty.jpg", "../a.jpg", "s3://other/a.jpg", "/a.jpg")]
    write_table(tmp_path / "in" / "t.jsonl", records)
    url = bucket.upload(tmp_path / "in", "x")
    given = source("image=path:image")
    with pytest.raises(InputError, match=r"x/t.jsonl.*10.*'pictures/009.jpg'"):
        prepare_shards([f"{url}/t.jsonl"], tmp_path / "made", options=ShardOptions(source=given))
    made = prepare_shards([f"{url}/t.jsonl"], tmp_path / "made", options=ShardOptions(source=given, errors=SKIP))
    wanted = prepare_shards(
        [tmp_path / "in" / "t.jsonl"], tmp_path / "local", options=ShardOptions(source=given, errors=SKIP)
    )
    assert data(tmp_path / "made") == data(tmp_path / "local")
    assert made.ledger.documents == wanted.ledger.documents
    assert made.ledger.documents.dropped == {"bad": 6}
    missing = [error.message for error in made.errors if "there is no such object" in error.message]
    assert missing == [
        f"the file 'pictures/{name}' below {url} cannot be read: there is no such object"
        for name in ("009.jpg", "010.jpg")
    ]
    assert all(f"is not below {url}" in error.message for error in made.errors[3:])


def test_objects_that_change_during_the_run(
    bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pictures(tmp_path / "in", 9)
    url = bucket.upload(tmp_path / "in", "x")
    listed = Packer.listed

    def changing(packer: Packer, task: Any) -> Any:
        bucket.put("x/pictures/004.jpg", image(5))
        return listed(packer, task)

    with monkeypatch.context() as patch:
        patch.setattr(Packer, "listed", changing)
        with pytest.raises(StoreError, match=r"x/pictures/004.jpg.*--restart"):
            prepare_shards([url], tmp_path / "made")
    assert not (tmp_path / "made" / "headrace.json").exists()
    bucket.put("x/pictures/004.jpg", image(4))  # another ETag
    prepare_shards([url], tmp_path / "made", options=ShardOptions(restart=True))
    prepare_shards([tmp_path / "in"], tmp_path / "local")
    assert data(tmp_path / "made") == data(tmp_path / "local")


def test_the_same_call_finds_its_output_complete(bucket: MemoryBucket, tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 9)
    write_table(tmp_path / "in" / "metadata.jsonl", [{"file_name": row["file"], "text": "x"} for row in rows(9)])
    url = bucket.upload(tmp_path / "in", "x")
    made = prepare_shards([url], tmp_path / "made")
    notices: list[str] = []
    assert prepare_shards([url], tmp_path / "made", on_notice=notices.append) == made
    assert any("complete" in notice for notice in notices)
    bucket.put("x/pictures/004.jpg", image(40))
    with pytest.raises(Exception, match="earlier"):
        prepare_shards([url], tmp_path / "made")


def test_an_output_in_the_same_store(bucket: MemoryBucket, tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 20)
    url = bucket.upload(tmp_path / "in", "x")
    preparing.prepare([url], f"{bucket.url}/out", options=ShardOptions(output=SMALL))
    preparing.prepare([tmp_path / "in"], tmp_path / "local", options=ShardOptions(output=SMALL))
    found = {name: content for name, content in bucket.content("out").items() if name != "headrace.json"}
    assert found == data(tmp_path / "local")


def test_what_cannot_be_read_is_refused_before_anything_is_written(bucket: MemoryBucket, tmp_path: Path) -> None:
    bucket.put("a/b/1.jpg", image(1))
    bucket.put("t.jsonl", b'{"url": "https://x/1.jpg"}\n')
    for given, message in (
        (f"{bucket.url}/none", "exist"),
        (f"{bucket.url}/a/*", "folders"),
        (f"{bucket.url}/t.jsonl", "'url'"),
        ("hf://org/data", "hf://"),
    ):
        with pytest.raises(ConfigError, match=message):
            prepare_shards([given], tmp_path / "made")
        assert not (tmp_path / "made").exists()
    for changed in ({"root": "hf://x"}, {"captions": "hf://x"}):
        with pytest.raises(ConfigError, match="hf://"):
            prepare_shards([f"{bucket.url}/a"], tmp_path / "made", options=ShardOptions(source=ShardSource(**changed)))
