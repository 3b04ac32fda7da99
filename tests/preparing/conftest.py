"""A small byte-level BPE tokeniser, a corpus, and the plain loop that everything is compared with."""

from __future__ import annotations

import json
import struct
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import faults
import proved_once

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

    def plain_loop(self, files: Iterable[Path], *, eod: int | None = None) -> tuple[bytes, bytes]:
        """The ``.bin`` and ``.idx`` that a simple program makes, by the letter of the format (uint16)."""
        tokenizer = Tokenizer.from_file(str(self.tokenizer))
        documents = []
        for file in files:
            for line in file.read_bytes().decode("utf-8-sig").split("\n"):
                if line.strip():
                    ids = tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids
                    documents.append([*ids, eod] if ids and eod is not None else ids)
        return index_files(documents)

    def output(self, folder: Path) -> tuple[bytes, bytes]:
        """The ``.bin`` and ``.idx`` in a folder, after a look that there is nothing else but the manifest."""
        found = sorted(path.name for path in folder.iterdir())
        assert found == ["headrace.json", "provenance", "text_document.bin", "text_document.idx"]
        return (folder / "text_document.bin").read_bytes(), (folder / "text_document.idx").read_bytes()


@pytest.fixture(scope="session")
def kit(tokenizer_path: Path) -> Kit:
    return Kit(tokenizer_path)


def write_records(path: Path, records: Iterable[Any]) -> None:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")


def index_files(documents: list[list[int]]) -> tuple[bytes, bytes]:
    sizes = [len(ids) for ids in documents if ids]
    pointers = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64) * 2))[:-1]
    ends = np.cumsum([0, *(bool(ids) for ids in documents)])
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(sizes), len(documents) + 1)
    index += np.asarray(sizes, "<i4").tobytes() + pointers.astype("<i8").tobytes() + ends.astype("<i8").tobytes()
    return b"".join(np.asarray(ids, "<u2").tobytes() for ids in documents), index
