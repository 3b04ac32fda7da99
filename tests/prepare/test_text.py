"""The whole way, held against a plain loop in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import ConfigError
from headrace.prepare import TextOptions, TextProgress, prepare_text
from headrace.stores import load_manifest

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


def test_odd_texts(kit: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    files = [
        kit.write(folder / "1-utf8.jsonl", ({"id": at, "text": text} for at, text in enumerate(ODD_TEXTS))),
        folder / "2-ascii.jsonl",
        folder / "3-bom-crlf.jsonl",
        folder / "4-no-final-newline.jsonl",
        folder / "5-empty.jsonl",
        folder / "6-blank.jsonl",
        folder / "7-bom-alone.jsonl",
        folder / "10-spaced.jsonl",
    ]
    lines = [json.dumps({"text": text, "score": float("nan")}) for text in ODD_TEXTS]
    files[1].write_text("\n".join(lines) + "\n")
    files[2].write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n")
    files[3].write_text("\n\n \n" + "\n".join(lines))
    files[4].touch()
    files[5].write_text("\n  \n\t\r\n")
    files[6].write_bytes(b"\xef\xbb\xbf")
    files[7].write_text('  { "text" :\t"x" }  \n')
    for eod in (None, kit.eod):
        output = tmp_path / f"out-{eod}"
        options = TextOptions(append_eod=eod is not None, task_bytes=1000, workers=2)
        manifest = prepare_text([folder], output, tokenizer=kit.tokenizer, options=options)
        assert kit.output(output) == kit.plain_loop(files, eod=eod)
        assert manifest.ledger.documents.read == 4 * len(ODD_TEXTS) + 1
        assert [Path(file.path) for file in manifest.inputs] == files


def test_the_same_bytes_for_any_number_of_workers(kit: Any, corpus: Path, tmp_path: Path) -> None:
    wanted = kit.plain_loop(sorted(corpus.iterdir()), eod=kit.eod)
    manifests = []
    for workers in (1, 2, 3):
        output = tmp_path / str(workers)
        options = TextOptions(append_eod=True, workers=workers, task_bytes=100_000)
        prepare_text([corpus], output, tokenizer=kit.tokenizer, options=options)
        assert kit.output(output) == wanted
        manifests.append((output / "headrace.json").read_bytes())
    assert manifests[0] == manifests[1] == manifests[2]


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_the_same_bytes_for_any_task_size(
    kit: Any, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("any")
    texts = st.text(max_size=40) | st.integers(0, 5000).map(lambda length: "xy " * length) | st.sampled_from(ODD_TEXTS)
    files = []
    for number in range(data.draw(st.integers(1, 3), "files")):
        records = data.draw(st.lists(texts, max_size=40), "texts")
        files.append(kit.write(folder / f"{number}.jsonl", ({"text": text} for text in ["always one", *records])))
    options = TextOptions(
        append_eod=data.draw(st.booleans(), "append_eod"),
        task_bytes=data.draw(st.integers(1 << 10, 1 << 20) | st.just(1 << 10), "task_bytes"),
        workers=data.draw(st.integers(1, 3), "workers"),
    )
    prepare_text(files, folder / "out", tokenizer=kit.tokenizer, options=options)
    assert kit.output(folder / "out") == kit.plain_loop(files, eod=kit.eod if options.append_eod else None)


def test_the_manifest(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    kit.write(Path("in/small.jsonl"), [{"body": "a"}, {"body": ""}])
    kit.write(Path("in/large.jsonl"), [{"body": "word " * 100}] * 30)
    options = TextOptions(text_field="body", append_eod=True, task_bytes=2048)
    manifest = prepare_text(["in"], "out", tokenizer=kit.tokenizer, options=options)
    assert load_manifest("out") == manifest
    for file, name in zip(manifest.inputs, ("in/large.jsonl", "in/small.jsonl"), strict=True):
        content = Path(name).read_bytes()
        assert (file.path, file.size, file.xxh3_128) == (name, len(content), xxhash.xxh3_128_hexdigest(content))
    (shard,) = manifest.outputs
    assert (shard.prefix, shard.dtype, shard.documents, shard.contiguous) == ("text_document", "uint16", 32, True)
    assert manifest.tokenizer is not None
    assert (manifest.tokenizer.vocab_size, manifest.tokenizer.eod) == (kit.vocab_size, kit.eod)
    assert manifest.options["text_field"] == "body"
    # Neither this machine nor this moment stands in it.
    assert str(tmp_path).encode() not in Path("out/headrace.json").read_bytes().replace(
        str(kit.tokenizer).encode(), b""
    )
    with headrace.open("out") as store:
        assert store.num_documents == manifest.ledger.documents.kept == 32
        assert store.num_tokens == manifest.ledger.tokens.kept == shard.tokens
        assert store.document(31).tolist() == []
        assert store.document(30).tolist()[-1] == kit.eod
        assert list(store.check(vocab_size=kit.vocab_size)) == []


def test_the_ledger_counts_what_holds_nothing(kit: Any, tmp_path: Path) -> None:
    """Empty texts are documents, blank lines are not; added tokens and bytes of text have counts of their own."""
    texts = ["naïve 漢字", "", "two words", ""]
    lines = [json.dumps({"text": text}) for text in texts]
    (tmp_path / "in.jsonl").write_text("\n".join([lines[0], "", *lines[1:], "   ", ""]))
    options = TextOptions(append_eod=True, workers=1)
    ledger = prepare_text([tmp_path / "in.jsonl"], tmp_path / "out", tokenizer=kit.tokenizer, options=options).ledger
    documents, tokens = ledger.documents, ledger.tokens
    assert (documents.read, documents.kept, documents.empty, documents.blank_lines) == (4, 4, 2, 2)
    assert documents.text_bytes == sum(len(text.encode()) for text in texts)
    assert tokens.eod == 2


def test_a_large_vocabulary_takes_int32(kit: Any, tmp_path: Path) -> None:
    content = json.loads(kit.tokenizer.read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 70_000, "content": "<|far|>"})
    content["model"]["vocab"]["<|far|>"] = 70_000
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    kit.write(tmp_path / "in.jsonl", [{"text": "a<|far|>"}])
    manifest = prepare_text([tmp_path / "in.jsonl"], tmp_path / "out", tokenizer=tmp_path)
    assert manifest.outputs[0].dtype == "int32"
    with headrace.open(tmp_path / "out") as store:
        assert store.document(0).tolist()[-1] == 70_000


def test_progress_reaches_the_whole(kit: Any, corpus: Path, tmp_path: Path) -> None:
    seen: list[TextProgress] = []
    options = TextOptions(workers=2, task_bytes=100_000)
    manifest = prepare_text(
        [corpus], tmp_path / "out", tokenizer=kit.tokenizer, options=options, on_progress=seen.append
    )
    total = sum(file.size for file in manifest.inputs)
    assert all(progress.total_bytes == total for progress in seen)
    assert [progress.input_bytes for progress in seen] == sorted(progress.input_bytes for progress in seen)
    assert 0 < max(progress.input_bytes for progress in seen) <= total
    assert max(progress.tokens for progress in seen) <= manifest.ledger.tokens.kept


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TextOptions(eod="</s>"), "nothing is appended: say --append-eod"),
        (TextOptions(workers=0), "workers is 0: at least 1"),
        (TextOptions(task_bytes=0), "task_bytes is 0"),
        (TextOptions(text_field=""), "text_field is empty"),
    ],
)
def test_options_that_cannot_be(kit: Any, corpus: Path, tmp_path: Path, options: TextOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare_text([corpus], tmp_path / "out", tokenizer=kit.tokenizer, options=options)
    assert not (tmp_path / "out").exists()
