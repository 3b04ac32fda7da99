"""A URL wherever a path stands in reading: commands, metadatasets, Megatron's datasets, workers; no secret anywhere."""

from __future__ import annotations

import gc
import itertools
import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

import corpora
import headrace
import prepared_made
import servers
from energon_made import write_files
from energon_prepared import prepared
from headrace import stores
from headrace.cli import main
from headrace.compat import megatron
from headrace.datasets import MediaDataset
from headrace.datasets.metadataset import SourceOptions, load_dataset
from headrace.errors import HeadraceError, StoreError
from headrace.io import FetchPolicy, ObjectReader
from headrace.io.objects.writer import ObjectWriter
from headrace.loader import Reading
from headrace.stores.energon import MediaRow, update_media
from headrace.testing.samples import numbered_samples
from headrace.tracing import save_run
from tars_made import members_of

pytestmark = pytest.mark.remote


def batches(dataset: object, reading: Reading | None = None) -> list[dict[str, object]]:
    run = headrace.Run(dataset, global_batch_size=8, samples=96, order=headrace.Order(seed=3))  # type: ignore[arg-type]
    return list(headrace.Loader(run, micro_batch_size=4, reading=reading))


def same(ours: list[dict[str, object]], wanted: list[dict[str, object]]) -> bool:
    pairs = zip(ours, wanted, strict=True)
    return all(np.array_equal(np.asarray(one["input_ids"]), np.asarray(other["input_ids"])) for one, other in pairs)


def energon(folder: Path) -> Path:
    samples = [(key, {part: parts[part] for part in ("jpg", "txt")}) for key, parts in numbered_samples(40)]
    cuts = enumerate(itertools.pairwise([0, 13, 26, 40]))
    shards = {f"s/{at}.tar": members_of(samples[begin:end]) for at, (begin, end) in cuts}
    return prepared(folder, shards, {"train": list(shards)})


def run_command(*arguments: object) -> None:
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exit_code == 0, done.output


READINGS = {"usual": None, "ahead": Reading(ahead="1GB"), "workers": Reading(num_workers=2)}


@pytest.mark.parametrize("reading", READINGS.values(), ids=READINGS)
def test_tokens(weed: servers.Bucket, tmp_path: Path, reading: Reading | None) -> None:
    local = corpora.make(tmp_path / "web", 1, 200, num_shards=2, max_length=900).store
    url = weed.upload(tmp_path / "web", f"{tmp_path.name}/web")
    store = headrace.open(url, storage=weed.storage)
    assert isinstance(store, stores.Store)
    assert store.fingerprint == local.fingerprint
    ours = batches(headrace.WindowDataset(store, seq_len=64), reading)
    assert same(ours, batches(headrace.WindowDataset(local, seq_len=64)))


def test_a_forked_process_reads(weed: servers.Bucket, tmp_path: Path) -> None:
    corpora.make(tmp_path / "web", 1, 50, num_shards=2)
    store = headrace.open(weed.upload(tmp_path / "web", f"{tmp_path.name}/web"), storage=weed.storage)
    assert isinstance(store, stores.Store)
    wanted = store.fetch(0, store.num_tokens).tobytes()
    child = os.fork()
    if child == 0:
        os._exit(42 if store.fetch(0, store.num_tokens).tobytes() == wanted else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def test_megatron(weed: servers.Bucket, tmp_path: Path, around: None) -> None:
    corpora.make(tmp_path / "web", 1, 100)
    url = weed.upload(tmp_path / "web", f"{tmp_path.name}/web") + "/shard-0"
    ours = megatron.GPTDataset(url, sequence_length=32, num_samples=50)
    wanted = megatron.GPTDataset(str(tmp_path / "web/shard-0"), sequence_length=32, num_samples=50)
    assert all(np.array_equal(ours[at]["tokens"], wanted[at]["tokens"]) for at in range(50))
    assert megatron.IndexedDataset.exists(url)
    indexed = megatron.IndexedDataset(url)
    assert np.array_equal(indexed[3], megatron.IndexedDataset(str(tmp_path / "web/shard-0"))[3])


def test_a_metadataset_in_the_store_and_one_that_names_it(weed: servers.Bucket, tmp_path: Path, around: None) -> None:
    energon(tmp_path / "data" / "first")
    energon(tmp_path / "data" / "second")
    text = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
    inner = text + "    - weight: 1\n      path: ../first\n    - weight: 3\n      path: ../second\n"
    (tmp_path / "data" / "mixes").mkdir()
    (tmp_path / "data" / "mixes" / "mix.yaml").write_text(inner)
    url = weed.upload(tmp_path / "data", f"{tmp_path.name}/data")
    outer = tmp_path / "outer.yaml"
    outer.write_text(text + f"    - weight: 1\n      path: {url}/mixes/mix.yaml\n")

    def first(path: str, **how: headrace.Storage) -> list[object]:
        data = load_dataset(path, **how).train(options=SourceOptions(decoder=None))
        run = headrace.Run(data, global_batch_size=4, samples=16)
        return [batch["__key__"] for batch in headrace.Loader(run, micro_batch_size=4)]

    wanted = first(str(tmp_path / "data" / "mixes" / "mix.yaml"))
    assert first(f"{url}/mixes/mix.yaml") == wanted
    assert first(f"{url}/mixes/mix.yaml", storage=weed.storage) == wanted
    assert len(first(str(outer))) == 4


def test_a_join_that_is_made_in_the_store(weed: servers.Bucket, tmp_path: Path, around: None) -> None:
    for name in ("first", "second"):
        energon(tmp_path / "data" / name)
    joiner = "{__module__: headrace_join_of_a_test, __function__: pair}"
    text = f"splits: {{train: {{join: [{{path: first}}, {{path: second}}], joiner: {joiner}}}}}\n"
    (tmp_path / "data" / "mix.yaml").write_text(text)
    (tmp_path / "headrace_join_of_a_test.py").write_text(
        "def pair(one, other):\n    return {**one, 'other': other['txt']}\n"
    )
    url = weed.upload(tmp_path / "data", f"{tmp_path.name}/data")
    run_command("prepare", "energon", tmp_path / "data" / "mix.yaml")
    run_command("prepare", "energon", f"{url}/mix.yaml")
    made = ObjectWriter(weed.storage).statuses(f"{url}/mix.yaml.cache")
    assert list(made) == [file.name for file in (tmp_path / "data" / "mix.yaml.cache").iterdir()]
    run_command("prepare", "energon", f"{url}/mix.yaml")
    assert ObjectWriter(weed.storage).statuses(f"{url}/mix.yaml.cache") == made, "it was not written again"

    def read(path: str, cache: headrace.Cache | None = None) -> list[Any]:
        options = SourceOptions(decoder=None, trust_code=True, cache=cache)
        run = headrace.Run(load_dataset(path).train(options=options), global_batch_size=4, samples=16)
        loader = headrace.Loader(run, micro_batch_size=4, reading=Reading(ahead="10MB"))
        return [(batch["__key__"], batch["other"]) for batch in loader]

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        wanted = read(str(tmp_path / "data" / "mix.yaml"))
        cache = headrace.Cache(tmp_path / "cache", limit="1MB", block="4KiB")
        assert read(f"{url}/mix.yaml") == read(f"{url}/mix.yaml", cache) == wanted
    run_command("quarantine", f"{url}/first", "--key", wanted[0][0][0])
    assert len(MediaDataset.open(f"{url}/first", decoder=None).store) == 39


def test_media(weed: servers.Bucket, tmp_path: Path) -> None:
    local = MediaDataset.open(energon(tmp_path / "data"), decoder=None)
    url = weed.upload(tmp_path / "data", f"{tmp_path.name}/data")
    ours = MediaDataset.open(url, storage=weed.storage, decoder=None)
    assert ours.store.fingerprint == local.store.fingerprint
    assert [sample["__key__"] for sample in ours] == [sample["__key__"] for sample in local]


@pytest.mark.parametrize("reading", READINGS.values(), ids=READINGS)
def test_a_folder_of_files(weed: servers.Bucket, tmp_path: Path, reading: Reading | None) -> None:
    names = {f"{n % 3}/{n:02d}.{part}": f"{part} {n}".encode() * n for n in range(40) for part in ("txt", "cls")}
    update_media(write_files(tmp_path / "data", names), [MediaRow("0/00.txt", "image", "{}")], [])
    url = weed.upload(tmp_path / "data", f"{tmp_path.name}/data")

    def read(path: str | Path, **how: Any) -> list[Any]:
        run = headrace.Run(MediaDataset.open(path, decoder=None, **how), global_batch_size=8, samples=96)
        loader = headrace.Loader(run, micro_batch_size=4, reading=reading)
        return [(batch["__key__"], batch["txt"], batch["cls"]) for batch in loader]

    wanted = read(tmp_path / "data")
    assert read(url, storage=weed.storage) == wanted
    cache = headrace.Cache(tmp_path / "cache", limit="10MB", block="64KiB")
    assert read(url, storage=weed.storage, cache=cache) == wanted


def test_commands(weed: servers.Bucket, tmp_path: Path, around: None) -> None:
    corpora.make(tmp_path / "all" / "web", 1, 60, num_shards=2)
    energon(tmp_path / "all" / "data")
    url = weed.upload(tmp_path / "all", tmp_path.name)

    def said(*words: str) -> str:
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        assert servers.SECRET not in done.output
        return done.output.replace(url, str(tmp_path / "all"))

    for words in (
        ("info", "{}/web", "--json"),
        ("info", "{}/data", "--json"),
        ("preview", "{}/web", "--ids", "--plain"),
        ("ls", "{}/data"),
        ("cat", "{}/data", "0/0000-é.txt"),
    ):
        ours = said(*(word.format(url) for word in words))
        assert ours == said(*(word.format(tmp_path / "all") for word in words))
    for path in (f"{url}/web", f"{url}/web/shard-0", f"{url}/data"):
        assert "whole" in said("check", path)


def test_a_run_file_names_the_url_and_no_secret(weed: servers.Bucket, tmp_path: Path, around: None) -> None:
    corpora.make(tmp_path / "web", 1, 60)
    url = weed.upload(tmp_path / "web", f"{tmp_path.name}/web") + "/shard-0"
    store = headrace.open(url, storage=weed.storage)
    run = headrace.Run(headrace.WindowDataset(store, seq_len=32), global_batch_size=4, samples=32)  # type: ignore[arg-type]
    save_run(run, tmp_path / "run.json")
    text = (tmp_path / "run.json").read_text()
    assert url in text
    assert servers.SECRET not in text
    assert servers.ACCESS_KEY not in text
    done = CliRunner().invoke(main, ["trace", "step", "1", "--run", str(tmp_path / "run.json"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)


def test_no_secret_in_any_words(weed: servers.Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weed.put(f"{tmp_path.name}/x.bin", b"x" * 1000)
    url = f"{weed.url}/{tmp_path.name}/x.bin"
    options = {"access_key_id": servers.ACCESS_KEY, "secret_access_key": servers.SECRET + "x"}
    wrong = msgspec.structs.replace(weed.storage, options=options)
    nowhere = msgspec.structs.replace(weed.storage, endpoint="http://127.0.0.1:9")
    policy = FetchPolicy(deadline_s=0.3, first_delay_s=0.05)
    said = [repr(weed.storage), repr(ObjectReader(weed.storage)), repr(ObjectReader(weed.storage).path_at(url))]
    with caplog.at_level(logging.DEBUG):
        for storage in (wrong, nowhere):
            with pytest.raises(HeadraceError) as caught:
                ObjectReader(storage, policy=policy).read(url, 0, 10)
            said += [
                str(caught.value),
                repr(caught.value),
                repr(caught.value.__cause__),
                repr(caught.value.__context__),
            ]
        headrace.io.ObjectReader(weed.storage).keep(url)
    said.append(caplog.text)
    kept = Path(os.environ["HEADRACE_CACHE"]).rglob("*")
    said += [path.read_bytes().decode("latin-1") for path in kept if path.is_file()]
    assert "check the credentials" in said[3]
    assert not any(servers.SECRET in words for words in said)


def test_small_files_are_fetched_once_and_found_again(weed: servers.Bucket, tmp_path: Path) -> None:
    corpora.make(tmp_path / "web", 1, 60)
    url = weed.upload(tmp_path / "web", f"{tmp_path.name}/web") + "/shard-0"
    first, second = ObjectReader(weed.storage), ObjectReader(weed.storage)
    one = headrace.open(url, reader=first)
    assert first.stats.gets == 2  # the index, and the ends of the .bin
    other = headrace.open(url, reader=second)
    assert one.fingerprint == other.fingerprint
    assert (first.stats.gets, second.stats.gets) == (2, 0)
    kept = sorted(Path(os.environ["HEADRACE_CACHE"], "objects").iterdir(), key=lambda file: file.suffix)
    assert [file.name.rpartition("-")[2] for file in kept] == ["ends", "0.idx"]
    assert kept[1].read_bytes() == (tmp_path / "web/shard-0.idx").read_bytes()
    # Another content has another name.
    corpora.make(tmp_path / "web", 2, 61)
    weed.upload(tmp_path / "web", f"{tmp_path.name}/web")
    third = ObjectReader(weed.storage)
    assert len(headrace.open(url, reader=third)) == 61
    assert third.stats.gets == 2
    with pytest.raises(StoreError, match=r"shard-0.bin: the object changed while it was in use"):
        one.fetch(0, 10)  # type: ignore[union-attr]


def test_threads_that_keep_the_same_object(weed: servers.Bucket, tmp_path: Path) -> None:
    """The file of the first stays, since it may be open already, and nothing else is left."""
    weed.put(f"{tmp_path.name}/x.idx", bytes(range(256)) * 50)
    reader = ObjectReader(weed.storage)
    url = f"{weed.url}/{tmp_path.name}/x.idx"

    def kept(_: int) -> bytes:
        reader.keep(url)
        return reader.read(url, 5, 20).tobytes()

    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(kept, range(64))) == {bytes(range(5, 25))}
    assert len(list(Path(os.environ["HEADRACE_CACHE"], "objects").iterdir())) == 1


def test_nothing_is_left_when_a_cache_cannot_be_written(
    weed: servers.Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpora.make(tmp_path / "web", 1, 60)
    url = weed.upload(tmp_path / "web", f"{tmp_path.name}/web") + "/shard-0"
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    store = headrace.open(url, storage=weed.storage)
    assert len(store) == 60
    del store
    gc.collect()


@pytest.mark.parametrize("name", ["text-shards", "text-keyed", "sft", "tar-split"])
def test_what_prepare_made(
    name: str, weed: servers.Bucket, tmp_path: Path, around: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a manifest vouches for is checked through the store, byte for byte, and a changed byte is found."""
    monkeypatch.chdir(tmp_path)
    prepared_made.write_inputs(tmp_path)
    prepared_made.make(name)
    local = tmp_path / "made" / name
    url = weed.upload(local, f"{tmp_path.name}/{name}")

    def done(*words: str) -> Result:
        return CliRunner().invoke(main, words)

    whole = done("check", url)
    assert whole.exit_code == 0, whole.output
    assert "only the structure was checked" not in whole.output
    place = "0" if name != "tar-split" else next(iter(headrace.open(url, storage=weed.storage))).key  # type: ignore[union-attr]
    assert done("where", url, place).output == done("where", str(local), place).output.replace(str(local), url)
    assert done("info", url, "--json").output == done("info", str(local), "--json").output.replace(str(local), url)
    assert done("preview", url, "--plain").exit_code == 0

    file = next(file for file in sorted(local.rglob("*")) if file.suffix in (".bin", ".tar"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    weed.put(f"{tmp_path.name}/{name}/{file.relative_to(local).as_posix()}", bytes(data))
    broken = done("check", url)
    assert broken.exit_code == 1, broken.output
    assert file.name in broken.output
