"""Masks and variable-length arguments for attention over packed micro-batches, and padding-free rows.

All of them say the same: a token sees itself and the earlier tokens of its segment, and nothing else. Positions count
from 0 in each segment, so the first column that the token in column c sees is c - position_ids[c].

    position_ids  0 1 2 0 1 0     first visible  0 0 0 3 3 5     mask  1 . . . . .
                                                                       1 1 . . . .
                                                                       1 1 1 . . .
                                                                       . . . 1 . .
                                                                       . . . 1 1 .
                                                                       . . . . . 1

`flatten` and `flatten_packed` make the layout of Hugging Face's padding-free training: documents one after another in
one row, without pads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from headrace.errors import ConfigError, InputError
from headrace.plan import IntArray
from headrace.plan.arithmetic import integers
from headrace.plan.segments import IGNORED_LABEL, context_parallel_indices, real_cu_seqlens

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Pads = Literal["identity", "causal"]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def block_causal_mask(position_ids: Tensor, document_ids: Tensor | None = None, *, pads: Pads = "identity") -> Tensor:
    """Return a (B, S, S) bool mask, True where the token of the row may see the token of the column.

    For positions of shape (S,) the mask is (S, S). It takes B * S * S bytes; for long rows use ``flex_block_mask`` or
    ``varlen_arguments``.

    Pads are where ``document_ids`` is -1; without ``document_ids`` no token counts as a pad. With ``pads="identity"`` a
    pad sees only itself, as the documentation of torchtune's ``PackedDataset`` says. With ``"causal"`` pads see the
    earlier tokens of their segment like any other token, as torchtune's code does. What other tokens see is the same.
    """
    return _dense(_first_visible(position_ids, document_ids, pads))


def mask_mod(position_ids: Tensor, document_ids: Tensor | None = None, *, pads: Pads = "identity") -> MaskMod:
    """Return the same mask as a ``mask_mod`` of FlexAttention: (b, h, q_idx, kv_idx) -> bool. One load a query."""
    first = _first_visible(_rows(position_ids), document_ids, pads)

    def sees(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (kv_idx <= q_idx) & (kv_idx >= first[b, q_idx])

    return sees


def flex_block_mask(
    position_ids: Tensor, document_ids: Tensor | None = None, *, pads: Pads = "identity", block_size: int = 128
) -> BlockMask:
    """Return the same mask as a ``BlockMask`` of FlexAttention, for (B, S) rows, on their device.

    It equals what ``create_block_mask`` makes of ``mask_mod``, but is computed from the first and the last query of
    each block: O(B * (S / block_size)^2) instead of O(B * S^2) in time and memory. It needs torch 2.6 or newer.
    """
    # Imported here, since all else works with an older torch, which has no such module.
    from torch.nn.attention.flex_attention import BlockMask

    positions = _rows(position_ids)
    num_rows, size = positions.shape
    num_blocks = -(-size // block_size)
    # Queries past the end of the row see nothing, so that a last block is full only if the row fills it.
    first = torch.full((num_rows, num_blocks * block_size), num_blocks * block_size, device=positions.device)
    first[:, :size] = _first_visible(positions, document_ids, pads)
    blocks = first.view(num_rows, num_blocks, block_size)
    # At least one query of a block sees each column from the begin of the first query's segment to the last query. All
    # of its queries see each column from the begin of the last query's segment to the first query.
    queries = torch.arange(num_blocks, device=positions.device)[:, None]
    keys = torch.arange(num_blocks, device=positions.device)
    seen = (keys <= queries) & (keys >= blocks[:, :, :1] // block_size)
    full = ((keys + 1) * block_size <= queries * block_size + 1) & (keys * block_size >= blocks[:, :, -1:])
    return BlockMask.from_kv_blocks(
        *_ordered(seen & ~full),
        *_ordered(full),
        BLOCK_SIZE=block_size,
        mask_mod=mask_mod(positions, document_ids, pads=pads),
        seq_lengths=(size, size),
    )


_VARLEN_NAMES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "flash_attn": (("cu_seqlens_q", "cu_seqlens_k"), ("max_seqlen_q", "max_seqlen_k")),
    "transformers": (("cu_seq_lens_q", "cu_seq_lens_k"), ("max_length_q", "max_length_k")),
    "megatron": (("cu_seqlens_q", "cu_seqlens_kv"), ("max_seqlen_q", "max_seqlen_kv")),
}


def varlen_arguments(
    batch: Mapping[str, Any], names: Literal["flash_attn", "transformers", "megatron"] = "flash_attn"
) -> dict[str, Any]:
    """Return the arguments of varlen attention over the flattened micro-batch.

    The borders of the segments are (n + 1,) int32, on the device of ``input_ids``; the lengths are Python ints. The
    borders cover all tokens, pads included, and no token sees a later one.

    The names are those of ``flash_attn_varlen_func``, of ``FlashAttentionKwargs`` of Transformers, or of
    ``PackedSeqParams`` of Megatron. The last also gets ``qkv_format="thd"`` and, for a part that ``context_parallel``
    made, the padded borders.

    Raises:
        ConfigError: ``names`` is none of these.
    """
    if names not in _VARLEN_NAMES:
        raise ConfigError(f"names is {names!r}; allowed are {', '.join(map(repr, _VARLEN_NAMES))}")
    device = batch["input_ids"].device
    borders, longest = _VARLEN_NAMES[names]
    arguments: dict[str, Any] = dict.fromkeys(borders, batch["cu_seqlens"].to(device))
    arguments |= dict.fromkeys(longest, batch["max_seqlen"])
    if names == "megatron":
        arguments["qkv_format"] = "thd"
        if "cu_seqlens_padded" in batch:
            padded = batch["cu_seqlens_padded"].to(device)
            arguments |= {f"{name}_padded": padded for name in borders}
    return arguments


def context_parallel(batch: Mapping[str, Any], cp_size: int, cp_rank: int) -> dict[str, Any]:
    """Return the part of a micro-batch that one context-parallel rank holds.

    Every (B, S) field is flattened and indexed in the order of ``context_parallel_indices``, which makes it
    (1, B * S / cp_size). The borders are those of the whole micro-batch, as Transformer Engine needs them on every
    rank: ``cu_seqlens_padded`` over all tokens, ``cu_seqlens`` over the tokens without the pads of segments, both
    (n + 1,) int32. ``num_supervised_tokens`` counts the part. ``max_seqlen``, ``step_supervised_tokens`` and all else
    are kept, except ``seq_lens`` and ``seq_idx``, which mean nothing for a part.

    Raises:
        ConfigError: there is no such rank, or the length of a segment is no multiple of 2 * cp_size.
    """
    borders = batch["cu_seqlens"].cpu()
    indices = torch.from_numpy(context_parallel_indices(borders.numpy(), cp_size, cp_rank))
    shape = batch["input_ids"].shape
    part: dict[str, Any] = {}
    for name, value in batch.items():
        if name in ("seq_lens", "seq_idx"):
            continue
        is_field = isinstance(value, Tensor) and value.shape == shape
        part[name] = value.reshape(1, -1)[:, indices.to(value.device)] if is_field else value
    real = real_cu_seqlens(borders.numpy(), batch["document_ids"].cpu().numpy())
    part["cu_seqlens_padded"] = batch["cu_seqlens"]
    part["cu_seqlens"] = torch.from_numpy(real).to(batch["cu_seqlens"].device)
    part["num_supervised_tokens"] = int(part["loss_mask"].sum())
    return part


def _rows(position_ids: Tensor) -> Tensor:
    return position_ids.reshape(-1, position_ids.shape[-1])


def _first_visible(position_ids: Tensor, document_ids: Tensor | None, pads: Pads) -> Tensor:
    """Return the first column that each token sees: int64, shaped as ``position_ids``, not decreasing within a row."""
    if pads not in ("identity", "causal"):
        raise ConfigError(f"pads is {pads!r}; allowed are 'identity', 'causal'")
    columns = torch.arange(position_ids.shape[-1], device=position_ids.device)
    first = columns - position_ids
    if document_ids is None or pads == "causal":
        return first
    return torch.where(document_ids.reshape(position_ids.shape) == -1, columns, first)


def _dense(first: Tensor) -> Tensor:
    columns = torch.arange(first.shape[-1], device=first.device)
    return (columns <= columns[:, None]) & (columns >= first[..., None])


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many key blocks each query block has, and the numbers of all key blocks, those first; for one head."""
    indices = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1, dtype=torch.int32)[:, None], indices.to(torch.int32)[:, None]


Flat = dict[str, Tensor | int]


def flatten(
    features: Sequence[Mapping[str, Any]],
    *,
    separator_id: int = IGNORED_LABEL,
    return_position_ids: bool = True,
    return_flash_attn_kwargs: bool = False,
    return_seq_idx: bool = False,
    position_ids_start: int = 0,
) -> Flat:
    """Put documents into one row, with the tensors and options of Transformers 5.23's ``DataCollatorWithFlattening``.

    Each of ``features`` has ``input_ids`` and may have ``labels``, both (length,) integers as a list, array or tensor.
    The first one decides whether there are labels. With T tokens in all, the result holds:

    - ``input_ids``, (1, T) int64;
    - ``labels``, (1, T) int64: not shifted, since the model does that. The first label of each document is
      ``separator_id``, so that no document predicts it. Without labels, they are the tokens;
    - ``position_ids``, (1, T) int64, which begin at ``position_ids_start`` in each document;
    - ``seq_idx``, (1, T) int32, the number of the document in the row, if asked for;
    - ``cu_seq_lens_q`` and ``cu_seq_lens_k``, (documents + 1,) int32, prefix sums of the lengths from 0 to T, and
      ``max_length_q`` and ``max_length_k``, ints, if asked for.

    Raises:
        ConfigError: ``features`` is empty.
        InputError: a document has no tokens (Transformers gives it a label all the same, and all later labels slip), or
            has another number of labels than of tokens; the message names it.
    """
    if not features:
        raise ConfigError("features is empty; expected at least one document")
    has_labels = "labels" in features[0]
    documents = [_integers(feature, "input_ids", number) for number, feature in enumerate(features)]
    labels = (
        [_integers(feature, "labels", number) for number, feature in enumerate(features)] if has_labels else documents
    )
    for number, (document, theirs) in enumerate(zip(documents, labels, strict=True)):
        if not len(document):
            raise InputError(f"feature {number} has no tokens: leave it out")
        if len(document) != len(theirs):
            raise InputError(
                f"feature {number} has {len(document)} input_ids and {len(theirs)} labels; give each token its label"
            )
    lengths = torch.tensor([len(document) for document in documents])
    row = torch.from_numpy(np.concatenate(labels))
    row[lengths.cumsum(0) - lengths] = separator_id
    layout = _layout(lengths, position_ids_start)
    wanted = ["position_ids"] * return_position_ids + ["seq_idx"] * return_seq_idx
    if return_flash_attn_kwargs:
        wanted += ["cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"]
    tokens = torch.from_numpy(np.concatenate(documents))
    return {"input_ids": tokens[None], "labels": row[None], **{name: layout[name] for name in wanted}}


def flatten_packed(batch: Mapping[str, Any], *, is_unshifted: bool = False) -> Flat:
    """Return a packed micro-batch as one row without pads, as TRL 1.16's padding-free collator makes it.

    ``batch`` has ``input_ids``, ``labels``, ``position_ids`` and ``document_ids``, (B, S) int64 each, as the loader
    returns them. The result has all tensors that `flatten` can make. Its labels are not shifted: the label of a token
    is the token itself, or -100 at the first token of each segment and where the token is not trained on. Pads inside
    a row and at its end are left out, so ``cu_seq_lens`` holds the real lengths.

    If a document was cut, one of its labels has no place in this layout: the token after the end of the piece. The loss
    of a batch with cut documents is then over that many tokens fewer than its ``num_supervised_tokens``; divide by the
    number of labels that are left. Packs with ``labels="same"`` have their labels in these places already; for them
    pass ``is_unshifted=True``.

    Raises:
        InputError: a label is not the next token, or with ``is_unshifted`` not the token itself.
    """
    document_ids = batch["document_ids"]
    is_token = document_ids >= 0
    input_ids = batch["input_ids"][is_token]
    position_ids = batch["position_ids"][is_token]
    labels = batch["labels"][is_token]
    if not is_unshifted:
        # The label of the token before, in the same row and segment, is this token.
        shifted = torch.full_like(batch["labels"], IGNORED_LABEL)
        shifted[:, 1:] = batch["labels"][:, :-1]
        labels = shifted[is_token]
    is_first = position_ids == 0
    labels[is_first] = IGNORED_LABEL
    if bool(((labels != input_ids) & (labels != IGNORED_LABEL)).any()):
        raise InputError(
            "the labels of this batch are not the next tokens of their segments; flatten_packed needs these, and shifts"
            " them itself: if the packs have labels='same', pass is_unshifted=True"
        )
    begins = torch.cat([is_first.nonzero().flatten(), torch.tensor([len(input_ids)], device=input_ids.device)])
    return {"input_ids": input_ids[None], "labels": labels[None], **_layout(begins.diff(), 0)}


def _layout(lengths: Tensor, position_ids_start: int) -> Flat:
    """Return everything that follows from the lengths of the segments, (n,) int64."""
    ends = lengths.cumsum(0)
    num_tokens = int(ends[-1]) if len(ends) else 0
    begins = torch.repeat_interleave(ends - lengths, lengths)
    cu_seq_lens = torch.cat([ends.new_zeros(1), ends]).to(torch.int32)
    max_length = int(lengths.max()) if len(lengths) else 0
    numbers = torch.arange(len(lengths), dtype=torch.int32, device=lengths.device)
    return {
        "position_ids": (torch.arange(num_tokens, device=lengths.device) - begins + position_ids_start)[None],
        "cu_seq_lens_q": cu_seq_lens,
        "cu_seq_lens_k": cu_seq_lens,
        "max_length_q": max_length,
        "max_length_k": max_length,
        "seq_idx": torch.repeat_interleave(numbers, lengths)[None],
    }


def _integers(feature: Mapping[str, Any], name: str, number: int) -> IntArray:
    if name not in feature:
        raise InputError(f"feature {number} has no {name!r}, found {sorted(feature)}")
    return integers(feature[name], f"feature {number}: {name}")
