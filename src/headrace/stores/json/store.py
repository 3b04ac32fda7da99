"""Tokens as JSON lines, one record a line, each key with a list: `JsonlStore` reads them, `JsonlWriter` writes them."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np
import xxhash
from numpy.typing import DTypeLike, NDArray

from headrace.errors import ConfigError, InputError, StoreError
from headrace.io import AnyPath, AtomicFile, FileSum, Reader, reader, reader_at
from headrace.stores.arguments import read_only
from headrace.stores.checking import check_file
from headrace.stores.json.index import as_array, decode_record, json_can_be, line_index, make_index
from headrace.stores.keyed.layout import key_dtype
from headrace.stores.manifest import entry_beside
from headrace.stores.segmented import SegmentedStore, cut_at_bounds
from headrace.stores.store import Problem, TokenArray
from headrace.stores.writer import CheckedDocuments, KeysWriter
from headrace.stores.written import OutputShard

JSON_SUFFIXES: Final = (".jsonl", ".json")
_RECENT_RECORDS = 32


class JsonlStore(SegmentedStore):
    """A ``.jsonl`` file with one record a line, ``{"tokens": [1, 2, 3], "loss_mask": [0, 1, 1]}``. For small data.

    Integers are read as int64, a key with a fraction anywhere as float64, and true and false as bool. The first opening
    takes a pass over the file, whose result is kept for files of 8 MiB or more. After that, reading a document means
    reading its line, and takes about 100 ns for each number of all its keys.

    Args:
        path: the file.
        key: the main key.
        using: ``"mmap"`` or ``"pread"``, or a `Reader`.
        vouched: the file's entry in a manifest, which then decides the dtypes.

    Raises:
        StoreError: the file is missing, a line (which the message names) is not a record, or the file differs from the
            manifest's entry.
        ConfigError: there is no such key.

    Example:
        >>> with headrace.stores.JsonlWriter("pair.jsonl", dtypes={"tokens": "int32"}) as writer:
        ...     writer.add_documents({"tokens": np.array([5, 6, 7])}, {"tokens": np.array([1, 2])})
        ...     shard = writer.finish()
        >>> headrace.stores.JsonlStore("pair.jsonl").document(1).tolist()
        [6, 7]
    """

    format = "jsonl"

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
        self._reader.keep(self.file)
        self._index = line_index(self.file, self._reader)
        self._recent: dict[int, dict[str, TokenArray]] = {}
        self._vouched = vouched
        super().__init__(self.file, self._index.bounds, self._index.dtypes, key)
        if vouched is not None:
            for fault in self._disagreements(vouched):
                raise StoreError(f"{self.file}: not the shard that the manifest lists: {fault}")
            self._assumed = {name: key_dtype(info.dtype) for name, info in vouched.keys.items()}
            self._dtypes.update(self._assumed)

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The ``.jsonl`` file."""
        return (self._reader.path_at(self.file),)

    @property
    def fingerprint(self) -> str:
        """xxh3_128 of the hash of the whole file and the main key."""
        return xxhash.xxh3_128_hexdigest(repr((self.format, self._keys[0], self._index.xxh3_128)).encode())

    def can_be(self, key: str, dtype: np.dtype[Any]) -> bool:
        """Return True for the key's own dtype, float64 if it holds integers, and any dtype if all lists are empty."""
        return json_can_be(self._dtypes[key], int(self._bounds[key][-1]), dtype)

    def with_dtypes(self, dtypes: Mapping[str, np.dtype[Any]]) -> Self:
        """Return the same store with other dtypes for some keys."""
        other = super().with_dtypes(dtypes)
        other._recent = {}
        return other

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Read every line again and compare it with the index, and all bytes with a manifest beside the file.

        Ids are checked in the main key, or in all integer keys that hold ids according to the manifest.
        """
        place = self._reader.path_at(self.file)
        vouched, problems = entry_beside(place.with_suffix(""), "jsonl", self._vouched)
        yield from problems
        if vouched is not None:
            yield from check_file(place, vouched.files[0])
        try:
            with contextlib.closing(copy.copy(self._reader)) as using:
                found = make_index(self.file, using)
        except StoreError as error:
            yield Problem.of(self.file, error)
            return
        if found.xxh3_128 != self._index.xxh3_128:
            yield Problem(path=self.file, place="", message="the file changed since it was indexed; open it again")
            return
        try:
            for key in self._keys:
                for problem in self._check_values(self.file, key, vouched, vocab_size):
                    # The file holds the documents of all keys, so the place has to name the key.
                    is_named = problem.place and len(self._keys) > 1
                    place_of_key = f"key {key!r}, {problem.place}" if is_named else problem.place
                    yield msgspec.structs.replace(problem, place=place_of_key)
        except StoreError as error:
            yield Problem.of(self.file, error)

    def close(self) -> None:
        """Close the file. Arrays stay valid, and a later read opens it again."""
        self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # A file of the same fingerprint is the one that the manifest lists, so it need not be compared again.
        how = self._reduced(path=self.file, key=self._keys[0], using=self._reader, dtypes=self._assumed)
        return (*how, {"_vouched": self._vouched})

    def _disagreements(self, vouched: OutputShard) -> Iterator[str]:
        """Yield a message for each difference from the manifest's entry; of the bytes only the size is compared."""
        found = {key: int(bounds[-1]) for key, bounds in self._bounds.items()}
        listed = {key: info.tokens for key, info in vouched.keys.items()}
        if (found, self.num_documents) != (listed, vouched.documents):
            yield (
                f"found {self.num_documents} documents with {found} tokens, but the manifest lists"
                f" {vouched.documents} with {listed}"
            )
            return
        for key, info in vouched.keys.items():
            dtype, wanted = self._index.dtypes[key], key_dtype(info.dtype)
            fits = dtype.kind == wanted.kind or (dtype.kind == "i" and wanted.kind in "uf")
            if found[key] and not fits:
                yield f"key {key!r} holds {dtype.name} numbers, but the manifest lists {info.dtype}"
        size = self._reader.size(self.file)
        if [file.size for file in vouched.files] != [size]:
            yield f"the file has {size} bytes, but the manifest lists {vouched.files[0].size}"

    def _read(self, begin: int, end: int, key: str) -> TokenArray:
        cuts = cut_at_bounds(self._bounds[key], np.array([begin]), end - begin)
        parts = zip(cuts.parts.tolist(), cuts.firsts.tolist(), cuts.lengths.tolist(), strict=True)
        pieces = [self._record(number)[key][first : first + count] for number, first, count in parts if count]
        if len(pieces) == 1:
            return pieces[0]
        return read_only(np.concatenate(pieces) if pieces else np.empty(0, self._dtypes[key]))

    def _record(self, number: int) -> dict[str, TokenArray]:
        found = self._recent.get(number)
        if found is None:
            found = self._parse(number)
            if len(self._recent) >= _RECENT_RECORDS:
                self._recent = {}
            self._recent[number] = found
        return found

    def _parse(self, number: int) -> dict[str, TokenArray]:
        begin, end = int(self._index.offsets[number]), int(self._index.ends[number])
        line = self._reader.read(self.file, begin, end - begin).tobytes()
        try:
            found = {key: as_array(values, self._dtypes[key]) for key, values in decode_record(line)[0].items()}
            lengths = {key: int(np.diff(bounds[number : number + 2])[0]) for key, bounds in self._bounds.items()}
            if {key: len(values) for key, values in found.items()} == lengths:
                return found
            problem = f"its lists have other lengths than {lengths}, which its index says"
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, KeyError) as error:
            problem = str(error)
        if self._vouched is None:
            advice = "the index belongs to another file; remove it"
        else:
            advice = "the file differs from the one that its manifest lists"
        raise StoreError(f"{self.file}: document {number}, byte {begin}: {problem}; {advice}")


def open_json(
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    using: str | Reader = "mmap",
    vouched: OutputShard | None = None,
) -> JsonlStore:
    """Open a ``.jsonl`` file as a store; the arguments are those of `JsonlStore`.

    Raises:
        StoreError: the file is not JSON lines. If it is one JSON object of lists of lists, the message names the
            command that converts it.
        ConfigError: there is no such key.
    """
    name = os.fspath(path)
    using = reader(using)
    if vouched is None and (name.endswith(".json") or is_object(name, using)):
        raise StoreError(
            f"{name}: the file is one JSON object, which cannot be read record by record; convert it into a store with"
            f" `headrace convert {name} FOLDER --format keyed`"
        )
    return JsonlStore(name, key=key, using=using, vouched=vouched)


def is_object(path: str, using: Reader) -> bool:
    """Return whether a ``.jsonl`` is a single JSON object of lists of lists: AstrAI used this suffix for both."""
    head = using.read(path, 0, min(using.size(path), 4096)).tobytes()
    # In a record, the first list begins with a number or is empty; in such an object, it begins with another list.
    values = b"".join(head.split()).partition(b":")[2]
    return values.startswith(b"[[")


class JsonlWriter(KeysWriter):
    """Writes one ``.jsonl``, in which each document is a record, ``{"tokens":[1,2,3],"loss_mask":[0,1,1]}``.

    JSON lines are for small data.

    Truth values are written as ``true`` and ``false``, and a float as the shortest decimal that its dtype reads back as
    the same number, so the float32 0.8 is ``0.8``. Writing takes about 1 us a document and 50 ns a number.

    Args:
        path: path that ends in ``.jsonl``; its folder must exist. A file of this name is replaced at `finish`.
        dtypes: dtype of each key, in the order of the keys in a record. The file itself does not hold the dtypes: read
            without a manifest, its numbers are int64, float64 or bool.
        values: keys whose values are not ids of a vocabulary but masks, lengths or rewards; a manifest records this.

    Raises:
        ConfigError: the path has another suffix, there are no keys, a name cannot be a key, or the format does not have
            a dtype.
        OutputError: the system reports an error.

    Example:
        >>> with headrace.stores.JsonlWriter("two.jsonl", dtypes={"tokens": "int32"}) as writer:
        ...     writer.add_documents({"tokens": np.array([5, 6, 7])}, {"tokens": np.array([1, 2])})
        ...     shard = writer.finish()
        >>> shard.num_documents, shard.num_tokens
        (2, 3)
    """

    format = "jsonl"

    def __init__(
        self, path: str | os.PathLike[str], *, dtypes: Mapping[str, DTypeLike], values: Collection[str] = ()
    ) -> None:
        super().__init__(path, dtypes, values, suffixes=(".jsonl",))
        for key, dtype in self._dtypes.items():
            try:
                check_jsonl_dtype(dtype)
            except ConfigError as error:
                raise ConfigError(f"{self._path}: key {key!r}: {error}") from None
        self._encoder = msgspec.json.Encoder()
        self._file = AtomicFile(self._path)

    def _write(self, documents: CheckedDocuments) -> None:
        numbers = {key: _numbers(values, self._path, key) for key, (values, _) in documents.items()}
        ends = {key: [0, *np.cumsum(lengths).tolist()] for key, (_, lengths) in documents.items()}
        count = len(next(iter(ends.values()))) - 1
        records = [
            {key: numbers[key][bounds[at] : bounds[at + 1]] for key, bounds in ends.items()} for at in range(count)
        ]
        self._file.write(self._encoder.encode_lines(records))

    def _commit(self) -> tuple[FileSum, ...]:
        if not self.num_documents:
            raise ConfigError(f"{self._path}: no document was added, and a file without records is not a store")
        self._file.commit()
        return (self._file.sum,)

    def _remove(self) -> None:
        self._file.discard()


def check_jsonl_dtype(dtype: np.dtype[Any]) -> None:
    """Raise ConfigError for uint64, whose numbers `JsonlStore` cannot read: it reads signed integers of 64 bits."""
    if dtype == np.uint64:
        raise ConfigError("uint64 cannot be written as JSON lines, whose integers must be below 2^63: choose int64")


def _numbers(values: NDArray[Any], path: Path, key: str) -> list[Any]:
    """Return the values as Python objects that are written as JSON."""
    if values.dtype.kind != "f":
        return list(values.tolist())
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise InputError(
            f"{path}: key {key!r}: the value {values[wrong[0]]} cannot be written as JSON; it is not finite"
        )
    # str returns the shortest decimal for the dtype; the float64 of a float32 would have nine more digits.
    return list(values.tolist()) if values.dtype == np.float64 else [float(str(value)) for value in values]
