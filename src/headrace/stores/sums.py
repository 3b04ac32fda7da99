"""Compares a file with the sums that a manifest lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.errors import StoreError
from headrace.io import FileSum, file_sum
from headrace.stores.store import Problem


def check_file(
    path: str | Path, listed: FileSum, *, holds: Callable[[int, int], str] = lambda begin, end: ""
) -> Iterator[Problem]:
    """Size and hashes of a file against its listed sums; each 16 MiB block that differs is named. One pass.

    Args:
        path: the file.
        listed: what it should have.
        holds: what the bytes ``begin`` to ``end`` of it hold, in words, for the message.
    """
    path = str(path)
    try:
        found = file_sum(path, block_bytes=listed.block_bytes)
    except StoreError as error:
        yield Problem(path=path, place="", message=str(error).removeprefix(f"{path}: "))
        return
    if found.size != listed.size:
        message = f"the manifest says {listed.size} bytes, the file has {found.size}"
        yield Problem(path=path, place="", message=message)
        return
    if found.xxh3_128 == listed.xxh3_128:
        return
    is_named = False
    for block, (has, says) in enumerate(zip(found.xxh3_64, listed.xxh3_64, strict=True)):
        if has != says:
            is_named = True
            begin = block * found.block_bytes
            end = min(begin + found.block_bytes, found.size)
            message = f"the bytes were changed: xxh3_64 is {has}, the manifest says {says}{holds(begin, end)}"
            yield Problem(path=path, place=f"bytes {begin} to {end}", message=message)
    if not is_named:
        message = f"xxh3_128 is {found.xxh3_128}, the manifest says {listed.xxh3_128}, yet each block agrees"
        yield Problem(path=path, place="", message=message)
