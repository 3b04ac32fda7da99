"""Paths with a scheme that is not supported are refused by name, at every door, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

import corpora
import headrace
from headrace import preparing, stores
from headrace.cli import COMMANDS, main
from headrace.compat import astrai, megatron
from headrace.datasets import MediaDataset
from headrace.datasets.metadataset import load_dataset
from headrace.errors import ConfigError
from headrace.io import check_local, check_readable
from headrace.loader import load_recipe
from headrace.preparing.backends.tokenizer import load_tokenizer
from headrace.preparing.energon import prepare_energon
from headrace.tracing import read_run_file, save_run

REMOTE = "s3://bucket/data"
UNKNOWN = "msc://profile/data"


@pytest.fixture(autouse=True)
def nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.glob("s3:*"))


def test_schemes_that_are_refused() -> None:
    for path in ("s3://b/x", "gs://b", "GS://b/x", "msc://p/x", "https://a.org/x.jsonl", "a+b.c-d://x"):
        with pytest.raises(ConfigError, match="supported"):
            check_local("fine", [None, path])
    with pytest.raises(ConfigError, match="file://"):
        check_local("file:///data/x")
    check_readable("fine", ["s3://b/x", "GS://b/x", "az://c/x", "https://a.org/x", None])
    for path in ("msc://p/x", "a+b.c-d://x", "hdfs://x"):
        with pytest.raises(ConfigError, match=r"URLs.*s3://"):
            check_readable("fine", [None, path])
    for path, meant in {"s4://b": "s3://", "s3a://b": "s3://", "gcs://b": "gs://", "HTTPSS://b": "https://"}.items():
        with pytest.raises(ConfigError, match=rf"mean.*{meant}"):
            check_readable(path)


@pytest.mark.parametrize("check", [check_local, check_readable])
def test_a_url_with_one_slash(check: Callable[..., None], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"s3:/b/x.*URL.*s3://b/x"):
        check(["s3:/b/x"])
    with pytest.raises(ConfigError, match=r"HTTPS:/b.*URL.*https://b"):
        check("HTTPS:/b")
    with pytest.raises(ConfigError, match=r"gs:/b/x.*gs://b/x"):
        check(Path("gs://b/x"))
    (tmp_path / "gs:").mkdir()
    check(Path("./gs:/b/x"), tmp_path / "s3:" / "x")


def test_a_folder_that_is_called_so(tmp_path: Path) -> None:
    check_local("./s3:/x", "s3:x", "/a/s3:/x", "/a/s3://x", "c:x", "c:/x", "://x", "1a://x", None, 3)
    folder = tmp_path / "here" / "s3:"
    folder.mkdir(parents=True)
    corpora.write(folder / "x", [np.arange(9, dtype=np.uint16)])
    assert len(headrace.open(f"{folder}//x")) == 1


def path_options() -> list[tuple[str, str]]:
    """Every parameter of every command that is told by its name to be a path, and a few that are not."""
    found = []
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        for param in command.params:
            shown = (param.metavar or "").strip("[].").lower()
            if shown in ("data", "dataset", "dir", "dst", "file", "input", "path", "recipe", "source", "src"):
                found.append((name, str(param.name)))
            else:
                # A new one that takes paths has one of these metavars: they decide what is looked at.
                assert not any(str(param.name).endswith(word) for word in ("path", "file", "folder")), param
    return found


@pytest.mark.parametrize(("name", "tested"), path_options())
def test_commands(name: str, tested: str, tmp_path: Path) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    # Where the URL of an object can be read, one with another scheme is refused.
    refused = UNKNOWN if tested in getattr(command, "urls", ()) else REMOTE
    words = [name]
    for param in command.params:
        value = refused if param.name == tested else _some(param)
        if param.name == tested or param.required:
            words += [value] if isinstance(param, click.Argument) else [max(param.opts, key=len), value]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2, done.output
    assert f"{refused}: the scheme {refused[: refused.index(':')]}:// is not supported" in done.output
    assert not list(tmp_path.iterdir())


def _some(param: click.Parameter) -> str:
    return str(next(iter(param.type.choices))) if isinstance(param.type, click.Choice) else "1"


def gpt(path: Any) -> Any:
    return megatron.GPTDataset(path, sequence_length=8)


LOCAL_DOORS: dict[str, Callable[[Any], Any]] = {
    "IndexedDatasetBuilder": megatron.IndexedDatasetBuilder,
    "export_cache": lambda path: megatron.export_cache(None, tokenizer={}, path_to_cache=path),  # type: ignore[arg-type]
    "MeasuredFacts.open": headrace.datasets.MeasuredFacts.open,
    "detect_format": astrai.detect_format,
    "read_run_file": read_run_file,
    "load_recipe": load_recipe,
}
DOORS: dict[str, Callable[[Any], Any]] = {
    "open": headrace.open,
    "open_tokens": stores.open_tokens,
    "open_keys": stores.open_keys,
    "open of a list": lambda path: headrace.open([path]),
    "IndexedDataset": megatron.IndexedDataset,
    "IndexedDataset.exists": megatron.IndexedDataset.exists,
    "IndexedStore": stores.IndexedStore,
    "KeyedStore": stores.KeyedStore,
    "load_manifest": stores.load_manifest,
    "GPTDataset": gpt,
    "GPTBlend.of": lambda path: megatron.GPTBlend.of(path, num_samples=None, build=lambda prefix, _: gpt(prefix)),
    "MediaDataset.open": MediaDataset.open,
    "load_dataset": load_dataset,
    "DatasetFactory.load": lambda path: astrai.DatasetFactory.load("seq", path, 8),
    "load_tokenizer": load_tokenizer,
    "text in": lambda path: headrace.prepare(path, "out", tokenizer="tokenizer.json"),
    "prepare out": lambda path: headrace.prepare(["x.jsonl"], path, recipe="recipe.yaml"),
    "text out": lambda path: preparing.prepare(["x.jsonl"], path, tokenizer="tokenizer.json"),
    "recipe in": lambda path: preparing.prepare([path], "out", recipe="recipe.yaml"),
    "recipe out": lambda path: preparing.prepare([], path, recipe="recipe.yaml"),
    "plan": lambda path: preparing.plan(["x.jsonl"], path, tokenizer="tokenizer.json"),
    "plan of a recipe": lambda path: preparing.plan([], path, recipe="recipe.yaml"),
    "plan_shards": lambda path: preparing.plan_shards(["x"], path),
    "plan of a merge": lambda path: headrace.merge(["x", "y"], path, plan_only=True),
    "prepare_shards in": lambda path: preparing.prepare_shards([path], "out"),
    "recipe": lambda path: preparing.prepare([], "out", recipe=path),
    "read_recipe": preparing.read_recipe,
    "prepare_energon": prepare_energon,
    "plan_energon": preparing.plan_energon,
    "merge from": lambda path: headrace.merge([path, "x"], "out"),
    "merge to": lambda path: headrace.merge(["x", "y"], path),
    "convert from": lambda path: headrace.convert(path, "out", format="keyed"),
    "convert to": lambda path: headrace.convert("x", path, format="keyed"),
    "split to": lambda path: headrace.split("x", path, into=2),
}
"""Those that read from object stores, or write to them."""


@pytest.mark.parametrize("door", [*LOCAL_DOORS, *DOORS])
def test_functions(door: str, tmp_path: Path) -> None:
    if door in DOORS:
        with pytest.raises(ConfigError, match=f"{UNKNOWN}.*msc://.*s3://.*gs://"):
            DOORS[door](UNKNOWN)
    else:
        with pytest.raises(ConfigError, match=f"{REMOTE}.*local"):
            LOCAL_DOORS[door](REMOTE)
    assert not list(tmp_path.iterdir())


def test_what_a_run_writes(tmp_path: Path) -> None:
    corpora.write(tmp_path / "x", [np.arange(99, dtype=np.uint16)])
    run = headrace.Run(gpt(tmp_path / "x"), global_batch_size=2, order=headrace.Order(kind="none"))
    before = sorted(tmp_path.iterdir())
    for write in (
        lambda: save_run(run, REMOTE),
        lambda: headrace.Loader(run, micro_batch_size=2).save_recipe(REMOTE),
        lambda: headrace.Loader(run, micro_batch_size=2, fault_report=REMOTE),
    ):
        with pytest.raises(ConfigError, match=f"{REMOTE}.*local"):
            write()
    assert sorted(tmp_path.iterdir()) == before
