"""Samples from an object store: Headrace and its peers, in CPU seconds, bytes and waits, with 30 ms of latency.

    python benchmarks/remote.py [--quick] [--rounds 3] [--latencies 30] [--engines a,b] [--servers FOLDER] [--kept]

The store is a real S3 server on this machine, SeaweedFS, behind a proxy that lets every answer wait and counts requests
and bytes; `make remote` installs the server. `windows` are 2,048 tokens of two bytes, shuffled, in batches of 16.
`packs` are documents packed to 2,048 tokens, which no peer does. `tars` are samples of a picture of 55 KB and a text,
not decoded. The peers read the same tokens and samples, in the formats that they need; `remote_peers.py` says how.
litdata and MosaicML Streaming shuffle chunks of 8 MiB and keep them on the disk, s3torchconnector reads each tar from
its begin to its end, s3fs fetches the ranges of a batch at the same time. Headrace reads in the order `blocks`, ahead,
through a cache of blocks of 8 MiB; `without a cache` it fetches ranges; `in order` it reads tars from begin to end and
keeps nothing, which is what s3torchconnector does. A peer that is not installed is named and left out.

Two kinds of claims compare what is not the same. From warm folders MosaicML Streaming asks the store nothing, and feeds
what it kept even if an object has changed; Headrace first looks up all objects that it opens, a round trip, so its
first batch comes later. For tars that are shuffled and kept it has more to do in a cold run than s3torchconnector,
beside which `in order` is measured, too.

`cold` begins with empty folders, `warm` with those that a cold run has left. Every run is a process of its own, reads
all samples once, or for 3 s, and engines take turns; one run before all others is not counted. `mb_per_cpu_s` are bytes
of samples by CPU seconds of the process, from the opening on; the server and the proxy share the two cores, so that
`mb_per_s` says little. `first_batch_s` is the time from opening to the first batch, without imports. `fetched` is what
the proxy sent by what the samples use; after 3 s that includes what was read ahead. In a virtual machine a page of
memory that was never used costs eight times as much as another one, so that cold rates of those who keep what they
fetch differ by a third from one run to another.

`caches` reads windows of a file of 8 MB for three epochs through caches of 10, 25 and 50 % of it, while reading ahead.
Windows of the orders `blocks` and `shards` are a sixteenth of it, so that the caches hold one, as real ones do.
`paced` is a loop that takes 80 MB a second of tars of 430 MB, with 30 ms of latency, through an
empty cache: the part of its time that it waits, from a second after the first batch on. The server and the proxy, which
has to pass on 80 MB a second, take more than one of the two cores. `resume` counts round trips until the first batch
after a resume in the middle of an epoch, on another node, whose folders are empty: how much longer it takes for each
second of latency. `get_ranges` is the CPU time of reading all tokens in order by our reader, over that of obstore's own
call for the same ranges.

`kept` is what it costs to compare kept files with their digests before they are used, each measured once with and once
without: the time to the first batch over an index of 1 GiB that is kept and in the page cache (53 million documents),
and the time of the first reads of all blocks of 107 MB from a cache, by a process that has read none of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import common
import numpy as np
import remote_peers
from remote_peers import BATCH, WINDOW

import headrace

REASONS = {
    "earlier first batch, .*warm, times MosaicML Streaming": (
        "It asks the store nothing, and feeds what it kept even if an object has changed; ours looks up what it opens."
    ),
    "tars, in order, .*times s3torchconnector": (
        "It makes one request for each tar; ours asks for the indices when it opens them, and then reads in parts."
    ),
    "tars, .*times s3torchconnector": (
        "It reads each tar from its begin to its end, unshuffled, and keeps nothing; `in order` does the same work."
    ),
    "cold, times MosaicML Streaming": "Cold runs of those who keep what they fetch differ by a third from run to run.",
    "waits": "The proxy, the server and the loop share two cores, and the proxy passes on 80 MB a second.",
}
DEPENDS = (
    "Cold ratios depend on the latency, and on the machine's memory: in a virtual machine fresh pages cost eight times"
    " as much as those that were used before."
)
OURS = "headrace"
DIRECT = "headrace, without a cache"
IN_ORDER = "headrace, in order, without a cache"
CASES = {"windows": (OURS, DIRECT), "packs": (OURS, DIRECT), "tars": (OURS, DIRECT, IN_ORDER)}
LIKE = {("tars", "s3torchconnector"): (OURS, IN_ORDER)}
"""What of ours is compared with a peer, where one of them does what the peer does and another one does more."""

BLOCK = "8MiB"
SMALL_BLOCK = 32 << 10
PACE = 80e6
SETTLED_S = 1.0
MOST_S = 3.0
PASS_BYTES = 500_000_000
MODULES = (
    *(
        "obstore",
        "headrace.io.objects",
        "headrace.cache.reading",
        "headrace.stores.opening",
        "headrace.datasets.windows",
    ),
    *(
        "headrace.datasets.packed_sequences",
        "headrace.datasets.media",
        "headrace.loader.loader",
        "headrace.loader.feeds",
    ),
    *(
        "headrace.loader.ragged",
        "headrace.loader.collating",
        "headrace.stores.energon",
    ),
    # NumPy imports it in the first call of `unique`.
    *("headrace.stores.reading_ahead", "numpy.ma"),
)
"""What is imported before anything is measured, as the modules of the peers are."""

AHEAD, FAR_AHEAD = "64MB", "256MB"
"""Of batches, which have 24 bytes for each token of two."""


def open_run(url: str, case: str, reader: Any, *, kind: str = "blocks", epochs: int = 1) -> headrace.Run:
    """A run over the data of a case, in an order that reads neighbours within some megabytes together."""
    if case in ("tars", "large"):
        samples = headrace.MediaDataset.open(f"{url}/{case}", reader=reader, decoder=None)
        order = headrace.Order(kind=kind, seed=1, block_samples=150, window_blocks=4)  # type: ignore[arg-type]
        return headrace.Run(samples, global_batch_size=BATCH, order=order, epochs=epochs)
    store = headrace.open(f"{url}/web/{'small' if case == 'small' else 'web'}", reader=reader)
    # A window of the order is a sixteenth of the small file, and 16 MB of the other one.
    neighbours = 32 if case == "small" else 1024
    order = headrace.Order(
        kind=kind,  # type: ignore[arg-type]
        seed=1,
        block_samples=neighbours,
        window_blocks=4,
        max_samples_per_sequence=neighbours,
        parallel_shard_iters=4,
    )
    if case == "packs":
        packing = headrace.Packing(seq_len=WINDOW, strategy="best_fit", over_long="split")
        return headrace.Run(
            headrace.PackedSequenceDataset(store, packing), global_batch_size=BATCH, order=order, epochs=epochs
        )
    dataset = headrace.WindowDataset(store, seq_len=WINDOW)
    return headrace.Run(dataset, global_batch_size=BATCH, order=order, epochs=epochs)


def used_bytes(case: str, batch: Any) -> int:
    if case in ("tars", "large"):
        return sum(len(one) for name in ("jpg", "txt") for one in batch[name])
    if case == "packs":
        return 2 * int(batch["cu_seqlens"][-1]) if "cu_seqlens" in batch else 2 * batch["input_ids"].numel()
    return 2 * batch["input_ids"].numel()


def our_loader(engine: str, url: str, case: str, folder: Path, ahead: str = AHEAD) -> headrace.Loader:
    reader: Any = headrace.io.ObjectReader()
    if engine == OURS:
        reader = headrace.Cache(folder / "blocks", limit="10GB", block=BLOCK).reader(reader)
    run = open_run(url, case, reader, kind="none" if engine == IN_ORDER else "blocks")
    return headrace.Loader(run, micro_batch_size=BATCH, reading=headrace.loader.Reading(ahead=ahead), uneven="allow")


def ours(engine: str, url: str, case: str, folder: Path) -> remote_peers.Batches:
    for batch in our_loader(engine, url, case, folder):
        yield used_bytes(case, batch), batch


def one_epoch(engine: str, url: str, case: str, folder: Path) -> dict[str, Any]:
    for module in MODULES if engine.startswith(OURS) else remote_peers.ENGINES[engine].modules:
        import_module(module)
    begun, cpu_s = time.perf_counter(), common.cpu_s()
    if engine.startswith(OURS):
        batches = ours(engine, url, case, folder)
    else:
        batches = remote_peers.ENGINES[engine].read(url, case, folder, None)
    used, _ = next(batches)
    first_batch_s = time.perf_counter() - begun
    for more, _ in batches:
        used += more
        if time.perf_counter() - begun > MOST_S:
            break
    return {
        "mb_per_cpu_s": used / 1e6 / (common.cpu_s() - cpu_s),
        "mb_per_s": used / 1e6 / (time.perf_counter() - begun),
        "first_batch_s": first_batch_s,
        "used_bytes": used,
    }


def through_cache(url: str, kind: str, part: float, folder: Path) -> dict[str, Any]:
    """Three epochs through a small cache."""
    from headrace.datasets.block_uses import BlockUses
    from headrace.loader import spans

    spans.SPAN_ROWS = BATCH  # each step is a read of its own
    plain = open_run(url, "small", headrace.io.ObjectReader(), kind=kind, epochs=3)
    uses = BlockUses.of_run(plain, block_bytes=SMALL_BLOCK)
    reads = uses.reads(np.arange(plain.length))
    steps = reads.rows // BATCH
    num_reads = len(np.unique(steps * uses.table.num_blocks + reads.blocks))
    capacity = int(part * uses.table.num_blocks)
    cache = headrace.Cache(folder / "blocks", limit=capacity * SMALL_BLOCK, block=SMALL_BLOCK)
    run = open_run(url, "small", cache.reader(headrace.io.ObjectReader()), kind=kind, epochs=3)
    before = cache.stats.fetched_blocks + cache.stats.bypassed_blocks
    bytes_before = cache.stats.fetched_bytes
    for _ in headrace.Loader(
        run, micro_batch_size=BATCH, reading=headrace.loader.Reading(ahead="12MB"), uneven="allow"
    ):
        pass
    missed = cache.stats.fetched_blocks + cache.stats.bypassed_blocks - before
    fetched = (cache.stats.fetched_bytes - bytes_before) / int(reads.used_bytes.sum())
    return {"hit_rate": 1 - missed / num_reads, "fetched": fetched}


def paced(url: str, folder: Path) -> dict[str, Any]:
    for module in MODULES:
        import_module(module)
    batches = iter(our_loader(OURS, url, "large", folder, FAR_AHEAD))
    batch = next(batches)
    began, waited_s, due = time.perf_counter(), 0.0, time.perf_counter()
    settled = began + SETTLED_S
    while True:
        due += used_bytes("large", batch) / PACE
        time.sleep(max(0.0, due - time.perf_counter()))
        asked = time.perf_counter()
        later = next(batches, None)
        now = time.perf_counter()
        if asked >= settled:
            waited_s += now - asked
        if later is None:
            break
        # The batch before goes here, as in a `for` loop, and not while this one waits for the next.
        batch = later
        due = max(due, now)
    return {"waited": waited_s / (time.perf_counter() - settled), "s": time.perf_counter() - began}


def resumed(url: str, folder: Path) -> dict[str, Any]:
    for module in MODULES:
        import_module(module)
    begun = time.perf_counter()
    reader = headrace.io.ObjectReader()
    cache = headrace.Cache(folder / "blocks", limit="10GB", block=BLOCK)
    run = open_run(url, "windows", cache.reader(reader))
    loader = headrace.Loader(run, micro_batch_size=BATCH, reading=headrace.loader.Reading(ahead=AHEAD), uneven="allow")
    loader.start_at((run.length or 0) // 2 // BATCH * BATCH)
    batches = iter(loader)
    next(batches)
    # Not with what it takes to end the loop.
    return {"s": time.perf_counter() - begun, "looked_up": reader.stats.heads + reader.stats.lists}


def ranges(engine: str, url: str, _: Path) -> dict[str, Any]:
    """Read all tokens in order, 64 ranges of 1 MiB a call."""
    import obstore

    reader = headrace.io.ObjectReader()
    path = f"{url}/web/web.bin"
    size = reader.size(path)
    begins = np.arange(0, size, 1 << 20)
    ends = np.minimum(begins + (1 << 20), size)
    bucket, _, key = path.removeprefix("s3://").partition("/")
    how: Any = {"client_options": {"allow_http": True}, "endpoint": os.environ["AWS_ENDPOINT_URL"]}
    store = obstore.store.S3Store(bucket, **how)

    def read(first: int) -> None:
        some, until = begins[first : first + 64], ends[first : first + 64]
        if engine == OURS:
            reader.read_ranges(path, some, until - some)
        else:
            obstore.get_ranges(store, key, starts=some.tolist(), ends=until.tolist(), coalesce=0)

    read(0)  # connects
    cpu_s = common.cpu_s()
    passes = -(-PASS_BYTES // size)
    for _ in range(passes):
        for first in range(0, len(begins), 64):
            read(first)
    return {"cpu_s_a_gb": (common.cpu_s() - cpu_s) / (passes * size / 1e9)}


class _Equal(str):
    """A digest that every other one is equal to."""

    __hash__ = None  # type: ignore[assignment]

    def __ne__(self, _: object) -> bool:
        return False


def kept(url: str, what: str, is_compared: bool, folder: Path) -> dict[str, Any]:
    """The start of a run over a large index that is kept, or the first reads of blocks that are kept."""
    from headrace.cache import process
    from headrace.io.objects import lookups

    for module in MODULES:
        import_module(module)
    if not is_compared:
        lookups.is_as_kept = lambda *_: True
        process._digest = lambda _: _Equal()
    reader: Any = headrace.io.ObjectReader()
    begun, cpu_s = time.perf_counter(), common.cpu_s()
    if what == "start":
        dataset = headrace.WindowDataset(headrace.open(f"{url}/index/index", reader=reader), seq_len=WINDOW)
        next(iter(headrace.Loader(headrace.Run(dataset, global_batch_size=BATCH), micro_batch_size=BATCH)))
    else:
        path = f"{url}/index/index.bin"
        cached = headrace.Cache(folder / "blocks", limit="10GB", block=BLOCK).reader(reader)
        size = cached.size(path)
        begun, cpu_s = time.perf_counter(), common.cpu_s()
        for begin in range(0, size, 1 << 20):
            cached.read(path, begin, min(1 << 20, size - begin))
    return {"s": time.perf_counter() - begun, "cpu_s": common.cpu_s() - cpu_s}


MEASURES = {
    "epoch": one_epoch,
    "cache": through_cache,
    "paced": paced,
    "resume": resumed,
    "ranges": ranges,
    "kept": kept,
}


def make_data(folder: Path, megabytes: int) -> None:
    """Tokens in documents of web lengths, samples in tars, and both in the formats of the peers."""
    import tar

    from headrace.stores import IndexedWriter

    rng = np.random.default_rng(0)
    for name, count in (("web", megabytes), ("small", 8)):
        (folder / "web").mkdir(exist_ok=True)
        with IndexedWriter(str(folder / "web" / name), dtype=np.dtype(np.uint16)) as writer:
            left = count * 500_000
            while left > 0:
                lengths = np.minimum(np.maximum(1, rng.lognormal(6, 1.2, 1000)), left).astype(np.int64)
                lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), left)) + 1]
                writer.add_documents(rng.integers(0, 50_000, int(lengths.sum()), dtype=np.uint16), lengths)
                left -= int(lengths.sum())
            writer.finish()
    for name, count in (("tars", megabytes * 18), ("large", megabytes * 72)):
        tar.make_dataset(folder / name, "55 KB", count, a_shard=150)
    subprocess.run([sys.executable, "-W", "ignore", __file__, "--make", str(folder)], check=True)


def make_index(folder: Path) -> None:
    """Tokens in so many documents that their index has 1 GiB."""
    from headrace.stores import IndexedWriter

    folder.mkdir()
    count, at_once = (1 << 30) // 20, 1 << 20
    tokens = np.random.default_rng(0).integers(0, 50_000, at_once, dtype=np.uint16)
    with IndexedWriter(str(folder / "index"), dtype=np.dtype(np.uint16)) as writer:
        for begin in range(0, count, at_once):
            some = min(at_once, count - begin)
            writer.add_documents(tokens[:some], np.ones(some, np.int64))
        writer.finish()


class Bench:
    """Runs measurements in processes of their own, against one server."""

    def __init__(self, url: str, proxy: Any, folder: Path) -> None:
        self.url = url
        self.proxy = proxy
        self.folder = folder

    def measure(self, what: str, *arguments: Any, latency_ms: float, folder: Path) -> dict[str, Any]:
        """Return what one measurement found, with its GETs and the bytes that the proxy sent."""
        self.proxy.latency_s = latency_ms / 1000
        gets, num_bytes = self.proxy.gets, self.proxy.sent_bytes
        os.environ["HEADRACE_CACHE"] = str(folder / "objects")
        found = common.run_apart(__file__, json.dumps({"what": what, "arguments": [*arguments], "folder": str(folder)}))
        return found | {"gets": self.proxy.gets - gets, "bytes": self.proxy.sent_bytes - num_bytes}


def report(
    bench: Bench, latencies: list[float], rounds: int, wanted: list[str] | None, options: dict[str, Any]
) -> None:
    engines = {name: peer.cases for name, peer in remote_peers.ENGINES.items() if find_spec(peer.modules[0])}
    notes = [f"{name} is not installed, and is left out" for name in remote_peers.ENGINES if name not in engines]
    mine = {name: tuple(case for case in CASES if name in CASES[case]) for name in (OURS, DIRECT, IN_ORDER)}
    engines = {**mine, **engines}
    pairs = [(case, name) for case in CASES for name, cases in engines.items() if case in cases]
    pairs = [pair for pair in pairs if wanted is None or pair[1] in wanted]
    rows: dict[tuple[str, float, str, str], list[dict[str, Any]]] = {}
    # The first run of all is slower than others, whoever makes it, and is not counted.
    (bench.folder / "first").mkdir()
    bench.measure("epoch", OURS, bench.url, "windows", latency_ms=0, folder=bench.folder / "first")
    for number in range(rounds):
        for latency_ms in latencies:
            for case, engine in pairs:
                folder = bench.folder / f"{number}-{latency_ms}-{case}-{engine.replace(' ', '-')}"
                folder.mkdir()
                for phase in ("cold", "warm"):
                    found = bench.measure("epoch", engine, bench.url, case, latency_ms=latency_ms, folder=folder)
                    found["fetched"] = found.pop("bytes") / found.pop("used_bytes")
                    rows.setdefault((case, latency_ms, phase, engine), []).append(found)
                    said = " ".join(f"{name}={common.cell(value)}" for name, value in found.items())
                    print(f"{case} {latency_ms:g} ms {phase} {engine}: {said}", flush=True)
                shutil.rmtree(folder)
    table = [
        {"data": case, "latency_ms": latency_ms, "folders": phase, "engine": engine, **common.medians(found)}
        for (case, latency_ms, phase, engine), found in rows.items()
    ]
    caches = []
    for kind in ("blocks", "shards", "full"):
        for part in (0.1, 0.25, 0.5):
            folder = bench.folder / f"{kind}-{part}"
            folder.mkdir()
            found = bench.measure("cache", bench.url, kind, part, latency_ms=0, folder=folder)
            shutil.rmtree(folder)
            caches.append({"order": kind, "cache": f"{part:.0%}", **found})
            print(caches[-1], flush=True)
    others, claims = bars(bench, rounds)
    others += compared(bench, rounds)
    print(common.table(table), common.table(caches), sep="\n")
    for kind in ("blocks", "shards"):
        fetched = max(row["fetched"] for row in caches if row["order"] == kind)
        claims.append(common.verdict(f"bytes fetched over bytes used, order {kind}", fetched, 1.25, at_most=True))
    claims += list(ratios(table))
    print(*claims, sep="\n")
    common.save(
        "remote",
        {"options": options, "rows": table, "caches": caches, "others": others, "notes": notes, "claims": claims},
    )


def bars(bench: Bench, rounds: int) -> tuple[list[dict[str, Any]], list[str]]:
    """What is measured of Headrace alone."""

    def several(what: str, *arguments: Any, latency_ms: float) -> dict[str, Any]:
        found = []
        for number in range(rounds):
            folder = bench.folder / f"{what}-{number}"
            folder.mkdir()
            found.append(bench.measure(what, *arguments, latency_ms=latency_ms, folder=folder))
            shutil.rmtree(folder)
        return common.medians(found)

    waited = several("paced", bench.url, latency_ms=30)
    near, far = (several("resume", bench.url, latency_ms=latency_ms) for latency_ms in (0, 200))
    ours, bare = (several("ranges", engine, bench.url, latency_ms=0) for engine in (OURS, "obstore"))
    trips = (far["s"] - near["s"]) / 0.2
    others = [
        {"what": "share of its time that a loop of 80 MB/s waits, 30 ms", "value": waited["waited"]},
        {"what": "round trips to the first batch after a resume", "value": trips},
        {"what": "CPU seconds a GB, ours", "value": ours["cpu_s_a_gb"]},
        {"what": "CPU seconds a GB, obstore", "value": bare["cpu_s_a_gb"]},
    ]
    return others, [
        common.verdict("share of its time that a loop of 80 MB/s waits, 30 ms", waited["waited"], 0.01, at_most=True),
        # The block is the fourth.
        common.verdict("round trips to the first batch after a resume", trips, 4, at_most=True),
        common.verdict(
            "CPU a GB, times obstore's get_ranges", ours["cpu_s_a_gb"] / bare["cpu_s_a_gb"], 1.5, at_most=True
        ),
    ]


def compared(bench: Bench, rounds: int) -> list[dict[str, Any]]:
    """What it costs to compare kept files before they are used."""
    rows = []
    asked = {"start": ("to the first batch over a kept index of 1 GiB", 1.0), "blocks": ("a GB of kept blocks", 0.107)}
    for what, (words, num_gb) in asked.items():
        bench.measure("kept", bench.url, what, True, latency_ms=0, folder=bench.folder / "kept")  # fetches it
        found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for _ in range(rounds):
            for is_compared, runs in found.items():
                runs.append(
                    bench.measure("kept", bench.url, what, is_compared, latency_ms=0, folder=bench.folder / "kept")
                )
        for is_compared, runs in found.items():
            how = "" if is_compared else ", not compared"
            for name, unit in (("s", "seconds"), ("cpu_s", "CPU seconds")):
                rows.append({"what": f"{unit} {words}{how}", "value": common.medians(runs)[name] / num_gb})
    return rows


def ratios(table: list[dict[str, Any]]) -> Iterator[str]:
    """Ours over each peer: rate a CPU second, and the peer's time to the first batch over ours."""
    found = {(row["data"], row["latency_ms"], row["folders"], row["engine"]): row for row in table}
    for (case, latency_ms, phase, engine), row in found.items():
        for name in LIKE.get((case, engine), (OURS,)):
            mine = found.get((case, latency_ms, phase, name))
            if engine in remote_peers.ENGINES and mine is not None:
                how = ", in order" if name == IN_ORDER else ""
                where = f"{case}{how}, {latency_ms:g} ms, {phase}, times {engine}"
                yield common.verdict(f"rate a CPU second, {where}", mine["mb_per_cpu_s"] / row["mb_per_cpu_s"], 1)
                yield common.verdict(f"earlier first batch, {where}", row["first_batch_s"] / mine["first_batch_s"], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="24 MB of tokens and of samples, in place of 96")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latencies", default="30", help="in milliseconds, separated by commas")
    parser.add_argument("--engines", help="the engines to measure; all by default")
    parser.add_argument("--servers", help="the folder in which `make remote` has installed the server")
    parser.add_argument(
        "--kept", action="store_true", help="measure only what comparing kept files costs; saves nothing"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        remote_peers.make(options.make)
        return
    if options.one:
        asked = json.loads(options.one)
        found = MEASURES[asked["what"]](*asked["arguments"], Path(asked["folder"]))
        print(json.dumps(found), flush=True)
        os._exit(0)  # some peers have threads that do not end
    if options.servers:
        os.environ["HEADRACE_SERVERS"] = options.servers
    import fault_proxy
    import servers

    latencies = [float(one) for one in options.latencies.split(",")]
    wanted = None if options.engines is None else options.engines.split(",")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        (folder / "server").mkdir()
        (folder / "data").mkdir()
        (folder / "kept").mkdir()
        if not options.kept:
            make_data(folder / "data", 24 if options.quick else 96)
        make_index(folder / "data" / "index")
        with servers.weed(folder / "server") as bucket, fault_proxy.fault_proxy(str(bucket.storage.endpoint)) as proxy:
            url = bucket.upload(folder / "data", "bench")
            os.environ |= {
                "AWS_ACCESS_KEY_ID": servers.ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": servers.SECRET,
                "AWS_REGION": "us-east-1",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": proxy.endpoint,
                "S3_ENDPOINT_URL": proxy.endpoint,
            }
            bench = Bench(url, proxy, folder)
            if options.kept:
                print(common.table(compared(bench, options.rounds)))
            else:
                report(bench, latencies, options.rounds, wanted, vars(options))


if __name__ == "__main__":
    main()
