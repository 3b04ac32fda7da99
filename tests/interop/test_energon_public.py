"""Loader code of public projects, as it is written but for its import lines, on data of the kind that it is for.

The projects are not kept here: HEADRACE_SUITES names a folder that holds them, as for `make suites`.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from energon_made import write_shards
from headrace.compat import energon
from media_made import encoded

pytestmark = pytest.mark.interop

COUNT = 24


def public(path: str) -> str:
    """Return the text of a file with Headrace in its import lines; skip the test if the file is not at hand."""
    file = Path(os.environ.get("HEADRACE_SUITES", "nowhere"), "public", path)
    if not file.is_file():
        pytest.skip(f"{path} is not at hand: set HEADRACE_SUITES to a folder with public/{path}")
    lines = file.read_text(encoding="utf-8").split("\n")
    return "\n".join(renamed(line) for line in lines)


def renamed(line: str) -> str:
    """Return a line with the names of Energon's modules changed, if it imports them."""
    first, _, rest = line.strip().partition(" ")
    if first not in ("from", "import") or not rest.startswith("megatron.energon"):
        return line
    module = rest.split()[0]
    return line.replace(module, "headrace.compat.energon", 1)


def module_of(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> types.ModuleType:
    """Put a module with these names where a project imports it from."""
    made = types.ModuleType(name)
    made.__dict__.update(names)
    made.__path__ = []
    monkeypatch.setitem(sys.modules, name, made)
    return made


def images_of(folder: Path) -> Path:
    """A prepared dataset of pictures with questions and answers in a folder, written once."""
    root = folder / "images"
    if root.is_dir():
        return root
    shards: dict[str, list[tuple[str, bytes]]] = {"0.tar": [], "1.tar": []}
    for number in range(COUNT):
        picture = encoded(Image.fromarray(np.full((8, 8, 3), number, np.uint8)), "PNG")
        talk = [{"value": f"what is {number}"}, {"value": f"it is {number}"}]
        parts = [(f"{number:04d}.jpg", picture), (f"{number:04d}.json", json.dumps(talk).encode())]
        shards[f"{number * 2 // COUNT}.tar"] += parts
    write_shards(root, shards)
    energon.BaseWebdatasetFactory.prepare_dataset(
        root, ["{0..1}.tar"], split_parts_ratio=[("train", 1), ("val", 1)], shuffle_seed=None, workers=1
    )
    fields = "{image: jpg, context: 'json[0][value]', answers: 'json[1][value]'}"
    (root / ".nv-meta/dataset.yaml").write_text(
        f"__module__: megatron.energon\n__class__: VQAWebdataset\nfield_map: {fields}\n"
    )
    return root


class Questions(energon.DefaultTaskEncoder):  # type: ignore[type-arg]
    @energon.stateless
    def encode_sample(self, sample: Any) -> Any:
        return {"text": sample.context, "number": torch.tensor(int(sample.context.split()[-1]))}


def test_the_multimodal_example_of_megatron(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = public("Megatron-LM/examples/multimodal/dataloader_provider.py")
    given = types.SimpleNamespace(
        data_path=[str(images_of(tmp_path))],
        micro_batch_size=2,
        num_workers=0,
        packing_buffer_size=None,
        eval_iters=4,
        load=None,
        dataloader_save=None,
    )
    state = alone(monkeypatch)
    state.__dict__.update(
        get_pipeline_model_parallel_rank=lambda: 0,
        get_pipeline_model_parallel_world_size=lambda: 1,
        get_tensor_model_parallel_rank=lambda: 0,
    )
    module_of(monkeypatch, "megatron.core.num_microbatches_calculator", get_num_microbatches=lambda: 3)
    module_of(monkeypatch, "megatron.training", get_args=lambda: given, print_rank_0=print)
    module_of(monkeypatch, "megatron.training.checkpointing", get_checkpoint_name=lambda *_, **__: "")
    module_of(monkeypatch, "dataset_helpers", TaskEncoder=Questions, print_error_handler=print)
    names: dict[str, Any] = {"__name__": "dataloader_provider"}
    exec(compile(text, "dataloader_provider.py", "exec"), names)
    with pytest.warns(UserWarning, match="ignores"):
        training, validation, _ = names["train_valid_test_dataloaders_provider"](None, task_encoder=Questions())
    batches = list(itertools.islice(training, 5))
    assert all(batch["number"].shape == (2,) for batch in batches)
    saved = training.save_state()
    expected = next(training)
    with pytest.warns(UserWarning, match="ignores"):
        again, _, _ = names["train_valid_test_dataloaders_provider"](None, task_encoder=Questions())
    again._dataloader.restore_state_rank(saved)
    assert torch.equal(next(iter(again._dataloader))["number"], expected["number"])
    [evaluation] = validation
    numbers = [number for batch in itertools.islice(evaluation, 12) for number in batch["number"].tolist()]
    assert numbers == [COUNT // 2 + at % 12 for at in range(24)], "limited to 12 batches, and repeated"


OPTIONS: dict[str, Any] = {"seq_length": 16, "micro_batch_size": 2, "num_workers": 0, "task_encoder": Questions()}


def alone(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Put the part of Megatron that loaders ask for their rank in place, for one process."""
    state = module_of(
        monkeypatch,
        "megatron.core.parallel_state",
        is_initialized=lambda: True,
        get_data_parallel_rank=lambda *_, **__: 0,
        get_data_parallel_world_size=lambda: 1,
        get_data_parallel_group=lambda: None,
    )
    module_of(monkeypatch, "megatron")
    module_of(monkeypatch, "megatron.core", parallel_state=state)
    return state


def test_the_loader_of_megatron_bridge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = public("Megatron-Bridge/src/megatron/bridge/data/energon/base_energon_datamodule.py")
    alone(monkeypatch)
    module_of(monkeypatch, "megatron.core.process_groups_config", ProcessGroupCollection=object)
    names: dict[str, Any] = {"__name__": "base_energon_datamodule"}
    exec(compile(text, "base_energon_datamodule.py", "exec"), names)

    def module() -> Any:
        made = names["EnergonMultiModalDataModule"](path=str(images_of(tmp_path)), tokenizer=None, **OPTIONS)
        return made.train_dataloader()

    loader = module()
    numbers = [next(loader)["number"] for _ in range(3)]
    assert all(one.shape == (2,) for one in numbers)
    state = loader.save_state()
    expected = next(loader)["number"]
    again = module()
    again._dataloader.restore_state_rank(state)
    assert torch.equal(next(iter(again._dataloader))["number"], expected)


def test_the_data_module_of_nemo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = public("NeMo/nemo/collections/multimodal/data/energon/base.py")
    alone(monkeypatch)
    for name in ("nemo", "nemo.collections", "nemo.collections.multimodal", "nemo.collections.multimodal.data"):
        module_of(monkeypatch, name)
    for name in ("nemo.collections.multimodal.data.energon", "nemo.lightning", "nemo.lightning.io"):
        module_of(monkeypatch, name)
    import logging

    module_of(monkeypatch, "nemo.collections.multimodal.data.energon.config", MultiModalSampleConfig=dict)
    module_of(monkeypatch, "nemo.collections.multimodal.data.energon.task_encoder", MultiModalTaskEncoder=object)
    plain = types.SimpleNamespace()
    module_of(monkeypatch, "nemo.lightning.io.mixin", IOMixin=object, serialization=plain, track_io=lambda kind: kind)
    sampler = type("MegatronDataSampler", (), {"__init__": lambda self, **_: None, "init_global_step": 0})
    module_of(monkeypatch, "nemo.lightning.pytorch")
    module_of(monkeypatch, "nemo.lightning.pytorch.plugins", MegatronDataSampler=sampler)
    module_of(monkeypatch, "nemo.utils", logging=logging.getLogger("nemo"))
    module_of(monkeypatch, "fiddle", Config=dict)
    module_of(monkeypatch, "lightning")
    base = type("LightningDataModule", (), {"trainer": None})
    module_of(monkeypatch, "lightning.pytorch", LightningDataModule=base)
    module_of(monkeypatch, "lightning.pytorch.utilities")
    module_of(monkeypatch, "lightning.pytorch.utilities.types", EVAL_DATALOADERS=Any, TRAIN_DATALOADERS=Any)
    names: dict[str, Any] = {"__name__": "base"}
    exec(compile(text, "base.py", "exec"), names)

    def module() -> Any:
        kind = names["EnergonMultiModalDataModule"]
        return kind(path=str(images_of(tmp_path)), tokenizer=None, image_processor=None, **OPTIONS)

    loader = module().train_dataloader()
    first = list(itertools.islice(loader, 3))
    assert all(batch["number"].shape == (2,) for batch in first)
    state = loader.save_state_global(global_dst_rank=0)
    expected = next(iter(loader))["number"]
    again = module().train_dataloader()
    again.restore_state_global(state)
    assert torch.equal(next(iter(again))["number"], expected)
    validation = next(iter(module().val_dataloader()))
    assert all(number >= COUNT // 2 for number in validation["number"].tolist())
