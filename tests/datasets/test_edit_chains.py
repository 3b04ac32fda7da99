"""Chains of edits over mixes of every kind, by look-ups: what is fed before a step stays, and each sample comes once.

The oracle knows nothing of plans: it looks every position up, before and after each edit, and counts. With
``HEADRACE_TABLES=FOLDER`` what was drawn, and what was refused, is written there by kind.
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
import framed_made
import media_texts
import records_made
from counts import cases
from headrace import (
    Blend,
    ConfigError,
    Exclude,
    MediaDataset,
    Order,
    PackedSequenceDataset,
    Packing,
    Run,
    ScheduledBlend,
    SFTDataset,
    WindowDataset,
)
from headrace.datasets import Concat, Dataset, Limit, Mix, Repeat, Stage, Subset
from headrace.plan import Bucketing

NAMES = ("a", "b", "c", "d")
AHEAD = 260
"""Positions that are looked up behind the last edit."""

Data = Dataset | Mix
Item = tuple[int, int, int]
"""The number of a source, an epoch, and a sample."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Dataset]]:
    """For each kind of data four datasets of different lengths."""
    folder = tmp_path_factory.mktemp("chains")
    stores = [corpora.make(folder / f"t{number}", number, 8 + 9 * number).store for number in range(4)]
    records = [
        records_made.store(folder / f"r{number}", records_made.sft(number, 9 + 8 * number)) for number in range(4)
    ]
    media = [media_texts.shards(folder / f"m{number}", (5 + number, 4, 3 * number + 1)) for number in range(4)]
    places = [media_texts.shards(folder / f"f{number}", (7 + number, 9)) for number in range(2)]
    framed = framed_made.framed_run("singles", places).stream.data
    return {
        "windows": [WindowDataset(store, seq_len=8) for store in stores],
        "packs": [PackedSequenceDataset(store, Packing(seq_len=32, over_long="split")) for store in stores],
        "records": [SFTDataset(store) for store in records],
        "media": [MediaDataset.open(place, **media_texts.TEXT) for place in media],
        "framed": [one for _, one in framed.named()] if isinstance(framed, Mix) else [framed],
    }


def weights(rng: random.Random, names: list[str]) -> dict[str, float]:
    return {name: rng.choice([1, 1, 2, 3, 7]) for name in names}


def endless(rng: random.Random, children: dict[str, Data], **options: Any) -> Blend:
    return Blend(children, weights=weights(rng, list(children)), **options)


def staged(rng: random.Random, children: dict[str, Data], *, ramp: bool) -> ScheduledBlend:
    names = list(children)
    first = rng.sample(names, rng.randrange(1, len(names) + 1))
    until = rng.choice([1, 7, 16, 40])
    stages = [Stage(weights=weights(rng, first), until=until)]
    if ramp:
        until += rng.choice([1, 9, 60])
        stages.append(Stage(weights=weights(rng, names), until=until, ramp=True))
    for _ in range(rng.randrange(3)):
        until += rng.choice([1, 5, 30])
        stages.append(Stage(weights=weights(rng, rng.sample(names, rng.randrange(1, len(names) + 1))), until=until))
    return ScheduledBlend(children, [*stages, Stage(weights=weights(rng, names))])


def nested(rng: random.Random, children: dict[str, Data], make: Callable[[dict[str, Data]], Data]) -> Blend:
    names = list(children)
    inner = {name: children[name] for name in names[: max(1, len(names) - 1)]}
    outer: dict[str, Data] = {"in": make(inner)}
    outer |= {name: children[name] for name in names[len(inner) :]}
    return endless(rng, outer)


MIXES: dict[str, Callable[[random.Random, dict[str, Data]], Data]] = {
    "single": lambda rng, some: next(iter(some.values())),
    "blend": lambda rng, some: endless(rng, some),
    "blocks": lambda rng, some: endless(rng, some, block_samples=rng.choice([2, 4])),
    "by samples": lambda rng, some: endless(rng, some, end="samples", num_samples=rng.choice([30, 97])),
    "first exhausted": lambda rng, some: endless(rng, some, end="first_exhausted"),
    "all exhausted": lambda rng, some: endless(rng, some, end="all_exhausted"),
    "repeats": lambda rng, some: Blend(some, repeats={name: rng.choice([1, 0.5, 2, 1.75]) for name in some}),
    "concat": lambda rng, some: Concat(some),
    "limit": lambda rng, some: Limit(endless(rng, some), rng.choice([3, 20, 64])),
    "limited sources": lambda rng, some: endless(rng, {name: Limit(one, 3) for name, one in some.items()}),
    "repeated sources": lambda rng, some: endless(rng, {name: Repeat(one, 1.5) for name, one in some.items()}),
    "subsets": lambda rng, some: endless(rng, {name: Subset(one, ["10%", "90%"]) for name, one in some.items()}),
    "tree": lambda rng, some: nested(rng, some, lambda inner: endless(rng, inner)),
    "tree with passes": lambda rng, some: nested(rng, some, lambda inner: Concat(inner)),
    "stages": lambda rng, some: staged(rng, some, ramp=False),
    "ramp": lambda rng, some: staged(rng, some, ramp=True),
    "stages in a tree": lambda rng, some: nested(rng, some, lambda inner: staged(rng, inner, ramp=False)),
    "ramp in a limit": lambda rng, some: Limit(staged(rng, some, ramp=True), rng.choice([9, 50])),
}
WITH_PASSES = {"by samples", "first exhausted", "all exhausted", "repeats", "concat", "limit", "ramp in a limit"}
"""These end, so that nothing can be put off or dropped out of their epochs."""

WHOLE = WITH_PASSES | {"limited sources", "repeated sources", "tree with passes"}
"""A node of these counts whole passes of its sources, so that no epoch may become shorter."""

LIMITED = {"limit", "limited sources", "by samples", "first exhausted", "all exhausted", "ramp in a limit"}
"""Here samples of an epoch may never come, and passes may begin a source anew."""

WEIGHTED = {"blend", "blocks", "by samples", "first exhausted", "all exhausted", "tree", "subsets", "stages", "ramp"}
"""These have weights at their root that an edit can change."""

ENDS = {"by samples", "first exhausted", "all exhausted"}


class Chain:
    """A run that is edited, and what the oracle knows of it."""

    def __init__(self, rng: random.Random, kind: str, mix: str, datasets: dict[str, Dataset]) -> None:
        self.rng, self.kind, self.mix, self.datasets = rng, kind, mix, datasets
        self.refused: list[tuple[str, str]] = []
        self.asked: list[str] = []
        self.gone: set[Item] = set()
        self.excluded: dict[int, set[int]] = defaultdict(set)
        self.is_new_mix = False
        self.step = 0
        data = MIXES[mix](rng, dict(datasets))
        options: dict[str, Any] = {}
        self.is_endless = mix not in WITH_PASSES
        if rng.random() < 0.4:
            options["samples"] = rng.choice([180, 400, 1000])
        elif rng.random() < 0.4 and (not self.is_endless or mix == "single"):
            options["epochs"] = rng.choice([1, 3, 9])
        self.window = rng.choice([1, 1, 3]) if kind == "records" else 1
        self.bucketing = Bucketing(window_steps=self.window) if self.window > 1 else None
        self.measure = dict(options)
        self.run = Run(
            data,
            global_batch_size=rng.choice([1, 4, 5, 8]),
            order=self.order(),
            bucketing=self.bucketing,
            **options,
        )

    def order(self) -> Order:
        kinds = ["full", "full", "blocks", "none"] + (["shards"] if self.kind in ("media", "framed") else [])
        return Order(
            kind=self.rng.choice(kinds),  # type: ignore[arg-type]
            seed=self.rng.randrange(3),
            block_samples=3,
            window_blocks=2,
            max_samples_per_sequence=3,
            parallel_shard_iters=2,
        )

    def items(self, run: Run, begin: int, end: int) -> list[Item]:
        """What the positions get, each source by its number in the run; bucketing moves them within windows."""
        plan, _ = run._chaptered
        found = run.plan.lookup(np.arange(begin, end, dtype=np.int64))
        numbers = [plan.source_of[series] for series in found.sources.tolist()]
        return list(zip(numbers, found.epochs.tolist(), found.indices.tolist(), strict=True))

    def edit(self) -> None:
        """Edit the run at a step from the present one on, and check what stays."""
        rng, run = self.rng, self.run
        at = self.step + rng.choice([0, 0, 1, 3, 6])
        at += -at % self.window
        if run.num_steps is not None and at >= run.num_steps:
            return
        what, changed = rng.choice(list(self.edits(at)))
        self.asked.append(what)
        try:
            later = changed()
        except ConfigError as error:
            self.refused.append((what, str(error)))
            return
        begin = run.schedule.begin(at)
        self.step = at + 1
        self.run = later
        assert self.items(later, 0, begin) == self.items(run, 0, begin)
        assert later.past(begin).hashes() == run.past(begin).hashes()
        if "samples" in self.measure and what != "samples":
            skipped = sum(
                run.schedule.begin(edit.at_step + edit.skip_steps) - run.schedule.begin(edit.at_step)
                for edit in later.edits
                if edit.skip_steps and edit.then == "drop"
            )
            if not any(edit.pieces for edit in later.edits):
                assert later.length == self.measure["samples"] - skipped

    def edits(self, at: int) -> Iterator[tuple[str, Callable[[], Run]]]:
        """Yield the edits that make sense for the run at a step."""
        rng, run = self.rng, self.run
        begin = run.schedule.begin(at)
        names = sorted(self.datasets)
        yield "batch", lambda: run.edit(at, global_batch_size=rng.choice([2, 3, 6, [(0, 2), (self.window, 5)]]))
        yield "order", lambda: run.edit(at, order=self.order())
        if self.is_endless:
            yield "samples", lambda: self.measured(run.edit(at, samples=begin + 150), begin + 150)
        count = self.window * rng.choice([1, 2, 3])
        beyond = run.schedule.begin(at + count)
        if run.length is None or beyond <= run.length:
            yield "skip", lambda: self.skipped(at, count, begin, beyond)
            if self.is_endless:
                yield "defer", lambda: run.skip(range(at, at + count), then="defer")
        if self.mix in WEIGHTED and isinstance(run.data, Blend | ScheduledBlend):
            children = sorted(run.data.children)
            mine = {name: rng.choice([1, 2, 5]) for name in children}
            yield "weights", lambda: self.mixed(run.edit(at, weights=mine))
            if len(children) > 1 and self.mix not in ENDS:
                gone = rng.choice(children)
                rest = {name: weight for name, weight in mine.items() if name != gone}
                yield "remove", lambda: self.mixed(run.edit(at, weights=rest, remove=[gone]))
        if self.is_endless and self.mix != "single" and self.mix != "subsets":
            plain = {name: self.datasets[name] for name in rng.sample(names, rng.randrange(1, len(names) + 1))}
            for mix in ("blend", "tree", "stages", "ramp", "stages in a tree"):
                yield (
                    f"data: {mix}",
                    lambda mix=mix: self.mixed(  # type: ignore[misc]
                        run.edit(at, data=MIXES[mix](rng, dict(plain))), mix
                    ),
                )
        if self.mix not in WHOLE and self.mix != "subsets" and not any(edit.exclude for edit in run.edits):
            path, source = rng.choice(sorted(run._chaptered[0].chapters[-1].sources.items()))
            samples = sorted(rng.sample(range(len(self.datasets[path.rpartition("/")[2] or "a"])), 2))
            some = Exclude(samples=samples, how="drop")
            yield "exclude", lambda: self.without(run.edit(at, exclude={path or ".": some}), source, samples)
        if self.kind in ("windows", "packs") and self.mix != "subsets":
            masked = rng.choice(sorted(run._chaptered[0].chapters[-1].sources)) or "."
            yield "mask", lambda: run.edit(at, exclude={masked: Exclude(documents=[1], how="mask", pad_id=0)})

    def measured(self, later: Run, samples: int) -> Run:
        self.measure = {"samples": samples}
        skips = [edit for edit in later.edits if edit.skip_steps and edit.then == "drop"]
        if not skips:
            assert later.length == samples
        return later

    def skipped(self, at: int, count: int, begin: int, beyond: int) -> Run:
        later = self.run.skip(range(at, at + count))
        self.gone |= set(self.items(self.run, begin, beyond))
        return later

    def mixed(self, later: Run, mix: str | None = None) -> Run:
        self.mix = mix or (
            self.mix if isinstance(later.data, Blend) and self.mix not in ("stages", "ramp") else "blend"
        )
        return later

    def without(self, later: Run, source: int, samples: list[int]) -> Run:
        self.excluded[source] |= set(samples)
        return later

    def check(self, limited: bool) -> None:
        """Each sample comes once in each epoch, all of them in those that are over, and accounts say the same."""
        run = self.run
        end = run.schedule.begin(self.step) + AHEAD
        if run.length is not None:
            end = min(end, run.length)
        found = self.items(run, 0, end)
        assert len(set(found)) == len(found), [item for item, count in Counter(found).items() if count > 1][:5]
        assert not self.gone & set(found)
        plan, paths = run._chaptered
        seen: dict[tuple[int, int], set[int]] = defaultdict(set)
        for source, epoch, index in found:
            seen[source, epoch].add(index)
        last = {source: max(epoch for one, epoch in seen if one == source) for source, _ in seen}
        for source, _, index in found[run.schedule.begin(self.step - 1) if self.step else 0 :]:
            assert index not in self.excluded[source] or self.step == 0
        for source, final in () if limited else last.items():
            leaf = plan.leaves[plan.source_of.index(source)]
            whole = set(range(leaf.first_sample, leaf.first_sample + leaf.num_samples))
            for epoch in range(final):
                gone = {index for one, other, index in self.gone if (one, other) == (source, epoch)}
                missing = whole - seen[source, epoch] - gone - self.excluded[source]
                assert not missing, (paths[source], epoch, sorted(missing)[:5])
        for step in {0, self.step, run.schedule.step_of(max(end - 1, 0))}:
            place = run.schedule.begin(step)
            if (run.length is not None and place > run.length) or (self.bucketing is not None and step % self.window):
                continue
            counts = Counter(source for source, _, _ in found[:place])
            account = run.account(step)
            by_name: Counter[str] = Counter()
            for one in account.sources:
                by_name[one.source] += one.fed.samples
            assert sum(by_name.values()) == place == account.fed.samples
            assert sorted(by_name.values()) == sorted([*counts.values(), *[0] * (len(by_name) - len(counts))])


@pytest.mark.parametrize("kind", ["windows", "packs", "records", "media", "framed"])
def test_chains(sources: dict[str, list[Dataset]], kind: str) -> None:
    drawn: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    messages: dict[str, str] = {}
    num_edits = 0
    for seed in range(cases(40, 1_000)):
        rng = random.Random(f"{kind} {seed}")
        mix = list(MIXES)[seed % len(MIXES)]
        datasets = dict(zip(NAMES, rng.sample(sources[kind], rng.randrange(2, len(sources[kind]) + 1)), strict=False))
        chain = Chain(rng, kind, mix, datasets)
        limited = mix in LIMITED
        for _ in range(rng.randrange(1, 6)):
            chain.edit()
        try:
            chain.check(limited)
        except Exception as error:
            error.add_note(f"kind {kind}, seed {seed}, mix {mix}, edits {[one.describe() for one in chain.run.edits]}")
            raise
        drawn[f"mix: {mix}"] += 1
        drawn["bucketing"] += chain.bucketing is not None
        drawn["step 0"] += any(edit.at_step == 0 for edit in chain.run.edits)
        drawn.update(f"edit: {what}" for what in chain.asked)
        num_edits += len(chain.asked)
        for what, message in chain.refused:
            refused[what] += 1
            messages[what] = message
    if folder := os.environ.get("HEADRACE_TABLES"):
        lines = [f"{kind}: {num_edits:,} edits, {refused.total():,} refused"]
        lines += [f"  {name:24} {count:6,}" for name, count in sorted(drawn.items())]
        lines += [f"  refused: {name:15} {count:6,}  {messages[name]:.150}" for name, count in refused.items()]
        Path(folder, f"{kind}.txt").write_text("\n".join(lines) + "\n")
    assert all(drawn[f"mix: {mix}"] for mix in MIXES)
    assert refused.total() < 0.02 * num_edits, messages
