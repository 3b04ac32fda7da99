"""File names: their defined order, the expansion of ``{000..127}``, and checks of names that come from data.

Numbers of bytes as people write them: ``500MB``, ``1GiB``.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from headrace.errors import ConfigError, StoreError

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "pb": 10**15,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "pib": 1 << 50,
}


def parse_size(value: str | int, what: str) -> int:
    """Return a number of bytes, given as a number or as a text such as ``1000000``, ``500MB`` or ``1GiB``.

    Raises:
        ConfigError: this is not a size of at least 1 byte; the message begins with ``what``.

    Example:
        >>> headrace.io.parse_size("1.5GiB", "limit") == 3 << 29
        True
    """
    found = 0
    if isinstance(value, int):
        found = value
    else:
        digits = value.rstrip("BGKMTPIbgkmtpi ")
        unit = _UNITS.get(value[len(digits) :].strip().lower())
        try:
            found = round(float(digits) * unit) if unit is not None else 0
        except (ValueError, OverflowError):
            found = 0
    if found < 1:
        raise ConfigError(f"{what} {value}: write a number of bytes, or a size such as 500MB or 1GiB")
    return found


MAX_EXPANDED = 1_000_000
"""A pattern that stands for more names than this is taken for a typing error."""

MAX_SMALL_BYTES: Final = 1 << 30
"""A file that is read whole, such as YAML, JSON or the file of a run, has at most this size."""

_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}

_DIGITS = re.compile(r"([0-9]+)")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")

NaturalKey = tuple[tuple[bytes | int, ...], bytes]


class HasBytes(Protocol):
    """A path whose file can be read whole."""

    def read_bytes(self) -> bytes:
        """Return the content of the file; raises OSError."""


def check_kind(path: str | os.PathLike[str]) -> os.stat_result:
    """Raise OSError for a FIFO, a device or a socket, whose reader may wait or read for ever. It is not opened."""
    status = Path(path).stat()
    if (kind := _KINDS.get(stat.S_IFMT(status.st_mode))) is not None:
        raise OSError(errno.EINVAL, f"it is {kind}; expected a regular file", os.fspath(path))
    return status


def read_small(path: HasBytes) -> bytes:
    """Return the content of a file that is read whole, such as YAML, JSON or the file of a run.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it is no regular file or has more than `MAX_SMALL_BYTES`, and was not opened; or it cannot be read.
    """
    if isinstance(path, Path) and (size := check_kind(path).st_size) > MAX_SMALL_BYTES:
        message = f"it has {size:,} bytes; a file of this kind has at most {MAX_SMALL_BYTES:,}"
        raise OSError(errno.EFBIG, message, str(path))
    return path.read_bytes()


def holds(ask: Callable[[], bool]) -> bool:
    """Return the answer of ``path.exists`` or ``path.is_file``; False if the name is too long for any file."""
    try:
        return ask()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def natural_key(name: str) -> NaturalKey:
    """Return the sort key of a shard or input file: digits compare as integers, all else as UTF-8 bytes.

    The order depends only on the names, never on the locale or on the order in which the folder lists them. Only ASCII
    digits count as digits. Names whose numbers are equal (``a1``, ``a01``) compare by their bytes, so the order is
    total.

        >>> sorted(["part-10", "part-9", "part-09"], key=natural_key)
        ['part-09', 'part-9', 'part-10']
    """
    parts = _DIGITS.split(name)
    # The split alternates text and digits and begins with text, so equal positions hold equal types.
    key = tuple(int(part) if at % 2 else _utf8(part) for at, part in enumerate(parts))
    return key, _utf8(name)


def expand_braces(pattern: str) -> list[str]:
    """Return the names that a pattern stands for: ``{000..127}`` counts, ``{a,b}`` lists alternatives.

    The last braces vary fastest. Numbers are padded to the width of the range's first number. Braces that hold neither
    a range nor a comma are left as they are, since they may be part of a name.

        >>> expand_braces("{train,valid}-{08..10}")
        ['train-08', 'train-09', 'train-10', 'valid-08', 'valid-09', 'valid-10']

    Raises:
        ConfigError: a range counts down, or the pattern stands for more than ``MAX_EXPANDED`` names.
    """
    # re.split with one group alternates plain text and the insides of braces.
    parts = _BRACES.split(pattern)
    choices = [_choices(part, pattern) if at % 2 else [part] for at, part in enumerate(parts)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MAX_EXPANDED:
        raise ConfigError(f"{pattern!r} stands for {count:,} names; at most {MAX_EXPANDED:,} are allowed")
    return ["".join(parts) for parts in itertools.product(*choices)]


def safe_relative(name: str) -> str:
    """Return a name that comes from data (a manifest, an archive) unchanged, if it stays below its folder.

    Raises:
        StoreError: the name is absolute or empty, or has a part ``..``, ``.`` or an empty one, a backslash, or a NUL
            byte.
    """
    if "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise StoreError(f"{name!r} is not a plain relative name; names that come from data may not leave their folder")
    return name


def _choices(inside: str, pattern: str) -> list[str]:
    counted = _RANGE.fullmatch(inside)
    if counted is None:
        return inside.split(",") if "," in inside else ["{" + inside + "}"]
    first, last = int(counted[1]), int(counted[2])
    if first > last:
        raise ConfigError(f"the range {{{inside}}} in {pattern!r} counts down; write {{{counted[2]}..{counted[1]}}}")
    if last - first >= MAX_EXPANDED:
        raise ConfigError(f"the range {{{inside}}} in {pattern!r} has over {MAX_EXPANDED:,} names")
    width = len(counted[1])
    return [f"{number:0{width}d}" for number in range(first, last + 1)]


def _utf8(name: str) -> bytes:
    # Python decodes file names that are not UTF-8 with surrogates; this restores their bytes.
    return name.encode("utf-8", "surrogateescape")


def cache_folder(kind: str) -> Path | None:
    """Return the cache folder for one kind of file, or None if the user has no home folder.

    It lies in ``$HEADRACE_CACHE`` if that is set, else in ``$XDG_CACHE_HOME/headrace`` or ``~/.cache/headrace``. It is
    not created.
    """
    if named := os.environ.get("HEADRACE_CACHE"):
        return Path(named) / kind
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "headrace" / kind
    try:
        return Path.home() / ".cache" / "headrace" / kind
    except RuntimeError:
        return None
