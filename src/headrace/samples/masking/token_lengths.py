"""How many bytes of a text each token stands for, by its id alone, where a tokeniser is of a kind that allows it.

* Byte-level BPE: a token is as many bytes as its name has characters.
* SentencePiece's kind, BPE or Unigram: the name is the text, with ``▁`` for a space and ``<0x0A>`` for a byte. A space
  that the tokeniser puts before the text, or before every stretch between added tokens, belongs to no byte of it.

A normaliser may only be a Unicode form, for texts that are in it. Texts with an unknown character, or with ``▁``
itself, are not told by this.
"""

from __future__ import annotations

import unicodedata
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
