"""What runs over text and runs of a recipe have in common once their plan is made: begin or go on, do it, commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.io import atomic_write, file_sum
from headrace.prepare.backends import ProvedEncoder
from headrace.prepare.filters import function_fingerprint
from headrace.prepare.finishing import described_options
from headrace.prepare.output_folder import OutputFolder
from headrace.prepare.run_plan import RunPlan, TextProgress
from headrace.prepare.sources import SourceFile
from headrace.prepare.text_run import TextRun
from headrace.stores import Manifest, load_manifest

RUN_FORMAT = 3
"""Raised when a change makes other bytes of the same run, or lays out the work folder otherwise."""


def run_in(
    folder: OutputFolder,
    plan: RunPlan,
    *,
    encoder: ProvedEncoder | None,
    deciding: Mapping[str, Any],
    on_progress: Callable[[TextProgress], None],
    on_notice: Callable[[str], None],
) -> Manifest:
    """Run a plan in a folder that was claimed, from its beginning or from where it was ended.

    Args:
        folder: the folder.
        plan: the plan.
        encoder: as it is loaded in this process, for workers that are forks of it.
        deciding: the options that decide bytes, as JSON.
        on_progress: see `prepare_text`.
        on_notice: see `prepare_text`.

    Raises:
        HeadraceError: as `prepare_text`.
    """
    function = plan.options.filters.function
    run = {
        "format": RUN_FORMAT,
        "inputs": [_described(file) for file in plan.files],
        "tokenizer": plan.tokenizer.fingerprint,
        "backend": f"{plan.choice.name} {plan.choice.version}",
        "task_bytes": plan.task_bytes,
        "filter": function_fingerprint(function) if function else "",
        **deciding,
    }
    if complete := folder.begin(run, is_made=lambda manifest: is_made(plan, manifest)):
        on_notice(complete)
        return load_manifest(folder.path)
    atomic_write(folder.work / "tokenizer.json", plan.tokenizer.json)
    run_of_plan = TextRun(plan, folder, encoder, on_progress=on_progress, on_notice=on_notice)
    manifest, moves = run_of_plan.run()
    folder.commit(moves)
    return manifest


def is_made(plan: RunPlan, manifest: Manifest) -> bool:
    """Whether a plan would make what this manifest lists. Cost: the inputs are read, once all else is the same."""
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
        file.fault or file_sum(file.path).xxh3_128 == entry.xxh3_128
        for file, entry in zip(plan.files, manifest.inputs, strict=True)
    )


def _described(file: SourceFile) -> dict[str, Any]:
    if file.name == "-":
        return {"name": "-", "size": file.size_bytes, "xxh3_128": file_sum(file.path).xxh3_128}
    return {"name": file.name, "size": file.size_bytes, "mtime_ns": file.mtime_ns}
