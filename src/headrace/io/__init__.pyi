from headrace.io.atomic import (
    AtomicFile as AtomicFile,
    as_read_back as as_read_back,
    atomic_write as atomic_write,
    claim_folder as claim_folder,
    commit as commit,
    json_bytes as json_bytes,
    output_errors as output_errors,
    remove_file as remove_file,
    replace_file as replace_file,
    sync as sync,
    sync_folder as sync_folder,
    temporary_path as temporary_path,
    write_all as write_all,
    write_json_file as write_json_file,
)
from headrace.io.checksum import (
    BLOCK_BYTES as BLOCK_BYTES,
    FileHasher as FileHasher,
    FileSum as FileSum,
    file_digest as file_digest,
    file_sum as file_sum,
    hash_bytes as hash_bytes,
)
from headrace.io.kept import map_npy as map_npy
from headrace.io.objects import FetchPolicy as FetchPolicy, FetchStats as FetchStats, ObjectReader as ObjectReader
from headrace.io.once import create_once as create_once, read_once as read_once, unique_name as unique_name
from headrace.io.paths import (
    cache_folder as cache_folder,
    check_kind as check_kind,
    expand_braces as expand_braces,
    holds as holds,
    natural_key as natural_key,
    parse_size as parse_size,
    read_small as read_small,
    safe_relative as safe_relative,
)
from headrace.io.places import (
    SCHEMES as SCHEMES,
    AnyPath as AnyPath,
    ReadCache as ReadCache,
    can_list as can_list,
    check_local as check_local,
    check_new as check_new,
    check_readable as check_readable,
    check_storage as check_storage,
    folder_of as folder_of,
    is_url as is_url,
    local_file as local_file,
    path_at as path_at,
    path_in as path_in,
    read_whole as read_whole,
    reader_at as reader_at,
    reader_of as reader_of,
    walk as walk,
)
from headrace.io.readers import (
    OPEN_FILES as OPEN_FILES,
    FilePool as FilePool,
    MmapReader as MmapReader,
    PreadReader as PreadReader,
    Reader as Reader,
    ReadFailure as ReadFailure,
    RetryPolicy as RetryPolicy,
    may_pass as may_pass,
    reader as reader,
)
from headrace.io.remote import RemotePath as RemotePath
from headrace.io.storage import Storage as Storage
