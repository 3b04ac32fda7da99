"""Plans a run in its output folder, and does it on this host: a job of which this process drives the tasks.

Runs over text and runs of a recipe share this code once their plan is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from headrace.engine.job import Show
from headrace.engine.planning import NewPlan
from headrace.io import Storage, file_sum, path_at, reader_of
from headrace.preparing.backends import REFERENCE, ProvedEncoder
from headrace.preparing.finishing import described_options
from headrace.preparing.jobs import do_here
from headrace.preparing.options import ErrorOptions
from headrace.preparing.outputs.place import OutputPlace, mark_of
from headrace.preparing.run_plan import OnProgress, RunPlan, encoding
from headrace.preparing.sources import SourceFile
from headrace.preparing.sources.borders import with_borders
from headrace.preparing.text_job import KIND, TOKENIZER_NAME, TextJob
from headrace.stores import Manifest, load_manifest

RUN_FORMAT = 8
"""Increase this if a change makes the same run write other bytes, or changes the layout of the work folder."""


def plan_run(folder: OutputPlace, plan: RunPlan, on_notice: Callable[[str], None]) -> Manifest | RunPlan:
    """Begin or continue a run in a folder that was claimed, and write its plan for any processes to do its tasks.

    Tasks that failed before are to be tried again.

    Returns:
        The manifest of the output if that is complete already, else the plan that was written.

    Raises:
        OutputError: the folder holds something else, or the system refuses the write.
    """
    run = {
        "format": RUN_FORMAT,
        "inputs": [_described(file) for file in plan.files],
        "tokenizer": plan.tokenizer.fingerprint,
        "backend": f"{plan.choice.name} {plan.choice.version}",
        "task_bytes": plan.task_bytes,
        "filter": "",
        **_deciding(plan),
    }
    if complete := folder.begin(run, is_made=lambda found: is_made(plan, found[0])):
        on_notice(complete)
        return load_manifest(folder.output)
    files = with_borders(plan.files, task_bytes=plan.task_bytes, sample_by=plan.options.records.sample_by)
    # No plan says how stores are reached: others would read it.
    files = tuple(
        msgspec.structs.replace(file, path=str(path_at(file.path).absolute()), storage=None) for file in files
    )
    kept = msgspec.structs.replace(plan, files=files, tokenizer=msgspec.structs.replace(plan.tokenizer, json=b""))
    (texts, hashed), mark = kept.orders(), mark_of(folder.work)
    folder.save_plan(
        NewPlan(
            kind=KIND,
            plan=kept,
            phases=[encoding(mark, name, len(texts) + len(hashed)) for name in sorted({plan.choice.name, REFERENCE})],
            software={} if plan.choice.name == REFERENCE else {plan.choice.name: plan.choice.version},
            files={TOKENIZER_NAME: plan.tokenizer.json},
        )
    )
    return kept


def do_run(
    folder: OutputPlace,
    plan: RunPlan,
    storage: Storage | None,
    encoder: ProvedEncoder | None,
    *,
    on_progress: OnProgress,
    on_notice: Callable[[str], None],
) -> Manifest:
    """Do a run that was planned, on this host.

    Args:
        folder: where it was planned; it is not claimed any more.
        plan: what `plan_run` returned.
        storage: how the stores of URLs are reached.
        encoder: the encoder that this process has loaded, which workers inherit if they are forks of it.
        on_progress: see `prepare`.
        on_notice: see `prepare`.

    Raises:
        HeadraceError: see `prepare`.
    """
    given = msgspec.Raw(msgspec.json.encode(plan))
    return do_here(
        folder,
        lambda output, shared: TextJob(output, shared, given, storage, encoder),
        workers=plan.options.workers,
        show=Show(tasks=on_progress, notice=on_notice),
    )


def is_made(plan: RunPlan, manifest: Manifest) -> bool:
    """Whether a plan would write what this manifest lists. If all else is equal, this reads the inputs to hash them."""
    tokenizer, backend = manifest.tokenizer, manifest.backend
    if tokenizer is None or backend is None or manifest.options != described_options(plan):
        return False
    if (tokenizer.xxh3_128, tokenizer.eod, tokenizer.bos) != (plan.tokenizer.fingerprint, plan.eod, plan.bos):
        return False
    if (backend.name, backend.version) != (plan.choice.name, plan.choice.version):
        return False
    known = [(file.path, file.format, file.size) for file in manifest.inputs]
    if known != [(file.name, file.format, file.size_bytes) for file in plan.files]:
        return False
    return all(
        file.fault or file_sum(path_at(file.path, reader_of(file.storage))).xxh3_128 == entry.xxh3_128
        for file, entry in zip(plan.files, manifest.inputs, strict=True)
    )


def _deciding(plan: RunPlan) -> dict[str, Any]:
    """The options that decide bytes. How errors are treated is not part of it: it changes no record that was read."""
    deciding = described_options(plan)
    del deciding["errors"]
    if plan.recipe is not None:
        deciding["recipe"] = {**deciding["recipe"], "errors": msgspec.to_builtins(ErrorOptions())}
    return deciding


def _described(file: SourceFile) -> dict[str, Any]:
    if file.name == "-":
        return {"name": "-", "size": file.size_bytes, "xxh3_128": file_sum(file.path).xxh3_128}
    if file.etag:
        return {"name": file.name, "size": file.size_bytes, "etag": file.etag}
    return {"name": file.name, "size": file.size_bytes, "mtime_ns": file.mtime_ns}
