"""What servers answer that refuse a request, or answer otherwise than S3 does: scripted by a small server."""

from __future__ import annotations

import contextlib
import http.server
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from counts import PATIENCE_S
from headrace.engine.planning import NewPlan
from headrace.engine.shared_objects import JobUrl
from headrace.errors import ConfigError, OutputError, StoreAwayError
from headrace.io import FetchPolicy, RemotePath
from headrace.io.objects import writer
from headrace.io.objects.client import advice_for
from headrace.io.objects.lookups import Objects
from headrace.io.objects.writer import ObjectWriter

SECRET = "planted-secret-77ab"
Answers = Callable[[str, str], tuple[int, bytes]]
"""Status and content of the answer to a method and a path."""


@contextlib.contextmanager
def server(answers: Answers) -> Iterator[tuple[headrace.Storage, list[str]]]:
    """An S3 server that answers by a function, and the methods that it was asked."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append(self.command)
            status, data = answers(self.command, self.path)
            self.send_response(status)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_HEAD = do_PUT = do_DELETE = do_POST = do_GET  # noqa: N815

        def log_message(self, *args: Any) -> None:
            pass

    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    options = {"access_key_id": "planted-key", "secret_access_key": SECRET}
    try:
        endpoint = f"http://127.0.0.1:{found.server_address[1]}"
        yield headrace.Storage(endpoint=endpoint, region="us-east-1", options=options), asked
    finally:
        found.shutdown()
        found.server_close()
        thread.join()


def refusal(code: str, message: str = "as a test says") -> bytes:
    return f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'.encode()


@pytest.mark.parametrize(("status", "is_refused"), [(403, True), (401, True), (400, False)])
def test_a_refusal_says_why(status: int, is_refused: bool) -> None:
    """A HEAD has no content, so a GET asks why. What the store says is not interpreted."""
    with server(lambda method, path: (status, refusal("SomeCode", f"some words {SECRET}"))) as (storage, asked):
        objects = Objects(storage)
        with pytest.raises(StoreAwayError, match=r"s3://bucket/x.*SomeCode") as caught:
            objects.status("s3://bucket/x")
    assert asked == ["HEAD", "GET"]
    assert (objects.stats.retries, objects.stats.gets) == (0, 1)
    assert ("check the credentials" in str(caught.value)) == is_refused
    assert SECRET not in str(caught.value)
    assert "xml" not in str(caught.value)


def test_a_bucket_in_another_region() -> None:
    with server(lambda method, path: (301, b"")) as (storage, asked), pytest.raises(StoreAwayError, match="region"):
        Objects(storage).status("s3://bucket/x")
    assert asked == ["HEAD"]


@pytest.mark.parametrize("deep", [False, True])
def test_a_bucket_that_is_not_there(deep: bool) -> None:
    with server(lambda method, path: (404, refusal("NoSuchBucket"))) as (storage, asked):
        objects = Objects(storage)
        with pytest.raises(StoreAwayError, match=r"s3://nobody/x.*URL"):
            objects.below("s3://nobody/x") if deep else objects.listing("s3://nobody/x")
        with pytest.raises(OutputError, match="URL"):
            ObjectWriter(storage).put({"s3://nobody/x": b"x"})
    assert asked == ["GET", "PUT"]


@pytest.mark.parametrize("status", [501, 505])
def test_a_request_that_the_server_does_not_know_is_not_sent_again(status: int) -> None:
    with server(lambda method, path: (status, b"")) as (storage, asked), pytest.raises(OutputError, match=f"{status}"):
        ObjectWriter(storage).create("s3://bucket/x", b"x")
    assert asked == ["PUT"]


def test_a_server_without_ranges() -> None:
    with server(lambda method, path: (200, b"content")) as (storage, asked):
        objects = Objects(storage)
        objects.expect("s3://bucket/x", headrace.io.remote.Status(100, "1", 0))
        with pytest.raises(StoreAwayError, match="response"):
            objects.ranges("s3://bucket/x", [(2, 5)])
    assert asked == ["GET"]


def test_a_connection_that_fails_says_why() -> None:
    with server(lambda method, path: (200, b"")) as (storage, _):
        pass  # nothing listens any more
    # The wait before the second attempt would end after the deadline, which the first one has for itself.
    policy = FetchPolicy(
        deadline_s=PATIENCE_S, attempt_s=PATIENCE_S, first_delay_s=4 * PATIENCE_S, most_delay_s=4 * PATIENCE_S
    )
    with pytest.raises(StoreAwayError, match=r"Connection.*1"):
        Objects(storage, policy).status("s3://bucket/x")


def test_an_endpoint_of_the_environment_without_a_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:8333")
    with pytest.raises(ConfigError, match=r"s3://bucket.*'127.0.0.1:8333'.*http://"):
        Objects().status("s3://bucket/x")


def test_an_endpoint_that_does_not_speak_tls() -> None:
    with server(lambda method, path: (200, b"")) as (storage, asked):
        secure = headrace.Storage(endpoint=str(storage.endpoint).replace("http:", "https:"), options=storage.options)
        with pytest.raises(StoreAwayError, match="endpoint"):
            Objects(secure).status("s3://bucket/x")
    assert asked == []


def test_credentials_that_were_not_found_end_at_once() -> None:
    for host in ("169.254.169.254", "metadata.google.internal"):
        assert "credentials" in (advice_for(RuntimeError(f"Error performing GET http://{host}/latest/token")) or "")
    for words in ("status code: 503 Service Unavailable: SlowDown", "status code: 429", "reset"):
        assert advice_for(RuntimeError(words)) is None, "what may pass"


def listing(*found: tuple[str, int], folders: tuple[str, ...] = ()) -> bytes:
    rows = "".join(
        f"<Contents><Key>{key}</Key><Size>{size}</Size><ETag>&quot;{size}&quot;</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for key, size in found
    )
    rows += "".join(f"<CommonPrefixes><Prefix>{one}</Prefix></CommonPrefixes>" for one in folders)
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()


def test_objects_that_stand_for_folders_are_no_files() -> None:
    """Consoles and other tools make an empty object ``data/`` for a folder ``data``."""
    shallow = listing(("data/", 0), ("data/empty", 0), ("data/x", 5), folders=("data/sub/",))
    deep = listing(("data/", 0), ("data/empty", 0), ("data/sub/", 0), ("data/sub/y", 7), ("data/x", 5))

    def answers(method: str, path: str) -> tuple[int, bytes]:
        return 200, shallow if "delimiter" in path else deep

    with server(answers) as (storage, _):
        objects = Objects(storage)
        url = "s3://bucket/data"
        assert objects.listing(url) == ([f"{url}/sub"], [f"{url}/empty", f"{url}/x"])
        assert objects.below(url) == [f"{url}/empty", f"{url}/sub/y", f"{url}/x"]


def test_an_upload_that_is_not_there_any_more_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a rule of the bucket's life cycle has ended it, or when the answer to its last request was lost."""
    monkeypatch.setattr(writer, "WHOLE_BYTES", 1)
    (tmp_path / "file").write_bytes(b"content")
    ends: list[int] = []

    def answers(method: str, path: str) -> tuple[int, bytes]:
        if method == "POST" and "uploadId" not in path:
            return 200, b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
        if method == "POST":
            ends.append(404 if not ends else 200)
            done = b"<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>"
            return ends[-1], done if ends[-1] == 200 else refusal("NoSuchUpload")
        return 200, b""

    with server(answers) as (storage, _):
        ours = ObjectWriter(storage, FetchPolicy(first_delay_s=0.005, deadline_s=PATIENCE_S))
        assert ours.put_files({"s3://bucket/x": tmp_path / "file"})["s3://bucket/x"].size == 7
    assert ends == [404, 200]
    assert (ours.stats.uploads, ours.stats.retries) == (2, 1)


@pytest.mark.parametrize("keeps", [True, False], ids=["creates once", "overwrites"])
def test_a_store_that_overwrites_what_is_to_be_created_is_refused(keeps: bool) -> None:
    there: dict[str, bytes] = {}

    def answers(method: str, path: str) -> tuple[int, bytes]:
        if method == "PUT":
            status = 412 if keeps and path in there else 200
            there.setdefault(path, b"run")
            return status, b""
        if method == "GET":
            return (206, there[path]) if path in there else (404, b"")
        if method == "POST":  # removes objects
            there.clear()
            return 200, b"<DeleteResult><Deleted><Key>out/x</Key></Deleted></DeleteResult>"
        return (200, there[path]) if path in there else (404, b"")

    with server(answers) as (storage, asked):
        job = JobUrl(RemotePath("s3://bucket/out/.headrace", Objects(storage)))
        if keeps:
            job.save(NewPlan("toy", {}))
            assert list(there) == ["/bucket/out/.headrace/plan.json"]
        else:
            with pytest.raises(OutputError, match=re.escape("If-None-Match: *")):
                job.save(NewPlan("toy", {}))
            assert not there
    assert asked[:3] == ["HEAD", "PUT", "PUT"]
