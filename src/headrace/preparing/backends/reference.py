"""The reference tokeniser, the library `tokenizers`. It is slow, and every other backend is compared with it.

`TextCutter` cuts a very long text into pieces whose ids, one after another, are the ids of the whole text. The library
needs about 350 bytes for each token while it encodes, so a book of 16 MB would take over 2 GB. Most tokenisers split a
text into words before the model sees it, and no word reaches across a space between two letters, so that the text can
be cut there. Four conditions must hold, and each is checked:

1. *No added token reaches across the cut*: no added token has such a place in its text.
2. *The normaliser works locally*: it is one of those known to do so.
3. *The text is split at this place in any context*: the pre-tokeniser splits at every such place of a sample text that
   is full of quotes, brackets, code and lists. If nothing splits the text (Llama 2, Gemma), merges cannot reach across
   the place, since no token of the vocabulary holds a space after another character.
4. *The pieces have the ids of the whole*: some hundred characters around each cut are encoded whole and as two halves,
   and the ids are equal. This notices any effect of the begin and end of a text.

If no such place is found, the text is not cut.

The common interface of the tokeniser libraries: texts in, arrays of ids out.

`CacheGuard` limits the memory that their caches take.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headrace.errors import ConfigError
from headrace.samples.tokenizer import Added, TokenizerFile, TokenizerParts

SpecialPolicy = Literal["encode", "literal", "error"]
"""What becomes of the text of a special token inside a document: the token (``encode``), ordinary text (``literal``),
or a bad record (``error``)."""


class EncodedTexts(NamedTuple):
    """The ids of several texts."""

    ids: NDArray[np.uint32]
    """(sum of lengths,) the ids of all texts, one text after another."""

    lengths: NDArray[np.int64]
    """(number of texts,) the number of tokens of each text."""


class RefusedTextError(Exception):
    """The tokeniser refuses a text: ``index`` is its index in the list, the message is the library's."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


class Backend(Protocol):
    """One library, loaded with one tokeniser. It does not pad, truncate, or add tokens around a text.

    A backend belongs to one process, and encodes only on the calling thread.
    """

    name: str
    """``tokenizers``, ``gigatoken`` or ``fastokens``."""

    def encode(self, texts: list[str]) -> EncodedTexts:
        """Encode each text by itself.

        Raises:
            RefusedTextError: the library refuses one of them.
        """


def installed_version(library: str) -> str:
    """The installed version of a library."""
    from importlib.metadata import version  # takes 10 ms, and workers never need it

    return version(library)


GROWTH_BYTES = 96 << 20
"""Bytes by which a library's caches may enlarge the process before the library is loaded again."""

LOOK_EVERY_CHARACTERS = 4 << 20
"""Characters of text between two checks of the size."""

BLIND_CHARACTERS = 256 << 20
"""Characters of text after which the library is loaded again if the size of the process is not known."""


class CacheGuard:
    """Tells when a library should be loaded again, because its caches, which grow with every new word, are too large.

    The words of whole languages fit into the limit: for 1.4 GB of English and code, the caches grow by 40 MB after the
    first 150 MB of text. Texts in which hardly a word occurs twice add 10 bytes for each character, so that the library
    is loaded again (0.1 s) every ten million characters.
    """

    def __init__(self) -> None:
        self._unseen = 0
        self._limit: int | None = None

    def is_full(self, num_characters: int) -> bool:
        """Whether the caches have grown too large, after ``num_characters`` more were encoded."""
        self._unseen += num_characters
        if self._limit is None:
            self._limit = resident_bytes() + GROWTH_BYTES
        if self._unseen < LOOK_EVERY_CHARACTERS:
            return False
        size = resident_bytes()
        if size == 0:
            return self._unseen >= BLIND_CHARACTERS
        self._unseen = 0
        return size > self._limit

    def reset(self) -> None:
        """Start over, after the library was released."""
        self._unseen = 0
        self._limit = None
        gc.collect()
        return_memory()


def resident_bytes() -> int:
    """Resident memory of the process; 0 if the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def return_memory() -> None:
    """Return freed memory to the system, if the C library has a call for that (glibc)."""
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


PIECE_BYTES = 1 << 18
"""A piece has at most about this many bytes of UTF-8, and a text of less than twice as many is not cut."""

SEARCH = 1 << 15
"""Characters before the wanted cut that are searched for a place."""

MAX_TRIES = 8
"""The most places of a kind that are checked for one cut."""

MIN_PLACES = 100
"""Places of a kind that must occur in `CALIBRATION`, which shows how the pre-tokeniser splits."""

HALF_WINDOW = 400
"""Characters on each side of a cut that are encoded to check it."""

LOCAL_NORMALIZERS = frozenset(
    ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Prepend", "BertNormalizer", "Nmt",
     "Precompiled"]
)  # fmt: skip
"""Normalisers whose effect on a character depends at most on its neighbours, or on where the text begins and ends."""

_META = "\u2581"
"""The character that vocabularies like those of sentencepiece write for a space."""

_REPLACED = {"type": "Replace", "pattern": {"String": " "}, "content": _META}
"""The normaliser that writes it."""

_TURNED = (
    "He said \"two quoted words here\" and 'so did she' (with brackets [in brackets {of brackets} too] here) ok "
    "<tag with=attributes and more> words </tag> `code in ticks` \u201ctypeset quotes here\u201d \u00ables mots\u00bb "
    "a b c d e f Go on Read AND WRITE camelCase snakeCase it's they've we'll not won't stop\n"
    "# a comment line\n// another one here\nfor each in every thing\n\ttabbed words here\n  indented words here\n"
    "x = y if z else w\nno 12 numbers 3 here\n- list of words\n* more of them\n1. first of all\nmail me at once; "
    "or not, then: so what? yes! \u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440 \u05e9\u05dc\u05d5\u05dd "
    "\u05e2\u05d5\u05dc\u05dd \u0645\u0631\u062d\u0628\u0627 \u0628\u0643\u0645 \u4f60\u597d \u4e16\u754c\n"
    "\u4e00\u884c\u3002\n\u4e8c\u884c\u3002\n\u4e09\u884c\nend of it\n\nnew paragraph here.\nline\nline\nline two\n"
)  # fmt: skip
CALIBRATION = "".join(_TURNED[at:] + _TURNED[:at] for at in range(0, len(_TURNED), 29))


class Kind(NamedTuple):
    """A kind of place where a text may be cut."""

    separator: str
    is_place: Callable[[str, int], bool]
    """Whether the separator at this index of the text is such a place."""

    offset: int
    """Distance of the cut from the separator."""

    drop: int
    """Characters left out after the cut, since some normalisers put a space before every text."""


def _between_letters(text: str, at: int) -> bool:
    return 0 < at < len(text) - 1 and text[at - 1].isalpha() and text[at + 1].isalpha()


def _before_letter(text: str, at: int) -> bool:
    return 0 < at < len(text) - 1 and not text[at - 1].isspace() and text[at + 1].isalpha()


KINDS = (
    Kind(" ", _between_letters, 0, 0),
    Kind(" ", _between_letters, 0, 1),
    Kind("\n", _before_letter, 1, 0),
)
"""A cut before a space between letters; the same, leaving out the space; a cut after a line end before a letter."""


def most_bytes(text: str) -> int:
    """An upper bound for the bytes of the text in UTF-8, without encoding it; it is rough unless the text is ASCII."""
    return len(text) if text.isascii() else 3 * len(text)


class TextCutter:
    """Cuts long texts for one tokeniser."""

    def __init__(self, encoder: Tokenizer, file: TokenizerFile, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._encoder = encoder
        self._piece_bytes = piece_bytes
        try:
            layout = file.parts
        except ConfigError:
            self._kinds: list[Kind] = []
            return
        self._kinds = [kind for kind in KINDS if _is_safe(kind, layout, encoder)]
        longest = max((len(token.content) for token in layout.added), default=0)
        self._half_window = HALF_WINDOW + 2 * longest

    def cut(self, text: str) -> list[str]:
        """Cut a text. A text that cannot be cut is returned as one piece.

        Together the pieces are the text, except that a space may be left out between them (see `Kind.drop`). Cost: one
        pass over the text, and the encoding of 1,600 characters at each cut.
        """
        length = self._piece_bytes if text.isascii() else self._piece_bytes // 3
        pieces = []
        begin = 0
        while len(text) - begin > 2 * length:
            found = self._find(text, begin + length, begin + 1)
            # A stretch without a place to cut stays in one piece with what follows.
            target = begin + length
            while found is None and len(text) - target > 2 * length:
                target += length
                found = self._find(text, target, target - length)
            if found is None:
                break
            end, drop = found
            pieces.append(text[begin:end])
            begin = end + drop
        pieces.append(text[begin:])
        return pieces

    def _find(self, text: str, target: int, floor: int) -> tuple[int, int] | None:
        floor = max(floor, target - SEARCH)
        for kind in self._kinds:
            at = target
            tries = 0
            while tries < MAX_TRIES and (at := text.rfind(kind.separator, floor, at)) >= 0:
                if kind.is_place(text, at):
                    if self._is_equal(text, at + kind.offset, kind.drop):
                        return at + kind.offset, kind.drop
                    tries += 1
        return None

    def _is_equal(self, text: str, cut: int, drop: int) -> bool:
        left = text[max(cut - self._half_window, 0) : cut]
        right = text[cut : cut + self._half_window]
        try:
            whole, first, second = self._encoder.encode_batch_fast(
                [left + right, left, right[drop:]], add_special_tokens=False
            )
        except Exception:  # the library raises bare Exception; encoding the whole text will show what is wrong
            return False
        return bool(whole.ids == first.ids + second.ids)


def _is_safe(kind: Kind, layout: TokenizerParts, encoder: Tokenizer) -> bool:
    return (
        not any(_reaches_over(kind, token, layout) for token in layout.added)
        and all(_is_local(step) for step in layout.normalizers)
        and (_splits(kind, encoder) or _never_merges(kind, layout))
    )


def _reaches_over(kind: Kind, token: Added, layout: TokenizerParts) -> bool:
    # A normalised token is searched for in the normalised text, where spaces may be written as `_META` already.
    content = token.content.replace(_META, " ") if token.normalized and layout.normalizers else token.content
    return re.search(r"\S\s+\S", content) is not None or (kind.separator == "\n" and "\n" in content[:-1])


def _is_local(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        pattern = step.get("pattern", {})
        literal = pattern.get("String")
        return pattern.get("Regex") == " {2,}" or literal == " " or not (literal is None or re.search(r"\s", literal))
    return step["type"] in LOCAL_NORMALIZERS


def _splits(kind: Kind, encoder: Tokenizer) -> bool:
    """Whether the pre-tokeniser splits at every such place of `CALIBRATION`."""
    if encoder.pre_tokenizer is None:
        return False
    text = encoder.normalizer.normalize_str(CALIBRATION) if encoder.normalizer is not None else CALIBRATION
    marked = text.replace(_META, " ")
    borders = {border for _, span in encoder.pre_tokenizer.pre_tokenize_str(text) for border in span}
    places = [at for at, one in enumerate(marked) if one == kind.separator and kind.is_place(marked, at)]
    return len(places) > MIN_PLACES and all(at + kind.offset in borders for at in places)


def _never_merges(kind: Kind, layout: TokenizerParts) -> bool:
    """Whether nothing splits the text, and byte-pair encoding cannot merge across a space, since no token does."""
    model = layout.model
    if kind.separator != " " or model.get("type") != "BPE" or model.get("ignore_merges"):
        return False
    replaced = _REPLACED in layout.normalizers
    for step in layout.pre_tokenizers:
        match step:
            case {"type": "Metaspace", "replacement": character, "split": False} if character == _META:
                replaced = True
            case {"type": "Split", "pattern": {"String": " "}} if replaced:
                pass  # no space is left at which it could split
            case _:
                return False
    return replaced and not any(_META in token.lstrip(_META) for token in layout.vocabulary())


class TokenizersBackend(Backend):
    """The library `tokenizers`, which encodes a few hundred kilobytes of text at a time.

    The library needs about 350 bytes of memory for each token until its ids are copied. Texts are therefore encoded in
    batches of 256 KiB, and a longer text in pieces if that changes no id (`TextCutter`), else whole. The library starts
    threads unless ``TOKENIZERS_PARALLELISM`` is ``false``.
    """

    name = "tokenizers"

    def __init__(self, file: TokenizerFile, special: SpecialPolicy, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._file = file
        self._literal = special == "literal"
        self._piece_bytes = piece_bytes
        file.encoder()
        self._cutter: TextCutter | None = None
        return_memory()  # the library leaves some 100 MB of freed memory when it has read a large file

    def encode(self, texts: list[str]) -> EncodedTexts:
        """Encode each text by itself.

        Raises:
            RefusedTextError: the library refuses one of them.
        """
        encoder = self._file.encoder(literal=self._literal)
        ids = []
        lengths = np.zeros(len(texts), np.int64)
        for pieces, owners in self._batches(texts):
            try:
                encodings = encoder.encode_batch_fast(pieces, add_special_tokens=False)
            except Exception as error:  # the library raises bare Exception, and does not say for which text
                raise self._refused(pieces, owners) from error
            rows = [encoding.ids for encoding in encodings]
            sizes = np.fromiter(map(len, rows), np.int64, len(rows))
            np.add.at(lengths, owners, sizes)
            ids.append(np.fromiter(itertools.chain.from_iterable(rows), np.uint32, int(sizes.sum())))
        return EncodedTexts(np.concatenate(ids) if ids else np.empty(0, np.uint32), lengths)

    def _batches(self, texts: list[str]) -> Iterator[tuple[list[str], list[int]]]:
        """Batches of pieces with at most ``piece_bytes`` together, or one longer piece, and the text of each piece."""
        pieces: list[str] = []
        owners: list[int] = []
        total = 0
        for number, text in enumerate(texts):
            for piece in [text] if most_bytes(text) <= 2 * self._piece_bytes else self._cut(text):
                size = most_bytes(piece)
                if pieces and total + size > self._piece_bytes:
                    yield pieces, owners
                    pieces, owners, total = [], [], 0
                pieces.append(piece)
                owners.append(number)
                total += size
        if pieces:
            yield pieces, owners

    def _cut(self, text: str) -> list[str]:
        if self._cutter is None:
            self._cutter = TextCutter(
                self._file.encoder(literal=self._literal), self._file, piece_bytes=self._piece_bytes
            )
        return self._cutter.cut(text)

    def _refused(self, pieces: list[str], owners: list[int]) -> Exception:
        for piece, owner in zip(pieces, owners, strict=True):
            try:
                self._file.encoder(literal=self._literal).encode_batch_fast([piece], add_special_tokens=False)
            except Exception as error:
                return RefusedTextError(str(error), owner)
        return RuntimeError("the library tokenizers refuses texts together that it accepts one by one")
