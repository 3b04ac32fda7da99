"""The texts of token ids: the text of each token, the role of its turn, and stretches of tokens that are alike.

Several tokens may make one character together; they are then one group. The tokeniser that made a store is found
through the manifest, and verified before it is used.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

from headrace.errors import ConfigError, StoreError
from headrace.inspect.blocks import ShownSequence, Stretch
from headrace.inspect.description import find_manifest
from headrace.preparing.backends.tokenizer import byte_characters, load_tokenizer

_REPLACEMENT = "\ufffd"
_MOST_PARTS = 8
"""The most tokens that are tried as one character, for tokenisers that are not byte-level."""


class TokenGroup(NamedTuple):
    """Tokens ``[begin, end)`` that have a text only together; usually a single token."""

    begin: int
    end: int
    text: str
    alone: tuple[str, ...] = ()
    """For a group of several tokens, a text for each, such as ``\\xf0``."""


class TokenTexts(Protocol):
    """The texts of a vocabulary."""

    added: dict[int, str]
    """The added tokens, by id. They are never a part of other tokens."""

    special: frozenset[int]
    """The added tokens that are special."""

    def groups(self, ids: Sequence[int]) -> list[TokenGroup]:
        """Divide ids into groups, in order and without gaps."""

    def whole(self, ids: Sequence[int]) -> str:
        """Return the text of all ids together; much faster than by groups."""


def texts_of(groups: Sequence[TokenGroup], alike: Sequence[Hashable]) -> list[str]:
    """Return a text for each token.

    If several tokens make one character, and ``alike`` is equal for all of them, the first one gets the character and
    the others an empty text; otherwise each gets its own text.
    """
    texts: list[str] = []
    for begin, end, text, alone in groups:
        if end - begin == 1 or len(set(alike[begin:end])) == 1:
            texts += [text, *[""] * (end - begin - 1)]
        else:
            texts += alone
    return texts


def open_texts(tokenizer: Tokenizer) -> TokenTexts:
    """Return the texts of a tokeniser: by the bytes of its tokens if it is byte-level, otherwise as it decodes them."""
    return ByteTexts(tokenizer) if isinstance(tokenizer.decoder, ByteLevel) else DecodedTexts(tokenizer)


class IdTexts:
    """Shows ids in place of texts, if there is no tokeniser."""

    added: dict[int, str]
    special: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.added = {}

    def groups(self, ids: Sequence[int]) -> list[TokenGroup]:
        """See `TokenTexts.groups`."""
        return [TokenGroup(place, place + 1, f"{number} ") for place, number in enumerate(ids)]

    def whole(self, ids: Sequence[int]) -> str:
        """Return the ids with one space between two."""
        return " ".join(map(str, ids))


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
    """The texts of a byte-level tokeniser: each token stands for bytes, and the text is all bytes in a row."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self._bytes: dict[int, bytes] = {}

    def groups(self, ids: Sequence[int]) -> list[TokenGroup]:
        """See `TokenTexts.groups`. Bytes that are not UTF-8 are written as ``\\xff``."""
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
            found.append(TokenGroup(begin, place + 1, text, tuple(alone) if begin < place else ()))
            begin, pending = place + 1, b""
        return found

    def whole(self, ids: Sequence[int]) -> str:
        """See `TokenTexts.whole`. Bytes that are not UTF-8 are replaced."""
        known = self._bytes
        for number in set(ids) - known.keys():
            self._bytes_of(number)
        return b"".join([known[number] for number in ids]).decode(errors="replace")

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
    """The texts of any tokeniser: the text of a token is what it adds to that of the token before it."""

    def groups(self, ids: Sequence[int]) -> list[TokenGroup]:
        """See `TokenTexts.groups`."""
        found: list[TokenGroup] = []
        first, begin = 0, 0
        before = ""
        for end in range(1, len(ids) + 1):
            text = self._decode(ids[first:end])
            is_part = text.endswith(_REPLACEMENT) and end - begin < _MOST_PARTS and end < len(ids)
            if is_part:
                continue
            alone = tuple(map(self._name, ids[begin:end])) if end - begin > 1 else ()
            found.append(TokenGroup(begin, end, text.removeprefix(before), alone))
            first, begin = begin, end
            before = self._decode(ids[first:end])
        return found

    def whole(self, ids: Sequence[int]) -> str:
        """See `TokenTexts.whole`."""
        return self._decode(ids)

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


_ALPHABET = byte_characters()


def _bytes_of_token(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[character] for character in token)
    except KeyError:  # the vocabulary has this token as plain text
        return token.encode()


class FoundTokenizer(NamedTuple):
    """A vocabulary, where it came from, and a note for the reader."""

    texts: TokenTexts
    source: str | None
    note: str = ""


def find_texts(path: str, *, given: str | None = None, is_any: bool = False) -> FoundTokenizer:
    """Find the vocabulary to read a store with. If there is none, ids stand in place of texts.

    Args:
        path: the store.
        given: a ``tokenizer.json`` or its folder, from the user; by default the one that the manifest names.
        is_any: whether a tokeniser other than the one that the store was made with is allowed.

    Raises:
        ConfigError: the given tokeniser cannot be read, or is not the one that the store was made with.
        StoreError: the tokeniser that the manifest names is missing, or has changed; or the manifest is damaged.
    """
    manifest = find_manifest(path)
    made_by = None if manifest is None else manifest.tokenizer
    if given is None and made_by is None:
        return FoundTokenizer(
            IdTexts(), None, "the store does not name its tokeniser, so ids are shown: give --tokenizer"
        )
    name = given if given is not None else made_by.source if made_by is not None else ""
    try:
        tokenizer = load_tokenizer(name)
    except ConfigError as error:
        if given is not None:
            raise
        raise StoreError(
            f"{path}: its tokeniser cannot be read: {error}. Give `tokenizer=PATH`, or `ids` to see ids"
        ) from None
    if made_by is None or tokenizer.known.fingerprint == made_by.xxh3_128:
        return FoundTokenizer(open_texts(tokenizer.file.encoder()), name)
    message = (
        f"{path} was made with another tokeniser: {made_by.source}, xxh3 {made_by.xxh3_128}; {name} has xxh3 "
        f"{tokenizer.known.fingerprint}"
    )
    if not is_any:
        if given is None:
            raise StoreError(f"{message}: it has changed since. Give the old one with `tokenizer=PATH`")
        raise ConfigError(f"{message}. Give the first one, or `any_tokenizer` to read the store with this one anyway")
    return FoundTokenizer(
        open_texts(tokenizer.file.encoder()), name, f"read with a tokeniser that the store was not made with: {name}"
    )


ROLES = frozenset(
    (
        *("system", "developer", "user", "human", "assistant", "model", "chatbot", "bot", "ai"),
        *("tool", "function", "observation", "ipython", "environment"),
    )
)
"""The names of roles, as templates write them."""

_FILLERS = frozenset(("im", "start", "begin", "of", "turn", "token", "header", "id", "role", "prompt"))
_BRACKETS = {"[INST]": "user", "[/INST]": "assistant"}
_MOST_CHARS = 24


def roles_of(vocabulary: TokenTexts, ids: Sequence[int], groups: Sequence[TokenGroup]) -> list[str]:
    """Return a role for each token, empty before the first turn that names one.

    A turn names its role if it begins with an added token that has the name, such as ``<|user|>``, or that is followed
    by the name, up to the end of the line or the next added token, as in ``<|im_start|>user``. The roles of templates
    whose turns begin with plain text, such as ``USER:``, are not found.
    """
    roles: list[str] = []
    role = ""
    for number, group in enumerate(groups):
        if group.end - group.begin == 1 and ids[group.begin] in vocabulary.added:
            role = (
                _named(vocabulary.added[ids[group.begin]])
                or _following(vocabulary, ids, groups[number + 1 : number + 1 + _MOST_CHARS])
                or role
            )
        roles += [role] * (group.end - group.begin)
    return roles


def _named(token: str) -> str:
    """Return the role that a token names, or an empty text: ``<|USER_TOKEN|>`` names user, ``<|end_of_user|>`` none."""
    if token in _BRACKETS:
        return _BRACKETS[token]
    words = [word for word in re.findall("[a-z]+", token.lower()) if word not in _FILLERS]
    return words[0] if len(words) == 1 and words[0] in ROLES and "/" not in token else ""


def _following(vocabulary: TokenTexts, ids: Sequence[int], groups: Sequence[TokenGroup]) -> str:
    text = ""
    for group in groups:
        if ids[group.begin] in vocabulary.added:
            break
        text += group.text
        if "\n" in text or len(text) > _MOST_CHARS:
            break
    else:
        return ""
    name = text.partition("\n")[0].strip().lower()
    return name if name in ROLES else ""


def stretches(
    vocabulary: TokenTexts,
    ids: NDArray[Any],
    *,
    mask: NDArray[Any] | None = None,
    positions: NDArray[Any] | None = None,
) -> tuple[Stretch, ...]:
    """Divide (n,) ids into stretches, by an (n,) loss mask and (n,) position ids, which are 0, 1, 2, ... by default.

    A stretch ends where the role, the mask or the segment changes, and before and after special tokens. O(n).
    """
    numbers: list[int] = ids.tolist()
    groups = vocabulary.groups(numbers)
    roles = roles_of(vocabulary, numbers, groups)
    trained: list[bool | None] = [None] * len(numbers) if mask is None else (mask != 0).tolist()
    places = list(range(len(numbers))) if positions is None else positions.tolist()
    special = [number in vocabulary.special for number in numbers]
    # Tokens belong to one segment if their positions follow each other.
    segments = [place - position for place, position in enumerate(places)]
    alike = list(zip(trained, special, roles, segments, strict=True))
    return divided(numbers, groups, alike, position=places, is_trained=trained, is_special=special, role=roles)


def divided(
    ids: Sequence[int], groups: Sequence[TokenGroup], alike: Sequence[Hashable], **fields: Sequence[Any]
) -> tuple[Stretch, ...]:
    """Divide tokens into stretches of those that are ``alike``; the other fields have a value for each token."""
    texts = texts_of(groups, alike)
    return tuple(
        Stretch(
            begin=begin,
            ids=tuple(ids[begin:end]),
            texts=tuple(texts[begin:end]),
            **{name: values[begin] for name, values in fields.items()},
        )
        for begin, end in runs(alike)
    )


def sequence_of(
    vocabulary: TokenTexts,
    name: str,
    document: int,
    ids: NDArray[Any],
    *,
    mask: NDArray[Any] | None,
    most: int,
    begin: int = 0,
    positions: NDArray[Any] | None = None,
    **more: Any,
) -> ShownSequence:
    """Return (n,) ids as a sequence, with the stretches of the first ``most`` of them; see `stretches`.

    ``more`` are other fields of the sequence.
    """
    return ShownSequence(
        name=name,
        document=document,
        begin=begin,
        num_tokens=len(ids),
        num_trained=None if mask is None else int(np.count_nonzero(mask)),
        stretches=stretches(
            vocabulary,
            ids[:most],
            mask=None if mask is None else mask[:most],
            positions=None if positions is None else positions[:most],
        ),
        **more,
    )


def runs(values: Sequence[object]) -> list[tuple[int, int]]:
    """Return ``[begin, end)`` of each run of equal values: (0, 2) and (2, 3) for (a, a, b)."""
    borders = [place for place in range(1, len(values)) if values[place] != values[place - 1]]
    edges = [0, *borders, len(values)] if values else []
    return list(itertools.pairwise(edges))
