"""Texts -> ids, and the bytes of the text that each id stands for.

Two ways, decided once for a tokeniser:

* byte-level BPE and SentencePiece's kind, without a normaliser that changes the text (`token_lengths`): every byte of
  the text is in exactly one token, in order, so the spans are the running sum of the tokens' lengths in bytes. Any
  encoder that gives the same ids serves, and nothing is done a token but a look-up. The sum is compared with the text,
  record by record.
* all others: the offsets of `tokenizers`, in characters, which see through normalisers. Of a character that is several
  tokens, each has the whole.

A token that stands for no character of its own (the space put before the first word) has the character that follows.
White space that an added token takes from its sides (``lstrip``, ``rstrip``) is nobody's: the token stands for its own
characters.

How many bytes of a text each token stands for, by its id alone, where a tokeniser is of a kind that allows it.

* Byte-level BPE: a token is as many bytes as its name has characters.
* SentencePiece's kind, BPE or Unigram: the name is the text, with ``▁`` for a space and ``<0x0A>`` for a byte. A space
  that the tokeniser puts before the text, or before every stretch between added tokens, belongs to no byte of it.

A normaliser may only be a Unicode form, for texts that are in it. Texts with an unknown character, or with ``▁``
itself, are not told by this.
"""

from __future__ import annotations

import itertools
import unicodedata
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headrace.errors import ConfigError, InputError
from headrace.samples.masking.options import TextEncoder

IntArray = NDArray[np.int64]
_SPACE = "\u2581"
Prefix = Literal["none", "first", "every"]
_PREFIXES: dict[str, Prefix] = {"always": "every", "first": "first"}


class TokenLengths(NamedTuple):
    """Of one tokeniser."""

    table: IntArray
    """(largest id + 1,) bytes; 0 for ids that no token has."""
    breaks: NDArray[np.bool_]
    """(largest id + 1,) added tokens: they end a stretch of text."""
    form: Literal["NFC", "NFKC"] | None = None
    """The Unicode form that texts must be in."""
    prefix: Prefix = "none"
    """Where a space is put in: nowhere, before a text that does not begin with an added token, before every stretch."""
    spares_spaces: bool = False
    """No space is put before one."""
    unknown: int | None = None
    """The id of what is not in the vocabulary."""
    is_byte_level: bool = True

    @property
    def tells_all(self) -> bool:
        """Whether `tells` holds for every text."""
        return self.is_byte_level and self.form is None

    def tells(self, text: str) -> bool:
        """Whether the lengths are right for this text, as far as can be seen before it is encoded."""
        if text.isascii():
            return True
        if self.form is not None and not unicodedata.is_normalized(self.form, text):
            return False
        return self.is_byte_level or _SPACE not in text


def token_lengths(json: dict[str, Any]) -> TokenLengths | None:
    """The lengths by a ``tokenizer.json``; None where it is of another kind."""
    model = json.get("model") or {}
    kind = model.get("type", "BPE" if "merges" in model else None)
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix") or kind not in ("BPE", "Unigram"):
        return None
    normalizers = _unrolled(json.get("normalizer"), "normalizers")
    steps = _unrolled(json.get("pre_tokenizer"), "pretokenizers")
    if kind == "BPE" and not model.get("byte_fallback") and any(step["type"] == "ByteLevel" for step in steps):
        is_plain = any(step["type"] == "ByteLevel" and not step.get("add_prefix_space", True) for step in steps)
        if not is_plain or any(step["type"] != "NFC" for step in normalizers):
            return None
        table, breaks = _tables(json, {number: len(token) for token, number in model.get("vocab", {}).items()})
        return TokenLengths(table, breaks, form="NFC" if normalizers else None)
    return _of_pieces(json, kind, normalizers, steps)


def _of_pieces(
    json: dict[str, Any], kind: str, normalizers: list[dict[str, Any]], steps: list[dict[str, Any]]
) -> TokenLengths | None:
    model = json["model"]
    forms = [step["type"] for step in normalizers if step["type"] in ("NFC", "NFKC")]
    puts = [step for step in normalizers if step["type"] == "Prepend"]
    replaces = [step for step in normalizers if step["type"] == "Replace"]
    spaces = [step for step in steps if step["type"] == "Metaspace"]
    is_known = (
        len(forms) + len(puts) + len(replaces) == len(normalizers)
        and len(forms) <= 1
        and len(puts) + len(spaces) <= 1
        and len(replaces) + len(spaces) == 1
        and all(step.get("prepend") == _SPACE for step in puts)
        and all(step.get("pattern") == {"String": " "} and step.get("content") == _SPACE for step in replaces)
        and all(step.get("replacement") == _SPACE for step in spaces)
        and all(step in spaces or (step["type"] == "Split" and step["behavior"] != "Removed") for step in steps)
    )
    added = json.get("added_tokens") or []
    if not is_known or any(token.get("normalized", not token.get("special", False)) for token in added):
        return None
    prefix: Prefix = "every" if puts else "none"
    for step in spaces:
        scheme = step.get("prepend_scheme") or ("always" if step.get("add_prefix_space", True) else "never")
        prefix = _PREFIXES.get(scheme, "none")
    falls_back = bool(model.get("byte_fallback"))
    if kind == "BPE":
        names, unknown = model.get("vocab", {}), model.get("vocab", {}).get(model.get("unk_token"))
    else:
        names, unknown = {name: number for number, (name, _) in enumerate(model.get("vocab", []))}, model.get("unk_id")
    sizes = {number: _size(name, falls_back=falls_back) for name, number in names.items()}
    table, breaks = _tables(json, sizes)
    form: Any = forms[0] if forms else None
    return TokenLengths(table, breaks, form, prefix, bool(spaces), unknown, is_byte_level=False)


def _size(name: str, *, falls_back: bool) -> int:
    if falls_back and len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return 1
    return len(name.replace(_SPACE, " ").encode())


def _tables(json: dict[str, Any], sizes: dict[int, int]) -> tuple[IntArray, NDArray[np.bool_]]:
    added = {token["id"]: len(token["content"].encode()) for token in json.get("added_tokens") or []}
    sizes |= added
    table = np.zeros(max(sizes, default=-1) + 1, np.int64)
    table[np.fromiter(sizes, np.int64, len(sizes))] = np.fromiter(sizes.values(), np.int64, len(sizes))
    breaks = np.zeros(len(table), np.bool_)
    breaks[np.fromiter(added, np.int64, len(added))] = True
    return table, breaks


def _unrolled(step: Any, children: str) -> list[dict[str, Any]]:
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [inner for child in step[children] for inner in _unrolled(child, children)]
    return [step]


def sum_lengths(
    known: TokenLengths, texts: list[str], ids: NDArray[np.uint32], firsts: IntArray
) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
    """Begin and end of each token in bytes of all texts in a row; and for which texts that is not so.

    ``firsts``: (number of texts + 1,) the first token of each. A text is wrong where the sum is not its size, or where
    it is of a kind that lengths do not tell. One that is wrong moves those behind it: count from its own beginning.
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
        # Nothing but the space that was put in: it goes with the character that follows.
        owners = np.searchsorted(firsts, bare, "right") - 1
        places = begins[bare] - begins[firsts[owners]]
        ends[bare] += [_width(texts[owner], at) for owner, at in zip(owners.tolist(), places.tolist(), strict=True)]
    return begins, ends, wrong


def _put_in(
    known: TokenLengths, texts: list[str], ids: NDArray[np.uint32], own: IntArray, firsts: IntArray
) -> IntArray:
    """Numbers of the tokens that hold a space which the tokeniser has put in: the first ones of their stretch."""
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
    """0 behind the end."""
    if text.isascii():
        return ord(text[place]) if 0 <= place < len(text) else 0
    data = text.encode()
    return data[place] if 0 <= place < len(data) else 0


def _width(text: str, place: int) -> int:
    """Bytes of the character that begins at this byte; 0 behind the end."""
    lead = _byte_at(text, place)
    return 0 if place >= len(text.encode()) else 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)


def utf8_sizes(texts: list[str]) -> IntArray:
    """(number of texts,) bytes in UTF-8."""
    sizes = (len(text) if text.isascii() else len(text.encode()) for text in texts)
    return np.fromiter(sizes, np.int64, len(texts))


_BATCH_CHARS = 1 << 18
"""Given to `tokenizers` at once: it takes some 350 bytes a token until its ids are copied."""


class Spanned(NamedTuple):
    """Texts as ids, with the bytes of each."""

    ids: NDArray[np.uint32]
    """(n,) of all texts in a row."""
    lengths: IntArray
    """(number of texts,) tokens of each."""
    begins: IntArray
    ends: IntArray
    """(n,) bytes of each token in the UTF-8 of all texts in a row; they may overlap by less than a character."""
    in_order: bool = False
    """It is known that every token has bytes and begins where the one before it ends."""


class SpanEncoder:
    """Encodes texts whole and says which bytes each token is.

    ``encoder`` gives the ids where the sums of lengths serve; without one, and for other tokenisers, `tokenizers` does.
    No token is added before or behind a text.

    Raises:
        ConfigError: the tokeniser cannot be read.
    """

    def __init__(self, tokenizer_json: bytes, encoder: TextEncoder | None = None) -> None:
        try:
            self.tokenizer = Tokenizer.from_str(tokenizer_json.decode())
        except Exception as error:  # the library raises bare Exception
            raise ConfigError(f"this is not a tokenizer.json of the library tokenizers: {error}") from error
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        # A post-processor would add tokens, and cut white space off the offsets.
        self.tokenizer.post_processor = None
        self._encoder = encoder
        json = msgspec.json.decode(tokenizer_json, type=dict[str, Any])
        self._lengths = token_lengths(json)
        if self._lengths is not None and not self._proved():
            self._lengths = None
        self._all_have_bytes = self._lengths is not None and bool(np.all(self._lengths.table > 0))
        added = self.tokenizer.get_added_tokens_decoder()
        self.special_texts = tuple(token.content for token in added.values() if token.special)
        self._taking_spaces = np.array(
            [
                number
                for number, token in added.items()
                if (token.lstrip or token.rstrip) and token.content == token.content.strip()
            ],
            np.uint32,
        )

    @property
    def sums_lengths(self) -> bool:
        """Whether the spans are running sums of lengths; else they are offsets of `tokenizers`."""
        return self._lengths is not None

    def encode(self, texts: list[str]) -> Spanned:
        """Ids and spans of each text.

        Raises:
            InputError: the encoder and `tokenizers` give different ids, or the library refuses a text.
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
            raise InputError(f"the encoder made id {int(ids.max())}, which the tokeniser does not have")
        firsts = np.concatenate(([0], np.cumsum(lengths)))
        begins, ends, wrong = sum_lengths(known, texts, ids, firsts)
        if not wrong.any():
            is_in_order = self._all_have_bytes and known.prefix == "none"
            return Spanned(ids, lengths, begins, ends, in_order=is_in_order)
        sizes = utf8_sizes(texts)
        # A few texts fall out of the rule (an added token that swallows spaces): those go the other way, one by one.
        parts = []
        for number, text in enumerate(texts):
            rows = slice(int(firsts[number]), int(firsts[number + 1]))
            if wrong[number]:
                part = self._by_offsets([text])
                if not np.array_equal(part.ids, ids[rows]):
                    raise InputError(f"the encoder and tokenizers give different ids for {text[:60]!r}")
            else:
                base = int(begins[rows.start]) if rows.start < rows.stop else 0
                part = Spanned(ids[rows], lengths[number : number + 1], begins[rows] - base, ends[rows] - base)
            parts.append(part)
        return _joined(parts, sizes)

    def _by_offsets(self, texts: list[str]) -> Spanned:
        ids, lengths, offsets = self._tokenized(texts, with_offsets=True)
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

    def _proved(self) -> bool:
        """Whether both ways agree on a text of many scripts, on plain words and on the added tokens."""
        known = self._lengths
        unknown = None if known is None else known.unknown
        found = [token for number, token in self.tokenizer.get_added_tokens_decoder().items() if number != unknown]
        added = [token for token in found if known is not None and known.tells(token.content)][:200]
        told = "a".join(token.content for token in added)
        told += "".join(f"{token.content} b" for token in added if not (token.lstrip or token.rstrip))
        num_told = 0
        for words in (_PROBE, " Two words.", "x"):
            text = unicodedata.normalize(known.form if known and known.form else "NFC", words) + told
            ids, lengths, offsets = self._tokenized([text], with_offsets=True)
            if known is None or not len(ids) or int(ids.max()) >= len(known.table):
                return False
            if unknown is not None and unknown in ids:
                continue
            begins, ends, wrong = sum_lengths(known, [text], ids, np.concatenate(([0], lengths)))
            places = byte_places(text)
            is_inside = (begins >= places[offsets[:, 0]]) & (ends <= places[offsets[:, 1]])
            if wrong[0] or not is_inside.all():
                return False
            num_told += 1
        return num_told > 0


def byte_places(text: str) -> IntArray:
    """(characters + 1,) where each character of a text begins in its UTF-8, and where the text ends."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    widths = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(widths)))


def _joined(parts: list[Spanned], sizes: IntArray) -> Spanned:
    """Parts of one text each, whose spans count from its own beginning, in a row; a single part as it is."""
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


_PROBE = (
    "It's the end of the world, and they've said so 12,345 times.\n\n\tDer Fluß fließt größer.\r\nБыстрая лиса. "  # noqa: RUF001
    "敏捷的狐狸。素早い狐。다람쥐 헌 쳇바퀴. נחש בצל. صِف خَلقَ. तेज भूरी 😀 👨\u200d👩\u200d👧 🇩🇪 e\u0301   "
    "def f(x):\n    return x  # ok\n"
)
