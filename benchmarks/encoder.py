"""Texts packed while they are encoded: Headrace compared with Energon's packing loader, in CPU seconds.

    python benchmarks/encoder.py [--quick] [--samples 20000] [--rounds 3] [--seconds 2] [--sets "sft"] [--tokens]

Both make batches of 4 packs of 4,096 tokens, from tar shards in the page cache, shuffled in slices of 100 neighbours,
with ``packing_buffer_size=1000``. Both use the same task encoder, with their own ``get_train_dataset`` and
``get_savable_loader``. The encoder selects packs by a greedy knapsack. Texts have the lengths of benchmarks/packing.py,
in tokens, cut to a pack. ``bytes`` uses a byte as a token, so that the loader is measured; ``tokens`` encodes by
byte-level BPE. ``best fit`` packs by ``sample_length`` and ``Packing``. ``measured`` packs by facts that `measure`
stored before, which is not counted. ``singles`` are batches of 4 texts without packing, in both.

Rates are texts by CPU seconds of all processes, after the first batches. ``fill`` is the share of the packs that holds
tokens. ``resume`` stops a run after ``--batches``. It measures the time from a state to the first batch, with the data
opened again and without imports, and the size of the state, as JSON for Headrace and as a pickle for Energon.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import pickle
import signal
import tarfile
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import common
import numpy as np
import psutil
from encoder_tasks import ROOM, document_text, encoder, tokenizer_and_text
from packing import draw

REASONS = {
    "times Energon": "The encoder itself, which both run, takes most of the time.",
}
DEPENDS = (
    "The ratios depend on what the encoder does: with a real tokeniser (`tokens`) it takes nearly all of the time, in"
    " both."
)
BATCH = 4
SLICE = 100
BUFFER = 1_000
LANES = 2 * BATCH
"""The steps of Headrace have two batches, so that two workers make whole batches."""
WORKERS = (0, 2)
SETS = ("sft", "web", "bimodal", "long")
BYTES_A_TOKEN = {"bytes": 1, "tokens": 4}


def write_texts(root: Path, kind: str, name: str, num_samples: int, text: str) -> Path:
    """Write an Energon dataset of texts with the lengths of a set."""
    from headrace.preparing.energon import DatasetChoice, EnergonOptions, SplitChoice, prepare_energon

    root.mkdir(parents=True)
    lengths = np.clip(draw(name, num_samples), 1, ROOM) * BYTES_A_TOKEN[kind]
    for begin in range(0, num_samples, 1000):
        with tarfile.open(root / f"{begin // 1000:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(begin, min(begin + 1000, num_samples)):
                content = document_text(text, int(lengths[number]), number).encode()
                entry = tarfile.TarInfo(f"{number:09d}.txt")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    split = SplitChoice(parts=(("train", ".*"),))
    prepare_energon(root, options=EnergonOptions(split=split, dataset=DatasetChoice(sample_type="CrudeWebdataset")))
    return root


def ours(folder: Path, kind: str, form: str, workers: int) -> Any:
    """Make a loader of Headrace, with `save_state_rank` and `restore_state_rank`."""
    import headrace.encoders
    from headrace.compat.energon import WorkerConfig, get_savable_loader, get_train_dataset

    task = encoder(headrace.encoders, kind, _tokenizer(folder), form)
    given: Any = folder
    options: dict[str, Any] = {"task_encoder": task, "packing_buffer_size": BUFFER, "num_lanes": LANES}
    if form == "singles":
        options = {"task_encoder": task, "framed": True, "num_lanes": LANES}
    elif form != "hook":
        from headrace import MeasuredDataset, MediaDataset, Packing
        from headrace.datasets import Framed, measure

        media = MediaDataset.open(folder, split_part="train", decoder=None, cookers=task.cookers)
        if form == "best fit":
            given, options = Framed(media, task, form=Packing(seq_len=ROOM)), {"num_lanes": LANES}
        else:
            facts = measure(media, task, folder=folder.parent / f"facts-{folder.name}")
            given = MeasuredDataset(media, task, facts, form=Packing(seq_len=ROOM))
            options = {}
    dataset = get_train_dataset(
        given,
        worker_config=WorkerConfig(0, 1, num_workers=workers),
        batch_size=BATCH,
        max_samples_per_sequence=SLICE,
        **options,
    )
    return get_savable_loader(dataset, as_columns=True)


def theirs(folder: Path, kind: str, form: str, workers: int) -> Any:
    """Make a loader of Energon."""
    import warnings

    warnings.simplefilter("ignore")
    import megatron.energon

    task = encoder(megatron.energon, kind, _tokenizer(folder), form)
    dataset = megatron.energon.get_train_dataset(
        folder,
        worker_config=megatron.energon.WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=BATCH,
        shuffle_buffer_size=None,
        max_samples_per_sequence=SLICE,
        packing_buffer_size=None if form == "singles" else BUFFER,
        task_encoder=task,
    )
    return megatron.energon.get_savable_loader(dataset)


SYSTEMS = {"headrace": ours, "Energon": theirs}


def _tokenizer(folder: Path) -> str:
    return str(folder.parent / "tokenizer.json")


def counted(batch: Any) -> tuple[int, int]:
    """The number of texts and tokens in a batch."""
    if batch["bounds"][0] is None:
        return len(batch["bounds"]), 0
    return sum(len(bounds) - 1 for bounds in batch["bounds"]), sum(int(bounds[-1]) for bounds in batch["bounds"])


def measure_rate(system: str, folder: Path, kind: str, form: str, workers: int, seconds: float) -> dict[str, Any]:
    """Measure texts a CPU second, after the first buffer or the first frame of each lane, and the fill of packs."""
    _warm(folder)
    batches = iter(SYSTEMS[system](folder, kind, form, workers))
    # First as many texts as all lanes or workers hold, so that the steady state is measured.
    texts = 0
    while texts < 2 * BUFFER * LANES:
        texts += counted(next(batches))[0]
    texts = tokens = packs = 0
    begin, cpu = time.perf_counter(), common.cpu_s()
    while time.perf_counter() - begin < seconds:
        for batch in islice(batches, 8):
            more = counted(batch)
            texts, tokens, packs = texts + more[0], tokens + more[1], packs + BATCH
    wall, cpu_s = time.perf_counter() - begin, common.cpu_s() - cpu
    return {
        "system": system,
        "form": form,
        "encode": kind,
        "workers": workers,
        "texts_per_cpu_s": texts / cpu_s,
        "texts_per_s": texts / wall,
        "fill": tokens / (packs * ROOM),
    }


def measure_resume(system: str, folder: Path, kind: str, form: str, workers: int, num_batches: int) -> dict[str, Any]:
    """Measure the seconds from a state to the first batch, and the bytes of the state."""
    _warm(folder)
    make = SYSTEMS[system]
    stopped = make(folder, kind, form, workers)
    for _ in islice(stopped, num_batches):
        pass
    state = stopped.save_state_rank()
    size = len(json.dumps(state) if system == "headrace" else pickle.dumps(state))
    gc.collect()
    begin, cpu = time.perf_counter(), common.cpu_s()
    loader = make(folder, kind, form, workers)
    loader.restore_state_rank(state)
    next(iter(loader))
    return {
        "system": system,
        "form": form,
        "encode": kind,
        "workers": workers,
        "first_batch_s": time.perf_counter() - begin,
        "cpu_s": common.cpu_s() - cpu,
        "state_bytes": size,
    }


def _warm(folder: Path) -> None:
    """Read the shards into the page cache, and let torch use one thread."""
    import torch

    torch.set_num_threads(1)
    for path in folder.glob("*.tar"):
        np.fromfile(path, dtype=np.uint8)


def end(found: dict[str, Any]) -> None:
    """Print the result, and end at once, since a normal exit would wait for Energon's workers."""
    print("\n" + json.dumps(found), flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for process in psutil.Process().children(recursive=True):
        process.kill()
    os._exit(0)


def medians(measured: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians of `common`, but the number of workers stays an integer."""
    return common.medians(measured) | {"workers": measured[0]["workers"]}


ENGINES = (("Energon", "hook"), ("headrace", "hook"), ("headrace", "best fit"), ("headrace", "measured"))


def rates(folder: Path, kind: str, forms: list[tuple[str, str]], options: argparse.Namespace) -> list[dict[str, Any]]:
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {
        (*engine, workers): [] for workers in WORKERS for engine in forms
    }
    for _ in range(options.rounds):
        for (system, form, workers), measured in found.items():
            one = ("rate", system, str(folder), kind, form, str(workers), "--seconds", str(options.seconds))
            measured.append(common.run_apart(__file__, *one))
    return [medians(measured) for measured in found.values()]


def ratios(rows: list[dict[str, Any]], where: str) -> list[str]:
    """The ratio of texts a CPU second to Energon's, for each row of Headrace."""
    theirs = {
        (row["form"] == "singles", row["workers"]): row["texts_per_cpu_s"] for row in rows if row["system"] == "Energon"
    }
    lines = []
    for row in rows:
        if row["system"] != "Energon":
            times = row["texts_per_cpu_s"] / theirs[row["form"] == "singles", row["workers"]]
            what = f"{where}, {row['encode']}, {row['form']}, {row['workers']} workers, times Energon"
            # A real tokeniser takes nearly all of the time itself; with single texts, torch's queues do.
            if row["encode"] == "bytes" and row["form"] != "singles":
                lines.append(common.verdict(what, times, 2))
            else:
                lines.append(f"       {what}: {times:.3g}")
    return lines


def resumes(folder: Path, kind: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    one = (kind, "--batches", str(options.batches))
    return [
        medians(
            [
                common.run_apart(__file__, "resume", system, str(folder), kind, form, str(workers), *one[1:])
                for _ in range(options.rounds)
            ]
        )
        for workers in WORKERS
        for system, form in ENGINES
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few samples, one round: whether it runs")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--batches", type=int, default=500, help="before a run is stopped")
    parser.add_argument("--sets", default="sft", help=f"of {'; '.join(SETS)}")
    parser.add_argument("--tokens", action="store_true", help="encode by byte-level BPE as well")
    parser.add_argument("--only", default="rates;resume", help="separated by ;")
    parser.add_argument("--json", action="store_true", help="print what was measured as JSON")
    parser.add_argument(
        "--one",
        nargs=6,
        metavar=("WHAT", "SYSTEM", "FOLDER", "ENCODE", "FORM", "WORKERS"),
        help=argparse.SUPPRESS,
    )
    options = parser.parse_args()
    if options.one:
        what, system, folder, kind, form, workers = options.one
        if what == "rate":
            end(measure_rate(system, Path(folder), kind, form, int(workers), options.seconds))
        end(measure_resume(system, Path(folder), kind, form, int(workers), options.batches))
    if options.quick:
        options.samples, options.rounds, options.seconds, options.batches = 4_000, 1, 1.0, 50
    rows: dict[str, list[dict[str, Any]]] = {}
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as place:
        _, text = tokenizer_and_text(Path(place))
        sets = options.sets.split(";")
        for kind, name in [("bytes", one) for one in sets] + [("tokens", one) for one in sets[:1] if options.tokens]:
            folder = write_texts(Path(place) / f"{kind}-{name}", kind, name, options.samples, text)
            forms = list(ENGINES)
            if (kind, name) == ("bytes", sets[0]):
                forms += [("Energon", "singles"), ("headrace", "singles")]
            what = f"{name}, {kind}"
            if "rates" in options.only:
                rows[what] = rates(folder, kind, forms, options)
                lines += ratios(rows[what], name)
            if "resume" in options.only and name == sets[0]:
                rows[f"resume, {what}"] = resumes(folder, kind, options)
            for title in (what, f"resume, {what}"):
                if title in rows and not options.json:
                    print(f"\n{title}\n{common.table(rows[title])}", flush=True)
    result = {"options": vars(options), "rows": rows, "claims": lines}
    print(json.dumps(result) if options.json else "\n" + "\n".join(lines))
    common.save("encoder", result)


if __name__ == "__main__":
    main()
