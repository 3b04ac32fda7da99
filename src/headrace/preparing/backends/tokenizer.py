"""Reads a `tokenizer.json`: its fingerprint, its vocabulary size, and the tokens that begin and end a sequence.

A text is begun and ended by the tokens that the user names, or by the only tokens of the vocabulary that have a usual
name.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
from tokenizers import Tokenizer

from headrace.config import nearest_path
from headrace.errors import ConfigError
from headrace.io import AnyPath, Storage, check_readable, hash_bytes, path_at, read_small, reader_of

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
    """A tokeniser as it was read. All processes encode with these bytes, even if the file changes later."""

    name: str
    """Path as the user gave it."""

    json: bytes
    fingerprint: str
    """xxh3_128 of the bytes of ``tokenizer.json``."""

    vocab_size: int
    """The number of tokens including added ones, and never below the largest id + 1."""

    special_tokens: dict[str, int]
    """The id of each added token, by its text."""

    known_tokens: dict[str, int]
    """The same, and the ids of the usual end and begin tokens that the vocabulary has. Most look-ups need no more, so
    that the tokeniser need not be loaded."""

    before_text: tuple[int, ...] = ()
    """The ids with which the tokeniser itself begins a text, mostly BOS alone; see `samples.text_ends`."""

    def instance(self) -> Tokenizer:
        """Load a new `tokenizers.Tokenizer` that encodes whole texts."""
        return make_encoder(self.json)

    def token_text(self, number: int | None) -> str:
        """The text of the token with this id; empty for None."""
        if number is None:
            return ""
        texts = [text for text, known in self.known_tokens.items() if known == number]
        return texts[0] if texts else str(self.instance().id_to_token(number))

    def find_eod(self, wanted: str | int | None) -> tuple[int, str]:
        """Id and text of the end-of-document token.

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
        if wanted == "never" or (wanted == "auto" and not self.before_text):
            return None
        if wanted not in ("auto", "always"):
            return self._find(wanted, "--bos", "begin-of-sequence", USUAL_BOSES)[0]
        if len(self.before_text) > 1:
            raise ConfigError(
                f"--bos {wanted}: the tokeniser begins texts with {len(self.before_text)} tokens, "
                f"{', '.join(map(self.token_text, self.before_text))}, and only one can be added here: name it, or use "
                "a recipe of type seq, which adds all of them"
            )
        return (
            self.before_text[0] if self.before_text else self._find(None, "--bos", "begin-of-sequence", USUAL_BOSES)[0]
        )

    def _find(self, wanted: str | int | None, option: str, what: str, usual: tuple[str, ...]) -> tuple[int, str]:
        if isinstance(wanted, int):
            token = self.instance().id_to_token(wanted) if 0 <= wanted < self.vocab_size else None
            if token is None:
                raise ConfigError(
                    f"{option} {wanted}: no token has this id; {self.name} has ids 0 to {self.vocab_size - 1}"
                )
            return wanted, token
        if wanted is not None:
            found = self.known_tokens.get(wanted)
            if found is None:
                found = self.instance().token_to_id(wanted)
            if found is None:
                raise ConfigError(f"{option} {wanted!r}: not in the vocabulary of {self.name}; {self._candidates()}")
            return found, wanted
        known = [(self.known_tokens[token], token) for token in usual if token in self.known_tokens]
        if len(known) != 1:
            listed = ", ".join(f"{token!r} (id {number})" for number, token in known)
            found_text = f"several are usual: {listed}" if known else f"it has no usual one; {self._candidates()}"
            raise ConfigError(
                f"cannot tell which {what} token {self.name} means: {found_text}. "
                f"Name it with {option} TOKEN or {option} ID."
            )
        return known[0]

    def _candidates(self) -> str:
        shown = [f"{token!r} (id {number})" for token, number in list(self.special_tokens.items())[:20]]
        return "its added tokens are: " + (", ".join(shown) or "none")


def load_tokenizer(path: str | os.PathLike[str], storage: Storage | None = None) -> TextTokenizer:
    """Read a ``tokenizer.json``, or the one in a folder. One at a URL is fetched once and kept.

    Names of models are not looked up.

    Args:
        path: the file or the folder; also a URL.
        storage: how the store of a URL is reached; None goes by the environment.

    Raises:
        ConfigError: the file does not exist, cannot be read, or is not a tokeniser of the library ``tokenizers``.
        StoreError: the store of the URL cannot be reached.
    """
    from headrace.samples.text_ends import tokens_before  # which only this process needs, in runs over text

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
    try:
        encoder = make_encoder(content)
    except Exception as error:  # the library raises bare Exception
        raise ConfigError(f"tokenizer {name!r} is not a {FILE_NAME} of the library tokenizers: {error}") from error
    vocabulary: dict[str, int] = encoder.get_vocab(with_added_tokens=True)
    size = max(encoder.get_vocab_size(with_added_tokens=True), max(vocabulary.values(), default=-1) + 1)
    if size == 0:
        raise ConfigError(f"tokenizer {name!r} has an empty vocabulary")
    added: dict[int, Any] = encoder.get_added_tokens_decoder()
    special = {token.content: number for number, token in sorted(added.items())}
    usual = {token: vocabulary[token] for token in (*USUAL_EODS, *USUAL_BOSES) if token in vocabulary}
    return TextTokenizer(
        name=name,
        json=content,
        fingerprint=hash_bytes(content),
        vocab_size=size,
        special_tokens=special,
        known_tokens={**usual, **special},
        before_text=tokens_before(encoder, _read_config(file.parent / CONFIG_NAME)),
    )


def _read_config(place: AnyPath) -> dict[str, Any]:
    try:
        return msgspec.json.decode(read_small(place), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{place} cannot be read as a JSON object: {error}") from error


def make_encoder(content: bytes) -> Tokenizer:
    """Load the tokeniser, and switch truncation and padding off, which a ``tokenizer.json`` may ask for."""
    encoder = Tokenizer.from_str(content.decode("utf-8"))
    encoder.no_truncation()
    encoder.no_padding()
    return encoder
