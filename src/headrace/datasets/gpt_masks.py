"""What Megatron makes of a row of tokens besides the tokens: loss mask, position ids, attention mask."""

from __future__ import annotations

from operator import index
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.plan import IntArray


class GPTMasks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Megatron's options for masks and positions, under its names.

    ``eod``: the id of the end of a document; needed by the next three.
    ``eod_mask_loss``: no loss where the *input* token is ``eod``; that the model ends a document stays trained.
    ``reset_position_ids``: positions begin at 0 again behind each ``eod``.
    ``reset_attention_mask``: tokens do not see what is before the last ``eod`` before them.
    ``create_attention_mask``: a field ``attention_mask``, (1, S, S) bool, True where a token may *not* look.
    ``inter_document_masking``: fields ``cu_seqlens`` and ``max_seqlen`` with the borders of the documents that a sample
        is made of, whatever tokens they end with, and positions that begin at 0 in each; goes with no other mask.
    ``pad``: the id that fills up a partial last sample, where the loss is 0 and the token 0. A real token of this id is
        made 0 without loss too, as in Megatron: so it is -1 where the tokeniser has no pad of its own. `of` settles it.

    Raises:
        ConfigError: options that do not go together, or a ``pad`` that is no integer.
    """

    eod: int | None = None
    eod_mask_loss: bool = False
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    create_attention_mask: bool = False
    inter_document_masking: bool = False
    pad: int = -1

    def __post_init__(self) -> None:
        """Check what goes together."""
        if not isinstance(self.pad, int):
            raise ConfigError(
                f"pad is {self.pad!r}; it is the id of a token, or -1 for none. GPTMasks.of(tokenizer) takes it from a"
                " tokenizer as Megatron does"
            )
        if self.eod is None and (self.eod_mask_loss or self.reset_position_ids or self.reset_attention_mask):
            raise ConfigError("eod_mask_loss, reset_position_ids and reset_attention_mask need the id of eod")
        if self.reset_attention_mask and not self.create_attention_mask:
            raise ConfigError(
                "reset_attention_mask changes the attention mask, which is not made without create_attention_mask=True "
                "(Megatron leaves it out without a word)"
            )
        if self.inter_document_masking and (
            self.create_attention_mask or self.reset_attention_mask or self.reset_position_ids
        ):
            raise ConfigError(
                "inter_document_masking has borders and positions of its own: leave create_attention_mask, "
                "reset_attention_mask and reset_position_ids out"
            )

    @classmethod
    def of(cls, tokenizer: Any, *, allow_ambiguous_pad_tokens: bool = False, **options: bool) -> GPTMasks:
        """The masks for a tokenizer of Megatron's kind: its ``eod``, and its ``pad`` as ``MegatronDataset`` has it.

        The pad is -1, which no token is, where

        - the tokenizer has none: no ``pad``, one that raises an error, or None;
        - its pad is another special token too: a value of its ``special_tokens_dict`` besides ``pad_token``, or where
          that is missing or empty, its ``eos`` or ``eod``. Else every end of a document would be token 0 without loss.

        ``eod`` is None where the tokenizer has none: options that need it are then refused.

        Args:
            tokenizer: an object with ``eod`` and, if it has one, ``pad``.
            allow_ambiguous_pad_tokens: take a pad that is another special token all the same, as Megatron's option of
                this name does, and Megatron of before 2025-10 always did.
            options: the other options of the class: ``eod_mask_loss=True``, ...

        Raises:
            ConfigError: as for the class.
        """
        try:
            pad = tokenizer.pad
        except Exception:  # Megatron too asks for no kind: those of its tokenizers that have none raise many
            pad = None
        if pad is not None and not allow_ambiguous_pad_tokens and pad in _other_special_tokens(tokenizer):
            pad = None
        eod = _id_or_none(tokenizer, "eod")
        return cls(eod=None if eod is None else index(eod), pad=-1 if pad is None else index(pad), **options)


def _other_special_tokens(tokenizer: Any) -> list[Any]:
    """What Megatron compares the pad with."""
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
    """(n, S) int64: from 0 again behind each ``eod`` of (n, S) ``tokens``."""
    columns = np.arange(tokens.shape[1], dtype=np.int64)
    begins = np.zeros(tokens.shape, dtype=np.int64)
    begins[:, 1:] = np.where(tokens[:, :-1] == eod, columns[1:], 0)
    positions: IntArray = columns - np.maximum.accumulate(begins, axis=1)
    return positions


def attention_mask(tokens: IntArray, eod: int | None) -> NDArray[np.bool_]:
    """(n, 1, S, S) bool: True where the token of the row may not look at that of the column.

    A token looks at itself and at earlier ones, with ``eod`` only at those behind the last ``eod`` before it.
    """
    size = tokens.shape[1]
    columns = np.arange(size)
    first = np.zeros(tokens.shape, dtype=np.int64) if eod is None else columns - position_ids(tokens, eod)
    masked: NDArray[np.bool_] = (columns > columns[:, None]) | (columns < first[:, :, None])
    return masked[:, None]


def document_borders(offsets: IntArray, lengths: IntArray, size: int) -> tuple[NDArray[np.int32], IntArray]:
    """(n, S + 1) int32 ``cu_seqlens``, from 0 to S, the last value repeated; and (n, S) int64 positions within them.

    Sample i is made of the parts ``lengths[offsets[i]:offsets[i + 1]]``; those without a token make no border, and pads
    belong to the last one. Source: Megatron-LM, ``inter_document_masking``.
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
    """Whether ``pad`` can be among the values of a row of tokens at all: looked for only then."""
    if text.dtype.kind == "f":
        return True
    limits = np.iinfo(text.dtype)
    return int(limits.min) <= pad <= int(limits.max)
