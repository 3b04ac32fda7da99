"""Replaces Megatron's ``train_valid_test_datasets_provider``: the same samples, without building indices or caches.

In ``pretrain_gpt.py``: ``train_valid_test_datasets_provider = provider(get_args(), get_tokenizer())``. Every rank
builds the same datasets itself; no rank waits for another, and nothing is written.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import corpus

import headrace
from headrace.datasets import Dataset

WHOLE = {"train": "1,0,0", "valid": "0,1,0", "test": "0,0,1"}  # the splits of parts that have their own data


def provider(args: Any, tokenizer: Any) -> Callable[[Sequence[int]], tuple[Dataset | None, ...]]:
    """Make the provider for Megatron's arguments and tokeniser."""
    masks = headrace.compat.megatron.GPTMasks.of(
        tokenizer,
        allow_ambiguous_pad_tokens=getattr(args, "allow_ambiguous_pad_tokens", False),
        eod_mask_loss=args.eod_mask_loss,
        reset_position_ids=args.reset_position_ids,
        reset_attention_mask=args.reset_attention_mask,
        create_attention_mask=args.create_attention_mask_in_dataloader,
    )

    def part(name: Any, num_samples: int | None) -> Dataset | None:
        data = args.data_path or getattr(args, f"{name}_data_path")
        split = args.split if args.data_path else WHOLE[name]
        share = dict(zip(WHOLE, [*map(float, split.split(",")), 0, 0], strict=False))[name]

        def build(prefix: str, wanted: int | None) -> headrace.compat.megatron.GPTDataset:
            options = {"sequence_length": args.seq_length, "seed": args.seed, "split": split, "split_part": name}
            return headrace.compat.megatron.GPTDataset(prefix, num_samples=wanted, masks=masks, **options)

        if not (data and share) or num_samples == 0:
            return None
        return headrace.compat.megatron.GPTBlend.of(
            data, num_samples=num_samples, build=build, one_part=not args.data_path
        )

    return lambda num_samples: tuple(map(part, WHOLE, num_samples))


if __name__ == "__main__":
    folder = corpus.make()
    paths = ["0.7", f"{folder}/small/text_document", "0.3", f"{folder}/large/text_document"]
    flags = dict.fromkeys(("eod_mask_loss", "reset_position_ids", "reset_attention_mask"), False)
    flags["create_attention_mask_in_dataloader"] = False
    options = Namespace(data_path=paths, seq_length=128, seed=1234, split="90,10", **flags)
    datasets = provider(options, Namespace(eod=0))([400, 40, 0])
    for name, dataset in zip(WHOLE, datasets, strict=True):
        print(name, None if dataset is None else f"{len(dataset)} samples, the first is {dataset[0]['tokens'][:4]}")
