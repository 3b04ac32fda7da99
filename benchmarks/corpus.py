"""Gathers real text for the benchmarks: sources, headers and documentation of the packages installed here.

Every paragraph appears only once. The same package in two versions, or the same licence in a thousand headers, would
favour tokenisers that cache words. Documents are 600 to 12,000 characters long (log-uniform), and shuffled. The texts
depend on the machine, so only ratios carry over to other machines.
"""

from __future__ import annotations

import json
import os
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import xxhash

# Not .json, since most .json files are data.
KINDS = {".py", ".pyi", ".pyx", ".c", ".cpp", ".h", ".hpp", ".cuh", ".js", ".ts", ".md", ".rst", ".txt", ".html", ".pm"}
MAX_FILE_BYTES = 2_000_000
END = "<|endoftext|>"
SPECIAL = re.compile(r"<\|\w+\|>|</?s>")
VOCAB_SIZE = 50_257


def gather(megabytes: float, folders: Iterable[str] = ()) -> list[str]:
    """Gather documents of ``megabytes`` of UTF-8, or all that there are; ``folders`` are searched too."""
    rng = random.Random(0)
    files = list(_files(folders))
    rng.shuffle(files)
    documents: list[str] = []
    seen: set[int] = set()
    left = megabytes * 1e6
    for file in files:
        if left <= 0:
            break
        try:
            text = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        text = "\n\n".join(_unseen(text.split("\n\n"), seen))
        at = 0
        while at < len(text) and left > 0:
            document = text[at : at + int(600 * 20 ** rng.random())]
            at += len(document)
            # Tools differ in how they encode a document that contains the text of a special token, and whether at all.
            if not SPECIAL.search(document):
                documents.append(document)
                left -= len(document.encode())
    rng.shuffle(documents)
    return documents


def _unseen(paragraphs: list[str], seen: set[int]) -> Iterator[str]:
    for paragraph in paragraphs:
        key = xxhash.xxh3_64_intdigest(paragraph.strip().encode())
        if key not in seen:
            seen.add(key)
            yield paragraph


def _files(folders: Iterable[str]) -> Iterator[Path]:
    paths = sysconfig.get_paths()
    roots = [paths["stdlib"], paths["purelib"], paths["platlib"], "/usr/include", "/usr/share", *folders]
    seen = set()
    for root in sorted({str(Path(one).resolve()) for one in roots}):
        for folder, inner, names in os.walk(root):
            inner.sort()
            for name in sorted(names):
                file = Path(folder, name)
                if file.suffix in KINDS and not file.is_symlink() and file.stat().st_size <= MAX_FILE_BYTES:
                    seen.add(file)
    yield from sorted(seen)


def write_jsonl(path: Path, documents: Iterable[str], *, padding: str = "") -> None:
    """Write one record a line; the padding goes into a field that is not read."""
    with path.open("w", encoding="utf-8") as file:
        for number, document in enumerate(documents):
            record = {"text": document, "id": f"{number}{padding}"}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def text_bytes(documents: Iterable[str]) -> int:
    return sum(len(document.encode()) for document in documents)


def train_tokenizer(path: Path, documents: list[str], megabytes: float = 20) -> None:
    """Train byte-level BPE with GPT-2's pattern on a part of the documents, spread over all of them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    step = max(1, round(text_bytes(documents) / (megabytes * 1e6)))
    tokenizer.train_from_iterator(documents[::step], trainer)
    tokenizer.save(str(path))
