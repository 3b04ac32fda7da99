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
from hypothesis import given, settings
from hypothesis import strategies as st

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
    RecipeOptions,
    RecordOptions,
    ShardOptions,
    TextOptions,
    TokenOptions,
    choosing,
    prepare_text,
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


def check_output(folder: Path, expected: plainly.Expected, options: TextOptions, names: list[str]) -> Manifest:
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


def run_and_check(kit: Any, files: list[Path], folder: Path, options: TextOptions) -> Manifest:
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
    if draw(st.booleans()):
        for place in range(draw(st.integers(0, 4))):
            lines = files[place % len(files)]
            lines.insert(draw(st.integers(0, len(lines))), draw(broken))
    good = json.dumps({"text": "always one", "title": "t", "id": "i"})
    files[0] += [good, json.dumps({"text": "word " * 300, "title": "", "id": 5})]
    return [[*lines, *lines[:3]] if draw(st.booleans()) else lines for lines in files]


limits = st.none() | st.integers(0, 200)


@st.composite
def options_of_runs(draw: st.DrawFn) -> TextOptions:
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
    return TextOptions(
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


@settings(max_examples=cases(15, 400), deadline=None)
@given(lines=corpora(), options=options_of_runs(), compressed=st.booleans())
def test_any_run(
    kit: Any, tmp_path_factory: pytest.TempPathFactory, lines: list[list[str]], options: TextOptions, compressed: bool
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
    for workers in (1, 2, 3):
        output = tmp_path / str(workers)
        options = TextOptions(
            tokens=TokenOptions(append_eod=True),
            output=OutputOptions(shard_tokens=200_000),
            workers=workers,
            task_bytes=100_000,
        )
        kit.prepare([corpus], output, options=options)
        contents.append({path.relative_to(output): path.read_bytes() for path in output.rglob("*") if path.is_file()})
    assert len(contents[0]) > 8
    assert contents[0] == contents[1] == contents[2]
    expected = plainly.expect(sorted(corpus.iterdir()), kit.tokenizer, options, eod=kit.eod, bos=None)
    assert plainly.stored(tmp_path / "3", expected.keys) == expected.documents


def test_a_large_task_leaves_several_pieces(kit: Any, tmp_path: Path) -> None:
    """A compressed file is one task: its pieces follow one another, lines and all."""
    records = [{"text": f"document {number} " * (number % 40)} for number in range(1_000)]
    lines = [json.dumps(record) if number % 11 else "" for number, record in enumerate(records)]
    lines[700] = "broken"
    file = tmp_path / "in.jsonl.gz"
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    options = TextOptions(tokens=REFERENCE, errors=ErrorOptions(on_error="skip"), workers=1)
    with faults.small_run():
        manifest = run_and_check(kit, [file], tmp_path / "out", options)
    assert [error.line for error in manifest.errors] == [701]


def test_the_manifest(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    kit.write(Path("in/small.jsonl"), [{"body": "a"}, {"body": ""}])
    kit.write(Path("in/large.jsonl"), [{"body": "word <|im_start|>" * 100}] * 30)
    options = TextOptions(
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
    options = TextOptions(tokens=TokenOptions(special_tokens_in_text="encode"))
    manifest = prepare_text([tmp_path / "in.jsonl"], tmp_path / "out", tokenizer=tmp_path, options=options)
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
        (TextOptions(tokens=TokenOptions(eod="</s>")), "--append-eod"),
        (TextOptions(tokens=TokenOptions(bos="alway")), "--bos.'alway'"),
        (TextOptions(tokens=TokenOptions(bos="always")), "begin-of-sequence"),
        (TextOptions(workers=0), "workers"),
        (TextOptions(task_bytes=0), "task_bytes"),
        (TextOptions(records=RecordOptions(fields=("",))), "name"),
        (TextOptions(records=RecordOptions(fields=())), "name"),
        (TextOptions(records=RecordOptions(fields=("a", "a"))), "twice"),
        (TextOptions(records=RecordOptions(join=" ")), "--join"),
        (TextOptions(records=RecordOptions(fields=("a/b", "c"))), "'a/b'"),
        (TextOptions(records=RecordOptions(fields=("..", "c"))), r"'\.\.'"),
        (TextOptions(output=OutputOptions(shard_tokens=0)), "shard_tokens"),
        (TextOptions(errors=ErrorOptions(max_errors=1.5)), "share"),
        (TextOptions(errors=ErrorOptions(max_errors=-1)), "max_errors"),
        (TextOptions(filters=FilterSpec(min_chars=-1)), "min_chars"),
    ],
)
def test_options_that_cannot_be(kit: Any, corpus: Path, tmp_path: Path, options: TextOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kit.prepare([corpus], tmp_path / "out", options=options)
    assert not (tmp_path / "out").exists()


# `headrace.prepare` calls the function that fits its arguments, and refuses arguments that do not fit together.


@pytest.mark.parametrize(
    ("given", "called"),
    [
        ({"tokenizer": "t"}, "prepare_text"),
        ({"tokenizer": "t", "options": TextOptions(deduplicate=True)}, "prepare_text"),
        ({"recipe": "r.yaml"}, "prepare_recipe"),
        ({"recipe": "r.yaml", "tokenizer": "t", "options": RecipeOptions(deduplicate=True)}, "prepare_recipe"),
        ({"options": ShardOptions()}, "prepare_shards"),
    ],
)
@pytest.mark.parametrize("inputs", ["a", Path("a"), ["a"], []])
def test_the_function_that_is_called(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], called: str, inputs: Any
) -> None:
    seen: list[Any] = []
    for name in ("prepare_text", "prepare_recipe", "prepare_shards"):
        monkeypatch.setattr(choosing, name, lambda *args, name=name, **rest: seen.append((name, args, rest)))
    headrace.prepare(inputs, "out", **given, on_progress=print, on_notice=repr)
    ((name, places, rest),) = seen
    wanted = list(inputs) if isinstance(inputs, list) else [inputs]
    assert name == called
    assert places == (("r.yaml", "out") if called == "prepare_recipe" else (wanted, "out"))
    assert rest.get("inputs", wanted) == wanted
    assert (rest["on_progress"], rest["on_notice"], rest["options"]) == (print, repr, given.get("options"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "neither tokenizer nor recipe is given: give tokenizer="),
        ({"options": TextOptions()}, "neither tokenizer nor recipe is given, and options are TextOptions"),
        ({"options": EnergonOptions()}, "headrace.preparing.prepare_energon"),
        ({"tokenizer": "t", "options": ShardOptions()}, "ShardOptions, but text"),
        ({"tokenizer": "t", "options": RecipeOptions()}, "RecipeOptions with recipe="),
        ({"recipe": "r", "options": TextOptions()}, "TextOptions, but a recipe takes RecipeOptions"),
    ],
)
def test_arguments_that_do_not_fit(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        headrace.prepare(["a"], "out", **given)
    assert message in str(caught.value)
