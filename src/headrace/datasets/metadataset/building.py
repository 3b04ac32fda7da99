"""From the tree of a metadataset to datasets and mixes of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from fractions import Fraction

from headrace.datasets.blend import Blend
from headrace.datasets.concat import ConcatDataset
from headrace.datasets.dataset import Dataset
from headrace.datasets.lengths import LimitDataset, SubsetDataset
from headrace.datasets.metadataset.description import Piece
from headrace.datasets.metadataset.tree import JoinedSource, Mixed, Source, Tree
from headrace.datasets.mix import Mix
from headrace.datasets.mixing import BlendDataset
from headrace.datasets.scheduled import ScheduledBlend, Stretch
from headrace.errors import ConfigError
from headrace.plan import BatchSchedule

Opener = Callable[[Source | JoinedSource], Dataset]
Data = Dataset | Mix

_log = logging.getLogger("headrace")


def build(tree: Tree, opener: Opener, *, training: bool, schedule: BatchSchedule | None) -> Data:
    """The datasets of a tree, mixed as it says; for validation one after another, each sample once.

    Args:
        tree: of a split.
        opener: opens a dataset.
        training: mix; else weights, repetitions and schedules are passed over.
        schedule: the global batches, where the tree counts in steps.

    Raises:
        ConfigError: what is to be mixed cannot be; names the place in the metadataset.
        StoreError: of the opener.
    """
    if training:
        _tell_shuffling(tree)
    return _build(tree, opener, schedule) if training else _in_order(tree, opener)


def _build(tree: Tree, opener: Opener, schedule: BatchSchedule | None) -> Data:
    if not isinstance(tree, Mixed):
        return _source(tree, opener)
    if tree.kind == "blend_epochized":
        return _limited(tree, _epochized(tree, Fraction(1), opener))
    children = dict(zip(tree.names, (_build(child, opener, None) for child in tree.children), strict=True))
    try:
        if tree.kind == "concat":
            mix: Mix = ConcatDataset(children)
        elif tree.schedule:
            stretches = [_stretch(piece, tree, schedule) for piece in tree.schedule]
            mix = ScheduledBlend(children, stretches, block_samples=tree.block_samples)
        else:
            weights = dict(zip(tree.names, tree.numbers, strict=True))
            mix = (
                Blend(children, weights=weights)
                if tree.block_samples == 1
                else BlendDataset(children, weights=weights, block_samples=tree.block_samples)
            )
    except ConfigError as error:
        raise ConfigError(f"{tree.where}: {error}") from error
    return _limited(tree, mix)


def _epochized(tree: Mixed, factor: Fraction, opener: Opener) -> Blend:
    """Each child for as many passes as all levels around it say together: counts are rounded once, at the datasets."""
    children: dict[str, Data] = {}
    repeats: dict[str, float | Fraction] = {}
    for name, child, number in zip(tree.names, tree.children, tree.numbers, strict=True):
        passes = factor * Fraction(number)
        if isinstance(child, Mixed) and child.kind == "blend_epochized" and not child.limits:
            children[name], repeats[name] = _epochized(child, passes, opener), 1
            continue
        if isinstance(child, Mixed) and child.kind == "blend" and not child.limits:
            raise ConfigError(
                f"{child.where}: a blend has no end, so that its repetitions in a blend_epochized are not defined; "
                "make it a blend_epochized too, or give it a limit: so many samples are then one pass"
            )
        children[name], repeats[name] = _build(child, opener, None), passes
    try:
        return Blend(children, repeats=repeats)
    except ConfigError as error:
        raise ConfigError(f"{tree.where}: {error}") from error


def _in_order(tree: Tree, opener: Opener) -> Data:
    if not isinstance(tree, Mixed):
        return _source(tree, opener)
    children = {name: _in_order(child, opener) for name, child in zip(tree.names, tree.children, strict=True)}
    try:
        return _limited(tree, ConcatDataset(children))
    except ConfigError as error:
        raise ConfigError(f"{tree.where}: {error}") from error


def _source(tree: Source | JoinedSource, opener: Opener) -> Data:
    dataset = opener(tree)
    if tree.subset is None:
        return _limited(tree, dataset)
    try:
        return _limited(tree, SubsetDataset(dataset, tree.subset))
    except ConfigError as error:
        raise ConfigError(f"{tree.where}: {error}") from error


def _limited(tree: Tree, data: Data) -> Data:
    for limit in tree.limits:
        try:
            data = LimitDataset(data, limit)
        except ConfigError as error:
            raise ConfigError(f"{tree.where}: {error}") from error
    return data


def _stretch(piece: Piece, tree: Mixed, schedule: BatchSchedule | None) -> Stretch:
    until = None
    if piece.until is not None:
        number, unit = piece.until
        if unit == "steps" and schedule is None:
            raise ConfigError(
                f"{piece.where}: until counts steps, which only the mix of the whole run has, and there it needs "
                "global_batch_size; or count samples"
            )
        until = number if unit == "samples" or schedule is None else schedule.begin(number)
    return Stretch(until=until, weights=dict(zip(tree.names, piece.weights, strict=True)), ramp=piece.ramp)


def _tell_shuffling(tree: Tree) -> None:
    """Say where Energon's way to shuffle is another. Over k epochs each sample comes k times, which ours does too."""
    if isinstance(tree, Mixed):
        for child in tree.children:
            _tell_shuffling(child)
    elif tree.shuffle_over_epochs == -1:
        _log.warning("%s: shuffle_over_epochs -1 draws with replacement; here each epoch has every sample", tree.where)
    elif tree.shuffle_over_epochs is None:
        _log.warning("%s: what is shuffled is up to the run here: give it order=Order(kind='none')", tree.where)
