"""Pictures, video and sound of samples: in a page as data URIs, or at URLs of their own; and any part as a download."""

from __future__ import annotations

import base64
import io
import re
from typing import Final, NamedTuple

import numpy as np

from headrace.errors import ConfigError
from headrace.inspect import need_samples
from headrace.inspect.blocks import Media
from headrace.inspect.figures import size
from headrace.inspect.samples import MAX_PIXELS_SIDE, PartViewer
from headrace.inspect.terminal import Picture
from headrace.ui.requests import Query, link

MEDIA_BYTES: Final = 16 << 20
"""The largest video or sound that is put into a page."""

PAGE_BYTES: Final = 128 << 20
"""The most bytes of video and sound in a page."""

_EXACT_PIXELS: Final = 1 << 16
"""Pictures up to this size are exact (PNG); larger ones are JPEG."""

PLAYED: Final = {
    "mp4": "video/mp4",
    "m4v": "video/mp4",
    "mov": "video/mp4",
    "webm": "video/webm",
    "mkv": "video/x-matroska",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "wav": "audio/wav",
}
"""The types that browsers play, by the last component of the part's name. The data cannot set the type."""

MAX_PLAYED: Final = 1 << 30
"""The largest video or sound that is sent."""


class MediaSource(NamedTuple):
    """Where a page has the picture, video or sound of a part from: a tag and a URL, or words that say why it has none.

    ``save`` is the URL of its bytes.
    """

    tag: str = ""
    url: str = ""
    words: str = ""
    save: str = ""


def played_type(name: str) -> str | None:
    """Return the type of a part that browsers play; None for others."""
    return PLAYED.get(name.rpartition(".")[2].lower())


class Embedded:
    """Puts pictures into a page as data URIs, and as many videos and sounds as have room."""

    def __init__(self) -> None:
        self._room = PAGE_BYTES

    def source(self, media: Media) -> MediaSource:
        """Return what stands in the page for a part."""
        if media.kind not in ("video", "audio") or media.error:
            return MediaSource() if media.picture is None else MediaSource("img", data_uri(*encoded(media.picture)))
        if len(media.data) > min(MEDIA_BYTES, self._room):
            return MediaSource(words=f"too large for a page: headrace cat writes its {size(len(media.data))} to a file")
        if (kind := played_type(media.name)) is None:
            return MediaSource(words="browsers do not play this format")
        self._room -= len(media.data)
        return MediaSource(media.kind, data_uri(media.data, kind))


def served(path: str, media: Media, *, side: int | None = None) -> MediaSource:
    """Return where a page of the server has a part from; its picture has sides of at most ``side`` pixels.

    The store is not named if its path is empty.
    """
    if not path:
        return MediaSource()
    query = {"path": path, "number": media.number, "part": media.name}
    save = link("part", **query)
    if media.error or media.kind not in ("image", "video", "audio"):
        return MediaSource(save=save)
    if media.kind != "image" and played_type(media.name) is not None:
        return MediaSource(media.kind, link("part", **query, **{"as": "play"}), save=save)
    return MediaSource(
        "img" if media.kind != "audio" else "", link("part", **query, **{"as": "picture", "side": side}), save=save
    )


def encoded(picture: Picture) -> tuple[bytes, str]:
    """Return a picture in PNG or JPEG, and the type of that."""
    buffer = io.BytesIO()
    is_exact = picture.width * picture.height <= _EXACT_PIXELS
    picture.save(buffer, "PNG" if is_exact else "JPEG", **({} if is_exact else {"quality": 90}))
    return buffer.getvalue(), "image/png" if is_exact else "image/jpeg"


def data_uri(data: bytes, kind: str) -> str:
    """Return bytes as a data URI."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


class Part(NamedTuple):
    """Bytes with the type that they are sent as; a name makes them a download."""

    data: bytes
    media_type: str
    name: str = ""


def part(asked: Query) -> Part:
    """Return a part of a sample: ``as=picture``, ``as=play`` or ``as=file``.

    Raises:
        HeadraceError: there is no such part, or it cannot be decoded.
    """
    path = asked.path("samples")
    name, number = asked.text("part"), asked.number("number", 0)
    with need_samples(path) as store:
        if number >= len(store):
            raise ConfigError(f"{path}: has no sample {number:,}; its {len(store):,} samples are counted from 0")
        found = store.read(np.array([number]))[0].parts
    if name not in found:
        raise ConfigError(f"{path}: sample {number:,} has no part {name!r}; it has {', '.join(found)}")
    data, how = found[name], asked.text("as", "file")
    if how == "picture":
        return _picture(name, data, asked.number("side", MAX_PIXELS_SIDE, low=16, high=MAX_PIXELS_SIDE))
    if how == "play":
        kind = played_type(name)
        if kind is None or len(data) > MAX_PLAYED:
            raise ConfigError(f"{path}: browsers do not play part {name!r} of {len(data):,} bytes; take it as a file")
        return Part(data, kind)
    # Whatever the data are, a browser only saves them.
    return Part(data, "application/octet-stream", re.sub(r"[^A-Za-z0-9._-]", "_", f"{number}.{name}")[-100:])


def _picture(name: str, data: bytes, side: int) -> Part:
    """Return a picture encoded anew, so that the bytes of the data do not reach the browser."""
    looked = PartViewer(max_chars=1).look(name, data)
    if looked.picture is None:
        raise looked.error or ConfigError(f"part {name!r} is no picture")
    picture = looked.picture.convert("RGB")
    picture.thumbnail((side, side))
    return Part(*encoded(picture))
