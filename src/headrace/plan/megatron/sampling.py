"""The options that decide Megatron's order of samples, and how many epochs a run needs.

With T tokens in an epoch, samples of S tokens (and e = 1 extra token), and N samples wanted, there are E epochs:

    E is the least number with E * T >= N * S + e; these epochs hold (E * T - e) // S samples, which is N or more
    the last epoch is shuffled separately if less than 80 % of the samples of an epoch are needed from it

    T = 265, S = 30, e = 1      N = 8: E = 1      N = 12: E = 2, separate   N = 16: E = 2, together      N = 20: E = 3

So N decides E and whether the last epoch is separate, and with them the whole order: a run that is extended beyond such
a border continues in another order.

`parse_split` and `split_ranges` say which sequences belong to training, validation and test, with the borders of both
eras.
"""

from __future__ import annotations

import re
import warnings
from itertools import accumulate
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from headrace.config import check_choice, check_fields
from headrace.errors import ConfigError

Dialect = Literal["core", "legacy", "neox", "aleph_alpha"]
LastEpoch = Literal["auto", "separate", "together"]


class GPTSampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How samples are cut from a stream of shuffled sequences, and in which order they come.

    ``sequence_length``: S, the tokens of a sample without the extra one; at least 1.
    ``num_samples``: how many samples are wanted at least, or None for one epoch.
    ``seed``: the seed of the only ``numpy.random.RandomState``, from 0 to 2^32 - 1.
    ``add_extra_token``: samples have S + 1 tokens, and each begins at the last token of the one before.
    ``drop_last_partial``: tokens at the end that are too few for a sample are dropped.
    ``dialect``:
        ``core``         Megatron-Core;
        ``legacy``       Megatron-LM before Megatron-Core, with the same order: it always has an extra token and never a
                         partial sample;
        ``neox``         GPT-NeoX: all epochs are shuffled together, the last sample is left out, indices wrap around;
        ``aleph_alpha``  Aleph Alpha's scaling: epoch e is shuffled by seed + e, and samples are not shuffled.
    ``last_epoch``: ``auto`` shuffles the last of several epochs separately if the dialect does (``core`` and
        ``legacy`` do if less than 80 % of it is needed); ``separate`` always does, and ``together`` never does.
    ``float32_ceil``: for compatibility with the compiled helpers of megatron-core. If a partial last sample is kept,
        they round the number of samples up in float32, so that from 2^24 tokens on samples may be missing or repeat
        the last token. Without this option the number is exact.

    Raises:
        ConfigError: a value or a combination is not allowed.

    Example:
        >>> sampling = headrace.plan.megatron.GPTSampling(sequence_length=2048, num_samples=1000, seed=1234)
        >>> headrace.plan.megatron.count_epochs(1_500_000, sampling).num_epochs
        2
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
        """Raise ConfigError for a value or a combination that is not allowed."""
        if not 1 <= self.sequence_length < 1 << 31:
            raise ConfigError(f"sequence_length is {self.sequence_length}; allowed is 1 to 2^31 - 1")
        if self.num_samples is not None and self.num_samples < 0:
            raise ConfigError(f"num_samples is {self.num_samples}; allowed is 0 or more, or None for one epoch")
        if not 0 <= self.seed < 1 << 32:
            raise ConfigError(f"seed is {self.seed}; numpy.random.RandomState takes 0 to 2^32 - 1")
        check_fields(self)
        if self.dialect != "core" and not (self.add_extra_token and self.drop_last_partial):
            raise ConfigError(
                f"dialect {self.dialect!r} always has an extra token and drops a partial last sample, found"
                f" add_extra_token={self.add_extra_token}, drop_last_partial={self.drop_last_partial}; use 'core'"
            )
        if self.dialect in ("neox", "aleph_alpha") and self.last_epoch == "separate":
            raise ConfigError(f"dialect {self.dialect!r} has no separate last epoch; leave last_epoch at 'auto'")
        if self.float32_ceil and self.drop_last_partial:
            raise ConfigError("float32_ceil has an effect only with drop_last_partial=False: leave it out")


_MAX_TOKENS = 1 << 62


class ReorderWarning(UserWarning):
    """A run was extended so far that Megatron's order of all its samples changes."""


class Epochs(NamedTuple):
    """The epochs of a run, as the numbers of tokens and samples decide them.

    Attributes:
        num_epochs: how many epochs there are.
        separate_last_epoch: whether the last one is shuffled separately.
        num_before_last: the samples that begin before the last epoch; if that is separate, they are shuffled apart
            from the others.
        num_samples: the samples of all epochs, which is the length of the shuffle index.
        same_order: the range of ``sampling.num_samples`` for which the order is the same.
    """

    num_epochs: int
    separate_last_epoch: bool
    num_before_last: int
    num_samples: int
    same_order: range


def count_epochs(tokens_per_epoch: int, sampling: GPTSampling) -> Epochs:
    """Return the epochs that ``sampling.num_samples`` needs, for all dialects except ``aleph_alpha``. O(1).

    Raises:
        ConfigError: samples are wanted from a split without tokens, or all epochs together have 2^62 tokens or more.
    """
    tokens, size, extra = tokens_per_epoch, sampling.sequence_length, int(sampling.add_extra_token)
    wanted = sampling.num_samples
    if tokens == 0:
        if wanted:
            raise ConfigError(
                f"{wanted:,} samples are wanted, but the sequences have no tokens; check the data and the split"
            )
        return Epochs(1, False, 0, 0, range(1))
    num_epochs = 1 if wanted is None else max(1, -(-(wanted * size + extra) // tokens))
    if num_epochs * tokens >= _MAX_TOKENS:
        raise ConfigError(f"{num_epochs:,} epochs of {tokens:,} tokens have 2^62 tokens or more; ask for fewer samples")
    num_samples = samples_in(num_epochs * tokens - extra, size, sampling.drop_last_partial, sampling.float32_ceil)
    most = max(0, (num_epochs * tokens - extra) // size)
    if num_epochs == 1:
        return Epochs(1, False, num_samples, num_samples, range(most + 1))
    before = ((num_epochs - 1) * tokens - extra) // size
    # The last epoch is separate for N below this border. The product is a float in Megatron too.
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
    """Return whether the samples of a run of ``from_samples`` come in another order in a run of ``to_samples``.

    None means one epoch. The result is always False for the dialect ``aleph_alpha``, whose order does not depend on the
    number of samples.
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
        f"Megatron's order depends on the number of samples: {_in_words(from_samples)} have the order of"
        f" {_shape(first)}, but {_in_words(to_samples)} that of {_shape(then)}. So every sample moves, and a run that"
        f" is extended repeats some samples and misses others. The first order holds for {first.same_order.start:,} to"
        f" {first.same_order.stop - 1:,} samples: stay within these, or use Headrace's own order, which does not"
        " change when a run is extended",
        ReorderWarning,
        stacklevel=3,
    )


def samples_in(num_tokens: int, sequence_length: int, drop_last_partial: bool, float32_ceil: bool) -> int:
    """Return the number of samples in ``num_tokens`` tokens, extra tokens not counted.

    ``float32_ceil`` is that of `GPTSampling`.
    """
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


def _in_words(num_samples: int | None) -> str:
    return "one epoch" if num_samples is None else f"{num_samples:,} samples"


def _shape(epochs: Epochs) -> str:
    separate = ", the last one shuffled separately" if epochs.separate_last_epoch else ""
    return f"{epochs.num_epochs} epoch{'s' if epochs.num_epochs > 1 else ''}{separate}"


SPLITS = ("train", "valid", "test")
_NUMBER = re.compile(r"\d+\.?\d*|\.\d+")
_SEPARATOR = re.compile(r"\s*[,/]\s*|\s+")


def parse_split(split: str) -> tuple[float, float, float]:
    """Return the shares of training, validation and test, with the sum 1: ``"969,30,1"`` is (0.969, 0.03, 0.001).

    Numbers are separated by commas, slashes or spaces; missing ones are 0. The shares are computed in float64 as in
    Megatron, so that the borders are the same to the last sequence.

    Raises:
        ConfigError: the text is not a list of one to three numbers, or all of them are 0.
    """
    parts = _SEPARATOR.split(split.strip().strip("[]").strip())
    if not all(_NUMBER.fullmatch(part) for part in parts) or len(parts) > len(SPLITS):
        raise ConfigError(
            f"the split is {split!r}; it must be one to three numbers of at least 0 for training, validation and test,"
            " such as '969,30,1'"
        )
    shares = np.array([float(part) for part in parts] + [0.0] * (len(SPLITS) - len(parts)))
    if not 0 < shares.sum() < np.inf:
        raise ConfigError(f"the split is {split!r}; at least one share must be above 0")
    train, valid, test = (shares / shares.sum()).tolist()
    return train, valid, test


def split_ranges(
    split: str, num_sequences: int, *, era: Literal["core", "legacy"]
) -> tuple[tuple[int, int] | None, tuple[int, int] | None, tuple[int, int] | None]:
    """Return (first, end) of the sequences of training, validation and test, or None for a share of 0.

    ``core`` rounds the borders, half to even. ``legacy`` (Megatron-LM before Megatron-Core, Megatron-DeepSpeed,
    GPT-NeoX) rounds the size of each share, and then shifts all borders by the error of the sum. For 969,30,1 the two
    differ for every fourth number of sequences.

        49 sequences, 969,30,1      core: [0, 47) [47, 49) [49, 49)      legacy: [0, 48) [48, 49) [49, 49)

    Raises:
        ConfigError: the split cannot be read; or a legacy border is below 0, where Megatron reads wrong sequences.
    """
    shares = parse_split(split)
    check_choice("era", era, ("core", "legacy"))
    borders = [0.0, *accumulate(shares)]
    if era == "core":
        ends = [round(border * float(num_sequences)) for border in borders]
    else:
        ends = [0, *accumulate(round(share * float(num_sequences)) for share in shares)]
        ends[1:] = [end - (ends[-1] - num_sequences) for end in ends[1:]]
        if min(ends) < 0:
            raise ConfigError(
                f"the legacy borders of {split!r} over {num_sequences:,} sequences are {ends}, below 0; Megatron reads"
                " sequences from the end there: use era='core'"
            )
    train, valid, test = ((ends[i], ends[i + 1]) if borders[i + 1] > borders[i] else None for i in range(len(SPLITS)))
    return train, valid, test
