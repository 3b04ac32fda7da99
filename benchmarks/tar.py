"""Samples in tar shards, read, decoded, prepared and opened: Headrace, Energon and webdataset, in CPU seconds.

    python benchmarks/tar.py [--quick] [--samples 10000] [--rounds 3] [--seconds 1] [--shapes "1.5 KB;55 KB"]

A sample is a JPEG and a caption. The JPEG has 64 by 64 pixels, or as many as make 55 KB. Every engine reads the same
shards from the page cache, on one core without workers. Each runs in a separate process, and engines take turns;
`tar_peers.py` says how the peers are called. Headrace reads 64 samples a call, in order or fully shuffled. `pread` is
the system call for the bytes of 64 samples, which a reader in order can hardly beat. `codec alone` decodes images in
memory. It is compared with "to uint8", since the others convert to floats.

`prepare` is the CPU time of the commands with one worker, minus that for eight samples, so start-up is not counted.
`open` opens 10,000 shards of 10,000 samples each, which are hard links of one shard, and ends with the first sample of
a shuffled order.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import common
import numpy as np
import tar_prepare
from tar_peers import BATCH

REASONS = {
    "55 KB, .*times webdataset": "With parts of 55 KB both copy bytes for most of the time.",
    "share of the codec": "Reading and making the sample come on top of the codec.",
    "share of pread": "Headers, names and samples in Python come on top of the system call.",
    "times (Energon|webdataset)": "The larger the parts, the more of the time is the copying of bytes, which all do.",
}
DEPENDS = (
    "The ratios hold for small parts that are not decoded: 1.5 KB and 55 KB, in shuffled order. The lines of samples"
    " that are decoded to floats show how much less is left where the codec takes the time."
)
SHAPES = {"1.5 KB": (64, 75), "55 KB": (384, 75)}
"""The pixels of a side, and the JPEG quality."""

NUM_IMAGES = 200
WIDE_SHARDS = 10_000


def image(pixels: int, quality: int, number: int) -> bytes:
    """Draw shapes with some noise, as a JPEG."""
    import simplejpeg

    rng = np.random.default_rng(number)
    y, x = np.mgrid[0:pixels, 0:pixels] * (64 / pixels)
    found = np.stack([128 + 100 * np.sin((x + number) / 9 + y / rng.uniform(5, 30)) for _ in range(3)], -1)
    for _ in range(6):
        middle, size = rng.uniform(0, 64, 2), rng.uniform(4, 16)
        found[(y - middle[0]) ** 2 + (x - middle[1]) ** 2 < size**2] = rng.uniform(0, 255, 3)
    # Noise needs bytes: large images have more noise, so that they are as large as photographs.
    found += rng.normal(0, 5 if pixels < 100 else 17, found.shape)
    return bytes(simplejpeg.encode_jpeg(found.clip(0, 255).astype(np.uint8), quality=quality))


def write_shards(root: Path, shape: str, num_samples: int, a_shard: int) -> list[str]:
    """Write tars as webdataset does, and return their names."""
    images = [image(*SHAPES[shape], number) for number in range(NUM_IMAGES)]
    words = np.random.default_rng(0).choice(["river", "mill", "stone", "wheel", "light", "a", "of", "the"], (64, 40))
    captions = [" ".join(row)[:200].encode() for row in words]
    names = []
    for begin in range(0, num_samples, a_shard):
        names.append(f"{begin // a_shard:06d}.tar")
        with tarfile.open(root / names[-1], "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(begin, min(begin + a_shard, num_samples)):
                parts = {"jpg": images[number % NUM_IMAGES], "txt": captions[number % 64]}
                for part, content in parts.items():
                    entry = tarfile.TarInfo(f"{number:09d}.{part}")
                    entry.size, entry.mode, entry.uname, entry.gname = len(content), 0o444, "bigdata", "bigdata"
                    tar.addfile(entry, io.BytesIO(content))
    return names


def make_dataset(root: Path, shape: str, num_samples: int, a_shard: int = 1000) -> Path:
    """Write shards with a complete ``.nv-meta``, and two descriptions of the samples: crude, and with captions."""
    from headrace.stores.energon import SqliteWriter, write_info, write_splits
    from headrace.stores.kept_arrays import write_offsets
    from headrace.stores.tar.index import index_path
    from headrace.stores.tar.scan import scan_shard

    (root / ".nv-meta").mkdir(parents=True)
    counts = {}
    names = write_shards(root, shape, num_samples, a_shard)
    with SqliteWriter(root) as writer:
        for shard, name in enumerate(names):
            scanned = scan_shard(root / name)
            write_offsets(index_path(root / name), scanned.offsets)
            writer.add_shard(shard, scanned)
            counts[name] = len(scanned.keys)
    write_info(root, counts, "7.4.1")
    write_splits(root, {"train": names})
    crude = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    (root / ".nv-meta/dataset.yaml").write_text(crude)
    captions = "sample_type:\n  __module__: megatron.energon\n  __class__: CaptioningSample\n"
    (root / ".nv-meta/captions.yaml").write_text(captions + "field_map:\n  image: jpg\n  caption: txt\n")
    return root


def read(folder: Path, *, shuffled: bool) -> Iterator[Any]:
    from headrace.stores import EnergonStore

    store = EnergonStore(folder, split_part="train")
    rng = np.random.default_rng(1)
    while True:
        order = rng.permutation(len(store)) if shuffled else np.arange(len(store))
        for first in range(0, len(order), BATCH):
            yield from store.read(order[first : first + BATCH])


def decoded(folder: Path, form: str) -> Iterator[Any]:
    from headrace.samples.media import CaptioningSample, SampleDecoder, SampleMapper
    from headrace.stores import EnergonStore

    store = EnergonStore(folder, split_part="train")
    field_map = {"image": "jpg", "caption": "txt"}
    mapper = SampleMapper(CaptioningSample, field_map, decoder=SampleDecoder(image_decode=form))
    while True:
        for first in range(0, len(store), BATCH):
            numbers = np.arange(first, min(first + BATCH, len(store)))
            for sample in store.read(numbers, mapper.parts):
                yield mapper.make(sample.parts, sample.key, shard=sample.shard)


OURS = {
    "headrace, in order": lambda folder: read(folder, shuffled=False),
    "headrace, shuffled": lambda folder: read(folder, shuffled=True),
    "headrace, decoded to uint8": lambda folder: decoded(folder, "rgb8"),
    "headrace, decoded": lambda folder: decoded(folder, "torchrgb"),
}


def measure(engine: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Measure the CPU microseconds a sample, after the first hundred."""
    if engine in OURS:
        samples = OURS[engine](folder)
    else:
        import tar_peers

        samples = tar_peers.ENGINES[engine](folder)
    for tar in folder.glob("*.tar"):
        np.fromfile(tar, dtype=np.uint8)  # into the page cache
    if "decoded" in engine or "codec" in engine:
        import torch

        torch.set_num_threads(1)
    deque(islice(samples, 100), maxlen=0)
    count, begin, cpu = 0, time.perf_counter(), common.cpu_s()
    while time.perf_counter() - begin < seconds:
        deque(islice(samples, 50), maxlen=0)
        count += 50
    cpu_s = common.cpu_s() - cpu
    return {"engine": engine, "us_per_sample": cpu_s / count * 1e6, "samples_per_cpu_s": count / cpu_s}


def make_wide(root: Path) -> Path:
    """Make 10,000 shards that are the same file on disk."""
    made = make_dataset(root / "one", "1.5 KB", 10_000, a_shard=10_000)
    wide = root / "wide"
    (wide / ".nv-meta").mkdir(parents=True)
    counts = {f"{shard:06d}.tar": 10_000 for shard in range(WIDE_SHARDS)}
    for name in counts:
        for suffix in ("", ".idx"):
            os.link(made / f"000000.tar{suffix}", wide / f"{name}{suffix}")
    (wide / ".nv-meta/.info.json").write_text(json.dumps({"energon_version": "7.4.1", "shard_counts": counts}))
    (wide / ".nv-meta/split.yaml").write_text(f"split_parts:\n  train:\n  - '{{000000..{WIDE_SHARDS - 1:06d}}}.tar'\n")
    for name in ("dataset.yaml", "captions.yaml"):
        (wide / ".nv-meta" / name).write_bytes((made / ".nv-meta" / name).read_bytes())
    return wide


def measure_open(engine: str, folder: Path) -> dict[str, Any]:
    """Measure the seconds and the memory from opening the data to the first sample, without imports."""
    if engine == "headrace":
        from headrace.stores import EnergonStore

        def first() -> Any:
            store = EnergonStore(folder, split_part="train")
            return store.read(np.random.default_rng(1).integers(0, len(store), BATCH))[0]
    else:
        import tar_peers

        tar_peers.import_energon()  # what it takes is not counted

        def first() -> Any:
            return next(tar_peers.ENGINES["Energon, in order"](folder))

    gc.collect()
    before = common.memory_bytes("VmRSS")
    begin = time.perf_counter()
    sample = first()
    seconds = time.perf_counter() - begin
    memory = max(0, common.memory_bytes("VmHWM") - before)
    return {"engine": engine, "seconds": seconds, "memory_mb": memory / 1e6, "has_sample": sample is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few samples, one round: whether it runs")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--shapes", default=";".join(SHAPES), help="separated by ;")
    parser.add_argument("--only", default="read;prepare;open", help="separated by ;")
    parser.add_argument("--one", nargs=3, metavar=("WHAT", "ENGINE", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        what, engine, folder = options.one
        found = measure(engine, Path(folder), options.seconds) if what == "read" else measure_open(engine, Path(folder))
        print(json.dumps(found))
        return
    if options.quick:
        options.samples, options.rounds, options.seconds = 2000, 1, 0.5
    wanted = options.only.split(";")
    rows: dict[str, list[dict[str, Any]]] = {}
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        root = Path(name)
        for shape in options.shapes.split(";"):
            folder = make_dataset(root / shape, shape, options.samples)
            if "read" in wanted:
                rows[shape] = read_rows(folder, options)
                print(f"\n{shape}\n{common.table(rows[shape])}", flush=True)
                lines += read_claims(shape, rows[shape])
            if "prepare" in wanted and shape == "1.5 KB":
                rows["prepare"] = tar_prepare.rows(folder, root, options.rounds)
                print(f"\nprepare\n{common.table(rows['prepare'])}", flush=True)
                lines += tar_prepare.claims(rows["prepare"])
        if "open" in wanted:
            wide = make_wide(root)
            rows["open"] = [
                common.medians([common.run_apart(__file__, "open", engine, str(wide)) for _ in range(options.rounds)])
                for engine in ("headrace", "Energon")
            ]
            print(f"\nopen\n{common.table(rows['open'])}", flush=True)
            ours = rows["open"][0]
            lines += [
                common.verdict("open 10,000 shards, first sample, s", ours["seconds"], 1, at_most=True),
                common.verdict("open 10,000 shards, first sample, MB", ours["memory_mb"], 100, at_most=True),
            ]
    print("\n" + "\n".join(lines))
    common.save("tar", {"options": vars(options), "rows": rows, "claims": lines})


def read_rows(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    from tar_peers import ENGINES

    found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in (*OURS, *ENGINES)}
    for _ in range(options.rounds):
        for engine, measured in found.items():
            seconds = ["--seconds", str(options.seconds)]
            measured.append(common.run_apart(__file__, "read", engine, str(folder), *seconds))
    return [common.medians(measured) for measured in found.values()]


def read_claims(shape: str, rows: list[dict[str, Any]]) -> list[str]:
    rate = {row["engine"]: row["samples_per_cpu_s"] for row in rows}
    times_energon, times_webdataset = (20, 8) if shape == "1.5 KB" else (10, 6)
    lines = []
    for order in ("in order", "shuffled"):
        ours = rate[f"headrace, {order}"]
        for peer, bar in (("Energon", times_energon), ("webdataset", times_webdataset)):
            lines.append(common.verdict(f"{shape}, {order}, times {peer}", ours / rate[f"{peer}, {order}"], bar))
            if order == "shuffled":
                times = ours / rate[f"{peer}, in order"]
                lines.append(f"       {shape}, shuffled, times {peer} in order: {times:,.3g}")
    if shape == "55 KB":
        share = rate["headrace, in order"] / rate["pread"]
        lines.append(common.verdict(f"{shape}, in order, share of pread", share, 0.7))
        share = rate["headrace, decoded to uint8"] / rate["codec alone"]
        lines.append(common.verdict(f"{shape}, decoded, share of the codec alone", share, 0.9))
    for peer in ("Energon", "webdataset"):
        times = rate["headrace, decoded"] / rate[f"{peer}, decoded"]
        lines.append(f"       {shape}, decoded to floats: times {peer}: {times:,.3g}")
    return lines


if __name__ == "__main__":
    main()
