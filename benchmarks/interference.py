"""What a loader costs the loop that launches kernels: lost launches, late ones, and time lost a step. CPU only.

    python benchmarks/interference.py [--quick] [--runs 20] [--pairs 3] [--seconds 1] [--only "tokens;images"]
                                      [--engines "a;b"]

A GPU waits when the training thread cannot launch its next kernel in time, so what counts is not how fast data come but
how often Python holds the launching thread up. The main thread "launches" small kernels: a spin in C of 20 us with the
interpreter lock held, as the Python and C++ of an eager op, and then a call that releases the lock, as the launch does.
It takes a batch each step, at a fixed rate, beside each loader, in pairs that are interleaved with an idle loop which
takes none. Every engine runs in a process of its own.

``lost`` is the share of launches that the loop makes less beside the loader: the mean over all pairs, with the 95 %
interval of Student's t; ``lost_ms_a_step`` the same in time. ``p99.9`` and ``max`` are times between two launches
within a step, in microseconds, beside the loader and, ``idle``, without it. ``taking`` is the part of ``lost`` in which
the loop waited for the batch itself.

``idle, again`` is a loader that does nothing, so it shows the noise of the machine. torch's loader, Grain and SPDL read
the samples of Headrace's data sets one by one, and collate them with its function; litdata and Energon read files of
their own. Peers that are not installed are left out, and named.

The claim beside token windows is of ``--runs`` runs, each a process of its own: the median and the 90th percentile of
what they lose. Runs of ``idle, again``, in turns with them, show how much of that is the machine's. For other kinds the
claim is about what a loader loses more than ``idle, again`` of the same kind: the difference of the two means, with the
interval that their two intervals add up to (the root of the sum of squares). It holds if the difference is below 2 %,
or not distinguishable from 0. If the interval reaches further than 2 % to either side, the machine was too busy to
tell, and the claim is ``open``.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain, pairwise, repeat
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, NamedTuple

import common
import load
import numpy as np

import headrace
from headrace.datasets.encoded import EncodedDataset
from headrace.encoders import TaskEncoder, stateless
from headrace.loader import Ranks, Reading, collate_fn
from headrace.samples.media import CaptioningSample, SampleDecoder, TextSample
from headrace.stores import KeyedWriter
from headrace.stores.tar.writer import TarWriter

REASONS = {
    "90th percentile": (
        "In a bad run the launching thread meets the reading thread more often, since both need the interpreter's lock."
    ),
    "median": (
        "Most of it is the loop waiting for each read; not waiting costs more, since both threads need the"
        " interpreter's lock."
    ),
    "launches lost": "What is made in Python for each sample holds the interpreter's lock, which launches need.",
}
DEPENDS = (
    "What is lost depends on the rate of the steps and on what is made in Python for a sample. Here are two cores, on"
    " which workers and the launching thread also meet."
)
SPIN_US = 20.0
SEQ_LEN = 2_048
SETTLE_S = 0.2
GOAL, WORST_GOAL = 2.0, 4.0
"""Percent of launches: the mean or the median, and the 90th percentile."""
T_975 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 19: 2.093}
"""Quantiles of Student's t, by degrees of freedom; for others the normal one is near enough."""

C = """
#include <time.h>
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}
/* Spins with the lock held; returns when it began, in microseconds. */
double spin(double us) { double begin = now(); while (now() - begin < us) {} return begin; }
void launch(void) {}
"""


class Kind(NamedTuple):
    """Samples a step, and steps a second: what a training step of this kind takes."""

    batch: int
    steps_per_s: float


KINDS = {
    "tokens": Kind(64, 20.0),
    "packs": Kind(64, 20.0),
    "chats": Kind(64, 20.0),
    "images": Kind(64, 2.0),
    "encoder": Kind(64, 4.0),
}


class Launcher:
    """Launches, and notes when. ``spin`` is called with the interpreter lock held, ``launch`` without it."""

    def __init__(self, library: str, most: int) -> None:
        self._spin: Any = ctypes.PyDLL(library).spin
        self._spin.argtypes, self._spin.restype = [ctypes.c_double], ctypes.c_double
        self._launch: Any = ctypes.CDLL(library).launch
        self._launch.argtypes, self._launch.restype = [], None
        self._begins = np.zeros(most)

    def run(self, batches: Iterator[Any], steps: int, step_s: float) -> tuple[int, float, np.ndarray[Any, Any]]:
        """Run steps; returns the launches, the seconds of taking batches, and the times between launches."""
        spin, launch, begins = self._spin, self._launch, self._begins
        count, taking_s, firsts = 0, 0.0, [0]
        due = perf_counter()
        for _ in range(steps):
            before = perf_counter()
            next(batches)
            taking_s += perf_counter() - before
            # The step ends by the clock, whatever it lost: the data rate stays the same, and launches are missing.
            due += step_s
            while perf_counter() < due:
                begins[count] = spin(SPIN_US)
                launch()
                count += 1
            firsts.append(count)
        gaps = [np.diff(begins[first:last]) for first, last in pairwise(firsts)]
        return count, taking_s, np.concatenate(gaps)


def write_images(path: Path, count: int) -> None:
    import io

    from PIL import Image

    rng = np.random.default_rng(0)
    with TarWriter(path) as tar:
        for number in range(count):
            # Noise that was enlarged: about as many bytes a pixel as a photograph.
            small = Image.fromarray(rng.integers(0, 255, (48, 48, 3), dtype=np.uint8))
            stream = io.BytesIO()
            small.resize((256, 256), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=85)
            tar.add(f"{number:05d}", {"jpg": stream.getvalue(), "txt": f"a picture, number {number}".encode()})


def write_texts(path: Path, count: int) -> None:
    with TarWriter(path) as tar:
        for number in range(count):
            tar.add(f"{number:05d}", {"txt": (f"word{number} and another " * 80).encode()})


def write_chats(prefix: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(50, 1_000, count)
    tokens = rng.integers(1, 50_000, int(lengths.sum()), dtype=np.uint16)
    masks = (rng.random(len(tokens)) < 0.5).astype(np.uint8)
    masks[np.cumsum(lengths) - 1] = 1
    with KeyedWriter(prefix, dtypes={"tokens": "uint16", "loss_mask": "uint8"}) as writer:
        writer.add_documents({"tokens": tokens, "loss_mask": masks}, {"tokens": lengths, "loss_mask": lengths})
        writer.finish()


def write(folder: Path, kinds: list[str], *, quick: bool) -> None:
    few = 10 if quick else 1
    if {"tokens", "packs"} & {*kinds}:
        load.write_tokens(folder / "tokens", 64_000_000 // few)
    if "chats" in kinds:
        (folder / "chats").mkdir()
        write_chats(folder / "chats" / "shard_0000", 20_000 // few)
    if "images" in kinds:
        write_images(folder / "images.tar", 4_000 // few)
    if "encoder" in kinds:
        write_texts(folder / "texts.tar", 4_000 // few)


class Characters(TaskEncoder[Any, Any, Any, Any]):
    """An encoder as users write them: a loop in Python, about a third of a millisecond a sample."""

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        """Make ids of the characters."""
        ids, state = [], 0
        for character in sample.text:
            state = (state * 31 + ord(character)) % 50_000
            ids.append(state)
        return {"input_ids": np.array(ids, np.int64)}


def dataset_of(kind: str, folder: Path) -> Any:
    if kind == "tokens":
        return headrace.WindowDataset(headrace.open(str(folder / "tokens")), seq_len=SEQ_LEN)
    if kind == "packs":
        packing = headrace.Packing(seq_len=SEQ_LEN, strategy="best_fit_split")
        return headrace.PackedSequenceDataset(headrace.open(str(folder / "tokens")), packing)
    if kind == "chats":
        return headrace.SFTDataset(headrace.open(str(folder / "chats")))
    if kind == "images":
        fields = {"image": "jpg", "caption": "txt"}
        decoder = SampleDecoder(image_decode="chwrgb8")
        return headrace.MediaDataset.open(
            folder / "images.tar", sample_type=CaptioningSample, field_map=fields, decoder=decoder
        )
    texts = headrace.MediaDataset.open(folder / "texts.tar", sample_type=TextSample, field_map={"text": "txt"})
    return EncodedDataset(texts, Characters())


Batches = Callable[[str, Path], Iterator[Any]]


def ours(reading: Reading | None) -> Batches:
    def batches(kind: str, folder: Path) -> Iterator[Any]:
        batch = KINDS[kind].batch
        run = headrace.Run(dataset_of(kind, folder), global_batch_size=batch, order=headrace.Order(seed=1))
        return iter(headrace.Loader(run, micro_batch_size=batch, ranks=Ranks(), reading=reading))

    return batches


def torch_loader(num_workers: int) -> Batches:
    def batches(kind: str, folder: Path) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        dataset = dataset_of(kind, folder)
        loader = DataLoader(
            dataset,
            batch_size=KINDS[kind].batch,
            shuffle=True,
            drop_last=True,
            num_workers=num_workers,
            collate_fn=collate_fn(dataset),
            persistent_workers=num_workers > 0,
        )
        return chain.from_iterable(repeat(loader))

    return batches


def grain(kind: str, folder: Path) -> Iterator[Any]:
    """Grain reads in 16 threads of this process by default."""
    import grain.python as pygrain

    dataset = dataset_of(kind, folder)
    collate = collate_fn(dataset)
    source = pygrain.MapDataset.source(dataset).seed(1).shuffle().repeat()
    return iter(source.to_iter_dataset().batch(KINDS[kind].batch, drop_remainder=True, batch_fn=collate))


def spdl(kind: str, folder: Path) -> Iterator[Any]:
    """SPDL reads in threads of this process; two of them, as ours has workers."""
    from spdl.pipeline import PipelineBuilder

    dataset = dataset_of(kind, folder)
    collate, batch = collate_fn(dataset), KINDS[kind].batch
    rng = np.random.default_rng(1)
    indices = chain.from_iterable(rng.permutation(len(dataset)).tolist() for _ in repeat(None))
    pipeline = (
        PipelineBuilder()
        .add_source(indices)
        .aggregate(batch)
        .pipe(lambda some: collate([dataset[one] for one in some]), concurrency=2)
        .add_sink(2)
        .build(num_threads=2)
    )

    def taken() -> Iterator[Any]:
        with pipeline.auto_stop():
            yield from pipeline

    return taken()


def token_slices(place: tuple[str, int, int]) -> Iterator[Any]:
    """Tokens for litdata, which calls this in processes of its own."""
    import torch

    prefix, begin, end = place
    yield torch.from_numpy(np.memmap(f"{prefix}.bin", dtype=np.uint16, mode="r")[begin:end].astype(np.int64))


def write_litdata(folder: Path) -> None:
    from litdata import TokensLoader, optimize

    size = (folder / "tokens.bin").stat().st_size // 2
    places = [(str(folder / "tokens"), begin, min(begin + 1_000_000, size)) for begin in range(0, size, 1_000_000)]
    loader, output = TokensLoader(block_size=SEQ_LEN + 1), str(folder / "litdata")
    optimize(token_slices, places, output, chunk_bytes="64MB", num_workers=1, item_loader=loader, verbose=False)


def litdata(kind: str, folder: Path) -> Iterator[Any]:
    """litdata reads in worker processes of torch's DataLoader."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    if not (folder / "litdata").exists():
        write_litdata(folder)
    tokens = TokensLoader(block_size=SEQ_LEN + 1)
    dataset = StreamingDataset(str(folder / "litdata"), item_loader=tokens, shuffle=True, drop_last=True)
    return chain.from_iterable(repeat(StreamingDataLoader(dataset, batch_size=KINDS[kind].batch, num_workers=2)))


def energon(kind: str, folder: Path) -> Iterator[Any]:
    """Energon decodes in worker processes."""
    import warnings

    from headrace.preparing.energon import DatasetChoice, EnergonOptions, SplitChoice, prepare_energon

    warnings.simplefilter("ignore")
    from megatron.energon import (
        DefaultTaskEncoder,
        SampleDecoder,
        WorkerConfig,
        get_savable_loader,
        get_train_dataset,
    )

    root = folder / "energon"
    if not root.exists():
        root.mkdir()
        shutil.copy(folder / "images.tar", root / "images.tar")
        fields = {"image": "jpg", "caption": "txt"}
        choice = DatasetChoice(sample_type="CaptioningSample", field_map=fields)
        prepare_energon(root, options=EnergonOptions(split=SplitChoice(parts=(("train", ".*"),)), dataset=choice))

    class Encoder(DefaultTaskEncoder):  # type: ignore[misc]
        """Decodes to bytes, as the others."""

        decoder = SampleDecoder(image_decode="torchrgb8")

    dataset = get_train_dataset(
        root,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=2),
        batch_size=KINDS[kind].batch,
        shuffle_buffer_size=None,
        max_samples_per_sequence=100,
        task_encoder=Encoder(),
    )
    return iter(get_savable_loader(dataset))


def nothing(kind: str, folder: Path) -> Iterator[Any]:
    return repeat(None)


RUNS_OF = "tokens"
"""The kind whose claim is of several runs."""
ENGINES: dict[str, tuple[Batches, str | None]] = {
    "idle, again": (nothing, None),
    "headrace": (ours(None), None),
    "headrace, 1 thread": (ours(Reading(num_threads=1)), None),
    "headrace, when asked": (ours(Reading(num_threads=0)), None),
    "headrace, 2 threads": (ours(Reading(num_threads=2)), None),
    "headrace, 2 workers": (ours(Reading(num_workers=2)), None),
    "torch, here": (torch_loader(0), None),
    "torch, 2 workers": (torch_loader(2), None),
    "grain": (grain, "grain"),
    "spdl": (spdl, "spdl"),
    "litdata, 2 workers": (litdata, "litdata"),
    "energon, 2 workers": (energon, "megatron.energon"),
}
"""Engine -> how it makes batches, and the package that it needs."""

DEFAULT = ("headrace", "torch, 2 workers", "grain", "spdl", "litdata, 2 workers", "energon, 2 workers")
KINDS_OF = {"litdata, 2 workers": ["tokens"], "energon, 2 workers": ["images"]}
"""The kinds of data of engines that do not have all."""


def late(gaps: np.ndarray[Any, Any]) -> dict[str, float]:
    """How late launches are, in microseconds; there are none beside a loader that takes all of the time."""
    found = gaps if len(gaps) else np.array([float("nan")])
    return {"p99.9_us": float(np.quantile(found, 0.999)), "max_us": float(found.max())}


def measure(engine: str, kind: str, folder: Path, pairs: int, seconds: float) -> dict[str, Any]:
    step_s = 1 / KINDS[kind].steps_per_s
    steps = max(2, round(seconds / step_s))
    launcher = Launcher(str(folder / "launch.so"), int((steps + 1) * step_s * 1e6 / SPIN_US))
    batches, idle = ENGINES[engine][0](kind, folder), repeat(None)
    for _ in range(3):
        next(batches)
    lost, taking, with_it, without = [], [], [], []
    for pair in range(pairs):
        counts = {}
        for who in ("idle", "busy") if pair % 2 else ("busy", "idle"):
            # What is read ahead is read before the idle loop begins, and nothing is ready that a later step would need.
            sleep(SETTLE_S)
            count, taking_s, gaps = launcher.run(idle if who == "idle" else batches, steps, step_s)
            counts[who] = count
            (without if who == "idle" else with_it).append(gaps)
            if who == "busy":
                taking.append(taking_s / (steps * step_s))
        lost.append(1 - counts["busy"] / counts["idle"])
    busy, alone = np.concatenate(with_it), np.concatenate(without)
    mean = statistics.mean(lost)
    half = T_975.get(pairs - 1, 1.96) * statistics.stdev(lost) / pairs**0.5 if pairs > 1 else float("nan")
    return {
        "engine": engine,
        "kind": kind,
        "lost_%": 100 * mean,
        "from_%": 100 * (mean - half),
        "to_%": 100 * (mean + half),
        "taking_%": 100 * statistics.mean(taking),
        "lost_ms_a_step": 1e3 * mean * step_s,
        **{f"{who}{name}": value for who, gaps in (("", busy), ("idle_", alone)) for name, value in late(gaps).items()},
    }


def build(folder: Path) -> None:
    """Compile the launcher."""
    source = folder / "launch.c"
    source.write_text(C)
    command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", str(folder / "launch.so"), str(source)]
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError:
        raise SystemExit(f"{command[0]} was not found, and this benchmark needs a C compiler: set CC") from None


def spread(engine: str, lost: list[float]) -> dict[str, Any]:
    """The row of several runs with token windows, in percent of launches."""
    low, median, high = np.percentile(lost, (10, 50, 90)).tolist()
    return {"engine": engine, "runs": len(lost), "median_%": median, "p10_%": low, "p90_%": high, "worst_%": max(lost)}


def run_claims(runs: list[dict[str, Any]]) -> list[str]:
    """The claims of the runs with token windows."""
    what = "tokens, % of launches lost at the default way of reading"
    return [
        common.verdict(f"{what}, {name} of {row['runs']} runs", row[column], goal, at_most=True)
        for row in runs
        if row["engine"] == "headrace"
        for name, column, goal in (("median", "median_%", GOAL), ("90th percentile", "p90_%", WORST_GOAL))
    ]


def claims(rows: list[dict[str, Any]]) -> list[str]:
    """The goal for each other kind at the default way of reading: not distinguishable from idle, or below 2 %."""
    found = {(row["engine"], row["kind"]): row for row in rows}
    return [
        claim(row, found["idle, again", kind])
        for (engine, kind), row in found.items()
        if engine == "headrace" and kind != RUNS_OF
    ]


def claim(row: dict[str, Any], idle: dict[str, Any]) -> str:
    more = row["lost_%"] - idle["lost_%"]
    half = math.hypot(*((one["to_%"] - one["from_%"]) / 2 for one in (row, idle)))
    word = "open" if not half <= GOAL else "holds" if more < GOAL or more <= half else "FAILS"
    return (
        f"{word}  {row['kind']}, launches lost at the default way of reading, more than idle: {more:.2f} % (from "
        f"{more - half:.2f} % to {more + half:.2f} %; below {GOAL:g} %, or not distinguishable from 0)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few data, 2 pairs of half a second: for a look only")
    parser.add_argument("--runs", type=int, default=20, help="beside token windows, each of so many pairs")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each half of a pair")
    parser.add_argument("--only", default=";".join(KINDS))
    parser.add_argument("--engines", help=f"of {'; '.join(ENGINES)}; without it, some peers only beside tokens")
    parser.add_argument("--one", nargs=3, metavar=("ENGINE", "KIND", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.runs, options.pairs, options.seconds = 2, 2, 0.5
    if options.one:
        engine, kind, folder = options.one
        print(json.dumps(measure(engine, kind, Path(folder), options.pairs, options.seconds)), flush=True)
        # Peers' threads may be in a call that does not end.
        os._exit(0)
    kinds = [kind.strip() for kind in options.only.split(";")]
    asked = DEFAULT if options.engines is None else options.engines.split(";")
    wanted = list(dict.fromkeys(["idle, again", *(engine.strip() for engine in asked)]))
    kinds_of = {**KINDS_OF, **({"grain": ["tokens"], "spdl": ["tokens"]} if options.engines is None else {})}
    packages = {ENGINES[engine][1] for engine in wanted} - {None}
    missing = sorted(package for package in packages if package and not common.is_there(package))
    engines = [engine for engine in wanted if ENGINES[engine][1] not in missing]
    rows, lost = [], []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        build(folder)
        write(folder, kinds, quick=options.quick)
        sizes = ["--pairs", str(options.pairs), "--seconds", str(options.seconds)]

        def one(engine: str, kind: str) -> dict[str, Any]:
            return common.run_apart(__file__, engine, kind, str(folder), *sizes)

        if RUNS_OF in kinds:
            many = [engine for engine in engines if engine in ("idle, again", "headrace")]
            lost = [{engine: one(engine, RUNS_OF)["lost_%"] for engine in many} for _ in range(options.runs)]
        for kind in kinds:
            for engine in engines:
                if kind in kinds_of.get(engine, kinds):
                    rows.append(one(engine, kind))
                    print(common.table(rows[-1:]).splitlines()[-1], flush=True)
    runs = [spread(engine, [run[engine] for run in lost]) for engine in lost[0]] if lost else []
    print(*(common.table(some) for some in (runs, rows) if some), sep="\n")
    lines = run_claims(runs) + claims(rows)
    if missing:
        lines.append(f"not installed, and left out: {', '.join(missing)}")
    print("\n".join(lines))
    common.save("interference", {"options": vars(options), "runs": runs, "rows": rows, "claims": lines})


if __name__ == "__main__":
    main()
