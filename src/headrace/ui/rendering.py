"""How templates are rendered: with data that are escaped, and with pictures, video and sound as data URIs.

`page_of` makes one file, which needs nothing else.
"""

from __future__ import annotations

import base64
import io
from importlib.resources import files
from typing import Any, Final, NamedTuple

import jinja2
from markupsafe import Markup

from headrace.inspect import figures
from headrace.inspect.answers import Shown
from headrace.inspect.blocks import Media
from headrace.inspect.terminal import Picture
from headrace.ui import drawing
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
    """The picture, video or sound of a part: a tag and a URL, or words that say why a page has none."""

    tag: str = ""
    url: str = ""
    words: str = ""


class Embedded:
    """Puts pictures into a page as data URIs, and as many videos and sounds as have room.

    Args:
        side: in a list, the most pixels of a side of a picture; nothing is played there, and of videos there is the
            first frame.
    """

    def __init__(self, *, side: int | None = None) -> None:
        self._room = PAGE_BYTES
        self._side = side

    def source(self, media: Media) -> MediaSource:
        """Return what stands in the page for a part."""
        words = ""
        if media.kind in ("video", "audio") and not media.error:
            if (kind := PLAYED.get(media.name.rpartition(".")[2].lower())) is None:
                words = "browsers do not play this format"
            elif len(media.data) > min(MEDIA_BYTES, self._room):
                words = f"too large for a page: headrace cat writes its {figures.size(len(media.data))} to a file"
            elif self._side is not None:
                words = "the page of the sample plays it"
            else:
                self._room -= len(media.data)
                return MediaSource(media.kind, data_uri(media.data, kind))
        if (picture := media.picture) is None:
            return MediaSource(words=words)
        if self._side is not None:
            picture = picture.copy()
            picture.thumbnail((self._side, self._side))
        return MediaSource("img", data_uri(*encoded(picture)), words)


def encoded(picture: Picture) -> tuple[bytes, str]:
    """Return a picture in PNG or JPEG, and the type of that."""
    buffer = io.BytesIO()
    is_exact = picture.width * picture.height <= _EXACT_PIXELS
    picture.save(buffer, "PNG" if is_exact else "JPEG", **({} if is_exact else {"quality": 90}))
    return buffer.getvalue(), "image/png" if is_exact else "image/jpeg"


def data_uri(data: bytes, kind: str) -> str:
    """Return bytes as a data URI."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def environment() -> jinja2.Environment:
    """Return what renders the templates: data are escaped, and made harmless before that."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("headrace.ui"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
        auto_reload=False,
    )
    found.globals.update(link=link, drawing=drawing)
    found.filters.update(
        count=figures.count,
        size=figures.size,
        plural=figures.plural,
        short=_short,
        percent=_percent,
        kind=lambda block: type(block).__name__,
        broken=_broken,
        source=drawing.source_name,
    )
    return found


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


def _harmless(value: Any) -> Any:
    """Make texts harmless before they are escaped: characters that do not print, or move others, are written out."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return "\n".join(figures.safe_text(line) for line in value.split("\n"))
    return "" if value is None else value


def _short(number: float) -> str:
    return figures.short(number).strip()


def _percent(share: float | None, digits: int = 1) -> str:
    return "" if share is None else f"{100 * share:.{digits}f} %"


def _broken(text: str) -> str:
    """Mark line breaks of the data, to tell them from those of the page."""
    return "\n".join(figures.safe_lines(text))
