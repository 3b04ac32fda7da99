"""The options that decide Megatron's order of samples, and how many epochs a run needs.

With T tokens in an epoch, samples of S tokens (and e = 1 extra token), and N samples wanted, there are E epochs:

    E is the least number with E * T >= N * S + e; these epochs hold (E * T - e) // S samples, which is N or more
    the last epoch is shuffled separately if less than 80 % of the samples of an epoch are needed from it

    T = 265, S = 30, e = 1      N = 8: E = 1      N = 12: E = 2, separate   N = 16: E = 2, together      N = 20: E = 3

So N decides E and whether the last epoch is separate, and with them the whole order: a run that is extended beyond such
a border continues in another order.

`parse_split` and `split_ranges` say which sequences belong to training, validation and test, with the borders of both
eras.

Megatron has two samplers. With ``single`` ranks take the samples in order, as those of any run here do. With ``cyclic``
each rank shuffles, so that the order depends on the number of ranks; Megatron refuses mostly to change it in the middle
of an epoch. `CyclicOrder` is the cyclic order as a function of the position, so that a run can continue in it on any
number of ranks. Its epochs are made for a micro-batch size and a number of ranks. Positions are numbered as these ranks
take them, one micro-batch after another, so that a position has the sample that its rank would have taken there:

    21 samples, 2 ranks, micro-batches of 2      rank 0 takes [4 1] [7 5] ...     rank 1 takes [14 11] [17 15] ...
    positions 0 to 7                             samples 4 1 14 11 7 5 17 15      20 of the 21 are an epoch

Source: Megatron-LM, ``MegatronPretrainingRandomSampler``.
"""

from __future__ import annotations

import re
import warnings
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.config import check_choice, check_fields
from headrace.errors import ConfigError
from headrace.plan.keys import IntArray
from headrace.plan.torch_draws import torch_randperm

_MAX_EPOCHS = 1 << 32
"""The seed of an epoch is its number, and seeds are 32 bits."""
_MAX_POSITIONS = 1 << 62
_KEPT = 2
"""How many permutations of epochs are kept: read-ahead may already be in the next epoch."""


class CyclicOrder:
    """The order of Megatron's cyclic sampler: positions 0, 1, 2, ... of all epochs -> samples 0 .. num_samples - 1.

    Args:
        num_samples: the number of samples in the dataset; samples that do not fill a micro-batch of all ranks are left
            out of each epoch.
        micro_batch_size, data_parallel_size: those of the run whose order this is.
        data_sharding: if True, each rank shuffles its own part of the samples; if False, all samples are shuffled and
            distributed in turn.

    The permutation of an epoch is made when it is first needed. It is `torch_randperm` of ``num_samples`` elements or,
    with ``data_sharding``, of a rank's part of them. The last two are kept, with 4 bytes an element. Everything else is
    arithmetic.

    Raises:
        ConfigError: a number is below 1, or there are fewer samples than one micro-batch of all ranks.

    Example:
        >>> order = headrace.plan.megatron.CyclicOrder(21, micro_batch_size=2, data_parallel_size=2)
        >>> order.num_samples_per_epoch, len(set(order.locate(np.arange(20)).tolist()))
        (20, 20)
    """

    def __init__(
        self, num_samples: int, *, micro_batch_size: int, data_parallel_size: int, data_sharding: bool = True
    ) -> None:
        self.num_samples = num_samples
        self.micro_batch_size = micro_batch_size
        self.data_parallel_size = data_parallel_size
        self.data_sharding = data_sharding
        self.num_samples_per_epoch = cyclic_epoch_samples(num_samples, micro_batch_size, data_parallel_size)
        self._together = micro_batch_size * data_parallel_size
        if data_sharding:
            self._num_shuffled = self.num_samples_per_epoch // data_parallel_size
        else:
            self._num_shuffled = num_samples // micro_batch_size * micro_batch_size
        self._kept: dict[int, NDArray[np.integer[Any]]] = {}

    def __len__(self) -> int:
        """Return the number of positions: those of 2^32 epochs, since seeds have 32 bits, but at most 2^62."""
        return min(_MAX_EPOCHS, _MAX_POSITIONS // self.num_samples_per_epoch) * self.num_samples_per_epoch

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the permutations: another process makes those that it needs."""
        return {**self.__dict__, "_kept": {}}

    def locate(self, positions: IntArray) -> IntArray:
        """Return (n,) int64: the sample at each of (n,) int64 ``positions``, from 0 to ``len(self) - 1``."""
        chunks, within = np.divmod(positions, self._together)
        ranks, rows = np.divmod(within, self.micro_batch_size)
        epochs, chunks = np.divmod(chunks, self.num_samples_per_epoch // self._together)
        if self.data_sharding:
            places = chunks * self.micro_batch_size + rows
        else:
            # Rank r takes the samples r, r + data_parallel_size, r + 2 * data_parallel_size, ... of the permutation.
            places = chunks * self._together + rows * self.data_parallel_size + ranks
        samples = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            mine = epochs == epoch
            samples[mine] = self._permutation(epoch)[places[mine]]
        if self.data_sharding:
            samples += ranks * self._num_shuffled
        return samples

    def _permutation(self, epoch: int) -> NDArray[np.integer[Any]]:
        found = self._kept.get(epoch)
        if found is None:
            small = self._num_shuffled < 1 << 31
            found = torch_randperm(self._num_shuffled, epoch).astype(np.int32 if small else np.int64)
            # Make a new dict each time, since another thread may be reading the old one.
            self._kept = dict([*self._kept.items(), (epoch, found)][-_KEPT:])
        return found


def cyclic_epoch_samples(num_samples: int, micro_batch_size: int, data_parallel_size: int) -> int:
    """Return the number of samples in an epoch: as many as fill micro-batches of all ranks.

    Raises:
        ConfigError: a number is below 1, or there are fewer samples than one micro-batch of all ranks.
    """
    if micro_batch_size < 1 or data_parallel_size < 1:
        raise ConfigError(
            f"micro_batch_size and data_parallel_size must be at least 1, found {micro_batch_size} and "
            f"{data_parallel_size}"
        )
    active = num_samples - num_samples % (micro_batch_size * data_parallel_size)
    if active < 1:
        raise ConfigError(
            f"{num_samples:,} samples are fewer than one micro-batch of all ranks, which has {data_parallel_size} times"
            f" {micro_batch_size} samples"
        )
    return active


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
