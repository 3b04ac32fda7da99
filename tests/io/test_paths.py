"""Names and sizes as people write them; what they name is found alike everywhere; schemes that are refused by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st

import corpora
import headrace
from headrace import preparing, stores
from headrace.cli import COMMANDS, main
from headrace.compat import astrai, megatron
from headrace.datasets import MediaDataset
from headrace.datasets.metadataset import load_dataset
from headrace.errors import ConfigError, StoreError
from headrace.io import check_local, check_readable, expand_braces, natural_key, parse_size, path_at, safe_relative
from headrace.io.finding import each, expand, names_below, open_found, reader_among, real_name, status_of
from headrace.loader import load_recipe
from headrace.preparing.backends.tokenizer import load_tokenizer
from headrace.preparing.energon import prepare_energon
from headrace.tracing import read_run_file, save_run
from memory_stores import MemoryBucket

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
        with pytest.raises(ConfigError, match=f"{UNKNOWN}.*msc://.*profile names a bucket.*s3://.*gs://"):
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


# What a user names is found alike on disk and in an object store.


NAMES = ("a-10.txt", "a-9.txt", "b.txt", ".hidden.txt", "sub/c.txt", "sub/deep/d.txt", ".dark/e.txt", "x{1,2}[3].txt")


@pytest.fixture(params=["disk", "store"])
def root(request: pytest.FixtureRequest, tmp_path: Path, bucket: MemoryBucket) -> str:
    """A folder with these files, or the URL of one."""
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return str(tmp_path) if request.param == "disk" else bucket.upload(tmp_path, "data")


def expanded(root: str, name: str) -> list[tuple[str, list[str]]]:
    found = expand(f"{root}/{name}", reader_among([root], None))
    return [(name.removeprefix(f"{root}/"), [one.removeprefix(f"{root}/") for one in some]) for name, some in found]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("b.txt", [("b.txt", ["b.txt"])]),
        ("sub", [("sub", ["sub"])]),
        ("gone.txt", [("gone.txt", [])]),
        ("a-*.txt", [("a-*.txt", ["a-9.txt", "a-10.txt"])]),
        ("gone*", [("gone*", [])]),
        ("{b,gone}.txt", [("b.txt", ["b.txt"]), ("gone.txt", [])]),
        (
            "{sub/*,a-{9..10}}.txt",
            [("sub/*.txt", ["sub/c.txt"]), ("a-9.txt", ["a-9.txt"]), ("a-10.txt", ["a-10.txt"])],
        ),
        ("{a-?,b}*.txt", [("a-?*.txt", ["a-9.txt", "a-10.txt"]), ("b*.txt", ["b.txt"])]),
        ("x{1,2}[3].txt", [("x{1,2}[3].txt", ["x{1,2}[3].txt"])]),
        ("*/[cd].txt", [("*/[cd].txt", ["sub/c.txt"])]),
        ("sub/**", [("sub/**", ["sub/c.txt", "sub/deep/d.txt"])]),
        ("**/e.txt", [("**/e.txt", [])]),
    ],
)
def test_names_are_expanded(root: str, name: str, wanted: list[tuple[str, list[str]]]) -> None:
    assert expanded(root, name) == wanted


def test_the_names_below_a_folder(root: str) -> None:
    found = sorted(names_below(path_at(root, reader_among([root], None))))
    assert found == ["a-10.txt", "a-9.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt", "x{1,2}[3].txt"]


def test_a_file_is_opened_as_it_was_found(root: str) -> None:
    path = path_at(root, reader_among([root], None)) / "sub/c.txt"
    found = status_of(path)
    assert found.size == 9
    assert bool(found.etag) != bool(found.modified_ns)
    with open_found(str(path), found, None) as file:
        assert file.read(100) == b"sub/c.txt"


def test_a_file_has_one_real_name(root: str, tmp_path: Path) -> None:
    assert real_name(f"{root}/sub//./c.txt") == real_name(f"{root}/sub/c.txt")
    (tmp_path / "link").symlink_to(tmp_path / "sub")
    assert real_name(tmp_path / "link/c.txt") == real_name(tmp_path / "sub/c.txt")


def test_the_first_error_is_raised(root: str) -> None:
    def fail(number: int) -> int:
        if number in (3, 5):
            raise StoreError(str(number))
        return -number

    assert list(each(fail, [0, 1, 2], [root])) == [0, -1, -2]
    with pytest.raises(StoreError, match="3"):
        list(each(fail, range(9), [root]))


# Names and sizes, as people write them.


names = st.text(st.sampled_from("a0129_.ä٣B"), max_size=8)


def test_numbers_count() -> None:
    # a01 and a1 are equal as numbers, so their bytes decide.
    wanted = ["a", "a01", "a1", "a2", "a10", "a10b2", "a10b10", "b", "ä"]
    backwards = wanted[::-1]
    assert sorted(backwards, key=natural_key) == wanted


@given(names, names)
def test_names_that_differ_have_different_keys(left: str, right: str) -> None:
    assert (natural_key(left) == natural_key(right)) == (left == right)


def test_only_ascii_digits_count_and_text_is_bytes() -> None:
    assert natural_key("a٣") > natural_key("a9")  # an Arabic 3 is text
    name = os.fsdecode(b"shard-\xff-2")
    assert natural_key(name) < natural_key(os.fsdecode(b"shard-\xff-10"))


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("plain", ["plain"]),
        ("s-{8..10}", ["s-8", "s-9", "s-10"]),
        ("s-{08..10}.tar", ["s-08.tar", "s-09.tar", "s-10.tar"]),
        ("s-{098..101}", ["s-098", "s-099", "s-100", "s-101"]),
        ("s-{5..5}", ["s-5"]),
        ("{a,b}/{0..1}", ["a/0", "a/1", "b/0", "b/1"]),
        ("{a,}x", ["ax", "x"]),
        ("{plain}{}", ["{plain}{}"]),
    ],
)
def test_expand_braces(pattern: str, wanted: list[str]) -> None:
    assert expand_braces(pattern) == wanted


@pytest.mark.parametrize(
    "pattern", ["open{0..1", "{0..1000000}", "{0..999}{0..999}{0..1}", "{0..99999999999999999999}"]
)
def test_expand_refuses(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"match|1,000,000"):
        expand_braces(pattern)


def test_expand_a_million() -> None:
    assert len(expand_braces("{1..1000000}")) == 1_000_000


@pytest.mark.parametrize("name", ["", "/a", "../a", "a/../b", "a/..", "./a", "a//b", "a/", "a\\b", "a\0b", "..", "."])
def test_names_that_would_leave_their_folder(name: str) -> None:
    with pytest.raises(StoreError, match="leave"):
        safe_relative(name)


@pytest.mark.parametrize("name", ["a", "a/b.c", "..a", "a..", "a b/ä"])
def test_plain_names(name: str) -> None:
    assert safe_relative(name) == name


def test_sizes() -> None:
    sizes = {"1": 1, "500MB": 500_000_000, "1GiB": 1 << 30, "1.5 kb": 1500, "2TB": 2 * 10**12, "7B": 7, 8: 8}
    assert {text: parse_size(text, "limit") for text in sizes} == sizes


@pytest.mark.parametrize("text", ["0", "-1", "x", "1XB", "nan", "inf", "", 0])
def test_what_is_no_size(text: str | int) -> None:
    with pytest.raises(ConfigError, match=r"500MB.*1GiB"):
        parse_size(text, "limit")
