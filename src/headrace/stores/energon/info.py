"""Reads and writes ``.nv-meta/.info.json`` (before Energon 7.0 ``.info.yaml``): the shards and their sample counts."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.config import describe, unknown_keys
from headrace.errors import StoreError
from headrace.io import atomic_write, safe_relative
from headrace.stores.energon.config_file import INFO_NAME, META_FOLDER, OLD_INFO_NAME, as_map, read_config

_KEYS: Final = ("energon_version", "shard_counts")
_MAX_COUNT: Final = 1 << 40
"""The most samples in a shard; a tar of so many samples would have 500 TB of headers alone."""

_log = logging.getLogger("headrace")


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """The shards of a dataset.

    Attributes:
        shard_counts: number of samples of each shard, by its name relative to the dataset. The index numbers shards in
            this order.
        energon_version: version of the tool that prepared the dataset.
        path: the file from which this was read.
    """

    shard_counts: dict[str, int]
    energon_version: str | None = None
    path: Path


def read_info(root: Path, *, strict: bool = True) -> Info:
    """Read the info file of a dataset; a ``.info.json`` is preferred to a ``.info.yaml``.

    Args:
        root: the folder of the dataset.
        strict: whether unknown keys are an error, as in Energon, or only cause a warning.

    Raises:
        StoreError: there is no info file, it is malformed, or a name leaves the folder.
    """
    for name in (INFO_NAME, OLD_INFO_NAME):
        path = root / META_FOLDER / name
        try:
            found = read_config(path)
        except FileNotFoundError:
            continue
        return _checked_info(as_map(found, str(path)), path, strict)
    raise StoreError(
        f"{root / META_FOLDER / INFO_NAME}: missing, and there is no {OLD_INFO_NAME} either; prepare the dataset with"
        f" headrace prepare or energon prepare"
    )


def write_info(root: Path, shard_counts: Mapping[str, int], energon_version: str | None) -> None:
    """Write ``.nv-meta/.info.json``, byte for byte as Energon does.

    Raises:
        OutputError: the system reports an error.
    """
    content = {"energon_version": energon_version, "shard_counts": dict(shard_counts)}
    atomic_write(root / META_FOLDER / INFO_NAME, json.dumps(content, indent=2).encode())


def refuse_unknown(found: Mapping[str, Any], known: tuple[str, ...], where: str, strict: bool) -> None:
    """Raise an error for unknown keys of a file, or warn of them if not ``strict``.

    Raises:
        StoreError: there is an unknown key, and ``strict`` is set; the message names the nearest known key.
    """
    for message in unknown_keys(found, known, f"{where}: "):
        if strict:
            raise StoreError(f"{message}; Energon refuses it too; open with strict=False to ignore it")
        _log.warning("%s; it is ignored", message)


def _checked_info(found: dict[str, Any], path: Path, strict: bool) -> Info:
    where = str(path)
    refuse_unknown(found, _KEYS, where, strict)
    if "shard_counts" not in found:
        raise StoreError(f"{where}: has no shard_counts, which must say how many samples each shard has")
    counts = as_map(found["shard_counts"], f"{where}: shard_counts")
    for name, count in counts.items():
        try:
            safe_relative(name)
        except StoreError as error:
            raise StoreError(f"{where}: shard_counts: {error}") from error
        if type(count) is not int or not 0 <= count <= _MAX_COUNT:
            raise StoreError(
                f"{where}: shard_counts: {name!r} must have a number of samples, 0 to 2^40, found {describe(count)}"
            )
    version = found.get("energon_version")
    if version is not None and not isinstance(version, str):
        version = str(version)  # in YAML of older versions, 7.0 is a number
    return Info(shard_counts=counts, energon_version=version, path=path)
