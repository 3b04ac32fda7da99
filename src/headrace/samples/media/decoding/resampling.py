"""Resample sound so that any part of the result can be made by itself, and is a slice of the whole.

Each sample of the result is a sum over the samples around its time, weighted by a sinc within a Hann window, with the
width and the cutoff of ``torchaudio.functional.resample``.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

_CROSSINGS = 6
"""Zero crossings of the sinc on each side."""

_ROLLOFF = 0.99
"""The cutoff, as a part of half the lower of both rates."""

_BLOCK_SAMPLES = 1 << 14


def margin(old: int, new: int) -> int:
    """Return how many samples before and after its time a sample of the result depends on."""
    return math.ceil(_CROSSINGS * old / (min(old, new) * _ROLLOFF)) + 1


def resampled(samples: NDArray[np.float32], first: int, numbers: range, old: int, new: int) -> NDArray[np.float32]:
    """Return samples of the result.

    Args:
        samples: (channels, samples), the sound from sample ``first`` on; what lies outside counts as silence.
        first: The number of the first of them.
        numbers: The samples of the result that are wanted.
        old: The rate of the sound, in Hz.
        new: The rate of the result.
    """
    old, new = old // math.gcd(old, new), new // math.gcd(old, new)
    width = margin(old, new)
    cutoff = min(old, new) * _ROLLOFF / old
    out = np.empty((len(samples), len(numbers)), np.float32)
    for begin in range(0, len(numbers), _BLOCK_SAMPLES):
        block = np.arange(numbers.start + begin, min(numbers.start + begin + _BLOCK_SAMPLES, numbers.stop))
        # The sample at or before the time of each, and how far behind it that time is, in samples.
        places, phases = np.divmod(block * old, new)
        at = (np.arange(-width, width + 1) - (phases / new)[:, None]) * cutoff
        at = at.clip(-_CROSSINGS, _CROSSINGS)
        weights = np.sinc(at) * np.cos(at * np.pi / _CROSSINGS / 2) ** 2 * cutoff
        low, high = int(places[0]) - width, int(places[-1]) + width + 1
        around = np.zeros((len(samples), high - low), np.float32)
        left, right = max(low, first), min(high, first + samples.shape[1])
        if right > left:
            around[:, left - low : right - low] = samples[:, left - first : right - first]
        windows = sliding_window_view(around, 2 * width + 1, axis=1)[:, places - places[0]]
        out[:, begin : begin + len(block)] = (windows * weights.astype(np.float32)).sum(-1)
    return out


def as_floats(samples: NDArray[np.generic]) -> NDArray[np.float32]:
    """Return samples as float32 from -1 to 1."""
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - 128) / np.float32(128)
    return samples.astype(np.float32) / np.float32(2 ** (8 * samples.dtype.itemsize - 1))
