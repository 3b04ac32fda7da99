"""What Energon offers to look into samples and videos: ``format_sample_detailed`` and ``AVProbeIndex``."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml

_SHOWN = 3
"""The values of an array that are shown."""


def format_sample_detailed(sample: Any, indent: str = "") -> str:
    """Return a sample as YAML: its structure, and of arrays and tensors shape, dtype, bounds and the first values.

    Args:
        sample: any value.
        indent: put before each line.
    """
    text = yaml.safe_dump(_plain(sample), sort_keys=False, allow_unicode=True, width=10**9, default_flow_style=False)
    lines = text.removesuffix("...\n").rstrip("\n").split("\n")
    return "\n".join(f"{indent}{line}" if line else line for line in lines)


def _plain(value: Any) -> Any:
    """Return a value as what YAML can hold."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        return f"Tensor(shape={value.shape}, dtype={value.dtype}, device={value.device}{_bounds(value)})"
    if isinstance(value, np.ndarray):
        return f"np.ndarray(shape={value.shape}, dtype={value.dtype}{_bounds(value)})"
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {type(value).__name__: fields}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    return repr(value)


def _bounds(values: Any) -> str:
    if not values.size if isinstance(values, np.ndarray) else not values.numel():
        return ""
    flat = values.reshape(-1)[:_SHOWN]
    first = flat.tolist() if isinstance(values, torch.Tensor) else list(flat)
    return f", min={values.min()}, max={values.max()}, values={first}"


class ProbedFrame(NamedTuple):
    """A frame of a video: its time in units of the stream's time base, and whether it can be decoded by itself."""

    timestamp: int
    is_keyframe: bool


class AVProbeIndex:
    """The frames of a video by their number, found by reading all packets and decoding none.

    Args:
        container: an open container of PyAV.
        stream: the number of the video stream.
    """

    def __init__(self, container: Any, stream: int) -> None:
        packets = container.demux(container.streams.video[stream])
        found = [(packet.pts, packet.is_keyframe) for packet in packets if packet.pts is not None]
        self._frames = [ProbedFrame(int(time), bool(key)) for time, key in sorted(found)]
        self._keys = [number for number, frame in enumerate(self._frames) if frame.is_keyframe]
        self._times = [self._frames[number].timestamp for number in self._keys]

    def __len__(self) -> int:
        return len(self._frames)

    def __iter__(self) -> Iterator[ProbedFrame]:
        return iter(self._frames)

    def __getitem__(self, number: int) -> ProbedFrame:
        return self._frames[number]

    def search_timestamp(self, timestamp: int, *, backward: bool = True) -> int:
        """Return the number of the last keyframe up to a time; the first one from it on, if not ``backward``."""
        after = bisect_right(self._times, timestamp)
        is_hit = after > 0 and self._times[after - 1] == timestamp
        at = after - 1 if backward or is_hit else after
        return self._keys[min(max(at, 0), len(self._keys) - 1)]
