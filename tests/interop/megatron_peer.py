"""megatron-core itself, in this process: its modules, its builder of datasets, and the least that these ask for.

Two versions are compared: the installed one, and a newer one in a folder of its own that comes first on the path. That
one has its compiled helpers for another Python, and uses those of the installed one, which have the same source.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

DTYPES = ["uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16"]
"""All that its indexed files hold."""


class Tokenizer:
    """What its datasets ask of a tokeniser; it has no pad."""

    vocab_size = 60_000
    eod = 3
    unique_identifiers: dict[str, Any] = {"class": "none"}  # noqa: RUF012


def core(name: str) -> Any:
    """A module of megatron-core, such as "datasets.gpt_dataset"; skips the test where that is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _load_helpers()
        return pytest.importorskip(f"megatron.core.{name}")


def _load_helpers() -> None:
    name = f"megatron/core/datasets/helpers_cpp{sysconfig.get_config_var('EXT_SUFFIX')}"
    paths = [Path(folder) / name for folder in sys.path if (Path(folder) / name).parent.is_dir()]
    if not paths or paths[0].exists() or "megatron.core.datasets.helpers_cpp" in sys.modules:
        return
    there = next(path for path in paths if path.exists())
    sources = [(path.parent / "helpers.cpp").read_bytes() for path in (paths[0], there)]
    assert sources[0] == sources[1]
    spec = importlib.util.spec_from_file_location("megatron.core.datasets.helpers_cpp", there)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def indexed(prefix: Path, **options: Any) -> Any:
    """Its ``IndexedDataset``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about arrays that are read-only
        return core("datasets.indexed_dataset").IndexedDataset(str(prefix), **options)


def write(prefix: Path, documents: Sequence[tuple[Any, list[int]]], dtype: Any, **options: Any) -> None:
    """A pair by its builder, of the tokens of each document and the lengths of its sequences."""
    builder = core("datasets.indexed_dataset").IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype, **options)
    for tokens, lengths in documents:
        builder.add_document(tokens, lengths)
    builder.finalize(f"{prefix}.idx")


def write_drawn(prefix: Path, rng: np.random.Generator, *, fewest: int = 3, shortest: int = 0) -> int:
    """Documents of one to three sequences of few different ids, some of them empty; returns the sequences."""
    documents = []
    for _ in range(int(rng.integers(fewest, fewest + 37))):
        lengths = rng.integers(shortest, 30, rng.integers(1, 4))
        tokens = torch.from_numpy(rng.integers(0, 12, lengths.sum()).astype(np.int64))
        documents.append((tokens, lengths.tolist()))
    write(prefix, documents, rng.choice([np.uint16, np.int32]))
    return sum(len(lengths) for _, lengths in documents)


def config(**options: Any) -> Any:
    """Its ``GPTDatasetConfig``; what that demands is filled in."""
    flags = ("create_attention_mask", "reset_position_ids", "reset_attention_mask", "eod_mask_loss")
    least = {"tokenizer": Tokenizer(), "mid_level_dataset_surplus": 0.005, **dict.fromkeys(flags, False)}
    return core("datasets.gpt_dataset").GPTDatasetConfig(**{**least, **options})


def build(wanted: Sequence[int | None], *, kind: str = "GPTDataset", **options: Any) -> list[Any]:
    """The three datasets of its builder; needs the fixture `alone`."""
    builder = core("datasets.blended_megatron_dataset_builder").BlendedMegatronDatasetBuilder
    made = getattr(core("datasets.gpt_dataset"), kind)
    return list(builder(made, list(wanted), lambda: True, config(**options)).build())


def data_path(prefixes: Sequence[str], weights: Sequence[float] | None) -> list[str]:
    """The words of ``--data-path``."""
    if weights is None:
        return list(prefixes)
    return [str(word) for pair in zip(weights, prefixes, strict=True) for word in pair]


def check_samples(ours: Any, theirs: Any, numbers: Sequence[int] | range) -> None:
    """Samples are equal, field by field, with their dtypes."""
    for number in numbers:
        for one in getattr(theirs, "datasets", [theirs]):
            # Megatron keeps the first sample's loss mask, zeros and all, for every later one.
            one.masks_and_position_ids_are_cached = False
        mine, expected = ours[number], theirs[number]
        if "cu_seqlens" in expected:  # theirs has a border more for a document without tokens
            borders = torch.unique(expected["cu_seqlens"])
            expected["cu_seqlens"] = torch.full_like(expected["cu_seqlens"], int(borders[-1]))
            expected["cu_seqlens"][: len(borders)] = borders
        assert set(mine) == set(expected)
        for name, value in expected.items():
            wanted = torch.as_tensor(value)
            assert torch.equal(torch.as_tensor(mine[name]), wanted), name
            assert torch.as_tensor(mine[name]).dtype == wanted.dtype, name
