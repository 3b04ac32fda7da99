"""Images and captions from tar shards into batches: Headrace beside Energon, turboloader and SPDL, in CPU seconds.

    python benchmarks/multimodal.py [--quick] [--samples 10000] [--rounds 3] [--seconds 1] [--only "rates;resume"]

Both use batches of 16, shuffled in slices of 100 neighbours, from their own `get_train_dataset` and
`get_savable_loader`. Each runs in a separate process, and engines take turns. The shards are those of `tar.py`, in the
page cache. `raw` returns the bytes of both parts, `floats` decodes as `torchrgb`, and `uint8` as `rgb8`. `codec alone`
decodes images in memory, and is compared with `uint8`. With workers, the CPU time is that of all processes. Memory is
the share of one worker; the pages of files that it has mapped, which the system can reclaim, are listed separately.

turboloader and SPDL decode the JPEGs of 55 KB alone, without captions: turboloader from one tar in its own threads of
C++, as floats in its `DataLoader` and as bytes in its `FastDataLoader`, which does not shuffle; SPDL's pipeline in two
threads, over the bytes in memory in a shuffled order, with the codec that Headrace uses, since `spdl.io` needs the
libraries of FFmpeg.

`resume` stops a run in the middle of its first epoch. It measures the time from a saved state to the first batch, with
the data opened again and without imports, and the size of the state, as JSON for Headrace and as a pickle for Energon.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import pickle
import signal
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import common
import numpy as np
import psutil
import tar

REASONS = {
    "share of the codec alone": "Reading, captions and a copy into the batch come on top of the codec.",
    "raw": "A batch of 16 small samples takes longer to make and to pass on than to read.",
    "times turboloader": "It decodes, scales and writes the floats in one pass in C++.",
    "times SPDL": "It decodes images that lie in memory, without captions, and reads nothing.",
    "floats": "The larger the images, the more of the time is the codec, which both use.",
}
DEPENDS = (
    "The ratios to Energon depend on the size of the parts and on what is decoded: large pictures to floats are mostly"
    " the codec, where all loaders come near each other."
)
BATCH = 16
SLICE = 100
FORMS = {"floats": "torchrgb", "uint8": "rgb8"}
WORKERS = (0, 2)


def ours(folder: Path, kind: str, workers: int) -> Any:
    """Make a loader of Headrace."""
    from headrace.compat.energon import WorkerConfig, get_savable_loader, get_train_dataset
    from headrace.samples.media import SampleDecoder

    raw = kind == "raw"
    dataset = get_train_dataset(
        folder,
        worker_config=WorkerConfig(0, 1, num_workers=workers),
        batch_size=BATCH,
        max_samples_per_sequence=SLICE,
        decoder=None if raw else SampleDecoder(image_decode=FORMS[kind]),
        dataset_config="dataset.yaml" if raw else "captions.yaml",
    )
    return get_savable_loader(dataset)


def theirs(folder: Path, kind: str, workers: int) -> Any:
    """Make a loader of Energon, with only the hooks that it needs."""
    import warnings

    warnings.simplefilter("ignore")
    from megatron.energon import (
        CaptioningSample,
        Cooker,
        DefaultTaskEncoder,
        SampleDecoder,
        WorkerConfig,
        basic_sample_keys,
        get_savable_loader,
        get_train_dataset,
        stateless,
    )

    raw = kind == "raw"

    @stateless
    def cook(sample: Any) -> Any:
        return CaptioningSample(**basic_sample_keys(sample), image=sample["jpg"], caption=sample["txt"])

    class Encoder(DefaultTaskEncoder):
        decoder = None if raw else SampleDecoder(image_decode="torchrgb")
        cookers = [Cooker(cook)] if raw else []

    dataset = get_train_dataset(
        folder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=BATCH,
        shuffle_buffer_size=None,
        max_samples_per_sequence=SLICE,
        task_encoder=Encoder(),
        dataset_config="dataset.yaml" if raw else "captions.yaml",
    )
    return get_savable_loader(dataset)


def turboloader(folder: Path, kind: str, workers: int) -> Iterator[Any]:
    """The images of the first shard, epoch after epoch."""
    import turboloader as turbo

    shard, pixels = str(min(folder.glob("*.tar"))), tar.SHAPES["55 KB"][0]
    if kind == "uint8":
        for _ in count():
            yield from turbo.FastDataLoader(shard, batch_size=BATCH, num_workers=2, output_format="numpy")
    loader = turbo.DataLoader(shard, batch_size=BATCH, shuffle=True, output_format="pytorch", image_size=pixels)
    for epoch in count():
        loader.set_epoch(epoch)
        yield from loader


def spdl(folder: Path, kind: str, workers: int) -> Iterator[Any]:
    """The images of 200 samples, in a shuffled order."""
    import simplejpeg
    from spdl.pipeline import PipelineBuilder

    from headrace.stores import EnergonStore

    images = [bytes(sample.parts["jpg"]) for sample in EnergonStore(folder).read(np.arange(200), ["jpg"])]
    rng = np.random.default_rng(1)
    pipeline = (
        PipelineBuilder()
        .add_source(chain.from_iterable(rng.permutation(len(images)).tolist() for _ in count()))
        .pipe(lambda number: simplejpeg.decode_jpeg(images[number], "RGB"), concurrency=2)
        .aggregate(BATCH)
        .pipe(np.stack)
        .add_sink(2)
        .build(num_threads=2)
    )
    with pipeline.auto_stop():
        yield from pipeline


SYSTEMS = {"headrace": ours, "Energon": theirs}
PEERS = {"turboloader": (turboloader, ("floats", "uint8")), "SPDL": (spdl, ("uint8",))}
"""What decodes JPEGs to batches of equal shapes, and to what."""


def warm(folder: Path) -> None:
    """Read the shards into the page cache, and let torch use one thread."""
    import torch

    torch.set_num_threads(1)
    for path in folder.glob("*.tar"):
        np.fromfile(path, dtype=np.uint8)


def shares(process: int) -> tuple[float, float]:
    """Megabytes of a process: its memory, and its pages of files. Memory that processes share is divided among them."""
    lines = [line.split() for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]]
    kib = {words[0].rstrip(":"): int(words[1]) for words in lines}
    return (kib["Pss"] - kib["Pss_File"]) * 1024 / 1e6, kib["Pss_File"] * 1024 / 1e6


def measure_rate(system: str, folder: Path, kind: str, workers: int, seconds: float) -> dict[str, Any]:
    """Measure samples a CPU second and a second, after the first batches, and the memory of a worker."""
    warm(folder)
    if system == "codec alone":
        from tar_peers import codec

        batches, each, some = codec(folder), 1, BATCH
    else:
        make = SYSTEMS.get(system) or PEERS[system][0]
        batches, each, some = iter(make(folder, kind, workers)), BATCH, 4
    deque(islice(batches, 10 * some), maxlen=0)
    number, begin, cpu = 0, time.perf_counter(), common.cpu_s()
    while time.perf_counter() - begin < seconds:
        number += each * len(list(islice(batches, some)))
    wall, cpu_s = time.perf_counter() - begin, common.cpu_s() - cpu
    memory = [shares(process.pid) for process in psutil.Process().children()]
    return {
        "system": system,
        "kind": kind,
        "workers": workers,
        "samples_per_cpu_s": number / cpu_s,
        "samples_per_s": number / wall,
        "mb_a_worker": sum(own for own, _ in memory) / max(1, len(memory)),
        "mb_of_files": sum(files for _, files in memory) / max(1, len(memory)),
    }


def measure_resume(system: str, folder: Path, workers: int) -> dict[str, Any]:
    """Measure the seconds from a state to the first batch, and the bytes of the state."""
    warm(folder)
    make = SYSTEMS[system]
    stopped = make(folder, "floats", workers)
    samples = sum(json.loads((folder / ".nv-meta/.info.json").read_text())["shard_counts"].values())
    deque(islice(stopped, samples // BATCH // 2), maxlen=0)
    state = stopped.save_state_rank()
    size = len(json.dumps(state) if system == "headrace" else pickle.dumps(state))
    gc.collect()
    begin = time.perf_counter()
    loader = make(folder, "floats", workers)
    loader.restore_state_rank(state)
    next(iter(loader))
    seconds = time.perf_counter() - begin
    return {"system": system, "workers": workers, "first_batch_s": seconds, "state_bytes": size}


def end(found: dict[str, Any]) -> None:
    """Print the result, and end at once, since a normal exit would wait for Energon's workers."""
    print(json.dumps(found), flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    os._exit(0)


def medians(measured: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians of `common`, but the number of workers stays an integer."""
    return common.medians(measured) | {"workers": measured[0]["workers"]}


def rates(shape: str, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    counts = WORKERS if shape == "1.5 KB" else WORKERS[:1]
    engines = [
        (system, kind, workers) for kind in ("raw", "floats", "uint8") for workers in counts
        for system in SYSTEMS
        if kind != "uint8" or system == "headrace"  # Energon's own form is floats
    ]  # fmt: skip
    engines.append(("codec alone", "uint8", 0))
    if shape == "55 KB":
        there = [system for system in PEERS if common.is_there(system.lower())]
        engines += [(system, kind, 0) for system in there for kind in PEERS[system][1]]
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {engine: [] for engine in engines}
    for _ in range(options.rounds):
        for (system, kind, workers), measured in found.items():
            one = ("rate", system, str(folder), kind, str(workers), "--seconds", str(options.seconds))
            measured.append(common.run_apart(__file__, *one))
    return [medians(measured) for measured in found.values()]


def rate_claims(shape: str, rows: list[dict[str, Any]]) -> list[str]:
    rate = {(row["system"], row["kind"], row["workers"]): row["samples_per_cpu_s"] for row in rows}
    small = shape == "1.5 KB"
    lines = []
    for workers in dict.fromkeys(row["workers"] for row in rows):
        for kind, bar in (("raw", 10), ("floats", 2)):
            times = rate["headrace", kind, workers] / rate["Energon", kind, workers]
            what = f"{shape}, {kind}, {workers} workers, times Energon"
            lines.append(common.verdict(what, times, bar) if small else f"       {what}: {times:,.3g}")
        share = rate["headrace", "uint8", workers] / rate["codec alone", "uint8", 0]
        what = f"{shape}, uint8, {workers} workers, share of the codec alone"
        # With workers there is no bar, since batches are passed between processes.
        lines.append(f"       {what}: {share:.3g}" if small or workers else common.verdict(what, share, 0.93))
    for system, (_, kinds) in PEERS.items():
        for kind in kinds if (system, kinds[0], 0) in rate else ():
            times = rate["headrace", kind, 0] / rate[system, kind, 0]
            lines.append(common.verdict(f"{shape}, {kind}, 0 workers, times {system}", times, 1))
        if not small and (system, kinds[0], 0) not in rate:
            lines.append(f"not installed, and left out: {system}")
    return lines


def resumes(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        medians(
            [common.run_apart(__file__, "resume", system, str(folder), "", str(workers)) for _ in range(options.rounds)]
        )
        for workers in WORKERS
        for system in SYSTEMS
    ]


def resume_claims(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        if row["system"] == "headrace":
            what = f"{row['workers']} workers, first batch after a resume deep in an epoch, s"
            lines.append(common.verdict(what, row["first_batch_s"], 0.5, at_most=True))
            lines.append(
                common.verdict(f"{row['workers']} workers, state, bytes", row["state_bytes"], 1024, at_most=True)
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few samples, one round: whether it runs")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--shapes", default=";".join(tar.SHAPES), help="separated by ;")
    parser.add_argument("--only", default="rates;resume", help="separated by ;")
    parser.add_argument(
        "--one", nargs=5, metavar=("WHAT", "SYSTEM", "FOLDER", "KIND", "WORKERS"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.one:
        what, system, folder, kind, workers = options.one
        if what == "rate":
            end(measure_rate(system, Path(folder), kind, int(workers), options.seconds))
        end(measure_resume(system, Path(folder), int(workers)))
    if options.quick:
        options.samples, options.rounds, options.seconds = 2000, 1, 0.5
    rows: dict[str, list[dict[str, Any]]] = {}
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        for shape in options.shapes.split(";"):
            folder = tar.make_dataset(Path(name) / shape, shape, options.samples)
            if "rates" in options.only:
                rows[shape] = rates(shape, folder, options)
                print(f"\n{shape}\n{common.table(rows[shape])}", flush=True)
                lines += rate_claims(shape, rows[shape])
            if "resume" in options.only and shape == "1.5 KB":
                rows["resume"] = resumes(folder, options)
                print(f"\nresume\n{common.table(rows['resume'])}", flush=True)
                lines += resume_claims(rows["resume"])
    print("\n" + "\n".join(lines))
    common.save("multimodal", {"options": vars(options), "rows": rows, "claims": lines})


if __name__ == "__main__":
    main()
