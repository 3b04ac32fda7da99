"""Joins of metadatasets at URLs: the batches, states and errors of the local run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headrace
from energon_made import PRIMARY, SECONDARY
from energon_prepared import prepared
from headrace.datasets.metadataset import SourceOptions, load_dataset
from headrace.errors import StoreError
from headrace.loader import Reading
from memory_stores import MemoryBucket

JOINED = """
def side_by_side(one, two):
    return {"__key__": one["__key__"], "txt": one["txt"], "cap": None if two is None else two["cap"]}
"""
HERE = Reading(num_threads=1)
JOINER = {"__module__": "joiner_at_urls", "__function__": "side_by_side"}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "joiner_at_urls.py").write_text(JOINED)
    monkeypatch.syspath_prepend(tmp_path)
    root = tmp_path / "data"
    shards = {name: members for name, members in PRIMARY.items() if "a.tar" not in name}
    names = list(shards)
    prepared(root / "one", shards, {"train": names[:2], "val": names[2:]})
    prepared(root / "two", SECONDARY)
    for name in ("one", "two"):
        crude = "{__module__: megatron.energon, __class__: CrudeWebdataset}\n"
        (root / name / ".nv-meta" / "dataset.yaml").write_text(crude)
    return root


def write(root: Path, prefix: str = "", name: str = "mix.yaml") -> Path:
    columns = [{"path": f"{prefix}one"}, {"path": f"{prefix}two", "nonmatch": "none", "split_part": "train"}]
    join = {"join": columns, "joiner": JOINER}
    splits = {"train": {"blend": [{"weight": 2, **join}, {"weight": 1, **join, "split_part": "val"}]}, "val": join}
    if prefix == "":
        splits["train"]["blend"] = [{"weight": 2, **join}, {"weight": 1, "path": "inner/mix.yaml", "split_part": "val"}]  # type: ignore[index]
        (root / "inner").mkdir(exist_ok=True)
        inner = {**join, "join": [{**one, "path": f"../{one['path']}"} for one in columns]}
        (root / "inner" / "mix.yaml").write_text(json.dumps({"splits": {"val": inner}}))
    (root / name).write_text(json.dumps({"splits": splits}))
    return root / name


def run_of(path: str | Path, cache: headrace.Cache | None = None, split: str = "train") -> headrace.Run:
    options = SourceOptions(trust_code=True, decoder=None, cache=cache)
    return headrace.Run(load_dataset(path).train(split, options=options), global_batch_size=4, samples=40)


def loader_of(path: str | Path, cache: headrace.Cache | None = None, reading: Reading = HERE) -> headrace.Loader:
    return headrace.Loader(run_of(path, cache), micro_batch_size=2, reading=reading)


def read(loader: headrace.Loader) -> list[Any]:
    return [(batch["__key__"], batch["txt"], batch["cap"], batch["__restore_key__"]) for batch in loader]


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("reading", [HERE, Reading(ahead="100MB")], ids=["usual", "ahead"])
def test_batches_and_states(bucket: MemoryBucket, data: Path, tmp_path: Path, cached: bool, reading: Reading) -> None:
    path = write(data)
    url = f"{bucket.upload(data, 'ds')}/mix.yaml"
    cache = headrace.Cache(tmp_path / "cache", limit="1MB", block="4KiB") if cached else None
    for place in (path, url):
        with pytest.raises(StoreError, match=r"blend\[0\]: .*missing.*headrace prepare"):
            run_of(place)
        assert [join.rows for join in load_dataset(place).prepare()] == [6, 4, 4]
    local, ours = run_of(path), run_of(url, cache)
    assert ours.recipe == local.recipe
    wanted, found = loader_of(path), loader_of(url, cache, reading=reading)
    assert read(found) == read(wanted)
    # A state moves from one place to the other in the middle.
    begun = loader_of(path)
    batches = iter(begun)
    taken = [next(batches)["__key__"] for _ in range(7)]
    moved = loader_of(url, cache, reading=reading)
    moved.load_state_dict(begun.state_dict())
    assert taken + [keys for keys, *_ in read(moved)] == [keys for keys, *_ in read(loader_of(path))]
    if cache is not None:
        assert cache.stats.fetched_blocks > 0


def test_a_file_here_that_names_data_there(bucket: MemoryBucket, data: Path) -> None:
    """And an absolute path in a file there is one of this host."""
    here = write(data, f"{data}/", "here.yaml")
    url = bucket.upload(data, "ds")
    named = write(data, f"{url}/", "named.yaml")
    batches = []
    for place, parent in ((here, data), (named, data), (f"{url}/here.yaml", url)):
        made = load_dataset(place).prepare()
        assert [str(join.path.parent) for join in made] == [f"{parent}/{Path(place).name}.cache"] * 2
        batches.append(read(loader_of(place)))
    assert batches[0] == batches[1] == batches[2]


def test_an_index_of_other_data(bucket: MemoryBucket, data: Path) -> None:
    """As on disk, each row is compared with the shards when it is read."""
    path = write(data)
    joins = load_dataset(path).prepare()
    url = bucket.upload(data, "ds")
    for join in joins:
        where = Path(str(join.path))
        name = f"ds/{where.relative_to(data).as_posix()}"
        damaged = bytearray(where.read_bytes())
        damaged[-8:] = (1).to_bytes(8, "little")
        where.write_bytes(bytes(damaged))
        bucket.put(name, bytes(damaged))
    messages = []
    for place, root in ((path, str(data)), (f"{url}/mix.yaml", url)):
        with pytest.raises(StoreError) as found:
            read(loader_of(place))
        messages.append(str(found.value).replace(root, "ROOT"))
    assert messages[0] == messages[1]
    assert "row" in messages[0]
