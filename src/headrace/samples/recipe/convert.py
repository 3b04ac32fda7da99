"""Plain objects and lists -> structs, with the nearest valid name for each key and word that is wrong."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin

import msgspec

from headrace.errors import ConfigError, InputError
from headrace.samples.layouts import nearest
from headrace.samples.templates.plain import plain


def convert(value: Any, kind: Any) -> Any:
    """Plain objects and lists as structs of one of our types.

    Raises:
        ConfigError: an unknown key or word, or a value of another kind; says where, and what is allowed.
    """
    _check(value, kind, "")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        where = place.strip("`").removeprefix("$").removeprefix(".")
        raise ConfigError(f"{where or 'the recipe'}: {message}") from None


def check_size(value: Any) -> None:
    """Refuse what is nested too deeply, or refers to itself, or grows without end by aliases of YAML.

    Raises:
        ConfigError: with the path of the key.
    """
    if not isinstance(value, dict):
        return
    for key, entry in value.items():
        for name, part in entry.items() if isinstance(entry, dict) else (("", entry),):
            try:
                plain(part)
            except InputError as error:
                raise ConfigError(f"{_below(str(key), name) if name else key}: {error}") from None


def _check(value: Any, kind: Any, path: str) -> None:
    """Look for unknown keys and words, which msgspec would name without what is near."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (typing.Union, types.UnionType):
        for arm in arguments:
            if _suits(value, arm):
                _check(value, arm, path)
                return
    elif origin is Literal:
        if not any(value == word and type(value) is type(word) for word in arguments):
            known = [str(word) for word in arguments]
            raise ConfigError(f"{path} is {value!r}{nearest(str(value), known)}; allowed are {', '.join(known)}")
    elif origin is tuple and isinstance(value, list | tuple):
        for number, entry in enumerate(value):
            _check(entry, arguments[0], f"{path}[{number}]")
    elif origin is dict and isinstance(value, dict):
        for key, entry in value.items():
            _check(entry, arguments[1], _below(path, key))
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, dict):
        hints = typing.get_type_hints(kind)
        names = [field.name for field in msgspec.structs.fields(kind)]
        check_keys(value, names, path)
        for key, entry in value.items():
            _check(entry, hints[key], _below(path, key))


def check_keys(value: dict[Any, Any], known: Iterable[str], path: str) -> None:
    """Refuse keys that are not known.

    Raises:
        ConfigError: there is one; with its path and the nearest valid name.
    """
    known = list(known)
    for key in value:
        if key not in known:
            raise ConfigError(
                f"{_below(path, key)} is unknown{nearest(str(key), known)}; allowed here are {', '.join(known)}"
            )


def _below(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _suits(value: Any, kind: Any) -> bool:
    """Whether a member of a union is the one that is meant."""
    origin = get_origin(kind)
    if kind is types.NoneType:
        return value is None
    if origin is Literal:
        return isinstance(value, str)
    if origin is tuple:
        return isinstance(value, list | tuple)
    if origin is dict or (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return isinstance(value, dict)
    return isinstance(kind, type) and isinstance(value, kind)
