"""AstrAI's collate functions of whole records, for a ``DataLoader`` over a `BaseDataset` of ``dpo`` or ``grpo``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def dpo_collate_fn(batch: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Pad pairs at their ends: ``chosen`` and ``rejected`` (B, S) int64 with 0, their masks (B, S) bool with False.

    S is the length of the longest answer of either side.
    """
    sides = ("chosen", "rejected")
    width = max(len(item[side]) for item in batch for side in sides)
    made = {side: _padded([item[side] for item in batch], width).long() for side in sides}
    return made | {f"{side}_mask": _padded([item[f"{side}_mask"] for item in batch], width).bool() for side in sides}


def grpo_collate_fn(batch: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Pad groups of the same number G of responses.

    Returns:
        ``prompts`` (B, P) int64, padded with 0 at their beginning, ``prompt_mask`` (B, P) bool; ``responses`` (B, G, R)
        int64, padded with 0 at their end, ``masks`` (B, G, R) bool; ``rewards`` (B, G) float32.

    Raises:
        InputError: the groups have different numbers of responses. AstrAI pads the rewards with 0, which changes the
            mean of the group; the batches of `headrace.Loader` have a ``group_mask``.
    """
    import torch

    sizes = [len(item["responses"]) for item in batch]
    if len(set(sizes)) > 1:
        raise InputError(
            f"the groups of a batch have {sizes} responses: batches of grpo_collate_fn need groups of one size. Feed"
            " dataset.dataset through headrace.Loader, whose batches have a group_mask"
        )
    width = max(len(response) for item in batch for response in item["responses"])
    longest = max(len(item["prompts"]) for item in batch)
    prompts = _padded([item["prompts"].flip(0) for item in batch], longest).flip(1)
    known = _padded([torch.ones(len(item["prompts"]), dtype=torch.bool) for item in batch], longest).flip(1)
    return {
        "prompts": prompts.long(),
        "prompt_mask": known,
        "responses": torch.stack([_padded(item["responses"], width) for item in batch]).long(),
        "masks": torch.stack([_padded(item["masks"], width) for item in batch]).bool(),
        "rewards": torch.stack([item["rewards"] for item in batch]).float(),
    }


def _padded(rows: Sequence[Tensor], width: int) -> Tensor:
    """(n, width): rows with zeros behind them."""
    import torch

    out = torch.zeros(len(rows), width, dtype=rows[0].dtype)
    for number, row in enumerate(rows):
        out[number, : len(row)] = row
    return out
