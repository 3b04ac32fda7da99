"""Clips and frames spread evenly over a medium."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.errors import ConfigError, DecodeError
from headrace.samples.media.decoding.av.data import AVData
from headrace.samples.media.decoding.av.decoder import AVDecoder


def get_clips_uniform(
    av_decoder: AVDecoder,
    clip_duration_seconds: float,
    num_clips: int,
    request_video: bool = False,
    request_audio: bool = False,
    video_out_frame_size: tuple[int, int] | None = None,
) -> AVData:
    """Clips of equal length, the first at the begin and the last at the end, the others evenly between.

    Where frames and sound differ in length, the shorter one counts. A length of 0 means single frames, from the middle
    of the first to the middle of the last.

    Args:
        av_decoder: the medium.
        clip_duration_seconds: length of each clip.
        num_clips: number of clips.
        request_video: clips of frames are wanted.
        request_audio: clips of sound are wanted.
        video_out_frame_size: (width, height) to scale frames to, or None.

    Raises:
        ConfigError: neither frames nor sound are wanted, or no clips, or of negative length.
        DecodeError: what is wanted is not there, or is shorter than a clip.
    """
    if not request_video and not request_audio:
        raise ConfigError("neither video nor audio is requested; say request_video=True, request_audio=True or both")
    if num_clips < 1 or clip_duration_seconds < 0:
        raise ConfigError(f"{num_clips} clips of {clip_duration_seconds} s; at least one, of 0 s or more")
    durations = {}
    if request_video:
        durations["video"] = av_decoder.get_video_duration()[0]
    if request_audio:
        durations["audio"] = av_decoder.get_audio_duration()
    for kind, found in durations.items():
        if found is None:
            raise DecodeError(None, f"clips of {kind} are asked for, and no duration of {kind} is found")
    total = min(found for found in durations.values() if found is not None)
    if clip_duration_seconds == 0 and request_video:
        half_frame = 0.5 / av_decoder.get_video_fps()
        begin, end = half_frame, total - half_frame
    else:
        begin, end = 0.0, total - clip_duration_seconds
    if end < 0:
        raise DecodeError(None, f"clips of {clip_duration_seconds} s are asked for, of a medium of {total:.3f} s")
    starts = np.linspace(begin, max(begin, end), num_clips)
    ranges = [(float(start), float(start + clip_duration_seconds)) for start in starts]
    return av_decoder.get_clips(
        video_clip_ranges=ranges if request_video else None,
        audio_clip_ranges=ranges if request_audio else None,
        video_out_frame_size=video_out_frame_size,
    )


def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: bool = False,
) -> Any:
    """Frames spread evenly from the first to the last.

    Args:
        av_decoder: the medium.
        num_frames: number of frames; a video of fewer yields some of them twice.
        video_out_frame_size: (width, height) to scale frames to, or None.
        return_timestamps: return the time of each frame too.

    Returns:
        (num_frames, 3, H, W) uint8; with ``return_timestamps``, that and the seconds at which each frame begins.

    Raises:
        ConfigError: no frames are asked for.
        DecodeError: there is no video, or it has no frames.
    """
    found = get_clips_uniform(av_decoder, 0, num_frames, request_video=True, video_out_frame_size=video_out_frame_size)
    if not found.video_clips or found.video_timestamps is None:
        raise DecodeError(None, "the video has no frames")
    frames: Any
    if av_decoder.arrays == "numpy":
        frames = np.concatenate(found.video_clips)
    else:
        import torch

        frames = torch.cat(found.video_clips)
    return (frames, [begin for begin, _ in found.video_timestamps]) if return_timestamps else frames
