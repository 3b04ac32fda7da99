"""AstrAI's tests of its data, at its version of today and at that of 2026-06 (``astrai_seed``), with our names.

    names        datasets, stores and the sampler are those of ``headrace.compat.astrai``
    documented   and what AstrAI's configurations make of records is what `headrace prepare` makes of them, where the
                 dtypes of masks and rewards are named

What we have no name for stays AstrAI's own: its functions for files, its checkpoints, its configuration classes, and in
``names`` its pipeline.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import headrace
import headrace.compat.astrai as ours
from headrace.plan.packing import Packing, plan_packs
from headrace.preparing.recipes import find_template, find_tokenizer
from headrace.preparing.record_encoder import find_end_names, make_maker
from headrace.preparing.run_plan import RecipeSetup
from headrace.samples.recipe import parse_recipe
from headrace.samples.recipe.recipe import lengths_key
from suites.suite import Absent, Suite, variant

SUITE = Suite(name="astrai", tests=("tests/data",), options=("--continue-on-collection-errors",))

NAMES = {
    "BaseDataset": "BaseDataset",
    "DPODataset": "DPODataset",
    "DatasetFactory": "DatasetFactory",
    "GRPODataset": "GRPODataset",
    "H5Store": "H5Store",
    "MmapStore": "MmapStore",
    "RDSampler": "ResumableDistributedSampler",
    "ResumableDistributedSampler": "ResumableDistributedSampler",
    "SEQDataset": "SEQDataset",
    "SFTDataset": "SFTDataset",
    "Store": "Store",
    "StoreFactory": "StoreFactory",
    "detect_format": "detect_format",
}
"""AstrAI's names and ours."""

MODULES = ("dataset", "dataset.dataset", "dataset.storage", "dataset.sampler")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Put Headrace in place of AstrAI, before its conftest imports names."""
    patch_python()
    sys.meta_path.insert(0, Absent("fastapi", "uvicorn"))
    if variant() != "itself":
        replace(MODULES, {name: getattr(ours, other) for name, other in NAMES.items()})
    if variant() == "documented":
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
        found = sequences(values, folder, item)
        if found is None:
            return None
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


def sequences(config: dict[str, Any], folder: Path, item: dict[str, Any]) -> dict[str, Any] | None:
    """Return the sequences of one record, or their lists, as `headrace prepare` makes them; None if it is left out."""
    recipe = parse_recipe(json.dumps(config), name="the configuration")
    loaded, place = find_tokenizer(recipe, folder)
    recipe, template = find_template(recipe, place, {})
    setup = RecipeSetup(
        recipe=msgspec.json.encode(recipe),
        sources=(),
        template=None if template is None else msgspec.json.encode(template),
        special_tokens=find_end_names(loaded, place, template).tokens,
        before_text=loaded.before_text,
    )
    maker = make_maker(setup, loaded.json, source=0)
    made = maker.make([item])
    if made.bad or made.dropped:
        return None
    rows = {name: values.tolist() for name, (values, _) in made.arrays.items()}
    stored = {key.name: key.stored for key in maker.keys}
    for key in maker.keys:
        lengths = rows.get(stored.get(lengths_key(key.parallel_to or key.name), ""))
        if key.kind in ("ids", "mask") and lengths is not None:
            ends = list(itertools.accumulate(lengths))
            flat = rows[key.stored]
            rows[key.stored] = [flat[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    apart = {"position_ids", *(key.stored for key in maker.keys if key.kind == "lengths")}
    return {name: row for name, row in rows.items() if name not in apart}


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
        headrace.preparing.prepare(inputs, output, recipe=file, tokenizer=tokenizer)
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
