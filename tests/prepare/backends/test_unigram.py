"""Headrace's own search for Unigram gives the ids of `tokenizers`, or says at once that it does not fit."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from headrace.plan.megatron import kernels
from headrace.prepare.backends import unigram_kernels
from headrace.prepare.backends.backend import RefusedTextError
from headrace.prepare.backends.layout import UnsuitableError
from headrace.prepare.backends.proof import CANDIDATES, choose_backend, load_backend
from headrace.prepare.backends.truth import TokenizersBackend
from headrace.prepare.backends.unigram import UnigramBackend

NFKC = {"type": "NFKC"}
NORMALIZERS: dict[str, Any] = {
    "none": None,
    "NFKC": NFKC,
    "accents": {
        "type": "Sequence",
        "normalizers": [{"type": "NFD"}, {"type": "Lowercase"}, {"type": "StripAccents"}],
    },
    "spaces": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Nmt"},
            NFKC,
            {"type": "Strip", "strip_left": True, "strip_right": True},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"},
        ],
    },
    "quotes": {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
    "bert": {
        "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
        "lowercase": True,
    },
    "prepend": {"type": "Prepend", "prepend": "\u2581"},
}  # fmt: skip


def metaspace(scheme: str, *, split: bool = True) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}


PRE_TOKENIZERS: dict[str, Any] = {
    "always": metaspace("always"),
    "first": metaspace("first"),
    "never": metaspace("never"),
    "whole": metaspace("always", split=False),
    "dropped": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace("always")]},
}
PLAIN = [AddedToken("<s>", special=True, normalized=False), AddedToken("<sx>", special=True, normalized=False),
         AddedToken("[x]", special=False, normalized=False)]  # fmt: skip
ODD = [
    AddedToken("<mask>", special=True, lstrip=True),
    AddedToken("right", special=False, rstrip=True, normalized=False),
    AddedToken("WORD", special=False, single_word=True),
    AddedToken("e\u0301", special=False, normalized=True),
]
WORDS = (
    *(token.content for token in (*PLAIN, *ODD)),
    *(" ", "  ", "\n", "\t", "\x1c", "\x85", "\u3000", "\u2581", "\u2581\u2581", "\x00", "\x07", "\u200b", "\ufeff"),
    *("the", "self", "return", "aaa", "====", "\u00e9", "e\u0301", "\u0301", "\u00b4", "\u4e2d\u6587"),
    *("\ufb01", "\u01c5"),
    *("\U0001f468\u200d\U0001f469", "\U0001f600\U0001f601", "``", "<unk>", "<0x41>", "\u2026", "\u0600", "\uffff"),
)  # fmt: skip
TEXTS = st.lists(
    st.lists(
        st.one_of(st.sampled_from(WORDS), st.characters(exclude_categories=["Cs"]), st.sampled_from("abcdefst. ,")),
        max_size=24,
    ).map("".join),
    max_size=6,
)


def variant(family: Any, normalizer: str, pre_tokenizer: str, *, odd: bool = False, falls_back: bool = False) -> bytes:
    def change(made: dict[str, Any]) -> None:
        made["normalizer"] = NORMALIZERS[normalizer]
        made["pre_tokenizer"] = PRE_TOKENIZERS[pre_tokenizer]
        if falls_back:
            made["model"]["byte_fallback"] = True
            made["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]

    content: bytes = family.change(family.make("unigram", []), change)
    made = json.loads(content)
    size = len(made["model"]["vocab"])
    for number, token in enumerate([*PLAIN, *(ODD if odd else [])]):
        state = {name: getattr(token, name) for name in ("content", "single_word", "lstrip", "rstrip", "special")}
        made["added_tokens"].append({**state, "normalized": token.normalized, "id": size + number})
    return json.dumps(made).encode()


def check_equal(content: bytes, special: Any, examples: int = 25) -> Any:
    fast = load_backend("numba", content, special)
    truth = TokenizersBackend(content, special)

    @given(texts=TEXTS)
    @settings(max_examples=examples, deadline=None)
    def check(texts: list[str]) -> None:
        ours, theirs = fast.encode(texts), truth.encode(texts)
        assert (ours.ids.dtype, ours.lengths.dtype) == (np.uint32, np.int64)
        assert ours.lengths.tolist() == theirs.lengths.tolist()
        assert ours.ids.tolist() == theirs.ids.tolist()

    check()
    return fast


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer"),
    [
        (normalizer, pre_tokenizer)
        for normalizer in NORMALIZERS
        for pre_tokenizer in PRE_TOKENIZERS
        if pre_tokenizer != "first" or normalizer in ("none", "NFKC", "prepend")
    ],
)
@pytest.mark.sampled(7)
def test_same_ids(normalizer: str, pre_tokenizer: str, family: Any) -> None:
    content = variant(family, normalizer, pre_tokenizer)
    fast = check_equal(content, "encode")
    texts = family.documents(60)
    np.testing.assert_array_equal(fast.encode(texts).ids, TokenizersBackend(content, "encode").encode(texts).ids)


@pytest.mark.parametrize("special", ["encode", "literal"])
@pytest.mark.parametrize("normalizer", ["none", "NFKC"])
@pytest.mark.parametrize("falls_back", [False, True])
@pytest.mark.sampled(3)
def test_added_tokens_that_look_beside_them(special: Any, normalizer: str, falls_back: bool, family: Any) -> None:
    fast = check_equal(variant(family, normalizer, "first", odd=True, falls_back=falls_back), special, 50)
    before = fast.num_routed
    fast.encode(["plain <s> text [x]"])
    assert fast.num_routed == before
    fast.encode(["plain <mask> text", "no more"])
    assert fast.num_routed == before + 1


def test_unknown_characters_become_one_token_or_bytes(family: Any) -> None:
    texts = ["\u3402\u3403", "a\u3402 \u3403b", "<unk>\u3402", "<unk>", "\u3402<unk>\u3403"]
    for falls_back in (False, True):
        content = variant(family, "none", "always", falls_back=falls_back)
        ours, theirs = (
            UnigramBackend(content, "encode").encode(texts),
            TokenizersBackend(content, "encode").encode(texts),
        )
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert (len(ours.ids) > 20) == falls_back


def test_equal_scores_are_decided_by_the_order_of_sums(family: Any) -> None:
    """Three of a letter are two pieces in two ways, of the same score but for the roundings of what stands before."""

    def change(made: dict[str, Any]) -> None:
        rng = np.random.default_rng(5)
        names = ["<unk>", "\u2581", *"abcd", *(2 * one for one in "abcd"), "abc", "cab", "dd" * 3]
        made["model"]["vocab"] = [[name, -float(rng.random() * 9)] for name in names]
        made["added_tokens"] = []

    content = family.change(family.make("unigram", []), change)
    rng = np.random.default_rng(6)
    texts = ["".join(rng.choice(list("aaabbcddd "), 300)) for _ in range(40)]
    ours, theirs = UnigramBackend(content, "encode").encode(texts), TokenizersBackend(content, "encode").encode(texts)
    assert ours.ids.tolist() == theirs.ids.tolist()


def test_of_a_piece_that_is_there_twice_the_last_counts(family: Any) -> None:
    content = family.change(
        family.make("unigram"), lambda made: made["model"]["vocab"].extend([["self", -3.0], ["\u2581", -1.0]])
    )
    texts = family.documents(40)
    ours, theirs = UnigramBackend(content, "encode").encode(texts), TokenizersBackend(content, "encode").encode(texts)
    assert ours.ids.tolist() == theirs.ids.tolist()


@pytest.mark.soak
def test_long_texts_and_words(family: Any) -> None:
    content = variant(family, "NFKC", "always")
    prose = "".join(family.texts)
    texts = [(prose * 60)[:1_200_000], "x\u00e9" * 3_000, "", (prose * 30)[:700_000]]
    ours, theirs = UnigramBackend(content, "encode").encode(texts), TokenizersBackend(content, "encode").encode(texts)
    np.testing.assert_array_equal(ours.lengths, theirs.lengths)
    np.testing.assert_array_equal(ours.ids, theirs.ids)


def test_the_loops_are_the_same_in_plain_python(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.prepare.backends.unigram.compiled", lambda kernel: kernel)
    for falls_back in (False, True):
        content = variant(family, "NFKC", "first", falls_back=falls_back)
        with np.errstate(over="ignore"):
            texts = [*family.documents(6), "\u3402\u3403 <s> <unk>\u3402"]
            ours = UnigramBackend(content, "encode").encode(texts)
        assert ours.ids.tolist() == TokenizersBackend(content, "encode").encode(texts).ids.tolist()


def test_a_text_that_is_no_unicode_is_refused(family: Any) -> None:
    with pytest.raises(RefusedTextError, match="surrogates not allowed") as error:
        UnigramBackend(family.make("unigram"), "encode").encode(["good", "b\ud800d"])
    assert error.value.index == 1


def test_it_is_chosen_for_unigram(family: Any) -> None:
    choice = choose_backend(family.make("unigram"), wanted="auto", special="encode")
    assert (choice.name, choice.routes) == ("numba", "")
    assert set(choice.reasons) == {"fastokens", "gigatoken", "tiktoken"}
    odd = choose_backend(variant(family, "NFKC", "always", odd=True), wanted="numba", special="encode")
    assert (odd.name, odd.reasons) == ("numba", {})
    assert odd.routes.startswith("some look beside them")


def test_two_pieces_that_changed_places_show_in_the_probe(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def exchange(made: dict[str, Any]) -> None:
        first, second = made["model"]["vocab"][10:12]
        made["model"]["vocab"][10:12] = [[second[0], first[1]], [first[0], second[1]]]

    content = family.make("unigram")
    other = UnigramBackend(family.change(content, exchange), "encode")
    monkeypatch.setitem(CANDIDATES, "numba", lambda content, special: other)
    choice = choose_backend(content, wanted="numba", special="encode")
    assert choice.name == "tokenizers"
    assert choice.reasons["numba"].startswith("differs on the probe: ")


def set_vocabulary(at: int, value: Any) -> Any:
    return lambda made: made["model"]["vocab"].__setitem__(at, value)


UNSUITABLE = [
    ("wordpiece", lambda made: None, "its model is WordPiece, not Unigram"),
    ("gpt2", lambda made: None, "its model is BPE, not Unigram"),
    ("unigram", lambda made: made.update(pre_tokenizer=None), "its pre-tokeniser nothing, where only Metaspace"),
    ("unigram", lambda made: made.update(pre_tokenizer={"type": "Whitespace"}), "its pre-tokeniser Whitespace, where"),
    (
        "unigram",
        lambda made: made.update(pre_tokenizer={**metaspace("always"), "replacement": "_"}),
        "writes a space as '_', not as",
    ),
    (
        "unigram",
        lambda made: made.update(
            pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace("first")]}
        ),
        "drops white space, and puts a space first",
    ),
    (
        "unigram",
        lambda made: made.update(pre_tokenizer=metaspace("first"), normalizer=NORMALIZERS["accents"]),
        "puts a space first, behind the normaliser StripAccents",
    ),
    ("unigram", lambda made: made["model"].update(unk_id=None), "no unknown token"),
    ("unigram", lambda made: made["model"].update(byte_fallback=True), "lacks the byte <0x00> and 255 others"),
    ("unigram", set_vocabulary(0, ["?", 0.0]), "an unknown one of a letter"),
    ("unigram", set_vocabulary(9, ["", -3.0]), "has an empty piece"),
]


@pytest.mark.parametrize(("name", "change", "message"), UNSUITABLE)
def test_unsuitable(name: str, change: Any, message: str, family: Any) -> None:
    with pytest.raises(UnsuitableError) as error:
        UnigramBackend(family.change(family.make(name, []), change), "encode")
    assert message in str(error.value)


def test_scores_that_are_no_logarithms(family: Any) -> None:
    def change(made: dict[str, Any]) -> None:
        made["model"]["vocab"] = [[name, 1.0] for name, _ in made["model"]["vocab"]]

    with pytest.raises(UnsuitableError, match="no logarithms"):
        UnigramBackend(family.change(family.make("unigram", []), change), "encode")


def test_a_vocabulary_that_is_too_large(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.prepare.backends.unigram.MAX_NODES", 100)
    with pytest.raises(UnsuitableError, match="more than are known to fit"):
        UnigramBackend(family.make("unigram"), "encode")


def test_the_tree_holds_every_piece_once() -> None:
    pieces = [b"a", b"ab", b"ab", b"b", b"bcd"]
    text, ends = np.frombuffer(b"".join(pieces), np.uint8), np.cumsum([len(piece) for piece in pieces])
    tree = kernels.compiled(unigram_kernels.tree_kernel)
    assert tree is not None
    nodes = tree(text, ends, np.zeros(0, np.int64), np.zeros(0, np.int32))
    assert nodes == 6  # the root, a, ab, b, bc, bcd
    edges, leaves = np.zeros(16, np.int64), np.full(nodes, -1, np.int32)
    assert tree(text, ends, edges, leaves) == nodes
    assert np.count_nonzero(edges) == 5
    assert sorted(leaves[leaves >= 0].tolist()) == [0, 2, 3, 4]
