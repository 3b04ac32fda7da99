"""Which shards a dataset has, and how many samples are in each: ``.nv-meta/.info.json``, before 7.0 ``.info.yaml``."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.errors import StoreError
from headrace.io import atomic_write, safe_relative
from headrace.stores.energon.config_file import as_map, described, near, read_config
from headrace.stores.energon.layout import INFO_NAME, META_FOLDER, OLD_INFO_NAME

_KEYS: Final = ("energon_version", "shard_counts")
_MAX_COUNT: Final = 1 << 40
"""A tar of so many samples has 500 TB of headers alone."""

_log = logging.getLogger("headrace")


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """The shards of a dataset.

    Attributes:
        shard_counts: name relative to the dataset -> its number of samples; its order numbers the shards of the index.
        energon_version: of the tool that prepared them.
        path: the file it was read from.
    """

    shard_counts: dict[str, int]
    energon_version: str | None = None
    path: Path


def read_info(root: Path, *, strict: bool = True) -> Info:
    """The info of a dataset; a ``.info.json`` wins over a ``.info.yaml``.

    Args:
        root: the folder of the dataset.
        strict: refuse unknown keys, as Energon does; else warn.

    Raises:
        StoreError: there is none, or it is malformed, or a name leaves the folder.
    """
    for name in (INFO_NAME, OLD_INFO_NAME):
        path = root / META_FOLDER / name
        try:
            found = read_config(path)
        except FileNotFoundError:
            continue
        return _checked(as_map(found, str(path)), path, strict)
    raise StoreError(
        f"{root / META_FOLDER / INFO_NAME}: missing, and no {OLD_INFO_NAME} either; a dataset of tar shards is prepared"
        f" with headrace prepare or energon prepare"
    )


def write_info(root: Path, shard_counts: Mapping[str, int], energon_version: str | None) -> None:
    """Write ``.nv-meta/.info.json``, byte for byte as Energon does.

    Raises:
        OutputError: the system refuses.
    """
    content = {"energon_version": energon_version, "shard_counts": dict(shard_counts)}
    atomic_write(root / META_FOLDER / INFO_NAME, json.dumps(content, indent=2).encode())


def check_keys(found: Mapping[str, Any], known: tuple[str, ...], where: str, strict: bool) -> None:
    """Refuse keys that are not known, or warn of them.

    Raises:
        StoreError: ``strict`` and there is one; names the nearest known one.
    """
    for key in found:
        if key not in known:
            message = f"{where}: unknown key {key!r}{near(key, known)}"
            if strict:
                raise StoreError(message + "; Energon refuses it too; strict=False passes over it")
            _log.warning("%s; it is passed over", message)


def _checked(found: dict[str, Any], path: Path, strict: bool) -> Info:
    where = str(path)
    check_keys(found, _KEYS, where, strict)
    if "shard_counts" not in found:
        raise StoreError(f"{where}: has no shard_counts, which says how many samples each shard has")
    counts = as_map(found["shard_counts"], f"{where}: shard_counts")
    for name, count in counts.items():
        try:
            safe_relative(name)
        except StoreError as error:
            raise StoreError(f"{where}: shard_counts: {error}") from error
        if type(count) is not int or not 0 <= count <= _MAX_COUNT:
            raise StoreError(
                f"{where}: shard_counts: {name!r} must have a number of samples, 0 to 2^40, found {described(count)}"
            )
    version = found.get("energon_version")
    if version is not None and not isinstance(version, str):
        version = str(version)  # 7.0 in the YAML of a former version is a number
    return Info(shard_counts=counts, energon_version=version, path=path)
