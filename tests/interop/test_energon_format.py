"""What `headrace prepare` and `energon prepare` write, byte for byte and row for row, and the datasets of either."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable
from itertools import islice
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
from interop.energon_live import dataset, members, metadataset, our_loader, take, texts, texts_of, their_loader
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
    for name, (layout, content) in shards.items():
        write_tar(root / name, content, layout)


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    energon_peer.energon()
    folder = tmp_path_factory.mktemp("datasets")
    texts(folder / "a", [20, 11, 9, 21], val=1)
    texts(folder / "b", [60, 40])
    texts(folder / "d", [2, 1])
    return folder


def flat(batches: list[list[str]]) -> list[str]:
    return [text for batch in batches for text in batch]


def test_fewer_samples_than_readers(folder: Path) -> None:
    """Three samples for four workers: all come in validation; Energon cannot train on them, we can."""
    path = folder / "d"
    for make in (their_loader, our_loader):
        found = [flat(take(make(path, rank, 2, 2, val=True, split_part="train", batch_size=1))) for rank in range(2)]
        assert sorted(flat(found)) == ["d0", "d1", "d2"]
    with pytest.raises(AssertionError, match="dataset"):
        take(their_loader(path, 3, 4, batch_size=1), 1)
    ours = [flat(take(our_loader(path, rank, 4, batch_size=1), 3)) for rank in range(4)]
    assert Counter(flat(ours)) == {"d0": 4, "d1": 4, "d2": 4}


def test_weights(folder: Path) -> None:
    """Energon draws the source of each sample, so that its shares are near the weights; ours are within 2 a step."""
    nested = {"blend": [{"weight": 1, "path": "../b"}, {"weight": 4, "path": "../d", "split_part": "train"}]}
    (folder / "sub").mkdir(exist_ok=True)
    metadataset(folder / "sub/inner.yaml", train=nested)
    path = metadataset(
        folder / "weights.yaml", train={"blend": [{"weight": 6, "path": "a"}, {"weight": 4, "path": "sub/inner.yaml"}]}
    )
    wanted = {"a": 0.6, "b": 0.08, "d": 0.32}
    number = 1000
    theirs, ours = (flat(take(make(path, batch_size=10), number // 10)) for make in (their_loader, our_loader))
    for name, share in wanted.items():
        counts = np.cumsum([text[0] == name for text in theirs])
        assert abs(counts[-1] - share * number) < 5 * np.sqrt(number * share * (1 - share))
        exact = np.cumsum([text[0] == name for text in ours]) - share * np.arange(1, number + 1)
        assert np.abs(exact[9::10]).max() <= 2
        assert np.abs(counts - share * np.arange(1, number + 1)).max() > 2


def test_the_first_version(folder: Path) -> None:
    """`datasets` in the place of `blend`: in Energon's own order the very same samples."""
    entries = [{"weight": 2, "path": "a"}, {"weight": 1, "path": "b", "split_part": "train"}]
    path = metadataset(folder / "first.yaml", train={"datasets": entries})
    assert take(our_loader(path, batch_size=8, order="energon"), 30) == take(their_loader(path, batch_size=8), 30)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 0), (1, 3), (2, 1), (3, 0)])
def test_repetitions(folder: Path, world_size: int, num_workers: int) -> None:
    """Whole ones are exact in both; of fractions Energon loses some with every worker, and we lose none."""
    entries = [{"path": "a", "repetitions": 2}, {"path": "b", "repetitions": 0.57}, {"path": "d", "repetitions": 1.5}]
    path = metadataset(folder / "repeats.yaml", train={"blend_epochized": entries})
    found = []
    for make in (their_loader, our_loader):
        ranks = [make(path, rank, world_size, num_workers, batch_size=7, repeat=False) for rank in range(world_size)]
        found.append(Counter(text for loader in ranks for text in flat(take(loader))))
    theirs, ours = found
    for counts in found:
        assert {counts[f"a{number}"] for number in range(40)} == {2}
        assert {counts[f"b{number}"] for number in range(100)} <= {0, 1}
    totals = [{name: sum(counts[t] for t in counts if t[0] == name) for name in "abd"} for counts in (theirs, ours)]
    assert totals[1] == {"a": 80, "b": 57, "d": 5}  # of 4.5, up
    assert 57 - world_size * max(1, num_workers) <= totals[0]["b"] <= 57


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (None, ["25%", "80%"]),
        (None, [3, 17]),
        (None, [30, "end"]),
        (["50%", "100%"], ["0%", "50%"]),
        (["33%", "66.6%"], [5, 38]),
    ],
)
def test_ranges(folder: Path, outer: Any, inner: Any) -> None:
    entry = {"path": "a", "split_part": "train", "subset": {"range": inner}}
    blend = {"blend": [entry, {"path": "b", "split_part": "train"}]}
    path = metadataset(folder / "range.yaml", val=blend if outer is None else {**blend, "subset": {"range": outer}})
    theirs, ours = (flat(take(make(path, val=True, batch_size=6))) for make in (their_loader, our_loader))
    assert theirs == ours
    assert 0 < sum(text[0] == "a" for text in ours) < 40


def test_subflavors_of_nested_files(folder: Path) -> None:
    """Those of an outer node hold over those of an inner one, sample by sample."""
    inner = [
        {"path": "a", "split_part": "train", "subflavors": {"kind": "web", "of": "a"}},
        {"path": "d", "split_part": "train"},
    ]
    metadataset(folder / "flavors.yaml", train={"blend": inner})
    entries = [
        {"path": "flavors.yaml", "subflavors": {"kind": "books", "more": 1}},
        {"path": "b", "subflavors": {"of": "b"}},
    ]
    path = metadataset(folder / "flavored.yaml", train={"blend": entries})
    theirs, ours = (
        [
            (text, flavors)
            for batch in energon_peer.quietly(lambda m=make, g=given: list(islice(m(path, batch_size=6, **g), 25)))
            for text, flavors in zip(texts_of(batch), flavors_of(batch), strict=True)
        ]
        for make, given in ((their_loader, {}), (our_loader, {"order": "energon"}))
    )
    assert theirs == ours
    kinds = {text[0]: flavors for text, flavors in ours}
    assert kinds["a"] == {"kind": "books", "of": "a", "more": 1}
    assert kinds["d"] == {"kind": "books", "more": 1}
    assert kinds["b"] == {"of": "b"}


def flavors_of(batch: Any) -> list[dict[str, Any]]:
    found = batch["__subflavors__"] if isinstance(batch, dict) else batch.__subflavors__
    return [flavors or {} for flavors in found]


def test_the_same_dataset_twice(folder: Path) -> None:
    """Issue 266: Energon gives both the same order; here each has its own."""
    entries = [{"path": "b", "split_part": "train"}, {"path": "b", "split_part": "train"}]
    path = metadataset(folder / "twice.yaml", train={"blend": entries})
    theirs, ours = (flat(take(make(path, batch_size=1), 100)) for make in (their_loader, our_loader))
    assert len(set(theirs)) < 65
    # Of 50 and 50 of 100, drawn without regard to each other, 75 are different, give or take 3.
    assert len(set(ours)) > 65


def test_validation_takes_all_of_a_blend(folder: Path) -> None:
    """One after another, each once: weights and repetitions are passed over by both."""
    for kind, number in (("blend", "weight"), ("blend_epochized", "repetitions")):
        entries = [{"path": "d", number: 3}, {"path": "a", "split_part": "val", number: 0.5}]
        path = metadataset(folder / f"{kind}.yaml", train={kind: entries})
        given = {"val": True, "split_part": "train", "batch_size": 4}
        theirs, ours = (flat(take(make(path, **given))) for make in (their_loader, our_loader))
        assert theirs == ours == ["d0", "d1", "d2", *(f"a{number}" for number in range(40, 61))]


META = """__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    join: [{path: ./first}, {path: ./second, nonmatch: error}]
    joiner: {__module__: megatron.energon, __class__: TextSample}
"""
PREPARE_AND_NAME = """
import sys, pathlib
from headrace.datasets.metadataset import load_dataset
load_dataset(sys.argv[1]).prepare()
print(*sorted(path.name for path in pathlib.Path(sys.argv[1] + ".cache").iterdir()))
"""


def test_9_4_the_name_of_a_join_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    for name in ("first", "second"):
        root = dataset(tmp_path / name, {"0.tar": members(*"abcdefgh")})
        split = root / ".nv-meta/split.yaml"
        split.write_text(split.read_text().replace("exclude: []", "exclude: [0.tar/a, 0.tar/c, 0.tar/d, 0.tar/g]"))
    (tmp_path / "meta.yaml").write_text(META)
    names = {
        subprocess.run(
            [sys.executable, "-c", PREPARE_AND_NAME, str(tmp_path / "meta.yaml")],
            env={**os.environ, "PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in range(3)
    }  # fmt: skip
    assert len(names) == 1
    assert names != {"\n"}
