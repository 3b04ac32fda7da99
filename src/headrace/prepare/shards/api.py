"""Media files and tables -> tar shards, with manifest and table of origins: `prepare_shards`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.errors import MissingExtraError
from headrace.io import check_local
from headrace.prepare.output_folder import OutputFolder
from headrace.prepare.shards.finishing import is_made
from headrace.prepare.shards.inputs import choose_parts, find_media
from headrace.prepare.shards.messages import ShardProgress
from headrace.prepare.shards.options import ShardOptions, check_options
from headrace.prepare.shards.run import LISTINGS_NAME, ShardRun, deciding
from headrace.prepare.shards.tasks import described, plan_survey
from headrace.stores import Manifest, load_manifest


def prepare_shards(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    options: ShardOptions | None = None,
    on_progress: Callable[[ShardProgress], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> Manifest:
    """Write media files, or the rows of tables, into tar shards of a folder that `headrace.open` and Energon open.

    The bytes written depend on inputs and options alone, never on the number of workers. Everything appears at the end
    at once, or nothing does. A run that was ended, by whatever it was, is continued by the same call. Values of columns
    are written twice on the way, files are read once. Memory: 41 bytes a sample, and the names of a folder's files.

    Args:
        inputs: folders of files, and tables: CSV, TSV, JSON Lines, Parquet, Arrow; see `inputs.find_media`.
        output: a new or empty folder, or one with an unfinished run.
        options: see `ShardOptions`.
        on_progress: called a few times a second.
        on_notice: called with what a user should know: which column became which part, that a run is continued.

    Raises:
        ConfigError: inputs or options cannot be.
        InputError: a sample or file is bad; names file and row.
        OutputError: the folder is taken, or the system refuses a write.
        WorkerError: several worker processes ended in the same task.
        MissingExtraError: an input needs a package that is not installed.
    """
    check_local(inputs, output)
    options = options or ShardOptions()
    notice = on_notice or (lambda message: None)
    check_ready(options)
    with OutputFolder(output, overwrite=options.overwrite, restart=options.restart) as folder:
        found = find_media(inputs, options.source, notice)
        parts = [choose_parts(given, options.source) for given in found]
        if not options.source.parts:
            for given, specs in zip(found, parts, strict=True):
                if specs:
                    notice(f"{given.name}: {', '.join(map(str, specs))}")
        described_run = deciding([described(given) for given in found], parts, options)
        if complete := folder.begin(described_run, is_made=lambda manifest: is_made(manifest, found, parts, options)):
            notice(complete)
            return load_manifest(folder.path)
        tasks = plan_survey(found, options, Path(folder.work) / LISTINGS_NAME, notice)
        run = ShardRun(
            folder, found, parts, tasks, options, on_progress=on_progress or (lambda progress: None), on_notice=notice
        )
        manifest, moves = run.run()
        folder.commit(moves)
        return manifest


def check_ready(options: ShardOptions) -> None:
    """Refuse options that cannot be, and those that need a package that is not there.

    Raises:
        ConfigError: see `check_options`.
        MissingExtraError: Pillow is not installed, and images are to be verified.
    """
    check_options(options)
    if options.source.verify and importlib.util.find_spec("PIL") is None:
        raise MissingExtraError("--verify needs Pillow for images: pip install 'headrace[image]'")
