"""A task encoder that asks for options which the program sets while it runs, as trainers keep theirs."""

from __future__ import annotations

import os
from argparse import Namespace
from functools import cache
from typing import Any

import torch.distributed as dist

from headrace.encoders import DefaultTaskEncoder, TextSample, stateless

_ARGS: Namespace | None = None
_CALLS = 0
_LENGTHS: dict[str, int] = {}
_GROUP: Any = None


class Layout:
    pad_to = 1


def set_args(args: Namespace | None) -> None:
    global _ARGS
    _ARGS = args


def get_args() -> Namespace:
    """Those of the program; a default where nothing has set them, which is what makes it silent."""
    return _ARGS if _ARGS is not None else Namespace(context_parallel_size=1, iteration=0)


def set_group(group: Any) -> None:
    global _GROUP
    _GROUP = group


def set_pad(pad_to: int) -> None:
    Layout.pad_to = pad_to


def set_two() -> None:
    """For workers."""
    set_args(Namespace(context_parallel_size=2, iteration=5))


def fails() -> None:
    raise LookupError("no options to be found")


@cache
def multiple() -> int:
    size: int = get_args().context_parallel_size
    return 2 * size if size > 1 else 1


def length_of(text: str) -> int:
    """Counts and keeps, as code does on its own account."""
    global _CALLS
    _CALLS += 1
    if text not in _LENGTHS:
        _LENGTHS[text] = len(text)
    return _LENGTHS[text]


class PadEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Pads each text for context parallelism."""

    @stateless
    def encode_sample(self, sample: TextSample) -> TextSample:
        sample.text = sample.text.ljust(-(-length_of(sample.text) // self.multiple()) * self.multiple(), ".")
        return sample

    def multiple(self) -> int:
        return multiple()


class ClassEncoder(PadEncoder):
    def multiple(self) -> int:
        return Layout.pad_to


class GroupEncoder(PadEncoder):
    def multiple(self) -> int:
        return 1 if _GROUP is None else 4


class RankEncoder(PadEncoder):
    def multiple(self) -> int:
        return 4 if dist.is_initialized() else 1


class VariableEncoder(PadEncoder):
    def multiple(self) -> int:
        return int(os.environ.get("PAD_TO", "1"))
