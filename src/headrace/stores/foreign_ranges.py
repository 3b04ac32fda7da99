"""Formats of other programs whose values are ranges of bytes, which are read without a library.

    Hdf5Store    a .h5 of AstrAI up to 1.3.11: a group for each key, with a dataset for each document, or one for many
    RawStore     a .bin of nanoGPT or llm.c: tokens and nothing else, or tokens behind a header

`foreign_format` names data of other programs that cannot be opened as they are, for the errors of those who try it.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec
import numpy as np

from headrace.config import check_choice, whole
from headrace.errors import ConfigError, StoreAwayError, StoreError, load_extra
from headrace.io import AnyPath, Reader, local_file, natural_key, path_at, read_small
from headrace.stores.arguments import prefix_sums, read_only
from headrace.stores.foreign import ForeignStore, FoundColumns, KeyParts
from headrace.stores.keyed.layout import DTYPE_NAMES
from headrace.stores.segmented import RangesStore, cut_at_bounds, tokens_at
from headrace.stores.store import MAIN, IntArray, Problem, TokenArray
from headrace.stores.written import OutputShard


class _PartsStore(RangesStore, ForeignStore):
    """A file in which each part is a range of bytes; ``places`` are the bytes where the parts of each key begin."""

    def gather(self, begins: IntArray, length: int) -> TokenArray:
        """Return (len(begins), length) values of the main key in a new array, with one call of the reader."""
        if self._range_of(self._keys[0]) is not None:
            return super().gather(begins, length)
        checked = self._checked_begins(begins, length)
        return self._read_parts(checked, length, self._keys[0]).reshape(len(checked), length)

    def _range_of(self, key: str) -> tuple[str, int] | None:
        parts = self._found.columns[key].parts
        if not parts[-1]:
            return self.file, 0
        first = int(np.searchsorted(parts, 0, side="right")) - 1
        return (self.file, int(self._found.places[key][first])) if parts[first + 1] == parts[-1] else None

    def _part(self, key: str, part: int, first: int, count: int) -> TokenArray:
        dtype = self._dtypes[key]
        offset = int(self._found.places[key][part]) + first * dtype.itemsize
        return tokens_at(self._reader, self.file, dtype, offset, count * dtype.itemsize)

    def _read(self, begin: int, end: int, key: str) -> TokenArray:
        parts = self._found.columns[key].parts
        part = int(np.searchsorted(parts, begin, side="right")) - 1
        if end > parts[part + 1]:
            return read_only(self._read_parts(np.array([begin]), end - begin, key))
        return self._part(key, part, begin - int(parts[part]), end - begin)

    def _read_parts(self, begins: IntArray, length: int, key: str) -> TokenArray:
        item = self._dtypes[key].itemsize
        cuts = cut_at_bounds(self._found.columns[key].parts, begins, length)
        offsets = self._found.places[key][cuts.parts] + cuts.firsts * item
        return self._reader.read_ranges(self.file, offsets, cuts.lengths * item).view(self._dtypes[key])


DatasetOrder = Literal["number", "name"]


class Hdf5Store(_PartsStore):
    """A ``.h5`` file of AstrAI's layout, in which a document is a dataset of a key.

        /<key>/              a group for each key; HDF5 sorts them by name
        /<key>/data_<i>      1-D, contiguous, no filters, no attributes: the values of one document, or of many

    Every dataset is one range of bytes of the file. So h5py is only used when the file is opened, at about 40 us a
    dataset, to find where each dataset begins. Values are then read as from any other file, by mapping or ``preadv``.

    Source: AstrAI 1.3.7 to 1.3.11, ``save_h5`` and ``load_h5``. The page ``docs/formats/hdf5.md`` lists what is
    refused.

    Args:
        path: the file.
        key: the main key; None for the default.
        using: ``"mmap"`` or ``"pread"``, or a `Reader`.
        order: order of the datasets: ``"number"``, with data_2 before data_10, or ``"name"``, with data_10 before
            data_2, as AstrAI read files with more than ten datasets.
        vouched: the file's entry in a manifest.

    Example:
        >>> arrays = {"sequence": [np.array([5]), np.array([6, 7])]}
        >>> shard = headrace.stores.write_hdf5("pair.h5", arrays)
        >>> headrace.stores.Hdf5Store("pair.h5").document(1).tolist()
        [6, 7]
    """

    format = "hdf5"
    suffixes = (".h5", ".hdf5")

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key: str | None = None,
        using: str | Reader = "mmap",
        order: DatasetOrder = "number",
        vouched: OutputShard | None = None,
    ) -> None:
        check_choice("order", order, get_args(DatasetOrder))
        self._order: DatasetOrder = order
        super().__init__(path, key=key, using=using, vouched=vouched)

    def can_be(self, key: str, dtype: np.dtype[Any]) -> bool:
        """Return True for the key's own dtype, and for any dtype if the key has no datasets."""
        return self._dtypes[key] == dtype or not self._num_documents(key)

    @property
    def opening(self) -> dict[str, Any]:
        """The order, if it is not the usual one."""
        return {} if self._order == "number" else {"dataset_order": self._order}

    def _arguments(self) -> dict[str, Any]:
        return {"order": self._order}

    def _gaps(self, key: str) -> Iterator[Problem]:
        names = self._names[key]
        numbers = [name.removeprefix("data_") for name in names]
        if all(number.isdecimal() and number.isascii() for number in numbers):
            found = set(map(int, numbers))
            for number in [number for number in range(len(found)) if number not in found][:1]:
                message = f"data_{number} is missing among {len(names)} datasets"
                yield Problem(path=self.file, place=f"/{key}", message=message)

    def _find(self) -> FoundColumns:
        h5py = load_h5py(self.file)
        file_bytes = self._reader.size(self.file)
        self._names: dict[str, list[str]] = {}
        columns: dict[str, KeyParts] = {}
        places: dict[str, IntArray] = {}
        try:
            with h5py.File(local_file(self._reader.path_at(self.file)), "r", locking=False) as file:
                for key in [name.decode() for name in file.id]:
                    columns[key], places[key] = self._datasets(h5py, self._child(h5py, file.id, key, "/"), key)
        except (OSError, RuntimeError, KeyError, UnicodeDecodeError) as error:
            raise StoreError(f"{self.file}: not a complete HDF5 file: {error}") from error
        if not columns:
            raise StoreError(
                f"{self.file}: has no key; a store has a group for each key, with datasets data_0, data_1, ..."
            )
        for key, column in columns.items():
            num_bytes = np.diff(column.parts) * column.dtype.itemsize
            outside = np.flatnonzero(places[key] > file_bytes - num_bytes)
            if len(outside):
                at = int(outside[0])
                raise StoreError(
                    f"{self.file}: /{key}/{self._names[key][at]}: {num_bytes[at]} bytes from byte {places[key][at]} on"
                    f" are expected, but the file has only {file_bytes} bytes: it was cut short"
                )
        return FoundColumns(columns, places)

    def _child(self, h5py: Any, parent: Any, name: str, where: str) -> Any:
        """Open the object of a name in its group. Links are not followed, as they could name any file."""
        if parent.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
            raise StoreError(f"{self.file}: {where}{name} is a link; only objects in the file itself are read")
        return h5py.h5o.open(parent, name.encode())

    def _datasets(self, h5py: Any, group: Any, key: str) -> tuple[KeyParts, IntArray]:
        """Return the column of a key, and the byte of the file where each of its datasets begins, (n,) int64."""
        if not isinstance(group, h5py.h5g.GroupID):
            raise StoreError(
                f"{self.file}: /{key} is a dataset; a key is a group, with its values in /{key}/data_0, data_1, ..."
            )
        names = sorted((name.decode() for name in group), key=None if self._order == "name" else natural_key)
        dtype: np.dtype[Any] | None = None
        offsets = np.zeros(len(names), np.int64)
        lengths = []
        for at, name in enumerate(names):
            where = f"{self.file}: /{key}/{name}"
            dataset = self._child(h5py, group, name, f"/{key}/")
            if not isinstance(dataset, h5py.h5d.DatasetID):
                raise StoreError(f"{where} is a group; a key may hold only datasets")
            if len(dataset.shape or ()) != 1:
                raise StoreError(f"{where} has the shape {dataset.shape}; a document must be one-dimensional")
            if dtype is None:
                dtype = _hdf5_dtype(where, dataset.dtype)
            if dataset.dtype != dtype:
                raise StoreError(
                    f"{where} is of {dataset.dtype}, but the datasets before it are of {dtype}; a key must have one"
                    " dtype"
                )
            lengths.append(dataset.shape[0])
            offset = dataset.get_offset()
            if offset is None and lengths[-1]:
                raise StoreError(
                    f"{where} is chunked, compressed, external or was never written; only contiguous values can be"
                    " read: convert the file with h5repack --layout CONTI --filter NONE"
                )
            offsets[at] = offset or 0
        self._names[key] = names
        bounds = prefix_sums(lengths)
        return KeyParts(np.dtype(np.int64) if dtype is None else dtype, bounds, bounds), offsets


def _hdf5_dtype(where: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.name not in DTYPE_NAMES or dtype.newbyteorder("<") != dtype:
        raise StoreError(f"{where} is of {dtype.str}; allowed are {', '.join(DTYPE_NAMES)}, little-endian")
    return dtype


def load_h5py(path: str) -> Any:
    """Import h5py and return it.

    Raises:
        MissingExtraError: h5py is not installed; the message names the file that needs it.
    """
    return load_extra("h5py", f"{path}: HDF5 needs h5py: pip install 'headrace[hdf5]'")


RawDtype = Literal["uint16", "uint32"]
_DTYPES: Final = get_args(RawDtype)
_HEADER_BYTES: Final = 1024
_HEADERS: Final[dict[int, tuple[int, RawDtype]]] = {20240520: (1, "uint16"), 20240801: (7, "uint32")}
"""Version and dtype of llm.c's files by their magic number. A header is 256 int32: magic, version, number of tokens."""
_TOKENS_AT_ONCE: Final = 1 << 22


class RawStore(_PartsStore):
    """A ``.bin`` of tokens and nothing else, as nanoGPT writes it, or behind the header of llm.c. It has one key.

    A header says which dtype the tokens have. Nothing says where documents end, unless an id of the vocabulary does;
    finding it takes one pass over the file, whose result is kept for files of 8 MiB or more.

    Args:
        path: the file.
        key: ``"tokens"``, the only key.
        using: ``"mmap"`` or ``"pread"``, or a `Reader`.
        dtype: the dtype of the tokens; needed if there is no header.
        eod: the id with which each document ends, as in what nanoGPT's scripts write.
        bos: the id with which each document begins, as in what llm.c's scripts write. Without ``eod`` and ``bos`` all
            tokens are one document.

    Raises:
        StoreError: the file is missing; it does not have the size that its header or the dtype demands; or it holds
            neither ``eod`` nor ``bos``.
        ConfigError: there is no header, and no dtype is given, or the header has another; or ``eod`` or ``bos`` is no
            id of the dtype, or both are given.
    """

    format = "raw"
    suffixes = (".bin",)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key: str | None = None,
        using: str | Reader = "mmap",
        dtype: RawDtype | None = None,
        eod: int | None = None,
        bos: int | None = None,
    ) -> None:
        if dtype is not None:
            check_choice("dtype", dtype, _DTYPES)
        self._asked: dict[str, Any] = {"dtype": dtype, "eod": eod, "bos": bos}
        if eod is not None or bos is not None:
            self._kept_as = f"raw tokens {self._asked}"
        super().__init__(path, key=key, using=using)

    @property
    def opening(self) -> dict[str, Any]:
        """Those of ``dtype``, ``eod`` and ``bos`` that are given."""
        return {name: value for name, value in self._asked.items() if value is not None}

    def _arguments(self) -> dict[str, Any]:
        return self.opening

    def _range_of(self, key: str) -> tuple[str, int]:
        return self.file, self._offset

    def _begin(self) -> None:
        name, num_bytes = self._asked["dtype"], self._reader.size(self.file)
        header = raw_header(self.file, self._reader)
        if header is not None:
            version, known = _HEADERS[header[0]]
            if name not in (None, known):
                raise ConfigError(f"{self.file}: dtype is {name!r}, but its header says that its tokens are {known}")
            name = known
            if header[1] != version:
                raise StoreError(
                    f"{self.file}: a header of llm.c of version {header[1]}; with the number {header[0]} it must be"
                    f" {version}"
                )
        elif name is None:
            raise ConfigError(
                f"{self.file}: no header says which numbers its tokens are: give dtype, {' or '.join(_DTYPES)}; and eod"
                " or bos, the id with which documents end or begin, if there is one"
            )
        self._offset = 0 if header is None else _HEADER_BYTES
        self._dtype = np.dtype(name).newbyteorder("<")
        item = self._dtype.itemsize
        self._count, rest = divmod(num_bytes - self._offset, item)
        if rest or (header is not None and header[2] != self._count):
            told = "which hold no whole number of tokens"
            if header is not None:
                told = f"but its header of {_HEADER_BYTES:,} bytes says that {header[2]:,} tokens follow"
            raise StoreError(f"{self.file}: has {num_bytes:,} bytes, {told}; each token of {name} takes {item}")
        self._border = self._checked_border(name)

    def _checked_border(self, dtype: str) -> int | None:
        given = {option: self._asked[option] for option in ("eod", "bos") if self._asked[option] is not None}
        if len(given) > 1:
            raise ConfigError(f"{self.file}: eod and bos are both given; documents end or begin with an id: give one")
        for option, number in given.items():
            if not 0 <= whole(number, option) <= np.iinfo(dtype).max:
                raise ConfigError(f"{self.file}: {option}={number} is no id of {dtype}, 0 to {np.iinfo(dtype).max}")
        return next(iter(given.values()), None)

    def _find(self) -> FoundColumns:
        parts = np.array([0, self._count])
        bounds = parts if self._border is None else self._bounds_at(self._border)
        column = KeyParts(self._dtype, bounds if self._count else parts[:1], parts)
        return FoundColumns({MAIN: column}, {MAIN: np.array([self._offset])})

    def _bounds_at(self, border: int) -> IntArray:
        """Return where documents begin, given the id with which they end or begin. Takes a pass over the file."""
        using, item = self._reader.for_pass(), self._dtype.itemsize
        found = [np.array([0, self._count])]
        for begin in range(0, self._count, _TOKENS_AT_ONCE):
            count = min(_TOKENS_AT_ONCE, self._count - begin)
            tokens = tokens_at(using, self.file, self._dtype, self._offset + begin * item, count * item)
            found.append(np.flatnonzero(tokens == border) + begin + (self._asked["eod"] is not None))
        if self._count and not sum(map(len, found[1:])):
            raise StoreError(
                f"{self.file}: none of its {self._count:,} tokens is {border}, so that no document can be found: give"
                " the id that ends or begins documents as eod or bos, or none to take the file as one document"
            )
        return np.unique(np.concatenate(found))


def raw_header(path: str, using: Reader) -> tuple[int, int, int] | None:
    """Return magic number, version and number of tokens of a ``.bin`` with a header of llm.c; None without one."""
    head = using.read(path, 0, min(using.size(path), _HEADER_BYTES)).tobytes()
    if int.from_bytes(head[:4], "little") not in _HEADERS:
        return None
    magic, version, count = np.frombuffer(head.ljust(12, b"\0")[:12], "<i4").tolist()
    return magic, version, count


_MOST: Final = 1000
"""Names of a folder that are looked at."""

_INDEX_NAME: Final = "index.json"
_NANOGPT: Final = re.compile(r"(train|val|test)\.bin")


def foreign_format(path: AnyPath | str, using: str | Reader = "mmap", *, is_opening: bool = False) -> str:
    """Return whose data lie at a path and which page says what to do with them; empty if that is not known.

    MosaicML Streaming and litdata describe the shards of a folder in its ``index.json``; nanoGPT and llm.c write a
    ``.bin`` without an index. A folder of such folders, as ``train`` and ``val``, counts as well. ``is_opening`` leaves
    out those of llm.c, which are stores.
    """
    place = path_at(path, using)
    try:
        if not place.is_dir():
            prefix = place.with_name(f"{place.name}.bin")
            return _of_file(prefix if prefix.is_file() else place, is_opening)
        inside: list[AnyPath] = list(itertools.islice(place.iterdir(), _MOST))
        below = (one / name for one in inside for name in (_INDEX_NAME, "train.bin") if one.is_dir())
        return next(filter(None, (_of_file(one, is_opening) for one in [place / _INDEX_NAME, *inside, *below])), "")
    except StoreAwayError:
        raise
    except (OSError, StoreError):  # a web server lists no folder
        return ""


def _of_file(file: AnyPath, is_opening: bool) -> str:
    name = file.name
    index = _read_index(file.with_name(_INDEX_NAME)) if name == _INDEX_NAME or name.startswith("chunk-") else {}
    if ".mds" in name or isinstance(index.get("shards"), list):
        return _not_read("MosaicML Streaming (MDS)", "mosaicml")
    if isinstance(index.get("chunks"), list):
        return _not_read("litdata", "litdata")
    if file.suffix != ".bin" or not file.is_file() or file.with_suffix(".idx").is_file():
        return ""
    if isinstance(file, Path):
        with file.open("rb") as opened:
            if int.from_bytes(opened.read(4), "little") in _HEADERS:
                return "" if is_opening else f"these are tokens of llm.c, which headrace.open reads in place; {_SEE}"
    if not _NANOGPT.fullmatch(name):
        return ""
    return f"these are tokens of nanoGPT, which headrace.open reads in place, file by file, if it gets {_DTYPE}; {_SEE}"


_DTYPE: Final = "dtype= (--bin-dtype)"
_SEE: Final = "docs/migrate/nanogpt.md says how"


def _read_index(file: AnyPath) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(read_small(file))
    except (OSError, UnicodeDecodeError, RecursionError, msgspec.DecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _not_read(program: str, page: str) -> str:
    return f"these are data of {program}, which Headrace does not read; docs/migrate/{page}.md says how to move them"
