"""Metadatasets as runs: which samples come, how often, in which shares; figures as Energon 7.4.1 gives them."""

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
from headrace.datasets.metadataset import SourceOptions, load_dataset
from headrace.samples.media import Cooker, TextSample, basic_sample_keys
from tars_made import write_tar


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
