"""Code that was written for Energon, with its import line changed: batches, wrappers, arguments, names."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import sys
import tarfile
import threading
from collections import UserDict
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counts import PATIENCE_S
from headrace.compat import energon
from headrace.compat.energon import (
    BaseWebdatasetFactory,
    Cooker,
    DefaultDecoderWebdatasetFactory,
    DefaultTaskEncoder,
    EPath,
    FileStore,
    FileStoreCachePool,
    Lazy,
    LimitDataset,
    RepeatDataset,
    Sample,
    SampleDecoder,
    TaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from headrace.datasets import Limit, MediaDataset, Repeat
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

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    @stateless
    def encode_batch(self, batch: TextBatch) -> Any:
        ids = torch.tensor(list(map(int, batch.text)))
        return {"dict": {"ids": ids}, "tensor": ids, "list": [ids, "x"], "dataclass": Kept(ids, "y")}[self.form]


def test_batches_are_what_the_encoder_makes(root: Path) -> None:
    loader = get_savable_loader(train(root, task_encoder=Typed()))
    [batch] = some(loader, 1)
    assert type(batch) is TextBatch
    assert isinstance(batch.lengths, np.ndarray), "fields of a dataclass stay as they were made"
    again = loader.restore_sample(batch.__restore_key__)
    assert type(again) is TextBatch
    assert again.text == batch.text
    assert loader.can_restore_sample()
    ids = [int(text) for text in batch.text]
    found = {
        form: some(get_loader(train(root, task_encoder=Shaped(form))), 1)[0] for form in ("dict", "tensor", "list")
    }
    assert found["dict"].keys() == {"ids"}, "no key that a model would not expect"
    assert found["dict"]["ids"].tolist() == found["tensor"].tolist() == found["list"][0].tolist() == ids
    [kept] = some(get_loader(train(root, task_encoder=Shaped("dataclass"))), 1)
    assert (kept.ids.tolist(), kept.note, kept.num_made) == (ids, "y", 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_types_come_through_workers(root: Path, workers: int) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers)
    dataset = get_train_dataset(root, worker_config=config, batch_size=4, task_encoder=Typed())
    loader = get_savable_loader(dataset, start_method="fork")
    batches = some(loader)
    assert [type(batch) for batch in batches] == [TextBatch] * 3
    assert isinstance(batches[0].lengths, np.ndarray)
    loader.close()


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
    dataset = get_val_dataset(root, split_part="train", worker_config=config, batch_size=5)
    assert len(dataset) == len(get_loader(dataset)) == len(list(dataset)) == 3
    assert len(train(root, virtual_epoch_length=7)) == 7
    assert len(train(root)) == COUNT // 4, "endless training: one pass over all samples"
    limited = get_val_dataset(root, split_part="train", worker_config=config, batch_size=5, limit=2)
    assert len(limited) == len(list(get_loader(limited))) == 2


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
    with pytest.raises(ConfigError, match=f"Building overrides {name}"):
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


def test_types_can_be_subscripted() -> None:
    @edataclass
    class Waiting(Sample):
        text: Lazy[str]
        files: FileStore[bytes]
        cooker: Cooker[dict]  # type: ignore[type-arg]

    assert set(Waiting.__annotations__) >= {"text", "files", "cooker"}
    assert Lazy[str].__origin__ is Lazy
    assert FileStore[bytes].__origin__ is FileStore
    assert Cooker[int].__origin__ is Cooker  # type: ignore[misc]


class Two(FileStore):
    def __getitem__(self, name: str) -> tuple[Any, Any]:
        info = energon.SourceInfo(dataset_path="two", index=name, shard_name="", file_names=(name,))
        return name.encode() * 2, info

    def get_path(self) -> str:
        return "two"


def test_a_file_store_without_metadata() -> None:
    with pytest.raises(KeyError, match="Two has no get_media_metadata"):
        Two().get_media_metadata("a.jpg")


def test_media_metadata_has_attributes() -> None:
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
    dataset = get_train_dataset(
        root, worker_config=config, batch_size=2, shuffle_buffer_size=None, max_samples_per_sequence=None
    )
    get_savable_loader(dataset, worker_config=config, checkpoint_every_sec=60, n_checkpoints=2, fail_on_timeout=False)
    [told] = recwarn
    assert all(name in str(told.message) for name in ("checkpoint_every_sec", "n_checkpoints", "fail_on_timeout"))
    with pytest.raises(ConfigError, match="which decides"):
        get_loader(dataset, worker_config=ALONE)
    with pytest.warns(UserWarning, match="handler: as in Energon, which ignores it"):
        train(root, handler=print, image_decode="pil")


def test_an_error_handler_is_called_and_may_end_the_run(root: Path) -> None:
    class Failing(DefaultTaskEncoder):  # type: ignore[type-arg]
        @stateless
        def encode_sample(self, sample: TextSample) -> TextSample:
            if sample.text == "5":
                raise ValueError("five")
            return sample

    met: list[tuple[str, str]] = []
    note = lambda error, sample, sources: met.append((type(error).__name__, sample.__key__))  # noqa: E731
    config = WorkerConfig(0, 1, 0, global_error_handler=note)
    dataset = get_train_dataset(root, worker_config=config, batch_size=4, repeat=False, task_encoder=Failing())
    texts = [text for batch in get_loader(dataset) for text in batch.text]
    assert len(texts) == COUNT
    assert "5" not in texts
    assert met == [("ValueError", "0005")]
    config = WorkerConfig(0, 1, 0, global_error_handler=energon.reraise_exception)
    dataset = get_train_dataset(root, worker_config=config, batch_size=4, repeat=False, task_encoder=Failing())
    with pytest.raises(ValueError, match="five"):
        list(get_loader(dataset))


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
    with pytest.warns(UserWarning, match=r"LimitDataset: accepted.*reset_after_epoch: each pass has the samples"):
        LimitDataset(samples, 3, reset_after_epoch=True)
    with pytest.raises(ConfigError, match="needs a number of repeats"):
        RepeatDataset(samples)
    with pytest.raises(ConfigError, match="limited by LimitDataset"):
        RepeatDataset(validation(root), repeats=2)
    with pytest.raises(ConfigError, match="expected a dataset"):
        LimitDataset(list(samples), 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="which decides"):
        RepeatDataset(validation(root), worker_config=WorkerConfig(0, 1, 3))
    nothing = RepeatDataset(validation(root, WorkerConfig(rank=39, world_size=40, num_workers=0), 1, order="energon"))
    with pytest.raises(ConfigError, match="no batches for this rank"):
        next(iter(get_loader(nothing)))


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
    with pytest.raises(ConfigError, match=r"ChatWebdataset lies in a module .* trust_code=True"):
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
    dataset = get_val_dataset(
        root,
        split_part="train",
        worker_config=ALONE,
        batch_size=4,
        dataset_config="dataset_loading.yaml",
        trust_code=True,
    )
    assert texts(get_loader(dataset)) == [f"loaded {number}" for number in range(COUNT // 2, COUNT)]


def test_a_metadataset_as_a_dict(root: Path) -> None:
    mix = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {"train": {"path": str(root)}, "val": {"path": str(root), "split_part": "train"}},
    }
    [reference] = energon.load_dataset(mix).traverse("train")
    assert reference.path == str(root)
    dataset = get_val_dataset(mix, worker_config=ALONE, batch_size=COUNT)
    assert next(iter(get_loader(dataset))).text == list(map(str, range(COUNT)))


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


def test_a_batch_that_takes_long_is_told_without_workers(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[threading.Timer] = []

    class Timer(threading.Timer):
        """One whose time is over while the sample is encoded."""

        def start(self) -> None:
            timers.append(self)

    class Waiting(DefaultTaskEncoder):
        @stateless
        def encode_sample(self, sample: TextSample) -> TextSample:
            (timer,) = timers
            timer.function(*timer.args)
            return sample

    monkeypatch.setattr(threading, "Timer", Timer)
    loader = get_loader(
        get_train_dataset(root, worker_config=ALONE, batch_size=1, task_encoder=Waiting()),
        watchdog_timeout_seconds=7.5,
    )
    next(iter(loader))
    assert [timer.interval for timer in timers] == [7.5]
    assert "takes more than 7.5 s" in caplog.text
    assert "in encode_sample" in caplog.text
