"""Ids -> the text that each token stands for, also where several tokens make one character."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

import msgspec
from tokenizers import Tokenizer

_REPLACEMENT = "\ufffd"
_MOST_PARTS = 8
"""Tokens that are tried as one character, for tokenisers whose tokens have no bytes of their own."""


class Group(NamedTuple):
    """Tokens ``[begin, end)``, which have a text only together; mostly one."""

    begin: int
    end: int
    text: str
    alone: tuple[str, ...] = ()
    """Of several tokens, what is to be said of each by itself, such as ``\\xf0``."""


class TokenTexts(Protocol):
    """What is known of a vocabulary."""

    added: dict[int, str]
    """Added tokens, which are never found inside of others, by id."""

    special: frozenset[int]
    """Those of them that are special."""

    def groups(self, ids: Sequence[int]) -> list[Group]:
        """The ids as groups, in order and without a gap."""


def texts_of(groups: Sequence[Group], alike: Sequence[Hashable]) -> list[str]:
    """A text for each token; a character of several tokens is with the first, if ``alike`` is equal for all of them."""
    texts: list[str] = []
    for begin, end, text, alone in groups:
        if end - begin == 1 or len(set(alike[begin:end])) == 1:
            texts += [text, *[""] * (end - begin - 1)]
        else:
            texts += alone
    return texts


def open_texts(tokenizer: Tokenizer) -> TokenTexts:
    """The texts of a tokeniser: by their bytes where it is byte-level, else as it decodes them."""
    decoder = msgspec.json.decode(tokenizer.to_str().encode())["decoder"] or {}
    return ByteTexts(tokenizer) if decoder.get("type") == "ByteLevel" else DecodedTexts(tokenizer)


class IdTexts:
    """Numbers in place of texts, where there is no tokeniser."""

    added: dict[int, str]
    special: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.added = {}

    def groups(self, ids: Sequence[int]) -> list[Group]:
        """See `TokenTexts.groups`."""
        return [Group(place, place + 1, f"{number} ") for place, number in enumerate(ids)]


class _Vocabulary:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        tokens = tokenizer.get_added_tokens_decoder()
        self.added = {number: token.content for number, token in tokens.items()}
        self.special = frozenset(number for number, token in tokens.items() if token.special)

    def _token(self, number: int) -> str | None:
        token: str | None = self._tokenizer.id_to_token(number) if 0 <= number < 1 << 32 else None
        return token


class ByteTexts(_Vocabulary):
    """Of a byte-level tokeniser: every token is some bytes, and the text is all of them in a row."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self._bytes: dict[int, bytes] = {}

    def groups(self, ids: Sequence[int]) -> list[Group]:
        """See `TokenTexts.groups`. Bytes that are no UTF-8 are written as ``\\xff``."""
        found = []
        begin, pending = 0, b""
        for place, number in enumerate(ids):
            pending += self._bytes_of(number)
            try:
                text = pending.decode()
            except UnicodeDecodeError as error:
                if error.reason == "unexpected end of data" and place + 1 < len(ids):
                    continue
                text = pending.decode(errors="backslashreplace")
            alone = (self._bytes_of(number).decode(errors="backslashreplace") for number in ids[begin : place + 1])
            found.append(Group(begin, place + 1, text, tuple(alone) if begin < place else ()))
            begin, pending = place + 1, b""
        return found

    def _bytes_of(self, number: int) -> bytes:
        known = self._bytes.get(number)
        if known is None:
            token = self.added.get(number)
            if token is not None:
                known = token.encode()
            else:
                token = self._token(number)
                known = _unknown(number).encode() if token is None else _bytes_of_token(token)
            self._bytes[number] = known
        return known


class DecodedTexts(_Vocabulary):
    """Of any tokeniser: what a token adds to the text of the token before it."""

    def groups(self, ids: Sequence[int]) -> list[Group]:
        """See `TokenTexts.groups`."""
        found: list[Group] = []
        first, begin = 0, 0
        before = ""
        for end in range(1, len(ids) + 1):
            text = self._decode(ids[first:end])
            is_part = text.endswith(_REPLACEMENT) and end - begin < _MOST_PARTS and end < len(ids)
            if is_part:
                continue
            alone = tuple(map(self._name, ids[begin:end])) if end - begin > 1 else ()
            found.append(Group(begin, end, text.removeprefix(before), alone))
            first, begin = begin, end
            before = self._decode(ids[first:end])
        return found

    def _name(self, number: int) -> str:
        return self._token(number) or _unknown(number)

    def _decode(self, ids: Sequence[int]) -> str:
        known = [number for number in ids if self._token(number) is not None]
        if len(known) < len(ids):
            return "".join(map(self._name, ids))
        text: str = self._tokenizer.decode(known, skip_special_tokens=False)
        return text


def _unknown(number: int) -> str:
    return f"<no token {number}>"


def _byte_alphabet() -> dict[str, int]:
    """The character that byte-level tokenisers write for each byte: the printable ones of Latin-1 stand for
    themselves, the other 68 bytes for the characters from 256 on, in their order."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _bytes_of_token(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[character] for character in token)
    except KeyError:  # written into the vocabulary as it is
        return token.encode()
