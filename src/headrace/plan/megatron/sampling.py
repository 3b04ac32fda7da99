"""The options that decide Megatron's order of samples, and how many epochs they need.

How many epochs a number of samples needs, whether the last is shuffled apart, and how many samples that makes.

    T tokens an epoch, samples of S tokens (and e = 1 extra token), N wanted:
    E epochs, the fewest with E * T >= N * S + e      they hold (E * T - e) // S samples, N or more
    the last is apart if it is needed for less than 80 % of the samples of an epoch

    T = 265, S = 30, e = 1      N = 8: E = 1      N = 12: E = 2, apart      N = 16: E = 2, together      N = 20: E = 3

N decides E and "apart", and so the whole order: a run that is extended past such a border goes on in another order.
"""

from __future__ import annotations

import warnings
from typing import Literal, NamedTuple, get_args

import msgspec
import numpy as np

from headrace.errors import ConfigError

Dialect = Literal["core", "legacy", "neox", "aleph_alpha"]
LastEpoch = Literal["auto", "separate", "together"]


class GPTSampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How samples are cut from a stream of shuffled sequences, and in which order they come.

    ``sequence_length``: S, tokens of a sample without the extra one; at least 1.
    ``num_samples``: how many are wanted at least, or None for one epoch.
    ``seed``: of the one ``numpy.random.RandomState``, 0 to 2^32 - 1.
    ``add_extra_token``: samples have S + 1 tokens, and each begins at the last token of the one before.
    ``drop_last_partial``: what is left at the end and too short for a sample is dropped.
    ``dialect``:
        ``core``         Megatron-Core;
        ``legacy``       Megatron-LM before it, whose order is the same: always an extra token, never a partial sample;
        ``neox``         GPT-NeoX: all epochs are shuffled together, the last sample is left out, indices wrap around;
        ``aleph_alpha``  Aleph Alpha's scaling: epoch e is shuffled by seed + e, samples are not shuffled.
    ``last_epoch``: ``auto`` shuffles the last of several epochs apart where the dialect does (``core`` and ``legacy``:
        if less than 80 % of it is needed); ``separate`` always does, ``together`` never.
    ``float32_ceil``: compatibility with the compiled helpers of megatron-core, which round the number of samples up in
        float32 when a partial last sample is kept: from 2^24 tokens on, samples may be missing or repeat the last
        token. Without it the number is exact.

    Raises:
        ConfigError: a value or a combination is not allowed.
    """

    sequence_length: int
    num_samples: int | None
    seed: int
    add_extra_token: bool = True
    drop_last_partial: bool = True
    dialect: Dialect = "core"
    last_epoch: LastEpoch = "auto"
    float32_ceil: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError for what is not allowed."""
        if not 1 <= self.sequence_length < 1 << 31:
            raise ConfigError(f"sequence_length is {self.sequence_length}; allowed is 1 to 2^31 - 1")
        if self.num_samples is not None and self.num_samples < 0:
            raise ConfigError(f"num_samples is {self.num_samples}; allowed is 0 or more, or None for one epoch")
        if not 0 <= self.seed < 1 << 32:
            raise ConfigError(f"seed is {self.seed}; numpy.random.RandomState takes 0 to 2^32 - 1")
        if self.dialect not in get_args(Dialect):
            raise ConfigError(f"dialect is {self.dialect!r}; allowed are {_quoted(get_args(Dialect))}")
        if self.last_epoch not in get_args(LastEpoch):
            raise ConfigError(f"last_epoch is {self.last_epoch!r}; allowed are {_quoted(get_args(LastEpoch))}")
        if self.dialect != "core" and not (self.add_extra_token and self.drop_last_partial):
            raise ConfigError(
                f"dialect {self.dialect!r} always has an extra token and drops a partial last sample, found"
                f" add_extra_token={self.add_extra_token}, drop_last_partial={self.drop_last_partial}; use 'core'"
            )
        if self.dialect in ("neox", "aleph_alpha") and self.last_epoch == "separate":
            raise ConfigError(f"dialect {self.dialect!r} has no separate last epoch; leave last_epoch at 'auto'")
        if self.float32_ceil and self.drop_last_partial:
            raise ConfigError("float32_ceil has a meaning only with drop_last_partial=False")


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names))


_MAX_TOKENS = 1 << 62


class ReorderWarning(UserWarning):
    """A run was extended so far that Megatron's order of all its samples is another one."""


class Epochs(NamedTuple):
    """What the numbers of tokens and samples decide.

    ``num_epochs``; ``separate_last_epoch``: whether it is shuffled apart; ``num_before_last``: samples that begin
    before the last epoch, which are shuffled apart from those after them if it is; ``num_samples``: of all epochs, the
    length of the shuffle index; ``same_order``: the numbers of wanted samples for which all this is the same.
    """

    num_epochs: int
    separate_last_epoch: bool
    num_before_last: int
    num_samples: int
    same_order: range


def count_epochs(tokens_per_epoch: int, sampling: GPTSampling) -> Epochs:
    """The epochs that ``sampling.num_samples`` needs. O(1); not for the dialect ``aleph_alpha``, which has no such E.

    Raises:
        ConfigError: samples are wanted of a split without tokens, or all epochs have 2^62 tokens or more.
    """
    tokens, size, extra = tokens_per_epoch, sampling.sequence_length, int(sampling.add_extra_token)
    wanted = sampling.num_samples
    if tokens == 0:
        if wanted:
            raise ConfigError(f"{wanted:,} samples are wanted of sequences without a token; check data and split")
        return Epochs(1, False, 0, 0, range(1))
    num_epochs = 1 if wanted is None else max(1, -(-(wanted * size + extra) // tokens))
    if num_epochs * tokens >= _MAX_TOKENS:
        raise ConfigError(f"{num_epochs:,} epochs of {tokens:,} tokens are 2^62 or more; want fewer samples")
    num_samples = samples_in(num_epochs * tokens - extra, size, sampling.drop_last_partial, sampling.float32_ceil)
    most = max(0, (num_epochs * tokens - extra) // size)
    if num_epochs == 1:
        return Epochs(1, False, num_samples, num_samples, range(most + 1))
    before = ((num_epochs - 1) * tokens - extra) // size
    # Apart for N below this. The product is a float in Megatron too.
    border = before + int(0.80 * ((tokens - extra) // size))
    if sampling.last_epoch == "together" or sampling.dialect == "neox":
        border = before
    elif sampling.last_epoch == "separate":
        border = most + 1
    separate = wanted is not None and wanted < border
    same = range(before + 1, min(border, most + 1)) if separate else range(max(before + 1, border), most + 1)
    return Epochs(num_epochs, separate, before, num_samples, same)


def reorders_when_extended(
    tokens_per_epoch: int, sampling: GPTSampling, from_samples: int | None, to_samples: int | None
) -> bool:
    """Whether the samples of a run of ``from_samples`` come in another order in a run of ``to_samples``.

    None is one epoch. Always False for the dialect ``aleph_alpha``, whose order does not depend on the number.
    """
    if sampling.dialect == "aleph_alpha":
        return False
    first, then = (
        count_epochs(tokens_per_epoch, _with_samples(sampling, number)) for number in (from_samples, to_samples)
    )
    return (first.num_epochs, first.separate_last_epoch) != (then.num_epochs, then.separate_last_epoch)


def warn_when_extended(
    tokens_per_epoch: int, sampling: GPTSampling, from_samples: int | None, to_samples: int | None
) -> None:
    """Warn with `ReorderWarning` if `reorders_when_extended`; the message says how far the old order reaches."""
    if not reorders_when_extended(tokens_per_epoch, sampling, from_samples, to_samples):
        return
    first, then = (
        count_epochs(tokens_per_epoch, _with_samples(sampling, number)) for number in (from_samples, to_samples)
    )
    warnings.warn(
        f"Megatron's order depends on the number of samples: with {_said(from_samples)} it is that of"
        f" {_shape(first)}, with {_said(to_samples)} that of {_shape(then)}, so every sample moves, and a run that goes"
        f" on repeats some and misses others. The first order holds for {first.same_order.start:,} to"
        f" {first.same_order.stop - 1:,} samples: stay within, or use Headrace's own order, which has a stable prefix",
        ReorderWarning,
        stacklevel=3,
    )


def samples_in(num_tokens: int, sequence_length: int, drop_last_partial: bool, float32_ceil: bool) -> int:
    """Samples in so many tokens, the first of each but the extra ones counted; see `GPTSampling.float32_ceil`."""
    if num_tokens <= 0:
        return 0
    if drop_last_partial:
        return num_tokens // sequence_length
    if float32_ceil:
        return int(np.ceil(np.float32(num_tokens) / np.float32(sequence_length)))
    return -(-num_tokens // sequence_length)


def _with_samples(sampling: GPTSampling, num_samples: int | None) -> GPTSampling:
    fields = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    return GPTSampling(**{**fields, "num_samples": num_samples})


def _said(num_samples: int | None) -> str:
    return "one epoch" if num_samples is None else f"{num_samples:,} samples"


def _shape(epochs: Epochs) -> str:
    apart = ", the last one apart" if epochs.separate_last_epoch else ""
    return f"{epochs.num_epochs} epoch{'s' if epochs.num_epochs > 1 else ''}{apart}"
