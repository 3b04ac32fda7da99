"""Finds documents of a store: by their id, by file and line, and by a text.

Files and lines are looked up. Ids and texts are searched for: a scan that ends at a bound, and can go on from there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.inspect.answers import Answer, kind_of
from headrace.inspect.description import ShownKeys
from headrace.inspect.figures import plural
from headrace.inspect.origins import describe_input
from headrace.inspect.samples import PartViewer, need_samples
from headrace.inspect.token_texts import TokenTexts, find_texts
from headrace.stores import MANIFEST_NAME, PROVENANCE_NAME, Provenance, SampleStore, Store, load_manifest, open_tokens

MAX_TOKENS: Final = 1 << 23
"""The most tokens that one search reads: two or three seconds."""

MAX_SAMPLES: Final = 1 << 12
"""The most samples that one search reads."""

MAX_HITS: Final = 50
"""The most hits of one search."""

_AROUND: Final = 60
_SAMPLES_AT_ONCE: Final = 64
_TEXT_CHARS: Final = 1 << 20


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """A document, or a part of a sample, that holds the text; of several places, the first."""

    number: int
    part: str
    """The key of the tokens, or the part of the sample."""

    key: str = ""
    """The key of the sample."""

    before: str
    match: str
    after: str


class SearchResult(Answer, frozen=True, kw_only=True):
    """What a search found: the documents ``[first, until)`` of ``total`` were searched."""

    hits: tuple[SearchHit, ...]
    first: int
    until: int
    total: int
    why: str
    """Why it ended: everything was searched, or which bound was reached; then it can go on at ``until``."""


def search(
    path: str | os.PathLike[str],
    text: str,
    *,
    first: int = 0,
    max_tokens: int = MAX_TOKENS,
    max_samples: int = MAX_SAMPLES,
    max_hits: int = MAX_HITS,
) -> SearchResult:
    """Search documents or samples one after another for a text, whatever its case, up to a bound.

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
        >>> found = views.search("stores/web", "word17 word", max_hits=1)
        >>> found.hits[0].match, found.why
        ('word17 word', '1 hit')
    """
    path = os.fspath(path)
    wanted = text.casefold()
    if not wanted:
        raise ConfigError("the text to search for is empty")
    if kind_of(path) == "samples":
        with need_samples(path) as samples:
            found = _in_samples(samples, first, wanted)
            return _bounded(found, first, len(samples), max_samples, max_hits, "samples")
    with open_tokens(path) as store:
        scan = _in_tokens(store, first, ShownKeys.of(path, store.keys, None), find_texts(path).texts, wanted)
        return _bounded(scan, first, store.num_documents, max_tokens, max_hits, "tokens")


def _bounded(
    scan: Iterable[tuple[int, SearchHit | None]], first: int, total: int, max_read: int, max_hits: int, unit: str
) -> SearchResult:
    """Return the hits of a scan up to a bound. It yields how much it read of each document or sample, and its hit."""
    if not 0 <= first <= total:
        raise ConfigError(f"the search begins at {first:,}, and there are {total:,} to search, counted from 0")
    until, read = first, 0
    hits: list[SearchHit] = []
    for many, hit in scan:
        until, read = until + 1, read + many
        hits += [] if hit is None else [hit]
        if read >= max_read or len(hits) == max_hits:
            break
    why = f"{read:,} {unit} were read" if until < total else "everything was searched"
    if len(hits) == max_hits:
        why = plural(max_hits, "hit")
    return SearchResult(hits=tuple(hits), first=first, until=until, total=total, why=why)


def _in_tokens(
    store: Store, first: int, keys: ShownKeys, texts: TokenTexts, wanted: str
) -> Iterator[tuple[int, SearchHit | None]]:
    for number in range(first, store.num_documents):
        read, hit = 0, None
        for key in keys.masks:
            ids: NDArray[Any] = store.document(number, key)
            read += max(1, len(ids))
            if (hit := _hit(number, key, "", texts.whole(ids.tolist()), wanted)) is not None:
                break
        yield read, hit


def _in_samples(store: SampleStore, first: int, wanted: str) -> Iterator[tuple[int, SearchHit | None]]:
    viewer = PartViewer(max_chars=_TEXT_CHARS, pictures=False)
    for begin in range(first, len(store), _SAMPLES_AT_ONCE):
        numbers = np.arange(begin, min(begin + _SAMPLES_AT_ONCE, len(store)), dtype=np.int64)
        names = {name for number in numbers.tolist() for name in store.places(number)}
        parts = sorted(filter(_is_text, names)) or None
        for number, sample in zip(numbers.tolist(), store.read(numbers, parts), strict=True):
            texts = {"key": sample.key}
            texts |= {name: viewer.look(name, data).shown.text for name, data in sample.parts.items() if _is_text(name)}
            hits = (_hit(number, part, sample.key, text, wanted) for part, text in texts.items())
            yield 1, next((one for one in hits if one is not None), None)


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
