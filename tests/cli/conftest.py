"""A prepared store, and a runner of the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer, models, pre_tokenizers

import made
import media_stores_made
from headrace.cli import main
from headrace.preparing import PrepareOptions, TokenOptions, prepare

WORDS = ["[UNK]", "<|endoftext|>", *(f"w{number}" for number in range(98))]

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Runs ``headrace`` with these arguments in this process; exceptions come through."""

    def invoke(*arguments: Any) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)

    return invoke


@pytest.fixture
def of_json(run: Run) -> Callable[..., Any]:
    """Runs ``headrace`` with ``--json``, and returns what it printed; ``code`` is the expected exit code."""

    def invoke(*arguments: Any, code: int = 0) -> Any:
        done = run(*arguments, "--json")
        assert done.exit_code == code, done.output
        return json.loads(done.stdout)

    return invoke


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples: `mixed` and `ocr` of Energon, `plain` tars, and the lines of `t.jsonl`."""
    root = tmp_path_factory.mktemp("media")
    media_stores_made.mixed(root / "mixed")
    media_stores_made.ocr(root / "ocr")
    media_stores_made.plain(root / "plain")
    media_stores_made.lines(root)
    return root


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose manifest has every part."""
    return made.one_key(tmp_path_factory.mktemp("whole") / "store")


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One id a word: 100 of them."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    words.save(str(path))
    return path


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of 0, 1, ..., 99 words in two files."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = [json.dumps({"text": " ".join(WORDS[2 : 2 + length % 90] * 2)}) for length in range(100)]
    (folder / "a.jsonl").write_text("\n".join(lines[:60]))
    (folder / "b.jsonl").write_text("\n".join(lines[60:]))
    return folder


@pytest.fixture(scope="session")
def prepared(corpus: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "store"
    options = PrepareOptions(tokens=TokenOptions(append_eod=True), workers=1)
    prepare([corpus], folder, tokenizer=tokenizer, options=options)
    return folder


@pytest.fixture
def store(prepared: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(prepared, tmp_path / "store"))
