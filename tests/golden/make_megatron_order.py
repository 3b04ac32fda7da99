"""Writes the golden files of Megatron's order with megatron-core's own classes and compiled helpers.

    python tests/golden/make_megatron_order.py tests/golden/megatron_order

Needs the extra ``interop``. The README beside says what is in each file.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

README_SIZES = [20, 50, 60, 30, 100, 5]
LOGNORMAL = {"generator": "max(1, default_rng(0).lognormal(6, 1.2, 1000)) as int32"}


class Oracle(NamedTuple):
    """The parts of megatron-core that decide the order."""

    gpt: Any
    indexed: Any
    helpers: Any
    blended: Any
    builder: Any
    config: Any
    utils: Any


def oracle() -> Oracle:
    import importlib

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = (
            "gpt_dataset",
            "indexed_dataset",
            "helpers",
            "blended_dataset",
            "blended_megatron_dataset_builder",
            "blended_megatron_dataset_config",
            "utils",
        )
        return Oracle(*(importlib.import_module(f"megatron.core.datasets.{name}") for name in names))


class Tokenizer:
    """As much of a tokenizer as a GPTDataset asks for."""

    vocab_size = 60000
    eod = 59999
    pad = 59998
    unique_identifiers: dict[str, str] = {"class": "none"}  # noqa: RUF012


def write(peer: Oracle, prefix: Path, sizes: list[int]) -> Any:
    """A dataset of one-sequence documents of these sizes; token i of the stream is i modulo 50,021."""
    builder = peer.indexed.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    token = 0
    for size in sizes:
        builder.add_item(torch.from_numpy(((token + np.arange(size)) % 50021).astype(np.int32)))
        builder.end_document()
        token += size
    builder.finalize(f"{prefix}.idx")
    return peer.indexed.IndexedDataset(str(prefix))


def gpt_dataset(peer: Oracle, dataset: Any, indices: range, num_samples: int | None, **options: Any) -> Any:
    """Megatron's own dataset over some sequences, with its caches beside the data."""
    split = peer.utils.Split.train if options.pop("drop_last_partial") else peer.utils.Split.valid
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as cache:
        warnings.simplefilter("ignore")
        config = peer.gpt.GPTDatasetConfig(
            random_seed=options["seed"],
            sequence_length=options["sequence_length"],
            blend=(["x"], None),
            split="1,1,1",
            path_to_cache=cache,
            tokenizer=Tokenizer(),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
            drop_last_partial_validation_sequence=False,
            add_extra_token_to_sequence=options["add_extra_token"],
        )
        config.mmap_bin_files = True
        some = np.arange(indices.start, indices.stop, dtype=np.int32)
        return peer.gpt.GPTDataset(dataset, str(dataset.path_prefix), some, num_samples, split, config)


CASES: list[tuple[str, int | None, dict[str, Any]]] = [
    *(("readme", wanted, {"seed": 1234}) for wanted in (None, 8, 12, 16, 20)),
    ("readme", None, {"seed": 0}),
    ("readme", None, {"add_extra_token": False}),
    ("readme", 11, {"add_extra_token": False}),
    ("readme", 10, {"drop_last_partial": False}),
    ("readme", 12, {"drop_last_partial": False, "add_extra_token": False}),
    ("lognormal", None, {"sequence_length": 2048}),
    ("lognormal", 1500, {"sequence_length": 2048}),
]


def order_case(peer: Oracle, folder: Path, name: str, wanted: int | None, options: dict[str, Any]) -> dict[str, Any]:
    options = {"sequence_length": 30, "seed": 1234, "add_extra_token": True, "drop_last_partial": True} | options
    sizes = README_SIZES
    if name == "lognormal":
        sizes = np.maximum(1, np.random.default_rng(0).lognormal(6, 1.2, 1000)).astype(np.int32).tolist()
    dataset = write(peer, folder / name, sizes)
    made = gpt_dataset(peer, dataset, range(len(sizes)), wanted, **options)
    case: dict[str, Any] = {"sizes": name, "num_samples": wanted, "options": options}
    for index in ("document_index", "sample_index", "shuffle_index"):
        array = getattr(made, index)
        case[index] = {"dtype": str(array.dtype), "sha1": sha1(array)}
        if name == "readme":
            case[index]["values"] = array.tolist()
    case["first_tokens"] = [int(made[i]["tokens"][0]) for i in range(min(20, len(made)))]
    return case


def sha1(array: Any) -> str:
    return hashlib.sha1(np.ascontiguousarray(array, dtype="<i8").tobytes()).hexdigest()[:16]


def helper_case(peer: Oracle, extra: bool, drop: bool) -> dict[str, Any]:
    sizes = np.array(README_SIZES, np.int32)
    entries = np.arange(6, dtype=np.int32)
    made = peer.helpers.build_sample_idx(sizes, entries, 30, 1, int(sizes.sum()), drop, extra)
    return {"add_extra_token": extra, "drop_last_partial": drop, "rows": made.tolist()}


def blend_case(peer: Oracle, weights: list[float], size: int | None) -> dict[str, Any]:
    count = sum(int(w) for w in weights) if size is None else size
    datasets, samples = np.zeros(count, np.int16), np.zeros(count, np.int64)
    if size is None:
        peer.helpers.build_exhaustive_blending_indices(datasets, samples, np.array(weights, np.int64), len(weights))
    else:
        shares = peer.utils.normalize(weights)
        peer.helpers.build_blending_indices(datasets, samples, shares, len(weights), size, False)
    return {
        "weights": weights,
        "size": size,
        "datasets_sha1": sha1(datasets),
        "samples_sha1": sha1(samples),
        "first_datasets": datasets[:20].tolist(),
    }


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    peer = oracle()
    with tempfile.TemporaryDirectory() as scratch:
        _save(folder / "orders.json", [order_case(peer, Path(scratch), *case) for case in CASES])
    _save(folder / "sample_index.json", [helper_case(peer, e, d) for e in (True, False) for d in (True, False)])
    blends: list[tuple[list[float], int | None]] = [
        ([0.5, 0.25, 0.25], 4),
        ([float(weight) for weight in range(1, 11)], 5000),
        ([1 / 3] * 3, 3001),
        ((np.random.default_rng(1).random(130) ** 3 + 1e-6).tolist(), 4000),
        ([7, 1, 100, 33, 2], None),
        (np.random.default_rng(2).integers(1, 60, 140).tolist(), None),
    ]
    _save(folder / "blends.json", [blend_case(peer, *case) for case in blends])
    perms = []
    for length, seed in ((0, 0), (1, 5), (2, 0), (10, 0), (21, 1), (1000, 2**31), (3000, 2**32 - 1)):
        made = torch.randperm(length, generator=torch.Generator().manual_seed(seed)).numpy()
        perms.append({"length": length, "seed": seed, "first": made[:12].tolist(), "sha1": sha1(made)})
    _save(folder / "randperm.json", perms)


def _save(path: Path, cases: list[dict[str, Any]]) -> None:
    path.write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
