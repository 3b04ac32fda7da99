"""Datasets of Megatron-Energon, shards below a folder with a ``.nv-meta``: read and written.

config_file    reads YAML and JSON files in Energon's dialect; .info.json: the shards and their numbers of samples
splits         split.yaml: the parts train, val, test, what is excluded, and names with braces
dataset_yaml   dataset.yaml: the type of the samples; nothing that it names is imported
sqlite_index   index.sqlite: places of samples and parts by key, and metadata of media; finds samples by key
sqlite_writer  writes index.sqlite and its uuid
shards         shards that are tars or stores of tokens
store          EnergonStore: the samples of one part
jsonl          JsonlSamplesStore: one record a line, with its .jsonl.idx
filesystem     FilesystemStore: plain files, used as an auxiliary dataset
joined         JoinedStore: several datasets side by side, by join_index_<hash>.bin
join_writer    writes a join index
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import homes, lazily

if TYPE_CHECKING:
    from headrace.stores.energon.config_file import Info, folder_kind, read_info, write_info
    from headrace.stores.energon.dataset_yaml import DatasetConfig, Reference, read_dataset
    from headrace.stores.energon.filesystem import FilesystemStore
    from headrace.stores.energon.join_writer import Join, write_join
    from headrace.stores.energon.joined import JoinColumn, JoinedStore, Nonmatch, cache_folder
    from headrace.stores.energon.jsonl import JsonlSamplesStore, write_lines
    from headrace.stores.energon.splits import SplitPart, Splits, read_splits, write_splits
    from headrace.stores.energon.sqlite_index import MediaRow, PartRow, SampleRow, SqliteIndex
    from headrace.stores.energon.sqlite_writer import SqliteWriter, update_media
    from headrace.stores.energon.store import EnergonStore

_HOMES = homes(
    {
        "headrace.stores.energon.config_file": "Info folder_kind read_info write_info",
        "headrace.stores.energon.dataset_yaml": "DatasetConfig Reference read_dataset",
        "headrace.stores.energon.filesystem": "FilesystemStore",
        "headrace.stores.energon.join_writer": "Join write_join",
        "headrace.stores.energon.joined": "JoinColumn JoinedStore Nonmatch cache_folder",
        "headrace.stores.energon.jsonl": "JsonlSamplesStore write_lines",
        "headrace.stores.energon.splits": "SplitPart Splits read_splits write_splits",
        "headrace.stores.energon.sqlite_index": "MediaRow PartRow SampleRow SqliteIndex",
        "headrace.stores.energon.sqlite_writer": "SqliteWriter update_media",
        "headrace.stores.energon.store": "EnergonStore",
    }
)

__all__ = [
    "DatasetConfig",
    "EnergonStore",
    "FilesystemStore",
    "Info",
    "Join",
    "JoinColumn",
    "JoinedStore",
    "JsonlSamplesStore",
    "MediaRow",
    "Nonmatch",
    "PartRow",
    "Reference",
    "SampleRow",
    "SplitPart",
    "Splits",
    "SqliteIndex",
    "SqliteWriter",
    "cache_folder",
    "folder_kind",
    "read_dataset",
    "read_info",
    "read_splits",
    "update_media",
    "write_info",
    "write_join",
    "write_lines",
    "write_splits",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
