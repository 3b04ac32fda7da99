"""What lies in buckets and folders, and which uploads were not ended."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree as xml  # noqa: N813

import servers
from counts import PATIENCE_S
from headrace.io import FetchPolicy
from headrace.io.objects import abandoned
from headrace.io.objects.writer import ObjectWriter

QUICK = FetchPolicy(first_delay_s=0.005, most_delay_s=0.05, deadline_s=PATIENCE_S)


def objects(bucket: servers.Bucket, url: str) -> dict[str, bytes]:
    """All objects below a URL, by their names there."""
    reader = ObjectWriter(bucket.storage)
    return {name: reader.read(f"{url}/{name}") or b"" for name in reader.sizes(url)}


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def open_uploads(bucket: servers.Bucket, url: str) -> int:
    """How many uploads were begun below a URL, and not ended."""
    if bucket.scheme == "gs":
        query = f"uploads&prefix={quote(url.removeprefix(f'{bucket.url}/'))}/"
        with urllib.request.urlopen(f"{bucket.storage.endpoint}/tests?{query}", timeout=PATIENCE_S) as reply:
            return len(xml.fromstring(reply.read()))
    keys = abandoned._keys(bucket.storage)
    assert keys is not None
    found = abandoned._Client(url, bucket.storage, QUICK, keys).uploads()
    assert found is not None
    return len(found[0])
