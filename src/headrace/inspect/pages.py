"""Previews and renderings as a single HTML file that needs no other file and no network."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

from headrace.inspect.description import Bar
from headrace.inspect.figures import as_json, count, plural, safe_lines, safe_text, size
from headrace.inspect.lines import (
    EVIDENCE_HEADS,
    boxes_line,
    evidence_cells,
    extras,
    facts_of,
    message_fields,
    message_heading,
    part_heading,
    part_line,
    parts_heading,
    remarks,
    rendered_heading,
    rendering_summary,
    sample_heading,
    sequence_heading,
    turns,
)
from headrace.inspect.sample_preview import OpenPreview, SamplePreview
from headrace.inspect.samples import BOX_COLOURS, Boxes, LookedAtSample, Picture, ShownPart
from headrace.inspect.shown import (
    EvidenceRow,
    Preview,
    RecordPart,
    RenderedSequence,
    Rendering,
    Shares,
    ShownSample,
    ShownSequence,
    StoreFigures,
    Stretch,
)

_STYLE = """
:root{color-scheme:light dark;--ground:#fbfaf7;--card:#fff;--ink:#22262b;--soft:#6a727c;--line:#e3e0d8;--on:#cdeccf;
--on-line:#2f8a43;--special:#8a6a1f;--cut:#b3402f;--bar:#7fa6c9;--edge:#b9c0c8}
@media(prefers-color-scheme:dark){:root{--ground:#16181b;--card:#1d2024;--ink:#dfe3e8;--soft:#8f98a3;--line:#30353b;
--on:#1f4a2b;--on-line:#6fce86;--special:#d5b264;--cut:#f08a78;--bar:#5f86a9;--edge:#4d5660}}
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem 1.25rem 4rem;max-width:76rem;background:var(--ground);color:var(--ink);
font:15px/1.55 system-ui,sans-serif}
h1{font-size:1.35rem;margin:0 0 .25rem;overflow-wrap:anywhere}
h2{font-size:1.05rem;margin:2rem 0 .6rem}
h3{font-size:.9rem;font-weight:600;margin:0 0 .4rem}
p{margin:.3rem 0}
.soft,dt,th{color:var(--soft)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:.8rem 0}
dd{margin:0;overflow-wrap:anywhere}
.legend{margin:1rem 0;display:flex;flex-wrap:wrap;gap:.4rem 1.2rem}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:1rem;margin:.8rem 0}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(20rem,1fr));gap:1.2rem}
.sequence{min-width:0}
.sequence+.sequence{margin-top:1rem}
.pair .sequence+.sequence{margin-top:0}
.turn{display:grid;grid-template-columns:7.5rem minmax(0,1fr);gap:0 .8rem;border-top:1px solid var(--line);
padding:.3rem 0}
.who{font-size:.8rem;color:var(--soft);overflow-wrap:anywhere}
.who b{display:block;color:var(--ink)}
.text,pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.6 ui-monospace,monospace}
.on{background:var(--on);box-shadow:inset 0 -2px var(--on-line)}
.special{color:var(--special)}
.cut{color:var(--cut);text-decoration:line-through}
.text i{font-style:normal}
body:has(#tokens:checked) .text i{outline:1px solid var(--edge);outline-offset:-1px}
body:has(#only:checked) section .text span:not(.on){opacity:.25}
table{border-collapse:collapse;font-size:.85rem;width:100%}
th,td{text-align:left;vertical-align:top;padding:.2rem .7rem .2rem 0;border-top:1px solid var(--line);
white-space:nowrap}
td:nth-last-child(2){white-space:normal;min-width:12rem}
td:last-child{white-space:normal;min-width:14rem}
.scroll{overflow-x:auto}
svg{max-width:100%;height:auto;font:11px system-ui,sans-serif}
svg rect{fill:var(--bar)}svg text{fill:var(--soft)}
"""

_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""

LEGEND = (
    '<div class="legend">'
    '<span class="text"><span class="on">trained</span> <span>not trained</span> '
    '<span class="special">special token</span></span>'
    '<label><input type="checkbox" id="only"> fade what is not trained</label>'
    '<label><input type="checkbox" id="tokens"> borders of tokens</label></div>'
)

SEARCH = (
    '<p><input type="search" id="search" placeholder="search these samples"> <span id="found" class="soft"></span></p>'
)
_SEARCH_CODE = """
const box = document.getElementById("search"), found = document.getElementById("found");
const samples = [...document.querySelectorAll("section")];
const texts = samples.map(sample => sample.textContent.toLowerCase());
box.addEventListener("input", () => {
  const wanted = box.value.toLowerCase();
  let shown = 0;
  samples.forEach((sample, at) => { shown += !(sample.hidden = !texts[at].includes(wanted)); });
  found.textContent = wanted ? shown + " of " + samples.length : "";
});
"""
SEARCH_SCRIPT = f"<script>{_SEARCH_CODE}</script>"
SEARCH_POLICY = f"script-src 'sha256-{base64.b64encode(sha256(_SEARCH_CODE.encode()).digest()).decode()}'"
"""Allows the script that hides the samples without the searched text, and no other script, whatever the data holds."""

_BAR_WIDTH, _HEIGHT, _ABOVE, _BELOW = 58, 120, 16, 20


def escaped(text: str) -> str:
    """Return data as HTML in one line, with characters that do not print written as escapes."""
    return html.escape(safe_text(text))


def page_of(found: Preview | OpenPreview | Rendering) -> str:
    """Return a preview or a rendering as one HTML file that needs no other file. Data never become markup.

    Of samples that are open, this reads and decodes each one. Pictures are encoded anew, so that their bytes do not
    reach the browser.

    Example:
        >>> from headrace import inspect
        >>> page = inspect.page_of(inspect.preview("stores/web", num=1))
        >>> page.count("<section>")
        1
    """
    if isinstance(found, Preview):
        return _preview_page(found)
    return _rendering_page(found) if isinstance(found, Rendering) else _samples_page(found)


def page(title: str, command: str, about: str, parts: Iterable[str], *, style: str = "", policy: str = "") -> str:
    """Return the whole file of a command: a heading, a line about it, and parts.

    ``title`` and ``about`` are data, and are escaped; ``parts`` are HTML. ``policy`` adds to the content security
    policy, which otherwise allows only styles.
    """
    return _FRAME.format(
        title=escaped(f"{title} - headrace {command}"),
        style=_STYLE + style,
        body="\n".join([f"<h1>{escaped(title)}</h1>", f'<p class="soft">{escaped(about)}</p>', *parts]),
        policy=f"; {policy}" if policy else "",
    )


def pairs_html(pairs: Sequence[tuple[str, str]]) -> str:
    """Return pairs of name and value as HTML. Both are data, and are escaped."""
    return f"<dl>{''.join(f'<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>' for name, value in pairs)}</dl>"


def block_html(text: str) -> str:
    """Return data of several lines as HTML that shows it as it is."""
    # Browsers drop the first line break in a pre.
    return f"<pre>\n{html.escape(chr(10).join(map(safe_text, text.split(chr(10)))))}</pre>"


def sequence_html(sequence: ShownSequence, heading: str) -> str:
    """Return a sequence as HTML, turn by turn. ``heading`` is data, and is escaped."""
    parts = [f'<div class="sequence">{f"<h3>{escaped(heading)}</h3>" if heading else ""}']
    for turn in turns(sequence.stretches):
        text = "".join(map(_stretch_html, turn))
        who = f"<b>{escaped(turn[0].role)}</b>" if turn[0].role else ""
        span = f"{count(turn[0].position)} to {count(turn[-1].position + len(turn[-1].ids))}"
        parts.append(f'<div class="turn"><div class="who">{who}{span}</div><div class="text">{text}</div></div>')
    left_out = sequence.num_tokens - sequence.num_shown
    if left_out:
        parts.append(f'<p class="soft">… {plural(left_out, "token")} more</p>')
    return "".join([*parts, "</div>"])


def _stretch_html(stretch: Stretch) -> str:
    kinds = [
        name
        for name, holds in (
            ("on", stretch.is_trained),
            ("special", stretch.is_special),
            ("cut", not stretch.is_kept),
        )
        if holds
    ]
    trained = "" if stretch.is_trained is None else ", trained" if stretch.is_trained else ", not trained"
    title = f"tokens {stretch.begin} to {stretch.end}{trained}{'' if stretch.is_kept else ', cut off'}"
    name = f' class="{" ".join(kinds)}"' if kinds else ""
    tokens = "".join(f"<i>{_lines_html(text)}</i>" for text in stretch.texts if text)
    return f'<span{name} title="{title}">{tokens}</span>'


def _lines_html(text: str) -> str:
    return html.escape("\n".join(safe_lines(text)))


def histogram_svg(bars: Sequence[Bar]) -> str:
    """Draw the histogram of the lengths of documents."""
    shown = []
    for bar in bars:
        span = count(bar.first) if bar.first == bar.last else f"{count(bar.first)} to {count(bar.last)}"
        title = f"{span} tokens: {plural(bar.documents, 'document')}, {plural(bar.tokens, 'token')}"
        shown.append((count(bar.first), bar.documents, title))
    return _bars_svg(shown, "Documents by their tokens")


def shares_svg(documents: Sequence[int]) -> str:
    """Draw the histogram of the trained share of documents: none, up to 10 %, up to 20 %, and so on."""
    shown = [
        (f"{place * 10} %", number, f"{_share_words(place)}: {plural(number, 'document')}")
        for place, number in enumerate(documents)
    ]
    return _bars_svg(shown, "Documents by the share of their tokens that is trained")


def _share_words(place: int) -> str:
    return f"more than {place * 10 - 10} % and up to {place * 10} % trained" if place else "nothing trained"


def _bars_svg(bars: Sequence[tuple[str, int, str]], label: str) -> str:
    """Draw bars, each given by its name, its number and its title."""
    most = max(1, *(number for _, number, _ in bars))
    width = len(bars) * _BAR_WIDTH + 10
    shapes = []
    for place, (name, number, title) in enumerate(bars):
        left = place * _BAR_WIDTH + 5
        height = max(_HEIGHT * number / most, 1 if number else 0)
        middle = left + _BAR_WIDTH / 2
        top = _ABOVE + _HEIGHT - height
        shapes.append(
            f"<g><title>{title}</title>"
            f'<rect x="{left + 3}" y="{top:.1f}" width="{_BAR_WIDTH - 6}" height="{height:.1f}"/>'
            f'<text x="{middle}" y="{top - 4:.1f}" text-anchor="middle">{count(number)}</text>'
            f'<text x="{middle}" y="{_ABOVE + _HEIGHT + 15}" text-anchor="middle">{name}</text></g>'
        )
    return (
        f'<svg viewBox="0 0 {width} {_ABOVE + _HEIGHT + _BELOW}" width="{width}" role="img" '
        f'aria-label="{label}">{"".join(shapes)}</svg>'
    )


def _preview_page(preview: Preview) -> str:
    """Return figures of the store, if the preview has them, and its samples."""
    parts = [f"<p>{escaped(preview.note)}</p>"] if preview.note else []
    parts.append(pairs_html(_pairs(preview)))
    if preview.figures is not None and preview.figures.histogram:
        drawn = histogram_svg(preview.figures.histogram)
        parts += ["<h2>Lengths</h2>", '<p class="soft">documents by their tokens, from</p>']
        parts.append(f'<div class="scroll">{drawn}</div>')
    if preview.figures is not None and preview.figures.shares is not None:
        parts += ["<h2>Trained share</h2>", f'<p class="soft">{escaped(_shares_words(preview.figures.shares))}</p>']
        parts.append(f'<div class="scroll">{shares_svg(preview.figures.shares.documents)}</div>')
    if preview.left_out:
        parts += ["<h2>Left out</h2>", *(f"<p>{escaped(line)}</p>" for line in preview.left_out)]
    parts += ["<h2>Samples</h2>", SEARCH, LEGEND]
    parts += [_sample_html(preview, sample) for sample in preview.samples]
    return page(preview.path, "preview", _shown(preview), [*parts, SEARCH_SCRIPT], policy=SEARCH_POLICY)


def _shares_words(shares: Shares) -> str:
    return f"documents by the share of their tokens that is trained, up to{f'; {shares.words}' if shares.words else ''}"


def _shown(preview: Preview) -> str:
    unit = "documents" if preview.seq_len is None else f"packs of {count(preview.seq_len)} tokens"
    shown = f"{count(len(preview.samples))} of {count(preview.num_samples)} {unit}"
    by = f", {preview.chosen_by}" if preview.chosen_by else ""
    return f"{preview.kind}, {plural(preview.num_documents, 'document')}, shown: {shown}{by}"


def _pairs(preview: Preview) -> list[tuple[str, str]]:
    pairs = [("format", preview.format), ("keys", ", ".join(preview.keys))]
    if preview.tokenizer is not None:
        pairs.append(("tokeniser", preview.tokenizer))
    return pairs + ([] if preview.figures is None else figure_pairs(preview.figures))


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


def _sample_html(preview: Preview, sample: ShownSample) -> str:
    is_pack = preview.seq_len is not None
    has_several = is_pack or len(sample.sequences) > 1
    sequences = "".join(
        sequence_html(sequence, sequence_heading(sequence, is_piece=is_pack) if has_several else "")
        for sequence in sample.sequences
    )
    body = f'<div class="pair">{sequences}</div>' if preview.kind == "dpo" else sequences
    if sample.columns:
        body += pairs_html([(name, as_json(value)) for name, value in sample.columns.items()])
    if sample.num_pads:
        body += f'<p class="soft">{plural(sample.num_pads, "pad")}</p>'
    return f"<section><h3>{escaped(sample_heading(preview, sample))}</h3>{body}</section>"


def _rendering_page(rendering: Rendering) -> str:
    parts = [pairs_html(rendering_summary(rendering)), "<h2>Record</h2>"]
    parts.append(f"<section>{block_html(as_json(rendering.source))}</section>")
    parts += [_part_html(part) for part in rendering.parts]
    if rendering.columns:
        pairs = [(name, as_json(value)) for name, value in rendering.columns.items()]
        parts.append(f"<section><h3>columns</h3>{pairs_html(pairs)}</section>")
    if rendering.sequences:
        parts += ["<h2>Tokens</h2>", LEGEND]
    parts += [_sequence_html(sequence) for sequence in rendering.sequences]
    return page(f"{rendering.input}, {rendering.place}", "render", f"record {count(rendering.record)}", parts)


def _part_html(part: RecordPart) -> str:
    body = []
    for number, message in enumerate(part.messages or []):
        body.append(
            f'<div class="turn"><div class="who"><b>{escaped(message_heading(part, number))}</b>{number}</div>'
            f"<div>{''.join(map(block_html, message_fields(message)))}</div></div>"
        )
    if part.text is not None:
        body.append(block_html(part.text))
    if extras(part):
        body.append(pairs_html(extras(part)))
    if part.rendered is not None:
        body += ["<h3>rendered</h3>", block_html(part.rendered)]
    return f"<section><h3>{escaped(part_heading(part))}</h3>{''.join(body)}</section>"


def _sequence_html(sequence: RenderedSequence) -> str:
    said = "".join(f"<p>{escaped(text)}</p>" for text in remarks(sequence))
    heads = "".join(f'<th scope="col">{name}</th>' for name in EVIDENCE_HEADS)
    rows = "".join(map(_row_html, sequence.evidence))
    return (
        f"<section>{sequence_html(sequence.shown, rendered_heading(sequence))}{said}"
        f'<details open><summary>evidence</summary><div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details></section>"
    )


def _row_html(row: EvidenceRow) -> str:
    cells = "".join(f"<td>{escaped(cell)}</td>" for cell in evidence_cells(row))
    mark = ' class="on"' if row.is_trained else ""
    return f'<tr>{cells}<td><span class="text"><span{mark}>{escaped(row.text)}</span></span></td></tr>'


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

_SAMPLE_STYLE: Final = (
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
_SAMPLE_POLICY: Final = "img-src data:; media-src data:"


def _samples_page(found: OpenPreview) -> str:
    facts = found.facts
    parts = []
    if isinstance(facts, SamplePreview) and facts.field_map:
        parts += ["<h2>Fields</h2>", pairs_html(list(facts.field_map.items()))]
    parts.append("<h2>Samples</h2>")
    room = PAGE_BYTES
    for sample in found:
        text, used = _parts_html(sample, room)
        room -= used
        parts.append(text)
    about = f"{facts.words}, {found.how_many}"
    return page(facts.path, "preview", about, parts, style=_SAMPLE_STYLE, policy=_SAMPLE_POLICY)


def _parts_html(sample: LookedAtSample, room: int) -> tuple[str, int]:
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
    return f"<section><h3>{escaped(parts_heading(shown))}</h3>{''.join(bodies)}</section>", used


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
    kind = PLAYED.get(extension)
    if kind is None:
        return '<p class="soft">browsers do not play this format</p>'
    source = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return f'<{part.kind} controls preload="metadata" src="{source}"></{part.kind}>'


def _too_large(part: ShownPart) -> str:
    return f'<p class="soft">too large for a page: headrace cat writes its {size(part.size)} to a file</p>'
