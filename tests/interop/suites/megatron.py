"""Megatron-LM's tests of its data, with ``headrace.compat.megatron`` in place of its datasets.

Variants, besides ``itself``:

    in_place    `IndexedDataset` and its builder stand in place of Megatron's own; all else is Megatron's
    names       ``GPTDataset``, ``MockGPTDataset``, ``BlendedDataset`` and the builder of datasets, too

Megatron's tests expect GPUs and files of NVIDIA. Here one process on a CPU stands for the group of processes, and tests
that need those files fail in every variant. The packages triton and nltk must be installed (``make suites`` does that).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import tempfile
import typing
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace.compat.megatron as ours
from suites.suite import Suite, variant

DATA = "tests/unit_tests/data"
NEEDS_FILES = "since it needs files of NVIDIA's machines, and hangs without them"
SUITE = Suite(
    name="megatron",
    tests=(DATA,),
    left_out={
        f"{DATA}/test_get_batch.py": "since it needs a GPU",
        f"{DATA}/test_preprocess_data.py": NEEDS_FILES,
        f"{DATA}/test_preprocess_data_fast.py": NEEDS_FILES,
        f"{DATA}/test_preprocess_mmdata.py": NEEDS_FILES,
    },
    variants=("in_place", "names"),
    options=("--noconftest", "--continue-on-collection-errors"),
)


@pytest.fixture(scope="session")
def tmp_path_dist_ckpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that Megatron's conftest makes for all processes."""
    return tmp_path_factory.mktemp("megatron")


@pytest.fixture
def ensure_test_data() -> None:
    """In Megatron's conftest it downloads files; here tests that need them fail."""


def pytest_configure() -> None:
    """Make Megatron run on a CPU, and put Headrace in its place."""
    if not hasattr(typing, "override"):  # Megatron needs Python 3.12 for this alone
        typing.override = lambda method: method  # type: ignore[attr-defined]
    from megatron.core.datasets import indexed_dataset, utils
    from tests.unit_tests.test_utilities import Utils

    Utils.initialize_distributed = staticmethod(_one_process)
    _load_helpers()
    utils.compile_helpers = lambda: None
    if variant() != "itself":
        _replace(indexed_dataset, "IndexedDataset", ours.IndexedDataset)
        _replace(indexed_dataset, "IndexedDatasetBuilder", ours.IndexedDatasetBuilder)
    if variant() == "names":
        from megatron.core.datasets import (  # the last one derives from a class that is replaced below
            blended_dataset,
            blended_megatron_dataset_builder,
            gpt_dataset,
            multimodal_dataset,
        )

        del multimodal_dataset
        Builder.peer = blended_megatron_dataset_builder.BlendedMegatronDatasetBuilder
        own_blend = blended_dataset.BlendedDataset
        _replace(blended_megatron_dataset_builder, "BlendedMegatronDatasetBuilder", Builder)
        _replace(blended_dataset, "BlendedDataset", Blend)
        blended_megatron_dataset_builder.BlendedDataset = own_blend
        _replace(gpt_dataset, "GPTDataset", Samples)
        _replace(gpt_dataset, "MockGPTDataset", MockSamples)


def _one_process() -> None:
    if not torch.distributed.is_initialized():
        meeting = f"file://{tempfile.mkdtemp()}/meeting"
        torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)


def _load_helpers() -> None:
    """Megatron's compiled helpers come from the wheel of megatron-core, whose source of them is the same."""
    [file] = [file for file in importlib.metadata.files("megatron-core") or () if file.name.startswith("helpers_cpp.")]
    name = "megatron.core.datasets.helpers_cpp"
    spec = importlib.util.spec_from_file_location(name, str(file.locate()))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def _replace(home: Any, name: str, new: Any) -> None:
    """Replace a name in its module, and in all modules that imported it."""
    old = getattr(home, name)
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)


class AsTensors:
    """Items as Megatron's: tensors in place of arrays, index None for a sample without loss, negative indices."""

    def __getitem__(self, index: int | None) -> dict[str, Any]:
        number = 0 if index is None else range(len(self))[index]  # type: ignore[arg-type]
        item = {name: torch.as_tensor(np.array(value)) for name, value in super().__getitem__(number).items()}  # type: ignore[misc]
        if index is None:
            item["loss_mask"] = torch.zeros_like(item["loss_mask"])
        return item


class Samples(AsTensors, ours.GPTDataset):
    """Megatron's ``GPTDataset``."""

    @property
    def dataset(self) -> ours.IndexedDataset:
        """The sequences."""
        return ours.IndexedDataset(self.store.path)


class MockSamples(AsTensors, ours.MockGPTDataset):
    """Megatron's ``MockGPTDataset``."""


class Blend(AsTensors, ours.GPTBlend):
    """Megatron's ``BlendedDataset``."""


PARTS = ("train", "valid", "test")
ONE_PART = {"train": "1,0,0", "valid": "0,1,0", "test": "0,0,1"}


class Builder:
    """Megatron's builder, for `Samples` and `MockSamples`; datasets of another class are Megatron's own affair."""

    peer: Any = None

    def __new__(cls, kind: type, sizes: list[int | None], is_built_on_rank: Callable[[], bool], config: Any) -> Any:
        """Return a builder."""
        if kind not in (Samples, MockSamples):
            return cls.peer(kind, sizes, is_built_on_rank, config)
        made = super().__new__(cls)
        made.kind, made.sizes, made.config = kind, sizes, config
        return made

    kind: type
    sizes: list[int | None]
    config: Any

    def build(self) -> list[Any]:
        """Return the datasets of training, validation and test, None where the split gives nothing."""
        return [self._part(name, size) for name, size in zip(PARTS, self.sizes, strict=True)]

    def _part(self, name: str, size: int | None) -> Any:
        config = self.config
        own = None if config.blend_per_split is None else config.blend_per_split[PARTS.index(name)]
        split = ONE_PART[name] if own is not None else config.split
        if split is None or not dict(zip(PARTS, [*map(float, split.split(",")), 0, 0], strict=False))[name]:
            return None
        options: dict[str, Any] = {
            "sequence_length": config.sequence_length,
            "seed": config.random_seed,
            "split": split,
            "split_part": name,
            "masks": self._masks(),
            "add_extra_token_to_sequence": config.add_extra_token_to_sequence,
            "drop_last_partial_validation_sequence": config.drop_last_partial_validation_sequence,
        }
        if self.kind is MockSamples:
            tokenizer = config.tokenizer
            return MockSamples(vocab_size=tokenizer.vocab_size, eod=tokenizer.eod, num_samples=size, **options)
        build = partial(_built, options)
        prefixes, weights = own or config.blend
        words = (
            prefixes if weights is None else [str(one) for pair in zip(weights, prefixes, strict=True) for one in pair]
        )
        surplus = config.mid_level_dataset_surplus
        return Blend.of(words, num_samples=size, build=build, one_part=own is not None, surplus=surplus)

    def _masks(self) -> ours.GPTMasks:
        flags = ("eod_mask_loss", "reset_position_ids", "reset_attention_mask", "create_attention_mask")
        found = {name: getattr(self.config, name) for name in (*flags, "inter_document_masking")}
        if not found["create_attention_mask"]:
            found["reset_attention_mask"] = False  # it has no effect in Megatron, and is refused here
        tokenizer = self.config.tokenizer
        return ours.GPTMasks.of(tokenizer, allow_ambiguous_pad_tokens=self.config.allow_ambiguous_pad_tokens, **found)


def _built(options: dict[str, Any], prefix: str, num_samples: int | None) -> Samples:
    return Samples(prefix, num_samples=num_samples, **options)
