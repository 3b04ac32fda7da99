"""Field maps say which part of a sample, and what within it, becomes which field.

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
"""Names that a field map may use in addition to the parts; these facts about the sample need no reading."""


class Option(NamedTuple):
    """One way to a value: a part, and the steps into its decoded value."""

    part: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return self.part + "".join(f"[{step}]" for step in self.steps)


FieldMap = dict[str, tuple[Option, ...]]
"""The options for each field, tried in order."""


def parse_field(description: str, field: str = "a field") -> tuple[Option, ...]:
    """Parse a description such as ``"jpg,detail.json[x][0]"`` into options.

    Raises:
        ConfigError: If brackets do not match, or a part or step is empty; names the column.
    """
    options = []
    at = 0
    for text in description.split(","):
        match = _OPTION.fullmatch(text.strip())
        if match is None:
            raise ConfigError(
                f"field map: {field}: {description!r} cannot be read at column {at + 1}, {text!r}; write part or "
                "part[key][0], with commas between options"
            )
        steps = tuple(match["steps"][1:-1].split("][")) if match["steps"] else ()
        options.append(Option(match["part"], steps))
        at += len(text) + 1
    return tuple(options)


def parse_field_map(field_map: Mapping[str, str]) -> FieldMap:
    """Parse the field map of a ``dataset.yaml``.

    Raises:
        ConfigError: If a value is not text or cannot be parsed.
    """
    parsed = {}
    for field, description in field_map.items():
        if not isinstance(description, str):
            raise ConfigError(f"field map: {field}: found {description!r:.80}; write the name of a part, such as jpg")
        parsed[field] = parse_field(description, field)
    return parsed


def parts_of(field_map: FieldMap) -> tuple[str, ...]:
    """Return the parts that must be read, each once, in the order of the map."""
    return tuple(dict.fromkeys(part for parts in sources_of(field_map).values() for part in parts))


def sources_of(field_map: FieldMap) -> dict[str, tuple[str, ...]]:
    """Return, for each field, the parts from which it may be made, in the order in which they are tried."""
    return {
        field: tuple(dict.fromkeys(option.part for option in options if option.part not in META_PARTS))
        for field, options in field_map.items()
    }


def access(value: Any, option: Option, field: str) -> Any:
    """Follow the steps of an option into the decoded value of its part.

    An object is entered by key, a list by number (negative ones count from the end); other values cannot be entered.

    Raises:
        FieldAccessError: If there is no such key or element, or the value cannot be entered.
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
    """Return the value of a field: that of the first option that leads to one.

    Args:
        options: At least one.
        field: The field's name, for messages.
        part: Returns the decoded value of a part, or raises KeyError if the sample lacks it.

    Raises:
        FieldAccessError: If no option works; says why each does not.
    """
    failed: list[FieldAccessError] = []
    for option in options:
        try:
            value = part(option.part)
        except KeyError as error:
            found = _names(error.args[1]) if len(error.args) > 1 else ""
            failed.append(
                FieldAccessError(option.part, f"field {field!r}: the sample has no part {option.part!r}{found}")
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
