"""A fast library is used where it is proved equal, and nowhere else."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from tokenizers import AddedToken

from headrace.errors import MissingExtraError
from headrace.preparing.backends import proof
from headrace.preparing.backends.backend import EncodedTexts, RefusedTextError
from headrace.preparing.backends.comparison import MismatchError, ProvedEncoder
from headrace.preparing.backends.layout import read_layout
from headrace.preparing.backends.libraries import CANDIDATES, load_backend
from headrace.preparing.backends.proof import choose_backend, probe_texts
from headrace.preparing.backends.reference import TokenizersBackend
from headrace.preparing.backends.special import RoutedBackend


class PanicError(BaseException):
    """As a panic of a Rust library: no Exception."""


def use(
    family: Any, monkeypatch: pytest.MonkeyPatch, change: Callable[[list[str], EncodedTexts], EncodedTexts]
) -> None:
    monkeypatch.setitem(CANDIDATES, "gigatoken", lambda content, special: family.odd(content, change))


def none(count: int) -> Any:
    return np.zeros(count, np.bool_)


def only(index: int, count: int) -> Any:
    return np.arange(count) == index


@pytest.mark.parametrize(
    ("name", "special"),
    [("gpt2", "encode"), ("gpt2", "literal"), ("cl100k", "error"), ("o200k", "encode"), ("llama3", "literal")],
)
@pytest.mark.sampled(1)
def test_the_first_of_the_fast_ones(name: str, special: Any, family: Any) -> None:
    choice = choose_backend(family.make(name), wanted="auto", special=special)
    assert choice.name == "fastokens"
    assert choice.version == importlib.metadata.version("fastokens")
    assert (choice.reasons, choice.routes) == ({}, "")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["gpt2", "qwen2"])
def test_where_one_differs_the_next_is_tried(name: str, family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """gigatoken 0.10 has a later Unicode than `tokenizers`: other letters in GPT-2's pattern, other marks in NFC."""
    without("fastokens", monkeypatch)
    choice = choose_backend(family.make(name), wanted="auto", special="encode")
    assert choice.name == {"gpt2": "tiktoken", "qwen2": "tokenizers"}[name]
    assert choice.reasons["fastokens"] == "not installed"
    assert choice.reasons["gigatoken"].startswith("differs on the probe: token ")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "wanted"), [("o200k", "fastokens"), ("gpt2", "tiktoken"), ("llama2", "gigatoken")])
def test_the_wanted_one(name: str, wanted: str, family: Any) -> None:
    choice = choose_backend(family.make(name), wanted=wanted, special="encode")
    assert (choice.name, choice.reasons) == (wanted, {})


def test_the_reference_needs_no_proof(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "probe_texts", None)
    choice = choose_backend(family.make("gpt2"), wanted="tokenizers", special="encode")
    assert (choice.name, choice.reasons) == ("tokenizers", {})


@pytest.mark.parametrize(("name", "model"), [("wordpiece", "WordPiece"), ("unigram", "Unigram")])
def test_where_none_fits_the_reference_runs_and_the_reasons_say_why(name: str, model: str, family: Any) -> None:
    choice = choose_backend(family.make(name), wanted="auto", special="encode")
    assert choice.name == "tokenizers"
    assert choice.version
    reason = f"unsuitable: its model is {model}, not byte-pair encoding (BPE)"
    assert choice.reasons == dict.fromkeys(["fastokens", "gigatoken", "tiktoken"], reason)
    assert msgspec.json.decode(msgspec.json.encode(choice), type=proof.Choice) == choice


def without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda other: None if other == name else find(other))


def test_a_library_that_is_not_installed_is_passed_over(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without("fastokens", monkeypatch)
    choice = choose_backend(family.make("llama2"), wanted="auto", special="encode")
    assert (choice.name, choice.reasons) == ("gigatoken", {"fastokens": "not installed"})


def test_a_wanted_library_that_is_not_installed_is_an_error(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without("tiktoken", monkeypatch)
    with pytest.raises(MissingExtraError, match=r"^tiktoken is not installed: pip install 'headrace\[fast\]'$"):
        choose_backend(family.make("gpt2"), wanted="tiktoken", special="encode")


def test_an_unknown_library_is_an_error(family: Any) -> None:
    with pytest.raises(ValueError, match="unknown tokeniser library 'spacy'; known are auto, tokenizers, fastokens"):
        choose_backend(family.make("gpt2"), wanted="spacy", special="encode")


def swap_two_merges(made: dict[str, Any]) -> None:
    made["model"]["merges"][3], made["model"]["merges"][200] = made["model"]["merges"][200], made["model"]["merges"][3]


def drop_last_merge(made: dict[str, Any]) -> None:
    made["model"]["merges"].pop()


def exchange_two_ids(made: dict[str, Any]) -> None:
    vocabulary = made["model"]["vocab"]
    *_, first, second = vocabulary
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


def change_added_id(made: dict[str, Any]) -> None:
    made["added_tokens"][0]["id"] += 1


def drop_added(made: dict[str, Any]) -> None:
    made["added_tokens"].pop()


def other_pattern(made: dict[str, Any]) -> None:
    splits = made["pre_tokenizer"]["pretokenizers"]
    splits[0]["pattern"]["Regex"] = splits[0]["pattern"]["Regex"].replace(r"\p{N}{1,3}", r"\p{N}")


WRONG = [swap_two_merges, drop_last_merge, exchange_two_ids, change_added_id, drop_added, other_pattern]


@pytest.mark.parametrize(
    ("library", "change"), [*(("gigatoken", change) for change in WRONG), ("fastokens", swap_two_merges)]
)
@pytest.mark.sampled(1)
def test_a_library_with_another_tokeniser_is_found_out(
    change: Any, library: str, family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = CANDIDATES[library]
    monkeypatch.setitem(CANDIDATES, library, lambda content, special: right(family.change(content, change), special))
    choice = choose_backend(family.make("cl100k"), wanted=library, special="encode")
    assert choice.name == "tokenizers"
    assert choice.reasons[library].startswith("differs on the probe: token ")
    assert "in place of" in choice.reasons[library]


def panic(texts: list[str], encoded: EncodedTexts) -> EncodedTexts:
    if any("\u0e44" in text for text in texts):
        os.write(2, b"thread '<unnamed>' panicked at src/lib.rs\n")
        raise PanicError("index out of bounds")
    return encoded


def cut_short(texts: list[str], encoded: EncodedTexts) -> EncodedTexts:
    return EncodedTexts(encoded.ids, encoded.lengths[:-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (panic, r"differs on the probe: gigatoken fails on '.*'..., which tokenizers takes: PanicError: index out of"),
        (
            cut_short,
            r"gigatoken fails on '', which tokenizers takes: it returned 0 lengths of 0 tokens together, and 0",
        ),
    ],
)
def test_a_library_that_fails_on_the_probe_is_not_used_and_prints_nothing(
    change: Any, message: str, family: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    use(family, monkeypatch, change)
    choice = choose_backend(family.make("gpt2"), wanted="gigatoken", special="encode")
    assert choice.name == "tokenizers"
    assert re.search(message, choice.reasons["gigatoken"]), choice.reasons
    assert capfd.readouterr() == ("", "")
    os.write(2, b"heard again")
    assert capfd.readouterr() == ("", "heard again")


def test_a_library_that_cannot_be_loaded_is_not_used(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(content: bytes, special: Any) -> Any:
        raise PanicError("no AVX")

    monkeypatch.setitem(CANDIDATES, "fastokens", fail)
    choice = choose_backend(family.make("llama2"), wanted="auto", special="encode")
    assert (choice.name, choice.reasons) == ("gigatoken", {"fastokens": "fails: PanicError: no AVX"})


def test_the_probe_is_the_same_each_time_and_holds_what_it_should(family: Any) -> None:
    layout = read_layout(family.make("gpt2"))
    texts = probe_texts(layout, is_byte_level=True)
    assert texts == probe_texts(layout, is_byte_level=True)
    together = "".join(texts)
    assert "" in texts
    assert sum(map(len, texts)) < 1_200_000
    for part in (
        "\ufffd",
        "\u0939\u093f",
        "\U0001f600",
        "\x00",
        "\r\n",
        f"a{family.eod} b"[1:],
        " " * 80,
        "\u05d0\u05d1",
        "\u088f's",
    ):
        assert part in together
    assert max(map(len, texts)) > 20_000
    assert len(set(together)) > 30_000


@pytest.mark.sampled(1)
@pytest.mark.parametrize("special", ["encode", "literal"])
def test_texts_with_added_tokens_that_look_beside_them_go_to_the_reference(special: Any, family: Any) -> None:
    added = [AddedToken("<mask>", special=True, lstrip=True), AddedToken("and", special=False, single_word=True)]
    content = family.make("gpt2", added)
    choice = choose_backend(content, wanted="auto", special=special)
    assert choice.name == "fastokens"
    assert choice.routes.startswith("some look beside them")
    encoder = ProvedEncoder("fastokens", content, special)
    texts = ["a <mask> b", "sand and land", "plain", "", "x\n <mask>"] * 3
    encoded = encoder.encode(texts, none(len(texts)))
    expected = TokenizersBackend(content, special).encode(texts)
    assert encoded.ids.tolist() == expected.ids.tolist()
    assert encoded.lengths.tolist() == expected.lengths.tolist()
    assert (encoder.num_texts, encoder.num_routed, encoder.num_sampled) == (15, 9, 0)


def test_tiktoken_is_given_no_added_tokens(family: Any) -> None:
    content = family.make("gpt2")
    texts = ["plain", f"a{family.eod}b", f"{family.eod}"]
    for special, num_routed in (("encode", 2), ("literal", 0)):
        backend = load_backend("tiktoken", content, special)
        expected = TokenizersBackend(content, special).encode(texts)
        assert backend.encode(texts).ids.tolist() == expected.ids.tolist()
        assert (backend.num_routed if isinstance(backend, RoutedBackend) else 0) == num_routed


def test_one_document_in_ten_thousand_is_found_by_the_sample(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"document {number} of many" for number in range(10_000)]

    def change(batch: list[str], encoded: EncodedTexts) -> EncodedTexts:
        ids = encoded.ids.copy()
        if texts[7_654] in batch:
            ids[int(encoded.lengths[: batch.index(texts[7_654]) + 1].sum()) - 1] ^= 1
        return EncodedTexts(ids, encoded.lengths)

    content = family.make("gpt2")
    use(family, monkeypatch, change)
    assert choose_backend(content, wanted="gigatoken", special="encode").name == "gigatoken"
    encoder = ProvedEncoder("gigatoken", content, "encode")
    encoder.encode(texts, none(len(texts)))
    assert encoder.encode(texts[:100], only(5, 100)).lengths.shape == (100,)
    assert (encoder.num_texts, encoder.num_sampled) == (10_100, 1)
    with pytest.raises(
        MismatchError, match="gigatoken differs from tokenizers: token 11 of a text of 21 char"
    ) as error:
        encoder.encode(texts, np.arange(len(texts)) % 2_000 == 1_654)
    assert error.value.index == 7_654


def test_the_reference_is_loaded_when_it_is_needed(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = ProvedEncoder("gigatoken", family.make("gpt2"), "encode")
    encoder.encode(["a", "b"], none(2))
    assert "reference" not in vars(encoder)
    encoder.encode(["a", "b"], only(1, 2))
    assert "reference" in vars(encoder)


def test_texts_that_agree_pass_wherever_they_stand(family: Any) -> None:
    encoder = ProvedEncoder("gigatoken", family.make("gpt2"), "encode")
    texts = ["first", "", *family.documents(30), ""]
    encoder.encode(texts, np.ones(len(texts), np.bool_))
    assert encoder.num_sampled == len(texts)


def test_the_reference_itself_is_not_sampled(family: Any) -> None:
    encoder = ProvedEncoder("tokenizers", family.make("unigram"), "encode")
    encoded = encoder.encode(["some words", ""], np.ones(2, np.bool_))
    assert encoded.lengths[1] == 0
    assert (encoder.name, encoder.num_texts, encoder.num_sampled) == ("tokenizers", 2, 0)


@pytest.mark.parametrize("error", [ValueError("no"), PanicError("index out of bounds")])
def test_a_failure_on_a_text_that_the_reference_takes_is_a_mismatch(
    error: BaseException, family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(batch: list[str], encoded: EncodedTexts) -> EncodedTexts:
        if "bad" in batch:
            raise error
        return encoded

    use(family, monkeypatch, change)
    encoder = ProvedEncoder("gigatoken", family.make("gpt2"), "encode")
    with pytest.raises(MismatchError, match=str(error)) as found:
        encoder.encode(["a", "b", "bad", "c"], none(4))
    assert found.value.index == 2
    assert "gigatoken fails on 'bad', which tokenizers takes" in str(found.value)


def test_a_panic_in_a_worker_prints_nothing(
    family: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    use(family, monkeypatch, panic)
    encoder = ProvedEncoder("gigatoken", family.make("gpt2"), "encode")
    with pytest.raises(MismatchError, match="PanicError: index out of bounds"):
        encoder.encode(["\u0e44"], none(1))
    assert capfd.readouterr() == ("", "")


def test_a_failure_on_texts_together_is_a_mismatch(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    use(family, monkeypatch, lambda batch, encoded: cut_short(batch, encoded) if len(batch) > 2 else encoded)
    encoder = ProvedEncoder("gigatoken", family.make("gpt2"), "encode")
    with pytest.raises(
        MismatchError, match="gigatoken fails on 3 texts together, and on none alone: it returned 2 len"
    ):
        encoder.encode(["a", "b", "c"], none(3))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), MemoryError()])
def test_what_is_not_the_library_s_fault_passes(
    error: BaseException, family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(batch: list[str], encoded: EncodedTexts) -> EncodedTexts:
        raise error

    use(family, monkeypatch, change)
    encoder = ProvedEncoder("gigatoken", family.make("gpt2"), "encode")
    with pytest.raises(type(error)):
        encoder.encode(["a"], none(1))


def test_a_text_that_both_refuse_is_refused_and_one_that_only_the_reference_refuses_is_a_mismatch(
    family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(batch: list[str], encoded: EncodedTexts) -> EncodedTexts:
        if "bad" in batch:
            raise ValueError("cannot")
        return encoded

    use(family, monkeypatch, change)
    encoder = ProvedEncoder("gigatoken", family.make("gpt2"), "encode")

    class Refusing:
        name, version = "tokenizers", "0"

        def encode(self, texts: list[str]) -> EncodedTexts:
            raise RefusedTextError("not this one", 0)

    vars(encoder)["reference"] = Refusing()
    with pytest.raises(RefusedTextError) as refused:
        encoder.encode(["a", "bad"], none(2))
    assert refused.value.index == 1
    with pytest.raises(MismatchError, match="tokenizers refuses 'b', which gigatoken takes: not this one") as found:
        encoder.encode(["a", "b"], only(1, 2))
    assert found.value.index == 1
