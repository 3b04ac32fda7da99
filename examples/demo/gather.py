"""Writes the standard library of the installed Python as JSON Lines, and trains a tokeniser on a part of it."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

EOD = "<|endoftext|>"
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3", "_vendor"}
NETWORK = {"asyncio", "email", "http", "urllib", "wsgiref", "xmlrpc"}
FILES_EACH = 3


def gather(folder: Path, *, max_bytes: int) -> dict[str, list[Path]]:
    """Write ``folder/SOURCE/*.jsonl``; return the paths.

    The sources are ``modules`` (top-level files), ``network`` (the packages of `NETWORK`), and ``packages`` (the other
    ones). Each has at most a third of ``max_bytes``. Files are read in the order of their names, so the result is
    always the same.
    """
    library = Path(sysconfig.get_path("stdlib"))
    nested = set(library.glob("*/**/*.py"))
    network = {path for path in nested if path.relative_to(library).parts[0] in NETWORK}
    written = {}
    sources = {"modules": library.glob("*.py"), "packages": nested - network, "network": network}
    for name, paths in sources.items():
        documents = list(_read(library, paths, max_bytes // 3))
        (folder / name).mkdir(parents=True)
        written[name] = [folder / name / f"part-{number}.jsonl" for number in range(FILES_EACH)]
        for number, path in enumerate(written[name]):
            lines = [json.dumps(document, ensure_ascii=False) + "\n" for document in documents[number::FILES_EACH]]
            path.write_text("".join(lines), encoding="utf-8")
    return written


def _read(library: Path, paths: Iterable[Path], max_bytes: int) -> Iterator[dict[str, str]]:
    left = max_bytes
    for path in sorted(paths):
        place = path.relative_to(library)
        if SKIPPED & set(place.parts):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        left -= len(text.encode())
        if left < 0:
            return
        yield {"path": place.as_posix(), "text": text}


def train_tokenizer(files: list[Path], output: Path, *, vocab_size: int, sample_bytes: int) -> None:
    """Train a byte-level BPE tokeniser on the beginnings of all files, ``sample_bytes`` in total."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(files, sample_bytes // len(files)), trainer)
    tokenizer.save(str(output))


def _sample(files: list[Path], bytes_each: int) -> Iterator[str]:
    for path in files:
        left = bytes_each
        for line in path.read_text(encoding="utf-8").splitlines():
            text: str = json.loads(line)["text"]
            yield text[:left]
            left -= len(text)
            if left <= 0:
                break
