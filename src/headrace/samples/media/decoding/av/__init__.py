"""Video and sound, decoded with PyAV when they are asked for.

bytes -> AVDecoder -> get_clips, get_single_frames_uniform, ... -> AVData
"""

from __future__ import annotations

from headrace.samples.media.decoding.av.clips import get_clips_uniform, get_single_frames_uniform
from headrace.samples.media.decoding.av.data import AVData, AVMetadata
from headrace.samples.media.decoding.av.decoder import AVDecoder

__all__ = ["AVData", "AVDecoder", "AVMetadata", "get_clips_uniform", "get_single_frames_uniform"]
