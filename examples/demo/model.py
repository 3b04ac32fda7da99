"""A language model that is small enough for two slow cores: a transformer with two layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Layer(nn.Module):
    """Causal attention and a feed-forward part, each after a norm and with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_qkv, self.to_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.forward_part = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, window, width) -> the same shape."""
        batch, window, width = x.shape
        qkv = self.to_qkv(self.norm_1(x)).view(batch, window, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.to_out(attended.transpose(1, 2).reshape(batch, window, width))
        return x + self.forward_part(self.norm_2(x))


class TinyModel(nn.Module):
    """Computes the summed loss over all labels from token ids and their positions."""

    def __init__(self, vocab_size: int, seq_len: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(seq_len, width)
        self.layers = nn.Sequential(*(Layer(width, heads=4) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, input_ids: Tensor, position_ids: Tensor, labels: Tensor) -> Tensor:
        """All three (batch, window) int64; the loss is a scalar."""
        x = self.norm(self.layers(self.tokens(input_ids) + self.positions(position_ids)))
        logits = functional.linear(x, self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def flat_gradients(model: nn.Module) -> Tensor:
    """All gradients, concatenated into one vector."""
    return torch.cat([_gradient(parameter).flatten() for parameter in model.parameters()])


def set_flat_gradients(model: nn.Module, flat: Tensor) -> None:
    """Set the gradients from one vector."""
    parameters = list(model.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part in zip(parameters, flat.split(sizes), strict=True):
        parameter.grad = part.view_as(parameter)


def _gradient(parameter: Tensor) -> Tensor:
    # A rank without samples in a step contributes zeros.
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
