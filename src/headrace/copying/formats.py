"""The formats that can be written: what each holds, what its shards are called, and its writer behind one face.

    indexed   <key>_document.bin, .idx    one pair a key; integers up to int64 and floats; sequences, modes
    keyed     shard_0000/                 one folder for all keys; every dtype

Another format is one more entry of `FORMATS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

from headrace.copying.rows import Rows
from headrace.errors import ConfigError
from headrace.stores import KeyedWriter, OutputShard
from headrace.stores.indexed.layout import Layout, code_of
from headrace.stores.indexed.writer import SequenceFiles
from headrace.stores.keyed.layout import check_key, key_dtype
from headrace.stores.keyed.writer import MAX_DOCUMENTS

FormatName = Literal["indexed", "keyed"]
DTypes = Mapping[str, np.dtype[Any]]


class Target(ABC):
    """One shard of all keys that is being written."""

    @abstractmethod
    def add(self, rows: Mapping[str, Rows]) -> None:
        """Append documents, which every key has the same number of, in the dtypes of the target."""

    @abstractmethod
    def finish(self, folder: Path) -> list[OutputShard]:
        """Complete the files; what the manifest in this folder says of them."""

    @abstractmethod
    def discard(self) -> None:
        """Remove what is not complete."""


class TargetFormat(msgspec.Struct, frozen=True, kw_only=True):
    """What can be written in a format.

    Attributes:
        sole_key: what a key that is alone is called, as the programs that read the format expect.
        sequences: whether it keeps the sequences within documents, and their modes.
        check_dtype: raises ConfigError for a dtype that it cannot hold; the message says which ones it has.
        max_documents: of a shard; None: any number.
        bool_as: the dtype that truth values are stored in.
        open: makes a target in a folder: its number, how many there are, dtypes by key, and the keys with modes.
    """

    sole_key: str
    sequences: bool
    check_dtype: Callable[[str], object]
    max_documents: int | None
    bool_as: str
    open: Callable[[Path, int, int, DTypes, frozenset[str]], Target]


class _IndexedTarget(Target):
    """A pair for each key, byte for byte as Megatron's ``IndexedDatasetBuilder``."""

    def __init__(self, folder: Path, number: int, count: int, dtypes: DTypes, modes: frozenset[str]) -> None:
        self._files: dict[str, SequenceFiles] = {}
        self._stems = {key: f"{key}_document" + (f"_{number:05d}" if count > 1 else "") for key in dtypes}
        try:
            for key, dtype in dtypes.items():
                check_key(key)
                layout = Layout(code_of(dtype, "megatron"), 0, 0, "megatron", 1 if key in modes else 0)
                self._files[key] = SequenceFiles(folder / f"{self._stems[key]}.bin", layout)
        except BaseException:
            self.discard()
            raise

    def add(self, rows: Mapping[str, Rows]) -> None:
        for key, files in self._files.items():
            row = rows[key]
            files.add(row.tokens, row.sequences, row.ends + files.num_sequences, row.modes)

    def finish(self, folder: Path) -> list[OutputShard]:
        found = []
        for key, files in self._files.items():
            written = files.finish(folder / f"{self._stems[key]}.idx")
            found.append(OutputShard.of(written, folder, key=key))
        return found

    def discard(self) -> None:
        for files in self._files.values():
            files.discard()


class _KeyedTarget(Target):
    """A folder with ``meta.json``; a document is one run of values."""

    def __init__(self, folder: Path, number: int, count: int, dtypes: DTypes, modes: frozenset[str]) -> None:
        self._writer = KeyedWriter(folder / f"shard_{number:04d}", dtypes=dtypes)

    def add(self, rows: Mapping[str, Rows]) -> None:
        tokens = {key: row.tokens for key, row in rows.items()}
        self._writer.add_documents(tokens, {key: row.lengths for key, row in rows.items()})

    def finish(self, folder: Path) -> list[OutputShard]:
        return [OutputShard.of(self._writer.finish(), folder)]

    def discard(self) -> None:
        self._writer.discard()


def _check_indexed_dtype(name: str) -> None:
    try:
        code_of(name, "megatron")
    except ConfigError:
        way = {"uint32": "int32", "uint64": "int64", "float16": "float32"}.get(name)
        hint = "" if way is None else f" (--dtype {way} if all values fit, which is checked)"
        raise ConfigError(
            f"the indexed format cannot hold {name}{hint}; it has uint8, int8, int16, int32, int64, uint16, float32 and"
            " float64"
        ) from None


FORMATS: Final[dict[FormatName, TargetFormat]] = {
    "indexed": TargetFormat(
        sole_key="text",
        sequences=True,
        check_dtype=_check_indexed_dtype,
        max_documents=None,
        bool_as="uint8",
        open=_IndexedTarget,
    ),
    "keyed": TargetFormat(
        sole_key="sequence",
        sequences=False,
        check_dtype=key_dtype,
        max_documents=MAX_DOCUMENTS,
        bool_as="bool",
        open=_KeyedTarget,
    ),
}
