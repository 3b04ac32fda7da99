"""A small byte-level BPE tokeniser, and a corpus."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import faults
import headrace
import proved_once
from headrace.preparing import PrepareOptions
from headrace.stores import Manifest

EOD = "<|endoftext|>"
VOCAB_SIZE = 700


@pytest.fixture(scope="module", autouse=True)
def proofs() -> Iterator[None]:
    """Which library encodes is found once for each tokeniser."""
    with proved_once.remembered():
        yield


@pytest.fixture(scope="session")
def sources() -> list[str]:
    """Some files of the standard library."""
    folder = Path(sysconfig.get_path("stdlib"))
    return [path.read_text("utf-8", "replace") for path in sorted(folder.glob("*.py"))[:110]]


@pytest.fixture(scope="session")
def tokenizer_path(sources: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[EOD, "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sources[:40], trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="session")
def corpus(sources: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three files, about 3 MB in all, documents of 0 to 2,000 characters."""
    folder = tmp_path_factory.mktemp("corpus")
    pieces = [text[at : at + at // 2 % 2000] for text in sources for at in range(0, len(text), 1500)]
    for number in range(3):
        write_records(folder / f"part-{number}.jsonl", ({"text": piece} for piece in pieces[number::3]))
    return folder


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A small folder of files of several kinds, all of them good."""
    faults.write_inputs(tmp_path / "in", with_bad=False)
    return tmp_path / "in"


@pytest.fixture
def small_run() -> Iterator[None]:
    """Small pieces, and the workers in this process."""
    with faults.small_run():
        yield


class Kit:
    """What tests of prepare use, in one fixture (a conftest cannot be imported)."""

    eod_token = EOD
    eod = 0
    vocab_size = VOCAB_SIZE

    def __init__(self, tokenizer: Path) -> None:
        self.tokenizer = tokenizer

    def write(self, path: Path, records: Iterable[Any]) -> Path:
        write_records(path, records)
        return path

    def prepare(
        self, inputs: list[Path | str], output: Path | str, *, options: PrepareOptions | None = None, **more: Any
    ) -> Manifest:
        """`prepare` with this tokeniser, and options as a whole or by their fields."""
        watched = {name: more.pop(name) for name in ("on_notice", "on_progress") if name in more}
        options = options or PrepareOptions(**more)
        return headrace.prepare(inputs, output, tokenizer=self.tokenizer, options=options, **watched)


@pytest.fixture(scope="session")
def kit(tokenizer_path: Path) -> Kit:
    return Kit(tokenizer_path)


def write_records(path: Path, records: Iterable[Any]) -> None:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")
