"""Trains a tiny captioner on pictures in tars with two workers, stops in the middle, and resumes on two ranks."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from headrace.compat.energon import EnergonLoader, WorkerConfig, get_savable_loader, get_train_dataset
from headrace.samples.media import CaptioningSample
from headrace.stores.tar.writer import TarWriter

WORDS = {"red": (200, 30, 30), "green": (30, 160, 60), "blue": (40, 60, 200)}
SAMPLES = {"sample_type": CaptioningSample, "field_map": {"image": "png", "caption": "txt"}}


def write_shard(path: Path, numbers: range) -> None:
    with TarWriter(path) as tar:
        for number in numbers:
            word = list(WORDS)[number % 3]
            noise = np.random.default_rng(number).integers(-20, 20, (16, 16, 3))
            stream = io.BytesIO()
            Image.fromarray((np.array(WORDS[word]) + noise).clip(0, 255).astype(np.uint8)).save(stream, "PNG")
            tar.add(f"{number:04d}", {"png": stream.getvalue(), "txt": word.encode()})


def opened(folder: Path, workers: WorkerConfig, batch_size: int) -> EnergonLoader:
    return get_savable_loader(get_train_dataset(folder, worker_config=workers, batch_size=batch_size, **SAMPLES))


if __name__ == "__main__":  # worker processes may import this file
    folder = Path(tempfile.mkdtemp(prefix="headrace-example-"))
    for shard in range(4):
        write_shard(folder / f"{shard:03d}.tar", range(shard * 32, shard * 32 + 32))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, len(WORDS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    loader = opened(folder, WorkerConfig(0, 1, num_workers=2), batch_size=16)
    for batch in loader:
        labels = torch.tensor([list(WORDS).index(caption) for caption in batch.caption])
        loss = torch.nn.functional.cross_entropy(model(batch.image), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loader.position in (16, 320):
            print(f"loss after {loader.position} samples {loss.item():.3f}")
        if loader.position == 320:
            state = json.dumps(loader.save_state_rank())
            break
    print(f"a state of {len(state)} bytes")
    for rank in range(2):
        resumed = opened(folder, WorkerConfig(rank, 2, num_workers=0), batch_size=8)
        resumed.restore_state_rank(json.loads(state))
        print(f"rank {rank} of 2 continues with the samples {next(iter(resumed)).__key__}")
