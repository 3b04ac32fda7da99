"""From characters to tokens: spans of all kinds of tokenisers, and masks, against plain loops and other offsets."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import AddedToken, Tokenizer

import masks_made
import talks
from counts import cases
from headrace.errors import ConfigError, InputError
from headrace.samples import Conversation
from headrace.samples.masking import MaskOptions, SpanEncoder
from headrace.samples.masking.encoding import loss_mask, untrained_ends
from headrace.samples.masking.token_spans import Spanned, byte_places

SPECIAL = ["<|im_end|>", "</s>", "<|assistant|>"]
TEXTS = st.lists(st.one_of(talks.texts(), st.sampled_from(SPECIAL)), max_size=4).map("".join)


class Ids:
    """An encoder that gives the ids of `tokenizers`, perhaps with the last one changed."""

    def __init__(self, tokenizer_json: bytes, wrong: int = 0) -> None:
        self.tokenizer: Any = Tokenizer.from_str(tokenizer_json.decode())
        self.wrong = wrong
        self.calls = 0

    def encode(self, texts: list[str], /) -> tuple[Any, Any]:
        self.calls += 1
        rows = [self.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        ids = np.array([number for row in rows for number in row], np.uint32)
        ids[-1:] += np.uint32(self.wrong)
        return ids, np.array([len(row) for row in rows], np.int64)


def test_which_way() -> None:
    sums = {kind: SpanEncoder(masks_made.tokenizer_json(kind)).sums_lengths for kind in masks_made.KINDS}
    assert sums == {"bytes": True, "nfc": True, "sentencepiece": True, "unigram": True, "wordpiece": False}
    changed = json.loads(masks_made.tokenizer_json())
    changed["pre_tokenizer"]["add_prefix_space"] = True
    assert not SpanEncoder(json.dumps(changed).encode()).sums_lengths
    with pytest.raises(ConfigError, match=r"tokenizer.json"):
        SpanEncoder(b"{}")


@pytest.mark.parametrize("kind", masks_made.KINDS)
def test_spans_are_those_of_each_text(kind: str) -> None:
    """Of a batch the same as of each text by itself with the library's own offsets, in bytes."""
    content = masks_made.tokenizer_json(kind)
    encoder = SpanEncoder(content)
    truth: Any = Tokenizer.from_str(content.decode())

    @settings(max_examples=cases(16, 2_000), deadline=None)
    @given(st.lists(TEXTS, min_size=1, max_size=4))
    def check(texts: list[str]) -> None:
        spanned = encoder.encode(texts)
        row = base = 0
        for text, length in zip(texts, spanned.lengths.tolist(), strict=True):
            encoding = truth.encode(text, add_special_tokens=False)
            rows = slice(row, row + length)
            assert spanned.ids[rows].tolist() == encoding.ids
            places = byte_places(text)
            assert int(places[-1]) == len(text.encode())
            begins, ends = spanned.begins[rows] - base, spanned.ends[rows] - base
            for begin, end, (first, last) in zip(begins.tolist(), ends.tolist(), encoding.offsets, strict=True):
                # Sums know which bytes of a character a token has; offsets give the whole character.
                assert places[first] <= begin <= end <= places[last]
            if kind in ("bytes", "nfc") and unicodedata.is_normalized("NFC", text):
                assert begins.tolist() == [0, *ends.tolist()[:-1]][: len(begins)]
                assert ends.tolist()[-1:] == ([len(text.encode())] if length else [])
            row += length
            base += len(text.encode())
        assert row == len(spanned.ids)

    check()


def test_texts_that_fall_out_of_the_sums() -> None:
    """An added token that swallows the space before it, and a text that the normaliser changes."""
    tokenizer: Any = Tokenizer.from_str(masks_made.tokenizer_json("nfc").decode())
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    content = tokenizer.to_str().encode()
    for fast in (Ids(content), None):
        encoder = SpanEncoder(content, fast)
        assert encoder.sums_lengths
        texts = ["a <mask> b", "plain", "e\u0301", ""]
        spanned = encoder.encode(texts)
        parts = [encoder.encode([text]) for text in texts]
        bases = np.cumsum([0, *(len(text.encode()) for text in texts)])
        assert spanned.lengths.tolist() == [int(part.lengths[0]) for part in parts]
        begins = np.concatenate([part.begins + base for part, base in zip(parts, bases, strict=False)])
        assert spanned.begins.tolist() == begins.tolist()
        assert parts[0].begins.tolist()[:2] == [0, 2]  # the space is nobody's
        assert parts[0].ends.tolist()[1] == len("a <mask>")
        assert parts[2].ends.tolist() == [1]  # the offset of a letter that the normaliser has joined with its accent
    wrong = SpanEncoder(content, Ids(content, wrong=1))
    with pytest.raises(InputError, match="different"):
        wrong.encode(["a <mask> b"])
    with pytest.raises(InputError, match="tokeniser"):
        SpanEncoder(content, Ids(content, wrong=10**6)).encode(["a"])


def test_a_fast_encoder_is_used() -> None:
    content = masks_made.tokenizer_json()
    fast = Ids(content)
    masker = masks_made.Masker(masks_made.template("chatml"), content, encoder=fast)
    batch = [Conversation(messages=talks.TWO)] * 3
    found = masker.mask_batch(batch)
    assert fast.calls == 1
    assert found.ids == masks_made.masker("chatml").mask_batch(batch).ids
    content = masks_made.tokenizer_json("wordpiece")
    slow = Ids(content)
    masks_made.Masker(masks_made.template("chatml"), content, encoder=slow).mask_batch(batch)
    assert slow.calls == 0


@st.composite
def spans_and_stretches(draw: st.DrawFn) -> tuple[Spanned, np.ndarray[Any, Any]]:
    """Tokens in a row, some without bytes, sometimes out of order; and stretches that are trained."""
    sizes = draw(st.lists(st.integers(0, 4), max_size=12))
    ends = np.cumsum(sizes, dtype=np.int64)
    begins = ends - np.array(sizes, np.int64)
    order = draw(st.permutations(range(len(sizes)))) if draw(st.booleans()) else list(range(len(sizes)))
    total = sum(sizes)
    edges = draw(st.lists(st.integers(0, total), unique=True, max_size=6).map(sorted))
    stretches = np.array(edges[: len(edges) // 2 * 2], np.int64).reshape(-1, 2)
    in_order = order == sorted(order) and all(sizes)
    chosen = np.array(order, np.int64)
    ids = np.zeros(len(sizes), np.uint32)
    return Spanned(ids, np.array([len(sizes)]), begins[chosen], ends[chosen], in_order), stretches


@settings(max_examples=cases(30, 10_000))
@given(spans_and_stretches(), st.booleans())
def test_masks_by_a_plain_loop(drawn: tuple[Spanned, np.ndarray[Any, Any]], straddling: bool) -> None:
    spanned, stretches = drawn
    trained = {byte for begin, end in stretches.tolist() for byte in range(begin, end)}
    mask, straddles = loss_mask(spanned, stretches, straddling=straddling)
    assert mask.dtype == np.uint8
    expected_straddles = []
    for number, (begin, end) in enumerate(zip(spanned.begins.tolist(), spanned.ends.tolist(), strict=True)):
        count = len(trained & set(range(begin, end)))
        is_split = 0 < count < end - begin
        expected_straddles += [number] if is_split else []
        assert mask[number] == (straddling if is_split else count > 0), number
    assert straddles.tolist() == expected_straddles
    if spanned.in_order:
        found = untrained_ends(spanned, mask, stretches).tolist()
        for is_untrained, (begin, end) in zip(found, stretches.tolist(), strict=True):
            rows = [row for row, place in enumerate(spanned.begins.tolist()) if begin <= place < end]
            assert is_untrained == (not rows or not all(mask[row] for row in rows))


@pytest.mark.parametrize("kind", masks_made.KINDS)
def test_trained_tokens_lie_in_the_answers(kind: str) -> None:
    """Ids and mask never misalign: of each trained token every byte is an assistant's, or of the end of its turn."""
    allowed = dict.fromkeys(("on_empty_turn", "on_no_supervised", "on_untrained_end"), "allow")
    options = MaskOptions(**allowed, empty_reasoning="train")
    masker = masks_made.Masker(masks_made.template("chatml"), masks_made.tokenizer_json(kind), options=options)

    @settings(max_examples=cases(16, 2_000), deadline=None)
    @given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3))
    def check(exchanges: list[tuple[str, str]]) -> None:
        messages = []
        text, wanted = "", set()
        for question, answer in exchanges:
            messages += [talks.user(question), talks.assistant(answer)]
            text += f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            begin = len(text.encode())
            text += f"{answer}<|im_end|>"
            wanted |= set(range(begin, len(text.encode())))
            text += "\n"
        batch = masker.mask_batch([Conversation(messages=messages)], evidence=True)
        (sample,) = batch.samples
        assert sample.evidence is not None
        assert sample.evidence.text == text
        covered = set()
        for token in sample.evidence.tokens(sample):
            bytes_of = set(range(token.begin_bytes, token.end_bytes))
            assert token.is_trained == (bool(bytes_of) and bytes_of <= wanted)
            covered |= bytes_of
        assert covered <= set(range(len(text.encode())))

    check()


TAKES_SPACE = ({"rstrip": True}, {"lstrip": True}, {"lstrip": True, "rstrip": True}, {"normalized": True})


@pytest.mark.parametrize(
    ("kind", "how"),
    # A tokeniser as SentencePiece has them finds a normalized token behind a space only.
    [("bytes", how) for how in TAKES_SPACE] + [("sentencepiece", how) for how in TAKES_SPACE[:3]],
)
def test_ends_that_take_the_space_beside_them(kind: str, how: dict[str, bool]) -> None:
    """Phi-3's tokens, as its well-known fix has them: the line feed behind the end of a turn is in its token."""
    tokenizer: Any = Tokenizer.from_str(masks_made.tokenizer_json(kind).decode())
    tokenizer.add_special_tokens([AddedToken(f"<|{name}|>", special=True, **how) for name in ("stop", "user", "model")])
    template = masks_made.ChatTemplate.from_text(
        "{% for m in messages %}<|{{ 'user' if m.role == 'user' else 'model' }}|>\n"
        "{{ m.content }}<|stop|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|model|>\n{% endif %}"
    )
    masker = masks_made.Masker(template, tokenizer.to_str().encode(), options=MaskOptions())
    batch = masker.mask_batch([Conversation(messages=talks.TWO)], evidence=True)
    assert not batch.refused
    (sample,) = batch.samples
    stop = tokenizer.token_to_id("<|stop|>")
    assert sample.loss_mask[sample.ids == stop].tolist() == [0, 1, 0, 1]
    assert not sample.loss_mask[sample.ids == tokenizer.token_to_id("<|model|>")].any()


SPACE = "\u2581"
PIECES = ["▁", " ", "  the", "the ", "é", "😀", "ﬁ", "e\u0301", "</s>", "<|assistant|>", "\n", "<0x0A>", "<unk>", "zzz"]
PIECED_TEXTS = st.lists(st.one_of(talks.texts(), st.sampled_from(PIECES)), max_size=6).map("".join)


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

    @settings(max_examples=cases(12, 3_000), deadline=None)
    @given(st.lists(PIECED_TEXTS, min_size=1, max_size=3), st.data())
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
        # A token of the normalised text.
        {"added_tokens": [TOKENIZERS["llama 2"]["added_tokens"][-1] | {"normalized": True}]},
    ],
)
def test_other_kinds_go_by_offsets(change: dict[str, Any]) -> None:
    assert not SpanEncoder(json.dumps(TOKENIZERS["llama 2"] | change).encode()).sums_lengths
