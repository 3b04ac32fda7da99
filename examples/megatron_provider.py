"""A drop-in for Megatron's ``train_valid_test_datasets_provider``: its samples, without its start-up build and caches.

In ``pretrain_gpt.py``: ``train_valid_test_datasets_provider = provider(get_args(), get_tokenizer())``. All ranks build
the same by themselves: none waits for another, and nothing is written.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import corpus

import headrace
from headrace.datasets import Dataset


def provider(args: Any, tokenizer: Any) -> Callable[[Sequence[int]], tuple[Dataset | None, ...]]:
    """The provider for Megatron's arguments and tokeniser."""
    masks = headrace.GPTMasks(
        eod=tokenizer.eod,
        pad=getattr(tokenizer, "pad", -1),
        eod_mask_loss=args.eod_mask_loss,
        reset_position_ids=args.reset_position_ids,
        reset_attention_mask=args.reset_attention_mask,
        create_attention_mask=args.create_attention_mask_in_dataloader,
    )

    def part(name: Any, share: float, num_samples: int) -> Dataset | None:
        def build(prefix: str, wanted: int | None) -> headrace.GPTDataset:
            return headrace.GPTDataset(
                prefix,
                sequence_length=args.seq_length,
                num_samples=wanted,
                seed=args.seed,
                split=args.split,
                split_part=name,
                masks=masks,
            )

        return headrace.GPTBlend.of(args.data_path, num_samples=num_samples, build=build) if share else None

    shares = [*map(float, args.split.split(",")), 0, 0][:3]
    return lambda num_samples: tuple(map(part, ("train", "valid", "test"), shares, num_samples))


if __name__ == "__main__":
    folder = corpus.make()
    paths = ["0.7", f"{folder}/small/text_document", "0.3", f"{folder}/large/text_document"]
    flags = dict.fromkeys(("eod_mask_loss", "reset_position_ids", "reset_attention_mask"), False)
    flags["create_attention_mask_in_dataloader"] = False
    options = Namespace(data_path=paths, seq_length=128, seed=1234, split="90,10", **flags)
    datasets = provider(options, Namespace(eod=0))([400, 40, 0])
    for name, dataset in zip(("train", "valid", "test"), datasets, strict=True):
        print(name, None if dataset is None else f"{len(dataset)} samples, the first is {dataset[0]['tokens'][:4]}")
