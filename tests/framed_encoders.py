"""Task encoders of every kind for framed sources: filters, generators, groups and packs, all with random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from energon_prepared import prepared
from headrace.encoders import Cooker, SkipSample, TaskEncoder, stateless
from headrace.plan.framed import FramedForm, ShuffleBuffer
from headrace.plan.measured import Grouping
from headrace.plan.packing import Packing

NUMPY: Any = np.random
CONFIG = "{__module__: megatron.energon, __class__: CrudeWebdataset}\n"


def numbers(root: Path, count: int, *, first: int = 0, broken: tuple[int, ...] = ()) -> Path:
    """Crude samples that hold a number each, in shards of six; the JSON of some is broken."""
    names = range(first, first + count)
    members = [(f"{n:04d}.json", b"{" if n in broken else b'{"n": %d}' % n) for n in names]
    prepared(root, {f"{at:03d}.tar": members[at : at + 6] for at in range(0, count, 6)})
    (root / ".nv-meta" / "dataset.yaml").write_text(CONFIG)
    return root


@stateless
def cook(crude: Any) -> dict[str, Any]:
    names = ("__key__", "__restore_key__", "__subflavors__", "__sources__")
    return {**{name: crude[name] for name in names}, "n": crude["json"]["n"]}


class Several(TaskEncoder[Any, Any, Any, Any]):
    """None to two outputs of each sample, and a few samples are skipped."""

    cookers = (Cooker(cook),)

    @stateless(restore_seeds=("numpy",))
    def preencode_sample(self, sample: Any) -> Iterator[Any]:
        if sample["n"] % 11 == 3:
            raise SkipSample
        for k in range((sample["n"] * 7 + 1) % 3):
            yield {**sample, "k": k, "noise": float(NUMPY.rand()), "length": 1 + int(NUMPY.randint(9))}

    @stateless(restore_seeds=("numpy",))
    def encode_batch(self, batch: Any) -> Any:
        return {**batch, "of_batch": float(NUMPY.rand())}


class Grouped(Several):
    """Groups of their own sizes."""

    @stateless
    def batch_group_criterion(self, sample: Any) -> tuple[str, int]:
        if sample["n"] % 13 == 5:
            raise SkipSample
        group = sample["n"] % 3
        return "abc"[group], 2 + group


class Sized(Several):
    """Groups of one size."""

    @stateless
    def batch_group_criterion(self, sample: Any) -> tuple[tuple[int, ...], None]:
        return (sample["n"] % 4,), None


class Packed(Several):
    """Pairs of neighbours, some of which are left for the next frame."""

    @stateless(restore_seeds=("numpy",))
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        order = [samples[at] for at in NUMPY.permutation(len(samples)).tolist()]
        taken = [sample for sample in order if sample["n"] % 5]
        return [taken[at : at + 2] for at in range(0, len(taken) - 1, 2)]

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        return {**sample, "post": sample["noise"] / 2}

    @stateless(restore_seeds=("numpy",))
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return self._pack(samples)

    def _pack(self, samples: list[Any]) -> dict[str, Any]:
        columns = {name: [sample[name] for sample in samples] for name in ("n", "k", "noise", "post")}
        return {"__key__": "+".join(sample["__key__"] for sample in samples), **columns, "drawn": float(NUMPY.rand())}


class Torn(Packed):
    """None to two packs of each selection."""

    @stateless(restore_seeds=("numpy",))
    def pack_selected_samples(self, samples: list[Any]) -> Iterator[Any]:
        if samples[0]["n"] % 7 == 2:
            raise SkipSample
        for _ in range(samples[0]["n"] // 3 % 3):
            yield self._pack(samples)


class Fitted(Packed):
    """Packs by best fit over lengths."""

    @stateless
    def sample_length(self, sample: Any) -> int:
        return int(sample["length"])


KINDS: dict[str, tuple[type[Several], FramedForm | None]] = {
    "singles": (Several, None),
    "buffer": (Several, ShuffleBuffer(5)),
    "groups": (Grouped, None),
    "sized": (Sized, Grouping(size=3)),
    "packs": (Packed, None),
    "torn": (Torn, None),
    "fitted": (Fitted, Packing(seq_len=12)),
}
"""Encoder and form of each kind."""
