"""How templates are rendered: with data that are escaped. `page_of` makes one file, which needs nothing else."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from headrace.inspect import figures
from headrace.inspect.answers import Shown
from headrace.ui import drawing
from headrace.ui.media import Embedded
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
    )
    return found


def page_of(found: Shown) -> str:
    """Return what `describe`, `check`, `preview`, `where` or `render` found as one HTML file that needs no other file.

    Data never become markup. Of samples that are open, this reads and decodes each one. Pictures are encoded anew, so
    that their bytes do not reach the browser.

    Example:
        >>> from headrace import inspect, ui
        >>> page = ui.page_of(inspect.preview("stores/web", num=1))
        >>> page.count("<section")
        1
    """
    style = Markup((files("headrace.ui") / "static" / "ui.css").read_text(encoding="utf-8"))
    template = environment().get_template("file.html")
    return template.render(style=style, shown=list(found.shown()), media_of=Embedded().source)


def _harmless(value: Any) -> Any:
    """Make texts harmless before they are escaped: characters that do not print, or move others, are written out."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return "\n".join(figures.safe_text(line) for line in value.split("\n"))
    return "" if value is None else value


def _short(number: float) -> str:
    return figures.short(number).strip()


def _percent(share: float | None, digits: int = 1) -> str:
    return "" if share is None else f"{100 * share:.{digits}f} %"


def _broken(text: str) -> str:
    """Mark line breaks of the data, to tell them from those of the page."""
    return "\n".join(figures.safe_lines(text))
