"""What a metadataset says, with files within files, in figures of Energon 7.4.1; what is built; what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
from energon_made import PRIMARY, SECONDARY
from energon_prepared import prepared
from headrace import ConfigError, MapDataset, Order, Run, StoreError, WindowDataset
from headrace.datasets.media import JoinedMediaDataset
from headrace.datasets.metadataset import (
    SourceOptions,
    TraversedDatasetReference,
    load_dataset,
    sources,
    traverse_metadataset,
)
from headrace.datasets.metadataset.reading import Mixed, NamedSource, names_of, read_splits
from headrace.samples.media import Cooker, TextSample, basic_sample_keys
from tars_made import write_tar

TWO = [{"path": "a"}, {"path": "b"}]


def of(train: Any) -> Any:
    return read_splits({"splits": {"train": train}}, "m")["train"]


JOINER = {"__module__": "m", "__class__": "C"}
NAMED_TWICE = [{"path": "a", "name": "x"}, {"path": "b", "name": "x"}]


def scheduled(*stages: Any) -> dict[str, Any]:
    return {"blend": TWO, "schedule": list(stages)}


@pytest.mark.parametrize(
    ("train", "named"),
    [
        ({"path": "a", "split": "train"}, r"m.*splits.train.split.*'split_part'"),
        ({"blend": [{"path": "a", "wieght": 1}]}, r"m.*splits.train.blend\[0\].wieght.*'weight'"),
        ({"blend": [{"path": "a", "repeats": 1}]}, r"blend\[0\].repeats.*'repetitions"),
        ({"blned": TWO}, r"path.*join.*'blned'.*'blend'"),
        ({}, "nothing"),
        ({"path": "a", "blend": TWO}, r"found.*path.*blend"),
        ({"blend": [{"datasets": TWO}]}, r"blend\[0\].*datasets"),
        ({"blend": []}, r"splits.train.blend.*0.*1"),
        ({"blend": [{"path": "a", "repetitions": 2}]}, r"repetitions.*blend.*weight"),
        ({"blend_epochized": [{"path": "a", "weight": 2}]}, r"weight.*blend_epochized.*repetitions"),
        ({"blend": [{"path": "a", "weight": 0}]}, r"blend\[0\].weight.*0"),
        ({"blend": [{"path": "a", "weight": -1}]}, r"weight.*-1"),
        ({"blend": [{"path": "a", "weight": "3"}]}, r"weight.*'3'"),
        ({"blend": [{"path": "a", "weight": float("inf")}]}, r"weight.*inf"),
        ({"blend_epochized": [{"path": "a", "repetitions": 0}]}, r"repetitions.*0"),
        ({"path": 3}, r"path.*3"),
        ({"path": "a", "name": "x/y"}, r"'x/y'.*'/'"),
        ({"path": "a", "limit": 0}, r"limit.*0.*1"),
        ({"path": "a", "subset": [0, 1]}, "subset"),
        ({"path": "a", "subset": {"ranges": [0, 1]}}, r"subset.ranges.*'range'"),
        ({"path": "a", "subset": {"range": [5, "50%"]}}, r"subset.range.*5"),
        ({"blend": TWO, "subset": {"range": [0, 5]}}, r"leaf.*blend"),
        ({"path": "a", "shuffle_over_epochs_multiplier": 0}, r"multiplier.*0.*1.*-1"),
        ({"path": "a", "windows": {}, "packs": {}}, r"windows.*packs"),
        ({"path": "a", "aux": {"x": 1}}, r"aux.x.*1"),
        ({"join": TWO}, "joiner"),
        ({"join": TWO, "joiner": {"__module__": "m"}}, r"joiner.*__class__"),
        ({"join": [{"path": "a", "split": "x"}], "joiner": {}}, r"join\[0\].split.*'split"),
        ({"join": [{}], "joiner": JOINER}, r"join\[0\].path"),
        (
            {"join": [{"path": "a", "nonmatch": "drop"}], "joiner": JOINER},
            r"join\[0\].nonmatch.*'drop'.*'error'.*'skip'",
        ),
        (scheduled({"weights": {"c": 1}}), r"schedule\[0\].weights.*'c'"),
        (scheduled({"weights": [1]}), r"2.*\(a, b\)"),
        (scheduled({}), "null"),
        (scheduled({"weights": [1, 1], "until": 7}), r"until.*7"),
        (scheduled({"weights": [1, 1], "until": "7 epochs"}), "'7 epochs'"),
        ({"blend": [{"path": "a", "weight": 1}], "schedule": [{"weights": [1]}]}, r"blend\[0\].weight.*schedule"),
        ({"blend": NAMED_TWICE, "schedule": [{}]}, "'x'"),
    ],
)
def test_faults_are_told_with_their_place(train: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        of(train)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ([], r"m.*0"),
        ({}, r"m.*splits"),
        ({"splits": {}}, r"m.*splits"),
        ({"splits": {"train": {"path": "a"}}, "split": 1}, r"m.*split\b.*'splits'"),
        ({"__module__": "os", "__class__": "system", "splits": {}}, r"os.*system"),
        ({"__module__": "megatron.energon", "__class__": "Blend", "splits": {}}, r"MetadatasetV2.*Blend"),
    ],
)
def test_faults_of_the_whole(content: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_splits(content, "m")
    if isinstance(content, dict):
        with pytest.raises(ConfigError, match=rf"^metadataset.*{named[1:]}"):
            load_dataset(content)


def test_both_versions() -> None:
    first = of(
        {
            "datasets": [
                {"path": "a", "weight": 2, "subflavor": "x"},
                {"path": "b", "subflavor": "y", "subflavors": {"z": 1}},
            ]
        }
    )
    assert isinstance(first, Mixed)
    assert first.kind == "blend"
    assert [child.weight for child in first.children] == [2, 1.0]
    assert [child.subflavors for child in first.children] == [{"__subflavor__": "x"}, {"__subflavor__": "y", "z": 1}]
    second = of({"path": "a", "dataset_config": "x.yaml", "split_config": "y.yaml", "aux": {"files": "filesystem://f"}})
    assert isinstance(second, NamedSource)
    assert (second.dataset_config, second.split_config, second.aux) == ("x.yaml", "y.yaml", {"files": "filesystem://f"})


def test_names_stay_when_others_come_and_go() -> None:
    blend = of({"blend": [{"path": "../x/a.yaml"}, {"path": "y/a"}, {"path": "."}, {"path": "web", "name": "a"}]})
    assert names_of(blend.children) == ("a-2", "a-3", "source", "a")
    without = of({"blend": [{"path": "y/a"}, {"path": "."}, {"path": "new"}]})
    assert names_of(without.children) == ("a", "source", "new")
    nested = of({"blend": [{"concat": TWO}, {"join": TWO, "joiner": JOINER}]})
    assert names_of(nested.children) == ("concat", "a+b")


def tree(path: Path, split: str = "train") -> Any:
    return load_dataset(path).tree(split)


def test_nested_files(nested_mix: Path, tmp_path: Path) -> None:
    found = tree(nested_mix)
    assert isinstance(found, Mixed)
    assert (found.names, found.numbers) == (("inner", "c"), (2, 1.0))
    a, b, c = (one for one in sources(found) if isinstance(one, NamedSource))
    assert (a.subflavors, b.subflavors, c.subflavors) == ({"k": "outer", "i": 1}, {"k": "outer"}, None)
    assert [one.subset and one.subset.bounds(n) for one, n in ((a, 20), (b, 40), (c, 10))] == [(0, 8), (10, 22), (2, 8)]
    assert [one.shuffle_over_epochs for one in (a, b, c)] == [1, 1, 2]
    assert a.path == str(tmp_path / "a")
    assert a.where == f"{tmp_path}/inner.yaml: splits.train.blend[0]"
    assert traverse_metadataset(nested_mix, split_part="train") == [
        TraversedDatasetReference(path=str(tmp_path / "a"), split_part="train", subflavors={"k": "outer", "i": 1}),
        TraversedDatasetReference(path=str(tmp_path / "b"), split_part="train", subflavors={"k": "outer"}),
        TraversedDatasetReference(path=str(tmp_path / "c"), split_part="train"),
    ]


def test_the_split_of_a_nested_file(write: Any) -> None:
    both = {"concat": [{"path": "a"}, {"path": "b"}]}
    write({"path": "a"}, "inner.yaml", val={"path": "a", "split_part": "test"}, all=both)
    mix = write(
        {"blend": [{"path": "inner.yaml", "split_part": "val"}, {"path": "inner.yaml", "split_part": "all"}]},
        val={"path": "inner.yaml"},
    )
    assert [one.split_part for one in load_dataset(mix).traverse("train")] == ["test", "all", "all"]
    assert [one.split_part for one in load_dataset(mix).traverse("val")] == ["test"]
    wrong = write({"blend": [{"path": "inner.yaml", "split_part": "vla"}]}, "wrong.yaml")
    with pytest.raises(ConfigError, match=r"wrong.yaml.*splits.train.blend\[0\].*inner.yaml"):
        tree(wrong)
    with pytest.raises(ConfigError, match=r"mix.yaml.*'tset'"):
        tree(mix, "tset")


@pytest.mark.parametrize(
    ("outer", "inner", "together"), [(1, 1, 1), (2, 3, 6), (-1, 3, -1), (2, -1, -1), (None, 3, None), (-1, None, None)]
)
def test_multipliers(write: Any, outer: int | None, inner: int | None, together: int | None) -> None:
    write({"path": "a", "shuffle_over_epochs_multiplier": inner}, "inner.yaml")
    found = tree(write({"path": "inner.yaml", "shuffle_over_epochs_multiplier": outer}))
    assert found.shuffle_over_epochs == together


def test_paths(write: Any, tmp_path: Path, data: Path) -> None:
    write({"path": "../a"}, "folder/inner.yaml")
    aux = {"x": "filesystem://c/d", "y": "./c", "z": f"filesystem://{tmp_path}/e"}
    mix = write({"concat": [{"path": "folder/inner.yaml"}, {"path": f"file://{data}/b", "aux": aux}]})
    inner, outer = load_dataset(mix).traverse("train")
    assert inner.path == str(tmp_path / "a")
    assert outer.path == str(data / "b")
    places = {"x": f"filesystem://{tmp_path}/c/d", "y": f"{tmp_path}/c", "z": f"filesystem://{tmp_path}/e"}
    assert outer.aux == places


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"path": "msc://profile/a"}, r"splits.train.*path.*msc://profile/a.*file://"),
        ({"path": "dss://a@1/b"}, "dss://a@1/b"),
        ({"path": "filesystem://a"}, "aux"),
        ({"path": "a", "aux": {"x": "filesystem+msc://a"}}, r"aux.x.*filesystem\+msc://a"),
        ({"path": "inner.yaml", "aux": {"x": "a"}}, r"aux.*inner.yaml"),
        ({"path": "inner.yaml", "dataset_config": "x"}, "dataset_config"),
        ({"path": "inner.yaml", "subset": {"range": [0, 5]}}, "inner.yaml"),
        ({"path": "mix.yaml"}, r"mix.yaml.*mix.yaml.*mix.yaml"),
        ({"join": [{"path": "inner.yaml"}], "joiner": {"__module__": "m", "__class__": "C"}}, "inner.yaml"),
    ],
)
def test_what_cannot_be_resolved(write: Any, entry: Any, named: str) -> None:
    write({"path": "a"}, "inner.yaml")
    with pytest.raises(ConfigError, match=named):
        tree(write(entry))


def test_files_that_are_not_there_or_no_yaml(write: Any, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"mix.yaml.*splits.train.blend\[1\].*/no.yaml"):
        tree(write({"blend": [{"path": "a"}, {"path": "no.yaml"}]}))
    with pytest.raises(StoreError, match=r"no.yaml"):
        load_dataset(tmp_path / "no.yaml")
    (tmp_path / "bad.yaml").write_text("splits: [")
    with pytest.raises(StoreError, match=r"bad.yaml.*YAML"):
        load_dataset(tmp_path / "bad.yaml")


def test_a_dict(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"splits": {"train": {"path": "a"}}}
    assert load_dataset(given, path=data / "mix.yaml").traverse("train")[0].path == str(data / "a")
    monkeypatch.chdir(data)
    found = load_dataset(given)
    assert found.splits == ("train",)
    assert found.traverse("train")[0].path == "a"
    assert len(found.train()) == 20  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="metadataset"):
        load_dataset("mix.yaml", path="x")


def test_a_dataset_in_the_place_of_a_metadataset(data: Path) -> None:
    single = load_dataset(data / "a")
    assert single.splits == ()
    assert len(single.train()) == 20  # type: ignore[arg-type]
    assert len(single.validation("val")) == 5  # type: ignore[arg-type]
    assert repr(single) == f"<Metadataset '{data}/a': a single dataset>"


def test_yaml_is_read_in_energons_dialect(write: Any) -> None:
    path = write({"path": "a"})
    path.write_text("splits: {train: {path: a, subflavors: {on: on, yes: yes, none: none}}}")
    assert load_dataset(path).traverse("train")[0].subflavors == {"on": "on", "yes": True, "none": "none"}


def run_of(path: Path, split: str = "train", **options: Any) -> Run:
    return Run(load_dataset(path).train(split, **options), global_batch_size=4)


def keys(run: Run, length: int) -> list[str]:
    found = run.lookup(np.arange(length))
    return [run.datasets[s][i].__key__ for s, i in zip(found.sources.tolist(), found.indices.tolist(), strict=True)]


def named(letter: str, *numbers: int) -> list[str]:
    return [f"{letter}{number:03d}" for number in numbers]


def test_weights_ranges_and_subflavors(nested_mix: Path) -> None:
    run = run_of(nested_mix)
    assert run.paths == ("inner/a", "inner/b", "c")
    assert run.length is None
    counts = np.bincount(run.lookup(np.arange(6000)).sources)
    assert np.abs(counts - [3000, 1000, 2000]).max() < 3  # 2/3 * 3/4, 2/3 * 1/4, 1/3
    assert set(keys(run, 600)) == {*named("a", *range(8)), *named("b", *range(10, 22)), *named("c", *range(2, 8))}
    subflavors = {path: dataset[0].__subflavors__ for path, dataset in zip(run.paths, run.datasets, strict=True)}
    assert subflavors == {
        "inner/a": {"own": "a", "k": "outer", "i": 1},
        "inner/b": {"own": "b", "k": "outer"},
        "c": {"own": "c", "k": "ds"},
    }


def test_repetitions_are_exact_through_files(write: Any) -> None:
    """Each level multiplies, and is rounded once: 2 * 1.25 * 20, 2 * 40 and 0.5 * 10 samples."""
    write({"blend_epochized": [{"repetitions": 1.25, "path": "a"}, {"path": "b"}]}, "inner.yaml")
    entries = [{"repetitions": 2, "path": "inner.yaml"}, {"repetitions": 0.5, "path": "c"}]
    run = run_of(write({"blend_epochized": entries}))
    assert run.length == 50 + 80 + 5
    counts = Counter(keys(run, run.length))
    assert Counter(counts.values()) == {2: 10 + 40, 3: 10, 1: 5}
    assert {key[0] for key, count in counts.items() if count == 3} == {"a"}
    assert {key[0] for key, count in counts.items() if count == 1} == {"c"}


def test_repetitions_round_once(write: Any) -> None:
    """0.5 * 0.125 of 20 samples is 1.25, so 1; rounded within the nested file already, it would be half of 3."""
    write({"blend_epochized": [{"repetitions": 0.125, "path": "a"}, {"path": "b"}]}, "inner.yaml")
    run = run_of(write({"blend_epochized": [{"repetitions": 0.5, "path": "inner.yaml"}, {"path": "c"}]}))
    assert Counter(key[0] for key in keys(run, run.length or 0)) == {"a": 1, "b": 20, "c": 10}


def test_validation_is_everything_in_order(write: Any) -> None:
    write({"path": "c"}, "inner.yaml", val={"path": "a", "split_part": "val"})
    part = {"path": "b", "split_part": "train", "subset": {"range": [5, 9]}}
    mix = write(val={"blend": [{"weight": 2, "path": "inner.yaml"}, part, {"weight": 5, "path": "c"}]})
    run = Run.validation(load_dataset(mix).validation(), global_batch_size=4)
    assert run.length == 14
    assert keys(run, 14) == [*named("a", *range(20, 25)), *named("b", *range(5, 9)), *named("c", *range(10, 15))]


@pytest.mark.parametrize("text", ["{path: ./a, weight: 1, path: ./b}", "{path: ./a}\n  train: {path: ./b}"])
def test_a_key_that_occurs_twice_is_refused(write: Any, text: str) -> None:
    """The last of the two counted, so that a source was lost."""
    path = write({"path": "a"})
    path.write_text(f"splits:\n  train: {text}\n")
    with pytest.raises(StoreError, match=r"mix\.yaml"):
        load_dataset(path)


def test_concat_and_limits(write: Any) -> None:
    blend = {"blend": [{"path": "a"}, {"path": "b", "weight": 3}], "limit": 12}
    run = run_of(write({"concat": [blend, {"path": "c"}]}))
    assert run.length == 22
    found = [key[0] for key in keys(run, 22)]
    assert Counter(found[:12]) == {"a": 3, "b": 9}
    assert found[12:] == ["c"] * 10
    blocks = run_of(write({"blend": [{"path": "a", "weight": 2}, {"path": "b"}], "block_samples": 8}))
    assert blocks.block_samples == 8
    limited = run_of(write({"path": "a", "subset": {"range": [2, 12]}, "limit": 7}))
    assert (limited.length, limited.paths) == (7, ("",))
    assert len(set(keys(limited, 7)) & set(named("a", *range(2, 12)))) == 7


def test_blends_of_both_kinds(write: Any) -> None:
    """A pass of a blend_epochized has a length, so that a blend can weigh it; a blend has none."""
    run = run_of(write({"blend": [{"blend_epochized": [{"path": "a"}, {"path": "b"}]}, {"path": "c"}]}))
    assert Counter(key[0] for key in keys(run, 120)) == {"a": 20, "b": 40, "c": 60}
    twice = {"blend": [{"path": "a"}, {"path": "b"}], "limit": 10, "repetitions": 2}
    limited = run_of(write({"blend_epochized": [twice, {"path": "c"}]}))
    assert Counter(key[0] for key in keys(limited, limited.length or 0)) == {"a": 10, "b": 10, "c": 10}


def test_a_schedule(write: Any) -> None:
    mix = write(
        {
            "blend": [{"path": "a", "name": "x"}, {"path": "b"}],
            "schedule": [
                {"until": "10 steps", "weights": {"x": 1}},
                {"until": "1,040 samples", "weights": [0, 1], "ramp": True},
                {"weights": {"x": 1, "b": 3}},
            ],
        }
    )
    run = run_of(mix, global_batch_size=4)
    sources = run.lookup(np.arange(2040)).sources
    assert np.bincount(sources[:40], minlength=2).tolist() == [40, 0]
    assert np.abs(np.bincount(sources[40:1040]) - 500).max() <= 16
    # A ramp of 1,000 samples is 31 pieces of 32, each within half a sample of its weights.
    tenths = np.array([np.mean(sources[40 + 100 * tenth :][:100]) for tenth in range(10)])
    assert np.abs(tenths - np.linspace(0.05, 0.95, 10)).max() < 0.03
    assert np.bincount(sources[1040:2040]).tolist() == [250, 750]
    # A source goes on where it was: all samples come once before any comes again.
    assert Counter(Counter(key for key in keys(run, 2040) if key[0] == "a").values()).keys() <= {39, 40}
    with pytest.raises(ConfigError, match=r"schedule\[0\].*global_batch_size"):
        run_of(mix)
    write({"path": "mix.yaml"}, "outer.yaml")
    assert run_of(mix.with_name("outer.yaml"), global_batch_size=4).paths == ("x", "b")
    write({"blend": [{"path": "mix.yaml"}]}, "outer.yaml")
    with pytest.raises(ConfigError, match="possible"):
        run_of(mix.with_name("outer.yaml"), global_batch_size=4)


def upper(sample: dict[str, Any]) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=sample["json"]["text"].upper())


def test_other_stores_at_the_leaves(write: Any, tmp_path: Path, corpus: list[corpora.Corpus]) -> None:
    (tmp_path / "lines.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    for number in range(2):
        write_tar(tmp_path / f"t-{number}.tar", [(f"k{number}.json", b'{"text": "tar"}')])
    mix = write({"concat": [{"path": "lines.jsonl"}, {"path": "t-{0..1}.tar"}]}, val={"path": "lines.jsonl"})
    options = SourceOptions(cookers=[Cooker(upper)])
    run = run_of(mix, options=options)
    found = run.lookup(np.arange(4))
    texts = [run.datasets[s][i].text for s, i in zip(found.sources.tolist(), found.indices.tolist(), strict=True)]
    assert sorted(texts) == ["ONE", "TAR", "TAR", "TWO"]
    assert len(load_dataset(mix).validation(options=options)) == 2  # type: ignore[arg-type]

    stores = [{"path": one.store.path} for one in corpus[:2]]
    tokens = run_of(write({"blend": [{**one, "windows": {"window_tokens": 5}} for one in stores]}))
    assert all(isinstance(dataset, WindowDataset) for dataset in tokens.datasets)
    assert tokens.step(0)["input_ids"].shape == (4, 5)
    packs = run_of(write({**stores[0], "packs": {"max_seq_len": 64, "over_long": "split"}}))
    assert packs.traits.is_packed


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"path": "nothing"}, r"splits.train.*nothing"),
        ({"path": "a", "split_part": "tset"}, r"splits.train.*tset"),
        ({"path": "a", "limit": 21}, r"splits.train.*21.*1"),
        ({"path": "a", "subset": {"range": [3, 30]}}, r"splits.train.*3.*30"),
        ({"path": "a", "subset": {"range": ["50%", "52%"]}}, "samples"),
        ({"concat": [{"blend": [{"path": "a"}]}, {"path": "c"}]}, r"mix.yaml.*splits.train.*\['blend'\]"),
        ({"blend_epochized": [{"blend": [{"path": "a"}]}, {"path": "c"}]}, r"blend_epochized\[0\].*blend_epochized"),
        ({"path": "tokens"}, r"samples.*windows"),
        ({"path": "tokens", "windows": {"window": 5}}, r"windows.window.*'window_tokens'"),
        ({"path": "tokens", "windows": {"stride": 5}}, r"windows.*window_tokens"),
        ({"path": "tokens", "windows": {"window_tokens": "x"}}, r"train.*'x'"),
        ({"path": "tokens", "packs": {"max_len": 5}}, r"packs.max_len.*max_seq_len.*strategy"),
        ({"path": "tokens", "windows": {}, "dataset_config": "x"}, "media"),
        ({"path": "lines.jsonl", "split_config": "x"}, r"split_config.*\.nv-meta"),
        ({"path": "a", "aux": {"x": "b"}}, r"splits.train.*aux.*cookers"),
        ({"blend": [{"path": "a"}, {"path": "tokens", "windows": {"window_tokens": 5}}]}, "'tokens'"),
    ],
)
def test_what_cannot_be_built(write: Any, tmp_path: Path, corpus: list[corpora.Corpus], entry: Any, named: str) -> None:
    (tmp_path / "tokens").symlink_to(corpus[0].store.path)
    for suffix in (".bin", ".idx"):
        if Path(corpus[0].store.path + suffix).exists():
            (tmp_path / f"tokens{suffix}").symlink_to(corpus[0].store.path + suffix)
    (tmp_path / "lines.jsonl").write_text('{"text": "one"}\n')
    with pytest.raises(StoreError if named.endswith("nothing") else ConfigError, match=named):
        run_of(write(entry))


def test_an_opener_of_ones_own(write: Any, corpus: list[corpora.Corpus]) -> None:
    windows = WindowDataset(corpus[0].store, seq_len=5)
    options = SourceOptions(open=lambda source: windows if source.where.endswith("train") else None)
    assert load_dataset(write({"path": "anything"})).train(options=options) is windows
    with pytest.raises(ConfigError, match=r"3.*expected"):
        load_dataset(write({"path": "anything"})).train(options=SourceOptions(open=lambda source: 3))  # type: ignore[arg-type, return-value]


def test_shuffling_of_energons_is_told(write: Any, caplog: pytest.LogCaptureFixture) -> None:
    multipliers = {"a": -1, "b": None, "c": 3}
    entries = [{"path": path, "shuffle_over_epochs_multiplier": number} for path, number in multipliers.items()]
    load_dataset(write({"blend": entries})).train()
    first, second = (record.getMessage() for record in caplog.records)
    assert "blend[0]: shuffle_over_epochs -1" in first
    assert "blend[1]: shuffle_over_epochs null" in second


JOIN = {
    "join": [{"path": "one"}, {"path": "two", "nonmatch": "skip", "subflavors": {"s": 2}}],
    "joiner": {"__module__": "joiner_of_a_test", "__function__": "side_by_side"},
}


SIDE_BY_SIDE = """
def side_by_side(one, two):
    return {**one, "cap": two["cap"], "both": (one["__subflavors__"], two["__subflavors__"])}
"""


def test_joins(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "joiner_of_a_test.py").write_text(SIDE_BY_SIDE)
    monkeypatch.syspath_prepend(tmp_path)
    shards = {name: members for name, members in PRIMARY.items() if "a.tar" not in name}
    first, *others = list(shards)
    prepared(tmp_path / "one", shards, {"train": [first], "val": others})
    prepared(tmp_path / "two", SECONDARY)
    crude = "{__module__: megatron.energon, __class__: CrudeWebdataset}\n"
    for name in ("one", "two"):
        (tmp_path / name / ".nv-meta" / "dataset.yaml").write_text(crude)
    val = {**JOIN, "join": [JOIN["join"][0], {**JOIN["join"][1], "split_part": "train"}]}  # type: ignore[dict-item]
    mix = write({"blend": [JOIN, {"path": "inner.yaml", "split_part": "val"}]}, val=val)
    write(name="inner.yaml", val=val)
    trusted = SourceOptions(trust_code=True, decoder=None)
    with pytest.raises(StoreError, match=r"blend\[0\]"):
        load_dataset(mix).train(options=trusted)

    made = load_dataset(mix).prepare().values()
    assert sorted((join.rows, join.skipped) for join in made) == [(4, 0), (6, 0), (6, 0)]
    assert {join.path.parent.name for join in made} == {"mix.yaml.cache", "inner.yaml.cache"}
    with pytest.raises(ConfigError, match=r"blend\[0\].*joiner_of_a_test.side_by_side.*trust_code=True"):
        load_dataset(mix).train()
    run = run_of(mix, options=trusted)
    assert run.paths == ("one+two", "inner")
    assert all(isinstance(dataset, JoinedMediaDataset) for dataset in run.datasets)
    assert [dataset[0]["__key__"] for dataset in run.datasets] == ["s0", "s4"]
    assert run.datasets[0][1]["both"] == ({}, {"s": 2})
    assert len(load_dataset(mix).validation("val", options=trusted)) == 6  # type: ignore[arg-type]

    found = load_dataset(mix).traverse("train")
    one, two, val_of_one = ("one", "train", {}), ("two", "train", {"s": 2}), ("one", "val", {})
    assert [(Path(each.path).name, each.split_part, each.subflavors) for each in found] == [one, two, val_of_one, two]
    assert all(each.join and each.join.endswith(("blend[0]", "splits.val")) for each in found)

    given = load_dataset({"splits": {"train": {**JOIN, "join": [{"path": str(tmp_path / "one")}]}}})
    with pytest.raises(ConfigError, match="given"):
        given.train(options=trusted)
    with pytest.raises(ConfigError, match="given"):
        given.prepare()
    error = write({**JOIN, "join": [{"path": "two"}, {"path": "one"}]}, "error.yaml")
    with pytest.raises(ValueError, match=r"error.yaml.*splits.train"):
        load_dataset(error).prepare()
    plain = write({**JOIN, "join": [{"path": "one"}, {"path": "mix.yaml.cache"}]}, "plain.yaml")
    with pytest.raises(ConfigError, match=r"splits.train.*join\[1\]"):
        load_dataset(plain).prepare()


def louder(sample: TextSample) -> TextSample:
    sample.text = sample.text.upper() + "!"
    return sample


def test_samples_changed_one_by_one(data: Path) -> None:
    changed = MapDataset(load_dataset(data / "a").train(), louder)  # type: ignore[arg-type]
    assert changed[-1].text == "A19!"
    run = Run(changed, global_batch_size=4, order=Order(kind="shards"))
    assert run.plan.leaves[0].shards is not None
    assert len(run.plan.leaves[0].shards) == 4
    assert all(text.endswith("!") for text in run.step(0)["text"])
    with pytest.raises(ConfigError, match="samples"):
        MapDataset(load_dataset(data / "a").train(), louder, fields={})  # type: ignore[arg-type]
