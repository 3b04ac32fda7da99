"""What decides Megatron's order of samples."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

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
