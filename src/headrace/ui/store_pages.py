"""The first page, and the pages of stores. Each function returns the template of a page and its values.

Searches and checks take longer than a page: each step is a part of the page, sent when it is there.

    views.search, inspect.check --> steps: progress, hits, a verdict, a failure --> the template, as it goes on

Of several reports of progress the style sheet shows the last. When the page is left, no further step is asked for, and
what is done for the page ends with it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from headrace import inspect
from headrace.errors import ConfigError, HeadraceError
from headrace.inspect import Block, Description, PreviewOptions, Title, Titled, need_samples, views
from headrace.inspect.blocks import Tokens
from headrace.inspect.figures import count
from headrace.inspect.samples import find_sample
from headrace.inspect.token_preview import preview_tokens
from headrace.ui.media import served
from headrace.ui.requests import Copied, Pager, Query, command, copied, kept, link

MANIFEST_NAME: Final = "headrace.json"
Values = tuple[str, dict[str, Any]]

MOST_AT_ONCE: Final = 100
MOST_TOKENS: Final = 1 << 16


class Listing(NamedTuple):
    """How many documents or samples a page lists, and how many tokens or characters of each are shown at most.

    Of one that is shown alone, ``alone`` are shown; more tokens come on demand.
    """

    noun: str
    num: int
    limit: int
    alone: int


LISTINGS: Final = {"tokens": Listing("document", 10, 400, 4096), "samples": Listing("sample", 24, 300, 20_000)}


def home(asked: Query) -> Values:
    """What is here."""
    found = asked.places.overview()
    return "home.html", {
        "crumbs": [("what is here", "")],
        "found": found,
        "copy": copied(f"views.overview({list(found.paths)!r})", "ui", "--json", *found.paths),
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
    values = {"path": path, "kind": kind, "tab": "store", "shown": [*found.shown()], "copy": _copied_store(path)}
    return "shown.html", {"crumbs": [(path, "")], **values}


def _copied_store(path: str) -> Copied:
    return copied(f"inspect.describe({path!r})", "info", path)


def _copied(path: str, numbers: list[int]) -> Copied:
    first, last = (numbers[0], numbers[-1]) if numbers else (0, 0)
    span = str(first) if first == last else f"{first}-{last}"
    return copied(f"inspect.preview({path!r}, samples={numbers!r})", "preview", path, "--documents", span)


def listed(asked: Query) -> Values:
    """Documents as text or samples with their parts: some of them with links, or one by its number or key."""
    path = asked.path("tokens", "samples")
    kind = asked.places.kinds()[path]
    noun, num, limit, alone = LISTINGS[kind]
    page, one, key = f"{noun}s", asked.maybe("number"), asked.text("key")
    if kind == "tokens":
        total = preview_tokens(path, {"num": 1, "limit": 1, "ids": True}).num_documents
    else:
        with need_samples(path) as store:
            total = len(store)
            one = find_sample(store, key) if key else one
            key = store.key(one) if one is not None and one < total else key
    crumbs = [(path, link("store", path=path))]
    if one is not None:
        limit = asked.number("tokens", alone, low=1, high=MOST_TOKENS)
        _, *rest = _shown(path, kind, [one], limit)
        cards = [block for block in rest if isinstance(block, Titled) and block.is_card]
        tokens = [block.sequence for card in cards for block in card.blocks if isinstance(block, Tokens)]
        more = link(page, path=path, number=one, tokens=min(MOST_TOKENS, 4 * limit))
        shell = f", ask a shell: {command('where', path, one)}" if kind == "tokens" else ""
        pager = Pager.at(page, "number", one, 1, total, noun, path=path)
        return "shown.html", {
            "crumbs": [*crumbs, (page, link(page, path=path, first=one // num * num)), (count(one), "")],
            "shown": [Title(f"{noun.capitalize()} {count(one)}", f"of {count(total)}{shell}"), *rest],
            "media_of": partial(served, path),
            "pager": pager._replace(words="key", name="key", value=key) if key else pager,
            "more": (f"Show {count(min(MOST_TOKENS, 4 * limit))} tokens", more)
            if any(one.num_tokens > one.num_shown for one in tokens)
            else (),
            "copy": _copied(path, [one]),
        }
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
        "crumbs": [*crumbs, (page, "")],
        "path": path,
        "kind": kind,
        "tab": page,
        "shown": shown,
        "media_of": partial(served, path, side=320),
        "pager": Pager.at(page, "first", first, num, total, noun, path=path),
        "copy": _copied(path, numbers),
    }


def _shown(path: str, kind: str, numbers: list[int], limit: int) -> list[Block]:
    """Return what a preview shows; of tokens ids, and a note, if the tokeniser cannot be read."""
    options: PreviewOptions = {"samples": numbers, "limit": limit}
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
    """A document by its id, or by its file and line; or documents and samples with a text, as they are found."""
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
        "steps": told(views.search(path, text, first=first)) if text else (),
        "copy": copy,
    }


def check(asked: Query) -> Values:
    """Read a whole store when that is asked for, and say what is wrong."""
    path = asked.path("tokens", "samples")
    begins = asked.text("begin") == "yes"
    return "check.html", {
        "crumbs": [(path, link("store", path=path)), ("check", "")],
        "path": path,
        "kind": asked.places.kinds()[path],
        "steps": told(checking(partial(inspect.check, path))) if begins else (),
        "copy": copied(f"inspect.check({path!r})", "check", path),
    }


TELL_EVERY_S: Final = 0.5


class CannotGoOn(NamedTuple):
    """Why the work cannot go on."""

    message: str


class CheckProgress(NamedTuple):
    """How far a check is; ``total`` is None where that is not known."""

    phase: str
    done: float = 0
    total: float | None = None
    text: str = ""


def told(steps: Generator[Any, None, None]) -> Generator[Any, None, None]:
    """Yield steps of some work; an error is the last one."""
    try:
        yield from steps
    except (HeadraceError, OSError) as error:
        yield CannotGoOn(str(error))


class _Left(Exception):  # noqa: N818 - not an error: nobody waits for the answer any more
    """The page was left, and what was done for it ends."""


def checking(check: Callable[..., Any]) -> Generator[Any, None, None]:
    """Yield how far a check is, twice a second, and then its verdict.

    When the generator is closed, the check ends with its next report.

    Raises:
        Exception: what the check raises.
    """
    left, found = Event(), list[Any]()
    latest = CheckProgress("checking")

    def on_progress(
        phase: str, done: float = 0, total: float | None = None, *, text: str = "", speeds: object = None
    ) -> None:
        nonlocal latest
        if left.is_set():
            raise _Left
        latest = CheckProgress(phase, done, total, text)

    def work() -> None:
        try:
            found.append(check(on_progress=on_progress))
        except Exception as error:
            found.append(error)

    # Daemon: a check of a large shard says how far it is only every second, and the server does not wait for it.
    thread = Thread(target=work, name="headrace-ui-check", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(TELL_EVERY_S)
            yield latest
        [verdict] = found
        if isinstance(verdict, Exception):
            raise verdict
        yield verdict
    finally:
        left.set()
