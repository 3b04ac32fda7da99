"""Outputs at URLs, in a store in memory: the bytes of the local run, whatever ends it on the way, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import faults
import headrace
from counts import cases, spread
from headrace.errors import ConfigError, InputError, OutputError, StoreError
from headrace.preparing import ErrorOptions, OutputOptions, TextOptions, TokenOptions, prepare_text
from memory_stores import MemoryBucket, Stopped, scratch, sent_files, watched

PLAIN = TextOptions(tokens=TokenOptions(append_eod=True, backend="tokenizers"), workers=2, task_bytes=4000)
CASES = {
    "one shard": OutputOptions(),
    "shards": OutputOptions(shard_tokens=2500),
    "keyed": OutputOptions(shard_tokens=2500, format="keyed"),
}


@pytest.fixture(autouse=True)
def small_run() -> Iterator[None]:
    with faults.small_run():
        yield


def options(name: str, **changes: Any) -> TextOptions:
    return msgspec.structs.replace(PLAIN, output=CASES[name], **changes)


def local(kit: Any, inputs: Path, folder: Path, given: TextOptions) -> dict[str, bytes]:
    prepare_text([inputs], folder, tokenizer=kit.tokenizer, options=given)
    return faults.content(folder)


@pytest.mark.parametrize("name", CASES)
def test_the_bytes_of_the_local_run(kit: Any, bucket: MemoryBucket, inputs: Path, tmp_path: Path, name: str) -> None:
    wanted = local(kit, inputs, tmp_path / "local", options(name))
    url = f"{bucket.url}/stores/{name}"
    manifest = prepare_text([inputs], url, tokenizer=kit.tokenizer, options=options(name))
    assert bucket.content(f"stores/{name}") == wanted
    assert not scratch()
    store = headrace.open(url)
    assert len(store) == manifest.ledger.documents.kept

    notices: list[str] = []
    again = prepare_text([inputs], url, tokenizer=kit.tokenizer, options=options(name), on_notice=notices.append)
    assert again == manifest
    assert any(notice.startswith("the output is complete already") for notice in notices)
    assert "--overwrite" not in "".join(notices)
    assert bucket.content(f"stores/{name}") == wanted


def test_a_shard_does_not_stay_on_the_disk(kit: Any, bucket: MemoryBucket, inputs: Path) -> None:
    """At most the shard that was completed last, and the one that is open."""
    most = 0

    def look(number: int, kind: str) -> None:
        nonlocal most
        [folder] = scratch()
        most = max(most, len(list((folder / ".headrace" / "shards").glob("*.bin"))))

    with watched(look):
        manifest = prepare_text([inputs], f"{bucket.url}/web", tokenizer=kit.tokenizer, options=options("shards"))
    assert len(manifest.outputs) > 4
    assert 0 < most <= 2


def test_the_manifest_comes_last_and_nothing_opens_before(kit: Any, bucket: MemoryBucket, inputs: Path) -> None:
    seen = Counter[bool]()

    def look(number: int, kind: str) -> None:
        found = bucket.content("web")
        is_whole = "headrace.json" in found
        seen[is_whole] += 1
        if not is_whole and found:
            with pytest.raises(StoreError, match=r"/web: a run writes to this place, and has not completed its output"):
                headrace.open(f"{bucket.url}/web")

    with watched(look):
        prepare_text([inputs], f"{bucket.url}/web", tokenizer=kit.tokenizer, options=options("shards"))
    assert seen[False] > 10
    assert seen[True] == 2  # receipts are removed, then the description of the run


@pytest.mark.parametrize("name", ["shards", "keyed"])
@pytest.mark.parametrize("is_lost", [False, True], ids=["", "the scratch folder is lost"])
def test_whatever_ends_a_run(
    kit: Any, bucket: MemoryBucket, inputs: Path, tmp_path: Path, name: str, is_lost: bool
) -> None:
    wanted = local(kit, inputs, tmp_path / "local", options(name))
    kinds: list[str] = []
    with watched(lambda number, kind: kinds.append(kind)):
        prepare_text([inputs], f"{bucket.url}/counted", tokenizer=kit.tokenizer, options=options(name))
    for moment in sorted(spread(len(kinds), cases(6, 10_000))):
        url = f"{bucket.url}/{moment}"

        def stop(number: int, kind: str, moment: int = moment) -> None:
            if number == moment:
                raise Stopped

        with watched(stop), pytest.raises(Stopped):
            prepare_text([inputs], url, tokenizer=kit.tokenizer, options=options(name))
        uploaded = set(bucket.content(f"{moment}/.headrace/receipts"))
        if is_lost:
            for folder in scratch():
                shutil.rmtree(folder)
        with sent_files() as sent:
            prepare_text([inputs], url, tokenizer=kit.tokenizer, options=options(name, workers=3))
        assert bucket.content(str(moment)) == wanted
        assert not scratch()
        assert not uploaded & {one.removeprefix(f"{url}/") for one in sent}, "what has a receipt is not uploaded again"


def test_two_runs_of_the_same_output_at_the_same_time(
    kit: Any, bucket: MemoryBucket, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on two hosts: each has a scratch folder of its own."""
    wanted = local(kit, inputs, tmp_path / "local", options("shards"))
    for moment in (1, 5, 9, 14):
        url = f"{bucket.url}/{moment}"
        is_second = False

        def meet(number: int, kind: str, moment: int = moment, url: str = url) -> None:
            nonlocal is_second
            if number >= moment and not is_second:
                is_second = True
                with pytest.MonkeyPatch.context() as patch:
                    patch.setenv("HEADRACE_CACHE", str(tmp_path / f"second-{moment}"))
                    prepare_text([inputs], url, tokenizer=kit.tokenizer, options=options("shards"))

        with watched(meet):
            prepare_text([inputs], url, tokenizer=kit.tokenizer, options=options("shards"))
        assert is_second
        assert bucket.content(str(moment)) == wanted


def test_no_secret_is_in_what_a_run_leaves(kit: Any, bucket: MemoryBucket, inputs: Path) -> None:
    def stop(number: int, kind: str) -> None:
        if number == 12:
            raise Stopped

    storage = headrace.Storage(
        region="us-east-1", options={"access_key_id": "known", "secret_access_key": "planted-secret"}
    )
    for file in inputs.iterdir():
        bucket.put(f"in/{file.name}", file.read_bytes())
    given = options("shards", errors=ErrorOptions(on_error="skip"))
    with watched(stop), pytest.raises(Stopped):
        prepare_text([f"{bucket.url}/in"], f"{bucket.url}/web", tokenizer=kit.tokenizer, options=given, storage=storage)
    left = [path.read_bytes() for folder in scratch() for path in folder.rglob("*") if path.is_file()]
    assert len(left) > 3
    assert not any(b"planted-secret" in data for data in [*left, *bucket.content().values()])


def test_another_store_is_not_replaced(kit: Any, bucket: MemoryBucket, inputs: Path) -> None:
    url = f"{bucket.url}/web"
    prepare_text([inputs], url, tokenizer=kit.tokenizer, options=options("shards"))
    before = bucket.content("web")
    with pytest.raises(OutputError, match=r"/web: the place holds the output of an earlier run; name another place"):
        prepare_text([inputs], url, tokenizer=kit.tokenizer, options=options("one shard"))
    with pytest.raises(ConfigError, match=r"/web: overwrite is for local outputs"):
        prepare_text([inputs], url, tokenizer=kit.tokenizer, options=options("shards", overwrite=True))
    bucket.put("notes/a.txt", b"mine")
    with pytest.raises(OutputError, match=r"/notes: the place is not empty: it holds 'a.txt'"):
        prepare_text([inputs], f"{bucket.url}/notes", tokenizer=kit.tokenizer, options=options("shards"))
    assert bucket.content("web") == before
    assert bucket.content("notes") == {"a.txt": b"mine"}
    assert not scratch()


def test_a_store_that_appears_meanwhile_is_not_replaced(kit: Any, bucket: MemoryBucket, inputs: Path) -> None:
    def meet(number: int, kind: str) -> None:
        if kind == "create" and any(name.endswith(".idx") for name in bucket.content("web")):
            bucket.put("web/headrace.json", b"another")

    with watched(meet), pytest.raises(OutputError, match=r"/web/headrace.json: another store is there, which this run"):
        prepare_text([inputs], f"{bucket.url}/web", tokenizer=kit.tokenizer, options=options("one shard"))
    assert bucket.content("web")["headrace.json"] == b"another"


def test_another_unfinished_run_is_named_and_discarded(
    kit: Any, bucket: MemoryBucket, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{bucket.url}/web"

    def stop(number: int, kind: str) -> None:
        if number == 7:
            raise Stopped

    with watched(stop), pytest.raises(Stopped):
        prepare_text([inputs], url, tokenizer=kit.tokenizer, options=options("shards"))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "another host"))
    before = bucket.content("web")
    message = r"/web: an unfinished run with other options writes to this place: output.shard_tokens was 2500, is"
    with pytest.raises(OutputError, match=message):
        prepare_text([inputs], url, tokenizer=kit.tokenizer, options=options("one shard"))
    assert bucket.content("web") == before
    assert not scratch()
    prepare_text([inputs], url, tokenizer=kit.tokenizer, options=options("one shard", restart=True))
    assert bucket.content("web") == local(kit, inputs, tmp_path / "local", options("one shard"))


def test_a_bad_record_leaves_nothing(kit: Any, bucket: MemoryBucket, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(json.dumps({"text": "good"}) + "\n{\n")
    with pytest.raises(InputError, match=r"bad\.jsonl, line 2"):
        prepare_text([tmp_path / "bad.jsonl"], f"{bucket.url}/web", tokenizer=kit.tokenizer, options=PLAIN)
    assert not bucket.content("web")
    assert not scratch()


def test_what_was_removed_meanwhile_is_named(kit: Any, bucket: MemoryBucket, inputs: Path) -> None:
    def meet(number: int, kind: str) -> None:
        if "web/text_document_00001.bin" in bucket.content():
            faults_removed.append(bucket.store.delete("web/text_document_00000.bin"))

    faults_removed: list[object] = []
    message = r"/web/text_document_00000.bin: was uploaded, and is not there any more; remove what is below the URL"
    with watched(meet), pytest.raises(OutputError, match=message):
        prepare_text([inputs], f"{bucket.url}/web", tokenizer=kit.tokenizer, options=options("shards"))
    assert "headrace.json" not in bucket.content("web")


def test_inputs_at_urls(kit: Any, bucket: MemoryBucket, inputs: Path, tmp_path: Path) -> None:
    given = options("shards", errors=ErrorOptions(on_error="skip"))
    wanted = local(kit, inputs, tmp_path / "local", given)
    for file in inputs.iterdir():
        bucket.put(f"in/{file.name}", file.read_bytes())
    bucket.put("in/.hidden/a.jsonl", b"{")
    for number, argument in enumerate(["in", "in/", "in/*.json*", "in/{a,b,c0,c1,c2}.jsonl*", "in/**/*.jsonl*"]):
        folder = tmp_path / f"out-{number}"
        manifest = prepare_text([f"{bucket.url}/{argument}"], folder, tokenizer=kit.tokenizer, options=given)
        assert [one.path.removeprefix(f"{bucket.url}/") for one in manifest.inputs] == [
            f"in/{file.name}" for file in sorted(inputs.iterdir())
        ]
        found = faults.content(folder)
        assert {name: data for name, data in found.items() if name != "headrace.json"} == {
            name: data for name, data in wanted.items() if name != "headrace.json" and name in found
        }
        assert {name for name in found if name.startswith("text")} == {n for n in wanted if n.startswith("text")}
    with pytest.raises(ConfigError, match=r"in/none.jsonl' does not exist"):
        prepare_text([f"{bucket.url}/in/none.jsonl"], tmp_path / "none", tokenizer=kit.tokenizer, options=given)
    with pytest.raises(ConfigError, match=r"in/x\*' matches no file"):
        prepare_text([f"{bucket.url}/in/x*"], tmp_path / "none", tokenizer=kit.tokenizer, options=given)


def test_what_is_not_supported_is_refused_by_name(kit: Any, inputs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"http://host/a: objects are written to s3://, gs:// and az://"):
        prepare_text([inputs], "http://host/a", tokenizer=kit.tokenizer, options=PLAIN)
    with pytest.raises(ConfigError, match=r"storage says how to reach an object store, and all paths are local"):
        prepare_text([inputs], tmp_path / "a", tokenizer=kit.tokenizer, options=PLAIN, storage=headrace.Storage())
    with pytest.raises(ConfigError, match=r"hdfs://x: the scheme hdfs:// is not supported"):
        prepare_text([inputs], "hdfs://x", tokenizer=kit.tokenizer, options=PLAIN)
    for url, message in (
        ("http://host/a", r"http://host/a: objects are written to s3://, gs:// and az://"),
        ("hdfs://x", r"hdfs://x: the scheme hdfs:// is not supported"),
    ):
        with pytest.raises(ConfigError, match=message):
            headrace.preparing.plan_text([inputs], url, tokenizer=kit.tokenizer, options=PLAIN)
