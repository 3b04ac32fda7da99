"""A sample as people look at it: its parts, the fields made of them, and boxes of text on its picture."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.cli.media.parts import LookedAt, PartViewer, Picture, ShownPart, as_json
from headrace.errors import HeadraceError
from headrace.samples.media.field_map import META_PARTS, FieldMap, first_that_works
from headrace.stores.sample_store import RawSample

MAX_BOXES: Final = 2000
"""Of each kind; more than that nobody can tell apart."""

_BOX_KINDS: Final = ("block", "lines", "words", "chars")
_FIELD_CHARS: Final = 200

BOX_COLOURS: Final = {
    "block": (230, 120, 20),
    "lines": (40, 120, 220),
    "words": (20, 150, 70),
    "chars": (190, 50, 160),
}


class Boxes(msgspec.Struct, frozen=True, kw_only=True):
    """Boxes on the picture of a sample: of blocks, lines, words or characters."""

    kind: str
    picture: str
    """The part that they are on."""

    boxes: tuple[tuple[float, float, float, float], ...]
    """x, y, width, height in pixels of the whole picture."""

    texts: tuple[str, ...]
    """One a box, or none at all."""

    left_out: int = 0


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sample stands in a mix."""

    position: int
    source: str
    """Path of the source in the mix."""

    epoch: int
    path: str
    """Of its dataset."""


class ShownSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sample."""

    number: int
    key: str
    shard: str
    index: int
    parts: tuple[ShownPart, ...]
    fields: dict[str, str]
    """Field of the sample type -> its value in one line, or why it has none."""

    boxes: tuple[Boxes, ...]
    place: Place | None = None
    """In a mix, where it is shown as a part of one."""


class LookedAtSample(msgspec.Struct, frozen=True):
    """A sample, with its bytes and pictures."""

    shown: ShownSample
    raw: RawSample
    pictures: dict[str, Picture]
    """Part -> picture, scaled down."""


def look_at(
    raw: RawSample, number: int, fields: FieldMap | None, viewer: PartViewer, place: Place | None = None
) -> LookedAtSample:
    """One sample; what is wrong with its parts is said in them.

    Args:
        raw: the sample.
        number: in its store.
        fields: the field map of its ``dataset.yaml``, if it has one.
        viewer: looks at the parts.
        place: in a mix.
    """
    looked = {name: viewer.look(name, data) for name, data in raw.parts.items()}
    values = _field_values(raw, fields or {}, looked)
    shown = ShownSample(
        number=number,
        key=raw.key,
        shard=raw.shard,
        index=raw.index,
        parts=tuple(one.shown for one in looked.values()),
        fields={field: _in_a_line(field, value, fields or {}, looked) for field, value in values.items()},
        boxes=_boxes(values, fields, looked),
        place=place,
    )
    pictures = {name: one.picture for name, one in looked.items() if one.picture is not None}
    return LookedAtSample(shown, raw, pictures)


def _field_values(raw: RawSample, fields: FieldMap, looked: dict[str, LookedAt]) -> dict[str, Any]:
    """Field -> its value, or the error that it meets with."""
    meta = {"__key__": raw.key, "__shard__": raw.shard, "__restore_key__": (), "__subflavors__": None}

    def part(name: str) -> Any:
        if name in META_PARTS:
            return meta.get(name)
        if name not in looked:
            raise KeyError(name, tuple(looked))
        error = looked[name].error
        if error is not None:
            raise error
        return looked[name].value

    values: dict[str, Any] = {}
    for field, options in fields.items():
        try:
            values[field] = first_that_works(options, field, part)
        except HeadraceError as error:
            values[field] = error
    return values


def _in_a_line(field: str, value: Any, fields: FieldMap, looked: dict[str, LookedAt]) -> str:
    if isinstance(value, HeadraceError):
        return f"error: {value}"
    part = next((option.part for option in fields[field] if option.part in looked and not option.steps), None)
    if part is not None and looked[part].shown.kind in ("image", "video", "audio"):
        return f"the {looked[part].shown.kind} in {part}"
    text = value if isinstance(value, str) else as_json(value)
    return text if len(text) <= _FIELD_CHARS else text[:_FIELD_CHARS] + " ..."


def _boxes(values: dict[str, Any], fields: FieldMap | None, looked: dict[str, LookedAt]) -> tuple[Boxes, ...]:
    """Those that the field map names; without one those in JSON objects that have the names of an OCR sample's."""
    pictures = [name for name, one in looked.items() if one.shown.kind == "image" and one.error is None]
    if fields is not None:
        named = [option.part for option in fields.get("image", ()) if option.part in pictures]
        pictures = named or pictures
        sources = [values]
    else:
        sources = [one.value for one in looked.values() if isinstance(one.value, dict)]
    if not pictures:
        return ()
    found = []
    for source in sources:
        for kind in _BOX_KINDS:
            boxes = _numbers(source.get(f"{kind}_boxes"))
            if boxes:
                texts = _texts(source.get(f"{kind}_text"), len(boxes))
                found.append(
                    Boxes(
                        kind=kind,
                        picture=pictures[0],
                        boxes=tuple(boxes[:MAX_BOXES]),
                        texts=texts[:MAX_BOXES],
                        left_out=max(0, len(boxes) - MAX_BOXES),
                    )
                )
    return tuple(found)


def _numbers(value: Any) -> list[tuple[float, float, float, float]]:
    """Rows of x, y, width, height, and maybe a confidence; empty where it is anything else."""
    rows = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(rows, list):
        return []
    found = []
    for row in rows:
        if not isinstance(row, list) or len(row) not in (4, 5):
            return []
        if not all(isinstance(number, int | float) and abs(number) < 1e9 for number in row[:4]):  # nor NaN
            return []
        found.append((float(row[0]), float(row[1]), float(row[2]), float(row[3])))
    return found


def _texts(value: Any, count: int) -> tuple[str, ...]:
    """One a box, or none at all."""
    if not isinstance(value, list) or len(value) != count:
        return ()
    return tuple(text if isinstance(text, str) else str(text) for text in value)


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
