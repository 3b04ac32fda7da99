"""Megatron's order and files: Headrace compared with megatron-core, in CPU seconds and peak memory.

    python benchmarks/megatron_gpt.py [--quick] [--documents 1_000_000,20_000_000] [--write 500_000] [--rounds 3]

``first``: the time from opening the data to the first shuffled sample of 2,048 tokens, for one and for about three
epochs. Megatron builds its indices in a new folder, as when a run starts for the first time. ``native`` is Headrace's
own order over the same files, with the manifest that ``headrace prepare``, ``merge`` and ``convert`` write.
``unvouched`` is the same without a manifest, so that every pointer must be checked once. ``samples``: shuffled samples
a CPU second, with tokens, labels, masks and positions but without attention masks, in micro-batches of 8. Megatron uses
torch's loader, and Headrace its own. ``blend``: computing the dataset of each of a million samples. ``write``: adding
documents of 100 tokens and finalising the files, with the same calls in both.

Documents have lognormal(6, 1.2) tokens. The ``.bin`` is sparse, so that no time is spent on reading zeros from a disk.
Each measurement is a separate process, and engines take turns. The figures are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import common
import numpy as np

# Files of this folder must not hide installed packages of the same name.
sys.path.remove(str(Path(__file__).resolve().parent))

REASONS = {
    "samples": "The longer the windows, the more of the time is the copy, which both do.",
    "write": "Both write the same bytes, document by document.",
}
DEPENDS = (
    "`native` needs no indices, so that its ratio grows with the number of documents and epochs; that of samples falls"
    " as windows grow."
)
FIRST = ("megatron", "headrace", "native", "unvouched")
EPOCHS = (1, 3)
LENGTHS = (2048, 8192)
BLENDS = (10, 1000)


class Tokenizer:
    """The attributes of a tokenizer that megatron-core's GPTDataset needs."""

    vocab_size = 50_000
    eod = 0
    pad = 49_999
    unique_identifiers = {"class": "none"}  # noqa: RUF012


def write_corpus(prefix: Path, num_documents: int) -> int:
    """Write a sparse ``.bin`` and its ``.idx`` in chunks; return the number of tokens."""
    rng = np.random.default_rng(0)
    sizes = np.empty(num_documents, dtype="<i4")
    for begin in range(0, num_documents, 1 << 20):
        part = sizes[begin : begin + (1 << 20)]
        part[:] = np.maximum(1, rng.lognormal(6, 1.2, len(part)))
    ends = np.cumsum(sizes, dtype=np.int64)
    with Path(f"{prefix}.idx").open("wb") as file:
        header = b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + b"\x08"
        file.write(header + num_documents.to_bytes(8, "little") + (num_documents + 1).to_bytes(8, "little"))
        for array in (sizes, ((ends - sizes) * 2).astype("<i8"), np.arange(num_documents + 1, dtype="<i8")):
            file.write(array.data)
    with Path(f"{prefix}.bin").open("wb") as file:
        file.truncate(int(ends[-1]) * 2)
    return int(ends[-1])


def vouch(prefix: Path, num_documents: int) -> None:
    """The same files in a folder named ``<prefix>-vouched``, with the manifest of a store that Headrace wrote."""
    from headrace.io import FileSum
    from headrace.stores import DocumentLedger, Ledger, Manifest, OutputShard, TokenLedger, save_manifest
    from headrace.stores.written import KeyInfo

    folder = Path(f"{prefix}-vouched")
    folder.mkdir()
    files = []
    for suffix in (".bin", ".idx"):
        os.link(f"{prefix}{suffix}", folder / f"text{suffix}")
        size = Path(f"{prefix}{suffix}").stat().st_size
        # Only a check reads the hashes, and none is made here.
        files.append(FileSum(name=f"text{suffix}", size=size, xxh3_128="0" * 32, block_bytes=size, xxh3_64=("0" * 16,)))
    tokens = files[0].size // 2
    shard = OutputShard(
        prefix="text",
        documents=num_documents,
        keys={"text": KeyInfo(dtype="uint16", tokens=tokens)},
        contiguous=True,
        files=tuple(files),
    )
    ledger = Ledger(
        documents=DocumentLedger(read=num_documents, kept=num_documents), tokens=TokenLedger(made=tokens, kept=tokens)
    )
    save_manifest(folder, Manifest(outputs=(shard,), ledger=ledger))


def megatron_dataset(prefix: str, size: int, wanted: int | None, cache: str) -> Any:
    from megatron.core.datasets import gpt_dataset, indexed_dataset, utils

    config = gpt_dataset.GPTDatasetConfig(
        random_seed=1234,
        sequence_length=size,
        blend=([prefix], None),
        split="1,0,0",
        path_to_cache=cache,
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    low = indexed_dataset.IndexedDataset(prefix)
    indices = np.arange(len(low), dtype=np.int32)
    return gpt_dataset.GPTDataset(low, prefix, indices, wanted, utils.Split.train, config)


def first(engine: str, prefix: str, epochs: int, folder: str) -> dict[str, Any]:
    import headrace

    # Imports are not measured.
    if engine == "megatron":
        import megatron.core.datasets.gpt_dataset  # noqa: F401
    for name in headrace.__all__:
        if name not in ("Loader", "Ranks", "Reading"):
            getattr(headrace, name)
    tokens = Path(f"{prefix}.bin").stat().st_size // 2
    wanted = None if epochs == 1 else int(tokens * (epochs - 0.5)) // 2048
    before, begin = common.memory_bytes("VmRSS"), time.process_time()
    if engine == "megatron":
        dataset = megatron_dataset(prefix, 2048, wanted, str(Path(folder) / f"cache-{os.getpid()}"))
        dataset[0]
    elif engine == "headrace":
        headrace.compat.megatron.GPTDataset(prefix, sequence_length=2048, num_samples=wanted)[0]
    else:
        store = headrace.open(prefix if engine == "unvouched" else f"{prefix}-vouched")
        run = headrace.Run(headrace.WindowDataset(store, seq_len=2048), global_batch_size=1)
        run.step(0)
    spent = time.process_time() - begin
    return {"cpu_s": spent, "peak_mb": (common.memory_bytes("VmHWM") - before) / 1e6}


def samples(engine: str, prefix: str, size: int, folder: str, seconds: float = 1.5) -> dict[str, Any]:
    """Read micro-batches of 8 from the loader of each engine, in this process."""
    import headrace

    batches: Any
    if engine == "megatron":
        import torch

        dataset = megatron_dataset(prefix, size, None, str(Path(folder) / "cache"))
        batches = iter(torch.utils.data.DataLoader(dataset, batch_size=8))
    else:
        data = headrace.compat.megatron.GPTDataset(prefix, sequence_length=size)
        run = headrace.Run(data, global_batch_size=8, order=headrace.Order(kind="none"), epochs=100)
        batches = iter(headrace.Loader(run, micro_batch_size=8))
    next(batches)
    num, begin = 0, time.process_time()
    while (spent := time.process_time() - begin) < seconds:
        next(batches)
        num += 8
    return {"samples_per_cpu_s": num / spent}


def blend(engine: str, num_datasets: int, size: int = 1_000_000) -> dict[str, Any]:
    weights = np.arange(1, num_datasets + 1) / (num_datasets * (num_datasets + 1) / 2)
    if engine == "megatron":
        from megatron.core.datasets import helpers

        build = helpers.build_blending_indices
        index, numbers = np.zeros(size, np.int16), np.zeros(size, np.int64)
        begin = time.process_time()
        build(index, numbers, weights.tolist(), num_datasets, size, False)
    else:
        from headrace.plan.megatron import build_blending_indices

        build_blending_indices(weights[:2] * 2, 1 << 16)  # loads the compiled kernel
        begin = time.process_time()
        build_blending_indices(weights, size)
    return {"samples_per_cpu_s": size / (time.process_time() - begin)}


def write(engine: str, num_documents: int, folder: str) -> dict[str, Any]:
    if engine == "megatron":
        import torch
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

        document: Any = torch.arange(100)
    else:
        from headrace.compat.megatron import IndexedDatasetBuilder

        document = np.arange(100)
    place = Path(folder) / f"written-{os.getpid()}"
    before, begin = common.memory_bytes("VmRSS"), time.process_time()
    builder = IndexedDatasetBuilder(f"{place}.bin", dtype=np.uint16)
    for _ in range(num_documents):
        builder.add_document(document, [100])
    builder.finalize(f"{place}.idx")
    spent = time.process_time() - begin
    return {"docs_per_cpu_s": num_documents / spent, "peak_mb": (common.memory_bytes("VmHWM") - before) / 1e6}


def measure(what: str, engine: str, prefix: str, number: int, folder: str) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    if what == "first":
        return first(engine, prefix, number, folder)
    if what == "samples":
        return samples(engine, prefix, number, folder)
    return blend(engine, number) if what == "blend" else write(engine, number, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few documents, one round: whether it runs")
    parser.add_argument("--documents", default="1_000_000,20_000_000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", type=int, default=500_000, help="documents to write")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        what, engine, prefix, number, folder = options.one
        print(json.dumps(measure(what, engine, prefix, int(number), folder)))
        return
    if options.quick:
        options.documents, options.rounds, options.write = "100_000", 1, 10_000
    some = slice(1) if options.quick else slice(None)
    rows: list[dict[str, Any]] = []

    def compare(what: str, engines: tuple[str, ...], prefix: str, number: int, folder: str, **names: Any) -> None:
        found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
        for _ in range(options.rounds):
            for engine in engines:
                found[engine].append(common.run_apart(__file__, what, engine, prefix, str(number), folder))
        rows.extend({"what": what, **names, "engine": e, **common.medians(some)} for e, some in found.items())

    both = FIRST[:2]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        for documents in (int(text) for text in options.documents.split(",")):
            prefix = str(Path(folder) / f"corpus-{documents}")
            write_corpus(Path(prefix), documents)
            vouch(Path(prefix), documents)
            for epochs in EPOCHS[some] if documents <= 1_000_000 else EPOCHS[-1:]:
                compare("first", FIRST, prefix, epochs, folder, of=f"{documents:,} documents, {epochs} epochs")
            # With more documents, the .bin does not fit into the page cache.
            for size in LENGTHS[some] if documents <= 1_000_000 else ():
                compare("samples", both, prefix, size, folder, of=f"{size:,} tokens")
        for num_datasets in BLENDS[some]:
            compare("blend", both, "", num_datasets, folder, of=f"{num_datasets:,} datasets")
        compare("write", both, "", options.write, folder, of=f"{options.write:,} documents of 100 tokens")
    names = dict.fromkeys(name for row in rows for name in row)
    print(common.table([{name: row.get(name, "") for name in names} for row in rows]))
    lines = claims(rows)
    print("\n".join(lines))
    common.save("megatron", {"options": vars(options), "rows": rows, "claims": lines})


def claims(rows: list[dict[str, Any]]) -> list[str]:
    by = {(row["what"], row["of"], row["engine"]): row for row in rows}
    lines = []
    for (what, of, engine), row in by.items():
        if engine == "megatron":
            continue
        theirs = by[what, of, "megatron"]
        if engine == "unvouched":
            lines.append(f"{of}: {engine}, times as fast: {theirs['cpu_s'] / row['cpu_s']:.0f}")
        elif what == "first":
            bar = (50 if engine == "native" else 2) if of.startswith("20,") else 0.95
            lines.append(common.verdict(f"{of}: {engine}, times as fast", theirs["cpu_s"] / row["cpu_s"], bar))
            share = row["peak_mb"] / theirs["peak_mb"]
            lines.append(common.verdict(f"{of}: {engine}, share of the peak memory", share, 0.75, at_most=True))
        if what == "first":
            continue
        rate = "docs_per_cpu_s" if what == "write" else "samples_per_cpu_s"
        bar = 4 if (what, of) == ("samples", "2,048 tokens") else 0.95
        lines.append(common.verdict(f"{what}, {of}: times as fast", row[rate] / theirs[rate], bar))
    return lines


if __name__ == "__main__":
    main()
