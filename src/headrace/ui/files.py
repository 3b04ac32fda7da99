"""`page_of`: previews and renderings as one HTML file that needs no other file, no network and no script.

structs of inspect --> templates of the pages in a browser, ui.css, pictures and sound as data URIs --> one file
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from headrace.inspect import OpenPreview, Preview, Rendering
from headrace.inspect.figures import count, plural, size
from headrace.inspect.lines import (
    EVIDENCE_HEADS,
    evidence_cells,
    extras,
    message_fields,
    message_heading,
    part_heading,
    parts_heading,
    remarks,
    rendered_heading,
    rendering_summary,
    sample_heading,
    sequence_heading,
)
from headrace.inspect.sample_preview import SamplePreview
from headrace.inspect.samples import LookedAtSample, Picture
from headrace.inspect.shown import StoreFigures
from headrace.ui import drawing
from headrace.ui.rendering import boxes_of, environment

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


def page_of(found: Preview | OpenPreview | Rendering) -> str:
    """Return a preview or a rendering as one HTML file that needs no other file. Data never become markup.

    Of samples that are open, this reads and decodes each one. Pictures are encoded anew, so that their bytes do not
    reach the browser.

    Example:
        >>> from headrace import inspect, ui
        >>> page = ui.page_of(inspect.preview("stores/web", num=1))
        >>> page.count("<section")
        1
    """
    if isinstance(found, Preview):
        return _rendered("file_preview.html", found, **_preview(found))
    if isinstance(found, Rendering):
        words = (extras, message_fields, message_heading, part_heading, remarks, rendered_heading, evidence_cells)
        functions = {function.__name__: function for function in words}
        return _rendered("file_render.html", found, summary=rendering_summary(found), heads=EVIDENCE_HEADS, **functions)
    facts = found.facts
    fields = facts.field_map if isinstance(facts, SamplePreview) else None
    about = f"{facts.words}, {found.how_many}"
    return _rendered("file_samples.html", facts, about=about, fields=fields or {}, samples=shown_samples(found))


def _rendered(name: str, found: object, **values: Any) -> str:
    style = Markup((files("headrace.ui") / "static" / "ui.css").read_text(encoding="utf-8"))
    return environment().get_template(name).render(found=found, style=style, **values)


def _preview(found: Preview) -> dict[str, Any]:
    is_pack, figures = found.seq_len is not None, found.figures
    unit = f"packs of {count(found.seq_len)} tokens" if found.seq_len is not None else "documents"
    shown = f"{count(len(found.samples))} of {count(found.num_samples)} {unit}"
    by = f", {found.chosen_by}" if found.chosen_by else ""
    pairs = [("format", found.format), ("keys", ", ".join(found.keys))]
    pairs += [] if found.tokenizer is None else [("tokeniser", found.tokenizer)]
    lengths, shares = [], []
    if figures is not None:
        pairs += figure_pairs(figures)
        looked_at = sum(bar.documents for bar in figures.histogram)
        lengths = [
            drawing.documents_bar(bar.first, bar.last, bar.documents, bar.tokens, looked_at)
            for bar in figures.histogram
        ]
        for place, number in enumerate(figures.shares.documents if figures.shares is not None else ()):
            some = f"more than {place * 10 - 10} % and up to {place * 10} % trained" if place else "nothing trained"
            shares.append((f"{place * 10} %", number, f"{some}: {plural(number, 'document')}"))
    return {
        "about": f"{found.kind}, {plural(found.num_documents, 'document')}, shown: {shown}{by}",
        "pairs": pairs,
        "lengths": lengths,
        "shares": shares,
        "heading": lambda sample: sample_heading(found, sample),
        "title_of": lambda one, of: sequence_heading(one, is_piece=is_pack) if is_pack or len(of) > 1 else "",
    }


def figure_pairs(figures: StoreFigures) -> list[tuple[str, str]]:
    """Return the figures of a store as pairs of name and value."""
    pairs = [("tokens", f"{count(figures.tokens)} of {figures.key!r}")]
    lengths = figures.tokens_per_document
    if lengths is not None:
        middle = f"median {lengths.median:,.0f}, mean {lengths.mean:,.1f}"
        pairs.append(("per document", f"min {count(lengths.min)}, {middle}, max {count(lengths.max)} tokens"))
    if figures.trained is not None:
        share = figures.trained.trained / max(figures.trained.tokens, 1)
        of = "" if figures.trained.is_all else f" of the first {count(figures.trained.tokens)}"
        pairs.append(("trained", f"{count(figures.trained.trained)} tokens{of} ({share:.2%})"))
    if figures.packs is not None:
        lost = f", {plural(figures.packs.lost_tokens, 'token')} lost" if figures.packs.lost_tokens else ""
        pairs.append(
            ("packs", f"{count(figures.packs.packs)} ({figures.packs.strategy}), fill {figures.packs.fill:.3%}{lost}")
        )
    return pairs


class FileSample(NamedTuple):
    """A sample with what of it goes into a file: data URIs by the name of the part, or words that say why there is
    none."""

    heading: str
    shown: Any
    boxes: dict[str, Any]
    data: dict[str, str]
    words: dict[str, str]


def shown_samples(found: OpenPreview | list[LookedAtSample]) -> Iterator[FileSample]:
    """Yield samples, with as many videos and sounds as have room in a page."""
    room = PAGE_BYTES
    for looked in found:
        data = {name: picture_uri(picture) for name, picture in looked.pictures.items()}
        words = {}
        for part in looked.shown.parts:
            if part.kind not in ("video", "audio") or part.error:
                continue
            raw, kind = looked.raw.parts[part.name], PLAYED.get(part.name.rpartition(".")[2].lower())
            data.pop(part.name, None)
            if len(raw) > min(MEDIA_BYTES, room):
                words[part.name] = f"too large for a page: headrace cat writes its {size(part.size)} to a file"
            elif kind is None:
                words[part.name] = "browsers do not play this format"
            else:
                room -= len(raw)
                data[part.name] = f"data:{kind};base64,{base64.b64encode(raw).decode()}"
        yield FileSample(parts_heading(looked.shown), looked.shown, boxes_of(looked.shown), data, words)


def picture_uri(picture: Picture) -> str:
    """Return a picture as a data URI, in PNG or JPEG."""
    buffer = io.BytesIO()
    is_exact = picture.width * picture.height <= _EXACT_PIXELS
    picture.save(buffer, "PNG" if is_exact else "JPEG", **({} if is_exact else {"quality": 90}))
    return f"data:image/{'png' if is_exact else 'jpeg'};base64,{base64.b64encode(buffer.getvalue()).decode()}"
