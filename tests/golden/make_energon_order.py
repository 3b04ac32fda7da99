"""Writes what Energon's loaders read, for drawn mixes of four datasets and drawn numbers of ranks and workers.

    python make_energon_order.py folder [number [seed]]       with megatron-energon; then copy the two files

Each entry of ``orders.json`` is a mix, a topology and a rank, and the samples in the order in which the loader of that
rank gave them, as their texts: ``a17`` is sample 17 of the dataset a. The tars hold nothing but these texts, and are
made anew. ``pieces.json`` has what parts of Energon give: ranges of ranges, the slices of workers, draws of a worker.
"""

from __future__ import annotations

import io
import itertools
import json
import random
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

COUNTS = {"a": [25, 25, 25, 25], "b": [7, 3, 12], "c": [40, 1, 2, 30, 5], "d": [1, 1]}
FIRST = 150
"""Samples that are kept of an order without an end."""


def write(root: Path) -> None:
    for name, counts in COUNTS.items():
        number = 0
        for shard, count in enumerate(counts):
            path = root / name / f"s{shard}.tar"
            path.parent.mkdir(parents=True, exist_ok=True)
            with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
                for _ in range(count):
                    text = f"{name}{number}".encode()
                    entry = tarfile.TarInfo(f"{number:05d}.txt")
                    entry.size = len(text)
                    tar.addfile(entry, io.BytesIO(text))
                    number += 1
        options = ["--non-interactive", "--split-parts", "train:.*", "--sample-type", "TextSample"]
        program = Path(sys.executable).parent / "energon"
        subprocess.run(
            [program, "prepare", root / name, *options, "--field-map", '{"text": "txt"}'],
            check=True,
            capture_output=True,
        )


def drawn(rng: random.Random) -> dict[str, Any]:
    """A mix, as it stands in the file."""
    training = rng.random() < 0.75
    names = rng.sample(sorted(COUNTS), rng.choice([1, 1, 2, 3]))
    blend = rng.choice(["weights", "repetitions"]) if training and len(names) > 1 else "none"
    if training and len(names) == 1 and rng.random() < 0.4:
        blend = "repetitions"
    sources = []
    for name in names:
        source: dict[str, Any] = {"name": name}
        if rng.random() < 0.4:
            source["subset"] = rng.choice([["10%", "90%"], [3, 20], [5, "end"], ["33%", "100%"], [0, 22]])
        if blend == "weights":
            source["weight"] = rng.choice([0.1, 0.7, 1.0, 3.0, 10.0])
        if blend == "repetitions":
            source["repetitions"] = rng.choice([1, 2, 3, 0.5, 1.5, 2.25])
        sources.append(source)
    case: dict[str, Any] = {
        "sources": sources,
        "world_size": rng.choice([1, 1, 2, 3]),
        "num_workers": rng.choice([0, 1, 2, 3]),
        "seed_offset": rng.choice([0, 0, 7]),
        "batch_size": rng.choice([None, None, 4]),
    }
    case["rank"] = rng.randrange(case["world_size"])
    if training:
        case["mixing"] = {
            "max_samples_per_sequence": rng.choice([None, 2, 5, 10, 30]),
            "parallel_shard_iters": rng.choice([1, 2, 4, 16]),
            "shuffle_buffer_size": rng.choice([0, 0, 5, 20]),
            "blend": blend,
            "repeat": blend == "weights" or rng.random() < 0.7,
        }
        case["shuffle_over_epochs"] = rng.choice([1, 1, 2, 3, -1] if case["mixing"]["repeat"] else [1, 1, 2])
    else:
        case["limit"] = rng.choice([None, None, 3])
        case["drop_last"] = case["batch_size"] is not None and rng.random() < 0.5
    return case


def metadataset(root: Path, case: dict[str, Any]) -> Path:
    entries = []
    for source in case["sources"]:
        entry: dict[str, Any] = {"path": str(root / source["name"]), "split_part": "train"}
        if "subset" in source:
            entry["subset"] = {"range": source["subset"]}
        entries.append(entry | {name: source[name] for name in ("weight", "repetitions") if name in source})
    blend = case.get("mixing", {}).get("blend", "none")
    split = {"blend_epochized": entries} if blend == "repetitions" else {"blend": entries}
    if blend == "none" and len(entries) == 1:
        split = entries[0]
    whole = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": split}}
    path = root / "mix.yaml"
    path.write_text(json.dumps(whole))
    return path


def read(root: Path, case: dict[str, Any]) -> list[Any]:
    from megatron.energon import WorkerConfig, get_loader, get_train_dataset, get_val_dataset

    config = WorkerConfig(
        rank=case["rank"],
        world_size=case["world_size"],
        num_workers=case["num_workers"],
        seed_offset=case["seed_offset"],
    )
    common = {"split_part": "train", "worker_config": config, "batch_size": case["batch_size"]}
    path = metadataset(root, case)
    if "mixing" in case:
        mixing = case["mixing"]
        dataset = get_train_dataset(
            path,
            **common,
            shuffle_buffer_size=mixing["shuffle_buffer_size"],
            max_samples_per_sequence=mixing["max_samples_per_sequence"],
            parallel_shard_iters=mixing["parallel_shard_iters"],
            shuffle_over_epochs_multiplier=case["shuffle_over_epochs"],
            repeat=mixing["repeat"],
        )
    else:
        dataset = get_val_dataset(path, **common, batch_drop_last=case["drop_last"], limit=case["limit"])
    found = [item.text for item in itertools.islice(get_loader(dataset), FIRST)]
    return found if case["batch_size"] is None else [list(batch) for batch in found]


def pieces(number: int, seed: int) -> dict[str, list[Any]]:
    rng = random.Random(seed)
    return {
        "subsets": [subset(rng) for _ in range(number)],
        "slices": [slices(rng) for _ in range(number)],
        "draws": [draws(rng) for _ in range(number // 4)],
    }


def subset(rng: random.Random) -> dict[str, Any]:
    """Ranges from the outermost to the one of the dataset."""
    from megatron.energon.metadataset.metadataset_v2 import Subset

    def percentages() -> list[str]:
        return [f"{end}%" for end in sorted(rng.choice([0, 7, 10, 25, 33, 33.3, 50, 66.6, 75, 90, 100]) for _ in "ab")]

    num_samples = rng.randrange(1, 10 ** rng.randrange(1, 10))
    inner = percentages() if rng.random() < 0.6 else [rng.randrange(num_samples), "end"]
    outer = [percentages() for _ in range(rng.randrange(3))]
    merged = None
    for one in [*outer, inner]:
        merged = Subset(range=tuple(one)).merge(merged)
    bounds = list(merged.compute_subset(num_samples))
    return {"outer": outer, "range": inner, "num_samples": num_samples, "bounds": bounds}


def slices(rng: random.Random) -> dict[str, Any]:
    """Offsets by rank and worker."""
    from megatron.energon import WorkerConfig
    from megatron.energon.flavors.webdataset.sharder import Sharder
    from megatron.energon.flavors.webdataset.structs import ShardInfo

    counts = [1, *(rng.randrange(rng.choice([3, 60, 300])) for _ in range(rng.randrange(8)))]
    world_size, num_workers = rng.randrange(1, 5), rng.randrange(5)
    case: dict[str, Any] = {"counts": counts, "world_size": world_size, "num_workers": num_workers}
    case["max_samples_per_sequence"] = longest = rng.choice([None, 1, 2, 7, 20, 33])
    case["rotation"] = rotation = rng.randrange(world_size * max(1, num_workers))
    shards = [ShardInfo(name=str(number), path=None, count=count) for number, count in enumerate(counts)]
    case["offsets"] = [
        [
            [int(offset) for offset in offsets]
            for offsets in Sharder.shard_workers(
                shards,
                WorkerConfig(rank=rank, world_size=world_size, num_workers=num_workers),
                max_samples_per_sequence=longest,
                rotation_offset=rotation,
            )
        ]
        for rank in range(world_size)
    ]
    return case


def draws(rng: random.Random) -> dict[str, Any]:
    """Some draws of one worker, one after another."""
    import torch
    from megatron.energon import WorkerConfig
    from megatron.energon.rng import WorkerRng

    offset = rng.randrange(1_000)
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, seed_offset=offset)
    worker, found = WorkerRng(config), []
    for _ in range(12):
        kind = rng.choice(["shuffle", "below", "choose"])
        if kind == "shuffle":
            number = rng.choice([0, 1, 2, 5, 30])
            found.append((kind, number, worker.shuffle(list(range(number)))))
        elif kind == "below":
            number = rng.choice([1, 2, 100, 1 << 20, 1 << 28, (1 << 31) - 1])
            found.append((kind, number, worker.randbelow(number)))
        else:
            weights = [rng.choice([0.0, 1.0, rng.random() * 10.0 ** rng.randrange(-3, 7)]) for _ in range(9)]
            weights = [0.1, *weights[: rng.randrange(9)]]
            found.append((kind, weights, worker.choice_idx(torch.tensor(weights, dtype=torch.float32))))
    return {"seed": config.worker_seed(), "draws": found}


def written(entries: list[Any]) -> str:
    lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries)
    return f"[\n{lines}\n]"


def main(folder: Path, number: int, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    cases = []
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch))
        while len(cases) < number:
            case = drawn(rng)
            try:
                cases.append(case | {"samples": read(Path(scratch), case)})
            except (AssertionError, RuntimeError) as error:
                cases.append(case | {"error": str(error).strip().splitlines()[-1]})
            print(len(cases), {k: v for k, v in cases[-1].items() if k != "samples"}, file=sys.stderr)
    (folder / "orders.json").write_text(f'{{"counts": {json.dumps(COUNTS)},\n"cases": {written(cases)}}}\n')
    parts = ",\n".join(f'"{name}": {written(entries)}' for name, entries in pieces(60, seed).items())
    (folder / "pieces.json").write_text(f"{{{parts}}}\n")


if __name__ == "__main__":
    number, seed = [*map(int, sys.argv[2:]), *(40, 0)[len(sys.argv) - 2 :]]
    main(Path(sys.argv[1]), number, seed)
