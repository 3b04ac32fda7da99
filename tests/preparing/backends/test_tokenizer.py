"""What is taken from a ``tokenizer.json``, and how runs over text begin and end documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer, models

import headrace
import recipes_made
from headrace.cli import main
from headrace.errors import ConfigError
from headrace.io import hash_bytes
from headrace.preparing import PrepareOptions, TokenOptions
from headrace.preparing.backends.tokenizer import load_tokenizer
from headrace.stores import load_manifest


def with_tokens(folder: Path, vocabulary: dict[str, int], special: list[str] | None = None) -> Path:
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(special or [])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_a_file_or_its_folder(kit: Any) -> None:
    loaded = load_tokenizer(kit.tokenizer)
    assert loaded.known.vocab_size == kit.vocab_size
    assert loaded.known.fingerprint == hash_bytes(kit.tokenizer.read_bytes())
    assert loaded.known.name == str(kit.tokenizer)
    in_folder = load_tokenizer(kit.tokenizer.parent)
    assert in_folder.known.name == str(kit.tokenizer.parent)
    assert in_folder.known.fingerprint == loaded.known.fingerprint


def test_the_vocabulary_counts_added_tokens_and_gaps(tmp_path: Path) -> None:
    assert load_tokenizer(with_tokens(tmp_path, {"a": 0, "[UNK]": 1}, ["<x>", "<y>"])).known.vocab_size == 4
    assert load_tokenizer(with_tokens(tmp_path, {"a": 0, "[UNK]": 99})).known.vocab_size == 100


@pytest.mark.parametrize("token", ["<|endoftext|>", "</s>", "[EOS]", "<｜end▁of▁sentence｜>"])  # noqa: RUF001
def test_the_only_usual_end_of_document_is_found(tmp_path: Path, token: str) -> None:
    loaded = load_tokenizer(with_tokens(tmp_path, {"[UNK]": 0, "<pad>": 1}, [token]))
    assert loaded.find_eod(None) == 2


def test_named_ends_of_document(tmp_path: Path) -> None:
    loaded = load_tokenizer(with_tokens(tmp_path, {"[UNK]": 0, "a": 1}, ["<end>"]))
    assert loaded.find_eod("<end>") == 2
    assert loaded.find_eod(1) == 1


@pytest.mark.parametrize(
    ("special", "wanted", "message"),
    [
        (["<end>"], None, "it has no usual one; its added tokens are: '<end>' (id 1). Name it with --eod"),
        ([], None, "its added tokens are: none"),
        (["</s>", "<eos>"], None, "several are usual: '</s>' (id 1), '<eos>' (id 2). Name it with --eod"),
        (["<end>"], "<stop>", "--eod '<stop>': not in the vocabulary"),
        (["<end>"], 2**70, "no token has this id"),
        (["<end>"], -1, "no token has this id"),
        (["<end>"], 2, "no token has this id"),
    ],
)
def test_unclear_ends_of_document(tmp_path: Path, special: list[str], wanted: str | int | None, message: str) -> None:
    loaded = load_tokenizer(with_tokens(tmp_path, {"[UNK]": 0}, special))
    with pytest.raises(ConfigError) as caught:
        loaded.find_eod(wanted)
    assert message in str(caught.value)


def test_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ConfigError, match="'gpt2'"):
        load_tokenizer("gpt2")
    for content in (b"", b"{}", b"\xff\xfe", json.dumps({"version": "1.0", "model": {"type": "?"}}).encode()):
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(ConfigError, match=r"tokenizer\.json"):
            load_tokenizer(tmp_path)


# Which runs over text begin documents with BOS, and what they say and count if they do not.


EOS, BOS = recipes_made.SPECIAL.index("<eos>"), recipes_made.SPECIAL.index("<bos>")
TEXTS = ["ab", "", "<bos>c", "d"]
AROUND = {"post-processor": "<bos> $A <eos>", "configuration": ""}


@pytest.fixture(params=AROUND)
def folder(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.json").write_bytes(recipes_made.tokenizer_json(around=AROUND[request.param]))
    config = {"bos_token": {"content": "<bos>"}, "add_bos_token": True} if request.param == "configuration" else {}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepare(
    bos: str | int, special: Any = "encode", tokenizer: str = "model"
) -> tuple[list[list[int]], Any, list[str]]:
    notices: list[str] = []
    tokens = TokenOptions(bos=bos, special_tokens_in_text=special, backend="tokenizers")
    options = PrepareOptions(tokens=tokens, workers=1, overwrite=True)
    ledger = headrace.prepare(["a.jsonl"], "out", tokenizer=tokenizer, options=options, on_notice=notices.append).ledger
    store = headrace.open("out")
    return [store.document(number).tolist() for number in range(len(store))], ledger, notices


def test_never_is_the_default_and_is_counted_and_said(folder: Path) -> None:
    assert TokenOptions().bos == "never"
    documents, ledger, [notice] = prepare("never")
    assert [row[:1] == [BOS] for row in documents] == [False, False, True, False]
    assert (ledger.missing_bos, ledger.tokens.bos) == (2, 0)
    assert notice.startswith("no BOS is added, although the tokeniser begins texts with '<bos>'")
    assert "`--bos auto` adds it" in notice
    assert load_manifest("out").ledger.missing_bos == 2
    assert prepare("never", "literal")[1].missing_bos == 3
    assert prepare("never", tokenizer="model/tokenizer.json")[1].missing_bos == 2


@pytest.mark.parametrize("bos", ["auto", "always", "<bos>", BOS])
def test_a_bos_that_is_added_is_never_doubled(folder: Path, bos: str | int) -> None:
    plain, _, _ = prepare("never")
    documents, ledger, notices = prepare(bos)
    assert documents == [row if not row or row[0] == BOS else [BOS, *row] for row in plain]
    assert (ledger.missing_bos, ledger.tokens.bos, notices) == (0, 2, [])
    assert b"missing_bos" not in Path("out/headrace.json").read_bytes()


def test_a_tokeniser_that_adds_none(folder: Path) -> None:
    Path("model/tokenizer.json").write_bytes(recipes_made.tokenizer_json())
    Path("model/tokenizer_config.json").unlink()
    plain, ledger, notices = prepare("never")
    assert (ledger.missing_bos, notices) == (0, [])
    assert prepare("auto")[0] == plain
    assert prepare("always")[0][0] == [BOS, *plain[0]]


def test_several_tokens_are_refused_and_a_broken_configuration_too(folder: Path) -> None:
    Path("model/tokenizer.json").write_bytes(recipes_made.tokenizer_json(around="<eos> <bos> $A"))
    assert prepare("never")[1].missing_bos == 3
    with pytest.raises(ConfigError, match=r"2.*tokens"):
        prepare("auto")
    Path("model/tokenizer_config.json").write_text("[")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json.*JSON"):
        prepare("never")


def test_the_command_says_it_too(folder: Path) -> None:
    args = ["prepare", "text", "a.jsonl", "-o", "out", "--tokenizer", "model", "--backend", "tokenizers", "--overwrite"]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    assert "no BOS is added" in result.stderr
    assert "3 texts without the one of the tokeniser" in result.output
    result = CliRunner().invoke(main, [*args, "--bos", "auto", "--json"])
    assert json.loads(result.stdout)["missing_bos"] == 0
    assert json.loads(result.stdout)["bos"] == BOS
