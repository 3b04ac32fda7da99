"""Encode texts and find the bytes of the text that each token stands for.

There are two ways, and one is chosen once for a tokeniser:

* Byte-level BPE, and tokenisers like those of SentencePiece, without a normaliser that changes the text: every byte of
  the text is in exactly one token, in order, so the positions are the running sum of the tokens' lengths in bytes. Any
  encoder that returns the same ids can be used, and each token costs only a look-up. The sum is compared with the size
  of each text.
* All others: the offsets of `tokenizers`, in characters, which see through normalisers. If a character is several
  tokens, each of them stands for the whole character.

A token that stands for no character of its own (the space added before the first word) stands for the character that
follows. White space that an added token removes from its sides (``lstrip``, ``rstrip``) belongs to no token: the token
stands for its own characters only.

The first way knows the length of a token by its id (`TokenLengths`):

* Byte-level BPE: a token has as many bytes as its name has characters.
* SentencePiece, BPE or Unigram: the name is the text, with ``▁`` for a space and ``<0x0A>`` for a byte. A space that
  the tokeniser adds before the text, or before every stretch between added tokens, belongs to no byte of the text.

The normaliser may only be a Unicode form, for texts that already have this form. Texts with an unknown character, or
with ``▁`` itself, use the second way.
"""

from __future__ import annotations

import functools
import itertools
import unicodedata
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headrace.errors import InputError
from headrace.samples.masking.options import TextEncoder
from headrace.samples.tokenizer import TokenizerFile, TokenizerParts

IntArray = NDArray[np.int64]
_SPACE = "\u2581"
_FORMS = ("NFC", "NFKC")
Prefix = Literal["none", "first", "every"]
_PREFIXES: dict[str, Prefix] = {"always": "every", "first": "first"}


class TokenLengths(NamedTuple):
    """The lengths in bytes of the tokens of one tokeniser."""

    table: IntArray
    """(largest id + 1,) bytes; 0 for ids without a token."""
    breaks: NDArray[np.bool_]
    """(largest id + 1,) whether the id is an added token, which ends a stretch of text."""
    form: Literal["NFC", "NFKC"] | None = None
    """The Unicode form that texts must have."""
    prefix: Prefix = "none"
    """Where the tokeniser adds a space: nowhere, before a text that does not begin with an added token, before every
    stretch.
    """
    spares_spaces: bool = False
    """Whether no space is added before one."""
    unknown: int | None = None
    """The id for text that is not in the vocabulary."""
    is_byte_level: bool = True

    @property
    def tells_all(self) -> bool:
        """Whether `tells` is true for every text."""
        return self.is_byte_level and self.form is None

    def tells(self, text: str) -> bool:
        """Return whether the lengths are right for this text, as far as is known before it is encoded."""
        if text.isascii():
            return True
        if self.form is not None and not unicodedata.is_normalized(self.form, text):
            return False
        return self.is_byte_level or _SPACE not in text


def token_lengths(parts: TokenizerParts) -> TokenLengths | None:
    """Return the lengths of a tokeniser's tokens; None if the tokeniser is of another kind."""
    model = parts.model
    kind = model.get("type")
    if kind not in ("BPE", "Unigram") or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    byte_levels = [step for step in parts.pre_tokenizers if step["type"] == "ByteLevel"]
    if kind == "BPE" and byte_levels and not model.get("byte_fallback"):
        return _of_bytes(parts, byte_levels)
    return _of_pieces(parts, [*parts.normalizers, *parts.pre_tokenizers])


def _of_bytes(parts: TokenizerParts, byte_levels: list[dict[str, Any]]) -> TokenLengths | None:
    """Return the lengths of a tokeniser of bytes; None if it adds spaces or changes the text otherwise."""
    adds_spaces = all(step.get("add_prefix_space", True) for step in byte_levels)
    if adds_spaces or any(step["type"] != "NFC" for step in parts.normalizers):
        return None
    table, breaks = _tables(parts, {number: len(token) for token, number in parts.vocabulary().items()})
    return TokenLengths(table, breaks, form="NFC" if parts.normalizers else None)


def _of_pieces(parts: TokenizerParts, steps: list[dict[str, Any]]) -> TokenLengths | None:
    """Return the lengths of a tokeniser of SentencePiece; None if one of its steps may change the text otherwise."""
    forms = [step["type"] for step in steps if step["type"] in _FORMS]
    placed = _space_steps([step for step in steps if step["type"] not in _FORMS])
    if placed is None or len(forms) > 1 or any(token.normalized for token in parts.added):
        return None
    model, vocabulary = parts.model, parts.vocabulary()
    if model["type"] == "BPE":
        names, unknown = vocabulary, vocabulary.get(model.get("unk_token"))
    else:
        names, unknown = {name: number for number, (name, _) in enumerate(vocabulary)}, model.get("unk_id")
    falls_back = bool(model.get("byte_fallback"))
    table, breaks = _tables(parts, {number: _size(name, falls_back=falls_back) for name, number in names.items()})
    form: Any = forms[0] if forms else None
    return TokenLengths(table, breaks, form, *placed, unknown, is_byte_level=False)


def _space_steps(steps: list[dict[str, Any]]) -> tuple[Prefix, bool] | None:
    """Return ``prefix`` and ``spares_spaces`` of `TokenLengths` from the steps beside Unicode forms.

    Either a normaliser replaces spaces by ``▁`` and another may put one before the text, or a pre-tokeniser does both.
    Steps that only split the text do not matter. None if there are other steps.
    """
    # Whichever comes first, what they do together is the same.
    changing = [step for step in steps if step["type"] != "Split" or step.get("behavior") == "Removed"]
    match sorted(changing, key=lambda step: str(step["type"])):
        case [{"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]:
            return "none", False
        case [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        ]:
            return "every", False
        case [{"type": "Metaspace", "replacement": "\u2581"} as step]:
            scheme = step.get("prepend_scheme") or ("always" if step.get("add_prefix_space", True) else "never")
            return _PREFIXES.get(scheme, "none"), True
    return None


def _size(name: str, *, falls_back: bool) -> int:
    if falls_back and len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return 1
    return len(name.replace(_SPACE, " ").encode())


def _tables(parts: TokenizerParts, sizes: dict[int, int]) -> tuple[IntArray, NDArray[np.bool_]]:
    added = {token.id: len(token.content.encode()) for token in parts.added}
    sizes |= added
    table = np.zeros(max(sizes, default=-1) + 1, np.int64)
    table[np.fromiter(sizes, np.int64, len(sizes))] = np.fromiter(sizes.values(), np.int64, len(sizes))
    breaks = np.zeros(len(table), np.bool_)
    breaks[np.fromiter(added, np.int64, len(added))] = True
    return table, breaks


def sum_lengths(
    known: TokenLengths, texts: list[str], ids: NDArray[np.uint32], firsts: IntArray
) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
    """Return begin and end of each token in bytes of all texts in a row, and for which texts they are wrong.

    ``firsts``: (number of texts + 1,) the first token of each text. A text is wrong if the sum is not its size, or if
    lengths are not enough for it. A wrong text shifts those after it, so count from the beginning of each text.
    """
    own = known.table[ids]
    put = _put_in(known, texts, ids, own, firsts)
    own[put] -= 1
    ends = np.cumsum(own)
    begins = ends - own
    wrong = np.diff(np.concatenate(([0], ends))[firsts]) != utf8_sizes(texts)
    if not known.tells_all:
        wrong |= np.fromiter((not known.tells(text) for text in texts), np.bool_, len(texts))
    if known.unknown is not None:
        wrong[np.searchsorted(firsts, np.flatnonzero(ids == known.unknown), "right") - 1] = True
    bare = put[own[put] == 0]
    if len(bare):
        # The token is only the space that was added: it stands for the character that follows.
        owners = np.searchsorted(firsts, bare, "right") - 1
        places = begins[bare] - begins[firsts[owners]]
        ends[bare] += [_width(texts[owner], at) for owner, at in zip(owners.tolist(), places.tolist(), strict=True)]
    return begins, ends, wrong


def _put_in(
    known: TokenLengths, texts: list[str], ids: NDArray[np.uint32], own: IntArray, firsts: IntArray
) -> IntArray:
    """Return the numbers of the tokens that hold a space added by the tokeniser: the first token of each stretch."""
    if known.prefix == "none":
        return np.zeros(0, np.int64)
    is_break = known.breaks[ids]
    starts = firsts[:-1][np.diff(firsts) > 0]
    if known.prefix == "every":
        starts = np.union1d(starts, np.flatnonzero(is_break[:-1]) + 1)
    starts = starts[~is_break[starts]]
    if not known.spares_spaces:
        return starts
    kept = []
    owners = (np.searchsorted(firsts, starts, "right") - 1).tolist()
    before = np.cumsum(own) - own
    places = (before[starts] - before[firsts[owners]]).tolist()
    text, num_put = -1, 0
    for start, owner, place in zip(starts.tolist(), owners, places, strict=True):
        text, num_put = owner, num_put if owner == text else 0
        if _byte_at(texts[owner], place - num_put) != 0x20:
            kept.append(start)
            num_put += 1
    return np.array(kept, np.int64)


def _byte_at(text: str, place: int) -> int:
    """Return the byte at a place of the text; 0 after its end."""
    if text.isascii():
        return ord(text[place]) if 0 <= place < len(text) else 0
    data = text.encode()
    return data[place] if 0 <= place < len(data) else 0


def _width(text: str, place: int) -> int:
    """Return the number of bytes of the character that begins at this byte; 0 after the end of the text."""
    lead = _byte_at(text, place)
    return 0 if place >= len(text.encode()) else 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)


def utf8_sizes(texts: list[str]) -> IntArray:
    """Return the sizes of texts in UTF-8: (number of texts,) bytes."""
    sizes = (len(text) if text.isascii() else len(text.encode()) for text in texts)
    return np.fromiter(sizes, np.int64, len(texts))


_BATCH_CHARS = 1 << 18
"""Characters passed to `tokenizers` at once, which uses some 350 bytes for each token until its ids are copied."""


class Spanned(NamedTuple):
    """Texts as ids, with the bytes of each token."""

    ids: NDArray[np.uint32]
    """(n,) of all texts in a row."""
    lengths: IntArray
    """(number of texts,) tokens of each text."""
    begins: IntArray
    ends: IntArray
    """(n,) the bytes ``[begin, end)`` of each token in the UTF-8 of all texts in a row; tokens may overlap by less than
    a character.
    """
    in_order: bool = False
    """Whether every token is known to have bytes and to begin where the one before it ends."""


class SpanEncoder:
    """Encodes whole texts and finds the bytes of each token.

    No token is added before or after a text.

    Args:
        tokenizer: A ``tokenizer.json``, or its bytes.
        encoder: Returns the ids if sums of lengths give the positions. Without it, and for other tokenisers,
            `tokenizers` encodes.

    Raises:
        ConfigError: If the tokeniser cannot be read.

    Example:
        >>> from pathlib import Path
        >>> from headrace.samples.masking import SpanEncoder
        >>> spans = SpanEncoder(Path("tokenizer.json").read_bytes())
        >>> found = spans.encode(["word1 word2"])
        >>> found.ids.tolist(), found.begins.tolist(), found.ends.tolist()
        ([3, 4], [0, 6], [5, 11])
    """

    def __init__(self, tokenizer: TokenizerFile | bytes, encoder: TextEncoder | None = None) -> None:
        self._file = TokenizerFile.of(tokenizer)
        self._encoder = encoder
        known = token_lengths(self._file.parts)
        self._lengths = known if known is not None and self._is_proved(known) else None
        self._all_have_bytes = self._lengths is not None and bool(np.all(self._lengths.table > 0))
        added = self.tokenizer.get_added_tokens_decoder()
        self.added_texts = frozenset(token.content for token in added.values())
        self.special_texts = tuple(token.content for token in added.values() if token.special)
        self._added = np.array(sorted(added), np.uint32)
        self._ordinary = functools.cache(self._make_ordinary)
        self._taking_spaces = np.array(
            [
                number
                for number, token in added.items()
                if (token.lstrip or token.rstrip) and token.content == token.content.strip()
            ],
            np.uint32,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """The library's tokeniser; see `TokenizerFile.encoder`."""
        return self._file.encoder()

    @property
    def sums_lengths(self) -> bool:
        """Whether positions are running sums of lengths; otherwise they are offsets of `tokenizers`."""
        return self._lengths is not None

    def encode(self, texts: list[str]) -> Spanned:
        """Return ids and positions of the tokens of each text.

        Raises:
            InputError: If the encoder and `tokenizers` return different ids, or the library refuses a text.
        """
        if self._lengths is None:
            return _joined([self._by_offsets(texts)], np.zeros(len(texts), np.int64))
        if self._encoder is None:
            ids, lengths, _ = self._tokenized(texts, with_offsets=False)
        else:
            ids, lengths = self._encoder.encode(texts)
        return self._summed(texts, ids, lengths)

    def _summed(self, texts: list[str], ids: NDArray[np.uint32], lengths: IntArray) -> Spanned:
        known = self._lengths
        if known is None or (len(ids) and int(ids.max()) >= len(known.table)):
            raise InputError(f"the encoder returned id {int(ids.max())}, which the tokeniser does not have")
        firsts = np.concatenate(([0], np.cumsum(lengths)))
        begins, ends, wrong = sum_lengths(known, texts, ids, firsts)
        if not wrong.any():
            is_in_order = self._all_have_bytes and known.prefix == "none"
            return Spanned(ids, lengths, begins, ends, in_order=is_in_order)
        sizes = utf8_sizes(texts)
        # A few texts break the rule (an added token that removes spaces): these use offsets, one by one.
        parts = []
        for number, text in enumerate(texts):
            rows = slice(int(firsts[number]), int(firsts[number + 1]))
            if wrong[number]:
                part = self._by_offsets([text])
                if not np.array_equal(part.ids, ids[rows]):
                    raise InputError(f"the encoder and tokenizers return different ids for {text[:60]!r}")
            else:
                base = int(begins[rows.start]) if rows.start < rows.stop else 0
                part = Spanned(ids[rows], lengths[number : number + 1], begins[rows] - base, ends[rows] - base)
            parts.append(part)
        return _joined(parts, sizes)

    def encode_literally(self, texts: list[str], literal: Sequence[Sequence[int]]) -> Spanned:
        """Do the same for texts in which some added tokens are ordinary text.

        ``literal`` holds for each text the characters at which these tokens begin.
        """
        rows = zip(texts, literal, strict=True)
        parts = [self._literally(text, places) if places else self.encode([text]) for text, places in rows]
        return _joined(parts, utf8_sizes(texts))

    def _literally(self, text: str, places: Sequence[int]) -> Spanned:
        # Added tokens divide a text into stretches that are encoded apart, so only the stretches between two true
        # tokens that hold such a token have to be encoded again.
        ids, _, offsets = self._tokenized([text], with_offsets=True)
        before = np.searchsorted(np.array(places), offsets)
        is_added = np.isin(ids, self._added)
        is_literal = is_added & (before[:, 0] < before[:, 1])
        parts = []
        row = begin = 0
        for kept in [*np.flatnonzero(is_added & ~is_literal).tolist(), len(ids)]:
            own = ids[row:kept], offsets[row:kept]
            if is_literal[row:kept].any():
                end = int(offsets[kept, 0]) if kept < len(ids) else len(text)
                found = self._ordinary(begin == 0).encode(text[begin:end], add_special_tokens=False)
                own = np.array(found.ids, np.uint32), np.array(found.offsets, np.int64).reshape(-1, 2) + begin
            parts += [own, (ids[kept : kept + 1], offsets[kept : kept + 1])]
            row, begin = kept + 1, int(offsets[kept : kept + 1, 1].sum())
        made = np.concatenate([own for own, _ in parts])
        return self._placed([text], made, np.array([len(made)]), np.concatenate([own for _, own in parts]))

    def _make_ordinary(self, is_first: bool) -> Tokenizer:
        """Return the tokeniser that takes no added token for one, for the first or another stretch of a text."""
        text = self.tokenizer.to_str(pretty=False).replace('"special":false', '"special":true')
        if not is_first:
            text = text.replace('"prepend_scheme":"first"', '"prepend_scheme":"never"')
        found: Tokenizer = Tokenizer.from_str(text)
        found.encode_special_tokens = True
        return found

    def _by_offsets(self, texts: list[str]) -> Spanned:
        return self._placed(texts, *self._tokenized(texts, with_offsets=True))

    def _placed(self, texts: list[str], ids: NDArray[np.uint32], lengths: IntArray, offsets: IntArray) -> Spanned:
        spans = offsets.copy()
        row = base = 0
        for text, length in zip(texts, lengths.tolist(), strict=True):
            rows = slice(row, row + length)
            if len(self._taking_spaces):
                for at in (np.flatnonzero(np.isin(ids[rows], self._taking_spaces)) + row).tolist():
                    begin, end = offsets[at].tolist()
                    own = text[begin:end]
                    begin += len(own) - len(own.lstrip())
                    offsets[at] = spans[at] = begin, begin + len(own.strip())
            if not text.isascii():
                spans[rows] = byte_places(text)[offsets[rows]]
            spans[rows] += base
            row += length
            base += int(utf8_sizes([text])[0])
        return Spanned(ids, lengths, spans[:, 0], spans[:, 1])

    def _tokenized(self, texts: list[str], *, with_offsets: bool) -> tuple[NDArray[np.uint32], IntArray, IntArray]:
        encode = self.tokenizer.encode_batch if with_offsets else self.tokenizer.encode_batch_fast
        ids, offsets, lengths = [], [], []
        for batch in _batches(texts):
            try:
                encodings = encode(batch, add_special_tokens=False)
            except Exception as error:  # the library raises bare Exception
                raise InputError(f"the tokeniser refuses a text: {error}") from error
            rows = [encoding.ids for encoding in encodings]
            sizes = list(map(len, rows))
            lengths += sizes
            ids.append(np.fromiter(itertools.chain.from_iterable(rows), np.uint32, sum(sizes)))
            if with_offsets:
                flat = itertools.chain.from_iterable(
                    itertools.chain.from_iterable(encoding.offsets for encoding in encodings)
                )
                offsets.append(np.fromiter(flat, np.int64, 2 * sum(sizes)))
        every = np.concatenate(offsets) if offsets else np.zeros(0, np.int64)
        joined = np.concatenate(ids) if ids else np.zeros(0, np.uint32)
        return joined, np.array(lengths, np.int64), every.reshape(-1, 2)

    def _is_proved(self, known: TokenLengths) -> bool:
        """Return whether both ways agree on a text of many scripts, on plain words and on the added tokens."""
        every = self.tokenizer.get_added_tokens_decoder().items()
        added = [token for number, token in every if number != known.unknown and known.tells(token.content)][:200]
        of_added = "a".join(token.content for token in added)
        of_added += "".join(f"{token.content} b" for token in added if not (token.lstrip or token.rstrip))
        texts = [unicodedata.normalize(known.form or "NFC", words) + of_added for words in _PROBES]
        found = [self._agrees(known, text) for text in texts]
        return False not in found and True in found

    def _agrees(self, known: TokenLengths, text: str) -> bool | None:
        """Return whether both ways agree on a text; None if it holds characters that the vocabulary lacks."""
        ids, lengths, offsets = self._tokenized([text], with_offsets=True)
        if not len(ids) or int(ids.max()) >= len(known.table):
            return False
        if known.unknown is not None and known.unknown in ids:
            return None
        begins, ends, wrong = sum_lengths(known, [text], ids, np.concatenate(([0], lengths)))
        places = byte_places(text)
        is_inside = (begins >= places[offsets[:, 0]]) & (ends <= places[offsets[:, 1]])
        return not wrong[0] and bool(is_inside.all())


def byte_places(text: str) -> IntArray:
    """Return where each character of a text begins in its UTF-8, and where the text ends: (characters + 1,)."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    widths = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(widths)))


def _joined(parts: list[Spanned], sizes: IntArray) -> Spanned:
    """Join parts of one text each, whose positions count from their own beginning; return a single part as it is."""
    if len(parts) == 1:
        return parts[0]
    bases = (np.cumsum(sizes) - sizes).tolist()
    return Spanned(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.begins + base for part, base in zip(parts, bases, strict=True)]),
        np.concatenate([part.ends + base for part, base in zip(parts, bases, strict=True)]),
    )


def _batches(texts: list[str]) -> list[list[str]]:
    batches: list[list[str]] = []
    room = 0
    for text in texts:
        if not batches or room < len(text):
            batches.append([])
            room = _BATCH_CHARS
        batches[-1].append(text)
        room -= len(text)
    return batches


_SCRIPTS = (
    "It's the end of the world, and they've said so 12,345 times.\n\n\tDer Fluß fließt größer.\r\nБыстрая лиса. "  # noqa: RUF001
    "敏捷的狐狸。素早い狐。다람쥐 헌 쳇바퀴. נחש בצל. صِف خَلقَ. तेज भूरी 😀 👨\u200d👩\u200d👧 🇩🇪 e\u0301   "
    "def f(x):\n    return x  # ok\n"
)
_PROBES = (_SCRIPTS, " Two words.", "x")
