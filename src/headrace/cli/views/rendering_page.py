"""A record on its way, as a page."""

from __future__ import annotations

from headrace.cli.figures import count
from headrace.cli.views.page import LEGEND, block_html, escaped, page, pairs_html, sequence_html
from headrace.cli.views.rendering_text import (
    EVIDENCE_HEADS,
    evidence_cells,
    extras,
    message_fields,
    message_heading,
    part_heading,
    remarks,
    rendered_heading,
    summary,
)
from headrace.cli.views.steps import EvidenceRow, Part, RenderedSequence, Rendering
from headrace.cli.views.terminal import as_json


def rendering_page(rendering: Rendering) -> str:
    """One HTML file."""
    title = f"{rendering.input}, {rendering.place}"
    parts = [f"<h1>{escaped(title)}</h1>", f'<p class="soft">record {count(rendering.record)}</p>']
    parts += [pairs_html(summary(rendering)), "<h2>Record</h2>"]
    parts.append(f"<section>{block_html(as_json(rendering.source))}</section>")
    parts += [_part_html(part) for part in rendering.parts]
    if rendering.columns:
        pairs = [(name, as_json(value)) for name, value in rendering.columns.items()]
        parts.append(f"<section><h3>columns</h3>{pairs_html(pairs)}</section>")
    if rendering.sequences:
        parts += ["<h2>Tokens</h2>", LEGEND]
    parts += [_sequence_html(sequence) for sequence in rendering.sequences]
    return page(f"{title} - headrace render", parts)


def _part_html(part: Part) -> str:
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
