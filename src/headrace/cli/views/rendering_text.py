"""A record on its way, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.cli.figures import count, listing, plural
from headrace.cli.views.safe_text import safe_lines, safe_text
from headrace.cli.views.steps import EvidenceRow, Part, RenderedSequence, Rendering
from headrace.cli.views.terminal import Style, as_json, sequence_lines, trained_share

_MOST_CHARS = 48
EVIDENCE_HEADS = ("tokens", "bytes", "turn", "role", "region", "trained", "why", "text")


def rendering_lines(rendering: Rendering, style: Style) -> list[str]:
    """All that `headrace render` prints."""
    lines = [safe_text(f"{rendering.input}, {rendering.place}: record {count(rendering.record)}")]
    lines += listing([(name, safe_text(value)) for name, value in summary(rendering)])
    for part in rendering.parts:
        lines += ["", style.heading(safe_text(part_heading(part))), *_part_lines(part)]
    for name, value in (rendering.columns or {}).items():
        lines += [f"  {safe_text(name)}: {safe_text(as_json(value))}"]
    for sequence in rendering.sequences:
        lines += ["", style.heading(safe_text(rendered_heading(sequence))), f"  {style.legend}"]
        lines += sequence_lines(sequence.shown, style)
        lines += [f"  {safe_text(text)}" for text in remarks(sequence)]
        lines += ["", *_table(sequence.evidence)]
    return lines


def summary(rendering: Rendering) -> list[tuple[str, str]]:
    """The record in a few words; data among them."""
    pairs = [
        ("recipe", f"{rendering.recipe}, type {rendering.type}"),
        ("layout", f"{rendering.layout} ({rendering.layout_why})" if rendering.layout else rendering.layout_why),
        ("template", rendering.template or "none"),
    ]
    if rendering.outcome == "kept":
        keys = ", ".join(f"{name} {count(number)}" for name, number in rendering.stored.items())
        pairs.append(("stored", f"{plural(rendering.num_documents, 'document')}: {keys}"))
    else:
        reason = f"{rendering.reason}: " if rendering.reason else ""
        pairs.append(("dropped" if rendering.outcome == "dropped" else "refused", f"{reason}{rendering.message}"))
    if rendering.notes:
        pairs.append(("counted", ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in rendering.notes.items())))
    return pairs


def part_heading(part: Part) -> str:
    """A line about a text or a conversation."""
    text = f"{part.name}: {plural(len(part.messages), 'message')}" if part.messages is not None else part.name
    return text + ("" if part.reward is None else f", reward {part.reward:g}")


def message_heading(part: Part, number: int) -> str:
    """The role of a message, and its flag where the record has one."""
    role = str((part.messages or [])[number].get("role"))
    flag = part.train[number] if part.train else None
    return role + ("" if flag is None else " (train: true)" if flag else " (train: false)")


def message_fields(message: dict[str, object]) -> list[str]:
    """A message without its role: the content as it is, other fields as JSON."""
    content = message.get("content")
    lines = [content if isinstance(content, str) else as_json(content)] if "content" in message else []
    others = {name: value for name, value in message.items() if name not in ("role", "content")}
    return lines + [f"{name}: {as_json(value)}" for name, value in others.items()]


def extras(part: Part) -> list[tuple[str, str]]:
    """What the template sees besides the messages."""
    named = (("tools", part.tools), ("template arguments", part.template_kwargs))
    return [(name, as_json(value)) for name, value in named if value]


def rendered_heading(sequence: RenderedSequence) -> str:
    """A line about a sequence."""
    shown = sequence.shown
    text = f"{shown.name}: {plural(shown.num_tokens, 'token')}"
    return text + trained_share(shown.num_trained or 0, shown.num_tokens)


def remarks(sequence: RenderedSequence) -> list[str]:
    """What is stored of a sequence, where that is not simply all."""
    found = []
    for tokens, where in ((sequence.added_before, "before"), (sequence.added_after, "behind")):
        if tokens:
            found.append(f"put {where} it: {' '.join(tokens)}")
    cut = sum(len(stretch.ids) for stretch in sequence.shown.stretches if not stretch.is_kept)
    if cut:
        found.append(f"not stored: {plural(cut, 'token')}")
    return found + ([sequence.note] if sequence.note else [])


def evidence_cells(row: EvidenceRow) -> tuple[str, ...]:
    """A row of the table, its text apart."""
    return (
        f"{row.begin:,} to {row.end:,}",
        f"{row.begin_bytes:,} to {row.end_bytes:,}",
        str(row.message) if row.message >= 0 else "",
        row.role,
        row.region,
        ("yes" if row.is_trained else "no") + ("" if row.is_kept else ", not stored"),
        row.why,
    )


def _part_lines(part: Part) -> list[str]:
    lines = []
    for number, message in enumerate(part.messages or []):
        heading = safe_text(message_heading(part, number))
        lines.append(f"  {number} {heading}")
        lines += [f"      {line}" for field in message_fields(message) for line in safe_lines(field)]
    if part.text is not None:
        lines += [f"  {line}" for line in safe_lines(part.text)]
    lines += [f"  {name}: {safe_text(value)}" for name, value in extras(part)]
    if part.rendered is not None:
        lines += ["  rendered:", *(f"      {line}" for line in safe_lines(part.rendered))]
    return lines


def _table(rows: Sequence[EvidenceRow]) -> list[str]:
    texts = [safe_text(row.text) for row in rows]
    shown = [text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 4]} ..." for text in texts]
    cells = [
        EVIDENCE_HEADS,
        *((*map(safe_text, evidence_cells(row)), text) for row, text in zip(rows, shown, strict=True)),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    ]
