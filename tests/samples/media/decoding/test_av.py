"""Clips are exactly the slices of the whole that their times say, in every container."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import av
import av.error
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import media_made
from headrace.errors import ConfigError, DecodeError, MissingExtraError
from headrace.samples.media import AVData, AVDecoder, SampleDecoder, get_clips_uniform, get_single_frames_uniform
from headrace.samples.media.decoding import av_decoder
from headrace.samples.media.decoding.av_streams import AVOptions, FrameTimes, frame_range, stacked_frames
from headrace.samples.media.decoding.resampling import resampled

INF = float("inf")
VIDEOS = {
    "mp4": ("mp4", "mpeg4"),
    "b.mp4": ("mp4", "libx264"),
    "mov": ("mov", "mpeg4"),
    "mkv": ("matroska", "libx264"),
    "webm": ("webm", "libvpx"),
    "avi": ("avi", "mpeg4"),
    "flv": ("flv", "flv1"),
}
SOUNDS = {"wav": ("wav", "pcm_s16le", 2), "flac": ("flac", "flac", 1), "mp3": ("mp3", "libmp3lame", 1)}


def video(name: str) -> bytes:
    return media_made.video(*VIDEOS[name], b_frames=2 if name == "b.mp4" else 0)


def with_sound() -> bytes:
    return media_made.video("mp4", "mpeg4", sound="aac")


def frames_of(name: str) -> np.ndarray[Any, Any]:
    """All frames as PyAV itself decodes them, (30, 3, H, W)."""
    with av.open(io.BytesIO(video(name))) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return np.stack(frames).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("name", VIDEOS)
def test_clips_by_frames_are_slices(name: str) -> None:
    whole = frames_of(name)
    ranges = [(0, 0), (3, 7), (5, 5), (12, 20), (2, 3), (25, 40), (0, INF), (29, 29), (8, 8), (7, 9), (28, 29), (0, 1)]
    clips, times = AVDecoder(video(name), arrays="numpy").get_video_clips(ranges, "frames")
    assert len(clips) == len(ranges)
    for clip, (begin, end), (shown, gone) in zip(clips, ranges, times, strict=True):
        last = int(min(end, 29))
        assert np.array_equal(clip, whole[int(begin) : last + 1])
        assert shown == pytest.approx(begin / 25, abs=1e-3)
        assert gone == pytest.approx((last + 1) / 25, abs=1e-3)


@pytest.mark.parametrize("name", VIDEOS)
def test_clips_by_seconds(name: str) -> None:
    whole = frames_of(name)
    cases = {(0, 0.1): (0, 2), (0.5, 0.9): (12, 22), (0.21, 0.21): (5, 5), (0.05, 0.3): (1, 7), (1.0, 9.0): (25, 29)}
    clips, _ = AVDecoder(video(name), arrays="numpy").get_video_clips(list(cases))
    for clip, (first, last) in zip(clips, cases.values(), strict=True):
        assert np.array_equal(clip, whole[first : last + 1])


@given(ranges=st.lists(st.tuples(st.integers(0, 29), st.integers(0, 35)).map(sorted), min_size=1, max_size=5))
@settings(max_examples=15, deadline=None)
def test_any_order_of_clips(ranges: list[list[int]]) -> None:
    ranges = [pair for pair in ranges if pair[0] < 30] or [[0, 0]]
    whole = frames_of("b.mp4")
    clips, _ = AVDecoder(video("b.mp4"), arrays="numpy").get_video_clips([(a, b) for a, b in ranges], "frames")
    assert len(clips) == len(ranges)
    for clip, (begin, end) in zip(clips, ranges, strict=True):
        assert np.array_equal(clip, whole[begin : end + 1])


class Stream(NamedTuple):
    """A stream of which only the time base is asked."""

    time_base: Fraction


@pytest.mark.parametrize(
    ("clip", "from_start", "wanted"),
    [
        ((0, 0), True, [0]),
        ((0.0, 0.0999), True, [0]),
        ((0.0, 0.1), True, [0, 1]),
        ((0.5, 0.6), True, [1]),
        ((0.99, 1.0), True, [1, 2]),
        ((0.2, INF), True, [1, 2]),
        ((1.05, 9), True, [2]),
        ((1.2, 9), True, []),
        # Without the shift, time runs from the container's zero: the first frame comes at 2 s.
        ((0, 1), False, [0]),
        ((2.5, 2.6), False, [1]),
        ((3.3, 4), False, []),
    ],
)
def test_frames_shown_at_uneven_times(clip: tuple[float, float], from_start: bool, wanted: list[int]) -> None:
    found = FrameTimes([2000, 2100, 3000], [2000], 3200)
    stream = Stream(Fraction(1, 1000))
    assert list(frame_range(found, *clip, "seconds", stream, from_start)) == wanted
    assert list(frame_range(FrameTimes([], [], 0), *clip, "seconds", stream, from_start)) == []


def test_frames_that_change_in_size() -> None:
    frames = [av.VideoFrame(64, 48, "rgb24"), av.VideoFrame(32, 48, "rgb24")]
    for number, frame in enumerate(frames):
        frame.pts, frame.time_base = number, Fraction(1, 25)
    with pytest.raises(DecodeError, match=r"64.*48.*32"):
        stacked_frames(iter(frames), 2, {})
    found = stacked_frames(iter(frames), 5, {"width": 16, "height": 8})
    assert found is not None
    assert (found[0].shape, found[1]) == ((2, 3, 8, 16), (0.0, 0.04))
    assert stacked_frames(iter([]), 3, {}) is None
    with pytest.raises(DecodeError, match=r"1,125,899,906,842,624.*64.*48"):
        stacked_frames(iter(frames), 1 << 50, {})


def test_a_clip_beyond_the_end_is_left_out() -> None:
    decoder = AVDecoder(video("mp4"))
    assert decoder.get_video_clips([(30, 40)], "frames") == ([], [])
    assert decoder.get_video_clips([(1.2, 2), (0, 0)])[1] == [(0.0, 0.04)]


@pytest.mark.parametrize("unit", ["frames", "seconds"])
@pytest.mark.parametrize("clip", [(-1, 2), (3, 2), (INF, INF), (float("nan"), 1)])
def test_impossible_clips(clip: tuple[float, float], unit: Any) -> None:
    with pytest.raises(DecodeError, match=r"0.*begins"):
        AVDecoder(video("mp4")).get_video_clips([clip], unit)
    with pytest.raises(DecodeError, match=r"0.*later"):
        AVDecoder(with_sound()).get_audio_clips([clip])


def test_scaled_frames() -> None:
    found = AVDecoder(video("mp4")).get_clips([(0, 3)], video_unit="frames", video_out_frame_size=(32, 20))
    assert found.video_clips is not None
    assert found.video_clips[0].shape == (4, 3, 20, 32)
    whole = frames_of("mp4")[:4]
    assert abs(found.video_clips[0].float().mean() - whole.mean()) < 3


@pytest.mark.parametrize("name", SOUNDS)
def test_sound(name: str) -> None:
    decoder = AVDecoder(media_made.sound(*SOUNDS[name]), arrays="numpy")
    found = decoder.get_audio()
    (whole,), ((begin, end),) = found.audio_clips, found.audio_timestamps
    assert whole.shape == (SOUNDS[name][2], 32_000)
    assert end - begin == pytest.approx(2)
    if name != "mp3":
        assert np.array_equal(whole[0], media_made.tone(2.0))
        assert np.array_equal(whole[-1], media_made.tone(2.0))
    assert not decoder.has_video_stream()
    assert decoder.has_audio_stream()
    assert decoder.get_audio_samples_per_second() == 16_000
    rate = 16_000
    for clip in [(0, 0.5), (0.3, 0.9), (0.5, INF), (0.1, 0.11), (1.1, 1.2), (1.5, 3), (0.9, 1.0)]:
        (piece,), (times,) = decoder.get_audio_clips([clip])
        first = round((max(clip[0], begin) - begin) * rate)
        last = 32_000 if clip[1] > end else round((clip[1] - begin) * rate)
        assert np.array_equal(piece, whole[:, first:last])
        assert times == pytest.approx((max(clip[0], begin), min(clip[1], end)))
    assert decoder.get_audio_clips([(9, 10)]) == ([], [])


def test_sound_by_samples() -> None:
    decoder = AVDecoder(media_made.sound("flac", "flac"))
    clips, times = decoder.get_audio_clips([(1000, 5000), (31_999, 40_000)], "samples")
    assert torch.equal(clips[0][0], torch.from_numpy(media_made.tone(2.0)[1000:5000]))
    assert clips[1].shape == (1, 1)
    assert times[0] == pytest.approx((0.0625, 0.3125))


def test_video_with_sound() -> None:
    decoder = AVDecoder(with_sound(), arrays="numpy")
    found = decoder.get_video_with_audio()
    assert found.video_clips[0].shape == (30, 3, 48, 64)
    whole = found.audio_clips[0]
    assert whole.dtype == np.float32
    tone = media_made.tone(1.2) / 32768
    assert np.abs(whole[0, 2000:18_000] - tone[2000:18_000]).mean() < 0.02
    for begin, end in [(0.1, 0.2), (0.6, 0.61), (0, 0.5)]:
        (piece,), _ = decoder.get_audio_clips([(begin, end)])
        assert np.array_equal(piece, whole[:, round(begin * 16_000) : round(end * 16_000)])


TILED = {
    **SOUNDS,
    "opus": ("ogg", "libopus", 1),
    "mkv": ("matroska", "libmp3lame", 1),
    "mka": ("matroska", "flac", 2),
}


@pytest.mark.parametrize("rate", [16_000, 22_050, 44_100])
@pytest.mark.parametrize("name", TILED)
def test_neighbouring_clips_tile_the_whole(name: str, rate: int) -> None:
    format_, codec, channels = TILED[name]
    rate = 48_000 if codec == "libopus" else rate
    data = media_made.sound(format_, codec, channels, rate=rate)
    decoder = AVDecoder(data, arrays="numpy")
    (whole,), ((begin, _),) = decoder.get_audio_clips([(0, INF)])
    assert begin == 0
    for step in (7, 40):
        clips, times = decoder.get_audio_clips([(k / step, (k + 1) / step) for k in range(2 * step + 1)])
        assert np.array_equal(np.concatenate(clips, axis=1), whole)
        assert times[step] == pytest.approx((1, 1 + 1 / step))


@pytest.mark.parametrize("name", ["flac", "wav", "mp3", "opus", "m4a"])
def test_sound_that_is_cut_or_damaged_is_an_error(name: str) -> None:
    format_, codec = {"m4a": ("ipod", "aac"), "opus": ("ogg", "libopus")}.get(name) or SOUNDS[name][:2]
    data = media_made.sound(format_, codec)
    broken = {"cut": data[: len(data) * 2 // 3]}
    if name in ("flac", "opus"):
        middle = len(data) // 2
        broken["flipped"] = (
            data[:middle] + bytes(byte ^ 0x33 for byte in data[middle : middle + 60]) + data[middle + 60 :]
        )
        broken["hole"] = data[:middle] + data[middle + 300 :]
        broken["bit"] = data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]
    assert AVDecoder(data).verify() > 10
    for kind, bytes_ in broken.items():
        for ask in (AVDecoder.verify, AVDecoder.get_audio):
            with pytest.raises(DecodeError):
                pytest.fail(f"{kind}: {ask(AVDecoder(bytes_, arrays='numpy'))}")


@pytest.mark.parametrize("stated", [0, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_wav_from_a_pipe_states_no_size(stated: int) -> None:
    data = media_made.sound("wav", "pcm_s16le")
    at = data.index(b"data") + 4
    piped = data[:at] + stated.to_bytes(4, "little") + data[at + 4 :]
    assert AVDecoder(piped, arrays="numpy").get_audio().audio_clips[0].shape == (1, 32_000)
    longer = data[:at] + (64_002).to_bytes(4, "little") + data[at + 4 :]
    with pytest.raises(DecodeError, match=r"64,000.*64,002"):
        AVDecoder(longer).get_audio()


@pytest.mark.parametrize("name", ["mkv", "webm", "flv"])
def test_a_video_that_is_cut_short_is_an_error(name: str) -> None:
    data = video(name)
    for ask in (AVDecoder.get_video, AVDecoder.verify, lambda one: one.get_video_clips([(0, 3)], "frames")):
        with pytest.raises(DecodeError, match="short"):
            ask(AVDecoder(data[: len(data) * 2 // 3], arrays="numpy"))


def test_ogg_pages_are_checked() -> None:
    data = media_made.sound("ogg", "libopus")
    second = data.index(b"OggS", 4)
    third = data.index(b"OggS", second + 4)
    with pytest.raises(DecodeError, match=r"2.*0.*missing"):
        AVDecoder(data[:second] + data[third:]).get_audio()
    with pytest.raises(DecodeError, match="checksum"):
        AVDecoder(data[:-1] + bytes([data[-1] ^ 1])).get_audio()
    with pytest.raises(DecodeError, match="damaged"):
        AVDecoder(data[:-1]).get_audio()


@pytest.mark.parametrize("part", ["ogg", "oga", "opus", "m4a", "aac", "OPUS"])
def test_these_are_sound(part: str) -> None:
    assert isinstance(SampleDecoder().decode(part, b""), AVDecoder)
    with pytest.raises(DecodeError, match="opened"):
        SampleDecoder(av_decode="numpy").decode(part, b"no sound" * 9)


@pytest.mark.parametrize("rate", [8_000, 11_025, 24_000, 44_100])
@pytest.mark.parametrize("name", ["wav", "flac", "mp3"])
def test_resampled_clips_tile_the_whole(name: str, rate: int) -> None:
    format_, codec, channels = SOUNDS[name]
    options = AVOptions(sample_rate=rate)
    decoder = AVDecoder(media_made.sound(format_, codec, channels), arrays="numpy", options=options)
    (whole,), (times,) = decoder.get_audio_clips([(0, INF)])
    assert (whole.dtype, whole.shape, times) == (np.float32, (channels, 2 * rate), (0, 2))
    clips, _ = decoder.get_audio_clips([(k / 7, (k + 1) / 7) for k in range(14)])
    assert np.array_equal(np.concatenate(clips, axis=1), whole)
    by_number, _ = decoder.get_audio_clips([(1000, 3000)], "samples")
    assert np.array_equal(by_number[0], whole[:, 1000:3000])
    assert decoder.get_audio_clips([(9, 10)]) == ([], [])
    wanted = (
        8000 / 32768 * np.sin(np.arange(2 * rate) * 2 * np.pi * 440 / rate * (1 + np.arange(2 * rate) / (2 * rate)))
    )
    assert np.abs(whole[0, 200:-200] - wanted[200:-200]).max() < (0.02 if name == "mp3" else 1e-3)


def test_resampling_is_that_of_torchaudio_by_its_formula() -> None:
    """Worked out sample by sample: sinc, Hann window of six crossings on each side, cutoff at 0.99 of half the rate."""
    sound = np.random.default_rng(0).standard_normal((1, 300)).astype(np.float32)
    for old, new in ((44_100, 16_000), (16_000, 44_100), (3, 2), (48_000, 8_000)):
        number = 300 * new // old // 2
        cutoff = 0.99 * min(old, new) / old
        at = (np.arange(300) - number * old / new) * cutoff
        weights = np.where(np.abs(at) < 6, np.sinc(at) * np.cos(at * np.pi / 12) ** 2, 0) * cutoff
        found = resampled(sound, 0, range(number, number + 1), old, new)
        assert found[0, 0] == pytest.approx(float((sound[0] * weights).sum()), abs=1e-5)


def test_mono() -> None:
    data = media_made.sound("wav", "pcm_s16le", 2)
    decoder = SampleDecoder(av_decode="numpy", av_options={"channels": "mono"})
    (clip,) = decoder.decode("wav", data).audio_clips
    assert (clip.dtype, clip.shape) == (np.float32, (1, 32_000))
    assert np.array_equal(clip[0], media_made.tone(2.0) / np.float32(32768))
    both = SampleDecoder(av_options={"channels": "mono", "sample_rate": 8000})
    assert both.config()["av_options"] == {"channels": "mono", "sample_rate": 8000}
    assert SampleDecoder(**both.config()).decode("wav", data).get_audio().audio_clips[0].shape == (1, 16_000)


def test_rotation_is_told_and_applied() -> None:
    data = video("mp4")
    plain = (0x10000).to_bytes(4, "big") + bytes(12) + (0x10000).to_bytes(4, "big")
    clockwise = (
        bytes(4) + (0x10000).to_bytes(4, "big") + bytes(4) + (-0x10000).to_bytes(4, "big", signed=True) + bytes(4)
    )
    at = data.index(plain, data.index(b"tkhd"))
    turned = data[:at] + clockwise + data[at + 20 :]
    assert AVDecoder(data).get_video_rotation() == 0
    assert AVDecoder(turned).get_video_rotation() == -90
    whole = frames_of("mp4")[:3]
    kept = SampleDecoder(av_decode="numpy").decode("mp4", turned).video_clips[0][:3]
    assert np.array_equal(kept, whole)
    upright = AVDecoder(turned, arrays="numpy", options=AVOptions(rotation="apply"))
    clip = upright.get_video_clips([(0, 2)], "frames")[0][0]
    assert np.array_equal(clip, np.rot90(whole, -1, axes=(2, 3)))
    assert upright.get_video_clips([(0, 2)], "frames", (24, 32))[0][0].shape == (3, 3, 32, 24)


def test_forms() -> None:
    data = with_sound()
    lazy = SampleDecoder().decode("MP4", data)
    assert isinstance(lazy, AVDecoder)
    assert lazy.stream.read() == data
    silent = SampleDecoder(av_decode="torch").decode("mp4", data)
    assert isinstance(silent.video_clips[0], torch.Tensor)
    assert silent.audio_clips == []
    loud = SampleDecoder(av_decode="torch", video_decode_audio=True).decode("mp4", data)
    assert loud.audio_clips[0].shape[0] == 1
    assert isinstance(SampleDecoder(av_decode="numpy").decode("mp4", data).video_clips[0], np.ndarray)
    assert SampleDecoder(av_decode="torch").decode("wav", media_made.sound("wav", "pcm_s16le")).video_clips == []
    mute = SampleDecoder(av_decode="torch", video_decode_audio=True).decode("mp4", video("mp4"))
    assert (len(mute.video_clips), mute.audio_clips) == (1, [])
    with SampleDecoder(av_decode="pyav").decode("mp4", data) as container:
        assert container.streams.video[0].frames == 30
    assert isinstance(SampleDecoder(guess_content=True).decode("blob", video("webm")), AVDecoder)


@pytest.mark.parametrize("name", VIDEOS)
def test_metadata_of_video(name: str) -> None:
    decoder = AVDecoder(video(name))
    found = decoder.get_metadata()
    assert (found.video_num_frames, found.video_width, found.video_height) == (30, 64, 48)
    assert found.video_fps == pytest.approx(25)
    assert found.video_duration == pytest.approx(1.2, abs=0.05)
    assert (found.audio_duration, found.audio_channels) == (None, None)
    assert decoder.get_video_fps() == pytest.approx(25)
    assert decoder.get_video_duration(get_frame_count=True)[1] == 30
    assert (decoder.has_video_stream(), decoder.has_audio_stream()) == (True, False)
    assert decoder.get_audio_duration() is None
    nothing = decoder.get_metadata(False, get_audio=False)
    assert (nothing.video_fps, nothing.video_width) == (None, None)


def test_uniform_frames() -> None:
    decoder = AVDecoder(video("mkv"))
    frames, times = get_single_frames_uniform(decoder, 5, return_timestamps=True)
    wanted = [0, 7, 15, 22, 29]
    assert torch.equal(frames, torch.from_numpy(frames_of("mkv")[wanted]))
    assert times == pytest.approx([number / 25 for number in wanted])
    plain = get_single_frames_uniform(AVDecoder(video("mkv"), arrays="numpy"), 2, video_out_frame_size=(8, 6))
    assert plain.shape == (2, 3, 6, 8)


def test_uniform_clips() -> None:
    decoder = AVDecoder(with_sound(), arrays="numpy")
    found = get_clips_uniform(decoder, 0.3, 3, request_video=True, request_audio=True)
    assert [clip.shape[1] for clip in found.audio_clips] == [4800, 4800, 4800]
    assert [times[0] for times in found.audio_timestamps] == pytest.approx([0, 0.45, 0.9])
    assert [len(clip) for clip in found.video_clips] == [8, 8, 8]


@pytest.mark.parametrize("options", [{}, {"sample_rate": 11_025}])
@pytest.mark.parametrize("seconds", [0.12341, 0.5 + 0.5 / 11_025])
def test_uniform_clips_of_sound_are_equally_long(options: dict[str, Any], seconds: float) -> None:
    decoder = AVDecoder(media_made.sound("wav", "pcm_s16le"), options=AVOptions(**options))
    clips = get_clips_uniform(decoder, seconds, 10, request_audio=True).audio_clips
    assert {clip.shape for clip in clips} == {(1, round(seconds * options.get("sample_rate", media_made.RATE)))}


@pytest.fixture(scope="module")
def film() -> AVDecoder:
    return AVDecoder(video("mp4"))


@pytest.fixture(scope="module")
def voice() -> AVDecoder:
    return AVDecoder(media_made.sound("wav", "pcm_s16le"))


@pytest.mark.parametrize(
    ("ask", "error", "named"),
    [
        (lambda film, voice: get_clips_uniform(film, 1, 1), ConfigError, "requested"),
        (lambda film, voice: get_clips_uniform(film, 1, 0, request_video=True), ConfigError, "0.*clips.*1"),
        (lambda film, voice: get_clips_uniform(film, 1, 1, request_audio=True), DecodeError, "duration"),
        (lambda film, voice: get_clips_uniform(film, 9, 1, request_video=True), DecodeError, r"9.*1\.200"),
        (lambda film, voice: get_single_frames_uniform(voice, 3), DecodeError, "duration"),
        (lambda film, voice: film.get_audio(), DecodeError, "sound"),
        (lambda film, voice: voice.get_video(), DecodeError, "video"),
        (lambda film, voice: voice.get_video_fps(), DecodeError, "video"),
        (lambda film, voice: voice.get_video_rotation(), DecodeError, "requested"),
        (lambda film, voice: film.get_audio_samples_per_second(), DecodeError, "sound"),
        (lambda film, voice: film.get_video_clips([(0, 1)], "samples"), ConfigError, "video_unit.*'samples'"),
        (lambda film, voice: film.get_audio_clips([(0, 1)], "frames"), ConfigError, "audio_unit.*'frames'"),
        (lambda film, voice: AVDecoder(io.StringIO("text")), ConfigError, "binary"),
    ],
)
def test_what_is_not_there_is_named(
    film: AVDecoder, voice: AVDecoder, ask: Callable[..., Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        ask(film, voice)


@pytest.mark.parametrize("data", [b"", b"hello" * 100, b"\0\0\0\x18ftypmp42" + bytes(100)])
def test_what_is_no_medium(data: bytes) -> None:
    with pytest.raises(DecodeError, match="'mp4'"):
        SampleDecoder(av_decode="torch").decode("mp4", data)
    # Lazy: nothing is wrong until it is asked for.
    lazy = SampleDecoder().decode("mp4", data)
    with pytest.raises(DecodeError, match="opened"):
        lazy.get_video()


@pytest.mark.parametrize("name", VIDEOS)
def test_flipped_and_cut_bytes_decode_or_fail(name: str) -> None:
    data = video(name)
    random = np.random.default_rng(3)
    decoder = SampleDecoder(av_decode="numpy", max_pixels=10_000)
    for round_ in range(12):
        broken = bytearray(data[: len(data) // 2] if round_ == 0 else data)
        for at in random.integers(0, len(broken), 6):
            broken[at] ^= 1 << int(random.integers(8))
        found = media_made.outcome(decoder.decode, "mp4", bytes(broken))
        assert isinstance(found, AVData) or found.part == "mp4"


def test_frames_larger_than_allowed() -> None:
    decoder = SampleDecoder(max_pixels=64 * 48 - 1).decode("mp4", video("mp4"))
    with pytest.raises(DecodeError, match=r"64.*48.*3,071"):
        decoder.get_video()
    assert SampleDecoder(max_pixels=64 * 48).decode("mp4", video("mp4")).get_video().video_clips[0].shape[0] == 30


def test_pickles_as_its_bytes() -> None:
    decoder = AVDecoder(io.BytesIO(video("mp4")))
    decoder.get_video_clips([(0, 1)], "frames")
    again = pickle.loads(pickle.dumps(decoder))
    assert again.data == video("mp4")
    assert len(again.get_video().video_clips[0]) == 30


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = AVDecoder(video("mp4"))
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "torch", None)
        with pytest.raises(MissingExtraError, match=r"headrace\[torch\]"):
            decoder.get_video()
        assert AVDecoder(video("mp4"), arrays="numpy").get_video().video_clips
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match=r"'headrace\[av\]'"):
        decoder.get_video()


REFUSED = av.error.MemoryError(12, "Cannot allocate memory")
"""FFmpeg's, of a size in a broken header."""


@pytest.mark.parametrize("error", [REFUSED, AttributeError("'AudioStream' object has no attribute 'sample_rate'")])
def test_media(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(av_decoder, "add_audio_facts", fail)
    with pytest.raises(DecodeError, match="decoded"):
        AVDecoder(media_made.sound("wav", "pcm_s16le")).get_metadata()
    error = MemoryError()  # there is not enough memory here, which says nothing of the data
    with pytest.raises(MemoryError):
        AVDecoder(media_made.sound("wav", "pcm_s16le")).get_metadata()
