"""The description of a written shard, which a writer returns and ``headrace.json`` lists."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from headrace.errors import ConfigError
from headrace.io import FileSum, safe_relative

Format = Literal["indexed", "keyed", "hdf5", "jsonl", "tar"]


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key of a shard.

    Attributes:
        dtype: name of the dtype of its tokens.
        tokens: number of tokens.
        ids: whether the values are ids of the vocabulary; False for masks, lengths, rewards and the like.
        mask: whether the values are a loss mask, 1 where a token is trained and 0 elsewhere; a manifest says so if a
            recipe made them.
    """

    dtype: str
    tokens: int
    ids: bool = True
    mask: bool = False


META_NAME = "meta.json"


class OutputShard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shard that was written: what a writer returns, and its entry in ``headrace.json``.

    Attributes:
        prefix: path without ``.bin`` and ``.idx``, ``.h5`` or the like, or the folder of a keyed shard; in a manifest
            relative to the manifest's folder, with ``/`` on every system.
        format: name of the layout.
        documents: number of documents, including empty ones; for a tar the number of samples.
        keys: dtype and number of tokens of each key; an indexed shard has one. For a tar the bytes of each part.
        contiguous: whether the documents lie one after another in each ``.bin``; then a store need not check this.
        files: each ``.bin``, and last the ``.idx`` or the ``meta.json``; or only the ``.h5`` or ``.jsonl``. Names are
            base names.
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
    def of(cls, written: OutputShard, folder: str | os.PathLike[str], *, key: str | None = None) -> OutputShard:
        """Return the entry of a shard that was written below the manifest's folder.

        Args:
            written: what the writer returned.
            folder: the folder of the manifest.
            key: the name of the shard's only key in the manifest; by default the writer's name of it.

        Raises:
            ConfigError: ``key`` is set, but the shard has several keys.
        """
        keys = written.keys
        if key is not None:
            if len(keys) != 1:
                raise ConfigError(f"{written.prefix}: key={key!r} names one key, but the shard has {', '.join(keys)}")
            keys = dict.fromkeys([key], *keys.values())
        prefix = Path(written.prefix).relative_to(Path(folder)).as_posix()
        return msgspec.structs.replace(written, prefix=prefix, keys=keys)

    def file_names(self) -> list[str]:
        """Return the paths of its files, relative to the manifest's folder, in the order of ``files``."""
        folder = Path(self.prefix) if self.format == "keyed" else Path(self.prefix).parent
        return [(folder / file.name).as_posix() for file in self.files]

    def faults(self) -> Iterator[str]:
        """Yield a message for each contradiction within the entry.

        Raises:
            StoreError: a name leaves the manifest's folder.
        """
        wanted = self._wanted_names(safe_relative(self.prefix).rpartition("/")[2])
        if self.format == "indexed" and len(self.keys) != 1:
            yield f"shard {self.prefix!r} must list one key, not {len(self.keys)}"
        elif not self.keys:
            yield f"shard {self.prefix!r} lists no key"
            return
        if [file.name for file in self.files] != wanted:
            yield f"shard {self.prefix!r} must list the files {' and '.join(wanted)}, in this order"
        counts = [self.documents, *(key.tokens for key in self.keys.values())]
        if min(counts) < 0:
            yield f"shard {self.prefix!r} has a negative count"
        for file in self.files:
            yield from file_faults(self.prefix, file)

    def _wanted_names(self, name: str) -> list[str]:
        """Return the base names of the files that a shard of this format and base name has, in order."""
        first = self.files[0].name if self.files else ""
        match self.format:
            case "indexed":
                return [name + ".bin", name + ".idx"]
            case "hdf5":
                return [name + (".hdf5" if first.endswith(".hdf5") else ".h5")]
            case "jsonl":
                return [name + ".jsonl"]
            case "tar":
                return [name + ".tar", name + ".tar.idx"]
            case "keyed":
                # Keys are sorted in the manifest, but the files keep the order of the shard.
                bins = {f"{key}.bin" for key in self.keys}
                listed = [file.name for file in self.files[: len(bins)]]
                return [*(listed if set(listed) == bins else sorted(bins)), META_NAME]


def file_faults(where: str, file: FileSum) -> Iterator[str]:
    """Yield a message if the number of block checksums contradicts the size of the file."""
    if file.block_bytes < 1 or len(file.xxh3_64) != -(-file.size // file.block_bytes):
        yield f"{where}: {file.name} of {file.size} bytes has {len(file.xxh3_64)} blocks"
