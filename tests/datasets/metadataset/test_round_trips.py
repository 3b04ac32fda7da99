"""Datasets at URLs: as many round trips for many as for few, and the batches, states and errors of the local run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
import headrace
from energon_made import PRIMARY, SECONDARY
from energon_prepared import prepared
from headrace.datasets import Concat, Dataset, Mix
from headrace.datasets.metadataset import SourceOptions, load_dataset
from headrace.errors import StoreAwayError, StoreError
from headrace.inspect import describe
from headrace.io import ObjectReader
from headrace.loader import Reading
from headrace.stores import JoinedStore, ShardedStore, reading_ahead
from headrace.stores.energon.jsonl import write_lines
from headrace.stores.quarantine import add_bad_samples, bad_sample
from headrace.stores.tar.store import TarStore
from memory_stores import MemoryBucket, round_trips
from tars_made import write_tar

TYPED = "{sample_type: {__module__: megatron.energon, __class__: TextSample}, field_map: {text: txt}}\n"
JOINER = {"__module__": "megatron.energon", "__class__": "TextSample"}
FEW, MANY = 3, 8


def energon(root: Path, number: int) -> list[dict[str, Any]]:
    for n in range(number):
        tars = {f"{at % 2}/{at}.tar": [(f"{n}-{at}.txt", b"x" * (n + at))] for at in range(4)}
        prepared(root / f"d{n:02}", tars)
        (root / f"d{n:02}" / ".nv-meta" / "dataset.yaml").write_text(TYPED)
    return [{"path": f"d{n:02}"} for n in range(number)]


def tokens(root: Path, number: int) -> list[dict[str, Any]]:
    """Pairs, folders of pairs, and folders with a manifest."""
    for n in range(number):
        corpora.make(root / f"t{n}", n, 60, num_shards=2)
    prefix = [{"path": f"t{n}/shard-0"} for n in range(number)]
    entries = [*prefix, *({"path": f"t{n}"} for n in range(number))]
    return [{**entry, "windows": {"window_tokens": 16}} for entry in entries]


def keyed(root: Path, number: int) -> list[dict[str, Any]]:
    for n in range(number):
        corpora.make(root / f"made{n}", n, 60, num_shards=2)
        headrace.convert(root / f"made{n}", root / f"k{n}", format="keyed")
    return [{"path": f"k{n}", "windows": {"window_tokens": 16}} for n in range(number)]


def nested(root: Path, number: int) -> list[dict[str, Any]]:
    for at, entry in enumerate(entries := energon(root, number)):
        (root / f"inner{at}.yaml").write_text(json.dumps({"splits": {"train": entry}}))
    return [{"path": f"inner{at}.yaml"} for at in range(len(entries))]


def joined(root: Path, number: int) -> list[dict[str, Any]]:
    energon(root, number)
    pairs = [[{"path": f"d{n:02}"}, {"path": f"d{n:02}"}] for n in range(number)]
    return [{"join": pair, "joiner": JOINER} for pair in pairs]


def lines(root: Path, number: int) -> list[dict[str, Any]]:
    for n in range(number):
        (root / f"x{n}.jsonl").write_text("".join(f'{{"text": "{n} {at}"}}\n' for at in range(5)))
        write_lines(root / f"x{n}.jsonl")
    return [{"path": f"x{n}.jsonl"} for n in range(number)]


def tars(root: Path, number: int) -> list[dict[str, Any]]:
    for n in range(number):
        write_tar(root / f"x{n}.tar", [(f"{at}.txt", b"x") for at in range(4)])
        TarStore(root / f"x{n}.tar").close()  # which writes an index
    return [{"path": f"x{n}.tar"} for n in range(number)]


def uploaded(bucket: MemoryBucket, root: Path, make: Callable[[Path, int], list[dict[str, Any]]], number: int) -> str:
    """The URL of a metadataset of some datasets, which also lies in a folder."""
    root.mkdir()
    (root / "mix.yaml").write_text(json.dumps({"splits": {"train": {"blend": make(root, number)}}}))
    if make is joined:
        load_dataset(root / "mix.yaml").prepare()
    return f"{bucket.upload(root, f'ds{number}')}/mix.yaml"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    ("make", "opened", "known"),
    [(energon, 4, 2), (tokens, 5, 0), (keyed, 6, 0), (nested, 6, 2), (lines, 4, 1)],
)
def test_a_metadataset(
    bucket: MemoryBucket,
    tmp_path: Path,
    make: Callable[[Path, int], list[dict[str, Any]]],
    opened: int,
    known: int,
    cached: bool,
) -> None:
    found = set()
    for number in (FEW, MANY):
        root = tmp_path / str(number)
        url = uploaded(bucket, root, make, number)
        cache = headrace.Cache(tmp_path / "cache", limit="1MB", block="4KiB") if cached else None
        options = SourceOptions(decoder=None, cache=cache)
        with round_trips() as opening:
            data = load_dataset(url).train(options=options)
        run = headrace.Run(data, global_batch_size=4, samples=8)
        with round_trips() as knowing:
            recipe = run.recipe
        local = load_dataset(root / "mix.yaml").train(options=SourceOptions(decoder=None))
        assert recipe == headrace.Run(local, global_batch_size=4, samples=8).recipe
        found.add((opening.number, knowing.number))
    assert found == {(opened, known)}


def test_joins(bucket: MemoryBucket, tmp_path: Path) -> None:
    """Each join takes a few more: its index, whose name depends on its datasets, and those of its tars, and samples."""
    for number in (FEW, MANY):
        url = uploaded(bucket, tmp_path / str(number), joined, number)
        with round_trips((JoinedStore, "_check_some")) as trips:
            load_dataset(url).train()
        assert trips.number == 4 + 2 * number


def test_stores_that_were_opened_one_by_one(
    bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each has a reader of its own; what they are known by is read at the same time."""
    found = set()
    for number in (FEW, MANY):
        tokens(tmp_path, number)
        url = bucket.upload(tmp_path, f"ds{number}")
        opened = [headrace.WindowDataset.open(f"{url}/t{n}/shard-0", seq_len=16) for n in range(number)]
        for dataset in opened:
            dataset.store._reader._ends.clear()
        monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / f"empty{number}"))
        run = headrace.Run(Concat({str(n): one for n, one in enumerate(opened)}), global_batch_size=4)
        with round_trips((reading_ahead, "read_together")) as knowing:
            run.recipe.hashes()
        found.add(knowing.number)
    assert found == {1}


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "found"])
def test_shards_of_the_keyed_format(bucket: MemoryBucket, tmp_path: Path, listed: bool) -> None:
    """Their metadata come at the same time, and then the ends of their files."""
    found = set()
    for number in (FEW, MANY):
        made = corpora.make(tmp_path / f"made{number}", 5, 80 * number, num_shards=number)
        root = tmp_path / f"keyed{number}"
        headrace.convert(tmp_path / f"made{number}", root, format="keyed")
        if not listed:
            (root / "headrace.json").unlink()
        url = bucket.upload(root, f"ds{number}")
        reader = ObjectReader()
        with round_trips() as trips:
            store = headrace.open(url, reader=reader)
            known = store.fingerprint
        assert isinstance(store, ShardedStore)
        assert len(store.shards) == number
        assert known == headrace.open(root).fingerprint
        assert np.array_equal(store.document(7), made.store.document(7))
        found.add((trips.number, trips.requests - 3 * number))
    assert len(found) == 1


def test_tars(bucket: MemoryBucket, tmp_path: Path) -> None:
    """Each takes one more, in which the end of the tar is compared with its index.

    What a tar is known by is read at the same time, in another thread, and may be a trip of its own where a store
    answers at once, as this one does.
    """
    described = set()
    for number in (FEW, MANY):
        url = uploaded(bucket, tmp_path / str(number), tars, number)
        with round_trips() as trips:
            load_dataset(url).train(options=SourceOptions(decoder=None))
        assert number <= trips.number - 4 <= 2 * number
        with round_trips() as trips:
            assert describe(uploaded(bucket, tmp_path / f"again {number}", energon, 2 * number)).path
        described.add(trips.number)
    assert len(described) == 1, "in as many trips for many as for few"


def test_bad_samples_of_a_member(bucket: MemoryBucket, tmp_path: Path) -> None:
    """What was looked up for the other members stays known: the list takes a GET, and each of its samples another."""
    found = []
    for is_listed in (False, True):
        root = tmp_path / f"{is_listed}"
        for n in range(MANY):
            write_tar(root / f"tars{n:02}" / "x.tar", [(f"{at}.txt", b"x") for at in range(4)])
            with TarStore(root / f"tars{n:02}") as store:
                if is_listed and n == 0:
                    add_bad_samples(store, [bad_sample(store, 2)])
        entries = [{"path": f"tars{n:02}"} for n in range(MANY)]
        (root / "mix.yaml").write_text(json.dumps({"splits": {"train": {"blend": entries}}}))
        metadataset = load_dataset(f"{bucket.upload(root, f'{is_listed}')}/mix.yaml")
        with round_trips() as trips:
            data = metadataset.train(options=SourceOptions(decoder=None))
        assert isinstance(data, Mix)
        assert [len(one) for one in data.children.values()] == [4 - is_listed, *[4] * (MANY - 1)]
        found.append(trips.requests)
    assert found[1] - found[0] == 2


def test_what_cannot_be_read_ahead(bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset that is not there has the words of the local run; a store that is away is waited for once."""
    entries = [*energon(tmp_path, 2), {"path": "none"}]
    (tmp_path / "mix.yaml").write_text(json.dumps({"splits": {"train": {"blend": entries}}}))
    url = bucket.upload(tmp_path, "ds")
    messages = []
    for place, root in ((tmp_path / "mix.yaml", str(tmp_path)), (f"{url}/mix.yaml", url)):
        with pytest.raises(StoreError) as found:
            load_dataset(place).train()
        messages.append(str(found.value).replace(root, "ROOT"))
    assert messages[0] == messages[1]
    assert "blend[2]: ROOT/none: nothing is there" in messages[0]

    tried: list[object] = []

    def away(*asked: object) -> None:
        tried.append(asked)
        raise StoreAwayError("the store is away")

    metadataset = load_dataset(f"{url}/mix.yaml")
    monkeypatch.setattr(ObjectReader, "look_up", away)
    with pytest.raises(StoreAwayError, match="store"):
        metadataset.train()
    assert len(tried) == 1
    # Who opens datasets in another way needs no store.
    own = load_dataset(tmp_path / "d00").train()
    assert isinstance(own, Dataset)
    data = metadataset.train(options=SourceOptions(open=lambda source: own))
    assert isinstance(data, Mix)
    assert list(data.children.values()) == [own] * 3


JOINED = """
def side_by_side(one, two):
    return {"__key__": one["__key__"], "txt": one["txt"], "cap": None if two is None else two["cap"]}
"""
HERE = Reading(num_threads=1)
SIDE_BY_SIDE = {"__module__": "joiner_at_urls", "__function__": "side_by_side"}


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
    join = {"join": columns, "joiner": SIDE_BY_SIDE}
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("reading", [HERE, Reading(ahead="100MB")], ids=["usual", "ahead"])
def test_batches_and_states(bucket: MemoryBucket, data: Path, tmp_path: Path, cached: bool, reading: Reading) -> None:
    path = write(data)
    url = f"{bucket.upload(data, 'ds')}/mix.yaml"
    cache = headrace.Cache(tmp_path / "cache", limit="1MB", block="4KiB") if cached else None
    for place in (path, url):
        with pytest.raises(StoreError, match=r"blend\[0\]"):
            run_of(place)
        assert [join.rows for join in load_dataset(place).prepare().values()] == [6, 4, 4]
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
        made = load_dataset(place).prepare().values()
        assert [str(join.path.parent) for join in made] == [f"{parent}/{Path(place).name}.cache"] * 3
        batches.append(read(loader_of(place)))
    assert batches[0] == batches[1] == batches[2]


def test_an_index_of_other_data(bucket: MemoryBucket, data: Path) -> None:
    """As on disk, each row is compared with the shards when it is read."""
    path = write(data)
    joins = load_dataset(path).prepare().values()
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
