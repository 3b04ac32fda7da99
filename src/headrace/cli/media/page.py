"""Samples as a page: pictures with boxes, players, text."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Final

from headrace.cli.figures import plural, size
from headrace.cli.media.lines import boxes_line, facts_of, how_many, part_line, sample_heading, what
from headrace.cli.media.parts import Picture, ShownPart
from headrace.cli.media.preview import SamplePreview, StorePreview
from headrace.cli.media.samples import BOX_COLOURS, Boxes, LookedAtSample
from headrace.cli.views.page import block_html, escaped, page, pairs_html

if TYPE_CHECKING:
    from headrace.cli.media.mix_preview import MixPreview

MEDIA_BYTES: Final = 16 << 20
"""A video or sound of more is not put into the page."""

PAGE_BYTES: Final = 128 << 20
"""Nor any more of them once they are this much together."""

_EXACT_PIXELS: Final = 1 << 16
"""Pictures up to this size are kept to the pixel (PNG), larger ones as JPEG."""

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
"""What browsers play, by the last component of the name. The type is ours, never the data's."""

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
    """One HTML file. Data never is markup; pictures are encoded anew, so that no bytes of theirs reach the browser."""
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
    """A card, and the bytes of video and sound in it."""
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
    said = f": {part.text} ..." if part.kind == "bytes" else ""
    return f"<h4><b>{escaped(part.name or '(no name)')}</b> {escaped(facts + said)}</h4>"


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
    """A picture as a data URI."""
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
