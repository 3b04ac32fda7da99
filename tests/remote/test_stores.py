"""The contracts of stores against real servers: what is written locally is uploaded, and opened by its URL."""

from __future__ import annotations

import itertools
import secrets
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrow_made
import corpora
import headrace
import servers
from energon_made import names_of, write_files
from energon_prepared import prepared
from headrace import stores
from headrace.stores import EnergonStore, FilesystemStore, JsonlSamplesStore, Store, TarStore
from headrace.stores.energon import MediaRow, update_media, write_lines
from headrace.stores.store import SampleStore
from headrace.testing.samples import Samples, SampleStoreContract
from headrace.testing.stores import Documents, StoreContract
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


class TestPairOnAzure(TestPair):
    server = "azurite"


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


class TestEnergonOnAzure(TestEnergon):
    server = "azurite"


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
