"""Sums of lengths for tokenisers of SentencePiece's kind: the masks that the library's own offsets give."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import masks_made
import talks
from counts import cases
from headrace.samples.masking import SpanEncoder
from headrace.samples.masking.encoding import loss_mask
from headrace.samples.masking.token_spans import byte_places

SPACE = "\u2581"
PIECES = ["▁", " ", "  the", "the ", "é", "😀", "ﬁ", "e\u0301", "</s>", "<|assistant|>", "\n", "<0x0A>", "<unk>", "zzz"]
TEXTS = st.lists(st.one_of(talks.texts(), st.sampled_from(PIECES)), max_size=6).map("".join)


def metaspace(kind: str, scheme: str) -> dict[str, Any]:
    json_: dict[str, Any] = json.loads(masks_made.tokenizer_json(kind))
    json_["normalizer"] = None if kind == "sentencepiece" else json_["normalizer"]
    json_["pre_tokenizer"] = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": True}
    return json_


def without_prepend() -> dict[str, Any]:
    json_: dict[str, Any] = json.loads(masks_made.tokenizer_json("sentencepiece"))
    json_["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    return json_


TOKENIZERS: dict[str, dict[str, Any]] = {
    "llama 2": json.loads(masks_made.tokenizer_json("sentencepiece")),
    "gemma": without_prepend(),
    **{f"bpe {scheme}": metaspace("sentencepiece", scheme) for scheme in ("first", "always", "never")},
    **{f"unigram {scheme}": metaspace("unigram", scheme) for scheme in ("first", "always", "never")},
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_masks_are_those_of_offsets(name: str) -> None:
    content = json.dumps(TOKENIZERS[name]).encode()
    sums, offsets = SpanEncoder(content), SpanEncoder(content)
    assert sums.sums_lengths
    offsets._lengths = None

    @settings(max_examples=cases(24, 3_000), deadline=None)
    @given(st.lists(TEXTS, min_size=1, max_size=3), st.data())
    def check(texts: list[str], data: st.DataObject) -> None:
        places = np.unique([byte_places(text)[at] + base for text, at, base in borders(texts, data)])
        trained = places[: len(places) // 2 * 2].reshape(-1, 2)
        found, wanted = sums.encode(texts), offsets.encode(texts)
        assert found.ids.tolist() == wanted.ids.tolist()
        for straddling in (False, True):
            mask, straddles = loss_mask(found, trained, straddling=straddling)
            other, others = loss_mask(wanted, trained, straddling=straddling)
            assert mask.tolist() == other.tolist()
            assert straddles.tolist() == others.tolist()

    check()


def borders(texts: list[str], data: st.DataObject) -> list[tuple[str, int, int]]:
    """Places in characters, each with its text and the bytes before that."""
    found = []
    base = 0
    for text in texts:
        found += [(text, at, base) for at in data.draw(st.lists(st.integers(0, len(text)), max_size=6))]
        base += len(text.encode())
    return found


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": SPACE}},
        {"normalizer": None},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": True}},
    ],
)
def test_other_kinds_go_by_offsets(change: dict[str, Any]) -> None:
    assert not SpanEncoder(json.dumps(TOKENIZERS["llama 2"] | change).encode()).sums_lengths


def test_added_tokens_of_the_normalised_text_go_by_offsets() -> None:
    json_ = json.loads(json.dumps(TOKENIZERS["llama 2"]))
    json_["added_tokens"][-1]["normalized"] = True
    assert not SpanEncoder(json.dumps(json_).encode()).sums_lengths
