"""Every form of decoding: what ours makes of a part is what Energon's makes of it."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import cbor2
import msgspec
import numpy as np
import pytest
import torch

from headrace.samples.media import SampleDecoder, get_clips_uniform, get_single_frames_uniform
from headrace.samples.media.decoding.images import IMAGE_FORMS
from interop import energon_peer
from media_made import images, sound, ten, video

pytestmark = pytest.mark.interop

FORMS = sorted(form for form in IMAGE_FORMS if not form.startswith("chw"))
VIDEOS = {
    "a.mp4": ("mp4", "mpeg4", ""),
    "b.mp4": ("mp4", "libx264", "aac"),
    "c.mkv": ("matroska", "libx264", ""),
    "d.webm": ("webm", "libvpx", ""),
    "e.mov": ("mov", "mpeg4", ""),
}
SOUNDS = {"a.wav": ("wav", "pcm_s16le", 2), "b.flac": ("flac", "flac", 1), "c.mp3": ("mp3", "libmp3lame", 1)}


def both(**options: Any) -> tuple[Any, Any]:
    peer = energon_peer.energon()
    return SampleDecoder(**options), energon_peer.quietly(lambda: peer.SampleDecoder(**options))


def decoded(decoder: Any, name: str, data: bytes) -> Any:
    return energon_peer.plain(energon_peer.quietly(decoder.decode, name, data))


@pytest.mark.parametrize("form", FORMS)
def test_images(form: str) -> None:
    ours, theirs = both(image_decode=form)
    for name, data in images().items():
        if name != "deep.png":  # all white in Energon
            assert decoded(ours, name, data) == decoded(theirs, f"k.{name}", data), name


def test_contents_are_guessed_alike() -> None:
    ours, theirs = both(guess_content=True, image_decode="rgb8")
    for name, data in images().items():
        if name not in ("bits.png", "deep.png"):
            assert decoded(ours, "part", data) == decoded(theirs, "k.part", data), name


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npz() -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, a=np.arange(5), b=np.ones((2, 3), np.float16))
    return stream.getvalue()


def pth() -> bytes:
    stream = io.BytesIO()
    torch.save({"w": torch.arange(6.0).reshape(2, 3), "n": [1, "a", None]}, stream)
    return stream.getvalue()


RECORD = {"a": [1, -2.5, None, True, "ä"], "b": {"c": []}}
BASIC = {
    "txt": "häß\n".encode(),
    "text": b"",
    "transcript": b"a b",
    "seg.en.txt": b"dots",
    "cls": b" 12\n",
    "cls2": b"-3",
    "index": b"1",
    "inx": b"2",
    "id": b"7",
    "json": json.dumps(RECORD).encode(),
    "jsn": b"123456789012345678901234567890",
    "detail.json": b'"\\ud800"',
    "mp": msgspec.msgpack.encode(RECORD),
    "msg": b"\x90",
    "cbor": cbor2.dumps(RECORD),
    "npy": npy(np.arange(12, dtype=">i2").reshape(3, 4)),
    "npz": npz(),
    "ten": ten(np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(3)),
    "pth": pth(),
    "tb": ten(np.ones((2, 2), np.uint8)),
    "json.gz": gzip.compress(b"[1]"),
    "txt.gz": gzip.compress(b"a") + gzip.compress(b"b"),
    "bin.gz": gzip.compress(b"a"),
    "TXT": b"case counts",
    "unknown": b"?",
}


@pytest.mark.parametrize("part", [part for part in BASIC if part != "cbor"])
def test_other_parts(part: str) -> None:
    ours, theirs = both()
    assert decoded(ours, part, BASIC[part]) == decoded(theirs, f"k.{part}", BASIC[part])


def test_cbor(monkeypatch: pytest.MonkeyPatch) -> None:
    """webdataset imports a package ``cbor`` that is no longer kept up; cbor2 has the function under the same name."""
    import sys

    monkeypatch.setitem(sys.modules, "cbor", cbor2)
    ours, theirs = both()
    assert decoded(ours, "cbor", BASIC["cbor"]) == decoded(theirs, "k.cbor", BASIC["cbor"])


def movie(name: str) -> bytes:
    format_, codec, voice = VIDEOS[name]
    return video(format_, codec, sound=voice)


def same_clips(ours: Any, theirs: Any, seconds: float = 1e-3) -> None:
    """Clips and their times, as ``(clips, times)``."""
    assert energon_peer.plain(ours[0]) == energon_peer.plain(theirs[0])
    assert np.ravel(ours[1]) == pytest.approx(np.ravel(theirs[1]), abs=seconds)


@pytest.mark.parametrize("name", VIDEOS)
def test_videos(name: str) -> None:
    ours, theirs = (decoder.decode(f"k.{name}", movie(name)) for decoder in both())
    mine, other = ours.get_video(), energon_peer.quietly(theirs.get_video)
    same_clips((mine.video_clips, mine.video_timestamps), (other.video_clips, other.video_timestamps))
    for ranges, unit in (([(0, 0), (3, 7), (12, 20)], "frames"), ([(0.1, 0.5), (0.6, 0.9)], "seconds")):
        same_clips(ours.get_video_clips(ranges, unit), energon_peer.quietly(theirs.get_video_clips, ranges, unit))
    assert ours.get_video_fps() == pytest.approx(theirs.get_video_fps())
    assert ours.get_video_duration()[0] == pytest.approx(theirs.get_video_duration()[0], abs=1e-3)
    peer = energon_peer.energon()
    assert torch.equal(
        get_single_frames_uniform(ours, 4), energon_peer.quietly(peer.av.get_single_frames_uniform, theirs, 4)
    )
    clips = energon_peer.quietly(
        lambda: peer.av.get_clips_uniform(theirs, num_clips=2, clip_duration_seconds=0.2, request_video=True)
    )
    mine = get_clips_uniform(ours, num_clips=2, clip_duration_seconds=0.2, request_video=True)
    same_clips((mine.video_clips, mine.video_timestamps), (clips.video_clips, clips.video_timestamps))


@pytest.mark.parametrize("name", SOUNDS)
def test_sounds(name: str) -> None:
    ours, theirs = (decoder.decode(f"k.{name}", sound(*SOUNDS[name])) for decoder in both())
    mine, other = ours.get_audio(), energon_peer.quietly(theirs.get_audio)
    # Energon counts the delay of an MP3's encoder, 1,105 samples that it does not return; ours begins at 0.
    delay = 1105 / 16_000 if name == "c.mp3" else 0
    times = [(begin + delay, end + delay) for begin, end in mine.audio_timestamps]
    same_clips((mine.audio_clips, times), (other.audio_clips, other.audio_timestamps))
    assert ours.get_audio_samples_per_second() == theirs.get_audio_samples_per_second()


def test_all_at_once() -> None:
    decoders = both(av_decode="torch", video_decode_audio=True)
    mine, other = (energon_peer.quietly(one.decode, "k.b.mp4", movie("b.mp4")) for one in decoders)
    same_clips((mine.video_clips, mine.video_timestamps), (other.video_clips, other.video_timestamps))
    # Ours is where the samples end, theirs where the container says; AAC comes in whole frames of 64 ms.
    same_clips((mine.audio_clips, mine.audio_timestamps), (other.audio_clips, other.audio_timestamps), 0.064)
    ours, theirs = both(av_decode="pyav")
    kinds = [type(decoder.decode("k.b.mp4", movie("b.mp4"))) for decoder in (ours, theirs)]
    assert kinds[0] is kinds[1]
