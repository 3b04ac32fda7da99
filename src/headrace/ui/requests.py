"""What a request asks for: numbers, texts and paths in the query of its URL, and URLs of other pages."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar, cast
from urllib.parse import parse_qsl, quote, urlencode

from headrace.errors import ConfigError
from headrace.inspect.figures import plural
from headrace.inspect.views.overviews import EntryKind
from headrace.ui.places import Places

MOST: int = 1 << 62

T = TypeVar("T")


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


class Pager(NamedTuple):
    """The way to the page before and the one after, and a form that leads to any.

    Attributes:
        page: the page.
        query: what the query of each URL has.
        words: what is asked for in the form.
        name: the name of its field in the query.
        value: what the field holds.
        before, after: the URLs; empty at an end.
        of: how many there are, in words.
    """

    page: str
    query: dict[str, object]
    words: str
    name: str
    value: object
    before: str
    after: str
    of: str = ""

    @classmethod
    def at(cls, page: str, name: str, number: int, step: int, total: int | None, noun: str, **query: object) -> Pager:
        """Return the pager at a number of ``total``, which is None where there is no end; pages are ``step`` apart."""
        before = link(page, **query, **{name: max(0, number - step)}) if number > 0 else ""
        after = link(page, **query, **{name: number + step}) if total is None or number + step < total else ""
        words = f"from {noun}" if name == "first" else noun
        return cls(page, query, words, name, number, before, after, "" if total is None else plural(total, noun))


@lru_cache(maxsize=16)
def _kept(make: Callable[[str], T], path: str, size: int, changed_ns: int) -> T:
    return make(path)


def kept(make: Callable[[str], T], path: str, file: str) -> T:
    """Return ``make(path)``, which is kept until the file changes: pages ask for it again and again."""
    status = Path(file).stat()
    return cast(T, _kept(make, path, status.st_size, status.st_mtime_ns))


def link(page: str, **query: object) -> str:
    """Return the URL of a page, relative to any other page; None and empty values are left out."""
    given = {name: str(value) for name, value in query.items() if value is not None and value != ""}
    # File names that are not UTF-8 come as surrogates, and go as their bytes.
    text = urlencode(given, quote_via=quote, errors="surrogateescape")
    return f"{page}?{text}" if text else page


def command(*words: object) -> str:
    """Return a command line, with quotes where a shell needs them."""
    return shlex.join(["headrace", *map(str, words)])
