"""Which keys a copy has, and in which dtype each is written. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from headrace.copying.formats import FORMATS, FormatName
from headrace.copying.options import CopyOptions
from headrace.errors import ConfigError
from headrace.stores.arguments import MAIN

GENERIC = frozenset({MAIN, "text", "sequence"})
"""Names of a key that is alone, which say nothing but that: each format has its own."""

Kinds = Sequence[Mapping[str, np.dtype[Any]]]


class CopyKinds(msgspec.Struct, frozen=True, kw_only=True):
    """What is written: the format, the dtype of each key, and what each key is called in each source."""

    format: FormatName
    dtypes: dict[str, str]
    names: tuple[dict[str, str], ...]
    """Of each source: what it calls each key."""

    warnings: tuple[str, ...]


def choose_kinds(paths: Sequence[str], formats: Sequence[str], kinds: Kinds, options: CopyOptions) -> CopyKinds:
    """What to write, from what the sources are and what was asked for.

    Args:
        paths: of the sources, for messages.
        formats: of each, ``"indexed"`` for every kind of pair.
        kinds: dtype of each key, of each.
        options: as said.

    Raises:
        ConfigError: sources that do not go together, or that the format cannot hold.
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
                    f"key {key!r}: {paths[0]} has {found[0].name}, {paths[different]} has {found[different].name}: say"
                    " which to write with --dtype"
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
                f"{paths[0]} is {formats[0]}, {path} is {found}: say which to write with --format"
                f" {' or '.join(FORMATS)}"
            )
    for name in FORMATS:
        if name == formats[0]:
            return name
    raise ConfigError(
        f"{paths[0]} is {formats[0]}, which is read but not written here: say --format {' or '.join(FORMATS)}"
    )


def _names(paths: Sequence[str], kinds: Kinds, chosen: FormatName) -> list[dict[str, str]]:
    """Of each source what it calls each key of the copy, in the order of the first source."""
    if all(len(of) == 1 for of in kinds):
        own = dict.fromkeys(name for of in kinds for name in of if name not in GENERIC)
        if len(own) > 1:
            raise ConfigError(f"the sources have different keys, {', '.join(map(repr, own))}; merge those of one name")
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
            raise ConfigError(f"dtype for the key {name!r}, which is not there; the keys are {', '.join(keys)}")
    return _dtype(asked[key]) if key in asked else None


def _dtype(name: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(name)
    except TypeError as error:
        raise ConfigError(f"dtype={name!r} is no dtype: {error}") from error
    if dtype.kind not in "biuf":
        raise ConfigError(f"dtype={name!r} is not one of numbers")
    return dtype.newbyteorder("<")
