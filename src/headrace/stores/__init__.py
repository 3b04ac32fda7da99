"""Stores on disk: documents of tokens and samples with named parts, in several layouts with one interface each.

    writing     IndexedWriter -> prefix.bin, prefix.idx ----------.
                KeyedWriter   -> folder/<key>.bin, meta.json -----+-> OutputShard -.
                Hdf5Writer, JsonlWriter -> file.h5, file.jsonl ---'                 v
                save_manifest(folder, Manifest(outputs=[OutputShard.of(...)])) -> headrace.json
    reading     open(path) -> IndexedStore, KeyedStore, Hdf5Store, JsonlStore -> document, fetch, gather
                           -> ShardedStore: several one after another; CombinedStore: keys side by side
    samples     open(path) -> TarStore, EnergonStore, ...: keys and named parts, with the interface SampleStore
    layouts     token_layouts, sample_layouts: tables of what can lie at a path; each layout knows its own, and opens it
    checking    Store.check() -> Problem, Problem, ...   every rule of the format, and every byte that a manifest lists

Opening a store costs O(1) a shard. Reads are by ranges, and the code that reads does not depend on the layout.
This package imports only ``headrace.io`` and ``headrace.errors``; it knows neither torch nor the order of training.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
