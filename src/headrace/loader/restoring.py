"""Restoring: samples and batches made again from their restore keys or positions."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np
import torch

from headrace.datasets import FramedRun, Run
from headrace.datasets.media import SampleDataset
from headrace.errors import ConfigError
from headrace.loader.reading import as_tensors


def restored(run: Run | FramedRun, key: Any, *, by_position: bool = True) -> Any:
    """Make a sample again from its restore key or its position in the run; from a list of either, the batch in tensors.

    What a loader adds to a batch, such as ``sample_positions``, is left out.

    Args:
        run: the run that the sample came from.
        key: a restore key, which is a tuple; a position; a list of either; or a (n,) array or tensor of positions.
        by_position: whether positions are those of the run. If not, positions are refused.

    Raises:
        ConfigError: there is no such key or position; several datasets have the key; the sample made now differs from
            the first one; a hook is not ``@stateless``; positions of a framed run were passed.
    """
    given = key.tolist() if isinstance(key, np.ndarray | torch.Tensor) else key
    if isinstance(run, FramedRun):
        found = run.restore_sample(given)
    elif isinstance(given, tuple):
        found = _holder(run, given).restore_sample(given)
    elif isinstance(given, list) and given and all(isinstance(one, tuple) for one in given):
        found = _by_keys(run, given)
    else:
        found = _by_position(run, given, by_position=by_position)
    return as_tensors(found) if isinstance(given, list) else found


def _by_keys(run: Run, keys: list[tuple[Any, ...]]) -> Any:
    if run.traits.is_group_batches:
        return _holder(run, keys[0]).restore_sample(keys)
    return run.collate([_holder(run, key).restore_sample(key) for key in keys])


def _holder(run: Run, key: tuple[Any, ...]) -> SampleDataset:
    """Return the dataset that a key belongs to. A dataset that stands in several places of a mix counts once."""
    pairs = zip(run.paths, run.datasets, strict=True)
    media = ((path, dataset) for path, dataset in pairs if isinstance(dataset, SampleDataset))
    found = {id(dataset): (path, dataset) for path, dataset in media if dataset.address_of(key) is not None}
    if len(found) == 1:
        [(_, dataset)] = found.values()
        return dataset
    if not found:
        raise ConfigError(f"{key!r:.80} is not a restore key of any dataset of {run!r}")
    raise ConfigError(
        f"{key!r:.80} may belong to any of {', '.join(repr(path) for path, _ in found.values())}, whose keys have the"
        " same form: pass the position of the sample instead, which its batch has in sample_positions"
    )


def _by_position(run: Run, given: Any, *, by_position: bool) -> Any:
    try:
        positions = np.array([index(one) for one in (given if isinstance(given, list) else [given])], dtype=np.int64)
    except TypeError:
        raise ConfigError(
            f"{given!r:.80} is neither a restore key (a tuple), nor a position (an integer), nor a list of either"
        ) from None
    if not by_position:
        raise ConfigError("positions in Energon's own order count on one rank and name no sample: pass its restore key")
    outside = (positions < 0) | (False if run.length is None else positions >= run.length)
    if outside.any():
        raise ConfigError(f"position {positions[outside][0]:,} is outside {run!r}")
    if not run.traits.is_ragged:
        found = run.read(run.locate(positions))
        return found if isinstance(given, list) else {name: column[0] for name, column in found.items()}
    samples = run.samples(run.locate(positions))
    if not isinstance(given, list):
        return samples[0]
    return run.collate(samples)
