"""A task encoder handed to Energon's functions: order, resume and validation are as without, hooks draw the same."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import media_texts
from columned import get_loader, get_savable_loader
from headrace import Blend, ConfigError, MediaDataset
from headrace.compat.energon import (
    EnergonDataset,
    EnergonLoader,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)
from headrace.datasets import EncodedDataset
from headrace.datasets.lengths import Limit, Repeat, Subset
from headrace.encoders import (
    Cooker,
    DefaultTaskEncoder,
    Sample,
    TextSample,
    basic_sample_keys,
    edataclass,
    stateless,
)

SLICES: dict[str, Any] = {"max_samples_per_sequence": 4, "parallel_shard_iters": 3}
Noise = dict[int, tuple[str, float]]


@edataclass
class Encoded(Sample):
    text: str
    noise: torch.Tensor


@stateless
def cook(crude: dict[str, Any]) -> TextSample:
    return TextSample(**basic_sample_keys(crude), text=crude["txt"])


class Noisy(DefaultTaskEncoder[TextSample, Encoded, Any, Any]):
    cookers = (Cooker(cook, has_subflavors={"of": "crude"}),)

    @stateless(restore_seeds=("torch",))
    def encode_sample(self, sample: TextSample) -> Encoded:
        return Encoded.derive_from(sample, text=sample.text, noise=torch.rand(1))


class Generating(Noisy):
    @stateless
    def encode_sample(self, sample: TextSample) -> Iterator[Encoded]:  # type: ignore[override]
        yield Encoded.derive_from(sample, text=sample.text, noise=torch.zeros(1))


class Halved(DefaultTaskEncoder[Any, Any, Any, Any]):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return media_texts.shards(tmp_path_factory.mktemp("encoders") / "texts", (20, 11, 9), val=(7, 7))


def alone(num_workers: int = 0, **more: Any) -> WorkerConfig:
    return WorkerConfig(0, 1, num_workers, **more)


def loader_of(dataset: EnergonDataset) -> EnergonLoader:
    return get_savable_loader(dataset, start_method="fork", prefetch_factor=1)


def noise_of(batches: Any) -> Noise:
    """Position -> text and what was drawn."""
    return {
        position: (text, noise)
        for batch in batches
        for position, text, noise in zip(
            batch["sample_positions"].tolist(), batch["text"], batch["noise"].flatten().tolist(), strict=True
        )
    }


def train(data: Any, config: WorkerConfig, batch_size: int = 4, **options: Any) -> EnergonDataset:
    opening = media_texts.TEXT if isinstance(data, Path) and data.is_dir() else {}
    given = {"task_encoder": Noisy(), **SLICES, **opening, **options}
    return get_train_dataset(data, worker_config=config, batch_size=batch_size, **given)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumed_on_other_ranks_and_workers(root: Path, num_workers: int) -> None:
    wanted = noise_of(itertools.islice(get_loader(train(root, alone(seed_offset=3))), 20))
    assert len({noise for _, noise in wanted.values()}) > 75, "two epochs draw on their own"
    plain = train(root, alone(seed_offset=3), task_encoder=None)
    texts = [text for batch in itertools.islice(get_loader(plain), 20) for text in batch["text"]]
    assert [text for text, _ in wanted.values()] == texts
    torch.manual_seed(5)
    found: Noise = {}
    state = None
    for world_size, workers, batch_size in [(1, num_workers, 6), (2, 2 - num_workers, 3), (3, 0, 7)]:
        for rank in range(world_size):
            config = WorkerConfig(rank, world_size, workers, seed_offset=3)
            loader = loader_of(train(root, config, batch_size))
            loader.restore_state_rank(state)
            found |= noise_of(itertools.islice(loader, 3))
            after = loader.save_state_rank()
            loader.close()
        state = json.loads(json.dumps(after))
    assert sorted(found) == list(range(18 + 18 + 63))
    assert {position: found[position] for position in wanted} == wanted


def test_the_seed_decides_what_hooks_draw(root: Path) -> None:
    one, other = (
        noise_of(itertools.islice(get_loader(train(root, alone(seed_offset=seed), order="full")), 10))
        for seed in (1, 2)
    )
    assert not {noise for _, noise in one.values()} & {noise for _, noise in other.values()}


def test_the_default_encoder_is_none(root: Path) -> None:
    """The state of either serves the other."""
    with_default, without = (
        get_loader(train(root, alone(), task_encoder=encoder)) for encoder in (DefaultTaskEncoder(), None)
    )
    next(iter(without))
    with_default.restore_state_rank(without.save_state_rank())
    one, other = next(iter(with_default)), next(iter(without))
    assert one["text"] == other["text"]
    assert one["__restore_key__"] == other["__restore_key__"]
    mapping = DefaultTaskEncoder(encoded_sample_type=dict)
    assert isinstance(train(root, alone(), task_encoder=mapping).stream.data, EncodedDataset)


@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 2), (3, 0)])
def test_validation(root: Path, world_size: int, num_workers: int) -> None:
    def given(world_size: int, num_workers: int) -> list[Any]:
        found = []
        for rank in range(world_size):
            config = WorkerConfig(rank, world_size, num_workers)
            dataset = get_val_dataset(
                root, worker_config=config, batch_size=4, task_encoder=Noisy(), tail="pad", **media_texts.TEXT
            )
            loader = loader_of(dataset)
            first = list(loader)
            assert noise_of(loader) == noise_of(first), "each iteration is the same"
            found += first
            loader.close()
        return found

    wanted = noise_of(given(1, 0))
    assert [wanted[position][0] for position in range(14)] == [str(40 + position) for position in range(14)]
    found = noise_of(given(world_size, num_workers))
    assert all(found[position] == wanted[position] for position in range(14))


@pytest.mark.parametrize("encoder", [Noisy(), None])
def test_a_rank_without_samples_has_the_fields_of_the_others(root: Path, encoder: Any) -> None:
    """14 samples in threes for 4 ranks: the 2 that are left are dealt to two of them, and all have as many batches."""
    lasts = []
    for rank in range(4):
        config = WorkerConfig(rank, 4, 0)
        options = {"worker_config": config, "batch_size": 3, "task_encoder": encoder, **media_texts.TEXT}
        batches = list(loader_of(get_val_dataset(root, **options)))
        assert len(batches) == 2
        lasts.append(batches[-1])
    assert sorted(len(batch["text"]) for batch in lasts) == [0, 0, 1, 1]
    assert len({frozenset(batch) for batch in lasts}) == 1
    for batch in lasts:
        assert len(batch["__key__"]) == len(batch["sample_positions"]) == len(batch["text"])
        if encoder is not None:
            assert batch["noise"].shape == (len(batch["text"]), 1)


def test_around_each_dataset_of_a_mix(root: Path) -> None:
    """The same as a mix of encoded ones; a range keeps the numbers that samples have in the whole."""
    media = MediaDataset.open(root, **media_texts.TEXT)

    def mix(dataset: Any) -> Any:
        parts = {"a": Subset(dataset, [5, 15]), "b": Repeat(Limit(dataset, 8), 1.5)}
        return Blend(parts, repeats={"a": 2, "b": 1})

    encoded = mix(EncodedDataset(media, Noisy(), seed=9))
    given = mix(media)
    wanted, found = (
        noise_of(get_loader(train(data, alone(seed_offset=9), repeat=False, task_encoder=encoder)))
        for data, encoder in ((encoded, None), (given, Noisy()))
    )
    assert found == wanted
    assert len(found) == 32
    assert list(given.datasets()) == [media, media], "what was given is as before"
    part: Any = train(given, alone()).stream.data.children["a"]  # type: ignore[union-attr]
    assert part.dataset is part.data is part.children[""]
    assert isinstance(part.dataset, EncodedDataset)


def test_datasets_of_a_metadataset(root: Path, tmp_path: Path) -> None:
    """One of typed samples, one of crude ones that the encoder's cooker makes."""
    crude = media_texts.shards(tmp_path / "crude", (6,), val=(3,))
    typed = media_texts.shards(tmp_path / "typed", (5,), val=(4,))
    module = "__module__: megatron.energon, __class__:"
    (crude / ".nv-meta" / "dataset.yaml").write_text(f"{{{module} CrudeWebdataset, subflavors: {{of: crude}}}}\n")
    (typed / ".nv-meta" / "dataset.yaml").write_text(
        f"sample_type: {{{module} TextSample}}\nfield_map: {{text: txt}}\nsubflavors: {{of: typed}}\n"
    )
    file = tmp_path / "mix.yaml"
    paths = [{"path": str(crude)}, {"path": str(typed)}]
    splits = {
        "train": {"blend_epochized": [{**path, "repetitions": 1} for path in paths]},
        "val": {"blend": [{**path, "split_part": "val", "weight": 1} for path in paths]},
    }
    file.write_text(json.dumps({"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}))
    found = [
        (flavors["of"], text)
        for batch in get_loader(train(file, alone(), repeat=False))
        for flavors, text in zip(batch["__subflavors__"], batch["text"], strict=True)
    ]
    assert sorted(found) == [("crude", str(n)) for n in range(6)] + [("typed", str(n)) for n in range(5)]
    singles = get_val_datasets(file, worker_config=alone(), batch_size=9, task_encoder=Noisy())
    assert [next(iter(get_loader(dataset)))["text"] for dataset, _ in singles] == [
        ["6", "7", "8"],
        ["5", "6", "7", "8"],
    ]
    generated = next(iter(get_loader(train(file, alone(), task_encoder=Generating(), batch_size=9))))
    assert {flavors["of"] for flavors in generated["__subflavors__"]} == {"crude", "typed"}


def test_energons_own_order(root: Path) -> None:
    """The same samples as without an encoder; each place draws on its own, and again after a resume."""
    options: dict[str, Any] = {"order": "energon", "shuffle_buffer_size": 5}
    batches = list(itertools.islice(get_loader(train(root, alone(), **options)), 20))
    plain = get_loader(train(root, alone(), task_encoder=None, **options))
    assert [batch["text"] for batch in batches] == [batch["text"] for batch in itertools.islice(plain, 20)]
    assert len({noise for _, noise in noise_of(batches).values()}) > 75
    first = get_loader(train(root, alone(), **options))
    list(itertools.islice(first, 13))
    resumed = get_loader(train(root, alone(), **options))
    resumed.restore_state_rank(first.save_state_rank())
    assert noise_of(itertools.islice(resumed, 7)) == noise_of(batches[13:])


@pytest.mark.parametrize("make", [get_train_dataset, get_val_dataset, get_val_datasets])
def test_what_is_refused(root: Path, make: Any) -> None:
    with pytest.raises(ConfigError, match="expected a TaskEncoder"):
        make(root, worker_config=alone(), batch_size=2, task_encoder=Noisy, **media_texts.TEXT)
    both = {"task_encoder": Halved(), "packing_buffer_size": 4}
    with pytest.raises(ConfigError, match="overrides select_samples_to_pack alone"):
        make(root, worker_config=alone(), batch_size=2, **both, **media_texts.TEXT)


def test_what_is_encoded_is_not_encoded_again(root: Path) -> None:
    data = EncodedDataset.open(root, Noisy(), **media_texts.TEXT)
    with pytest.raises(ConfigError, match="is already encoded by a task encoder"):
        train(data, alone())
