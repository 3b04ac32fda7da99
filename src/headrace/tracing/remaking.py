"""`remade`: a run made again from its file, as far as its data are windows and packs of stores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from headrace.datasets import PackedSequenceDataset, Run, WindowDataset
from headrace.datasets.dataset import Dataset
from headrace.datasets.mix import Mix
from headrace.errors import ConfigError
from headrace.plan import Node, leaves
from headrace.tracing.run_file import SavedSource, read_run_file
from headrace.tracing.sources import Sources


class _FiledMix(Mix):
    """A mix as the tree that a file holds."""

    def __init__(self, root: Node, datasets: Mapping[str, Dataset]) -> None:
        self.root = root
        self.children = dict(datasets)

    @property
    def num_samples(self) -> int | None:
        return self.root.num_samples

    @property
    def num_tokens_per_sample(self) -> float:
        tokens = [child.num_tokens_per_sample for child in self.children.values()]
        return sum(tokens) / len(tokens)

    def node(self, path: str = "") -> Node:
        return self.root

    def named(self, path: str = "") -> Iterator[tuple[str, Dataset]]:
        for name, child in self.children.items():
            if isinstance(child, Dataset):
                yield name, child


def remade(path: str | os.PathLike[str]) -> Run:
    """Return the run in a file that `save_run` wrote.

    Raises:
        ConfigError: the file holds several runs or a framed one, or other data than windows and packs.
        StateError: the file is damaged.
    """
    file = read_run_file(path)
    if len(file.runs) > 1 or file.runs[0].lanes is not None:
        raise ConfigError(
            f"{path}: holds {len(file.runs)} runs or a framed one; an account is of one run without lanes"
        )
    [saved], sources = file.runs, Sources(file)
    [chapter] = sources.history().chapters
    root = chapter.trace.plan.root
    by_path = {source.path: source for source in saved.sources}
    datasets = {}
    for number, leaf in enumerate(leaves(root)):
        dataset = _dataset(chapter.face(number), by_path[leaf.path])
        if dataset is None or dataset.recipe != by_path[leaf.path].recipe:
            reasons = "".join(f": {note}" for note in sources.notes)
            raise ConfigError(f"{path}: the dataset of {leaf.path or '.'!r} cannot be made again{reasons}")
        datasets[leaf.path] = dataset
    return Run(
        _FiledMix(root, datasets),
        global_batch_size=chapter.trace.schedule,
        order=saved.order,
        samples=chapter.trace.length,
    )


def _dataset(face: object, source: SavedSource) -> Dataset | None:
    """Return the dataset of a source with its mask and labels, which a trace does without."""
    recipe = source.recipe
    mask, labels = recipe.get("loss_mask_key"), recipe.get("labels", "next")
    if isinstance(face, WindowDataset):
        options = {name: recipe[name] for name in ("stride", "phase", "document_ids", "position_ids")}
        return WindowDataset(face.store, seq_len=face.seq_len, loss_mask_key=mask, labels=labels, **options)
    if isinstance(face, PackedSequenceDataset):
        return PackedSequenceDataset(
            face.store,
            face.packing,
            padding_idx=recipe["padding_idx"],
            loss_mask_key=mask,
            border_labels=recipe["border_labels"],
            labels=labels,
        )
    return None
