"""Trains from an object store through a cache on the local disk, stops, and goes on.

    python examples/train_from_a_bucket.py s3://BUCKET/stores/web    # credentials come from the environment

Without a URL a small corpus is served by this process, by HTTP.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import corpus

import headrace


class Files(SimpleHTTPRequestHandler):
    """Answers requests for ranges of files, as object stores do."""

    def do_GET(self) -> None:
        file = Path(self.translate_path(self.path))
        data, modified = file.read_bytes(), self.date_time_string(int(file.stat().st_mtime))
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        self.send_response(206)
        headers = {"Content-Range": f"bytes {first}-{last}/{len(data)}", "Content-Length": str(last + 1 - first)}
        for name, value in {**headers, "Last-Modified": modified}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[first : last + 1])


def feed(url: str, folder: Path, *, stop_at: int, state: dict[str, object] | None = None) -> dict[str, object]:
    """Feed the steps up to ``stop_at``, and return the state for the checkpoint."""
    cache = headrace.Cache(folder / "cache", limit="200MB", block="64KiB")  # on a disk of the node, limit="2TB"
    dataset = headrace.WindowDataset.open(url, seq_len=64, cache=cache)
    run = headrace.Run(dataset, global_batch_size=8, order=headrace.Order(seed=1), samples=240)
    loader = headrace.Loader(run, micro_batch_size=8)
    if state is not None:
        loader.load_state_dict(state)
    for batch in loader:
        print(f"step {loader.step - 1}: {batch['input_ids'].shape}")  # here your training step
        if loader.step == stop_at:
            break
    print(loader.describe().splitlines()[-1])
    return loader.state_dict()


if __name__ == "__main__":
    place = Path(tempfile.mkdtemp(prefix="headrace-example-"))
    if not (url := "".join(sys.argv[1:])):
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(corpus.make(place))))
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/small/"
    feed(url, place, stop_at=30, state=feed(url, place, stop_at=20))
