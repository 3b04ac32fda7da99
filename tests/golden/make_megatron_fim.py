"""Writes what Megatron-LM's own ``GPTFIMDataset`` makes of samples with a toy tokeniser.

    python tests/golden/make_megatron_fim.py MEGATRON_LM_CHECKOUT tests/golden/megatron_fim

Needs the extra ``interop`` and a checkout of Megatron-LM, of which it runs one file,
``megatron/training/datasets/fim_dataset.py``. The README beside says what is in the file.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import fim_toy


def oracle(checkout: Path) -> Any:
    path = checkout / "megatron/training/datasets/fim_dataset.py"
    spec = importlib.util.spec_from_file_location("fim_dataset", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec.loader.exec_module(module)
    return module.GPTFIMDataset


def made(dataset_class: Any, case: dict[str, Any]) -> list[list[int]]:
    """The samples in turn, by one dataset object and its one generator."""
    dataset = object.__new__(dataset_class)
    # Newer ones ask for the text without special tokens; the toy has none within documents.
    tokenizer = SimpleNamespace(ids_to_text=lambda ids, **_: fim_toy.decode(ids), text_to_ids=fim_toy.encode)
    dataset.config = SimpleNamespace(tokenizer=SimpleNamespace(_tokenizer=tokenizer))
    dataset.np_rng = np.random.RandomState(seed=case["seed"])
    dataset.fim_rate, dataset.fim_spm_rate = case["rate"], case["spm_rate"]
    dataset.fragment_fim_rate, dataset.no_fim_prefix = case["fragment_rate"], case["no_prefix"]
    dataset.fim_split_sample = fim_toy.SPLIT if case["fragment_rate"] is not None else None
    dataset.prefix_tok_id, dataset.middle_tok_id, dataset.suffix_tok_id = (
        fim_toy.PREFIX, fim_toy.MIDDLE, fim_toy.SUFFIX
    )  # fmt: skip
    dataset.pad_tok_id, dataset.eod_tok_id = fim_toy.PAD, fim_toy.EOD
    results = []
    for sample in case["samples"]:
        stored = np.array(sample, dtype=np.int64)
        dataset.shuffle_index = [0]
        dataset.sample_index = [(0, 0), (0, len(stored) - 1)]
        dataset.document_index = [0]
        dataset.dataset = SimpleNamespace(get=lambda _, offset, length, stored=stored: stored[offset : offset + length])
        results.append(dataset._query_document_sample_shuffle_indices(0)[0].tolist())
    return results


def cases() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    found = []
    for seed in range(60):
        fragments = bool(seed % 2)
        words = [*range(len(fim_toy.WORDS)), *[fim_toy.EOD] * (seed % 4), *[fim_toy.SPLIT] * (2 * fragments)]
        case = {
            "seed": seed,
            "rate": [0.5, 1.0, 0.9, 0.2][int(rng.integers(4))],
            "spm_rate": [0.5, 0.0, 1.0][int(rng.integers(3))],
            "fragment_rate": [0.5, 1.0, 0.0][int(rng.integers(3))] if fragments else None,
            "no_prefix": "ab" if rng.random() < 0.3 else None,
            "samples": [rng.choice(words, int(rng.integers(1, 40))).tolist() for _ in range(6)],
        }
        found.append(case)
    return found


def main(checkout: Path, folder: Path) -> None:
    dataset_class = oracle(checkout)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({**case, "made": made(dataset_class, case)}, separators=(",", ":")) for case in cases()]
    (folder / "samples.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
