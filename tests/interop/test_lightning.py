"""A run through Lightning's Trainer, and in a loop of Fabric: killed at random micro-steps, and resumed elsewhere."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

import corpora
from interop import trainer_processes

pytestmark = pytest.mark.interop
lightning = pytest.importorskip("lightning", reason="needs the extra interop: pip install -e '.[interop]'")

Said = dict[tuple[str, int, int], list[Any]]
"""(what, epoch, step) -> the positions that it was fed, sorted, and the sum of its losses."""


def train(
    folder: Path,
    world_size: int,
    *,
    killed_at: int = 0,
    epochs: int,
    samples: int,
    store: Path,
    script: str = "lightning_rank.py",
    peers: int = 0,
) -> Said:
    """Train with some processes, of which so many are tensor-parallel peers, and return what they said."""
    variables = {"TORCHELASTIC_RUN_ID": "headrace", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    arguments = [store, folder, samples, epochs, 4 * max(1, peers) // world_size]
    said = trainer_processes.said_by(
        script, arguments, folder, world_size, killed_at, TENSOR_PARALLEL=str(peers), **variables
    )
    fed: dict[tuple[str, int, int], list[Any]] = defaultdict(lambda: [[], 0.0])
    for what, epoch, step, positions, loss in said:
        fed[what, epoch, step][0] += positions
        fed[what, epoch, step][1] += loss
    return {key: [sorted(positions), pytest.approx(loss, rel=1e-5)] for key, (positions, loss) in fed.items()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("epochs", "samples"), [(2, 80), (1, 70)], ids=["two-epochs", "uneven-last-step"])
def test_killed_and_resumed_on_other_ranks(
    epochs: int, samples: int, corpus: list[corpora.Corpus], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"epochs": epochs, "samples": samples, "store": Path(corpus[0].store.path)}
    whole = train(tmp_path / "whole", 1, **options)
    steps = [positions for (what, _, _), (positions, _) in sorted(whole.items()) if what == "train"]
    assert steps == [list(range(begin, min(begin + 8, samples))) for begin in range(0, samples, 8)]
    assert [positions for (what, _, _), (positions, _) in whole.items() if what == "validation"] == [
        [*range(5)]
    ] * epochs

    draw = random.Random(f"{epochs} {samples}")
    found: Said = {}
    # 1 rank dies in step 3 to 5, 2 ranks two to three steps later, 1 rank goes on to the end.
    for world_size, killed_at in ((1, draw.randint(4 * 2 + 1, 4 * 5)), (2, draw.randint(2 * 2 + 1, 2 * 4)), (1, 0)):
        part = train(tmp_path / "killed", world_size, killed_at=killed_at, **options)
        # What was trained after the last checkpoint comes again, and the step of the kill is not whole.
        found |= part
        assert killed_at == 0 or part.keys() < whole.keys()
    assert found == whole


def test_model_parallel_strategy(corpus: list[corpora.Corpus], tmp_path: Path) -> None:
    """Two tensor-parallel peers, both killed; then two data-parallel ranks, which read the sharded checkpoint."""
    options: dict[str, Any] = {"epochs": 1, "samples": 40, "store": Path(corpus[0].store.path)}
    whole = train(tmp_path / "whole", 1, **options)
    killed_at = random.SystemRandom().randint(4 * 2 + 1, 4 * 5)
    found = train(tmp_path / "killed", 2, killed_at=killed_at, peers=2, **options)
    later = train(tmp_path / "killed", 2, peers=1, **options)
    assert min(later)[2] in (2, 4), "checkpoints are those of every second step"
    assert found | later == whole


@pytest.mark.filterwarnings("ignore:The `srun` command is available")
def test_what_is_refused(corpus: list[corpora.Corpus]) -> None:
    from lightning.pytorch import Trainer

    from headrace import ConfigError, Run, WindowDataset
    from headrace.integrations.lightning import HeadraceDataModule, check_trainer

    run = Run(WindowDataset(corpus[0].store, seq_len=8), global_batch_size=8, samples=80)
    options: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "max_epochs": 1}
    with pytest.raises(ConfigError, match=r"8.*4.*1"):
        check_trainer(Trainer(accumulate_grad_batches=2, **options), run, 2)
    with pytest.raises(ConfigError, match="samples"):
        check_trainer(Trainer(limit_train_batches=3, **options), run, 8)
    with pytest.raises(ConfigError, match="samples"):
        check_trainer(Trainer(overfit_batches=3, **options), run, 8)
    data = HeadraceDataModule(run, micro_batch_size=8)
    data.trainer = Trainer(**{**options, "max_epochs": 3})
    with pytest.raises(ConfigError, match=r"10.*3.*divide"):
        data.train_dataloader()


@pytest.mark.filterwarnings("ignore:The `srun` command is available")
def test_fabric_saves_the_loader(corpus: list[corpora.Corpus], tmp_path: Path) -> None:
    from lightning.fabric import Fabric

    from headrace import Loader, Run, WindowDataset

    run = Run(WindowDataset(corpus[0].store, seq_len=8), global_batch_size=8, samples=80)
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    loader = Loader(run, micro_batch_size=2)
    for _, batch in zip(range(7), loader, strict=False):
        assert fabric.to_device(batch)["input_ids"].shape == (2, 8)
    fabric.save(tmp_path / "checkpoint.ckpt", {"loader": loader})
    resumed = Loader(run, micro_batch_size=4)
    fabric.load(tmp_path / "checkpoint.ckpt", {"loader": resumed})
    assert resumed.position == 14
    assert next(iter(resumed))["sample_positions"].tolist() == [14, 15]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["typed", "crude", "encoded"])
def test_media_are_moved(kind: str, tmp_path: Path) -> None:
    """Trainer and Fabric rebuild all that is in a batch, to move it: also where its samples come from."""
    from lightning.fabric import Fabric
    from lightning.pytorch import LightningModule, Trainer

    from headrace import Loader, MediaDataset, Run
    from headrace.datasets.encoded import EncodedDataset
    from headrace.encoders import DefaultTaskEncoder
    from headrace.integrations.lightning import HeadraceDataModule
    from headrace.samples.media import CaptioningSample, SourceInfo
    from headrace.stores.tar.writer import TarWriter

    with TarWriter(tmp_path / "shapes.tar") as tar:
        for number in range(8):
            tar.add(f"{number}", {"ppm": b"P6 4 4 255\n" + bytes([number]) * 48, "txt": b"x"})
    typed: dict[str, Any] = {"sample_type": CaptioningSample, "field_map": {"image": "ppm", "caption": "txt"}}
    dataset = MediaDataset.open(tmp_path / "shapes.tar", **({} if kind == "crude" else typed))
    data: Any = EncodedDataset(dataset, DefaultTaskEncoder()) if kind == "encoded" else dataset
    run = Run(data, global_batch_size=4, epochs=1)
    seen: list[Any] = []

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(48, 1)

        def training_step(self, batch: dict[str, Any]) -> torch.Tensor:
            seen.append(batch)
            found: torch.Tensor = self.layer(batch["ppm" if kind == "crude" else "image"].flatten(1)).mean()
            return found

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    options: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "max_epochs": 1}
    options |= {"enable_progress_bar": False, "enable_model_summary": False}
    Trainer(**options).fit(Model(), datamodule=HeadraceDataModule(run, micro_batch_size=4))
    Trainer(**options).fit(Model(), train_dataloaders=Loader(run, micro_batch_size=4))
    fabric = Fabric(accelerator="cpu", devices=1)
    seen += map(fabric.to_device, Loader(run, micro_batch_size=4))
    keys = [key for batch in seen for key in batch["__key__"]]
    assert sorted(keys) == sorted([*"01234567"] * 3)
    for batch in seen:
        for key, (source,) in zip(batch["__key__"], batch["__sources__"], strict=True):
            assert type(source) is SourceInfo
            assert source.shard_name == "shapes.tar"
            assert source.file_names[0].startswith(f"{key}.")
