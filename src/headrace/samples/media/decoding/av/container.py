"""Containers opened with PyAV, single-threaded."""

from __future__ import annotations

import io
from typing import Any

from headrace.errors import DecodeError, MissingExtraError
from headrace.samples.media.decoding.failing import check_pixels

AUDIO_FORMATS = frozenset(("mp3", "flac", "wav", "aac", "ogg", "aiff", "w64"))
"""Containers of sound; a picture in them is a cover, not a video."""


def open_container(data: bytes, max_pixels: int) -> Any:
    """A container over bytes; close it.

    No threads: FFmpeg's own do not survive the fork of a loader's workers, and would fight over the cores with them.

    Raises:
        DecodeError: it is no medium that FFmpeg knows, or its frames are larger than allowed.
        MissingExtraError: PyAV is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise MissingExtraError("decoding video and sound needs PyAV: pip install 'headrace[av]'") from error
    try:
        container = av.open(io.BytesIO(data), "r")
    except (av.FFmpegError, ValueError) as error:
        raise DecodeError(None, f"cannot be opened as video or sound: {error}") from error
    try:
        streams: Any = container.streams
        for stream in streams:
            codec = stream.codec_context
            if codec is not None:
                codec.thread_type = "NONE"
                codec.thread_count = 1
                if stream.type == "video":
                    check_pixels(codec.width, codec.height, max_pixels)
    except BaseException:
        container.close()
        raise
    return container


def video_stream(container: Any) -> Any | None:
    """The first stream of pictures that is not a cover, or None."""
    if container.format.name in AUDIO_FORMATS:
        return None
    return next(iter(container.streams.video), None)


def audio_stream(container: Any) -> Any | None:
    """The first stream of sound, or None."""
    return next(iter(container.streams.audio), None)
