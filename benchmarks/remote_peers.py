"""How the peers of `remote.py` read the same tokens and samples from S3, each as its documentation says.

Every function yields batches of `BATCH` samples as ``(bytes that the samples use, batch)``. ``cache`` is an empty
folder, or the one that the same engine has filled before.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

BATCH = 16
WINDOW = 2048
CHUNK_BYTES = 8 << 20
"""The bytes of a chunk or shard of those who have some, as large as a block of Headrace's cache."""

Batches = Iterator[tuple[int, Any]]

if find_spec("torchvision") is None:
    # MosaicML Streaming imports its datasets of pictures, which need it, with everything else. None of them is used.
    for _name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
        sys.modules[_name] = ModuleType(_name)
        sys.modules[_name].__spec__ = ModuleSpec(_name, None)
    sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
    sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]


def make(folder: Path) -> None:
    """Write tokens and samples in the formats of the peers that have formats of their own."""
    tokens = np.fromfile(folder / "web" / "web.bin", dtype=np.uint16)
    samples = list(_samples([path.read_bytes() for path in sorted((folder / "tars").glob("*.tar"))]))
    try:
        from streaming import MDSWriter
    except ImportError:
        pass
    else:
        with MDSWriter(out=str(folder / "mds-windows"), columns={"tokens": "ndarray"}, size_limit=CHUNK_BYTES) as out:
            for first in range(0, len(tokens) - WINDOW, WINDOW):
                out.write({"tokens": tokens[first : first + WINDOW]})
        columns = {"jpg": "bytes", "txt": "bytes"}
        with MDSWriter(out=str(folder / "mds-tars"), columns=columns, size_limit=CHUNK_BYTES) as out:
            for sample in samples:
                out.write(sample)
    try:
        from litdata.streaming.cache import Cache
        from litdata.streaming.item_loader import PyTreeLoader, TokensLoader
    except ImportError:
        return
    import torch

    _write_litdata(
        Cache(str(folder / "litdata-windows"), chunk_size=CHUNK_BYTES // 2, item_loader=TokensLoader()),
        [torch.from_numpy(tokens[first : first + WINDOW]) for first in range(0, len(tokens) - WINDOW, WINDOW)],
    )
    _write_litdata(Cache(str(folder / "litdata-tars"), chunk_bytes=CHUNK_BYTES, item_loader=PyTreeLoader()), samples)


def _write_litdata(cache: Any, items: list[Any]) -> None:
    for number, item in enumerate(items):
        cache[number] = item
    cache.done()
    cache.merge()


def _samples(tars: list[bytes]) -> Iterator[dict[str, bytes]]:
    """Yield the samples of tars, whose parts stand one after another."""
    for data in tars:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            sample: dict[str, bytes] = {}
            for entry in tar:
                found = tar.extractfile(entry)
                sample[entry.name.rpartition(".")[2]] = b"" if found is None else found.read()
                if len(sample) == 2:
                    yield sample
                    sample = {}


def _batched(items: Iterator[Any], use: Any) -> Batches:
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == BATCH:
            yield sum(map(use, batch)), batch
            batch = []


def _sizes(sample: dict[str, Any]) -> int:
    return len(sample["jpg"]) + len(sample["txt"])


def litdata(url: str, case: str, cache: Path, limit: int | None) -> Batches:
    from litdata import StreamingDataset
    from litdata.streaming import downloader
    from litdata.streaming.item_loader import TokensLoader

    # It takes no option for a server without TLS.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    loader = {"item_loader": TokensLoader(block_size=WINDOW)} if case == "windows" else {}
    storage = {
        "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
        "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
    }
    dataset = StreamingDataset(
        f"{url}/litdata-{case}",
        cache_dir=str(cache),
        shuffle=True,
        storage_options=storage,
        max_cache_size=limit or "100GB",
        **loader,
    )
    if case == "windows":
        import torch

        batches = _batched(iter(dataset), lambda _: 2 * WINDOW)
        return ((used, torch.stack(batch).to(torch.int64)) for used, batch in batches)
    return _batched(iter(dataset), _sizes)


def streaming(url: str, case: str, cache: Path, limit: int | None) -> Batches:
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    dataset = StreamingDataset(
        remote=f"{url}/mds-{case}", local=str(cache / "mds"), shuffle=True, batch_size=BATCH, cache_limit=limit
    )
    if case == "windows":
        import torch

        batches = _batched(iter(dataset), lambda _: 2 * WINDOW)
        stacked = ((used, np.stack([one["tokens"] for one in batch])) for used, batch in batches)
        return ((used, torch.from_numpy(batch.astype(np.int64))) for used, batch in stacked)
    return _batched(iter(dataset), _sizes)


def s3torchconnector(url: str, case: str, cache: Path, limit: int | None) -> Batches:
    """Tars, each read from begin to end, in order; windows, each a range of its own of the file, shuffled."""
    from s3torchconnector import S3ClientConfig, S3IterableDataset, S3MapDataset, S3ReaderConstructor

    how = {
        "region": os.environ["AWS_REGION"],
        "endpoint": os.environ["AWS_ENDPOINT_URL"],
        "s3client_config": S3ClientConfig(force_path_style=True),
    }
    if case == "tars":
        dataset = S3IterableDataset.from_prefix(f"{url}/tars/0", **how)
        return _batched(_samples_of(reader.read() for reader in dataset if reader.key.endswith(".tar")), _sizes)
    constructor = S3ReaderConstructor.range_based(buffer_size=0)
    reader = S3MapDataset.from_objects([f"{url}/web/web.bin"], reader_constructor=constructor, **how)[0]
    return _windows(lambda begins: [_ranged(reader, begin) for begin in begins], reader)


def _ranged(reader: Any, begin: int) -> bytes:
    reader.seek(begin)
    return reader.read(2 * WINDOW)


def _samples_of(tars: Iterator[bytes]) -> Iterator[dict[str, bytes]]:
    for data in tars:
        yield from _samples([data])


def s3fs(url: str, case: str, cache: Path, limit: int | None) -> Batches:
    """Windows, shuffled: the ranges of a batch are fetched at the same time."""
    import s3fs

    files = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    path = f"{url}/web/web.bin".removeprefix("s3://")

    def fetch(begins: list[int]) -> list[bytes]:
        return files.cat_ranges([path] * len(begins), begins, [begin + 2 * WINDOW for begin in begins])

    return _windows(fetch, files.info(path)["size"])


def _windows(fetch: Any, size: Any) -> Batches:
    import torch

    if not isinstance(size, int):
        size.seek(0, os.SEEK_END)
        size = size.tell()
    begins = np.random.default_rng(1).permutation((size - 2) // (2 * WINDOW)) * (2 * WINDOW)
    for first in range(0, len(begins) - BATCH + 1, BATCH):
        data = b"".join(fetch(begins[first : first + BATCH].tolist()))
        yield len(data), torch.from_numpy(np.frombuffer(data, np.uint16).reshape(BATCH, WINDOW).astype(np.int64))


class Peer(NamedTuple):
    """How a peer is called: its modules, which are imported before, its function, and what it reads."""

    modules: tuple[str, ...]
    read: Callable[[str, str, Path, int | None], Batches]
    cases: tuple[str, ...]


ENGINES = {
    "litdata": Peer(("litdata", "boto3"), litdata, ("windows", "tars")),
    "MosaicML Streaming": Peer(("streaming", "boto3"), streaming, ("windows", "tars")),
    "s3torchconnector": Peer(("s3torchconnector",), s3torchconnector, ("windows", "tars")),
    "s3fs": Peer(("s3fs", "aiobotocore.session"), s3fs, ("windows",)),
}
