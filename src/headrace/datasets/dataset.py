"""`Dataset`, the base class of every map-style dataset, and `Origin`, which says what a sample is made of.

A sample is made of tokens of one or several documents of a store, of a whole record, or of a media sample with a key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.datasets.sample_watch import SampleWatch
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.stores import SampleStore, Store


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of a sample: tokens of a document, a record, or a media sample.

    Attributes:
        store: path of the store, as it was opened.
        document: number of the document or record in the store.
        begin: first token of the document that is in the piece; None for records, which are used whole.
        tokens: number of tokens in the piece.
        key: key of the media sample in the store.
        shard: shard of the media sample.
        sample: number of the media sample in its shard.
        input: path of the file that the store was prepared from, as it was given then; filled in by the command line.
        unit: what is counted in that file: ``line``, ``row``, ``record``, ...
        number: which of these units the piece comes from, in the numbering that people use.
    """

    store: str
    document: int | None = None
    begin: int | None = None
    tokens: int | None = None
    key: str | None = None
    shard: str | None = None
    sample: int | None = None
    input: str | None = None
    unit: str | None = None
    number: int | None = None


Origins = tuple[Origin, ...]


def pieces(store: Store, offsets: IntArray, documents: IntArray, begins: IntArray, lengths: IntArray) -> list[Origins]:
    """Return the origins of samples made of tokens: sample i has pieces ``offsets[i]`` up to ``offsets[i + 1]``."""
    columns = zip(documents.tolist(), begins.tolist(), lengths.tolist(), strict=True)
    found = [Origin(store=store.path, document=one, begin=begin, tokens=tokens) for one, begin, tokens in columns]
    return [tuple(found[low:high]) for low, high in pairwise(offsets.tolist())]


def record_origins(store: Store, numbers: IntArray) -> list[Origins]:
    """Return the origins of samples that are one record each."""
    return [(Origin(store=store.path, document=number),) for number in numbers.tolist()]


def record_sample(store: Store, document: int) -> IntArray:
    """(1,) int64: the sample that holds a document, where each document is a sample.

    Raises:
        ConfigError: the store has no such document.
    """
    return np.array([checked(store, document)], dtype=np.int64)


def checked(store: Store, document: int) -> int:
    """Return the number of a document unchanged. Raises ConfigError if the store has no such document."""
    if not 0 <= document < store.num_documents:
        raise ConfigError(f"{store.path} has no document {document:,}; it has {store.num_documents:,}, counted from 0")
    return document


def media_origins(store: SampleStore, numbers: IntArray) -> list[Origins]:
    """Return the origins of media samples. Reads what the store needs to find their keys."""
    bounds = store.shard_bounds
    found: list[Origins] = []
    for number in numbers.tolist():
        at = int(np.searchsorted(bounds, number, side="right")) - 1
        begin = int(bounds[at])
        origin = Origin(store=store.path, key=store.key(number), shard=store.shards[at], sample=number - begin)
        found.append((origin,))
    return found


def window_origins(store: Store, begins: IntArray, length: int) -> list[Origins]:
    """Return the origins of windows of ``length`` tokens that begin at ``begins`` in the token stream."""
    cuts = store.cut_windows(begins, length)
    # An empty document between two others has no tokens in the window.
    some = cuts.lengths > 0
    offsets = np.searchsorted(cuts.ranges[some], np.arange(len(begins) + 1))
    return pieces(store, offsets, cuts.parts[some], cuts.firsts[some], cuts.lengths[some])


def windows_over(store: Store, document: int, *, stride: int, length: int, phases: int, num_samples: int) -> IntArray:
    """(n,) int64: the windows that hold a token of a document in any of the phases 0 to ``phases - 1``."""
    checked(store, document)
    begin, end = store.document_begins(np.array([document, document + 1], dtype=np.int64)).tolist()
    if begin == end:
        return np.empty(0, dtype=np.int64)
    first = max(0, -(-(begin - length - (phases - 1) + 1) // stride))
    last = min((end - 1) // stride, num_samples - 1)
    return np.arange(first, last + 1, dtype=np.int64)


Sample = dict[str, NDArray[Any]]
Fields = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]

_OF_ONE_SOURCE = ("store", "num_records", "keys")
"""Fields of the recipe of records that may differ between the sources of a blend."""


class Counts(NamedTuple):
    """What some samples hold, each (n,) int64: tokens, supervised tokens, pads, and documents or pieces of them."""

    tokens: IntArray
    supervised_tokens: IntArray
    pads: IntArray
    documents: IntArray


class Dataset(ABC):
    """Samples 0 to ``len(dataset) - 1``, read one by one or as whole batches.

    Reading has two steps. ``locate`` is arithmetic: it turns sample indices into int64 addresses, thousands at a time.
    ``read_into`` does the I/O for some of them, straight into the rows of a batch, where all samples have one shape;
    datasets whose samples have shapes of their own have ``samples`` and ``collate`` instead. Items are NumPy arrays
    that share no memory: changing one in place changes no other sample.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def fields(self) -> Fields:
        """Name -> (shape, dtype) of the arrays that are read for each sample."""

    @property
    def constants(self) -> Sample:
        """Name -> array that is the same for every sample and is not read; a batch repeats it as a view, not a copy."""
        return {}

    @property
    @abstractmethod
    def num_tokens_per_sample(self) -> float:
        """The mean number of tokens that a sample trains on; a blend uses it to turn token weights into samples."""

    @property
    def has_tokens(self) -> bool:
        """Whether samples are made of tokens, so that their mean number is known before they are read."""
        return True

    @property
    def deviation_tokens_per_sample(self) -> float:
        """The standard deviation of the number of tokens in a sample; 0 if all samples are equally long."""
        return 0.0

    @property
    def is_endless(self) -> bool:
        """Whether the dataset goes on in an order of its own and its length is only an upper bound.

        A run over it is as long as ``samples`` says; it has no epochs.
        """
        return False

    @property
    def is_packed(self) -> bool:
        """Whether samples consist of segments that begin where ``position_ids`` is 0. Such datasets have ``count``."""
        return False

    @property
    def is_counted(self) -> bool:
        """Whether samples hold different numbers of supervised tokens, which ``count`` returns.

        If one source of a run is counted, ``count`` is called for all its sources.
        """
        return self.is_packed

    @property
    def is_masked(self) -> bool:
        """Whether a mask says which tokens are trained on, so that a sample may have no supervised token."""
        return False

    @property
    def is_unshifted(self) -> bool:
        """Whether a label is the token at its own place and not the next one; equal for all sources of a run."""
        return False

    @property
    def is_ragged(self) -> bool:
        """Whether samples have different lengths, with -1 in the shapes of ``fields``; see `RecordDataset`."""
        return False

    @property
    def is_group_batches(self) -> bool:
        """Whether a sample is a whole batch of things that belong together, so that a micro-batch holds one sample."""
        return False

    @property
    def unrestorable(self) -> str | None:
        """Name of the user's code that may let a sample depend on what was read before; None if there is none.

        Only if it is None can samples that another process has read be read again with the same bytes.
        """
        return None

    def samples(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[dict[str, Any]]:
        """Return the ragged samples at some addresses, for ``collate``.

        User code that makes samples runs under the ``watch`` of the reader; None is for callers that do not ask.
        """
        raise ConfigError(f"{type(self).__name__}: all samples have one shape; use read")

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> Sample:
        """Return ragged samples as one batch, as wide as the longest: arrays, and values such as counts."""
        raise ConfigError(f"{type(self).__name__}: all samples have one shape; stack them")

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """(n,) int64: number of tokens of each ragged sample, found without reading it. Bucketing sorts by it."""
        raise ConfigError(f"{type(self).__name__}: all samples are equally long")

    def count(self, addresses: IntArray) -> Counts:
        """Count tokens, pads and documents of the samples at some addresses, without reading them where possible.

        Raises:
            ConfigError: the samples are not counted.
        """
        raise ConfigError(
            f"{type(self).__name__}: only packs, records and masked windows are counted; all samples here are alike"
        )

    @property
    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """Everything that decides the bytes of the samples, JSON-safe; the fingerprint of the store is part of it."""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of ``recipe``: 128 bits in hex."""
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(self.recipe, order="sorted"))

    @property
    def collated_by(self) -> dict[str, Any]:
        """The part of the recipe of ragged samples that a blend's sources share: one source collates all samples."""
        return {name: value for name, value in self.recipe.items() if name not in _OF_ONE_SOURCE}

    @abstractmethod
    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: addresses of samples, which ``read_into`` reads. No I/O.

        ``indices`` is (n,) int64 in [0, len). ``keys`` is (n,) uint64, one key for each pass through the dataset, and
        decides what varies from epoch to epoch; with None the samples are always the same.
        """

    @abstractmethod
    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Fill ``rows`` of the (batch, ...) arrays ``out[field]`` with the samples at ``addresses``."""

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Return what the samples at some addresses are made of, without reading them; empty where it is not known."""
        return [()] * len(addresses)

    def holders(self, document: int) -> IntArray:
        """(n,) int64, rising: the samples that may have tokens of a document in any epoch.

        Raises:
            ConfigError: the store has no such document, or samples are not made of documents.
        """
        raise ConfigError(f"{type(self).__name__}: it is not known which samples hold a document; ask by number")

    def find_key(self, key: str) -> int:
        """Return the number of the sample with a key. Raises ConfigError if there is none or samples have no keys."""
        raise ConfigError(f"{type(self).__name__}: samples have no keys; ask by number, found {key!r}")

    def find_keys(self, key: str) -> list[int]:
        """Return all samples made from a key, where there may be several. Raises ConfigError as `find_key`."""
        return [self.find_key(key)]

    @abstractmethod
    def describe(self) -> str:
        """Describe in one line what the samples are made of, for the tree that ``Run.describe`` prints."""

    def read(self, addresses: IntArray) -> Sample:
        """Return a new batch: fields as (len(addresses), ...) arrays, constants as read-only views of one row."""
        out = empty(self.fields, len(addresses))
        self.read_into(addresses, out, slice(None))
        return {**out, **repeated(self.constants, len(addresses))}

    def __getitem__(self, index: int) -> Sample:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of a dataset of {len(self)}")
        batch = self.read(self.locate(np.array([index % len(self)], dtype=np.int64)))
        return {name: values[0].copy() for name, values in batch.items()}

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Return the samples at ``indices``, read as one batch; ``torch.utils.data`` calls this if it exists."""
        wanted = np.asarray(indices, dtype=np.int64)
        if wanted.size and (int(wanted.min()) < -len(self) or int(wanted.max()) >= len(self)):
            raise IndexError(f"samples {wanted.min()} .. {wanted.max()} of a dataset of {len(self)}")
        batch = self.read(self.locate(wanted % len(self)))
        return [{name: values[i].copy() for name, values in batch.items()} for i in range(len(wanted))]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} samples, {self.describe()}>"


def repeated(constants: Sample, num_samples: int) -> Sample:
    """Return read-only views of shape (num_samples, ...), each of one row in memory."""
    return {name: np.broadcast_to(value, (num_samples, *value.shape)) for name, value in constants.items()}


def empty(fields: Fields, num_samples: int) -> Sample:
    """Return uninitialised arrays for a batch."""
    return {name: np.empty((num_samples, *shape), dtype=dtype) for name, (shape, dtype) in fields.items()}


def shown_fields(dataset: Dataset) -> str:
    """Return fields and constants with shapes and dtypes as text; equal texts mean that samples can be stacked."""
    constants = {name: (value.shape, value.dtype) for name, value in dataset.constants.items()}
    shown = ", ".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in {**dataset.fields, **constants}.items())
    if dataset.is_ragged:
        return f"{shown}, collated by {dataset.collated_by}"
    return f"{shown}, labels='same'" if dataset.is_unshifted else shown
