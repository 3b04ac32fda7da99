"""Check plain data, as YAML and JSON give it, against a typed struct, and say exactly what is wrong with it.

    convert({"inputs": [{"pths": "a"}]}, Recipe)
      -> ConfigError: inputs[0].pths is unknown; did you mean 'paths'? Allowed here are paths, layout, ...

A message gives the path of the value, what was found, what is allowed, and the nearest valid name.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import os
import re
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from numbers import Real
from operator import index
from pathlib import Path
from typing import Annotated, Any, Literal, SupportsInt, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from headrace.errors import ConfigError

T = TypeVar("T")

_WORDS = {
    "object": "an object",
    "array": "a list",
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}
"""msgspec's names of types, and the words for them in messages."""

Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]

_SHOWN_NAMES = 20
_SHOWN_FIELDS = 8
_MOST_NAMES = 10_000
_SHOWN_CHARS = 60


def convert(value: Any, kind: type[T], where: str = "") -> T:
    """Convert plain data to a struct, or to another type that msgspec knows.

    Args:
        value: What was read. Parts of it may already be structs.
        kind: The type that is wanted.
        where: The path of the value, for messages: ``mix.yaml: splits.train``, or ``mix.yaml: `` for a whole file.

    Raises:
        ConfigError: A key or word is unknown, a key is missing, or a value has the wrong type or is not allowed.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        # msgspec gives neither the value nor the names that are allowed, so the fault is looked for once more.
        _find_fault(value, kind, where)
        raise ConfigError(f"{_named(where)}: {error}") from error


def check_keys(value: Mapping[Any, Any], known: Iterable[str], where: str = "") -> None:
    """Raise a `ConfigError` that gives the path of the first unknown key, and the nearest of the known ones."""
    for message in unknown_keys(value, known, where):
        raise ConfigError(message)


def unknown_keys(value: Mapping[Any, Any], known: Iterable[str], where: str = "") -> Iterator[str]:
    """Yield a message for each unknown key, which gives its path, the nearest of the known ones, and all of them."""
    known = list(known)
    for key in value:
        if key not in known:
            hint = nearest(str(key), known)
            yield f"{below(where, key)} is unknown{hint}; allowed here are {', '.join(known)}"


def check_choice(name: str, value: object, allowed: Iterable[object]) -> None:
    """Raise a `ConfigError` that names the allowed values and the nearest of them, unless the value is one of them."""
    allowed = list(allowed)
    if not any(value == choice and isinstance(value, type(choice)) for choice in allowed):
        hint = nearest(str(value), map(str, allowed))
        raise ConfigError(f"{name} is {value!r}{hint}; allowed are {', '.join(map(repr, allowed))}")


def whole(value: Any, name: str, least: int | None = None) -> int:
    """Return a whole number as an int: an integer, or a float without a fraction, as trainers have numbers of epochs.

    Raises:
        ConfigError: it is something else, such as 0.5, NaN or True, or below ``least``; the message names the value.
    """
    found: int | None = None
    if not isinstance(value, bool):
        with suppress(TypeError):
            found = index(value)
        if found is None and isinstance(value, Real) and float(value).is_integer():
            found = int(cast("SupportsInt", value))
    if found is None or (least is not None and found < least):
        bound = "" if least is None else f" >= {least}"
        raise ConfigError(f"{name} is {value!r:.80}; expected a whole number{bound}")
    return found


def optional_whole(value: Any, name: str, least: int | None = None) -> int | None:
    """Return a whole number as `whole` does, and None as it is."""
    return None if value is None else whole(value, name, least)


def check_fields(struct: msgspec.Struct) -> None:
    """Check the values of fields that calls from Python may pass; whole floats become integers, as by `whole`.

    Raises:
        ConfigError: a field of a literal type has another value, one for integers has something else, or a number is
            out of the range that the type declares.
    """
    for name, kind, others in _checked_fields(type(struct)):
        value = getattr(struct, name)
        if value is msgspec.UNSET:
            continue
        if others is not None and type(value) is not int and not isinstance(value, others):
            value = whole(value, name)
            msgspec.structs.force_setattr(struct, name, value)
        if kind is not None:
            convert(value, kind, name)


@functools.cache
def _checked_fields(kind: type[msgspec.Struct]) -> list[tuple[str, Any, tuple[type, ...] | None]]:
    """The fields that are checked, each with its choices and ranges, and what may stand for an integer.

    The former is its type, or None if that declares neither. The latter are the other types that a field for integers
    may have, such as None; it is None for any other field.
    """
    found: list[tuple[str, Any, tuple[type, ...] | None]] = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        members = tuple(member for member in members if member is not msgspec.UnsetType)
        bare = tuple(map(_bare, members))
        is_integer = int in bare and not {float, bool} & {*bare}
        kinds = (get_origin(one) or one for one in bare)
        others = tuple(one for one in kinds if one is not int and isinstance(one, type)) if is_integer else None
        is_plain = all(one in (int, float, str, types.NoneType) or get_origin(one) is Literal for one in bare)
        says_more = any(get_origin(member) in (Annotated, Literal) for member in members)
        # A union of one is that one; from the cache of `typing` comes an equal literal, with its choices in disorder.
        union = members[0] if len(members) == 1 else Union[members]  # noqa: UP007 -- of a tuple
        declared = union if is_plain and says_more else None
        if declared is not None or is_integer:
            found.append((name, declared, others))
    return found


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs, as an ``object_pairs_hook`` of `json.loads`, which keeps the last of two.

    Raises:
        ValueError: a key occurs twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice!r} occurs twice in one object: rename or remove one of them")
    return found


def below(where: str, key: object) -> str:
    """Return the path of what a key holds, given the path of the map."""
    return f"{where}.{key}" if where and not where.endswith(" ") else f"{where}{key}"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return ``; did you mean 'x'?`` if one of the known names is similar, else an empty string."""
    close = closest(name, known, cutoff)
    return "" if close is None else f"; did you mean {close!r}?"


def nearest_path(path: str | os.PathLike[str]) -> str:
    """Return ``; did you mean 'x'?`` if something with a similar name is where a local path ends, else an empty string.

    Of the pairs of ``.bin`` and ``.idx`` the prefixes count, which name them, too.
    """
    wanted = Path(path)
    try:
        while not wanted.parent.is_dir() and wanted.parent != wanted:
            wanted = wanted.parent
        names = [entry.name for entry in itertools.islice(os.scandir(wanted.parent), _MOST_NAMES)]
    except (OSError, ValueError):
        return ""
    names += [name.removesuffix(".idx") for name in names if name.endswith(".idx")]
    close = closest(wanted.name, sorted(set(names) - {wanted.name}), cutoff=0.7)
    return "" if close is None else f"; did you mean {str(wanted.with_name(close))!r}?"


def closest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the known name that is most similar, by `difflib`, or None if none is similar enough."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def unknown_name(where: object, noun: str, name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for the name of a ``noun`` that ``where`` does not have: the nearest name, and all of them."""
    names = list(known)
    shown = ", ".join(map(repr, names)) or "none"
    return ConfigError(f"{where}: has no {noun} {name!r}{nearest(name, names, 0.6)}; its {noun}s are {shown}")


def nearest_or_known(name: str, known: Iterable[str]) -> str:
    """Return the hint of `nearest`, or, if no name is similar, a list of the first known names."""
    names = sorted(known)
    return nearest(name, names) or f"; known are {', '.join(map(repr, names[:_SHOWN_NAMES])) or 'none'}"


def describe(value: object) -> str:
    """Describe a value in a few words: its kind and its beginning."""
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return f"the {'boolean' if isinstance(value, bool) else 'number'} {value}"
    if isinstance(value, str):
        shown = repr(value[:_SHOWN_CHARS]) + ("..." if len(value) > _SHOWN_CHARS else "")
        return f"the string {shown}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value):,}"
    if isinstance(value, Mapping):
        shown = ", ".join(map(repr, list(value)[:_SHOWN_FIELDS])) or "none"
        return f"an object with the fields {shown}"
    return f"a {type(value).__name__}"


def _find_fault(value: Any, kind: Any, where: str) -> None:
    """Raise a `ConfigError` for the first fault, the innermost first."""
    for part, part_kind, place in _parts(value, kind, where):
        _find_fault(part, part_kind, place)
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, rest = str(error).partition(" - at `$")
    else:
        return
    if get_origin(kind) is Literal:
        check_choice(where, value, get_args(kind))
    name = _named(where) + rest.rstrip("`")
    if not message.startswith("Expected "):  # what a struct's own check says
        raise ConfigError(f"{name}: {message}")
    wanted = message.removeprefix("Expected ").partition(", got ")[0].replace("`", "").replace(" | ", " or ")
    wanted = re.sub(r"[a-z]+", lambda word: _WORDS.get(word[0], word[0]), wanted)
    raise ConfigError(f"{name} is {describe(value)}; expected {wanted}")


def _parts(value: Any, kind: Any, where: str) -> Iterator[tuple[Any, Any, str]]:
    """Yield what a value holds, with the type and path of each; the value itself may stand for a member of a union."""
    kind = _bare(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        yield from [(value, member, where) for member in arguments if _suits(value, member)][:1]
    elif origin in (tuple, list) and isinstance(value, list | tuple):
        kinds = arguments if origin is tuple and arguments[-1] is not ... else itertools.repeat(arguments[0])
        for number, (part, part_kind) in enumerate(zip(value, kinds, strict=False)):
            yield part, part_kind, f"{where}[{number}]"
    elif origin is dict and isinstance(value, dict):
        yield from ((part, arguments[1], below(where, key)) for key, part in value.items())
    elif _is_struct(kind) and isinstance(value, dict):
        yield from _fields(value, kind, where)


def _fields(value: dict[Any, Any], kind: type[msgspec.Struct], where: str) -> Iterator[tuple[Any, Any, str]]:
    hints = get_type_hints(kind, include_extras=True)
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    config = kind.__struct_config__
    if config.forbid_unknown_fields:
        check_keys(value, [*fields, *([config.tag_field] if config.tag_field else [])], where)
    for name, field in fields.items():
        if name in value:
            yield value[name], hints[field.name], below(where, name)
        elif field.required:
            raise ConfigError(f"{below(where, name)} is missing")


def _suits(value: Any, kind: Any) -> bool:
    """Return whether a value is meant for this member of a union."""
    kind = _bare(kind)
    origin = get_origin(kind)
    if kind is types.NoneType:
        return value is None
    if origin is Literal:
        return isinstance(value, str)
    if origin in (tuple, list):
        return isinstance(value, list | tuple)
    if _is_struct(kind) and isinstance(value, dict):
        config = kind.__struct_config__
        return config.tag is None or value.get(config.tag_field) == config.tag
    return isinstance(origin or kind, type) and isinstance(value, origin or kind) and type(value) is not bool


def _bare(kind: Any) -> Any:
    """Return a type without what `typing.Annotated` adds to it."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _named(where: str) -> str:
    return where.removesuffix(": ") or "the value"
