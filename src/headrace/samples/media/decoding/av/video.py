"""Frames of a video by their time, each read exactly, whatever the container's index is worth."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import DecodeError
from headrace.samples.media.decoding.failing import check_pixels


class FrameTimes(NamedTuple):
    """When the frames of a video are shown, in units of its time base, sorted.

    Attributes:
        times: presentation time of each frame.
        keys: those of the frames from which decoding may begin.
        end: when the last frame ends.
    """

    times: list[int]
    keys: list[int]
    end: int


def frame_times(container: Any, stream: Any) -> FrameTimes:
    """Read the packets of a video (nothing is decoded): a few microseconds a frame."""
    times, keys = [], []
    end = 0
    for packet in container.demux(stream):
        if packet.pts is None:
            continue
        times.append(packet.pts)
        if packet.is_keyframe:
            keys.append(packet.pts)
        end = max(end, packet.pts + (packet.duration or 0))
    times.sort()
    keys.sort()
    return FrameTimes(times, keys, end)


def frame_range(found: FrameTimes, first: float, last: float, unit: str, stream: Any, from_start: bool) -> range:
    """Numbers of the frames that a clip is made of: from the one shown at ``first`` to the one shown at ``last``.

    At least one, and none where the clip begins after the end. With frames at 0, 1/30, 2/30 ... s, the clip
    (0.05 s, 0.1 s) is the frames 1, 2 and 3.

    Args:
        found: see ``frame_times``.
        first: begin of the clip.
        last: its end, inclusive; may be infinite.
        unit: ``frames`` or ``seconds``.
        stream: for its time base.
        from_start: seconds count from the first frame, not from the container's zero.

    Raises:
        DecodeError: the clip ends before it begins, or begins before 0.
    """
    if not 0 <= first <= last or math.isinf(first):
        raise DecodeError(None, f"a clip from {first} to {last} {unit}: it begins at 0 or later and ends no earlier")
    count = len(found.times)
    if unit == "frames":
        return range(int(first), count if math.isinf(last) else min(int(last) + 1, count))
    base: Fraction = stream.time_base
    shift = found.times[0] if from_start and count else 0
    begin = int(first / base) + shift
    if not count or begin >= max(found.end, found.times[-1] + 1):
        return range(0)
    number = max(bisect_right(found.times, begin) - 1, 0)
    if math.isinf(last):
        return range(number, count)
    return range(number, max(bisect_right(found.times, int(last / base) + shift), number + 1))


def stacked_frames(
    frames: Iterator[Any], count: int, scale: dict[str, Any]
) -> tuple[np.ndarray[Any, Any], tuple[float, float]] | None:
    """Frames as one array, each written where it belongs, so that there is only one frame more than the clip in memory.

    Args:
        frames: PyAV's.
        count: how many there are at most.
        scale: what ``reformat`` is told beside the format.

    Returns:
        (frames, 3, H, W) uint8, a view of (frames, H, W, 3), and begin of the first and end of the last frame in
        seconds; None where there are no frames.

    Raises:
        DecodeError: frames change in size, and are not scaled to one; there is no memory for the clip.
    """
    clip: np.ndarray[Any, Any] | None = None
    begin = end = 0.0
    found = 0
    for found, frame in enumerate(itertools.islice(frames, count), 1):
        pixels = frame.reformat(format="rgb24", **scale).to_ndarray()
        shown = float(frame.pts * frame.time_base)
        if clip is None:
            clip = _room(count, pixels.shape)
            begin = shown
        if pixels.shape != clip.shape[1:]:
            sizes = f"{clip.shape[2]} x {clip.shape[1]} to {pixels.shape[1]} x {pixels.shape[0]}"
            raise DecodeError(None, f"the frames change from {sizes} pixels; say video_out_frame_size=(width, height)")
        clip[found - 1] = pixels
        end = shown + float((frame.duration or 0) * frame.time_base)
    return None if clip is None else (clip[:found].transpose(0, 3, 1, 2), (begin, end))


def _room(count: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    try:
        return np.empty((count, *shape), np.uint8)
    except (MemoryError, ValueError):
        # NumPy's ValueError: more than can be addressed.
        raise DecodeError(
            None,
            f"the clip of {count:,} frames of {shape[1]} x {shape[0]} pixels takes {count * math.prod(shape):,} bytes, "
            "for which there is no memory; ask for shorter clips or smaller frames",
        ) from None


class FrameReader:
    """Reads ranges of frames from one open container, forward where it can, by a seek to a key frame where it must."""

    def __init__(self, container: Any, stream: Any, found: FrameTimes, max_pixels: int) -> None:
        self._container = container
        self._stream = stream
        self._found = found
        self._max_pixels = max_pixels
        self._frames: Iterator[Any] = iter(())
        self._is_open = False
        self._next = 0
        """Number of the frame that the iterator yields next, if all is well."""

    def read(self, numbers: range) -> Iterator[Any]:
        """The frames of consecutive numbers, in order.

        Raises:
            DecodeError: a frame is missing, or larger than allowed.
        """
        if not numbers:
            return
        times = self._found.times
        begin, end = times[numbers[0]], times[numbers[-1]]
        given = 0
        for frame in self._from(numbers[0]):
            check_pixels(frame.width, frame.height, self._max_pixels)
            self._next = bisect_right(times, frame.pts)
            if frame.pts >= begin:
                given += 1
                yield frame
            if frame.pts >= end:
                break
        if not given:
            raise DecodeError(
                None, f"the video has no frame {numbers[0]:,}, though its packets say so; it is cut short"
            )

    def _from(self, number: int) -> Iterator[Any]:
        """Frames from one that is not after frame ``number``."""
        times, keys = self._found.times, self._found.keys
        at = bisect_right(keys, times[number]) - 1
        key = keys[at] if at >= 0 else times[0]
        if not self._is_open or number < self._next or bisect_left(times, key) > self._next:
            for back in range(at, -2, -1):
                # A seek may land late (times of decoding, not of showing): then from the key frame before.
                target = keys[back] if back >= 0 else 0
                first = self._seek(target)
                if first is None or first.pts <= times[number] or back < 0:
                    break
            if first is None:
                return
            yield first
        yield from self._timed(self._frames)

    def _seek(self, target: int) -> Any | None:
        self._container.seek(target, stream=self._stream, backward=True)
        self._frames = iter(self._container.decode(self._stream))
        self._is_open = True
        return next(self._timed(self._frames), None)

    @staticmethod
    def _timed(frames: Iterator[Any]) -> Iterator[Any]:
        return (frame for frame in frames if frame.pts is not None)
