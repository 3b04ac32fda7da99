"""What a plan has fed before a position, in a form in which two plans are equal if they fed the same.

A saved state holds a hash of it. What comes after the position is not in it, so that a state fits every run with the
same past, whatever its future is and however the run came to be: stages of a schedule and changes of a run are
described alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from headrace.plan.chaptered.chapters import ChapteredPlan, PlanChapter
from headrace.plan.chaptered.sequence import SeriesSection
from headrace.plan.nodes import Branch, Leaf, Node
from headrace.plan.recipe import ORDER_FORMAT, RunRecipe
from headrace.plan.schedule import BatchSchedule

_PASSING = ("on_error",)
"""Fields of a dataset's recipe that decide nothing of the samples that were fed."""

_NAMES = ("encoder", "function", "joiner", "hook", "select", "group", "version")
"""Fields with names of classes and functions, which count without the module that they live in."""


def past_recipe(
    plan: ChapteredPlan,
    key_paths: Sequence[str],
    recipes: Sequence[Mapping[str, Any]],
    schedule: BatchSchedule,
    batch: Mapping[str, Any],
    position: int,
    split: Mapping[str, Any],
) -> RunRecipe:
    """Return the recipe of a run as far as it was fed before a position.

    Args:
        plan: the plan.
        key_paths: for each source the path by which the run knows it.
        recipes: for each series of the plan the recipe of its dataset.
        schedule: the global batches.
        batch: what else decides the samples of a step.
        position: where the past ends.
        split: how the slots of the step are drawn in which the position lies; empty between two steps.
    """
    reached = plan.reached(position, is_fed=True)
    begun = {source: rank for source, rank in reached.items() if rank}
    sections = {source: list(_begun(plan, source, rank)) for source, rank in begun.items()}
    return RunRecipe(
        format={"order": ORDER_FORMAT["order"], "blend": ORDER_FORMAT["blend"], **split},
        dataset={
            key_paths[source]: [comparable(recipes[section.series.number]) for section, _ in found]
            for source, found in sections.items()
        },
        blend={"chapters": list(_trees(plan, key_paths, position))},
        order={
            key_paths[source]: [_described(section, first) for section, first in found]
            for source, found in sections.items()
        },
        batch={"pieces": [list(piece) for piece in schedule.pieces if schedule.begin(piece[0]) < position], **batch},
    )


def comparable(recipe: Any) -> Any:
    """Return what decides samples in the recipe of a dataset: without modules, and without what decides nothing."""
    if isinstance(recipe, Mapping):
        return {
            name: _without_module(value) if name in _NAMES else comparable(value)
            for name, value in recipe.items()
            if name not in _PASSING
        }
    return [comparable(value) for value in recipe] if isinstance(recipe, list | tuple) else recipe


def _without_module(value: Any) -> Any:
    return value.rpartition(".")[2] if isinstance(value, str) else comparable(value)


def _begun(plan: ChapteredPlan, source: int, rank: int) -> Iterator[tuple[SeriesSection, int]]:
    """Yield the sections of a source that begin below a rank, with the ranks at which they do.

    One that only goes on is not told again: it was cut there for a change of what comes later.
    """
    sequence = plan.sequences[source]
    last: SeriesSection | None = None
    for section, first in zip(sequence.sections, sequence.firsts.tolist(), strict=True):
        goes_on = last is not None and last.series is section.series and last.end == section.begin
        if first < rank and not (goes_on and last is not None and np.array_equal(last.left_out, section.left_out)):
            yield section, first
        last = section


def _described(section: SeriesSection, first: int) -> dict[str, Any]:
    series = section.series
    found: dict[str, Any] = {"rank": first, "begin": section.begin, **series.order.recipe}
    if series.order.kind != "none":
        found["key"] = f"{series.key:016x}"
    if series.first_epoch:
        found["first_epoch"] = series.first_epoch
    if len(section.left_out):
        found["left_out"] = blake2b(section.left_out.astype("<i8").tobytes(), digest_size=16).hexdigest()
    return found


def _trees(plan: ChapteredPlan, key_paths: Sequence[str], position: int) -> Iterator[dict[str, Any]]:
    """Yield the trees that hold before a position; one that only goes on is not told again."""
    last: Any = None
    for chapter in plan.chapters:
        if chapter.begin >= position:
            break
        # Where the tree would have begun if it had always held; a Leaf has no rank of its own.
        root = chapter.root
        zero = (chapter.births[root.path] if isinstance(root, Leaf) else chapter.rank(root)) - chapter.begin
        tree = {"zero": zero, "tree": _tree(root, chapter, key_paths, is_root=True)}
        if tree != last:
            yield {"begin": chapter.begin, **tree}
        last = tree


def _tree(node: Node, chapter: PlanChapter, key_paths: Sequence[str], *, is_root: bool = False) -> Any:
    if isinstance(node, Leaf):
        source = key_paths[chapter.sources[node.path]]
        return [source, node.num_samples] if is_root else [source, node.num_samples, chapter.births[node.path]]
    found: dict[str, Any] = {"kind": type(node).__name__}
    if not is_root and chapter.rank(node):
        found["rank"] = chapter.rank(node)
    if isinstance(node, Branch):
        found |= {"shares": list(node.shares), "block_samples": node.block_samples}
    return found | {
        "num_samples": node.num_samples,
        "children": [_tree(child, chapter, key_paths) for child in node.children],
    }


def split_at(plan: ChapteredPlan, schedule: BatchSchedule, position: int, *, is_drawn: bool) -> dict[str, Any]:
    """Return how the slots of the step are drawn in which a position lies; empty between two steps."""
    if position == schedule.begin(schedule.step_of(position)):
        return {}
    if not is_drawn:
        return {"split": 1}
    return {"split": 2, "seed": plan.chapter_at(position).order.seed}
