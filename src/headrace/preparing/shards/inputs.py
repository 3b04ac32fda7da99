"""Find the inputs of a run, choose the parts that columns become, and cut the work into tasks.

An input is a table or a folder of files. The tasks are spans of tables and groups of files.
"""

from __future__ import annotations

import base64
import binascii
import glob
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.engine.job import Phase
from headrace.engine.serving import save
from headrace.errors import ConfigError, InputError, some
from headrace.io import check_local, expand_braces, natural_key, output_errors
from headrace.preparing.shards.listing import (
    GROUPS_A_TASK,
    Listing,
    SampleFiles,
    group_files,
    image_part,
    list_folder,
    load_captions,
)
from headrace.preparing.shards.messages import SPEC, FolderTask, SumTask, TableTask
from headrace.preparing.shards.options import IMAGE, PartKind, PartSpec, ShardOptions, ShardSource
from headrace.preparing.sources import (
    MAX_TASK_SPANS,
    SourceFile,
    Span,
    Task,
    choose_task_bytes,
    find_inputs,
    is_hashed_while_read,
    open_span,
    plan_tasks,
)
from headrace.preparing.sources.source_file import DESCRIPTIONS, format_of

METADATA_STEM = "metadata"
_IMAGE_COLUMNS = ("image", "img", "jpg", "png", "webp")
_PATH_COLUMNS = ("image_path", "img_path", "file_name", "filename", "filepath", "file_path", "path")
_TEXT_COLUMNS = ("caption", "text", "txt")
_URL_COLUMNS = ("url", "image_url", "img_url", "URL")
_ENDINGS_IN_WORDS = ".csv, .tsv, .jsonl (plain, .gz or .zst), .parquet, .arrow"


class MediaInput(msgspec.Struct, frozen=True, kw_only=True):
    """A table, or a folder of files.

    Attributes:
        name: the name as the user gave it, or the folder that the user gave joined with the relative path.
        root: absolute path of the folder of its files.
        table: the table; None for a folder.
        listing: the files of the folder; None for a table.
        captions: the table that describes the files of a folder.
    """

    name: str
    root: str
    table: SourceFile | None = None
    listing: Listing | None = None
    captions: SourceFile | None = None

    @property
    def total_bytes(self) -> int:
        """Size of the table, or of all files."""
        if self.table is not None:
            return self.table.size_bytes
        return 0 if self.listing is None else self.listing.total_bytes


def find_media(
    inputs: Sequence[str | os.PathLike[str]], source: ShardSource, on_notice: Callable[[str], None]
) -> list[MediaInput]:
    """Resolve files, folders, globs and braces. Arguments keep their order; within one it is that of `natural_key`.

    A folder that holds only tables stands for these tables. Any other folder is a folder of files: it is searched at
    any depth, without names that begin with a dot, and a ``metadata.csv`` (or ``.jsonl``, ``.parquet``) in it holds the
    captions.

    Raises:
        ConfigError: nothing matches, a file has an unknown format, or a file is named twice.
        InputError: a file or folder cannot be read.
        MissingExtraError: a package for one of the formats is not installed.
    """
    check_local(inputs)
    if not inputs:
        raise ConfigError(f"no input is given: name a folder of files, or tables ({_ENDINGS_IN_WORDS})")
    found: list[MediaInput] = []
    seen: set[str] = set()
    for argument in [os.fspath(given) for given in inputs]:
        for name in _expand(argument):
            real = os.path.realpath(name)
            if real in seen:
                raise ConfigError(f"input {name!r} is named twice: name it once")
            seen.add(real)
            found += _folder(name, source, on_notice) if Path(name).is_dir() else [_table(name, source)]
    if source.captions is not None and not any(given.captions for given in found):
        raise ConfigError("--captions describes the files of a folder, but no input is a folder of files")
    if source.captions is not None and sum(given.listing is not None for given in found) > 1:
        raise ConfigError(
            "--captions describes the files of one folder, but several are given: run once for each folder"
        )
    return found


def open_table(name: str) -> SourceFile:
    """Open an existing table.

    Raises:
        ConfigError: its name is not that of a table.
        InputError: the file cannot be read.
    """
    kind = _csv_kind(name)
    if kind is None:
        if (format_of(name) or "txt").startswith("txt"):
            raise ConfigError(f"input {name!r} is not a table by its name; tables are {_ENDINGS_IN_WORDS}")
        return msgspec.structs.replace(find_inputs([name], spec=SPEC)[0], path=str(Path(name).absolute()))
    try:
        status = os.stat(name)  # noqa: PTH116
    except OSError as error:
        raise InputError(f"{name}: the file cannot be read: {error.strerror or error}") from error
    return SourceFile(
        name=name,
        path=str(Path(name).absolute()),
        format=kind,  # type: ignore[arg-type]
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        extent=status.st_size,
    )


def first_row(file: SourceFile) -> dict[str, Any]:
    """Return the first record of a table that can be read; an empty one if there is none."""
    span = Span(0, 0, file.extent if file.format not in ("parquet", "arrow") or not file.unit_bytes else 1)
    for block in open_span(file, span, SPEC).blocks():
        if block.records:
            return dict(block.records[0])
    return {}


def choose_parts(given: MediaInput, source: ShardSource) -> tuple[PartSpec, ...]:
    """Choose the parts that the columns of a table become: those that the user named, or by the names of the columns.

    A column ``image`` (bytes, a struct with bytes, base64 or a path), or a column of paths such as ``image_path`` or
    ``file_name``, becomes the image. ``caption`` or ``text`` becomes part ``txt``, and all other columns part ``json``.

    Raises:
        ConfigError: no column has a known name, or the images are given as URLs.
    """
    table = given.captions or given.table
    if table is None:
        return source.parts
    row = first_row(table)
    if source.parts:
        _check_columns(source.parts, row, table)
        return source.parts
    named = None if given.captions is None else captions_column(row, table.name)
    specs = [] if named is not None else _image_parts(row, table.name, given.root)
    text = _first_of(_TEXT_COLUMNS, row)
    if text is not None:
        specs.append(PartSpec(part="txt", kind="column", column=text))
    if not specs:
        columns = ", ".join(row) or "none"
        raise ConfigError(
            f"{table.name}: no column has a known name; the columns are: {columns}. Choose the parts yourself: "
            "--part jpg=path:COLUMN --part txt=column:COLUMN"
        )
    if row.keys() - {source.key_field, named, *(spec.column for spec in specs)}:
        specs.append(PartSpec(part="json", kind="row"))
    return tuple(specs)


def _check_columns(parts: Sequence[PartSpec], row: dict[str, Any], table: SourceFile) -> None:
    """Refuse parts of columns that a table lacks. Rows of JSON and Arrow may have other columns than the first row."""
    if not row or table.format not in ("csv", "tsv", "parquet"):
        return
    for spec in parts:
        if spec.column and spec.column not in row:
            raise ConfigError(
                f"{table.name}: --part {spec}: no column {spec.column!r}; the columns are: {', '.join(row)}"
            )


def _image_parts(row: dict[str, Any], where: str, root: str) -> list[PartSpec]:
    """The image that a row holds or names; nothing if no column has a known name."""
    column = next((name for name in (*_IMAGE_COLUMNS, *_PATH_COLUMNS) if row.get(name)), None)
    if column is not None:
        kind = _image_kind(row[column], root) if column in _IMAGE_COLUMNS else "path"
        return [PartSpec(part=IMAGE, kind=kind, column=column)]
    url = _first_of(_URL_COLUMNS, row)
    if url is not None:
        raise ConfigError(
            f"{where}: column {url!r} holds URLs, which are not downloaded: download the files first, and add a "
            "column with their paths"
        )
    return []


def _first_of(names: Sequence[str], row: dict[str, Any]) -> str | None:
    """The first of these names that is a column of the row."""
    return next((name for name in names if name in row), None)


def captions_column(row: dict[str, Any], where: str) -> str:
    """Return the column of captions that names the files.

    Raises:
        ConfigError: there is no such column.
    """
    name = _first_of((*_PATH_COLUMNS, "file", "image"), row)
    if name is None:
        raise ConfigError(
            f"{where}: no column names the files: call it file_name; the columns are: {', '.join(row) or 'none'}"
        )
    return name


def _expand(argument: str) -> list[str]:
    if Path(argument).exists():
        return [argument]
    names: list[str] = []
    for name in expand_braces(argument):
        if Path(name).exists():
            names.append(name)
            continue
        matches = sorted(glob.glob(name, recursive=True), key=natural_key)  # noqa: PTH207 - keeps names as given
        if not matches:
            raise ConfigError(f"input {name!r} does not exist")
        names += matches
    return names


def _table(name: str, source: ShardSource) -> MediaInput:
    table = open_table(name)
    root = Path(source.root) if source.root is not None else Path(name).parent
    return MediaInput(name=name, root=str(root.absolute()), table=table)


def _folder(name: str, source: ShardSource, on_notice: Callable[[str], None]) -> list[MediaInput]:
    listing = list_folder(name)
    tables = [file.name for file in listing.files if is_table(file.name)]
    files = tuple(file for file in listing.files if not is_table(file.name))
    others = [file.name for file in files if file.name not in DESCRIPTIONS]
    if tables and not others:
        return [_table(os.path.join(name, table), source) for table in tables]  # noqa: PTH118 - keeps "./" as given
    if source.root is not None:
        raise ConfigError(
            f"--root is the folder of the files that a table names, but {name!r} is a folder of files: leave it out"
        )
    captions, left = _find_captions(name, tables, source.captions, on_notice)
    if left:
        raise ConfigError(
            f"input {name!r} holds a table ({left[0]!r}, {len(left):,} in all) beside other files "
            f"({others[0]!r}, {len(others):,} in all): name the table as input, or add --captions {left[0]}"
        )
    table = None if captions is None else open_table(captions)
    if not files:
        raise ConfigError(f"input {name!r}: the folder holds no files to read")
    root = str(Path(name).absolute())
    return [MediaInput(name=name, root=root, listing=Listing(files=files), captions=table)]


def _find_captions(
    folder: str, tables: list[str], named: str | None, on_notice: Callable[[str], None]
) -> tuple[str | None, list[str]]:
    """The table that describes the files of a folder, if there is one, and the tables in the folder that do not."""
    if named is not None:
        real = os.path.realpath(named)
        return named, [table for table in tables if os.path.realpath(Path(folder, table)) != real]
    if len(tables) == 1 and tables[0].partition(".")[0] == METADATA_STEM:
        captions = os.path.join(folder, tables[0])  # noqa: PTH118 - keeps "./" as given
        on_notice(f"{captions} describes the files of {folder}")
        return captions, []
    return None, tables


def captions_of(given: MediaInput) -> dict[str, tuple[int, dict[str, Any]]] | None:
    """Read the captions of a folder as `load_captions` returns them; None if it has none.

    Raises:
        InputError: a row cannot be read, names no file, or names a file that another row names too.
    """
    table = given.captions
    return None if table is None else load_captions(table, lambda row: captions_column(row, table.name))


def is_table(name: str) -> bool:
    """Whether a file in a folder is a table by its name."""
    kind = format_of(name)
    return _csv_kind(name) is not None or (kind is not None and not kind.startswith("txt"))


def _csv_kind(name: str) -> str | None:
    ending = name.lower().rpartition(".")[2]
    return ending if ending in ("csv", "tsv") else None


def _image_kind(value: Any, root: str) -> PartKind:
    """Return ``bytes`` if a column of images holds them, ``path`` if it names their files."""
    if not isinstance(value, str):
        return "bytes"
    if Path(root, value).is_file():
        return "path"
    try:
        return "bytes" if image_part(base64.b64decode(value[:64], validate=True)) else "path"
    except (binascii.Error, ValueError):
        return "path"


SurveyOrder = TableTask | FolderTask


class SurveyTasks(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of the first phase.

    Attributes:
        orders: the survey tasks, in the order of the input.
        sums: tasks for tables that no survey task hashes. The number of captions is that of their input plus
            ``len(inputs)``.
        total_bytes: size of all inputs.
    """

    orders: tuple[SurveyOrder, ...]
    sums: tuple[SumTask, ...]
    total_bytes: int

    def placed(self) -> list[SurveyOrder | SumTask]:
        """Return all tasks, each with a place: those of the survey, then those that hash."""
        sums = [msgspec.structs.replace(order, place=place) for place, order in enumerate(self.sums, len(self.orders))]
        return [*self.orders, *sums]


class MediaPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides a run, on any host.

    Attributes:
        inputs: tables and folders, without what only planning needs: listings, and sizes of units.
        parts: for each input the parts that its columns become.
        options: all options.
        asked: what the manifest records of them; a number is written there as it was given, 8 or 8.0.
        tasks: the tasks of the first phase.
    """

    inputs: tuple[MediaInput, ...]
    parts: tuple[tuple[PartSpec, ...], ...]
    options: ShardOptions
    asked: dict[str, Any]
    tasks: SurveyTasks

    def surveying(self, mark: str) -> Phase:
        """The first phase, for processes that do its tasks in any order; see `SurveyTasks.placed`."""
        num_tasks = len(self.tasks.orders) + len(self.tasks.sums)
        return Phase(name=f"survey-{mark}", num_tasks=num_tasks, total_bytes=self.tasks.total_bytes)


def plan_survey(
    inputs: Sequence[MediaInput], options: ShardOptions, listings: Path, on_notice: Callable[[str], None]
) -> SurveyTasks:
    """Cut the inputs into tasks. The groups of a folder are written to files in ``listings``, some thousand each.

    Raises:
        InputError: captions cannot be read, or name files that do not exist.
        ConfigError: no file of a folder is part of a sample.
        OutputError: a file cannot be written.
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
    total_bytes = sum(given.total_bytes for given in inputs)
    return SurveyTasks(orders=tuple(orders), sums=tuple(sums), total_bytes=total_bytes)


def planned_input(given: MediaInput) -> MediaInput:
    """Leave out what only planning needs of an input, as of a folder the names of its files."""
    table, captions = (file and _light(file) for file in (given.table, given.captions))
    return msgspec.structs.replace(given, table=table, listing=None, captions=captions)


def _light(file: SourceFile) -> SourceFile:
    """Leave out the sizes of units, which readers do not need; a file may have many thousands."""
    return msgspec.structs.replace(file, unit_bytes=())


def _group_runs(
    given: MediaInput, options: ShardOptions, on_notice: Callable[[str], None]
) -> list[tuple[int, tuple[SampleFiles, ...]]]:
    if given.listing is None:
        return []
    captions = captions_of(given)
    groups, ignored, unmatched = group_files(given.listing, options.source.key_dots, captions)
    if ignored:
        names = some(list(map(repr, ignored)))
        on_notice(f"{given.name}: {len(ignored):,} files have no extension and belong to no sample: {names}")
    if unmatched and given.captions is not None:
        what = f"{len(unmatched):,} rows name files that are not in {given.name}"
        message = f"{given.captions.name}: {what}: {some(list(map(repr, unmatched)))}"
        if options.errors.on_error == "stop":
            raise InputError(f"{message}. Correct them, or skip them with --on-error skip.")
        on_notice(message)
    if not groups:
        raise ConfigError(f"input {given.name!r}: no file has an extension, which would name its part of a sample")
    return [(begin, tuple(groups[begin : begin + GROUPS_A_TASK])) for begin in range(0, len(groups), GROUPS_A_TASK)]


def described(given: MediaInput) -> dict[str, Any]:
    """Describe an input, so that a later call recognises the run."""
    found: dict[str, Any] = {"name": given.name, "root": given.root}
    for name, file in (("table", given.table), ("captions", given.captions)):
        if file is not None:
            found[name] = {"name": file.name, "size": file.size_bytes, "mtime_ns": file.mtime_ns}
    if given.listing is not None:
        found["files"] = {"number": len(given.listing.files), "names, sizes and times": given.listing.xxh3_128}
    return found
