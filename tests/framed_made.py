"""Task encoders of every form that units have, over numbered texts: filters, generators, draws, samples that fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import media_texts
from headrace import Blend, Loader, MediaDataset, Order, ScheduledBlend
from headrace.datasets import Stage
from headrace.datasets.encoded.framed import Framed
from headrace.datasets.encoded.framed_run import FramedRun
from headrace.encoders import ErrorPolicy, SkipSample, TaskEncoder, stateless
from headrace.loader import Ranks
from headrace.plan.framed import FramedForm, ShuffleBuffer
from headrace.plan.packing import Packing

NUMPY: Any = np.random
ROOM = 12

Unit = dict[str, Any]
"""What a unit holds."""


class Numbers(TaskEncoder[Any, Any, Any, Any]):
    """None to three outputs of a number, each with a draw of its own; one in eleven is skipped, one in nine broken."""

    decoder = None

    @stateless(restore_seeds=("numpy",))
    def encode_sample(self, sample: Any) -> Iterator[Any]:
        yield from self.outputs(sample)

    def outputs(self, sample: Any) -> Iterator[Any]:
        number = int(sample.text)
        if number % 11 == 5:
            raise SkipSample
        if number % 9 == 4:
            raise ValueError(f"{number} is broken")
        for output in range((3 * number + 1) % 4):
            yield {"number": number, "output": output, "draw": float(NUMPY.rand()), "__restore_key__": ()}

    @stateless(restore_seeds=("numpy",))
    def encode_batch(self, batch: Any) -> Any:
        return {**batch, "batch_draw": float(NUMPY.rand())}


class Groups(Numbers):
    """Batches of numbers with the same remainder, each remainder with a size of its own."""

    @stateless
    def batch_group_criterion(self, sample: Any) -> tuple[int, int]:
        return sample["number"] % 3, 1 + sample["number"] % 3


class Packs(Numbers):
    """Packs of two neighbours with draws before, within and after; each fifth sample waits."""

    encode_sample = TaskEncoder.encode_sample

    @stateless(restore_seeds=("numpy",))
    def preencode_sample(self, sample: Any) -> Iterator[Any]:
        yield from self.outputs(sample)

    @stateless
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        some = [sample for sample in samples if sample["number"] % 5]
        return [some[first : first + 2] for first in range(0, len(some) - 1, 2)]

    @stateless(restore_seeds=("numpy",))
    def postencode_sample(self, sample: Any) -> Any:
        return {**sample, "draw": sample["draw"] + float(NUMPY.rand())}

    @stateless(restore_seeds=("numpy",))
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        numbers = [(sample["number"], sample["output"]) for sample in samples]
        return {
            "numbers": numbers,
            "draw": sum(sample["draw"] for sample in samples) + float(NUMPY.rand()),
            "__restore_key__": (),
        }


class Lengths(Packs):
    """Packs by best fit, as long as their samples' lengths allow."""

    select_samples_to_pack = TaskEncoder.select_samples_to_pack

    @stateless
    def sample_length(self, sample: Any) -> int:
        return 1 + sample["number"] % ROOM


KINDS: dict[str, tuple[type[Numbers], FramedForm | None]] = {
    "singles": (Numbers, None),
    "buffer": (Numbers, ShuffleBuffer(5)),
    "groups": (Groups, None),
    "packs": (Packs, None),
    "best fit": (Lengths, Packing(seq_len=ROOM)),
}


def framed(
    kind: str, places: list[Path], *, frame_positions: int | None = 6, staged: bool = False, **options: Any
) -> Framed:
    """Units of a kind over one dataset, or a blend of some; ``staged`` mixes them by stages."""
    encoder, form = KINDS[kind]
    datasets = [MediaDataset.open(place, **media_texts.TEXT) for place in places]
    data = datasets[0] if len(datasets) == 1 else _staged(datasets) if staged else _blend(datasets)
    policy = ErrorPolicy(on_error="substitute")
    return Framed(data, encoder(), form=form, frame_positions=frame_positions, errors=policy, **options)


def framed_run(kind: str, places: list[Path], *, staged: bool = False, **options: Any) -> FramedRun:
    """A run of them, in steps of 4 where nothing else is said."""
    given = {"global_batch_size": 4, "order": Order(seed=1), **options}
    return FramedRun(framed(kind, places, staged=staged), **given)


def _staged(datasets: list[MediaDataset]) -> ScheduledBlend:
    named = {f"d{number}": dataset for number, dataset in enumerate(datasets)}
    stages = [
        Stage(weights={"d0": 1}, until=13),
        Stage(weights=dict.fromkeys(named, 1.0), until=40, ramp=True),
        Stage(weights={"d1": 3, "d0": 1}),
    ]
    return ScheduledBlend(named, stages)


def _blend(datasets: list[MediaDataset]) -> Blend:
    named = {f"d{number}": dataset for number, dataset in enumerate(datasets)}
    return Blend(named, weights={name: 1.0 + number for number, name in enumerate(named)})


class Whole:
    """The uninterrupted run, one unit at a time in one process, as far as it was asked for."""

    def __init__(self, run: FramedRun) -> None:
        self.run = run
        self.units: dict[int, Unit] = {}
        loader = Loader(run, micro_batch_size=1, ranks=Ranks())
        self._taken: Iterator[tuple[int, Any]] = ((loader.position, batch) for batch in loader)

    def up_to(self, position: int) -> dict[int, Unit]:
        """The units below a position; some may be missing where the run ends."""
        while len(self.units) < position and (found := next(self._taken, None)) is not None:
            after, batch = found
            self.units[after - 1] = rows_of(batch, is_group=self.run.is_group_batches).get(after - 1, {})
        return {number: unit for number, unit in self.units.items() if number < position and unit}

    def last_step(self) -> int:
        """The last step with a unit."""
        return self.run.schedule.step_of(max(self.up_to(1 << 30)))


def rows_of(batch: dict[str, Any], *, is_group: bool) -> dict[int, Unit]:
    """Unit -> what it holds; what is drawn for a batch is a function of its first unit."""
    numbers = batch.pop("unit_numbers").tolist()
    if not numbers:
        return {}
    drawn = batch.pop("batch_draw")
    if is_group:
        return {numbers[0]: {**batch, "batch_draw": drawn}}
    rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
    found = dict(zip(numbers, rows, strict=True))
    found[numbers[0]]["batch_draw"] = drawn
    return found
