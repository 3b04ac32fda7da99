"""`page_of`: what is shown as one HTML file that needs no other file, no network and no script.

structs of inspect --> blocks --> the template of the pages, ui.css, pictures and sound as data URIs --> one file
"""

from __future__ import annotations

import base64
import io
from importlib.resources import files
from typing import Final, NamedTuple

from markupsafe import Markup

from headrace.inspect.answers import Shown
from headrace.inspect.blocks import Media
from headrace.inspect.figures import size
from headrace.inspect.terminal import Picture
from headrace.ui.rendering import environment
from headrace.ui.requests import link

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


def page_of(found: Shown) -> str:
    """Return what `describe`, `check`, `preview`, `where` or `render` found as one HTML file that needs no other file.

    Data never become markup. Of samples that are open, this reads and decodes each one. Pictures are encoded anew, so
    that their bytes do not reach the browser.

    Example:
        >>> from headrace import inspect, ui
        >>> page = ui.page_of(inspect.preview("stores/web", num=1))
        >>> page.count("<section")
        1
    """
    style = Markup((files("headrace.ui") / "static" / "ui.css").read_text(encoding="utf-8"))
    template = environment().get_template("file.html")
    return template.render(style=style, shown=list(found.shown()), media_of=Embedded().source)


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
