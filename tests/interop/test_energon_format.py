"""What `headrace prepare` writes and what `energon prepare` writes: the same, byte for byte and row for row."""

from __future__ import annotations

import json
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from energon_made import LINES, PRIMARY, write_shards
from headrace.preparing.energon import DatasetChoice, EnergonOptions, MediaFilter, SplitChoice, prepare_energon
from headrace.samples.media import CrudeSample, SampleMapper
from headrace.stores import EnergonStore, JsonlSamplesStore
from interop import energon_peer
from media_made import images, sound, video
from tars_made import member, write_tar

pytestmark = pytest.mark.interop

NO_YAML = DatasetChoice(skip=True)
UUID = ".nv-meta/index.uuid"  # random there, made of the content here
OURS_ALONE = ".nv-meta/headrace.json"


@pytest.fixture(scope="module", autouse=True)
def _peer() -> None:
    energon_peer.energon()


def both(root: Path, write: Callable[[Path], object]) -> tuple[Path, Path]:
    """The same shards twice."""
    for name in ("ours", "theirs"):
        write(root / name)
    return root / "ours", root / "theirs"


def assert_same(ours: Path, theirs: Path) -> None:
    """Every file but the uuid and what is ours alone; ``index.sqlite`` by its rows."""
    names = {str(path.relative_to(theirs)) for path in theirs.rglob("*") if path.is_file()}
    assert names == {str(path.relative_to(ours)) for path in ours.rglob("*") if path.is_file()} - {OURS_ALONE}
    for name in sorted(names - {UUID, ".nv-meta/index.sqlite"}):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    assert energon_peer.tables(ours / ".nv-meta/index.sqlite") == energon_peer.tables(theirs / ".nv-meta/index.sqlite")
    assert len((ours / UUID).read_bytes()) == len((theirs / UUID).read_bytes())


def test_golden_shards_and_split_parts(tmp_path: Path) -> None:
    ours, theirs = both(tmp_path, lambda root: write_shards(root, PRIMARY))
    splits = {"train": "shards/.*", "joined": "shards/b.*"}
    energon_peer.prepare(theirs, "--skip-dataset-yaml", splits=splits)
    prepare_energon(ours, options=EnergonOptions(split=SplitChoice(parts=tuple(splits.items())), dataset=NO_YAML))
    assert_same(ours, theirs)
    again = energon_peer.run("prepare", "--tar-index-only", "--no-progress", "--num-workers", "1", ours)
    assert again.exit_code == 0, again.output  # theirs goes on from ours
    assert_same(ours, theirs)


def test_ours_goes_on_from_theirs(tmp_path: Path) -> None:
    root = write_shards(tmp_path / "set", {"0.tar": [("a.txt", b"1")], "1.tar": [("b.txt", b"2")]})
    options = ["--sample-type", "TextSample", "--field-map", '{"text": "txt"}']
    energon_peer.prepare(root, *options, splits={"train": "0.*", "val": "1.*"})
    write_shards(root, {"2.tar": [("c.txt", b"3")]})
    prepare_energon(root)
    assert energon_peer.keys(root, "train") == ["a", "c"]
    assert energon_peer.keys(root, "val") == ["b"]


@pytest.mark.parametrize("ratio", ["8,1,1", "0.5,0.2,0.3", "1,0,0", "1,1,1"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_split_ratios(tmp_path: Path, ratio: str, shuffle: bool) -> None:
    shards = {f"{number // 10}/s{number:03d}.tar": [(f"k{number}.txt", b"x")] for number in range(23)}
    ours, theirs = both(tmp_path, lambda root: write_shards(root, shards))
    options = ["--non-interactive", "--no-progress", "--num-workers", "1", "--split-ratio", ratio]
    options += ["--sample-type", "TextSample", "--field-map", '{"text": "txt"}', "--exclude", "s00[12]"]
    done = energon_peer.run("prepare", *options, *["--shuffle-tars"] * shuffle, theirs)
    assert done.exit_code == 0, done.output
    split = SplitChoice(ratio=tuple(map(float, ratio.split(","))), shuffle=shuffle)
    dataset = DatasetChoice(sample_type="TextSample", field_map={"text": "txt"})
    prepare_energon(ours, options=EnergonOptions(split=split, dataset=dataset, exclude="s00[12]"))
    assert_same(ours, theirs)


Tar = list[tuple[tarfile.TarInfo, bytes]]


def drawn_tars(rng: random.Random) -> dict[str, tuple[int, Tar]]:
    """Shards in folders, with members of every kind of name; each key is one sample."""
    shards = {}
    numbers = iter(range(10_000))
    for shard in range(rng.randint(1, 4)):
        members: Tar = []
        for _ in range(rng.randint(1, 8)):
            key = f"{rng.choice(FOLDERS)}{rng.choice(['k', 'Ä', 'k k', 'n' * 120, '__k'])}{next(numbers)}"
            for part in rng.sample(PARTS, rng.randint(1, 4)):
                members.append(member(f"{key}.{part}", rng.randbytes(rng.choice([0, 1, 511, 512, 513, 3000]))))
                if rng.random() < 0.3:
                    members.append(ignored(rng, next(numbers)))
            if rng.random() < 0.2:  # which is a sample by their rule
                members.append(member(f"{rng.choice(['', 'v1.'])}h{next(numbers)}/.hid", b"hid"))
        layout = rng.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
        if layout == tarfile.USTAR_FORMAT:  # which has no room for the rest
            members = [(info, data) for info, data in members if len(info.name) <= 100]
            members.append(member(f"last{next(numbers)}.txt", b"at least one"))
        shards[rng.choice(["", "a/", "b/c/"]) + f"{shard}.tar"] = (layout, members)
    return shards


FOLDERS = ["", "d/", "d/e/", "./", "v1.2/", "d/__in__/", "v.1/w.2/"]
PARTS = ["jpg", "txt", "JSON", "seg.png", "x y", "ö", "", "json.gz", "__t__"]


def ignored(rng: random.Random, number: int) -> tuple[tarfile.TarInfo, bytes]:
    """What belongs to no sample, wherever it lies."""
    name = rng.choice(["noext", "d/noext", ".hidden", "__meta__/info.txt", "__skip__", "d.txt"])
    if name == "d.txt":
        kind = rng.choice([tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE])
        # A link or a pipe that would be a part is refused, as tests/stores/tar/test_store.py shows.
        return member(f"d{number}.txt" if kind == tarfile.DIRTYPE else f"d{number}", type=kind)
    return member(f"{name}{number}" if name.endswith("ext") else name, b"no part")


def write_drawn(root: Path, shards: dict[str, tuple[int, Tar]]) -> None:
    for name, (layout, members) in shards.items():
        write_tar(root / name, members, layout)


@settings(max_examples=cases(5, 300), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_drawn_tars(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    shards = drawn_tars(random.Random(seed))
    ours, theirs = both(tmp_path_factory.mktemp("drawn"), lambda root: write_drawn(root, shards))
    energon_peer.prepare(theirs, "--skip-dataset-yaml")
    prepare_energon(ours, options=EnergonOptions(split=SplitChoice(parts=(("train", ".*"),)), dataset=NO_YAML))
    assert_same(ours, theirs)
    crude = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    (ours / ".nv-meta/dataset.yaml").write_text(crude)
    # Ours read by them, and theirs read by us: the same samples in the same order.
    read = [energon_peer.fields(sample) for sample in energon_peer.load(ours, cookers=[as_it_is()])]
    store, mapper = EnergonStore(theirs, split_part="train"), SampleMapper(CrudeSample)
    own = [mapper.make(sample.parts, sample.key) for sample in store.read(np.arange(len(store)))]
    assert read == [energon_peer.fields(sample) for sample in own]


def as_it_is() -> Any:
    """A cooker that keeps all parts; what a loader yields must be a sample, and a dict is none to its batches."""

    @energon_peer.energon().stateless
    def cook(sample: Any) -> Any:
        return sample

    return cook


@pytest.mark.parametrize("strategy", ["extension", "header"])
def test_media_metadata(tmp_path: Path, strategy: str) -> None:
    parts = {f"{number}.{name}": data for number, (name, data) in enumerate(images().items())}
    parts |= {"v.mp4": video("mp4", "mpeg4"), "w.mkv": video("matroska", "mpeg4", sound="aac")}
    parts |= {"s.wav": sound("wav", "pcm_s16le"), "t.flac": sound("flac", "flac", channels=2), "u.txt": b"text"}
    shards = {"0.tar": sorted(parts.items())}
    ours, theirs = both(tmp_path, lambda root: write_shards(root, shards))
    energon_peer.prepare(theirs, "--skip-dataset-yaml", f"--media-metadata-by-{strategy}")
    split = SplitChoice(parts=(("train", ".*"),))
    media = MediaFilter(strategy=strategy.upper())  # type: ignore[arg-type]
    prepare_energon(ours, options=EnergonOptions(split=split, dataset=NO_YAML, media=media))
    rows = [energon_peer.tables(root / ".nv-meta/index.sqlite") for root in (ours, theirs)]
    assert {name: sorted(table) for name, table in rows[0].items()} == {
        name: sorted(table) for name, table in rows[1].items()
    }
    assert len(rows[0]["media_metadata"]) > 15


@pytest.mark.parametrize("data", [LINES, b'{"i": 0}', b'{"a": "\xc3\xa4"}\r\n\r\n{"b": 1}\r\n'])
def test_jsonl(tmp_path: Path, data: bytes) -> None:
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    for path in (ours, theirs):
        path.write_bytes(data)
    done = energon_peer.run("prepare", theirs)
    assert done.exit_code == 0, done.output
    count = prepare_energon(ours).samples
    assert f"Found {count} samples" in done.output
    index = ours.with_suffix(".jsonl.idx").read_bytes()
    assert index == theirs.with_suffix(".jsonl.idx").read_bytes()
    read = [energon_peer.fields(sample) for sample in energon_peer.load(ours, cookers=[as_it_is()])]
    store = JsonlSamplesStore(theirs)
    assert [sample["json"] for sample in read] == [json.loads(sample.parts["json"]) for sample in store]
