"""Samples with named parts, as lines for a terminal and as a page; and the numbers of their store, as lines."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from headrace.inspect.figures import count, duration, listing, plural, safe_lines, safe_text, size, table
from headrace.inspect.pages import block_html, escaped, page, pairs_html
from headrace.inspect.sample_description import SampleDescription, TypeInfo
from headrace.inspect.sample_preview import MixFacts, SamplePreview, StorePreview
from headrace.inspect.samples import BOX_COLOURS, Boxes, LookedAtSample, Picture, ShownPart, ShownParts, with_boxes

if TYPE_CHECKING:
    from headrace.inspect.sample_preview import MixPreview

Draw = Callable[[Picture], str]
"""Turns a picture into the text with which a terminal shows it."""


def preview_lines(found: StorePreview | MixPreview, draw: Draw | None) -> Iterator[str]:
    """Yield all lines that ``headrace preview`` prints for samples."""
    yield heading(found.facts)
    yield how_many(found)
    for sample in found:
        yield ""
        yield sample_heading(sample.shown)
        yield from sample_lines(sample, draw)


def how_many(found: StorePreview | MixPreview) -> str:
    """Say how many samples are shown, and of how many."""
    if found.facts.num_samples is None:
        return f"{plural(len(found.numbers), 'sample')} of an endless mix"
    of_passes = " a pass" if isinstance(found.facts, MixFacts) else ""
    return f"{count(len(found.numbers))} of {plural(found.facts.num_samples, 'sample')}{of_passes}"


def heading(preview: SamplePreview | MixFacts) -> str:
    """Return the first line of a preview: the path, and what is there."""
    return safe_text(f"{preview.path}: {what(preview)}")


def what(preview: SamplePreview | MixFacts) -> str:
    """Describe the store or the mix in words."""
    if isinstance(preview, MixFacts):
        order = f"order {preview.order}, seed {preview.seed}"
        return f"{preview.format}, split {preview.split_part}, {plural(len(preview.sources), 'source')}, {order}"
    part = "" if preview.split_part is None else f", part {preview.split_part}"
    kind = "" if preview.sample_type is None else f", {preview.sample_type}"
    return f"{preview.format}{part}, {plural(preview.num_shards, 'shard')}{kind}"


def sample_heading(shown: ShownParts) -> str:
    """Return the number, key and place of a sample; in a mix also its position, source and epoch."""
    if shown.place is not None:
        shard = f", {shown.shard}, {count(shown.index)}" if shown.shard else ""
        at = f"position {count(shown.place.position)}: {shown.place.source or '.'}, epoch {count(shown.place.epoch)}"
        return safe_text(f"{at}, sample {count(shown.number)}: {shown.key}  ({shown.place.path}{shard})")
    return safe_text(f"sample {count(shown.number)}: {shown.key}  ({shown.shard}, {count(shown.index)})")


def sample_lines(sample: LookedAtSample, draw: Draw | None) -> Iterator[str]:
    """Yield the lines of a sample: its parts, pictures, boxes and fields."""
    for part in sample.shown.parts:
        yield from part_lines(part)
        if draw is not None and part.name in sample.pictures:
            yield draw(with_boxes(sample, part.name))
    for boxes in sample.shown.boxes:
        yield f"  {boxes_line(boxes)}"
    for field, value in sample.shown.fields.items():
        yield f"  {safe_text(field)} = {safe_text(value)}"


def part_lines(part: ShownPart) -> Iterator[str]:
    """Yield the lines of a part: one about it, then its text."""
    yield f"  {part_line(part)}"
    if part.text and part.kind != "bytes":
        for line in safe_lines(part.text) if part.kind == "text" else map(safe_text, part.text.split("\n")):
            yield f"      {line}"
    if part.left_out:
        yield f"      ... {plural(part.left_out, 'character')} more"


def part_line(part: ShownPart) -> str:
    """Return name, kind, facts and size of a part, or its error, in one line."""
    words = f": {part.text} ..." if part.kind == "bytes" and part.text else ""
    error = f": cannot be shown: {part.error}" if part.error else ""
    facts = "".join(f", {fact}" for fact in facts_of(part))
    return safe_text(f"{part.name or '(no name)'}: {part.kind}{facts}, {size(part.size)}{words}{error}")


def facts_of(part: ShownPart) -> list[str]:
    """Return the facts of a part in words: ``640 x 480``, ``2.0 s``, ``25 frames/s``."""
    facts = part.facts
    words = []
    for begin in ("", "video_"):
        if f"{begin}width" in facts:
            words.append(f"{facts[f'{begin}width']} x {facts[f'{begin}height']}")
    seconds = facts.get("video_duration", facts.get("audio_duration"))
    if isinstance(seconds, int | float):
        words.append(duration(seconds))
    if "video_fps" in facts:
        words.append(f"{facts['video_fps']:.4g} frames/s")
    if "audio_sample_rate" in facts:
        channels = facts.get("audio_channels", 1)
        words.append(f"sound {facts['audio_sample_rate']} Hz, {channels} channel{'' if channels == 1 else 's'}")
    if "dtype" in facts:
        words.append(f"{facts['dtype']} {facts['shape']}")
    return words


def boxes_line(boxes: Boxes) -> str:
    """Say how many boxes there are, with their first texts."""
    texts = f": {' | '.join(boxes.texts[:8])}{' ...' if len(boxes.texts) > 8 else ''}" if boxes.texts else ""
    number = len(boxes.boxes) + boxes.left_out
    return safe_text(f"{count(number)} {'box' if number == 1 else 'boxes'} of {boxes.kind} on {boxes.picture}{texts}")


def description_lines(found: SampleDescription) -> list[str]:
    """Return all lines that ``headrace info`` prints for a store of samples."""
    pairs = [
        ("format", f"{found.format}, {plural(found.shards, 'shard')}"),
        ("samples", count(found.samples) + (f", {count(found.left_out)} bad ones left out" if found.left_out else "")),
        ("on disk", size(found.bytes)),
    ]
    if found.energon_version is not None:
        pairs.append(("prepared by", f"energon {found.energon_version}"))
    if found.uuid is not None:
        pairs.append(("uuid", found.uuid))
    if found.type is not None:
        pairs += _type_pairs(found.type)
    elif found.format == "energon":
        pairs.append(("sample type", "unknown: there is no dataset.yaml"))
    if found.media is not None:
        kinds = ", ".join(f"{count(number)} {kind}" for kind, number in found.media.entries.items()) or "none"
        by = "; ".join(f"{strategy.lower()}: {patterns}" for strategy, patterns in found.media.filters)
        pairs.append(("media facts", kinds + (f" (by {by})" if by else "")))
    if found.index is not None:
        pairs.append(("index.sqlite", ", ".join(found.index) or "no tables"))
    lines = [safe_text(found.path), *listing([(name, safe_text(value)) for name, value in pairs])]
    if found.type is not None and found.type.field_map is not None:
        fields = [(safe_text(field), safe_text(part)) for field, part in found.type.field_map.items()]
        lines += ["", "fields", *listing(fields)]
    return lines + _split_lines(found) + _part_lines(found)


def _type_pairs(found: TypeInfo) -> list[tuple[str, str]]:
    words = f"crude, {found.class_name}" if found.kind == "crude" else found.sample_type or found.class_name
    pairs = [("sample type", f"{words} ({found.file})")]
    if found.sample_loader is not None:
        pairs.append(("loader", f"{found.sample_loader}, which is code and was not run"))
    if found.part_filter is not None:
        pairs.append(("part filter", found.part_filter))
    if found.subflavors:
        pairs.append(("subflavors", json.dumps(found.subflavors, ensure_ascii=False, default=str)))
    return pairs


def _split_lines(found: SampleDescription) -> list[str]:
    if found.splits is None:
        return []
    total = sum(part.samples for part in found.splits)
    rows = [("split", "samples", "share", "shards", "samples excluded", "shards excluded")]
    for part in found.splits:
        share = f"{part.samples / max(total, 1):.1%}"
        excluded = count(part.excluded), count(part.excluded_shards)
        rows.append((safe_text(part.name), count(part.samples), share, count(part.shards), *excluded))
    return ["", "splits", *table(rows)]


def _part_lines(found: SampleDescription) -> list[str]:
    if not found.parts:
        return []
    of = "all samples" if found.looked_at == found.samples else f"{count(found.looked_at)} samples, evenly spread"
    rows = [("part", "samples", "share", "mean", "min", "max")]
    for part in found.parts:
        sizes = size(part.bytes / part.samples), size(part.min), size(part.max)
        share = f"{part.samples / found.looked_at:.1%}"
        rows.append((safe_text(part.name) or "(no name)", count(part.samples), share, *sizes))
    return ["", f"parts of {of}", *table(rows)]


MEDIA_BYTES: Final = 16 << 20
"""The largest video or sound that is put into a page."""

PAGE_BYTES: Final = 128 << 20
"""The most bytes of video and sound in a page."""

_EXACT_PIXELS: Final = 1 << 16
"""Pictures up to this size are exact (PNG); larger ones are JPEG."""

_TYPES: Final = {
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

_STYLE: Final = (
    """
.picture{position:relative;display:inline-block;max-width:100%;line-height:0}
.picture img{max-width:100%;height:auto;image-orientation:none;border:1px solid var(--line)}
.picture svg{position:absolute;inset:0;width:100%;height:100%}
.picture svg rect{fill-opacity:.12;stroke-width:2;vector-effect:non-scaling-stroke}
.picture svg rect:hover{fill-opacity:.5}
"""
    + "".join(f".picture svg .b-{kind}{{fill:rgb{colour};stroke:rgb{colour}}}" for kind, colour in BOX_COLOURS.items())
    + """
.part{margin:.8rem 0 0;border-top:1px solid var(--line);padding-top:.5rem}
.part h4{font-size:.8rem;font-weight:400;color:var(--soft);margin:0 0 .3rem;overflow-wrap:anywhere}
.part h4 b{color:var(--ink)}
video,audio{max-width:100%}
video{min-width:min(20rem,100%)}
.part h4.bad{color:var(--cut)}
"""
)
_POLICY: Final = "img-src data:; media-src data:"


def sample_page(found: StorePreview | MixPreview) -> str:
    """Return samples as one HTML file.

    Data never becomes markup. Pictures are encoded anew, so that their bytes do not reach the browser.
    """
    preview = found.facts
    parts = [
        f"<h1>{escaped(preview.path)}</h1>",
        f'<p class="soft">{escaped(what(preview))}, {how_many(found)}</p>',
    ]
    if isinstance(preview, SamplePreview) and preview.field_map:
        parts += ["<h2>Fields</h2>", pairs_html(list(preview.field_map.items()))]
    parts.append("<h2>Samples</h2>")
    room = PAGE_BYTES
    for sample in found:
        text, used = _sample_html(sample, room)
        room -= used
        parts.append(text)
    return page(f"{preview.path} - headrace preview", parts, style=_STYLE, policy=_POLICY)


def _sample_html(sample: LookedAtSample, room: int) -> tuple[str, int]:
    """Return a sample as HTML, and the bytes of video and sound in it."""
    shown = sample.shown
    bodies, used = [], 0
    for part in shown.parts:
        body = ""
        data = sample.raw.parts[part.name]
        if part.kind in ("video", "audio") and not part.error:
            body = _player(part, data) if len(data) <= min(MEDIA_BYTES, room - used) else _too_large(part)
            used += len(data) if body.startswith(("<video", "<audio")) else 0
        elif part.name in sample.pictures:
            boxes = [found for found in shown.boxes if found.picture == part.name]
            body = _picture(part, sample.pictures[part.name], boxes)
        elif part.text and part.kind != "bytes":
            body = block_html(part.text)
            body += f'<p class="soft">… {plural(part.left_out, "character")} more</p>' if part.left_out else ""
        bodies.append(f'<div class="part">{_part_heading(part)}{body}</div>')
    if shown.fields:
        bodies.append(f'<div class="part"><h4>fields</h4>{pairs_html(list(shown.fields.items()))}</div>')
    return f"<section><h3>{escaped(sample_heading(shown))}</h3>{''.join(bodies)}</section>", used


def _part_heading(part: ShownPart) -> str:
    if part.error:
        return f'<h4 class="bad">{escaped(part_line(part))}</h4>'
    facts = ", ".join([part.kind, *facts_of(part), size(part.size)])
    words = f": {part.text} ..." if part.kind == "bytes" else ""
    return f"<h4><b>{escaped(part.name or '(no name)')}</b> {escaped(facts + words)}</h4>"


def _picture(part: ShownPart, picture: Picture, boxes: list[Boxes]) -> str:
    image = f'<img src="{picture_uri(picture)}" width="{picture.width}" height="{picture.height}" alt="">'
    if not boxes:
        return f'<div class="picture">{image}</div>'
    drawn = "".join(map(_boxes_svg, boxes))
    view = f'viewBox="0 0 {part.facts["width"]} {part.facts["height"]}" preserveAspectRatio="none"'
    lines = "".join(f'<p class="soft">{escaped(boxes_line(found))}</p>' for found in boxes)
    return f'<div class="picture">{image}<svg {view}>{drawn}</svg></div>{lines}'


def _boxes_svg(found: Boxes) -> str:
    shapes = []
    for at, (x, y, width, height) in enumerate(found.boxes):
        text = f"{found.kind} {at}" + (f": {found.texts[at]}" if found.texts else "")
        place = f'x="{x:g}" y="{y:g}" width="{max(width, 0):g}" height="{max(height, 0):g}"'
        shapes.append(f'<rect class="b-{found.kind}" {place}><title>{escaped(text)}</title></rect>')
    return "".join(shapes)


def picture_uri(picture: Picture) -> str:
    """Return a picture as a data URI, in PNG or JPEG."""
    buffer = io.BytesIO()
    is_exact = picture.width * picture.height <= _EXACT_PIXELS
    picture.save(buffer, "PNG" if is_exact else "JPEG", **({} if is_exact else {"quality": 90}))
    return f"data:image/{'png' if is_exact else 'jpeg'};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _player(part: ShownPart, data: bytes) -> str:
    extension = part.name.rpartition(".")[2].lower()
    kind = _TYPES.get(extension)
    if kind is None:
        return '<p class="soft">browsers do not play this format</p>'
    source = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return f'<{part.kind} controls preload="metadata" src="{source}"></{part.kind}>'


def _too_large(part: ShownPart) -> str:
    return f'<p class="soft">too large for a page: headrace cat writes its {size(part.size)} to a file</p>'
