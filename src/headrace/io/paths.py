"""File names: their defined order, the expansion of ``{000..127}``, and checks of names that come from data.

Numbers of bytes as people write them: ``500MB``, ``1GiB``.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import re
import stat
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

from headrace.errors import ConfigError, StoreError

_UNITS: Final = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgtp", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgtp", 1)},
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
_LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase
_NUMBERS: Final = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?", re.ASCII)
_CHARACTERS: Final = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?", re.ASCII)
_ESCAPED: Final = re.compile(r"\\(.)")

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
    """Return the names that a pattern stands for, as shells and Python's ``braceexpand`` expand braces.

    The last braces vary fastest. Numbers are padded as soon as one of the two begins with a zero; braces may be nested,
    ranges may have a step and may count down, and a backslash is for what follows it: ``\\{`` is a brace in a name.
    Braces that hold neither a range nor a comma are left as they are, since they may be part of a name.

        >>> expand_braces("{train,valid}-{08..10}")
        ['train-08', 'train-09', 'train-10', 'valid-08', 'valid-09', 'valid-10']

    Raises:
        ConfigError: braces do not match, or the pattern stands for more than ``MAX_EXPANDED`` names.
    """
    if "{" not in pattern and "}" not in pattern and "\\" not in pattern:
        return [pattern]
    return list(_expanded(pattern, pattern))


def _too_many(pattern: str) -> ConfigError:
    return ConfigError(f"{pattern!r} stands for more than {MAX_EXPANDED:,} names, which is the limit")


def safe_relative(name: str) -> str:
    """Return a name that comes from data (a manifest, an archive) unchanged, if it stays below its folder.

    Raises:
        StoreError: the name is absolute or empty, or has a part ``..``, ``.`` or an empty one, a backslash, or a NUL
            byte.
    """
    if "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise StoreError(f"{name!r} is not a plain relative name; names that come from data may not leave their folder")
    return name


def _expanded(pattern: str, whole: str) -> Iterator[str]:
    choices: list[list[str]] = []
    begin = literal = depth = 0
    for at, character, depth in _marks(pattern):
        if character == "{" and depth == 1:
            begin = at
        elif character == "}" and depth == 0:
            choices += [pattern[literal:begin]], _choices(pattern[begin + 1 : at], whole)
            literal = at + 1
    if depth:
        raise ConfigError(f"the braces of {whole!r} do not match; write \\{{ or \\}} for a brace in a name")
    if math.prod(map(len, choices)) > MAX_EXPANDED:
        raise _too_many(whole)
    for parts in itertools.product(*choices, [pattern[literal:]]):
        # Each level removes its escapes, so escapes within braces are removed twice, as in braceexpand.
        yield _ESCAPED.sub(r"\1", "".join(parts))


def _marks(pattern: str) -> Iterator[tuple[int, str, int]]:
    """Yield place and character of what is not escaped, and how many braces are open behind it."""
    depth = at = 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 2
            continue
        depth += (pattern[at] == "{") - (pattern[at] == "}")
        yield at, pattern[at], depth
        at += 1


def _choices(inside: str, whole: str) -> list[str]:
    if counted := _NUMBERS.fullmatch(inside):
        return _numbers(counted[1], counted[2], counted[3], whole)
    if lettered := _CHARACTERS.fullmatch(inside):
        first, last, step = lettered[1], lettered[2], int(lettered[3] or 1) or 1
        begin, end = _LETTERS.index(first), _LETTERS.index(last)
        return [_LETTERS[at] for at in _steps(begin, end, step)]
    items = list(_items(inside))
    if len(items) == 1:  # neither a range nor a list, so the braces are part of the name
        return ["{" + name + "}" for name in _expanded(inside, whole)]
    return [name for item in items for name in _expanded(item, whole)]


def _numbers(first: str, last: str, step: str | None, whole: str) -> list[str]:
    padded = any(text not in ("0", "-0") and text.startswith(("0", "-0")) for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    begin, end, by = int(first), int(last), int(step or 1) or 1
    if abs(end - begin) // by >= MAX_EXPANDED:
        raise _too_many(whole)
    return [f"{number:0{width}d}" for number in _steps(begin, end, by)]


def _steps(first: int, last: int, step: int) -> range:
    return range(first, last + 1, step) if first < last else range(first, last - 1, -step)


def _items(inside: str) -> Iterator[str]:
    """Yield the items that are separated by commas outside inner braces."""
    begin = 0
    for at, character, depth in _marks(inside):
        if character == "," and depth == 0:
            yield inside[begin:at]
            begin = at + 1
    yield inside[begin:]


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
