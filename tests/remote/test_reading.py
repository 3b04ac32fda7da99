"""The contracts of stores against real servers: what is written locally is uploaded, and opened by its URL."""

from __future__ import annotations

import gc
import itertools
import json
import logging
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import arrow_made
import corpora
import headrace
import prepared_made
import servers
from energon_made import names_of, write_files
from energon_prepared import prepared
from headrace import stores
from headrace.cli import main
from headrace.compat import megatron
from headrace.errors import HeadraceError
from headrace.io import FetchPolicy, FilePool, ObjectReader, Reader
from headrace.stores import EnergonStore, FilesystemStore, JsonlSamplesStore, Store, TarStore
from headrace.stores.energon import MediaRow, update_media, write_lines
from headrace.stores.store import SampleStore
from headrace.testing.readers import ReaderContract
from headrace.testing.samples import Samples, SampleStoreContract
from headrace.testing.stores import Documents, StoreContract
from headrace.tracing import save_run
from tars_made import members_of, write_tar
from token_shards import write_keyed

pytestmark = pytest.mark.remote


class Uploaded:
    server = "weed"
    bucket: servers.Bucket

    @pytest.fixture(autouse=True)
    def _bucket(self, request: pytest.FixtureRequest) -> None:
        type(self).bucket = request.getfixturevalue(self.server)

    def uploaded(self, path: Path) -> str:
        """Upload the folder around a path, each time to another place, and return the URL of the path."""
        folder = path if path.is_dir() else path.parent
        url = self.bucket.upload(folder, secrets.token_hex(8))
        return url if path == folder else f"{url}/{path.name}"


class RemoteStore(Uploaded, StoreContract):
    """Tests that change local files under an open store are left out."""

    range_every = 60
    test_check_finds_every_flipped_bit = None
    test_a_pickled_store_that_changed_is_refused = None

    def open(self, path: Path) -> Store:
        return headrace.open(self.uploaded(path), storage=self.bucket.storage)


class TestPair(RemoteStore):
    def write(self, folder: Path, documents: Documents) -> Path:
        corpora.write(folder / "web", documents, np.dtype(self.dtype).type)
        return folder / "web"


@pytest.mark.soak
class TestPairOnAzure(TestPair):
    server = "azurite"


@pytest.mark.soak
class TestPairOnGcs(TestPair):
    server = "fake_gcs"


class TestPairByHttp(TestPair):
    server = "http_files"


class TestFolder(RemoteStore):
    def write(self, folder: Path, documents: Documents) -> Path:
        for number, at in enumerate(range(0, max(1, len(documents)), 5), start=8):
            corpora.write(folder / f"shard-{number}", documents[at : at + 5], np.dtype(self.dtype).type)
        return folder


class TestKeyed(RemoteStore):
    def write(self, folder: Path, documents: Documents) -> Path:
        write_keyed(folder / "shard", tokens=(self.dtype, documents))
        return folder / "shard"


class TestParquet(RemoteStore):
    dtype = "int32"
    keys = ("input_ids",)

    def write(self, folder: Path, documents: Documents) -> Path:
        column = pa.array([one.tolist() for one in documents], pa.list_(pa.from_numpy_dtype(self.dtype)))
        pq.write_table(pa.table({"input_ids": column}), folder / "x.parquet", row_group_size=5)
        return folder / "x.parquet"


class TestSavedDataset(RemoteStore):
    dtype = "int32"
    keys = ("input_ids",)

    def write(self, folder: Path, documents: Documents) -> Path:
        column = pa.array([one.tolist() for one in documents], pa.list_(pa.from_numpy_dtype(self.dtype)))
        return arrow_made.save(folder / "saved", pa.table({"input_ids": column}), num_files=2)


class RemoteSamples(Uploaded, SampleStoreContract):
    test_a_file_that_changes_under_use = None
    test_a_pickled_store_that_changed_is_refused = None
    test_check_finds_a_file_that_was_cut_short = None
    test_few_files_open_at_once = None


class TestTars(RemoteSamples):
    def write(self, folder: Path, samples: Samples) -> Path:
        for number, begin in enumerate(range(0, len(samples), 9), start=9):
            write_tar(folder / f"{number}.tar", members_of(samples[begin : begin + 9]))
        return folder

    def open(self, path: Path) -> SampleStore:
        return TarStore(self.uploaded(path), using=headrace.io.ObjectReader(self.bucket.storage))


class TestEnergon(RemoteSamples):
    def write(self, folder: Path, samples: Samples) -> Path:
        cuts = [0, 7, 14, len(samples)]
        spans = enumerate(itertools.pairwise(cuts))
        shards = {f"s/{at}.tar": members_of(samples[begin:end]) for at, (begin, end) in spans}
        return prepared(folder, shards, {"train": list(shards)})

    def open(self, path: Path) -> SampleStore:
        reader = headrace.io.ObjectReader(self.bucket.storage)
        return EnergonStore(self.uploaded(path), split_part="train", using=reader)


@pytest.mark.soak
class TestEnergonOnAzure(TestEnergon):
    server = "azurite"


@pytest.mark.soak
class TestEnergonOnGcs(TestEnergon):
    server = "fake_gcs"


class TestLines(RemoteSamples):
    def samples(self) -> Samples:
        return [(str(number), {"json": b'{"number": %d, "%s": 1}' % (number, b"x" * number)}) for number in range(23)]

    def write(self, folder: Path, samples: Samples) -> Path:
        path = folder / "records.jsonl"
        path.write_bytes(b"\n" + b"\n \r\n".join(parts["json"] for _, parts in samples))
        write_lines(path)
        return path

    def open(self, path: Path) -> SampleStore:
        return JsonlSamplesStore(self.uploaded(path), using=headrace.io.ObjectReader(self.bucket.storage))


class TestFiles(RemoteSamples):
    """Plain files, found by a LIST; on a web server, which has none, by the metadata, which names all of them here."""

    count = 8  # each file is a GET

    def samples(self) -> Samples:
        return [(key, dict(sorted(parts.items()))) for key, parts in super().samples()]

    def write(self, folder: Path, samples: Samples) -> Path:
        names = names_of(samples)
        update_media(write_files(folder, names), [MediaRow(name, "image", "{}") for name in names], [])
        return folder

    def open(self, path: Path) -> SampleStore:
        store = headrace.open(f"{self.uploaded(path)}/", storage=self.bucket.storage)
        assert isinstance(store, FilesystemStore)
        return store


class TestFilesOnAzure(TestFiles):
    server = "azurite"


class TestFilesOnGcs(TestFiles):
    server = "fake_gcs"


class TestFilesByHttp(TestFiles):
    server = "http_files"


def test_other_formats(weed: servers.Bucket, tmp_path: Path) -> None:
    """HDF5 and JSON lines are fetched whole, once."""
    arrays = {"tokens": [np.arange(5), np.arange(7)]}
    stores.write_hdf5(tmp_path / "x.h5", arrays)
    (tmp_path / "y.jsonl").write_text('{"tokens": [0, 1, 2, 3, 4]}\n{"tokens": [0, 1, 2, 3, 4, 5, 6]}\n')
    url = weed.upload(tmp_path, "formats")
    for name in ("x.h5", "y.jsonl"):
        with headrace.open(f"{url}/{name}", storage=weed.storage) as store:
            assert isinstance(store, Store)
            assert [store.document(at).tolist() for at in range(2)] == [list(range(5)), list(range(7))]


# The contract of readers against real servers, and what is special about objects.


class Remote(ReaderContract):
    num_reads = 160
    server: str
    bucket: servers.Bucket

    @pytest.fixture(autouse=True)
    def _bucket(self, request: pytest.FixtureRequest) -> None:
        type(self).bucket = request.getfixturevalue(self.server)

    def make(self, pool: FilePool) -> Reader:
        return ObjectReader(self.bucket.storage, pool=pool)

    @pytest.fixture
    def folder(self) -> str:
        return f"{self.bucket.url}/{secrets.token_hex(8)}"

    def write(self, path: str, data: bytes) -> str:
        self.bucket.put(path.removeprefix(f"{self.bucket.url}/"), data)
        return path

    def remove(self, path: str) -> None:
        self.write(path, b"something else")


class TestWeed(Remote):
    server = "weed"


class TestAzurite(Remote):
    server = "azurite"


class TestGcs(Remote):
    server = "fake_gcs"


class TestHttp(Remote):
    server = "http_files"


# A URL wherever a path stands in reading: commands, metadatasets, Megatron's datasets, workers; no secret anywhere.


def test_megatron(weed: servers.Bucket, tmp_path: Path, around: None) -> None:
    corpora.make(tmp_path / "web", 1, 100)
    url = weed.upload(tmp_path / "web", f"{tmp_path.name}/web") + "/shard-0"
    ours = megatron.GPTDataset(url, sequence_length=32, num_samples=50)
    wanted = megatron.GPTDataset(str(tmp_path / "web/shard-0"), sequence_length=32, num_samples=50)
    assert all(np.array_equal(ours[at]["tokens"], wanted[at]["tokens"]) for at in range(50))
    assert megatron.IndexedDataset.exists(url)
    indexed = megatron.IndexedDataset(url)
    assert np.array_equal(indexed[3], megatron.IndexedDataset(str(tmp_path / "web/shard-0"))[3])


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
    assert done("preview", url).exit_code == 0

    file = next(file for file in sorted(local.rglob("*")) if file.suffix in (".bin", ".tar"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    weed.put(f"{tmp_path.name}/{name}/{file.relative_to(local).as_posix()}", bytes(data))
    broken = done("check", url)
    assert broken.exit_code == 1, broken.output
    assert file.name in broken.output
