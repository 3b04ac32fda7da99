"""Pictures, sounds and films of all kinds, whole and damaged, beside what Pillow, PyAV and soundfile make of them.

What ours decodes is equal to theirs; everything else is refused. The check names each part that any of them refuses.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import av
import numpy as np
import pytest
from PIL import Image

import energon_made
import media_made
from counts import cases
from headrace.errors import DecodeError
from headrace.inspect.sample_checks import SampleCheck, check_samples
from headrace.samples.media import AVDecoder, SampleDecoder

Array = np.ndarray[Any, Any]
GREY: Final = media_made.pixels()[:, :, 0]
TURNED: Final = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"


def _pictures() -> dict[str, Callable[[], bytes]]:
    """Makers of pictures, by a name that ends in the extension."""
    colour = Image.fromarray(media_made.pixels())
    deep = Image.fromarray(GREY.astype(np.uint16) * 256 + 7)
    floats = Image.fromarray(GREY.astype(np.float32) / 255)
    profile = b"not a real profile" * 20
    made: dict[str, tuple[Image.Image, str, dict[str, Any]]] = {
        "deep.png": (deep, "PNG", {}),
        "deep.tiff": (deep, "TIFF", {}),
        "floats.tiff": (floats, "TIFF", {}),
        "metres.tiff": (Image.fromarray(GREY.astype(np.float32)), "TIFF", {}),
        "numbers.tiff": (Image.fromarray(GREY.astype(np.int32)), "TIFF", {}),
        "deep.pgm": (deep, "PPM", {}),
        "deep.jp2": (deep, "JPEG2000", {}),
        "grey.jp2": (colour.convert("L"), "JPEG2000", {}),
        "turned.tif": (colour, "TIFF", {"exif": TURNED}),
        "turned.webp": (colour, "WEBP", {"exif": TURNED}),
        "profile.jpg": (colour, "JPEG", {"icc_profile": profile, "exif": TURNED}),
        "profile.png": (colour, "PNG", {"icc_profile": profile, "exif": TURNED}),
        "lossy.webp": (colour, "WEBP", {}),
        "two.png": (colour.convert("LA"), "PNG", {}),
        "colour.ppm": (colour, "PPM", {}),
    }
    if "AVIF" in Image.OPEN or find_spec("PIL.AvifImagePlugin"):
        made["colour.avif"] = (colour, "AVIF", {})
        made["turned.avif"] = (colour, "AVIF", {"exif": TURNED})
    makers: dict[str, Callable[[], bytes]] = {
        name: functools.partial(lambda image, form, options: media_made.encoded(image, form, **options), *how)
        for name, how in made.items()
    }
    known = media_made.images()
    return makers | {name: functools.partial(known.__getitem__, name) for name in known}


VOICES: Final = {
    "plain.wav": ("wav", "pcm_s16le"),
    "long.wav": ("wav", "pcm_s24le"),
    "floats.wav": ("wav", "pcm_f32le"),
    "law.wav": ("wav", "pcm_mulaw"),
    "tone.flac": ("flac", "flac"),
    "tone.mp3": ("mp3", "libmp3lame"),
    "tone.opus": ("ogg", "libopus"),
    "flac.ogg": ("ogg", "flac"),
    "tone.m4a": ("ipod", "aac"),
    "tone.aac": ("adts", "aac"),
}
FILMS: Final = {
    "h264.mp4": ("mp4", "libx264", "aac"),
    "quiet.mp4": ("mp4", "mpeg4", ""),
    "film.mov": ("mov", "mpeg4", ""),
    "film.mkv": ("matroska", "libx264", ""),
    "loud.mkv": ("matroska", "libx264", "libmp3lame"),
    "film.webm": ("webm", "libvpx", ""),
    "film.avi": ("avi", "mpeg4", ""),
    "film.flv": ("flv", "flv1", ""),
    "film.mpg": ("mpeg", "mpeg1video", ""),
}
PICTURES: Final = _pictures()
NAMES: Final = [*PICTURES, *VOICES, *FILMS]


@functools.cache
def whole(name: str) -> bytes:
    if name in PICTURES:
        return PICTURES[name]()
    if name in VOICES:
        return media_made.sound(*VOICES[name], channels=1 + (name == "tone.flac"), seconds=1.0)
    format_, codec, voice = FILMS[name]
    return media_made.video(format_, codec, sound=voice)


def damaged(name: str, number: int) -> bytes:
    """The file as it is in the first round; then with a byte changed at every tenth of it, cut, or with a hole."""
    data = bytearray(whole(name))
    random = np.random.default_rng(number)
    round_ = number // len(NAMES)
    if round_ % 4 == 1:
        for at in range(int(random.integers(10)) * len(data) // 100, len(data), max(1, len(data) // 10)):
            data[at] ^= 1 << int(random.integers(8))
    elif round_ % 4 == 2:
        del data[int(random.integers(len(data) // 2, len(data))) :]
    elif round_ % 4 == 3:
        at = int(random.integers(len(data)))
        data[at : at + 60] = bytes(byte ^ 0x33 for byte in data[at : at + 60])
    elif round_:
        at = int(random.integers(len(data)))
        del data[at : at + len(data) // 20]
    return bytes(data)


def of_pillow(data: bytes) -> Array | Exception:
    """RGB as Pillow converts it, but 16 bits by their high byte and floats as parts of one."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
                image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
            elif image.mode == "F":
                deep = np.rint(np.asarray(image) * np.float32(65535)).astype(np.uint16)
                image = Image.fromarray((deep >> 8).astype(np.uint8))
            return np.asarray(image.convert("RGB"))
    except Exception as error:
        return error


def of_pyav(data: bytes, kind: str) -> list[Array] | Exception:
    try:
        with av.open(io.BytesIO(data)) as container:
            stream: Any = getattr(container.streams, kind)[0]
            stream.codec_context.thread_type = "NONE"
            if kind == "video":
                return [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
            frames = list(container.decode(stream))
            return [
                frame.to_ndarray().reshape(frame.samples, -1).T if not frame.format.is_planar else frame.to_ndarray()
                for frame in frames
            ]
    except Exception as error:
        return error


def soundfile_refuses(data: bytes) -> bool:
    if find_spec("soundfile") is None:
        return False
    import soundfile

    try:
        soundfile.read(io.BytesIO(data))
    except soundfile.LibsndfileError:
        return True
    return False


def same_sound(ours: Array | DecodeError, theirs: list[Array] | Exception) -> bool:
    if isinstance(ours, DecodeError) or isinstance(theirs, Exception) or not theirs:
        return isinstance(ours, DecodeError)
    joined = np.concatenate(theirs, axis=1)
    # Samples before time 0 of a film's container are not part of any clip.
    return ours.dtype == joined.dtype and np.array_equal(ours, joined[:, joined.shape[1] - ours.shape[1] :])


def sound_of(data: bytes) -> Array:
    clips, _ = AVDecoder(data, arrays="numpy").get_audio_clips([(0, float("inf"))])
    return clips[0]


def frames_of(data: bytes) -> Array:
    clips, _ = AVDecoder(data, arrays="numpy").get_video_clips([(0, float("inf"))])
    return clips[0].transpose(0, 2, 3, 1)


NUMBERS: Final = range(cases(2 * len(NAMES), max(500, 6 * len(NAMES))))
ALLOWED_REFUSALS: Final = ("metres.tiff", "numbers.tiff")
"""Whole, but nothing says which value is white."""


@pytest.mark.parametrize("name", NAMES)
def test_equal_or_refused(name: str) -> None:
    decoder = SampleDecoder(image_decode="rgb8")
    for number in NUMBERS[NAMES.index(name) :: len(NAMES)]:
        data = damaged(name, number)
        is_whole = number < len(NAMES)
        if name in PICTURES:
            ours, theirs = media_made.outcome(decoder.decode, name, data), of_pillow(data)
            equal = isinstance(theirs, np.ndarray) and np.array_equal(ours, theirs)
            assert isinstance(ours, DecodeError) or equal, number
            refused = isinstance(ours, DecodeError)
            assert not (is_whole and refused) or name in ALLOWED_REFUSALS, ours
            continue
        if name in VOICES:
            ours, theirs = media_made.outcome(sound_of, data), of_pyav(data, "audio")
            assert same_sound(ours, theirs), number
        else:
            ours, theirs = media_made.outcome(frames_of, data), of_pyav(data, "video")
            equal = isinstance(theirs, list) and len(theirs) > 0 and np.array_equal(ours, np.stack(theirs))
            assert isinstance(ours, DecodeError) or equal, number
        assert not (is_whole and isinstance(ours, DecodeError)), ours
        if is_whole and name in FILMS and FILMS[name][2]:
            found, theirs = media_made.outcome(sound_of, data), of_pyav(data, "audio")
            silent = 1024 if name == "h264.mp4" else 0  # after the seek, as in Energon
            assert isinstance(theirs, list)
            assert same_sound(found[:, silent:], [np.concatenate(theirs, axis=1)[:, silent:]])


def test_the_check_finds_what_any_of_them_finds(tmp_path: Path) -> None:
    members, wanted, sound = [], set(), set()
    for number in NUMBERS:
        name = NAMES[number % len(NAMES)]
        data = damaged(name, number)
        key, extension = f"{number:04d}", name.rpartition(".")[2]
        members.append((f"{key}.{extension}", data))
        if name in PICTURES:
            refused = isinstance(of_pillow(data), Exception)
        elif name in VOICES:
            refused = isinstance(of_pyav(data, "audio"), Exception) or (
                soundfile_refuses(data) and not soundfile_refuses(whole(name))
            )
        else:
            refused = isinstance(of_pyav(data, "video"), Exception)
        if refused:
            wanted.add(key)
        elif number < len(NAMES) and name not in ALLOWED_REFUSALS:
            sound.add(key)
    energon_made.write_tar(tmp_path / "x.tar", members)
    check = SampleCheck(decode=True, workers=1)
    verdict = check_samples(str(tmp_path), check, on_progress=lambda *_, **__: None)
    assert verdict.decoded is not None
    found = {sample.key for sample in verdict.decoded.bad}
    assert wanted <= found, sorted((key, NAMES[int(key) % len(NAMES)]) for key in wanted - found)
    assert not sound & found, sorted((key, NAMES[int(key) % len(NAMES)]) for key in sound & found)
    assert verdict.decoded.kept_parts == {}
