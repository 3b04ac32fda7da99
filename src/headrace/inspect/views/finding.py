"""Finds documents of a store: by their id, by file and line, and by a text.

Files and lines are looked up. Ids and texts are searched for: a scan that says how far it is, ends at a bound, and can
go on where it ended.

    search(path, text) --> SearchProgress, SearchHit, SearchHit, SearchProgress, ...   ends when it is left
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.inspect.answers import Answer, kind_of
from headrace.inspect.description import ShownKeys
from headrace.inspect.origins import describe_input
from headrace.inspect.samples import PartViewer, need_samples
from headrace.inspect.token_texts import TokenTexts, find_texts
from headrace.stores import MANIFEST_NAME, PROVENANCE_NAME, Provenance, SampleStore, Store, load_manifest, open_tokens

MAX_TOKENS: Final = 1 << 25
"""The most tokens that one search reads: some ten seconds."""

MAX_SAMPLES: Final = 1 << 14
"""The most samples that one search reads."""

MAX_HITS: Final = 50
"""The most hits of one search."""

_PAUSE_S: Final = 0.1
_AROUND: Final = 60
_TOKENS_AT_ONCE: Final = 1 << 14
_SAMPLES_AT_ONCE: Final = 64
_TEXT_CHARS: Final = 1 << 20


class SearchHit(Answer, frozen=True, kw_only=True):
    """A document, or a part of a sample, that holds the text; of several places, the first."""

    number: int
    part: str
    """The key of the tokens, or the part of the sample."""

    key: str = ""
    """The key of the sample."""

    before: str
    match: str
    after: str


class SearchProgress(Answer, frozen=True, kw_only=True):
    """How far a search is: the documents ``[first, until)`` of ``total`` were searched."""

    first: int
    until: int
    total: int
    hits: int
    is_done: bool = False
    why: str = ""
    """Why it is done: everything was searched, or which bound was reached; then it can go on at ``until``."""


def search(
    path: str | os.PathLike[str],
    text: str,
    *,
    first: int = 0,
    max_tokens: int = MAX_TOKENS,
    max_samples: int = MAX_SAMPLES,
    max_hits: int = MAX_HITS,
) -> Generator[SearchHit | SearchProgress, None, None]:
    """Search documents or samples one after another for a text, whatever its case, and yield what is found.

    About ten times a second it yields how far it is, so that it can be left between two of them. It reads no more than
    is asked of it.

    Args:
        path: the same as for `headrace.open`.
        text: what to find; in stores without a tokeniser, ids with one space between two.
        first: the number of the first document or sample.
        max_tokens: of tokens, the most that are read.
        max_samples: of samples, the most that are read.
        max_hits: the most hits.

    Raises:
        HeadraceError: there is no store, it cannot be read, or its tokeniser is missing.
        ConfigError: the text is empty, or there is no such document.

    Example:
        >>> from headrace.inspect import views
        >>> *_, hit, done = views.search("stores/web", "word17 word", max_hits=1)
        >>> hit.match, done.is_done, done.why
        ('word17 word', True, '1 hit')
    """
    path = os.fspath(path)
    wanted = text.casefold()
    if not wanted:
        raise ConfigError("the text to search for is empty")
    if kind_of(path) == "samples":
        with need_samples(path) as samples:
            found = _in_samples(samples, wanted)
            yield from _bounded(found, first, len(samples), max_samples, max_hits, "samples")
        return
    with open_tokens(path) as store:
        scan = _in_tokens(store, ShownKeys.of(path, store.keys, None), find_texts(path).texts, wanted)
        yield from _bounded(scan, first, store.num_documents, max_tokens, max_hits, "tokens")


Scan = Callable[[int], tuple[int, int, list[SearchHit]]]
"""Searches some documents from one on. Returns where the next begin, how much was read, and the hits."""


def _bounded(
    scan: Scan, first: int, total: int, max_read: int, max_hits: int, unit: str
) -> Iterator[SearchHit | SearchProgress]:
    """Yield the hits of a scan, and how far it is, until a bound is reached."""
    if not 0 <= first <= total:
        raise ConfigError(f"the search begins at {first:,}, and there are {total:,} to search, counted from 0")
    until, read, hits = first, 0, 0
    told = time.monotonic()
    yield SearchProgress(first=first, until=until, total=total, hits=0)
    while until < total and read < max_read and hits < max_hits:
        if time.monotonic() - told >= _PAUSE_S:
            yield SearchProgress(first=first, until=until, total=total, hits=hits)
            told = time.monotonic()
        until, many, found = scan(until)
        read += many
        for hit in found:
            if hits < max_hits:
                hits += 1
                yield hit
                until = hit.number + 1 if hits == max_hits else until
    if hits == max_hits:
        why = f"{hits:,} hit{'s' if hits != 1 else ''}"
    elif until < total:
        why = f"{read:,} {unit} were read"
    else:
        why = "everything was searched"
    yield SearchProgress(first=first, until=until, total=total, hits=hits, is_done=True, why=why)


def _in_tokens(store: Store, keys: ShownKeys, texts: TokenTexts, wanted: str) -> Scan:
    def scan(first: int) -> tuple[int, int, list[SearchHit]]:
        number, read = first, 0
        found: list[SearchHit] = []
        while number < store.num_documents and read < _TOKENS_AT_ONCE:
            for key in keys.masks:
                ids: NDArray[Any] = store.document(number, key)
                read += max(1, len(ids))
                hit = _hit(number, key, "", texts.whole(ids.tolist()), wanted)
                if hit is not None:
                    found.append(hit)
                    break
            number += 1
        return number, read, found

    return scan


def _in_samples(store: SampleStore, wanted: str) -> Scan:
    viewer = PartViewer(max_chars=_TEXT_CHARS, pictures=False)

    def scan(first: int) -> tuple[int, int, list[SearchHit]]:
        end = min(first + _SAMPLES_AT_ONCE, len(store))
        names: list[str] = []
        for number in range(first, end):
            names += store.places(number)
        wanted_parts = sorted(name for name in set(names) if _is_text(name)) or None
        found = []
        numbers = np.arange(first, end, dtype=np.int64)
        for number, sample in zip(numbers.tolist(), store.read(numbers, wanted_parts), strict=True):
            texts = {"key": sample.key}
            texts |= {name: viewer.look(name, data).shown.text for name, data in sample.parts.items() if _is_text(name)}
            hits = (_hit(number, part, sample.key, text, wanted) for part, text in texts.items())
            if (hit := next((one for one in hits if one is not None), None)) is not None:
                found.append(hit)
        return end, end - first, found

    return scan


_TEXT_PARTS: Final = frozenset(("txt", "text", "json", "jsonl", "caption", "md", "html", "xml", "csv", "cls"))


def _is_text(name: str) -> bool:
    return name.rpartition(".")[2].lower() in _TEXT_PARTS


def _hit(number: int, part: str, key: str, text: str, wanted: str) -> SearchHit | None:
    folded = text.casefold()
    at = folded.find(wanted)
    if at < 0:
        return None
    if len(folded) != len(text):
        # A few characters, such as the German sharp s, become two; show the folded text then.
        text = folded
    end = at + len(wanted)
    return SearchHit(
        number=number,
        part=part,
        key=key,
        before=text[max(0, at - _AROUND) : at],
        match=text[at:end],
        after=text[end : end + _AROUND],
    )


class FoundDocument(Answer, frozen=True, kw_only=True):
    """Where a document was found; if it was not, why."""

    number: int | None
    why: str = ""


def find_document(
    path: str | os.PathLike[str],
    *,
    id: str | None = None,  # noqa: A002 - as in the inputs
    input: str | None = None,  # noqa: A002 - as `headrace where` calls it
    line: int | None = None,
) -> FoundDocument:
    """Find a document of a prepared store by its id, or by its input and the line there.

    A line is looked up; with a shuffled store, and for an id, the table of origins is searched, up to a gigabyte of it.

    Args:
        path: a folder that ``headrace prepare`` wrote.
        id: the id of the document.
        input: the input file, as the manifest names it, or the end of its path.
        line: the line or row there, in the numbering that ``headrace where`` uses.

    Raises:
        HeadraceError: the store keeps no origins, or they are damaged.
        ConfigError: neither an id, nor an input and a line are given; or there is no such input.

    Example:
        >>> from headrace.inspect import views
        >>> views.find_document("stores/web", input="part-0.jsonl", line=8).number
        7
    """
    path = os.fspath(path)
    folder = Path(path)
    if (id is None) == (input is None or line is None):
        raise ConfigError("a document is found by its id, or by its input and its line: pass one of the two")
    if not (folder / MANIFEST_NAME).is_file() or not (folder / PROVENANCE_NAME).is_dir():
        raise ConfigError(f"{path}: the store does not keep where its documents come from")
    manifest, provenance = load_manifest(folder), Provenance(folder / PROVENANCE_NAME)
    if id is not None:
        number = provenance.find_id(id)
        return FoundDocument(number=number, why="" if number is not None else f"no document has the id {id!r}")
    names = [entry.path for entry in manifest.inputs]
    ends = [at for at, name in enumerate(names) if name == input] or [
        at for at, name in enumerate(names) if name.endswith(str(input))
    ]
    if len(ends) != 1:
        many = "no input ends" if not ends else f"{len(ends):,} inputs end"
        raise ConfigError(f"{path}: {many} with {input!r}")
    unit, counted_from = describe_input(manifest, ends[0])
    number = provenance.find_line(ends[0], int(line or 0) - counted_from)
    where = f"{names[ends[0]]}, {unit} {line}"
    return FoundDocument(number=number, why="" if number is not None else f"{where} became no document")
