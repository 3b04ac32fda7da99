"""Finds the files to read, in order, from what the user named.

Standard input is copied into a file, so that it can be read again after a kill.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from headrace.config import nearest, nearest_path
from headrace.errors import ConfigError, InputError, StoreError, some
from headrace.io import AtomicFile, Reader, Storage, check_readable, natural_key, path_at
from headrace.io.finding import each, expand, names_below, reader_among, real_name, status_of, storage_for
from headrace.preparing.sources.block import RecordSpec
from headrace.preparing.sources.reader import open_span
from headrace.preparing.sources.source_file import (
    FORMATS_IN_WORDS,
    Format,
    SourceFile,
    Span,
    check_head,
    format_of,
    input_errors,
    is_unread_data,
    is_utf8,
    sniff,
)
from headrace.preparing.sources.streams import BOM, load_zstandard
from headrace.stores.foreign import STATE_NAME, data_files, is_saved_dataset, splits_of
from headrace.stores.foreign_ranges import foreign_format

STDIN = "-"


def find_inputs(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    spec: RecordSpec,
    stdin: Path | None = None,
    keep_faulty: bool = False,
    storage: Storage | None = None,
) -> list[SourceFile]:
    """Resolve files, folders, globs, braces and ``-``. All but the last may also be URLs.

    Arguments keep their order. The files within an argument have the order of `natural_key`.

    Folders are searched at any depth for files of all formats. Names that begin with a dot are ignored, and so are
    names that do not look like data. Data of a format that is not read is an error, and so are text files beside other
    data, since they may be notes or part of the corpus. Of a folder that ``Dataset.save_to_disk`` wrote, only the files
    that its state names are read. A file that the user names may also end in ``.json``, and is
    then read as JSON Lines.

    Every file is opened, and if its format has a schema, the columns are checked; `check_fields` checks the others.

    Args:
        inputs: what the user named.
        spec: what to read of each record.
        stdin: the file that `spool_stdin` wrote, if ``-`` is among the inputs.
        keep_faulty: return a file that cannot be read with its `SourceFile.fault`, instead of raising. Its only record
            is then a bad one.
        storage: how the stores of URLs are reached.

    Raises:
        ConfigError: nothing matches, a file has a format that is not read, or lacks a column, or the same file is named
            twice.
        InputError: a file or folder cannot be read, or a file has another format than its name says.
        MissingExtraError: a package for one of the formats is not installed.
    """
    check_readable(list(inputs))
    if not inputs:
        raise ConfigError(f"no input: name at least one file, folder or glob ({FORMATS_IN_WORDS})")
    using = reader_among(inputs, storage)
    found = named_once(inputs, using, lambda name: _take(name, using))

    def described(name: str) -> SourceFile:
        path = _place(name, stdin)
        file = SourceFile(
            name=name,
            path=path,
            format=_format(name) or "jsonl",
            size_bytes=0,
            mtime_ns=0,
            extent=0,
            storage=storage_for(path, storage),
        )
        try:
            with input_errors(name):
                size, etag, modified_ns = status_of(path_at(path, using))
            file = msgspec.structs.replace(file, size_bytes=size, mtime_ns=modified_ns, extent=size, etag=etag)
            return _describe(file, spec)
        except InputError as error:
            if not keep_faulty:
                raise
            return msgspec.structs.replace(file, extent=0, fault=str(error).removeprefix(f"{name}: "))

    return list(each(described, found, found))


def named_once(
    inputs: Sequence[str | os.PathLike[str]], using: str | Reader, take: Callable[[str], list[str]]
) -> list[str]:
    """Return the names of the files that arguments stand for, in order; ``-`` stands for itself.

    Args:
        inputs: files, folders, globs, braces and ``-``.
        using: what looks up URLs.
        take: returns the names of the files that a file or folder stands for.

    Raises:
        ConfigError: nothing matches, or the same file is named twice.
        InputError: a folder cannot be read.
    """
    seen: dict[str, str] = {}
    found: list[str] = []
    for argument in [os.fspath(path) for path in inputs]:
        with input_errors(f"input {argument!r}"):
            names = [STDIN] if argument == STDIN else [one for name in _expand(argument, using) for one in take(name)]
        for name in names:
            if not is_utf8(name):
                raise ConfigError(f"input {name!r}: the name of the file is not UTF-8: rename the file")
            real = name if name == STDIN else real_name(name)
            if real in seen:
                raise ConfigError(_twice(name, seen[real], argument))
            seen[real] = argument
            found.append(name)
    return found


def _expand(argument: str, using: str | Reader) -> Iterator[str]:
    """Yield the names of the files and folders behind one argument, in order."""
    for name, found in expand(argument, using):
        if not found:
            origin = f" (one of {argument!r})" if name != argument else ""
            what = f"does not exist{nearest_path(name)}"
            if glob.has_magic(name):
                is_local = isinstance(path_at(name), Path)
                what = "matches no file" + ("" if is_local else " (at a URL a pattern finds no folders: name them)")
            raise ConfigError(f"input {name!r}{origin} {what}")
        yield from found


def _take(name: str, using: str | Reader) -> list[str]:
    place = path_at(name, using)
    if not place.is_file():
        if place.is_dir():
            return _search(name, using)
        raise ConfigError(f"input {name!r} is neither a regular file nor a folder")
    if _format(name) is None:
        raise ConfigError(f"input {name!r}: its name has no ending that can be read: {FORMATS_IN_WORDS}")
    return [name]


def _search(folder: str, using: str | Reader) -> list[str]:
    if len(splits := splits_of(path_at(folder, using))) > 1:
        raise ConfigError(
            f"input {folder!r} is a DatasetDict with the splits {', '.join(splits)}: name those to read, such as"
            f" {os.path.join(folder, splits[0])!r}"  # noqa: PTH118 - keeps "./" as given
        )
    texts: list[str] = []
    data: list[str] = []
    others: list[str] = []
    names = _without_caches(folder, list(names_below(path_at(folder, using))), using)
    for relative in sorted(names, key=natural_key):
        kind = format_of(relative)
        if kind is not None:
            (texts if kind.startswith("txt") else data).append(relative)
        elif is_unread_data(relative):
            others.append(relative)
    found = texts or data
    if (others or not found) and (told := foreign_format(folder, using)):
        raise ConfigError(f"input {folder!r}: {told}")
    if others:
        raise _unread(folder, others, is_alone=not found)
    if texts and data:
        raise ConfigError(
            f"input {folder!r} holds text files ({texts[0]!r}, {len(texts):,} of them) beside other data "
            f"({data[0]!r}, {len(data):,} of them): they may be notes or part of the corpus. Name the files to read, "
            f"{_all_of(folder, texts[0])!r} and {_all_of(folder, data[0])!r} for both."
        )
    if not found:
        raise ConfigError(f"input {folder!r}: this folder holds nothing to read: {FORMATS_IN_WORDS}")
    return [os.path.join(folder, relative) for relative in found]  # noqa: PTH118 - keeps "./" as given


def _without_caches(folder: str, names: list[str], using: str | Reader) -> list[str]:
    """Leave out what ``datasets`` keeps beside a dataset that it saved: what a later ``map`` or ``filter`` made."""
    found = names
    for state in [Path(name) for name in names if Path(name).name == STATE_NAME]:
        saved = path_at(folder, using) / state.parent
        if is_saved_dataset(saved, using):
            try:
                listed = data_files(saved)
            except StoreError as error:
                raise InputError(str(error)) from error
            found = [name for name in found if Path(name).parent != state.parent or Path(name).name in listed]
    return found


def _unread(folder: str, others: list[str], *, is_alone: bool) -> ConfigError:
    """The error for files that may be data but cannot be read; ``is_alone`` if the folder holds no other data."""
    if is_alone and all(other.endswith(".tar") for other in others):
        return ConfigError(
            f"input {folder!r} is a folder of tar shards, which is indexed in place without --tokenizer; "
            f"with it, only text is prepared: {FORMATS_IN_WORDS}"
        )
    return ConfigError(
        f"input {folder!r} holds files that may be data but cannot be read: {others[0]!r} ({len(others):,} such "
        "files). Convert them, or name only the files to read, with a glob for example."
    )


def _all_of(folder: str, relative: str) -> str:
    ending = relative.rpartition("/")[2].partition(".")[2]
    return os.path.join(folder, "**", f"*.{ending}")  # noqa: PTH118 - keeps "./" as given


def _describe(file: SourceFile, spec: RecordSpec) -> SourceFile:
    name = file.name
    # It is opened already here, so that a missing permission stops the run before hours of work.
    with input_errors(name), file.open(end=_HEAD_BYTES) as opened:
        head = opened.read(_HEAD_BYTES) or b""
    kind = (sniff(head) if name == STDIN else _format(name)) or "jsonl"
    if name.lower().endswith(".json") and head.removeprefix(BOM).lstrip().startswith(b"["):
        kind = "json"
    check_head(name, kind, head)
    if kind.endswith(".zst"):
        load_zstandard(name)
    file = msgspec.structs.replace(file, format=kind)
    extent, unit_bytes = open_span(file, Span(0, 0, 0), spec).describe()
    if kind.startswith("txt"):
        _check_text_spec(name, spec)
    return msgspec.structs.replace(
        file,
        extent=extent,
        unit_bytes=unit_bytes,
        can_split=kind == "jsonl" or (kind == "txt" and spec.sample_by == "line"),
    )


_HEAD_BYTES = 4096
_NUM_FIRST = 100
_FIRST_BYTES = 1 << 14


Wanted = tuple[Sequence[str], str]
"""Fields of which a record must have one, and what to do if it has none. A field may be a path: ``data.text``."""


def check_fields(files: Sequence[SourceFile], spec: RecordSpec, more: Sequence[Wanted] = ()) -> None:
    """Refuse a file if none of its first 100 records has a field that is read: another name was meant, or another file.

    A null field counts as present. Texts have no fields. Reading ends with the record that completes the fields, which
    is mostly the first.

    Args:
        files: the files, as `find_inputs` returned them.
        spec: what is read of each record.
        more: what is wanted beside the fields of the spec.

    Raises:
        ConfigError: a field is missing.
        InputError: a file cannot be read.
    """
    wanted = [*more, *(((field,), spec.option(field)) for field in spec.named)]
    whole = msgspec.structs.replace(spec, fields=(), id_field=None, whole=True)

    def check(file: SourceFile) -> None:
        is_read = wanted and not file.fault and not file.format.startswith("txt")
        missing = _missing(_first_line(file), wanted) if is_read else []
        names: dict[str, None] = {}
        num_records = num_lines = 0
        blocks = open_span(file, Span(0, 0, file.extent), whole, block_bytes=_FIRST_BYTES).blocks()
        while missing and num_lines < _NUM_FIRST and (block := next(blocks, None)) is not None:
            for record in (block.records or [])[: _NUM_FIRST - num_lines]:
                missing = _missing(record, missing)
                names |= dict.fromkeys(record)
                num_records += 1
            num_lines += block.num_lines - block.num_blank
        if missing and num_records:
            (fields, advice), found = missing[0], some(list(map(repr, names)), 12) or "none"
            raise ConfigError(
                f"{file.name}: none of its first {num_records} records has the field {' or '.join(map(repr, fields))}"
                f"{nearest(fields[0], names)}; "
                f"their fields are: {found} ({advice})"
            )

    list(each(check, files, [file.path for file in files]))


def _first_line(file: SourceFile) -> object:
    """Return the record in the first line of JSON Lines, as far as a short read shows it; most files need no more."""
    try:
        with file.open(end=_FIRST_BYTES) as opened:
            return msgspec.json.decode((opened.read(_FIRST_BYTES) or b"").partition(b"\n")[0])
    except (OSError, UnicodeDecodeError, RecursionError, msgspec.DecodeError):
        return None


def _missing(record: object, wanted: Sequence[Wanted]) -> list[Wanted]:
    return [one for one in wanted if not any(_has(record, field) for field in one[0])]


def _has(record: object, field: str) -> bool:
    first, dot, rest = field.partition(".")
    return isinstance(record, Mapping) and (field in record or (bool(dot) and _has(record.get(first), rest)))


def _format(name: str) -> Format | None:
    return format_of(name) or ("jsonl" if name.lower().endswith(".json") else None)


def _place(name: str, stdin: Path | None) -> str:
    if name != STDIN:
        return str(path_at(name).absolute())
    if stdin is None:
        raise ConfigError("input '-': standard input cannot be read here: name a file")
    return str(stdin.absolute())


def _check_text_spec(name: str, spec: RecordSpec) -> None:
    if len(spec.fields) > 1:
        raise ConfigError(f"{name}: a text file has no fields, but {len(spec.fields)} are asked for: {spec.fields}")
    if spec.id_field is not None:
        raise ConfigError(f"{name}: a text file has no fields, but the id field {spec.id_field!r} is asked for")


def _twice(name: str, first: str, second: str) -> str:
    if name == STDIN:
        return "input '-' (standard input) is named twice: name it once"
    if first == second:
        return f"{name}: input {first!r} reaches the same file twice (through a link): name it once"
    return f"{name}: the same file comes from two inputs, {first!r} and {second!r}: name it once"


PIECE_BYTES = 1 << 20


def spool_stdin(stream: BinaryIO, path: Path) -> int:
    """Copy a stream to a file, which appears whole or not at all. Returns the number of its bytes.

    Pass the path to `find_inputs` as ``stdin``. Memory: one MiB.

    Raises:
        ConfigError: the stream is a terminal.
        InputError: it cannot be read, or is empty.
        OutputError: the system refuses to write the file.
    """
    if stream.isatty():
        raise ConfigError("input '-' is standard input, which is a terminal here: pipe data into it, or name files")
    # If this is killed, it leaves a temporary file that the next process overwrites.
    with AtomicFile(path, resumable=True) as file:
        while True:
            with input_errors("standard input"):
                piece = stream.read(PIECE_BYTES)
            if not piece:
                break
            file.write(piece)
        if not file.size:
            raise InputError("standard input is empty: what should have written to it?")
        return file.size
