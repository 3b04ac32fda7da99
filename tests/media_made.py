"""Images, videos and sounds made for tests, small and always the same."""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import av
import numpy as np
from PIL import Image

from energon_made import PNG
from headrace.errors import DecodeError
from headrace.samples.media.decoding.images import IMAGE_FORMS

RATE = 16_000
WIDTH, HEIGHT = 64, 48


def pixels(height: int = 37, width: int = 53, seed: int = 0) -> np.ndarray[Any, Any]:
    """(height, width, 3) uint8, smooth with some noise."""
    y, x = np.mgrid[0:height, 0:width]
    smooth = np.stack([127 + 120 * np.sin(x / 9 + y / 17), 127 + 120 * np.cos(x / 13), (x * y) % 256], -1)
    noise = np.random.default_rng(seed).normal(0, 10, smooth.shape)
    return (smooth + noise).clip(0, 255).astype(np.uint8)


def encoded(image: Image.Image, format_: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format_, **options)
    return stream.getvalue()


FORMS = sorted(name for name, form in IMAGE_FORMS.items() if form.kind != "pil")
KINDS = ["colour", "grey", "tall", "png", "damaged"]


@functools.cache
def image(kind: str, seed: int) -> bytes:
    """A small picture of one of `KINDS`."""
    height, width = (24, 19) if kind == "tall" else (17, 19)
    made = Image.fromarray(pixels(height, width, seed=seed))
    if kind == "grey":
        made = made.convert("L")
    data = encoded(made, "PNG" if kind == "png" else "JPEG")
    # Bytes that belong to nothing: simplejpeg refuses them, and Pillow passes over them.
    return data[:-2] + bytes(2) + data[-2:] if kind == "damaged" else data


def as_array(made: Any) -> Any:
    return made if isinstance(made, np.ndarray) else made.numpy()


@functools.cache
def images() -> dict[str, bytes]:
    """Parts of many formats and modes."""
    colour = Image.fromarray(pixels())
    clear = colour.convert("RGBA")
    clear.putalpha(Image.fromarray(pixels()[:, :, 0]))
    deep = Image.fromarray(pixels()[:, :, 0].astype(np.uint16) * 257)
    turned = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    found = {
        "cmyk.jpg": encoded(colour.convert("CMYK"), "JPEG"),
        "grey.jpg": encoded(colour.convert("L"), "JPEG"),
        "turned.jpg": encoded(colour, "JPEG", exif=turned),
        "rgb.jpg": encoded(colour, "JPEG", keep_rgb=True),
        "alpha.png": encoded(clear, "PNG"),
        "palette.png": encoded(colour.quantize(17), "PNG"),
        "grey.png": encoded(colour.convert("L"), "PNG"),
        "deep.png": encoded(deep, "PNG"),
        "bits.png": encoded(colour.convert("1"), "PNG"),
        "clear.GIF": encoded(colour.quantize(17), "GIF", transparency=3),
        "moving.gif": encoded(colour, "GIF", save_all=True, append_images=[Image.fromarray(pixels(seed=1))]),
        "alpha.webp": encoded(clear, "WEBP", lossless=True),
        "colour.tiff": encoded(colour, "TIFF"),
        "colour.bmp": encoded(colour, "BMP"),
    }
    for subsampling in (0, 1, 2):
        for progressive in (False, True):
            name = f"s{subsampling}{'p' * progressive}.JPEG"
            found[name] = encoded(colour, "JPEG", subsampling=subsampling, progressive=progressive)
    return found


@functools.cache
def video(format_: str, codec: str, frames: int = 30, fps: int = 25, sound: str = "", b_frames: int = 0) -> bytes:
    """A moving pattern with a key frame every 8 frames, and with sound if a codec for it is named."""
    stream = io.BytesIO()
    with av.open(stream, "w", format=format_) as container:
        track: Any = container.add_stream(codec, rate=Fraction(fps))
        track.width, track.height, track.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        track.gop_size, track.codec_context.max_b_frames = 8, b_frames
        voice: Any = container.add_stream(sound, rate=RATE, layout="mono") if sound else None
        y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
        for number in range(frames):
            pattern = np.stack([(3 * x + 5 * number) % 256, (4 * y + 3 * number) % 256, 0 * x + 8 * number % 256], -1)
            frame = av.VideoFrame.from_ndarray(pattern.astype(np.uint8), "rgb24")
            container.mux(track.encode(frame))
        container.mux(track.encode(None))
        if voice:
            _speak(container, voice, frames / fps, 1)
    return stream.getvalue()


@functools.cache
def sound(format_: str, codec: str, channels: int = 1, seconds: float = 2.0, rate: int = RATE) -> bytes:
    """A rising tone."""
    stream = io.BytesIO()
    with av.open(stream, "w", format=format_) as container:
        track = container.add_stream(codec, rate=rate, layout="mono" if channels == 1 else "stereo")
        _speak(container, track, seconds, channels, rate)
    return stream.getvalue()


def tone(seconds: float, rate: int = RATE) -> np.ndarray[Any, Any]:
    """(samples,) int16: what ``sound`` is made of."""
    at = np.arange(int(seconds * rate))
    return (8000 * np.sin(at * 2 * np.pi * 440 / rate * (1 + at / len(at)))).astype(np.int16)


def _speak(container: Any, track: Any, seconds: float, channels: int, rate: int = RATE) -> None:
    samples = tone(seconds, rate)
    for begin in range(0, len(samples), 1000):
        piece = np.repeat(samples[begin : begin + 1000, None], channels, axis=1).reshape(1, -1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            frame = av.AudioFrame.from_ndarray(piece, "s16", "mono" if channels == 1 else "stereo")
        frame.sample_rate, frame.pts, frame.time_base = rate, begin, Fraction(1, rate)
        container.mux(track.encode(frame))
    container.mux(track.encode(None))


def outcome(function: Callable[..., Any], *given: Any) -> Any:
    """What a function returns, or the DecodeError that it raises."""
    try:
        return function(*given)
    except DecodeError as error:
        return error


def ten(*arrays: np.ndarray[Any, Any]) -> bytes:
    """webdataset's tensor format, written as its documentation has it."""
    data = b""
    for array in arrays:
        code = array.dtype.str[1:].encode().ljust(8, b"\0")
        header = code + bytes(8) + np.array([array.ndim, *array.shape], "<i8").tobytes()
        for chunk in (header, array.tobytes()):
            padding = -len(chunk) % 64
            data += b"~TenBin~" + len(chunk).to_bytes(8, "little") + chunk + bytes(padding)
    return data


def files() -> dict[str, bytes]:
    """A folder of media of all kinds, by name; one is broken, and one is known by its first bytes only."""
    return {
        "a/image.PNG": PNG,
        "a/grey.jpg": images()["grey.jpg"],
        "video.mp4": video("mp4", "mpeg4"),
        "sound.wav": sound("wav", "pcm_s16le", channels=2, seconds=0.5),
        "named.txt": b"no medium",
        "named.bin": PNG,
        "broken.jpg": b"\xff\xd8\xff broken",
    }
