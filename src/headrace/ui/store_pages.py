"""The first page, and the pages of stores. Each function returns the template of a page and its values."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.errors import ConfigError, HeadraceError
from headrace.inspect import views
from headrace.inspect.questions import open_preview, preview
from headrace.inspect.sample_preview import OpenPreview, SamplePreview
from headrace.inspect.samples import LookedAtSample
from headrace.inspect.shown import Preview
from headrace.inspect.views import SampleOutline
from headrace.ui import drawing, shell
from headrace.ui.files import PLAYED
from headrace.ui.rendering import boxes_of
from headrace.ui.requests import Query, link

Values = tuple[str, dict[str, Any]]

PAGE_DOCUMENTS: Final = 10
PAGE_SAMPLES: Final = 24
MOST_AT_ONCE: Final = 100
PREVIEW_TOKENS: Final = 400
"""The tokens that are shown of each document where several are shown."""

DOCUMENT_TOKENS: Final = 4096
"""The tokens that are shown of a document that is shown alone; more come on demand."""

KINDS: Final = {
    "seq": "plain documents",
    "sft": "records with a loss mask",
    "dpo": "pairs of a chosen and a rejected answer",
    "grpo": "prompts with several answers and their rewards",
    "prompt": "prompts",
}
"""What the kinds of stores are called."""

MOST_TOKENS: Final = 1 << 16


def home(asked: Query) -> Values:
    """What is here."""
    found = asked.places.overview()
    return "home.html", {
        "found": found,
        "stores": found.of_kind("tokens", "samples"),
        "mixes": found.of_kind("mix"),
        "runs": found.of_kind("run"),
        "states": found.of_kind("state"),
        "metrics": found.of_kind("metrics"),
        "copy": shell.home(found.paths),
        "page_of": page_of,
    }


def page_of(kind: str) -> str:
    """Return the page that shows an entry of a kind."""
    pages = {"tokens": "store", "samples": "store", "mix": "mix", "run": "run", "metrics": "live"}
    return pages.get(kind, "diff")


def store(asked: Query) -> Values:
    """A store at a glance."""
    path = asked.path("tokens", "samples")
    found = views.kept_outline(path)
    if isinstance(found, SampleOutline):
        return "sample_store.html", {"path": path, "found": found, "copy": shell.store(path)}
    bars = [
        drawing.documents_bar(bar.first, bar.last, bar.documents, bar.tokens, found.looked_at)
        for bar in found.histogram
    ]
    tokens = sum(one.tokens for one in found.inputs)
    values = {"bars": bars, "kinds": KINDS, "input_tokens": tokens}
    return "store.html", {"path": path, "found": found, "copy": shell.store(path), **values}


def documents(asked: Query) -> Values:
    """Documents as text, or one of them."""
    path = asked.path("tokens")
    one = asked.maybe("number")
    if one is not None:
        most = asked.number("tokens", DOCUMENT_TOKENS, low=1, high=MOST_TOKENS)
        found = _preview(path, [one], most, asked.text("ids") == "yes")
        values = {"number": one, "more": min(MOST_TOKENS, 4 * most), "where": shell.where(path, one)}
        return "document.html", {"path": path, "found": found, "copy": shell.documents(path, [one]), **values}
    num = asked.number("num", PAGE_DOCUMENTS, low=1, high=MOST_AT_ONCE)
    first = asked.number("first", 0)
    total = views.num_documents(path)
    numbers = list(range(min(first, total), min(first + num, total)))
    shown = _preview(path, numbers, PREVIEW_TOKENS, asked.text("ids") == "yes") if numbers else None
    return "documents.html", {
        "path": path,
        "found": shown,
        "first": first,
        "num": num,
        "total": total,
        "ids": asked.text("ids"),
        "copy": shell.documents(path, numbers),
    }


def _preview(path: str, numbers: list[int], most: int, ids: bool) -> Preview:
    """Return documents with their texts; with their ids, and a note, if the tokeniser cannot be read."""
    try:
        found = preview(path, samples=numbers, max_tokens=most, ids=ids)
    except ConfigError:
        raise
    except HeadraceError as error:
        if ids:
            raise
        shown = _of_tokens(preview(path, samples=numbers, max_tokens=most, ids=True))
        return msgspec.structs.replace(shown, note=f"ids are shown: {error}")
    return _of_tokens(found)


def _of_tokens(found: object) -> Preview:
    if not isinstance(found, Preview):
        raise ConfigError("this page shows documents of tokens, and the store holds samples with named parts")
    return found


def find(asked: Query) -> Values:
    """Find a document by its number, its id, or its file and line; the page of the document is where it leads."""
    path = asked.path("tokens")
    wanted, name, line = asked.text("id"), asked.text("input"), asked.maybe("line")
    message, number = "", None
    if wanted or (name and line is not None):
        found = views.find_document(path, id=wanted) if wanted else views.find_document(path, input=name, line=line)
        number, message = found.number, found.why
    return "find.html", {
        "path": path,
        "outline": views.kept_outline(path),
        "number": number,
        "message": message,
        "wanted": wanted,
        "input": name,
        "line": "" if line is None else line,
        "copy": shell.found(path, wanted, name, line),
    }


def search(asked: Query) -> Values:
    """Search documents or samples for a text; the hits come as events."""
    path = asked.path("tokens", "samples")
    text, first = asked.text("q"), asked.number("first", 0)
    kind = asked.places.kinds()[path]
    return "search.html", {
        "path": path,
        "kind": kind,
        "text": text,
        "first": first,
        "events": link("events-search", path=path, q=text, first=first or None) if text else "",
        "hit": "documents" if kind == "tokens" else "sample",
        "copy": shell.search(path, text, first) if text else shell.store(path),
    }


def samples(asked: Query) -> Values:
    """Samples with their pictures and texts, as a grid."""
    path = asked.path("samples")
    num = asked.number("num", PAGE_SAMPLES, low=1, high=MOST_AT_ONCE)
    first = asked.number("first", 0)
    with open_preview(path, num=1) as opened:
        total = _facts(opened).num_samples
    numbers = list(range(min(first, total), min(first + num, total)))
    shown: list[LookedAtSample] = []
    if numbers:
        with open_preview(path, samples=numbers, max_chars=300) as opened:
            shown = list(_iterated(opened))
    return "samples.html", {
        "path": path,
        "shown": [one.shown for one in shown],
        "first": first,
        "num": num,
        "total": total,
        "copy": shell.documents(path, numbers),
    }


def sample(asked: Query) -> Values:
    """One sample, with all its parts."""
    path = asked.path("samples")
    key = asked.text("key")
    number = None if key else asked.number("number", 0)
    options: dict[str, Any] = {"key": key} if number is None else {"samples": [number]}
    with open_preview(path, max_chars=20_000, **options) as opened:
        facts = _facts(opened)
        (looked,) = list(_iterated(opened))
    return "sample.html", {
        "path": path,
        "facts": facts,
        "sample": looked.shown,
        "boxes": boxes_of(looked.shown),
        "played": [name for name in looked.raw.parts if name.rpartition(".")[2].lower() in PLAYED],
        "copy": shell.documents(path, [looked.shown.number]),
    }


def _facts(opened: Preview | OpenPreview) -> SamplePreview:
    if isinstance(opened, Preview) or not isinstance(opened.facts, SamplePreview):
        raise ConfigError("this page shows samples with named parts, and the path holds none")
    return opened.facts


def _iterated(opened: Preview | OpenPreview) -> Any:
    return iter(()) if isinstance(opened, Preview) else iter(opened)


def check(asked: Query) -> Values:
    """Read a whole store, and say what is wrong; how far it is comes as events."""
    path = asked.path("tokens", "samples")
    return "check.html", {
        "path": path,
        "kind": asked.places.kinds()[path],
        "events": link("events-check", path=path),
        "copy": shell.check(path),
    }
