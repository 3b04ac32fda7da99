"""Which documents are kept: by their length, by a function of the user's, and each text once.

A document that breaks several rules is counted under the first of ``min_chars``, ``max_chars``, ``filter`` (or
``filter:<reason>``, where the function says why), ``min_tokens``, ``max_tokens``.

Functions that the user names as ``module:function``: finding them, and telling when their source has changed.

Exact duplicates: which texts of a run were met before, told by their 128-bit hashes.

The hashes lie in sorted runs, each at least `_RATIO` times as long as the next. A batch becomes the last run, and the
last is merged into the one before, in place, while it is too long beside it. Lengths, 10 new hashes at a time, ratio 8:

    10  20  30 ... 80  80+10  100 ... 160  160+10  160+20  190 ... 640  640+10 ... 640+80  640+80+10  740

A look-up is a short bisection a run, and there are at most log8(n / batch) + 2 runs. Two texts count as equal when
their hashes are: among 10^9 different texts the chance of one wrong pair is about 10^-21, unless somebody constructs
it.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ConfigError, HeadraceError, InputError, StoreError
from headrace.io import hash_bytes
from headrace.prepare.sources.block import Block


def load_function(name: str) -> Callable[..., Any]:
    """Import ``package.module:function``; like ``python -m``, with the current folder in front of all others.

    The folder stays in ``sys.path``, so that worker processes which take over ``sys.path`` find the same function.

    Raises:
        ConfigError: not of this form, no such module or name, the import fails, or it is no function.
    """
    module_name, colon, path = name.partition(":")
    if not colon or not _is_dotted(module_name) or not _is_dotted(path):
        raise ConfigError(f"{name!r} names no function: write module:function, such as my_filters:is_english")
    found: Any = _load_module(module_name, name)
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            known = [key for key, value in vars(found).items() if callable(value)] if hasattr(found, "__dict__") else []
            where = getattr(sys.modules[module_name], "__file__", None) or module_name
            raise ConfigError(f"{name!r}: {where} has no {attribute!r}{_nearest(attribute, known)}")
        found = getattr(found, attribute)
    if not callable(found):
        raise ConfigError(f"{name!r} is no function but of type {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def function_fingerprint(name: str) -> str:
    """Hex digest of the source of a function's module, as named and as defined, to tell when it has changed.

    What these modules import is not part of it.

    Raises:
        ConfigError: as `load_function`.
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
            hint = _nearest(missing, _modules_here())
            raise ConfigError(
                f"{name!r}: there is no module {missing!r}, neither in the current folder nor installed{hint}"
            ) from None
        raise ConfigError(f"{name!r}: the module cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:  # whatever the user's module does
        raise ConfigError(f"{name!r}: the module cannot be imported: {type(error).__name__}: {error}") from error


def _modules_here() -> list[str]:
    with os.scandir() as entries:
        return [entry.name.removesuffix(".py") for entry in entries if entry.name.endswith(".py") or entry.is_dir()]


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _content(module_name: str) -> str:
    """The hash of a module's file; of its name where it has none, as built-in ones."""
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
    """What a document must be to be kept. Lengths are inclusive, and of all fields of a record together."""

    min_chars: int | None = None
    """Characters are code points of Unicode."""

    max_chars: int | None = None

    min_tokens: int | None = None
    """Tokens of the text, without those that are added at its begin and end."""

    max_tokens: int | None = None

    function: str | None = None
    """``module:function``; called with each record, a dict, it returns True to keep it, or False to drop it, or the
    reason for dropping it, a short str."""


def check_filters(spec: FilterSpec) -> None:
    """Refuse limits that cannot be. The function is not looked at: `load_function` does.

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
    """The rules, ready to be applied: the user's function is loaded.

    Attributes:
        failures: records of the last `by_record` on which the function failed: index in the block, and what happened.

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
            columns: their texts as they will be tokenised, where that is not ``block.texts``.

        Returns:
            Index and reason of each record to drop, ascending. Those in `failures` are not among them.
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
            num_tokens: (n,) tokens of each record, all fields together, without those that are added.

        Returns:
            Index and reason of each record to drop, ascending.
        """
        return sorted(_out_of_range(num_tokens, self.spec.min_tokens, self.spec.max_tokens, "tokens").items())

    def _ask(self, function: Callable[[Mapping[str, Any]], object], record: Mapping[str, Any]) -> tuple[str, str]:
        """The reason to drop the record, and what went wrong; both empty where it is kept."""
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
    """Kind, message, and the line of the user's code that raised, in one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_MESSAGE_CHARS]
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is our call
    if not frames:
        return text
    last = frames[-1]
    # Without its folder: the message goes into the manifest, whose bytes do not depend on where things lie.
    return f"{text} ({Path(last.filename).name}, line {last.lineno}: {last.line})"


HashArray = NDArray[np.uint64]
"""(n, 2) uint64: the high and the low half of each 128-bit hash."""

HASH_BYTES = 16
IndexArray = NDArray[np.int64]
_RATIO = 8
_CHUNK = 1 << 16
"""Hashes of a run that a merge moves at a time; its working memory is some multiples of this."""

_PAIR = np.dtype("V16")
"""Both halves as one item: NumPy moves these several times as fast as rows of two."""

_LOAD = 1 << 20
"""Hashes read at a time."""


def hash_texts(columns: Sequence[Sequence[str]]) -> HashArray:
    """The hash of each record: xxh3_128 of its text's UTF-8, or of the 16-byte hashes of its texts one after another.

    The second form, for several fields, has no ambiguity: ``("ab", "c")`` and ``("a", "bc")`` differ.

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
    """A set of hashes that says of each new one whether it is the first of its kind.

    Memory, measured: 16.2 bytes a hash, and at the peak of a merge below 19 from 10^7 hashes on, 23 at 10^6. One to two
    million hashes a CPU second in batches of some thousand; small batches cost more.
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
        """(n,) bool: True where a hash is seen for the first time; of equal ones in the batch that is the first.

        Args:
            hashes: (n, 2) uint64, as `hash_texts` gives them.
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
        """The set of the first hashes of a file that holds them as 16 bytes each, two little-endian uint64.

        Args:
            path: the file; it may be longer.
            num_hashes: how many count; None takes all.

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
                            "it was cut short: begin the run anew with --restart"
                        )
                    if not seen.add(values.astype(np.uint64).reshape(-1, 2)).all():
                        raise StoreError(
                            f"{path}: a hash is there twice, but only first ones are kept; it was changed: "
                            "begin the run anew with --restart"
                        )
        except OSError as error:
            raise InputError(f"{path}: the hashes cannot be read: {error.strerror or error}") from error
        return seen

    def _settle(self) -> None:
        """Merge from the end until each run is `_RATIO` times as long as the next."""
        runs = self._runs
        while len(runs) > 1 and len(runs[-1]) * _RATIO > len(runs[-2]):
            small = runs.pop()
            runs[-1].merge(small.hashes)


def _first_of_each(hashes: HashArray) -> IndexArray:
    """Places of the first occurrence of each different hash, in the order of the hashes."""
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
    """Different hashes in ascending order, and for each value of their first bits where those begin.

    That directory has an entry for 32 to 64 hashes: a look-up touches two or three places in memory, not twenty.
    """

    def __init__(self, hashes: HashArray) -> None:
        self.hashes = np.ascontiguousarray(hashes, np.uint64)
        self._index()

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        return self.hashes.nbytes + self._begins.nbytes

    def contains(self, hashes: HashArray) -> NDArray[np.bool_]:
        """(n,) bool: the hash is in the run."""
        buckets = (hashes[:, 0] >> self._shift).astype(np.int64)
        at = _lower_bounds(self.hashes, hashes, self._begins[buckets], self._begins[buckets + 1])
        flat = self.hashes.reshape(-1)
        place = 2 * np.minimum(at, len(self) - 1)
        same: NDArray[np.bool_] = flat.take(place) == hashes[:, 0]
        if same.any():
            same &= flat.take(place + 1) == hashes[:, 1]
        return same

    def merge(self, added: HashArray) -> None:
        """Take in sorted hashes, none of which is here.

        The run grows in place (the system moves pages, not bytes) and is filled from the end, a chunk at a time, so
        that the peak of memory is the result and some chunks.
        """
        end, rest = len(self), len(added)
        self.hashes.resize((end + rest, 2), refcheck=False)
        while rest:
            begin = max(end - _CHUNK, 0)
            chunk = self.hashes[begin:end].copy()
            # Those that belong before the chunk stay for the next one.
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
    """(n,) for each hash the number of hashes in the sorted run that are smaller."""
    high = np.ascontiguousarray(run[:, 0])
    begins = np.searchsorted(high, hashes[:, 0])
    ends = np.searchsorted(high, hashes[:, 0], side="right")
    return _lower_bounds(run, hashes, begins, ends)


def _lower_bounds(run: HashArray, hashes: HashArray, begins: IndexArray, ends: IndexArray) -> IndexArray:
    """(n,) for each hash the first place in ``[begin, end)`` of the sorted run that is not smaller, or its end."""
    flat = run.reshape(-1)
    high, low = np.ascontiguousarray(hashes[:, 0]), np.ascontiguousarray(hashes[:, 1])
    # Leaps of 2^k, 2^(k-1), ..., 1, each taken where it stays among the smaller ones.
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
