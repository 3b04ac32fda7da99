"""Field maps: which part of a sample, and what within it, becomes which field.

image: jpg                          the part
caption: detail.json[captions][0]   within it: a key of an object, then an element of a list; parts may have dots
text: txt,json[text]                options: the first that works
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from headrace.errors import ConfigError, FieldAccessError

_OPTION = re.compile(r"(?P<part>[^\[\],]+)(?P<steps>(?:\[[^\[\]]+\])*)")

META_PARTS = ("__key__", "__shard__", "__restore_key__", "__subflavors__", "__sources__")
"""What a field map may name beside the parts: facts of the sample that are not read."""


class Option(NamedTuple):
    """One way to a value: a part, and the steps into what it decodes to."""

    part: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return self.part + "".join(f"[{step}]" for step in self.steps)


FieldMap = dict[str, tuple[Option, ...]]
"""Name of the field -> options, tried in order."""


def parse_field(description: str, field: str = "a field") -> tuple[Option, ...]:
    """``"jpg,detail.json[x][0]"`` as options.

    Raises:
        ConfigError: brackets that do not match, an empty part or step; names the place.
    """
    options = []
    at = 0
    for text in description.split(","):
        match = _OPTION.fullmatch(text.strip())
        if match is None:
            raise ConfigError(
                f"field map: {field}: {description!r} cannot be read at column {at + 1}, {text!r}; write part or "
                "part[key][0], options separated by commas"
            )
        steps = tuple(match["steps"][1:-1].split("][")) if match["steps"] else ()
        options.append(Option(match["part"], steps))
        at += len(text) + 1
    return tuple(options)


def parse_field_map(field_map: Mapping[str, str]) -> FieldMap:
    """The field map of a ``dataset.yaml``.

    Raises:
        ConfigError: a value is not text or cannot be read.
    """
    parsed = {}
    for field, description in field_map.items():
        if not isinstance(description, str):
            raise ConfigError(f"field map: {field}: found {description!r:.80}; write the name of a part, such as jpg")
        parsed[field] = parse_field(description, field)
    return parsed


def parts_of(field_map: FieldMap) -> tuple[str, ...]:
    """The parts that must be read, each once, in the order of the map."""
    return tuple(dict.fromkeys(part for parts in sources_of(field_map).values() for part in parts))


def sources_of(field_map: FieldMap) -> dict[str, tuple[str, ...]]:
    """Field -> the parts it may be made of, in the order they are tried."""
    return {
        field: tuple(dict.fromkeys(option.part for option in options if option.part not in META_PARTS))
        for field, options in field_map.items()
    }


def access(value: Any, option: Option, field: str) -> Any:
    """What the steps of an option lead to, in the decoded value of its part.

    An object is entered by key, a list by number (negative ones from the end), and nothing else can be entered.

    Raises:
        FieldAccessError: there is no such key or element, or the value cannot be entered.
    """
    for depth, step in enumerate(option.steps):
        try:
            if isinstance(value, dict):
                value = value[step]
            elif isinstance(value, list):
                value = value[int(step)]
            else:
                raise _no_access(field, option, depth, f"a {type(value).__name__}, which cannot be entered")
        except KeyError:
            found = ", ".join(repr(key) for key in list(value)[:8]) or "none"
            raise _no_access(field, option, depth, f"an object with the keys {found:.200}") from None
        except IndexError:
            raise _no_access(field, option, depth, f"a list of {len(value):,} elements") from None
        except ValueError as error:
            if isinstance(error, FieldAccessError):
                raise
            raise _no_access(field, option, depth, "a list, which is entered by number") from None
    return value


def first_that_works(options: tuple[Option, ...], field: str, part: Callable[[str], Any]) -> Any:
    """The value of a field: that of the first option that leads to one.

    Args:
        options: at least one.
        field: its name, for messages.
        part: the decoded value of a part, or KeyError where the sample lacks it.

    Raises:
        FieldAccessError: no option works; says why each does not.
    """
    failed: list[FieldAccessError] = []
    for option in options:
        try:
            value = part(option.part)
        except KeyError as error:
            there = _names(error.args[1]) if len(error.args) > 1 else ""
            failed.append(
                FieldAccessError(option.part, f"field {field!r}: the sample has no part {option.part!r}{there}")
            )
            continue
        try:
            return access(value, option, field)
        except FieldAccessError as error:
            failed.append(error)
    if len(failed) == 1:
        raise failed[0]
    written = ",".join(map(str, options))
    reasons = "; ".join(error.reason.removeprefix(f"field {field!r}: ") for error in failed)
    raise FieldAccessError(None, f"field {field!r}: none of {written!r} works: {reasons}")


def _no_access(field: str, option: Option, depth: int, found: str) -> FieldAccessError:
    before = Option(option.part, option.steps[:depth])
    return FieldAccessError(option.part, f"field {field!r}: no [{option.steps[depth]}] in {before}: it is {found}")


def _names(parts: Iterable[str]) -> str:
    return f"; it has {', '.join(parts) or 'none'}"
