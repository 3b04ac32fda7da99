"""A small real attention model: rotary positions, several layers, and the attention itself as an argument.

``forward`` takes (B, S) tokens. ``forward_split`` takes the parts that context-parallel ranks hold: every rank computes
the queries of its own tokens against the keys and values of all, gathered in each layer, as ring attention does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries (B, H, Q, D), keys and values (B, H, K, D) to (B, H, Q, D)."""


class Layer(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def heads(self, hidden: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, H, S, D) each, the first two turned by their positions."""
        rows, size, width = hidden.shape
        split = self.qkv(self.attention_norm(hidden)).view(rows, size, 3, self.num_heads, width // self.num_heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        return rotated(q, position_ids), rotated(k, position_ids), v

    def after(self, hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = hidden + self.out(attended.transpose(1, 2).flatten(2))
        return hidden + self.mlp(self.mlp_norm(hidden))


class Model(nn.Module):
    def __init__(
        self, *, vocabulary: int = 16, width: int = 16, num_heads: int = 2, num_layers: int = 2, seed: int = 1
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, num_heads) for _ in range(num_layers))
        self.head = nn.Linear(width, vocabulary)
        self.double()

    def forward(self, input_ids: Tensor, position_ids: Tensor, attention: Attention) -> Tensor:
        """(B, S, vocabulary) logits."""
        hidden = self.embedding(input_ids)
        for layer in self.layers:
            hidden = layer.after(hidden, attention(*layer.heads(hidden, position_ids)))
        return self.head(hidden)

    def forward_split(
        self, parts: Sequence[dict[str, Any]], order: Tensor, attentions: Sequence[Attention]
    ) -> list[Tensor]:
        """The logits of each part, (1, T / n, vocabulary); ``order`` puts the parts together."""
        hidden = [self.embedding(part["input_ids"]) for part in parts]
        for layer in self.layers:
            heads = [layer.heads(h, part["position_ids"]) for h, part in zip(hidden, parts, strict=True)]
            keys, values = (torch.cat([head[i] for head in heads], dim=2)[:, :, order] for i in (1, 2))
            hidden = [
                layer.after(h, attention(q, keys, values))
                for h, (q, _, _), attention in zip(hidden, heads, attentions, strict=True)
            ]
        return [self.head(h) for h in hidden]


def rotated(values: Tensor, position_ids: Tensor) -> Tensor:
    half = values.shape[-1] // 2
    speeds = 1.0 / 100 ** (torch.arange(half, dtype=values.dtype) / half)
    angles = position_ids[:, None, :, None] * speeds
    left, right = values[..., :half], values[..., half:]
    return torch.cat([left * angles.cos() - right * angles.sin(), left * angles.sin() + right * angles.cos()], dim=-1)


def dense(mask: Tensor) -> Attention:
    """Written out, with a boolean (B, Q, K) mask."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return scores.masked_fill(~mask[:, None], float("-inf")).softmax(dim=-1) @ v

    return attend


def sdpa(mask: Tensor) -> Attention:
    """``scaled_dot_product_attention`` with a boolean (B, Q, K) mask."""
    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])


def varlen(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int) -> Attention:
    """What a varlen kernel computes over the flattened rows: causal attention in each segment by itself."""
    assert torch.equal(cu_seqlens_q, cu_seqlens_k)
    borders = cu_seqlens_q.tolist()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, _, size, _ = q.shape
        flat = [x.transpose(0, 1).flatten(1, 2) for x in (q, k, v)]
        pieces = []
        for begin, end in pairwise(borders):
            assert 0 < end - begin <= min(max_seqlen_q, max_seqlen_k)
            own = [x[None, :, begin:end] for x in flat]
            causal = torch.ones(end - begin, end - begin, dtype=torch.bool).tril()
            pieces.append(dense(causal[None])(*own)[0])
        return torch.cat(pieces, dim=1).unflatten(1, (rows, size)).transpose(0, 1)

    return attend


def flex(block_mask: Any) -> Attention:
    """FlexAttention, not compiled. Forward only: on the CPU it has no backward."""
    from torch.nn.attention.flex_attention import flex_attention

    return lambda q, k, v: flex_attention(q, k, v, block_mask=block_mask)


def summed_loss(logits: Tensor, labels: Tensor, loss_mask: Tensor) -> Tensor:
    """The sum of the token losses where ``loss_mask`` is set."""
    losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none")
    return losses[loss_mask.flatten()].sum()
