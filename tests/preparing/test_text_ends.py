"""Which runs over text begin documents with BOS, and what they say and count if they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import headrace
import recipes_made
from headrace.cli import main
from headrace.errors import ConfigError
from headrace.preparing import TextOptions, TokenOptions, prepare_text
from headrace.stores import load_manifest

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
    options = TextOptions(tokens=tokens, workers=1, overwrite=True)
    ledger = prepare_text(["a.jsonl"], "out", tokenizer=tokenizer, options=options, on_notice=notices.append).ledger
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
    with pytest.raises(ConfigError, match="begins texts with 2 tokens, <eos>, <bos>, and only one can be added here"):
        prepare("auto")
    Path("model/tokenizer_config.json").write_text("[")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json cannot be read as a JSON object"):
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
