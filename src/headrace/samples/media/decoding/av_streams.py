"""Read a container with PyAV: its frames, its sound, and facts about it.

Frames are read exactly by their time, however good the container's index is. Sound is read by the sample: a clip is
exactly the slice of the whole between its times. Facts come from the header, else from the packets, else from decoding,
as far as they are requested.

FFmpeg goes on after damage, and yields less than there was. Here damage that can be seen is an error: packets and
frames that FFmpeg marks, times that jump in sound, an end before the one that the header states, and wrong checksums
of FLAC and Ogg.
"""

from __future__ import annotations

import io
import itertools
import math
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from headrace.errors import DecodeError, load_extra
from headrace.samples.media.decoding.basic import check_pixels
from headrace.samples.media.decoding.resampling import as_floats, margin, resampled
from headrace.samples.media.sample import AVMetadata, sample_type

AUDIO_FORMATS = frozenset(("mp3", "flac", "wav", "aac", "ogg", "aiff", "w64"))
"""Containers of sound; a picture in them is a cover, not a video."""


class AVOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What becomes of sound and frames beyond their decoding.

    Attributes:
        sample_rate: Sound is resampled to so many samples a second, as float32 from -1 to 1; None keeps it.
        channels: ``mono`` averages all channels, as float32 from -1 to 1.
        rotation: ``apply`` turns frames as their container says; ``keep`` leaves them as they are stored.
    """

    sample_rate: Annotated[int, msgspec.Meta(ge=1)] | None = None
    channels: Literal["keep", "mono"] = "keep"
    rotation: Literal["keep", "apply"] = "keep"


def open_container(data: bytes, max_pixels: int) -> Any:
    """Open a container over bytes; the caller closes it.

    It uses no threads: those of FFmpeg do not survive the fork of a loader's workers, and would compete with them for
    cores.

    Raises:
        DecodeError: If FFmpeg does not recognise the medium, or its frames are larger than allowed.
        MissingExtraError: If PyAV is not installed.
    """
    av = load_extra("av", "decoding video and sound needs PyAV: pip install 'headrace[av]'")
    if data[:4] == b"OggS":
        _check_ogg(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        _check_wav(data)
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
                if codec.name == "flac":
                    # By default FFmpeg does not compare the checksums of FLAC.
                    codec.options = {"err_detect": "crccheck+explode"}
                if stream.type == "video":
                    check_pixels(codec.width, codec.height, max_pixels)
    except BaseException:
        container.close()
        raise
    return container


_REVERSED = bytes(int(f"{number:08b}"[::-1], 2) for number in range(256))
"""Each byte with its bits in reverse order."""


def _check_ogg(data: bytes) -> None:
    """Check that the pages of an Ogg file are whole and none is missing: FFmpeg leaves out those that are damaged.

    The format is that of RFC 3533. A checksum is a CRC-32 without reflection, which zlib's is of reversed bits.

    Raises:
        DecodeError: A page is damaged, cut short or missing.
    """
    numbers: dict[bytes, int] = {}
    at = 0
    while at < len(data):
        table_end = at + 27 + (data[at + 26] if at + 26 < len(data) else 0)
        end = table_end + sum(data[at + 27 : table_end])
        if data[at : at + 4] != b"OggS" or end > len(data):
            raise DecodeError(None, f"byte {at:,}: the Ogg page is damaged or cut short, of {len(data):,} bytes in all")
        page = data[at : at + 22] + bytes(4) + data[at + 26 : end]
        found = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
        if found.to_bytes(4, "big").translate(_REVERSED) != data[at + 22 : at + 26]:
            raise DecodeError(None, f"byte {at:,}: the checksum of the Ogg page differs")
        serial, number = data[at + 14 : at + 18], int.from_bytes(data[at + 18 : at + 22], "little")
        if number != numbers.get(serial, number - 1) + 1:
            raise DecodeError(
                None, f"byte {at:,}: Ogg page {number:,} follows page {numbers[serial]:,}: pages are missing"
            )
        numbers[serial] = number
        at = end


_UNKNOWN_BYTES = 0x7FFF0000
"""What a program that writes to a pipe states as the size of a WAV is at least this, or 0."""


def _check_wav(data: bytes) -> None:
    """Check that the samples of a WAV are there.

    Raises:
        DecodeError: There are fewer than its header says.
    """
    at = 12
    while data[at : at + 4] != b"data" and at < len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8 + size + size % 2
    stated, found = int.from_bytes(data[at + 4 : at + 8], "little"), len(data) - at - 8
    if found < stated < _UNKNOWN_BYTES:
        raise DecodeError(
            None, f"has {max(found, 0):,} bytes of sound, and its header says {stated:,}: it is cut short"
        )


@contextmanager
def reported_errors() -> Iterator[list[Any]]:
    """Collect what FFmpeg reports as errors in this thread, as ``ffmpeg -v error`` does; for the strictest reading."""
    from av import logging

    before = logging.get_level(), logging.get_skip_repeated()
    logging.set_level(logging.ERROR)
    logging.set_skip_repeated(False)
    try:
        with logging.Capture(local=True) as found:
            yield found
    finally:
        logging.set_level(before[0])
        logging.set_skip_repeated(before[1])


def stated_end(container: Any, stream: Any, data: bytes) -> float | None:
    """Return the seconds at which the header says that a stream ends; None if it does not, or FFmpeg only estimates it.

    In Matroska and FLV the longest stream ends there.
    """
    name: str = container.format.name
    if name == "avi" and stream.type == "video" and stream.average_rate:
        return float(stream.frames / stream.average_rate)
    if (name == "matroska,webm" and b"\x44\x89" in data[:4096]) or name == "flv":
        return None if container.duration is None else container.duration / 1e6
    begin = 10 + sum((byte & 127) << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=False))
    head = data[begin : begin + 400] if data[:3] == b"ID3" else data[:400]
    is_exact = name == "flac" or "mp4" in name or (name == "mp3" and (b"Xing" in head or b"Info" in head))
    return float(stream.duration * stream.time_base) if is_exact and stream.duration is not None else None


def check_end(stated: float | None, found: float, tolerance: float) -> None:
    """Refuse a medium that ends before the end that its header states.

    Raises:
        DecodeError: It ends more than ``tolerance`` seconds earlier.
    """
    if stated is not None and found < stated - tolerance:
        raise DecodeError(
            None, f"ends after {found:.3f} s, and its header says {stated:.3f} s: it is cut short or damaged"
        )


def video_stream(container: Any) -> Any | None:
    """Return the first stream of pictures that is not a cover, or None."""
    if container.format.name in AUDIO_FORMATS:
        return None
    return next(iter(container.streams.video), None)


def audio_stream(container: Any) -> Any | None:
    """Return the first stream of sound, or None."""
    return next(iter(container.streams.audio), None)


class FrameTimes(NamedTuple):
    """When the frames of a video are shown, in units of its time base, sorted.

    Attributes:
        times: The presentation time of each frame.
        keys: The times of the frames from which decoding may begin.
        end: The time at which the last frame ends.
    """

    times: list[int]
    keys: list[int]
    end: int


def frame_times(container: Any, stream: Any, data: bytes) -> FrameTimes:
    """Read the packets of a video without decoding them; this takes a few microseconds for each frame.

    Raises:
        DecodeError: A packet is cut short, or the medium ends before the end that its header states.
    """
    times, keys = [], []
    end, end_s = 0, 0.0
    sound = audio_stream(container)
    is_of_longest = container.format.name in ("matroska,webm", "flv")
    for packet in container.demux([stream] if sound is None else [stream, sound]):
        check_packet(packet)
        if packet.pts is None:
            continue
        packet_end = packet.pts + (packet.duration or 0)
        is_frame = packet.stream.index == stream.index
        if is_frame or is_of_longest:
            end_s = max(end_s, float(packet_end * packet.time_base))
        if not is_frame:
            continue
        times.append(packet.pts)
        if packet.is_keyframe:
            keys.append(packet.pts)
        end = max(end, packet_end)
    times.sort()
    keys.sort()
    check_end(stated_end(container, stream, data), end_s, 2 / (stream.average_rate or 25))
    return FrameTimes(times, keys, end)


def check_packet(packet: Any) -> None:
    """Refuse a packet that FFmpeg has marked.

    Raises:
        DecodeError: It is marked.
    """
    # The last packet of a WAV may be shorter than FFmpeg expects; `_check_wav` has looked at the sizes.
    if packet.is_corrupt and not packet.stream.codec_context.name.startswith("pcm_"):
        raise DecodeError(None, f"a packet of {packet.stream.type} is damaged or cut short: byte {packet.pos or 0:,}")


def frame_range(found: FrameTimes, first: float, last: float, unit: str, stream: Any, from_start: bool) -> range:
    """Return the numbers of the frames of a clip: from the one shown at ``first`` to the one shown at ``last``.

    A clip has at least one frame, or none if it begins after the end. With frames at 0, 1/30, 2/30 ... s, the clip
    (0.05 s, 0.1 s) has the frames 1, 2 and 3.

    Args:
        found: See ``frame_times``.
        first: The begin of the clip.
        last: Its end, inclusive; may be infinite.
        unit: ``frames`` or ``seconds``.
        stream: The stream, for its time base.
        from_start: Whether seconds count from the first frame instead of from the container's zero.

    Raises:
        DecodeError: If the clip ends before it begins, or begins before 0.
    """
    if not 0 <= first <= last or math.isinf(first):
        raise DecodeError(
            None, f"a clip from {first} to {last} {unit}: it must begin at 0 or later, and not end before it begins"
        )
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
    frames: Iterator[Any], count: int, scale: dict[str, Any], *, turns: bool = False
) -> tuple[np.ndarray[Any, Any], tuple[float, float]] | None:
    """Return frames as one array. Each is written to its place, so memory holds only one frame more than the clip.

    Args:
        frames: PyAV's frames.
        count: The most frames that there may be.
        scale: Further arguments of ``reformat``.
        turns: Whether frames are turned as their container says.

    Returns:
        (frames, 3, H, W) uint8, a view of (frames, H, W, 3), and begin of the first and end of the last frame in
        seconds; None if there are no frames.

    Raises:
        DecodeError: If frames change in size and are not scaled to one size, or there is no memory for the clip.
    """
    clip: np.ndarray[Any, Any] | None = None
    begin = end = 0.0
    found = 0
    for found, frame in enumerate(itertools.islice(frames, count), 1):
        quarters = round(frame.rotation / 90) % 4 if turns else 0
        sizes = {"width": scale["height"], "height": scale["width"]} if scale and quarters % 2 else {}
        pixels = np.rot90(frame.reformat(format="rgb24", **{**scale, **sizes}).to_ndarray(), quarters)
        shown = float(frame.pts * frame.time_base)
        if clip is None:
            clip = _room(count, pixels.shape)
            begin = shown
        if pixels.shape != clip.shape[1:]:
            found_sizes = f"{clip.shape[2]} x {clip.shape[1]} to {pixels.shape[1]} x {pixels.shape[0]}"
            raise DecodeError(
                None, f"the frames change from {found_sizes} pixels; set video_out_frame_size=(width, height)"
            )
        clip[found - 1] = pixels
        end = shown + float((frame.duration or 0) * frame.time_base)
    return None if clip is None else (clip[:found].transpose(0, 3, 1, 2), (begin, end))


def _room(count: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    try:
        return np.empty((count, *shape), np.uint8)
    except (MemoryError, ValueError):
        # NumPy raises ValueError for more bytes than can be addressed.
        raise DecodeError(
            None,
            f"the clip of {count:,} frames of {shape[1]} x {shape[0]} pixels takes {count * math.prod(shape):,} bytes, "
            "for which there is not enough memory; request shorter clips or smaller frames",
        ) from None


class FrameReader:
    """Reads ranges of frames from one open container, forward if possible, otherwise after a seek to a key frame."""

    def __init__(self, container: Any, stream: Any, found: FrameTimes, max_pixels: int) -> None:
        self._container = container
        self._stream = stream
        self._found = found
        self._max_pixels = max_pixels
        self._frames: Iterator[Any] = iter(())
        self._is_open = False
        # The number of the frame that the iterator yields next, unless frames are missing.
        self._next = 0

    def read(self, numbers: range) -> Iterator[Any]:
        """Yield the frames with consecutive numbers, in order.

        Raises:
            DecodeError: If a frame is missing, or larger than allowed.
        """
        if not numbers:
            return
        times = self._found.times
        begin, end = times[numbers[0]], times[numbers[-1]]
        num_read = 0
        for frame in self._from(numbers[0]):
            check_pixels(frame.width, frame.height, self._max_pixels)
            self._next = bisect_right(times, frame.pts)
            if frame.pts >= begin:
                if frame.is_corrupt:
                    raise DecodeError(None, f"frame {self._next - 1:,} is damaged")
                num_read += 1
                yield frame
            if frame.pts >= end:
                return
        raise DecodeError(
            None, f"the video has no frame {numbers[num_read]:,}, though its packets list it; it is cut short"
        )

    def _from(self, number: int) -> Iterator[Any]:
        """Yield frames, beginning with one that is not after frame ``number``."""
        times, keys = self._found.times, self._found.keys
        at = bisect_right(keys, times[number]) - 1
        key = keys[at] if at >= 0 else times[0]
        if not self._is_open or number < self._next or bisect_left(times, key) > self._next:
            for back in range(at, -2, -1):
                # A seek uses times of decoding and may land too late; then try the key frame before.
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


_PREROLL_S = {"opus": 1.0, "libopus": 1.0}
"""Seconds that are decoded and discarded before a clip, else 0.25: packets of lossy codecs overlap, so the first
samples after a seek are wrong.
"""


class SoundReader:
    """Reads clips of sound from an open container. Their samples are numbered from time 0.

    Without a video, sample 0 is the first that there is: the delay of the encoder, which FFmpeg leaves out of an MP3,
    does not count. With a video, time 0 is that of the container.

    Raises:
        DecodeError: If the sound has no samples, or no times.
    """

    def __init__(self, container: Any, stream: Any, data: bytes, max_pixels: int, options: AVOptions) -> None:
        self.rate: int = options.sample_rate or stream.sample_rate
        self._options = options
        self._container = container
        self._stream = stream
        self._data = data
        self._max_pixels = max_pixels
        self._rate: int = stream.sample_rate
        self._stated = stated_end(container, stream, data)
        self._zero = self._grid = 0
        # Where times are coarser than samples (1 ms in Matroska), samples are counted: from a frame after which all
        # have one length, or else from the first.
        self._is_coarse = stream.time_base * self._rate > 1
        variable = stream.codec_context.name in ("vorbis", "libvorbis")
        self._frame_samples = 0 if variable else stream.codec_context.frame_size or 0
        is_alone = self._is_alone = video_stream(container) is None
        if is_alone or self._is_coarse:
            # In a container of its own: what a decoder of AAC yields depends on all that it has decoded before.
            with open_container(data, max_pixels) as other:
                first = next(other.decode(audio_stream(other)), None)
            if first is None:
                raise DecodeError(None, "the sound has no samples")
            if first.pts is None:
                raise DecodeError(None, "the sound has no timestamps")
            self._zero = self._number(first) if is_alone else 0
            self._grid = self._number(first) + first.samples

    def _number(self, frame: Any) -> int:
        number: int = round(frame.pts * frame.time_base * self._rate)
        return number

    def clip(self, begin_s: float, end_s: float) -> tuple[Any, tuple[float, float]] | None:
        """Return the sound between two times.

        Returns:
            (channels, samples) in the codec's own dtype, and its begin and end in seconds, which lie within the sound;
            None if there is no sound between the times.

        Raises:
            DecodeError: If the clip ends before it begins, or begins before 0; the sound is damaged or cut short.
        """
        if not 0 <= begin_s <= end_s or math.isinf(begin_s):
            raise DecodeError(
                None,
                f"a clip from {begin_s} to {end_s} seconds: it must begin at 0 or later, and not end before it begins",
            )
        rate = self.rate
        wanted = round(begin_s * rate)
        until = math.inf if math.isinf(end_s) else round(end_s * rate)
        found = self._slice(wanted, until) if rate == self._rate else self._resampled(wanted, until)
        if found is None:
            return None
        first, clip = found
        last = first + clip.shape[1]
        if self._options.channels == "mono":
            clip = as_floats(clip).mean(axis=0, keepdims=True)
        return clip, (begin_s if first == wanted else first / rate, end_s if last == until else last / rate)

    def _resampled(self, wanted: int, until: float) -> tuple[int, Any] | None:
        """Return samples of the result, and the number of the first."""
        old, new = self._rate, self.rate
        low = max(wanted * old // new - margin(old, new), 0)
        high = until if math.isinf(until) else int(until) * old // new + margin(old, new) + 1
        found = self._slice(low, high)
        if found is None:
            return None
        first, samples = found
        begin = wanted if first == low else max(wanted, -(-first * new // old))
        numbers = range(begin, int(min(until, -(-(first + samples.shape[1]) * new // old))))
        return (begin, resampled(as_floats(samples), first, numbers, old, new)) if numbers else None

    def _slice(self, wanted: int, until: float) -> tuple[int, Any] | None:
        """Return the samples of a range that there are, and the number of the first; None if there are none."""
        pieces: list[Any] = []
        first = wanted
        for begin, samples in self.samples_from(wanted / self._rate, until):
            end = begin + samples.shape[1]
            left, right = max(wanted - begin, 0), int(min(end, until)) - begin
            if right > left:
                if not pieces:
                    first = begin + left
                pieces.append(samples[:, left:right])
        return (first, np.concatenate(pieces, axis=1)) if pieces else None

    def samples_from(self, begin_s: float, until: float) -> Iterator[tuple[int, Any]]:
        """Yield the samples of each frame, (channels, samples), and the number of the first of them.

        Args:
            begin_s: The time from which on they are right; earlier ones may come before.
            until: The number of the sample to stop at; may be infinite.

        Raises:
            DecodeError: If the sound is damaged or cut short.
        """
        stream, rate = self._stream, self._rate
        begin = begin_s + self._zero / rate - _PREROLL_S.get(stream.codec_context.name, 0.25)
        if self._is_coarse and not self._frame_samples:
            begin = 0
        target = max(int(begin / stream.time_base), 0)
        # A film's sound stays equal to that of Energon, which seeks to 0, too: the first frame of AAC is silent then.
        if target > 0 or not (self._is_alone or self._is_coarse):
            self._container.seek(target, stream=stream, backward=True)
            yield from self._decoded(self._container, begin_s, until)
            return
        # A seek to 0 may pass over the first packet in Matroska.
        with open_container(self._data, self._max_pixels) as container:
            yield from self._decoded(container, begin_s, until)

    def _decoded(self, container: Any, begin_s: float, until: float) -> Iterator[tuple[int, Any]]:
        stream: Any = audio_stream(container)
        rate = self._rate
        position: int | None = None
        due = 0.0
        for packet in container.demux(stream):
            check_packet(packet)
            for frame in packet.decode():
                found = None if frame.pts is None else self._number(frame)
                if position is None:
                    if found is None:
                        raise DecodeError(None, "the sound has no timestamps")
                    position = found - self._zero
                elif found is not None and abs(found - due) > max(frame.samples // 2, stream.time_base * rate + 1):
                    raise DecodeError(
                        None, f"{found - due:,.0f} samples are missing at {due / rate:.3f} s: the sound is damaged"
                    )
                # Later frames follow without gaps; their own times are rounded to the container's unit. FFmpeg may have
                # cut the first one after a seek.
                if found is not None and self._is_coarse and frame.samples == self._frame_samples:
                    steps = round((found - self._grid) / frame.samples)
                    position = self._grid + steps * frame.samples - self._zero
                due = (due if found is None else found) + frame.samples
                yield position, _samples(frame)
                position += frame.samples
                if position >= until:
                    return
        lossless = stream.codec_context.name == "flac"
        frame_s = (self._frame_samples or 1152) / rate
        end_s = begin_s if position is None else position / rate
        check_end(self._stated, end_s + self._zero / rate, 0 if lossless else 2 * frame_s)


def _samples(frame: Any) -> Any:
    """Return the samples of a frame, (channels, samples), whether its channels are planar or interleaved."""
    values = frame.to_ndarray()
    if frame.format.is_planar:
        return values
    return values.reshape(frame.samples, frame.layout.nb_channels).T


Clips: TypeAlias = list[Any]
Times: TypeAlias = list[tuple[float, float]]


@sample_type
class AVData:
    """Clips of a video and of its sound.

    Attributes:
        video_clips: Each (frames, 3, H, W) uint8, or None.
        video_timestamps: Begin of the first and end of the last frame of each clip, in seconds, or None.
        audio_clips: Each (channels, samples), int16 or float32 as the codec has it, or None.
        audio_timestamps: Begin and end of each clip, in seconds, or None.
    """

    video_clips: Clips | None
    video_timestamps: Times | None
    audio_clips: Clips | None
    audio_timestamps: Times | None


def add_video_facts(container: Any, metadata: AVMetadata, *, duration: bool, count: bool, size: bool) -> None:
    """Fill in the facts about the video, if there is one."""
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
    """Fill in the facts about the sound, if there is any."""
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
                # Decoded frames are more reliable than the header.
                length = int((frame.pts + frame.duration) * frame.time_base / stream.time_base)
    metadata.audio_duration = _seconds(stream, length)


def _packets(container: Any, stream: Any) -> tuple[int, int | None]:
    """Return the number of packets, and the time at which the last of them ends, in units of the time base."""
    number, end = 0, None
    for packet in container.demux(stream):
        if packet.pts is not None:
            number += 1
            end = max(end or 0, packet.pts + (packet.duration or 0))
    return number, end


def _seconds(stream: Any, length: int | None) -> float | None:
    if length is None:
        return None
    # As in Energon: the container's duration, minus its start time.
    return float((length - (stream.start_time or 0)) * stream.time_base)
