"""`prepare_shards` writes media into tar shards; `plan_shards` leaves that to processes on any hosts."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.engine.job import Show, TaskProgress
from headrace.engine.planning import NewPlan, load_plan
from headrace.engine.processes import REPORT_S
from headrace.errors import MissingExtraError, OutputError
from headrace.io import Storage, check_readable, check_storage, path_at, reader_of
from headrace.preparing.outputs.folder import OutputFolder, do_here, output_at
from headrace.preparing.shards.finishing import asked_options, is_made
from headrace.preparing.shards.inputs import choose_parts, described, find_media
from headrace.preparing.shards.job import KIND, ShardJob
from headrace.preparing.shards.options import PartSpec, ShardOptions, check_options
from headrace.preparing.shards.plan import MediaPlan, Planner
from headrace.stores import Manifest, load_manifest

OnProgress = Callable[[TaskProgress], None]


def deciding(
    inputs: Sequence[dict[str, Any]], parts: Sequence[tuple[PartSpec, ...]], options: ShardOptions
) -> dict[str, Any]:
    """Return what decides the bytes of a run, as JSON. The options for errors are left out: they change no sample."""
    return {
        "kind": "shards",
        "format": 1,
        "inputs": list(inputs),
        "parts": [[str(spec) for spec in specs] for specs in parts],
        "source": msgspec.to_builtins(options.source),
        "output": msgspec.to_builtins(options.output),
    }


def prepare_shards(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    options: ShardOptions | None = None,
    storage: Storage | None = None,
    on_progress: OnProgress | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> Manifest:
    """Write media files, or the rows of tables, into a folder of tar shards that `headrace.open` and Energon can open.

    The bytes depend only on inputs and options, never on the number of workers. Everything appears at the end at once,
    or nothing does. If a run ends early for any reason, the same call continues it, and other hosts may join it, see
    `plan_shards`. Tables are read once when the run is planned, which keeps some 60 bytes a sample in memory, and the
    names of a folder's files; those that hold the media are read again by the tasks, whose values go to a temporary
    file above 64 MiB. Media are read once.

    Args:
        inputs: folders of files, and tables: CSV, TSV, JSON Lines, Parquet, Arrow; see `inputs.find_media`. They, and
            the root and the captions of the options, may be URLs.
        output: a new or empty folder, or one with an unfinished run; or such a place at a URL, to which each shard is
            uploaded when it is complete on this host.
        options: all options; None uses their defaults.
        storage: how the stores of URLs, of inputs and output, are reached; None goes by the environment.
        on_progress: called a few times a second. The phase is ``list`` while tables are read to plan the run, then
            ``pack-...``; both count bytes and samples.
        on_notice: called with messages that a user should see, such as which column became which part.

    Returns:
        The manifest of the output.

    Raises:
        ConfigError: inputs or options are invalid.
        InputError: a sample or file is bad; the message names file and row.
        OutputError: the folder is not empty, or a file cannot be written.
        WorkerError: several worker processes ended in the same task.
        MissingExtraError: an input needs a package that is not installed.
    """
    options = options or ShardOptions()
    check_storage(storage, list(inputs), output, options.source.root, options.source.captions)
    check_ready(options)
    notice, report = on_notice or (lambda message: None), on_progress or (lambda progress: None)
    place = path_at(output, reader_of(storage))
    with output_at(place, overwrite=options.overwrite, restart=options.restart) as folder:
        plan = _planned(inputs, folder, options, notice, report, storage)
        if plan is None:
            return load_manifest(folder.output)
    given = msgspec.Raw(msgspec.json.encode(plan))
    return do_here(
        folder,
        lambda output, shared: ShardJob(output, shared, given, storage),
        workers=options.workers,
        show=Show(tasks=report, notice=notice),
    )


def plan_shards(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    options: ShardOptions | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> None:
    """Plan a run of `prepare_shards` in its output folder, for processes on any hosts to do its tasks, see `open_job`.

    The output is the same, byte for byte. If the run is planned or complete already, this does nothing.

    Args:
        inputs: see `prepare_shards`; they must have the same paths on all hosts, which reach URLs by what their
            environment says.
        output: a folder that all hosts can write to, by the same path; or a URL, where they share nothing else.
        options: see `prepare_shards`.
        on_notice: see `prepare_shards`.

    Raises:
        ConfigError, InputError, OutputError, MissingExtraError: as `prepare_shards`.

    Example:
        >>> headrace.preparing.plan_shards(["images"], "shared-shards")
        >>> headrace.kinds.open_job("shared-shards").phase().name.partition("-")[0]
        'pack'
    """
    options = options or ShardOptions()
    check_readable(list(inputs), output, options.source.root, options.source.captions)
    check_ready(options)
    with output_at(output, overwrite=options.overwrite, restart=options.restart) as folder:
        _planned(inputs, folder, options, on_notice or (lambda message: None), lambda progress: None)


def _planned(
    inputs: Sequence[str | os.PathLike[str]],
    folder: OutputFolder,
    options: ShardOptions,
    notice: Callable[[str], None],
    on_progress: OnProgress,
    storage: Storage | None = None,
) -> MediaPlan | None:
    """Plan or continue a run in a folder that was claimed; return its plan, or None if its output is complete."""
    found = find_media(inputs, options.source, notice, storage)
    parts = [choose_parts(given, options.source, storage) for given in found]
    if not options.source.parts:
        for given, specs in zip(found, parts, strict=True):
            if specs:
                notice(f"{given.name}: {', '.join(map(str, specs))}")
    described_run = deciding([described(given) for given in found], parts, options)
    asked = asked_options(parts, options)

    def is_same(made: list[Manifest]) -> bool:
        return is_made(made[0], Planner(found, parts, options, storage=storage), asked, storage)

    if complete := folder.begin(described_run, is_made=is_same):
        notice(complete)
        return None
    plan = _kept_plan(folder) if folder.is_continued else None
    made = []
    if plan is not None:
        plan = msgspec.structs.replace(plan, options=options, asked=asked)
    else:
        told_s = 0.0

        def on_read(num_bytes: int, samples: int) -> None:
            nonlocal told_s
            if time.monotonic() - told_s > REPORT_S:
                told_s = time.monotonic()
                counts = {"bytes": num_bytes, "samples": samples}
                total_bytes = sum(given.table.size_bytes for given in found if given.table is not None)
                on_progress(TaskProgress(phase="list", done=0, num_tasks=1, counts=counts, total_bytes=total_bytes))

        planner = Planner(found, parts, options, storage=storage, on_notice=notice, on_read=on_read)
        plan = planner.plan(folder.work, asked)
        made = [plan.list_name]
    folder.save_plan(NewPlan(KIND, plan, [plan.phase], made=made))
    return plan


def _kept_plan(folder: OutputFolder) -> MediaPlan | None:
    """Return the plan of an unfinished run; None if that was ended before it was planned.

    It is not made again, since it depends on the sizes of files, which may have changed.
    """
    try:
        shared = folder.shared()  # what it has on this host goes with it
        return msgspec.json.decode(load_plan(shared.here).plan, type=MediaPlan)
    except OutputError:
        return None


def check_ready(options: ShardOptions) -> None:
    """Refuse invalid options, and those that need a package that is not installed.

    Raises:
        ConfigError: see `check_options`.
        MissingExtraError: images are to be verified, and Pillow is not installed.
    """
    check_options(options)
    if options.source.verify and importlib.util.find_spec("PIL") is None:
        raise MissingExtraError("--verify needs Pillow for images: pip install 'headrace[image]'")
