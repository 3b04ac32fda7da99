"""Outputs and inputs at URLs, in a store in memory: the bytes of the local run, whatever ends it on the way."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

import faults
import headrace
import recipe_runs
from counts import cases, spread
from headrace.engine.doing import MAX_SHOWN
from headrace.errors import ConfigError, InputError, OutputError, StoreError
from headrace.preparing import ErrorOptions, OutputOptions, PrepareOptions, TokenOptions, estimate, plan, prepare
from headrace.preparing.recipes import read_recipe
from headrace.stores import load_manifest
from memory_stores import MemoryBucket, Stopped, scratch, sent_files, stop_at, watched

pytestmark = pytest.mark.usefixtures("small_run")
PLAIN = PrepareOptions(tokens=TokenOptions(append_eod=True, backend="tokenizers"), workers=2, task_bytes=4000)
CASES = {
    "one shard": OutputOptions(),
    "shards": OutputOptions(shard_tokens=2500),
    "keyed": OutputOptions(shard_tokens=2500, format="keyed"),
}


def options(name: str, **changes: Any) -> PrepareOptions:
    return msgspec.structs.replace(PLAIN, output=CASES[name], **changes)


def local(kit: Any, inputs: Path, folder: Path, given: PrepareOptions) -> dict[str, bytes]:
    kit.prepare([inputs], folder, options=given)
    return faults.content(folder)


@pytest.mark.parametrize("name", CASES)
def test_the_bytes_of_the_local_run(kit: Any, bucket: MemoryBucket, inputs: Path, tmp_path: Path, name: str) -> None:
    wanted = local(kit, inputs, tmp_path / "local", options(name))
    url = f"{bucket.url}/stores/{name}"
    manifest = kit.prepare([inputs], url, options=options(name))
    assert bucket.content(f"stores/{name}") == wanted
    assert not scratch()
    store = headrace.open(url)
    assert len(store) == manifest.ledger.documents.kept

    notices: list[str] = []
    again = kit.prepare([inputs], url, options=options(name), on_notice=notices.append)
    assert again == manifest
    assert any(notice.startswith("the output is complete already") for notice in notices)
    assert "--overwrite" not in "".join(notices)
    assert bucket.content(f"stores/{name}") == wanted


def test_shards_do_not_stay_on_the_disk(kit: Any, bucket: MemoryBucket, inputs: Path) -> None:
    """At most those that are being sent, and the one that is written."""
    most = 0

    def look(number: int, kind: str) -> None:
        nonlocal most
        most = max(most, sum(len(list(folder.rglob("*.bin"))) for folder in scratch()))

    given = msgspec.structs.replace(PLAIN, output=OutputOptions(shard_tokens=700))
    with watched(look):
        manifest = kit.prepare([inputs], f"{bucket.url}/web", options=given)
    assert len(manifest.outputs) > 2 * (MAX_SHOWN + 1)
    assert 0 < most <= MAX_SHOWN + 1


def test_the_manifest_comes_last_and_nothing_opens_before(kit: Any, bucket: MemoryBucket, inputs: Path) -> None:
    seen = Counter[bool]()

    def look(number: int, kind: str) -> None:
        found = bucket.content("web")
        is_whole = "headrace.json" in found
        seen[is_whole] += 1
        if not is_whole and found:
            with pytest.raises(StoreError, match="/web"):
                headrace.open(f"{bucket.url}/web")

    with watched(look):
        kit.prepare([inputs], f"{bucket.url}/web", options=options("shards"))
    assert seen[False] > 10
    assert seen[True] == 3  # the plan is removed, then the receipts, then the description of the run


@pytest.mark.parametrize("name", ["shards", "keyed"])
@pytest.mark.parametrize("is_lost", [False, True], ids=["", "the scratch folder is lost"])
def test_whatever_ends_a_run(
    kit: Any, bucket: MemoryBucket, inputs: Path, tmp_path: Path, name: str, is_lost: bool
) -> None:
    wanted = local(kit, inputs, tmp_path / "local", options(name))
    kinds: list[str] = []
    with watched(lambda number, kind: kinds.append(kind)):
        kit.prepare([inputs], f"{bucket.url}/counted", options=options(name))
    num_stopped = 0
    for moment in sorted(spread(len(kinds), cases(4, 10_000))):
        url = f"{bucket.url}/{moment}"
        try:
            with watched(stop_at(moment)):
                kit.prepare([inputs], url, options=options(name))
        except Stopped:
            num_stopped += 1
        done = done_in(bucket.content(str(moment)))
        if is_lost:
            for folder in scratch():
                shutil.rmtree(folder)
        with sent_files() as sent:
            kit.prepare([inputs], url, options=options(name, workers=3))
        assert bucket.content(str(moment)) == wanted
        assert not scratch()
        again = {tuple(one.removeprefix(f"{url}/").split("/")) for one in sent}
        assert not done & {(one[2], one[-1]) if one[0] == ".headrace" else one[-1:] for one in again}
    assert num_stopped > 1


def done_in(found: dict[str, bytes]) -> set[tuple[str, ...]]:
    """The files of all tasks that have receipts: phase and name, or the name alone of files of the output."""
    files: set[tuple[str, ...]] = set()
    for name, data in found.items():
        if "/receipts/" in name:
            phase, receipt = name.split("/")[2], json.loads(data)
            is_output = phase.startswith("phase-join")
            files |= {(one,) if is_output else (phase, one) for one in receipt["files"] if "/" not in one}
    return files


def test_two_runs_of_the_same_output_at_the_same_time(
    kit: Any, bucket: MemoryBucket, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on two hosts: each has a scratch folder of its own."""
    wanted = local(kit, inputs, tmp_path / "local", options("shards"))
    for moment in (1, 5, 9, 14)[:: cases(2, 1)]:
        url = f"{bucket.url}/{moment}"
        is_second = False

        def meet(number: int, kind: str, moment: int = moment, url: str = url) -> None:
            nonlocal is_second
            if number >= moment and not is_second:
                is_second = True
                with pytest.MonkeyPatch.context() as patch:
                    patch.setenv("HEADRACE_CACHE", str(tmp_path / f"second-{moment}"))
                    kit.prepare([inputs], url, options=options("shards"))

        with watched(meet):
            kit.prepare([inputs], url, options=options("shards"))
        assert is_second
        assert bucket.content(str(moment)) == wanted


def test_a_run_that_was_complete_before_this_one_could_claim_the_place(
    kit: Any, bucket: MemoryBucket, inputs: Path, tmp_path: Path
) -> None:
    """This one has found the place empty; it writes nothing there."""
    url = f"{bucket.url}/web"
    is_second = False

    def meet(number: int, kind: str) -> None:
        nonlocal is_second
        if not is_second:
            is_second = True
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("HEADRACE_CACHE", str(tmp_path / "second"))
                kit.prepare([inputs], url, options=options("one shard"))

    with watched(meet), pytest.raises(OutputError, match=r"/web: another run has written to this place meanwhile"):
        kit.prepare([inputs], url, options=options("shards"))
    assert is_second
    assert bucket.content("web") == local(kit, inputs, tmp_path / "local", options("one shard"))


def test_no_secret_is_in_what_a_run_leaves(kit: Any, bucket: MemoryBucket, inputs: Path) -> None:
    storage = headrace.Storage(
        region="us-east-1", options={"access_key_id": "known", "secret_access_key": "planted-secret"}
    )
    for file in inputs.iterdir():
        bucket.put(f"in/{file.name}", file.read_bytes())
    given = options("shards", errors=ErrorOptions(on_error="skip"))
    with watched(stop_at(12)), pytest.raises(Stopped):
        prepare([f"{bucket.url}/in"], f"{bucket.url}/web", tokenizer=kit.tokenizer, options=given, storage=storage)
    left = [path.read_bytes() for folder in scratch() for path in folder.rglob("*") if path.is_file()]
    assert len([*left, *bucket.content()]) > 6
    assert not any(b"planted-secret" in data for data in [*left, *bucket.content().values()])


def test_another_store_is_not_replaced(kit: Any, bucket: MemoryBucket, inputs: Path) -> None:
    url = f"{bucket.url}/web"
    kit.prepare([inputs], url, options=options("shards"))
    before = bucket.content("web")
    with pytest.raises(OutputError, match="/web"):
        kit.prepare([inputs], url, options=options("one shard"))
    with pytest.raises(ConfigError, match="/web"):
        kit.prepare([inputs], url, options=options("shards", overwrite=True))
    bucket.put("notes/a.txt", b"mine")
    with pytest.raises(OutputError, match=r"/notes.*'a.txt'"):
        kit.prepare([inputs], f"{bucket.url}/notes", options=options("shards"))
    assert bucket.content("web") == before
    assert bucket.content("notes") == {"a.txt": b"mine"}
    assert not scratch()


def test_a_store_that_appears_meanwhile_is_not_replaced(kit: Any, bucket: MemoryBucket, inputs: Path) -> None:
    def meet(number: int, kind: str) -> None:
        if kind == "create" and any(name.endswith(".idx") for name in bucket.content("web")):
            bucket.put("web/headrace.json", b"another")

    with watched(meet), pytest.raises(OutputError, match=r"/web: the place holds the output of an earlier run"):
        kit.prepare([inputs], f"{bucket.url}/web", options=options("one shard"))
    assert bucket.content("web")["headrace.json"] == b"another"


def test_another_unfinished_run_is_named_and_discarded(
    kit: Any, bucket: MemoryBucket, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{bucket.url}/web"
    with watched(stop_at(7)), pytest.raises(Stopped):
        kit.prepare([inputs], url, options=options("shards"))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "another host"))
    before = bucket.content("web")
    with pytest.raises(OutputError, match=r"/web.*output\.shard_tokens.*2500"):
        kit.prepare([inputs], url, options=options("one shard"))
    assert bucket.content("web") == before
    assert not scratch()
    kit.prepare([inputs], url, options=options("one shard", restart=True))
    assert bucket.content("web") == local(kit, inputs, tmp_path / "local", options("one shard"))


def test_a_bad_record_leaves_nothing(kit: Any, bucket: MemoryBucket, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(json.dumps({"text": "good"}) + "\n{\n")
    with pytest.raises(InputError, match=r"bad\.jsonl.*2"):
        kit.prepare([tmp_path / "bad.jsonl"], f"{bucket.url}/web", options=PLAIN)
    assert not bucket.content("web")
    assert not scratch()


def test_what_was_removed_meanwhile_is_named(kit: Any, bucket: MemoryBucket, inputs: Path) -> None:
    def meet(number: int, kind: str) -> None:
        if "web/text_document_00001.bin" in bucket.content():
            faults_removed.append(bucket.store.delete("web/text_document_00000.bin"))

    faults_removed: list[object] = []
    with watched(meet), pytest.raises(OutputError, match=r"/web/text_document_00000\.bin"):
        kit.prepare([inputs], f"{bucket.url}/web", options=options("shards"))
    assert "headrace.json" not in bucket.content("web")


def test_inputs_at_urls(kit: Any, bucket: MemoryBucket, inputs: Path, tmp_path: Path) -> None:
    given = options("shards", errors=ErrorOptions(on_error="skip"))
    wanted = local(kit, inputs, tmp_path / "local", given)
    for file in inputs.iterdir():
        bucket.put(f"in/{file.name}", file.read_bytes())
    bucket.put("in/.hidden/a.jsonl", b"{")
    for number, argument in enumerate(["in", "in/", "in/*.json*", "in/{a,b,c0,c1,c2}.jsonl*", "in/**/*.jsonl*"]):
        folder = tmp_path / f"out-{number}"
        manifest = kit.prepare([f"{bucket.url}/{argument}"], folder, options=given)
        assert [one.path.removeprefix(f"{bucket.url}/") for one in manifest.inputs] == [
            f"in/{file.name}" for file in sorted(inputs.iterdir())
        ]
        found = faults.content(folder)
        assert {name: data for name, data in found.items() if name != "headrace.json"} == {
            name: data for name, data in wanted.items() if name != "headrace.json" and name in found
        }
        assert {name for name in found if name.startswith("text")} == {n for n in wanted if n.startswith("text")}
    with pytest.raises(ConfigError, match=r"in/none.jsonl'"):
        kit.prepare([f"{bucket.url}/in/none.jsonl"], tmp_path / "none", options=given)
    with pytest.raises(ConfigError, match=r"in/x\*'"):
        kit.prepare([f"{bucket.url}/in/x*"], tmp_path / "none", options=given)


def test_what_is_not_supported_is_refused_by_name(kit: Any, inputs: Path, tmp_path: Path) -> None:
    for run in (prepare, plan):
        for url, message in (("http://host/a", r"http://host/a.*s3://.*gs://"), ("hdfs://x", "hdfs://")):
            with pytest.raises(ConfigError, match=message):
                run([inputs], url, tokenizer=kit.tokenizer, options=PLAIN)
    with pytest.raises(ConfigError, match="storage"):
        prepare([inputs], tmp_path / "a", tokenizer=kit.tokenizer, options=PLAIN, storage=headrace.Storage())


# Tokenisers, chat templates and recipes at URLs.


def data(folder: Path) -> dict[str, bytes]:
    """All files but the manifest, in which the names of the inputs are."""
    return {name: content for name, content in faults.content(folder).items() if name != "headrace.json"}


@pytest.mark.parametrize("name", ["tok", "tok/tokenizer.json"])
def test_a_tokeniser_at_a_url(kit: Any, bucket: MemoryBucket, inputs: Path, tmp_path: Path, name: str) -> None:
    bucket.put("tok/tokenizer.json", kit.tokenizer.read_bytes())
    wanted = kit.prepare([inputs], tmp_path / "local", options=PLAIN)
    url = f"{bucket.url}/{name}"
    made = prepare([inputs], tmp_path / "made", tokenizer=url, options=PLAIN)
    assert data(tmp_path / "made") == data(tmp_path / "local")
    assert made.tokenizer.source == url
    assert made.tokenizer.xxh3_128 == wanted.tokenizer.xxh3_128
    tokens = wanted.ledger.tokens
    assert estimate([inputs], tokenizer=url).tokens == tokens.kept - tokens.eod


def test_tokenisers_that_are_not_there(bucket: MemoryBucket, inputs: Path, tmp_path: Path) -> None:
    bucket.put("tok/config.json", b"{}")
    for url, message in (
        (f"{bucket.url}/tok", r"tokenizer\.json"),
        (f"{bucket.url}/other", "exist"),
        ("hf://org/model", "hf://"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            prepare([inputs], tmp_path / "made", tokenizer=url, options=PLAIN)
        assert url in str(caught.value)
        assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "template", ["template: {name: thinking}\n", "template: chats/other.jinja\n", "template: chatml\n"]
)
def test_a_recipe_at_a_url(
    bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    """Its tokeniser and its template lie beside it; the records here are local, see tests/remote for others."""
    model = recipe_runs.make_model(tmp_path / "model")
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "thinking.jinja").write_text(recipe_runs.THINKING)
    (tmp_path / "chats").mkdir()
    (tmp_path / "chats" / "other.jinja").write_text(recipe_runs.THINKING)
    records = tmp_path / "data.jsonl"
    recipe_runs.write_lines(records, recipe_runs.conversations(50))
    text = f"type: sft\ninputs: {records}\ntokenizer: model\n{template}"
    (tmp_path / "recipe.yaml").write_text(text)
    folder = bucket.upload(model, "recipes/model").rpartition("/")[0]
    bucket.upload(tmp_path / "chats", "recipes/chats")
    bucket.put("recipes/recipe.yaml", text.encode())
    monkeypatch.chdir(tmp_path)
    options = PrepareOptions(workers=1, tokens=TokenOptions(backend="tokenizers"))
    prepare([], "local", recipe="recipe.yaml", options=options)
    for path in (model / "tokenizer.json", tmp_path / "chats" / "other.jinja"):
        path.unlink()  # nothing is read beside the process
    made = prepare([], "made", recipe=f"{folder}/recipe.yaml", options=options)
    assert data(tmp_path / "made") == data(tmp_path / "local")
    ours, wanted = made.options["template"], load_manifest(tmp_path / "local").options["template"]
    assert ours["text"] == wanted["text"]
    assert ours["source"] == (wanted["source"] if "chatml" in template else f"{folder}/{wanted['source']}")
    assert made.options["recipe"]["tokenizer"] == f"{folder}/model"


def test_paths_in_a_recipe_at_a_url(bucket: MemoryBucket) -> None:
    text = (
        "type: sft\ninputs: [a.jsonl, {paths: [../b/*.jsonl, /data/c.jsonl, 'gs://other/d', '-']}]\n"
        "tokenizer: ./model\ntemplate: {path: nowhere.jinja}\n"
    )
    bucket.put("x/recipe.yaml", text.encode())
    recipe = read_recipe(f"{bucket.url}/x/recipe.yaml")
    assert recipe.inputs[0].paths == f"{bucket.url}/x/a.jsonl"
    assert recipe.inputs[1].paths == (f"{bucket.url}/b/*.jsonl", "/data/c.jsonl", "gs://other/d", "-")
    assert recipe.tokenizer == f"{bucket.url}/x/model"
    assert recipe.template.path == f"{bucket.url}/x/nowhere.jinja"


def test_recipes_that_cannot_be_read(bucket: MemoryBucket, tmp_path: Path) -> None:
    bucket.put("bad.yaml", b"\xff")
    bucket.put("typo.yaml", b"type: sfft")
    for name in ("none", "bad", "typo"):
        with pytest.raises(ConfigError, match=rf"{bucket.url}/{name}\.yaml"):
            prepare([], tmp_path / "made", recipe=f"{bucket.url}/{name}.yaml")
    assert not (tmp_path / "made").exists()
