"""The sources of a metadataset as they lie on disk, so that no code is needed to look at them."""

from __future__ import annotations

import msgspec

from headrace.cli.media.opening import WHOLE, SampleOptions, open_sample_store
from headrace.datasets.dataset import Dataset
from headrace.datasets.media import JoinedMediaDataset, MediaDataset
from headrace.datasets.metadataset import JoinedSource, Source, SourceColumn
from headrace.datasets.metadataset.opening import join_store
from headrace.stores.sample_layouts import sample_layout


def plain_dataset(source: Source | JoinedSource) -> Dataset | None:
    """The samples of a source, neither decoded nor cooked; None for tokens. For ``SourceOptions(open=...)``.

    Raises:
        StoreError: nothing is there, or it is malformed.
        ConfigError: there is no such part.
    """
    if isinstance(source, JoinedSource):
        store = join_store(source)
        columns = [MediaDataset(column.store, decoder=None) for column in store.columns]
        return JoinedMediaDataset(store, lambda *given, **named: {"columns": given or named}, columns=columns)
    if source.windows is not None or source.packs is not None:
        return None
    layout = sample_layout(source.path)
    if layout in (None, "files"):
        return None
    options = msgspec.structs.replace(options_of(source), split_part=source.split_part)
    opened = open_sample_store(source.path, options if layout == "energon" else WHOLE)
    return None if opened is None else MediaDataset(opened, decoder=None)


def options_of(source: Source | SourceColumn) -> SampleOptions:
    """By which files a dataset of Energon's is opened, whole: of all its parts."""
    return SampleOptions(split_config=source.split_config, dataset_config=source.dataset_config)


def closed(dataset: Dataset) -> None:
    """Let go of the files of a dataset."""
    getattr(dataset, "close", getattr(getattr(dataset, "store", None), "close", lambda: None))()
