"""Unigram as of SentencePiece (T5, XLM-R, ALBERT), found by Headrace itself and compiled by numba.

The normaliser is that of `tokenizers`; what is done here is to cut out added tokens, to put spaces before, and to find
the best pieces of each word: nine tenths of what `tokenizers` needs.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headrace.plan.megatron.kernels import compiled
from headrace.prepare.backends.backend import Encoded, RefusedTextError, SpecialPolicy, installed_version
from headrace.prepare.backends.layout import Layout, UnsuitableError, read_layout
from headrace.prepare.backends.long_texts import META, TextBatches
from headrace.prepare.backends.memory import return_memory
from headrace.prepare.backends.special import Normalizer, any_of
from headrace.prepare.backends.unigram_kernels import MAX_NODES, search_kernel, tree_kernel

UNKNOWN_PENALTY = 10.0
"""How much worse than the worst piece an unknown character is, to `tokenizers` as to SentencePiece."""

_KEEPING = frozenset(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend"])
"""Normalisers that leave something of the first character: else `tokenizers` takes no stretch for the first one."""

_WORDS = re.compile("[^\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
"""Words between white space; ``str.split`` takes four control characters for white space as well."""


class Rules(NamedTuple):
    """How a text becomes words."""

    prefix: str
    """Where a space is put in: ``always`` (before every stretch between added tokens), ``first`` or ``never``."""

    splits: bool
    """A word begins at every space."""

    drops_spaces: bool
    """Words are what is between white space, each with one space before it."""


class UnigramBackend:
    """Encodes whole batches on the calling thread; ids come as arrays.

    It knows no added tokens that look beside them or at normalised text: a text that holds one must go elsewhere
    (`routed`). Memory: some 30 bytes a byte of the vocabulary, 7 MB for 32,000 pieces.
    """

    name = "numba"

    def __init__(self, tokenizer_json: bytes, special: SpecialPolicy) -> None:
        """Read a tokeniser.

        Raises:
            UnsuitableError: another model than Unigram, or text that is split in a way unknown here.
            ImportError: numba is not installed.
        """
        import numba  # noqa: F401 - says so where it is missing

        if read_layout(tokenizer_json).model.get("type") != "Unigram":
            raise UnsuitableError(f"its model is {read_layout(tokenizer_json).model.get('type')}, not Unigram")
        # As the library writes it: options that a file leaves out have their values, and scores are those that the
        # library has read, which may be another float than Python reads.
        layout = read_layout(Tokenizer.from_str(tokenizer_json.decode()).to_str().encode())
        self._rules = read_rules(layout)
        self._model = _Model(layout)
        self._normalizer = Normalizer(layout) if layout.normalizers else None
        found = [token for token in layout.added if not layout.is_odd(token)]
        self._added = {token.content: token.id for token in found if not (special == "literal" and token.special)}
        self._cut = re.compile(f"({any_of(set(self._added)).pattern})").split if self._added else lambda text: [text]
        self._batches = TextBatches(tokenizer_json)
        return_memory()

    @property
    def version(self) -> str:
        """Of the library."""
        return installed_version(self.name)

    def encode(self, texts: list[str]) -> Encoded:
        """Encode each text by itself.

        Raises:
            RefusedTextError: a text is no Unicode.
        """
        ids = []
        lengths = np.zeros(len(texts), np.int64)
        for pieces, owners in self._batches.of(texts):
            found, sizes = self._encode(pieces, owners)
            np.add.at(lengths, owners, sizes)
            ids.append(found)
        return Encoded(np.concatenate(ids) if ids else np.empty(0, np.uint32), lengths)

    def _encode(self, texts: list[str], owners: list[int]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        stretches: list[bytes] = []
        fixed: list[int] = []
        nums = []
        for text, owner in zip(texts, owners, strict=True):
            parts = self._cut(text)
            nums.append(len(parts))
            try:
                for number, part in enumerate(parts):
                    # Every second one is an added token.
                    is_added = number % 2
                    fixed.append(self._added[part] if is_added else -1)
                    stretches.append(b"" if is_added else self._prepare(part, is_first=number == 0).encode())
            except UnicodeEncodeError as error:
                raise RefusedTextError(str(error), owner) from error
        found, counts = self._model.search(stretches, np.array(fixed, np.int64), splits=self._rules.splits)
        begins = np.concatenate(([0], np.cumsum(np.array(nums, np.int64))))[:-1]
        return found, np.add.reduceat(counts, begins)

    def _prepare(self, text: str, *, is_first: bool) -> str:
        """Normalised, with a space for each one that the pre-tokeniser makes or leaves."""
        if self._normalizer is not None and not self._normalizer.keeps(text):
            text = self._normalizer.apply(text)
        rules = self._rules
        if rules.drops_spaces:
            return "".join(word if word[0] == META else " " + word for word in _WORDS.findall(text)).replace(META, " ")
        text = text.replace(META, " ")
        if text and text[0] != " " and (rules.prefix == "always" or (rules.prefix == "first" and is_first)):
            return " " + text
        return text


def read_rules(layout: Layout) -> Rules:
    """How a text becomes words.

    Raises:
        UnsuitableError: in a way that is not known here.
    """
    kinds = [step["type"] for step in layout.pre_tokenizers]
    if kinds not in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]):
        raise UnsuitableError(f"its pre-tokeniser {' and '.join(kinds) or 'nothing'}, where only Metaspace is known")
    step = layout.pre_tokenizers[-1]
    if step["replacement"] != META:
        raise UnsuitableError(f"its pre-tokeniser writes a space as {step['replacement']!r}, not as {META!r}")
    rules = Rules(step["prepend_scheme"], step["split"], drops_spaces=len(kinds) > 1)
    if rules.drops_spaces and not (rules.prefix == "always" and rules.splits):
        raise UnsuitableError(f"its pre-tokeniser drops white space, and puts a space {rules.prefix}")
    for normalizer in layout.normalizers:
        if rules.prefix == "first" and normalizer["type"] not in _KEEPING:
            raise UnsuitableError(f"its pre-tokeniser puts a space first, behind the normaliser {normalizer['type']}")
    return rules


class _Model:
    """The pieces of a Unigram model, ready for the search."""

    def __init__(self, layout: Layout) -> None:
        model = layout.model
        options = {name: model[name] for name in model if name not in ("type", "vocab", "unk_id", "byte_fallback")}
        if any(options.values()):
            raise UnsuitableError(f"its model has options unknown here: {msgspec.json.encode(options).decode()}")
        names = [name for name, _ in model["vocab"]]
        scores = np.array([score for _, score in model["vocab"]], np.float64)
        self._unknown = model["unk_id"]
        if self._unknown is None:
            raise UnsuitableError("it has no unknown token")
        if META not in names or "" in names or len(names[self._unknown]) < 2:
            raise UnsuitableError(
                f"its vocabulary lacks {META!r}, or has an empty piece, or an unknown one of a letter"
            )
        if not (np.isfinite(scores).all() and scores.min() <= 0):
            raise UnsuitableError("its scores are no logarithms")
        self._unknown_score = float(scores.min()) - UNKNOWN_PENALTY
        self._byte_ids = _byte_ids(names) if model.get("byte_fallback") else np.zeros(0, np.int64)
        # No text has a space that is not the mark; a piece with one is never found.
        pieces = sorted(
            (name.replace(META, " ").encode(), number) for number, name in enumerate(names) if " " not in name
        )
        text = np.frombuffer(b"".join(piece for piece, _ in pieces), np.uint8)
        ends = np.cumsum([len(piece) for piece, _ in pieces])
        tree, search = compiled(tree_kernel), compiled(search_kernel)
        if tree is None or search is None:
            raise ImportError("numba is not installed")
        self._search = search
        none = np.zeros(0, np.int64)
        nodes = tree(text, ends, none, np.zeros(0, np.int32))
        if nodes >= MAX_NODES:
            raise UnsuitableError(f"its vocabulary has {len(text):,} bytes, more than are known to fit")
        self._edges = np.zeros(1 << math.ceil(math.log2(2 * nodes)), np.int64)
        leaves = np.full(nodes, -1, np.int32)
        tree(text, ends, self._edges, leaves)
        ids = np.array([number for _, number in pieces], np.int64)
        self._ids = np.where(leaves >= 0, ids[leaves], -1)
        self._scores = scores[self._ids]

    def search(
        self, stretches: list[bytes], fixed: NDArray[np.int64], *, splits: bool
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Ids of all stretches in a row, and how many each has."""
        text = np.frombuffer(b"".join(stretches), np.uint8)
        ends = np.cumsum(np.fromiter(map(len, stretches), np.int64, len(stretches)))
        ids = np.empty(len(text) + len(stretches), np.uint32)
        counts = np.empty(len(stretches), np.int64)
        total = self._search(
            text, ends, fixed, self._edges, self._ids, self._scores, self._unknown, self._unknown_score,
            self._byte_ids, splits, ids, counts,
        )  # fmt: skip
        return ids[:total].copy(), counts


def _byte_ids(names: list[str]) -> NDArray[np.int64]:
    numbers = {name: number for number, name in enumerate(names)}
    wanted = [f"<0x{byte:02X}>" for byte in range(256)]
    missing = [name for name in wanted if name not in numbers]
    if missing:
        raise UnsuitableError(f"its vocabulary lacks the byte {missing[0]} and {len(missing) - 1} others")
    return np.array([numbers[name] for name in wanted], np.int64)
