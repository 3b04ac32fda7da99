"""Megatron's ``GPTDataset``: its samples in its order, without its index files, with its masks and position ids.

`GPTFIMDataset` makes the same samples with fill in the middle applied to their documents.
"""

from __future__ import annotations

import os
from functools import cached_property
from operator import index
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.config import check_choice
from headrace.datasets import Fields, FixedDataset, Sample
from headrace.datasets.dataset import FixedWrapper
from headrace.datasets.loss_masks import shown_mask, warn_unused_mask
from headrace.datasets.origins import Origins, pieces
from headrace.errors import ConfigError, StoreError
from headrace.plan import IntArray, KeyArray
from headrace.plan.keys import derive, source_key
from headrace.plan.megatron import (
    FillInTheMiddle,
    GPTOrder,
    GPTSampling,
    KeyedDraws,
    SamplePieces,
    fill_in_the_middle,
    order_samples,
    split_ranges,
)
from headrace.stores import IndexedStore, Store, open_tokens as open_store


class GPTMasks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Megatron's options for masks and positions, under Megatron's names.

    Attributes:
        eod: the id that ends a document; the next three options need it.
        eod_mask_loss: no loss where the *input* token is ``eod``. The model still learns to end a document.
        reset_position_ids: positions begin at 0 again after each ``eod``.
        reset_attention_mask: a token does not attend to anything before the last ``eod`` that precedes it.
        create_attention_mask: add a field ``attention_mask``, (1, S, S) bool, True where a token may *not* attend.
        inter_document_masking: add fields ``cu_seqlens`` and ``max_seqlen`` with the borders of the documents of a
            sample, whatever tokens the documents end with; positions begin at 0 in each document. It cannot be
            combined with the other masks.
        pad: the id that fills up a partial last sample; there the loss is 0 and the token becomes 0. As in Megatron, a
            real token with this id also becomes 0 without loss. So ``pad`` is -1 if the tokeniser has no pad of its
            own; `of` takes the right value from a tokeniser.

    Raises:
        ConfigError: the options do not go together, or ``pad`` is not an integer.

    Example:
        >>> masks = headrace.compat.megatron.GPTMasks(eod=0, eod_mask_loss=True, reset_position_ids=True)
        >>> dataset = headrace.compat.megatron.GPTDataset(
        ...     "stores/web/text_document", sequence_length=128, masks=masks
        ... )
        >>> sorted(dataset.fields)
        ['labels', 'loss_mask', 'position_ids', 'tokens']
    """

    eod: int | None = None
    eod_mask_loss: bool = False
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    create_attention_mask: bool = False
    inter_document_masking: bool = False
    pad: int = -1

    def __post_init__(self) -> None:
        """Raise ConfigError for options that do not go together."""
        if not isinstance(self.pad, int):
            raise ConfigError(
                f"pad is {self.pad!r}; expected the id of a token, or -1 for none. GPTMasks.of(tokenizer) takes it from"
                " a tokenizer as Megatron does"
            )
        if self.eod is None and (self.eod_mask_loss or self.reset_position_ids or self.reset_attention_mask):
            raise ConfigError("eod_mask_loss, reset_position_ids and reset_attention_mask need the id of eod")
        if self.reset_attention_mask and not self.create_attention_mask:
            raise ConfigError(
                "reset_attention_mask changes the attention mask, which is made only with create_attention_mask=True "
                "(Megatron silently ignores the option then)"
            )
        if self.inter_document_masking and (
            self.create_attention_mask or self.reset_attention_mask or self.reset_position_ids
        ):
            raise ConfigError(
                "inter_document_masking has its own borders and positions; leave out create_attention_mask, "
                "reset_attention_mask and reset_position_ids"
            )

    @classmethod
    def of(cls, tokenizer: Any, *, allow_ambiguous_pad_tokens: bool = False, **options: bool) -> GPTMasks:
        """Make the masks for a tokenizer of Megatron's kind, with the ``eod`` and ``pad`` that Megatron takes from it.

        The pad is -1, which is the id of no token, in these cases:

        - the tokenizer has no pad: the attribute ``pad`` is missing, raises an error or is None;
        - its pad is also another special token: another value of its ``special_tokens_dict`` than ``pad_token``, or, if
          that is missing or empty, its ``eos`` or ``eod``. Otherwise every end of a document would become token 0
          without loss.

        ``eod`` is None if the tokenizer has none; options that need it are then refused.

        Args:
            tokenizer: an object with ``eod`` and, if it has one, ``pad``.
            allow_ambiguous_pad_tokens: accept a pad that is also another special token, as Megatron's option of this
                name does, and as Megatron before 2025-10 always did.
            options: the other options of the class, such as ``eod_mask_loss=True``.

        Raises:
            ConfigError: as for the class.
        """
        try:
            pad = tokenizer.pad
        except Exception:  # as in Megatron: its tokenizers without a pad raise many types of errors
            pad = None
        if pad is not None and not allow_ambiguous_pad_tokens and pad in _other_special_tokens(tokenizer):
            pad = None
        eod = _id_or_none(tokenizer, "eod")
        return cls(eod=None if eod is None else index(eod), pad=-1 if pad is None else index(pad), **options)


def _other_special_tokens(tokenizer: Any) -> list[Any]:
    """The special tokens that Megatron compares the pad with."""
    try:
        found = [value for name, value in tokenizer.special_tokens_dict.items() if name != "pad_token"]
    except (AttributeError, IndexError, ValueError):
        found = []
    return found or [_id_or_none(tokenizer, "eos"), _id_or_none(tokenizer, "eod")]


def _id_or_none(tokenizer: Any, name: str) -> Any:
    try:
        return getattr(tokenizer, name)
    except (AttributeError, NotImplementedError):
        return None


def position_ids(tokens: IntArray, eod: int) -> IntArray:
    """(n, S) int64: positions that begin at 0 again after each ``eod`` of (n, S) ``tokens``."""
    columns = np.arange(tokens.shape[1], dtype=np.int64)
    begins = np.zeros(tokens.shape, dtype=np.int64)
    begins[:, 1:] = np.where(tokens[:, :-1] == eod, columns[1:], 0)
    positions: IntArray = columns - np.maximum.accumulate(begins, axis=1)
    return positions


def attention_mask(tokens: IntArray, eod: int | None) -> NDArray[np.bool_]:
    """(n, 1, S, S) bool: True where the token of the row may not attend to the token of the column.

    A token attends to itself and to earlier tokens; with ``eod`` only to those after the last ``eod`` before it.
    """
    size = tokens.shape[1]
    columns = np.arange(size)
    first = np.zeros(tokens.shape, dtype=np.int64) if eod is None else columns - position_ids(tokens, eod)
    masked: NDArray[np.bool_] = (columns > columns[:, None]) | (columns < first[:, :, None])
    return masked[:, None]


def document_borders(offsets: IntArray, lengths: IntArray, size: int) -> tuple[NDArray[np.int32], IntArray]:
    """(n, S + 1) int32 ``cu_seqlens`` and (n, S) int64 positions within the documents.

    ``cu_seqlens`` run from 0 to S, and the last value is repeated. Sample i consists of documents with the lengths
    ``lengths[offsets[i]:offsets[i + 1]]``. A document without tokens makes no border, and pads belong to the last
    document. Source: Megatron-LM, ``inter_document_masking``.
    """
    num_samples = len(offsets) - 1
    ends = np.cumsum(lengths)
    before = ends - lengths
    samples = np.repeat(np.arange(num_samples), np.diff(offsets))
    begins = before - before[np.minimum(offsets[:-1], max(0, len(before) - 1))][samples]
    inner = (lengths > 0) & (begins > 0) & (begins < size)
    counts = np.bincount(samples[inner], minlength=num_samples)
    table = np.full((num_samples, size + 1), size, dtype=np.int32)
    table[:, 0] = 0
    at = np.arange(inner.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    table[samples[inner], at] = begins[inner]
    starts = np.zeros((num_samples, size), dtype=np.int64)
    starts[samples[inner], begins[inner]] = begins[inner]
    return table, np.arange(size, dtype=np.int64) - np.maximum.accumulate(starts, axis=1)


def padded(text: NDArray[Any], pad: int) -> bool:
    """Whether the dtype of ``text`` can hold ``pad`` at all; only then pads must be searched."""
    if text.dtype.kind == "f":
        return True
    limits = np.iinfo(text.dtype)
    return int(limits.min) <= pad <= int(limits.max)


SPLIT_PARTS = ("train", "valid", "test")
ONE_PART_SPLITS = {"train": "1,0,0", "valid": "0,1,0", "test": "0,0,1"}
"""The split of data that belong to one part only; Megatron has no split for them."""
_ROWS = ("tokens", "labels", "loss_mask")
_INT64, _INT32, _FLOAT32, _BOOL = (np.dtype(kind) for kind in (np.int64, np.int32, np.float32, np.bool_))


class GPTDataset(FixedDataset):
    """Sample i is sample i of Megatron's ``GPTDataset``, element by element, for the same options.

    Fields, with S = ``sequence_length``:

    - ``tokens`` (S,) int64; ``labels`` (S,) int64, the next tokens;
    - ``loss_mask`` (S,) float32: 0 at pads and where ``masks`` say so, otherwise 1;
    - ``position_ids`` (S,) int64;
    - if ``masks`` ask for them: ``attention_mask`` (1, S, S) bool, or ``cu_seqlens`` (S + 1,) int32 and ``max_seqlen``
      () int32.

    The dataset itself contains the shuffles, so feed it with ``Order(kind="none")``. Its order depends on
    ``num_samples``: a run that is made longer may get another order from its first sample on. Megatron continues in the
    new order silently. Here a state that was saved in another order is refused, and ``order.warn_if_extended_from``
    warns. Headrace's own order (`WindowDataset`) does not depend on the length of the run.

    Nothing is written and no cache is needed. The constructor computes the shuffles, which costs 10 to 40 ns for each
    sequence and epoch and 10 ns for each sample. It keeps 4.5 bytes for each sequence and epoch, 4 bytes for each
    sample, and 4 bytes for the length of each sequence.

    Args:
        prefix: the path of a ``.bin``/``.idx`` pair without the suffix; or an open store, whose documents serve as the
            sequences (``headrace.open(prefix, documents="sequences")``).
        sequence_length: S, the number of tokens of a sample.
        num_samples: the least number of samples wanted; None for one epoch, in which there must be a sample. With 0 the
            dataset has those of one epoch, too, but may be empty.
        seed: the seed of the shuffles, Megatron's ``random_seed``.
        split: the shares of training, validation and test, such as ``"969,30,1"``.
        split_part: the part of the split that the dataset reads.
        add_extra_token_to_sequence: cut samples from S + 1 tokens; False makes the last label of each sample a pad.
        drop_last_partial_validation_sequence: leave out the rest of the validation part, which is shorter than S.
        masks: masks and positions.
        dialect: ``"core"``, ``"legacy"`` (Megatron-LM before megatron-core, with its borders of splits), ``"neox"`` or
            ``"aleph_alpha"``.
        last_epoch: whether the last of several epochs is shuffled separately. ``"auto"`` follows the dialect;
            ``"together"`` and ``"separate"`` are for forks that always do one of the two.
        float32_ceil: count the samples of a validation part that keeps its partial last sample in float32, as
            megatron-core's compiled helper does. From 2^24 tokens on, some samples are then missing or surplus.

    Raises:
        ConfigError: an unknown option, or a split part without a single sample although some are wanted.

    Example:
        >>> dataset = headrace.compat.megatron.GPTDataset(
        ...     "stores/web/text_document", sequence_length=128, num_samples=1_000, split="98,2"
        ... )
        >>> len(dataset) >= 1_000
        True
        >>> dataset[0]["tokens"].shape
        (128,)
    """

    def __init__(
        self,
        prefix: str | os.PathLike[str] | Store,
        *,
        sequence_length: int,
        num_samples: int | None = None,
        seed: int = 1234,
        split: str = "1,0,0",
        split_part: Literal["train", "valid", "test"] = "train",
        add_extra_token_to_sequence: bool = True,
        drop_last_partial_validation_sequence: bool = True,
        masks: GPTMasks | None = None,
        dialect: Literal["core", "legacy", "neox", "aleph_alpha"] = "core",
        last_epoch: Literal["auto", "together", "separate"] = "auto",
        float32_ceil: bool = False,
    ) -> None:
        check_choice("split_part", split_part, SPLIT_PARTS)
        self.store = prefix if isinstance(prefix, Store) else open_store(prefix, documents="sequences")
        warn_unused_mask(self.store, type(self).__name__)
        self.masks = masks or GPTMasks()
        self.split, self.split_part = split, split_part
        sizes, first_sequence = sizes_of_part(
            self.store, split, split_part, era="core" if dialect == "core" else "legacy"
        )
        self.sampling = GPTSampling(
            sequence_length=sequence_length,
            num_samples=num_samples,
            seed=seed,
            add_extra_token=add_extra_token_to_sequence,
            drop_last_partial=drop_last_partial_validation_sequence or split_part != "valid",
            dialect=dialect,
            last_epoch=last_epoch,
            # Only validation parts keep a partial last sample; this way the same options work for every part.
            float32_ceil=float32_ceil and split_part == "valid",
        )
        self.order = order_samples(sizes, self.sampling, first_sequence=first_sequence)
        if not self.order.num_samples and num_samples != 0:
            end = first_sequence + len(sizes)
            raise ConfigError(
                f"{self.store.path}: {split_part!r} of {split!r} is sequences {first_sequence:,} to {end:,} with "
                f"{int(sizes.sum(dtype=np.int64)):,} tokens: not enough for a sample of {sequence_length:,} tokens"
            )

    def __len__(self) -> int:
        return self.order.num_samples

    @property
    def sequence_length(self) -> int:
        """S, the number of tokens of a sample."""
        return self.sampling.sequence_length

    @property
    def document_index(self) -> NDArray[np.int32]:
        """Megatron's array of the same name; computed at each access."""
        return self._megatron("document_index")

    @property
    def sample_index(self) -> NDArray[np.int32 | np.int64]:
        """Megatron's array of the same name; computed at each access."""
        return self._megatron("sample_index")

    @property
    def shuffle_index(self) -> NDArray[np.uint32 | np.int64]:
        """Megatron's array of the same name; it is kept in memory."""
        return self._megatron("shuffle_index")

    def _megatron(self, name: str) -> NDArray[Any]:
        if not hasattr(self.order, name):
            raise ConfigError(f"the dialect {self.sampling.dialect!r} has no {name}")
        found: NDArray[Any] = getattr(self.order, name)
        return found

    @cached_property
    def fields(self) -> Fields:
        """Name -> (shape, dtype); which fields there are depends on ``masks``."""
        size, masks = self.sequence_length, self.masks
        fields: Fields = {"tokens": ((size,), _INT64), "labels": ((size,), _INT64), "loss_mask": ((size,), _FLOAT32)}
        if masks.reset_position_ids or masks.inter_document_masking:
            fields["position_ids"] = ((size,), _INT64)
        if masks.create_attention_mask:
            fields["attention_mask"] = ((1, size, size), _BOOL)
        if masks.inter_document_masking:
            fields |= {"cu_seqlens": ((size + 1,), _INT32), "max_seqlen": ((), _INT32)}
        return fields

    @property
    def constants(self) -> Sample:
        """The ``position_ids``, unless they restart within a sample."""
        return {} if "position_ids" in self.fields else {"position_ids": np.arange(self.sequence_length)}

    @property
    def num_tokens_per_sample(self) -> float:
        """Always S."""
        return float(self.sequence_length)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Everything that decides the bytes of the samples.

        ``num_samples`` itself is not part of it, only what follows from it for the order. So a run may be made longer
        as long as its order stays the same. If the order changes, a saved state is refused and the field is named.
        """
        sampling = msgspec.to_builtins(self.sampling)
        del sampling["num_samples"]
        if isinstance(self.order, GPTOrder):
            sampling |= {"num_epochs": self.order.num_epochs, "separate_last_epoch": self.order.separate_last_epoch}
        return {
            "kind": "gpt",
            "store": self.store.fingerprint,
            "num_sequences": self.store.num_documents,
            "split": self.split,
            "split_part": self.split_part,
            "sampling": sampling,
            "masks": msgspec.to_builtins(self.masks),
        }

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: the numbers of the samples themselves. ``keys`` are ignored: Megatron's order is fixed."""
        return indices

    def origins(self, addresses: IntArray) -> list[Origins]:
        """The sequences of each sample, which are documents if the store is opened with ``documents="sequences"``."""
        found = self.order.locate(addresses)
        some = found.lengths > 0
        kept = np.append(0, np.cumsum(some))
        return pieces(self.store, kept[found.offsets], found.sequences[some], found.begins[some], found.lengths[some])

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read samples into ``rows`` of ``out``."""
        if len(addresses):
            pieces = self.order.locate(addresses)
            self.write(self.text(pieces), pieces, out, rows)

    def write(self, text: NDArray[Any], pieces: SamplePieces, out: Sample, rows: slice | IntArray) -> None:
        """Compute all fields of samples from their (n, S or S + 1) tokens, into ``rows`` of ``out``.

        ``pieces`` hold the borders of the documents; only ``inter_document_masking`` uses them.
        """
        masks, size, extra = self.masks, self.sequence_length, int(self.sampling.add_extra_token)
        direct = isinstance(rows, slice)
        # If the rows are a slice, these are views of the batch, so that a sample is written only once.
        part = {name: out[name][rows] if direct else np.empty_like(out[name][rows]) for name in _ROWS}
        tokens, labels, loss_mask = (part[name] for name in _ROWS)
        tokens[:] = text[:, :size]
        labels[:, : size - 1 + extra] = text[:, 1:]
        if not extra:
            labels[:, -1] = masks.pad
        loss_mask[:] = 1
        if masks.eod_mask_loss:
            loss_mask[tokens == masks.eod] = 0
        if masks.reset_position_ids and masks.eod is not None:
            out["position_ids"][rows] = position_ids(tokens, masks.eod)
        if masks.create_attention_mask:
            out["attention_mask"][rows] = attention_mask(tokens, masks.eod if masks.reset_attention_mask else None)
        if masks.inter_document_masking:
            borders, positions = document_borders(pieces.offsets, pieces.lengths, size)
            out["cu_seqlens"][rows], out["position_ids"][rows] = borders, positions
            out["max_seqlen"][rows] = np.diff(borders, axis=1).max(axis=1)
        if not extra or padded(text, masks.pad):
            # The loss mask needs the labels before pads are replaced. Then pads, which have no embedding, become 0.
            loss_mask[labels == masks.pad] = 0
            tokens[tokens == masks.pad] = 0
            labels[labels == masks.pad] = 0
        if not direct:
            for name, values in part.items():
                out[name][rows] = values

    def text(self, pieces: SamplePieces) -> NDArray[Any]:
        """(n, S or S + 1): the tokens of some samples; a partial sample is filled up with pads."""
        width = self.sequence_length + int(self.sampling.add_extra_token)
        joined = b"".join(self.store.document_buffers(pieces.sequences, pieces.begins, pieces.lengths))
        stream = np.frombuffer(joined, dtype=self.store.dtypes[self.store.keys[0]])
        counts = pieces.num_tokens
        if len(stream) == width * len(counts):
            return stream.reshape(len(counts), width)
        text = np.full((len(counts), width), self.masks.pad, dtype=np.int64)
        text[np.arange(width) < counts[:, None]] = stream
        return text

    def describe(self) -> str:
        """One line: the order, its seed, the part of the split, the length of samples and the number of epochs."""
        epochs = self.order.num_epochs
        return (
            f"{self.sampling.dialect} order of Megatron, seed {self.sampling.seed}: {self.split_part} of {self.split}, "
            f"samples of {self.sequence_length:,} tokens from {epochs:,} {'epoch' if epochs == 1 else 'epochs'}"
            f"{shown_mask(self.store, None)}"
        )


def sizes_of_part(
    store: Store, split: str, split_part: str, *, era: Literal["core", "legacy"]
) -> tuple[NDArray[np.int32] | IntArray, int]:
    """(sequences,) the tokens of each sequence in one part of a split, and the number of the first sequence.

    Raises:
        ConfigError: the split gives nothing to this part.
        StoreError: a sequence is longer than its whole file.
    """
    part = split_ranges(split, store.num_documents, era=era)[SPLIT_PARTS.index(split_part)]
    if part is None:
        raise ConfigError(f"the split {split!r} gives nothing to {split_part!r}")
    return _sizes(store)[part[0] : part[1]], part[0]


def _most_tokens(store: Store) -> int | None:
    """The number of tokens that the ``.bin`` of a single pair can hold; None for any other store."""
    if not isinstance(store, IndexedStore):
        return None
    return store.files[0].stat().st_size // store.dtypes[store.keys[0]].itemsize


def _sizes(store: Store) -> NDArray[np.int32] | IntArray:
    """(sequences,) the tokens of each sequence, as int32 if they fit, which they always do in Megatron's format.

    Raises:
        StoreError: a sequence is longer than its whole file. An order over such sizes could exhaust the memory.
    """
    sizes = np.empty(store.num_documents, dtype=np.int32)
    at = 0
    most = _most_tokens(store)
    for chunk in store.length_chunks(1 << 15):
        if most is not None and int(chunk.max()) > most:
            number = at + int(np.argmax(chunk > most))
            found = f"{int(chunk.max()):,} tokens by the .idx, the .bin holds {most:,}"
            raise StoreError(f"{store.path}: sequence {number:,} has {found}")
        if int(chunk.max()) > np.iinfo(np.int32).max:
            return store.lengths
        sizes[at : at + len(chunk)] = chunk
        at += len(chunk)
    return sizes


class GPTFIMDataset(FixedWrapper):
    """Sample i is sample i of a `GPTDataset`, rearranged by fill in the middle. The fields are the same.

    The random draws of a sample are a hash of ``fim.seed``, the data and i, so they are the same in every process,
    after every resume and on any number of ranks. (In Megatron they depend on the samples that the process has read
    before.)

    Masks and positions are computed from the rearranged tokens. A sample that has become longer loses its end.

    Args:
        dataset: the dataset that the samples come from.
        fim: the options of fill in the middle.

    Raises:
        ConfigError: the dataset uses ``inter_document_masking``, whose borders would be those of the documents before
            they were rearranged.

    Example:
        >>> megatron = headrace.compat.megatron
        >>> tokens = megatron.FIMTokens(prefix=1_000, middle=1_001, suffix=1_002, pad=1_003, eod=0)
        >>> dataset = megatron.GPTDataset("stores/web/text_document", sequence_length=128)
        >>> filled = megatron.GPTFIMDataset(dataset, megatron.FillInTheMiddle(tokens=tokens, rate=0.5))
        >>> filled[0]["tokens"].shape
        (128,)
    """

    dataset: GPTDataset

    def __init__(self, dataset: GPTDataset, fim: FillInTheMiddle) -> None:
        if not isinstance(dataset, GPTDataset):
            raise ConfigError(f"dataset is {dataset!r}; expected a GPTDataset(prefix, ...)")
        if dataset.masks.inter_document_masking:
            raise ConfigError(
                "inter_document_masking separates documents where they were before fill in the middle moved and cut "
                "them; use reset_position_ids and reset_attention_mask instead, which go by eod"
            )
        self.dataset = dataset
        self.fim = fim
        # The key includes the data and the part of the split, so that two sources of a blend draw differently.
        self._key = source_key(fim.seed, f"{dataset.store.fingerprint} {dataset.split_part}", "fill in the middle")

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Everything that decides the bytes of the samples."""
        return {"kind": "gpt_fim", "dataset": self.dataset.recipe, "fim": self.fim.recipe}

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: the addresses of the inner dataset."""
        return self.dataset.locate(indices, keys)

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read samples, rearrange them, and write their fields into ``rows`` of ``out``."""
        if not len(addresses):
            return
        pieces = self.dataset.order.locate(addresses)
        text = self.dataset.text(pieces).astype(np.int64)
        for row, (sample, count) in enumerate(zip(addresses.tolist(), pieces.num_tokens.tolist(), strict=True)):
            # The pads that fill up a partial sample belong to no document.
            text[row, :count] = fill_in_the_middle(text[row, :count], self.fim, KeyedDraws(derive(self._key, sample)))
        self.dataset.write(text, pieces, out, rows)

    def describe(self) -> str:
        """One line: the rate, the unit between which documents are cut, and the inner dataset."""
        between = "tokens" if self.fim.codec is None else "characters"
        return f"fill in the middle of {self.fim.rate:.3g} of documents, between {between}: {self.dataset.describe()}"
