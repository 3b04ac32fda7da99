"""Facts of a medium: from its header, else from its packets, else by decoding, as far as is asked for."""

from __future__ import annotations

from typing import Any

from headrace.samples.media.decoding.av.container import audio_stream, video_stream
from headrace.samples.media.decoding.av.data import AVMetadata


def add_video_facts(container: Any, metadata: AVMetadata, *, duration: bool, count: bool, size: bool) -> None:
    """Fill in what is known of the video, if there is one."""
    stream = video_stream(container)
    if stream is None:
        return
    length = stream.duration
    if count or (duration and length is None):
        metadata.video_num_frames, end = _packets(container, stream)
        length = end if length is None else length
    metadata.video_duration = _seconds(stream, length)
    if stream.average_rate:
        metadata.video_fps = float(stream.average_rate)
    elif metadata.video_num_frames and metadata.video_duration:
        metadata.video_fps = metadata.video_num_frames / metadata.video_duration
    if size:
        container.seek(0)
        # The first frame rather than the header: the two may differ, and the frame is what is decoded.
        shown = next(iter(container.decode(stream)), stream)
        metadata.video_width, metadata.video_height = shown.width, shown.height


def add_audio_facts(container: Any, metadata: AVMetadata, *, duration: bool, count: bool) -> None:
    """Fill in what is known of the sound, if there is any."""
    stream = audio_stream(container)
    if stream is None:
        return
    metadata.audio_sample_rate = stream.sample_rate
    metadata.audio_channels = stream.channels
    length = stream.duration
    if duration and length is None:
        container.seek(0)
        _, length = _packets(container, stream)
    if count:
        container.seek(0)
        metadata.audio_num_samples = 0
        for frame in container.decode(stream):
            metadata.audio_num_samples += frame.samples
            if frame.pts is not None and frame.duration:
                # What was decoded tells more than what the header says.
                length = int((frame.pts + frame.duration) * frame.time_base / stream.time_base)
    metadata.audio_duration = _seconds(stream, length)


def _packets(container: Any, stream: Any) -> tuple[int, int | None]:
    """Number of packets, and when the last of them ends, in units of the time base."""
    number, end = 0, None
    for packet in container.demux(stream):
        if packet.pts is not None:
            number += 1
            end = max(end or 0, packet.pts + (packet.duration or 0))
    return number, end


def _seconds(stream: Any, length: int | None) -> float | None:
    if length is None:
        return None
    # As Energon: what the container calls duration, less where it begins.
    return float((length - (stream.start_time or 0)) * stream.time_base)
