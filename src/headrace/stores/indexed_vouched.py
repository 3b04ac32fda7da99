"""What a ``headrace.json`` says of an indexed shard that is being opened."""

from __future__ import annotations

import functools
from pathlib import Path

from headrace.errors import StoreError
from headrace.stores.manifest import MANIFEST_NAME, Manifest, load_manifest
from headrace.stores.manifest_output import OutputShard


def manifest_entry(prefix: str) -> OutputShard | None:
    """The entry of the manifest beside a shard; None if there is none, or it is broken (which `check` reports)."""
    path = Path(prefix).parent / MANIFEST_NAME
    try:
        status = path.stat()
        return _manifest(path.parent, status.st_mtime_ns, status.st_size).shard(Path(prefix).name)
    except (OSError, StoreError):
        return None


@functools.lru_cache(maxsize=4)
def _manifest(folder: Path, modified_ns: int, size: int) -> Manifest:
    # Time and size are there to tell one state of the file from the next.
    return load_manifest(folder)


def listed_dtype(shard: OutputShard) -> str:
    """The dtype that the manifest gives for the tokens of a shard."""
    return "/".join(key.dtype for key in shard.keys.values())


def listed_numbers(shard: OutputShard) -> str:
    """What the manifest says of a shard, in words."""
    return numbers(listed_dtype(shard), shard.documents, shard.tokens, *(file.size for file in shard.files))


def numbers(dtype: str, documents: int, tokens: int, bin_bytes: int, idx_bytes: int) -> str:
    """What a shard is, in words."""
    return f"{documents} documents, {tokens} {dtype} tokens, .bin of {bin_bytes} and .idx of {idx_bytes} bytes"
