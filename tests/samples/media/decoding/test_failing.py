"""What a codec raises is a fault of the data, but a lack of memory here is not."""

from __future__ import annotations

from typing import Any

import av.error
import pytest

import media_made
from headrace.errors import DecodeError
from headrace.samples.media import AVDecoder
from headrace.samples.media.decoding import av_decoder
from headrace.samples.media.decoding.basic import reraise

REFUSED = av.error.MemoryError(12, "Cannot allocate memory")
"""FFmpeg's, of a size in a broken header."""


def test_parts() -> None:
    with pytest.raises(DecodeError, match="part 'mp4': cannot be decoded: MemoryError"):
        reraise("mp4", REFUSED)
    with pytest.raises(MemoryError):
        reraise("mp4", MemoryError())


@pytest.mark.parametrize("error", [REFUSED, AttributeError("'AudioStream' object has no attribute 'sample_rate'")])
def test_media(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(av_decoder, "add_audio_facts", fail)
    with pytest.raises(DecodeError, match="cannot be decoded"):
        AVDecoder(media_made.sound("wav", "pcm_s16le")).get_metadata()
    error = MemoryError()
    with pytest.raises(MemoryError):
        AVDecoder(media_made.sound("wav", "pcm_s16le")).get_metadata()
