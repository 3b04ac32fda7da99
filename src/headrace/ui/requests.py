"""What a request asks for: numbers, texts and paths in the query of its URL, and URLs of other pages."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlencode

from headrace.errors import ConfigError
from headrace.inspect.views.overviews import EntryKind
from headrace.ui.places import Places

MOST: int = 1 << 62


class Query:
    """The query of a request.

    Args:
        values: name -> value, as the URL has them.
        places: what may be looked at.
    """

    def __init__(self, values: Mapping[str, str], places: Places) -> None:
        self.values = values
        self.places = places

    @classmethod
    def of(cls, query: bytes, places: Places) -> Query:
        """Return what the query of a URL says. Bytes that are not UTF-8 stay as they are, as in file names."""
        return cls(dict(parse_qsl(query.decode("latin-1"), True, errors="surrogateescape")), places)

    def text(self, name: str, default: str = "") -> str:
        """Return a text; the default if it is not there, or empty."""
        return self.values.get(name) or default

    def number(self, name: str, default: int, *, low: int = 0, high: int = MOST) -> int:
        """Return a number; the default if it is not there, or empty.

        Raises:
            ConfigError: it is no number, or out of range.
        """
        found = self.maybe(name, low=low, high=high)
        return default if found is None else found

    def maybe(self, name: str, *, low: int = 0, high: int = MOST) -> int | None:
        """Return a number, or None if it is not there."""
        text = self.text(name).strip().replace(",", "")
        if not text:
            return None
        if not (text.isascii() and text.isdigit()) or len(text) > 19 or not low <= int(text) <= high:
            raise ConfigError(f"{name}={text}: expected a whole number from {low:,} to {high:,}")
        return int(text)

    def decimal(self, name: str) -> float | None:
        """Return a number that need not be whole, or None if it is not there."""
        text = self.text(name).strip()
        if not text:
            return None
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"{name}={text}: expected a number") from None

    def path(self, *kinds: EntryKind, name: str = "path") -> str:
        """Return a path that may be looked at.

        Raises:
            NotNamedError: it may not.
            ConfigError: there is none.
        """
        text = self.text(name)
        if not text:
            raise ConfigError(f"the URL names no {name}: open a page from the first one")
        return self.places.check(text, *kinds)


def link(page: str, **query: object) -> str:
    """Return the URL of a page, relative to any other page; None and empty values are left out."""
    given = {name: str(value) for name, value in query.items() if value is not None and value != ""}
    # File names that are not UTF-8 come as surrogates, and go as their bytes.
    text = urlencode(given, quote_via=quote, errors="surrogateescape")
    return f"{page}?{text}" if text else page
