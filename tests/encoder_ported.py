"""A task encoder in the manner of Energon's documentation: only its import lines would be others there."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.encoders import (
    Batch,
    Cooker,
    DefaultTaskEncoder,
    Sample,
    SkipSample,
    basic_sample_keys,
    batch_list,
    batch_pad_stack,
    edataclass,
    stateless,
)


@edataclass
class NumberSample(Sample):
    values: Any
    text: str
    number: int


@edataclass
class EncodedNumber(Sample):
    values: torch.Tensor
    length: int
    label: torch.Tensor


@edataclass
class NumberRawBatch(Batch):
    values: torch.Tensor
    length: list
    label: torch.Tensor


@edataclass
class NumberBatch(Batch):
    values: torch.Tensor
    mask: torch.Tensor
    label: torch.Tensor


@stateless
def cook_number(sample: dict) -> NumberSample:
    return NumberSample(
        **basic_sample_keys(sample),
        values=sample["npy"],
        text=sample["json"]["text"],
        number=sample["json"]["number"],
    )


class NumberEncoder(DefaultTaskEncoder[NumberSample, EncodedNumber, NumberRawBatch, NumberBatch]):
    cookers = [Cooker(cook_number, has_subflavors={"kind": "numbers"})]  # noqa: RUF012 -- as users write it

    @stateless
    def encode_sample(self, sample: NumberSample) -> EncodedNumber:
        if len(sample.text) > 100:
            raise SkipSample()
        values = torch.as_tensor(np.asarray(sample.values))
        return EncodedNumber.derive_from(
            sample, values=values * 2, length=len(values), label=torch.tensor(sample.number)
        )

    @stateless
    def batch(self, samples: list[EncodedNumber]) -> NumberRawBatch:
        return NumberRawBatch.from_samples(
            samples,
            values=batch_pad_stack([sample.values for sample in samples]),
            length=batch_list([sample.length for sample in samples]),
            label=torch.stack([sample.label for sample in samples]),
        )

    @stateless
    def encode_batch(self, batch: NumberRawBatch) -> NumberBatch:
        widest = batch.values.shape[1]
        mask = torch.stack([torch.arange(widest) < length for length in batch.length])
        return NumberBatch.derive_from(batch, values=batch.values, mask=mask, label=batch.label)
