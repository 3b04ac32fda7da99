"""Fill in the middle: the options with their meaning in Megatron, the random choices, and the change of one sample.

    a sample     a b c d e EOD f g h           cut at the ends of documents
    documents    a b c d e | f g h             each is rearranged with probability ``rate``, at two random cuts
    with cuts    a b / c d / e                 prefix / middle / suffix
    PSM          PRE a b SUF e MID c d         prefix, suffix, middle
    SPM          PRE SUF e MID a b c d         suffix, prefix and middle ("variant 2")
    the sample   PRE a b SUF e MID c d EOD     cut to its old length, or filled up with the pad

The random choices are a function of a key, so that no sample depends on the samples read before it.

Source: Megatron-LM, ``GPTFIMDataset``; Bavarian et al., "Efficient Training of Language Models to Fill in the Middle",
2022. Empty documents are treated as in Megatron: an end of document with nothing before it is left out.
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

    ``prefix``, ``middle``, ``suffix``: the marks before the three parts.
    ``pad``: fills up a sample that has become shorter. If pads should have no loss, pass it to ``GPTMasks(pad=...)``
        too.
    ``eod``: the end of a document; each document is treated separately.
    ``split``: divides a document into fragments, such as the files of a repository; None if there are none.

    Raises:
        ConfigError: an id is below 0, or one id has two roles that must be distinct.

    Example:
        >>> headrace.plan.megatron.FIMTokens(prefix=1, middle=2, suffix=3, pad=4, eod=0).suffix
        3
    """

    prefix: int
    middle: int
    suffix: int
    pad: int
    eod: int
    split: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for an id below 0, or for one id in two roles."""
        ids = msgspec.to_builtins(self)
        if wrong := {name: number for name, number in ids.items() if number is not None and number < 0}:
            raise ConfigError(f"ids of tokens must be at least 0, found {wrong}")
        distinct = [self.prefix, self.middle, self.suffix, self.eod]
        if len({*distinct, self.split}) <= len(distinct):
            raise ConfigError(f"prefix, middle, suffix, eod and split must be different tokens, found {ids}")


class TextCodec(msgspec.Struct, frozen=True, kw_only=True):
    """A pair of functions that turn ids into text and text into ids, for cuts between characters.

    ``encode`` adds no special tokens. If the functions are not inverse to each other, a rearranged document holds the
    ids that ``encode`` returns for its text. ``name`` identifies the tokeniser in the recipe. The functions must be
    picklable if worker processes are spawned.

    Example:
        >>> from tokenizers import Tokenizer
        >>> codec = headrace.plan.megatron.TextCodec.of(Tokenizer.from_file("tokenizer.json"))
        >>> codec.decode(list(codec.encode("word1 word2")))
        'word1 word2'
    """

    encode: Callable[[str], Sequence[int]]
    decode: Callable[[list[int]], str]
    name: str

    @classmethod
    def of(cls, tokenizer: Any, *, skip_special_tokens: bool = False, name: str | None = None) -> TextCodec:
        """Return the codec of a ``tokenizers.Tokenizer`` or a fast tokeniser of Transformers.

        Truncation and padding of the tokeniser are not used. ``skip_special_tokens`` removes special tokens from the
        documents that are rearranged, as Megatron does with most tokenisers; without it they stay, if ``encode`` finds
        them in the text. By default the name is a hash of the whole tokeniser.
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
    """How documents are rearranged so that a model learns to fill a gap; the options have Megatron's names.

    ``tokens``: the ids of the marks.
    ``codec``: with a codec, cuts fall between characters, as in Megatron, and the parts are encoded again; with None,
        cuts fall between tokens.
    ``rate``: the share of documents that are rearranged; 0 leaves every sample unchanged.
    ``spm_rate``: the share of the rearranged documents that have the suffix first.
    ``fragment_rate``: in documents that ``rate`` has chosen and that contain ``tokens.split``, the share of fragments
        that are rearranged. Without ``tokens.split`` there are no fragments and it has no effect, as in Megatron.
    ``no_prefix``: documents, or fragments, whose text begins with it stay unchanged; needs ``codec``.
    ``seed``: the seed of the draws.

    Raises:
        ConfigError: a rate is outside [0, 1], ``split`` is set without ``fragment_rate``, or ``no_prefix`` is set
            without ``codec``.

    Example:
        >>> megatron = headrace.plan.megatron
        >>> tokens = megatron.FIMTokens(prefix=901, middle=902, suffix=903, pad=904, eod=0)
        >>> fim = megatron.FillInTheMiddle(tokens=tokens, rate=1.0, spm_rate=0.0)
        >>> made = megatron.fill_in_the_middle(np.arange(10, 20), fim, megatron.KeyedDraws(1))
        >>> len(made), int(made[0])
        (10, 901)
    """

    tokens: FIMTokens
    codec: TextCodec | None = None
    rate: float = 0.5
    spm_rate: float = 0.5
    fragment_rate: float | None = None
    no_prefix: str | None = None
    seed: int = 1234

    def __post_init__(self) -> None:
        """Raise ConfigError for a rate out of range, or for options that do not go together."""
        for name in ("rate", "spm_rate", "fragment_rate"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate <= 1:
                raise ConfigError(f"{name} is {rate}; it must be a share from 0 to 1")
        if self.tokens.split is not None and self.fragment_rate is None:
            raise ConfigError(
                f"tokens.split is {self.tokens.split}, but there is no fragment_rate: set the share of fragments that"
                " are rearranged, or leave out tokens.split"
            )
        if self.no_prefix is not None and (self.codec is None or not self.no_prefix):
            raise ConfigError(
                f"no_prefix is {self.no_prefix!r}, with {'no codec' if self.codec is None else 'a codec'}: it is "
                "searched in the text of a document, so pass a codec, and a text that is not empty"
            )

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything that decides the bytes of samples, JSON-safe."""
        options = {name: getattr(self, name) for name in self.__struct_fields__ if name not in ("tokens", "codec")}
        if self.tokens.split is None:
            options["fragment_rate"] = None
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
    """The random choices for one sample, in the order in which they are asked for."""

    def chance(self, rate: float) -> bool:
        """Return True with this probability."""

    def cuts(self, length: int) -> tuple[int, int]:
        """Return two independent numbers from 0 to ``length``, uniformly distributed, in any order."""


class KeyedDraws:
    """Random choices of which number k is a hash of (key, k): they are the same in every process, at any time.

    Megatron draws from one ``RandomState`` for each dataset object, so that a sample depends there on how many items
    the process has read before.

    Example:
        >>> draws = headrace.plan.megatron.KeyedDraws(1)
        >>> draws.chance(0.0), draws.chance(1.0)
        (False, True)
    """

    def __init__(self, key: int) -> None:
        self._key = key
        self._number = 0

    def chance(self, rate: float) -> bool:
        """Return True with this probability: never for 0, and always for 1."""
        return self._next() >> (64 - _BITS) < int(rate * (1 << _BITS))

    def cuts(self, length: int) -> tuple[int, int]:
        """Return two numbers from 0 to ``length``."""
        # The high part of a product, not a remainder, so that probabilities differ by at most 2^-64.
        return (self._next() * (length + 1)) >> 64, (self._next() * (length + 1)) >> 64

    def _next(self) -> int:
        self._number += 1
        return derive(self._key, self._number)


def fill_in_the_middle(sample: NDArray[Any], fim: FillInTheMiddle, draws: Draws) -> IntArray:
    """Return the (n,) integer tokens of a sample as (n,) int64, with its documents rearranged.

    The draws are asked for in Megatron's order, so that draws from Megatron's generator give its result. Takes a few
    microseconds a document; with a codec also the time to decode and encode the rearranged documents.
    """
    tokens: IntArray = sample.astype(np.int64, copy=False)
    if fim.rate == 0:
        return tokens
    parts = _changed_between(tokens, fim.tokens.eod, lambda document: _document(document, fim, draws))
    rearranged = np.concatenate(parts)[: len(tokens)]
    return np.concatenate([rearranged, np.full(len(tokens) - len(rearranged), fim.tokens.pad, dtype=np.int64)])


def _changed_between(tokens: IntArray, border: int, change: Callable[[IntArray], IntArray]) -> list[IntArray]:
    """Change what lies between the borders; return these parts and the borders that have something before them."""
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
    return np.concatenate(_changed_between(tokens, split, lambda fragment: _rearranged(fragment, fim, rate, draws)))


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
