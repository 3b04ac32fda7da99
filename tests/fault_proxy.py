"""A proxy between a client and a server that makes faults, on purpose and at random, and counts what it was asked.

It forwards each request as it is, so that signatures of S3 stay valid.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from email.message import Message
from typing import Any, NamedTuple

from counts import PATIENCE_S

KINDS = ("429", "503", "500", "reset", "cut", "slow")
"""Faults that pass; "etag" pretends that the object changed, and is no such fault."""

OF_WRITES = ("429", "503", "500", "reset", "lost")
"""Those that PUT, POST and DELETE meet; "lost" does what was asked, and loses the answer."""


class Answer(NamedTuple):
    """What a server answers; ``length`` is that of the content, also where a HEAD leaves it out."""

    status: int
    headers: dict[str, str]
    data: bytes
    length: int


Serve = Callable[[str, str, Message, bytes], Answer | None]
"""Answers a request in place of the server, or returns None to ask that.

The arguments are the method, the path, the headers and the body.
"""


class FaultProxy:
    """What the proxy does, which may be changed at any time, and what it was asked.

    Attributes:
        share: the share of GETs of ranges that meet a fault.
        kinds: the faults, of which one is drawn.
        latency_s: how long every answer takes longer.
        slow_s: how long a slow body pauses in its middle.
        is_away: whether every connection is refused an answer.
        back_after: how many refused connections end that; None for no number.
        all_requests: whether HEADs and LISTs meet faults, too.
        write_share: the share of PUTs, POSTs and DELETEs that meet a fault.
        on_write: called with the number of each of these requests before it is forwarded.
        gets: GETs of ranges that arrived.
        sent_bytes: bytes of bodies that were sent.
        most_at_once: the most requests that were answered at the same time.
        writes: PUTs, POSTs and DELETEs that arrived.
        made: faults that were made, by kind.
        closing: set when the proxy ends.
    """

    def __init__(self, upstream: int, seed: int = 0) -> None:
        self.upstream = upstream
        self.share = 0.0
        self.kinds: tuple[str, ...] = KINDS
        self.latency_s = 0.0
        self.slow_s = 0.05
        self.is_away = False
        self.back_after: int | None = None
        self.all_requests = False
        self.write_share = 0.0
        self.on_write: Callable[[int], None] = lambda number: None
        self.gets = 0
        self.sent_bytes = 0
        self.most_at_once = 0
        self._at_once = 0
        self.writes = 0
        self.made: Counter[str] = Counter()
        self.port = 0
        self.closing = threading.Event()
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def come_back(self) -> None:
        """End that every connection is refused."""
        self.is_away = False

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Count a request as long as it is answered."""
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self._lock:
                self._at_once -= 1

    def sent(self, num_bytes: int) -> None:
        """Count the bytes of a body."""
        with self._lock:
            self.sent_bytes += num_bytes

    def fault(self, method: str, is_range: bool) -> str | None:
        """Count a request, and return the fault that it meets."""
        with self._lock:
            if method in ("PUT", "POST", "DELETE"):
                self.on_write(self.writes)
                self.writes += 1
                if self.is_away or self._random.random() >= self.write_share:
                    return "reset" if self.is_away else None
                kind = self._random.choice(OF_WRITES)
                self.made[kind] += 1
                return kind
            self.gets += is_range
            if self.is_away:
                self.made["away"] += 1
                self.is_away = self.made["away"] != self.back_after
                return "reset"
            if not (is_range or self.all_requests) or self._random.random() >= self.share:
                return None
            kind = self._random.choice([kind for kind in self.kinds if is_range or kind not in ("cut", "slow", "etag")])
            self.made[kind] += 1
            return kind


@contextlib.contextmanager
def fault_proxy(endpoint: str, seed: int = 0, serve: Serve | None = None) -> Iterator[FaultProxy]:
    """Run a proxy before the server of an endpoint.

    Args:
        endpoint: URL of the server.
        seed: which requests meet faults.
        serve: serves what the server does not. That is then asked by the name that it knows of itself.
    """
    proxy = FaultProxy(int(endpoint.rpartition(":")[2]), seed)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16
        upstream: http.client.HTTPConnection | None = None
        body = b""

        def do_GET(self) -> None:
            with proxy.answering():
                self.respond()

        def respond(self) -> None:
            self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = proxy.fault(self.command, "Range" in self.headers)
            if proxy.latency_s:
                time.sleep(proxy.latency_s)
            if fault == "lost":
                self.forwarded()
            if fault in ("reset", "lost"):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                self.connection.close()
                return
            if fault is not None and fault.isdigit():
                self.answer(int(fault), {}, b"" if self.command == "HEAD" else b"a fault that was made", 0)
                return
            status, headers, data, length = self.forwarded()
            if fault == "etag":
                headers = {name: value for name, value in headers.items() if name.lower() != "etag"}
                headers["ETag"] = '"another"'
            if fault == "cut":
                self.answer(status, headers, data[: len(data) // 2], len(data))
                self.close_connection = True
                return
            if fault == "slow":
                self.answer(status, headers, data[: len(data) // 2], len(data))
                self.wfile.flush()
                proxy.closing.wait(proxy.slow_s)
                self.wfile.write(data[len(data) // 2 :])
                return
            self.answer(status, headers, data, length)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

        def forwarded(self) -> Answer:
            served = serve(self.command, self.path, self.headers, self.body) if serve is not None else None
            if served is not None:
                return served
            if self.upstream is None:
                self.upstream = http.client.HTTPConnection("127.0.0.1", proxy.upstream, timeout=PATIENCE_S)
            self.upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                is_host = serve is not None and name.lower() == "host"
                self.upstream.putheader(name, f"127.0.0.1:{proxy.upstream}" if is_host else value)
            self.upstream.endheaders(self.body or None)
            response = self.upstream.getresponse()
            data = response.read()
            headers = dict(response.getheaders())
            length = int(headers.pop("Content-Length", len(data)))
            headers.pop("Transfer-Encoding", None)
            return Answer(response.status, headers, data, length if self.command == "HEAD" else len(data))

        def answer(self, status: int, headers: dict[str, str], data: bytes, length: int) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(max(length, len(data))))
            self.end_headers()
            self.wfile.write(data)
            proxy.sent(len(data))

        def handle_one_request(self) -> None:
            with contextlib.suppress(OSError, ValueError):
                super().handle_one_request()
                return
            self.close_connection = True

        def finish(self) -> None:
            if self.upstream is not None:
                self.upstream.close()
            with contextlib.suppress(OSError, ValueError):
                super().finish()

        def log_message(self, *args: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 256

        def handle_error(self, *args: Any) -> None:
            """Clients that go away are no fault of the proxy."""

    server = Server(("127.0.0.1", 0), Handler)
    proxy.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
