"""A store at a glance: lengths, domains, what was dropped and why, and the tokens of each input.

Lengths and inputs are looked up for some thousand documents that are evenly spread, whatever the size of the store;
sums come from the manifest.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.datasets.loss_masks import SupervisedShare, mask_of, supervised_share
from headrace.errors import HeadraceError
from headrace.inspect.answers import Answer
from headrace.inspect.description import (
    LOOKED_AT,
    Bar,
    LengthFigures,
    document_lengths,
    find_manifest,
    histogram,
    spread_documents,
    summarise,
)
from headrace.inspect.sample_description import SampleDescription, describe_samples
from headrace.inspect.samples import WHOLE
from headrace.inspect.token_preview import ShownKeys
from headrace.inspect.views.overviews import known_tokens
from headrace.plan import IntArray
from headrace.stores import (
    MANIFEST_NAME,
    PROVENANCE_NAME,
    ErrorEntry,
    InputOrder,
    Ledger,
    Manifest,
    Provenance,
    ShuffledOrder,
    Store,
    TokenizerInfo,
    load_manifest,
    open_tokens,
)

SHOWN_INPUTS: Final = 200
SHOWN_ERRORS: Final = 50


class InputShare(msgspec.Struct, frozen=True, kw_only=True):
    """An input file, and the part of the documents that were looked at which comes from it."""

    path: str
    bytes: int
    documents: int
    """Of those that were looked at."""

    tokens: int
    """Of these documents."""


class DomainShare(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a store that has shards of its own, such as the documents of one domain; a folder of the store."""

    name: str
    documents: int
    tokens: int


class StoreOutline(Answer, frozen=True, kw_only=True):
    """A store of tokens at a glance.

    Attributes:
        path, format, shards: what it is.
        kind: what its records are, by the keys: ``seq``, ``sft``, ``dpo``, ``grpo`` or ``prompt``.
        keys: the names of its keys.
        documents: the number of documents.
        tokens: the number of tokens of all keys; None if the index of a large store would have to be read for it.
        bytes: the size of all files.
        looked_at: the number of documents that ``lengths``, ``histogram`` and ``inputs`` are about; they are evenly
            spread over the store.
        lengths, histogram: of the tokens of the main key in these documents; None and empty without documents.
        supervised: the share of the tokens that the loss mask trains; None without a mask.
        tokenizer, order, ledger: from the manifest; None without one.
        has_origins, has_ids: whether the store keeps the lines, and the ids, of its documents.
        inputs: the first input files, those with the most tokens first; empty if the store does not keep origins.
        num_inputs: the number of all input files.
        domains: the parts of the store; empty if it is one.
        errors: the first bad records that were skipped.
        num_errors: the number of all bad records.
    """

    path: str
    format: str
    kind: str
    keys: tuple[str, ...]
    shards: int
    documents: int
    tokens: int | None
    bytes: int
    looked_at: int
    lengths: LengthFigures | None
    histogram: tuple[Bar, ...]
    supervised: SupervisedShare | None
    tokenizer: TokenizerInfo | None
    order: InputOrder | ShuffledOrder | None
    ledger: Ledger | None
    has_origins: bool
    has_ids: bool
    inputs: tuple[InputShare, ...]
    num_inputs: int
    domains: tuple[DomainShare, ...]
    errors: tuple[ErrorEntry, ...]
    num_errors: int


class SampleOutline(Answer, frozen=True, kw_only=True):
    """A store of samples at a glance: what ``headrace info`` says, and what the manifest says was dropped."""

    path: str
    described: SampleDescription
    ledger: Ledger | None
    errors: tuple[ErrorEntry, ...]
    num_errors: int


def outline(path: str | os.PathLike[str]) -> StoreOutline | SampleOutline:
    """Return a store at a glance. Reads the manifest and headers, and looks up at most 8,192 documents.

    Args:
        path: the same as for `headrace.open`.

    Raises:
        HeadraceError: there is no store, or it cannot be opened.

    Example:
        >>> from headrace.inspect import views
        >>> found = views.outline("stores/web")
        >>> found.documents, found.tokens, found.looked_at, sum(one.tokens for one in found.inputs)
        (400, 102095, 400, 102095)
    """
    path = os.fspath(path)
    samples = describe_samples(path, WHOLE)
    if samples is not None:
        manifest = find_manifest(path) if (Path(path) / MANIFEST_NAME).is_file() else None
        errors = () if manifest is None else manifest.errors
        return SampleOutline(
            path=path,
            described=samples,
            ledger=None if manifest is None else manifest.ledger,
            errors=errors[:SHOWN_ERRORS],
            num_errors=len(errors),
        )
    with open_tokens(path) as store:
        return _of_tokens(path, store, find_manifest(path))


def num_documents(path: str) -> int:
    """Return the number of documents of a store of tokens, as its manifest says; without one it is opened.

    Raises:
        HeadraceError: there is no store, or it cannot be opened.
    """
    if (Path(path) / MANIFEST_NAME).is_file():
        return load_manifest(path).ledger.documents.kept
    with open_tokens(path) as store:
        return store.num_documents


def _of_tokens(path: str, store: Store, manifest: Manifest | None) -> StoreOutline:
    documents = spread_documents(store.num_documents, LOOKED_AT)
    lengths = document_lengths(store, documents)
    distinct, counts = np.unique(lengths, return_counts=True)
    provenance = _provenance(path, store.num_documents)
    inputs = [] if manifest is None or provenance is None else _inputs(manifest, provenance, documents, lengths)
    errors = () if manifest is None else manifest.errors
    return StoreOutline(
        path=path,
        format=store.format,
        kind=ShownKeys.of(store, None).kind,
        keys=store.keys,
        shards=len(getattr(store, "shards", (store,))) if manifest is None else len(manifest.outputs),
        documents=store.num_documents,
        tokens=known_tokens(store) if manifest is None else manifest.ledger.tokens.kept,
        bytes=sum(file.stat().st_size for file in store.files),
        looked_at=len(documents),
        lengths=summarise(distinct, counts) if len(documents) else None,
        histogram=histogram(distinct, counts),
        supervised=_supervised(store),
        tokenizer=None if manifest is None else manifest.tokenizer,
        order=None if manifest is None else manifest.order,
        ledger=None if manifest is None else manifest.ledger,
        has_origins=provenance is not None,
        has_ids=provenance is not None and provenance.has_ids,
        inputs=tuple(inputs[:SHOWN_INPUTS]),
        num_inputs=0 if manifest is None else len(manifest.inputs),
        domains=() if manifest is None else _domains(manifest),
        errors=errors[:SHOWN_ERRORS],
        num_errors=len(errors),
    )


def _provenance(path: str, num_documents: int) -> Provenance | None:
    """Return the origins that the store at a path keeps; None if it keeps none, or those of other documents."""
    folder = Path(path) / PROVENANCE_NAME
    if not folder.is_dir():
        return None
    with contextlib.suppress(HeadraceError):
        found = Provenance(folder)
        return found if found.num_documents == num_documents else None
    return None


def _inputs(
    manifest: Manifest, provenance: Provenance, documents: IntArray, lengths: NDArray[np.int64]
) -> list[InputShare]:
    files, _ = provenance.locate(documents)
    num_files = len(manifest.inputs)
    if len(files) and int(files.max()) >= num_files:
        return []
    counts = np.bincount(files, minlength=num_files)
    tokens = np.bincount(files, weights=lengths, minlength=num_files).astype(np.int64)
    order = np.argsort(-tokens, kind="stable")[:SHOWN_INPUTS]
    entries = manifest.inputs
    return [
        InputShare(path=entries[one].path, bytes=entries[one].size, documents=int(counts[one]), tokens=int(tokens[one]))
        for one in order.tolist()
    ]


def _domains(manifest: Manifest) -> tuple[DomainShare, ...]:
    key = next(iter(manifest.keys), "")
    found: dict[str, list[int]] = {}
    for shard in manifest.outputs:
        name = shard.prefix.rpartition("/")[0]
        if key in shard.keys and name:
            sums = found.setdefault(name, [0, 0])
            sums[0] += shard.documents
            sums[1] += shard.keys[key].tokens
    return tuple(DomainShare(name=name, documents=sums[0], tokens=sums[1]) for name, sums in found.items())


def _supervised(store: Store) -> SupervisedShare | None:
    mask = mask_of(store)
    if mask is None or known_tokens(store) is None:
        return None
    with contextlib.suppress(HeadraceError):
        return supervised_share(store, mask)
    return None
