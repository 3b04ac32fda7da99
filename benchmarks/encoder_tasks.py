"""The task encoders of `encoder.py`: the same source code, with the names of either library."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np

ROOM = 4096
END = 0


def knapsack(lengths: list[int], room: int) -> list[list[int]]:
    """The numbers of the items in each pack. Greedy: a pack takes the longest item that fits, until none fits."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    sizes = [lengths[number] for number in order]
    packs = []
    while order:
        pack, left = [], room
        while (at := bisect_right(sizes, left)) > 0:
            left -= sizes.pop(at - 1)
            pack.append(order.pop(at - 1))
        packs.append(pack)
    return packs


def encoder(library: Any, kind: str, tokenizer: str, form: str) -> Any:
    """Make a task encoder. ``library`` has the names, such as ``headrace.encoders`` or ``megatron.energon``.

    ``bytes`` uses each byte of a text as a token, which costs almost nothing; ``tokens`` encodes the text by byte-level
    BPE. Packs have ``ROOM`` tokens, and the borders of their documents. ``form`` is as in `encoder.py`.
    """
    if kind == "tokens":
        from tokenizers import Tokenizer

        encode_text = Tokenizer.from_file(tokenizer).encode
    stateless = library.stateless

    @library.edataclass
    class Document(library.Sample):
        text: Any

    @library.edataclass
    class Tokens(library.Sample):
        tokens: Any
        bounds: Any

    @stateless
    def cook(sample: dict[str, Any]) -> Any:
        return Document(**library.basic_sample_keys(sample), text=sample["txt"])

    class Encoder(library.DefaultTaskEncoder):
        cookers = [library.Cooker(cook)]  # noqa: RUF012 -- as users write it
        # A text is decoded only to be tokenised.
        decoder = None

        @stateless
        def preencode_sample(self, sample: Any) -> Any:
            if kind == "bytes":
                tokens = np.frombuffer(sample.text, dtype=np.uint8)[:ROOM].astype(np.int64)
            else:
                ids = encode_text(sample.text.decode()).ids
                tokens = np.array([*ids[: ROOM - 1], END], dtype=np.int64)
            return Tokens.derive_from(sample, tokens=tokens, bounds=None)

        @stateless
        def batch(self, samples: list[Any]) -> dict[str, Any]:
            import torch

            rows = np.zeros((len(samples), max(len(sample.tokens) for sample in samples)), dtype=np.int64)
            for row, sample in zip(rows, samples, strict=True):
                row[: len(sample.tokens)] = sample.tokens
            return {
                "__key__": [sample.__key__ for sample in samples],
                "tokens": torch.from_numpy(rows),
                "bounds": [sample.bounds for sample in samples],
            }

    if form == "singles":
        return Encoder()

    class Packing(Encoder):
        @stateless
        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            chosen = knapsack([len(sample.tokens) for sample in samples], ROOM)
            return [[samples[number] for number in pack] for pack in chosen]

        @stateless
        def pack_selected_samples(self, samples: list[Any]) -> Any:
            lengths = [len(sample.tokens) for sample in samples]
            return Tokens(
                __key__=samples[0].__key__,
                __restore_key__=(),
                __subflavors__=samples[0].__subflavors__,
                tokens=np.concatenate([sample.tokens for sample in samples]),
                bounds=np.cumsum([0, *lengths]),
            )

    class Fitting(Packing):
        @stateless
        def sample_length(self, sample: Any) -> int:
            return len(sample.tokens)

    return Fitting() if form != "hook" else Packing()


def document_text(corpus: str, length: int, number: int) -> str:
    """A part of the text with this many characters, from a place that depends on the number."""
    begin = number * 7919 % max(1, len(corpus) - length)
    return corpus[begin : begin + length]


def tokenizer_and_text(folder: Path) -> tuple[str, str]:
    """Train a tokenizer, and return its file and text to cut documents from."""
    import corpus

    documents = corpus.gather(8)
    corpus.train_tokenizer(folder / "tokenizer.json", documents, megabytes=2)
    # One byte a character, so that lengths in bytes and in characters agree.
    return str(folder / "tokenizer.json"), "\n".join(documents).encode("ascii", "ignore").decode()
