"""What each packing strategy makes of a store, for ``headrace info --pack``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from headrace.cli.description import opened_keys
from headrace.cli.figures import count, plural, table
from headrace.errors import ConfigError
from headrace.plan import IntArray
from headrace.plan.packing import CHUNK, Packing
from headrace.plan.packing.forecast import Forecast, forecast
from headrace.stores import IndexedOptions, Store
from headrace.stores.indexed.layout import AS_FOUND

FIRST_FIT_DOCUMENTS = 1_000_000
"""First-fit looks at so many documents: it takes 1 to 3 us each, the other strategies together a tenth of that."""

OnDocuments = Callable[[int, int, int], None]


class PackFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one key of a store, for each length of packs that was asked for."""

    path: str
    key: str
    documents: int
    tokens: int
    packs: tuple[Forecast, ...]


def pack_figures(
    path: str,
    max_seq_lens: tuple[int, ...],
    *,
    key: str | None,
    on_documents: OnDocuments,
    options: IndexedOptions = AS_FOUND,
) -> PackFigures:
    """Read the lengths of a store's documents, once for each length of packs; memory is bounded.

    Args:
        path: as for `headrace.open`.
        max_seq_lens: tokens a pack.
        key: of a store with several keys the one to pack; by default the main one, which is the first.
        options: how pairs of .bin and .idx are understood.
        on_documents: called now and then with the length of packs, the documents read so far, and all of them.

    Raises:
        StoreError: it does not open.
        ConfigError: there is no such key, or a length of packs is out of range.
    """
    for max_seq_len in max_seq_lens:
        Packing(max_seq_len=max_seq_len)  # refused before anything is read
    name, store = open_key(path, key, options)
    with store:
        forecasts = [
            forecast(_read(store, max_seq_len, on_documents), max_seq_len, first_fit_documents=FIRST_FIT_DOCUMENTS)
            for max_seq_len in max_seq_lens
        ]
        return PackFigures(
            path=path, key=name, documents=store.num_documents, tokens=store.num_tokens, packs=tuple(forecasts)
        )


def _read(store: Store, max_seq_len: int, on_documents: OnDocuments) -> Iterator[IntArray]:
    """The lengths, telling how far the reading is."""
    done = 0
    for chunk in store.length_chunks(CHUNK):
        yield chunk
        done += len(chunk)
        on_documents(max_seq_len, done, store.num_documents)


def open_key(path: str, key: str | None, options: IndexedOptions) -> tuple[str, Store]:
    """The name of the key that is packed, and the store with it as its main key.

    Raises:
        StoreError: it does not open.
        ConfigError: there is no such key.
    """
    stores = opened_keys(path, options)
    name = next(iter(stores)) if key is None else key
    for other, store in stores.items():
        if other != name:
            store.close()
    if name not in stores:
        raise ConfigError(f"{path}: no key {name!r}; its keys are {', '.join(map(repr, stores))}")
    return name, stores[name]


def report(figures: PackFigures) -> list[str]:
    """The figures for people."""
    lines = [f"{figures.path}: {plural(figures.documents, 'document')}, {plural(figures.tokens, 'token')}"]
    for found in figures.packs:
        lines += ["", f"packs of {plural(found.max_seq_len, 'token')}", f"  {_over_long(found)}", *_table(found)]
        looked_at = found.strategies[0].documents
        lines += [
            f"  ({figures.strategy}: of the first {plural(figures.documents, 'document')} alone)"
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


def _table(found: Forecast) -> list[str]:
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
