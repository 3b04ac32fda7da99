"""Names of the files of an Energon dataset, a reader of its YAML and JSON files in Energon's dialect, and its `Info`.

Energon's YAML has maps, lists and scalars. A plain scalar is null (``null``, ``~``) or a truth value (``true``,
``yes``, ``false``, ``no``), each in upper or lower case. If it contains a ``.`` or an ``e``, it is a number if Python's
``float`` accepts it; otherwise it is an integer if ``int`` accepts it; and everything else is a string. Quoted scalars,
blocks and all keys are strings. Anchors and tags are ignored, and an alias is the string ``"*name"``. A key that occurs
twice in one map is an error, in JSON too; Energon silently uses the last one.

Headrace reads two things on which Energon fails: a missing value (``key:``) is null, and a file may begin with ``---``.

`Info` is what ``.nv-meta/.info.json`` holds (before Energon 7.0 ``.info.yaml``): the shards and their sample counts.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec
import yaml

from headrace.config import describe, unknown_keys, without_repeats
from headrace.errors import StoreError
from headrace.io import AnyPath, read_small, replace_file, safe_relative

MAX_DEPTH: Final = 100
_NULLS: Final = frozenset(("null", "~"))
_TRUTHS: Final = {"true": True, "yes": True, "false": False, "no": False}
_LOADER: Final[Any] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def read_config(path: AnyPath) -> Any:
    """Read a ``.yaml`` or ``.json`` file and return its content.

    Raises:
        FileNotFoundError: there is no such file.
        StoreError: the file cannot be read, is malformed, or has another suffix.
    """
    try:
        data = read_small(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    if path.suffix == ".json":
        try:
            return json.loads(data.decode(), object_pairs_hook=without_repeats)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{path}: not valid JSON: {error}") from error
    if path.suffix != ".yaml":
        raise StoreError(f"{path}: the name of a configuration must end in .yaml or .json; Energon reads no others")
    return read_yaml(data, str(path))


def read_yaml(data: bytes, where: str) -> Any:
    """Parse a YAML document in Energon's dialect.

    Raises:
        StoreError: the data are malformed, hold several documents, or are nested too deeply; the message names
            ``where`` and the line.
    """
    try:
        events = iter(yaml.parse(data.decode(), Loader=_LOADER))
        found = _document(events, where)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise StoreError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from error
    return found


def as_map(value: Any, where: str) -> dict[str, Any]:
    """Return the value if it is a map.

    Raises:
        StoreError: it is something else.
    """
    if not isinstance(value, dict):
        raise StoreError(f"{where}: expected a map, found {describe(value)}")
    return value


def as_strings(value: Any, where: str) -> list[str]:
    """Return the value if it is a list of strings.

    Raises:
        StoreError: it is something else.
    """
    if not isinstance(value, list):
        raise StoreError(f"{where}: expected a list of strings, found {describe(value)}")
    for number, item in enumerate(value):
        if not isinstance(item, str):
            raise StoreError(f"{where}: item {number} must be a string, found {describe(item)}; quote it")
    return value


def _document(events: Iterator[Any], where: str) -> Any:
    found: Any = None
    documents = 0
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise StoreError(f"{where}: holds several documents; a configuration must be one")
        elif isinstance(event, yaml.NodeEvent):
            found = _value(event, events, where, 0)
    return found


def _value(event: Any, events: Iterator[Any], where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise StoreError(f"{where}: is nested deeper than {MAX_DEPTH} levels")
    if isinstance(event, yaml.AliasEvent):
        return f"*{event.anchor}"
    if isinstance(event, yaml.ScalarEvent):
        return event.value if event.style else _plain(event.value)
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_value(event, events, where, depth + 1))
        return items
    found = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        if not isinstance(event, yaml.ScalarEvent):
            line = event.start_mark.line + 1
            raise StoreError(f"{where}: line {line}: a key must be a plain word or a quoted string")
        key = event.value
        if key in found:
            line = event.start_mark.line + 1
            raise StoreError(
                f"{where}: line {line}: the key {key!r} occurs twice in one map; only one of the two values could be"
                " used: rename or remove one of them"
            )
        found[key] = _value(next(events), events, where, depth + 1)
    return found


def _plain(text: str) -> Any:
    lower = text.lower()
    if not text or lower in _NULLS:
        return None
    if lower in _TRUTHS:
        return _TRUTHS[lower]
    try:
        return float(text) if "." in text or "e" in lower else int(text)
    except ValueError:
        return text


META_FOLDER: Final = ".nv-meta"
INFO_NAME: Final = ".info.json"
OLD_INFO_NAME: Final = ".info.yaml"
SPLIT_NAME: Final = "split.yaml"
JSON_SPLIT_NAME: Final = "split.json"
DATASET_NAME: Final = "dataset.yaml"
INDEX_NAME: Final = "index.sqlite"
UUID_NAME: Final = "index.uuid"
CONFIG_NAMES: Final = (INFO_NAME, OLD_INFO_NAME, SPLIT_NAME, DATASET_NAME, INDEX_NAME)
"""What is looked for in most datasets."""
META_WORK_NAME: Final = ".headrace"
"""Where an unfinished preparation keeps its files."""

ENERGON_VERSION: Final = "7.4.1"
"""Version of Energon whose layout is written."""


Kind = Literal["webdataset", "filesystem"]


def folder_kind(root: AnyPath) -> Kind | None:
    """Return which kind of dataset a folder holds by its ``.nv-meta``, as Energon decides it; None if it holds none."""
    meta = root / META_FOLDER
    try:
        if (meta / INFO_NAME).is_file() or (meta / OLD_INFO_NAME).is_file():
            return "webdataset"
        return "filesystem" if (meta / INDEX_NAME).is_file() else None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise


_KEYS: Final = ("energon_version", "shard_counts")
_MAX_COUNT: Final = 1 << 40
"""The most samples in a shard; a tar of so many samples would have 500 TB of headers alone."""


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
    path: AnyPath


def read_info(root: AnyPath) -> Info:
    """Read the info file of a dataset; a ``.info.json`` is preferred to a ``.info.yaml``.

    Raises:
        StoreError: there is no info file, it is malformed or has an unknown key, or a name leaves the folder.
    """
    for name in (INFO_NAME, OLD_INFO_NAME):
        path = root / META_FOLDER / name
        try:
            found = read_config(path)
        except FileNotFoundError:
            continue
        return _checked_info(as_map(found, str(path)), path)
    raise StoreError(
        f"{root / META_FOLDER / INFO_NAME}: missing, and there is no {OLD_INFO_NAME} either; prepare the dataset with"
        f" headrace prepare or energon prepare"
    )


def write_info(root: AnyPath, shard_counts: Mapping[str, int], energon_version: str | None) -> None:
    """Write ``.nv-meta/.info.json``, byte for byte as Energon does.

    Raises:
        OutputError: the system reports an error.
    """
    content = {"energon_version": energon_version, "shard_counts": dict(shard_counts)}
    replace_file(root / META_FOLDER / INFO_NAME, json.dumps(content, indent=2).encode())


def refuse_unknown(found: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Raise StoreError for a key of a file that Energon does not know."""
    for message in unknown_keys(found, known, f"{where}: "):
        raise StoreError(f"{message}; Energon refuses it too")


def _checked_info(found: dict[str, Any], path: AnyPath) -> Info:
    where = str(path)
    refuse_unknown(found, _KEYS, where)
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
