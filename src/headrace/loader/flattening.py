"""The layouts of Hugging Face's padding-free training: documents one after another in one row, without pads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.datasets.packed_source import integers
from headrace.errors import ConfigError, InputError
from headrace.plan import IntArray
from headrace.plan.segments import IGNORED_LABEL

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
    """Documents as one row: the tensors of Transformers 5.23's ``DataCollatorWithFlattening``, by the same options.

    ``features`` have ``input_ids`` and maybe ``labels``, each (length,) integers as a list, array or tensor; whether
    they have labels the first one tells. With T tokens in all:

    - ``input_ids`` (1, T) int64;
    - ``labels`` (1, T) int64: not shifted, the model does that; the first of each document is ``separator_id``, so that
      no document predicts it. Without labels they are the tokens;
    - ``position_ids`` (1, T) int64, from ``position_ids_start`` on in each document;
    - ``seq_idx`` (1, T) int32, the number of the document in the row, if asked for;
    - ``cu_seq_lens_q`` and ``cu_seq_lens_k`` (documents + 1,) int32, prefix sums of the lengths from 0 to T, and
      ``max_length_q`` and ``max_length_k`` int, if asked for.

    Raises:
        ConfigError: no features.
        InputError: a document without tokens (Transformers gives it a label all the same, and all labels behind it
            slip), or with labels of another number than tokens; names it.
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


def flatten_packed(batch: Mapping[str, Any]) -> Flat:
    """A packed micro-batch as one row without pads: what TRL 1.16's padding-free collator makes of packed examples.

    ``batch`` has ``input_ids``, ``labels``, ``position_ids`` and ``document_ids``, (B, S) int64 each, as the loader
    gives them. The result has all tensors of `flatten` with all options: labels are not shifted, a token's label is the
    token itself, and -100 at the first token of each segment and where no loss is taken of it. Pads inside a row and
    at its end are left out, so ``cu_seq_lens`` holds the real lengths.

    One label of each document that was cut has no place in this layout: the token behind the end of the piece. Of a
    batch with cut documents the loss is of so many tokens less than its ``num_supervised_tokens``; divide by the
    labels that are left.

    Raises:
        InputError: a label that is not the next token, as of packs with ``labels="same"``, which are shifted already.
    """
    document_ids = batch["document_ids"]
    is_token = document_ids >= 0
    input_ids = batch["input_ids"][is_token]
    position_ids = batch["position_ids"][is_token]
    # The label of the token before, in the same row and segment, is the one for this token.
    shifted = torch.full_like(batch["labels"], IGNORED_LABEL)
    shifted[:, 1:] = batch["labels"][:, :-1]
    labels = shifted[is_token]
    is_first = position_ids == 0
    labels[is_first] = IGNORED_LABEL
    if bool(((labels != input_ids) & (labels != IGNORED_LABEL)).any()):
        raise InputError(
            "labels of this batch are not the next tokens of their segments, which flatten_packed shifts to the tokens"
            " themselves: give it packs without labels='same'"
        )
    begins = torch.cat([is_first.nonzero().flatten(), torch.tensor([len(input_ids)], device=input_ids.device)])
    return {"input_ids": input_ids[None], "labels": labels[None], **_layout(begins.diff(), 0)}


def _layout(lengths: Tensor, position_ids_start: int) -> Flat:
    """Everything that follows from the lengths of the segments, (n,) int64."""
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
