"""Read the fields of a record by the names of its layout, and say what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.config import describe, nearest
from headrace.errors import InputError

_SHOWN_NAMES = 8


class Fields:
    """Reads the fields of records of one layout.

    ``names`` maps a name of the layout to the field of the data where they differ: ``{"messages": "dialog"}``, or to a
    path into objects: ``{"messages": "data.turns"}``. A field whose whole name is the path comes first. A null field
    counts as missing, since Parquet has no other way to leave one out.
    """

    def __init__(self, layout: str, names: Mapping[str, str]) -> None:
        self.layout = layout
        self._names = dict(names)

    def name(self, field: str) -> str:
        """Return the data's name of a field."""
        return self._names.get(field, field)

    def get(self, record: Mapping[str, Any], field: str) -> Any:
        """Return the value of a field, or None if the record has none."""
        name = self._names.get(field, field)
        value = record.get(name)
        if value is None and "." in name and name not in record:
            value = record
            for part in name.split("."):
                if not isinstance(value, Mapping):
                    return None
                value = value.get(part)
        return value

    def has(self, record: Mapping[str, Any], *fields: str) -> bool:
        """Return whether the record has all of these fields."""
        return all(self.get(record, field) is not None for field in fields)

    def need(self, record: Mapping[str, Any], field: str, wanted: str) -> Any:
        """Return the value of a field.

        Raises:
            InputError: If the field is missing or null.
        """
        value = self.get(record, field)
        if value is None:
            names = list(record)
            near = nearest(self.name(field), names)
            shown = ", ".join(map(repr, names[:_SHOWN_NAMES])) or "none"
            more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
            state = "is null" if self.name(field) in record else "is missing"
            raise InputError(
                f"field {self.name(field)!r} {state}: the layout {self.layout!r} needs {wanted} there; the fields are: "
                f"{shown}{more}{near} (name the right one with `fields`, or choose another `layout`)"
            )
        return value

    def text(self, record: Mapping[str, Any], field: str) -> str:
        """Return a required field that is a string.

        Raises:
            InputError: If the field is missing or is not a string.
        """
        value = self.need(record, field, "a string")
        if not isinstance(value, str):
            raise self.wrong(field, value, "a string")
        return check_text(value, self.name(field))

    def optional_text(self, record: Mapping[str, Any], field: str) -> str:
        """Return a field that is a string, or an empty string if the record has none.

        Raises:
            InputError: If the field is not a string.
        """
        return "" if self.get(record, field) is None else self.text(record, field)

    def parsed(self, record: Mapping[str, Any], field: str, kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
        """Return a field that is a list or an object, or the JSON of one; None if it is missing or an empty string.

        Raises:
            InputError: If the field is neither.
        """
        value = self.get(record, field)
        wanted = "a list, or the JSON of one" if kind is list else "an object, or the JSON of one"
        if isinstance(value, str):
            if not value.strip():
                return None
            try:
                value = msgspec.json.decode(value)
            except (msgspec.DecodeError, RecursionError) as error:
                raise self.wrong(field, self.get(record, field), f"{wanted} ({error})") from None
            if value is None:
                return None
        if value is None or isinstance(value, kind):
            return value
        raise self.wrong(field, value, wanted)

    def wrong(self, field: str, value: object, wanted: str) -> InputError:
        """Return the error for a field whose value is not what the layout needs."""
        return wrong(self.name(field), value, wanted)


def wrong(place: str, value: object, wanted: str) -> InputError:
    """Return the error for a value at ``place`` that is not the kind that is ``wanted``."""
    return InputError(f"{place} is {describe(value)}; allowed is {wanted}")


def is_unicode(text: str) -> bool:
    """Return whether a text can be written as UTF-8; JSON may hold half of a surrogate pair, which cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def check_text(text: str, place: str) -> str:
    """Return the text if it can be written as UTF-8.

    Raises:
        InputError: If the text holds an unpaired surrogate.
    """
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{place} is not Unicode text: unpaired surrogate \\u{ord(text[error.start]):04x} at character "
            f"{error.start:,}"
        ) from None
    return text


def without_nulls(value: Any) -> Any:
    """Return the value without null fields, at any depth; see `NullFields`."""
    return NullFields(None).without(value)


_MAY_BE_NULL = ("default", "const", "content")
"""Fields in which null says something: of schemas, and a message with calls only."""


class NullFields:
    """Leaves out null fields of one record, at any depth: structs of Parquet hold every field of every record.

    Nulls that say something stay: defaults and constants of schemas, contents of messages, and arguments of calls. An
    argument goes if the record's tools say that it cannot be null, or do not have it, so that Arrow has filled it in.

    Args:
        tools: The record's tools.

    Attributes:
        num_arguments: How many arguments were left out so far.
    """

    def __init__(self, tools: object) -> None:
        self.num_arguments = 0
        self._schemas: dict[str, Any] = {}
        for tool in tools if isinstance(tools, list | tuple) else ():
            described = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if isinstance(described, Mapping) and isinstance(described.get("name"), str):
                self._schemas[described["name"]] = described.get("parameters")

    def without(self, value: Any, *, named_freely: bool = False) -> Any:
        """Return the value without them. ``named_freely``: its fields are the properties of a schema."""
        if isinstance(value, Mapping):
            kept: dict[Any, Any] = {}
            for name, part in value.items():
                if name == "arguments" and isinstance(part, Mapping) and not named_freely:
                    kept[name] = self._arguments(part, self._schemas.get(str(value.get("name"))))
                elif part is not None:
                    kept[name] = self.without(part, named_freely=name == "properties")
                elif name in _MAY_BE_NULL and not named_freely:
                    kept[name] = None
            return kept
        return list(map(self.without, value)) if isinstance(value, list | tuple) else value

    def _arguments(self, arguments: Mapping[str, Any], schema: Any) -> Mapping[str, Any]:
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if not isinstance(properties, Mapping):
            return arguments
        kept = {}
        for name, part in arguments.items():
            if part is None and not _may_be_null(properties.get(name)):
                self.num_arguments += 1
            else:
                kept[name] = self._arguments(part, properties.get(name)) if isinstance(part, Mapping) else part
        return kept


def _may_be_null(schema: Any) -> bool:
    """Return whether a schema allows null, in JSON Schema or in OpenAPI."""
    if not isinstance(schema, Mapping):
        return False
    kinds, values = schema.get("type"), schema.get("enum")
    return (
        kinds == "null"
        or (isinstance(kinds, list | tuple) and "null" in kinds)
        or (isinstance(values, list | tuple) and None in values)
        or schema.get("nullable") is True
        or any(_may_be_null(one) for name in ("anyOf", "oneOf") for one in schema.get(name) or ())
    )


def has_null(value: Any, depth: int = 0) -> bool:
    """Return whether a field of an object in this value is null."""
    if isinstance(value, Mapping):
        return any(part is None or has_null(part, depth + 1) for part in value.values()) if depth < 50 else False
    if isinstance(value, list | tuple):
        return any(has_null(part, depth + 1) for part in value) if depth < 50 else False
    return False


def has_null_property(value: Any, depth: int = 0) -> bool:
    """Return whether a property of a schema is null; elsewhere in a schema, such as in a default, null may be meant."""
    if isinstance(value, Mapping) and depth < 50:
        properties = value.get("properties")
        if isinstance(properties, Mapping) and any(one is None for one in properties.values()):
            return True
        return any(has_null_property(part, depth + 1) for part in value.values())
    return isinstance(value, list | tuple) and depth < 50 and any(has_null_property(part, depth + 1) for part in value)
