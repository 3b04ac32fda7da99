"""`AVDecoder` decodes video and sound with PyAV when asked, and only as far as asked. Functions for uniform clips.

bytes -> AVDecoder -> get_clips, get_single_frames_uniform, ... -> AVData
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Literal

import numpy as np

from headrace.config import check_choice
from headrace.errors import ConfigError, DecodeError, load_extra
from headrace.samples.media.decoding.av_streams import (
    AVData,
    AVOptions,
    Clips,
    FrameReader,
    FrameTimes,
    SoundReader,
    Times,
    add_audio_facts,
    add_video_facts,
    audio_stream,
    frame_range,
    frame_times,
    open_container,
    reported_errors,
    stacked_frames,
    video_stream,
)
from headrace.samples.media.decoding.basic import MAX_PIXELS, is_out_of_memory
from headrace.samples.media.sample import AVMetadata

Range = tuple[float, float]


class AVDecoder:
    """Frames and sound of one medium. Nothing is opened before the first call; pickles as its bytes.

    A clip goes from the frame shown at its begin to the frame shown at its end, both included, so it has at least one
    frame. A clip that begins after the end of the medium is left out. Seconds count from the first frame in mp4 and
    mov, and from the container's zero in other formats. Every method raises ``DecodeError`` if the medium is broken or
    lacks the stream.

    Example:
        >>> import io, wave
        >>> from headrace.samples.media import AVDecoder
        >>> file = io.BytesIO()
        >>> with wave.open(file, "wb") as sound:
        ...     sound.setparams((1, 2, 8000, 0, "NONE", ""))
        ...     sound.writeframes(bytes(16000))
        >>> decoder = AVDecoder(file.getvalue(), arrays="numpy")
        >>> clips, times = decoder.get_audio_clips([(0.25, 0.5)])
        >>> clips[0].shape, times
        ((1, 2000), [(0.25, 0.5)])
    """

    def __init__(
        self,
        stream: bytes | BinaryIO,
        suppress_warnings: bool = False,
        *,
        arrays: Literal["torch", "numpy"] = "torch",
        max_pixels: int = MAX_PIXELS,
        options: AVOptions = AVOptions(),  # noqa: B008 (it is frozen)
    ) -> None:
        """Keep the bytes of the medium.

        Args:
            stream: The medium, or an open binary file, which is read at once.
            suppress_warnings: Accepted because Energon has it; there is nothing to warn about here.
            arrays: Whether clips are torch tensors or NumPy arrays.
            max_pixels: A video with larger frames is refused.
            options: Resampling, mono and rotation.

        Raises:
            ConfigError: If the stream is not binary.
        """
        data = stream if isinstance(stream, bytes) else stream.read()
        if not isinstance(data, bytes):
            raise ConfigError(f"the stream yields {type(data).__name__}, not bytes; open the file in binary mode")
        self.data = data
        self.suppress_warnings = suppress_warnings
        self.arrays = arrays
        self.max_pixels = max_pixels
        self.options = options
        self._times: FrameTimes | None = None

    @property
    def stream(self) -> BinaryIO:
        """A new binary stream of the bytes."""
        return io.BytesIO(self.data)

    def get_video(self) -> AVData:
        """Return all frames, without sound."""
        return self.get_clips(video_clip_ranges=[(0, float("inf"))])

    def get_audio(self) -> AVData:
        """Return all sound, without frames."""
        return self.get_clips(audio_clip_ranges=[(0, float("inf"))])

    def get_video_with_audio(self) -> AVData:
        """Return all frames and all sound."""
        return self.get_clips([(0, float("inf"))], [(0, float("inf"))])

    def get_frames(self, video_decode_audio: bool = False) -> AVData:
        """Return the frames of a video, on request with its sound, or the sound of a medium without frames."""
        if not self.has_video_stream():
            return self.get_audio()
        # A video without sound is not an error here: it is returned without sound.
        with_audio = video_decode_audio and self.has_audio_stream()
        return self.get_video_with_audio() if with_audio else self.get_video()

    def get_clips(
        self,
        video_clip_ranges: Sequence[Range] | None = None,
        audio_clip_ranges: Sequence[Range] | None = None,
        video_unit: Literal["frames", "seconds"] = "seconds",
        audio_unit: Literal["samples", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> AVData:
        """Return clips of frames, of sound, or both; what is not asked for is an empty list."""
        frames: tuple[Clips, Times] = ([], [])
        sound: tuple[Clips, Times] = ([], [])
        if video_clip_ranges is not None:
            frames = self.get_video_clips(video_clip_ranges, video_unit, video_out_frame_size)
        if audio_clip_ranges is not None:
            sound = self.get_audio_clips(audio_clip_ranges, audio_unit)
        return AVData(
            video_clips=frames[0], video_timestamps=frames[1], audio_clips=sound[0], audio_timestamps=sound[1]
        )

    def get_video_clips(
        self,
        video_clip_ranges: Sequence[Range],
        video_unit: Literal["frames", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> tuple[Clips, Times]:
        """Return clips of frames.

        Args:
            video_clip_ranges: Begin and end of each clip, the end included; it may be infinite.
            video_unit: The unit of the ranges.
            video_out_frame_size: (width, height) to scale frames to (bilinear), or None.

        Returns:
            Clips (frames, 3, H, W) uint8, and begin of the first and end of the last frame of each, in seconds.
        """
        check_choice("video_unit", video_unit, ("frames", "seconds"))
        scale: dict[str, Any] = {}
        if video_out_frame_size is not None:
            width, height = video_out_frame_size
            scale = {"width": width, "height": height, "interpolation": "BILINEAR"}
        clips: Clips = []
        times: Times = []
        with self._opened() as container:
            stream = video_stream(container)
            if stream is None:
                raise DecodeError(None, "clips of video are requested, but there is no video")
            if self._times is None:
                self._times = frame_times(container, stream, self.data)
            reader = FrameReader(container, stream, self._times, self.max_pixels)
            from_start = "mp4" in container.format.name.split(",")
            for begin, end in video_clip_ranges:
                numbers = frame_range(self._times, begin, end, video_unit, stream, from_start)
                read = stacked_frames(reader.read(numbers), len(numbers), scale, turns=self.options.rotation == "apply")
                if read is not None:
                    clips.append(self._array(read[0]))
                    times.append(read[1])
        return clips, times

    def get_audio_clips(
        self, audio_clip_ranges: Sequence[Range], audio_unit: Literal["samples", "seconds"] = "seconds"
    ) -> tuple[Clips, Times]:
        """Return clips of sound, exact to the sample.

        Args:
            audio_clip_ranges: Begin and end of each clip, the end excluded; it may be infinite.
            audio_unit: The unit of the ranges; samples are those of the result if it is resampled.

        Returns:
            Clips (channels, samples), int16 or float32 as the codec has it, and begin and end of each in seconds.
        """
        check_choice("audio_unit", audio_unit, ("samples", "seconds"))
        clips: Clips = []
        times: Times = []
        with self._opened() as container:
            stream = audio_stream(container)
            if stream is None:
                raise DecodeError(None, "clips of sound are requested, but there is no sound")
            reader = SoundReader(container, stream, self.data, self.max_pixels, self.options)
            unit = reader.rate if audio_unit == "samples" else 1
            for begin, end in audio_clip_ranges:
                found = reader.clip(begin / unit, end / unit)
                if found is not None:
                    clips.append(self._array(found[0]))
                    times.append(found[1])
        return clips, times

    def get_metadata(
        self,
        get_video: bool = True,
        get_video_duration: bool = True,
        get_video_frame_count: bool = True,
        get_video_frame_size: bool = True,
        get_audio: bool = True,
        get_audio_duration: bool = True,
        get_audio_num_samples: bool = False,
    ) -> AVMetadata:
        """Return facts about the medium.

        Args:
            get_video: Facts about the video.
            get_video_duration: The duration; if the header lacks it, all packets are read.
            get_video_frame_count: The number of frames; reads all packets.
            get_video_frame_size: Width and height; decodes the first frame.
            get_audio: Facts about the sound.
            get_audio_duration: The duration; if the header lacks it, all packets are read.
            get_audio_num_samples: The number of samples; decodes all sound.
        """
        with self._opened() as container:
            metadata = AVMetadata()
            if get_video:
                add_video_facts(
                    container,
                    metadata,
                    duration=get_video_duration,
                    count=get_video_frame_count,
                    size=get_video_frame_size,
                )
            if get_audio:
                add_audio_facts(container, metadata, duration=get_audio_duration, count=get_audio_num_samples)
            return metadata

    def verify(self) -> int:
        """Decode all frames and all sound, keep none, and return the number of frames, of sound too.

        This is stricter than reading clips: whatever FFmpeg reports as an error is a fault.
        """
        frames = 0
        with reported_errors() as errors:
            with self._opened() as container:
                stream = video_stream(container)
                if stream is not None:
                    found = frame_times(container, stream, self.data)
                    reader = FrameReader(container, stream, found, self.max_pixels)
                    frames += sum(1 for _ in reader.read(range(len(found.times))))
            with self._opened() as container:
                stream = audio_stream(container)
                if stream is not None:
                    sound = SoundReader(container, stream, self.data, self.max_pixels, self.options)
                    frames += sum(1 for _ in sound.samples_from(0, float("inf")))
            if errors:
                raise DecodeError(None, f"FFmpeg reports in {errors[0][1]}: {errors[0][2].strip()}")
        if not frames:
            raise DecodeError(None, "it holds neither a picture nor a sound")
        return frames

    def get_video_fps(self) -> float:
        """Return the average number of frames per second."""
        metadata = self.get_metadata(True, False, False, False, False)
        if metadata.video_fps is None:
            raise DecodeError(None, "the frames per second are requested, but there is no video")
        return metadata.video_fps

    def get_video_rotation(self) -> int:
        """Return by how many degrees, counterclockwise, the container says that frames are turned to be shown."""
        with self._opened() as container:
            stream = video_stream(container)
            if stream is None:
                raise DecodeError(None, "the rotation is requested, but there is no video")
            frame = next(iter(container.decode(stream)), None)
            return 0 if frame is None else int(frame.rotation)

    def get_audio_samples_per_second(self) -> int:
        """Return the number of samples of sound per second."""
        metadata = self.get_metadata(False, get_audio=True, get_audio_duration=False)
        if metadata.audio_sample_rate is None:
            raise DecodeError(None, "the samples per second are requested, but there is no sound")
        return metadata.audio_sample_rate

    def get_video_duration(self, get_frame_count: bool = False) -> tuple[float | None, int | None]:
        """Return the seconds of video and, on request, the number of frames; None for what is not there."""
        metadata = self.get_metadata(True, True, get_frame_count, False, False)
        return metadata.video_duration, metadata.video_num_frames

    def get_audio_duration(self) -> float | None:
        """Return the seconds of sound, or None if there is none."""
        return self.get_metadata(False, get_audio=True).audio_duration

    def has_video_stream(self) -> bool:
        """Return whether there are frames; the cover picture of a piece of music does not count."""
        with self._opened() as container:
            return video_stream(container) is not None

    def has_audio_stream(self) -> bool:
        """Return whether there is sound."""
        with self._opened() as container:
            return audio_stream(container) is not None

    def _array(self, array: Any) -> Any:
        if self.arrays == "numpy":
            return array
        advice = "clips as tensors need torch: pip install 'headrace[torch]', or use arrays='numpy'"
        return load_extra("torch", advice).from_numpy(array)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        container = open_container(self.data, self.max_pixels)
        try:
            yield container
        except (OSError, ValueError, MemoryError, AttributeError) as error:
            # PyAV raises these classes (AttributeError for a stream without a codec); our own errors pass through.
            if isinstance(error, (DecodeError, ConfigError)) or is_out_of_memory(error):
                raise
            raise DecodeError(None, f"cannot be decoded: {type(error).__name__}: {error}") from error
        finally:
            container.close()

    def __repr__(self) -> str:
        return f"<AVDecoder of {len(self.data):,} bytes>"


def _shortest_duration(av_decoder: AVDecoder, *, video: bool, audio: bool) -> float:
    """Return the seconds of the frames, of the sound, or of the shorter of both."""
    durations: dict[str, float | None] = {}
    if video:
        durations["video"] = av_decoder.get_video_duration()[0]
    if audio:
        durations["audio"] = av_decoder.get_audio_duration()
    for kind, found in durations.items():
        if found is None:
            raise DecodeError(None, f"clips of {kind} are requested, but no duration of {kind} is found")
    return min(found for found in durations.values() if found is not None)


def get_clips_uniform(
    av_decoder: AVDecoder,
    clip_duration_seconds: float,
    num_clips: int,
    request_video: bool = False,
    request_audio: bool = False,
    video_out_frame_size: tuple[int, int] | None = None,
) -> AVData:
    """Return clips of equal length, the first at the begin, the last at the end, and the others evenly between them.

    If frames and sound differ in length, the shorter one counts. A length of 0 means single frames, from the middle of
    the first to the middle of the last.

    Args:
        av_decoder: The medium.
        clip_duration_seconds: The length of each clip.
        num_clips: The number of clips.
        request_video: Return clips of frames.
        request_audio: Return clips of sound.
        video_out_frame_size: (width, height) to scale frames to, or None.

    Raises:
        ConfigError: If neither frames nor sound are requested, there are no clips, or the length is negative.
        DecodeError: If the medium lacks what is requested, or is shorter than a clip.
    """
    if not request_video and not request_audio:
        raise ConfigError("neither video nor audio is requested; set request_video=True, request_audio=True or both")
    if num_clips < 1 or clip_duration_seconds < 0:
        raise ConfigError(
            f"{num_clips} clips of {clip_duration_seconds} s are requested; allowed are at least one, of 0 s or more"
        )
    total = _shortest_duration(av_decoder, video=request_video, audio=request_audio)
    if clip_duration_seconds == 0 and request_video:
        half_frame = 0.5 / av_decoder.get_video_fps()
        begin, end = half_frame, total - half_frame
    else:
        begin, end = 0.0, total - clip_duration_seconds
    if end < 0:
        raise DecodeError(None, f"clips of {clip_duration_seconds} s are requested, but the medium has {total:.3f} s")
    starts = np.linspace(begin, max(begin, end), num_clips)
    ranges = [(float(start), float(start + clip_duration_seconds)) for start in starts]
    # Clips of sound begin at whole samples: otherwise some would be longer by one than others.
    rate = (av_decoder.options.sample_rate or av_decoder.get_audio_samples_per_second()) if request_audio else 1
    firsts, length = np.floor(starts * rate + 1e-6).tolist(), round(clip_duration_seconds * rate)
    return av_decoder.get_clips(
        video_clip_ranges=ranges if request_video else None,
        audio_clip_ranges=[(at / rate, (at + length) / rate) for at in firsts] if request_audio else None,
        video_out_frame_size=video_out_frame_size,
    )


def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: bool = False,
) -> Any:
    """Return frames that are spread evenly from the first to the last.

    Args:
        av_decoder: The medium.
        num_frames: The number of frames; if the video has fewer, some occur more than once.
        video_out_frame_size: (width, height) to scale frames to, or None.
        return_timestamps: Return the time of each frame too.

    Returns:
        (num_frames, 3, H, W) uint8; with ``return_timestamps``, also the seconds at which each frame begins.

    Raises:
        ConfigError: If no frames are requested.
        DecodeError: If there is no video, or it has no frames.
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


__all__ = ["AVData", "AVDecoder", "get_clips_uniform", "get_single_frames_uniform"]

AUDIO_EXTENSIONS = frozenset(("aac", "flac", "m4a", "mp3", "oga", "ogg", "opus", "wav"))
"""The extensions of sound, by the last component of a part's name, in any case."""

AV_EXTENSIONS = AUDIO_EXTENSIONS | {"mp4", "m4v", "avi", "mov", "webm", "mkv", "flv", "mpg", "mpeg"}
"""The extensions of video and sound."""


def av_decoder(form: str, *, with_audio: bool, max_pixels: int, options: AVOptions) -> Callable[[bytes], Any]:
    """Return a function that decodes the bytes of a medium.

    Args:
        form: ``AVDecoder``, ``torch``, ``numpy`` or ``pyav``.
        with_audio: Whether ``torch`` and ``numpy`` decode the sound of videos too.
        max_pixels: A video with larger frames is refused.
        options: Resampling, mono and rotation; not for ``pyav``.
    """
    if form == "pyav":
        return lambda data: open_container(data, max_pixels)
    if form == "AVDecoder":
        return lambda data: AVDecoder(data, max_pixels=max_pixels, options=options)
    arrays = "numpy" if form == "numpy" else "torch"
    return lambda data: AVDecoder(data, arrays=arrays, max_pixels=max_pixels, options=options).get_frames(with_audio)  # type: ignore[arg-type]
