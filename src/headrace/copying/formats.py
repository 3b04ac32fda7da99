"""The options of a copy with their defaults, the formats that can be written, and the choice of keys and dtypes.

    indexed   <key>_document.bin, .idx    one pair per key; integers up to int64 and floats; sequences, modes
    keyed     shard_0000/                 one folder for all keys; every dtype

To support another format, add an entry to `FORMATS`. `choose_kinds` decides the keys and dtypes without I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import msgspec
import numpy as np

from headrace.copying.rows import DocumentRows
from headrace.errors import ConfigError
from headrace.stores import Dialect, Documents, KeyedWriter, OutputShard
from headrace.stores.arguments import MAIN, as_dtype
from headrace.stores.foreign_ranges import RawDtype
from headrace.stores.indexed.layout import IdxLayout, code_of
from headrace.stores.indexed.writer import SequenceFiles
from headrace.stores.keyed.layout import check_key, key_dtype
from headrace.stores.keyed.writer import MAX_DOCUMENTS
from headrace.stores.token_layouts import Opening, OpenOptions

FormatName = Literal["indexed", "keyed"]
DTypes = Mapping[str, np.dtype[Any]]


class _IndexedTarget:
    """One shard of all keys while it is written: a pair for each key, as ``IndexedDatasetBuilder`` of Megatron writes.

    Args:
        folder: the folder of the store.
        number: the number of the shard.
        count: the number of all shards.
        dtypes: the dtype of each key.
        modes: the keys whose sequences have modes.

    Attributes:
        sole_key: name of the key in a store with a single key, as programs that read the format expect it.
        sequences: whether the format keeps the sequences within documents, and their modes.
        max_documents: maximum number of documents per shard; None means no limit.
        bool_as: dtype in which truth values are stored.
    """

    sole_key = "text"
    sequences = True
    max_documents: ClassVar[int | None] = None
    bool_as = "uint8"

    @staticmethod
    def check_dtype(name: str) -> object:
        """Raise ConfigError for a dtype that the format cannot hold; the message names those that it can."""
        try:
            return code_of(name, "megatron")
        except ConfigError:
            way = {"uint32": "int32", "uint64": "int64", "float16": "float32"}.get(name)
            hint = "" if way is None else f" (--dtype {way} if all values fit, which is checked)"
            raise ConfigError(
                f"the indexed format cannot hold {name}{hint}; it can hold uint8, int8, int16, int32, int64, uint16,"
                " float32 and float64"
            ) from None

    def __init__(self, folder: Path, number: int, count: int, dtypes: DTypes, modes: frozenset[str]) -> None:
        self._files: dict[str, SequenceFiles] = {}
        self._stems = {key: f"{key}_document" + (f"_{number:05d}" if count > 1 else "") for key in dtypes}
        try:
            for key, dtype in dtypes.items():
                check_key(key)
                layout = IdxLayout(code_of(dtype, "megatron"), 0, 0, "megatron", 1 if key in modes else 0)
                self._files[key] = SequenceFiles(folder / f"{self._stems[key]}.bin", layout)
        except BaseException:
            self.discard()
            raise

    def add(self, rows: Mapping[str, DocumentRows]) -> None:
        """Append documents in the dtypes of the target; all keys have the same number of them."""
        for key, files in self._files.items():
            row = rows[key]
            files.add(row.tokens, row.sequences, row.ends + files.num_sequences, row.modes)

    def finish(self, folder: Path) -> list[OutputShard]:
        """Complete the files, and return the entries for the manifest in this folder."""
        found = []
        for key, files in self._files.items():
            written = files.finish(folder / f"{self._stems[key]}.idx")
            found.append(OutputShard.of(written, folder, key=key))
        return found

    def discard(self) -> None:
        """Remove incomplete files."""
        for files in self._files.values():
            files.discard()


class _KeyedTarget:
    """The same in the keyed format: a folder with a ``meta.json``. Sequences within documents are not kept."""

    sole_key = "sequence"
    sequences = False
    max_documents: ClassVar[int | None] = MAX_DOCUMENTS
    bool_as = "bool"

    @staticmethod
    def check_dtype(name: str) -> object:
        return key_dtype(name)

    def __init__(self, folder: Path, number: int, count: int, dtypes: DTypes, modes: frozenset[str]) -> None:
        self._writer = KeyedWriter(folder / f"shard_{number:04d}", dtypes=dtypes)

    def add(self, rows: Mapping[str, DocumentRows]) -> None:
        tokens = {key: row.tokens for key, row in rows.items()}
        self._writer.add_documents(tokens, {key: row.lengths for key, row in rows.items()})

    def finish(self, folder: Path) -> list[OutputShard]:
        return [OutputShard.of(self._writer.finish(), folder)]

    def discard(self) -> None:
        self._writer.discard()


Target = _IndexedTarget | _KeyedTarget
FORMATS: Final[dict[FormatName, type[_IndexedTarget] | type[_KeyedTarget]]] = {
    "indexed": _IndexedTarget,
    "keyed": _KeyedTarget,
}

SortBy = Literal["given", "name", "natural"]
Shards = int | Literal["single", "source"]


class CopyOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `merge`, `convert` and `split`.

    Raises:
        ConfigError: a value is invalid.

    Example:
        >>> options = headrace.copying.CopyOptions(dtype="int32", shards="single")
        >>> headrace.convert("stores/web", "stores/wide", format="keyed", options=options).keys
        {'sequence': 'int32'}
    """

    format: FormatName | None = None
    """Format of the result; None keeps that of the sources, which must then be the same."""

    dtype: str | Mapping[str, str] | None = None
    """Dtype of the tokens on disk: one for all keys of integers wider than a byte, or one by key. None keeps the dtypes
    of the sources. Values that do not fit are an error."""

    shards: Shards | None = None
    """``"single"`` writes one shard, ``"source"`` keeps the shards of the sources, and a number is the maximum of
    tokens per shard, summed over all keys. With None, `convert` keeps the shards and the other tools write one."""

    dialect: Dialect | None = None
    """Program that wrote pairs, as for `headrace.open`."""

    documents: Documents = "indices"
    """What a document of a pair is, as for `headrace.open`."""

    bin_dtype: RawDtype | None = None
    """Dtype of a ``.bin`` without a ``.idx`` and without a header; as ``dtype`` of `headrace.open`."""

    eod: int | None = None
    """The id with which each document of a ``.bin`` without a ``.idx`` ends, as for `headrace.open`."""

    bos: int | None = None
    """The id with which each document of such a file begins."""

    allow_different_tokenizers: bool = False
    """Merge stores whose manifests name different tokenisers; the result then names no tokeniser."""

    drop_modes: bool = False
    """Leave out the modes of multimodal sequences if the format cannot hold them, or not all sources have them."""

    overwrite: bool = False
    """Replace existing stores once the new ones are complete."""

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise ConfigError(f"format={self.format!r} is unknown; the formats are {', '.join(map(repr, FORMATS))}")
        is_number = isinstance(self.shards, int) and not isinstance(self.shards, bool) and self.shards >= 1
        if self.shards not in (None, "single", "source") and not is_number:
            raise ConfigError(
                f"shards={self.shards!r}: allowed are 'single', 'source', or a number of tokens, at least 1"
            )
        Opening(**self.opening)  # refuses unknown values

    @property
    def opening(self) -> OpenOptions:
        """The options with which the sources are opened."""
        return OpenOptions(
            dialect=self.dialect, documents=self.documents, dtype=self.bin_dtype, eod=self.eod, bos=self.bos
        )


GENERIC = frozenset({MAIN, "text", "sequence"})
"""Names that mean only that a store has a single key; each format has its own."""

Kinds = Sequence[Mapping[str, np.dtype[Any]]]


class CopyKinds(msgspec.Struct, frozen=True, kw_only=True):
    """What is written: the format, the dtype of each key, and the name of each key in each source."""

    format: FormatName
    dtypes: dict[str, str]
    names: tuple[dict[str, str], ...]
    """For each source, its names of the keys of the copy."""

    warnings: tuple[str, ...]


def choose_kinds(paths: Sequence[str], formats: Sequence[str], kinds: Kinds, options: CopyOptions) -> CopyKinds:
    """Choose format, keys and dtypes from what the sources hold and what the options ask for.

    Args:
        paths: paths of the sources, for messages.
        formats: format of each source, ``"indexed"`` for every dialect of pairs.
        kinds: for each source the dtype of each key.
        options: the options of the copy.

    Raises:
        ConfigError: the sources do not fit together, or the format cannot hold them.
    """
    chosen = _format(paths, formats, options)
    names = _names(paths, kinds, chosen)
    target = FORMATS[chosen]
    dtypes: dict[str, str] = {}
    warnings = []
    for key in names[0]:
        found = [of[called[key]] for of, called in zip(kinds, names, strict=True)]
        wanted = _asked(key, found, list(names[0]), options)
        if wanted is None:
            different = next((number for number, dtype in enumerate(found) if dtype != found[0]), None)
            if different is not None:
                raise ConfigError(
                    f"key {key!r}: {paths[0]} has {found[0].name}, {paths[different]} has {found[different].name}:"
                    " choose one with --dtype"
                )
            wanted = found[0]
            if wanted.kind == "b" and target.bool_as != "bool":
                wanted = np.dtype(target.bool_as)
                warnings.append(f"key {key!r}: truth values are stored as {target.bool_as}, 0 and 1")
        for path, dtype in zip(paths, found, strict=True):
            if (dtype.kind == "f") != (wanted.kind == "f"):
                raise ConfigError(f"key {key!r}: {path} has {dtype.name}, which cannot become {wanted.name}")
        try:
            target.check_dtype(wanted.name)
        except ConfigError as error:
            raise ConfigError(f"{paths[0]}: key {key!r}: {error}") from error
        dtypes[key] = wanted.name
    return CopyKinds(format=chosen, dtypes=dtypes, names=tuple(names), warnings=tuple(warnings))


def _format(paths: Sequence[str], formats: Sequence[str], options: CopyOptions) -> FormatName:
    if options.format is not None:
        return options.format
    for path, found in zip(paths, formats, strict=True):
        if found != formats[0]:
            raise ConfigError(
                f"{paths[0]} is {formats[0]}, {path} is {found}: choose the format of the result with --format"
                f" {' or '.join(FORMATS)}"
            )
    for name in FORMATS:
        if name == formats[0]:
            return name
    raise ConfigError(
        f"{paths[0]} is {formats[0]}, which can be read but not written: choose --format {' or '.join(FORMATS)}"
    )


def _names(paths: Sequence[str], kinds: Kinds, chosen: FormatName) -> list[dict[str, str]]:
    """Return for each source its names of the keys of the copy, in the order of the first source."""
    if all(len(of) == 1 for of in kinds):
        own = dict.fromkeys(name for of in kinds for name in of if name not in GENERIC)
        if len(own) > 1:
            raise ConfigError(
                f"the sources have different keys, {', '.join(map(repr, own))}; only equal keys can be merged"
            )
        key = next(iter(own), FORMATS[chosen].sole_key)
        return [{key: name} for of in kinds for name in of]
    for path, of in zip(paths, kinds, strict=True):
        if set(of) != set(kinds[0]):
            raise ConfigError(
                f"{paths[0]} has the keys {', '.join(map(repr, kinds[0]))}, {path} has {', '.join(map(repr, of))};"
                " stores are merged key by key"
            )
    return [{key: key for key in kinds[0]} for _ in kinds]


def _asked(key: str, found: Sequence[np.dtype[Any]], keys: Sequence[str], options: CopyOptions) -> np.dtype[Any] | None:
    asked = options.dtype
    if asked is None:
        return None
    if isinstance(asked, str):
        is_meant = len(keys) == 1 or all(dtype.kind in "iu" and dtype.itemsize > 1 for dtype in found)
        return _dtype(asked) if is_meant else None
    for name in asked:
        if name not in keys:
            raise ConfigError(
                f"a dtype is given for the key {name!r}, which does not exist; the keys are {', '.join(keys)}"
            )
    return _dtype(asked[key]) if key in asked else None


def _dtype(name: str) -> np.dtype[Any]:
    dtype = as_dtype(name)
    if dtype.kind not in "biuf":
        raise ConfigError(f"dtype={name!r} is not a dtype of numbers")
    return dtype.newbyteorder("<")
