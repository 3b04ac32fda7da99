"""The contract of readers against real servers, and what is special about objects."""

from __future__ import annotations

import secrets

import pytest

import servers
from headrace.io import FilePool, ObjectReader, Reader
from headrace.testing.readers import ReaderContract

pytestmark = pytest.mark.remote


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
