"""Names of the files of an Energon dataset, and a reader of its YAML and JSON files in Energon's dialect.

Energon's YAML has maps, lists and scalars. A plain scalar is null (``null``, ``~``) or a truth value (``true``,
``yes``, ``false``, ``no``), each in upper or lower case. If it contains a ``.`` or an ``e``, it is a number if Python's
``float`` accepts it; otherwise it is an integer if ``int`` accepts it; and everything else is a string. Quoted scalars,
blocks and all keys are strings. Anchors and tags are ignored, and an alias is the string ``"*name"``.

Headrace reads two things on which Energon fails: a missing value (``key:``) is null, and a file may begin with ``---``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import yaml

from headrace.config import describe
from headrace.errors import StoreError

MAX_DEPTH: Final = 100
_NULLS: Final = frozenset(("null", "~"))
_TRUTHS: Final = {"true": True, "yes": True, "false": False, "no": False}
_LOADER: Final[Any] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def read_config(path: Path) -> Any:
    """Read a ``.yaml`` or ``.json`` file and return its content.

    Raises:
        FileNotFoundError: there is no such file.
        StoreError: the file cannot be read, is malformed, or has another suffix.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    if path.suffix == ".json":
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
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
META_WORK_NAME: Final = ".headrace"
"""Where an unfinished preparation keeps its files."""

ENERGON_VERSION: Final = "7.4.1"
"""Version of Energon whose layout is written."""


Kind = Literal["webdataset", "filesystem"]


def folder_kind(root: Path) -> Kind | None:
    """Return which kind of dataset a folder holds by its ``.nv-meta``, as Energon decides it; None if it holds none."""
    meta = root / META_FOLDER
    if (meta / INFO_NAME).is_file() or (meta / OLD_INFO_NAME).is_file():
        return "webdataset"
    return "filesystem" if (meta / INDEX_NAME).is_file() else None
