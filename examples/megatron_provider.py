"""Megatron's ``train_valid_test_datasets_provider`` from Headrace: the same samples, without indices or caches.

In ``pretrain_gpt.py``: ``from headrace.integrations.megatron import train_valid_test_datasets_provider``. Here, without
Megatron, its arguments are made by hand.
"""

from argparse import Namespace

import corpus

from headrace.integrations.megatron import datasets

folder = corpus.make()
args = Namespace(data_path=["0.7", f"{folder}/small/text_document", "0.3", f"{folder}/large/text_document"])
vars(args).update(seq_length=128, seed=1234, split="90,10", eod_mask_loss=False, reset_position_ids=False)
vars(args).update(reset_attention_mask=False, create_attention_mask_in_dataloader=False)
for name, dataset in zip(("train", "valid", "test"), datasets(args, Namespace(eod=0), [400, 40, 0]), strict=True):
    print(name, None if dataset is None else f"{len(dataset)} samples, the first is {dataset[0]['tokens'][:4]}")
