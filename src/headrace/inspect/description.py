"""The numbers of a token store, and what each packing strategy makes of it, for ``headrace info``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final, Unpack

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.config import unknown_name
from headrace.datasets.loss_masks import mask_name, supervised_share
from headrace.datasets.records import TOKEN_KEYS
from headrace.inspect.answers import Answer, OnProgress
from headrace.inspect.figures import count, listing, plural, size, table
from headrace.plan import IntArray
from headrace.plan.packing import CHUNK, Packing
from headrace.plan.packing.forecast import Forecast, forecast
from headrace.stores import (
    BackendInfo,
    InputFile,
    InputOrder,
    Ledger,
    Manifest,
    ShardedStore,
    ShuffledOrder,
    Store,
    TokenizerInfo,
    open_keys,
)
from headrace.stores.manifest import find_manifest as find_listing
from headrace.stores.token_layouts import OpenOptions

EXACT_DOCUMENTS: Final = 1 << 22
"""The most documents of a store whose lengths are all read, which takes about a second."""

LOOKED_AT: Final = 1 << 13
"""The documents whose lengths are looked up in a larger store: about 20 us each."""

_BLOCKS: Final = 64


class LengthFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of tokens in documents; empty documents count too."""

    min: int
    median: float
    mean: float
    max: int


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A bar of a histogram: the documents that have ``first`` to ``last`` tokens, both included."""

    first: int
    last: int
    documents: int
    tokens: int


class Supervised(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens of a key a loss mask trains."""

    mask: str
    trained: int
    tokens: int
    """The number of tokens that were counted."""

    is_all: bool
    """Whether all tokens were counted; if not, a sample that is spread over all of them was."""


class KeyDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one key of a store."""

    name: str
    dtype: str
    documents: int
    tokens: int
    looked_at: int
    """The number of documents that the next three are about: all, or some that are spread evenly over a large store."""

    empty_documents: int
    tokens_per_document: LengthFigures | None
    histogram: tuple[Bar, ...]
    supervised: Supervised | None = None
    """How much of it is trained; None without a loss mask."""


class Description(Answer, frozen=True, kw_only=True):
    """All that ``headrace info`` says of a token store.

    The fields from ``tokenizer`` on come from the manifest, and are None without one.
    """

    path: str
    format: str
    shards: int
    """The number of shards of all keys together."""

    documents: int
    tokens: int
    """The number of tokens of all keys together."""

    bytes: int
    keys: tuple[KeyDescription, ...]
    tokenizer: TokenizerInfo | None
    backend: BackendInfo | None
    order: InputOrder | ShuffledOrder | None
    inputs: tuple[InputFile, ...] | None
    ledger: Ledger | None
    errors: int | None
    """The number of bad records that were skipped."""

    def lines(self) -> list[str]:
        """Return the lines that ``headrace info`` prints."""
        return _store_lines(self)


def describe_store(path: str, **options: Unpack[OpenOptions]) -> Description:
    """Open a store and gather its numbers. This reads the index and not the tokens; it holds the lengths of one shard.

    Of a store of more than 2^22 documents, it looks up the lengths of 8,192.

    Raises:
        StoreError: the store cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        stores = {key: stack.enter_context(store) for key, store in open_keys(path, **options).items()}
        manifest = find_manifest(path)
        keys = tuple(_with_share(_described(key, store, manifest), stores) for key, store in stores.items())
        shards = [shard for store in stores.values() for shard in shards_of(store)]
        files = {file for store in stores.values() for file in store.files}
        return Description(
            path=path,
            format=shards[0].format,
            shards=len({shard.path for shard in shards}),
            documents=keys[0].documents,
            tokens=sum(key.tokens for key in keys),
            bytes=sum(file.stat().st_size for file in files),
            keys=keys,
            **_recorded(manifest),
        )


def _recorded(manifest: Manifest | None) -> dict[str, Any]:
    """Return the fields of a description that come from the manifest."""
    fields = ("tokenizer", "backend", "order", "inputs", "ledger")
    return {
        **{name: getattr(manifest, name, None) for name in fields},
        "errors": None if manifest is None else len(manifest.errors),
    }


def find_manifest(path: str | os.PathLike[str]) -> Manifest | None:
    """Return the manifest that describes a store, or None.

    Raises:
        StoreError: the manifest is damaged.
    """
    found = find_listing(path)
    return None if found is None else found[1]


def shards_of(store: Store) -> tuple[Store, ...]:
    """Return the shards of a store, or the store itself if it has none."""
    return store.shards if isinstance(store, ShardedStore) else (store,)


def describe_key(key: str, store: Store) -> KeyDescription:
    """Return the numbers of the main key of a store, from the lengths of all documents."""
    lengths, counts = _merge([np.unique(shard.lengths, return_counts=True) for shard in shards_of(store)])
    return _key_description(key, store, store.num_tokens, lengths, counts)


def _described(key: str, store: Store, manifest: Manifest | None) -> KeyDescription:
    """Return the numbers of the main key; of a large store from a sample of the lengths, and the manifest."""
    if store.num_documents <= EXACT_DOCUMENTS:
        return describe_key(key, store)
    lengths = document_lengths(store, spread_documents(store.num_documents, LOOKED_AT))
    listed = [] if manifest is None else [shard for shard in manifest.outputs if key in shard.keys]
    # The path may be that of one shard of the store that the manifest describes.
    is_whole = sum(shard.documents for shard in listed) == store.num_documents
    tokens = sum(shard.keys[key].tokens for shard in listed) if is_whole else store.num_tokens
    return _key_description(key, store, tokens, *np.unique(lengths, return_counts=True))


def _key_description(
    key: str, store: Store, tokens: int, lengths: NDArray[np.int64], counts: NDArray[np.int64]
) -> KeyDescription:
    looked_at = int(counts.sum())
    return KeyDescription(
        name=key,
        dtype=store.dtypes[store.keys[0]].name,
        documents=store.num_documents,
        tokens=tokens,
        looked_at=looked_at,
        empty_documents=int(counts[lengths == 0].sum()),
        tokens_per_document=summarise(lengths, counts) if looked_at else None,
        histogram=histogram(lengths, counts),
    )


def spread_documents(num_documents: int, most: int) -> IntArray:
    """(n,) int64, rising: all documents, or ``most`` of them in 64 blocks of neighbours, evenly spread."""
    if num_documents <= most:
        return np.arange(num_documents, dtype=np.int64)
    begins = np.linspace(0, num_documents - most // _BLOCKS, _BLOCKS).astype(np.int64)
    return (begins[:, np.newaxis] + np.arange(most // _BLOCKS, dtype=np.int64)).ravel()


def document_lengths(store: Store, documents: IntArray) -> NDArray[np.int64]:
    """(n,) int64: the tokens of some documents, found one by one, so that no index is read as a whole."""
    return np.array([len(store.document(one)) for one in documents.tolist()], dtype=np.int64)


def _with_share(key: KeyDescription, stores: dict[str, Store]) -> KeyDescription:
    """Add how much of a key its loss mask trains, from the manifest or from a sample of the mask."""
    mask = mask_name(key.name, stores.keys(), is_main=key.name in (next(iter(stores)), *TOKEN_KEYS))
    if mask is None or stores[mask].num_tokens != key.tokens:
        return key
    share = supervised_share(stores[mask], mask, tokens=key.name)
    return msgspec.structs.replace(key, supervised=Supervised(mask=mask, **msgspec.structs.asdict(share)))


def histogram(lengths: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[Bar, ...]:
    """Count documents by powers of two of their tokens: 0, 1, 2 to 3, 4 to 7, ... The first and last bar are not empty.

    Args:
        lengths: distinct lengths, ascending.
        counts: the number of documents of each length.
    """
    # frexp returns n = m * 2^e with m in [1/2, 1), so e is the number of bits; exact below 2^53.
    bits = np.frexp(lengths.astype(np.float64))[1]
    bars = []
    for bit in range(int(bits[0]), int(bits[-1]) + 1) if len(bits) else ():
        chosen = bits == bit
        bars.append(
            Bar(
                first=(1 << bit) >> 1,
                last=(1 << bit) - 1,
                documents=int(counts[chosen].sum()),
                tokens=int((lengths[chosen] * counts[chosen]).sum()),
            )
        )
    return tuple(bars)


def _merge(parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    lengths, where = np.unique(np.concatenate([lengths for lengths, _ in parts]), return_inverse=True)
    counts = np.zeros(len(lengths), np.int64)
    np.add.at(counts, where, np.concatenate([counts for _, counts in parts]))
    return lengths, counts


def summarise(lengths: NDArray[np.int64], counts: NDArray[np.int64]) -> LengthFigures:
    """Summarise distinct lengths, ascending, and the number of documents of each; there is at least one."""
    ends = np.cumsum(counts)
    num_documents = int(ends[-1])
    middle = np.searchsorted(ends, [(num_documents - 1) // 2, num_documents // 2], side="right")
    return LengthFigures(
        min=int(lengths[0]),
        median=float(lengths[middle].mean()),
        mean=int((lengths * counts).sum()) / num_documents,
        max=int(lengths[-1]),
    )


FIRST_FIT_DOCUMENTS = 1_000_000
"""The number of documents for which first-fit is tried: it takes 1 to 3 us each, ten times the others together."""


class PackFigures(Answer, frozen=True, kw_only=True):
    """What packing would make of one key of a store, for each length of packs that was asked for."""

    path: str
    key: str
    documents: int
    tokens: int
    packs: tuple[Forecast, ...]

    def lines(self) -> list[str]:
        """Return the lines that ``headrace info --pack`` prints."""
        return _pack_lines(self)


def pack_figures(
    path: str, seq_lens: Sequence[int], *, key: str | None, on_progress: OnProgress, **options: Unpack[OpenOptions]
) -> PackFigures:
    """Forecast packing from the lengths of documents, which are read once for each length of packs, in bounded memory.

    Args:
        path: the same as for `headrace.open`.
        seq_lens: the lengths of packs, in tokens.
        key: the key to pack, if the store has several; by default the main one, which is the first.
        on_progress: called now and then with the documents that are read.
        options: as for `headrace.open`.

    Raises:
        StoreError: the store cannot be opened.
        ConfigError: there is no such key, or a length of packs is out of range.
    """
    for seq_len in seq_lens:
        Packing(seq_len=seq_len)  # raises before anything is read
    name, store = open_key(path, key, **options)
    with store:
        forecasts = [
            forecast(_read(store, seq_len, on_progress), seq_len, first_fit_documents=FIRST_FIT_DOCUMENTS)
            for seq_len in seq_lens
        ]
        return PackFigures(
            path=path, key=name, documents=store.num_documents, tokens=store.num_tokens, packs=tuple(forecasts)
        )


def _read(store: Store, seq_len: int, on_progress: OnProgress) -> Iterator[IntArray]:
    """Yield the lengths in chunks, and report the progress."""
    done, total = 0, store.num_documents
    for chunk in store.length_chunks(CHUNK):
        yield chunk
        done += len(chunk)
        text = f"{count(done)} of {count(total)} documents"
        on_progress(f"packs of {count(seq_len)}", done, total, text=text)


def open_key(path: str, key: str | None, **options: Unpack[OpenOptions]) -> tuple[str, Store]:
    """Open the key that is packed; returns its name, and the store with that key as the main one.

    Raises:
        StoreError: the store cannot be opened.
        ConfigError: there is no such key.
    """
    stores = open_keys(path, **options)
    name = next(iter(stores)) if key is None else key
    for other, store in stores.items():
        if other != name:
            store.close()
    if name not in stores:
        raise unknown_name(path, "key", name, stores)
    return name, stores[name]


MAX_INPUTS = 10


def _store_lines(description: Description) -> list[str]:
    """Return the report of a store."""
    keys = description.keys
    has_one = len(keys) == 1
    kind = keys[0].dtype if has_one else f"{len(keys)} keys"
    empty = _empty(keys[0]) if has_one else ""
    pairs = [
        ("format", f"{description.format}, {kind}, {plural(description.shards, 'shard')}"),
        ("documents", count(description.documents) + empty),
        ("tokens", count(description.tokens)),
        ("on disk", size(description.bytes)),
    ]
    if has_one:
        pairs += _per_document(keys[0])
    lines = [description.path, *listing(pairs + _made_by(description))]
    for key in keys:
        if not has_one:
            pairs = [
                ("documents", count(key.documents) + _empty(key)),
                ("tokens", count(key.tokens)),
                *_per_document(key),
                *_supervised(key),
            ]
            lines += ["", f"key {key.name!r} ({key.dtype})", *listing(pairs)]
        lines += _lengths(key)
    if description.inputs is not None:
        lines += ["", f"inputs ({len(description.inputs):,})"]
        lines += [f"  {size(file.size):>8}  {file.path}" for file in description.inputs[:MAX_INPUTS]]
        if len(description.inputs) > MAX_INPUTS:
            lines.append(f"  and {len(description.inputs) - MAX_INPUTS:,} more (--json lists all)")
    return lines


def _per_document(key: KeyDescription) -> list[tuple[str, str]]:
    lengths = key.tokens_per_document
    if lengths is None:
        return []
    middle = f"median {lengths.median:,.0f}, mean {lengths.mean:,.1f}"
    words = f"min {count(lengths.min)}, {middle}, max {count(lengths.max)} tokens{_looked_at(key)}"
    return [("per document", words)]


def _supervised(key: KeyDescription) -> list[tuple[str, str]]:
    found = key.supervised
    if found is None or not found.tokens:
        return []
    looked_at = "" if found.is_all else f", from a sample of {count(found.tokens)}"
    about = "" if found.is_all else "about "
    return [("supervised", f"{about}{found.trained / found.tokens:.1%} of the tokens, by {found.mask!r}{looked_at}")]


def _made_by(description: Description) -> list[tuple[str, str]]:
    """What the manifest records about how the store was made."""
    pairs = []
    tokenizer, backend, order = description.tokenizer, description.backend, description.order
    if tokenizer is not None:
        eod = "none appended" if tokenizer.eod is None else str(tokenizer.eod)
        bos = "" if tokenizer.bos is None else f", begin of document {tokenizer.bos}"
        vocabulary = f"vocabulary {count(tokenizer.vocab_size)}, end of document {eod}{bos}"
        pairs.append(("tokeniser", f"{tokenizer.source}, {vocabulary}, xxh3 {tokenizer.xxh3_128}"))
    if backend is not None:
        proved = ", ".join(f"{count(number)} {what.replace('_', ' ')}" for what, number in backend.proved.items())
        until = f", then tokenizers: {backend.from_task_by}" if backend.from_task_by else ""
        proof = f", proved on {proved}" if proved else ""
        pairs.append(("encoded by", f"{backend.name} {backend.version}{proof}{until}"))
    if order is not None:
        seed = getattr(order, "seed", None)
        pairs.append(("order", "that of the inputs" if seed is None else f"shuffled with seed {seed}"))
    if description.errors:
        pairs.append(("skipped", f"{plural(description.errors, 'record')} (headrace.json lists them)"))
    return pairs


def _lengths(key: KeyDescription) -> list[str]:
    if not key.histogram:
        return []
    rows = [("tokens", "documents", "share", "of tokens")]
    tokens = sum(bar.tokens for bar in key.histogram)
    for bar in key.histogram:
        span = count(bar.first) if bar.first == bar.last else f"{count(bar.first)} to {count(bar.last)}"
        document_share = bar.documents / key.looked_at
        token_share = bar.tokens / max(tokens, 1)
        rows.append((span, count(bar.documents), f"{document_share:.1%}", f"{token_share:.1%}"))
    return ["", f"lengths{_looked_at(key)}", *table(rows)]


def _looked_at(key: KeyDescription) -> str:
    """Say from how many documents figures are, unless it is all of them."""
    return f", from {count(key.looked_at)} documents, evenly spread" if key.looked_at < key.documents else ""


def _empty(key: KeyDescription) -> str:
    if not key.empty_documents:
        return ""
    of = "them" if key.looked_at == key.documents else f"{count(key.looked_at)} that were looked at"
    return f", {count(key.empty_documents)} of {of} empty"


def _pack_lines(figures: PackFigures) -> list[str]:
    """Return the figures as lines to print."""
    lines = [f"{figures.path}: {plural(figures.documents, 'document')}, {plural(figures.tokens, 'token')}"]
    for found in figures.packs:
        lines += ["", f"packs of {plural(found.seq_len, 'token')}", f"  {_over_long(found)}", *_pack_table(found)]
        looked_at = found.strategies[0].documents
        lines += [
            f"  ({figures.strategy}: only of the first {plural(figures.documents, 'document')})"
            for figures in found.strategies
            if figures.documents < looked_at
        ]
    return lines


def _over_long(found: Forecast) -> str:
    if not found.over_long_documents:
        return f"no document is longer: the longest has {count(found.longest)}"
    share = found.over_long_documents / found.documents
    are = "document is longer" if found.over_long_documents == 1 else "documents are longer"
    return (
        f"{count(found.over_long_documents)} {are} ({share:.2%}), up to {count(found.longest)} tokens: best_fit_split "
        "and wrapped cut, the others truncate here"
    )


def _pack_table(found: Forecast) -> list[str]:
    rows = [("strategy", "packs", "fill", "documents a pack", "documents cut", "tokens lost")]
    for figures in found.strategies:
        rows.append(
            (
                figures.strategy,
                count(figures.packs),
                f"{figures.fill:.3%}",
                f"{figures.documents_per_pack:,.1f}",
                f"{figures.cut_share:.2%}",
                f"{figures.lost_share:.2%}",
            )
        )
    return table(rows)
