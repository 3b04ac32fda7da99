"""Records of a store as samples of lengths of their own, and what all kinds of them share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from headrace.datasets.collation import Collation, Grid, Side
from headrace.datasets.dataset import Dataset, Sample
from headrace.datasets.record_keys import RecordKey
from headrace.datasets.trace_origins import Origins, record_origins, record_sample
from headrace.errors import ConfigError, InputError
from headrace.plan import IntArray, KeyArray
from headrace.plan.segments import IGNORED_LABEL
from headrace.stores import Store

_SAMPLED = 1024
_CHUNK = 1 << 16


class RecordDataset(Dataset):
    """Sample i is record i of a store, whole; a batch is padded when it is made, micro-batch by micro-batch.

    Items have arrays of the record's own length; ``collate`` makes a batch of some. The loader does the same with the
    samples of each micro-batch, so that the width of a batch is that of its longest record. Shapes of ``fields`` have
    -1 where they differ from batch to batch.

    Args:
        store: where the records are.
        collation: how they come to one length.
        keys: what is read, name -> key of the store; the first is the one that ``over_long`` is looked at in at once.

    Raises:
        ConfigError: not a store, or without records, no such key, or over-long records and no policy for them.
    """

    side: Side = "right"

    def __init__(self, store: Store, collation: Collation, keys: Mapping[str, str]) -> None:
        if not isinstance(collation, Collation):
            raise ConfigError(
                f"collation is {collation!r}; expected a Collation, as headrace.Collation(max_length=4096)"
            )
        if not len(store):
            raise ConfigError(f"{store.path} has no records")
        self.store = store
        self.collation = collation
        self._keys = {name: RecordKey(store, key) for name, key in keys.items()}
        self._first = next(iter(self._keys))
        if collation.max_length is not None and collation.over_long == "error":
            self._refuse_over_long(collation.max_length)

    def _refuse_over_long(self, max_length: int) -> None:
        count, longest = 0, 0
        for first in range(0, len(self), _CHUNK):
            lengths = self._keys[self._first].lengths(np.arange(first, min(first + _CHUNK, len(self))))
            count += int(np.count_nonzero(lengths > max_length))
            longest = max(longest, int(lengths.max()))
        if count:
            raise ConfigError(
                f"{self.store.path}: {count:,} of {len(self):,} records are longer than max_length {max_length:,}, the"
                f" longest has {longest:,} tokens: choose over_long='truncate_right' or 'truncate_left', or a larger"
                " max_length"
            )

    def __len__(self) -> int:
        return self.store.num_documents

    @property
    def is_ragged(self) -> bool:
        """True."""
        return True

    @abstractmethod
    def samples(self, addresses: IntArray) -> list[dict[str, Any]]:
        """The records at some addresses, each with arrays of its own length and memory."""

    @abstractmethod
    def collate(self, samples: Sequence[Mapping[str, Any]]) -> Sample:
        """Samples as one batch; sequences of numbers in them may be lists, arrays or tensors."""

    @abstractmethod
    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """(n,) int64: tokens of the longest row that each sample makes in a batch. Reads no tokens."""

    @cached_property
    def _mean_and_deviation(self) -> tuple[float, float]:
        # Up to 1,024 records spread evenly over the store; of fewer, all.
        some = np.unique(np.linspace(0, len(self) - 1, min(len(self), _SAMPLED)).astype(np.int64))
        lengths = self._token_counts(some)
        return float(lengths.mean()), float(lengths.std())

    def _token_counts(self, addresses: IntArray) -> IntArray:
        """(n,) int64: all tokens of each sample."""
        return self.sample_lengths(addresses)

    @property
    def num_tokens_per_sample(self) -> float:
        """The mean tokens of a record, of 1,024 spread over the store where there are more."""
        return max(1.0, self._mean_and_deviation[0])

    @property
    def deviation_tokens_per_sample(self) -> float:
        """The standard deviation of the same."""
        return self._mean_and_deviation[1]

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the bytes of the samples."""
        return {
            "kind": type(self).__name__,
            "store": self.store.fingerprint,
            "num_records": len(self),
            "keys": {name: key.key for name, key in self._keys.items()},
            "collation": msgspec.to_builtins(self.collation),
            **self._options(),
        }

    def _options(self) -> dict[str, Any]:
        """What else of this kind decides them."""
        return {}

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: numbers of records."""
        return indices

    def origins(self, addresses: IntArray) -> list[Origins]:
        """The record itself."""
        return record_origins(self.store, addresses)

    def holders(self, document: int) -> IntArray:
        """The record itself."""
        return record_sample(self.store, document)

    def read(self, addresses: IntArray) -> Sample:
        """The records at some addresses as one batch."""
        return self.collate(self.samples(addresses))

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Not for records, whose batches have shapes of their own: raises ConfigError."""
        raise ConfigError(f"{type(self).__name__}: records have no shape that is known before; use read or collate")

    def __getitem__(self, index: int) -> Sample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """The samples at ``indices``, unpadded."""
        wanted = np.asarray(indices, dtype=np.int64)
        if wanted.size and (int(wanted.min()) < -len(self) or int(wanted.max()) >= len(self)):
            raise IndexError(f"records {wanted.min()} .. {wanted.max()} of a dataset of {len(self):,}")
        return self.samples(wanted % len(self))

    def _side(self) -> Side:
        return self.side if self.collation.side is None else self.collation.side

    def _grid(self, lengths: Sequence[int]) -> Grid:
        """Rows for records of these lengths, as wide as the collation says."""
        return Grid.of(lengths, self.collation.width(max(lengths, default=0)), self._side())

    def _cut(self, values: Any, record: int, what: str) -> Any:
        """What the collation keeps of one sequence of a record."""
        limit = self.collation.max_length
        if limit is not None and len(values) > limit and self.collation.over_long == "error":
            raise InputError(
                f"{self.store.path}: record {record}: {what} has {len(values):,} tokens, max_length is {limit:,}:"
                " choose over_long='truncate_right' or 'truncate_left', or a larger max_length"
            )
        return self.collation.cut(values)

    def describe(self) -> str:
        """One line."""
        limit = "" if self.collation.max_length is None else f", of at most {self.collation.max_length:,} tokens"
        return f"records of {self.store.path}{limit}"


def check_parallel(store: Store, records: IntArray, tokens: Sequence[Any], marks: Sequence[Any], what: str) -> None:
    """Raise InputError unless every record has as many marks as tokens, and the marks are 0 and 1."""
    for record, some, theirs in zip(records.tolist(), tokens, marks, strict=True):
        if len(some) != len(theirs):
            raise InputError(
                f"{store.path}: record {record} has {len(some):,} tokens and {len(theirs):,} values of {what}; a mask"
                " has one for each token: prepare the store again"
            )
    values = np.concatenate([np.empty(0, np.uint8), *marks])
    if not ((values == 0) | (values == 1)).all():
        wrong = next(i for i, theirs in enumerate(marks) if not np.isin(theirs, (0, 1)).all())
        raise InputError(f"{store.path}: record {records[wrong]}: {what} holds other values than 0 and 1")


def supervised_labels(ids: IntArray, marks: Any, lengths: IntArray, *, shifted: bool) -> IntArray:
    """(tokens,) int64 labels of sequences one after another: -100 but where a token is trained on.

    ``shifted`` puts the label of a token beside the one before it, and -100 beside the last of each sequence. In either
    case the first token of a sequence is never predicted.
    """
    wanted = marks.astype(bool)
    ends = np.cumsum(lengths)
    wanted[(ends - lengths)[lengths > 0]] = False
    labels = np.where(wanted, ids, IGNORED_LABEL)
    if shifted and len(labels):
        labels = np.append(labels[1:], IGNORED_LABEL)
    return labels
