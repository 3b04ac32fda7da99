"""What samples cost, by their lengths, before any is read: what a balanced step is dealt by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.datasets import CyclicDataset, Dataset, MapDataset, PackedSequenceDataset, Run
from headrace.errors import ConfigError
from headrace.plan import IntArray

CostOfLengths = Callable[[IntArray], NDArray[Any]]
Cost = Literal["tokens", "supervised_tokens"] | CostOfLengths


class Balance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """The samples of each step are dealt so that all micro-batches of a micro-step cost alike.

        Balance()                                                    by tokens
        Balance(cost=lambda lengths: lengths * (12 * 4096 + lengths))  of layers of width 4,096, attention and all

    A function takes (n,) int64 lengths and gives (n,) numbers of at least 0, the same on every rank; of packs the
    lengths are those of their documents, and a pack costs their sum.

    Attributes:
        cost: ``"tokens"``, ``"supervised_tokens"``, or a function of lengths. The tokens of a record are those of the
            longest row that it makes in a batch.
        lengths: (samples of the dataset,) integers of at least 0 for sources by their path, ``""`` for a single
            dataset: where the dataset knows no lengths, as of media, or what counts is something else.
    """

    cost: Cost = "tokens"
    lengths: Mapping[str, NDArray[Any]] | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for a cost that is none of these, and for lengths that are no such integers."""
        if not callable(self.cost) and self.cost not in ("tokens", "supervised_tokens"):
            raise ConfigError(
                f"cost is {self.cost!r}; allowed are 'tokens', 'supervised_tokens' and a function of (n,) int64 lengths"
            )
        if self.lengths is not None and self.cost == "supervised_tokens":
            raise ConfigError("lengths say nothing of cost='supervised_tokens': leave one of them out")
        for path, values in (self.lengths or {}).items():
            if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iu":
                raise ConfigError(f"lengths of source {path!r} are {values!r:.80}; expected a (samples,) integer array")


class Costs:
    """The costs of samples of a run, by their positions; reads no samples, and marks only where ``Run.count`` does.

    Raises:
        ConfigError: samples of which no length is known, or all of one length; lengths of no source of the run, or of
            another number of samples.
    """

    def __init__(self, run: Run, balance: Balance) -> None:
        self._run = run
        self._balance = balance
        self._given = {path: np.asarray(values) for path, values in (balance.lengths or {}).items()}
        if unknown := self._given.keys() - set(run.paths):
            raise ConfigError(f"lengths are given of {sorted(unknown)}; the sources are {sorted(run.paths)}")
        for path, dataset in zip(run.paths, run.datasets, strict=True):
            given = self._given.get(path)
            if given is not None and len(given) != len(dataset):
                raise ConfigError(
                    f"lengths of source {path!r} are {len(given):,}; the dataset has {len(dataset):,} samples"
                )
            if given is None:
                _check_known(path, dataset, balance)
        if callable(balance.cost):
            _of_lengths(balance.cost, np.ones(1, dtype=np.int64))

    def of(self, positions: IntArray) -> NDArray[Any]:
        """(n,) int64 of the costs by name, (n,) float64 of a function."""
        run, balance = self._run, self._balance
        located = run.locate(positions)
        indices = run.lookup(positions).indices if self._given else positions
        costs = np.empty(len(positions), dtype=np.float64 if callable(balance.cost) else np.int64)
        for source in np.unique(located.sources).tolist():
            rows = np.flatnonzero(located.sources == source)
            given = self._given.get(run.paths[source])
            if given is not None:
                lengths = given[indices[rows]].astype(np.int64)
                costs[rows] = _of_lengths(balance.cost, lengths) if callable(balance.cost) else lengths
            else:
                costs[rows] = _of_dataset(run.datasets[source], located.addresses[rows], balance.cost)
        return costs


def _of_dataset(dataset: Dataset, addresses: IntArray, cost: Cost) -> NDArray[Any]:
    if cost == "supervised_tokens":
        return dataset.count(addresses).supervised_tokens
    if not callable(cost):
        return dataset.sample_lengths(addresses) if dataset.is_ragged else dataset.count(addresses).tokens
    if dataset.is_ragged:
        return _of_lengths(cost, dataset.sample_lengths(addresses))
    items = _packs(dataset).items(addresses)
    # Of a pack's first piece to that of the next one: no pack is without.
    sums: NDArray[np.float64] = np.add.reduceat(_of_lengths(cost, items.lengths), items.offsets[:-1])
    return sums


def _of_lengths(cost: CostOfLengths, lengths: IntArray) -> NDArray[np.float64]:
    costs = np.asarray(cost(lengths))
    if costs.shape != lengths.shape or costs.dtype.kind not in "iuf":
        raise ConfigError(
            f"the cost of {lengths.shape} lengths is {costs.dtype} of shape {costs.shape}; expected a number for each: "
            "the function takes and gives whole arrays"
        )
    return costs.astype(np.float64)


def _packs(dataset: Dataset) -> PackedSequenceDataset:
    """The packs that a dataset hands on, whose documents have lengths."""
    while isinstance(dataset, MapDataset | CyclicDataset):
        dataset = dataset.dataset
    if not isinstance(dataset, PackedSequenceDataset):
        raise ConfigError(f"of the packs of {type(dataset).__name__} the documents' lengths are not known")
    return dataset


def _check_known(path: str, dataset: Dataset, balance: Balance) -> None:
    """Raise ConfigError where a dataset cannot say what its samples cost, and say what can be done."""
    where = f"source {path!r}: " if path else ""
    if not (dataset.is_ragged or dataset.is_packed):
        raise ConfigError(
            f"{where}samples of {type(dataset).__name__} are all equally long, there is nothing to balance; "
            "if they cost differently all the same, say how by Balance(lengths={...})"
        )
    give = f"give them as Balance(lengths={{{path!r}: an array, ...}})"
    if not dataset.has_tokens:
        raise ConfigError(f"{where}samples of {type(dataset).__name__} have no lengths that are known before; {give}")
    by = "tokens" if callable(balance.cost) else balance.cost
    try:
        _of_dataset(dataset, dataset.locate(np.zeros(1, dtype=np.int64)), by)
        if callable(balance.cost) and dataset.is_packed:
            _packs(dataset)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}; {give}") from error
