from headrace.io import Reader as Reader, RetryPolicy as RetryPolicy, may_pass as may_pass
from headrace.stores.checking import check_file as check_file
from headrace.stores.combined import CombinedStore as CombinedStore, ShardedStore as ShardedStore
from headrace.stores.energon import (
    EnergonStore as EnergonStore,
    FilesystemStore as FilesystemStore,
    JoinedStore as JoinedStore,
    JsonlSamplesStore as JsonlSamplesStore,
)
from headrace.stores.foreign import (
    JsonlStore as JsonlStore,
    JsonObjectStore as JsonObjectStore,
    ParquetStore as ParquetStore,
    SavedDatasetStore as SavedDatasetStore,
)
from headrace.stores.foreign_ranges import Hdf5Store as Hdf5Store, RawStore as RawStore
from headrace.stores.foreign_writers import (
    Hdf5Writer as Hdf5Writer,
    JsonlWriter as JsonlWriter,
    to_datasets as to_datasets,
    write_hdf5 as write_hdf5,
)
from headrace.stores.indexed.layout import (
    Dialect as Dialect,
    Documents as Documents,
    IndexedOptions as IndexedOptions,
    optimal_dtype as optimal_dtype,
)
from headrace.stores.indexed.pairs import AlephAlphaStore as AlephAlphaStore, TntStore as TntStore
from headrace.stores.indexed.store import IndexedStore as IndexedStore
from headrace.stores.indexed.writer import IndexedWriter as IndexedWriter
from headrace.stores.kept_arrays import (
    check_arrays as check_arrays,
    find_arrays as find_arrays,
    find_cache as find_cache,
    keep_arrays as keep_arrays,
    kept_name as kept_name,
)
from headrace.stores.keyed.store import KeyedStore as KeyedStore
from headrace.stores.keyed.writer import KeyedWriter as KeyedWriter
from headrace.stores.manifest import (
    MANIFEST_NAME as MANIFEST_NAME,
    PROVENANCE_NAME as PROVENANCE_NAME,
    BackendInfo as BackendInfo,
    ContentLedger as ContentLedger,
    DocumentLedger as DocumentLedger,
    ErrorEntry as ErrorEntry,
    InputFile as InputFile,
    InputOrder as InputOrder,
    Ledger as Ledger,
    Manifest as Manifest,
    SampleLedger as SampleLedger,
    ShuffledOrder as ShuffledOrder,
    TokenizerInfo as TokenizerInfo,
    TokenLedger as TokenLedger,
    encoded_manifest as encoded_manifest,
    load_manifest as load_manifest,
    save_manifest as save_manifest,
)
from headrace.stores.opening import open as open, open_keys as open_keys, open_tokens as open_tokens
from headrace.stores.provenance import Provenance as Provenance, ProvenanceWriter as ProvenanceWriter
from headrace.stores.store import (
    PartPlace as PartPlace,
    Problem as Problem,
    RawSample as RawSample,
    SampleStore as SampleStore,
    Store as Store,
)
from headrace.stores.tar.store import TarStore as TarStore
from headrace.stores.writer import Writer as Writer
from headrace.stores.written import KeyInfo as KeyInfo, OutputShard as OutputShard
