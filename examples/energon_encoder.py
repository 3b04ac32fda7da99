"""Runs an Energon task encoder that packs, with its import line changed: trains on one rank, and resumes on two."""

import tempfile
from itertools import islice
from pathlib import Path

import torch

from headrace.compat.energon import EnergonLoader, WorkerConfig, get_savable_loader, get_train_dataset
from headrace.encoders import DefaultTaskEncoder, Sample, TextSample, edataclass, stateless
from headrace.stores.tar.writer import TarWriter


@edataclass
class Tokens(Sample):
    tokens: torch.Tensor


class Packing(DefaultTaskEncoder):
    @stateless
    def preencode_sample(self, sample: TextSample) -> Tokens:
        return Tokens.derive_from(sample, tokens=torch.tensor(list(sample.text.encode())))

    @stateless
    def select_samples_to_pack(self, samples: list[Tokens]) -> list[list[Tokens]]:
        packs: list[list[Tokens]] = []
        for sample in sorted(samples, key=lambda one: len(one.tokens), reverse=True):
            fits = [pack for pack in packs if sum(len(one.tokens) for one in [*pack, sample]) <= 64]
            fits[0].append(sample) if fits else packs.append([sample])
        return packs

    @stateless
    def pack_selected_samples(self, samples: list[Tokens]) -> Tokens:
        return Tokens.derive_from(samples[0], tokens=torch.cat([sample.tokens for sample in samples]))


def opened(folder: Path, rank: int, world_size: int, *, as_columns: bool = False) -> EnergonLoader:
    given = {"task_encoder": Packing(), "packing_buffer_size": 50, "num_lanes": 4, "batch_size": 4 // world_size}
    given |= {"worker_config": WorkerConfig(rank, world_size, 0), "sample_type": TextSample}
    return get_savable_loader(get_train_dataset(folder, field_map={"text": "txt"}, **given), as_columns=as_columns)


folder = Path(tempfile.mkdtemp(prefix="headrace-example-"))
with TarWriter(folder / "texts.tar") as tar:
    for number in range(500):
        tar.add(f"{number:04d}", {"txt": f"{number * number}, ".encode() * (1 + number % 5)})
model, loader = torch.nn.Sequential(torch.nn.Embedding(128, 32), torch.nn.Linear(32, 128)), opened(folder, 0, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for tokens in (batch.tokens for batch in islice(loader, 40)):
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:], ignore_index=0)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.3f}, {(tokens > 0).float().mean():.0%} of the last batch filled")
for rank in range(2):
    resumed = opened(folder, rank, 2, as_columns=True)
    resumed.restore_state_rank(loader.save_state_rank())
    print(f"rank {rank} of 2 continues with the packs {next(iter(resumed))['unit_numbers'].tolist()}")
