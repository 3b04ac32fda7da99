"""Whether the sources of a blend hold ids of one tokeniser, as the manifests beside their stores say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.datasets.dataset import Dataset
from headrace.errors import ConfigError, StoreError
from headrace.stores import Store, TokenizerInfo
from headrace.stores.manifest import find_manifest


def check_one_tokenizer(sources: Iterable[tuple[str, Dataset]]) -> None:
    """Raise ConfigError for two sources, given with their names, whose manifests name different tokenisers.

    Stores without a manifest are not compared, nor are those whose manifest is damaged: `headrace check` tells. Each
    manifest is read once.
    """
    known: dict[str, TokenizerInfo | None] = {}
    first: tuple[str, Store, TokenizerInfo] | None = None
    for name, dataset in sources:
        for store in _stores(dataset):
            if store.path not in known:
                known[store.path] = _tokenizer(store)
            info = known[store.path]
            if info is None:
                continue
            if first is None:
                first = name, store, info
            elif (info.xxh3_128, info.vocab_size) != (first[2].xxh3_128, first[2].vocab_size):
                raise ConfigError(
                    f"the sources hold ids of different tokenisers: {_shown(*first)}, {_shown(name, store, info)}; the"
                    " same id means another token in each. Tokenise one of them again, or say"
                    " allow_different_tokenizers=True"
                )


def _stores(dataset: Dataset) -> Iterator[Store]:
    """The stores that a dataset reads, those of datasets within it included."""
    for store in (getattr(dataset, "store", None), *getattr(dataset, "stores", ())):
        if isinstance(store, Store):
            yield store
    for inner in (getattr(dataset, "dataset", None), *getattr(dataset, "datasets", ())):
        if isinstance(inner, Dataset):
            yield from _stores(inner)


def _tokenizer(store: Store) -> TokenizerInfo | None:
    try:
        found = find_manifest(store.path)
    except StoreError:
        return None
    return None if found is None else found[1].tokenizer


def _shown(name: str, store: Store, info: TokenizerInfo) -> str:
    return f"{name!r} ({store.path}) of {info.source}, {info.vocab_size:,} ids, xxh3 {info.xxh3_128}"
