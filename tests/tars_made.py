"""Tars made by the standard library's ``tarfile``, which Headrace does not use itself."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

from headrace.testing.samples import Samples

# In any order for any layout of a test: what makes a member is its name and content.
Members = Sequence[tuple[str, bytes]]


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def tar_bytes(
    members: Sequence[tuple[tarfile.TarInfo, bytes] | tuple[str, bytes]], layout: int = tarfile.USTAR_FORMAT
) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=layout) as tar:
        for info, content in members:
            made = member(info, content)[0] if isinstance(info, str) else info
            tar.addfile(made, io.BytesIO(content))
    return buffer.getvalue()


def write_tar(path: Path, members: Members, layout: int = tarfile.USTAR_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(list(members), layout))
    return path


def members_of(samples: Samples) -> list[tuple[str, bytes]]:
    return [(f"{key}.{part}", content) for key, parts in samples for part, content in parts.items()]
