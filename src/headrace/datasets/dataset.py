"""The face of every map-style dataset: a number of samples, each addressable, and what each sample is made of.

What a sample is made of: documents of a store and the tokens taken of each, or a sample by its key.
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

from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.stores import SampleStore, Store


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of a sample: tokens of a document, a record, or a sample of media.

    Attributes:
        store: the path as the store was opened.
        document: number in the store, of tokens and records.
        begin: the first token of the document that the piece has; None of records, which are taken whole.
        tokens: how many.
        key: of media, its name in the store.
        shard: of media, the shard.
        sample: of media, the number in the shard.
        input: the file that it was prepared from, as that run was given it; filled in by the command line.
        unit: what is counted in that file: ``line``, ``row``, ``record``, ...
        number: which one of these it is, as people count it.
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
    """Samples made of tokens of documents; sample i has the pieces from ``offsets[i]`` to ``offsets[i + 1]``."""
    columns = zip(documents.tolist(), begins.tolist(), lengths.tolist(), strict=True)
    found = [Origin(store=store.path, document=one, begin=begin, tokens=tokens) for one, begin, tokens in columns]
    return [tuple(found[low:high]) for low, high in pairwise(offsets.tolist())]


def record_origins(store: Store, numbers: IntArray) -> list[Origins]:
    """Samples that are a record each."""
    return [(Origin(store=store.path, document=number),) for number in numbers.tolist()]


def record_sample(store: Store, document: int) -> IntArray:
    """(1,) int64: the one sample that holds a document where each is a sample. Raises ConfigError: it is not there."""
    return np.array([checked(store, document)], dtype=np.int64)


def checked(store: Store, document: int) -> int:
    """The number of a document. Raises ConfigError: it is not there."""
    if not 0 <= document < store.num_documents:
        raise ConfigError(f"{store.path} has no document {document:,}; it has {store.num_documents:,}, counted from 0")
    return document


def media_origins(store: SampleStore, numbers: IntArray) -> list[Origins]:
    """Samples of media; reads what the store needs to tell their keys."""
    bounds = store.shard_bounds
    found: list[Origins] = []
    for number in numbers.tolist():
        at = int(np.searchsorted(bounds, number, side="right")) - 1
        begin = int(bounds[at])
        origin = Origin(store=store.path, key=store.key(number), shard=store.shards[at], sample=number - begin)
        found.append((origin,))
    return found


def window_origins(store: Store, begins: IntArray, length: int) -> list[Origins]:
    """Windows of so many tokens of the stream."""
    first = store.find_documents(begins)
    counts = store.find_documents(begins + (length - 1)) - first + 1
    offsets = np.zeros(len(begins) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    rows = np.repeat(np.arange(len(begins)), counts)
    documents = np.arange(len(rows), dtype=np.int64) - offsets[rows] + first[rows]
    low, high = store.document_begins(documents), store.document_begins(documents + 1)
    begin = np.maximum(low, begins[rows])
    lengths = np.minimum(high, begins[rows] + length) - begin
    # Of empty documents between two others there is nothing in a window.
    some = lengths > 0
    kept = np.zeros(len(some) + 1, dtype=np.int64)
    np.cumsum(some, out=kept[1:])
    return pieces(store, kept[offsets], documents[some], (begin - low)[some], lengths[some])


def windows_over(store: Store, document: int, *, stride: int, length: int, phases: int, num_samples: int) -> IntArray:
    """(n,) int64: the windows that hold a token of a document under any of ``phases`` phases from 0 on."""
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
"""What of the recipe of records may differ between the sources of a blend."""


class Counts(NamedTuple):
    """Of some samples, each (n,) int64: tokens, those that are trained on, pads, and documents or pieces of them."""

    tokens: IntArray
    supervised_tokens: IntArray
    pads: IntArray
    documents: IntArray


class Dataset(ABC):
    """Samples 0 .. len - 1 of equal shapes, read one by one or as whole batches.

    Reading has two steps. ``locate`` is arithmetic: it turns sample indices into int64 addresses, thousands at a time.
    ``read_into`` does the I/O for some of them, straight into the rows of a batch. Items are NumPy arrays of their own:
    changing one in place changes no other sample.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def fields(self) -> Fields:
        """Name -> (shape, dtype) of what is read for each sample."""

    @property
    def constants(self) -> Sample:
        """Name -> array of what every sample holds alike, and is not read: a batch shows one row of it many times."""
        return {}

    @property
    @abstractmethod
    def num_tokens_per_sample(self) -> float:
        """The mean number of tokens that a sample trains on; token weights of a blend are turned into samples by it."""

    @property
    def has_tokens(self) -> bool:
        """Whether samples are of tokens, whose mean number is known before they are read."""
        return True

    @property
    def deviation_tokens_per_sample(self) -> float:
        """The standard deviation of the same, 0 where all samples are equally long."""
        return 0.0

    @property
    def is_endless(self) -> bool:
        """Whether it goes on in an order of its own, its length only a bound: the run says how long, not epochs."""
        return False

    @property
    def is_packed(self) -> bool:
        """Whether samples are made of segments that begin where ``position_ids`` is 0; then it has ``count``, too."""
        return False

    @property
    def is_counted(self) -> bool:
        """Whether samples hold different numbers of supervised tokens, and ``count`` says how many.

        Of a run with one such source the others have ``count``, too.
        """
        return self.is_packed

    @property
    def is_masked(self) -> bool:
        """Whether a mask says which tokens are trained on, so that samples may have none."""
        return False

    @property
    def is_unshifted(self) -> bool:
        """Whether a label is the token beside it, and not the next one; the sources of a run have them alike."""
        return False

    @property
    def is_ragged(self) -> bool:
        """Whether samples have lengths of their own, -1 in the shapes of ``fields``: see `RecordDataset`."""
        return False

    @property
    def is_group_batches(self) -> bool:
        """Whether a sample is a whole batch, of things that belong together; a micro-batch then has one of them."""
        return False

    @property
    def unrestorable(self) -> str | None:
        """The name of the user's code by which samples may depend on what was read before; None: there is none.

        What another process has read can only be read again, with the same bytes, where there is none.
        """
        return None

    def samples(self, addresses: IntArray) -> list[dict[str, Any]]:
        """The ragged samples at some addresses, for ``collate``."""
        raise ConfigError(f"{type(self).__name__}: samples are all of one shape; use read")

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> Sample:
        """One batch of ragged samples, as wide as its longest: arrays, and what is no array, such as counts."""
        raise ConfigError(f"{type(self).__name__}: samples are all of one shape; stack them")

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """(n,) int64: tokens of each ragged sample, without reading them: what bucketing sorts by."""
        raise ConfigError(f"{type(self).__name__}: samples are all equally long")

    def count(self, addresses: IntArray) -> Counts:
        """What is in the samples at some addresses, without reading them where that is possible.

        Raises:
            ConfigError: the samples are not counted.
        """
        raise ConfigError(
            f"{type(self).__name__}: only packed samples and records are counted; these all hold the same"
        )

    @property
    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """JSON-safe: all that decides the bytes of the samples, the fingerprint of the store among it."""

    @cached_property
    def fingerprint(self) -> str:
        """128 bits in hex over ``recipe``."""
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(self.recipe, order="sorted"))

    @property
    def collated_by(self) -> dict[str, Any]:
        """What of the recipe of ragged samples must be alike in a blend: one source collates those of all."""
        return {name: value for name, value in self.recipe.items() if name not in _OF_ONE_SOURCE}

    @abstractmethod
    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: addresses of samples, to be read by ``read_into``. No I/O.

        ``indices`` is (n,) int64 in [0, len); ``keys`` (n,) uint64, one for each pass through the dataset, for what
        varies from epoch to epoch; None gives the same samples always.
        """

    @abstractmethod
    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Fill ``rows`` of the (batch, ...) arrays ``out[field]`` with the samples at ``addresses``."""

    def origins(self, addresses: IntArray) -> list[Origins]:
        """What the samples at some addresses are made of, without reading them; empty where that is not known."""
        return [()] * len(addresses)

    def holders(self, document: int) -> IntArray:
        """(n,) int64, rising: the samples that may have tokens of a document, in one epoch or another.

        Raises:
            ConfigError: the store has no such document, or samples are not of documents.
        """
        raise ConfigError(f"{type(self).__name__}: which samples hold a document is not known; ask by number")

    def find_key(self, key: str) -> int:
        """The sample of a key. Raises ConfigError: there is none, or samples have no keys."""
        raise ConfigError(f"{type(self).__name__}: samples have no keys; ask by number, found {key!r}")

    def find_keys(self, key: str) -> list[int]:
        """All samples with something of a key, where there may be several. Raises ConfigError as `find_key`."""
        return [self.find_key(key)]

    @abstractmethod
    def describe(self) -> str:
        """One line on what the samples are made of, for the tree that ``Run.describe`` prints."""

    def read(self, addresses: IntArray) -> Sample:
        """A fresh batch: each field as one (len(addresses), ...) array, constants as read-only views of one row."""
        out = empty(self.fields, len(addresses))
        self.read_into(addresses, out, slice(None))
        return {**out, **repeated(self.constants, len(addresses))}

    def __getitem__(self, index: int) -> Sample:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of a dataset of {len(self)}")
        batch = self.read(self.locate(np.array([index % len(self)], dtype=np.int64)))
        return {name: values[0].copy() for name, values in batch.items()}

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """The samples at ``indices``, read as one batch: what ``torch.utils.data`` calls where it exists."""
        wanted = np.asarray(indices, dtype=np.int64)
        if wanted.size and (int(wanted.min()) < -len(self) or int(wanted.max()) >= len(self)):
            raise IndexError(f"samples {wanted.min()} .. {wanted.max()} of a dataset of {len(self)}")
        batch = self.read(self.locate(wanted % len(self)))
        return [{name: values[i].copy() for name, values in batch.items()} for i in range(len(wanted))]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} samples, {self.describe()}>"


def repeated(constants: Sample, num_samples: int) -> Sample:
    """Read-only (num_samples, ...) views of one row each."""
    return {name: np.broadcast_to(value, (num_samples, *value.shape)) for name, value in constants.items()}


def empty(fields: Fields, num_samples: int) -> Sample:
    """Uninitialised arrays for a batch."""
    return {name: np.empty((num_samples, *shape), dtype=dtype) for name, (shape, dtype) in fields.items()}


def shown_fields(dataset: Dataset) -> str:
    """Fields and constants with their shapes and dtypes, to be compared: equal ones can be stacked into one batch."""
    constants = {name: (value.shape, value.dtype) for name, value in dataset.constants.items()}
    shown = ", ".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in {**dataset.fields, **constants}.items())
    if dataset.is_ragged:
        return f"{shown}, collated by {dataset.collated_by}"
    return f"{shown}, labels='same'" if dataset.is_unshifted else shown
