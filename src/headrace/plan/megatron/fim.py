"""Fill in the middle: its options under Megatron's meaning, its random choices, and the rearranging of one sample.

The random choices of fill in the middle: a function of a key, so that no sample depends on those read before it.

Fill in the middle, done to the tokens of one sample.

    a sample     a b c d e EOD f g h           cut at the ends of documents
    documents    a b c d e | f g h             each is rearranged with probability ``rate``, at two random cuts
    with cuts    a b / c d / e                 prefix / middle / suffix
    PSM          PRE a b SUF e MID c d         prefix, suffix, middle
    SPM          PRE SUF e MID a b c d         suffix, prefix and middle ("variant 2")
    the sample   PRE a b SUF e MID c d EOD     cut to its old length, or filled up with the pad

Source: Megatron-LM, ``GPTFIMDataset``; Bavarian et al., "Efficient Training of Language Models to Fill in the Middle",
2022. What it does to empty documents is kept: an end of document with nothing before it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan.keys import IntArray, derive


class FIMTokens(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ids of Megatron's ``fim_extra_tokens``, and of ``fim_split_sample``.

    ``prefix``, ``middle``, ``suffix``: the marks that stand before the three parts.
    ``pad``: fills a sample up that has become shorter. Give it to ``GPTMasks(pad=...)`` too, where no loss is wanted.
    ``eod``: ends a document; each is treated by itself.
    ``split``: parts a document into fragments, such as the files of a repository; None for none.

    Raises:
        ConfigError: an id below 0, or one id in two roles that have to be told apart.
    """

    prefix: int
    middle: int
    suffix: int
    pad: int
    eod: int
    split: int | None = None

    def __post_init__(self) -> None:
        """Check the ids."""
        ids = msgspec.to_builtins(self)
        if wrong := {name: number for name, number in ids.items() if number is not None and number < 0}:
            raise ConfigError(f"ids of tokens are 0 or more, found {wrong}")
        apart = [self.prefix, self.middle, self.suffix, self.eod]
        if len({*apart, self.split}) <= len(apart):
            raise ConfigError(f"prefix, middle, suffix, eod and split are different tokens, found {ids}")


class TextCodec(msgspec.Struct, frozen=True, kw_only=True):
    """How ids become text and text ids, for cuts between characters.

    ``encode`` adds no special tokens. Where the two are not each other's inverse, a rearranged document holds what
    ``encode`` makes of its text. ``name`` tells one tokeniser from another in the recipe. Worker processes that are
    spawned need functions that can be pickled.
    """

    encode: Callable[[str], Sequence[int]]
    decode: Callable[[list[int]], str]
    name: str

    @classmethod
    def of(cls, tokenizer: Any, *, skip_special_tokens: bool = False, name: str | None = None) -> TextCodec:
        """Of a ``tokenizers.Tokenizer`` or a fast tokeniser of Transformers; its truncation and padding are left out.

        ``skip_special_tokens`` takes special tokens out of the documents that are rearranged, as Megatron does with
        most tokenisers; without, they stay, as far as ``encode`` finds them in the text. The name is by default a hash
        of all that the tokeniser consists of.
        """
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        own = type(backend).from_str(backend.to_str())
        own.no_truncation()
        own.no_padding()
        found = name or xxhash.xxh3_128_hexdigest(own.to_str().encode())
        name_of_all = f"{found}, special tokens skipped" if skip_special_tokens else found
        decode = partial(_decode, own, skip_special_tokens)
        return cls(encode=partial(_encode, own), decode=decode, name=name_of_all)


class FillInTheMiddle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How documents are rearranged so that a model learns to fill a gap: Megatron's options of the same names.

    ``tokens``: the ids.
    ``codec``: cuts fall between characters, as in Megatron, and the parts are encoded again; None: between tokens.
    ``rate``: the share of documents that are rearranged; 0 leaves every sample as it is.
    ``spm_rate``: the share of those that have the suffix first.
    ``fragment_rate``: where ``tokens.split`` is in a document, the share of its fragments that are rearranged, once
        ``rate`` has chosen the document.
    ``no_prefix``: documents, or fragments, whose text begins so are left as they are; needs ``codec``.
    ``seed``: of the draws.

    Raises:
        ConfigError: a rate outside of [0, 1], ``split`` and ``fragment_rate`` one without the other, or ``no_prefix``
            without ``codec``.
    """

    tokens: FIMTokens
    codec: TextCodec | None = None
    rate: float = 0.5
    spm_rate: float = 0.5
    fragment_rate: float | None = None
    no_prefix: str | None = None
    seed: int = 1234

    def __post_init__(self) -> None:
        """Check what goes together."""
        for name in ("rate", "spm_rate", "fragment_rate"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate <= 1:
                raise ConfigError(f"{name} is a share from 0 to 1, found {rate}")
        if (self.tokens.split is None) != (self.fragment_rate is None):
            raise ConfigError(
                f"tokens.split and fragment_rate go together, found {self.tokens.split} and {self.fragment_rate}"
            )
        if self.no_prefix is not None and (self.codec is None or not self.no_prefix):
            raise ConfigError(
                f"no_prefix is text, and looked for in the text of a document: found {self.no_prefix!r} and "
                f"{'no codec' if self.codec is None else 'a codec'}; give a codec and a text that is not empty"
            )

    @property
    def recipe(self) -> dict[str, Any]:
        """JSON-safe: all that decides the bytes."""
        options = {name: getattr(self, name) for name in self.__struct_fields__ if name not in ("tokens", "codec")}
        codec = None if self.codec is None else self.codec.name
        return {**options, "tokens": msgspec.to_builtins(self.tokens), "codec": codec}


def _encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def _decode(tokenizer: Any, skip_special_tokens: bool, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
    return text


_BITS = 53


class Draws(Protocol):
    """The choices for one sample, in the order in which they are asked for."""

    def chance(self, rate: float) -> bool:
        """True with this probability."""

    def cuts(self, length: int) -> tuple[int, int]:
        """Two independent numbers of [0, length], each equally likely, in any order."""


class KeyedDraws:
    """Choice k is a hash of (key, k): the same for whoever asks, in whatever process and after whatever else.

    Megatron draws from one ``RandomState`` a dataset object: what a sample becomes depends there on how many items
    the process has read before.
    """

    def __init__(self, key: int) -> None:
        self._key = key
        self._number = 0

    def chance(self, rate: float) -> bool:
        """True with this probability, exactly never at 0 and always at 1."""
        return self._next() >> (64 - _BITS) < int(rate * (1 << _BITS))

    def cuts(self, length: int) -> tuple[int, int]:
        """Two numbers of [0, length]."""
        # The high part of a product instead of a remainder: no number is likelier than another by more than 2^-64.
        return (self._next() * (length + 1)) >> 64, (self._next() * (length + 1)) >> 64

    def _next(self) -> int:
        self._number += 1
        return derive(self._key, self._number)


def fill_in_the_middle(sample: NDArray[Any], fim: FillInTheMiddle, draws: Draws) -> IntArray:
    """(n,) int64 of the (n,) integer tokens of a sample, its documents rearranged.

    The draws are asked for as Megatron asks, so that draws from its generator give its result. Costs some microseconds
    a document; with a codec, decoding and encoding the rearranged ones.
    """
    tokens: IntArray = sample.astype(np.int64, copy=False)
    if fim.rate == 0:
        return tokens
    parts = _apart(tokens, fim.tokens.eod, lambda document: _document(document, fim, draws))
    made = np.concatenate(parts)[: len(tokens)]
    return np.concatenate([made, np.full(len(tokens) - len(made), fim.tokens.pad, dtype=np.int64)])


def _apart(tokens: IntArray, border: int, change: Callable[[IntArray], IntArray]) -> list[IntArray]:
    """What lies between the borders, changed, and the borders; one with nothing before it is left out."""
    parts = []
    begin = 0
    for at in np.flatnonzero(tokens == border).tolist():
        if at > begin:
            parts += [change(tokens[begin:at]), tokens[at : at + 1]]
        begin = at + 1
    return [*parts, change(tokens[begin:])]


def _document(tokens: IntArray, fim: FillInTheMiddle, draws: Draws) -> IntArray:
    split, rate = fim.tokens.split, fim.fragment_rate
    if split is None or rate is None or not (tokens == split).any():
        return _rearranged(tokens, fim, fim.rate, draws)
    if not draws.chance(fim.rate):
        return tokens
    return np.concatenate(_apart(tokens, split, lambda fragment: _rearranged(fragment, fim, rate, draws)))


def _rearranged(tokens: IntArray, fim: FillInTheMiddle, rate: float, draws: Draws) -> IntArray:
    if not draws.chance(rate):
        return tokens
    codec = fim.codec
    if codec is None:
        low, high = sorted(draws.cuts(len(tokens)))
        prefix, middle, suffix = tokens[:low], tokens[low:high], tokens[high:]
    else:
        text = codec.decode(tokens.tolist())
        if fim.no_prefix is not None and text.startswith(fim.no_prefix):
            return tokens
        low, high = sorted(draws.cuts(len(text)))
        prefix, middle, suffix = (
            np.array(codec.encode(part), dtype=np.int64) for part in (text[:low], text[low:high], text[high:])
        )
    marks = fim.tokens
    if draws.chance(fim.spm_rate):
        return np.concatenate([[marks.prefix, marks.suffix], suffix, [marks.middle], prefix, middle])
    return np.concatenate([[marks.prefix], prefix, [marks.suffix], suffix, [marks.middle], middle])
