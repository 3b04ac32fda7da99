"""torchtune's ``PackedDataset``: the same class and the same tensors, planned from the lengths of the samples.

`DocumentDataset` turns the documents of a store into samples that `PackedDataset` can pack.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, overload

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from headrace.config import check_choice, optional_whole, whole
from headrace.datasets import Sample
from headrace.datasets.loss_masks import AUTO, check_store, shown_mask, used_mask
from headrace.datasets.origins import document_spans
from headrace.datasets.records import check_parallel
from headrace.errors import ConfigError, InputError
from headrace.plan import IntArray
from headrace.plan.arithmetic import integers
from headrace.plan.packing.fitting import next_fit
from headrace.plan.segments import IGNORED_LABEL
from headrace.stores import Store

if TYPE_CHECKING:
    from torch import Tensor

MaskPads = Literal["identity", "causal"]
"""What a pad at the end of a pack attends to: only itself (``identity``), or itself and earlier pads (``causal``)."""


class PackedItem(Mapping[str, "Tensor"]):
    """The tensors of a pack by name: ``tokens``, ``labels``, ``input_pos``, ``seq_lens`` and ``mask``.

    ``mask`` is (max_seq_len, max_seq_len) bool, True where the row's token attends to the column's. It is one of the
    keys, but is computed at each access, since it takes 16 MiB at 4,096 tokens.
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


class TokensAndLabels(Protocol):
    """A map-style dataset whose samples are mappings with ``tokens`` and ``labels``.

    If it also has ``lengths``, (len,) integers, or ``__getitems__(indices)``, they are used.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def sample_lengths(ds: TokensAndLabels, enough_tokens: int | None) -> IntArray:
    """(n,) int64: the number of tokens of each sample, from ``ds.lengths`` or from one pass over the samples.

    The pass keeps only the lengths, shows its progress on a terminal, and ends early once it has seen more than
    ``enough_tokens``.

    Raises:
        InputError: ``ds.lengths`` does not hold one non-negative integer for each sample of the dataset.
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
    console = Console(stderr=True)
    begins = range(0, num_samples, _AT_ONCE)
    for first in track(begins, "packing: lengths", transient=True, console=console, disable=not console.is_terminal):
        stop = min(first + _AT_ONCE, num_samples)
        lengths[first:stop] = [len(sample["tokens"]) for sample in _samples(ds, first, stop)]
        tokens += int(lengths[first:stop].sum())
        if enough_tokens is not None and tokens > enough_tokens:
            return lengths[:stop]
    return lengths


def joined(
    ds: TokensAndLabels, first: int, stop: int, begin: int, end: int | None
) -> tuple[IntArray, IntArray, IntArray]:
    """Samples ``first`` .. ``stop - 1`` one after another: tokens, labels, and (stop - first,) int64 lengths.

    The tokens and labels are cut to ``[begin, end)``; all lengths are returned.

    Raises:
        InputError: tokens or labels are not a sequence of integers, or their numbers differ. The message names the
            sample.
    """
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
"""How ``input_pos`` continues in a later piece of a split sample: ``wrap`` counts from the sample's start, modulo
``max_seq_len``; ``restart`` begins at 0 again."""


class PackedDataset(Sequence[PackedItem]):
    """Packs samples of ``tokens`` and ``labels``, in their order, into items of ``max_seq_len`` tokens.

    Each item is a mapping of torch tensors, all int64 except the mask:

    - ``tokens`` (max_seq_len,): the samples one after another, then ``padding_idx``;
    - ``labels`` (max_seq_len,): the labels of the samples, not shifted, then -100;
    - ``input_pos`` (max_seq_len,): the position of each token in its sample. Pads continue the count, up to
      max_seq_len - 1;
    - ``seq_lens`` (segments,): the number of tokens of each sample in the pack, 0 for an empty one, and the number of
      pads if there are any. The sum is max_seq_len;
    - ``mask`` (max_seq_len, max_seq_len) bool, computed at each access: a token attends to itself and to earlier tokens
      of its sample.

    A new pack begins where the next sample does not fit, or, with ``split_across_pack``, every max_seq_len tokens.
    Samples without tokens appear only in ``seq_lens``, in the pack of the sample before them.

    The tensors equal those of torchtune 0.6.1. torchtune keeps all tokens in memory. This class keeps the number of the
    first sample of each pack (4 bytes a pack), or with ``split_across_pack`` the sums of the lengths (8 bytes a
    sample), and reads the samples of an item when the item is accessed. Two options choose between torchtune's
    documentation and its code, which disagree:

    - ``mask_pads="identity"``, as documented: a pad attends only to itself. ``"causal"``, as coded: it attends to the
      pads before it as well;
    - ``continued_positions="wrap"``, as coded: in a later piece of a split sample, ``input_pos`` counts from the
      sample's start, modulo max_seq_len. ``"restart"``, as documented: each piece begins at 0.

    Two things differ from torchtune on purpose. A sample whose numbers of tokens and labels differ is an error
    (torchtune shifts the labels of all samples after it). A negative ``max_packs`` is an error too (torchtune drops the
    last pack).

    torchtune's ``ConcatDataset`` accepts only packed datasets or only others, and recognises them by their class. So
    objects of this class say that they are torchtune's where torchtune's is imported.

    The constructor needs the lengths. It uses ``ds.lengths`` if that exists, and otherwise makes one pass over the
    samples, which ends early when ``max_packs`` is reached. Packing itself takes about 50 ns a sample.

    Args:
        ds: a map-style dataset, which must return the same samples each time. If it has ``__getitems__``, that is used.
        max_seq_len: tokens of each item.
        padding_idx: the id that fills up ``tokens``.
        max_packs: the largest number of packs to make; None makes all.
        split_across_pack: cut a sample that does not fit, instead of beginning a new pack with it.
        mask_pads: see above.
        continued_positions: see above.

    Raises:
        ConfigError: a sample is longer than max_seq_len and ``split_across_pack`` is False, or an argument is out of
            range.
        InputError: lengths, tokens or labels are not integers, the numbers of tokens and labels differ, or the samples
            of the dataset have changed. Errors on reading name the sample.

    Example:
        >>> samples = headrace.compat.torchtune.DocumentDataset(headrace.open("stores/web"))
        >>> packed = headrace.compat.torchtune.PackedDataset(samples, max_seq_len=512)
        >>> packed[0]["tokens"].shape
        torch.Size([512])
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
        self.max_seq_len = whole(max_seq_len, "max_seq_len", least=1)
        self.padding_idx = whole(padding_idx, "padding_idx")
        self.max_packs = optional_whole(max_packs, "max_packs", least=0)
        self.split_across_pack = split_across_pack
        self.mask_pads = mask_pads
        self.continued_positions = continued_positions
        check_choice("mask_pads", mask_pads, get_args(MaskPads))
        check_choice("continued_positions", continued_positions, get_args(ContinuedPositions))
        enough_tokens = None if self.max_packs is None else self.max_packs * self.max_seq_len
        lengths = sample_lengths(ds, enough_tokens)
        if split_across_pack:
            # Where each sample begins in the stream of all tokens; pack k begins at token k * max_seq_len.
            self._begins = np.zeros(len(lengths) + 1, dtype=np.int64)
            np.cumsum(lengths, out=self._begins[1:])
            num_packs = -(-int(self._begins[-1]) // self.max_seq_len)
            self._num_packs = num_packs if self.max_packs is None else min(num_packs, self.max_packs)
        else:
            self._firsts = _firsts(lengths, self.max_seq_len, self.max_packs)
            self._num_packs = len(self._firsts) - 1

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class of this name that torchtune's ``ConcatDataset`` asks for if it is imported; ``type()`` is ours."""
        theirs = sys.modules.get("torchtune.datasets._concat")
        found: type = getattr(theirs, "PackedDataset", type(self))
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), vars(self))

    @property
    def packs(self) -> Sequence[PackedItem]:
        """The packs as a sequence: this dataset itself, which reads a pack when it is accessed."""
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
        """The items at ``indices``; ``torch.utils.data`` calls this method for a batch."""
        return [self[pack] for pack in indices]

    def _item(self, pack: int) -> PackedItem:
        import torch

        tokens, labels, lengths, begin = self._read(pack)
        num_tokens = len(tokens)
        num_pads = self.max_seq_len - num_tokens
        ends = np.cumsum(lengths) - begin
        begins = ends - lengths
        # Columns of this pack. A split sample begins before the first column or ends behind the last one.
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
        """Tokens and labels of a pack, the whole lengths of its samples, and how many of their tokens precede it."""
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
        # The pack begins with the sample that holds its first token. Empty samples belong to the pack of the sample
        # before them, so this pack ends at the sample that holds the next pack's first token. That sample may itself
        # begin in this pack.
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
        """One line: the length of the packs, whether samples are split, and the dataset."""
        how = "samples split" if self.split_across_pack else "samples whole"
        return f"packs of {self.max_seq_len:,} tokens, {how}, over {self.ds!r}"

    def __repr__(self) -> str:
        return f"<PackedDataset: {len(self):,} samples, {self.describe()}>"


def _remade(kind: type[PackedDataset], state: dict[str, Any]) -> PackedDataset:
    """Make an object again that was pickled; pickle would refuse one whose ``__class__`` is not its type."""
    made = kind.__new__(kind)
    vars(made).update(state)
    return made


_CHANGED = "the dataset has changed since it was packed, or its lengths are not those of its samples"


def _firsts(lengths: IntArray, max_seq_len: int, max_packs: int | None) -> NDArray[np.uint32] | IntArray:
    """(num_packs + 1,): the first sample of each pack, then the sample at which the last pack ends."""
    too_long = np.flatnonzero(lengths > max_seq_len)
    if len(too_long):
        sample = int(too_long[0])
        bounds = next_fit(lengths[:sample], max_seq_len)
        # The sample that does not fit closes a pack. Once torchtune has max_packs packs, it stops and does not see the
        # samples that follow. It always sees the first sample.
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
    out = np.full(length, fill, dtype=np.int64)
    out[: len(values)] = values
    return out


class DocumentDataset:
    """Sample i is document i of a store, in the form of torchtune's datasets. It serves as input of `PackedDataset`.

    - ``tokens``: (length,) int64;
    - ``labels``: (length,) int64, the tokens themselves, and -100 where the store's loss mask is 0. They are not
      shifted; the training step shifts them, as in torchtune's recipes.

    Documents have any length, so they cannot be stacked into the arrays of one shape that a `headrace.Dataset` fills.
    This class is therefore a plain map-style dataset, and cannot be a source of a run.

    A sample costs one read of the store. ``lengths`` costs O(documents) time and memory at each use, and nothing is
    kept.

    Args:
        store: an open store of any layout.
        loss_mask_key: a key of the store that is parallel to its main one, 1 where a token is trained on and 0
            elsewhere. ``"auto"`` uses the store's loss mask if it has one; None trains on every token.

    Raises:
        ConfigError: ``store`` is not a store, the store has no such key, or the key is not parallel to the main one.
        InputError: on reading, the loss mask holds other values than 0 and 1. The message names the documents.

    Example:
        >>> documents = headrace.compat.torchtune.DocumentDataset(headrace.open("stores/web"))
        >>> len(documents) == len(documents.store)
        True
        >>> sorted(documents[0])
        ['labels', 'tokens']
    """

    def __init__(self, store: Store, *, loss_mask_key: str | None = AUTO) -> None:
        check_store(store)
        self.store = store
        self.loss_mask_key = used_mask(store, loss_mask_key)

    def __len__(self) -> int:
        return self.store.num_documents

    @property
    def lengths(self) -> IntArray:
        """(num_documents,) int64: the number of tokens of each document."""
        return self.store.lengths

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything that decides the bytes of the samples."""
        return {"kind": "documents", "store": self.store.fingerprint, "loss_mask_key": self.loss_mask_key}

    @cached_property
    def fingerprint(self) -> str:
        """A 128-bit hash of ``recipe``, in hex."""
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(self.recipe, order="sorted"))

    def describe(self) -> str:
        """One line: the path of the store and its loss mask."""
        return f"documents of {self.store.path}{shown_mask(self.store, self.loss_mask_key)}"

    def __getitem__(self, index_: int) -> Sample:
        return self.__getitems__([index(index_)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """The samples at ``indices``, read together."""
        wanted = np.asarray(indices, dtype=np.int64)
        if wanted.size and not -len(self) <= int(wanted.min()) <= int(wanted.max()) < len(self):
            raise IndexError(f"documents {wanted.min()} .. {wanted.max()} of a dataset of {len(self):,}")
        wanted = np.where(wanted < 0, wanted + len(self), wanted)
        begins, lengths = document_spans(self.store, wanted)
        tokens = self.store.pieces(begins, lengths)
        samples = [{"tokens": piece.astype(np.int64), "labels": piece.astype(np.int64)} for piece in tokens]
        if self.loss_mask_key is not None:
            marks = self.store.pieces(begins, lengths, self.loss_mask_key)
            check_parallel(self.store, wanted, tokens, marks, repr(self.loss_mask_key))
            for sample, mask in zip(samples, marks, strict=True):
                sample["labels"][mask == 0] = IGNORED_LABEL
        return samples

    def __repr__(self) -> str:
        return f"<DocumentDataset: {len(self):,} samples, {self.describe()}>"
