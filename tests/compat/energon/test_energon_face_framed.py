"""Energon's names for our loader with task encoders: draws, filters, several outputs, groups and packs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import framed_encoders
import media_texts
import warm
from columned import get_loader, get_savable_loader
from counts import PATIENCE_S
from headrace import Blend, ConfigError, MediaDataset, Packing, StateError
from headrace.compat.energon import (
    EnergonDataset,
    EnergonLoader,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)
from headrace.datasets import EncodedDataset, Framed
from headrace.datasets.lengths import Limit, Repeat, Subset
from headrace.encoders import (
    AugmentTaskEncoder,
    Cooker,
    DefaultTaskEncoder,
    ErrorPolicy,
    Sample,
    SkipSample,
    TaskEncoder,
    TextSample,
    basic_sample_keys,
    edataclass,
    stateless,
)
from headrace.loader import merge_state_dicts, read_fault_report
from headrace.plan.measured import Grouping

LANES = 12
COUNT = 50


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return framed_encoders.numbers(tmp_path_factory.mktemp("framed face") / "numbers", COUNT)


def config(rank: int = 0, world_size: int = 1, num_workers: int = 0) -> WorkerConfig:
    return WorkerConfig(rank, world_size, num_workers, seed_offset=3)


def loader_of(dataset: EnergonDataset) -> EnergonLoader:
    return get_savable_loader(dataset, start_method="fork", prefetch_factor=1, pin_memory=False)


def encoder_of(kind: str) -> dict[str, Any]:
    """The arguments for an encoder of `framed_encoders`."""
    encoder, form = framed_encoders.KINDS[kind]
    batch_size = form.size if isinstance(form, Grouping) else None
    packing = {"packing_buffer_size": 6} if issubclass(encoder, framed_encoders.Packed) else {}
    return {"task_encoder": encoder(), "batch_size": batch_size or (None if kind == "groups" else 2), **packing}


def train(root: Path, where: WorkerConfig, kind: str = "singles", **more: Any) -> EnergonLoader:
    given = {"max_samples_per_sequence": 4, "parallel_shard_iters": 3, **encoder_of(kind), **more}
    path: Any = root
    if kind in ("groups", "sized"):
        # Frames of few samples, so that the first batch comes soon.
        encoder, size = given.pop("task_encoder"), given["batch_size"]
        path = Framed(MediaDataset.open(root, "train"), encoder, form=Grouping(size=size), frame_positions=8, seed=3)
    return loader_of(get_train_dataset(path, split_part="train", worker_config=where, **given))


def validation(root: Path, where: WorkerConfig, kind: str = "singles", **more: Any) -> EnergonLoader:
    return loader_of(get_val_dataset(root, split_part="train", worker_config=where, **{**encoder_of(kind), **more}))


def units_of(kind: str, batches: Any) -> dict[int, str]:
    """Number of each unit -> what is in it."""
    found = {}
    for batch in batches:
        columns = {name: values for name, values in batch.items() if name not in ("unit_numbers", "of_batch")}
        numbers = batch["unit_numbers"].tolist()
        if kind in ("groups", "sized"):
            found |= {number: repr(sorted(columns.items())) for number in numbers}
        else:
            for row, number in enumerate(numbers):
                found[number] = repr(sorted((name, values[row]) for name, values in columns.items()))
    return found


@pytest.mark.parametrize("kind", ["singles", "groups", "sized", "packs", "torn"])
@pytest.mark.sampled(1)
def test_chains_of_resumes_on_other_ranks_and_workers(root: Path, kind: str) -> None:
    fed = {"num_lanes": LANES}
    wanted = units_of(kind, itertools.islice(train(root, config(), kind, **fed), 60))
    found: dict[int, str] = {}
    state: Any = None
    sized = kind in ("groups", "sized")
    for world_size, workers, batch_size in [(1, 0, 4), (2, 0, 3), (1, 2, 6), (3, 0, 2), (4, 0, 1)]:
        size = {} if sized else {"batch_size": batch_size}
        loaders = [train(root, config(rank, world_size, workers), kind, **size, **fed) for rank in range(world_size)]
        for loader in loaders:
            loader.restore_state_rank(state)
            found |= units_of(kind, itertools.islice(loader, 3))
            loader.close()
        state = json.loads(json.dumps(merge_state_dicts([loader.save_state_rank() for loader in loaders])))
    assert sorted(found) == list(range(state["position"]))
    assert all(found[number] == unit for number, unit in wanted.items() if number in found)
    assert len(set(found) & set(wanted)) > 20


def test_without_lanes_a_state_is_for_as_many_ranks(root: Path) -> None:
    """Each rank goes on from its own; other ranks from the merged one, once the lanes are said."""
    whole = [list(itertools.islice(train(root, config(rank, 2)), 8)) for rank in range(2)]
    loaders = [train(root, config(rank, 2)) for rank in range(2)]
    for rank, loader in enumerate(loaders):
        list(itertools.islice(loader, 5))
        again = train(root, config(rank, 2, rank))
        again.restore_state_rank(loader.save_state_rank())
        assert units_of("", itertools.islice(again, 3)) == units_of("", whole[rank][5:])
        again.close()
    with pytest.raises(StateError, match=r"0.*2.*needs"):
        loaders[0].load_state_dict(loaders[1].state_dict())
    merged = merge_state_dicts([loader.state_dict() for loader in loaders])
    alone = train(root, config(), batch_size=1)
    with pytest.raises(StateError, match=r"4.*1.*num_lanes=4"):
        alone.load_state_dict(merged)
    alone = train(root, config(), batch_size=1, num_lanes=4)
    alone.load_state_dict(merged)
    assert units_of("", itertools.islice(alone, 12)) == units_of("", [*whole[0][5:], *whole[1][5:]])
    with pytest.raises(StateError, match=r"^(?!.*lanes)"):
        train(root, config(), "packs", num_lanes=4).load_state_dict(merged)


def test_global_batches_do_not_depend_on_ranks(root: Path) -> None:
    fed: dict[str, Any] = {"global_batch_size": [(0, 6), (4, 12)], "num_lanes": 3}
    wanted = units_of("", itertools.islice(train(root, config(), batch_size=6, **fed), 8))
    found: dict[int, str] = {}
    for rank in range(3):
        loader = train(root, config(rank, 3), **fed)
        found |= units_of("", itertools.islice(loader, 8))
    assert found == wanted
    assert len(wanted) == 4 * 6 + 2 * 12


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["singles", "groups", "packs"])
def test_validation_has_each_sample_once_and_again(root: Path, kind: str) -> None:
    def given(world_size: int, workers: int, **more: Any) -> dict[int, str]:
        found: dict[int, str] = {}
        for rank in range(world_size):
            loader = validation(root, config(rank, world_size, workers), kind, num_lanes=LANES, **more)
            first = units_of(kind, loader)
            assert units_of(kind, loader) == first, "each iteration is the same"
            found |= first
            loader.close()
        return found

    size = {} if kind == "groups" else {"batch_size": 3}
    assert given(2, 0, **size) == given(1, 2, **size) == given(1, 0)
    pairs: list[tuple[int, int]] = []
    for batch in validation(root, config(), kind):
        columns = zip(batch["n"], batch["k"], strict=True) if kind == "packs" else [(batch["n"], batch["k"])]
        pairs += [(int(n), int(k)) for ns, ks in columns for n, k in zip(ns, ks, strict=True)]
    numbers = [n for n in range(COUNT) if n % 11 != 3 and not (kind == "groups" and n % 13 == 5)]
    assert sorted(pairs) == [(n, k) for n in numbers for k in range((n * 7 + 1) % 3)]


def test_iterations_of_a_pass_a_limit_and_virtual_epochs(root: Path) -> None:
    one_pass = train(root, config(), repeat=False)
    first = units_of("", one_pass)
    assert one_pass.position == 0, "a pass that is over is at its beginning"
    assert units_of("", one_pass) == first
    list(itertools.islice(one_pass, 4))
    assert len(units_of("", one_pass)) == len(first) - 8, "one that was left goes on"
    limited = validation(root, config(), limit=3)
    wanted = units_of("", itertools.islice(validation(root, config()), 3))
    assert units_of("", limited) == wanted
    again = validation(root, config(), limit=3)
    again.restore_state_rank(limited.save_state_rank())
    assert units_of("", again) == units_of("", limited) == wanted
    training = train(root, config(), virtual_epoch_length=4)
    assert len(training) == 4
    epochs = [units_of("", training) for _ in range(2)]
    assert sorted(itertools.chain(*epochs)) == list(range(16))
    batch_size = one_pass.dataset.batch_size
    assert len(one_pass) == -(-COUNT // batch_size), "as in Energon, an encoder counts as making one output a sample"
    assert one_pass.dataset.num_samples == COUNT


def test_a_mix_that_ends_is_repeated(root: Path) -> None:
    media = MediaDataset.open(root, "train")
    mix = Blend({"a": media, "b": media}, repeats={"a": 1, "b": 0.5})
    loader = loader_of(get_train_dataset(mix, worker_config=config(), **encoder_of("singles")))
    seen = [key for batch in itertools.islice(loader, 100) for key in batch["__restore_key__"]]
    assert len(set(seen)) == 200, "an epoch more, with other draws"
    assert {key[1] for key in seen} == {"a", "b"}


class Skipping(TaskEncoder[Any, Any, Any, Any]):
    """One output for each sample, or none; one in five cannot be encoded."""

    cookers = (Cooker(framed_encoders.cook),)

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if sample["n"] % 4 == 0:
            raise SkipSample
        if sample["n"] % 5 == 0:
            raise ValueError(sample["n"])
        return sample


def test_samples_that_are_skipped_or_fail(root: Path) -> None:
    """A fixed source takes others in their place, Energon's order too; a framed one leaves out what is skipped."""
    substitute = ErrorPolicy(on_error="substitute")
    given: dict[str, Any] = {"task_encoder": Skipping(), "batch_size": 5}
    refused = [n for n in range(COUNT) if n % 4 == 0 or n % 5 == 0]
    for order in ("stride", "energon"):
        loader = validation(root, config(), errors=substitute, order=order, **given)
        assert [len(batch["n"]) for batch in loader] == [5] * (COUNT // 5)
        assert sorted(fault.index for fault in loader.faults.faults if fault.attempt == 0) == refused
    loader = validation(root, config(), errors=substitute, framed=True, **given)
    found = sorted(n for batch in loader for n in batch["n"])
    assert {fault.kind for fault in loader.faults.faults} == {"ValueError"}, "what is left out is no fault"
    whole = [n for n in range(COUNT) if n % 4 and n % 5]
    assert [n for n in whole if found.count(n) < 1] == []
    assert len(whole) < len(found) < COUNT
    with pytest.raises(ConfigError, match=r"Skipping.encode_sample.*SkipSample.*framed=True"):
        validation(root, config(), **given)
    with pytest.raises(ValueError, match="5"):
        list(validation(root, config(), framed=True, **given))
    broken = framed_encoders.numbers(root.parent / "broken", 12, broken=(4,))
    media = MediaDataset.open(broken, "train", cookers=[Cooker(framed_encoders.cook)])
    plain = get_val_dataset(media, worker_config=config(), batch_size=12, errors=substitute)
    assert len(next(iter(get_loader(plain)))["n"]) == 12, "without an encoder too"


def leave_out(n: int) -> None:
    if n % 4 == 0:
        raise SkipSample


def cook_some(sample: Any) -> Any:
    leave_out(3)
    return framed_encoders.cook(sample)


class SkipsByMethod(DefaultTaskEncoder):
    cookers = (Cooker(framed_encoders.cook),)

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return next(map(self.checked, [sample]))

    def checked(self, sample: Any) -> Any:
        leave_out(sample["n"])
        return sample


class SkipsByModule(DefaultTaskEncoder):
    cookers = (Cooker(framed_encoders.cook),)

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        import headrace.compat.energon as energon

        if sample["n"] % 4 == 0:
            raise energon.SkipSample
        return sample


class SkipsInCooker(DefaultTaskEncoder):
    cookers = (Cooker(cook_some),)


class Around(AugmentTaskEncoder[Any, Any, Any, Any]):
    """Changes nothing."""


@pytest.mark.parametrize("kind", [SkipsByMethod, SkipsByModule, SkipsInCooker, lambda: Around(SkipsByMethod())])
@pytest.mark.parametrize("batch_size", [5, None])
def test_encoders_that_skip_are_told_to_be_framed(root: Path, kind: Any, batch_size: int | None) -> None:
    given: dict[str, Any] = {"task_encoder": kind(), "worker_config": config(), "batch_size": batch_size}
    with pytest.raises(ConfigError, match=r"SkipSample.*framed=True"):
        get_train_dataset(root, **given)
    with pytest.raises(ConfigError, match="framed=True"):
        get_val_dataset(root, split_part="train", order="energon", **given)
    left = list(get_loader(get_val_dataset(root, split_part="train", framed=True, **given)))
    assert left
    replaced = get_val_dataset(root, split_part="train", errors=ErrorPolicy(on_error="substitute"), **given)
    assert next(iter(get_loader(replaced)))


def test_skips_that_the_code_does_not_show(root: Path) -> None:
    class Hidden(DefaultTaskEncoder):
        cookers = (Cooker(framed_encoders.cook),)
        check: ClassVar[Any] = {"n": leave_out}

        @stateless
        def encode_sample(self, sample: Any) -> Any:
            self.check["n"](sample["n"])
            return sample

    dataset = get_val_dataset(root, split_part="train", worker_config=config(), batch_size=5, task_encoder=Hidden())
    with pytest.raises(ConfigError, match=r"SkipSample.*encode_sample.*framed=True"):
        next(iter(get_loader(dataset)))


def test_units_that_were_made_before(root: Path) -> None:
    media = MediaDataset.open(root, "train")
    units = Framed(media, framed_encoders.Fitted(), form=Packing(seq_len=12), frame_positions=20, seed=3)
    given: dict[str, Any] = {"worker_config": config(), "batch_size": 2}
    one, other = (get_train_dataset(units, **given, **more) for more in ({}, {"num_lanes": 2}))
    assert one.config() == other.config()
    assert "by best fit" in one.describe()
    assert all(len(numbers) >= 1 for numbers in next(iter(get_loader(one)))["n"])
    with pytest.raises(ConfigError, match="packing_buffer_size"):
        get_train_dataset(units, packing_buffer_size=4, **given)
    with pytest.raises(ConfigError, match="task_encoder"):
        get_val_dataset(units, task_encoder=Skipping(), errors=ErrorPolicy(), **given)


def test_datasets_of_a_metadataset(root: Path, tmp_path: Path) -> None:
    other = framed_encoders.numbers(tmp_path / "other", 9, first=100)
    file = tmp_path / "mix.yaml"
    blend = {"blend": [{"path": str(path), "split_part": "train", "weight": 1} for path in (root, other)]}
    file.write_text(json.dumps({"splits": {"train": blend, "val": blend}}))
    given: dict[str, Any] = {"worker_config": config(), **encoder_of("packs")}

    def seen(dataset: EnergonDataset) -> set[int]:
        return {n for batch in itertools.islice(get_loader(dataset), 20) for pack in batch["n"] for n in pack}

    assert min(seen(get_train_dataset(file, **given))) < 100 <= max(seen(get_train_dataset(file, **given)))
    one, two = (seen(dataset) for dataset, _ in get_val_datasets(file, limit=100, **given))
    assert max(one) < 100 <= min(two)


@pytest.mark.parametrize(
    ("make", "kind", "more", "named"),
    [
        (train, "singles", {"num_lanes": 3}, "num_lanes.*3"),
        (train, "singles", {"num_lanes": 4, "global_batch_size": 6}, "num_lanes.*4"),
        (train, "singles", {"order": "energon"}, "'energon'"),
        (train, "singles", {"repeat": False, "batch_drop_last": True}, "batch"),
        (train, "singles", {"packing_buffer_size": 9}, "pack_selected_samples"),
        (train, "fitted", {"task_encoder": DefaultTaskEncoder(), "num_lanes": 4, "packing_buffer_size": None}, "lanes"),
        (validation, "singles", {"tail": "pad"}, "'pad'"),
        (validation, "singles", {"batch_drop_last": True}, "'drop'"),
    ],
)
def test_what_does_not_go(root: Path, make: Any, kind: str, more: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make(root, config(), kind, **more)


def test_one_process_saves_for_all_and_hands_the_state_to_all(
    root: Path, tmp_path: Path, warm_torch: warm.Warm
) -> None:
    command = [str(Path(__file__).parent / "energon_ranks.py"), str(root), str(tmp_path / "meeting")]
    told = []
    for ended in warm.together(warm_torch, [[*command, str(rank)] for rank in range(2)], tmp_path, PATIENCE_S):
        assert ended.code == 0, ended.errors
        told.append(json.loads(ended.output))
    given: dict[str, Any] = {"worker_config": WorkerConfig(0, 1, 0), **encoder_of("packs"), "num_lanes": LANES}
    numbers: dict[int, Any] = {}
    for batch in itertools.islice(get_loader(get_train_dataset(root, **given)), 22):
        numbers |= zip(batch["unit_numbers"].tolist(), batch["n"], strict=True)
    assert sorted(itertools.chain(*itertools.chain(*(one["before"] for one in told)))) == list(range(20))
    after = {number: n for one in told for units, batch in one["after"] for number, n in zip(units, batch, strict=True)}
    assert after == {number: numbers[number] for number in range(20, 42)}, "the step at hand is brought to its end"


def test_reports_and_journals(root: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"task_encoder": Skipping(), "batch_size": 5, "errors": ErrorPolicy(on_error="substitute")}
    given |= {"worker_config": config(), "split_part": "train"}
    for kind, more in {"fixed": {}, "framed": {"framed": True}, "own": {"order": "energon"}}.items():
        path = tmp_path / f"{kind}.jsonl"
        loader = get_savable_loader(get_val_dataset(root, **given, **more), fault_report=path)
        list(loader)
        assert len(read_fault_report([path])) == loader.faults.total > 0
    list(get_savable_loader(get_val_dataset(root, framed=True, **given), journal=tmp_path / "journal.bin"))
    assert (tmp_path / "journal.bin").stat().st_size > 0
    with pytest.raises(ConfigError, match="records"):
        get_savable_loader(get_val_dataset(root, **given), journal=tmp_path / "other.bin")


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


@pytest.fixture(scope="module")
def texts_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return media_texts.shards(tmp_path_factory.mktemp("encoders") / "texts", (20, 11, 9), val=(7, 7))


def alone(num_workers: int = 0, **more: Any) -> WorkerConfig:
    return WorkerConfig(0, 1, num_workers, **more)


def noise_of(batches: Any) -> Noise:
    """Position -> text and what was drawn."""
    return {
        position: (text, noise)
        for batch in batches
        for position, text, noise in zip(
            batch["sample_positions"].tolist(), batch["text"], batch["noise"].flatten().tolist(), strict=True
        )
    }


def train_noisy(data: Any, config: WorkerConfig, batch_size: int = 4, **options: Any) -> EnergonDataset:
    opening = media_texts.TEXT if isinstance(data, Path) and data.is_dir() else {}
    given = {"task_encoder": Noisy(), **SLICES, **opening, **options}
    return get_train_dataset(data, worker_config=config, batch_size=batch_size, **given)


def test_resumed_on_other_ranks_and_workers(texts_root: Path) -> None:
    wanted = noise_of(itertools.islice(get_loader(train_noisy(texts_root, alone(seed_offset=3))), 20))
    assert len({noise for _, noise in wanted.values()}) > 75, "two epochs draw on their own"
    plain = train_noisy(texts_root, alone(seed_offset=3), task_encoder=None)
    texts = [text for batch in itertools.islice(get_loader(plain), 20) for text in batch["text"]]
    assert [text for text, _ in wanted.values()] == texts
    torch.manual_seed(5)
    found: Noise = {}
    state = None
    for world_size, workers, batch_size in [(1, 2, 6), (2, 0, 3), (3, 0, 7)]:
        for rank in range(world_size):
            config = WorkerConfig(rank, world_size, workers, seed_offset=3)
            loader = loader_of(train_noisy(texts_root, config, batch_size))
            loader.restore_state_rank(state)
            found |= noise_of(itertools.islice(loader, 3))
            after = loader.save_state_rank()
            loader.close()
        state = json.loads(json.dumps(after))
    assert sorted(found) == list(range(18 + 18 + 63))
    assert {position: found[position] for position in wanted} == wanted


def test_the_seed_decides_what_hooks_draw(texts_root: Path) -> None:
    loaders = (get_loader(train_noisy(texts_root, alone(seed_offset=seed), order="full")) for seed in (1, 2))
    one, other = ({noise for _, noise in noise_of(itertools.islice(loader, 10)).values()} for loader in loaders)
    assert not one & other


def test_the_default_encoder_is_none(texts_root: Path) -> None:
    """The state of either serves the other."""
    encoders = (DefaultTaskEncoder(), None)
    with_default, without = (get_loader(train_noisy(texts_root, alone(), task_encoder=encoder)) for encoder in encoders)
    next(iter(without))
    with_default.restore_state_rank(without.save_state_rank())
    one, other = next(iter(with_default)), next(iter(without))
    assert (one["text"], one["__restore_key__"]) == (other["text"], other["__restore_key__"])
    mapping = DefaultTaskEncoder(encoded_sample_type=dict)
    assert isinstance(train_noisy(texts_root, alone(), task_encoder=mapping).stream.data, EncodedDataset)


@pytest.mark.parametrize("encoder", [Noisy(), None])
def test_a_rank_without_samples_has_the_fields_of_the_others(texts_root: Path, encoder: Any) -> None:
    """14 samples in threes for 4 ranks: the 2 that are left are dealt to two of them, and all have as many batches."""
    options = {"batch_size": 3, "task_encoder": encoder, **media_texts.TEXT}
    ranks = [
        list(loader_of(get_val_dataset(texts_root, worker_config=WorkerConfig(rank, 4, 0), **options)))
        for rank in range(4)
    ]
    assert [len(batches) for batches in ranks] == [2] * 4
    lasts = [batches[-1] for batches in ranks]
    assert sorted(len(batch["text"]) for batch in lasts) == [0, 0, 1, 1]
    assert len({frozenset(batch) for batch in lasts}) == 1
    for batch in lasts:
        assert len(batch["__key__"]) == len(batch["sample_positions"]) == len(batch["text"])
        if encoder is not None:
            assert batch["noise"].shape == (len(batch["text"]), 1)


def test_around_each_dataset_of_a_mix(texts_root: Path) -> None:
    """The same as a mix of encoded ones; a range keeps the numbers that samples have in the whole."""
    media = MediaDataset.open(texts_root, **media_texts.TEXT)

    def mix(dataset: Any) -> Any:
        parts = {"a": Subset(dataset, [5, 15]), "b": Repeat(Limit(dataset, 8), 1.5)}
        return Blend(parts, repeats={"a": 2, "b": 1})

    encoded = mix(EncodedDataset(media, Noisy(), seed=9))
    given = mix(media)
    wanted, found = (
        noise_of(get_loader(train_noisy(data, alone(seed_offset=9), repeat=False, task_encoder=encoder)))
        for data, encoder in ((encoded, None), (given, Noisy()))
    )
    assert found == wanted
    assert len(found) == 32
    assert list(given.datasets()) == [media, media], "what was given is as before"
    part: Any = train_noisy(given, alone()).stream.data.children["a"]  # type: ignore[union-attr]
    assert part.dataset is part.data is part.children[""]
    assert isinstance(part.dataset, EncodedDataset)


def test_typed_and_crude_datasets(texts_root: Path, tmp_path: Path) -> None:
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
        for batch in get_loader(train_noisy(file, alone(), repeat=False))
        for flavors, text in zip(batch["__subflavors__"], batch["text"], strict=True)
    ]
    assert sorted(found) == [("crude", str(n)) for n in range(6)] + [("typed", str(n)) for n in range(5)]
    singles = get_val_datasets(file, worker_config=alone(), batch_size=9, task_encoder=Noisy())
    assert [next(iter(get_loader(dataset)))["text"] for dataset, _ in singles] == [
        ["6", "7", "8"],
        ["5", "6", "7", "8"],
    ]
    with pytest.raises(ConfigError, match="field_map"):
        train_noisy(file, alone(), field_map={})


def test_energons_own_order(texts_root: Path) -> None:
    """The same samples as without an encoder; each place draws on its own, and again after a resume."""
    options: dict[str, Any] = {"order": "energon", "shuffle_buffer_size": 5}
    whole, plain, first, resumed = (
        get_loader(train_noisy(texts_root, alone(), task_encoder=encoder, **options))
        for encoder in (Noisy(), None, Noisy(), Noisy())
    )
    batches = list(itertools.islice(whole, 20))
    assert [batch["text"] for batch in batches] == [batch["text"] for batch in itertools.islice(plain, 20)]
    assert len({noise for _, noise in noise_of(batches).values()}) > 75
    list(itertools.islice(first, 13))
    resumed.restore_state_rank(first.save_state_rank())
    assert noise_of(itertools.islice(resumed, 7)) == noise_of(batches[13:])


def test_what_is_encoded_is_not_encoded_again(texts_root: Path) -> None:
    data = EncodedDataset.open(texts_root, Noisy(), **media_texts.TEXT)
    with pytest.raises(ConfigError, match="encoder"):
        train_noisy(data, alone())
