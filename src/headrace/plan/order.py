"""The order in which one epoch of a source is read: rank within the epoch -> sample index.

The order ``blocks`` permutes blocks of neighbouring samples, and then the samples within windows of blocks. The last
block may be short by ``missing`` samples. Wherever it lands, all slots after its slot begin that much earlier: with
blocks [0 1 2] [3 4 5] [6 7] in slots (1, 2, 0), the slots begin at ranks 0, 3, 5.

The order ``shards`` keeps neighbours within the shards of a source together, as follows. With virtual
shards, neighbours stay together in slices, and every epoch is still a permutation in closed form.

    shards      [0 1 2 3 4 5 6 7 8 9] [10 11 12] ...
    slices      at most L neighbours of one shard. All but the first and the last of a shard are exactly L; a phase,
                drawn for each shard and epoch, moves the borders between them, and their number stays the same
    rows        the slices, in the order of the disk, are cut into rows of V; each row is permuted by itself
    windows     window t takes the t-th slice of every row: about ``parallel_shard_iters`` slices from all over the
                disk, open at once. The last row is shorter than V and is spread evenly over the windows
    samples     are permuted within each window

    10 slices, 4 open: V = 2 or 3 windows          row 0  0 1 2      permuted  2 0 1
                                                   row 1  3 4 5                3 5 4
                                                   row 2  6 7 8                7 6 8
                                                   row 3  9                    9, in one window
    windows                                        2 3 7 | 0 5 6 | 1 4 8 9

If there are at least as many shards as open slices, the slices of a window come from different shards (or, at the
border of two rows, sometimes two from the same). A batch then holds no more samples of one shard than with a uniform
permutation of as many shards.

To find the slice of a rank, the sum of the lengths of all slices before it is needed. All lengths are L except for two
slices in each shard. Their places are computed once an epoch, sorted and cached: O(shards). Then a rank is
O(log shards).

The order ``torch`` is that of torch's samplers. It has no closed form, but a table for each epoch: O(samples).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any, ClassVar, Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.config import check_choice, check_fields
from headrace.errors import ConfigError
from headrace.plan.keys import IntArray, KeyArray, derive, derive_array
from headrace.plan.permutation import RecentTables, one_if_equal, permute, permute_each, unpermute, unpermute_each


class Shards:
    """The borders of the shards of a source, as the plan needs them.

    ``bounds`` is (num_shards + 1,) int64, rising from 0: shard s begins with sample ``bounds[s]`` and ends before
    ``bounds[s + 1]``. Shards without samples are left out. Time and memory are O(shards), for any number of samples.

    Raises:
        ConfigError: the bounds do not rise from 0, or there is no sample.

    Example:
        >>> shards = headrace.plan.Shards([0, 10, 10, 13])
        >>> len(shards), shards.num_samples, shards.shard_of(np.array([9, 10])).tolist()
        (2, 13, [0, 1])
    """

    def __init__(self, bounds: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        borders: IntArray = np.asarray(bounds, dtype=np.int64)
        if borders.ndim != 1 or not borders.size or borders[0] != 0 or bool((np.diff(borders) < 0).any()):
            raise ConfigError(
                f"the bounds of shards are {borders}; they must rise from 0, and be one more than there are shards"
            )
        if not borders[-1]:
            raise ConfigError("the shards have no samples; a source needs at least one")
        kept = np.append(True, np.diff(borders) > 0)
        self.bounds: IntArray = borders[kept]
        self.bounds.flags.writeable = False

    @classmethod
    def of_counts(cls, counts: Sequence[int] | NDArray[np.integer[Any]]) -> Shards:
        """Return the borders of shards with these numbers of samples."""
        return cls(np.append(0, np.cumsum(np.asarray(counts, dtype=np.int64))))

    @classmethod
    def whole(cls, num_samples: int) -> Shards:
        """Return a single shard with all samples, for a store that has none."""
        return cls([0, num_samples])

    @property
    def num_samples(self) -> int:
        """The number of samples in all shards."""
        return int(self.bounds[-1])

    @cached_property
    def digest(self) -> str:
        """A hash of the borders, 128 bits in hex, for the recipe of a run."""
        return blake2b(self.bounds.astype("<i8").tobytes(), digest_size=16).hexdigest()

    def subset(self, begin: int, end: int) -> Shards:
        """Return the shards of the samples ``begin`` to ``end - 1``, numbered from 0; the outer two may be cut."""
        return Shards(np.unique(np.clip(self.bounds, begin, end)) - begin)

    def shard_of(self, indices: IntArray) -> IntArray:
        """Return (n,) int64: the shard of each sample, counting only shards with samples. O(log shards)."""
        return np.searchsorted(self.bounds, indices, side="right").astype(np.int64) - 1

    def __len__(self) -> int:
        """Return the number of shards that have samples."""
        return len(self.bounds) - 1

    def __eq__(self, other: object) -> bool:
        """Return whether the borders are the same."""
        return isinstance(other, Shards) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<Shards: {self.num_samples:,} samples in {len(self):,}>"


_MAX_SLICES = 1 << 31
_MAX_TORCH = 1 << 28
_KEPT_BYTES = 128 << 20
_PHASES, _ROWS, _WINDOWS = range(3)
"""The purposes of the keys derived from the key of an epoch."""


class SourceOrder:
    """The order of one source in all of its epochs, and its kind: as stored. The other kinds derive from it.

    Attributes:
        text: what an epoch is, with the fields of an `Order`.
        fields: the fields that matter for the kind; the seed is one of them if epochs differ.
        places: the field that says from how many places it reads at once; empty if that is one, or all.
        is_of_shards: whether the shards of a source matter.
        versions: what the recipe of an order has besides.
        num_windows: in how many windows an epoch is read, one after another; 0 if each batch comes from everywhere.
    """

    text: ClassVar[str] = "as stored, the same in every epoch"
    fields: ClassVar[tuple[str, ...]] = ()
    places: ClassVar[str] = ""
    is_of_shards: ClassVar[bool] = False
    versions: ClassVar[dict[str, int]] = {}
    num_windows = 1

    def __init__(self, order: Order, num_samples: int) -> None:
        self.num_samples = num_samples

    @classmethod
    def of(cls, order: Order, num_samples: int, shards: Shards | None) -> SourceOrder:
        """Return the order of a source of so many samples, in shards or not."""
        return cls(order, num_samples)

    @classmethod
    def epoch_keys(cls, order: Order, key: int, epochs: IntArray) -> KeyArray:
        """Return (n,) uint64: the keys of (n,) int64 epochs of a source with a key of its own."""
        return derive_array(key, epochs)

    def indices(self, ranks: IntArray, keys: KeyArray) -> IntArray:
        """Return (n,) int64: the sample at each of (n,) int64 ranks; ``keys`` (n,) uint64 are those of their epochs."""
        return ranks

    def ranks(self, indices: IntArray, keys: KeyArray) -> IntArray:
        """Return (n,) int64: the rank of each sample; undoes ``indices`` at the same cost."""
        return indices

    def window_begins(self, windows: IntArray, key: int) -> IntArray:
        """Return (n,) int64: the rank at which each window begins in one epoch, or its end for ``num_windows``."""
        return windows * self.num_samples


class _Permuted(SourceOrder):
    text = "every epoch a permutation of all samples, seed {seed}"
    fields = ("seed",)
    num_windows = 0

    def indices(self, ranks: IntArray, keys: KeyArray) -> IntArray:
        return permute(ranks, self.num_samples, one_if_equal(keys))

    def ranks(self, indices: IntArray, keys: KeyArray) -> IntArray:
        return unpermute(indices, self.num_samples, one_if_equal(keys))


_SEED: Final = np.uint64(0xFFFF_FFFF)
"""The bits of a seed that torch's CPU generator uses."""


class _Torch(SourceOrder):
    """The order ``torch``, in tables of the last epochs: 4 bytes a sample, for each thread that asks.

    The key of an epoch has the seed that torch draws it from in its low 32 bits, and a hash in the others: whatever
    else depends on a key differs between sources and epochs as ever.

    Raises:
        ConfigError: there are more than 2^28 samples.
    """

    text = "every epoch the permutation that torch's samplers draw, seed {seed} plus the number of the epoch"
    fields = ("seed",)
    num_windows = 0

    def __init__(self, order: Order, num_samples: int) -> None:
        if num_samples > _MAX_TORCH:
            raise ConfigError(
                f"a source has {num_samples:,} samples, and order kind 'torch' was compared with torch up to"
                f" {_MAX_TORCH:,}; it needs a table of 4 bytes a sample for each epoch: use kind='full', which has none"
            )
        super().__init__(order, num_samples)

    @classmethod
    def epoch_keys(cls, order: Order, key: int, epochs: IntArray) -> KeyArray:
        seeds = epochs.astype(np.uint64) + np.uint64(order.seed & int(_SEED))
        return (derive_array(key, epochs) & ~_SEED) | (seeds & _SEED)

    def indices(self, ranks: IntArray, keys: KeyArray) -> IntArray:
        return _each_epoch(ranks, keys & _SEED, lambda some, seed: self._table(seed, inverse=False)[some])

    def ranks(self, indices: IntArray, keys: KeyArray) -> IntArray:
        return _each_epoch(indices, keys & _SEED, lambda some, seed: self._table(seed, inverse=True)[some])

    def _table(self, seed: int, *, inverse: bool) -> NDArray[np.int32]:
        """(num_samples,) int32: the sample at each rank, or the other way round."""

        def make() -> NDArray[np.int32]:
            if not inverse:
                from headrace.plan.torch_draws import torch_randperm  # with Megatron's kernels, which few runs need

                return torch_randperm(self.num_samples, seed).astype(np.int32)
            ranks = np.empty(self.num_samples, dtype=np.int32)
            ranks[self._table(seed, inverse=False)] = np.arange(self.num_samples, dtype=np.int32)
            return ranks

        return _torch_tables.get((self.num_samples, seed, inverse), make)


def _each_epoch(values: IntArray, keys: KeyArray, in_epoch: Callable[[IntArray, int], NDArray[Any]]) -> IntArray:
    """Return (n,) int64: what ``in_epoch(values, key)`` returns for the values of each epoch."""
    if not values.size:
        return values.copy()
    if bool((keys == keys[0]).all()):
        return in_epoch(values, int(keys[0])).astype(np.int64, copy=False)
    result = np.empty_like(values)
    by_key = np.argsort(keys, kind="stable")
    borders = np.flatnonzero(np.diff(keys[by_key])) + 1
    for rows in np.split(by_key, borders):
        result[rows] = in_epoch(values[rows], int(keys[rows[0]]))
    return result


class _VirtualShards(SourceOrder):
    """The order ``shards``: the slices and windows of a source, and its samples through them. O(shards) to make.

    Raises:
        ConfigError: there would be more than 2^31 slices.
    """

    text = (
        "slices of at most {max_samples_per_sequence:,} neighbours of a shard, the samples of {parallel_shard_iters:,}"
        " of them permuted together, seed {seed}"
    )
    fields = ("seed", "max_samples_per_sequence", "parallel_shard_iters")
    places = "parallel_shard_iters"
    is_of_shards = True
    versions: ClassVar = {"version": 1}

    def __init__(self, shards: Shards, max_samples_per_sequence: int, parallel_shard_iters: int) -> None:
        sizes = np.diff(shards.bounds)
        longest = min(max_samples_per_sequence, int(sizes.max()))
        counts = -(-sizes // longest)
        # The borders can move by as much as all slices together are short of L, which should be at least half of L.
        counts += (sizes > longest) & (2 * (counts * longest - sizes) < longest) & (longest > 1)
        slack = counts * longest - sizes
        self._bounds = shards.bounds
        self._sizes = sizes
        self._slice_samples = longest
        self._lowest_phase: IntArray = np.maximum(0, slack - longest + 1)
        self._num_phases: IntArray = np.where(counts > 1, np.minimum(slack, longest - 1) - self._lowest_phase + 1, 1)
        self._lowest_phase[counts == 1] = 0
        self._first_slices: IntArray = np.append(0, np.cumsum(counts))
        self.num_samples = shards.num_samples
        self.num_slices = int(self._first_slices[-1])
        if self.num_slices > _MAX_SLICES:
            raise ConfigError(
                f"{self.num_samples:,} samples make {self.num_slices:,} slices of at most {longest:,} samples; at most "
                "2^31 slices are allowed: increase max_samples_per_sequence"
            )
        self.num_windows = max(1, (2 * self.num_slices + parallel_shard_iters) // (2 * parallel_shard_iters))
        self._whole_rows = -(-self.num_slices // self.num_windows) - 1
        self._last_row = self.num_slices - self._whole_rows * self.num_windows
        self._name = (shards.digest, longest, parallel_shard_iters)

    @classmethod
    def of(cls, order: Order, num_samples: int, shards: Shards | None) -> SourceOrder:
        borders = Shards.whole(num_samples) if shards is None else shards
        return _virtual_shards(borders, order.max_samples_per_sequence, order.parallel_shard_iters)

    def indices(self, ranks: IntArray, keys: KeyArray) -> IntArray:
        return self._by_epoch(ranks, keys, inverse=False)

    def ranks(self, indices: IntArray, keys: KeyArray) -> IntArray:
        return self._by_epoch(indices, keys, inverse=True)

    def window_begins(self, windows: IntArray, key: int) -> IntArray:
        if self.num_windows == 1:
            return windows * self.num_samples
        return self._table(key).begin(self._begin_slot(windows))

    def _by_epoch(self, values: IntArray, keys: KeyArray, *, inverse: bool) -> IntArray:
        if self.num_windows == 1:
            # All slices are open at once, so all samples are permuted together.
            return (unpermute if inverse else permute)(values, self.num_samples, one_if_equal(keys))
        return _each_epoch(values, keys, self._ranks if inverse else self._indices)

    def _indices(self, ranks: IntArray, key: int) -> IntArray:
        table = self._table(key)
        windows, which = _distinct(self._window_of(table.slot_of(ranks)))
        begins = table.begin(self._begin_slot(windows))
        lengths = table.begin(self._begin_slot(windows + 1)) - begins
        window_keys = derive_array(derive(key, _WINDOWS), windows)
        begin = begins[which]
        places = begin + permute_each(ranks - begin, lengths[which], window_keys[which])
        slots, which = _distinct(table.slot_of(places))
        # Within a slice, sample - place is constant: this shift turns a place into its sample.
        shift = self._slice_begin(self._slice_at(slots, key), key) - table.begin(slots)
        return places + shift[which]

    def _ranks(self, indices: IntArray, key: int) -> IntArray:
        table = self._table(key)
        shards = np.searchsorted(self._bounds, indices, side="right").astype(np.int64) - 1
        within = indices - self._bounds[shards] + self._phases(shards, key)
        number = within // self._slice_samples
        slices, which = _distinct(self._first_slices[shards] + number)
        slots = self._slot_of(slices, key)
        shift = table.begin(slots) - self._slice_begin(slices, key)
        places = indices + shift[which]
        windows = self._window_of(slots)
        begins = table.begin(self._begin_slot(windows))
        lengths = table.begin(self._begin_slot(windows + 1)) - begins
        window_keys = derive_array(derive(key, _WINDOWS), windows)
        begin = begins[which]
        return begin + unpermute_each(places - begin, lengths[which], window_keys[which])

    def _phases(self, shards: IntArray, key: int) -> IntArray:
        """(n,) int64: by how many samples the borders within each shard move towards its beginning."""
        hashed = derive_array(derive(key, _PHASES), shards) >> np.uint64(33)
        moved: IntArray = (hashed.astype(np.int64) * self._num_phases[shards]) >> 31
        return self._lowest_phase[shards] + moved

    def _slice_begin(self, slices: IntArray, key: int) -> IntArray:
        """(n,) int64: the first sample of each slice."""
        shards = np.searchsorted(self._first_slices, slices, side="right").astype(np.int64) - 1
        number = slices - self._first_slices[shards]
        begin = number * self._slice_samples - self._phases(shards, key)
        first: IntArray = self._bounds[shards] + np.maximum(begin, 0)
        return first

    def _begin_slot(self, windows: IntArray) -> IntArray:
        return windows * self.num_slices // self.num_windows

    def _window_of(self, slots: IntArray) -> IntArray:
        return ((slots + 1) * self.num_windows - 1) // self.num_slices

    def _slice_at(self, slots: IntArray, key: int) -> IntArray:
        """(n,) int64: the slice in each slot; a window has one slot for each row, one after another."""
        windows = self._window_of(slots)
        rows = slots - self._begin_slot(windows)
        last = rows == self._whole_rows
        ranks = np.where(last, windows * self._last_row // self.num_windows, windows)
        row_keys = derive_array(derive(key, _ROWS), rows)
        lengths = np.where(last, self._last_row, self.num_windows)
        return rows * self.num_windows + permute_each(ranks, lengths, row_keys)

    def _slot_of(self, slices: IntArray, key: int) -> IntArray:
        """(n,) int64: the slot of each slice; undoes ``_slice_at``."""
        rows = slices // self.num_windows
        last = rows == self._whole_rows
        row_keys = derive_array(derive(key, _ROWS), rows)
        lengths = np.where(last, self._last_row, self.num_windows)
        ranks = unpermute_each(slices - rows * self.num_windows, lengths, row_keys)
        windows = np.where(last, ((ranks + 1) * self.num_windows - 1) // self._last_row, ranks)
        return self._begin_slot(windows) + rows

    def _table(self, key: int) -> _SlotTable:
        return _tables.get((*self._name, key), lambda: self._make_table(key))

    def _make_table(self, key: int) -> _SlotTable:
        """The table of the slices shorter than the others, which are the first and the last of a shard."""
        shards = np.arange(len(self._sizes), dtype=np.int64)
        counts = np.diff(self._first_slices)
        phases = self._phases(shards, key)
        first_lengths = np.minimum(self._slice_samples - phases, self._sizes)
        last_lengths = self._sizes - ((counts - 1) * self._slice_samples - phases)
        several = counts > 1
        slices = np.concatenate([self._first_slices[:-1], self._first_slices[1:][several] - 1])
        missing = self._slice_samples - np.concatenate([first_lengths, last_lengths[several]])
        short = missing > 0
        slots, missing = self._slot_of(slices[short], key), missing[short]
        order = np.argsort(slots)
        slots, missing = slots[order], missing[order]
        before: IntArray = np.append(0, np.cumsum(missing))
        ends = (slots + 1) * self._slice_samples - before[1:]
        return _SlotTable(self._slice_samples, slots, ends, before)


class _SlotTable(NamedTuple):
    """The short slices of an epoch in the order of their slots.

    ``slots`` and ``ends`` are (m,) int64, the places where these slots end. ``missing`` is (m + 1,) int64, prefix sums
    of how many samples these slices lack.
    """

    slice_samples: int
    slots: IntArray
    ends: IntArray
    missing: IntArray

    def begin(self, slots: IntArray) -> IntArray:
        """Return (n,) int64: the place where each slot begins."""
        return slots * self.slice_samples - self.missing[np.searchsorted(self.slots, slots)]

    def slot_of(self, places: IntArray) -> IntArray:
        """Return (n,) int64: the slot of each place."""
        passed = np.searchsorted(self.ends, places, side="right")
        slots: IntArray = (places + self.missing[passed]) // self.slice_samples
        return slots

    @property
    def num_bytes(self) -> int:
        """The size of the arrays in bytes."""
        return 3 * self.missing.nbytes


def _distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    """Return rising values that include all of ``values``, and the number of each among them.

    Mostly the values lie close together; then the result is their whole range, which needs no sort.
    """
    low = int(values.min())
    span = int(values.max()) - low + 1
    if span <= values.size:
        return np.arange(low, low + span, dtype=np.int64), values - low
    distinct, which = np.unique(values, return_inverse=True)
    return distinct, which.astype(np.int64)


_tables: RecentTables[_SlotTable] = RecentTables(_KEPT_BYTES, lambda table: table.num_bytes, least=2)
_torch_tables: RecentTables[NDArray[np.int32]] = RecentTables(_KEPT_BYTES, lambda table: table.nbytes, least=2)


class _Blocks(SourceOrder):
    text = (
        "blocks of {block_samples:,} samples permuted, then samples within windows of {window_blocks:,} blocks, seed"
        " {seed}"
    )
    fields = ("seed", "block_samples", "window_blocks")
    places = "window_blocks"

    def __init__(self, order: Order, num_samples: int) -> None:
        self._block = min(order.block_samples, num_samples)
        self._num_blocks = -(-num_samples // self._block)
        self._window = order.window_blocks
        self._missing = self._num_blocks * self._block - num_samples
        self.num_windows = -(-self._num_blocks // self._window)

    def indices(self, ranks: IntArray, keys: KeyArray) -> IntArray:
        block_keys, short_slot = self._drawn(keys)
        places = self._exchanged(ranks, self._slot_of(ranks, short_slot), keys, short_slot, inverse=False)
        slots = self._slot_of(places, short_slot)
        blocks = permute(slots, self._num_blocks, block_keys)
        return blocks * self._block + (places - self._begin(slots, short_slot))

    def ranks(self, indices: IntArray, keys: KeyArray) -> IntArray:
        block_keys, short_slot = self._drawn(keys)
        blocks = indices // self._block
        slots = unpermute(blocks, self._num_blocks, block_keys)
        places = self._begin(slots, short_slot) + (indices - blocks * self._block)
        return self._exchanged(places, slots, keys, short_slot, inverse=True)

    def window_begins(self, windows: IntArray, key: int) -> IntArray:
        return self._window_begins(windows, self._drawn(np.full(windows.shape, key, dtype=np.uint64))[1])

    def _drawn(self, keys: KeyArray) -> tuple[KeyArray | int, IntArray]:
        """Return the keys by which blocks are permuted in epochs, and (n,) int64 the slot where the short block is."""
        block_keys = one_if_equal(derive_array(keys, np.zeros(1, dtype=np.int64)))
        last = np.full(len(keys), self._num_blocks - 1, dtype=np.int64)
        return block_keys, unpermute(last, self._num_blocks, block_keys)

    def _window_begins(self, windows: IntArray, short_slot: IntArray) -> IntArray:
        return self._begin(np.minimum(windows * self._window, self._num_blocks), short_slot)

    def _begin(self, slots: IntArray, short_slot: IntArray) -> IntArray:
        begins: IntArray = slots * self._block - np.where(slots > short_slot, self._missing, 0)
        return begins

    def _slot_of(self, places: IntArray, short_slot: IntArray) -> IntArray:
        before = places < self._begin(short_slot + 1, short_slot)
        slots: IntArray = np.where(before, places, places + self._missing) // self._block
        return slots

    def _exchanged(
        self, values: IntArray, slots: IntArray, keys: KeyArray, short_slot: IntArray, *, inverse: bool
    ) -> IntArray:
        """Map ranks to places within the windows of these slots, or back with ``inverse``."""
        apply = unpermute if inverse else permute
        windows = slots // self._window
        begins = self._window_begins(windows, short_slot)
        lengths = self._window_begins(windows + 1, short_slot) - begins
        window_keys = derive_array(keys, windows + 1)
        exchanged = values.copy()
        for length in np.unique(lengths).tolist():
            chosen = np.flatnonzero(lengths == length)
            offsets = (values - begins)[chosen]
            exchanged[chosen] = begins[chosen] + apply(offsets, length, one_if_equal(window_keys[chosen]))
        return exchanged


OrderKind = Literal["full", "blocks", "shards", "torch", "none"]
_KINDS: Final[dict[OrderKind, type[SourceOrder]]] = {
    "full": _Permuted,
    "blocks": _Blocks,
    "none": SourceOrder,
    "shards": _VirtualShards,
    "torch": _Torch,
}
"""Nothing else says what a kind means, but its row in the docstring of `Order` and in ``docs/order.md``."""


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The order of the samples of every source, and the seed of the run.

    ``kind``:
        ``full``    each epoch is a permutation of all samples, a different one every epoch;
        ``blocks``  blocks of ``block_samples`` neighbours are permuted, then the samples within every window of
                    ``window_blocks`` blocks: reads stay near each other, as slow disks and object stores need it;
        ``shards``  slices of at most ``max_samples_per_sequence`` neighbours of one shard, whose borders move every
                    epoch, are permuted so that each window has about ``parallel_shard_iters`` of them, from as many
                    different shards as possible; then the samples within each window are permuted;
        ``torch``   each epoch is the permutation that torch draws from the seed ``seed`` plus the number of the epoch,
                    bit for bit, as ``DistributedSampler`` and accelerate do: O(samples) an epoch, at most 2^28 samples;
        ``none``    sample 0, 1, 2, ..., the same in every epoch.

    Example:
        >>> order = headrace.Order(kind="blocks", seed=1, block_samples=256)
        >>> order.recipe
        {'kind': 'blocks', 'seed': 1, 'block_samples': 256, 'window_blocks': 16}
        >>> headrace.Order(kind="none").recipe
        {'kind': 'none'}
    """

    kind: OrderKind = "full"
    seed: int = 0
    block_samples: int = 1024
    window_blocks: int = 16
    max_samples_per_sequence: int = 100
    parallel_shard_iters: int = 128

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown kind, a seed that is not an integer, or sizes out of range."""
        check_choice("order kind", self.kind, _KINDS)
        check_fields(self)
        if self.block_samples < 1 or self.window_blocks < 1:
            raise ConfigError(
                f"block_samples and window_blocks are at least 1, found {self.block_samples} and {self.window_blocks}"
            )
        if not 1 <= self.max_samples_per_sequence <= _MAX_WINDOW // max(1, self.parallel_shard_iters):
            raise ConfigError(
                "max_samples_per_sequence and parallel_shard_iters are at least 1, and their product is at most 2^31 "
                f"samples, found {self.max_samples_per_sequence} and {self.parallel_shard_iters}"
            )
        if self.parallel_shard_iters < 1:
            raise ConfigError(f"parallel_shard_iters is at least 1, found {self.parallel_shard_iters}")

    @property
    def recipe(self) -> dict[str, Any]:
        """The fields that decide anything: sizes only for blocks or shards, the seed only for orders that draw."""
        every = msgspec.to_builtins(self)
        kind = _KINDS[self.kind]
        return {"kind": self.kind, **{name: every[name] for name in kind.fields}, **kind.versions}

    @property
    def draws(self) -> bool:
        """Whether epochs differ: the order is drawn from the seed."""
        return "seed" in _KINDS[self.kind].fields

    @property
    def passes_blocks(self) -> bool:
        """Whether what is read together lies together, and does not come again in the same epoch."""
        return _KINDS[self.kind].num_windows > 0

    @property
    def is_of_shards(self) -> bool:
        """Whether it depends on where the shards of a source begin."""
        return _KINDS[self.kind].is_of_shards

    def describe(self) -> str:
        """Return what an epoch is, in words."""
        return _KINDS[self.kind].text.format(**msgspec.to_builtins(self))

    def open_places(self, num_samples: int) -> int:
        """Return from how many places of a source, of so many samples, it reads at once."""
        field = _KINDS[self.kind].places
        return getattr(self, field) if field else num_samples if self.draws else 1

    def of_source(self, num_samples: int, shards: Shards | None) -> SourceOrder:
        """Return the order of one source. Only ``kind="shards"`` uses the shards; without them, all are one shard."""
        return _KINDS[self.kind].of(self, num_samples, shards)

    def epoch_keys(self, key: int, epochs: IntArray) -> KeyArray:
        """Return (n,) uint64: the keys of (n,) int64 epochs of a source that has this key."""
        return _KINDS[self.kind].epoch_keys(self, key, epochs)

    def indices(
        self, ranks: IntArray, epoch_keys: KeyArray, num_samples: int, shards: Shards | None = None
    ) -> IntArray:
        """Return (n,) int64: the sample index at each rank of an epoch.

        ``ranks`` is (n,) int64 in [0, num_samples); ``epoch_keys`` is (n,) uint64, the key of the epoch of each rank.
        """
        return self.of_source(num_samples, shards).indices(ranks, epoch_keys)

    def ranks(
        self, indices: IntArray, epoch_keys: KeyArray, num_samples: int, shards: Shards | None = None
    ) -> IntArray:
        """Return (n,) int64: the rank of each sample index within its epoch; undoes ``indices`` at the same cost."""
        return self.of_source(num_samples, shards).ranks(indices, epoch_keys)


_MAX_WINDOW = 1 << 31
_virtual_shards = lru_cache(maxsize=4096)(_VirtualShards)
