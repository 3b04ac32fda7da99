"""Reads the YAML of a metadataset, of either version, into typed values, and names its entries.

Errors name the place in the file. The names of entries are parts of the paths from which orders are drawn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from headrace.datasets.metadataset.tree import (
    Entry,
    JoinEntry,
    JoinMember,
    LengthUnit,
    MixEntry,
    PathEntry,
    ScheduleEntry,
    Splits,
)
from headrace.errors import ConfigError
from headrace.plan import SubsetRange
from headrace.stores.energon import Nonmatch, Reference
from headrace.stores.energon.config_file import described, near

_SUFFIXES = (".yaml", ".jsonl", ".json", ".h5", ".hdf5", ".tar", ".bin", ".idx")


def names_of(children: Sequence[Entry]) -> tuple[str, ...]:
    """Return a name for each entry: its own, or the last part of its path, with ``-2``, ``-3`` if that is in use."""
    own = [child.name for child in children if child.name is not None]
    for child in children:
        if child.name is not None and own.count(child.name) > 1:
            raise ConfigError(f"{child.where}: the name {child.name!r} occurs twice; names must differ")
    taken = set(own)
    found = []
    for child in children:
        name = child.name
        if name is None:
            stem = name = _own_name(child)
            number = 1
            while name in taken:
                number += 1
                name = f"{stem}-{number}"
            taken.add(name)
        found.append(name)
    return tuple(found)


def _own_name(entry: Entry) -> str:
    if isinstance(entry, PathEntry):
        return _stem(entry.path)
    if isinstance(entry, JoinEntry):
        return "+".join(_stem(column.path) for column in entry.columns)
    return entry.kind if isinstance(entry, MixEntry) else "source"


def _stem(path: str) -> str:
    last = path.rstrip("/").rpartition("/")[2]
    for suffix in _SUFFIXES:
        last = last.removesuffix(suffix)
    return last if last.strip(".") else "source"


T = TypeVar("T")

_ALL: Final = ("name", "split_part", "subflavors", "shuffle_over_epochs_multiplier", "subset", "limit")
_CHILD: Final = ("weight", "repetitions")
_FILES: Final = ("dataset_config", "split_config")
_OF_KIND: Final[dict[str, tuple[str, ...]]] = {
    "path": ("path", *_FILES, "aux", "windows", "packs"),
    "join": ("join", "joiner"),
    "blend": ("blend", "schedule", "block_samples"),
    "blend_epochized": ("blend_epochized",),
    "concat": ("concat",),
    "datasets": ("datasets",),
}
_CLASSES: Final = ("Metadataset", "MetadatasetV2")
_INSTEAD: Final = {"split": "split_part", "subflavour": "subflavors", "repeat": "repetitions", "repeats": "repetitions"}
_MOST: Final = 1 << 62
_UNTIL: Final = re.compile(r"([0-9][0-9_,]*)\s+(steps?|samples?)")


def read_splits(content: Any, where: str) -> Splits:
    """Return the splits of a metadataset, from the content of a ``.yaml`` or a dict.

    Raises:
        ConfigError: an unknown or missing key, a value of the wrong kind; names the place and the nearest known key.
    """
    found = _map(content, where)
    reference = {key: found[key] for key in ("__module__", "__class__") if key in found}
    if reference and (
        not str(reference.get("__module__", "")).startswith("megatron.energon")
        or reference.get("__class__") not in _CLASSES
    ):
        raise ConfigError(
            f"{where}: __module__ and __class__ must be megatron.energon and {' or '.join(_CLASSES)}; found "
            f"{reference.get('__module__')} and {reference.get('__class__')}"
        )
    _check_keys(found, ("splits", "__module__", "__class__"), where)
    if "splits" not in found:
        raise ConfigError(f"{where}: has no splits; expected splits: {{train: {{blend: [...]}}, val: ...}}")
    splits = _map(found["splits"], f"{where}: splits")
    if not splits:
        raise ConfigError(f"{where}: splits is empty")
    return {name: _node(value, f"{where}: splits.{name}", child_of=None) for name, value in splits.items()}


def _node(value: Any, where: str, child_of: str | None) -> Entry:
    found = _map(value, where)
    kinds = [kind for kind in _OF_KIND if kind in found]
    allowed = [kind for kind in _OF_KIND if kind != "datasets" or child_of is None]
    if len(kinds) != 1 or kinds[0] not in allowed:
        hint = next((near(key, allowed) for key in found if "did you mean" in near(key, allowed)), "")
        found_kinds = (
            f"found {' and '.join(kinds)}" if kinds else f"found only {', '.join(map(repr, found)) or 'nothing'}{hint}"
        )
        raise ConfigError(f"{where}: expected exactly one of {', '.join(allowed)}; {found_kinds}")
    kind = kinds[0]
    of_parent = ("weight",) if child_of == "datasets" else _CHILD if child_of else ()
    extra = ("subflavor",) if child_of == "datasets" else ()
    _check_keys(found, (*_OF_KIND[kind], *_ALL, *of_parent, *extra), where)
    wrong = {"blend": "repetitions", "datasets": "repetitions", "blend_epochized": "weight"}.get(child_of or "")
    if wrong is not None and wrong in found:
        right = "weight" if wrong == "repetitions" else "repetitions"
        raise ConfigError(f"{where}: {wrong} does not go with {child_of}; use {right}")
    common = _common(found, where, kind)
    if kind == "path":
        return _path_entry(found, where, common)
    if kind == "join":
        joiner = _reference(found.get("joiner"), f"{where}: joiner")
        return JoinEntry(columns=tuple(_columns(found["join"], f"{where}.join")), joiner=joiner, **common)
    return _mix_entry(found, where, kind, common)


def _common(found: Mapping[str, Any], where: str, kind: str) -> dict[str, Any]:
    subset = None
    if found.get("subset") is not None:
        subset = _subset(found["subset"], f"{where}: subset")
        if subset.absolute is not None and kind not in ("path", "join"):
            raise ConfigError(
                f"{where}: subset: a range in samples goes with a dataset; for a {kind} use percentages, [25%, 75%]"
            )
    subflavors = _optional(found, "subflavors", where, _map)
    if found.get("subflavor") is not None:
        subflavors = {"__subflavor__": found["subflavor"], **(subflavors or {})}
    multiplier = found.get("shuffle_over_epochs_multiplier", 1)
    if multiplier is not None and (not _is_int(multiplier) or (multiplier < 1 and multiplier != -1)):
        raise ConfigError(
            f"{where}: shuffle_over_epochs_multiplier must be at least 1, or -1 or null; found {multiplier!r}"
        )
    return {
        "where": where,
        "name": _optional(found, "name", where, _name),
        "weight": _number(found.get("weight", 1.0), f"{where}: weight", least=0),
        "repetitions": _number(found.get("repetitions", 1), f"{where}: repetitions", least=None),
        "split_part": _optional(found, "split_part", where, _text),
        "subflavors": subflavors,
        "shuffle_over_epochs_multiplier": multiplier,
        "subset": subset,
        "limit": _optional(found, "limit", where, _count),
    }


def _path_entry(found: Mapping[str, Any], where: str, common: dict[str, Any]) -> PathEntry:
    aux = _optional(found, "aux", where, _map)
    if found.get("windows") is not None and found.get("packs") is not None:
        raise ConfigError(f"{where}: a store of tokens is cut into windows or into packs; found both")
    return PathEntry(
        path=_text(found["path"], f"{where}: path"),
        aux=None if aux is None else {name: _text(path, f"{where}: aux.{name}") for name, path in aux.items()},
        dataset_config=_optional(found, "dataset_config", where, _text),
        split_config=_optional(found, "split_config", where, _text),
        windows=_optional(found, "windows", where, _map),
        packs=_optional(found, "packs", where, _map),
        **common,
    )


def _columns(value: Any, where: str) -> Iterator[JoinMember]:
    if isinstance(value, dict):
        items = [(name, f"{where}.{name}", item) for name, item in value.items()]
    else:
        items = [(None, f"{where}[{at}]", item) for at, item in enumerate(_list(value, where))]
    for name, place, item in items:
        found = _map(item, place)
        _check_keys(found, ("path", "nonmatch", "split_part", "subflavors", *_FILES), place)
        if "path" not in found:
            raise ConfigError(f"{place}: has no path")
        nonmatch: Nonmatch = found.get("nonmatch", "error")
        if nonmatch not in ("error", "skip", "none"):
            raise ConfigError(f"{place}: nonmatch must be error, skip or none; found {nonmatch!r}")
        yield JoinMember(
            where=place,
            name=None if name is None else _name(name, place),
            path=_text(found["path"], f"{place}: path"),
            nonmatch=nonmatch,
            split_part=_optional(found, "split_part", place, _text),
            subflavors=_optional(found, "subflavors", place, _map),
            dataset_config=_optional(found, "dataset_config", place, _text),
            split_config=_optional(found, "split_config", place, _text),
        )


def _mix_entry(found: Mapping[str, Any], where: str, kind: str, common: dict[str, Any]) -> MixEntry:
    items = _list(found[kind], f"{where}.{kind}")
    children = tuple(_node(item, f"{where}.{kind}[{at}]", child_of=kind) for at, item in enumerate(items))
    schedule: tuple[ScheduleEntry, ...] = ()
    if found.get("schedule") is not None:
        pieces = _list(found["schedule"], f"{where}.schedule")
        names = names_of(children)
        schedule = tuple(_piece(piece, f"{where}.schedule[{at}]", names) for at, piece in enumerate(pieces))
        for at, item in enumerate(items):
            if "weight" in item:
                raise ConfigError(f"{where}.{kind}[{at}]: weight: the schedule sets the weights; remove one of them")
    for child in children:
        if kind in ("blend", "datasets") and not schedule and not child.weight:
            raise ConfigError(f"{child.where}: weight is 0: remove the entry")
        if not child.repetitions > 0:
            raise ConfigError(
                f"{child.where}: repetitions is {child.repetitions}; it must be above 0: change it or remove the entry"
            )
    return MixEntry(
        kind="blend" if kind == "datasets" else kind,  # type: ignore[arg-type]
        children=children,
        schedule=schedule,
        block_samples=_count(found.get("block_samples", 1), f"{where}: block_samples"),
        **common,
    )


def _piece(value: Any, where: str, names: tuple[str, ...]) -> ScheduleEntry:
    found = _map(value, where)
    _check_keys(found, ("until", "weights", "ramp"), where)
    values = found.get("weights")
    if isinstance(values, dict):
        for name in values:
            if name not in names:
                raise ConfigError(f"{where}: weights: no source {name!r} in the blend{near(name, names)}")
        values = [values.get(name, 0) for name in names]
    if not isinstance(values, list) or len(values) != len(names):
        raise ConfigError(
            f"{where}: weights: expected one for each of the {len(names)} entries of the blend, as a list or by name "
            f"({', '.join(names)}); found {described(values)}"
        )
    ramp = found.get("ramp", False)
    if not isinstance(ramp, bool):
        raise ConfigError(f"{where}: ramp must be true or false; found {ramp!r}")
    weights = tuple(_number(weight, f"{where}: weights[{at}]", least=0) for at, weight in enumerate(values))
    return ScheduleEntry(where=where, weights=weights, until=_optional(found, "until", where, _until), ramp=ramp)


def _until(value: Any, where: str) -> tuple[int, LengthUnit]:
    match = _UNTIL.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(f"{where}: expected a number of steps or samples, such as 10,000 steps; found {value!r}")
    digits = match[1].replace(",", "").replace("_", "")
    return _count(int(digits[:30]), where) if digits.strip("0") else 0, "steps" if match[2].startswith(
        "step"
    ) else "samples"


def _reference(value: Any, where: str) -> Reference:
    if value is None:
        raise ConfigError(
            f"{where}: missing; name a sample type or a function, {{__module__: my_module, __class__: MySample}}"
        )
    found = _map(value, where)
    kinds = [key for key in ("__class__", "__function__") if key in found]
    _check_keys(found, ("__module__", "__class__", "__function__"), where)
    if "__module__" not in found or len(kinds) != 1:
        raise ConfigError(f"{where}: expected __module__, and __class__ or __function__; found {', '.join(found)}")
    module, name = _text(found["__module__"], where), _text(found[kinds[0]], where)
    return Reference(module=module, name=name, is_function=kinds[0] == "__function__")


def _subset(value: Any, where: str) -> SubsetRange:
    found = _map(value, where)
    _check_keys(found, ("range",), where)
    try:
        return SubsetRange.of(found.get("range"))  # type: ignore[arg-type]
    except ConfigError as error:
        raise ConfigError(f"{where}: range: {error}") from error


def _check_keys(found: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in found:
        if key not in known:
            instead = _INSTEAD.get(key)
            hint = f"; did you mean {instead!r}?" if instead in known else near(key, known)
            raise ConfigError(f"{where}: unknown key {key!r}{hint}")


def _optional(found: Mapping[str, Any], key: str, where: str, read: Callable[[Any, str], T]) -> T | None:
    return None if found.get(key) is None else read(found[key], f"{where}: {key}")


def _map(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{where}: expected a map, found {described(value)}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where}: expected a list of at least one entry, found {described(value)}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}: expected a string, found {described(value)}")
    return value


def _name(value: Any, where: str) -> str:
    text = _text(value, where)
    if "/" in text:
        raise ConfigError(f"{where}: the name {text!r} holds '/', which separates names in paths")
    return text


def _number(value: Any, where: str, *, least: float | None) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
        raise ConfigError(f"{where}: expected a finite number, found {described(value)}")
    if abs(value) > _MOST:
        raise ConfigError(f"{where}: expected a number below 2^62, found a number of {len(str(value))} digits")
    if least is not None and value < least:
        raise ConfigError(f"{where}: must be at least {least}, found {value}")
    return value


def _count(value: Any, where: str) -> int:
    if not _is_int(value) or value < 1:
        raise ConfigError(f"{where}: expected a whole number from 1 on, found {described(value)}")
    if value > _MOST:
        raise ConfigError(f"{where}: expected a whole number below 2^62, found a number of {len(str(value))} digits")
    return int(value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
