"""Charts as inline SVG, made of structs. Data are escaped, and colours are classes of ``static/ui.css``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from markupsafe import Markup

from headrace.inspect import Tabular
from headrace.inspect.figures import count, safe_text, short
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


def _tag(name: str, inner: Iterable[Markup | str] = (), *, title: str = "", kind: str = "", **given: object) -> Markup:
    """Return an element; ``title`` is what a pointer on it shows, and ``kind`` its class. Numbers are rounded."""
    values = {
        name.replace("_", "-"): f"{value:.2f}" if isinstance(value, float) else value for name, value in given.items()
    }
    attributes = {**({"class": kind} if kind else {}), **values}
    told = [Markup("<title>{}</title>").format(safe_text(title))] if title else []
    return Markup("<{0}{1}>{2}</{0}>").format(
        name,
        Markup("").join(Markup(' {}="{}"').format(key, value) for key, value in attributes.items()),
        Markup("").join((*told, *inner)),
    )


def _text(text: str, x: float, y: float, anchor: str = "middle", kind: str = "axis") -> Markup:
    return _tag("text", [safe_text(text)], kind=kind, x=x, y=y, text_anchor=anchor)


def _chart(inner: Iterable[Markup], height: float, label: str, *, kind: str = "chart") -> Markup:
    return _tag("svg", inner, kind=kind, viewBox=f"0 0 {WIDTH} {height:g}", role="img", aria_label=label)


def bars(table: Tabular, *, height: int = 150) -> Markup:
    """Draw the rows of a histogram; a pointer on a bar shows its cells."""
    most = max(table.bars, default=0) or 1
    wide = (WIDTH - 20) / max(1, len(table.bars))
    shapes = []
    for place, (row, number) in enumerate(zip(table.rows, table.bars, strict=True)):
        tall, middle = max(height * number / most, 1.5 if number else 0.0), 10 + (place + 0.5) * wide
        top = _ABOVE + height - tall
        inner = [
            _tag("rect", kind="bar", x=middle - 0.42 * wide, y=top, width=wide * 0.84, height=tall, rx=2),
            _text(short(number).strip() if number else "", middle, top - 4, kind=""),
            _text(row[0].partition(" to ")[0], middle, _ABOVE + height + 16),
        ]
        title = ", ".join(f"{head}: {cell}" for head, cell in zip(table.heads, row, strict=True))
        shapes.append(_tag("g", inner, title=title))
    return _chart(shapes, height + _ABOVE + _BELOW, ", ".join(table.heads))


def share_bar(parts: Sequence[tuple[str, float, str]], label: str) -> Markup:
    """Draw one bar of parts, each given by its class, its share of 0 to 1, and what a pointer on it shows."""
    shapes, at = [], 0.0
    for name, share, title in parts:
        wide = max(0.0, share) * 400
        shapes.append(_tag("rect", kind=name, title=title, x=at, y=0, width=wide, height=12))
        at += wide
    whole = {"viewBox": "0 0 400 12", "preserveAspectRatio": "none", "role": "img"}
    return _tag("svg", shapes, kind="share", aria_label=label, **whole)


def mix_chart(curve: MixCurve, marked: int | None = None) -> Markup:
    """Draw the planned share of each source as a line, what comes as points, and edits as vertical lines."""
    height = 240
    span = max(1, curve.end_step - curve.first_step)
    shares = [share for point in curve.points for share in (*point.planned.values(), *map(point.share, point.came))]
    most = _round_up(max(shares, default=1))

    def x(step: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (step - curve.first_step) / span

    def y(share: float) -> float:
        return _ABOVE + height * (1 - min(share, most) / most)

    def vertical(step: float, kind: str = "") -> Markup:
        return _tag("line", kind=kind, x1=x(step), x2=x(step), y1=_ABOVE, y2=_ABOVE + height)

    parts = [*_grid_lines(most, y), *_step_axis(curve.first_step, curve.end_step, x, height)]
    for number, mark in enumerate(curve.marks, start=1):
        at, name = x(mark.step), _text(str(number), x(mark.step), _ABOVE + 4, kind="")
        title = f"step {count(mark.step)}: {mark.what}{f': {mark.reason}' if mark.reason else ''}"
        inner = [vertical(mark.step), _tag("circle", cx=at, cy=_ABOVE, r=8), name]
        parts.append(_tag("g", inner, kind="mark", title=title))
    for number, source in enumerate(curve.sources[:SHOWN_SOURCES]):
        line, before, dots = [], None, []
        for point in curve.points:
            share, came = point.planned.get(source), point.share(source)
            if share is not None:
                begin = "M" if before is None else "L"
                line.append(f"{begin}{x(point.step):.1f} {y(share):.1f}H{x(point.end_step):.1f}")
            before = share
            if source in point.came:
                steps = f"steps {count(point.step)} to {count(point.end_step - 1)}"
                title = f"{source_name(source)}, {steps}: came {came:.2%}, planned {share or 0:.2%}"
                dots.append(_tag("circle", title=title, cx=x((point.step + point.end_step) / 2), cy=y(came), r=2.2))
        parts.append(_tag("g", [_tag("path", d=" ".join(line)), *dots], kind=colour(number)))
    if marked is not None and curve.first_step <= marked <= curve.end_step:
        parts.append(vertical(marked, "now"))
    return _chart(parts, height + _ABOVE + _BELOW, "Shares of the sources over the steps", kind="chart lines")


def _round_up(share: float) -> float:
    """Return the next of 1, 0.4, 0.2, 0.1, 0.04, ... from a share on, as the end of an axis: its quarters are short."""
    if share <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(share))
    return min(1.0, next((unit * factor for factor in (1, 2, 4) if share <= unit * factor), 10 * unit))


def _grid_lines(most: float, y: Callable[[float], float]) -> list[Markup]:
    found = []
    for part in (0, 0.25, 0.5, 0.75, 1):
        at = y(most * part)
        found.append(_tag("line", kind="rule", x1=_LEFT, x2=WIDTH - _RIGHT, y1=at, y2=at))
        found.append(_text(f"{100 * most * part:.3g} %", _LEFT - 6, at + 4, "end"))
    return found


def _step_axis(first: int, end: int, x: Callable[[float], float], height: int) -> list[Markup]:
    steps = [first + (end - first) * part // 4 for part in range(5)]
    anchors = ("start", "middle", "middle", "middle", "end")
    names = [f"step {count(first)}", *map(count, steps[1:])]
    rows = zip(names, steps, anchors, strict=True)
    return [_text(name, x(step), _ABOVE + height + 18, anchor) for name, step, anchor in rows]


def wait_chart(points: Sequence[LivePoint], stages: Sequence[str]) -> Markup:
    """Draw the part of the time that each report waited, one bar a report, split into stages."""
    height = 110
    most = _round_up(max([0.02, *(point.wait_share for point in points)]))
    wide = (WIDTH - _LEFT - _RIGHT) / max(1, len(points))
    shapes = _grid_lines(most, lambda share: _ABOVE + height * (1 - share / most))
    for place, point in enumerate(points):
        bottom, left = float(_ABOVE + height), _LEFT + place * wide
        inner = []
        for number, stage in enumerate(stages):
            share = point.stages.get(stage, 0.0) / point.seconds if point.seconds else 0.0
            tall = height * min(share, most) / most
            bottom -= tall
            inner.append(_tag("rect", kind=colour(number), x=left, y=bottom, width=max(0.5, wide - 1), height=tall))
        title = f"step {count(point.step)}: {point.wait_share:.1%} of {point.seconds:.1f} s was waited"
        shapes.append(_tag("g", inner, title=title))
    if points and points[-1].step > points[0].step:
        first, last = points[0].step, points[-1].step
        scale = wide * len(points) / (last - first)
        shapes += _step_axis(first, last, lambda step: _LEFT + scale * (step - first), height)
    return _chart(shapes, height + _ABOVE + _BELOW, "Waiting, as a part of the time")


def heat_class(value: float, low: float, high: float) -> str:
    """Return the class of a value between two others."""
    part = 0.4 if high <= low else (value - low) / (high - low)
    return f"q{min(HEAT - 1, max(0, int(part * HEAT)))}"


def step_map(
    cells: Sequence[GridCell],
    ranks: Sequence[int],
    num_micro_steps: int,
    words: Callable[[GridCell], str],
    link: Callable[[GridCell], str],
    chosen: tuple[int, int] | None,
) -> Markup:
    """Draw micro-batches as a heat map of their attended pairs, a row for each rank, each a link."""
    high = 24 if len(ranks) <= 16 else 16 if len(ranks) <= 48 else 10
    wide = min(64.0, (WIDTH - 80) / max(1, num_micro_steps))
    row_of = {rank: row for row, rank in enumerate(ranks)}
    pairs = [cell.held.pairs for cell in cells if cell.held is not None]
    low, top = min(pairs, default=0), max(pairs, default=0)
    shapes = [
        _text(f"rank {rank}", 62, 26 + (row + 0.5) * high, "end")
        for rank, row in row_of.items()
        if len(ranks) <= 48 or row % 8 == 0
    ]
    every = max(1, num_micro_steps // 16)
    shapes += [_text(str(step), 70 + (step + 0.5) * wide, 14) for step in range(0, num_micro_steps, every)]
    for cell in cells:
        if (row := row_of.get(cell.rank)) is None:
            continue
        name = "cell qn" if cell.held is None else f"cell {heat_class(cell.held.pairs, low, top)}"
        place: dict[str, Any] = {
            "x": 70 + cell.micro_step * wide,
            "y": 22 + row * high,
            "width": wide - 2,
            "height": high - 2,
            "rx": 2,
        }
        is_chosen = " chosen" if chosen == (cell.rank, cell.micro_step) else ""
        shapes.append(_tag("a", [_tag("rect", kind=name + is_chosen, title=words(cell), **place)], href=link(cell)))
    tall, width = 26 + high * len(ranks), int(max(240, 76 + wide * num_micro_steps))
    size: dict[str, Any] = {"viewBox": f"0 0 {width} {tall}", "width": width, "height": tall}
    return _tag("svg", shapes, **size, role="group", aria_label="Micro-batches by rank")
