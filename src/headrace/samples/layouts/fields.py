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
    """Return the value without null fields, at any depth: structs of Parquet hold every field of every record."""
    if isinstance(value, Mapping):
        return {name: without_nulls(part) for name, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(part) for part in value]
    return value
