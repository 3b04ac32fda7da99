"""A tiny corpus for the other examples: some files of Python's standard library, tokenised and prepared.

`make` does in Python what this command does:

    headrace prepare text FOLDER/text/small --output FOLDER/small --tokenizer FOLDER/tokenizer.json --append-eod
"""

from __future__ import annotations

import json
import sysconfig
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import headrace
from headrace.preparing import PrepareOptions, TokenOptions

SOURCES = {"small": "[a-b]*.py", "large": "[c-f]*.py"}


def make(folder: Path | None = None) -> Path:
    """Make the stores ``small`` and ``large`` and their ``tokenizer.json`` in a folder, by default a new one."""
    folder = folder or Path(tempfile.mkdtemp(prefix="headrace-example-"))
    library = Path(sysconfig.get_path("stdlib"))
    for name, pattern in SOURCES.items():
        texts = [path.read_text(encoding="utf-8") for path in sorted(library.glob(pattern))[:16]]
        place = folder / "text" / name / "part-0.jsonl"
        place.parent.mkdir(parents=True)
        place.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        if name == "small":
            train_tokenizer(texts).save(str(folder / "tokenizer.json"))
        options = PrepareOptions(tokens=TokenOptions(append_eod=True), workers=1)
        headrace.prepare(place.parent, folder / name, tokenizer=folder / "tokenizer.json", options=options)
    return folder


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Train a byte-level BPE tokeniser of 1,000 ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


if __name__ == "__main__":
    print(make())
