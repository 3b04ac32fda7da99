"""What can be said of the bytes of a part, and the picture of it, if it has one."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from headrace.errors import HeadraceError
from headrace.samples.media import AVDecoder, SampleDecoder
from headrace.samples.media.decoding.av_decoder import AV_EXTENSIONS
from headrace.samples.media.decoding.failing import reraise
from headrace.samples.media.decoding.images import IMAGE_EXTENSIONS

Kind = Literal["image", "video", "audio", "text", "number", "json", "array", "bytes"]
Picture = Any
"""A ``PIL.Image.Image`` of mode RGB."""

MAX_PIXELS_SIDE: Final = 1024
"""Pictures are made smaller than this before they are kept."""

_TEXT_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = 32
_LINE_CHARS: Final = 100
_LIST_OF_NUMBERS: Final = re.compile(r"\[\n\s+([-+.\deE]+(?:,\n\s+[-+.\deE]+)*)\n\s*\]")
"""Line breaks are never within a text of JSON, so that this is one indeed."""


class ShownPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part."""

    name: str
    size: int
    kind: Kind
    text: str = ""
    """Text, number, JSON on several lines, numbers of an array; of unknown bytes the first in hexadecimal."""

    left_out: int = 0
    """Characters of the text that are not shown."""

    facts: dict[str, int | float | str] = {}
    """Of pictures, video and sound: width, height, seconds, ...; of arrays dtype and shape."""

    error: str = ""
    """Why it cannot be decoded."""


class LookedAt(NamedTuple):
    """A part, what it decodes to, and its picture, scaled down; of a video its first frame."""

    shown: ShownPart
    value: Any = None
    picture: Picture | None = None
    error: HeadraceError | None = None


class PartViewer:
    """Looks at parts, decoded as training decodes them by their names; pickles are not read.

    Args:
        max_chars: of each text so many characters are kept.
        pictures: make pictures of images and videos.
    """

    def __init__(self, *, max_chars: int, pictures: bool = True) -> None:
        self._decoder = SampleDecoder(image_decode="pil")
        self._max_chars = max_chars
        self._pictures = pictures

    def look(self, name: str, data: bytes) -> LookedAt:
        """One part. What is wrong with it is said there, not raised."""
        known = _kind_of(name)
        try:
            value = self._decoder.decode(name, data)
            if known == "image":
                return self._image(name, data, value)
            if isinstance(value, AVDecoder):
                return self._media(name, value)
        except HeadraceError as error:
            reason = getattr(error, "reason", None) or str(error)
            shown = ShownPart(name=name, size=len(data), kind=known or "bytes", error=reason)
            return LookedAt(shown, error=error)
        return self._value(name, data, value)

    def _image(self, name: str, data: bytes, image: Picture) -> LookedAt:
        facts: dict[str, int | float | str] = {"width": image.width, "height": image.height}
        shown = ShownPart(name=name, size=len(data), kind="image", facts=facts)
        return LookedAt(shown, image, _smaller(image) if self._pictures else None)

    def _media(self, name: str, decoder: AVDecoder) -> LookedAt:
        """Facts and first frame of a medium, which is opened only now.

        Raises:
            HeadraceError: it is broken.
        """
        try:
            return self._opened_media(name, AVDecoder(decoder.data, arrays="numpy"))
        except Exception as error:  # of a broken medium PyAV raises what it likes
            reraise(name, error)

    def _opened_media(self, name: str, media: AVDecoder) -> LookedAt:
        metadata = media.get_metadata()
        facts = {name: value for name, value in dataclasses.asdict(metadata).items() if value is not None}
        kind: Kind = "video" if media.has_video_stream() else "audio"
        picture = None
        if kind == "video" and self._pictures:
            clips, _ = media.get_video_clips([(0, 0)], "frames")
            if clips and len(clips[0]):
                import PIL.Image

                picture = _smaller(PIL.Image.fromarray(np.ascontiguousarray(clips[0][0].transpose(1, 2, 0))))
        shown = ShownPart(name=name, size=len(media.data), kind=kind, facts=facts)
        return LookedAt(shown, media, picture)

    def _value(self, name: str, data: bytes, value: Any) -> LookedAt:
        kind, text, facts = _described(value)
        left_out = max(0, len(text) - self._max_chars)
        text = text[: self._max_chars]
        return LookedAt(
            ShownPart(name=name, size=len(data), kind=kind, text=text, left_out=left_out, facts=facts), value
        )


def _kind_of(name: str) -> Kind | None:
    """Of pictures, video and sound, by the name alone."""
    extension = name.removesuffix(".gz").rpartition(".")[2].lower()
    if extension in IMAGE_EXTENSIONS:
        return "image"
    return None if extension not in AV_EXTENSIONS else "audio" if extension in ("flac", "mp3", "wav") else "video"


def _described(value: Any) -> tuple[Kind, str, dict[str, int | float | str]]:
    if isinstance(value, str):
        return "text", value, {}
    if isinstance(value, bytes):
        text = _as_text(value)
        return ("text", text, {}) if text is not None else ("bytes", value[:_HEAD_BYTES].hex(" "), {})
    if isinstance(value, np.ndarray):
        facts: dict[str, int | float | str] = {"dtype": value.dtype.name, "shape": str(value.shape)}
        return "array", np.array2string(value, threshold=40, edgeitems=3), facts
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number", str(value), {}
    text = as_json(value)
    if len(text) > _LINE_CHARS:
        long = as_json(value, indent=2)
        text = _LIST_OF_NUMBERS.sub(lambda found: "[" + " ".join(found[1].split()) + "]", long)
    return "json", text, {}


def as_json(value: Any, *, indent: int | None = None) -> str:
    """A decoded value as JSON text; what JSON lacks (arrays, dates, bytes) in words."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, default=_in_words)
    except (TypeError, ValueError, RecursionError):  # keys that are no text, or nested too deeply
        return repr(value)


def _in_words(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    return f"{len(value)} bytes" if isinstance(value, bytes) else str(value)


def _as_text(data: bytes) -> str | None:
    """What no decoder knows, as text if it is one."""
    if len(data) > _TEXT_BYTES or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _smaller(image: Picture) -> Picture:
    if max(image.size) > MAX_PIXELS_SIDE:
        image = image.copy()
        image.thumbnail((MAX_PIXELS_SIDE, MAX_PIXELS_SIDE))
    return image
