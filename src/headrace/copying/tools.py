"""The three tools `merge`, `convert` and `split`.

Each of them makes a `Request`, which `run` carries out, plans for processes on any hosts, or only reports.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypedDict, Unpack, get_args

import msgspec

from headrace.config import check_keys
from headrace.copying.formats import CopyOptions, FormatName, SortBy
from headrace.copying.jobs import COMPLETED, KIND, CopyJob, check_sources, is_made, place_of, plan_of
from headrace.copying.orders import CopyOrder, CopyReport, Parts, Request, ordered, planned, reported
from headrace.copying.plan import DocumentRange, cut, named_split, part_borders, whole
from headrace.copying.sources import StoreSource, expand, open_sources
from headrace.engine.executors import LocalExecutor, drive
from headrace.engine.job import Show, TaskProgress
from headrace.engine.planning import NewPlan
from headrace.engine.shared import LostError
from headrace.engine.work_folder import BusyError
from headrace.errors import ConfigError, HeadraceError, InputError, OutputError, StoreAwayError, StoreError
from headrace.io import Storage, check_readable, check_storage, path_at, reader_of, safe_relative
from headrace.stores import Manifest, load_manifest


class CopyRun(TypedDict, total=False):
    """How a copy is carried out, the same for all tools.

    Attributes:
        dry_run: only report what would be written.
        plan_only: only write a plan in the output, for processes on any hosts to do its tasks: one for each shard
            that is written, see `headrace.kinds.open_job`. If the output is complete already, nothing is planned.
        workers: number of processes, each of which writes a shard at a time; 1 (default) copies in this process.
        storage: how the stores of URLs, of sources and output, are reached; None (default) goes by the environment.
        on_progress: called a few times a second.
    """

    dry_run: bool
    plan_only: bool
    workers: int
    storage: Storage | None
    on_progress: Callable[[TaskProgress], None] | None


def run(request: Request, parts: Parts, **how: Unpack[CopyRun]) -> CopyReport:
    """Carry out a request, plan it, or report what it would do.

    Args:
        request: what the tool asks for.
        parts: cuts the sources into stores.
        how: how it is carried out.

    Raises:
        HeadraceError: as documented for the tools.
    """
    check_keys(how, CopyRun.__annotations__)
    storage, workers, on_progress = how.get("storage"), how.get("workers", 1), how.get("on_progress")
    dry_run, plan_only = how.get("dry_run", False), how.get("plan_only", False)
    if plan_only and not dry_run and storage is not None:
        raise ConfigError(
            f"{request.output}: storage is for this process alone, and others do what is planned: leave it out, and"
            " say in the environment of all hosts how the store is reached"
        )
    if workers < 1:
        raise ConfigError(f"workers is {workers}; expected at least 1, which copies in this process")
    check_storage(storage, list(request.paths), request.output)
    using = reader_of(storage)
    with open_sources(request.paths, request.options, using=using) as sources:
        order = ordered(request, sources, parts)
        place = place_of(order, path_at(request.output, using))
        check_sources(order, sources)
        if dry_run:
            note = place.look()
            return planned(order, sources, [note] if note else [])
        with place:
            plan = plan_of(order, sources, place.output.absolute())
            if complete := place.begin(plan.described, is_made=partial(_is_made, order, sources)):
                found = [load_manifest(place.output / folder.name) for folder in order.outputs]
                return reported(order, found, [complete])
            place.save_plan(NewPlan(KIND, plan, [plan.phase]))
        if plan_only:
            return planned(order, sources)
    try:
        shared = place.shared()
    except OutputError:
        with place:
            completed = place.resume()
        if completed is None or not is_made(order, completed):
            raise
        return reported(order, completed, [COMPLETED])
    job = CopyJob(place.output, shared, msgspec.Raw(msgspec.json.encode(plan)), using if storage else None)
    show = Show() if on_progress is None else Show(tasks=on_progress)
    try:
        report: CopyReport = drive(job, LocalExecutor(workers=0 if workers == 1 else workers), show)
    except (StoreAwayError, BusyError, LostError):
        raise
    except (InputError, StoreError, ConfigError):
        # The same copy would fail again because of its sources, so nothing of it stays.
        if not place.is_continued:
            with contextlib.suppress(HeadraceError), place:
                place.discard()
        raise
    except OutputError as error:
        if not job.is_planned:
            raise
        raise OutputError(f"{error}. What is done so far is kept: the same copy goes on with it") from error
    return report


def _is_made(order: CopyOrder, sources: Sequence[StoreSource], found: Sequence[Manifest]) -> bool:
    inputs = (source.input(file) for source in sources for file in source.files)
    return is_made(order, found) and tuple(inputs) == found[0].inputs


Place = str | os.PathLike[str]

SPLIT_NAMES = ("train", "valid", "test")


def merge(
    sources: Sequence[Place],
    output: Place,
    *,
    sort_by: SortBy = "given",
    options: CopyOptions | None = None,
    **how: Unpack[CopyRun],
) -> CopyReport:
    """Join stores: all documents of the first, then all of the second, and so on.

    Pairs of ``.bin`` and ``.idx`` are merged into one pair, byte for byte as Megatron's
    ``IndexedDatasetBuilder.add_index`` and ``tools/merge_datasets.py`` write it.

    Args:
        sources: stores, as for `headrace.open`; a folder of pairs without a manifest stands for all its pairs.
        output: a new or empty folder for shards and ``headrace.json``; it appears whole or not at all. At a URL, each
            shard is uploaded once it was read back, and the manifest comes last.
        sort_by: ``"given"`` keeps the order of the sources (the natural order within a folder of pairs), ``"name"``
            and ``"natural"`` sort their paths.
        options: all other options; None uses their defaults.
        how: ``dry_run``, ``plan_only``, ``workers``, ``storage`` and ``on_progress``, see `CopyRun`.

    Returns:
        What was written, or would be written.

    Raises:
        ConfigError: the sources do not fit together, or the format cannot hold them; the message says what to do.
        InputError: a value does not fit into the dtype that was asked for.
        StoreError: a source is missing or damaged, or does not match its manifest.
        OutputError: the destination is not empty, or a file cannot be written.

    Example:
        >>> report = headrace.merge(["stores/web", "stores/code"], "stores/all")
        >>> report.documents == len(headrace.open("stores/all"))
        True
    """
    check_readable(sources, output)
    if sort_by not in get_args(SortBy):
        raise ConfigError(f"sort_by={sort_by!r} is unknown; allowed are {', '.join(map(repr, get_args(SortBy)))}")
    if isinstance(sources, str | os.PathLike) or not sources:
        raise ConfigError("merge needs a list of at least one store")
    paths, notes = expand(sources, sort_by, reader_of(how.get("storage")))
    request = Request(
        tool="merge",
        paths=tuple(paths),
        output=os.fspath(output),
        asked={"sort_by": sort_by},
        options=options or CopyOptions(),
        shards="single",
        notes=tuple(notes),
    )
    return run(request, _joined, **how)


def convert(
    source: Place,
    output: Place,
    *,
    format: FormatName,  # noqa: A002 - the field's own name
    options: CopyOptions | None = None,
    **how: Unpack[CopyRun],
) -> CopyReport:
    """Write a store in another format, with another dtype or with other shards. By default the shards are kept.

    Args:
        source: a store, as for `headrace.open`.
        output: as for `merge`.
        format: ``"indexed"`` or ``"keyed"``.
        options: as for `merge`.
        how: as for `merge`.

    Returns:
        What was written, or would be written.

    Raises:
        ConfigError: the format cannot hold the store; the message says what to do.
        InputError, StoreError, OutputError: as for `merge`.

    Example:
        >>> report = headrace.convert("stores/web", "stores/keyed", format="keyed")
        >>> report.format, report.documents == len(headrace.open("stores/web"))
        ('keyed', True)
    """
    check_readable(source, output)
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
    return run(request, _joined, **how)


def split(
    source: Place,
    output: Place,
    *,
    into: str | int,
    era: Literal["core", "legacy"] = "core",
    names: Sequence[str] | None = None,
    options: CopyOptions | None = None,
    **how: Unpack[CopyRun],
) -> CopyReport:
    """Cut a store into several, each in its own folder below the output. No document is cut.

    Args:
        source: a store, as for `headrace.open`.
        output: as for `merge`.
        into: shares of training, validation and test in the form of Megatron's ``--split``, such as ``"969,30,1"``,
            counted in documents; or a number of parts with equal numbers of tokens, as near as whole documents allow.
        era: version of Megatron, which decides how borders are rounded; see `headrace.plan.megatron.split_ranges`.
        names: names of the folders; by default ``train``, ``valid`` and ``test``, or ``part_00000``, ``part_00001``
            and so on.
        options: as for `merge`.
        how: as for `merge`.

    Returns:
        What was written, or would be written.

    Raises:
        ConfigError: the split or a name is invalid, or the format cannot hold the store.
        InputError, StoreError, OutputError: as for `merge`.

    Example:
        >>> report = headrace.split("stores/web", "stores/halves", into=2)
        >>> [store.name for store in report.stores]
        ['part_00000', 'part_00001']
    """
    check_readable(source, output)
    if isinstance(into, int) and into < 1:
        raise ConfigError(f"{into} parts: at least one is needed")
    if names is None:
        names = [f"part_{part:05d}" for part in range(into)] if isinstance(into, int) else SPLIT_NAMES
    if isinstance(into, int) and len(names) != into:
        raise ConfigError(f"{len(names)} names are given for {into} parts; give one name for each")
    _check_names(names)
    chosen = tuple(names)

    def parts(opened: list[StoreSource]) -> list[tuple[str, list[DocumentRange]]]:
        [store] = opened
        count = store.num_documents
        if isinstance(into, str):
            found = named_split(into, count, era=era, names=chosen)
            return [(name, [DocumentRange(0, first, end - first)]) for name, first, end in found]
        num_tokens = sum(store.num_tokens(0, count).values())
        borders = part_borders(store.lengths(0, count), into, num_documents=count, num_tokens=num_tokens)
        return list(zip(chosen, cut(whole([count]), borders), strict=True))

    request = Request(
        tool="split",
        paths=(os.fspath(source),),
        output=os.fspath(output),
        asked={"into": into, "names": list(chosen), **({"era": era} if isinstance(into, str) else {})},
        options=options or CopyOptions(),
        shards="single",
    )
    return run(request, parts, **how)


def _joined(opened: list[StoreSource]) -> list[tuple[str, list[DocumentRange]]]:
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
        raise ConfigError(f"two parts have the same name: {', '.join(names)}")
