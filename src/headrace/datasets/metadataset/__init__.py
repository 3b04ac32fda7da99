"""Metadatasets: YAML files that say which datasets are mixed and how. No torch.

Files of both of Energon's versions are read as they are; some keys are Headrace's own.

mix.yaml --reading--> entries as written --resolving, nested files--> Tree --building--> Dataset | Mix --> Run
                        (description)                                   |
                                                                        +--> traverse, prepare (joins)
"""

from __future__ import annotations

from headrace.datasets.metadataset.metadataset import (
    Metadataset,
    TraversedDatasetReference,
    load_dataset,
    traverse_metadataset,
)
from headrace.datasets.metadataset.opening import SourceOptions
from headrace.datasets.metadataset.reading import JoinedSource, Mixed, NamedSource, SourceColumn, Tree, sources

__all__ = [
    "JoinedSource",
    "Metadataset",
    "Mixed",
    "NamedSource",
    "SourceColumn",
    "SourceOptions",
    "TraversedDatasetReference",
    "Tree",
    "load_dataset",
    "sources",
    "traverse_metadataset",
]
