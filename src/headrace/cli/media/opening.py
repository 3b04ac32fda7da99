"""Opens what lies at a path as samples, so that looking at it changes nothing there."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.errors import ConfigError
from headrace.io import Reader
from headrace.stores import open_tokens
from headrace.stores.energon import DatasetConfig, EnergonStore
from headrace.stores.quarantine import quarantined
from headrace.stores.sample_layouts import WORDS, open_samples, sample_layout
from headrace.stores.sample_store import SampleStore
from headrace.stores.tar.store import TarStore


class SampleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which samples of a dataset of Energon's, and by which of its files."""

    split_part: str | None = None
    split_config: str | None = None
    dataset_config: str | None = None

    def named(self) -> list[str]:
        """The options that were given, as the user writes them."""
        return [f"--{name.replace('_', '-')}" for name in self.__struct_fields__ if getattr(self, name) is not None]


WHOLE = SampleOptions()


def open_sample_store(
    path: str, options: SampleOptions = WHOLE, *, using: str | Reader = "mmap", faulty: bool = False
) -> SampleStore | None:
    """The samples at a path; None where there are none: tokens, another thing, or nothing.

    As `headrace.open`, but that the index of a tar that has none is kept in the cache, never beside the tar.

    Args:
        path: as the user wrote it.
        options: of datasets of Energon's.
        using: how to read.
        faulty: open tars that are damaged, as far as they can be read.

    Raises:
        StoreError: missing or malformed.
        InputError: a tar is compressed, or damaged.
        ConfigError: there is no such part, or options of Energon's datasets for something else.
    """
    layout = sample_layout(path, using)
    if layout == "energon":
        return EnergonStore(
            path,
            split_part=options.split_part,
            split_config=options.split_config,
            dataset_config=options.dataset_config,
            using=using,
        )
    if options != WHOLE:
        what = "this has no .nv-meta" if layout is None else f"this is {WORDS[layout]}"
        raise ConfigError(f"{path}: {', '.join(options.named())} is for datasets of Energon; {what}")
    if layout == "tar":
        return quarantined(TarStore(path, using=using, index="cache", faulty="skip" if faulty else "error"))
    return None if layout is None else open_samples(path, layout, split_part=None, using=using)


def need_samples(path: str, options: SampleOptions = WHOLE) -> SampleStore:
    """As `open_sample_store`, where nothing else will do.

    Raises:
        ConfigError: it holds documents of tokens.
        StoreError: nothing is there, or it is malformed.
    """
    store = open_sample_store(path, options)
    if store is not None:
        return store
    with open_tokens(path) as tokens:
        raise ConfigError(
            f"{path}: holds {len(tokens):,} documents of tokens, which have numbers and no keys; headrace preview shows"
            " them as text. Samples are in tar shards, datasets of Energon, .jsonl, and folders of files"
        )


def dataset_of(store: SampleStore) -> DatasetConfig | None:
    """The ``dataset.yaml`` of a dataset of Energon's, if it has one."""
    return store.dataset if isinstance(store, EnergonStore) else None


def total_bytes(store: SampleStore) -> int:
    """Of all files of a store; those that are missing count nothing."""
    total = 0
    for file in store.files:
        try:
            total += Path(file).stat().st_size
        except OSError:
            continue
    return total
