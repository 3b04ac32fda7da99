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
               replace_file, remove_file         ... of a path or a URL; atomic.move_file
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

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
