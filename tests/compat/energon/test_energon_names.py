"""Code that was written for Energon, with its import line changed: batches, wrappers, arguments, names."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import sys
import tarfile
import threading
from collections import UserDict
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
import torch

from counts import PATIENCE_S
from framed_encoders import cook, numbers
from headrace import Blend, MediaDataset, Order
from headrace.compat import energon
from headrace.compat.energon import (
    BaseWebdatasetFactory,
    Cooker,
    DefaultDecoderWebdatasetFactory,
    DefaultTaskEncoder,
    EPath,
    FileStore,
    FileStoreCachePool,
    FilterDataset,
    GroupBatchDataset,
    IterMapDataset,
    Lazy,
    LimitDataset,
    PackingDataset,
    RepeatDataset,
    SampleDecoder,
    ShuffleBufferDataset,
    TaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    stateless,
)
from headrace.datasets import Concat, Framed, FramedRun, Limit, MapDataset, Repeat
from headrace.encoders import SkipSample
from headrace.errors import ConfigError, DecodeError

ALONE = WorkerConfig(rank=0, world_size=1, num_workers=0)
COUNT = 24


def write(folder: Path, name: str, first: int = 0, more: str | None = None) -> Path:
    """Write a prepared dataset of texts in two tars, with a pickle in each sample."""
    root = folder / name
    root.mkdir()
    for shard in range(2):
        with tarfile.open(root / f"{shard}.tar", "w") as tar:
            for number in range(first + shard * COUNT // 2, first + (shard + 1) * COUNT // 2):
                for part, data in (("txt", str(number).encode()), ("pkl", pickle.dumps(number))):
                    entry = tarfile.TarInfo(f"{number:04d}.{part}")
                    entry.size = len(data)
                    tar.addfile(entry, BytesIO(data))
    BaseWebdatasetFactory.prepare_dataset(root, ["{0..1}.tar"], split_parts_ratio=[("train", 1.0)], shuffle_seed=None)
    text = "sample_type: {__module__: megatron.energon, __class__: TextSample}\nfield_map: {text: txt}\n"
    (root / ".nv-meta/dataset.yaml").write_text(text if more is None else more)
    return root


CRUDE = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("named"), "texts")


@pytest.fixture(scope="module")
def crude(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("named"), "crude", more=CRUDE)


def train(path: Path, **options: Any) -> Any:
    return get_train_dataset(path, worker_config=ALONE, **{"batch_size": 4, **options})


def some(loader: Any, count: int = 3) -> list[Any]:
    return list(itertools.islice(loader, count))


@edataclass
class TextBatch(energon.Batch):
    text: list[str]
    lengths: np.ndarray[Any, Any]


class Typed(DefaultTaskEncoder):  # type: ignore[type-arg]
    @stateless
    def batch(self, samples: list[Any]) -> TextBatch:
        return TextBatch.from_samples(samples, lengths=np.array([len(sample.text) for sample in samples]))


@dataclasses.dataclass
class Kept:
    ids: torch.Tensor
    note: str

    def __post_init__(self) -> None:
        self.num_made = getattr(self, "num_made", 0) + 1


class Shaped(Typed):
    """Makes a batch of any form."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.form = form

    @stateless
    def encode_batch(self, batch: TextBatch) -> Any:
        return self.form(torch.tensor(list(map(int, batch.text))))


def test_batches_are_what_the_encoder_makes(root: Path) -> None:
    for num_workers in (1, 0):
        config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers)
        dataset = get_train_dataset(root, worker_config=config, batch_size=4, task_encoder=Typed())
        loader = get_savable_loader(dataset, start_method="fork")
        [batch] = some(loader, 1)
        assert type(batch) is TextBatch
        assert isinstance(batch.lengths, np.ndarray), "fields of a dataclass stay as they were made"
        loader.close()
    again = loader.restore_sample(batch.__restore_key__)
    assert type(again) is TextBatch
    assert again.text == batch.text
    assert loader.can_restore_sample()
    forms = (lambda ids: {"ids": ids}, lambda ids: ids, lambda ids: [ids, "x"], lambda ids: Kept(ids, "y"))
    mapping, tensor, items, kept = (next(iter(get_loader(train(root, task_encoder=Shaped(form))))) for form in forms)
    assert mapping.keys() == {"ids"}, "no key that a model would not expect"
    ids = [int(text) for text in batch.text]
    assert mapping["ids"].tolist() == tensor.tolist() == items[0].tolist() == kept.ids.tolist() == ids
    assert (kept.note, kept.num_made) == ("y", 1)


def test_without_an_encoder_and_without_batches(root: Path, crude: Path) -> None:
    [batch] = some(get_loader(train(root)), 1)
    assert type(batch) is TextSample
    assert len(batch.text) == 4
    [columns] = some(get_savable_loader(train(root), as_columns=True), 1)
    assert columns["text"] == batch.text
    assert columns["sample_positions"].tolist() == [0, 1, 2, 3]
    [raw] = some(get_loader(train(crude, decoder=None)), 1)
    assert type(raw) is dict
    assert "sample_positions" not in raw
    singles = some(get_loader(train(root, batch_size=None)), 4)
    assert [one.text for one in singles] == batch.text
    loader = get_loader(train(root, batch_size=None))
    assert loader.restore_sample(singles[2].__restore_key__).text == batch.text[2]


def test_lengths_are_batches_of_this_rank(root: Path) -> None:
    config = WorkerConfig(rank=1, world_size=2, num_workers=0)
    for more, length in (({}, 3), ({"limit": 2}, 2)):
        dataset = validation(root, config, batch_size=5, **more)
        assert len(dataset) == len(get_loader(dataset)) == len(list(dataset)) == length
    assert len(train(root, virtual_epoch_length=7)) == 7
    assert len(train(root)) == COUNT // 4, "endless training: one pass over all samples"


class Features(UserDict):  # type: ignore[type-arg]
    """As Hugging Face's BatchFeature: keys are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


class OfFeatures(DefaultTaskEncoder):  # type: ignore[type-arg]
    @stateless
    def encode_sample(self, sample: TextSample) -> Features:
        return Features({"ids": torch.tensor([int(sample.text)])})


@pytest.mark.parametrize("framed", [False, True])
def test_samples_that_are_a_user_dict(root: Path, framed: bool) -> None:
    loader = get_savable_loader(train(root, task_encoder=OfFeatures(), framed=framed))
    [batch] = some(loader, 1)
    assert type(batch) is Features
    assert batch["ids"].shape == (4, 1)
    assert torch.equal(loader.restore_sample(batch["__restore_key__"])["ids"], batch["ids"])


class Shouting(SampleDecoder):
    """Decodes whole samples, and has an attribute of its own."""

    def __init__(self, end: str) -> None:
        super().__init__()
        self.end = end

    def __call__(self, parts: Any) -> dict[str, Any]:
        decoded = super().__call__(parts)
        return {**decoded, "txt": decoded["txt"] + self.end}


def test_an_overridden_decoder_is_called(root: Path, crude: Path) -> None:
    decoder = pickle.loads(pickle.dumps(Shouting("!")))
    assert decoder.end == "!"

    class Loud(DefaultTaskEncoder):  # type: ignore[type-arg]
        pass

    Loud.decoder = decoder
    [batch] = some(get_loader(train(root, task_encoder=Loud())), 1)
    assert all(text.endswith("!") for text in batch.text)

    @stateless
    def cook(sample: dict[str, Any]) -> TextSample:
        return TextSample(**basic_sample_keys(sample), text=sample["txt"])

    Loud.cookers = [Cooker(cook)]
    [batch] = some(get_loader(train(crude, task_encoder=Loud(), trust_code=True)), 1)
    assert all(text.endswith("!") for text in batch.text)
    recipes = [train(root, task_encoder=Loud()).config(), train(root, task_encoder=DefaultTaskEncoder()).config()]
    assert recipes[0] != recipes[1]


@pytest.mark.parametrize("name", ["build_batch", "build_encode_sample", "build_train_datasets", "build_val_datasets"])
def test_builders_are_refused_by_name(root: Path, name: str) -> None:
    encoder = type("Building", (DefaultTaskEncoder,), {name: lambda self, *given, **options: None})()
    with pytest.raises(ConfigError, match=rf"{name}"):
        train(root, task_encoder=encoder)


def test_trusted_data_may_hold_pickles(crude: Path) -> None:
    with pytest.raises(DecodeError, match="trust_code=True"):
        next(iter(get_loader(train(crude))))
    [batch] = some(get_loader(train(crude, trust_code=True)), 1)
    assert batch["pkl"] == list(map(int, batch["txt"]))
    (crude.parent / "mix.yaml").write_text(f"splits: {{train: {{path: {crude.name}}}}}\n")
    [batch] = some(get_loader(train(crude.parent / "mix.yaml", trust_code=True)), 1)
    assert batch["pkl"] == list(map(int, batch["txt"]))
    plain, trusted = (train(crude, trust_code=trust).config()["dataset"] for trust in (False, True))
    assert plain == trusted, "states of runs that trusted code before still fit"


class Two(FileStore):
    def __getitem__(self, name: str) -> tuple[Any, Any]:
        info = energon.SourceInfo(dataset_path="two", index=name, shard_name="", file_names=(name,))
        return name.encode() * 2, info

    def get_path(self) -> str:
        return "two"


def test_media_metadata() -> None:
    with pytest.raises(KeyError, match="get_media_metadata"):
        Two().get_media_metadata("a.jpg")
    for kind in (Cooker, FileStore, Lazy):
        assert kind[bytes].__origin__ is kind, "types can be subscripted, as in programs for Energon"  # type: ignore[index]
    facts = energon.ImageMetadata(width=4, height=3)
    assert (facts.width, facts["height"], dict(facts)) == (4, 3, {"type": "image", "width": 4, "height": 3})
    assert facts == {"type": "image", "width": 4, "height": 3}


def test_cookers_that_nothing_calls_are_told(root: Path, crude: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Cooking(DefaultTaskEncoder):  # type: ignore[type-arg]
        cookers = (Cooker(lambda sample: sample),)

    train(crude, task_encoder=Cooking())
    assert not caplog.records
    train(root, task_encoder=Cooking())
    [record] = caplog.records
    assert "Cooking has cookers" in record.getMessage()
    assert f"{root} (TextSample)" in record.getMessage()


def test_arguments_without_effect_are_told_once(root: Path, recwarn: pytest.WarningsRecorder) -> None:
    config = WorkerConfig(0, 1, 0, worker_debug_path="log", worker_log_level=3)
    assert [str(one.message).count("nothing is logged") for one in recwarn] == [2]
    recwarn.clear()
    given: dict[str, Any] = {"batch_size": 2, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    dataset = get_train_dataset(root, worker_config=config, **given)
    get_savable_loader(dataset, worker_config=config, checkpoint_every_sec=60, n_checkpoints=2, fail_on_timeout=False)
    [told] = recwarn
    assert all(name in str(told.message) for name in ("checkpoint_every_sec", "n_checkpoints", "fail_on_timeout"))
    with pytest.raises(ConfigError, match="decides"):
        get_loader(dataset, worker_config=ALONE)
    with pytest.warns(UserWarning, match="ignores"):
        train(root, handler=print, image_decode="pil")


def test_an_error_handler_is_called_and_may_end_the_run(root: Path) -> None:
    class Failing(DefaultTaskEncoder):  # type: ignore[type-arg]
        @stateless
        def encode_sample(self, sample: TextSample) -> TextSample:
            if sample.text == "5":
                raise ValueError("five")
            return sample

    def of(handler: Any) -> list[str]:
        config = WorkerConfig(0, 1, 0, global_error_handler=handler)
        given: dict[str, Any] = {"batch_size": 4, "repeat": False, "task_encoder": Failing()}
        return texts(get_loader(get_train_dataset(root, worker_config=config, **given)))

    met: list[tuple[str, str]] = []
    found = of(lambda error, sample, sources: met.append((type(error).__name__, sample.__key__)))
    assert (len(found), "5" in found) == (COUNT, False)
    assert met == [("ValueError", "0005")]
    with pytest.raises(ValueError, match="five"):
        of(energon.reraise_exception)


def validation(root: Path, worker_config: WorkerConfig = ALONE, batch_size: int = 4, **options: Any) -> Any:
    return get_val_dataset(root, split_part="train", worker_config=worker_config, batch_size=batch_size, **options)


def texts(loader: Any) -> list[str]:
    return [text for batch in loader for text in batch.text]


def test_passes_are_repeated_and_limited(root: Path) -> None:
    """As public programs validate: so many batches of a dataset that may be shorter, the same each time."""
    everything = list(map(str, range(COUNT)))
    repeated = RepeatDataset(validation(root), worker_config=ALONE)
    again = get_loader(
        LimitDataset(repeated, length=8, worker_config=ALONE, reset_after_epoch=True), worker_config=ALONE
    )
    assert texts(again) == [*everything, *everything[:8]]
    assert len(some(again, 3)) == 3
    assert texts(again) == [*everything, *everything[:8]]
    further = get_loader(LimitDataset(repeated, 8))
    assert texts(further) == [*everything, *everything[:8]]
    assert texts(further) == [*everything[8:], *everything[:16]]
    assert texts(get_loader(LimitDataset(validation(root), 2, reset_after_epoch=True))) == everything[:8]
    assert texts(get_loader(LimitDataset(validation(root), 99))) == everything
    assert texts(get_loader(LimitDataset(LimitDataset(repeated, 2), 3))) == everything[:8]
    assert len(some(get_loader(repeated), 20)) == 20


def test_short_batches_come_at_the_end_of_each_pass(root: Path) -> None:
    loader = get_loader(LimitDataset(RepeatDataset(validation(root, batch_size=5)), length=12))
    assert [len(batch.text) for batch in loader] == [5, 5, 5, 5, 4, 5, 5, 5, 5, 4, 5, 5]


def test_workers_of_limited_passes(root: Path) -> None:
    config = WorkerConfig(rank=1, world_size=2, num_workers=1)
    loader = get_savable_loader(LimitDataset(RepeatDataset(validation(root, config)), 4))
    assert texts(loader) == [str(number) for at in (4, 12, 20, 4) for number in range(at, at + 4)]
    loader.close()


def test_what_limits_and_repeats_refuse(root: Path) -> None:
    samples = MediaDataset.open(root, "train")
    assert isinstance(LimitDataset(samples, 3), Limit)
    assert isinstance(RepeatDataset(samples, repeats=2, worker_config=ALONE), Repeat)
    with pytest.warns(UserWarning, match=r"LimitDataset.*reset_after_epoch"):
        LimitDataset(samples, 3, reset_after_epoch=True)
    nothing = validation(root, WorkerConfig(rank=39, world_size=40, num_workers=0), 1, order="energon")
    for make, named in (
        (lambda: RepeatDataset(samples), "repeats"),
        (lambda: RepeatDataset(validation(root), repeats=2), "LimitDataset"),
        (lambda: LimitDataset(list(samples), 3), "expected"),  # type: ignore[arg-type]
        (lambda: RepeatDataset(validation(root), worker_config=WorkerConfig(0, 1, 3)), "decides"),
        (lambda: next(iter(get_loader(RepeatDataset(nothing)))), "batches"),
    ):
        with pytest.raises(ConfigError, match=named):
            make()


class ChatWebdataset(DefaultDecoderWebdatasetFactory[TextSample]):
    __sample_type__ = TextSample

    def __init__(
        self, path: EPath, *, auto_decode: bool = True, image_decode: str = "torchrgb", **options: Any
    ) -> None:
        super().__init__(path, auto_decode=auto_decode, image_decode=image_decode, **options)
        if auto_decode:
            self._decoder = lambda parts: {**parts, "txt": parts["txt"].decode() + self.image_decode}


def test_a_class_of_the_users_in_dataset_yaml(tmp_path: Path) -> None:
    text = f"__module__: {__name__}\n__class__: ChatWebdataset\nfield_map: {{text: txt}}\nsubflavors: {{a: 1}}\n"
    path = write(tmp_path, "chat", more=text)
    with pytest.raises(ConfigError, match=r"ChatWebdataset.*trust_code=True"):
        train(path)

    sys.modules.setdefault(__name__, sys.modules[ChatWebdataset.__module__])
    [batch] = some(get_loader(train(path, trust_code=True)), 1)
    assert all(text.endswith("torchrgb") for text in batch.text)
    assert batch.__subflavors__ == [{"a": 1}] * 4
    (tmp_path / "mix.yaml").write_text("splits: {train: {path: chat, subflavors: {b: 2}}}\n")
    [batch] = some(get_loader(train(tmp_path / "mix.yaml", trust_code=True)), 1)
    assert batch.__subflavors__ == [{"a": 1, "b": 2}] * 4


class Loading(DefaultDecoderWebdatasetFactory[TextSample]):
    def load_sample(self, sample: dict[str, Any]) -> TextSample:
        return TextSample(**basic_sample_keys(sample), text=f"loaded {sample['txt']}")


def test_a_class_that_loads_samples_itself(root: Path) -> None:
    meta = root / ".nv-meta"
    (meta / "other.yaml").write_text("split_parts: {train: [1.tar]}\n")
    text = f"__module__: {__name__}\n__class__: Loading\nsplit_config: other.yaml\npart_filter: [txt]\n"
    (meta / "dataset_loading.yaml").write_text(text)
    dataset = validation(root, dataset_config="dataset_loading.yaml", trust_code=True)
    assert texts(get_loader(dataset)) == [f"loaded {number}" for number in range(COUNT // 2, COUNT)]


def test_files_wait_on_disk_until_they_are_used(tmp_path: Path, crude: Path) -> None:
    @stateless
    @energon.cooker(need_cache=True, need_primary=True)
    def cook(sample: dict[str, Any], primary: FileStore, cache: Any) -> TextSample:
        return TextSample(**basic_sample_keys(sample), text=cache.get_lazy(primary, ".txt"))

    class Waiting(TaskEncoder):  # type: ignore[type-arg]
        cookers = (Cooker(cook),)

        @stateless
        def encode_sample(self, sample: TextSample) -> TextSample:
            assert self.cache.pool is pool
            return TextSample.derive_from(sample, text=sample.text.get(sample))  # type: ignore[attr-defined]

    pool = FileStoreCachePool(parent_cache_dir=tmp_path, num_workers=1)
    dataset = train(crude, task_encoder=Waiting(), trust_code=True)
    batches = some(get_savable_loader(dataset, cache_pool=pool))
    assert [batch.__key__ for batch in batches] == [[f"{int(text):04d}" for text in batch.text] for batch in batches]
    waiting = pool.get_lazy(Two(), "a")
    waiting.entry.send_to_cache_future.result(timeout=PATIENCE_S)
    assert (pool.current_cache_count, waiting.get()) == (1, b"aa")
    assert pool.current_cache_count == 0
    assert not list(pool.cache_dir.iterdir())
    pool.close()
    assert not list(tmp_path.iterdir())


def test_all_names_exist() -> None:
    assert len(set(energon.__all__)) == len(energon.__all__)
    assert all(getattr(energon, name) is not None for name in energon.__all__)


def test_a_batch_that_takes_long_is_told_without_workers(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Waiting(DefaultTaskEncoder):
        @stateless
        def encode_sample(self, sample: TextSample) -> TextSample:
            until = monotonic() + PATIENCE_S
            while "takes more than" not in caplog.text and monotonic() < until:
                sleep(0.01)
            return sample

    batches = iter(get_loader(train(root, batch_size=1, task_encoder=Waiting()), watchdog_timeout_seconds=0.2))
    next(batches)
    assert caplog.text.count("takes more than 0.2 s") == 1
    assert "in encode_sample" in caplog.text
    del batches
    for thread in threading.enumerate():
        if thread.name == "headrace-watch":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


NUMPY: Any = np.random


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> MediaDataset:
    return MediaDataset.open(numbers(tmp_path_factory.mktemp("whole") / "ds", 12)).cooked_by([Cooker(cook)])


@stateless
def is_even(sample: Any) -> bool:
    return bool(sample["n"] % 2 == 0)


@stateless
def twice(samples: Iterator[Any]) -> Iterator[Any]:
    for sample in samples:
        yield sample
        yield {**sample, "n": sample["n"] + 100}


@stateless
def doubled(sample: Any) -> Any:
    return {**sample, "n": 2 * sample["n"]}


def halves(sample: Any) -> Any:
    """Neither marked nor of one output."""
    if sample["n"] == 4:
        raise SkipSample
    yield sample


@stateless
def by_three(sample: Any) -> tuple[int, None]:
    return sample["n"] % 3, None


@stateless
def pairs(samples: list[Any]) -> list[list[Any]]:
    return [samples[at : at + 2] for at in range(0, len(samples) - 1, 2)]


@stateless
def joined(samples: list[Any]) -> Any:
    return {"n": [sample["n"] for sample in samples]}


def units_of(framed: Framed, **options: Any) -> list[Any]:
    """``n`` of all units of one pass in one lane."""
    run = FramedRun(framed, global_batch_size=1, order=Order(kind="none"), epochs=1, **options)
    units = pickle.loads(pickle.dumps(run)).reader().samples(range(40))
    return [[one["n"] for one in unit] if isinstance(unit, list) else unit["n"] for unit in units if unit is not None]


def test_filters_and_generators_in_a_row(whole: MediaDataset) -> None:
    assert units_of(FilterDataset(whole, is_even)) == [0, 2, 4, 6, 8, 10]
    assert units_of(IterMapDataset(FilterDataset(whole, is_even), twice)) == [
        n + more for n in range(0, 12, 2) for more in (0, 100)
    ]
    assert units_of(FilterDataset(MapDataset(whole, doubled), is_even)) == list(range(0, 24, 2))
    mapped = FilterDataset(MapDataset(MapDataset(whole, doubled), halves), is_even)
    assert units_of(mapped) == [0, 2, *range(6, 24, 2)]
    assert mapped.unrestorable == "FunctionEncoder.preencode_sample"
    assert FilterDataset(whole, is_even).unrestorable is None


def test_filters_over_several_datasets_one_by_one(whole: MediaDataset) -> None:
    both = FilterDataset(Concat({"one": whole, "two": Limit(whole, 4)}), is_even, seed=3)
    apart = get_val_datasets(both, worker_config=ALONE, batch_size=1)
    assert [[int(n) for batch in get_loader(one) for n in batch["n"]] for one, _ in apart] == [
        [0, 2, 4, 6, 8, 10],
        [0, 2],
    ]
    first = apart[0][0].framed
    assert first is not None
    assert isinstance(first.data, FilterDataset)
    assert (len(first.data.steps), first.data.seed) == (1, 3)


@stateless(restore_seeds=("numpy",))
def noisy(samples: Iterator[Any]) -> Iterator[Any]:
    for sample in samples:
        yield {**sample, "n": float(NUMPY.rand())}


def test_functions_are_seeded_as_they_say(whole: MediaDataset) -> None:
    noise = units_of(IterMapDataset(FilterDataset(whole, is_even), noisy))
    assert len(set(noise)) == 6
    assert noise == units_of(IterMapDataset(FilterDataset(whole, is_even), noisy))


def test_units_of_several(whole: MediaDataset) -> None:
    even = FilterDataset(whole, is_even, seed=5)
    packed = PackingDataset(even, 3, pairs, joined, sample_encoder=doubled)
    assert packed.frame_positions == 3
    assert packed.seed == 5
    assert sorted(n for pack in units_of(packed) for n in pack) == [0, 4, 8, 12, 16, 20]
    assert {len(pack) for pack in units_of(packed)} <= {1, 2}
    groups = units_of(GroupBatchDataset(whole, 2, by_three, joined))
    assert sorted(n for group in groups for n in group) == list(range(12))
    assert all(len(group) == 2 and group[0] % 3 == group[1] % 3 for group in groups)
    buffered = units_of(ShuffleBufferDataset(whole, 5))
    assert sorted(buffered) == list(range(12)) != buffered


def test_batches_and_keys(whole: MediaDataset) -> None:
    mix = Blend({"a": whole, "b": whole}, weights={"a": 1, "b": 1})
    run = FramedRun(GroupBatchDataset(mix, 2, by_three, joined), global_batch_size=1)
    reader = run.reader()
    batch = reader.collate(reader.samples([3]))
    assert len(batch["n"]) == 2
    assert run.restore_sample([one["__restore_key__"] for one in reader.samples([4])[0]])["n"]
    assert "hooks" in str(run.recipe.dataset["a"])
    assert "by_three" in run.recipe.dataset["a"]["version"]


def test_functions_that_are_refused(whole: MediaDataset) -> None:
    packs = PackingDataset(whole, 3, pairs, joined)
    for make, named in (
        (lambda: FilterDataset(whole, 3), r"FilterDataset.*3"),  # type: ignore[arg-type]
        (lambda: FilterDataset(packs, is_even), r"FilterDataset.*PackingDataset"),
        (lambda: PackingDataset(ShuffleBufferDataset(whole, 4), 3, pairs, joined), "ShuffleBufferDataset"),
        (lambda: FilterDataset(Framed(whole, DefaultTaskEncoder()), is_even), "FilterDataset"),
        (lambda: ShuffleBufferDataset(whole, 0), r"least.*1"),
    ):
        with pytest.raises(ConfigError, match=named):
            make()
