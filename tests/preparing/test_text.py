"""The whole way, held against plain loops over lists in one process."""

from __future__ import annotations

import gzip
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings, strategies as st

import faults
import headrace
import plainly
from counts import cases
from headrace.engine.job import TaskProgress
from headrace.errors import ConfigError, InputError
from headrace.preparing import (
    ErrorOptions,
    FilterSpec,
    OutputOptions,
    PrepareOptions,
    RecordOptions,
    ShardOptions,
    TokenOptions,
    estimate,
    plan,
    prepare,
    shards,
)
from headrace.preparing.energon import EnergonOptions
from headrace.stores import Manifest, Provenance, load_manifest

pytestmark = pytest.mark.usefixtures("warm_workers")
REFERENCE = TokenOptions(backend="tokenizers")
ODD_TEXTS = [
    "",
    " ",
    "\n",
    "\r\n\t  \u00a0\u3000",
    "plain",
    "ends in a newline\n",
    "literal <|endoftext|> inside, and <|im_start|>",
    "<|endoftext|>",
    "naïve café ẞ ﬁ Ω \u0301 e\u0301",
    "日本語のテキスト 中文 한국어 ไทย العربية עברית हिन्दी",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001d4d7",
    "\0 \x07 \x1b[0m \x7f \x85 \u2028 \u2029 \ufeff \ufffd \uffff \U0010ffff",
    '"quotes" \\ / \\n \\u0041',
    "0123456789 " * 50,
    "a" * 30_000,
    "word " * 20_000,
    " " * 5_000,
    "",
]


def check_output(folder: Path, expected: plainly.Expected, options: PrepareOptions, names: list[str]) -> Manifest:
    """Everything that a run leaves: documents in their shards, origins, ledger, errors."""
    manifest = load_manifest(folder)
    assert plainly.stored(folder, expected.keys) == expected.documents
    shards = expected.shards(options.output.shard_tokens)
    first_key = [shard for shard in manifest.outputs if expected.keys[0] in shard.keys]
    assert [shard.documents for shard in first_key] == list(map(len, shards))
    origins = Provenance(folder / "provenance")
    files, lines = origins.locate(np.arange(len(expected.documents)))
    assert list(zip(files.tolist(), lines.tolist(), strict=True)) == [(one.file, one.line) for one in expected.origins]
    if options.records.id_field is not None:
        assert origins.ids(np.arange(len(expected.documents))) == [one.id for one in expected.origins]
    documents, tokens = manifest.ledger.documents, manifest.ledger.tokens
    assert (documents.read, documents.kept) == (expected.read, len(expected.documents))
    assert documents.dropped == expected.dropped
    assert documents.blank_lines == expected.blank_lines
    assert documents.text_bytes == expected.text_bytes
    assert documents.empty == sum(not any(document) for document in expected.documents)
    assert tokens.made == expected.made_tokens
    assert tokens.kept == sum(len(row) for document in expected.documents for row in document)
    assert [(error.file, error.line) for error in manifest.errors] == expected.errors
    assert [file.path for file in manifest.inputs] == names
    for file, name in zip(manifest.inputs, names, strict=True):
        content = Path(name).read_bytes()
        assert (file.size, file.xxh3_128) == (len(content), xxhash.xxh3_128_hexdigest(content))
    return manifest


def run_and_check(kit: Any, files: list[Path], folder: Path, options: PrepareOptions) -> Manifest:
    kit.prepare(files, folder, options=options)
    expected = plainly.expect(
        files,
        kit.tokenizer,
        options,
        eod=kit.eod if options.tokens.append_eod else None,
        bos=None if options.tokens.bos == "never" else kit.eod + 1,
    )
    return check_output(folder, expected, options, list(map(str, files)))


@st.composite
def corpora(draw: st.DrawFn) -> list[list[str]]:
    """Lines of some files: records, blank ones, broken ones, repeated ones."""
    texts = st.text(max_size=40) | st.integers(0, 900).map(lambda n: "xy " * n) | st.sampled_from(ODD_TEXTS)
    records = st.builds(
        lambda text, title, number: json.dumps({"text": text, "title": title, "id": number}),
        texts,
        st.text(max_size=9),
        st.integers(0, 99) | st.text(max_size=5),
    )
    broken = st.sampled_from(['{"text": 7}', "{", "[]", '{"title": "no text", "id": 1}'])
    line = records | records | records | st.sampled_from(["", "  "])
    files = draw(st.lists(st.lists(line, max_size=30), min_size=1, max_size=3))
    good = json.dumps({"text": "always one", "title": "t", "id": "i"})
    if draw(st.booleans()):
        for place in range(draw(st.integers(0, 4))):
            lines = files[place % len(files)]
            lines.insert(draw(st.integers(0, len(lines))), draw(broken))
            lines.append(good)  # a file none of whose records has the fields is refused as a whole
    files[0] += [good, json.dumps({"text": "word " * 300, "title": "", "id": 5})]
    return [[*lines, *lines[:3]] if draw(st.booleans()) else lines for lines in files]


limits = st.none() | st.integers(0, 200)


@st.composite
def options_of_runs(draw: st.DrawFn) -> PrepareOptions:
    records = draw(
        st.sampled_from(
            [
                RecordOptions(),
                RecordOptions(id_field="id"),
                RecordOptions(fields=("title", "text"), id_field="id"),
                RecordOptions(fields=("title", "text"), join=" -- "),
            ]
        )
    )
    return PrepareOptions(
        records=records,
        tokens=TokenOptions(
            append_eod=draw(st.booleans()),
            bos=draw(st.sampled_from(["never", "<|im_start|>"])),
            special_tokens_in_text=draw(st.sampled_from(["literal", "encode", "error"])),
            backend=draw(st.sampled_from(["tokenizers", "tokenizers", "auto"])),
        ),
        filters=FilterSpec(min_chars=draw(st.none() | st.integers(0, 12)), max_tokens=draw(st.none() | limits)),
        deduplicate=draw(st.booleans()),
        output=OutputOptions(
            format=draw(st.sampled_from(["indexed", "keyed"])),
            shard_tokens=draw(st.none() | st.integers(1, 3000)),
        ),
        errors=ErrorOptions(on_error="skip", max_errors=1000),
        task_bytes=draw(st.integers(200, 1 << 20)),
        workers=draw(st.integers(1, 3)),
    )


@settings(max_examples=cases(8, 400), deadline=None)
@given(lines=corpora(), options=options_of_runs(), compressed=st.booleans())
def test_any_run(
    kit: Any,
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[list[str]],
    options: PrepareOptions,
    compressed: bool,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    files = []
    for number, content in enumerate(lines):
        data = "".join(line + "\n" for line in content).encode()
        files.append(folder / f"{number}.jsonl{'.gz' if compressed else ''}")
        files[-1].write_bytes(gzip.compress(data) if compressed else data)
    try:
        run_and_check(kit, files, folder / "out", options)
    except InputError as error:
        # Filters may leave nothing, which is an error of its own.
        assert "no documents are left" in str(error) or "no tokens" in str(error)  # noqa: PT017


@pytest.mark.sampled(1)
def test_the_same_bytes_for_any_number_of_workers(kit: Any, corpus: Path, tmp_path: Path) -> None:
    contents = []
    for workers in (1, 3):
        output = tmp_path / str(workers)
        options = PrepareOptions(
            tokens=TokenOptions(append_eod=True),
            output=OutputOptions(shard_tokens=200_000),
            workers=workers,
            task_bytes=100_000,
        )
        kit.prepare([corpus], output, options=options)
        contents.append({path.relative_to(output): path.read_bytes() for path in output.rglob("*") if path.is_file()})
    assert len(contents[0]) > 8
    assert contents[0] == contents[1]
    expected = plainly.expect(sorted(corpus.iterdir()), kit.tokenizer, options, eod=kit.eod, bos=None)
    assert plainly.stored(tmp_path / "3", expected.keys) == expected.documents


def test_a_large_task_leaves_several_pieces(kit: Any, tmp_path: Path) -> None:
    """A compressed file is one task: its pieces follow one another, lines and all."""
    records = [{"text": f"document {number} " * (number % 40)} for number in range(1_000)]
    lines = [json.dumps(record) if number % 11 else "" for number, record in enumerate(records)]
    lines[700] = "broken"
    file = tmp_path / "in.jsonl.gz"
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    options = PrepareOptions(tokens=REFERENCE, errors=ErrorOptions(on_error="skip"), workers=1)
    with faults.small_run():
        manifest = run_and_check(kit, [file], tmp_path / "out", options)
    assert [error.line for error in manifest.errors] == [701]


def test_the_manifest(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    kit.write(Path("in/small.jsonl"), [{"body": "a"}, {"body": ""}])
    kit.write(Path("in/large.jsonl"), [{"body": "word <|im_start|>" * 100}] * 30)
    options = PrepareOptions(
        records=RecordOptions(fields=("body",)), tokens=TokenOptions(append_eod=True), task_bytes=2048
    )
    manifest = kit.prepare(["in"], "out", options=options)
    assert load_manifest("out") == manifest
    (shard,) = manifest.outputs
    assert (shard.prefix, shard.keys["text"].dtype, shard.documents) == ("text_document", "uint16", 32)
    assert (manifest.tokenizer.vocab_size, manifest.tokenizer.eod) == (kit.vocab_size, kit.eod)
    assert (manifest.tokenizer.eod_text, manifest.tokenizer.bos_text) == (kit.eod_token, "")
    assert manifest.tokenizer.library_version == importlib.metadata.version("tokenizers")
    assert manifest.options["records"]["fields"] == ["body"]
    assert manifest.backend.proved["first_documents"] == 32
    assert manifest.ledger.documents.with_special_tokens == 30
    # Neither this machine nor this moment stands in it.
    content = Path("out/headrace.json").read_bytes().replace(str(kit.tokenizer).encode(), b"")
    assert str(tmp_path).encode() not in content
    with headrace.open("out") as store:
        assert store.num_tokens == manifest.ledger.tokens.kept == shard.tokens
        assert list(store.check(vocab_size=kit.vocab_size)) == []


def test_a_large_vocabulary_takes_int32(kit: Any, tmp_path: Path) -> None:
    content = json.loads(kit.tokenizer.read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 70_000, "content": "<|far|>"})
    content["model"]["vocab"]["<|far|>"] = 70_000
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    kit.write(tmp_path / "in.jsonl", [{"text": "a<|far|>"}])
    options = PrepareOptions(tokens=TokenOptions(special_tokens_in_text="encode"))
    manifest = prepare([tmp_path / "in.jsonl"], tmp_path / "out", tokenizer=tmp_path, options=options)
    assert manifest.outputs[0].keys["text"].dtype == "int32"
    with headrace.open(tmp_path / "out") as store:
        assert store.document(0).tolist()[-1] == 70_000


def test_progress_reaches_the_whole(kit: Any, corpus: Path, tmp_path: Path) -> None:
    seen: list[TaskProgress] = []
    manifest = kit.prepare([corpus], tmp_path / "out", workers=2, task_bytes=100_000, on_progress=seen.append)
    encoding = [progress for progress in seen if progress.phase.startswith("encode")]
    total = sum(file.size for file in manifest.inputs)
    assert all(progress.total_bytes == total for progress in encoding)
    done = [progress.counts.get("bytes", 0) for progress in encoding]
    assert done == sorted(done)
    assert 0 < max(done) <= total
    assert max(progress.counts.get("tokens", 0) for progress in seen) <= manifest.ledger.tokens.kept
    # A probe that was passed before is kept, and not made again.
    phases = list(dict.fromkeys(progress.phase.partition("-")[0] for progress in seen))
    assert phases[1:].index("prove") == ("probe" in phases)
    assert [phase for phase in phases if phase != "probe"] == ["tokenizer", "prove", "encode", "cut", "join"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (PrepareOptions(tokens=TokenOptions(eod="</s>")), "--append-eod"),
        (PrepareOptions(tokens=TokenOptions(bos="alway")), "--bos.'alway'"),
        (PrepareOptions(tokens=TokenOptions(bos="always")), "begin-of-sequence"),
        (PrepareOptions(workers=0), "workers"),
        (PrepareOptions(task_bytes=0), "task_bytes"),
        (PrepareOptions(records=RecordOptions(fields=("",))), "name"),
        (PrepareOptions(records=RecordOptions(fields=())), "name"),
        (PrepareOptions(records=RecordOptions(fields=("a", "a"))), "twice"),
        (PrepareOptions(records=RecordOptions(join=" ")), "--join"),
        (PrepareOptions(records=RecordOptions(fields=("a/b", "c"))), "'a/b'"),
        (PrepareOptions(records=RecordOptions(fields=("..", "c"))), r"'\.\.'"),
        (PrepareOptions(output=OutputOptions(shard_tokens=0)), "shard_tokens"),
        (PrepareOptions(errors=ErrorOptions(max_errors=1.5)), "share"),
        (PrepareOptions(errors=ErrorOptions(max_errors=-1)), "max_errors"),
        (PrepareOptions(filters=FilterSpec(min_chars=-1)), "min_chars"),
    ],
)
def test_options_that_cannot_be(kit: Any, corpus: Path, tmp_path: Path, options: PrepareOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kit.prepare([corpus], tmp_path / "out", options=options)
    assert not (tmp_path / "out").exists()


# `headrace.prepare` refuses arguments that do not fit together, and calls `prepare_shards` for media.


@pytest.mark.parametrize("inputs", ["a", Path("a"), ["a"], []])
def test_shard_options_prepare_media(monkeypatch: pytest.MonkeyPatch, inputs: Any) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(shards, "prepare_shards", lambda *args, **rest: seen.append((args, rest)))
    options = ShardOptions()
    headrace.prepare(inputs, "out", options=options, on_progress=print, on_notice=repr)
    [(places, rest)] = seen
    assert places == (list(inputs) if isinstance(inputs, list) else [inputs], "out")
    assert (rest["on_progress"], rest["on_notice"], rest["options"]) == (print, repr, options)


def test_one_path_is_a_list_of_one(kit: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    faults.write_inputs(folder, with_bad=False)
    options = PrepareOptions(tokens=REFERENCE, workers=1)
    for number, inputs in enumerate([str(folder), folder, [folder]]):
        headrace.prepare(inputs, tmp_path / f"{number}", tokenizer=kit.tokenizer, options=options)
    first = {path.name: path.read_bytes() for path in (tmp_path / "0").glob("text_document*")}
    assert len(first) == 2
    for number in (1, 2):
        assert {name: (tmp_path / f"{number}" / name).read_bytes() for name in first} == first
    found = [estimate(inputs, tokenizer=kit.tokenizer, options=options) for inputs in (str(folder), [folder])]
    assert found[0] == found[1]


NEITHER = "neither tokenizer nor recipe is given: give tokenizer="


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, NEITHER),
        ({"options": PrepareOptions()}, NEITHER),
        ({"options": EnergonOptions()}, "options are EnergonOptions, but text and recipes take PrepareOptions"),
        ({"tokenizer": "t", "options": ShardOptions()}, "options are ShardOptions, but text and recipes take"),
        ({"recipe": "r", "options": ShardOptions()}, "options are ShardOptions, but text and recipes take"),
    ],
)
@pytest.mark.parametrize("do", [headrace.prepare, plan, estimate])
def test_arguments_that_do_not_fit(do: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        do(["a"], *([] if do is estimate else ["out"]), **given)
    assert message in str(caught.value)


def test_media_have_functions_of_their_own() -> None:
    for call in (lambda: plan(["a"], "out", options=ShardOptions()), lambda: estimate(["a"], options=ShardOptions())):
        with pytest.raises(ConfigError, match="plan_shards and estimate_shards"):
            call()
