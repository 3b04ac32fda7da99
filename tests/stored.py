"""What lies in buckets and folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from counts import PATIENCE_S
from headrace.io import FetchPolicy
from headrace.io.objects.writer import ObjectWriter

if TYPE_CHECKING:
    import servers

QUICK = FetchPolicy(first_delay_s=0.005, most_delay_s=0.05, deadline_s=PATIENCE_S)


def objects(bucket: servers.Bucket, url: str) -> dict[str, bytes]:
    """All objects below a URL, by their names there."""
    reader = ObjectWriter(bucket.storage)
    return {name: reader.read(f"{url}/{name}") or b"" for name in reader.statuses(url)}


def files(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by their names there."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
