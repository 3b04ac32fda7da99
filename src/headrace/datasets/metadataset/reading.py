"""Reads the YAML of a metadataset, of either version, into typed values, and names its entries.

`Entry` and its kinds are the tree: first as it is written, before any other file is opened, then with everything in its
place that outer entries and nested files say.

Errors name the place in the file. The names of entries are parts of the paths from which orders are drawn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal

import msgspec

from headrace.config import check_keys, convert, describe, nearest, nearest_or_known
from headrace.errors import ConfigError, InputError, StoreAwayError, StoreError
from headrace.io import AnyPath
from headrace.plan import SubsetRange
from headrace.stores.energon import Nonmatch, Reference

LengthUnit = Literal["steps", "samples"]

_MOST = 1 << 62
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
_Weight = Annotated[int, msgspec.Meta(ge=0, le=_MOST)] | Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
_Number = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)] | Annotated[float, msgspec.Meta(ge=-_MOST, le=_MOST)]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What every node of the tree can say.

    Attributes:
        where: file and place in its tree, for messages: ``mix.yaml: splits.train.blend[2]``.
        name: its part of the paths of the sources below it.
        weight: its weight in a ``blend``.
        repetitions: its passes in a ``blend_epochized``.
        split_part: split part of the datasets below, unless they set another.
        subflavors: set on the samples below; those of an outer node win. None if nothing sets any.
        shuffle_over_epochs: number of epochs that are shuffled together in the sources below; in a resolved tree the
            product of all multipliers.
        subset: range of every source below.
        limit: number of samples in a pass.
        limits: in a resolved tree all numbers of samples in a pass, the innermost first.
    """

    where: str
    name: _Text | None = None
    weight: _Weight = 1.0
    repetitions: _Number = 1
    split_part: _Text | None = None
    subflavors: dict[str, Any] | None = None
    shuffle_over_epochs: int | None = msgspec.field(name="shuffle_over_epochs_multiplier", default=1)
    subset: SubsetRange | None = None
    limit: _Count | None = None
    limits: tuple[int, ...] = ()


class NamedSource(Entry, frozen=True, kw_only=True):
    """A dataset on disk, or, as it is written, another metadataset.

    Attributes:
        path: the path as it is written; in a resolved tree it is absolute, or relative to the working folder.
        dataset_config: another ``dataset.yaml`` of an Energon dataset.
        split_config: another split file of an Energon dataset.
        aux: name -> path of files for cookers.
        windows: for a store of tokens, the options of `WindowDataset`.
        packs: for a store of tokens, the options of `Packing`.
    """

    path: _Text
    dataset_config: _Text | None = None
    split_config: _Text | None = None
    aux: dict[str, _Text] | None = None
    windows: dict[str, Any] | None = None
    packs: dict[str, Any] | None = None


class SourceColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One of the datasets of a join: its name in the join, what a missing match means, and as in `NamedSource`.

    In a resolved tree the split part is known.
    """

    where: str
    name: str | None
    path: _Text
    nonmatch: Nonmatch = "error"
    split_part: _Text | None = None
    subflavors: dict[str, Any] | None = None
    dataset_config: _Text | None = None
    split_config: _Text | None = None


class JoinedSource(Entry, frozen=True, kw_only=True):
    """Several Energon datasets side by side.

    Attributes:
        columns: the first is the primary one.
        joiner: makes one sample of a row.
        folder: folder of the index, in a resolved tree; None for a metadataset that is not in a file.
    """

    columns: tuple[SourceColumn, ...]
    joiner: Reference
    folder: AnyPath | None = None


class ScheduleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Weights up to a step or sample: one entry of a ``schedule``.

    Attributes:
        where: its place.
        weights: one for each entry of the blend, in the same order.
        until: a number and its unit; None for the last entry.
        ramp: the weights move from those of the entry before to these.
    """

    where: str
    weights: tuple[_Weight, ...]
    until: tuple[Annotated[int, msgspec.Meta(le=_MOST)], LengthUnit] | None = None
    ramp: bool = False


class Mixed(Entry, frozen=True, kw_only=True):
    """Several nodes mixed by weights or repetitions, or one after another.

    Attributes:
        kind: ``"blend"`` is by weights, ``"blend_epochized"`` by repetitions, ``"concat"`` one after another.
        children: entries, at least one; in a ``blend`` all have a weight above 0, unless there is a schedule.
        schedule: for a ``blend``, weights that change; else empty.
        block_samples: for a ``blend``, number of consecutive samples that a child is chosen for.
    """

    kind: Literal["blend", "blend_epochized", "concat"]
    children: tuple[Any, ...]
    schedule: tuple[ScheduleEntry, ...] = ()
    block_samples: _Count = 1

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the children."""
        return names_of(self.children)

    @property
    def numbers(self) -> tuple[float, ...]:
        """Weights, or repetitions, of the children."""
        share = "repetitions" if self.kind == "blend_epochized" else "weight"
        return tuple(getattr(child, share) for child in self.children)


Tree = NamedSource | JoinedSource | Mixed
Splits = dict[str, Tree]
"""Name of a split -> its tree, as it is written."""


def sources(tree: Tree) -> Iterator[NamedSource | JoinedSource]:
    """Yield the datasets of a tree, depth first."""
    if isinstance(tree, Mixed):
        for child in tree.children:
            yield from sources(child)
    else:
        yield tree


_SUFFIXES = (".yaml", ".jsonl", ".json", ".h5", ".hdf5", ".tar", ".bin", ".idx")


def names_of(children: Sequence[Tree]) -> tuple[str, ...]:
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


def _own_name(entry: Tree) -> str:
    if isinstance(entry, NamedSource):
        return _stem(entry.path)
    if isinstance(entry, JoinedSource):
        return "+".join(_stem(column.path) for column in entry.columns)
    return entry.kind


def _stem(path: str) -> str:
    last = path.rstrip("/").rpartition("/")[2]
    for suffix in _SUFFIXES:
        last = last.removesuffix(suffix)
    return last if last.strip(".") else "source"


_ALL: Final = ("name", "split_part", "subflavors", "shuffle_over_epochs_multiplier", "subset", "limit")
_FILES: Final = ("dataset_config", "split_config")
_OF_KIND: Final[dict[str, tuple[str, ...]]] = {
    "path": ("path", *_FILES, "aux", "windows", "packs"),
    "join": ("join", "joiner"),
    "blend": ("blend", "schedule", "block_samples"),
    "blend_epochized": ("blend_epochized",),
    "concat": ("concat",),
    "datasets": ("datasets",),
}
_OF_CHILD: Final[dict[str | None, tuple[str, ...]]] = {None: (), "datasets": ("weight", "subflavor")}
_OF_OTHER_CHILD: Final = ("weight", "repetitions")
_SHARE_IN: Final[dict[str | None, tuple[str, str]]] = {
    "blend": ("weight", "repetitions"),
    "datasets": ("weight", "repetitions"),
    "blend_epochized": ("repetitions", "weight"),
}
"""Kind of mix -> the key that sets an entry's share in it, and the key that does not go with it."""
_OF_COLUMN: Final = ("path", "nonmatch", "split_part", "subflavors", *_FILES)
_CLASSES: Final = ("Metadataset", "MetadatasetV2")
_UNTIL: Final = re.compile(r"([0-9][0-9_,]*)\s+(steps?|samples?)")

_Map = dict[str, Any]
_List = Annotated[list[Any], msgspec.Meta(min_length=1)]


class _Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    module: Annotated[str, msgspec.Meta(min_length=1)] = msgspec.field(name="__module__")
    class_name: str | None = msgspec.field(name="__class__", default=None)
    function: str | None = msgspec.field(name="__function__", default=None)


class _Subset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    range: Any = None


def read_splits(content: Any, where: str) -> Splits:
    """Return the splits of a metadataset, from the content of a ``.yaml`` or a dict.

    Raises:
        ConfigError: an unknown or missing key, a value of the wrong kind; names the place and the nearest known key.
    """
    found = convert(content, _Map, f"{where}: ")
    reference = {key: found[key] for key in ("__module__", "__class__") if key in found}
    if reference and (
        not str(reference.get("__module__", "")).startswith("megatron.energon")
        or reference.get("__class__") not in _CLASSES
    ):
        raise ConfigError(
            f"{where}: __module__ and __class__ must be megatron.energon and {' or '.join(_CLASSES)}; found "
            f"{reference.get('__module__')} and {reference.get('__class__')}"
        )
    check_keys(found, ("splits", "__module__", "__class__"), f"{where}: ")
    if "splits" not in found:
        raise ConfigError(f"{where}: has no splits; expected splits: {{train: {{blend: [...]}}, val: ...}}")
    splits = convert(found["splits"], _Map, f"{where}: splits")
    if not splits:
        raise ConfigError(f"{where}: splits is empty")
    return {name: _node(value, f"{where}: splits.{name}", child_of=None) for name, value in splits.items()}


def _node(value: Any, where: str, child_of: str | None) -> Tree:
    found = convert(value, _Map, where)
    kind = _kind(found, where, child_of)
    check_keys(found, (*_OF_KIND[kind], *_ALL, *_OF_CHILD.get(child_of, _OF_OTHER_CHILD)), where)
    right, wrong = _SHARE_IN.get(child_of, (None, None))
    if wrong in found:
        raise ConfigError(f"{where}: {wrong} does not go with {child_of}; use {right}")
    values = _common(found, where, kind)
    if kind == "path":
        if found.get("windows") is not None and found.get("packs") is not None:
            raise ConfigError(f"{where}: a store of tokens is cut into windows or into packs; found both")
        return convert(values, NamedSource, where)
    if kind == "join":
        columns = tuple(_columns(found["join"], f"{where}.join"))
        joiner = _reference(found.get("joiner"), f"{where}.joiner")
        return convert({**values, "columns": columns, "joiner": joiner}, JoinedSource, where)
    return _mix_entry(values, where, kind)


def _kind(found: _Map, where: str, child_of: str | None) -> str:
    """Return the kind of an entry: the only key of an entry that names one."""
    kinds = [kind for kind in _OF_KIND if kind in found]
    allowed = [kind for kind in _OF_KIND if kind != "datasets" or child_of is None]
    if len(kinds) != 1 or kinds[0] not in allowed:
        hint = next(filter(None, (nearest(key, allowed) for key in found)), "")
        found_kinds = " and ".join(kinds) or f"only {', '.join(map(repr, found)) or 'nothing'}{hint}"
        raise ConfigError(f"{where}: expected exactly one of {', '.join(allowed)}; found {found_kinds}")
    return kinds[0]


def _common(found: _Map, where: str, kind: str) -> _Map:
    """Return the values of an entry, with those that every kind of entry may have in the form that they have there."""
    values = {**found, "where": where}
    if found.get("subset") is not None:
        subset = values["subset"] = _subset(found["subset"], f"{where}.subset")
        if subset.absolute is not None and kind not in ("path", "join"):
            raise ConfigError(
                f"{where}.subset: a range in samples is only allowed for a leaf dataset; for a {kind} use percentages,"
                " [25%, 75%]"
            )
    if found.get("subflavor") is not None:
        own = convert(found.get("subflavors") or {}, _Map, f"{where}.subflavors")
        values["subflavors"] = {"__subflavor__": found["subflavor"], **own}
    multiplier = found.get("shuffle_over_epochs_multiplier")
    if isinstance(multiplier, int) and multiplier < 1 and multiplier != -1:
        raise ConfigError(
            f"{where}.shuffle_over_epochs_multiplier is {multiplier}; it must be at least 1, or -1 or null"
        )
    _check_name(found.get("name"), where)
    return values


def _columns(value: Any, where: str) -> Iterator[SourceColumn]:
    if isinstance(value, dict):
        items = [(name, f"{where}.{name}", item) for name, item in value.items()]
    else:
        items = [(None, f"{where}[{at}]", item) for at, item in enumerate(convert(value, _List, where))]
    for name, place, item in items:
        found = convert(item, _Map, place)
        check_keys(found, _OF_COLUMN, place)
        _check_name(name, place)
        yield convert({**found, "where": place, "name": name}, SourceColumn, place)


def _mix_entry(values: _Map, where: str, kind: str) -> Mixed:
    items = convert(values[kind], _List, f"{where}.{kind}")
    children = tuple(_node(item, f"{where}.{kind}[{at}]", child_of=kind) for at, item in enumerate(items))
    schedule: tuple[ScheduleEntry, ...] = ()
    if values.get("schedule") is not None:
        pieces = convert(values["schedule"], _List, f"{where}.schedule")
        names = names_of(children)
        schedule = tuple(_piece(piece, f"{where}.schedule[{at}]", names) for at, piece in enumerate(pieces))
        for at, item in enumerate(items):
            if "weight" in item:
                raise ConfigError(f"{where}.{kind}[{at}].weight: the schedule sets the weights; remove one of them")
    for child in children:
        if kind in ("blend", "datasets") and not schedule and not child.weight:
            raise ConfigError(f"{child.where}.weight is 0: remove the entry")
        if not child.repetitions > 0:
            raise ConfigError(
                f"{child.where}.repetitions is {child.repetitions}; it must be above 0: change it or remove the entry"
            )
    values = {**values, "kind": "blend" if kind == "datasets" else kind, "children": (), "schedule": ()}
    return msgspec.structs.replace(convert(values, Mixed, where), children=children, schedule=schedule)


def _piece(value: Any, where: str, names: tuple[str, ...]) -> ScheduleEntry:
    found = convert(value, _Map, where)
    check_keys(found, ("until", "weights", "ramp"), where)
    weights = found.get("weights")
    if isinstance(weights, dict):
        for name in weights:
            if name not in names:
                raise ConfigError(f"{where}.weights: no source {name!r} in the blend{nearest_or_known(name, names)}")
        weights = [weights.get(name, 0) for name in names]
    if not isinstance(weights, list) or len(weights) != len(names):
        raise ConfigError(
            f"{where}.weights: expected one for each of the {len(names)} entries of the blend, as a list or by name "
            f"({', '.join(names)}); found {describe(weights)}"
        )
    until = None if found.get("until") is None else _until(found["until"], f"{where}.until")
    return convert({**found, "where": where, "weights": weights, "until": until}, ScheduleEntry, where)


def _until(value: Any, where: str) -> tuple[int, LengthUnit]:
    match = _UNTIL.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(f"{where}: expected a number of steps or samples, such as 10,000 steps; found {value!r}")
    number = int(match[1].replace(",", "").replace("_", "")[:30])
    return number, "steps" if match[2].startswith("step") else "samples"


def _reference(value: Any, where: str) -> Reference:
    if value is None:
        raise ConfigError(
            f"{where} is missing; name a sample type or a function, {{__module__: my_module, __class__: MySample}}"
        )
    found = convert(value, _Reference, where)
    names = [name for name in (found.class_name, found.function) if name]
    if len(names) != 1:
        raise ConfigError(f"{where}: expected __module__, and __class__ or __function__; found {', '.join(value)}")
    return Reference(module=found.module, name=names[0], is_function=bool(found.function))


def _subset(value: Any, where: str) -> SubsetRange:
    found = convert(value, _Subset, where)
    with named_place(f"{where}.range"):
        return SubsetRange.of(found.range)


@contextmanager
def named_place(where: str) -> Iterator[None]:
    """Name a place in a metadataset in front of the message of what is wrong there."""
    try:
        yield
    except (ConfigError, StoreError, InputError) as error:
        kinds = (ConfigError, StoreAwayError, StoreError, InputError)
        kind = next(kind for kind in kinds if isinstance(error, kind))
        raise kind(f"{where}: {error}") from error


def _check_name(name: Any, where: str) -> None:
    if isinstance(name, str) and "/" in name:
        raise ConfigError(f"{where}: the name {name!r} holds '/', which separates names in paths")
