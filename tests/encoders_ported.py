"""Task encoders that filter, draw, group and pack, in the manner of Energon's: only their import line would change."""

from __future__ import annotations

from typing import Any

import torch

from headrace.encoders import (
    Batch,
    DefaultTaskEncoder,
    Sample,
    SkipSample,
    TextSample,
    edataclass,
    stateless,
)


@edataclass
class Number(Sample):
    number: int
    output: int
    draw: float
    index: int


@edataclass
class Pack(Sample):
    numbers: list
    draws: list
    draw: float


@edataclass
class NumberBatch(Batch):
    numbers: list
    outputs: list
    draws: list
    indices: list
    index: int
    draw: float


@edataclass
class PackBatch(Batch):
    numbers: list
    draws: list


def drawn() -> float:
    return float(torch.rand(1))


class Drawing(DefaultTaskEncoder[TextSample, Number, NumberBatch, NumberBatch]):
    """One output for each sample, with a random number, and one for each batch."""

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: TextSample) -> Number:
        return self.number(sample, 0)

    def number(self, sample: TextSample, output: int) -> Number:
        number = int(sample.text[1:])
        return Number.derive_from(sample, number=number, output=output, draw=drawn(), index=self.current_sample_index)

    @stateless(restore_seeds=True)
    def batch(self, samples: list[Number]) -> NumberBatch:
        return NumberBatch.from_samples(
            samples,
            numbers=[sample.number for sample in samples],
            outputs=[sample.output for sample in samples],
            draws=[sample.draw for sample in samples],
            indices=[sample.index for sample in samples],
            index=self.current_batch_index,
            draw=drawn(),
        )


class Plain(Drawing):
    """The same with numbers that nothing is drawn for."""

    @stateless
    def encode_sample(self, sample: TextSample) -> Number:
        number = int(sample.text[1:])
        return Number.derive_from(sample, number=number, output=0, draw=number / 8, index=0)

    @stateless
    def batch(self, samples: list[Number]) -> NumberBatch:
        numbers = [sample.number for sample in samples]
        draws = [sample.draw for sample in samples]
        return NumberBatch.from_samples(
            samples, numbers=numbers, outputs=[], draws=draws, indices=[], index=0, draw=0.0
        )


class Generating(Drawing):
    """None, one or two outputs; every seventh sample is skipped."""

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: TextSample):  # type: ignore[override]
        number = int(sample.text[1:])
        if number % 7 == 3:
            raise SkipSample
        for output in range(number % 3):
            yield self.number(sample, output)


class Grouping(Drawing):
    """Batches of three groups, of two, three and four samples."""

    @stateless
    def batch_group_criterion(self, sample: Number) -> tuple:
        return sample.number % 3, 2 + sample.number % 3


class Packing(Drawing):
    """Neighbours, as many as come to a length of ten."""

    encode_sample = DefaultTaskEncoder.encode_sample

    @stateless(restore_seeds=True)
    def preencode_sample(self, sample: TextSample) -> Number:
        return self.number(sample, 0)

    @stateless
    def select_samples_to_pack(self, samples: list[Number]) -> list:
        packs: list[Any] = [[]]
        room = 10
        for sample in samples:
            length = 1 + sample.number % 5
            if length > room:
                packs.append([])
                room = 10
            packs[-1].append(sample)
            room -= length
        return packs

    @stateless
    def pack_selected_samples(self, samples: list[Number]) -> Pack:
        return Pack.derive_from(
            samples[0],
            numbers=[sample.number for sample in samples],
            draws=[sample.draw for sample in samples],
            draw=0.0,
        )

    @stateless
    def batch(self, samples: list[Pack]) -> PackBatch:
        return PackBatch.from_samples(
            samples, numbers=[sample.numbers for sample in samples], draws=[sample.draws for sample in samples]
        )


class Posting(Packing):
    """The second half of encoding after the choice."""

    @stateless
    def postencode_sample(self, sample: Number) -> Number:
        return Number.derive_from(sample, number=sample.number, output=1, draw=sample.draw + 1, index=sample.index)


class Choosing(Packing):
    """Packs of two, from the front; an odd one is left."""

    @stateless
    def select_samples_to_pack(self, samples: list[Number]) -> list:
        return [samples[at : at + 2] for at in range(0, len(samples) - 1, 2)]


class Failing(Plain):
    """Every fifth sample fails, and every seventh is skipped."""

    @stateless
    def encode_sample(self, sample: TextSample) -> Number:
        number = int(sample.text[1:])
        if number % 5 == 4:
            raise ValueError(f"number {number} is not liked")
        if number % 7 == 3:
            raise SkipSample
        return Number.derive_from(sample, number=number, output=0, draw=0.0, index=0)


class Hopeless(Plain):
    """Every sample fails, and two in a row are too many."""

    @stateless(restore_seeds=True, failure_tolerance=2)
    def encode_sample(self, sample: TextSample) -> Number:
        raise ValueError(sample.text)
