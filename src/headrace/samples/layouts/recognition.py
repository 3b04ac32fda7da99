"""How the layout of an input is recognised from its first records, or that of each record by itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from headrace.config import closest
from headrace.errors import ConfigError, InputError
from headrace.samples.layouts.known import LAYOUTS
from headrace.samples.layouts.layout import Layout, Sample
from headrace.samples.layouts.turns import InputSpec

NUM_RECORDS = 100
"""The number of records that `recognise` looks at, unless it gets fewer."""


class Recognised(msgspec.Struct, frozen=True, kw_only=True):
    """The layout that was recognised, and why."""

    layout: str
    why: str
    """One line with the fields that identify the layout and the number of records that were read."""

    alternatives: tuple[str, ...] = ()
    """Layouts that fit as well, and gave way because this one reads more of the record or makes a wanted sample."""


def recognise(
    records: Sequence[Mapping[str, Any]],
    options: InputSpec | None = None,
    *,
    makes: Collection[type[Sample]] | None = None,
) -> Recognised:
    """Return the one layout that all these records fit.

    Args:
        records: The first records of an input; at most `NUM_RECORDS` are read.
        options: Names of fields and roles.
        makes: The types of samples that can be used; None allows all.

    Raises:
        ConfigError: If no layout fits, or several fit and none of them reads all fields that the others read.
    """
    records = records[:NUM_RECORDS]
    if not records:
        raise ConfigError("there is no record from which the layout could be recognised: name it with `layout`")
    layouts = [layout(options) for layout in LAYOUTS.values()]
    fitting = [layout for layout in layouts if all(_fits(layout, record) for record in records)]
    best = _fullest(_usable(fitting, makes))
    if len(best) == 1:
        return Recognised(
            layout=best[0].name,
            why=_why(best[0], len(records)),
            alternatives=tuple(layout.name for layout in fitting if layout is not best[0]),
        )
    if best:
        raise ConfigError(
            f"the records fit several layouts: {'; '.join(_shown(layout) for layout in best)}. "
            f"Choose one, for instance `layout: {best[0].name}`"
        )
    raise ConfigError(_no_layout(layouts, fitting, records, makes))


class EachLayout:
    """Recognises the layout of every record separately, for files of mixed layouts.

    Args:
        options: Names of fields and roles, for all layouts.
        makes: The types of samples that can be used.
    """

    def __init__(self, options: InputSpec | None, makes: Collection[type[Sample]]) -> None:
        self._makes = makes
        self._usable = _usable([layout(options) for layout in LAYOUTS.values()], makes)
        self._options = options

    def convert(self, record: Mapping[str, Any]) -> Sample:
        """Convert the record by the layout that it fits; see `Layout.convert`.

        Raises:
            InputError: If the record fits no layout or several, or the layout that it fits cannot read it.
        """
        fitting = _fullest([layout for layout in self._usable if layout.fits(record)])
        if len(fitting) != 1:
            try:
                recognise([record], self._options, makes=self._makes)
            except ConfigError as error:
                raise InputError(str(error).replace("record 0", "the record")) from None
        if fitting[0].name == "kto":
            raise InputError(
                "the record is of the layout kto, which stores a label: put such records into a separate store"
            )
        return fitting[0].convert(record)


def _fits(layout: Layout, record: object) -> bool:
    return isinstance(record, Mapping) and layout.fits(record)


def _usable(layouts: Sequence[Layout], makes: Collection[type[Sample]] | None) -> list[Layout]:
    return [layout for layout in layouts if makes is None or layout.makes in makes]


def _fullest(layouts: Sequence[Layout]) -> list[Layout]:
    """Return the layouts that give way to no other: none of these reads all of their fields and more."""
    fields = [frozenset(layout.required) for layout in layouts]
    return [layout for layout, own in zip(layouts, fields, strict=True) if not any(own < other for other in fields)]


def _why(layout: Layout, num_records: int) -> str:
    names = [layout.fields.name(field) for field in layout.required]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    counted = "the record has" if num_records == 1 else f"all of the first {num_records} records have"
    return f"{counted} {listed}"


def _no_layout(
    layouts: Sequence[Layout],
    fitting: Sequence[Layout],
    records: Sequence[Mapping[str, Any]],
    makes: Collection[type[Sample]] | None,
) -> str:
    """Explain why no layout fits all records: one fits but cannot be used, layouts are mixed, or a near one fails."""
    if fitting:
        usable = [layout.name for layout in _usable(layouts, makes)]
        return (
            f"the records are of the layout {fitting[0].name} ({fitting[0].says}), which cannot be used here; allowed "
            f"are {', '.join(usable)}"
        )
    first: object = records[0]
    if not isinstance(first, Mapping):
        return f"record 0 is a {type(first).__name__}; a record is an object"
    of_first = [layout for layout in layouts if _fits(layout, first)]
    if of_first:
        other = next(number for number, record in enumerate(records) if not _fits(of_first[0], record))
        return (
            f"the records are not all of one layout: record 0 fits {of_first[0].name}, record {other} does not "
            f"({_reason(of_first[0], records[other])}). Use `layout: each` to read each record by its own layout, or "
            f"`layout: {of_first[0].name}` to count such records as bad"
        )
    return _nearest_layout(_usable(layouts, makes), first)


def _nearest_layout(wanted: Sequence[Layout], first: Mapping[str, Any]) -> str:
    near = max(wanted, key=lambda layout: sum(layout.fields.has(first, field) for field in layout.required))
    names = ", ".join(map(repr, list(first)[:12])) or "none"
    begin = f"record 0 fits no layout; its fields are: {names}."
    if any(near.fields.has(first, field) for field in near.required):
        return f"{begin} The nearest layout is {near.name}: {_reason(near, first)}"
    known = sorted({field for layout in wanted for field in layout.required})
    alike = [(close, field) for field in first if (close := closest(str(field), known, cutoff=0.7))]
    ours, theirs = alike[0] if alike else (known[0], "NAME")
    shown = f"{{{ours}: {theirs}}}"
    return f"{begin} Name the fields with `fields`, for instance `fields: {shown}`. The layouts are: " + "; ".join(
        _shown(layout) for layout in wanted
    )


def _shown(layout: Layout) -> str:
    return layout.says if layout.says.startswith(f"{layout.name}:") else f"{layout.name} ({layout.says})"


def _reason(layout: Layout, record: object) -> str:
    if not isinstance(record, Mapping):
        return "it is not an object"
    try:
        layout.convert(record)
    except InputError as error:
        return str(error)
    return "its fields have values of other kinds"
