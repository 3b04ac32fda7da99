"""`Dataset`, the base of every map-style dataset, and its kinds: samples of one shape, ragged and counted ones.

`Traits` say what a run and a loader have to know about samples before they read one. A `SampleWatch` goes with the
samples that a reader makes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.datasets.origins import Origins
from headrace.errors import ConfigError, raised
from headrace.plan import IntArray, KeyArray
from headrace.plan.recipe import without_contents

if TYPE_CHECKING:
    from headrace.encoders import Fault
    from headrace.samples.media.batch import Room
    from headrace.stores.store import Extents

T = TypeVar("T")

NO_SAMPLE: Final = -1
"""Stands in the place of an address when no sample is being made."""

Tell = Callable[[int], None]
"""Called with the address of each sample before it is made, so that a sample that hangs or kills the process has a
name, and with `NO_SAMPLE` when the last one is made."""


class StageTimes(NamedTuple):
    """The seconds that a reader spent in each stage on samples that were handed over together.

    Read is what no other stage accounts for: looking up addresses, reading, and for tokens also widening and
    packing, which are part of the same pass.
    """

    read: float = 0.0
    decode: float = 0.0
    encode: float = 0.0
    pack: float = 0.0
    collate: float = 0.0


class SampleWatch:
    """Goes with the samples that a reader makes: it says which one is being made, and collects the faults.

    The reader hands it to ``samples`` of a run or dataset, which hands it on. It is used by one thread at a time.

    Args:
        tell: called before each sample.
        seed: what samples that draw random numbers seed the global generators with, beside their positions; None leaves
            these alone.
        room: where pictures are decoded, if nothing but their batch refers to the samples; None is memory of their own.

    Attributes:
        row: which of the samples is being made.
        faults: the faults of the samples so far, in the order in which they were met, but for those that were taken.
        fatal: the faults that led to the error that was raised; empty if no sample was to blame.
    """

    def __init__(self, *, tell: Tell | None = None, seed: int | None = None, room: Room | None = None) -> None:
        self.seed = seed
        self.room = room
        self.row = 0
        self.faults: list[Fault] = []
        self.fatal: tuple[Fault, ...] = ()
        self._making_s = self._encoding_s = self._packing_s = 0.0
        self._positions: IntArray | None = None
        self._step_of: Callable[[int], int] | None = None
        self._tell = tell
        self._rows: list[int] = []

    def begin(self, positions: IntArray, step_of: Callable[[int], int] | None = None) -> None:
        """Note that the samples at these positions of the run, (n,) int64, are made next, and how to find their steps.

        ``step_of`` is None if the steps are not known.
        """
        self._positions, self._step_of, self.row = positions, step_of, 0

    @property
    def position(self) -> int | None:
        """The position of the sample that is being made; None if it is not known."""
        return None if self._positions is None else int(self._positions[self.row])

    def make(self, addresses: IntArray, makers: Sequence[Callable[[], Any]], rows: IntArray | None = None) -> list[Any]:
        """Return what the makers of the samples at some addresses make, one by one.

        ``rows`` are those of the samples among all whose positions are known; None counts from 0.
        """
        samples = []
        begin = perf_counter()
        numbers = range(len(addresses)) if rows is None else rows.tolist()
        for self.row, address, make in zip(numbers, addresses.tolist(), makers, strict=True):
            if self._tell is not None:
                self._tell(address)
            try:
                samples.append(make())
            except Exception as error:
                raise self.placed(raised(error))  # noqa: B904 -- the same error, which has its cause
        if self._tell is not None:
            self._tell(NO_SAMPLE)
        self._making_s += perf_counter() - begin
        return samples

    def make_together(self, addresses: IntArray, read: Callable[[IntArray, Tell | None], list[T]]) -> list[T]:
        """Return what ``read`` makes of all samples at some addresses; it tells of each before it makes it."""
        begin = perf_counter()
        samples = read(addresses, self._tell)
        if self._tell is not None:
            self._tell(NO_SAMPLE)
        self._making_s += perf_counter() - begin
        return samples

    def placed(self, error: Exception) -> Exception:
        """Return an error of the sample that is being made, with a note that gives position and step, if known."""
        if (position := self.position) is not None:
            step = "" if self._step_of is None else f", step {self._step_of(position):,}"
            error.add_note(f"at position {position:,} of the run{step}")
        return error

    def encoding(self, make: Callable[[], Any], encode: Callable[[Callable[[], Any]], T]) -> T:
        """Return ``encode(make)``. Its time, without that of ``make``, counts as encoding."""
        begin = perf_counter()

        def timed() -> Any:
            nonlocal begin
            before = perf_counter()
            try:
                return make()
            finally:
                begin += perf_counter() - before

        try:
            return encode(timed)
        finally:
            self._encoding_s += perf_counter() - begin

    def packed(self, pack: Callable[[], T]) -> T:
        """Return ``pack()``, whose time counts as packing."""
        begin = perf_counter()
        try:
            return pack()
        finally:
            self._packing_s += perf_counter() - begin

    def take_times(self, reading_s: float, collating_s: float) -> StageTimes:
        """Return the times of all stages since the last call, and begin anew.

        Args:
            reading_s: how long it took to get the samples, with all that was done to them.
            collating_s: how long it took to make batches of them.
        """
        making_s, encoding_s, packing_s = self._making_s, self._encoding_s, self._packing_s
        self._making_s = self._encoding_s = self._packing_s = 0.0
        read_s = reading_s - making_s - packing_s
        return StageTimes(read_s, making_s - encoding_s, encoding_s, packing_s, collating_s)

    def take(self) -> list[tuple[int, Fault]]:
        """Return the faults so far, each with the row of its sample, and forget them."""
        found = list(zip(self._rows, self.faults, strict=True))
        self.faults, self._rows = [], []
        return found

    def add(self, fault: Fault) -> Fault:
        """Collect a fault of the sample that is being made. Returns it with the position of the sample."""
        placed = msgspec.structs.replace(fault, position=self.position)
        self.faults.append(placed)
        self._rows.append(self.row)
        return placed


Sample = dict[str, NDArray[Any]]
Fields = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]

_OF_ONE_SOURCE = ("store", "num_records", "keys")
"""Fields of the recipe of records that may differ between the sources of a blend."""


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be known about the samples of a dataset before one is read. A dataset around another hands them on.

    Attributes:
        is_endless: the dataset goes on in an order of its own, and its length is only an upper bound. A run over it is
            as long as ``samples`` says; it has no epochs.
        is_ragged: samples have different lengths and are collated batch by batch; true for every `RaggedDataset`.
        is_packed: samples consist of segments that begin where ``position_ids`` is 0.
        is_counted: samples hold different numbers of supervised tokens, and may hold none; see `CountedDataset`.
        is_unshifted: a label is the token at its own place and not the next one; equal for all sources of a run.
        is_group_batches: a sample is a whole batch of things that belong together; a micro-batch holds one sample.
        is_plain: no code of the user sees a sample before its batch.
        is_opaque: a batch is what a function of the user made of samples, as the field ``batch``: a
            `MapStyleDataset`.
        is_seeded: the global random generators are seeded by position before samples of an opaque batch are made.
        has_tokens: samples are made of tokens, so that their mean number is known before they are read.
        holds_interpreter: making samples takes time in Python: media are decoded, code of the user runs, or records and
            documents are put together. In a thread that would hold up a training loop, so that worker processes are
            the default.
        may_draw: hooks may draw from the global random generators, and so cannot run in threads.
        unrestorable: name of the user's code that may let a sample depend on what was read before. Only if it is None
            can samples that another process has read be read again with the same bytes.
    """

    is_endless: bool = False
    is_ragged: bool = False
    is_packed: bool = False
    is_counted: bool = False
    is_unshifted: bool = False
    is_group_batches: bool = False
    is_plain: bool = False
    is_opaque: bool = False
    is_seeded: bool = False
    has_tokens: bool = True
    holds_interpreter: bool = False
    may_draw: bool = False
    unrestorable: str | None = None

    @classmethod
    def of_all(cls, traits: Sequence[Traits]) -> Traits:
        """Return what holds for the samples of several sources in one run."""
        made: dict[str, Any] = {
            name: (all if name in _OF_ALL_SOURCES else any)(getattr(one, name) for one in traits)
            for name in cls.__struct_fields__
        }
        return cls(**made | {"unrestorable": next((one.unrestorable for one in traits if one.unrestorable), None)})


_OF_ALL_SOURCES: Final = {"is_ragged", "is_packed", "is_unshifted", "is_plain", "has_tokens"}
"""What samples of several sources are only if those of each are; anything else they are if those of any are."""


class Dataset(ABC):
    """Samples 0 to ``len(dataset) - 1``: either a `FixedDataset` or a `RaggedDataset`.

    Reading has two steps. ``locate`` is arithmetic: it turns sample indices into int64 addresses, thousands at a time.
    The second step does the I/O for some of them: ``read_into`` or ``samples``. Items are NumPy arrays that share no
    memory: changing one in place changes no other sample.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def fields(self) -> Fields:
        """Name -> (shape, dtype) of the arrays that are read for each sample; -1 where a size differs."""

    @property
    def traits(self) -> Traits:
        """What has to be known about the samples before one is read."""
        return Traits()

    @property
    def shard_bounds(self) -> IntArray | None:
        """(shards + 1,) int64: the borders of shards, for an order that reads neighbours together; None if it has none.

        Stores of samples have shards; tokens are one stream, whatever files hold them.
        """
        return None

    @property
    @abstractmethod
    def num_tokens_per_sample(self) -> float:
        """The mean number of tokens that a sample trains on; a blend uses it to turn token weights into samples."""

    @property
    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """Everything that decides the bytes of the samples, JSON-safe; the fingerprint of the store is part of it."""

    @cached_property
    def fingerprint(self) -> str:
        """Hash of ``recipe``, but for the contents of files that not every copy knows: 128 bits in hex."""
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(without_contents(self.recipe), order="sorted"))

    @cached_property
    def shown_fields(self) -> str:
        """Fields and constants with shapes and dtypes as text; equal texts mean that samples can be stacked."""
        fields = dict(self.fields)
        if isinstance(self, FixedDataset):
            fields |= {name: (value.shape, value.dtype) for name, value in self.constants.items()}
        shown = ", ".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in fields.items())
        if isinstance(self, RaggedDataset):
            return f"{shown}, collated by {self.collated_by}"
        return f"{shown}, labels='same'" if self.traits.is_unshifted else shown

    @abstractmethod
    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: addresses of samples, by which they are read. No I/O.

        ``indices`` is (n,) int64 in [0, len). ``keys`` is (n,) uint64, one key for each pass through the dataset, and
        decides what varies from epoch to epoch; with None the samples are always the same.
        """

    @abstractmethod
    def read(self, addresses: IntArray) -> Sample:
        """Return the samples at some addresses as one new batch."""

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Return what the samples at some addresses are made of, without reading them; empty where it is not known."""
        return [()] * len(addresses)

    def extents(self, addresses: IntArray) -> list[Extents]:
        """Return which bytes of which files the samples at some addresses lie in, without reading them.

        Each entry has the ranges in the files of one store; its rows count the addresses.

        Raises:
            ConfigError: it is not known.
        """
        raise ConfigError(
            f"{type(self).__name__}: it is not known which bytes of its files a sample lies in; this is known for"
            " windows, packs, records and media samples, and for what is made of these"
        )

    def holders(self, documents: IntArray | int, *, as_labels: bool = False) -> IntArray:
        """(n,) int64, rising: the samples that may have tokens of a document, or of any of some, in any epoch.

        With ``as_labels`` also those that may have them as labels only. ``documents`` rise.

        Raises:
            ConfigError: the store has no such document, or samples are not made of documents.
        """
        raise ConfigError(f"{type(self).__name__}: it is not known which samples hold a document; ask by number")

    def without(self, documents: IntArray, pad_id: int) -> Dataset:
        """Return a dataset of the same samples, in which some documents are masked out; see `FixedDataset.without`."""
        raise ConfigError(f"samples of {type(self).__name__} cannot be masked: pass how='drop' to leave them out")

    def find_keys(self, key: str) -> list[int]:
        """Return the samples made from a key. Raises ConfigError if there are none, or samples have no keys."""
        raise ConfigError(f"{type(self).__name__}: samples have no keys; ask by number, found {key!r}")

    @abstractmethod
    def describe(self) -> str:
        """Describe in one line what the samples are made of, for the tree that ``Run.describe`` prints."""

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    @abstractmethod
    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples at ``indices``, read as one batch; ``torch.utils.data`` calls this if it exists."""

    def _located(self, indices: Sequence[int]) -> IntArray:
        """(n,) int64: addresses of samples, whose indices may count from the end. Raises IndexError for others."""
        wanted = np.asarray(indices, dtype=np.int64)
        if wanted.size and (int(wanted.min()) < -len(self) or int(wanted.max()) >= len(self)):
            raise IndexError(f"samples {wanted.min()} .. {wanted.max()} of a dataset of {len(self)}")
        return self.locate(wanted % len(self))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} samples, {self.describe()}>"


class FixedDataset(Dataset):
    """Samples whose arrays have one shape, so that they are read straight into the rows of a batch."""

    @property
    def constants(self) -> Sample:
        """Name -> array that is the same for every sample and is not read; a batch repeats it as a view, not a copy."""
        return {}

    @property
    def pad_id(self) -> int | None:
        """The id that stands for tokens that are masked out; None if it is not known."""
        return None

    def without(self, documents: IntArray, pad_id: int) -> FixedDataset:
        """Return a dataset of the same samples, in which the tokens of some documents are masked out.

        ``documents`` are (n,) int64 and rise. See `ExcludedDocuments`.

        Raises:
            ConfigError: it is not known which tokens of a sample belong to a document.
        """
        raise ConfigError(
            f"{type(self).__name__}: documents can be masked in the samples of WindowDataset and PackedSequenceDataset,"
            " and of MapDataset around them; here samples can only be dropped: pass how='drop' and their numbers"
        )

    @abstractmethod
    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Fill ``rows`` of the (batch, ...) arrays ``out[field]`` with the samples at ``addresses``."""

    def read(self, addresses: IntArray) -> Sample:
        """Return a new batch: fields as (len(addresses), ...) arrays, constants as read-only views of one row."""
        out = empty(self.fields, len(addresses))
        self.read_into(addresses, out, slice(None))
        return {**out, **repeated(self.constants, len(addresses))}

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Return the samples at ``indices``, read as one batch; ``torch.utils.data`` calls this if it exists."""
        batch = self.read(self._located(indices))
        return [{name: values[i].copy() for name, values in batch.items()} for i in range(len(indices))]


class FlatBatches(NamedTuple):
    """Micro-batches that were made together.

    Attributes:
        columns: name -> flat array: the micro-batches one after another.
        shapes: for each micro-batch, name -> the shape of its part.
        others: for each micro-batch, name -> its values that are no arrays.
    """

    columns: Sample
    shapes: list[dict[str, tuple[int, ...]]]
    others: list[dict[str, Any]]


class RaggedDataset(Dataset):
    """Samples with shapes of their own, which are made one by one and collated for each micro-batch."""

    @property
    def traits(self) -> Traits:
        """What has to be known about the samples before one is read."""
        return Traits(is_ragged=True)

    @abstractmethod
    def samples(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Any]:
        """Return the samples at some addresses, for ``collate``.

        User code that makes samples runs under the ``watch`` of the reader; None is for callers that do not ask.
        """

    @abstractmethod
    def collate(self, samples: Sequence[Any]) -> Sample:
        """Return samples as one batch, as wide as the longest: arrays, and values such as counts."""

    def flat_batches(
        self, addresses: IntArray, sizes: Sequence[int], allocate: Callable[[int], NDArray[np.uint8]]
    ) -> FlatBatches | None:
        """Return the batches that ``collate`` makes of the next ``sizes[i]`` samples each, made in one pass.

        ``allocate`` returns the memory for them, at least as many bytes as asked for. None is for samples that have to
        be made one by one.
        """
        return None

    @abstractmethod
    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """(n,) int64: number of tokens of each sample, found without reading it. Bucketing sorts by it."""

    @property
    def collated_by(self) -> dict[str, Any]:
        """The part of the recipe that a blend's sources share: one source collates all samples."""
        return {name: value for name, value in self.recipe.items() if name not in _OF_ONE_SOURCE}

    def read(self, addresses: IntArray) -> Sample:
        """Return the samples at some addresses as one new batch."""
        return self.collate(self.samples(addresses))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples at ``indices``, read together; ``torch.utils.data`` calls this if it exists."""
        return self.samples(self._located(indices))


class Wrapper(Dataset):
    """A dataset around another one, which answers everything that it does not answer itself."""

    dataset: Dataset

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def fields(self) -> Fields:
        """Those of the inner dataset."""
        return self.dataset.fields

    @property
    def traits(self) -> Traits:
        """Those of the inner dataset."""
        return self.dataset.traits

    @property
    def num_tokens_per_sample(self) -> float:
        """That of the inner dataset."""
        return self.dataset.num_tokens_per_sample

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Return the origins in the inner dataset."""
        return self.dataset.origins(addresses)

    def extents(self, addresses: IntArray) -> list[Extents]:
        """Return those of the inner dataset."""
        return self.dataset.extents(addresses)

    def holders(self, documents: IntArray | int, *, as_labels: bool = False) -> IntArray:
        """Return those of the inner dataset."""
        return self.dataset.holders(documents, as_labels=as_labels)

    def find_keys(self, key: str) -> list[int]:
        """Return those of the inner dataset."""
        return self.dataset.find_keys(key)


class FixedWrapper(Wrapper, FixedDataset):
    """A dataset around another one, both with samples of one shape."""

    dataset: FixedDataset

    @property
    def constants(self) -> Sample:
        """Those of the inner dataset."""
        return self.dataset.constants


def repeated(constants: Sample, num_samples: int) -> Sample:
    """Return read-only views of shape (num_samples, ...), each of one row in memory."""
    return {name: np.broadcast_to(value, (num_samples, *value.shape)) for name, value in constants.items()}


def empty(fields: Fields, num_samples: int) -> Sample:
    """Return uninitialised arrays for a batch."""
    return {name: np.empty((num_samples, *shape), dtype=dtype) for name, (shape, dtype) in fields.items()}


_AT_ONCE = 8192


class Counts(NamedTuple):
    """What some samples hold, each (n,) int64: tokens, supervised tokens, pads, and documents or pieces of them."""

    tokens: IntArray
    supervised_tokens: IntArray
    pads: IntArray
    documents: IntArray


class CountedDataset(Dataset):
    """A dataset whose samples may hold different numbers of supervised tokens: packs, records, masked windows.

    If one source of a run is counted (`Traits.is_counted`), `count` is called for all its sources.
    """

    @abstractmethod
    def count(self, addresses: IntArray) -> Counts:
        """Count tokens, pads and documents of the samples at some addresses, without reading them where possible."""

    @cached_property
    def has_unsupervised_samples(self) -> bool:
        """Whether any sample may have no supervised token. Looks at each record once, 1 to 2 us a record.

        Always true for windows with a mask, which is too long to be read, and for packs, whose documents may change
        from epoch to epoch, if it does not follow from the lengths of the documents.
        """
        if not self.traits.is_ragged:
            return True
        for first in range(0, len(self), _AT_ONCE):
            indices = np.arange(first, min(first + _AT_ONCE, len(self)), dtype=np.int64)
            if not self.count(self.locate(indices)).supervised_tokens.all():
                return True
        return False


def counted(dataset: Dataset) -> CountedDataset:
    """Return the dataset unchanged. Raises ConfigError if it cannot count what its samples hold."""
    if not isinstance(dataset, CountedDataset):
        raise ConfigError(
            f"{type(dataset).__name__}: only packs, records and masked windows are counted; all samples here are alike"
        )
    return dataset
