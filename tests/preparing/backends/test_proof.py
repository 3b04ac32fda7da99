"""A fast library is used where it is proved equal, and nowhere else."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
from tokenizers import AddedToken

from headrace.errors import MissingExtraError
from headrace.preparing.backends import comparison, proof
from headrace.preparing.backends.comparison import Difference, MismatchError, ProvedEncoder, compare
from headrace.preparing.backends.libraries import CANDIDATES, load_backend
from headrace.preparing.backends.proof import choose_backend, find_outcome, keep_outcome, probe_texts
from headrace.preparing.backends.reference import EncodedTexts, RefusedTextError, TokenizersBackend
from headrace.samples.tokenizer import TokenizerFile


class PanicError(BaseException):
    """As a panic of a Rust library: no Exception."""


def use(
    family: Any, monkeypatch: pytest.MonkeyPatch, change: Callable[[list[str], EncodedTexts], EncodedTexts]
) -> None:
    monkeypatch.setitem(CANDIDATES, "fastokens", lambda file, special: family.odd(file, change))


def none(count: int) -> Any:
    return np.zeros(count, np.bool_)


def only(index: int, count: int) -> Any:
    return np.arange(count) == index


@pytest.mark.parametrize(
    ("name", "special", "wanted", "chosen"),
    [
        ("gpt2", "encode", "auto", "fastokens"),
        ("gpt2", "literal", "auto", "fastokens"),
        ("cl100k", "error", "auto", "fastokens"),
        ("o200k", "encode", "fastokens", "fastokens"),
    ],
)
@pytest.mark.sampled(2)
def test_the_first_of_the_fast_ones_or_the_wanted_one(
    name: str, special: Any, wanted: str, chosen: str, family: Any
) -> None:
    choice = choose_backend(TokenizerFile(family.make(name)), wanted=wanted, special=special)[0]
    assert choice.name == chosen
    assert choice.version == importlib.metadata.version(chosen)
    assert (choice.reasons, choice.routes) == ({}, "")


def test_where_it_is_not_installed_the_reference_runs(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without("fastokens", monkeypatch)
    choice = choose_backend(TokenizerFile(family.make("gpt2")), wanted="auto", special="encode")[0]
    assert (choice.name, choice.reasons) == ("tokenizers", {"fastokens": "not installed"})


def test_the_reference_needs_no_proof(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "probe_texts", None)
    choice = choose_backend(TokenizerFile(family.make("gpt2")), wanted="tokenizers", special="encode")[0]
    assert (choice.name, choice.reasons) == ("tokenizers", {})


@pytest.mark.parametrize(("name", "model"), [("wordpiece", "WordPiece"), ("unigram", "Unigram")])
def test_where_none_fits_the_reference_runs_and_the_reasons_say_why(name: str, model: str, family: Any) -> None:
    choice = choose_backend(TokenizerFile(family.make(name)), wanted="auto", special="encode")[0]
    assert choice.name == "tokenizers"
    assert choice.version
    reason = f"unsuitable: its model is {model}, not byte-pair encoding (BPE)"
    assert choice.reasons == {"fastokens": reason}
    assert msgspec.json.decode(msgspec.json.encode(choice), type=proof.Choice) == choice


def without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda other: None if other == name else find(other))


def test_a_wanted_library_that_is_not_installed_is_an_error(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without("fastokens", monkeypatch)
    with pytest.raises(MissingExtraError, match=r"'headrace\[fast\]'"):
        choose_backend(TokenizerFile(family.make("gpt2")), wanted="fastokens", special="encode")


def test_an_unknown_library_is_an_error(family: Any) -> None:
    with pytest.raises(ValueError, match="'spacy'"):
        choose_backend(TokenizerFile(family.make("gpt2")), wanted="spacy", special="encode")


def swap_two_merges(made: dict[str, Any]) -> None:
    made["model"]["merges"][3], made["model"]["merges"][200] = made["model"]["merges"][200], made["model"]["merges"][3]


def exchange_two_ids(made: dict[str, Any]) -> None:
    vocabulary = made["model"]["vocab"]
    *_, first, second = vocabulary
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


def drop_added(made: dict[str, Any]) -> None:
    made["added_tokens"].pop()


def other_pattern(made: dict[str, Any]) -> None:
    splits = made["pre_tokenizer"]["pretokenizers"]
    splits[0]["pattern"]["Regex"] = splits[0]["pattern"]["Regex"].replace(r"\p{N}{1,3}", r"\p{N}")


WRONG = [swap_two_merges, exchange_two_ids, drop_added, other_pattern]


@pytest.mark.parametrize("change", WRONG)
@pytest.mark.sampled(1)
def test_a_library_with_another_tokeniser_is_found_out(
    change: Any, family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = "fastokens"
    right = CANDIDATES[library]
    monkeypatch.setitem(
        CANDIDATES, library, lambda file, special: right(TokenizerFile(family.change(file.content, change)), special)
    )
    choice = choose_backend(TokenizerFile(family.make("cl100k")), wanted=library, special="encode")[0]
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
    [(panic, "PanicError: index out of bounds"), (cut_short, "0 lengths of 0 tokens")],
)
def test_a_library_that_fails_on_the_probe_is_not_used_and_prints_nothing(
    change: Any, message: str, family: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    use(family, monkeypatch, change)
    choice = choose_backend(TokenizerFile(family.make("gpt2")), wanted="fastokens", special="encode")[0]
    assert choice.name == "tokenizers"
    assert message in choice.reasons["fastokens"]
    assert capfd.readouterr() == ("", "")
    os.write(2, b"heard again")
    assert capfd.readouterr() == ("", "heard again")


def test_a_library_that_cannot_be_loaded_is_not_used(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: TokenizerFile, special: Any) -> Any:
        raise PanicError("no AVX")

    monkeypatch.setitem(CANDIDATES, "fastokens", fail)
    choice = choose_backend(TokenizerFile(family.make("llama2")), wanted="auto", special="encode")[0]
    assert (choice.name, choice.reasons) == ("tokenizers", {"fastokens": "fails: PanicError: no AVX"})


def test_the_probe_is_the_same_each_time_and_holds_what_it_should(family: Any) -> None:
    layout = TokenizerFile(family.make("gpt2")).parts
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
    choice = choose_backend(TokenizerFile(content), wanted="auto", special=special)[0]
    assert choice.name == "fastokens"
    assert choice.routes.startswith("some look beside them")
    encoder = ProvedEncoder("fastokens", TokenizerFile(content), special)
    texts = ["a <mask> b", "sand and land", "plain", "", "x\n <mask>"] * 3
    encoded = encoder.encode(texts, none(len(texts)))
    expected = TokenizersBackend(TokenizerFile(content), special).encode(texts)
    assert encoded.ids.tolist() == expected.ids.tolist()
    assert encoded.lengths.tolist() == expected.lengths.tolist()
    assert (encoder.num_routed, encoder.num_sampled) == (9, 0)


def test_one_document_in_ten_thousand_is_found_by_the_sample(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"document {number} of many" for number in range(10_000)]

    def change(batch: list[str], encoded: EncodedTexts) -> EncodedTexts:
        ids = encoded.ids.copy()
        if texts[7_654] in batch:
            ids[int(encoded.lengths[: batch.index(texts[7_654]) + 1].sum()) - 1] ^= 1
        return EncodedTexts(ids, encoded.lengths)

    content = family.make("gpt2")
    use(family, monkeypatch, change)
    assert choose_backend(TokenizerFile(content), wanted="fastokens", special="encode")[0].name == "fastokens"
    encoder = ProvedEncoder("fastokens", TokenizerFile(content), "encode")
    encoder.encode(texts, none(len(texts)))
    assert encoder.encode(texts[:100], only(5, 100)).lengths.shape == (100,)
    assert encoder.num_sampled == 1
    with pytest.raises(MismatchError, match=r"tokenizers.*11.*21") as error:
        encoder.encode(texts, np.arange(len(texts)) % 2_000 == 1_654)
    assert error.value.index == 7_654


def test_the_reference_itself_is_not_sampled(family: Any) -> None:
    encoder = ProvedEncoder("tokenizers", TokenizerFile(family.make("unigram")), "encode")
    encoded = encoder.encode(["some words", ""], np.ones(2, np.bool_))
    assert encoded.lengths[1] == 0
    assert (encoder.name, encoder.num_sampled) == ("tokenizers", 0)


@pytest.mark.parametrize("error", [ValueError("no"), PanicError("bounds")])
def test_a_failure_on_a_text_that_the_reference_takes_is_a_mismatch_and_prints_nothing(
    error: BaseException, family: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def change(batch: list[str], encoded: EncodedTexts) -> EncodedTexts:
        if "bad" in batch:
            os.write(2, b"thread '<unnamed>' panicked at src/lib.rs\n")
            raise error
        return encoded

    use(family, monkeypatch, change)
    encoder = ProvedEncoder("fastokens", TokenizerFile(family.make("gpt2")), "encode")
    with pytest.raises(MismatchError, match=str(error)) as found:
        encoder.encode(["a", "b", "bad", "c"], none(4))
    assert found.value.index == 2
    assert "fastokens fails on 'bad', which tokenizers takes" in str(found.value)
    assert capfd.readouterr() == ("", "")


def test_a_failure_on_texts_together_is_a_mismatch(family: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    use(family, monkeypatch, lambda batch, encoded: cut_short(batch, encoded) if len(batch) > 2 else encoded)
    encoder = ProvedEncoder("fastokens", TokenizerFile(family.make("gpt2")), "encode")
    with pytest.raises(MismatchError, match=r"fastokens.*3.*2"):
        encoder.encode(["a", "b", "c"], none(3))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), MemoryError()])
def test_what_is_not_the_library_s_fault_passes(
    error: BaseException, family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(batch: list[str], encoded: EncodedTexts) -> EncodedTexts:
        raise error

    use(family, monkeypatch, change)
    encoder = ProvedEncoder("fastokens", TokenizerFile(family.make("gpt2")), "encode")
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
    encoder = ProvedEncoder("fastokens", TokenizerFile(family.make("gpt2")), "encode")

    class Refusing:
        name, version = "tokenizers", "0"

        def encode(self, texts: list[str]) -> EncodedTexts:
            raise RefusedTextError("not this one", 0)

    vars(encoder)["reference"] = Refusing()
    with pytest.raises(RefusedTextError) as refused:
        encoder.encode(["a", "bad"], none(2))
    assert refused.value.index == 1
    with pytest.raises(MismatchError, match="'b'") as found:
        encoder.encode(["a", "b"], only(1, 2))
    assert found.value.index == 1


# Where a fast library and the reference tokeniser part is found and named.


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch_characters", [1 << 20, 3_000, 1])
def test_compare_names_the_first_text_that_differs(
    batch_characters: int, family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "BATCH_CHARACTERS", batch_characters)
    content = family.make("gpt2")
    texts = family.documents(500)
    reference = TokenizersBackend(TokenizerFile(content), "encode")
    assert (
        compare(load_backend("fastokens", TokenizerFile(content), "encode", lambda: reference), reference, texts)
        is None
    )

    def change(batch: list[str], encoded: EncodedTexts) -> EncodedTexts:
        ids = encoded.ids.copy()
        for index, text in enumerate(batch):
            if text in (texts[321], texts[400]) and text:
                ids[int(encoded.lengths[:index].sum())] += 1
        return EncodedTexts(ids, encoded.lengths)

    found = compare(family.odd(TokenizerFile(content), change), reference, texts)
    assert found.index == 321
    assert found.message.startswith(f"token 0 of a text of {len(texts[321])} characters, near ")


def test_compare_goes_on_behind_a_text_that_both_refuse(family: Any) -> None:
    reference = TokenizersBackend(TokenizerFile(family.make("gpt2")), "encode")

    class Refusing:
        name, version = "refusing", "0"

        def __init__(self, refused: str, changed: str = "?") -> None:
            self.refused, self.changed = refused, changed

        def encode(self, texts: list[str]) -> EncodedTexts:
            if self.refused in texts:
                raise RefusedTextError("not this one", texts.index(self.refused))
            return reference.encode([text + "." if text == self.changed else text for text in texts])

    texts = ["a", "b", "c", "d"]
    assert compare(Refusing("b"), Refusing("b"), texts) is None
    found = compare(Refusing("b", "c"), Refusing("b"), texts)
    assert found.index == 2
    found = compare(Refusing("b"), Refusing("c"), texts)
    assert (found.index, found.message) == (1, "refusing fails on 'b', which refusing takes: not this one")
    found = compare(Refusing("?"), Refusing("c"), texts)
    assert (found.index, found.message) == (2, "refusing refuses 'c', which refusing takes: not this one")


# What came of a probe is kept, and believed only where it is surely of the same libraries and tokeniser.


WANTED = "fastokens"


@pytest.fixture
def folder() -> Path:
    return Path(os.environ["HEADRACE_CACHE"]) / "probes"


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The probes that were made, of a few texts each."""
    made: list[str] = []

    def compare(fast: Any, reference: Any, texts: list[str], **rest: Any) -> Difference | None:
        made.append(fast.name)
        return proof_compare(fast, reference, texts, **rest)

    proof_compare = proof.compare
    monkeypatch.setattr(proof, "probe_texts", lambda layout, is_byte_level: ["some words", "and 123"])
    monkeypatch.setattr(proof, "compare", compare)
    return made


def choose(content: bytes, special: Any = "literal") -> proof.Choice:
    return proof.choose_backend(TokenizerFile(content), wanted=WANTED, special=special)[0]


def test_a_probe_is_made_once(family: Any, probes: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = family.make("gpt2")
    first = choose(content)
    assert (first.name, probes) == (WANTED, [WANTED])
    assert len(list(folder.iterdir())) == 1
    # The second time nothing is encoded.
    with monkeypatch.context() as patch:
        patch.setattr(proof, "compare", None)
        assert choose(content) == first
    # Whatever decides about it is another probe.
    choose(content, "encode")
    choose(content.replace(b'"version"', b'"version" ', 1))
    assert len(probes) == 3
    other_code = str(folder / "kept_probes.py")
    for name, value in (("__file__", other_code), ("installed_version", lambda library: "99")):
        with monkeypatch.context() as patch:
            patch.setattr(proof, name, value)
            choose(content)
            choose(content)
    assert len(probes) == 5


def test_a_difference_is_kept_too(family: Any, probes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "compare", lambda *args, **rest: probes.append("") or Difference(0, "other ids"))
    found = [choose(family.make("gpt2")) for _ in range(2)]
    assert len(probes) == 1
    assert found[0] == found[1]
    assert (found[0].name, found[0].reasons) == ("tokenizers", {WANTED: "differs on the probe: other ids"})


def hashed(data: bytes) -> bytes:
    return data + xxhash.xxh3_64_digest(data)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[:-9],
    "a difference that nobody found": lambda data: data[:-9] + b"\xa1x" + data[-8:],
    "another hash": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "another kind of value": lambda data: hashed(msgspec.msgpack.encode({"of": 1})),
    "nested": lambda data: hashed(b"\x91" * 100_000),
    "not UTF-8": lambda data: hashed(data[:-9] + b"\xa1\xff"),
    "of another probe": lambda data: hashed(msgspec.msgpack.encode(("0" * 32, "other ids"))),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_counts_for_nothing(family: Any, probes: list[str], folder: Path, kind: str) -> None:
    content = family.make("gpt2")
    choose(content)
    [path] = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(DAMAGE[kind](whole))
    assert path.read_bytes() != whole
    choose(content)
    assert len(probes) == 2
    assert [path.read_bytes() for path in folder.iterdir()] == [whole]


def test_without_a_place(family: Any, probes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file where the folder should be, and a user without a home: every run makes its probe."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    content = family.make("gpt2")
    assert choose(content) == choose(content)
    assert len(probes) == 2
    monkeypatch.setattr(proof, "cache_folder", lambda kind: None)
    keep_outcome("key", "")
    assert find_outcome("key") is None
