"""Documents of tokens in formats of other programs, read in place. `ForeignStore` is what all of them share.

    JsonlStore           a .jsonl: a record a line, with a list of numbers for each key
    JsonObjectStore      a .json: one object with a list of lists for each key, as AstrAI 1.3.5 and 1.3.6 wrote it
    ParquetStore         a .parquet with columns of lists of numbers
    SavedDatasetStore    a folder of ``Dataset.save_to_disk``: Arrow streams with such columns
    Hdf5Store, RawStore  in `foreign_ranges`: formats whose values are ranges of bytes

In all of them a key is a *column*: values in one or more *parts* (lines, row groups, record batches, datasets), which
follow each other, and documents that lie across them. A format says in ``_find`` how long parts and documents are, and
in ``_part`` it reads values of a part; everything else is done once, in `ForeignStore`.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import itertools
import os
from abc import abstractmethod
from array import array
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self, TypeVar

import msgspec
import numpy as np
import xxhash

from headrace.errors import ConfigError, StoreError, load_extra
from headrace.io import AnyPath, Reader, can_list, local_file, path_at, read_small, reader, reader_at
from headrace.stores.arguments import prefix_sums, read_only
from headrace.stores.checking import check_file
from headrace.stores.kept_arrays import Kept, kept_index
from headrace.stores.keyed.layout import key_dtype
from headrace.stores.manifest import entry_beside
from headrace.stores.segmented import SegmentedStore, cut_at_bounds
from headrace.stores.store import ENDS_BYTES, MAIN, IntArray, Problem, TokenArray
from headrace.stores.written import OutputShard

T = TypeVar("T")


class KeyParts(NamedTuple):
    """One key.

    Attributes:
        dtype: the dtype of its values.
        bounds: (documents + 1,) int64, prefix sums of the lengths of its documents.
        parts: (parts + 1,) int64, prefix sums of the numbers of values of the parts that they lie in.
    """

    dtype: np.dtype[Any]
    bounds: IntArray
    parts: IntArray


class FoundColumns(NamedTuple):
    """What a pass over a file, or a look into it, has found.

    Attributes:
        columns: the keys, in the order of the file.
        places: arrays that say where the parts lie, by names that the format chooses.
        digest: xxh3_128 of the whole file, if it was read.
    """

    columns: dict[str, KeyParts]
    places: Mapping[str, IntArray] = {}
    digest: str = ""

    def differs(self, other: FoundColumns) -> bool:
        """Return whether keys, lengths or content are not the same."""
        return (
            self.digest != other.digest
            or self.columns.keys() != other.columns.keys()
            or any(not np.array_equal(column.bounds, other.columns[key].bounds) for key, column in self.columns.items())
        )


class _Meta(msgspec.Struct, frozen=True):
    keys: tuple[str, ...]
    dtypes: tuple[str, ...]
    xxh3_128: str


def _to_keep(found: FoundColumns) -> Kept:
    arrays = dict(found.places)
    for number, column in enumerate(found.columns.values()):
        arrays[f"bounds_{number}"] = column.bounds
        if column.parts is not column.bounds:
            arrays[f"parts_{number}"] = column.parts
    dtypes = tuple(column.dtype.name for column in found.columns.values())
    return arrays, msgspec.json.encode(_Meta(tuple(found.columns), dtypes, found.digest))


def _from_kept(arrays: Mapping[str, IntArray], data: bytes) -> FoundColumns:
    meta = msgspec.json.decode(data, type=_Meta)
    columns = {}
    for number, (key, dtype) in enumerate(zip(meta.keys, meta.dtypes, strict=True)):
        bounds = arrays[f"bounds_{number}"]
        columns[key] = KeyParts(np.dtype(dtype), bounds, arrays.get(f"parts_{number}", bounds))
    return FoundColumns(columns, arrays, meta.xxh3_128)


class ForeignStore(SegmentedStore):
    """A file, or a folder, in a format of another program.

    Args:
        path: the file.
        key: the main key; None for the default, see `SegmentedStore`.
        using: ``"mmap"`` or ``"pread"``, or a `Reader`. What a library decodes is mapped in any case.
        vouched: the file's entry in a manifest, which then decides the dtypes.

    Raises:
        StoreError: the file is missing or malformed, or differs from the manifest's entry; the message says what was
            found and where.
        ConfigError: there is no such key.
        MissingExtraError: the library that reads the format is not installed.
    """

    suffixes: ClassVar[tuple[str, ...]]
    """How the names of such files end."""

    _kept_as: str | None = None
    """The kind under which what was found in a large file is kept, see `kept_index`; None if it is found at once."""

    _most_recent: ClassVar[int] = 8
    """How many decoded parts are remembered."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key: str | None = None,
        using: str | Reader = "mmap",
        vouched: OutputShard | None = None,
    ) -> None:
        self.file = os.fspath(path)
        self._reader = reader(reader_at(path, using))
        self._vouched = vouched
        self._recent: dict[Hashable, Any] = {}
        self._opened: Any = None
        self._begin()
        if self._kept_as is None:
            self._found = self._find()
        else:
            self._found = _from_kept(
                *kept_index(self.file, self._reader, self._kept_as, 2, lambda: _to_keep(self._find()))
            )
        columns = self._found.columns
        bounds = {name: column.bounds for name, column in columns.items()}
        super().__init__(self.file, bounds, {name: column.dtype for name, column in columns.items()}, key)
        if vouched is not None:
            for fault in self._disagreements(vouched):
                raise StoreError(f"{self.file}: not the shard that the manifest lists: {fault}")
            self._assumed = {name: key_dtype(info.dtype) for name, info in vouched.keys.items()}
            self._dtypes.update(self._assumed)

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The file."""
        return (self._reader.path_at(self.file),)

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the keys, their dtypes and lengths, and the first and last 4 KiB of each key. O(documents).

        Of JSON it is one of the main key and of the hash of the whole file.
        """
        if self._found.digest:
            return xxhash.xxh3_128_hexdigest(repr((self.format, self._keys[0], self._found.digest)).encode())
        hasher = xxhash.xxh3_128(self.format.encode())
        for key in self._keys:
            hasher.update(repr((key, self._dtypes[key].str)).encode())
            hasher.update(self._bounds[key].tobytes())
            total = int(self._bounds[key][-1])
            length = min(total, ENDS_BYTES // self._dtypes[key].itemsize)
            for begin in (0, total - length) if length else ():
                hasher.update(self._read(begin, begin + length, key).tobytes())
        return hasher.hexdigest()

    def with_dtypes(self, dtypes: Mapping[str, np.dtype[Any]]) -> Self:
        """Return the same store with other dtypes for some keys."""
        other = super().with_dtypes(dtypes)
        other._recent = {}
        return other

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Find again what lies in the file, and check bools, ids, and all bytes if a manifest beside the file lists it.

        Ids are checked in the main key, or in all integer keys that hold ids according to the manifest.
        """
        place = self._reader.path_at(self.file)
        vouched, problems = entry_beside(place.with_suffix(""), self.format, self._vouched)
        yield from problems
        if vouched is not None:
            yield from check_file(place, vouched.files[0])
        fresh = self._twin()
        fresh._reader, fresh._recent, fresh._opened = copy.copy(self._reader), {}, None
        with fresh:
            try:
                fresh._begin()
                found = fresh._find()
                if found.differs(self._found):
                    message = "the file changed since it was opened; open it again"
                    yield Problem(path=self.file, place="", message=message)
                    return
                for key in self._keys:
                    yield from fresh._gaps(key)
                    for problem in fresh._check_values(self.file, key, vouched, vocab_size):
                        # The file holds the documents of all keys, so the place has to name the key.
                        is_named = problem.place and len(self._keys) > 1
                        place_of_key = f"key {key!r}, {problem.place}" if is_named else problem.place
                        yield msgspec.structs.replace(problem, place=place_of_key)
            except (StoreError, ConfigError) as error:
                yield Problem.of(self.file, error)

    def close(self) -> None:
        """Close the files. Arrays stay valid, and a later read opens them again."""
        self._opened, self._recent = None, {}
        self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        how = {"key": self._keys[0], "using": self._reader, **self._arguments()}
        if self._vouched is not None:
            how["vouched"] = self._vouched
        return self._reduced(path=self.file, dtypes=self._assumed, **how)

    def _begin(self) -> None:
        """Prepare for reads all over the file."""
        self._reader.keep(self.file)

    @abstractmethod
    def _find(self) -> FoundColumns:
        """Find the keys in the file, and where their values lie."""

    @abstractmethod
    def _part(self, key: str, part: int, first: int, count: int) -> TokenArray:
        """Return ``count`` values of a part, at least one, from its value ``first`` on."""

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor that only this format has."""
        return {}

    def _gaps(self, key: str) -> Iterator[Problem]:
        """Yield what seems to be missing in a key, though the file can be read."""
        return iter(())

    def _recalled(self, what: Hashable, make: Callable[[], Any]) -> Any:
        found = self._recent.get(what)
        if found is None:
            found = make()
            if len(self._recent) >= self._most_recent:
                self._recent = {}
            self._recent[what] = found
        return found

    def _read(self, begin: int, end: int, key: str) -> TokenArray:
        cuts = cut_at_bounds(self._found.columns[key].parts, np.array([begin]), end - begin)
        parts = zip(cuts.parts.tolist(), cuts.firsts.tolist(), cuts.lengths.tolist(), strict=True)
        pieces = [self._part(key, part, first, count) for part, first, count in parts if count]
        return read_only(pieces[0] if len(pieces) == 1 else np.concatenate(pieces))

    def _disagreements(self, vouched: OutputShard) -> Iterator[str]:
        """Yield a message for each difference from the manifest's entry; of the bytes only the size is compared."""
        found = {key: int(bounds[-1]) for key, bounds in self._bounds.items()}
        listed = {key: info.tokens for key, info in vouched.keys.items()}
        if (found, self.num_documents) != (listed, vouched.documents):
            yield (
                f"found {self.num_documents} documents with {found} values, but the manifest lists {vouched.documents}"
                f" with {listed}"
            )
            return
        for key, info in vouched.keys.items():
            if not self.can_be(key, key_dtype(info.dtype)):
                yield f"key {key!r} holds {self._dtypes[key].name} numbers, but the manifest lists {info.dtype}"
        size = self._reader.size(self.file)
        if [file.size for file in vouched.files] != [size]:
            yield f"the file has {size} bytes, but the manifest lists {vouched.files[0].size}"


_Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Numbers = list[_Int | float | bool]

_INTEGERS: Final = msgspec.json.Decoder(dict[str, list[_Int]])
_RECORD: Final = msgspec.json.Decoder(dict[str, _Numbers])
_NESTED: Final = msgspec.json.Decoder(dict[str, list[_Numbers]])
_KINDS: Final = {"bool": np.dtype(np.bool_), "int": np.dtype(np.int64), "float": np.dtype(np.float64)}
_NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_FIRST_BYTES: Final = 4096
_CHUNK_BYTES: Final = 8 << 20


class _JsonStore(ForeignStore):
    """Numbers in JSON, which has three kinds: integers are read as int64, a key with a fraction anywhere as float64."""

    def can_be(self, key: str, dtype: np.dtype[Any]) -> bool:
        """Return True for dtypes of the key's own kind, floats if it holds integers, and any if all lists are empty."""
        has = self._dtypes[key]
        return has.kind == dtype.kind or not self._bounds[key][-1] or (has.kind == "i" and dtype.kind in "uf")


class JsonlStore(_JsonStore):
    """A ``.jsonl`` file with one record a line, ``{"tokens": [1, 2, 3], "loss_mask": [0, 1, 1]}``. For small data.

    Integers are read as int64, a key with a fraction anywhere as float64, and true and false as bool. The first opening
    takes a pass over the file, about 10 ns a byte of integers, whose result is kept for files of 8 MiB or more. After
    that, reading a document means reading its line, and takes about 100 ns for each number of all its keys.

    Example:
        >>> with headrace.stores.JsonlWriter("pair.jsonl", dtypes={"tokens": "int32"}) as writer:
        ...     writer.add_documents({"tokens": np.array([5, 6, 7])}, {"tokens": np.array([1, 2])})
        ...     shard = writer.finish()
        >>> headrace.stores.JsonlStore("pair.jsonl").document(1).tolist()
        [6, 7]
    """

    format = "jsonl"
    suffixes = (".jsonl", ".json")
    _kept_as = "jsonl"
    _most_recent = 32

    def _find(self) -> FoundColumns:
        offsets, ends = array("q"), array("q")
        lengths: dict[str, array[int]] = {}
        kinds: dict[str, str] = {}
        hasher = xxhash.xxh3_128()
        for number, offset, line in read_lines(self.file, self._reader.for_pass(), hasher):
            where = f"{self.file}: line {number}"
            try:
                record, integers = _decode_record(line)
            except _NOT_JSON as error:
                raise StoreError(
                    f"{where}: not a record of tokens, which is a JSON object with a list of numbers for each key:"
                    f" {error}; use headrace prepare to make tokens from text and messages"
                ) from error
            if not lengths:
                lengths = {key: array("q") for key in record}
            if record.keys() != lengths.keys() or not record:
                first = ", ".join(map(repr, lengths)) or "none"
                raise StoreError(
                    f"{where}: has the keys {', '.join(map(repr, record)) or 'none'}, but the first record has {first};"
                    " all records must have the same keys, at least one"
                )
            for key, values in record.items():
                _add_kinds(kinds, key, values, where, integers=integers)
                lengths[key].append(len(values))
            offsets.append(offset)
            ends.append(offset + len(line))
        if not lengths:
            raise StoreError(
                f"{self.file}: holds no record; expected one JSON object a line, with a list of numbers for each key"
            )
        columns = {}
        for key, counts in lengths.items():
            bounds = prefix_sums(counts)
            columns[key] = KeyParts(_kind_dtype(kinds, key), bounds, bounds)
        places = {"offsets": np.array(offsets, np.int64), "ends": np.array(ends, np.int64)}
        return FoundColumns(columns, places, hasher.hexdigest())

    def _part(self, key: str, part: int, first: int, count: int) -> TokenArray:
        record: dict[str, TokenArray] = self._recalled(part, lambda: self._record(part))
        return record[key][first : first + count]

    def _record(self, number: int) -> dict[str, TokenArray]:
        begin, end = (int(self._found.places[name][number]) for name in ("offsets", "ends"))
        line = self._reader.read(self.file, begin, end - begin).tobytes()
        try:
            record = _decode_record(line)[0]
            found = {key: read_only(np.array(values, self._dtypes[key])) for key, values in record.items()}
            lengths = {key: int(np.diff(bounds[number : number + 2])[0]) for key, bounds in self._bounds.items()}
            if {key: len(values) for key, values in found.items()} == lengths:
                return found
            problem = f"its lists have other lengths than {lengths}, which its index says"
        except (*_NOT_JSON, OverflowError, KeyError) as error:
            problem = str(error)
        if self._vouched is None:
            advice = "the index belongs to another file; remove it"
        else:
            advice = "the file differs from the one that its manifest lists"
        raise StoreError(f"{self.file}: document {number}, byte {begin}: {problem}; {advice}")


class JsonObjectStore(_JsonStore):
    """One JSON object ``{"tokens": [[1, 2], [3]], ...}`` in a file, as AstrAI 1.3.5 and 1.3.6 wrote it.

    A list of numbers instead of a list of lists is one document. The whole file is kept in memory, as AstrAI did.
    """

    format = "json"
    suffixes = (".json", ".jsonl")

    def _find(self) -> FoundColumns:
        data = self._reader.read(self.file, 0, self._reader.size(self.file)).tobytes()
        kinds: dict[str, str] = {}
        columns = {}
        self._values: dict[str, TokenArray] = {}
        for key, documents in self._decoded(data).items():
            for number, values in enumerate(documents):
                _add_kinds(kinds, key, values, f"{self.file}: document {number}")
            dtype, bounds = _kind_dtype(kinds, key), prefix_sums([len(values) for values in documents])
            self._values[key] = np.array(list(itertools.chain.from_iterable(documents)), dtype)
            columns[key] = KeyParts(dtype, bounds, bounds[[0, -1]])
        return FoundColumns(columns, digest=xxhash.xxh3_128_hexdigest(data))

    def _part(self, key: str, part: int, first: int, count: int) -> TokenArray:
        return self._values[key][first : first + count].astype(self._dtypes[key], copy=False)

    def _decoded(self, data: bytes) -> dict[str, list[Any]]:
        try:
            found: dict[str, list[Any]] = _NESTED.decode(data)
        except _NOT_JSON as error:
            try:
                found = {key: [values] for key, values in _decode_record(data)[0].items()}
            except _NOT_JSON:
                raise StoreError(
                    f"{self.file}: not a store of tokens: {error}; expected a JSON object with a list of lists of"
                    " numbers for each key, or a .jsonl with one such record per line. headrace prepare makes tokens of"
                    " text"
                ) from error
        if not found:
            raise StoreError(f"{self.file}: a JSON object without a key; a store of tokens has at least one")
        return found


def is_object(path: str, using: Reader) -> bool:
    """Return whether a ``.jsonl`` is a single JSON object of lists of lists: AstrAI used this suffix for both."""
    head = using.read(path, 0, min(using.size(path), 4096)).tobytes()
    # In a record, the first list begins with a number or is empty; in such an object, it begins with another list.
    values = b"".join(head.split()).partition(b":")[2]
    return values.startswith(b"[[")


def read_lines(path: str, using: Reader, hasher: xxhash.xxh3_128 | None = None) -> Iterator[tuple[int, int, bytes]]:
    """Yield number (from 1), first byte and bytes of each line that is not blank, and hash all bytes.

    Little is read for the first line, since some callers want only that.
    """
    size = using.size(path)
    number, offset, rest = 0, 0, b""
    begin, length = 0, min(_FIRST_BYTES, _CHUNK_BYTES)
    while begin < size:
        data = using.read(path, begin, min(length, size - begin)).tobytes()
        begin, length = begin + len(data), min(2 * length, _CHUNK_BYTES)
        if hasher is not None:
            hasher.update(data)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            number += 1
            if line.strip():
                yield number, offset, line
            offset += len(line) + 1
    if rest.strip():
        yield number + 1, offset, rest


def _decode_record(data: bytes) -> tuple[dict[str, Any], bool]:
    """Return the lists of one record by key, and whether all of them hold only integers."""
    try:
        return _INTEGERS.decode(data), True
    except msgspec.ValidationError:
        return _RECORD.decode(data), False


def _add_kinds(kinds: dict[str, str], key: str, values: list[Any], where: str, *, integers: bool = False) -> None:
    """Collect which kind of number each key holds: ``bool``, ``int`` or ``float``, if a fraction was seen.

    Args:
        kinds: those that were seen before.
        key: the key.
        values: a list of it.
        where: file and line, for the error.
        integers: whether the list is known to hold only integers.

    Raises:
        StoreError: the key holds both truth values and numbers.
    """
    for kind in {type(value).__name__ for value in (values[:1] if integers else values)}:
        before = kinds.setdefault(key, kind)
        if before == kind:
            continue
        if "bool" in (before, kind):
            raise StoreError(
                f"{where}: key {key!r} holds both truth values (true, false) and numbers; only one kind is allowed"
            )
        kinds[key] = "float"


def _kind_dtype(kinds: Mapping[str, str], key: str) -> np.dtype[Any]:
    """Return the dtype of a key; int64 if all its lists are empty."""
    return _KINDS[kinds.get(key, "int")]


class _ArrowStore(ForeignStore):
    """Columns of lists of numbers that pyarrow reads, each row a document; other columns are left out."""

    _main_names = (MAIN, "input_ids", "sequence", "chosen", "prompts")

    @abstractmethod
    def _schema(self) -> tuple[Any, int]:
        """Return the schema, and the number of parts."""

    @abstractmethod
    def _lists(self, key: str, part: int) -> Any:
        """Return the lists of a column in a part as one array of Arrow."""

    def _find(self) -> FoundColumns:
        types = load_pyarrow(self.file).types
        schema, num_parts = self._schema()
        columns = {}
        for field in schema:
            if not _is_of_numbers(types, field.type):
                continue
            lengths = [np.zeros(1, np.int64)]
            sizes = []
            for part in range(num_parts):
                lists = self._lists(field.name, part)
                lengths.append(_lengths_in(lists))
                sizes.append(len(self._values_in(lists, field.name)))
            dtype: np.dtype[Any] = np.dtype(field.type.value_type.to_pandas_dtype())
            columns[field.name] = KeyParts(
                dtype, np.cumsum(np.concatenate(lengths), dtype=np.int64), prefix_sums(sizes)
            )
        if not columns:
            raise StoreError(
                f"{self.file}: no column has lists of numbers; the columns are {', '.join(schema.names)}. Use headrace"
                " prepare to make tokens from text and messages"
            )
        return FoundColumns(columns)

    def _part(self, key: str, part: int, first: int, count: int) -> TokenArray:
        values = self._recalled((key, part), lambda: self._values_in(self._lists(key, part), key))
        found: TokenArray = values.slice(first, count).to_numpy(zero_copy_only=False)
        return found

    def _values_in(self, lists: Any, key: str) -> Any:
        values = lists.flatten()
        if lists.null_count or values.null_count:
            raise StoreError(f"{self.file}: column {key!r} holds null, which is neither a list nor a number of one")
        return values


class ParquetStore(_ArrowStore):
    """A ``.parquet`` file with columns of lists of numbers. Needs pyarrow.

    Parquet packs and compresses the values of a row group together. The first opening decodes these columns once, to
    know where documents begin; for files of 8 MiB or more the result is kept. Reading a document decodes its row group;
    the 8 that were read last are kept decoded. Convert what is read often and in any order.

    By default the main key is ``"tokens"``, ``"input_ids"``, ``"sequence"``, ``"chosen"``, ``"prompts"``, or the first.
    """

    format = "parquet"
    suffixes = (".parquet",)
    _kept_as = "parquet"

    def _begin(self) -> None:
        super()._begin()
        self._locks: dict[int, Lock] = {}

    def _schema(self) -> tuple[Any, int]:
        with self._understood() as opened:
            return opened.schema_arrow, opened.num_row_groups

    def _lists(self, key: str, part: int) -> Any:
        # One reader of pyarrow is for one thread at a time. A fork has its own lock: a thread may hold its parent's.
        with self._locks.setdefault(os.getpid(), Lock()), self._understood() as opened:
            column = opened.read_row_group(part, columns=[key], use_threads=False).column(key)
            return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)

    @contextlib.contextmanager
    def _understood(self) -> Iterator[Any]:
        """Give the open file, and raise StoreError for what pyarrow does not understand in it."""
        pyarrow = load_pyarrow(self.file)
        try:
            if self._opened is None:
                self._opened = importlib.import_module("pyarrow.parquet").ParquetFile(
                    local_file(self._reader.path_at(self.file)), memory_map=True
                )
            yield self._opened
        except (OSError, pyarrow.ArrowException) as error:
            raise StoreError(f"{self.file}: the file cannot be read as Parquet: {error}") from error


STATE_NAME: Final = "state.json"
INFO_NAME: Final = "dataset_info.json"
DICT_NAME: Final = "dataset_dict.json"


class SavedDatasetStore(_ArrowStore):
    """A folder that ``Dataset.save_to_disk`` of the library ``datasets`` wrote. Needs pyarrow.

        folder/state.json                     names the data files, in order
        folder/dataset_info.json              the features; not read, since the files have a schema
        folder/data-00000-of-00002.arrow      an Arrow stream of record batches

    The files are mapped: a document is a view, except where a range spans two record batches, and for booleans, which
    Arrow packs. Those of a folder at a URL are fetched whole, and kept. Opening reads the bounds of all documents,
    8 bytes a document and key, and no values. The main key is chosen as by `ParquetStore`.
    """

    format = "datasets"
    _most_recent = 1 << 60  # these are views

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The data files, then the state."""
        return (*(self._folder / name for name in self._names), self._folder / STATE_NAME)

    def _begin(self) -> None:
        self._folder = self._reader.path_at(self.file)
        if isinstance(self._folder, Path) and (self._reader.cache is not None or self._reader.name != "mmap"):
            raise StoreError(f"{self.file}: a saved dataset can only be mapped: leave reader and cache out")
        if (self._folder / DICT_NAME).is_file():
            splits = ", ".join(splits_of(self._folder))
            raise StoreError(f"{self._folder}: this is a DatasetDict: open one of its folders, {splits}")
        self._names = data_files(self._folder)
        load_pyarrow(self.file)  # before anything is fetched
        self._mapped = self._places()

    def _places(self) -> list[Path]:
        """Return the data files on this host. A copy of an object has another name for each content of the object."""
        return [local_file(self._folder / name) for name in self._names]

    def _schema(self) -> tuple[Any, int]:
        table = self._table()
        return table.schema, table.column(0).num_chunks if table.num_columns else 0

    def _lists(self, key: str, part: int) -> Any:
        return self._table().column(key).chunk(part)

    def _table(self) -> Any:
        if self._opened is None:
            pyarrow = load_pyarrow(self.file)
            if self._places() != self._mapped:
                raise StoreError(f"{self.file}: the objects changed since they were opened; open it again")
            try:
                self._opened = pyarrow.concat_tables(
                    pyarrow.ipc.open_stream(pyarrow.memory_map(str(place))).read_all() for place in self._mapped
                )
            except (OSError, pyarrow.ArrowException) as error:
                raise StoreError(f"{self.file}: the files cannot be read as Arrow streams: {error}") from error
        return self._opened


def is_saved_dataset(name: str | AnyPath, using: str | Reader = "mmap") -> bool:
    """Return whether a path is a folder of ``Dataset.save_to_disk``, or of ``DatasetDict.save_to_disk``."""
    folder = path_at(name, using)
    if (folder / DICT_NAME).is_file():
        return True
    # Others write a state.json too.
    is_state = all((folder / file).is_file() for file in (STATE_NAME, INFO_NAME))
    return is_state and b'"_data_files"' in read_small(folder / STATE_NAME)


class _DataFile(msgspec.Struct):
    filename: str


class _State(msgspec.Struct):
    data_files: list[_DataFile] = msgspec.field(name="_data_files")


class _Splits(msgspec.Struct):
    splits: list[str]


def splits_of(folder: AnyPath) -> list[str]:
    """Return the names of the splits of a folder of ``DatasetDict.save_to_disk``; none for any other folder."""
    if not (folder / DICT_NAME).is_file():
        return []
    if can_list(folder):
        return sorted(file.parent.name for file in folder.glob(f"*/{STATE_NAME}"))
    return sorted(_decoded(folder / DICT_NAME, _Splits, "the splits").splits)


def data_files(folder: AnyPath) -> list[str]:
    """Return the names of the data files of a saved dataset, in order; raise StoreError if its state is damaged."""
    names = [file.filename for file in _decoded(folder / STATE_NAME, _State, "the data files").data_files]
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise StoreError(f"{folder / STATE_NAME}: names {name!r}, which is no file of this folder")
    if not names:
        raise StoreError(f"{folder / STATE_NAME}: names no data files")
    return names


def _decoded(file: AnyPath, kind: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(read_small(file), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{file}: does not name {what} of a saved dataset: {error}") from error


def load_pyarrow(name: str) -> Any:
    """Import pyarrow with its IPC; raise MissingExtraError, which names what needs it."""
    advice = f"{name}: a saved dataset needs pyarrow: pip install 'headrace[parquet]'"
    load_extra("pyarrow.ipc", advice)
    return load_extra("pyarrow", advice)


def _is_of_numbers(types: Any, kind: Any) -> bool:
    """Return whether a type of Arrow is a list of numbers or booleans; ``types`` is the module pyarrow.types."""
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and any(test(kind.value_type) for test in (types.is_integer, types.is_floating, types.is_boolean))


def _lengths_in(lists: Any) -> IntArray:
    """Return (n,) the lengths of the lists in an Arrow array."""
    if hasattr(lists, "offsets"):
        lengths: IntArray = np.diff(lists.offsets.to_numpy())
        return lengths
    return np.full(len(lists), lists.type.list_size, dtype=np.int64)
