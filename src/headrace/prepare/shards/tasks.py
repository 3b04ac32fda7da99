"""The inputs of a run -> its tasks: spans of tables, and runs of groups of files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import ConfigError, InputError
from headrace.io import output_errors
from headrace.prepare.shards.inputs import MediaInput, captions_of
from headrace.prepare.shards.listing import GROUPS_A_TASK, Group, group_files
from headrace.prepare.shards.messages import FolderTask, SumTask, TableTask, save
from headrace.prepare.shards.options import ShardOptions
from headrace.prepare.sources import (
    MAX_TASK_SPANS,
    SourceFile,
    Span,
    Task,
    choose_task_bytes,
    is_hashed_while_read,
    plan_tasks,
)

_SHOWN = 3
SurveyOrder = TableTask | FolderTask


class SurveyTasks(msgspec.Struct, frozen=True, kw_only=True):
    """The orders of the first phase.

    Attributes:
        orders: in the order of the input.
        sums: tables that no task hashes; of captions the number is that of the input and ``len(inputs)`` more.
    """

    orders: tuple[SurveyOrder, ...]
    sums: tuple[SumTask, ...]


def plan_survey(
    inputs: Sequence[MediaInput], options: ShardOptions, listings: Path, on_notice: Callable[[str], None]
) -> SurveyTasks:
    """Cut the inputs into tasks; the groups of a folder are written to files of ``listings``, some thousand each.

    Raises:
        InputError: captions that cannot be read, or name files that are not there.
        ConfigError: no file of a folder is part of a sample.
        OutputError: the system refuses.
    """
    orders: list[SurveyOrder] = []
    sums: list[SumTask] = []
    task_bytes = choose_task_bytes(sum(given.table.text_bytes for given in inputs if given.table is not None))
    for number, given in enumerate(inputs):
        if given.captions is not None:
            sums.append(SumTask(number + len(inputs), _light(given.captions)))
        if given.table is None:
            for begin, groups in _group_runs(given, options, on_notice):
                path = listings / f"{number}.{begin}"
                with output_errors(listings, "create"):
                    listings.mkdir(exist_ok=True)
                save(path, (begin, groups))
                orders.append(FolderTask(len(orders), number, str(path.absolute())))
            continue
        for task in plan_tasks([given.table], task_bytes=task_bytes, max_spans=MAX_TASK_SPANS):
            span = task.spans[0]
            if span.begin == 0 and not is_hashed_while_read(given.table, span):
                sums.append(SumTask(number, _light(given.table)))
            moved = Task(len(orders), (Span(number, span.begin, span.end),))
            orders.append(TableTask(moved, (_light(given.table),)))
    return SurveyTasks(orders=tuple(orders), sums=tuple(sums))


def _light(file: SourceFile) -> SourceFile:
    """Readers need no sizes of units, of which a file may have many thousands."""
    return msgspec.structs.replace(file, unit_bytes=())


def _group_runs(
    given: MediaInput, options: ShardOptions, on_notice: Callable[[str], None]
) -> list[tuple[int, tuple[Group, ...]]]:
    if given.listing is None:
        return []
    captions = captions_of(given)
    groups, ignored, unmatched = group_files(given.listing, options.source.key_dots, captions)
    if ignored:
        on_notice(f"{given.name}: {len(ignored):,} files have no extension and are part of no sample: {_some(ignored)}")
    if unmatched and given.captions is not None:
        what = f"{len(unmatched):,} rows name files that are not in {given.name}"
        message = f"{given.captions.name}: {what}: {_some(unmatched)}"
        if options.errors.on_error == "stop":
            raise InputError(f"{message}. Correct them, or pass over them with --on-error skip.")
        on_notice(message)
    if not groups:
        raise ConfigError(
            f"input {given.name!r}: no file has an extension, which names the part that it is of a sample"
        )
    return [(begin, tuple(groups[begin : begin + GROUPS_A_TASK])) for begin in range(0, len(groups), GROUPS_A_TASK)]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def described(given: MediaInput) -> dict[str, Any]:
    """An input, so that a run can be known again."""
    found: dict[str, Any] = {"name": given.name, "root": given.root}
    for name, file in (("table", given.table), ("captions", given.captions)):
        if file is not None:
            found[name] = {"name": file.name, "size": file.size_bytes, "mtime_ns": file.mtime_ns}
    if given.listing is not None:
        found["files"] = {"number": len(given.listing.files), "names, sizes and times": given.listing.xxh3_128}
    return found
