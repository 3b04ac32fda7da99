"""The block cache of a node: blocks of files that are far away, kept on a local disk for all its processes and runs.

    Cache("/nvme/headrace", limit="2TB").reader("pread") --> a reader that reads ranges through it
        ranges of a file --> blocks --> BlockStore: on the disk -------------> bytes
                                           |  not there: claim
                                           +-- kept: one process fetches the block, the others wait
                                           +-- not kept: only the ranges are fetched

What is read in a full order stays, the first blocks that come; what is read block by block makes room for what follows;
and what no living process reads makes room for all others.
`BlockStore` is the folder: files of blocks, and an index of them that survives kills and torn writes. `CacheProcess` is
what one process has of it: its connection, its lock and its open files.

May import: io, config, errors.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
