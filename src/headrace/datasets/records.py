"""`RecordDataset`: records of a store as samples of different lengths, which are cut and padded batch by batch.

`Collation` says how records are brought to one length, `Grid` lays them out as rows, and `RecordKey` reads one key of
many records at once. `SFTDataset` has conversations, or other records with a loss mask.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.config import Positive, check_choice, check_fields, unknown_name
from headrace.datasets.dataset import (
    CountedDataset,
    Counts,
    Fields,
    FlatBatches,
    RaggedDataset,
    Sample,
    SampleWatch,
    Traits,
)
from headrace.datasets.loss_masks import Labels, check_store, shown_mask
from headrace.datasets.origins import Origins, document_spans, record_origins, record_sample
from headrace.errors import ConfigError, InputError
from headrace.plan import IntArray, KeyArray
from headrace.plan.segments import IGNORED_LABEL
from headrace.stores import ShardedStore, Store
from headrace.stores.store import Extents

if TYPE_CHECKING:
    from headrace.datasets.recipes import Maker

PaddingSide = Literal["right", "left"]


class Collation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How records are brought to one length.

    Attributes:
        max_length: most tokens of a record; None for any number.
        over_long: what happens to longer records: ``"error"``, ``"truncate_right"`` (the end is lost) or
            ``"truncate_left"`` (the beginning is lost).
        pad_to: ``"longest"`` pads batches to their longest record, ``"max_length"`` all batches to ``max_length``.
        multiple_of: the width of a batch is rounded up to a multiple of this.
        padding_side: ``"right"`` or ``"left"``; None is left for prompts to generate from, and right for everything
            else.
        padding_idx: token id of pads.

    Raises:
        ConfigError: a size is below 1, a value is unknown, or lengths contradict each other.

    Example:
        >>> collation = headrace.datasets.Collation(max_length=16, over_long="truncate_right", multiple_of=8)
        >>> dataset = headrace.SFTDataset(headrace.open("stores/chats"), collation)
        >>> dataset.collate([dataset[0], dataset[1]])["input_ids"].shape
        (2, 16)
    """

    max_length: Positive | None = None
    over_long: Literal["error", "truncate_right", "truncate_left"] = "error"
    pad_to: Literal["longest", "max_length"] = "longest"
    multiple_of: Positive = 1
    padding_side: PaddingSide | None = msgspec.field(name="side", default=None)  # the name in recipes
    padding_idx: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError for sizes below 1, unknown values, and lengths that contradict each other."""
        check_fields(self)
        if self.max_length is None and (self.pad_to == "max_length" or self.over_long != "error"):
            raise ConfigError(
                f"pad_to={self.pad_to!r} and over_long={self.over_long!r} need max_length, the most tokens of a record"
            )
        if self.pad_to == "max_length" and self.max_length is not None and self.max_length % self.multiple_of:
            raise ConfigError(
                f"max_length {self.max_length} is not a multiple of {self.multiple_of}, and all rows are padded to it"
            )

    def kept(self, lengths: IntArray) -> IntArray:
        """(n,) int64: how many tokens are kept of records of these lengths."""
        return lengths if self.max_length is None else np.minimum(lengths, self.max_length)

    def cut(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return what is kept of one record. Where over-long records are an error, they were refused before."""
        if self.max_length is None or len(values) <= self.max_length:
            return values
        return values[-self.max_length :] if self.over_long == "truncate_left" else values[: self.max_length]

    def width(self, longest: int) -> int:
        """Return the length of all rows of a batch whose longest record has ``longest`` tokens."""
        if self.pad_to == "max_length" and self.max_length is not None:
            return self.max_length
        return -(-longest // self.multiple_of) * self.multiple_of


class Grid(NamedTuple):
    """Where the tokens of n rows lie: ``is_token`` (n, width) bool, and the ``lengths`` of the rows, (n,) int64."""

    is_token: NDArray[np.bool_]
    lengths: IntArray
    padding_side: PaddingSide

    @classmethod
    def of(cls, lengths: Sequence[int] | IntArray, width: int, padding_side: PaddingSide) -> Grid:
        """Lay out rows of these lengths, padded on one side.

        Raises:
            ConfigError: a row is longer than the width.
        """
        sizes = np.asarray(lengths, dtype=np.int64).reshape(-1)
        if sizes.size and int(sizes.max()) > width:
            raise ConfigError(
                f"sample {int(sizes.argmax())} has {sizes.max():,} tokens, and the batch is {width:,} wide"
            )
        columns = np.arange(width)
        is_token = columns < sizes[:, None] if padding_side == "right" else columns >= (width - sizes)[:, None]
        return cls(is_token, sizes, padding_side)

    def filled(self, rows: Sequence[ArrayLike], fill: int, dtype: type) -> NDArray[Any]:
        """(n, width): the values of each row in their places, and ``fill`` elsewhere."""
        out: NDArray[Any] = np.full(self.is_token.shape, fill, dtype=dtype)
        if len(rows):
            out[self.is_token] = np.concatenate(rows)
        return out

    def positions(self) -> IntArray:
        """(n, width) int64: 0, 1, 2, ... over the tokens of a row, and from 0 again over its pads."""
        count = self.is_token.shape[1]
        if self.padding_side == "right":
            begins = np.where(self.is_token, 0, self.lengths[:, None])
        else:
            begins = np.where(self.is_token, (count - self.lengths)[:, None], 0)
        return np.arange(count, dtype=np.int64) - begins


class RowPieces:
    """Lays out pieces of memory as the rows of batches, with pads on one side, by joining bytes.

    That takes about as long as copying, whatever the number of rows, and far less of the interpreter than arrays do.

    Args:
        lengths: (rows,) int64, the tokens of each row.
        widths: (rows,) int64, the places of each row.
        padding_side: where pads are.
    """

    def __init__(self, lengths: IntArray, widths: IntArray, padding_side: PaddingSide) -> None:
        self._gaps = (widths - lengths).tolist()
        self._longest = max(self._gaps, default=0)
        self._tokens, self._pads = (0, 1) if padding_side == "right" else (1, 0)

    def joined(self, pieces: Sequence[memoryview], pad: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """(places,) read-only: the piece of each row and its pads, in the dtype that they share."""
        pads = np.full(self._longest, pad, dtype).data
        parts: list[Any] = [None] * (2 * len(pieces))
        parts[self._tokens :: 2] = pieces
        parts[self._pads :: 2] = [pads[:gap] for gap in self._gaps]
        return np.frombuffer(b"".join(parts), dtype)


class RecordKey:
    """The values of one key of a store, record by record; document i of every key is record i.

    Raises:
        ConfigError: the store has no such key, or the key does not have a value for every record.
    """

    def __init__(self, store: Store, key: str) -> None:
        if key not in store.keys:
            raise unknown_name(store.path, "key", key, store.keys)
        self.store = store
        self.key = key
        self._own = _own_store(store, key)
        if self._own is None and len(store):
            store.document(0, key)  # refuses keys that have another number of documents

    def lengths(self, records: IntArray) -> IntArray:
        """(n,) int64: number of values of each record. O(1) each."""
        if self._own is None:
            return np.array([len(self.store.document(i, self.key)) for i in records.tolist()], dtype=np.int64)
        return document_spans(self._own, records)[1]

    def values(self, records: IntArray) -> list[NDArray[Any]]:
        """Return the (length,) values of each record; views if the store is memory-mapped."""
        if self._own is None:
            return [self.store.document(i, self.key) for i in records.tolist()]
        return self._own.pieces(*document_spans(self._own, records))

    def buffers(self, records: IntArray) -> list[memoryview] | None:
        """Return the same as ``values``, as buffers, which are made in less time; None if that is not possible."""
        return None if self._own is None else self._own.buffers(*document_spans(self._own, records))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.store.dtypes[self.key]

    def extents(self, records: IntArray) -> Extents:
        """Return the range of each record.

        Raises:
            ConfigError: the key has no store of its own that knows where its values lie.
        """
        if self._own is None:
            raise ConfigError(
                f"{self.store.path}: it is not known which bytes the values of {self.key!r} lie in: its shards do not"
                " have the same documents under each key"
            )
        return self._own.extents(*document_spans(self._own, records))

    def first_values(self, records: IntArray) -> NDArray[Any]:
        """(n,) the first value of each record; no record may be empty."""
        if self._own is None:
            return np.array([self.store.document(i, self.key)[0] for i in records.tolist()])
        begins = self._own.document_begins(records)
        return np.concatenate([np.empty(0, np.int64), *self._own.pieces(begins, np.ones_like(begins))])


def found_key(store: Store, wanted: str | None, names: Sequence[str], what: str) -> str:
    """Return the key that was asked for, or the first of some names that the store has.

    Raises:
        ConfigError: not a store, or it has none of them.
    """
    check_store(store)
    looked_for = names if wanted is None else [wanted]
    for name in looked_for:
        if name in store.keys:
            return name
    raise ConfigError(
        f"{store.path}: no key for {what}; looked for {', '.join(map(repr, looked_for))}, its keys are"
        f" {', '.join(map(repr, store.keys))}"
    )


def _own_store(store: Store, key: str) -> Store | None:
    """Return a store that has this key as its main key, if one is at hand: it reads many records at once."""
    own = store.with_main(key)
    if isinstance(own, ShardedStore) and isinstance(store, ShardedStore):
        # The borders of shards must be the same for every key.
        return own if list(map(len, own.shards)) == list(map(len, store.shards)) else None
    # For a key with another number of documents, `document` raises an error that says what is wrong.
    return own if own is not None and len(own) == len(store) else None


_SAMPLED = 1024
_CHUNK = 1 << 16


_OF_ALL: Final = {"kind", "store", "num_records", "keys", "collation"}
"""What the recipes of records of all kinds have."""


class RecordDataset(RaggedDataset):
    """Sample i is record i of a store, whole; a micro-batch is padded when it is made.

    Items have arrays of the record's own length; ``collate`` makes a batch of several. The loader does the same with
    the samples of each micro-batch, so that the width of a batch is that of its longest record. Shapes in ``fields``
    have -1 where they differ from batch to batch.

    Args:
        store: an open store of records.
        collation: how records are brought to one length.
        keys: what is read, name -> key of the store. If over-long records are an error, the lengths of the first key
            are checked in the constructor.

    Raises:
        ConfigError: not a store, a store without records, an unknown key, or over-long records without a policy for
            them.
    """

    padding_side: PaddingSide = "right"

    def __init__(self, store: Store, collation: Collation, keys: Mapping[str, str]) -> None:
        if not isinstance(collation, Collation):
            raise ConfigError(
                f"collation is {collation!r}; expected a Collation, such as headrace.datasets.Collation(max_length=512)"
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
                f"{self.store.path}: {count:,} of {len(self):,} records are longer than max_length {max_length:,}; the"
                f" longest has {longest:,} tokens: choose over_long='truncate_right' or 'truncate_left', or a larger"
                " max_length"
            )

    def __len__(self) -> int:
        return self.store.num_documents

    @abstractmethod
    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """(n,) int64: tokens of the longest row that each sample makes in a batch. Reads no tokens."""

    def _token_counts(self, addresses: IntArray) -> IntArray:
        """(n,) int64: number of tokens in all rows of each sample."""
        return self.sample_lengths(addresses)

    @cached_property
    def num_tokens_per_sample(self) -> float:
        """The mean number of tokens in a record, estimated from 1,024 records if there are more."""
        some = np.unique(np.linspace(0, len(self) - 1, min(len(self), _SAMPLED)).astype(np.int64))
        return max(1.0, float(self._token_counts(some).mean()))

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
        """Return what else of this kind of records decides the bytes: other arguments of the class."""
        return {}

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any], maker: Maker, **options: Any) -> Any:
        """Return the records of a recipe; ``options`` are arguments that it has under other names."""
        options |= {name: value for name, value in recipe.items() if name not in _OF_ALL}
        return cls(maker.store(), msgspec.convert(recipe["collation"], Collation), **options)

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: numbers of records."""
        return indices

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Return the record of each sample."""
        return record_origins(self.store, addresses)

    def extents(self, addresses: IntArray) -> list[Extents]:
        """Return the ranges of each key that is read."""
        return [key.extents(addresses) for key in self._keys.values()]

    def holders(self, document: int) -> IntArray:
        """Return the sample of a record: its own number."""
        return record_sample(self.store, document)

    def _padding_side(self) -> PaddingSide:
        return self.padding_side if self.collation.padding_side is None else self.collation.padding_side

    def _grid(self, lengths: Sequence[int]) -> Grid:
        """Return rows for records of these lengths, as wide as the collation says."""
        return Grid.of(lengths, self.collation.width(max(lengths, default=0)), self._padding_side())

    def _cut(self, values: Any, record: int, what: str) -> Any:
        """Return what the collation keeps of one sequence of a record."""
        limit = self.collation.max_length
        if limit is not None and len(values) > limit and self.collation.over_long == "error":
            raise InputError(
                f"{self.store.path}: record {record}: {what} has {len(values):,} tokens, max_length is {limit:,}:"
                " choose over_long='truncate_right' or 'truncate_left', or a larger max_length"
            )
        return self.collation.cut(values)

    def describe(self) -> str:
        """Describe store and longest length in one line."""
        limit = "" if self.collation.max_length is None else f", of at most {self.collation.max_length:,} tokens"
        return f"records of {self.store.path}{limit}"


def check_parallel(store: Store, records: IntArray, tokens: Sequence[Any], marks: Sequence[Any], what: str) -> None:
    """Raise InputError unless every record has as many marks as tokens, and all marks are 0 or 1."""
    for record, ids, mask in zip(records.tolist(), tokens, marks, strict=True):
        if len(ids) != len(mask):
            raise InputError(
                f"{store.path}: record {record} has {len(ids):,} tokens and {len(mask):,} values of {what}; a mask"
                " has one for each token: prepare the store again"
            )
    values = np.concatenate([np.empty(0, np.uint8), *marks])
    if not ((values == 0) | (values == 1)).all():
        wrong = next(i for i, mask in enumerate(marks) if not np.isin(mask, (0, 1)).all())
        raise InputError(f"{store.path}: record {records[wrong]}: {what} holds other values than 0 and 1")


def supervised_labels(ids: IntArray, marks: Any, lengths: IntArray, *, shifted: bool) -> IntArray:
    """(tokens,) int64: labels of sequences one after another, -100 at tokens that are not trained on.

    With ``shifted``, the label of a token stands at the place of the token before it, and the last label of each
    sequence is -100. In either case the first token of a sequence is never predicted.
    """
    wanted = marks.astype(bool)
    ends = np.cumsum(lengths)
    wanted[(ends - lengths)[lengths > 0]] = False
    labels = np.where(wanted, ids, IGNORED_LABEL)
    if shifted and len(labels):
        labels = np.append(labels[1:], IGNORED_LABEL)
    return labels


TOKEN_KEYS = ("tokens", "sequence", "text")
_BOOL = np.dtype(np.bool_)
_INT64 = np.dtype(np.int64)
_UINT8 = np.dtype(np.uint8)
_ALIGNED_BYTES = 64


def _fill_positions(out: NDArray[Any], lengths: IntArray, widths: IntArray, side: PaddingSide) -> None:
    """Fill (places,) int64: 0, 1, 2, ... over the tokens of each row, and from 0 again over its pads."""
    numbers = np.arange(int(widths.max(initial=0)))
    shifts = lengths if side == "right" else widths - lengths
    begin = 0
    for shift, width in zip(shifts.tolist(), widths.tolist(), strict=True):
        out[begin : begin + shift] = numbers[:shift]
        out[begin + shift : begin + width] = numbers[: width - shift]
        begin += width


def _columns_in(allocate: Callable[[int], NDArray[np.uint8]], places: Mapping[str, int], fields: Fields) -> Sample:
    """Return uninitialised (places,) arrays of the fields, which lie in one piece of memory."""
    sizes = {name: places[name] * dtype.itemsize for name, (_, dtype) in fields.items()}
    aligned = [-(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES for size in sizes.values()]
    memory = allocate(sum(aligned))
    found, begin = {}, 0
    for (name, size), taken in zip(sizes.items(), aligned, strict=True):
        found[name] = memory[begin : begin + size].view(fields[name][1])
        begin += taken
    return found


class SFTDataset(RecordDataset, CountedDataset):
    """Sample i is record i: its tokens, and labels where its loss mask is 1.

    An item has arrays of shape (length,), a batch of shape (B, L):

    - ``input_ids`` int64; pads are ``padding_idx``;
    - ``labels`` int64, -100 at tokens that are not trained on and at pads. With ``labels="next"`` the label at a place
      is the next token, as in windows and packs; with ``"same"`` it is the token at its own place, for models and
      trainers that shift labels themselves, such as those of Hugging Face. The first token of a record is never a
      label;
    - ``attention_mask`` int64, 1 at tokens;
    - ``position_ids`` int64, from 0 on, and from 0 again over the pads;
    - ``loss_mask`` bool, where the label is not -100;
    - ``label`` (B,) bool, a single one in an item: whether the answer is wanted. Only stores that have such a key have
      it, as the layout ``kto`` makes them.

    A batch also has ``num_supervised_tokens``, an int: the number of labels that are not -100.

    If the store has the key ``num_supervised``, one number for each record, tokens are counted by it, and masks are
    read only for records that are cut.

    Args:
        store: an open store with the keys ``tokens`` (or ``sequence``, or its main key) and ``loss_mask``.
        collation: how records are brought to one length; by default padded on the right to the longest of the batch.
        labels: ``"next"`` or ``"same"``, see above.
        tokens_key: the key of the tokens, if it is another one.
        loss_mask_key: the key that is 1 at tokens to train on; None trains on all tokens.
        label_key: the key of ``label``, which samples have if the store has the key; None leaves it out.

    Raises:
        ConfigError: as `RecordDataset`; an unknown value of ``labels``.
        InputError: while reading, if a mask has another length than the tokens, or other values than 0 and 1, or a
            record has not exactly one ``label``, 0 or 1.

    Example:
        >>> dataset = headrace.SFTDataset(headrace.open("stores/chats"), labels="same")
        >>> sorted(dataset[0])
        ['attention_mask', 'input_ids', 'labels', 'loss_mask', 'position_ids']
        >>> batch = dataset.collate([dataset[0], dataset[1]])
        >>> batch["num_supervised_tokens"] == int((batch["labels"] != -100).sum())
        True
    """

    def __init__(
        self,
        store: Store,
        collation: Collation | None = None,
        *,
        labels: Labels = "next",
        tokens_key: str | None = None,
        loss_mask_key: str | None = "loss_mask",
        label_key: str | None = "label",
    ) -> None:
        check_store(store)
        check_choice("labels", labels, get_args(Labels))
        tokens = found_key(store, tokens_key, (*TOKEN_KEYS, store.keys[0]), "the tokens")
        keys = {"tokens": tokens}
        if loss_mask_key is not None:
            keys["loss_mask"] = found_key(
                store, loss_mask_key, (), "the loss mask (loss_mask_key=None trains on all tokens)"
            )
        if label_key is not None and (label_key in store.keys or label_key != "label"):
            keys["label"] = found_key(store, label_key, (), "the label of each answer")
        super().__init__(store, Collation() if collation is None else collation, keys)
        self.labels = labels
        self._counted = RecordKey(store, "num_supervised") if "num_supervised" in store.keys else None

    @cached_property
    def fields(self) -> Fields:
        """Name -> (shape, dtype); -1 is the width of the batch."""
        names = dict.fromkeys(("input_ids", "labels", "attention_mask", "position_ids"), _INT64)
        found: Fields = {name: ((-1,), dtype) for name, dtype in {**names, "loss_mask": _BOOL}.items()}
        return {**found, "label": ((), _BOOL)} if "label" in self._keys else found

    @property
    def traits(self) -> Traits:
        """What has to be known about the samples before one is read."""
        return Traits(is_ragged=True, is_counted=True, holds_interpreter=True)

    def _options(self) -> dict[str, Any]:
        return {"labels": self.labels}

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any], maker: Maker, **options: Any) -> Any:
        """Return the records of a recipe."""
        found = {f"{name}_key": recipe["keys"].get(name) for name in ("tokens", "loss_mask", "label")}
        return super().from_recipe(recipe, maker, **found)

    def samples(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[dict[str, Any]]:
        """Return the records at some addresses, unpadded."""
        pieces, marks = self._read(addresses)
        lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
        ids = np.concatenate([np.empty(0, np.int64), *pieces])
        labels = supervised_labels(ids, marks, lengths, shifted=self.labels == "next")
        ends = np.cumsum(lengths)
        columns = {
            "input_ids": ids,
            "labels": labels,
            "attention_mask": np.ones_like(ids),
            "position_ids": np.arange(len(ids)) - np.repeat(ends - lengths, lengths),
            "loss_mask": labels != IGNORED_LABEL,
        }
        spans = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
        found = [{name: values[begin:end] for name, values in columns.items()} for begin, end in spans]
        if "label" in self._keys:
            for sample, label in zip(found, self._wanted(addresses), strict=True):
                sample["label"] = label
        return found

    def flat_batches(
        self, addresses: IntArray, sizes: Sequence[int], allocate: Callable[[int], NDArray[np.uint8]]
    ) -> FlatBatches | None:
        """Return batches in one pass, if records are whole and their keys can be read together."""
        found = self._whole(addresses) if self._is_own_collate else None
        if found is None:
            return None
        pieces, marks, lengths = found
        rows = np.cumsum([0, *sizes]).tolist()
        longest = [int(lengths[first:last].max(initial=0)) for first, last in pairwise(rows)]
        widths = [self.collation.width(one) for one in longest]
        row_widths = np.repeat(np.array(widths, dtype=np.int64), sizes)
        cuts = np.cumsum([0, *(size * width for size, width in zip(sizes, widths, strict=True))]).tolist()
        side = self._padding_side()
        layout = RowPieces(lengths, row_widths, side)
        places = {name: cuts[-1] if shape else rows[-1] for name, (shape, _) in self.fields.items()}
        columns = _columns_in(allocate, places, self.fields)
        ids, labels, mask = columns["input_ids"], columns["labels"], columns["loss_mask"]
        ids[:] = layout.joined(pieces, self.collation.padding_idx, self._keys["tokens"].dtype)
        ones = np.ones(max(longest, default=0), np.uint8).data
        columns["attention_mask"][:] = layout.joined([ones[:one] for one in lengths.tolist()], 0, _UINT8)
        _fill_positions(columns["position_ids"], lengths, row_widths, side)
        wanted = columns["attention_mask"] != 0 if marks is None else layout.joined(marks, 0, self._mask_dtype) != 0
        # The first token of a record is never predicted, so that shifting takes no label to another row.
        begins = np.cumsum(row_widths) - row_widths + (0 if side == "right" else row_widths - lengths)
        wanted[begins[lengths > 0]] = False
        labels[:] = IGNORED_LABEL
        shift = int(self.labels == "next")
        np.copyto(labels[: len(labels) - shift], ids[shift:], where=wanted[shift:])
        np.not_equal(labels, IGNORED_LABEL, out=mask)
        if "label" in columns:
            columns["label"][:] = self._wanted(addresses)
        shapes: list[dict[str, tuple[int, ...]]] = [
            {name: (size, width) if shape else (size,) for name, (shape, _) in self.fields.items()}
            for size, width in zip(sizes, widths, strict=True)
        ]
        counts = [int(np.count_nonzero(mask[first:last])) for first, last in pairwise(cuts)]
        return FlatBatches(columns, shapes, [{"num_supervised_tokens": count} for count in counts])

    @cached_property
    def _is_own_collate(self) -> bool:
        """Whether samples and batches are made by this class, and not by one that is derived from it."""
        kind = type(self)
        return kind.samples is SFTDataset.samples and kind.collate is SFTDataset.collate

    @property
    def _mask_dtype(self) -> np.dtype[Any]:
        return self._keys["loss_mask"].dtype

    def _whole(self, records: IntArray) -> tuple[list[memoryview], list[memoryview] | None, IntArray] | None:
        """Return tokens, marks and lengths of records that are not cut; None if that needs a look at each of them."""
        tokens, mask, limit = self._keys["tokens"], self._keys.get("loss_mask"), self.collation.max_length
        lengths = tokens.lengths(records)
        is_cut = limit is not None and int(lengths.max(initial=0)) > limit
        can_pad = np.can_cast(np.min_scalar_type(self.collation.padding_idx), tokens.dtype)
        pieces = tokens.buffers(records) if can_pad and not is_cut else None
        if pieces is None or mask is None:
            return None if pieces is None else (pieces, None, lengths)
        marks = mask.buffers(records) if np.array_equal(mask.lengths(records), lengths) else None
        # If there is something else than marks, the other way says in which record.
        if marks is None or mask.dtype.kind not in "bu":
            return None
        values = np.frombuffer(b"".join(marks), mask.dtype)
        return (pieces, marks, lengths) if int(values.max(initial=0)) <= 1 else None

    def _read(self, records: IntArray) -> tuple[list[Any], Any]:
        """Return the kept tokens of each record, and the marks of all records one after another."""
        whole = self._keys["tokens"].values(records)
        pieces = [self._cut(piece, int(record), "the sequence") for piece, record in zip(whole, records, strict=True)]
        if "loss_mask" not in self._keys:
            return pieces, np.ones(sum(map(len, pieces)), dtype=bool)
        marks = self._keys["loss_mask"].values(records)
        check_parallel(self.store, records, whole, marks, repr(self._keys["loss_mask"].key))
        return pieces, np.concatenate([np.empty(0, np.uint8), *map(self.collation.cut, marks)])

    def _wanted(self, records: IntArray) -> NDArray[np.bool_]:
        """(n,) bool: the label of each record."""
        key = self._keys["label"]
        is_one = key.lengths(records) == 1
        values = key.first_values(records) if is_one.all() else np.zeros(len(records))
        is_good = is_one & np.isin(values, (0, 1))
        if not is_good.all():
            record = int(records[np.argmin(is_good)])
            found = self.store.document(record, key.key).tolist()
            raise InputError(
                f"{self.store.path}: record {record} has {found!r:.80} under {key.key!r}; a label is one value, 0 or 1,"
                " that says whether the answer is wanted. If the key holds something else, pass label_key=None"
            )
        return values.astype(bool)

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> Sample:
        """Return samples, each with ``input_ids`` and ``labels``, as one batch."""
        grid = self._grid([len(sample["input_ids"]) for sample in samples])
        labels = grid.filled([sample["labels"] for sample in samples], IGNORED_LABEL, np.int64)
        batch: dict[str, Any] = {
            "input_ids": grid.filled([s["input_ids"] for s in samples], self.collation.padding_idx, np.int64),
            "labels": labels,
            "attention_mask": grid.is_token.astype(np.int64),
            "position_ids": grid.positions(),
            "loss_mask": labels != IGNORED_LABEL,
        }
        if "label" in self._keys:
            batch["label"] = np.array([sample["label"] for sample in samples], dtype=np.bool_)
        batch["num_supervised_tokens"] = int(np.count_nonzero(batch["loss_mask"]))
        return batch

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """(n,) int64: number of tokens that are kept of each record."""
        return self.collation.kept(self._keys["tokens"].lengths(addresses))

    def describe(self) -> str:
        """Describe store, longest length, labels and mask in one line."""
        mask = self._keys["loss_mask"].key if "loss_mask" in self._keys else None
        labels = ", labels not shifted" if self.labels == "same" else ""
        wanted = ", with a label for each" if "label" in self._keys else ""
        return f"{super().describe()}{labels}{shown_mask(self.store, mask)}{wanted}"

    def count(self, addresses: IntArray) -> Counts:
        """Count tokens and labels of each record. Pads belong to batches and are not counted here."""
        whole = self._keys["tokens"].lengths(addresses)
        kept = self.collation.kept(whole)
        supervised = np.maximum(kept - 1, 0)
        if "loss_mask" in self._keys:
            is_cut = kept < whole
            # num_supervised holds the count for whole records, including their first token, which nothing predicts.
            known = ~is_cut & (whole > 0) if self._counted is not None else np.zeros(len(addresses), dtype=bool)
            if self._counted is not None and known.any():
                firsts = self._keys["loss_mask"].first_values(addresses[known]) != 0
                supervised[known] = self._counted.first_values(addresses[known]) - firsts
            supervised[~known] = self._marked(addresses[~known], kept[~known])
        return Counts(kept, supervised, np.zeros_like(kept), np.ones_like(kept))

    def _marked(self, records: IntArray, kept: IntArray) -> IntArray:
        """(n,) int64: the tokens after the first one that the masks of records train, of those that are kept."""
        key = self._keys["loss_mask"]
        masks = key.buffers(records) if np.array_equal(key.lengths(records), kept) else None
        if masks is None:
            counts = [np.count_nonzero(self.collation.cut(marks)[1:]) for marks in key.values(records)]
            return np.array(counts, dtype=np.int64)
        marks = np.frombuffer(b"".join(masks), key.dtype) != 0
        found = np.zeros(len(records), dtype=np.int64)
        has_any = kept > 0
        firsts = (np.cumsum(kept) - kept)[has_any]
        if len(firsts):
            found[has_any] = np.add.reduceat(marks, firsts, dtype=np.int64) - marks[firsts]
        return found
