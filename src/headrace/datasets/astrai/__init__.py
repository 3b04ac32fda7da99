"""AstrAI's storage under its own names, for programs that were written against it; results are torch tensors.

    detect_format(path) -> "h5" | "bin" | "jsonl"
    StoreFactory.create("bin") -> MmapStore -> load(path) -> fetch(begin, end, keys), fetch_record(i, keys)
    save_h5, load_h5, save_bin, load_bin                      files of tensors, whole

Thin: a store of `headrace.stores` is behind each key, and `headrace.open` is what new programs use. It is here and not
in that room since its results are tensors, as the items of the seed's datasets are; torch is imported when one is made.
"""

from headrace.datasets.astrai.files import detect_format, load_bin, load_h5, save_bin, save_h5
from headrace.datasets.astrai.stores import H5Store, JsonlStore, MmapStore, Store, StoreFactory

__all__ = [
    "H5Store",
    "JsonlStore",
    "MmapStore",
    "Store",
    "StoreFactory",
    "detect_format",
    "load_bin",
    "load_h5",
    "save_bin",
    "save_h5",
]
