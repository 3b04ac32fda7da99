"""Datasets of numbers, some broken, and task encoders whose outputs, lengths and groups are drawn by number."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from energon_prepared import prepared
from headrace import MediaDataset
from headrace.datasets.encoded.samples import Encoder
from headrace.encoders import Cooker, SkipSample, TaskEncoder, basic_sample_keys, bound_cookers, stateless

CONFIG = "{__module__: megatron.energon, __class__: CrudeWebdataset, subflavors: {kind: numbers}}\n"


def numbers(root: Path, count: int, broken: Iterable[int] = (), per_shard: int = 40) -> Path:
    """Samples 0 .. count - 1 in shards, each a JSON object; of broken ones the JSON is not whole."""
    bad = set(broken)

    def member(number: int) -> tuple[str, bytes]:
        return f"s/{number:04d}.json", b"{" if number in bad else json.dumps({"number": number}).encode()

    shards = {
        f"{first:04d}.tar": [member(number) for number in range(first, min(first + per_shard, count))]
        for first in range(0, count, per_shard)
    }
    prepared(root, shards)
    (root / ".nv-meta" / "dataset.yaml").write_text(CONFIG)
    return root


@stateless
def cook(sample: Any) -> dict[str, Any]:
    return {**basic_sample_keys(sample), "number": sample["json"]["number"]}


class Drawing(TaskEncoder[Any, Any, Any, Any]):
    """Draws outputs by the number of a sample: 0 to ``most``, or a failure."""

    cookers = (Cooker(cook),)
    version = "1"

    def __init__(self, draw: int = 0, most: int = 3, failing: float = 0.1, groups: int = 4) -> None:
        self.draw, self.most, self.failing, self.groups = draw, most, failing, groups

    def facts(self, number: int) -> list[tuple[int, int]]:
        """(length, group) of each output; ValueError where the sample fails."""
        rng = np.random.default_rng([self.draw, number])
        if rng.random() < self.failing:
            raise ValueError(f"number {number} is not liked")
        return [(int(rng.integers(1, 17)), int(rng.integers(self.groups))) for _ in range(rng.integers(self.most + 1))]


class Drawn(Drawing):
    """Gives 0 to ``most`` outputs of a sample; some samples fail in the hook."""

    @stateless
    def encode_sample(self, sample: Any) -> Iterator[Any]:
        for output, (length, group) in enumerate(self.facts(sample["number"])):
            yield {**sample, "output": output, "length": length, "group": group, "noise": self.current_seed % 1000}


class Filter(Drawing):
    """One output or none."""

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        facts = self.facts(sample["number"])
        if not facts:
            raise SkipSample
        return {**sample, "output": 0, "length": facts[0][0], "group": facts[0][1], "noise": self.current_seed % 1000}


class Grouped(Drawn):
    """Outputs in groups, whose batches are of two or three."""

    @stateless
    def batch_group_criterion(self, sample: Any) -> tuple[Any, int | None]:
        return ("group", sample["group"]), 2 + sample["group"] % 2


class Packed(Drawing):
    """Outputs packed by their lengths."""

    @stateless
    def sample_length(self, sample: Any) -> int:
        length: int = sample["length"]
        return length

    @stateless
    def preencode_sample(self, sample: Any) -> Iterator[Any]:
        for output, (length, group) in enumerate(self.facts(sample["number"])):
            yield {**sample, "output": output, "length": length, "group": group}

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        return {**sample, "after": True}

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {
            "__key__": ",".join(sample["__key__"] for sample in samples),
            "members": [(sample["number"], sample["output"]) for sample in samples],
            "length": sum(sample["length"] for sample in samples),
            "after": all(sample["after"] for sample in samples),
        }


class Refusing(Drawing):
    """Cannot be made."""

    def __init__(self) -> None:
        raise ValueError("no tokenizer")


def opened(root: Path, encoder: Encoder) -> MediaDataset:
    return MediaDataset.open(root, decoder=encoder.decoder, cookers=bound_cookers(encoder))


def plain_outputs(encoder: Drawing, count: int, broken: Iterable[int] = ()) -> list[tuple[int, int, int, int]]:
    """(number, output, length, group) of all good samples, one after another."""
    bad, found = set(broken), []
    for number in range(count):
        if number in bad:
            continue
        try:
            facts = encoder.facts(number)
        except ValueError:
            continue
        if isinstance(encoder, Filter):
            facts = facts[:1]
        found += [(number, output, length, group) for output, (length, group) in enumerate(facts)]
    return found
