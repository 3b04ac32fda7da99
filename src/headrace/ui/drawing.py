"""Charts as inline SVG, made of structs. Data are escaped, and colours are classes of ``static/ui.css``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from markupsafe import Markup

from headrace.inspect.figures import count, plural, safe_text, short
from headrace.inspect.views.lives import LivePoint
from headrace.tracing import GridCell, MixCurve

WIDTH: Final = 960
_LEFT, _RIGHT, _ABOVE, _BELOW = 52, 12, 14, 26

COLOURS: Final = 10
"""The number of colours of sources; from the next one on, they begin again."""

SHOWN_SOURCES: Final = 10
"""The most sources that have a line of their own."""

HEAT: Final = 9
"""The number of steps of a heat map."""


def colour(number: int) -> str:
    """Return the class of a source, by its place in the order of sources."""
    return f"c{number % COLOURS}"


def source_name(path: str) -> str:
    """Return what a source is called: the only one of a run has no name."""
    return "the dataset" if path in ("", ".") else path


def bars(found: Sequence[tuple[str, float, str]], label: str, *, height: int = 150) -> Markup:
    """Draw bars, each given by its name, its number, and what a pointer on it shows."""
    most = max([number for _, number, _ in found], default=0) or 1
    wide = (WIDTH - 20) / max(1, len(found))
    shapes = []
    for place, (name, number, title) in enumerate(found):
        left, tall = 10 + place * wide, max(height * number / most, 1.5 if number else 0)
        top, middle = _ABOVE + height - tall, 10 + (place + 0.5) * wide
        shapes.append(
            Markup(
                '<g><title>{}</title><rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2"/>'
                '<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>'
                '<text class="axis" x="{:.1f}" y="{}" text-anchor="middle">{}</text></g>'
            ).format(
                safe_text(title), left + wide * 0.08, top, wide * 0.84, tall, middle, top - 4,
                short(number).strip() if number else "", middle, _ABOVE + height + 16, safe_text(name),
            )
        )  # fmt: skip
    return _svg(Markup("").join(shapes), height + _ABOVE + _BELOW, label)


def share_bar(parts: Sequence[tuple[str, float, str]], label: str) -> Markup:
    """Draw one bar of parts, each given by its class, its share of 0 to 1, and what a pointer on it shows."""
    shapes, at = [], 0.0
    for name, share, title in parts:
        shapes.append(
            Markup('<rect class="{}" x="{:.2f}" y="0" width="{:.2f}" height="12"><title>{}</title></rect>').format(
                name, at * 400, max(0.0, share) * 400, safe_text(title)
            )
        )
        at += max(0.0, share)
    return Markup(
        '<svg class="share" viewBox="0 0 400 12" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(label, Markup("").join(shapes))


def mix_chart(curve: MixCurve, marked: int | None = None) -> Markup:
    """Draw the planned share of each source as a line, what comes as points, and edits as vertical lines."""
    height = 240
    span = max(1, curve.end_step - curve.first_step)
    sources = curve.sources[:SHOWN_SOURCES]
    shares = [share for point in curve.points for share in (*point.planned.values(), *map(point.share, point.came))]
    most = _round_up(max(shares, default=1))

    def x(step: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (step - curve.first_step) / span

    def y(share: float) -> float:
        return _ABOVE + height * (1 - min(share, most) / most)

    parts = [_grid_lines(most, y), _step_axis(curve.first_step, curve.end_step, x, height)]
    for number, mark in enumerate(curve.marks, start=1):
        at = x(mark.step)
        title = f"step {count(mark.step)}: {mark.what}{f': {mark.reason}' if mark.reason else ''}"
        parts.append(
            Markup(
                '<g class="mark"><title>{}</title><line x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/>'
                '<circle cx="{:.1f}" cy="{}" r="8"/><text x="{:.1f}" y="{}" text-anchor="middle">{}</text></g>'
            ).format(safe_text(title), at, at, _ABOVE, _ABOVE + height, at, _ABOVE, at, _ABOVE + 4, number)
        )
    for number, source in enumerate(sources):
        line, before = [], None
        for point in curve.points:
            share = point.planned.get(source)
            if share is None:
                before = None
                continue
            line.append(f"{'M' if before is None else 'L'}{x(point.step):.1f} {y(share):.1f}H{x(point.end_step):.1f}")
            before = share
        dots = [
            Markup('<circle cx="{:.1f}" cy="{:.1f}" r="2.2"><title>{}</title></circle>').format(
                x((point.step + point.end_step) / 2),
                y(point.share(source)),
                safe_text(
                    f"{source_name(source)}, steps {count(point.step)} to {count(point.end_step - 1)}: came "
                    f"{point.share(source):.2%}, planned {point.planned.get(source, 0):.2%}"
                ),
            )
            for point in curve.points
            if source in point.came
        ]
        parts.append(
            Markup('<g class="{}"><path d="{}"/>{}</g>').format(colour(number), " ".join(line), Markup("").join(dots))
        )
    if marked is not None and curve.first_step <= marked <= curve.end_step:
        parts.append(
            Markup('<line class="now" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>').format(
                x(marked), _ABOVE, _ABOVE + height
            )
        )
    return _svg(Markup("").join(parts), height + _ABOVE + _BELOW, "Shares of the sources over the steps", kind="lines")


def _round_up(share: float) -> float:
    """Return the next of 1, 0.4, 0.2, 0.1, 0.04, ... from a share on, as the end of an axis: its quarters are short."""
    if share <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(share))
    return min(1.0, next((unit * factor for factor in (1, 2, 4) if share <= unit * factor), 10 * unit))


def _grid_lines(most: float, y: Callable[[float], float]) -> Markup:
    lines = []
    for part in (0, 0.25, 0.5, 0.75, 1):
        at = y(most * part)
        lines.append(
            Markup(
                '<line class="rule" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
                '<text class="axis" x="{}" y="{:.1f}" text-anchor="end">{:.3g} %</text>'
            ).format(_LEFT, WIDTH - _RIGHT, at, at, _LEFT - 6, at + 4, 100 * most * part)
        )
    return Markup("").join(lines)


def _step_axis(first: int, end: int, x: Callable[[float], float], height: int) -> Markup:
    names = []
    for part in range(5):
        step = first + (end - first) * part // 4
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        name = f"step {count(step)}" if part == 0 else count(step)
        names.append(
            Markup('<text class="axis" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
                x(step), _ABOVE + height + 18, anchor, name
            )
        )
    return Markup("").join(names)


def wait_chart(points: Sequence[LivePoint], stages: Sequence[str]) -> Markup:
    """Draw the part of the time that each report waited, one bar a report, split into stages."""
    height = 110
    most = max([point.wait_share for point in points], default=0.0)
    most = _round_up(max(0.02, most))
    wide = (WIDTH - _LEFT - _RIGHT) / max(1, len(points))
    shapes = [_grid_lines(most, lambda share: _ABOVE + height * (1 - share / most))]
    for place, point in enumerate(points):
        bottom = float(_ABOVE + height)
        inner = []
        for number, stage in enumerate(stages):
            share = point.stages.get(stage, 0.0) / point.seconds if point.seconds else 0.0
            tall = height * min(share, most) / most
            bottom -= tall
            inner.append(
                Markup('<rect class="{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"/>').format(
                    colour(number), _LEFT + place * wide, bottom, max(0.5, wide - 1), tall
                )
            )
        title = f"step {count(point.step)}: {point.wait_share:.1%} of {point.seconds:.1f} s was waited"
        shapes.append(Markup("<g><title>{}</title>{}</g>").format(title, Markup("").join(inner)))
    if points:
        shapes.append(
            _step_axis(points[0].step, points[-1].step, lambda step: _at_step(points, step, wide), height)
            if points[-1].step > points[0].step
            else Markup("")
        )
    return _svg(Markup("").join(shapes), height + _ABOVE + _BELOW, "Waiting, as a part of the time")


def _at_step(points: Sequence[LivePoint], step: float, wide: float) -> float:
    first, last = points[0].step, points[-1].step
    return _LEFT + wide * len(points) * (step - first) / max(1, last - first)


def heat_class(value: float, low: float, high: float) -> str:
    """Return the class of a value between two others."""
    part = 0.4 if high <= low else (value - low) / (high - low)
    return f"q{min(HEAT - 1, max(0, int(part * HEAT)))}"


def step_map(
    cells: Sequence[GridCell],
    ranks: Sequence[int],
    num_micro_steps: int,
    value: Callable[[GridCell], float | None],
    words: Callable[[GridCell], str],
    link: Callable[[GridCell], str],
    chosen: tuple[int, int] | None,
) -> Markup:
    """Draw micro-batches as a heat map, a row for each rank, each a link; what is not known has no colour."""
    high = 24 if len(ranks) <= 16 else 16 if len(ranks) <= 48 else 10
    wide = min(64.0, (WIDTH - 80) / max(1, num_micro_steps))
    row_of = {rank: row for row, rank in enumerate(ranks)}
    values = [found for cell in cells if (found := value(cell)) is not None]
    low, top = min(values, default=0.0), max(values, default=0.0)
    shapes = []
    for rank, row in row_of.items():
        if len(ranks) <= 48 or row % 8 == 0:
            shapes.append(
                Markup('<text class="axis" x="62" y="{:.1f}" text-anchor="end">rank {}</text>').format(
                    22 + row * high + high / 2 + 4, rank
                )
            )
    for micro_step in range(num_micro_steps):
        if micro_step % max(1, num_micro_steps // 16) == 0:
            shapes.append(
                Markup('<text class="axis" x="{:.1f}" y="14" text-anchor="middle">{}</text>').format(
                    70 + (micro_step + 0.5) * wide, micro_step
                )
            )
    for cell in cells:
        if cell.rank not in row_of:
            continue
        found = value(cell)
        name = "qn" if found is None else heat_class(found, low, top)
        if chosen == (cell.rank, cell.micro_step):
            name += " chosen"
        shapes.append(
            Markup(
                '<a href="{}"><rect class="cell {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2">'
                "<title>{}</title></rect></a>"
            ).format(
                link(cell), name, 70 + cell.micro_step * wide, 22 + row_of[cell.rank] * high, wide - 2, high - 2,
                safe_text(words(cell)),
            )
        )  # fmt: skip
    tall = 26 + high * len(ranks)
    width = int(max(240, 76 + wide * num_micro_steps))
    return Markup(
        '<svg viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="group" aria-label="Micro-batches by rank">{2}</svg>'
    ).format(width, tall, Markup("").join(shapes))


def boxes(found: Sequence[tuple[str, float, float, float, float, str]], width: float, height: float) -> Markup:
    """Draw boxes over a picture, each given by its kind, its place and size in pixels, and a text."""
    shapes = [
        Markup('<rect class="box b-{}" x="{:g}" y="{:g}" width="{:g}" height="{:g}"><title>{}</title></rect>').format(
            kind, x, y, max(wide, 0), max(high, 0), safe_text(text)
        )
        for kind, x, y, wide, high, text in found
    ]
    return Markup('<svg class="boxes" viewBox="0 0 {:g} {:g}" preserveAspectRatio="none">{}</svg>').format(
        width, height, Markup("").join(shapes)
    )


def _svg(inner: Markup, height: int, label: str, *, kind: str = "") -> Markup:
    return Markup('<svg class="chart {}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        kind, WIDTH, height, label, inner
    )


def documents_bar(first: int, last: int, documents: int, tokens: int, looked_at: int) -> tuple[str, float, str]:
    """Return a bar of a histogram of lengths, for `bars`."""
    span = count(first) if first == last else f"{count(first)} to {count(last)}"
    share = documents / max(1, looked_at)
    return (
        count(first) if first < 100_000 else short(first).strip(),
        documents,
        f"{span} tokens: {plural(documents, 'document')} ({share:.1%}), {plural(tokens, 'token')}",
    )
