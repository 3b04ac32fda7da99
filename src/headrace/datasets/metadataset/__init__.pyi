from headrace.datasets.metadataset.metadataset import (
    Metadataset as Metadataset,
    TraversedDatasetReference as TraversedDatasetReference,
    load_dataset as load_dataset,
    traverse_metadataset as traverse_metadataset,
)
from headrace.datasets.metadataset.opening import SourceOptions as SourceOptions
from headrace.datasets.metadataset.reading import (
    JoinedSource as JoinedSource,
    Mixed as Mixed,
    NamedSource as NamedSource,
    SourceColumn as SourceColumn,
    Tree as Tree,
    sources as sources,
)
