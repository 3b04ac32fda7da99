"""The form that ``av_decode`` asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

AV_EXTENSIONS = frozenset(("mp4", "m4v", "avi", "mov", "webm", "mkv", "flv", "mpg", "mpeg", "flac", "mp3", "wav"))
"""Parts that are video or sound, by the last component of their name, in any case."""


def av_decoder(form: str, *, with_audio: bool, max_pixels: int) -> Callable[[bytes], Any]:
    """A function of the bytes of a medium.

    Args:
        form: ``AVDecoder``, ``torch``, ``numpy`` or ``pyav``.
        with_audio: ``torch`` and ``numpy`` decode the sound of videos too.
        max_pixels: a video of larger frames is refused.
    """
    from headrace.samples.media.decoding.av.container import open_container
    from headrace.samples.media.decoding.av.decoder import AVDecoder

    if form == "pyav":
        return lambda data: open_container(data, max_pixels)
    if form == "AVDecoder":
        return lambda data: AVDecoder(data, max_pixels=max_pixels)
    arrays = "numpy" if form == "numpy" else "torch"
    return lambda data: AVDecoder(data, arrays=arrays, max_pixels=max_pixels).get_frames(with_audio)  # type: ignore[arg-type]
