"""The three tools: what each asks of a copy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

import msgspec

from headrace.copying.formats import FormatName
from headrace.copying.options import CopyOptions, SortBy, check_sort_by
from headrace.copying.plan import Piece, cut, named_split, part_borders, whole
from headrace.copying.report import CopyReport
from headrace.copying.run import OnProgress, Request, run
from headrace.copying.sources import Source, expand
from headrace.errors import ConfigError, StoreError
from headrace.io import check_local, safe_relative

Place = str | os.PathLike[str]

SPLIT_NAMES = ("train", "valid", "test")


def merge(
    sources: Sequence[Place],
    output: Place,
    *,
    sort_by: SortBy = "given",
    options: CopyOptions | None = None,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> CopyReport:
    """Join stores: all documents of the first, then all of the second, and so on.

    Of pairs of ``.bin`` and ``.idx`` the one pair that is written is byte for byte that of Megatron's
    ``IndexedDatasetBuilder.add_index`` and ``tools/merge_datasets.py``.

    Args:
        sources: stores, as for `headrace.open`; a folder of bare pairs stands for all of them.
        output: a new or empty folder for shards and ``headrace.json``; appears whole or not at all.
        sort_by: ``"given"`` keeps the order of the sources (the natural order within a folder of pairs), ``"name"``
            and ``"natural"`` sort their paths.
        options: see `CopyOptions`.
        dry_run: say what would be written, and write nothing.
        on_progress: called with every chunk of about a million tokens.

    Raises:
        ConfigError: sources that do not go together, or what the format cannot hold; says what to do.
        InputError: a value that does not fit into the dtype asked for.
        StoreError: a source is missing or damaged, or is not what its manifest says.
        OutputError: the place is taken, or the system refuses a write.
    """
    check_local(sources, output)
    check_sort_by(sort_by)
    if isinstance(sources, str | os.PathLike) or not sources:
        raise ConfigError("merge takes a list of stores, at least one")
    paths, notes = expand(sources, sort_by)
    request = Request(
        tool="merge",
        paths=tuple(paths),
        output=os.fspath(output),
        asked={"sort_by": sort_by},
        options=options or CopyOptions(),
        shards="single",
        notes=tuple(notes),
    )
    return run(request, _joined, dry_run=dry_run, on_progress=on_progress)


def convert(
    source: Place,
    output: Place,
    *,
    format: FormatName,  # noqa: A002 - the field's own name
    options: CopyOptions | None = None,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> CopyReport:
    """Write a store in another format, or with another dtype or other shards; by default it keeps its shards.

    Args:
        source: a store, as for `headrace.open`.
        output: as for `merge`.
        format: ``"indexed"`` or ``"keyed"``.
        options: see `CopyOptions`.
        dry_run: as for `merge`.
        on_progress: as for `merge`.

    Raises:
        ConfigError: what the format cannot hold; says what to do.
        InputError: as `merge`.
        StoreError: as `merge`.
        OutputError: as `merge`.
    """
    check_local(source, output)
    given = options or CopyOptions()
    if given.format not in (None, format):
        raise ConfigError(f"format={format!r}, but the options say {given.format!r}")
    request = Request(
        tool="convert",
        paths=(os.fspath(source),),
        output=os.fspath(output),
        asked={},
        options=msgspec.structs.replace(given, format=format),
        shards="source",
    )
    return run(request, _joined, dry_run=dry_run, on_progress=on_progress)


def split(
    source: Place,
    output: Place,
    *,
    into: str | int,
    era: Literal["core", "legacy"] = "core",
    names: Sequence[str] | None = None,
    options: CopyOptions | None = None,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> CopyReport:
    """Cut a store into several, each in its own folder below the output; no document is cut.

    Args:
        source: a store, as for `headrace.open`.
        output: as for `merge`.
        into: shares of training, validation and test as Megatron's ``--split``, ``"969,30,1"``, over documents; or a
            number of parts of equal tokens, as near as whole documents allow.
        era: of Megatron, which decides how borders are rounded; see `headrace.plan.megatron.split_ranges`.
        names: of the folders; by default ``train``, ``valid`` and ``test``, or ``part_00000``, ``part_00001``, ...
        options: see `CopyOptions`.
        dry_run: as for `merge`.
        on_progress: as for `merge`.

    Raises:
        ConfigError: the split or a name cannot be, or what the format cannot hold.
        InputError: as `merge`.
        StoreError: as `merge`.
        OutputError: as `merge`.
    """
    check_local(source, output)
    if isinstance(into, int) and into < 1:
        raise ConfigError(f"{into} parts: at least one is needed")
    if names is None:
        names = [f"part_{part:05d}" for part in range(into)] if isinstance(into, int) else SPLIT_NAMES
    if isinstance(into, int) and len(names) != into:
        raise ConfigError(f"{len(names)} names for {into} parts; name each of them")
    _check_names(names)
    chosen = tuple(names)

    def parts(opened: list[Source]) -> list[tuple[str, list[Piece]]]:
        [one] = opened
        count = one.num_documents
        if isinstance(into, str):
            found = named_split(into, count, era=era, names=chosen)
            return [(name, [Piece(0, first, end - first)]) for name, first, end in found]
        num_tokens = sum(one.num_tokens(0, count).values())
        borders = part_borders(one.lengths(0, count), into, num_documents=count, num_tokens=num_tokens)
        return list(zip(chosen, cut(whole([count]), borders), strict=True))

    request = Request(
        tool="split",
        paths=(os.fspath(source),),
        output=os.fspath(output),
        asked={"into": into, "names": list(chosen), **({"era": era} if isinstance(into, str) else {})},
        options=options or CopyOptions(),
        shards="single",
    )
    return run(request, parts, dry_run=dry_run, on_progress=on_progress)


def _joined(opened: list[Source]) -> list[tuple[str, list[Piece]]]:
    return [("", whole([source.num_documents for source in opened]))]


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        try:
            is_plain = "/" not in safe_relative(name) and not name.startswith(".")
        except StoreError:
            is_plain = False
        if not is_plain:
            raise ConfigError(f"{name!r} cannot name a folder below the output")
    if len(set(names)) < len(names):
        raise ConfigError(f"two parts have one name: {', '.join(names)}")
