"""Decides which documents are kept: by their length, by a function of the user's, and each text only once.

A document that breaks several rules is counted under the first of ``min_chars``, ``max_chars``, ``filter`` (or
``filter:<reason>``, if the function returns a reason), ``min_tokens``, ``max_tokens``.

Exact duplicates are found by the 128-bit hashes of their texts (`SeenHashes`). The hashes are kept in sorted runs, each
at least `_RATIO` times as long as the next. A new batch becomes the last run, and the last run is merged into the one
before it, in place, for as long as the ratio is too small. The lengths of the runs for batches of 10 new hashes and
ratio 8:

    10  20  30 ... 80  80+10  100 ... 160  160+10  160+20  190 ... 640  640+10 ... 640+80  640+80+10  740

A look-up is a short bisection in each run, and there are at most log8(n / batch) + 2 runs. Two texts count as equal if
their hashes are equal: among 10^9 different texts the chance of one wrong pair is about 10^-21, unless somebody
constructs it.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.config import nearest
from headrace.errors import ConfigError, HeadraceError, InputError, StoreError
from headrace.io import hash_bytes
from headrace.preparing.sources.block import Block


def load_function(name: str) -> Callable[..., Any]:
    """Import ``package.module:function``. As with ``python -m``, the current folder is searched first.

    The folder stays in ``sys.path``, so that worker processes, which inherit ``sys.path``, find the same function.

    Raises:
        ConfigError: the name has another form, the module or function does not exist, the import fails, or the object
            is not callable.
    """
    module_name, colon, path = name.partition(":")
    if not colon or not _is_dotted(module_name) or not _is_dotted(path):
        raise ConfigError(f"{name!r} does not name a function: write module:function, such as my_filters:is_english")
    found: Any = _load_module(module_name, name)
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            known = [key for key, value in vars(found).items() if callable(value)] if hasattr(found, "__dict__") else []
            where = getattr(sys.modules[module_name], "__file__", None) or module_name
            raise ConfigError(f"{name!r}: {where} has no {attribute!r}{nearest(attribute, known)}")
        found = getattr(found, attribute)
    if not callable(found):
        raise ConfigError(f"{name!r} is not a function but of type {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def function_fingerprint(name: str) -> str:
    """Hex digest of a function's source, which tells whether it has changed.

    It covers the module that the name gives and the module that defines the function, but not what they import.

    Raises:
        ConfigError: see `load_function`.
    """
    function = load_function(name)
    modules = {name.partition(":")[0], getattr(inspect.unwrap(function), "__module__", None) or ""}
    return hash_bytes(b"".join(sorted(_content(module).encode() for module in modules if module in sys.modules)))


def _load_module(module_name: str, name: str) -> Any:
    folder = str(Path.cwd())
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(missing + "."):
            hint = nearest(missing, _modules_here())
            raise ConfigError(
                f"{name!r}: there is no module {missing!r}, neither in the current folder nor installed{hint}"
            ) from None
        raise ConfigError(f"{name!r}: the module cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise ConfigError(f"{name!r}: the module cannot be imported: {type(error).__name__}: {error}") from error


def _modules_here() -> list[str]:
    with os.scandir() as entries:
        return [entry.name.removesuffix(".py") for entry in entries if entry.name.endswith(".py") or entry.is_dir()]


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _content(module_name: str) -> str:
    """The hash of a module's file; for a module without a file, such as a built-in one, its name."""
    file = getattr(sys.modules[module_name], "__file__", None)
    try:
        return hash_bytes(Path(file).read_bytes()) if file else f"{module_name} of Python {sys.version}"
    except OSError:  # inside a zip
        return str(file)


__all__ = ["FilterSpec", "Filters", "check_filters", "function_fingerprint", "load_function"]

MAX_REASON_CHARS = 100
_MAX_MESSAGE_CHARS = 200

IntArray = NDArray[np.int64]


class FilterSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which documents are kept. The limits are inclusive, and apply to all fields of a record together.

    Example:
        >>> filters = headrace.preparing.FilterSpec(min_chars=200, max_tokens=100_000)
        >>> headrace.preparing.TextOptions(filters=filters).filters.min_chars
        200
    """

    min_chars: int | None = None
    """The fewest characters (code points of Unicode) of a document."""

    max_chars: int | None = None

    min_tokens: int | None = None
    """The fewest tokens of a document, without those that are added at its begin and end."""

    max_tokens: int | None = None

    function: str | None = None
    """``module:function``. It is called with each record as a dict, and returns True to keep the record, False to drop
    it, or the reason for dropping it as a short str."""


def check_filters(spec: FilterSpec) -> None:
    """Refuse impossible limits. The function is not checked here, but by `load_function`.

    Raises:
        ConfigError: a negative limit, or a minimum above its maximum.
    """
    for unit in ("chars", "tokens"):
        low, high = getattr(spec, f"min_{unit}"), getattr(spec, f"max_{unit}")
        for name, limit in ((f"min_{unit}", low), (f"max_{unit}", high)):
            if limit is not None and limit < 0:
                raise ConfigError(f"{name} is {limit}: a length is at least 0")
        if low is not None and high is not None and low > high:
            raise ConfigError(f"min_{unit} is {low}, above max_{unit}, which is {high}: no document would be kept")


class Filters:
    """The rules of a `FilterSpec`, with the user's function loaded.

    Attributes:
        failures: the records on which the function failed in the last call of `by_record`, each as its index in the
            block and a message.

    Raises:
        ConfigError: the function cannot be loaded.
    """

    def __init__(self, spec: FilterSpec) -> None:
        self.spec = spec
        self.failures: list[tuple[int, str]] = []
        self._function: Callable[[Mapping[str, Any]], object] | None = (
            load_function(spec.function) if spec.function is not None else None
        )

    def by_record(self, block: Block, columns: Sequence[Sequence[str]] | None = None) -> list[tuple[int, str]]:
        """Apply ``min_chars``, ``max_chars`` and the function, which sees only records of allowed length.

        Args:
            block: n records.
            columns: the texts as they will be tokenised, if these are not ``block.texts``.

        Returns:
            Index and reason of each record to drop, ascending, without those in `failures`.
        """
        low, high = self.spec.min_chars, self.spec.max_chars
        num_records = len(block.lines)
        reason_of: dict[int, str] = {}
        if low is not None or high is not None:
            num_chars = _num_chars(block.texts if columns is None else columns, num_records)
            reason_of = _out_of_range(num_chars, low, high, "chars")
        self.failures = []
        if self._function is not None:
            if block.records is None or len(block.records) != num_records:
                raise HeadraceError("the filter needs whole records. This is a defect of Headrace: please report it.")
            for index, record in enumerate(block.records):
                if index in reason_of:
                    continue
                reason, message = self._ask(self._function, record)
                if message:
                    self.failures.append((index, message))
                elif reason:
                    reason_of[index] = reason
        return sorted(reason_of.items())

    def by_length(self, num_tokens: IntArray) -> list[tuple[int, str]]:
        """Apply ``min_tokens`` and ``max_tokens``.

        Args:
            num_tokens: (n,) tokens of each record, all fields together, without those added at its begin and end.

        Returns:
            Index and reason of each record to drop, ascending.
        """
        return sorted(_out_of_range(num_tokens, self.spec.min_tokens, self.spec.max_tokens, "tokens").items())

    def _ask(self, function: Callable[[Mapping[str, Any]], object], record: Mapping[str, Any]) -> tuple[str, str]:
        """The reason to drop the record, and an error message; both are empty if the record is kept."""
        try:
            answer = function(record)
        except (Exception, SystemExit) as error:
            return "", f"filter {self.spec.function} failed: {_describe(error)}"
        if isinstance(answer, bool | np.bool_):
            return ("" if answer else "filter"), ""
        if isinstance(answer, str) and 0 < len(answer) <= MAX_REASON_CHARS and answer.isprintable():
            return f"filter:{answer}", ""
        shown = f"{type(answer).__name__} {answer!r}"[:_MAX_MESSAGE_CHARS]
        return "", (
            f"filter {self.spec.function} returned {shown if answer is not None else 'None'}: it must return True to "
            f"keep the record, False to drop it, or the reason as a str of 1 to {MAX_REASON_CHARS} printable characters"
        )


def _num_chars(columns: Sequence[Sequence[str]], num_records: int) -> IntArray:
    num_chars = np.zeros(num_records, np.int64)
    for texts in columns:
        num_chars += np.fromiter(map(len, texts), np.int64, num_records)
    return num_chars


def _out_of_range(lengths: IntArray, low: int | None, high: int | None, unit: str) -> dict[int, str]:
    reason_of: dict[int, str] = {}
    if low is not None:
        reason_of |= dict.fromkeys(np.flatnonzero(lengths < low).tolist(), f"min_{unit}")
    if high is not None:
        reason_of |= dict.fromkeys(np.flatnonzero(lengths > high).tolist(), f"max_{unit}")
    return reason_of


def _describe(error: BaseException) -> str:
    """The type and message of an error, and the line of the user's code that raised it, all in one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_MESSAGE_CHARS]
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first frame is our call
    if not frames:
        return text
    last = frames[-1]
    # The folder is left out: the message goes into the manifest, whose bytes must not depend on where files lie.
    return f"{text} ({Path(last.filename).name}, line {last.lineno}: {last.line})"


HashArray = NDArray[np.uint64]
"""(n, 2) uint64: the high and low half of each 128-bit hash."""

HASH_BYTES = 16
IndexArray = NDArray[np.int64]
_RATIO = 8
_CHUNK = 1 << 16
"""Hashes of a run that a merge moves at a time; the working memory of a merge is a few times as much."""

_PAIR = np.dtype("V16")
"""Both halves as one item, which NumPy moves several times as fast as rows of two."""

_LOAD = 1 << 20
"""Hashes read at a time."""


def hash_texts(columns: Sequence[Sequence[str]]) -> HashArray:
    """The hash of each record: xxh3_128 of its text in UTF-8, or, for several fields, of the 16-byte hashes in a row.

    Since the fields are hashed separately, ``("ab", "c")`` and ``("a", "bc")`` differ.

    Args:
        columns: for each field the texts of the n records.

    Returns:
        (n, 2) uint64, high and low half.
    """
    digests = [[xxhash.xxh3_128_digest(text.encode()) for text in texts] for texts in columns]
    if len(digests) > 1:
        digests = [[xxhash.xxh3_128_digest(b"".join(row)) for row in zip(*digests, strict=True)]]
    data = b"".join(digests[0]) if digests else b""
    return np.frombuffer(data, ">u8").astype(np.uint64).reshape(-1, 2)


class SeenHashes:
    """A set of hashes that tells for each added hash whether it is new.

    Measured memory: 16.2 bytes for each hash; at the peak of a merge 23 with 10^6 hashes, and below 19 from 10^7 on.
    It adds one to two million hashes per CPU second in batches of some thousands; small batches cost more.
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the hashes take."""
        return sum(run.num_bytes for run in self._runs)

    def add(self, hashes: HashArray) -> NDArray[np.bool_]:
        """Add hashes, and tell which are new.

        Args:
            hashes: (n, 2) uint64, as `hash_texts` returns them.

        Returns:
            (n,) bool, True where a hash is seen for the first time; among equal hashes of the batch, the first one.
        """
        is_first = np.zeros(len(hashes), np.bool_)
        if not len(hashes):
            return is_first
        order = _first_of_each(hashes)
        batch = hashes[order]
        is_new = np.ones(len(batch), np.bool_)
        for run in self._runs:
            is_new &= ~run.contains(batch)
        is_first[order[is_new]] = True
        if is_new.any():
            self._runs.append(_Run(batch[is_new]))
            self._settle()
        return is_first

    @classmethod
    def load(cls, path: str | Path, num_hashes: int | None = None) -> SeenHashes:
        """Load hashes from a file that holds each as 16 bytes, two little-endian uint64.

        Args:
            path: the file; it may hold more hashes than are loaded.
            num_hashes: how many hashes to load, from the beginning of the file; None loads all.

        Raises:
            InputError: the file cannot be read.
            StoreError: the file is shorter, ends within a hash, or holds one twice.
        """
        seen = cls()
        try:
            with Path(path).open("rb") as file:
                if num_hashes is None:
                    num_hashes = -(-os.fstat(file.fileno()).st_size // HASH_BYTES)
                while len(seen) < num_hashes:
                    wanted = min(_LOAD, num_hashes - len(seen))
                    values = np.fromfile(file, "<u8", 2 * wanted)
                    if len(values) < 2 * wanted:
                        found = len(seen) + len(values) // 2
                        raise StoreError(
                            f"{path}: {num_hashes:,} hashes of {HASH_BYTES} bytes should be there, found {found:,}; "
                            "the file was cut short: start the run over with --restart"
                        )
                    if not seen.add(values.astype(np.uint64).reshape(-1, 2)).all():
                        raise StoreError(
                            f"{path}: a hash is there twice, but each is stored only once; the file was changed: "
                            "start the run over with --restart"
                        )
        except OSError as error:
            raise InputError(f"{path}: the hashes cannot be read: {error.strerror or error}") from error
        return seen

    def _settle(self) -> None:
        """Merge from the end until each run is at least `_RATIO` times as long as the next."""
        runs = self._runs
        while len(runs) > 1 and len(runs[-1]) * _RATIO > len(runs[-2]):
            small = runs.pop()
            runs[-1].merge(small.hashes)


def _first_of_each(hashes: HashArray) -> IndexArray:
    """The index of the first occurrence of each different hash, in the order of the hashes."""
    high, low = hashes[:, 0], hashes[:, 1]
    order = np.argsort(high, kind="stable")
    sorted_high, sorted_low = high[order], low[order]
    same_high = sorted_high[1:] == sorted_high[:-1]
    if not same_high.any():
        return order
    same = same_high & (sorted_low[1:] == sorted_low[:-1])
    if not np.array_equal(same, same_high):
        order = np.lexsort((low, high))
        same = (high[order][1:] == high[order][:-1]) & (low[order][1:] == low[order][:-1])
    return order[np.concatenate(([True], ~same))]


class _Run:
    """Different hashes in ascending order, with a directory that tells for each value of their first bits where the
    hashes with these bits begin.

    The directory has an entry for every 32 to 64 hashes, so that a look-up touches two or three places in memory, not
    twenty.
    """

    def __init__(self, hashes: HashArray) -> None:
        self.hashes = np.ascontiguousarray(hashes, np.uint64)
        self._index()

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the hashes and the directory take."""
        return self.hashes.nbytes + self._begins.nbytes

    def contains(self, hashes: HashArray) -> NDArray[np.bool_]:
        """(n,) bool: whether each hash is in the run."""
        buckets = (hashes[:, 0] >> self._shift).astype(np.int64)
        at = _lower_bounds(self.hashes, hashes, self._begins[buckets], self._begins[buckets + 1])
        flat = self.hashes.reshape(-1)
        place = 2 * np.minimum(at, len(self) - 1)
        same: NDArray[np.bool_] = flat.take(place) == hashes[:, 0]
        if same.any():
            same &= flat.take(place + 1) == hashes[:, 1]
        return same

    def merge(self, added: HashArray) -> None:
        """Merge sorted hashes into this run, none of which may be in it already.

        The run grows in place (the system moves pages, not bytes) and is filled from the end, one chunk at a time, so
        that the peak of memory is the result and a few chunks.
        """
        end, rest = len(self), len(added)
        self.hashes.resize((end + rest, 2), refcheck=False)
        while rest:
            begin = max(end - _CHUNK, 0)
            chunk = self.hashes[begin:end].copy()
            # Hashes that belong before the chunk are left for the next chunk.
            first = int(_positions(added[:rest], chunk[:1])[0]) if begin else 0
            places = _positions(chunk, added[first:rest]) + np.arange(rest - first)
            is_old = np.ones(len(chunk) + rest - first, np.bool_)
            is_old[places] = False
            merged = self.hashes[begin + first : end + rest].view(_PAIR)[:, 0]
            merged[is_old] = chunk.view(_PAIR)[:, 0]
            merged[places] = added[first:rest].view(_PAIR)[:, 0]
            end, rest = begin, first
        self._index()

    def _index(self) -> None:
        bits = max(len(self).bit_length() - 6, 1)
        self._shift = np.uint64(64 - bits)
        firsts = np.arange(1 << bits, dtype=np.uint64) << self._shift
        self._begins = np.append(np.searchsorted(self.hashes[:, 0], firsts), len(self))


def _positions(run: HashArray, hashes: HashArray) -> IndexArray:
    """(n,) the number of hashes in the sorted run that are smaller than each hash."""
    high = np.ascontiguousarray(run[:, 0])
    begins = np.searchsorted(high, hashes[:, 0])
    ends = np.searchsorted(high, hashes[:, 0], side="right")
    return _lower_bounds(run, hashes, begins, ends)


def _lower_bounds(run: HashArray, hashes: HashArray, begins: IndexArray, ends: IndexArray) -> IndexArray:
    """(n,) each hash's first index in ``[begin, end)`` of the sorted run that is not smaller, or ``end``."""
    flat = run.reshape(-1)
    high, low = np.ascontiguousarray(hashes[:, 0]), np.ascontiguousarray(hashes[:, 1])
    # Bisection for all hashes at once: steps of 2^k, 2^(k-1), ..., 1, each taken if it stays among smaller hashes.
    step = 1 << int((ends - begins).max(initial=0)).bit_length()
    while step := step >> 1:
        tried = begins + step
        last = 2 * tried - 2
        found = flat.take(last, mode="clip")
        less = found < high
        same = found == high
        if same.any():
            less |= same & (flat.take(last + 1, mode="clip") < low)
        begins = np.where(less & (tried <= ends), tried, begins)
    return begins
