"""Names of files: their defined order, the expansion of ``{000..127}``, and names that stay in their folder."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

from headrace.errors import ConfigError, StoreError

MAX_EXPANDED = 1_000_000
"""More names than this from one pattern is taken for a slip of the pen."""

_DIGITS = re.compile(r"([0-9]+)")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")

NaturalKey = tuple[tuple[bytes | int, ...], bytes]


def natural_key(name: str) -> NaturalKey:
    """Sort key of shards and input files: runs of ASCII digits compare as integers, all else as UTF-8 bytes.

    The order depends on the names alone, never on the locale or on the folder's own order. Names that are equal
    so far (``a1``, ``a01``) are told apart by their bytes, so it is a total order.

        >>> sorted(["part-10", "part-9", "part-09"], key=natural_key)
        ['part-09', 'part-9', 'part-10']
    """
    parts = _DIGITS.split(name)
    # The split alternates text and digits and begins with text, so equal positions hold equal types.
    key = tuple(int(part) if at % 2 else _utf8(part) for at, part in enumerate(parts))
    return key, _utf8(name)


def check_local(*paths: object) -> None:
    """Refuse paths with a scheme, such as ``s3://bucket/data``, before anything is read or written.

    The files of this machine are all there is; as a path, ``s3://bucket`` would be a folder that is called ``s3:``.
    Such a folder is named by ``./s3:/bucket``. Lists are looked through; what is no path is passed over.

    Raises:
        ConfigError: a path has a scheme, ``file://`` too.
    """
    for path in paths:
        if isinstance(path, list | tuple):
            check_local(*path)
        elif isinstance(path, str) and (found := _SCHEME.match(path)):
            scheme = found[0]
            if scheme.lower() == "file://":
                advice = "leave file:// out and give the path itself"
            else:
                advice = (
                    "object stores and other remote places are not supported yet: copy or mount the data, and give its"
                    f" path (./{path} is a path in a local folder that is called {scheme.removesuffix('//')})"
                )
            raise ConfigError(f"{path}: the scheme {scheme} is not supported; allowed are local paths; {advice}")


def expand_braces(pattern: str) -> list[str]:
    """The names that a pattern stands for: ``{000..127}`` counts, ``{a,b}`` lists; the last braces turn fastest.

    A number is padded to the width of the range's begin. Braces that hold neither a range nor a comma are left as
    they are: they may be part of a name.

        >>> expand_braces("{train,valid}-{08..10}")
        ['train-08', 'train-09', 'train-10', 'valid-08', 'valid-09', 'valid-10']

    Raises:
        ConfigError: a range that counts down, or over ``MAX_EXPANDED`` names.
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
    """The name itself if it stays below its folder, for names that come from data (a manifest, an archive).

    Raises:
        StoreError: an absolute name, ``..``, empty or ``.`` parts, a backslash, or a NUL byte.
    """
    if "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise StoreError(f"{name!r} is not a plain relative name; names from data may not leave their folder")
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
    # Names of files that are not UTF-8 arrive with surrogates; this gives their bytes back.
    return name.encode("utf-8", "surrogateescape")


def cache_folder(kind: str) -> Path | None:
    """A folder in ``$HEADRACE_CACHE``, or in ``headrace`` in the user's cache folder; None: the user has no home."""
    if named := os.environ.get("HEADRACE_CACHE"):
        return Path(named) / kind
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "headrace" / kind
    try:
        return Path.home() / ".cache" / "headrace" / kind
    except RuntimeError:
        return None
