"""Energon itself, in this process: its commands, its loaders, and what samples of both sides are compared by."""

from __future__ import annotations

import dataclasses
import importlib
import sqlite3
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

# What a sample knows of itself is told by both sides; fields are compared, and of these the key.
BASE = ("__restore_key__", "__subflavors__", "__sources__", "__shard__")


def quietly(function: Callable[..., Any], *given: Any) -> Any:
    """Energon and what it imports warn of much; here warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*given)


def energon() -> ModuleType:
    """The package; skips the test where it is not installed."""
    found: ModuleType = quietly(lambda: pytest.importorskip("megatron.energon"))
    # Each of its loaders leaves a thread that looks once a second whether it waits too long: hundreds, in one process.
    quietly(importlib.import_module, "megatron.energon.watchdog").Watchdog._worker = _watch_nothing
    return found


def _watch_nothing(_: Any) -> None:
    """Stands for the thread of a watchdog."""


def run(command: str, *arguments: str | Path) -> Result:
    """``energon COMMAND``, whatever becomes of it."""
    energon()
    from megatron.energon.cli.main import main

    result: Result = quietly(lambda: CliRunner().invoke(main, [command, *map(str, arguments)]))
    return result


def prepare(root: Path, *options: str, splits: Mapping[str, str] | None = None) -> Path:
    """``energon prepare`` of a folder of tars; of parts, the regular expression of the shards' names."""
    parts = [
        word for name, pattern in (splits or {"train": ".*"}).items() for word in ("--split-parts", f"{name}:{pattern}")
    ]
    done = run("prepare", "--non-interactive", "--no-progress", "--num-workers", "1", *parts, *options, root)
    assert done.exit_code == 0, (done.output, done.exception)
    return root


def encoder(decoder: Any, cookers: Sequence[Callable[..., Any]] = ()) -> Any:
    """A task encoder that does nothing but to decode and to cook."""
    peer = energon()

    class Encoder(peer.DefaultTaskEncoder):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.decoder = decoder
            self.cookers = [peer.Cooker(cook) for cook in cookers]

    return Encoder()


def load(path: Path, part: str = "train", *, decoder: Any = None, cookers: Any = (), **options: Any) -> list[Any]:
    """All samples of one part, in the order of its shards, as Energon's loader gives them for validation."""
    peer = energon()

    def read() -> list[Any]:
        dataset = peer.get_val_dataset(
            path,
            split_part=part,
            worker_config=peer.WorkerConfig(rank=0, world_size=1, num_workers=0),
            batch_size=None,
            task_encoder=encoder(decoder, cookers),
            **options,
        )
        return list(peer.get_loader(dataset))

    found: list[Any] = quietly(read)
    return found


def keys(path: Path, part: str = "train") -> list[str]:
    """The keys of all samples that Energon loads."""
    return [sample.__key__ for sample in load(path, part)]


def fields(sample: Any) -> dict[str, Any]:
    """Field -> value of a sample of either side, with its key."""
    if isinstance(sample, Mapping):
        given = dict(sample)
    else:
        given = {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}
    return {name: plain(value) for name, value in given.items() if name not in BASE}


def plain(value: Any) -> Any:
    """What compares by ``==``, without loss: kind, dtype, shape and bytes of arrays, mode and bytes of images."""
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, Image.Image):
        return "image", value.mode, value.size, value.tobytes()
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value


def tables(path: Path) -> dict[str, Any]:
    """Schema and rows of an ``index.sqlite``; of the filters of media without their time."""
    with closing(sqlite3.connect(path)) as base:
        schema = base.execute("select name, sql from sqlite_master where sql is not null order by name").fetchall()
        names = [name for name, sql in schema if sql.startswith("CREATE TABLE") and name != "sqlite_sequence"]
        rows = {name: base.execute(f"select * from {name} order by rowid").fetchall() for name in names}
    if "media_filters" in rows:
        rows["media_filters"] = [row[:3] for row in rows["media_filters"]]
    return {"schema": {name: " ".join(sql.split()) for name, sql in schema}, **rows}
