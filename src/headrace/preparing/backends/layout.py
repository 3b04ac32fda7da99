"""The parts of a `tokenizer.json` that the backends need to know, and checks of the features that it asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

Json = dict[str, Any]


class UnsuitableError(Exception):
    """A library lacks a feature that the tokeniser needs; the message says which."""


class Added(NamedTuple):
    """An added token, which the tokeniser searches for in the text before anything else."""

    content: str
    id: int
    special: bool
    normalized: bool
    single_word: bool
    lstrip: bool
    rstrip: bool

    @property
    def takes_more(self) -> bool:
        """Whether the text beside it decides whether it is found, or becomes part of it."""
        return self.single_word or self.lstrip or self.rstrip


class TokenizerParts(NamedTuple):
    """The parts of a tokeniser; nested sequences are flattened."""

    json: Json
    """The whole file."""

    model: Json
    normalizers: list[Json]
    pre_tokenizers: list[Json]
    added: list[Added]

    def without(self, *, special_tokens: bool) -> bytes:
        """The file for another library, without truncation, padding and post-processor.

        It also lacks the special tokens if ``special_tokens`` is True.
        """
        json = {**self.json, "truncation": None, "padding": None, "post_processor": None}
        if special_tokens:
            json["added_tokens"] = [token for token in json.get("added_tokens") or [] if not token.get("special")]
        return msgspec.json.encode(json)


def read_layout(content: bytes) -> TokenizerParts:
    """Read the parts of a `tokenizer.json`.

    Raises:
        UnsuitableError: the file does not have the expected structure.
    """
    try:
        json = msgspec.json.decode(content, type=Json)
        model = dict(json["model"])
        added = [
            Added(
                content=str(token["content"]),
                id=int(token["id"]),
                special=bool(token.get("special", False)),
                normalized=bool(token.get("normalized", not token.get("special", False))),
                single_word=bool(token.get("single_word", False)),
                lstrip=bool(token.get("lstrip", False)),
                rstrip=bool(token.get("rstrip", False)),
            )
            for token in json.get("added_tokens") or []
        ]
        # Files from before 2020 do not name their model; those with merges are byte-pair encoding.
        if "type" not in model and "merges" in model:
            model["type"] = "BPE"
        return TokenizerParts(
            json=json,
            model=model,
            normalizers=list(_unrolled(json.get("normalizer"), "normalizers")),
            pre_tokenizers=list(_unrolled(json.get("pre_tokenizer"), "pretokenizers")),
            added=[token for token in added if token.content],
        )
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise UnsuitableError(f"its tokenizer.json cannot be taken apart: {error!r}") from error


def _unrolled(step: Any, children: str) -> Iterator[Json]:
    if step is None:
        return
    if step["type"] == "Sequence":
        for child in step[children]:
            yield from _unrolled(child, children)
    else:
        yield step


def byte_characters() -> dict[str, int]:
    """The byte of each printable character that byte-level vocabularies write for a byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


def require_bpe(layout: TokenizerParts) -> None:
    """Refuse tokenisers that no fast library supports.

    Raises:
        UnsuitableError: the model is not byte-pair encoding, or has an option that changes ids.
    """
    model = layout.model
    if model.get("type") != "BPE":
        raise UnsuitableError(f"its model is {model.get('type')}, not byte-pair encoding (BPE)")
    if model.get("dropout"):
        raise UnsuitableError("its merges drop out by chance")
    for option in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise UnsuitableError(f"its model has {option} {model[option]!r}")


def require_bytes(layout: TokenizerParts, byte_of: Mapping[str, int]) -> None:
    """Refuse a vocabulary that lacks a byte; ``byte_of`` gives the token of each byte.

    Raises:
        UnsuitableError: the vocabulary lacks one of these tokens.
    """
    missing = [byte for token, byte in byte_of.items() if token not in layout.model["vocab"]]
    if missing:
        raise UnsuitableError(f"its vocabulary lacks the byte 0x{missing[0]:02x} and {len(missing) - 1} others")


def require_byte_level(layout: TokenizerParts) -> None:
    """Refuse all tokenisers except byte-level BPE as in GPT-2, Llama 3, Qwen or DeepSeek.

    Raises:
        UnsuitableError: the vocabulary lacks a byte, or the text is normalised or split in another way.
    """
    require_bpe(layout)
    require_bytes(layout, byte_characters())
    for normalizer in layout.normalizers:
        if normalizer["type"] != "NFC":
            raise UnsuitableError(f"its normaliser {normalizer['type']}")
    *splits, last = layout.pre_tokenizers or [{"type": "nothing"}]
    if last["type"] != "ByteLevel":
        raise UnsuitableError(f"its pre-tokeniser ends in {last['type']}, not in ByteLevel")
    for split in splits:
        if split["type"] != "Split" or "Regex" not in split.get("pattern", {}):
            raise UnsuitableError(f"its pre-tokeniser {split['type']}, where only Split by a regex is known")
        if split.get("invert") or split.get("behavior") != "Isolated":
            raise UnsuitableError(f"its pre-tokeniser splits as {split.get('behavior')}, invert {split.get('invert')}")
    if bool(splits) == bool(last.get("use_regex", True)):
        raise UnsuitableError(
            "its pre-tokeniser splits by its own regex and by ByteLevel's" if splits else "its text is not split"
        )


def is_plain(layout: TokenizerParts, *, literal: bool) -> bool:
    """Whether a single search for the longest added token at each place finds them all, as the fast libraries search.

    It does not if a token depends on the text beside it, if tokens are searched for in the normalised text, or if
    special tokens are ignored (``literal``) but overlap with other tokens.
    """
    if any(token.takes_more or (token.normalized and layout.normalizers) for token in layout.added):
        return False
    kinds = [(token.normalized, literal and token.special) for token in layout.added]
    classes = [
        [token.content for token, kind in zip(layout.added, kinds, strict=True) if kind == one] for one in set(kinds)
    ]
    return not any(_overlap(one, other) for number, one in enumerate(classes) for other in classes[number + 1 :])


def _overlap(first: list[str], second: list[str]) -> bool:
    """Whether a text of one class may overlap with a text of the other class."""
    for one, other in ((first, second), (second, first)):
        lengths = {len(text) for text in other}
        inner = {text[at : at + length] for text in one for length in lengths for at in range(len(text) - length + 1)}
        if inner & set(other) or _ends(one) & _begins(other):
            return True
    return False


def _ends(texts: list[str]) -> set[str]:
    return {text[at:] for text in texts for at in range(1, len(text))}


def _begins(texts: list[str]) -> set[str]:
    return {text[:at] for text in texts for at in range(1, len(text))}
