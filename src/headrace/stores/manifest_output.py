"""The entry of one shard in ``headrace.json``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from headrace.errors import ConfigError
from headrace.io import FileSum, safe_relative
from headrace.stores.written import Format, KeyInfo, WrittenShard

META_NAME = "meta.json"


class OutputShard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One shard.

    Attributes:
        prefix: path without extension, of a keyed shard its folder; relative to the manifest's folder, with ``/`` on
            every system.
        format: name of the layout.
        documents: number of documents, empty ones included; of a tar its samples.
        keys: dtype and number of tokens of each key; an indexed shard has one. Of a tar the bytes of each part.
        contiguous: the documents lie one after another in each ``.bin``; a store then need not look.
        files: each ``.bin``, and last the ``.idx`` or the ``meta.json``; or the ``.h5`` or ``.jsonl`` alone; by base
            name.
    """

    prefix: str
    format: Format = "indexed"
    documents: int
    keys: dict[str, KeyInfo]
    contiguous: bool
    files: tuple[FileSum, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all keys."""
        return sum(key.tokens for key in self.keys.values())

    @classmethod
    def of(cls, written: WrittenShard, folder: str | os.PathLike[str], *, key: str | None = None) -> OutputShard:
        """The entry of a shard that was just written below the manifest's folder.

        Args:
            written: what the writer returned.
            folder: where the manifest lies.
            key: what the one key of the shard is called in the manifest; by default as the writer calls it.

        Raises:
            ConfigError: a new name, but several keys.
        """
        keys = written.keys
        if key is not None:
            if len(keys) != 1:
                raise ConfigError(f"{written.prefix}: key={key!r} names one key, the shard has {', '.join(keys)}")
            keys = dict.fromkeys([key], *keys.values())
        return cls(
            prefix=Path(written.prefix).relative_to(Path(folder)).as_posix(),
            format=written.format,
            documents=written.num_documents,
            keys=keys,
            contiguous=written.contiguous,
            files=written.files,
        )

    def faults(self) -> Iterator[str]:
        """What does not add up within the entry, in words.

        Raises:
            StoreError: a name that leaves the manifest's folder.
        """
        name = safe_relative(self.prefix).rpartition("/")[2]
        if self.format == "indexed":
            if len(self.keys) != 1:
                yield f"shard {self.prefix!r} must list one key, not {len(self.keys)}"
            wanted = [name + ".bin", name + ".idx"]
        elif not self.keys:
            yield f"shard {self.prefix!r} lists no key"
            return
        elif self.format == "hdf5":
            wanted = [name + (".hdf5" if self.files and self.files[0].name.endswith(".hdf5") else ".h5")]
        elif self.format == "jsonl":
            wanted = [name + ".jsonl"]
        elif self.format == "tar":
            wanted = [name + ".tar", name + ".tar.idx"]
        else:
            # Keys are sorted in the file, the files are in the order of the shard.
            bins = {f"{key}.bin" for key in self.keys}
            listed = [file.name for file in self.files[: len(bins)]]
            wanted = [*(listed if set(listed) == bins else sorted(bins)), META_NAME]
        if [file.name for file in self.files] != wanted:
            yield f"shard {self.prefix!r} must list the files {' and '.join(wanted)}, in this order"
        counts = [self.documents, *(key.tokens for key in self.keys.values())]
        if min(counts) < 0:
            yield f"shard {self.prefix!r} has a negative count"
        for file in self.files:
            yield from file_faults(self.prefix, file)


def file_faults(where: str, file: FileSum) -> Iterator[str]:
    """What does not add up within the sums of one file."""
    if file.block_bytes < 1 or len(file.xxh3_64) != -(-file.size // file.block_bytes):
        yield f"{where}: {file.name} of {file.size} bytes has {len(file.xxh3_64)} blocks"
