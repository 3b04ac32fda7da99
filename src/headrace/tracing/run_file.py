"""``run.json``: a file from which ``headrace trace`` rebuilds the plan of a training without its data.

The file is written beside the checkpoints at every start, and holds the runs of the training one after another. If a
run continues with the same recipe, nothing is added; if something was changed, the new run and the step from which it
holds are added. `SavedNode` and its kinds are the tree of a mix in that file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from headrace.config import convert
from headrace.datasets import Dataset, FramedRun, Run
from headrace.datasets.mix import homogeneous_samples
from headrace.errors import ConfigError, StateError
from headrace.io import check_local, write_json_file
from headrace.plan import (
    ORDER_FORMAT,
    BatchSchedule,
    Branch,
    Bucketing,
    ConcatNode,
    Leaf,
    LimitNode,
    Node,
    Order,
    Plan,
    RepeatNode,
    RunRecipe,
    Schedule,
    Shards,
    draw_of,
    node_recipe,
    order_format,
)
from headrace.plan.cursor import outside_run
from headrace.plan.framed import FRAMED_FORMAT, Lanes, lanes_key
from headrace.plan.recipe import PARTS, undrawn
from headrace.stores import SampleStore, Store
from headrace.tracing.trace import Trace


class SavedNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="node"):
    """A node of the tree; nodes with children hold their path."""


class SavedLeaf(SavedNode, frozen=True, kw_only=True, tag="source"):
    """A source, by its number in the list of sources: one that is in several segments is written once."""

    source: int


class SavedBranch(SavedNode, frozen=True, kw_only=True, tag="blend"):
    """See `headrace.plan.Branch`."""

    path: str
    children: tuple[AnyNode, ...]
    shares: tuple[int, ...]
    num_samples: int | None
    block_samples: int


class SavedConcat(SavedNode, frozen=True, kw_only=True, tag="concat"):
    """See `headrace.plan.ConcatNode`."""

    path: str
    children: tuple[AnyNode, ...]


class SavedLimit(SavedNode, frozen=True, kw_only=True, tag="limit"):
    """See `headrace.plan.LimitNode`."""

    path: str
    child: AnyNode
    num_samples: int


class SavedRepeat(SavedNode, frozen=True, kw_only=True, tag="repeat"):
    """See `headrace.plan.RepeatNode`."""

    path: str
    child: AnyNode
    num_samples: int


class SavedSchedule(SavedNode, frozen=True, kw_only=True, tag="schedule"):
    """See `headrace.plan.Schedule`."""

    path: str
    begins: tuple[int, ...]
    children: tuple[AnyNode, ...]


AnyNode = SavedLeaf | SavedBranch | SavedConcat | SavedLimit | SavedRepeat | SavedSchedule


def saved_node(node: Node, numbers: Mapping[str, int]) -> AnyNode:
    """Return a node in the form that is written; ``numbers`` are those of the sources, by path."""
    if isinstance(node, Leaf):
        return SavedLeaf(source=numbers[node.path])
    children = tuple(saved_node(child, numbers) for child in node.children)
    path = node.path
    if isinstance(node, Branch):
        return SavedBranch(
            path=path,
            children=children,
            shares=node.shares,
            num_samples=node.num_samples,
            block_samples=node.block_samples,
        )
    if isinstance(node, ConcatNode):
        return SavedConcat(path=path, children=children)
    if isinstance(node, Schedule):
        return SavedSchedule(path=path, begins=tuple(node.begins.tolist()), children=children)
    kind = SavedLimit if isinstance(node, LimitNode) else SavedRepeat
    return kind(path=path, child=children[0], num_samples=node.num_samples)


def loaded_node(saved: AnyNode, leaves: Sequence[Leaf]) -> Node:
    """Return the node that was written. Raises StateError for the number of a source that does not exist."""
    if isinstance(saved, SavedLeaf):
        if not 0 <= saved.source < len(leaves):
            raise StateError(f"the tree names source {saved.source}, and there are {len(leaves):,} sources")
        return leaves[saved.source]
    if isinstance(saved, SavedLimit):
        return LimitNode(saved.path, loaded_node(saved.child, leaves), saved.num_samples)
    if isinstance(saved, SavedRepeat):
        return RepeatNode(saved.path, loaded_node(saved.child, leaves), saved.num_samples)
    children = tuple(loaded_node(child, leaves) for child in saved.children)
    if isinstance(saved, SavedBranch):
        return Branch(saved.path, children, saved.shares, saved.num_samples, saved.block_samples)
    if isinstance(saved, SavedConcat):
        return ConcatNode(saved.path, children)
    if len(saved.begins) != len(children):
        raise StateError(f"{saved.path!r} has {len(saved.begins):,} begins for {len(children):,} segments")
    return Schedule(saved.path, tuple(zip(saved.begins, children, strict=True)))


def saved_shards(shards: Shards | None) -> str | None:
    """Return the samples of each shard as a text, with equal neighbours together: ``"10000x127 4711"``."""
    if shards is None:
        return None
    sizes = np.diff(shards.bounds)
    firsts = np.flatnonzero(np.diff(sizes, prepend=-1))
    counts = np.diff(firsts, append=len(sizes))
    pairs = zip(sizes[firsts].tolist(), counts.tolist(), strict=True)
    return " ".join(f"{size}x{count}" if count > 1 else f"{size}" for size, count in pairs)


def loaded_shards(saved: str | None) -> Shards | None:
    """Return the borders of shards that were written. Raises StateError for a malformed text."""
    if saved is None:
        return None
    sizes: list[int] = []
    for part in saved.split():
        size, _, count = part.partition("x")
        try:
            sizes += [int(size)] * int(count or 1)
        except ValueError:
            raise StateError(f"{part!r} is not a size of shards; expected the form 10000x127") from None
    return Shards.of_counts(sizes)


VERSION = 1


class SavedStore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a store lies: the path as it was opened, and the fingerprint of its content."""

    path: str
    format: str
    fingerprint: str
    split_part: str | None = None


class SavedSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One source: its path in the blend, its samples, and the recipe of its dataset."""

    path: str
    num_samples: int
    first_sample: int = 0
    shards: str | None = None
    store: SavedStore | None = None
    recipe: dict[str, Any]


class SavedRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run, from a step of the training on, at which it has a position of its own."""

    first_step: int
    position: int
    length: int | None
    hashes: dict[str, str]
    format: dict[str, Any]
    order: Order
    batch: dict[str, Any]
    sources: tuple[SavedSource, ...]
    plan: AnyNode

    @property
    def schedule(self) -> BatchSchedule:
        """The global batches; in a framed run they count units."""
        return BatchSchedule(tuple((step, size) for step, size in self.batch["pieces"]))

    @property
    def lanes(self) -> Lanes | None:
        """The lanes of a framed run; None for any other."""
        if "num_lanes" not in self.batch:
            return None
        lanes = msgspec.convert({name: self.batch.get(name) for name in Lanes.__struct_fields__}, Lanes)
        return lanes if self.format["framed"] == 1 else msgspec.structs.replace(lanes, key=lanes_key(self.order.seed))

    def trace(self) -> Trace:
        """Return the plan as a `Trace`; for a framed run that of its samples, one in each step.

        Raises:
            StateError: the content does not match its hashes, or is of another version of the algorithms.
        """
        here = (
            ORDER_FORMAT if "num_lanes" not in self.batch else {**order_format(is_drawn=False), "framed": FRAMED_FORMAT}
        )
        if self.format not in (here, undrawn(here)):
            raise StateError(
                f"the run from step {self.first_step:,} on was planned by the algorithms {self.format}, and this "
                f"Headrace has {here}: use the version that wrote it"
            )
        try:
            plan = Plan(loaded_node(self.plan, [_leaf(source) for source in self.sources]), self.order)
            schedule, bucketing = self.schedule, _bucketing(self.batch)
            draw = None
            if self.lanes is not None:
                schedule = BatchSchedule.of(1)
            elif self.format == ORDER_FORMAT:
                block_samples = homogeneous_samples(plan.root)
                draw = draw_of(plan, schedule, self.length, block_samples=block_samples, bucketing=bucketing)
        except (ConfigError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise StateError(f"the run from step {self.first_step:,} on is damaged: {error}") from error
        recipe = RunRecipe(
            format=self.format,
            dataset={source.path: source.recipe for source in self.sources},
            blend=node_recipe(plan.root),
            order=self.order.recipe,
            batch=self.batch,
        )
        found = recipe.hashes()
        if differing := [part for part in PARTS if found[part] != self.hashes.get(part)]:
            raise StateError(
                f"the run from step {self.first_step:,} on was changed since it was written: its parts"
                f" {', '.join(differing)} do not match their hashes"
            )
        window_steps = None if bucketing is None else bucketing.window_steps
        return Trace(plan, schedule, self.length, draw=draw, window_steps=window_steps)


class RunFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. Paths of stores are relative to ``folder``, where the training began."""

    kind: Literal["headrace.run"] = "headrace.run"
    version: int = VERSION
    folder: str
    runs: tuple[SavedRun, ...]


def read_run_file(path: str | os.PathLike[str]) -> RunFile:
    """Return what `save_run` wrote.

    Raises:
        StateError: the file cannot be read, is not a saved run, or is of a later version.
    """
    check_local(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise StateError(f"the saved run cannot be read: {error}") from error
    try:
        content = msgspec.json.decode(data)
        if not isinstance(content, dict) or content.get("kind") != "headrace.run":
            raise StateError(f"{path}: this is not a saved run; expected a file that save_run wrote")
        if content.get("version") != VERSION:
            raise StateError(
                f"{path}: has version {content.get('version')!r}, and this Headrace reads version {VERSION}: use the"
                " version that wrote it, or a newer one"
            )
        found = convert(content, RunFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ConfigError) as error:
        raise StateError(f"{path}: the saved run is damaged: {error}") from error
    steps = [run.first_step for run in found.runs]
    if not steps or steps != sorted(set(steps)):
        raise StateError(f"{path}: the saved run is damaged: its runs begin at the steps {steps}, which do not rise")
    return found


def save_run(
    run: Run | FramedRun, path: str | os.PathLike[str], *, position: int | None = None, step: int | None = None
) -> None:
    """Write what ``headrace trace`` needs to answer questions about a run: a few KB, without the data.

    Call it in one process at every start, with ``position=loader.position``. If the run is unchanged, nothing is
    added. If it was changed, the new run holds from this position on, and what the file says about later steps is
    dropped, since they were undone. Without a position, the file must be new or of the same run.

    Which samples a unit of a framed run holds is known only while the run goes on; the journals of the loaders, beside
    this file, record that.

    Args:
        run: the run that begins or resumes.
        path: the file to write, such as ``run.json`` beside the checkpoints.
        position: position of this run at which it begins or resumes; in a framed run a number of units.
        step: number of this step in the training, if it differs from the run's own.

    Raises:
        ConfigError: the file describes another run and no position was given, or the run has no such position.
        StateError: the file is damaged, or is not a run file.
        OutputError: the file cannot be written.
    """
    if not isinstance(run, Run | FramedRun):
        raise ConfigError(f"run is {run!r:.80}; expected a Run or a FramedRun")
    check_local(path)
    runs = read_run_file(path).runs if Path(path).exists() else ()
    if position is None and runs:
        if not _is_same(runs[-1], _saved(run, 0, 0)):
            raise ConfigError(
                f"{path}: describes another run: pass the position from which this run holds, position=loader.position,"
                " or give it a file of its own"
            )
        return
    position = index(0 if position is None else position)
    if (outside := outside_run(position, run.length)) is not None:
        raise ConfigError(outside)
    first_step = run.schedule.step_of(position) if step is None else index(step)
    if first_step < 0:
        raise ConfigError(f"step is at least 0, found {first_step:,}")
    new = _saved(run, first_step, position)
    # Later runs were undone when the training went back to this step.
    kept = [one for one in runs if one.first_step < first_step]
    if kept and _is_same(kept[-1], new) and _shift(kept[-1]) == _shift(new):
        # The same run goes on, maybe for longer, or with its data at another path.
        last = kept.pop()
        new = msgspec.structs.replace(new, first_step=last.first_step, position=last.position)
    write_json_file(path, RunFile(folder=str(Path.cwd()), runs=(*kept, new)))


def _saved(run: Run | FramedRun, first_step: int, position: int) -> SavedRun:
    recipe = run.recipe
    # The plan of a framed run is that of its samples; how they become units is in its recipe.
    fed = run if isinstance(run, Run) else run.stream
    leaves = fed.plan.leaves
    sources = [
        SavedSource(
            path=leaf.path,
            num_samples=leaf.num_samples,
            first_sample=leaf.first_sample,
            shards=saved_shards(leaf.shards),
            store=_store(dataset),
            recipe=recipe.dataset[leaf.path],
        )
        for leaf, dataset in zip(leaves, fed.datasets, strict=True)
    ]
    return SavedRun(
        first_step=first_step,
        position=position,
        length=fed.length,
        hashes=recipe.hashes(),
        format=recipe.format,
        order=fed.order,
        batch=recipe.batch,
        sources=tuple(sources),
        plan=saved_node(fed.plan.root, {leaf.path: number for number, leaf in enumerate(leaves)}),
    )


def _store(dataset: Dataset) -> SavedStore | None:
    """Return the store behind a dataset, through datasets around it; None if there is not exactly one."""
    inner: Any = dataset
    while not hasattr(inner, "store") and isinstance(getattr(inner, "dataset", None), Dataset):
        inner = inner.dataset
    store = getattr(inner, "store", None)
    if not isinstance(store, Store | SampleStore):
        return None
    part = getattr(store, "split_part", None)
    return SavedStore(path=store.path, format=store.format, fingerprint=store.fingerprint, split_part=part)


def _leaf(source: SavedSource) -> Leaf:
    return Leaf(source.path, source.num_samples, loaded_shards(source.shards), source.first_sample)


def _bucketing(batch: dict[str, Any]) -> Bucketing | None:
    bucketing = batch.get("bucketing")
    if bucketing is None:
        return None
    return Bucketing(window_steps=bucketing["window_steps"], group_samples=bucketing["group_samples"])


def _is_same(one: SavedRun, other: SavedRun) -> bool:
    return one.hashes == other.hashes


def _shift(run: SavedRun) -> int:
    return run.first_step - run.schedule.step_of(run.position)
