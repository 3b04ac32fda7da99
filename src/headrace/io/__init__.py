"""Paths and bytes: file names in a defined order, ranged reads, atomic writes and checksums.

    names      natural_key, expand_braces        the same order of files on every machine
    places     place, is_url, walk, reader_at    a path, or a URL, with methods; the reader for it
    finding    finding.expand, names_below       the names that a user gives -> the files that are meant
    schemes    check_local, check_readable       refuse s3://... where only local paths can be used, and other schemes
               check_storage                     ... and a storage where all paths are local
    objects    ObjectReader, Storage             reads s3://, gs://, az:// and http:// in place; loaded when used
               objects.writer.ObjectWriter       writes objects, whole or not at all
    small      read_small, check_kind            a file that is read whole; refuses FIFOs, devices and huge files
    caches     cache_folder, kept                small files, and ends of files, that are kept whole, with their digests
               Reader.cache                      ... and blocks of large files: those of a `headrace.Cache`
    reading    reader("mmap" | "pread")          path, offsets, lengths -> bytes; at most 256 files open at once
    writing    AtomicFile, commit, atomic_write  a file appears whole or not at all, with its checksum
               create_once, read_once            of several processes that create a file, one succeeds
               write_json_file                   a JSON document that people may read
               replace_file, remove_file         ... of a path or a URL; replacing.move_file
    retrying   RetryPolicy, may_pass             reads that fail for a moment are tried again
    sizes      parse_size                        "500MB" as a number of bytes
    folders    claim_folder                      one process at a time works in a folder
    mapping    map_npy                           maps arrays of .npy files that may be damaged
    checking   FileHasher, file_sum, FileSum     xxh3_128 of a file, xxh3_64 of each of its 16 MiB blocks

What is read of remote files is kept in one of two caches. `kept`, in the user's cache folder, has what a run needs to
begin: whole small files, such as indexes and manifests, and the ends of others, by which these are known. A
`headrace.Cache`, in a folder and of a size that the user names, has blocks of what is read all along.

This package knows nothing about documents or tokens. It imports only ``headrace.errors``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import homes, lazily
from headrace.io.atomic import (
    AtomicFile,
    as_read_back,
    atomic_write,
    claim_folder,
    commit,
    json_bytes,
    output_errors,
    sync_folder,
    temporary_path,
    write_all,
    write_json_file,
)
from headrace.io.checksum import BLOCK_BYTES, FileHasher, FileSum, file_digest, file_sum, hash_bytes
from headrace.io.paths import cache_folder, check_kind, expand_braces, holds, natural_key, read_small, safe_relative
from headrace.io.places import (
    SCHEMES,
    AnyPath,
    ReadCache,
    can_list,
    check_local,
    check_new,
    check_readable,
    check_storage,
    etag_of,
    folder_of,
    is_url,
    local_file,
    path_at,
    path_in,
    read_whole,
    reader_at,
    reader_of,
    walk,
)
from headrace.io.readers import (
    OPEN_FILES,
    FilePool,
    MmapReader,
    PreadReader,
    Reader,
    ReadFailure,
    RetryPolicy,
    may_pass,
    reader,
)

if TYPE_CHECKING:
    from headrace.io.npy import map_npy
    from headrace.io.objects import FetchPolicy, FetchStats, ObjectReader
    from headrace.io.once import create_once, read_once, unique_name
    from headrace.io.remote import RemotePath
    from headrace.io.replacing import remove_file, replace_file
    from headrace.io.sizes import parse_size
    from headrace.io.storage import Storage

_HOMES = homes(
    {
        "headrace.io.npy": "map_npy",
        "headrace.io.objects": "FetchPolicy FetchStats ObjectReader",
        "headrace.io.once": "create_once read_once unique_name",
        "headrace.io.remote": "RemotePath",
        "headrace.io.replacing": "remove_file replace_file",
        "headrace.io.sizes": "parse_size",
        "headrace.io.storage": "Storage",
    }
)

__all__ = [
    "BLOCK_BYTES",
    "OPEN_FILES",
    "SCHEMES",
    "AnyPath",
    "AtomicFile",
    "FetchPolicy",
    "FetchStats",
    "FileHasher",
    "FilePool",
    "FileSum",
    "MmapReader",
    "ObjectReader",
    "PreadReader",
    "ReadCache",
    "ReadFailure",
    "Reader",
    "RemotePath",
    "RetryPolicy",
    "Storage",
    "as_read_back",
    "atomic_write",
    "cache_folder",
    "can_list",
    "check_kind",
    "check_local",
    "check_new",
    "check_readable",
    "check_storage",
    "claim_folder",
    "commit",
    "create_once",
    "etag_of",
    "expand_braces",
    "file_digest",
    "file_sum",
    "folder_of",
    "hash_bytes",
    "holds",
    "is_url",
    "json_bytes",
    "local_file",
    "map_npy",
    "may_pass",
    "natural_key",
    "output_errors",
    "parse_size",
    "path_at",
    "path_in",
    "read_once",
    "read_small",
    "read_whole",
    "reader",
    "reader_at",
    "reader_of",
    "remove_file",
    "replace_file",
    "safe_relative",
    "sync_folder",
    "temporary_path",
    "unique_name",
    "walk",
    "write_all",
    "write_json_file",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
