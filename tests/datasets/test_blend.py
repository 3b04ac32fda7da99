"""Blends as users write them: weights, tokens, repeats, ends, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import corpora
from headrace import Blend, ConfigError, Order, Run, WindowDataset


@pytest.fixture
def sources(corpus: list[corpora.Corpus]) -> dict[str, WindowDataset]:
    return {name: WindowDataset(one.store, seq_len=5) for name, one in zip("abc", corpus, strict=False)}


def counts(data: Blend, length: int) -> list[int]:
    run = Run(data, global_batch_size=4)
    return np.bincount(run.lookup(np.arange(length)).sources, minlength=len(run.datasets)).tolist()


def test_weights_are_shares_of_the_samples(sources: dict[str, WindowDataset]) -> None:
    mix = Blend(sources, weights={"a": 6, "b": 3, "c": 1})
    assert mix.num_samples is None
    assert counts(mix, 1000) == [600, 300, 100]


def test_weights_in_tokens(corpus: list[corpora.Corpus]) -> None:
    """Equal shares of the tokens: a source whose samples are half as long gives twice as many."""
    long = WindowDataset(corpus[0].store, seq_len=10)

    class Half(WindowDataset):
        @property
        def num_tokens_per_sample(self) -> float:
            return 5.0

    mix = Blend(
        {"long": long, "half": Half(corpus[1].store, seq_len=10)}, weights={"long": 1, "half": 1}, unit="tokens"
    )
    assert counts(mix, 300) == [100, 200]
    assert mix.num_tokens_per_sample == pytest.approx((10 + 2 * 5) / 3)
    nested = Blend({"mix": mix, "long": long}, weights={"mix": 1, "long": 1}, unit="tokens")
    assert counts(nested, 500)[2] == 200


@pytest.mark.parametrize("number", [1, 7, 999, 12_345])
def test_ends_by_samples_exactly(sources: dict[str, WindowDataset], number: int) -> None:
    mix = Blend(sources, weights={"a": 0.5, "b": 0.3, "c": 0.2}, end="samples", num_samples=number)
    run = Run(mix, global_batch_size=8)
    assert run.length == mix.num_samples == number
    exact = counts(mix, number)
    assert exact == list(mix.shares)
    assert all(abs(have - number * share) < 1 for have, share in zip(exact, (0.5, 0.3, 0.2), strict=True))


def test_ends_when_sources_are_seen_whole(sources: dict[str, WindowDataset]) -> None:
    lengths = [len(source) for source in sources.values()]
    weights = {"a": 1, "b": 1, "c": 1}
    for end, each in (("first_exhausted", min(lengths)), ("all_exhausted", max(lengths))):
        mix = Blend(sources, weights=weights, end=end)  # type: ignore[arg-type]
        run = Run(mix, global_batch_size=8)
        found = run.lookup(np.arange(run.length or 0))
        assert counts(mix, run.length or 0) == [each] * 3
        whole = [np.unique(found.indices[found.sources == i]).size for i in range(3)]
        assert whole == [min(each, length) for length in lengths]


def test_repeats_whole_and_fractional(sources: dict[str, WindowDataset]) -> None:
    mix = Blend(sources, repeats={"a": 2.5, "b": 1, "c": 0.25})
    run = Run(mix, global_batch_size=8)
    found = run.lookup(np.arange(run.length or 0))
    for i, (name, repeat) in enumerate((("a", 2.5), ("b", 1), ("c", 0.25))):
        seen = np.bincount(found.indices[found.sources == i], minlength=len(sources[name]))
        assert abs(seen.sum() - repeat * len(sources[name])) <= 0.5
        assert set(seen.tolist()) <= {int(repeat), int(np.ceil(repeat))}, (
            "each sample as often as any other, or once less"
        )


def test_the_same_dataset_twice_has_two_orders(sources: dict[str, WindowDataset]) -> None:
    mix = Blend({"x": sources["a"], "y": sources["a"]}, weights={"x": 1, "y": 1})
    found = Run(mix, global_batch_size=4).lookup(np.arange(2 * len(sources["a"])))
    x, y = (found.indices[found.sources == i] for i in (0, 1))
    assert not np.array_equal(x, y)
    assert np.array_equal(np.sort(x), np.sort(y))


def test_nested_blends_pass_through(sources: dict[str, WindowDataset]) -> None:
    inner = Blend({"a": sources["a"], "b": sources["b"]}, weights={"a": 1, "b": 3})
    mix = Blend({"inner": inner, "c": sources["c"]}, weights={"inner": 1, "c": 1})
    run = Run(mix, global_batch_size=4)
    assert run.paths == ("inner/a", "inner/b", "c")
    assert counts(mix, 800) == [100, 300, 400]


def test_describe_prints_the_tree(sources: dict[str, WindowDataset]) -> None:
    inner = Blend({"a": sources["a"], "b": sources["b"]}, repeats={"a": 1, "b": 2})
    mix = Blend({"inner": inner, "c": sources["c"]}, weights={"inner": 3, "c": 1})
    text = Run(mix, global_batch_size=[(0, 8), (100, 16)], order=Order(seed=9), samples=1000).describe()
    assert [line.strip("│├└─ ").split(":")[0] for line in text.splitlines()] == [
        "run", "75.000 % inner", text.splitlines()[2].strip("│├└─ ").split(":")[0],
        text.splitlines()[3].strip("│├└─ ").split(":")[0], "25.000 % c", "order", "global batch", "length",
        "expected deviation",
    ]  # fmt: skip
    assert "seed 9" in text
    assert "8 samples from step 0, 16 samples from step 100" in text
    assert "length: 1,000 samples, 113 steps" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either weights or repeats"),
        ({"weights": {"a": 1}, "repeats": {"a": 1}}, "either weights or repeats"),
        ({"weights": {"a": 1, "b": 1}}, "a number for each name"),
        ({"weights": {"a": 0, "b": 1, "c": 1}}, "'a' has weight or repeat 0.*leave it out"),
        ({"repeats": {"a": 1, "b": -1, "c": 1}}, "'b' has weight or repeat -1"),
        ({"weights": {"a": float("nan"), "b": 1, "c": 1}}, "positive and finite"),
        ({"weights": {"a": 1, "b": 1, "c": 1}, "unit": "bytes"}, "unit is 'bytes'"),
        ({"weights": {"a": 1, "b": 1, "c": 1}, "end": "never"}, "end is 'never'"),
        ({"weights": {"a": 1, "b": 1, "c": 1}, "end": "samples"}, "num_samples goes with"),
        ({"weights": {"a": 1, "b": 1, "c": 1}, "num_samples": 4}, "num_samples goes with"),
        ({"repeats": {"a": 1, "b": 1, "c": 1}, "end": "samples", "num_samples": 3}, "has an end of its own"),
    ],
)
def test_contradictions_are_refused(sources: dict[str, WindowDataset], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Blend(sources, **options)


def test_what_needs_a_length_refuses_endless_blends(sources: dict[str, WindowDataset]) -> None:
    endless = Blend({"a": sources["a"]}, weights={"a": 1})
    with pytest.raises(ConfigError, match=r"'first_exhausted' needs the length .*'mix'"):
        Run(Blend({"mix": endless}, weights={"mix": 1}, end="first_exhausted"), global_batch_size=1)
    with pytest.raises(ConfigError, match="no epochs"):
        Run(endless, global_batch_size=1, epochs=2)
    with pytest.raises(ConfigError, match="order is 'full'; expected an Order"):
        Run(sources["a"], global_batch_size=1, order="full")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="epochs and samples are both given"):
        Run(sources["a"], global_batch_size=1, epochs=2, samples=3)
    with pytest.raises(ConfigError, match="no samples to feed"):
        Run(sources["a"], global_batch_size=8, samples=3, drop_last=True)


def test_samples_that_cannot_be_stacked_are_refused(corpus: list[corpora.Corpus]) -> None:
    pair = {"a": WindowDataset(corpus[0].store, seq_len=5), "b": WindowDataset(corpus[1].store, seq_len=6)}
    with pytest.raises(ConfigError, match=r"input_ids \(5,\) int64.*input_ids \(6,\) int64"):
        Blend(pair, weights={"a": 1, "b": 1})


@pytest.mark.parametrize("name", ["", "a/b"])
def test_names_that_break_paths_are_refused(sources: dict[str, WindowDataset], name: str) -> None:
    with pytest.raises(ConfigError, match="source name"):
        Blend({name: sources["a"]}, weights={name: 1})
