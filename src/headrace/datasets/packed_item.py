"""One pack as torchtune lays it out, with its mask made when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

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
