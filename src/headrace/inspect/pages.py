"""Previews and renderings as a single HTML file that needs no other file and no network."""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256

from headrace.inspect.description import Bar
from headrace.inspect.figures import count, plural, safe_lines, safe_text
from headrace.inspect.lines import (
    EVIDENCE_HEADS,
    as_json,
    evidence_cells,
    extras,
    message_fields,
    message_heading,
    part_heading,
    remarks,
    rendered_heading,
    rendering_summary,
    sample_heading,
    sequence_heading,
    turns,
)
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
SEARCH_POLICY = f"script-src 'sha256-{b64encode(sha256(_SEARCH_CODE.encode()).digest()).decode()}'"
"""Allows the script that hides the samples without the searched text, and no other script, whatever the data holds."""

_BAR_WIDTH, _HEIGHT, _ABOVE, _BELOW = 58, 120, 16, 20


def escaped(text: str) -> str:
    """Return data as HTML in one line, with characters that do not print written as escapes."""
    return html.escape(safe_text(text))


def page(title: str, parts: Iterable[str], *, style: str = "", policy: str = "") -> str:
    """Return the whole file. ``title`` is data and is escaped; ``parts`` are HTML.

    ``policy`` adds to the content security policy, which otherwise allows only styles.
    """
    policy = f"; {policy}" if policy else ""
    return _FRAME.format(title=escaped(title), style=_STYLE + style, body="\n".join(parts), policy=policy)


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


def preview_page(preview: Preview) -> str:
    """Return a preview as one HTML file: figures of the store, if the preview has them, and its samples."""
    parts = [
        f"<h1>{escaped(preview.path)}</h1>",
        f'<p class="soft">{_shown(preview)}</p>',
    ]
    if preview.note:
        parts.append(f"<p>{escaped(preview.note)}</p>")
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
    return page(f"{preview.path} - headrace preview", [*parts, SEARCH_SCRIPT], policy=SEARCH_POLICY)


def _shares_words(shares: Shares) -> str:
    return f"documents by the share of their tokens that is trained, up to{f'; {shares.words}' if shares.words else ''}"


def _shown(preview: Preview) -> str:
    unit = "documents" if preview.seq_len is None else f"packs of {count(preview.seq_len)} tokens"
    shown = f"{count(len(preview.samples))} of {count(preview.num_samples)} {unit}"
    by = f", {escaped(preview.chosen_by)}" if preview.chosen_by else ""
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


def rendering_page(rendering: Rendering) -> str:
    """Return a rendering as one HTML file."""
    title = f"{rendering.input}, {rendering.place}"
    parts = [f"<h1>{escaped(title)}</h1>", f'<p class="soft">record {count(rendering.record)}</p>']
    parts += [pairs_html(rendering_summary(rendering)), "<h2>Record</h2>"]
    parts.append(f"<section>{block_html(as_json(rendering.source))}</section>")
    parts += [_part_html(part) for part in rendering.parts]
    if rendering.columns:
        pairs = [(name, as_json(value)) for name, value in rendering.columns.items()]
        parts.append(f"<section><h3>columns</h3>{pairs_html(pairs)}</section>")
    if rendering.sequences:
        parts += ["<h2>Tokens</h2>", LEGEND]
    parts += [_sequence_html(sequence) for sequence in rendering.sequences]
    return page(f"{title} - headrace render", parts)


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
