"""What a path or a metadataset holds, beside a live Energon: shares of ranks, weights, repeats, ranges, subflavors."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interop import energon_peer
from interop.energon_live import metadataset, our_loader, take, texts, texts_of, their_loader

pytestmark = pytest.mark.interop


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
