"""A run of every kind over small fixed data, and what is kept of it: its file, its states, and what comes next."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash

import corpora
import fim_toy
import framed_made
import headrace
import measured_made
import media_texts
from headrace import BatchSchedule, Blend, Loader, Order, Packing, Run
from headrace.compat import energon, megatron
from headrace.datasets import Concat
from headrace.datasets.encoded import EncodedDataset
from headrace.datasets.encoded.framed_run import FramedRun
from headrace.encoders import DefaultTaskEncoder
from headrace.loader import Balance, Ranks, Reading
from headrace.plan import Bucketing, Plan
from headrace.stores import KeyedWriter
from headrace.tracing import save_run

NUM_SAMPLES = 64
BEFORE = 40
"""Samples that are given before a state is saved."""


DTYPES = {"ids": "uint16", "mask": "uint8", "reward": "float32"}


class Case(NamedTuple):
    """A run, and the arguments of its loader."""

    run: Run | FramedRun
    micro_batch_size: int = 2
    options: Mapping[str, Any] = MappingProxyType({})


def lengths_of(count: int, *, step: int, most: int, least: int = 0) -> np.ndarray:
    """(count,) lengths from ``least`` to ``most``, by a formula: no generator of random numbers may change them."""
    return least + np.arange(count) * step % (most - least + 1)


def tokens_of(length: int, seed: int) -> np.ndarray:
    return ((np.arange(length) * 7919 + seed * 104_729) % 50_021).astype(np.uint16)


def indexed(name: str, count: int = 60, *, step: int = 37, most: int = 57) -> headrace.stores.Store:
    """A pair of ``count`` documents in the current folder."""
    prefix = Path("data") / name
    if not prefix.with_suffix(".idx").exists():
        lengths = lengths_of(count, step=step, most=most)
        corpora.write(prefix, [tokens_of(int(length), seed + len(name)) for seed, length in enumerate(lengths)])
    return headrace.open(prefix)


def keyed(name: str, keys: dict[str, str], count: int = 50, *, most: int = 40) -> headrace.stores.Store:
    """A keyed store: a key's values are ids, marks (parallel to the key before it), or one reward a record."""
    folder = Path("data") / name
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        dtypes = {key: DTYPES[kind] for key, kind in keys.items()}
        with KeyedWriter(folder, dtypes=dtypes) as writer:
            values: dict[str, np.ndarray] = {}
            lengths: dict[str, np.ndarray] = {}
            before = np.zeros(count, np.int64)
            for number, (key, kind) in enumerate(keys.items()):
                if kind == "ids":
                    before = lengths[key] = lengths_of(count, step=7 + 4 * number, most=most, least=6)
                    values[key] = tokens_of(int(before.sum()), number)
                elif kind == "mask":
                    lengths[key] = before
                    values[key] = (np.arange(before.sum()) % 5 > 1).astype(np.uint8)
                else:
                    lengths[key] = np.ones(count, np.int64)
                    values[key] = (np.arange(count) % 11).astype(np.float32)
            writer.add_documents(values, lengths)
            writer.finish()
    return headrace.open(folder)


def texts(name: str, counts: tuple[int, ...] = (20, 11, 9)) -> Path:
    folder = Path("media") / name
    return folder if folder.exists() else media_texts.shards(folder, counts)


def run_of(data: Any, *, size: int = 8, **options: Any) -> Run:
    given = {"order": Order(seed=3), "samples": 400, **options}
    return Run(data, global_batch_size=size, **given)


def windows(name: str = "a", **options: Any) -> headrace.WindowDataset:
    return headrace.WindowDataset(indexed(name), **{"seq_len": 16, **options})


def blend(**options: Any) -> Blend:
    given = options or {"weights": {"a": 0.5, "bb": 0.3, "ccc": 0.2}}
    return Blend({name: windows(name) for name in ("a", "bb", "ccc")}, **given)


def packs(strategy: str, **options: Any) -> headrace.PackedSequenceDataset:
    given = {"seq_len": 24, "strategy": strategy, **options}
    if strategy in ("best_fit", "first_fit", "greedy"):
        given.setdefault("over_long", "truncate_right")
    return headrace.PackedSequenceDataset(indexed("dddd", 90, step=17, most=29), Packing(**given), plan_folder="plans")


def gpt(**options: Any) -> megatron.GPTDataset:
    indexed("a")
    given = {"sequence_length": 16, "num_samples": 400, "seed": 5, "split": "90,10,0", **options}
    return megatron.GPTDataset("data/a", **given)


SFT = {"tokens": "ids", "loss_mask": "mask"}
GROUPS = {"prompts": "ids", "responses": "ids", "masks": "mask", "rewards": "reward"}
PAIRS = {"chosen": "ids", "chosen_mask": "mask", "rejected": "ids", "rejected_mask": "mask"}


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "input_ids": sample["input_ids"] * 2}


KINDS: dict[str, Callable[[], Case]] = {
    "windows": lambda: Case(run_of(windows())),
    "windows, stride and phase": lambda: Case(run_of(windows(stride=8, phase=3))),
    "windows, loss mask": lambda: Case(run_of(headrace.WindowDataset(keyed("sft", SFT), seq_len=16))),
    "windows, labels of the same place": lambda: Case(run_of(windows(labels="same"))),
    "windows, blocks": lambda: Case(
        run_of(windows(), order=Order(kind="blocks", seed=3, block_samples=8, window_blocks=2))
    ),
    "windows, in order": lambda: Case(run_of(windows(), order=Order(kind="none"))),
    "windows, epochs": lambda: Case(run_of(windows(), samples=None, epochs=3)),
    "windows, endless": lambda: Case(run_of(windows(), samples=None)),
    "windows, ramp": lambda: Case(
        Run(
            windows(),
            global_batch_size=BatchSchedule.ramp_up(start=4, increment=4, samples=96, global_batch_size=16),
            order=Order(seed=3),
            samples=400,
        )
    ),
    "windows, two ranks": lambda: Case(run_of(windows()), options={"ranks": Ranks(1, 2)}),
    "windows, shards": lambda: Case(
        run_of(windows(), order=Order(kind="shards", seed=3, max_samples_per_sequence=10, parallel_shard_iters=2))
    ),
    **{
        f"packs, {strategy}": (lambda strategy=strategy: Case(run_of(packs(strategy))))  # type: ignore[misc]
        for strategy in ("best_fit", "best_fit_split", "first_fit", "greedy", "wrapped")
    },
    "packs, exchanged": lambda: Case(run_of(packs("best_fit", repack=True))),
    "packs, neighbours": lambda: Case(run_of(packs("best_fit_split", window_documents=16))),
    "packs, loss mask": lambda: Case(
        run_of(
            headrace.PackedSequenceDataset(
                keyed("sft", SFT), Packing(seq_len=64, strategy="best_fit_split"), plan_folder="plans"
            )
        )
    ),
    "blend": lambda: Case(run_of(blend())),
    "blend, two ranks": lambda: Case(run_of(blend()), options={"ranks": Ranks(0, 2)}),
    "blend, nested": lambda: Case(
        run_of(
            Blend(
                {
                    "deep": Blend({"a": windows("a"), "bb": windows("bb")}, weights={"a": 1, "bb": 2}),
                    "c": windows("ccc"),
                },
                weights={"deep": 3, "c": 1},
            )
        )
    ),
    "blend, by tokens": lambda: Case(run_of(blend(weights={"a": 3, "bb": 2, "ccc": 1}, unit="tokens"))),
    "blend, first exhausted": lambda: Case(
        run_of(blend(weights={"a": 3, "bb": 2, "ccc": 1}, end="first_exhausted"), samples=None)
    ),
    "blend, all exhausted": lambda: Case(
        run_of(blend(weights={"a": 3, "bb": 2, "ccc": 1}, end="all_exhausted"), samples=None)
    ),
    "blend, repeats": lambda: Case(run_of(blend(repeats={"a": 1, "bb": 1.5, "ccc": 2}), samples=None)),
    "schedule": lambda: Case(
        run_of(
            headrace.ScheduledBlend(
                {"a": windows("a"), "bb": windows("bb")},
                [
                    headrace.datasets.Stage(weights={"a": 3, "bb": 1}, until=50),
                    headrace.datasets.Stage(weights={"bb": 1}, until=90, ramp=True),
                    headrace.datasets.Stage(weights={"a": 1, "bb": 1}),
                ],
            )
        )
    ),
    "batches of one source": lambda: Case(
        run_of(
            energon.BlendDataset({"a": windows("a"), "bb": windows("bb")}, weights={"a": 2, "bb": 1}, block_samples=8)
        )
    ),
    "limit, repeat, subset": lambda: Case(
        run_of(
            Blend(
                {
                    "limited": headrace.datasets.Limit(windows("a"), 40),
                    "repeated": headrace.datasets.Repeat(windows("bb"), 2),
                    "part": headrace.datasets.Subset(windows("ccc"), ["10%", "60%"]),
                },
                weights={"limited": 1, "repeated": 1, "part": 1},
            )
        )
    ),
    "concat": lambda: Case(run_of(Concat({"a": windows("a"), "bb": windows("bb")}), samples=None)),
    "mapped": lambda: Case(run_of(headrace.MapDataset(windows(), doubled))),
    "megatron": lambda: Case(run_of(gpt(), order=Order(kind="none"))),
    "megatron, blend": lambda: Case(
        run_of(
            megatron.GPTBlend([gpt(), gpt(seed=6)], weights=[0.7, 0.3], size=300),
            order=Order(kind="none"),
            samples=300,
        )
    ),
    "megatron, cyclic": lambda: Case(
        run_of(
            megatron.CyclicDataset(gpt(), micro_batch_size=2, data_parallel_size=2),
            order=Order(kind="none"),
        )
    ),
    "megatron, fill in the middle": lambda: Case(run_of(rearranged(), order=Order(kind="none"), samples=300)),
    "megatron, mock": lambda: Case(
        run_of(
            megatron.MockGPTDataset(sequence_length=16, num_samples=300, seed=5, split="1", vocab_size=100, eod=99),
            order=Order(kind="none"),
            samples=300,
        )
    ),
    "supervised": lambda: Case(run_of(headrace.SFTDataset(keyed("sft", SFT)), size=4)),
    "preferences": lambda: Case(run_of(headrace.PreferenceDataset(keyed("pairs", PAIRS)), size=4)),
    "groups": lambda: Case(run_of(headrace.GroupDataset(keyed("groups", GROUPS)), size=4)),
    "prompts": lambda: Case(run_of(headrace.PromptDataset(keyed("prompts", {"prompts": "ids"})), size=4)),
    "bucketing": lambda: Case(
        run_of(headrace.SFTDataset(keyed("sft", SFT)), size=8, bucketing=Bucketing(window_steps=4), samples=192)
    ),
    "balance": lambda: Case(run_of(headrace.SFTDataset(keyed("sft", SFT)), size=8), options={"balance": Balance()}),
    "media": lambda: Case(run_of(headrace.MediaDataset.open(texts("t"), **media_texts.TEXT), size=4)),
    "encoded": lambda: Case(
        run_of(EncodedDataset(headrace.MediaDataset.open(texts("t"), **media_texts.TEXT), DefaultTaskEncoder()), size=4)
    ),
    "measured": lambda: Case(run_of(measured(measured_made.Drawn()), size=4)),
    "measured, groups": lambda: Case(run_of(measured(measured_made.Grouped()), size=4), micro_batch_size=1),
    "measured, packs": lambda: Case(
        run_of(measured(measured_made.Packed(), form=Packing(seq_len=24, strategy="best_fit")), size=4)
    ),
    **{
        f"framed, {kind}": (  # type: ignore[misc]
            lambda kind=kind: Case(
                framed_made.framed_run(kind, [texts("t"), texts("u", (13, 30))]),
                micro_batch_size=1 if kind == "groups" else 2,
            )
        )
        for kind in framed_made.KINDS
    },
}


def measured(encoder: Any, **options: Any) -> headrace.MeasuredDataset:
    root = Path("media/numbers")
    if not root.exists():
        measured_made.numbers(root, 120)
    data = measured_made.opened(root, encoder)
    facts = headrace.datasets.measure(data, encoder, folder="media/facts")
    return headrace.MeasuredDataset(data, encoder, facts, **options)


def rearranged() -> megatron.GPTFIMDataset:
    prefix = Path("data/fim")
    if not prefix.with_suffix(".idx").exists():
        ends = lengths_of(80, step=11, most=23)
        corpora.write(prefix, [np.append(np.arange(size) * 3 % 7, fim_toy.EOD).astype(np.uint16) for size in ends])
    plain = megatron.GPTDataset(prefix, sequence_length=24, num_samples=400, seed=5, split="1")
    return megatron.GPTFIMDataset(
        plain, megatron.FillInTheMiddle(tokens=fim_toy.tokens(), codec=fim_toy.CODEC, rate=0.8)
    )


def edited_blend() -> Run:
    """A mix that changes before and behind the saved state: weights, a new source, one that goes and comes back."""
    more = {"eeeee": windows("eeeee", stride=8)}
    run = run_of(blend(), samples=800).edit(2, weights={"a": 1, "bb": 1, "ccc": 2, "eeeee": 1}, add=more)
    return run.edit(4, remove=["a"]).edit(7, weights={"a": 2, "bb": 1, "ccc": 1, "eeeee": 1}, add={"a": windows("a")})


EDITED: dict[str, Callable[[], Case]] = {
    "weights and sources": lambda: Case(edited_blend()),
    "batch sizes and order": lambda: Case(
        run_of(windows(), samples=None)
        .edit(3, global_batch_size=[(0, 12), (4, 16)], order=Order(seed=9))
        .edit(9, global_batch_size=8)
    ),
    "skips": lambda: Case(run_of(windows()).skip(range(2, 5)).skip(range(9, 11), then="defer")),
    "masked documents": lambda: Case(
        run_of(windows())
        .edit(3, exclude={".": headrace.Exclude(documents=[2, 3, 17], pad_id=0)})
        .edit(8, exclude={".": headrace.Exclude(documents=[30], pad_id=0)})
    ),
    "dropped documents": lambda: Case(
        run_of(packs("best_fit"), samples=None).edit(3, exclude={".": headrace.Exclude(documents=[2, 40], how="drop")})
    ),
    "other windows": lambda: Case(run_of(windows(), samples=None).edit(4, data=windows(stride=8)).edit(8, samples=600)),
}
"""Runs that are edited, some of them behind the state that is saved."""


NOT_MADE = {
    "framed": "is framed",
    "measured": "a recipe of the kind 'measured'",
    "megatron, blend": "it has no single store|a recipe of the kind 'gpt_blend'",
    "megatron, cyclic": "a recipe of the kind 'megatron_cyclic'",
    "megatron, fill in the middle": "a recipe of the kind 'gpt_fim'",
    "megatron": "a recipe of the kind 'gpt'",
}
"""How the names of kinds begin whose runs are not made again from a file, and why."""


def loader_of(case: Case, **options: Any) -> Loader:
    given = {"reading": Reading(num_threads=0), **case.options, **options}
    return Loader(case.run, micro_batch_size=case.micro_batch_size, **given)


def digest(value: Any) -> str:
    """A hash of a batch, or of a part of one: of names, dtypes, shapes and bytes."""
    hasher = xxhash.xxh3_128()
    for part in _parts(value):
        hasher.update(part)
        hasher.update(b"\0")
    return hasher.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        yield f"{value.dtype.str}{value.shape}".encode()
        if value.dtype == object:
            for one in value.reshape(-1):
                yield from _parts(one)
        else:
            yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, dict):
        for name in sorted(value):
            yield name.encode()
            yield from _parts(value[name])
    elif hasattr(value, "_asdict"):
        # By its names, as when the goldens were made and it was no tuple.
        yield repr(value).encode()
    elif isinstance(value, list | tuple):
        yield f"{len(value)}".encode()
        for one in value:
            yield from _parts(one)
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from _parts(vars(value))
    else:
        yield repr(value).encode()


def coming(loader: Loader, num_samples: int = NUM_SAMPLES) -> Iterator[tuple[list[int], str]]:
    """Positions and hash of the batches that come next, until they are as many samples."""
    seen = 0
    for batch in loader:
        positions = np.asarray(batch["sample_positions"]).tolist() if "sample_positions" in batch else []
        yield positions, digest(batch)
        seen += len(positions) or loader._share.micro_batch_size
        if seen >= num_samples:
            return


def samples_of(plan: Plan, position: int) -> list[list[int]]:
    """Source, epoch and index at the positions from this one on."""
    found = plan.lookup(np.arange(position, position + NUM_SAMPLES))
    return np.stack([found.sources, found.epochs, found.indices], 1).tolist()  # type: ignore[no-any-return]


def file_name(kind: str) -> str:
    return kind.replace(", ", "-").replace(" ", "_") + ".json"


def written(found: dict[str, Any]) -> str:
    """As text, a line for each batch and each sample."""
    lines = [f"{json.dumps(name)}: {_lines(value)}" for name, value in found.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _lines(value: Any) -> str:
    if isinstance(value, list):
        return "[\n" + ",\n".join(json.dumps(one) for one in value) + "\n]"
    return json.dumps(value, indent=1)


def golden(case: Case) -> dict[str, Any]:
    """What is kept of a run, as JSON: states at its begin and after some samples, its file, and what comes next."""
    loader = loader_of(case)
    first = loader.state_dict()
    for _ in coming(loader, BEFORE):
        pass
    state = loader.state_dict()
    save_run(case.run, "run.json", position=0)
    found = {
        "run": {**json.loads(Path("run.json").read_text()), "folder": "/"},
        "first": first,
        "state": state,
        "next": [[*one] for one in coming(loader)],
        "samples": [] if isinstance(case.run, FramedRun) else samples_of(case.run.plan, state["position"]),
    }
    loader.close()
    Path("run.json").unlink()
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]
