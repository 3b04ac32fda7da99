"""A run through Lightning's Trainer, and in a loop of Fabric: killed at random micro-steps, and resumed elsewhere."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

import corpora
from counts import PATIENCE_S

pytestmark = pytest.mark.interop
lightning = pytest.importorskip("lightning", reason="needs the extra interop: pip install -e '.[interop]'")

HERE = Path(__file__).parent
KILLED = -signal.SIGKILL

Said = dict[tuple[str, int, int], list[Any]]
"""(what, epoch, step) -> the positions that it was fed, sorted, and the sum of its losses."""


def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


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
    folder.mkdir(exist_ok=True)
    before = set(folder.glob("said-*"))
    environment = {**os.environ, "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port())}
    environment |= {"TORCHELASTIC_RUN_ID": "headrace", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environment["TENSOR_PARALLEL"] = str(peers)
    arguments = [store, folder, samples, epochs, 4 * max(1, peers) // world_size, killed_at]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / script), *map(str, arguments)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world_size)
    ]
    outputs = [rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks]
    wanted = {KILLED, 1} if killed_at else {0}
    assert {rank.returncode for rank in ranks} <= wanted, outputs
    assert not killed_at or KILLED in {rank.returncode for rank in ranks}
    fed: dict[tuple[str, int, int], list[Any]] = defaultdict(lambda: [[], 0.0])
    for file in sorted(set(folder.glob("said-*")) - before):
        for line in file.read_text().splitlines():
            what, epoch, step, positions, loss = json.loads(line)
            fed[what, epoch, step][0] += positions
            fed[what, epoch, step][1] += loss
    return {key: [sorted(positions), pytest.approx(loss, rel=1e-5)] for key, (positions, loss) in fed.items()}


@pytest.mark.parametrize(("epochs", "samples"), [(1, 70), (2, 80)], ids=["uneven-last-step", "two-epochs"])
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
    with pytest.raises(ConfigError, match=r"has 8 samples, and one of the trainer 4: 1 .* 2 times .*=2\. Pass .*=4\)"):
        check_trainer(Trainer(accumulate_grad_batches=2, **options), run, 2)
    with pytest.raises(ConfigError, match="give the run that many samples"):
        check_trainer(Trainer(limit_train_batches=3, **options), run, 8)
    with pytest.raises(ConfigError, match="give the run that many samples"):
        check_trainer(Trainer(overfit_batches=3, **options), run, 8)
    data = HeadraceDataModule(run, micro_batch_size=8)
    data.trainer = Trainer(**{**options, "max_epochs": 3})
    with pytest.raises(ConfigError, match="10 steps, which 3 epochs do not divide"):
        data.train_dataloader()


def test_fabric_killed_and_resumed_on_other_ranks(corpus: list[corpora.Corpus], tmp_path: Path) -> None:
    """From 1 rank to 2 and back to 1, each time after a SIGKILL; the last step is uneven. Each step is a checkpoint."""
    options: dict[str, Any] = {"epochs": 1, "samples": 70, "store": Path(corpus[0].store.path)}
    options["script"] = "fabric_rank.py"
    whole = train(tmp_path / "whole", 1, **options)
    steps = [positions for _, (positions, _) in sorted(whole.items())]
    assert steps == [list(range(begin, min(begin + 8, 70))) for begin in range(0, 70, 8)]
    draw = random.Random(4)
    found: Said = {}
    for world_size, killed_at in ((1, draw.randint(4 * 2 + 1, 4 * 5)), (2, draw.randint(2 * 2 + 1, 2 * 4)), (1, 0)):
        part = train(tmp_path / "killed", world_size, killed_at=killed_at, **options)
        assert not found or min(part) <= max(found)
        found |= part
    assert found == whole


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
