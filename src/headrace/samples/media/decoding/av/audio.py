"""Sound by the sample: a clip is exactly the slice of the whole that its times say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headrace.errors import DecodeError

_PREROLL_S = 0.25
"""Decoded and dropped before a clip: packets of lossy codecs overlap, so the first after a seek are not right."""


def read_clip(container: Any, stream: Any, begin_s: float, end_s: float) -> tuple[Any, tuple[float, float]] | None:
    """The sound between two times.

    Returns:
        (channels, samples) in the codec's own dtype, and its begin and end in seconds, which lie within the sound; None
        where there is no sound between them.

    Raises:
        DecodeError: the clip ends before it begins, or begins before 0.
    """
    if not 0 <= begin_s <= end_s or math.isinf(begin_s):
        raise DecodeError(
            None, f"a clip from {begin_s} to {end_s} seconds: it begins at 0 or later and ends no earlier"
        )
    rate = stream.sample_rate
    wanted = round(begin_s * rate)
    until = math.inf if math.isinf(end_s) else wanted + round((end_s - begin_s) * rate)
    container.seek(max(int((begin_s - _PREROLL_S) / stream.time_base), 0), stream=stream, backward=True)
    pieces: list[Any] = []
    position: int | None = None
    first = last = wanted
    for frame in container.decode(stream):
        if position is None:
            # Later frames follow one on another; their own times are rounded to the container's unit.
            if frame.pts is None:
                raise DecodeError(None, "the sound has no times")
            position = round(frame.pts * frame.time_base * rate)
        samples = _samples(frame)
        begin, position = position, position + samples.shape[1]
        if position <= wanted:
            continue
        if begin >= until:
            break
        left = max(wanted - begin, 0)
        right = samples.shape[1] if position <= until else int(until) - begin
        if right > left:
            if not pieces:
                first = begin + left
            last = begin + right
            pieces.append(samples[:, left:right])
        if position >= until:
            break
    if not pieces:
        return None
    clip = np.concatenate(pieces, axis=1)
    return clip, (begin_s if first == wanted else first / rate, end_s if last == until else last / rate)


def _samples(frame: Any) -> Any:
    """(channels, samples) of a frame, whether its channels lie apart or interleaved."""
    values = frame.to_ndarray()
    if frame.format.is_planar:
        return values
    return values.reshape(frame.samples, frame.layout.nb_channels).T
