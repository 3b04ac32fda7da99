"""Reads a `tokenizer.json`, finds the tokens that begin and end a text, and tells what no fast library supports.

A text is begun and ended by the tokens that the user names, or by the only tokens of the vocabulary that have a usual
name.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import msgspec

from headrace.config import nearest_path
from headrace.errors import ConfigError
from headrace.io import AnyPath, Storage, check_readable, hash_bytes, path_at, read_small, reader_of
from headrace.samples.tokenizer import TokenizerFile, TokenizerParts

FILE_NAME, CONFIG_NAME = "tokenizer.json", "tokenizer_config.json"

USUAL_EODS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "<|eod|>",
    "<eod>",
    "[EOS]",
    "[EOD]",
    "<EOD>",
    "<|end_of_document|>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001 - written so by DeepSeek
)
"""The names that vocabularies give their end-of-document token."""

USUAL_BOSES = (
    "<s>",
    "<bos>",
    "<|begin_of_text|>",
    "<|startoftext|>",
    "<|bos|>",
    "[BOS]",
    "<BOS>",
    "<｜begin▁of▁sentence｜>",  # noqa: RUF001 - written so by DeepSeek
)
"""The names that vocabularies give their begin-of-sequence token."""


class TextTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """What a run knows of its tokeniser."""

    name: str
    """Path as the user gave it."""

    fingerprint: str
    """xxh3_128 of the bytes of ``tokenizer.json``."""

    vocab_size: int
    """The number of tokens including added ones, and never below the largest id + 1."""

    special_tokens: dict[str, int]
    """The id of each added token, by its text."""

    known_tokens: dict[str, int]
    """The same, and the ids of the usual end and begin tokens that the vocabulary has."""

    before_text: tuple[int, ...] = ()
    """The ids with which the tokeniser itself begins a text, mostly BOS alone; see `TokenizerFile.before`."""


class LoadedTokenizer(NamedTuple):
    """A tokeniser as it was read. All processes encode with these bytes, even if the file changes later."""

    known: TextTokenizer
    file: TokenizerFile

    def token_text(self, number: int | None) -> str:
        """The text of the token with this id; empty for None."""
        if number is None:
            return ""
        texts = [text for text, known in self.known.known_tokens.items() if known == number]
        return texts[0] if texts else str(self.file.encoder().id_to_token(number))

    def find_eod(self, wanted: str | int | None) -> int:
        """Id of the end-of-document token.

        Args:
            wanted: the token or its id; None finds the only token with a name in `USUAL_EODS`.

        Raises:
            ConfigError: the token or id is not in the vocabulary; or ``wanted`` is None, and the vocabulary has none or
                several of the usual tokens.
        """
        return self._find(wanted, "--eod", "end-of-document", USUAL_EODS)

    def find_bos(self, wanted: str | int) -> int | None:
        """Id of the token that begins documents, see `TokenOptions.bos`; None if none does.

        Raises:
            ConfigError: the token is not in the vocabulary, or it is not known which one is meant.
        """
        if wanted == "never" or (wanted == "auto" and not self.known.before_text):
            return None
        if wanted not in ("auto", "always"):
            return self._find(wanted, "--bos", "begin-of-sequence", USUAL_BOSES)
        if len(self.known.before_text) > 1:
            raise ConfigError(
                f"--bos {wanted}: the tokeniser begins texts with {len(self.known.before_text)} tokens, "
                f"{', '.join(map(self.token_text, self.known.before_text))}, and only one can be added here: name it, "
                "or use a recipe of type seq, which adds all of them"
            )
        if self.known.before_text:
            return self.known.before_text[0]
        return self._find(None, "--bos", "begin-of-sequence", USUAL_BOSES)

    def _find(self, wanted: str | int | None, option: str, what: str, usual: tuple[str, ...]) -> int:
        if isinstance(wanted, int):
            if not 0 <= wanted < self.known.vocab_size or self.file.encoder().id_to_token(wanted) is None:
                raise ConfigError(
                    f"{option} {wanted}: no token has this id; {self.known.name} has ids 0 to "
                    f"{self.known.vocab_size - 1}"
                )
            return wanted
        if wanted is not None:
            found = self.known.known_tokens.get(wanted)
            if found is None:
                found = self.file.encoder().token_to_id(wanted)
            if found is None:
                raise ConfigError(
                    f"{option} {wanted!r}: not in the vocabulary of {self.known.name}; {self._candidates()}"
                )
            return found
        known = [(self.known.known_tokens[token], token) for token in usual if token in self.known.known_tokens]
        if len(known) != 1:
            listed = ", ".join(f"{token!r} (id {number})" for number, token in known)
            found_text = f"several are usual: {listed}" if known else f"it has no usual one; {self._candidates()}"
            raise ConfigError(
                f"cannot tell which {what} token {self.known.name} means: {found_text}. "
                f"Name it with {option} TOKEN or {option} ID."
            )
        return known[0][0]

    def _candidates(self) -> str:
        shown = [f"{token!r} (id {number})" for token, number in list(self.known.special_tokens.items())[:20]]
        return "its added tokens are: " + (", ".join(shown) or "none")


def load_tokenizer(path: str | os.PathLike[str], storage: Storage | None = None) -> LoadedTokenizer:
    """Read a ``tokenizer.json``, or the one in a folder. One at a URL is fetched once and kept.

    Names of models are not looked up.

    Args:
        path: the file or the folder; also a URL.
        storage: how the store of a URL is reached; None goes by the environment.

    Raises:
        ConfigError: the file does not exist, cannot be read, or is not a tokeniser of the library ``tokenizers``.
        StoreError: the store of the URL cannot be reached.
    """
    check_readable(path)
    name = os.fspath(path)
    file = path_at(path, reader_of(storage))
    if file.is_dir():
        file = file / FILE_NAME
        if not file.is_file():
            raise ConfigError(f"tokenizer {name!r}: the folder holds no {FILE_NAME}")
    try:
        content = read_small(file)
    except FileNotFoundError:
        raise ConfigError(
            f"tokenizer {name!r} does not exist{nearest_path(name)}: give the path of a {FILE_NAME}, or of a folder "
            "that holds one (names of models are not looked up, nothing is downloaded)"
        ) from None
    except OSError as error:
        raise ConfigError(f"tokenizer {name!r} cannot be read: {error.strerror or error}") from error
    loaded = TokenizerFile(content, f"tokenizer {name!r}")
    encoder = loaded.encoder()
    size = max(encoder.get_vocab_size(with_added_tokens=True), loaded.num_ids)
    if size == 0:
        raise ConfigError(f"tokenizer {name!r} has an empty vocabulary")
    added: dict[int, Any] = encoder.get_added_tokens_decoder()
    special = {token.content: number for number, token in sorted(added.items())}
    numbers = {token: encoder.token_to_id(token) for token in (*USUAL_EODS, *USUAL_BOSES)}
    usual = {token: number for token, number in numbers.items() if number is not None}
    known = TextTokenizer(
        name=name,
        fingerprint=hash_bytes(content),
        vocab_size=size,
        special_tokens=special,
        known_tokens={**usual, **special},
        before_text=loaded.before(_read_config(file.parent / CONFIG_NAME)),
    )
    return LoadedTokenizer(known, loaded)


def _read_config(place: AnyPath) -> dict[str, Any]:
    try:
        return msgspec.json.decode(read_small(place), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{place} cannot be read as a JSON object: {error}") from error


class UnsuitableError(Exception):
    """A library lacks a feature that the tokeniser needs; the message says which."""


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
        ends = {text[at:] for text in one for at in range(1, len(text))}
        begins = {text[:at] for text in other for at in range(1, len(text))}
        if inner & set(other) or ends & begins:
            return True
    return False
