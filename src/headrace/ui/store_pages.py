"""The first page, and the pages of stores. Each function returns the template of a page and its values."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from headrace import inspect
from headrace.errors import ConfigError, HeadraceError
from headrace.inspect import Block, Description, PreviewOptions, Title, Titled, need_samples, views
from headrace.inspect.description import own_manifest
from headrace.inspect.figures import count
from headrace.inspect.samples import find_sample
from headrace.inspect.token_preview import preview_tokens
from headrace.inspect.views.overviews import EntryKind
from headrace.ui.rendering import Embedded
from headrace.ui.requests import Pager, Query, command, kept, link

MANIFEST_NAME: Final = "headrace.json"
Values = tuple[str, dict[str, Any]]

MOST_AT_ONCE: Final = 100


class Listing(NamedTuple):
    """How many documents or samples a page lists, and how many tokens or characters of each are shown at most.

    Of one that is shown alone, ``alone`` are shown.
    """

    noun: str
    num: int
    limit: int
    alone: int


LISTINGS: Final = {"tokens": Listing("document", 10, 400, 1 << 14), "samples": Listing("sample", 24, 300, 20_000)}


def home(asked: Query) -> Values:
    """What is here."""
    found = asked.places.overview()
    return "home.html", {
        "crumbs": [("what is here", "")],
        "found": found,
        "copy": command("ui", "--json", *found.paths),
    }


def described(path: str) -> Any:
    """Return what a store holds."""
    manifest = Path(path) / MANIFEST_NAME
    return kept(inspect.describe, path, str(manifest)) if manifest.is_file() else inspect.describe(path)


def store(asked: Query) -> Values:
    """A store at a glance."""
    path = asked.path("tokens", "samples")
    found = described(path)
    kind = "tokens" if isinstance(found, Description) else "samples"
    values = {"path": path, "kind": kind, "tab": "store", "shown": [*found.shown()], "copy": command("info", path)}
    return "shown.html", {"crumbs": [(path, "")], **values}


def listed(asked: Query) -> Values:
    """Documents as text or samples with their parts: some of them with links, or one by its number or key."""
    path = asked.path("tokens", "samples")
    kind, one, key = asked.places.kinds()[path], asked.maybe("number"), asked.text("key")
    if kind == "tokens":
        # The manifest says how many there are without a look at each file.
        if (manifest := own_manifest(path)) is None:
            total = preview_tokens(path, {"num": 1, "limit": 1, "ids": True}).num_documents
        else:
            total = sum(output.documents for output in manifest.outputs)
    else:
        with need_samples(path) as store:
            total = len(store)
            one = find_sample(store, key) if key else one
            key = store.key(one) if one is not None and one < total else key
    if one is not None:
        return _alone(path, kind, one, key, total)
    noun, num, limit, _ = LISTINGS[kind]
    page = f"{noun}s"
    num, first = asked.number("num", num, low=1, high=MOST_AT_ONCE), asked.number("first", 0)
    numbers = list(range(min(first, total), min(first + num, total)))
    shown: list[Block] = [Title(path), f"There are no {page} from number {count(first)} on."]
    if numbers:
        found = _shown(path, kind, numbers, limit)
        cards = [block for block in found if isinstance(block, Titled) and block.is_card]
        links = [link(page, path=path, number=number) for number in numbers]
        linked = [replace(card, link=url) for card, url in zip(cards, links, strict=True)]
        head = [block for block in found if not isinstance(block, str | Titled)]
        shown = [*head, Titled("", linked, is_pair=kind == "samples")]
    return "shown.html", {
        "crumbs": [(path, link("store", path=path)), (page, "")],
        "path": path,
        "kind": kind,
        "tab": page,
        "shown": shown,
        "media_of": Embedded(side=320).source,
        "pager": Pager.at(page, "first", first, num, total, noun, path=path),
        "copy": command("preview", path, "--documents", f"{numbers[0]}-{numbers[-1]}" if numbers else 0),
    }


def _alone(path: str, kind: EntryKind, one: int, key: str, total: int) -> Values:
    """One document or sample."""
    noun, num, _, limit = LISTINGS[kind]
    page = f"{noun}s"
    shell = f", ask a shell: {command('where', path, one)}" if kind == "tokens" else ""
    pager = Pager.at(page, "number", one, 1, total, noun, path=path)
    return "shown.html", {
        "crumbs": [
            (path, link("store", path=path)),
            (page, link(page, path=path, first=one // num * num)),
            (count(one), ""),
        ],
        "shown": [
            Title(f"{noun.capitalize()} {count(one)}", f"of {count(total)}{shell}"),
            *_shown(path, kind, [one], limit)[1:],
        ],
        "media_of": Embedded().source,
        "pager": pager._replace(words="key", name="key", value=key) if key else pager,
        "copy": command("preview", path, "--documents", one),
    }


def _shown(path: str, kind: str, numbers: list[int], limit: int) -> list[Block]:
    """Return what a preview shows; of tokens ids, and a note, if the tokeniser cannot be read."""
    options: PreviewOptions = {"samples": numbers, "limit": limit, "pictures": True}
    try:
        with inspect.open_preview(path, **options) as found:
            return [*found.shown()]
    except ConfigError:
        raise
    except HeadraceError as error:
        if kind != "tokens":
            raise
        return [*replace(preview_tokens(path, {**options, "ids": True}), note=f"ids are shown: {error}").shown()]


def search(asked: Query) -> Values:
    """A document by its id, or by its file and line; or documents and samples with a text."""
    path = asked.path("tokens", "samples")
    text, first = asked.text("q"), asked.number("first", 0)
    wanted, name, line = asked.text("id"), asked.text("input"), asked.maybe("line")
    kind, place = asked.places.kinds()[path], None
    if wanted or (name and line is not None):
        place = views.find_document(path, id=wanted) if wanted else views.find_document(path, input=name, line=line)
    return "search.html", {
        "crumbs": [(path, link("store", path=path)), ("search", "")],
        "path": path,
        "kind": kind,
        "store": described(path) if kind == "tokens" else None,
        "place": place,
        "asked": asked.values,
        "text": text,
        "first": first,
        "found": views.search(path, text, first=first) if text else None,
    }
