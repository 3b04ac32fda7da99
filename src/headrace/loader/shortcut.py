"""`loader_for`: from the paths of stores to a loader in one call, for the common case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.datasets import Blend, Run, WindowDataset
from headrace.errors import ConfigError
from headrace.loader.loader import Loader
from headrace.loader.ranks import Ranks
from headrace.plan import Order

if TYPE_CHECKING:
    from headrace.cache import Cache

StorePath = str | PathLike[str]


def loader_for(
    paths: StorePath | Sequence[StorePath] | Mapping[str, StorePath],
    *,
    seq_len: int,
    batch_size: int,
    seed: int = 0,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    cache: Cache | None = None,
) -> Loader:
    """Return a loader of shuffled windows from one or several stores, without an end. Each batch is a whole step.

    It is short for a `WindowDataset` of each store, a `Blend` of these, a `Run` and a `Loader`; ``loader.run`` is the
    run. For an end, several micro-batches a step, packs or other samples, write these out.

    Args:
        paths: the path of a store, several paths, or name -> path.
        seq_len: number of tokens in a window.
        batch_size: number of samples of a step, over all ranks. Each rank gets its equal share of them.
        seed: seed of the order.
        weights: shares of the samples, for each path or by name; by default every store is read equally often. The
            name of a path is that of its folder.
        cache: the cache through which all stores are read.

    Raises:
        StoreError: a store cannot be opened.
        ConfigError: the ranks do not divide ``batch_size``; or two paths have the same name; or the weights do not
            match the paths.

    Example:
        >>> loader = headrace.loader_for(["stores/web", "stores/code"], seq_len=128, batch_size=16, weights=[3, 1])
        >>> next(iter(loader))["input_ids"].shape
        torch.Size([16, 128])
    """
    datasets = {name: WindowDataset.open(path, seq_len=seq_len, cache=cache) for name, path in _named(paths).items()}
    if weights is not None and not isinstance(weights, Mapping):
        if len(weights) != len(datasets):
            raise ConfigError(f"there are {len(weights)} weights for {len(datasets)} paths: pass one for each path")
        weights = dict(zip(datasets, weights, strict=True))
    if weights is None and len(datasets) > 1:
        weights = {name: len(dataset) for name, dataset in datasets.items()}
    data = next(iter(datasets.values())) if weights is None else Blend(datasets, weights=weights)
    ranks = Ranks.detect()
    run = Run(data, global_batch_size=batch_size, order=Order(seed=seed))
    return Loader(run, micro_batch_size=-(-batch_size // ranks.world_size), ranks=ranks, uneven="refuse")


def _named(paths: StorePath | Sequence[StorePath] | Mapping[str, StorePath]) -> dict[str, StorePath]:
    if isinstance(paths, Mapping):
        found = dict(paths)
    else:
        listed = [paths] if isinstance(paths, str | PathLike) else list(paths)
        found = {Path(path).name: path for path in listed}
        if len(found) < len(listed):
            raise ConfigError(
                f"two of the paths {[fspath(path) for path in listed]} have the same last part, by which they are"
                " named: pass a dict of names and paths"
            )
    if not found:
        raise ConfigError("paths is empty: pass the path of a store, several paths, or a dict of names and paths")
    return found
