"""Prepares a corpus on a Ray cluster: python examples/ray_prepare.py [ADDRESS]

Without an address, Ray finds the cluster by itself, or starts one on this host. All nodes of a cluster must share the
folder; TMPDIR says where it is made.
"""

from __future__ import annotations

import sys
from pathlib import Path

import corpus

import headrace
from headrace import kinds, preparing
from headrace.engine.executors import Handed
from headrace.engine.job import Show, TaskProgress
from headrace.engine.ray import RayExecutor


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def show(progress: TaskProgress) -> None:
    print(f"{progress.phase.partition('-')[0]}: {progress.done} of {progress.num_tasks} tasks", flush=True)


def main() -> None:
    folder = corpus.make()
    inputs, tokenizer, output = [folder / "text" / "large"], folder / "tokenizer.json", folder / "by-ray"
    options = preparing.PrepareOptions(
        tokens=preparing.TokenOptions(append_eod=True),
        deduplicate=True,
        task_bytes=50_000,
    )
    if preparing.plan(inputs, output, tokenizer=tokenizer, options=options) is None:
        executor = RayExecutor(address=sys.argv[1] if len(sys.argv) > 1 else None)
        manifest = kinds.finish_job(output, executor, Show(tasks=show))
        assert not isinstance(manifest, Handed)
        documents = manifest.ledger.documents
        print(f"{documents.read} documents read, {documents.kept} kept")

    headrace.prepare(inputs, folder / "here", tokenizer=tokenizer, options=options)
    print("the bytes of a run on one host:", content(output) == content(folder / "here"))


if __name__ == "__main__":
    main()
