"""The numbers of a token store, and what each packing strategy makes of it, for ``headrace info``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal, Unpack

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.config import unknown_name
from headrace.datasets.loss_masks import SupervisedShare, mask_name, supervised_share
from headrace.datasets.packed_sequences import StoreLengths
from headrace.datasets.records import TOKEN_KEYS
from headrace.errors import HeadraceError
from headrace.inspect.answers import OnProgress, Report, bytes_of
from headrace.inspect.blocks import Block, Pairs, Tabular, Title, Titled
from headrace.inspect.figures import count, plural, size
from headrace.io import path_at
from headrace.plan import IntArray
from headrace.plan.packing import Packing
from headrace.plan.packing.forecast import Forecast, forecast
from headrace.stores import (
    MANIFEST_NAME,
    PROVENANCE_NAME,
    BackendInfo,
    ErrorEntry,
    InputFile,
    InputOrder,
    Ledger,
    Manifest,
    Provenance,
    ShardedStore,
    ShuffledOrder,
    Store,
    TokenizerInfo,
    load_manifest,
    open_keys,
    open_tokens,
)
from headrace.stores.manifest import find_manifest as find_listing
from headrace.stores.token_layouts import OpenOptions

EXACT_DOCUMENTS: Final = 1 << 22
"""The most documents of a store whose lengths are all read, which takes about a second."""

LOOKED_AT: Final = 1 << 13
"""The documents whose lengths are looked up in a larger store: about 20 us each."""

_BLOCKS: Final = 64


Kind = Literal["seq", "sft", "dpo", "grpo", "prompt"]

KINDS: Final[dict[Kind, str]] = {
    "seq": "plain documents",
    "sft": "records with a loss mask",
    "dpo": "pairs of a chosen and a rejected answer",
    "grpo": "prompts with several answers and their rewards",
    "prompt": "prompts",
}
"""What the kinds of stores are called."""


class ShownKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a store that are shown: keys of tokens, their loss masks, and keys with other facts."""

    kind: Kind
    masks: dict[str, str | None]
    """Key of tokens -> key of its loss mask, or None."""

    beside: tuple[str, ...] = ()
    """Those of ``position_ids``, ``response_lengths``, ``rewards``, ``columns`` and ``label`` that exist."""

    @property
    def main(self) -> str:
        """The first key of tokens."""
        return next(iter(self.masks))

    @property
    def names(self) -> tuple[str, ...]:
        """All keys that are read."""
        return (*self.masks, *(mask for mask in self.masks.values() if mask is not None), *self.beside)

    @classmethod
    def of(cls, path: str, keys: Sequence[str], key: str | None) -> ShownKeys:
        """Return those of the keys of a store that are shown, by their names; with ``key``, only that key and its mask.

        Raises:
            ConfigError: there is no such key.
        """
        names = set(keys)
        if key is not None and key not in names:
            raise unknown_name(path, "key", key, keys)
        for kind, wanted, beside in _RECORDS if key is None else ():
            if names.issuperset(wanted):
                masks = {name: None if name == "prompts" else mask_name(name, names, is_main=False) for name in wanted}
                return cls(kind=kind, masks=masks, beside=_there(names, *beside))
        main = key or next((name for name in TOKEN_KEYS if name in names), keys[0])
        mask = mask_name(main, names, is_main=main in (*TOKEN_KEYS, keys[0]))
        beside = _there(names, "position_ids", "label") if key is None else ()
        return cls(kind="seq" if mask is None else "sft", masks={main: mask}, beside=beside)


_RECORDS: Final[tuple[tuple[Kind, tuple[str, ...], tuple[str, ...]], ...]] = (
    ("dpo", ("chosen", "rejected"), ()),
    ("grpo", ("prompts", "responses"), ("response_lengths", "rewards")),
    ("prompt", ("prompts",), ("columns",)),
)
"""Kinds of records, by the keys of tokens that they have, and the keys beside them that are shown."""


def _there(names: set[str], *wanted: str) -> tuple[str, ...]:
    return tuple(name for name in wanted if name in names)


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


class Supervised(SupervisedShare, frozen=True, kw_only=True):
    """How many tokens of a key a loss mask trains, of all of them or of a sample that is spread over all."""

    mask: str


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


class InputShare(msgspec.Struct, frozen=True, kw_only=True):
    """An input file, and the part of the documents that were looked at which comes from it."""

    path: str
    bytes: int
    documents: int
    """Of those that were looked at: all, or some that are spread evenly over a large store."""

    tokens: int
    """Of these documents."""


class DomainShare(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a store that has shards of its own, such as the documents of one domain; a folder of the store."""

    name: str
    documents: int
    tokens: int


class Description(Report, frozen=True, kw_only=True):
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

    bad_records: tuple[ErrorEntry, ...] = ()
    """The first of them."""

    kind: Kind
    """What its records are, by the keys."""

    origins: Literal["", "lines", "ids"] = ""
    """Whether the store keeps the lines, and the ids, of its documents."""

    by_input: tuple[InputShare, ...] = ()
    """The input files with the most tokens, those first; empty if the store does not keep origins."""

    domains: tuple[DomainShare, ...] = ()
    """The parts of the store; empty if it is one."""

    def shown(self) -> Iterator[Block]:
        """Yield what is shown, as blocks."""
        keys = self.keys
        has_one = len(keys) == 1
        kind = keys[0].dtype if has_one else f"{len(keys)} keys"
        pairs = [
            ("format", f"{self.format}, {kind}, {plural(self.shards, 'shard')}"),
            ("documents", count(self.documents) + (_empty(keys[0]) if has_one else "")),
            ("tokens", count(self.tokens)),
            ("on disk", size(self.bytes)),
            *(_per_document(keys[0]) if has_one else ()),
            *_made_by(self),
        ]
        yield Title(self.path)
        yield Pairs([*pairs, ("records", KINDS[self.kind])])
        for key in keys:
            if not has_one:
                pairs = [("documents", count(key.documents) + _empty(key)), ("tokens", count(key.tokens))]
                yield Titled(
                    f"key {key.name!r} ({key.dtype})", [Pairs([*pairs, *_per_document(key), *_supervised(key)])]
                )
            if key.histogram:
                yield Titled(f"lengths{_looked_at(key)}", [lengths_table(key)])
        if self.domains:
            total = sum(one.tokens for one in self.domains)
            rows = [
                (one.name, count(one.documents), count(one.tokens), f"{one.tokens / max(total, 1):.1%}")
                for one in self.domains
            ]
            yield Titled("domains", [Tabular(("domain", "documents", "tokens", "share"), rows, left=(0,))])
        yield from ledger_sections(self.ledger, self.errors or 0, self.bad_records)
        if self.inputs is not None:
            yield _input_section(self, self.inputs)


def describe_store(path: str, **options: Unpack[OpenOptions]) -> Description:
    """Open a store and gather its numbers. This reads the index and not the tokens; it holds the lengths of one shard.

    Of a store of more than 2^22 documents, it looks up the lengths of 8,192.

    Raises:
        StoreError: the store cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        stores = {key: stack.enter_context(store) for key, store in open_keys(path, **options).items()}
        manifest = find_manifest(path)
        keys = tuple(_described(key, stores, manifest) for key in stores)
        shards = [shard for store in stores.values() for shard in shards_of(store)]
        return Description(
            path=path,
            format=shards[0].format,
            shards=len({shard.path for shard in shards}),
            documents=keys[0].documents,
            tokens=sum(key.tokens for key in keys),
            bytes=bytes_of({file for store in stores.values() for file in store.files}),
            keys=keys,
            kind=ShownKeys.of(path, list(stores), None).kind,
            **_recorded(path, manifest, next(iter(stores.values()))),
        )


def _recorded(path: str, manifest: Manifest | None, store: Store) -> dict[str, Any]:
    """Return the fields of a description that come from the manifest."""
    found = {name: getattr(manifest, name, None) for name in ("tokenizer", "backend", "order", "inputs", "ledger")}
    if manifest is None:
        return {**found, "errors": None}
    found |= {
        "errors": len(manifest.errors),
        "bad_records": manifest.errors[:MAX_ERRORS],
        "domains": _domains(manifest),
    }
    if (kept := _provenance(path, store)) is not None:
        found |= {"origins": "ids" if kept.has_ids else "lines", "by_input": _by_input(manifest, kept, store)}
    return found


def _provenance(path: str, store: Store) -> Provenance | None:
    """Return the origins that the store at a path keeps; None if it keeps none, or those of other documents."""
    folder = path_at(path) / PROVENANCE_NAME
    with contextlib.suppress(HeadraceError):
        found = Provenance(folder) if folder.is_dir() else None
        return found if found is not None and found.num_documents == store.num_documents else None
    return None


def _by_input(manifest: Manifest, provenance: Provenance, store: Store) -> tuple[InputShare, ...]:
    documents = spread_documents(store.num_documents, LOOKED_AT)
    files, entries = provenance.locate(documents)[0], manifest.inputs
    if len(files) and int(files.max()) >= len(entries):
        return ()
    counts = np.bincount(files, minlength=len(entries))
    lengths = document_lengths(store, documents)
    tokens = np.bincount(files, weights=lengths, minlength=len(entries)).astype(np.int64)
    return tuple(
        InputShare(path=entries[one].path, bytes=entries[one].size, documents=int(counts[one]), tokens=int(tokens[one]))
        for one in np.argsort(-tokens, kind="stable")[:MAX_SHARES].tolist()
    )


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


def find_manifest(path: str | os.PathLike[str]) -> Manifest | None:
    """Return the manifest that describes a store, or None.

    Raises:
        StoreError: the manifest is damaged.
    """
    found = find_listing(path)
    return None if found is None else found[1]


def own_manifest(path: str) -> Manifest | None:
    """Return the manifest in the very folder of a store, or None.

    Raises:
        StoreError: it is damaged.
    """
    return load_manifest(path) if (path_at(path) / MANIFEST_NAME).is_file() else None


def shards_of(store: Store) -> tuple[Store, ...]:
    """Return the shards of a store, or the store itself if it has none."""
    return store.shards if isinstance(store, ShardedStore) else (store,)


def _described(key: str, stores: dict[str, Store], manifest: Manifest | None) -> KeyDescription:
    """Return the numbers of a key; of a large store from a sample of the lengths, and the manifest."""
    store = stores[key]
    is_exact = store.num_documents <= EXACT_DOCUMENTS
    listed = [] if is_exact or manifest is None else [shard for shard in manifest.outputs if key in shard.keys]
    # The path may be that of one shard of the store that the manifest describes.
    is_whole = not is_exact and sum(shard.documents for shard in listed) == store.num_documents
    tokens = sum(shard.keys[key].tokens for shard in listed) if is_whole else store.num_tokens
    sample = spread_documents(store.num_documents, LOOKED_AT)
    found = store.lengths if is_exact else document_lengths(store, sample)
    lengths, counts = np.unique(found, return_counts=True)
    return KeyDescription(
        name=key,
        dtype=store.dtypes[store.keys[0]].name,
        documents=store.num_documents,
        tokens=tokens,
        looked_at=len(found),
        empty_documents=int(counts[lengths == 0].sum()),
        tokens_per_document=summarise(lengths, counts) if len(found) else None,
        histogram=histogram(lengths, counts),
        supervised=_supervised_share(key, tokens, stores),
    )


def spread_blocks(num_documents: int, most: int) -> list[tuple[int, int]]:
    """Return ascending ranges ``[begin, end)``: all documents, or ``most`` of them in 64 blocks, evenly spread."""
    if num_documents <= most:
        return [(0, num_documents)]
    begins = np.linspace(0, num_documents - most // _BLOCKS, _BLOCKS).astype(np.int64).tolist()
    return [(begin, begin + most // _BLOCKS) for begin in begins]


def spread_documents(num_documents: int, most: int) -> IntArray:
    """(n,) int64, rising: the documents of `spread_blocks`."""
    blocks = spread_blocks(num_documents, most)
    return np.concatenate([np.arange(begin, end, dtype=np.int64) for begin, end in blocks])


def document_lengths(store: Store, documents: IntArray) -> NDArray[np.int64]:
    """(n,) int64: the tokens of some documents, found one by one, so that no index is read as a whole."""
    return np.array([len(store.document(one)) for one in documents.tolist()], dtype=np.int64)


def _supervised_share(key: str, tokens: int, stores: dict[str, Store]) -> Supervised | None:
    """Return how much of a key its loss mask trains, from the manifest or from a sample of the mask."""
    mask = mask_name(key, stores.keys(), is_main=key in (next(iter(stores)), *TOKEN_KEYS))
    if mask is None or stores[mask].num_tokens != tokens:
        return None
    share = supervised_share(stores[mask], mask, tokens=key)
    return Supervised(mask=mask, **msgspec.structs.asdict(share))


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


class PackFigures(Report, frozen=True, kw_only=True):
    """What packing would make of one key of a store, for each length of packs that was asked for."""

    path: str
    key: str
    documents: int
    tokens: int
    packs: tuple[Forecast, ...]

    def shown(self) -> list[Block]:
        """Return what is shown, as blocks."""
        found: list[Block] = [Title(self.path, f"{plural(self.documents, 'document')}, {plural(self.tokens, 'token')}")]
        return [*found, *(_pack_section(one) for one in self.packs)]


def pack_figures(
    path: str, seq_lens: Sequence[int], *, key: str | None, on_progress: OnProgress, **options: Unpack[OpenOptions]
) -> PackFigures:
    """Forecast packing from the lengths of documents, of which each strategy makes a plan.

    Args:
        path: the same as for `headrace.open`.
        seq_lens: the lengths of packs, in tokens.
        key: the key to pack, if the store has several; by default the main one, which is the first.
        on_progress: called before each strategy.
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
            forecast(
                StoreLengths(store),
                seq_len,
                first_fit_documents=FIRST_FIT_DOCUMENTS,
                on_progress=partial(on_progress, f"packs of {count(seq_len)}"),
            )
            for seq_len in seq_lens
        ]
        return PackFigures(
            path=path, key=name, documents=store.num_documents, tokens=store.num_tokens, packs=tuple(forecasts)
        )


def open_key(path: str, key: str | None, **options: Unpack[OpenOptions]) -> tuple[str, Store]:
    """Open the key that is packed; returns its name, and the store as a run opens it: by default with all its keys.

    Raises:
        StoreError: the store cannot be opened.
        ConfigError: there is no such key.
    """
    stores = open_keys(path, **options)
    name = next(iter(stores)) if key is None else key
    if name not in stores:
        raise unknown_name(path, "key", name, stores)
    if len(stores) == 1:
        return name, stores[name]
    for store in stores.values():
        store.close()
    return name, open_tokens(path, key=key, **options)


MAX_INPUTS = 10
MAX_SHARES = 200
MAX_ERRORS = 20


def _input_section(description: Description, inputs: Sequence[InputFile]) -> Titled:
    known = description.by_input
    looked_at = sum(one.documents for one in known)
    title = f"inputs ({count(len(inputs))})"
    if known and looked_at < description.documents:
        title += f", of {count(looked_at)} documents, evenly spread"
    more = len(inputs) - MAX_INPUTS
    rest = [f"and {count(more)} more (--json lists all)"] if more > 0 else []
    total = max(1, sum(one.tokens for one in known))
    heads = ("on disk", "documents", "tokens", "share", "file")
    rows = [
        (size(one.bytes), count(one.documents), count(one.tokens), f"{one.tokens / total:.1%}", one.path)
        for one in known[:MAX_INPUTS]
    ]
    rows = rows or [(size(one.size), "", "", "", one.path) for one in inputs[:MAX_INPUTS]]
    return Titled(title, [Tabular.used(heads, rows, ["file"]), *rest])


def ledger_sections(
    ledger: Ledger | None, num_errors: int, errors: Sequence[ErrorEntry], noun: str = "documents"
) -> Iterator[Titled]:
    """Yield what a run dropped and cut off, by reason, and the bad records that it skipped."""
    if ledger is not None:
        documents, tokens = ledger.documents, ledger.tokens
        rows = [
            ("read", count(documents.read), count(tokens.made)),
            ("kept", count(documents.kept), count(tokens.kept)),
        ]
        for reason in dict.fromkeys((*documents.dropped, *tokens.dropped)):
            lost = documents.dropped.get(reason, 0), tokens.dropped.get(reason, 0)
            if any(lost):
                rows.append(
                    (f"dropped: {'bad records' if reason == 'bad' else reason}", count(lost[0]), count(lost[1]))
                )
        rows += [(f"cut off: {reason}", "", count(number)) for reason, number in tokens.truncated.items() if number]
        if len(rows) > 2:
            yield Titled("what was dropped, and why", [Tabular(("where it went", noun, "tokens"), rows, (0,))])
    if errors:
        rows = [(one.file, f"{one.unit} {count(one.line)}", one.message) for one in errors]
        more = num_errors - len(errors)
        rest = [f"and {count(more)} more (headrace.json lists them)"] if more > 0 else []
        table = Tabular(("file", "place", "what is wrong"), rows, (0, 1, 2))
        yield Titled(f"bad records that were skipped ({count(num_errors)})", [table, *rest])


def _per_document(key: KeyDescription) -> list[tuple[str, str]]:
    lengths = key.tokens_per_document
    if lengths is None:
        return []
    middle = f"median {lengths.median:,.0f}, mean {lengths.mean:,.1f}"
    words = f"min {count(lengths.min)}, {middle}, max {count(lengths.max)} tokens{_looked_at(key)}"
    return [("per document", words)]


def _supervised(key: KeyDescription) -> list[tuple[str, str]]:
    found = key.supervised
    return [("supervised", f"{found}, by {found.mask!r}")] if found is not None and found.tokens else []


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


def lengths_table(key: KeyDescription) -> Tabular:
    """Return the histogram of the lengths of documents."""
    tokens = sum(bar.tokens for bar in key.histogram)
    rows = [
        (
            count(bar.first) if bar.first == bar.last else f"{count(bar.first)} to {count(bar.last)}",
            count(bar.documents),
            f"{bar.documents / key.looked_at:.1%}",
            f"{bar.tokens / max(tokens, 1):.1%}",
        )
        for bar in key.histogram
    ]
    heads = ("tokens", "documents", "share", "of tokens")
    return Tabular(heads, rows, bars=[bar.documents for bar in key.histogram])


def _looked_at(key: KeyDescription) -> str:
    """Say from how many documents figures are, unless it is all of them."""
    return f", from {count(key.looked_at)} documents, evenly spread" if key.looked_at < key.documents else ""


def _empty(key: KeyDescription) -> str:
    if not key.empty_documents:
        return ""
    of = "them" if key.looked_at == key.documents else f"{count(key.looked_at)} that were looked at"
    return f", {count(key.empty_documents)} of {of} empty"


def _pack_section(found: Forecast) -> Titled:
    looked_at = found.strategies[0].documents
    rows = [
        (
            one.strategy,
            count(one.packs),
            f"{one.fill:.3%}",
            f"{one.documents_per_pack:,.1f}",
            f"{one.cut_share:.2%}",
            f"{one.lost_share:.2%}",
        )
        for one in found.strategies
    ]
    heads = ("strategy", "packs", "fill", "documents a pack", "documents cut", "tokens lost")
    parts = [
        f"({one.strategy}: only of the first {plural(one.documents, 'document')})"
        for one in found.strategies
        if one.documents < looked_at
    ]
    return Titled(f"packs of {plural(found.seq_len, 'token')}", [_over_long(found), Tabular(heads, rows), *parts])


def _over_long(found: Forecast) -> str:
    if not found.over_long_documents:
        return f"no document is longer: the longest has {count(found.longest)}"
    share = found.over_long_documents / found.documents
    are = "document is longer" if found.over_long_documents == 1 else "documents are longer"
    return (
        f"{count(found.over_long_documents)} {are} ({share:.2%}), up to {count(found.longest)} tokens: best_fit_split "
        "and wrapped cut, the others truncate here"
    )
