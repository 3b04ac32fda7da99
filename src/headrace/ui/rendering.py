"""How templates are rendered, to answers and to files: with data that are escaped, and what templates may call."""

from __future__ import annotations

from typing import Any

import jinja2
from markupsafe import Markup

from headrace.inspect import figures
from headrace.ui import drawing
from headrace.ui.requests import link


def environment() -> jinja2.Environment:
    """Return what renders the templates: data are escaped, and made harmless before that."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("headrace.ui"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
        auto_reload=False,
    )
    found.globals.update(link=link, drawing=drawing)
    found.filters.update(
        count=figures.count,
        size=figures.size,
        plural=figures.plural,
        short=_short,
        percent=_percent,
        kind=lambda block: type(block).__name__,
        broken=_broken,
        source=drawing.source_name,
        utc=_utc,
        sum_values=_sum_values,
    )
    return found


def _harmless(value: Any) -> Any:
    """Make texts harmless before they are escaped: characters that do not print, or move others, are written out."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return "\n".join(figures.safe_text(line) for line in value.split("\n"))
    return "" if value is None else value


def _short(number: float) -> str:
    return figures.short(number).strip()


def _percent(share: float | None, digits: int = 1) -> str:
    return "" if share is None else f"{100 * share:.{digits}f} %"


def _utc(date: str) -> str:
    """Return a date of a file, such as ``2026-03-01T12:30:09+00:00``, as pages show dates."""
    return date[:16].replace("T", " ") if date.endswith("+00:00") else date


def _broken(text: str) -> str:
    """Mark line breaks of the data, to tell them from those of the page."""
    return "\n".join(figures.safe_lines(text))


def _sum_values(counts: dict[str, int]) -> int:
    return sum(counts.values())
