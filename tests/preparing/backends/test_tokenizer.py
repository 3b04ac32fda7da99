"""What is taken from a ``tokenizer.json``, and how runs over text begin and end documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import example, given, strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

import headrace
import recipes_made
from headrace.cli import main
from headrace.errors import ConfigError
from headrace.io import hash_bytes
from headrace.preparing import PrepareOptions, TokenOptions
from headrace.preparing.backends.special import SpecialFinder
from headrace.preparing.backends.tokenizer import byte_characters, is_plain, load_tokenizer
from headrace.samples.tokenizer import TokenizerFile
from headrace.stores import load_manifest


def with_tokens(folder: Path, vocabulary: dict[str, int], special: list[str] | None = None) -> Path:
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(special or [])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_a_file_or_its_folder(kit: Any) -> None:
    loaded = load_tokenizer(kit.tokenizer)
    assert loaded.known.vocab_size == kit.vocab_size
    assert loaded.known.fingerprint == hash_bytes(kit.tokenizer.read_bytes())
    assert loaded.known.name == str(kit.tokenizer)
    in_folder = load_tokenizer(kit.tokenizer.parent)
    assert in_folder.known.name == str(kit.tokenizer.parent)
    assert in_folder.known.fingerprint == loaded.known.fingerprint


def test_the_vocabulary_counts_added_tokens_and_gaps(tmp_path: Path) -> None:
    assert load_tokenizer(with_tokens(tmp_path, {"a": 0, "[UNK]": 1}, ["<x>", "<y>"])).known.vocab_size == 4
    assert load_tokenizer(with_tokens(tmp_path, {"a": 0, "[UNK]": 99})).known.vocab_size == 100


@pytest.mark.parametrize("token", ["<|endoftext|>", "</s>", "[EOS]", "<｜end▁of▁sentence｜>"])  # noqa: RUF001
def test_the_only_usual_end_of_document_is_found(tmp_path: Path, token: str) -> None:
    loaded = load_tokenizer(with_tokens(tmp_path, {"[UNK]": 0, "<pad>": 1}, [token]))
    assert loaded.find_eod(None) == 2


def test_named_ends_of_document(tmp_path: Path) -> None:
    loaded = load_tokenizer(with_tokens(tmp_path, {"[UNK]": 0, "a": 1}, ["<end>"]))
    assert loaded.find_eod("<end>") == 2
    assert loaded.find_eod(1) == 1


@pytest.mark.parametrize(
    ("special", "wanted", "message"),
    [
        (["<end>"], None, "it has no usual one; its added tokens are: '<end>' (id 1). Name it with --eod"),
        ([], None, "its added tokens are: none"),
        (["</s>", "<eos>"], None, "several are usual: '</s>' (id 1), '<eos>' (id 2). Name it with --eod"),
        (["<end>"], "<stop>", "--eod '<stop>': not in the vocabulary"),
        (["<end>"], 2**70, "no token has this id"),
        (["<end>"], -1, "no token has this id"),
        (["<end>"], 2, "no token has this id"),
    ],
)
def test_unclear_ends_of_document(tmp_path: Path, special: list[str], wanted: str | int | None, message: str) -> None:
    loaded = load_tokenizer(with_tokens(tmp_path, {"[UNK]": 0}, special))
    with pytest.raises(ConfigError) as caught:
        loaded.find_eod(wanted)
    assert message in str(caught.value)


def test_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ConfigError, match="'gpt2'"):
        load_tokenizer("gpt2")
    for content in (b"", b"{}", b"\xff\xfe", json.dumps({"version": "1.0", "model": {"type": "?"}}).encode()):
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(ConfigError, match=r"tokenizer\.json"):
            load_tokenizer(tmp_path)


# Which runs over text begin documents with BOS, and what they say and count if they do not.


EOS, BOS = recipes_made.SPECIAL.index("<eos>"), recipes_made.SPECIAL.index("<bos>")
TEXTS = ["ab", "", "<bos>c", "d"]
AROUND = {"post-processor": "<bos> $A <eos>", "configuration": ""}


@pytest.fixture(params=AROUND)
def folder(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_workers: None) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.json").write_bytes(recipes_made.tokenizer_json(around=AROUND[request.param]))
    config = {"bos_token": {"content": "<bos>"}, "add_bos_token": True} if request.param == "configuration" else {}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepare(
    bos: str | int, special: Any = "encode", tokenizer: str = "model"
) -> tuple[list[list[int]], Any, list[str]]:
    notices: list[str] = []
    tokens = TokenOptions(bos=bos, special_tokens_in_text=special, backend="tokenizers")
    options = PrepareOptions(tokens=tokens, workers=1, overwrite=True)
    ledger = headrace.prepare(["a.jsonl"], "out", tokenizer=tokenizer, options=options, on_notice=notices.append).ledger
    store = headrace.open("out")
    return [store.document(number).tolist() for number in range(len(store))], ledger, notices


def test_never_is_the_default_and_is_counted_and_said(folder: Path) -> None:
    assert TokenOptions().bos == "never"
    documents, ledger, [notice] = prepare("never")
    assert [row[:1] == [BOS] for row in documents] == [False, False, True, False]
    assert (ledger.missing_bos, ledger.tokens.bos) == (2, 0)
    assert notice.startswith("no BOS is added, although the tokeniser begins texts with '<bos>'")
    assert "`--bos auto` adds it" in notice
    assert load_manifest("out").ledger.missing_bos == 2
    assert prepare("never", "literal")[1].missing_bos == 3
    assert prepare("never", tokenizer="model/tokenizer.json")[1].missing_bos == 2


@pytest.mark.parametrize("bos", ["auto", "always", "<bos>", BOS])
def test_a_bos_that_is_added_is_never_doubled(folder: Path, bos: str | int) -> None:
    plain, _, _ = prepare("never")
    documents, ledger, notices = prepare(bos)
    assert documents == [row if not row or row[0] == BOS else [BOS, *row] for row in plain]
    assert (ledger.missing_bos, ledger.tokens.bos, notices) == (0, 2, [])
    assert b"missing_bos" not in Path("out/headrace.json").read_bytes()


def test_a_tokeniser_that_adds_none(folder: Path) -> None:
    Path("model/tokenizer.json").write_bytes(recipes_made.tokenizer_json())
    Path("model/tokenizer_config.json").unlink()
    plain, ledger, notices = prepare("never")
    assert (ledger.missing_bos, notices) == (0, [])
    assert prepare("auto")[0] == plain
    assert prepare("always")[0][0] == [BOS, *plain[0]]


def test_several_tokens_are_refused_and_a_broken_configuration_too(folder: Path) -> None:
    Path("model/tokenizer.json").write_bytes(recipes_made.tokenizer_json(around="<eos> <bos> $A"))
    assert prepare("never")[1].missing_bos == 3
    with pytest.raises(ConfigError, match=r"2.*tokens"):
        prepare("auto")
    Path("model/tokenizer_config.json").write_text("[")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json.*JSON"):
        prepare("never")


def test_the_command_says_it_too(folder: Path) -> None:
    args = ["prepare", "text", "a.jsonl", "-o", "out", "--tokenizer", "model", "--backend", "tokenizers", "--overwrite"]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    assert "no BOS is added" in result.stderr
    assert "3 texts without the one of the tokeniser" in result.output
    result = CliRunner().invoke(main, [*args, "--bos", "auto", "--json"])
    assert json.loads(result.stdout)["missing_bos"] == 0
    assert json.loads(result.stdout)["bos"] == BOS


# A `tokenizer.json` is taken apart, and texts that hold one of its added tokens are found.


def make_layout(added: list[dict[str, Any]], **parts: Any) -> bytes:
    numbered = [{"id": number, **token} for number, token in enumerate(added)]
    return json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": numbered, **parts}).encode()


PIECES = st.text(alphabet="<|>ab [é\u4e00", min_size=1, max_size=4)


@given(contents=st.lists(PIECES, max_size=8), texts=st.lists(st.text(alphabet="<|>ab [é\u4e00"), max_size=8))
@example(contents=[], texts=["", "<s>"])
@example(contents=["<|a|>", "  ", "   "], texts=["a b", "a  b", "a    b", "<|a|>", "<|a"])
def test_found_is_what_a_search_for_each_finds(contents: list[str], texts: list[str]) -> None:
    finder = SpecialFinder(TokenizerFile(make_layout([{"content": one, "special": True} for one in contents])))
    assert finder.find(texts).tolist() == [any(content in text for content in contents) for text in texts]
    for text in texts:
        name = finder.which(text)
        firsts = [(text.index(one), -len(one), one) for one in contents if one in text]
        assert name == (min(firsts)[2] if firsts else "")


def test_only_the_kind_asked_for(family: Any) -> None:
    content = family.make("gpt2", [AddedToken("<s>", special=True), AddedToken("  ", special=False)])
    texts = ["<s>", "a  b", "none"]
    assert SpecialFinder(TokenizerFile(content)).find(texts).tolist() == [True, False, False]
    assert SpecialFinder(TokenizerFile(content), "ordinary").find(texts).tolist() == [False, True, False]
    assert SpecialFinder(TokenizerFile(content), "added").find(texts).tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("normalizer", "text"),
    [
        ({"type": "NFKC"}, "a \uff1c\uff53\uff1e b"),
        ({"type": "Lowercase"}, "a <S> b"),
        ({"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "Lowercase"}]}, "\uff1cS\uff1e"),
    ],
)
def test_normalised_tokens_are_found_in_the_normalised_text(normalizer: dict[str, Any], text: str, family: Any) -> None:
    content = family.make("gpt2", [AddedToken("<s>", special=True, normalized=True)])
    content = family.change(content, lambda made: made.update(normalizer=normalizer))
    encoder = Tokenizer.from_str(content.decode())
    assert encoder.token_to_id("<s>") in encoder.encode(text).ids
    finder = SpecialFinder(TokenizerFile(content))
    assert finder.find(["plain é", text, "plain"]).tolist() == [False, True, False]
    assert finder.which(text) == "<s>"


@given(seed=st.integers(0, 1000))
def test_a_text_that_is_not_found_has_no_added_token(seed: int, family: Any) -> None:
    added = [
        AddedToken("<mask>", special=True, lstrip=True, normalized=False),
        AddedToken("and", special=False, single_word=True),
        AddedToken("été", special=False, rstrip=True, normalized=True),
    ]
    content = family.make("qwen2", added)
    encoder = Tokenizer.from_str(content.decode())
    numbers = {encoder.token_to_id(token.content) for token in added}
    texts = family.documents(20, seed)
    texts += [text + "e\u0301te\u0301" for text in texts[:3]] + [text + " and " for text in texts[:3]]
    found = SpecialFinder(TokenizerFile(content), "added").find(texts)
    held = [bool(numbers & set(encoding.ids)) for encoding in encoder.encode_batch_fast(texts)]
    assert not any(has and not was for has, was in zip(held, found, strict=True))
    assert any(held)


# A `tokenizer.json` taken apart.


def test_byte_characters_are_those_of_the_library() -> None:
    assert sorted(byte_characters()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_characters().values()) == list(range(256))
    for text in ("a", " ", "\n", "é", "\u00ad", "\x7f", "\u4e00"):
        [(shown, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        assert bytes(byte_characters()[one] for one in shown) == text.encode()


def test_sequences_are_unrolled() -> None:
    inner = {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel"}]}
    layout = TokenizerFile(
        make_layout(
            [],
            pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Split"}, inner]},
            normalizer={"type": "Sequence", "normalizers": []},
        )
    ).parts
    assert [step["type"] for step in layout.pre_tokenizers] == ["Split", "Digits", "ByteLevel"]
    assert layout.normalizers == []


def test_a_file_without_the_name_of_its_model_is_bpe_where_it_has_merges() -> None:
    assert TokenizerFile(b'{"model": {"vocab": {}, "merges": []}}').parts.model["type"] == "BPE"
    assert "type" not in TokenizerFile(b'{"model": {"vocab": {}}}').parts.model


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"model": 3}', b'{"model": {}, "added_tokens": [{"id": 1}]}'])
def test_what_is_no_tokeniser(content: bytes) -> None:
    with pytest.raises(ConfigError, match="cannot"):
        _ = TokenizerFile(content).parts


def test_for_another_library_nothing_cuts_or_pads() -> None:
    added = [{"content": "<s>", "special": True}, {"content": "x", "special": False}]
    layout = TokenizerFile(make_layout(added, truncation={"max_length": 3}, padding={"length": 9})).parts
    made = json.loads(layout.for_texts())
    assert (made["truncation"], made["padding"]) == (None, None)
    assert [token["content"] for token in made["added_tokens"]] == ["<s>", "x"]


@pytest.mark.parametrize(
    ("merges", "written"),
    [
        ([["a", ","], ['"', "\\"]], ["a ,", '" \\']),
        ([["a", "b"], ["a b", "c"]], None),
        ([["a", " "]], None),
        ([["a b", ""]], None),
        (["a b"], None),
        ([["a", "b", "c"]], None),
    ],
)
def test_merges_are_texts_for_another_library_where_no_space_is_part_of_one(merges: Any, written: Any) -> None:
    layout = TokenizerFile(json.dumps({"model": {"type": "BPE", "merges": merges}}).encode()).parts
    assert json.loads(layout.for_texts())["model"] == {"type": "BPE", "merges": written or merges}


CONTENTS = st.lists(st.text(alphabet="ab", min_size=1, max_size=3), max_size=3)


@given(special=CONTENTS, ordinary=CONTENTS)
def test_plain_is_where_no_two_kinds_can_share_text(special: list[str], ordinary: list[str]) -> None:
    added = [{"content": content, "special": True, "normalized": False} for content in special]
    added += [{"content": content, "special": False, "normalized": False} for content in ordinary]
    layout = TokenizerFile(make_layout(added)).parts
    # Two share text where one can be laid over the other, shifted, so that all characters in common agree.
    shared = any(
        all(first[at] == second[at + shift] for at in range(len(first)) if 0 <= at + shift < len(second))
        for first in special
        for second in ordinary
        for shift in range(1 - len(first), len(second))
    )
    assert is_plain(layout, literal=False)
    assert is_plain(layout, literal=True) == (not shared)


@pytest.mark.parametrize("flag", ["single_word", "lstrip", "rstrip"])
def test_a_token_that_looks_beside_it_is_not_plain(flag: str) -> None:
    assert not is_plain(
        TokenizerFile(make_layout([{"content": "<s>", "special": True, flag: True}])).parts, literal=False
    )


def test_a_token_of_the_normalised_text_is_plain_without_a_normaliser_only() -> None:
    added = [{"content": "<s>", "special": True, "normalized": True}]
    assert is_plain(TokenizerFile(make_layout(added)).parts, literal=False)
    assert not is_plain(TokenizerFile(make_layout(added, normalizer={"type": "NFC"})).parts, literal=False)
    assert not is_plain(TokenizerFile(make_layout([*added, {"content": "s>", "special": True}])).parts, literal=False)
