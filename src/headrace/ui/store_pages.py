"""The first page, and the pages of stores. Each function returns the template of a page and its values."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.errors import ConfigError, HeadraceError
from headrace.inspect import views
from headrace.inspect.blocks import Block, Title, Titled
from headrace.inspect.description import Description, describe_store
from headrace.inspect.figures import count
from headrace.inspect.sample_description import SampleDescription, describe_samples
from headrace.inspect.sample_preview import open_samples
from headrace.inspect.samples import WHOLE, need_samples
from headrace.inspect.shown import Preview, PreviewOptions, sample_section
from headrace.inspect.token_preview import preview_tokens
from headrace.ui.files import served
from headrace.ui.requests import Copied, Pager, Query, command, copied, kept, link

MANIFEST_NAME: Final = "headrace.json"
Values = tuple[str, dict[str, Any]]

PAGE_DOCUMENTS: Final = 10
PAGE_SAMPLES: Final = 24
MOST_AT_ONCE: Final = 100
PREVIEW_TOKENS: Final = 400
"""The tokens that are shown of each document where several are shown."""

DOCUMENT_TOKENS: Final = 4096
"""The tokens that are shown of a document that is shown alone; more come on demand."""

MOST_TOKENS: Final = 1 << 16


def home(asked: Query) -> Values:
    """What is here."""
    found = asked.places.overview()
    return "home.html", {
        "crumbs": [("what is here", "")],
        "found": found,
        "stores": found.of_kind("tokens", "samples"),
        "mixes": found.of_kind("mix"),
        "runs": found.of_kind("run"),
        "states": found.of_kind("state"),
        "metrics": found.of_kind("metrics"),
        "copy": copied(f"views.overview({list(found.paths)!r})", "ui", "--json", *found.paths),
    }


def _described(path: str) -> Description | SampleDescription:
    return describe_samples(path, WHOLE) or describe_store(path)


def described(path: str) -> Description | SampleDescription:
    """Return what a store holds."""
    manifest = Path(path) / MANIFEST_NAME
    return kept(_described, path, str(manifest)) if manifest.is_file() else _described(path)


def store(asked: Query) -> Values:
    """A store at a glance."""
    path = asked.path("tokens", "samples")
    found = described(path)
    kind = "tokens" if isinstance(found, Description) else "samples"
    values = {"path": path, "kind": kind, "tab": "store", "shown": [*found.shown()], "copy": _copied_store(path)}
    return "shown.html", {"crumbs": [(path, "")], **values}


def _span(asked: Query, num: int, total: int) -> tuple[int, int, list[int]]:
    """Return the first number on a page that lists some of a total, how many, and the numbers that there are."""
    num, first = asked.number("num", num, low=1, high=MOST_AT_ONCE), asked.number("first", 0)
    return first, num, list(range(min(first, total), min(first + num, total)))


def _copied_store(path: str) -> Copied:
    return copied(f"inspect.describe({path!r})", "info", path)


def _copied(path: str, numbers: list[int]) -> Copied:
    first, last = (numbers[0], numbers[-1]) if numbers else (0, 0)
    span = str(first) if first == last else f"{first}-{last}"
    return copied(f"inspect.preview({path!r}, samples={numbers!r})", "preview", path, "--documents", span)


def documents(asked: Query) -> Values:
    """Documents as text, or one of them."""
    path = asked.path("tokens")
    one = asked.maybe("number")
    ids = asked.text("ids") == "yes"
    total = preview_tokens(path, {"num": 1, "max_tokens": 1, "ids": True}).num_documents
    crumbs = [(path, link("store", path=path))]
    if one is not None:
        most = asked.number("tokens", DOCUMENT_TOKENS, low=1, high=MOST_TOKENS)
        found = _preview(path, [one], most, ids)
        more = min(MOST_TOKENS, 4 * most)
        cut = any(one.num_tokens > one.num_shown for one in found.samples[0].sequences)
        crumbs += [("documents", link("documents", path=path, first=one // 10 * 10)), (count(one), "")]
        _, *rest = found.shown()
        title = Title(f"Document {count(one)}", f"of {count(total)}, ask a shell: {command('where', path, one)}")
        return "shown.html", {
            "crumbs": crumbs,
            "shown": [title, *rest],
            "pager": Pager.at("documents", "number", one, 1, total, "document", path=path),
            "more": (f"Show {count(more)} tokens", link("documents", path=path, number=one, tokens=more))
            if cut
            else (),
            "copy": _copied(path, [one]),
        }
    first, num, numbers = _span(asked, PAGE_DOCUMENTS, total)
    shown: list[Block] = [Title(path), f"There are no documents from number {count(first)} on."]
    if numbers:
        found = _preview(path, numbers, PREVIEW_TOKENS, ids)
        head = [block for block in found.shown() if not isinstance(block, str | Titled)]
        links = [link("documents", path=path, number=sample.number) for sample in found.samples]
        shown = [*head, *map(partial(sample_section, found), found.samples, links)]
    return "shown.html", {
        "crumbs": [*crumbs, ("documents", "")],
        "path": path,
        "kind": "tokens",
        "tab": "documents",
        "shown": shown,
        "pager": Pager.at("documents", "first", first, num, total, "document", path=path),
        "copy": _copied(path, numbers),
    }


def _preview(path: str, numbers: list[int], most: int, ids: bool) -> Preview:
    """Return documents with their texts; with their ids, and a note, if the tokeniser cannot be read."""
    options: PreviewOptions = {"samples": numbers, "max_tokens": most}
    try:
        return preview_tokens(path, {**options, "ids": ids})
    except ConfigError:
        raise
    except HeadraceError as error:
        if ids:
            raise
        return msgspec.structs.replace(preview_tokens(path, {**options, "ids": True}), note=f"ids are shown: {error}")


def search(asked: Query) -> Values:
    """A document by its id, or by its file and line; or documents and samples with a text, which come as events."""
    path = asked.path("tokens", "samples")
    text, first = asked.text("q"), asked.number("first", 0)
    wanted, name, line = asked.text("id"), asked.text("input"), asked.maybe("line")
    kind, place, copy = asked.places.kinds()[path], None, _copied_store(path)
    if text:
        begin = f", first={first}" if first else ""
        copy = copied(f"for found in views.search({path!r}, {text!r}{begin}):\n    print(found)")
    if wanted or (name and line is not None):
        place = views.find_document(path, id=wanted) if wanted else views.find_document(path, input=name, line=line)
        copy = copied(
            f"views.find_document({path!r}, {f'id={wanted!r}' if wanted else f'input={name!r}, line={line}'})"
        )
    return "search.html", {
        "crumbs": [(path, link("store", path=path)), ("search", "")],
        "path": path,
        "kind": kind,
        "store": described(path) if kind == "tokens" else None,
        "place": place,
        "asked": asked.values,
        "text": text,
        "first": first,
        "events": link("events-search", path=path, q=text, first=first or None) if text else "",
        "hit": "documents" if kind == "tokens" else "sample",
        "copy": copy,
    }


def samples(asked: Query) -> Values:
    """Samples with their pictures and texts, as a grid."""
    path = asked.path("samples")
    with need_samples(path) as store:
        first, num, numbers = _span(asked, PAGE_SAMPLES, total := len(store))
    shown: list[Block] = [Title(path), f"There are no samples from number {count(first)} on."]
    if numbers:
        with open_samples(path, {"samples": numbers, "max_chars": 300}) as opened:
            found = [(one.section(), link("sample", path=path, number=one.shown.number)) for one in opened]
        sections = [msgspec.structs.replace(section, link=url) for section, url in found]
        shown = [Title(path), Titled("", sections, is_pair=True)]
    return "shown.html", {
        "crumbs": [(path, link("store", path=path)), ("samples", "")],
        "path": path,
        "kind": "samples",
        "tab": "samples",
        "shown": shown,
        "media_of": partial(served, path, side=320),
        "pager": Pager.at("samples", "first", first, num, total, "sample", path=path),
        "copy": _copied(path, numbers),
    }


def sample(asked: Query) -> Values:
    """One sample, with all its parts."""
    path = asked.path("samples")
    key = asked.text("key")
    number = None if key else asked.number("number", 0)
    wanted: PreviewOptions = {"key": key} if number is None else {"samples": [number]}
    with open_samples(path, {"max_chars": 20_000, **wanted}) as opened:
        total = opened.facts.num_samples or 0
        (looked,) = opened
    number, shown = looked.shown.number, looked.shown
    pager = Pager.at("sample", "number", number, 1, total, "sample", path=path)
    listing = link("samples", path=path, first=number // PAGE_SAMPLES * PAGE_SAMPLES)
    title = Title(shown.key, f"sample {count(number)} of {count(total)}, number {count(shown.index)} of {shown.shard}")
    return "shown.html", {
        "crumbs": [(path, link("store", path=path)), ("samples", listing), (count(number), "")],
        "shown": [title, *looked.section().blocks],
        "media_of": partial(served, path),
        "pager": pager._replace(words="key", name="key", value=shown.key),
        "copy": _copied(path, [number]),
    }


def check(asked: Query) -> Values:
    """Read a whole store, and say what is wrong; how far it is comes as events."""
    path = asked.path("tokens", "samples")
    return "check.html", {
        "crumbs": [(path, link("store", path=path)), ("check", "")],
        "path": path,
        "kind": asked.places.kinds()[path],
        "events": link("events-check", path=path),
        "copy": copied(f"inspect.check({path!r})", "check", path),
    }
