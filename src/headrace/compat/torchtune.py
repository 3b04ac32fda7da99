"""torchtune's ``PackedDataset``: the same class and the same tensors, planned from the lengths of documents.

The mask of a pack is made when it is asked for. `DocumentDataset` gives the documents of a store as samples to pack.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.datasets.dataset import Sample
from headrace.datasets.loss_masks import AUTO, shown_mask, used_mask
from headrace.errors import ConfigError, InputError
from headrace.plan import IntArray
from headrace.plan.packing.first_fit import next_fit
from headrace.plan.segments import IGNORED_LABEL, integers
from headrace.stores import Store

if TYPE_CHECKING:
    from torch import Tensor

MaskPads = Literal["identity", "causal"]
"""What the pads at the end of a pack attend to: each only to itself, or each to itself and the pads before it."""


class PackedItem(Mapping[str, "Tensor"]):
    """The tensors of a pack by name: ``tokens``, ``labels``, ``input_pos``, ``seq_lens`` and ``mask``.

    ``mask`` is listed among the keys and computed at each access, since it is (max_seq_len, max_seq_len) bool: 16 MiB
    at 4,096 tokens. True where the row's token attends to the column's.
    """

    __slots__ = ("_mask_pads", "_num_pads", "_tensors")

    def __init__(self, tensors: dict[str, Tensor], num_pads: int, mask_pads: MaskPads) -> None:
        self._tensors = tensors
        self._num_pads = num_pads
        self._mask_pads = mask_pads

    def __getitem__(self, name: str) -> Tensor:
        return self._mask() if name == "mask" else self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._tensors
        yield "mask"

    def __len__(self) -> int:
        return len(self._tensors) + 1

    def _mask(self) -> Tensor:
        import torch

        seq_lens = self._tensors["seq_lens"]
        segments = torch.repeat_interleave(torch.arange(len(seq_lens)), seq_lens)
        mask = (segments[:, None] == segments[None, :]).tril_()
        if self._num_pads and self._mask_pads == "identity":
            mask[-self._num_pads :, -self._num_pads :] = torch.eye(self._num_pads, dtype=torch.bool)
        return mask

    def __repr__(self) -> str:
        return f"<PackedItem: segments of {self._tensors['seq_lens'].tolist()} tokens, {self._num_pads} of them pads>"


_AT_ONCE = 256
_FIRST_S, _EVERY_S = 2.0, 0.2


class TokensAndLabels(Protocol):
    """A map-style dataset whose samples are mappings with ``tokens`` and ``labels``.

    Used where they exist, too: ``lengths``, (len,) integers, and ``__getitems__(indices)``.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def sample_lengths(ds: TokensAndLabels, enough_tokens: int | None) -> IntArray:
    """(n,) int64: tokens of the samples, from ``ds.lengths`` or by a pass over them that keeps nothing else.

    The pass ends early once it has seen more than ``enough_tokens``; on a terminal it says how far it is when it takes
    more than two seconds.

    Raises:
        InputError: ``ds.lengths`` are not as many non-negative integers as the dataset has samples.
    """
    known = getattr(ds, "lengths", None)
    if known is not None and not callable(known):
        lengths = np.asarray(known)
        if lengths.shape != (len(ds),) or (lengths.size and (lengths.dtype.kind not in "iu" or lengths.min() < 0)):
            raise InputError(
                f"the lengths of {ds!r} are {lengths.dtype} of shape {lengths.shape}; expected an integer of at least 0"
                f" for each of its {len(ds):,} samples"
            )
        return lengths.astype(np.int64)
    return _counted(ds, enough_tokens)


def _counted(ds: TokensAndLabels, enough_tokens: int | None) -> IntArray:
    num_samples, tokens = len(ds), 0
    lengths = np.empty(num_samples, dtype=np.int64)
    shown_s = time.monotonic() + _FIRST_S
    is_shown = False
    for first in range(0, num_samples, _AT_ONCE):
        stop = min(first + _AT_ONCE, num_samples)
        lengths[first:stop] = [len(sample["tokens"]) for sample in _samples(ds, first, stop)]
        tokens += int(lengths[first:stop].sum())
        if enough_tokens is not None and tokens > enough_tokens:
            lengths = lengths[:stop]
            break
        if time.monotonic() > shown_s and sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[Kpacking: lengths of {stop:,} of {num_samples:,} samples")
            sys.stderr.flush()
            shown_s, is_shown = time.monotonic() + _EVERY_S, True
    if is_shown:
        sys.stderr.write("\r\x1b[K")
    return lengths


def joined(
    ds: TokensAndLabels, first: int, stop: int, begin: int, end: int | None
) -> tuple[IntArray, IntArray, IntArray]:
    """Samples ``first`` .. ``stop - 1`` one after another: tokens, labels, and (stop - first,) int64 lengths.

    Of the tokens and labels only ``[begin, end)`` is returned, of the lengths all.

    Raises:
        InputError: tokens or labels that are not a sequence of integers, or not equally many; names the sample.
    """
    if isinstance(ds, DocumentDataset):
        return ds.joined(first, stop, begin, end)
    tokens, labels = [], []
    for number, sample in enumerate(_samples(ds, first, stop), first):
        tokens.append(integers(sample["tokens"], f"sample {number}: tokens"))
        labels.append(integers(sample["labels"], f"sample {number}: labels"))
        if len(tokens[-1]) != len(labels[-1]):
            raise InputError(
                f"sample {number} has {len(tokens[-1])} tokens and {len(labels[-1])} labels: give each token its label,"
                " -100 for those that are not trained on"
            )
    lengths = np.array([len(some) for some in tokens], dtype=np.int64)
    return np.concatenate(tokens)[begin:end], np.concatenate(labels)[begin:end], lengths


def _samples(ds: TokensAndLabels, first: int, stop: int) -> Sequence[Any]:
    many = getattr(ds, "__getitems__", None)
    if many is not None:
        found: Sequence[Any] = many(list(range(first, stop)))
        return found
    return [ds[number] for number in range(first, stop)]


ContinuedPositions = Literal["wrap", "restart"]
"""How ``input_pos`` goes on in a later piece of a split sample: counted from the sample's start, modulo
``max_seq_len``, or from 0 again."""


class PackedDataset(Sequence[PackedItem]):
    """Packs samples of ``tokens`` and ``labels``, in their order, into items of ``max_seq_len`` tokens.

    Item i is a mapping of torch tensors, all int64 but the mask:

    - ``tokens`` (max_seq_len,): the samples one after another, then ``padding_idx``;
    - ``labels`` (max_seq_len,): theirs, not shifted, then -100;
    - ``input_pos`` (max_seq_len,): the position of each token in its sample; pads count on, to max_seq_len - 1 at most;
    - ``seq_lens`` (segments,): tokens of each sample in the pack, 0 for an empty one, and the number of pads if there
      are any; the sum is max_seq_len;
    - ``mask`` (max_seq_len, max_seq_len) bool, made when asked for: a token attends to itself and to those before it
      in its sample.

    A new pack begins where the next sample does not fit, or, with ``split_across_pack``, every max_seq_len tokens.
    Samples without tokens stand in ``seq_lens`` only, in the pack of the sample before them.

    Equal to torchtune 0.6.1 tensor for tensor. That one keeps all tokens in memory; this one only the first sample of
    each pack (4 bytes), or with ``split_across_pack`` the sums of the lengths (8 bytes a sample), and reads an item's
    samples when it is asked for. Where torchtune's documentation and its code disagree there are options:

    - ``mask_pads="identity"``, as documented: a pad attends to itself only; ``"causal"``, as coded: to the pads before
      it as well;
    - ``continued_positions="wrap"``, as coded: in a later piece of a split sample ``input_pos`` is counted from the
      sample's start, modulo max_seq_len; ``"restart"``, as documented: within the pack, so each piece begins at 0.

    Two things differ on purpose: labels of another number than tokens are an error (torchtune lets them slip against
    the tokens of the samples that follow), and so is a negative ``max_packs`` (torchtune drops the last pack).

    At construction the lengths are learnt: from ``ds.lengths`` where it exists, else by one pass over the samples,
    which ends early when ``max_packs`` is reached. Packing itself takes about 50 ns a sample.

    Args:
        ds: a map-style dataset; it gives the same samples each time. ``ds.__getitems__`` is used where it exists.
        max_seq_len: tokens of each item.
        padding_idx: what ``tokens`` is filled up with.
        max_packs: make no more packs than these.
        split_across_pack: cut a sample that does not fit, instead of beginning a new pack with it.
        mask_pads: see above.
        continued_positions: see above.

    Raises:
        ConfigError: a sample longer than max_seq_len without ``split_across_pack``, or an argument out of range.
        InputError: lengths, tokens or labels that are not integers, labels of another number than tokens, a dataset
            whose samples have changed; on reading, naming the sample.
    """

    def __init__(
        self,
        ds: TokensAndLabels,
        *,
        max_seq_len: int,
        padding_idx: int = 0,
        max_packs: int | None = None,
        split_across_pack: bool = False,
        mask_pads: MaskPads = "identity",
        continued_positions: ContinuedPositions = "wrap",
    ) -> None:
        self.ds = ds
        self.max_seq_len = index(max_seq_len)
        self.padding_idx = index(padding_idx)
        self.max_packs = None if max_packs is None else index(max_packs)
        self.split_across_pack = split_across_pack
        self.mask_pads = mask_pads
        self.continued_positions = continued_positions
        if self.max_seq_len < 1:
            raise ConfigError(f"max_seq_len is at least 1, found {max_seq_len}")
        if self.max_packs is not None and self.max_packs < 0:
            raise ConfigError(f"max_packs is at least 0, or None for as many as there are, found {max_packs}")
        if mask_pads not in ("identity", "causal"):
            raise ConfigError(f"mask_pads is {mask_pads!r}; allowed are 'identity', 'causal'")
        if continued_positions not in ("wrap", "restart"):
            raise ConfigError(f"continued_positions is {continued_positions!r}; allowed are 'wrap', 'restart'")
        enough_tokens = None if self.max_packs is None else self.max_packs * self.max_seq_len
        lengths = sample_lengths(ds, enough_tokens)
        if split_across_pack:
            # Where each sample begins in the stream of all tokens; pack k is its tokens from k * max_seq_len on.
            self._begins = np.zeros(len(lengths) + 1, dtype=np.int64)
            np.cumsum(lengths, out=self._begins[1:])
            num_packs = -(-int(self._begins[-1]) // self.max_seq_len)
            self._num_packs = num_packs if self.max_packs is None else min(num_packs, self.max_packs)
        else:
            self._firsts = _firsts(lengths, self.max_seq_len, self.max_packs)
            self._num_packs = len(self._firsts) - 1

    @property
    def packs(self) -> Sequence[PackedItem]:
        """The packs as a sequence, which is this dataset itself: each is read when it is asked for."""
        return self

    def __len__(self) -> int:
        return self._num_packs

    @overload
    def __getitem__(self, idx: int) -> PackedItem: ...
    @overload
    def __getitem__(self, idx: slice) -> list[PackedItem]: ...
    def __getitem__(self, idx: int | slice) -> PackedItem | list[PackedItem]:
        if isinstance(idx, slice):
            return [self._item(pack) for pack in range(*idx.indices(len(self)))]
        pack = index(idx)
        if not -len(self) <= pack < len(self):
            raise IndexError(f"pack {idx} of a dataset of {len(self):,}")
        return self._item(pack % len(self))

    def __getitems__(self, indices: Sequence[int]) -> list[PackedItem]:
        """The items at ``indices``: what ``torch.utils.data`` calls where it exists."""
        return [self[pack] for pack in indices]

    def _item(self, pack: int) -> PackedItem:
        import torch

        tokens, labels, lengths, begin = self._read(pack)
        num_tokens = len(tokens)
        num_pads = self.max_seq_len - num_tokens
        ends = np.cumsum(lengths) - begin
        begins = ends - lengths
        # Columns of this pack; a split sample begins before the first one or ends behind the last one.
        first_columns = np.maximum(begins, 0)
        seq_lens = np.minimum(ends, self.max_seq_len) - first_columns
        zeros = begins if self.continued_positions == "wrap" else first_columns
        input_pos = np.empty(self.max_seq_len, dtype=np.int64)
        np.subtract(np.arange(num_tokens), np.repeat(zeros, seq_lens), out=input_pos[:num_tokens])
        if self.split_across_pack:
            input_pos[:num_tokens] %= self.max_seq_len
        if num_pads:
            last = int(input_pos[num_tokens - 1])
            input_pos[num_tokens:] = np.minimum(np.arange(last + 1, last + 1 + num_pads), self.max_seq_len - 1)
            seq_lens = np.append(seq_lens, num_pads)
        arrays = {
            "tokens": _filled(tokens, self.max_seq_len, self.padding_idx),
            "labels": _filled(labels, self.max_seq_len, IGNORED_LABEL),
            "input_pos": input_pos,
            "seq_lens": seq_lens,
        }
        return PackedItem({name: torch.from_numpy(array) for name, array in arrays.items()}, num_pads, self.mask_pads)

    def _read(self, pack: int) -> tuple[IntArray, IntArray, IntArray, int]:
        """Tokens and labels of a pack, the whole lengths of its samples, and the tokens of these before the pack."""
        if not self.split_across_pack:
            first, stop = self._firsts[pack : pack + 2].tolist()
            tokens, labels, lengths = joined(self.ds, first, stop, 0, None)
            if not 0 < len(tokens) <= self.max_seq_len:
                raise InputError(
                    f"samples {first} to {stop - 1} have {len(tokens)} tokens together, expected 1 to"
                    f" {self.max_seq_len}: {_CHANGED}"
                )
            return tokens, labels, lengths, 0
        from_ = pack * self.max_seq_len
        to = min(from_ + self.max_seq_len, int(self._begins[-1]))
        # The first sample of the pack is the one of its first token, and empty samples are in the pack of the one
        # before them: so they stop at the sample of the next pack's first token, which itself may begin in this one.
        first, stop = np.searchsorted(self._begins[1:], [from_, to], side="right").tolist()
        first = first if pack else 0
        stop += int(self._begins[stop] < to)
        expected = np.diff(self._begins[first : stop + 1])
        begin = from_ - int(self._begins[first])
        tokens, labels, lengths = joined(self.ds, first, stop, begin, begin + to - from_)
        if not np.array_equal(lengths, expected):
            wrong = int(np.flatnonzero(lengths != expected)[0])
            raise InputError(
                f"sample {first + wrong} has {lengths[wrong]} tokens, expected {expected[wrong]}: {_CHANGED}"
            )
        return tokens, labels, lengths, begin

    def describe(self) -> str:
        """One line."""
        how = "samples split" if self.split_across_pack else "samples whole"
        return f"packs of {self.max_seq_len:,} tokens, {how}, over {self.ds!r}"

    def __repr__(self) -> str:
        return f"<PackedDataset: {len(self):,} samples, {self.describe()}>"


_CHANGED = "the dataset has changed since it was packed, or its lengths are not those of its samples"


def _firsts(lengths: IntArray, max_seq_len: int, max_packs: int | None) -> NDArray[np.uint32] | IntArray:
    """(num_packs + 1,) the first sample of each pack, and behind the last one the sample where it stops."""
    too_long = np.flatnonzero(lengths > max_seq_len)
    if len(too_long):
        sample = int(too_long[0])
        bounds = next_fit(lengths[:sample], max_seq_len)
        # A pack is closed by the sample that does not fit. When they are enough torchtune stops there, and does not
        # look at what follows; it always looks at the first sample.
        num_closed = max(0, len(bounds) - 2)
        if max_packs is None or num_closed < max_packs or sample == 0:
            raise ConfigError(
                f"Dataset sample is too long ({lengths[sample]} > {max_seq_len}). Please set `split_across_pack=True`"
                f" or increase `max_seq_len`. It is sample {sample} of the dataset."
            )
    else:
        bounds = next_fit(lengths, max_seq_len)
    if max_packs is not None:
        bounds = bounds[: max_packs + 1]
    return bounds.astype(np.uint32) if int(bounds[-1]) < 2**32 else bounds


def _filled(values: IntArray, length: int, fill: int) -> IntArray:
    """``values``, and ``fill`` up to ``length``."""
    out = np.full(length, fill, dtype=np.int64)
    out[: len(values)] = values
    return out


class DocumentDataset:
    """Sample i is document i of a store, as torchtune's datasets give theirs; made for `PackedDataset`.

    - ``tokens``: (length,) int64;
    - ``labels``: (length,) int64, the tokens themselves, and -100 where the store's loss mask is 0. They
      are not shifted: the training step does that, as torchtune's recipes do.

    Documents are of any length, so they cannot be stacked into the arrays of one shape that a `headrace.Dataset`
    fills: this is a map-style dataset of its own, and no source of a run.

    A sample costs one read of the store; ``lengths`` O(documents) time and memory at each use, nothing is kept.

    Args:
        store: an open store of any layout.
        loss_mask_key: a key of the store parallel to its main one, 1 where a token is trained on and 0 elsewhere:
            ``"auto"`` the loss mask that the store has, if it has one; None trains on every token.

    Raises:
        ConfigError: not a store, or the store has no such key, or the key is not parallel to the main one.
        InputError: on reading, a loss mask with other values than 0 and 1; names the documents.
    """

    def __init__(self, store: Store, *, loss_mask_key: str | None = AUTO) -> None:
        if not isinstance(store, Store):
            raise ConfigError(f"store is {store!r}; expected an open store, as headrace.open(path)")
        self.store = store
        self.loss_mask_key = used_mask(store, loss_mask_key)

    def __len__(self) -> int:
        return self.store.num_documents

    @property
    def lengths(self) -> IntArray:
        """(num_documents,) int64: tokens of each document."""
        return self.store.lengths

    @property
    def recipe(self) -> dict[str, Any]:
        """What decides the bytes of the samples."""
        return {"kind": "documents", "store": self.store.fingerprint, "loss_mask_key": self.loss_mask_key}

    @cached_property
    def fingerprint(self) -> str:
        """128 bits in hex over ``recipe``."""
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(self.recipe, order="sorted"))

    def describe(self) -> str:
        """One line."""
        return f"documents of {self.store.path}{shown_mask(self.store, self.loss_mask_key)}"

    def __getitem__(self, index_: int) -> Sample:
        number = index(index_)
        if not -len(self) <= number < len(self):
            raise IndexError(f"document {index_} of a dataset of {len(self):,}")
        number %= len(self)
        tokens, labels, _ = self.joined(number, number + 1)
        return {"tokens": tokens, "labels": labels}

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """The samples at ``indices``; documents that follow one another are read as one."""
        wanted = np.asarray(indices, dtype=np.int64)
        if not wanted.size:
            return []
        if int(wanted.min()) < -len(self) or int(wanted.max()) >= len(self):
            raise IndexError(f"documents {wanted.min()} .. {wanted.max()} of a dataset of {len(self):,}")
        wanted %= len(self)
        samples: list[Sample] = []
        for run in np.split(wanted, np.flatnonzero(np.diff(wanted) != 1) + 1):
            tokens, labels, lengths = self.joined(int(run[0]), int(run[-1]) + 1)
            cuts = np.cumsum(lengths)[:-1]
            pairs = zip(np.split(tokens, cuts), np.split(labels, cuts), strict=True)
            samples.extend({"tokens": some, "labels": theirs} for some, theirs in pairs)
        return samples

    def joined(
        self, first: int, stop: int, begin: int = 0, end: int | None = None
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Documents ``first`` .. ``stop - 1`` one after another: tokens, labels, and (stop - first,) int64 lengths.

        Of the tokens and labels only ``[begin, end)`` is read and returned, of the lengths all. One read of the store.
        """
        begins = self.store.document_begins(np.arange(first, stop + 1))
        base = int(begins[0])
        from_, to = base + begin, int(begins[-1]) if end is None else base + end
        tokens = self.store.fetch(from_, to).astype(np.int64)
        labels = tokens.copy()
        if self.loss_mask_key is not None:
            labels[~self._loss_mask(self.loss_mask_key, from_, to, first, stop)] = IGNORED_LABEL
        return tokens, labels, np.diff(begins)

    def _loss_mask(self, key: str, begin: int, end: int, first: int, stop: int) -> NDArray[np.bool_]:
        values = self.store.fetch(begin, end, key)
        is_one: NDArray[np.bool_] = values == 1
        others = values[~is_one]
        if others.any():
            raise InputError(
                f"{self.store.path}: documents {first} to {stop - 1}: the key {key!r} holds"
                f" {others[others != 0][0]}; a loss mask holds 0 and 1"
            )
        return is_one

    def __repr__(self) -> str:
        return f"<DocumentDataset: {len(self):,} samples, {self.describe()}>"
