"""A contact sheet: one picture of the pictures of many samples, with their boxes, keys and first text."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.cli.media.parts import Picture
from headrace.cli.media.samples import Boxes, LookedAtSample
from headrace.cli.views.safe_text import safe_text
from headrace.errors import ConfigError

_CELL: Final = 240
_CAPTION: Final = 34
_GAP: Final = 8
_MOST_COLUMNS: Final = 6
_CHARS: Final = 38
_LINES: Final = 15
_INK: Final = (40, 44, 50)
_FORMATS: Final = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
BOX_COLOURS: Final = {
    "block": (230, 120, 20),
    "lines": (40, 120, 220),
    "words": (20, 150, 70),
    "chars": (190, 50, 160),
}


def sheet_format(name: str) -> str:
    """The format of a sheet by the name of its file.

    Raises:
        ConfigError: it is neither PNG nor JPEG.
    """
    found = _FORMATS.get(Path(name).suffix.lower())
    if found is None:
        raise ConfigError(f"--sheet {name}: the name of a contact sheet ends in .png or .jpg")
    return found


class _Cell(NamedTuple):
    picture: Picture | None
    name: str
    text: str


def contact_sheet(samples: Iterable[LookedAtSample], image_format: str) -> bytes:
    """The sheet as a file: a cell for each picture, and one for each sample without any.

    Raises:
        ConfigError: there is nothing to show.
    """
    import PIL.Image
    import PIL.ImageDraw

    cells = [cell for sample in samples for cell in _cells(sample)]
    if not cells:
        raise ConfigError("there are no samples, and so nothing for a contact sheet")
    columns = min(_MOST_COLUMNS, len(cells))
    rows = -(-len(cells) // columns)
    size = (columns * (_CELL + _GAP) + _GAP, rows * (_CELL + _CAPTION + _GAP) + _GAP)
    sheet = PIL.Image.new("RGB", size, (250, 249, 245))
    draw = PIL.ImageDraw.Draw(sheet)
    write = _writer(draw)
    for at, (picture, name, text) in enumerate(cells):
        left, top = _GAP + at % columns * (_CELL + _GAP), _GAP + at // columns * (_CELL + _CAPTION + _GAP)
        draw.rectangle((left, top, left + _CELL - 1, top + _CELL - 1), fill=(232, 229, 220))
        write((left, top + _CELL + 2), name[-_CHARS:])
        if picture is not None:
            sheet.paste(picture, (left + (_CELL - picture.width) // 2, top + (_CELL - picture.height) // 2))
            write((left, top + _CELL + 17), text[:_CHARS])
        else:
            for line, piece in enumerate(textwrap.wrap(text, _CHARS)[:_LINES]):
                write((left + 4, top + 4 + 15 * line), piece)
    buffer = io.BytesIO()
    sheet.save(buffer, image_format)
    return buffer.getvalue()


def _cells(sample: LookedAtSample) -> Iterator[_Cell]:
    place = sample.shown.place
    before = f"{sample.shown.number}:" if place is None else f"{place.position}: {place.source}"
    name, text = f"{before} {sample.shown.key}", _text(sample)
    for part in sample.pictures:
        small = with_boxes(sample, part)
        small.thumbnail((_CELL, _CELL))
        yield _Cell(small, safe_text(f"{name}.{part}"), text)
    if not sample.pictures:
        yield _Cell(None, safe_text(name), text)


def with_boxes(sample: LookedAtSample, part: str) -> Picture:
    """A copy of the picture of a part, with the boxes that are on it."""
    picture = sample.pictures[part].copy()
    found = [boxes for boxes in sample.shown.boxes if boxes.picture == part]
    if found:
        import PIL.ImageDraw

        whole = next(shown.facts for shown in sample.shown.parts if shown.name == part)
        scale = picture.width / float(whole["width"])
        draw = PIL.ImageDraw.Draw(picture)
        for boxes in found:
            _outline(draw, boxes, scale, max(1, max(picture.size) // 160))
    return picture


def _outline(draw: Any, boxes: Boxes, scale: float, line: int) -> None:
    for x, y, width, height in boxes.boxes:
        if width >= 0 and height >= 0:
            corners = (x * scale, y * scale, (x + width) * scale, (y + height) * scale)
            draw.rectangle(corners, outline=BOX_COLOURS[boxes.kind], width=line)


def _text(sample: LookedAtSample) -> str:
    """The first text of a sample, in one line."""
    text = next((shown.text for shown in sample.shown.parts if shown.kind in ("text", "json", "number")), "")
    return safe_text(" ".join(text.split()))


def _writer(draw: Any) -> Callable[[tuple[int, int], str], None]:
    """Writes with a font of the system if there is one, else with Pillow's own, which has the letters of ASCII."""
    import PIL.ImageFont

    font: Any
    try:
        font, has_all = PIL.ImageFont.truetype("DejaVuSans.ttf", 11), True
    except (OSError, ImportError):
        font, has_all = PIL.ImageFont.load_default(), False

    def write(place: tuple[int, int], text: str) -> None:
        draw.text(place, text if has_all else text.encode("ascii", "replace").decode(), _INK, font=font)

    return write
