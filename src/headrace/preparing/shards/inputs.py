"""Find the inputs of a run, which are tables and folders of files, and choose the parts that columns become."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from headrace.errors import ConfigError, InputError
from headrace.io import Storage, check_readable, path_at
from headrace.io.finding import reader_among, real_name
from headrace.preparing.ledger import described, error_entry
from headrace.preparing.shards.listing import (
    SPEC,
    FilesBelow,
    av_part,
    hash_of,
    image_part,
    list_folder,
)
from headrace.preparing.shards.options import AUDIO, IMAGE, VIDEO, PartKind, PartSpec, ShardSource
from headrace.preparing.shards.parts import IMAGES, MediaInput
from headrace.preparing.sources import SourceFile, Span, counted_from, find_inputs, open_span, record_noun
from headrace.preparing.sources.find import check_fields, named_once
from headrace.preparing.sources.source_file import DESCRIPTIONS, format_of
from headrace.samples.media.decoding.av_decoder import AUDIO_EXTENSIONS, AV_EXTENSIONS
from headrace.stores.foreign_ranges import foreign_format

METADATA_STEM = "metadata"
_MEDIA_COLUMNS = {
    IMAGE: ("image", "img", "jpg", "png", "webp", "image_path", "img_path"),
    AUDIO: ("audio", "audio_filepath", "audio_path", "audio_file", "wav", "flac", "mp3", "wav_path"),
    VIDEO: ("video", "video_filepath", "video_path", "video_file", "mp4"),
}
_PATH_COLUMNS = ("image_path", "img_path", "file_name", "filename", "filepath", "file_path", "path")
_NUM_FIRST = 100
_TEXT_COLUMNS = ("caption", "text", "txt")
_URL_COLUMNS = ("url", "image_url", "img_url", "URL")
_ENDINGS_IN_WORDS = ".csv, .tsv, .jsonl (plain, .gz or .zst), .parquet, .arrow"


def find_media(
    inputs: Sequence[str | os.PathLike[str]],
    source: ShardSource,
    on_notice: Callable[[str], None],
    storage: Storage | None = None,
) -> list[MediaInput]:
    """Resolve files, folders, globs and braces. Arguments keep their order; within one it is that of `natural_key`.

    A folder that holds only tables stands for these tables. Any other folder is a folder of files: it is searched at
    any depth, without names that begin with a dot, and a ``metadata.csv`` (or ``.jsonl``, ``.parquet``) in it holds the
    captions. All of them may be at URLs, where a glob finds tables, and no folders.

    Raises:
        ConfigError: nothing matches, a file has an unknown format, or a file is named twice; see `choose_parts`.
        InputError: a file or folder cannot be read.
        StoreError: the store of a URL cannot be reached.
        MissingExtraError: a package for one of the formats is not installed.
    """
    check_readable(list(inputs))
    if not inputs:
        raise ConfigError(f"no input is given: name a folder of files, or tables ({_ENDINGS_IN_WORDS})")
    finder = _Finder(inputs, source, on_notice, storage)
    found = [one for name in named_once(inputs, finder.using, lambda name: [name]) for one in finder.find(name)]
    if source.captions is not None and not any(given.captions for given in found):
        raise ConfigError("--captions describes the files of a folder, but no input is a folder of files")
    if source.captions is not None and sum(given.table is None for given in found) > 1:
        raise ConfigError(
            "--captions describes the files of one folder, but several are given: run once for each folder"
        )
    return [msgspec.structs.replace(given, parts=choose_parts(given, source, storage)) for given in found]


def first_row(file: SourceFile) -> dict[str, Any]:
    """Return the first value, if there is one, of each column that the first 100 records of a table have."""
    span = Span(0, 0, file.extent if file.format not in ("parquet", "arrow") or not file.unit_bytes else 1)
    for block in open_span(file, span, SPEC).blocks():
        found: dict[str, Any] = {}
        for row in (block.records or [])[:_NUM_FIRST]:
            if isinstance(row, Mapping):
                found |= {name: value for name, value in row.items() if found.get(name) is None}
        if found:
            return found
    return {}


def choose_parts(given: MediaInput, source: ShardSource, storage: Storage | None = None) -> tuple[PartSpec, ...]:
    """Choose the parts that the columns of a table become: those that the user named, or by the names of the columns.

    A column ``image``, ``audio`` or ``video`` (bytes, a struct with bytes, base64 or a path), or a column of paths such
    as ``image_path``, ``audio_filepath`` or ``file_name``, becomes this medium. ``caption`` or ``text`` becomes part
    ``txt``, and all other columns part ``json``.

    Raises:
        ConfigError: no column has a known name, the images are given as URLs, a medium is a list, or another column
            names a file, which would be left out.
    """
    table = given.captions or given.table
    if table is None:
        return source.parts
    wanted = [((spec.column,), f"--part {spec} needs it") for spec in source.parts if spec.column]
    if source.key_field is not None and given.table is not None:
        wanted.append(((source.key_field,), "choose with --id-field"))
    check_fields([table], SPEC, wanted)
    row = first_row(table)
    if source.parts:
        return source.parts
    named = None if given.captions is None else captions_column(row, table.name)
    files = FilesBelow(given.root, storage)
    media = [] if named is not None else _media_parts(row, table.name, files)
    text = _first_of(_TEXT_COLUMNS, row)
    taken = {source.key_field, named, text, *(spec.column for spec in media)}
    others = [name for name in sorted(row.keys() - taken) if _names_medium(row[name], files)]
    if not media and named is None and len(others) == 1 and isinstance(row[others[0]], str):
        media.append(_path_part(others.pop(), row))
    specs = media if text is None else [*media, PartSpec(part="txt", kind="column", column=text)]
    if not specs:
        columns = ", ".join(row) or "none"
        raise ConfigError(
            f"{table.name}: no column has a known name; the columns are: {columns}. Choose the parts yourself: "
            "--part jpg=path:COLUMN --part txt=column:COLUMN"
        )
    if row.keys() - {source.key_field, named, *(spec.column for spec in specs)}:
        specs.append(PartSpec(part="json", kind="row"))
    if others:
        raise ConfigError(
            f"{table.name}: column {others[0]!r} names files, {row[others[0]]!r:.80}, of which no part would be made."
            f" Choose the parts yourself: {' '.join(f'--part {spec}' for spec in specs)}, and --part"
            f" NAME=path:{others[0]} for a column with one file a row"
        )
    return tuple(specs)


def _names_medium(value: Any, files: FilesBelow) -> bool:
    """Whether a value of a row is the name of an existing image, sound or video, or a list that begins with one."""
    name = value[0] if isinstance(value, list) and value else value
    return (
        isinstance(name, str)
        and name.rpartition(".")[2].lower() in IMAGES | AV_EXTENSIONS
        and files.holds(name.removeprefix("./"))
    )


def _path_part(column: str, row: dict[str, Any]) -> PartSpec:
    end = av_part(b"", str(row[column]))
    part = IMAGE if end is None else AUDIO if end in AUDIO_EXTENSIONS else VIDEO
    return PartSpec(part=part, kind="path", column=column)


def _media_parts(row: dict[str, Any], where: str, files: FilesBelow) -> list[PartSpec]:
    """The image, sound and video that a row holds or names; nothing if no column has a known name."""
    specs = []
    for part, columns in _MEDIA_COLUMNS.items():
        if column := next((name for name in columns if row.get(name)), None):
            specs.append(PartSpec(part=part, kind=_media_kind(column, row[column], where, files), column=column))
    if specs:
        return specs
    if column := next((name for name in _PATH_COLUMNS if row.get(name)), None):
        return [_path_part(column, row)]
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


class _Finder:
    """Finds the inputs behind names, see `find_media`."""

    def __init__(
        self,
        inputs: Sequence[str | os.PathLike[str]],
        source: ShardSource,
        on_notice: Callable[[str], None],
        storage: Storage | None,
    ) -> None:
        self._source = source
        self._on_notice = on_notice
        self._storage = storage
        places = [*inputs, *(path for path in (source.root, source.captions) if path is not None)]
        self.using = reader_among(places, storage)

    def find(self, name: str) -> list[MediaInput]:
        """Return the input of a name; several if it is a folder of tables."""
        place = path_at(name, self.using)
        is_folder = not place.is_file() and place.is_dir()
        return self._folder(name) if is_folder else [self._table(name)]

    def _opened(self, name: str) -> SourceFile:
        if not is_table(name):
            raise ConfigError(f"input {name!r} is not a table by its name; tables are {_ENDINGS_IN_WORDS}")
        return find_inputs([name], spec=SPEC, storage=self._storage)[0]

    def _table(self, name: str) -> MediaInput:
        table = self._opened(name)
        root = path_at(name).parent if self._source.root is None else path_at(self._source.root)
        return MediaInput(name=name, root=str(root.absolute()), table=table)

    def _folder(self, name: str) -> list[MediaInput]:
        if told := foreign_format(name, self.using):
            raise ConfigError(f"input {name!r}: {told}")
        listed = list_folder(name, self.using)
        tables = [file.name for file in listed if is_table(file.name)]
        files = tuple(file for file in listed if not is_table(file.name))
        others = [file.name for file in files if file.name not in DESCRIPTIONS]
        if others and all(other.endswith(".tar") for other in others):
            raise ConfigError(
                f"input {name!r} is a folder of tar shards, which headrace prepare energon indexes in place"
            )
        if tables and not others:
            return [self._table(os.path.join(name, table)) for table in tables]  # noqa: PTH118 - keeps "./" as given
        if self._source.root is not None:
            raise ConfigError(
                f"--root is the folder of the files that a table names, but {name!r} is a folder of files: leave it out"
            )
        captions, left = self._find_captions(name, tables)
        if left:
            raise ConfigError(
                f"input {name!r} holds a table ({left[0]!r}, {len(left):,} in all) beside other files "
                f"({others[0]!r}, {len(others):,} in all): name the table as input, or add --captions {left[0]}"
            )
        table = None if captions is None else self._opened(captions)
        if not files:
            raise ConfigError(f"input {name!r}: the folder holds no files to read")
        root = str(path_at(name).absolute())
        return [MediaInput(name=name, root=root, files=files, captions=table)]

    def _find_captions(self, folder: str, tables: list[str]) -> tuple[str | None, list[str]]:
        """The table that describes the files of a folder, if there is one, and the tables in it that do not."""
        named = self._source.captions
        if named is not None:
            real = real_name(named)
            return named, [table for table in tables if real_name(os.path.join(folder, table)) != real]  # noqa: PTH118
        if len(tables) == 1 and tables[0].partition(".")[0] == METADATA_STEM:
            captions = os.path.join(folder, tables[0])  # noqa: PTH118 - keeps "./" as given
            self._on_notice(f"{captions} describes the files of {folder}")
            return captions, []
        return None, tables


def captions_of(given: MediaInput) -> dict[str, dict[str, Any]] | None:
    """Read the captions of a folder into memory; None if it has none.

    Returns:
        For each name of a file the row that describes it, without that name.

    Raises:
        InputError: a row cannot be read, names no file, or names a file that another row names too.
        ConfigError: no column names the files.
    """
    table = given.captions
    if table is None:
        return None
    found: dict[str, dict[str, Any]] = {}
    lines: dict[str, int] = {}
    column, noun = "", record_noun(table.format, "document")

    def fault(line: int, what: str) -> InputError:
        return InputError(described(error_entry(table, "document", line, what)))

    for block in open_span(table, Span(0, 0, table.extent), SPEC).blocks():
        if block.bad:
            raise fault(block.bad[0].line, block.bad[0].message)
        for line, record in zip(block.lines.tolist(), block.records or [], strict=True):
            row = dict(record)
            column = column or captions_column(row, table.name)
            name = row.pop(column, None)
            if not isinstance(name, str) or not name:
                raise fault(line, f"column {column!r} must name a file, found {name!r:.80}")
            name = name.removeprefix("./")
            if name in found:
                earlier = lines[name] + counted_from(noun)
                raise fault(line, f"file {name!r} is already described by {noun} {earlier:,}")
            found[name], lines[name] = row, line
    return found


def is_table(name: str) -> bool:
    """Whether a file in a folder is a table by its name."""
    kind = format_of(name)
    return kind is not None and not kind.startswith("txt")


def _media_kind(column: str, value: Any, where: str, files: FilesBelow) -> PartKind:
    """Return ``bytes`` if a column of media holds them, ``path`` if it names their files."""
    if isinstance(value, list):
        raise ConfigError(
            f"{where}: column {column!r} holds a list of {len(value):,}, as {value[0]!r:.80}, and a part is one file:"
            f" give each of them a column of its own, or keep their names with --part json=column:{column}"
        )
    if not isinstance(value, str):
        return "bytes"
    if files.holds(value):
        return "path"
    try:
        head = base64.b64decode(value[:88], validate=True)
        return "bytes" if image_part(head) or av_part(head) else "path"
    except (binascii.Error, ValueError):
        return "path"


def planned_input(given: MediaInput) -> MediaInput:
    """Leave out what only planning needs of an input, as of a folder the names of its files, and what no plan holds."""
    table, captions = (
        file and msgspec.structs.replace(file, unit_bytes=(), storage=None) for file in (given.table, given.captions)
    )
    return msgspec.structs.replace(given, table=table, files=(), captions=captions)


def described_input(given: MediaInput) -> dict[str, Any]:
    """Describe an input, so that a later call recognises the run."""
    found: dict[str, Any] = {"name": given.name, "root": given.root}
    for name, file in (("table", given.table), ("captions", given.captions)):
        if file is not None:
            found[name] = {"name": file.name, "size": file.size_bytes, "mtime_ns": file.mtime_ns}
            found[name] |= {"etag": file.etag} if file.etag else {}
    if given.table is None:
        found["files"] = {"number": len(given.files), "names, sizes and times": hash_of(given.files)}
    return found
