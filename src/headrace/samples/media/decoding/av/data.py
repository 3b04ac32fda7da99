"""What comes out of a video or a sound."""

from __future__ import annotations

from typing import Any, TypeAlias

from headrace.samples.media.sample import sample_type

Clips: TypeAlias = list[Any]
Times: TypeAlias = list[tuple[float, float]]


@sample_type
class AVData:
    """Clips of a video and of its sound.

    Attributes:
        video_clips: each (frames, 3, H, W) uint8, or None.
        video_timestamps: begin of the first and end of the last frame of each clip, in seconds, or None.
        audio_clips: each (channels, samples), int16 or float32 as the codec has it, or None.
        audio_timestamps: begin and end of each clip, in seconds, or None.
    """

    video_clips: Clips | None
    video_timestamps: Times | None
    audio_clips: Clips | None
    audio_timestamps: Times | None


@sample_type
class AVMetadata:
    """Facts of a video or a sound; None where there are none, or where they were not asked for.

    Attributes:
        video_duration: in seconds.
        video_num_frames: number of frames.
        video_fps: average frames a second.
        video_width: in pixels.
        video_height: in pixels.
        audio_duration: in seconds.
        audio_channels: number of channels.
        audio_sample_rate: samples a second.
        audio_num_samples: samples of one channel.
    """

    video_duration: float | None = None
    video_num_frames: int | None = None
    video_fps: float | None = None
    video_width: int | None = None
    video_height: int | None = None
    audio_duration: float | None = None
    audio_channels: int | None = None
    audio_sample_rate: int | None = None
    audio_num_samples: int | None = None
