from headrace.stores.energon.config_file import (
    Info as Info,
    folder_kind as folder_kind,
    read_info as read_info,
    write_info as write_info,
)
from headrace.stores.energon.dataset_yaml import (
    DatasetConfig as DatasetConfig,
    Reference as Reference,
    read_dataset as read_dataset,
)
from headrace.stores.energon.filesystem import FilesystemStore as FilesystemStore
from headrace.stores.energon.join_writer import Join as Join, write_join as write_join
from headrace.stores.energon.joined import (
    JoinColumn as JoinColumn,
    JoinedStore as JoinedStore,
    Nonmatch as Nonmatch,
    cache_folder as cache_folder,
)
from headrace.stores.energon.jsonl import JsonlSamplesStore as JsonlSamplesStore, write_lines as write_lines
from headrace.stores.energon.splits import (
    SplitPart as SplitPart,
    Splits as Splits,
    read_splits as read_splits,
    write_splits as write_splits,
)
from headrace.stores.energon.sqlite_index import (
    MediaRow as MediaRow,
    PartRow as PartRow,
    SampleRow as SampleRow,
    SqliteIndex as SqliteIndex,
)
from headrace.stores.energon.sqlite_writer import SqliteWriter as SqliteWriter, update_media as update_media
from headrace.stores.energon.store import EnergonStore as EnergonStore
