"""AstrAI's tests of its data, at its version of today and at that of 2026-06 (``astrai_seed``), with our names.

    names        datasets, stores, the sampler and the functions for files are those of ``headrace.compat.astrai``
    documented   and what AstrAI's configurations make of records is what `headrace prepare` makes of them. The changes
                 are: the dtypes of masks and rewards are named; a store without a window size has records; and in
                 2026-06, pairs and groups without the borders of records are asked for as windows

What we have no name for stays AstrAI's own: its checkpoints, its configuration classes, and in ``names`` its pipeline.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace.compat.astrai as ours
from headrace.plan.packing import Packing, plan_packs
from suites.suite import Absent, Suite, variant

SUITE = Suite(name="astrai", tests=("tests/data",), options=("--continue-on-collection-errors",))

NAMES = {
    "BaseDataset": "BaseDataset",
    "DPODataset": "DPODataset",
    "DatasetFactory": "DatasetFactory",
    "GRPODataset": "GRPODataset",
    "H5Store": "H5Store",
    "JsonlStore": "JsonlStore",
    "MmapStore": "MmapStore",
    "RDSampler": "RDSampler",
    "ResumableDistributedSampler": "ResumableDistributedSampler",
    "Store": "Store",
    "StoreFactory": "StoreFactory",
    "detect_format": "detect_format",
    "dpo_collate_fn": "dpo_collate_fn",
    "grpo_collate_fn": "grpo_collate_fn",
    "load_bin": "load_bin",
    "load_h5": "load_h5",
    "save_bin": "save_bin",
    "save_h5": "save_h5",
}
"""AstrAI's names and ours."""

MODULES = ("dataset", "dataset.dataset", "dataset.storage", "dataset.sampler", "serialization")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Put Headrace in place of AstrAI, before its conftest imports names."""
    patch_python()
    sys.meta_path.insert(0, Absent("fastapi", "uvicorn"))
    if variant() != "itself":
        replace(MODULES, {name: getattr(ours, other) for name, other in NAMES.items()})
    if variant() == "documented":
        if hasattr(importlib.import_module("astrai.dataset"), "RDSampler"):  # not in the version of 2026-06
            ours.Store.__init__.__defaults__ = (0, None)
        else:
            ours.DatasetFactory.load = partial(load_windows, ours.DatasetFactory.load)
        replace(
            ("preprocessing", "preprocessing.builder", "preprocessing.pipeline", "preprocessing.packing"),
            {
                "SectionedMaskBuilder": MaskBuilder,
                "SingleOutputMaskBuilder": SingleMaskBuilder,
                "MultiOutputMaskBuilder": MultiMaskBuilder,
                "Pipeline": Pipeline,
                "filter_by_length": filter_by_length,
            },
        )
        replace(("preprocessing.packing", "preprocessing.pipeline"), {"PackingStrategyFactory": Packers})
        factory = importlib.import_module("astrai.preprocessing.builder").MaskBuilderFactory
        builders = {"single": SingleMaskBuilder, "multi": MultiMaskBuilder, "sectioned": MaskBuilder}
        factory.create = lambda name: builders[name]()


def patch_python() -> None:
    """AstrAI is written for Python 3.12; before, its ``type X = ...`` statements must be read as assignments."""
    if sys.version_info >= (3, 12):
        return
    sys.meta_path.insert(0, Older())


class Older(importlib.machinery.PathFinder):
    """Finds AstrAI's modules, and compiles them without statements of Python 3.12."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if name.split(".")[0] != "astrai":
            return None
        spec = super().find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = OlderLoader(spec.loader.name, spec.loader.path)
        return spec


class OlderLoader(importlib.machinery.SourceFileLoader):
    """See `Older`."""

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:  # type: ignore[override]
        lines = bytes(data).decode().splitlines()
        plain = [line.removeprefix("type ") if line.startswith("type ") and " = " in line else line for line in lines]
        text = "\n".join(plain).replace(
            "_evaluate(ns, None, frozenset(), ", "_evaluate(ns, None, "
        )  # one argument fewer
        return super().source_to_code(text.encode(), path, _optimize=_optimize)

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


def replace(modules: Sequence[str], names: dict[str, Any]) -> None:
    """Replace names in modules of AstrAI that have them."""
    for module in modules:
        found = importlib.import_module(f"astrai.{module}")
        for name, value in names.items():
            if hasattr(found, name):
                setattr(found, name, value)


def load_windows(load: Any, train_type: str, *arguments: Any, **options: Any) -> Any:
    """Load a dataset with windows, which AstrAI had for all training types."""
    return load(train_type, *arguments, layout="windows", **options)


class MaskBuilder:
    """AstrAI's mask builders, by what `headrace prepare` makes of single records with the same configuration."""

    keys: str | None = None

    def build(self, item: dict[str, Any], config: Any, tokenizer: Any) -> dict[str, Any] | None:
        """Return the sequences of a record, None if it is left out."""
        values = config.to_dict()
        if self.keys is not None and not values["input"].get(self.keys):
            return None
        domain_key = values["output"].pop("domain_key", None)
        values["output"]["dtype"] = (
            {"rewards": "float64"} if "rewards" in (values["input"].get("sources") or ()) else {}
        )
        folder = written(tokenizer)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = ours.TokenizeTransform(values, folder).apply([item])
        except headrace.InputError:
            return None
        made.pop("position_ids", None)
        found = {key: as_lists(rows[0]) for key, rows in made.items()}
        domain = item.get(domain_key) if domain_key else None
        return {**found, "domain": domain if isinstance(domain, str) else "__default__"}

    def build_batch(self, items: list[dict[str, Any]], config: Any, tokenizer: Any) -> list[dict[str, Any] | None]:
        """Return the same for several records."""
        return [self.build(item, config, tokenizer) for item in items]


class SingleMaskBuilder(MaskBuilder):
    """Only for configurations with ``sections``."""

    keys = "sections"


class MultiMaskBuilder(MaskBuilder):
    """Only for configurations with ``sources``."""

    keys = "sources"


def as_lists(row: Any) -> Any:
    return [as_lists(part) for part in row] if isinstance(row, list) else row.tolist()


def written(tokenizer: Any) -> Path:
    """The folder of a tokeniser of AstrAI, written once."""
    import tempfile

    folder = getattr(tokenizer, "_headrace_folder", None)
    if folder is None:
        folder = Path(tempfile.mkdtemp())
        tokenizer._headrace_folder = folder
        tokenizer.save_pretrained(str(folder))
    return folder


class Pipeline:
    """AstrAI's pipeline: ``headrace prepare INPUTS --recipe CONFIG --tokenizer FOLDER -o OUT``."""

    def __init__(self, config: Any, input_paths: list[str], output_dir: str, tokenizer_path: str) -> None:
        self.arguments = (config.to_dict(), input_paths, Path(output_dir), tokenizer_path)

    def run(self) -> None:
        """Prepare the store, and put its shard where AstrAI's tests look for one."""
        config, inputs, output, tokenizer = self.arguments
        if not config["input"].get("sources"):
            config["output"]["dtype"].setdefault("loss_mask", "int32")
        file = output.with_name("headrace_config.json")
        file.write_text(json.dumps(config))
        headrace.preparing.prepare_recipe(file, output, inputs=inputs, tokenizer=tokenizer)
        [meta] = output.rglob("meta.json")
        place = output / "__default__" / "shard_0000" / "meta.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(meta.read_bytes())


def filter_by_length(text: str, min_len: int = 50, max_len: int = 2_000_000) -> bool:
    """AstrAI's limits of characters, which are inclusive, as those of a recipe."""
    return min_len <= len(text) <= max_len


class Packers:
    """AstrAI's packing strategies, by the plan of packs over stored documents."""

    def __init__(self, strategy: str) -> None:
        self.strategy = strategy

    @classmethod
    def create(cls, name: str) -> Packers:
        """Return the strategy of a name."""
        return cls({"bfd": "best_fit", "bfd_split": "best_fit_split"}[name])

    def apply(self, keys: dict[str, list[list[int]]], max_packed_len: int, truncation_mode: str) -> dict[str, Any]:
        """Return the packs of each key."""
        over_long = "split" if self.strategy == "best_fit_split" else "truncate_right"
        packing = Packing(seq_len=max_packed_len, strategy=self.strategy, over_long=over_long)  # type: ignore[arg-type]
        plan = plan_packs(np.array([len(one) for one in keys["sequence"]]), packing)
        items = plan.items(np.arange(len(plan)))
        pieces = list(zip(items.documents.tolist(), items.begins.tolist(), items.lengths.tolist(), strict=True))
        packs = [pieces[begin:end] for begin, end in zip(items.offsets[:-1], items.offsets[1:], strict=True)]
        return {
            key: [[one for number, begin, n in pack for one in rows[number][begin : begin + n]] for pack in packs]
            for key, rows in keys.items()
        }
