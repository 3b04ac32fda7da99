"""Orders, splits and blends against megatron-core's own classes and compiled helpers, on drawn configurations."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counts import FULL, cases
from headrace.plan.megatron import (
    GPTOrder,
    GPTSampling,
    blend_sizes,
    build_blending_indices,
    build_exhaustive_blending_indices,
    build_sample_idx,
    normalised_weights,
    parse_blend,
    parse_split,
    split_ranges,
    torch_randperm,
)
from interop import golden_scripts
from interop.golden_scripts import GOLDEN

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def recipe() -> Any:
    """The script that writes the golden files: it knows how megatron-core's classes are called."""
    pytest.importorskip("megatron.core")
    return golden_scripts.script("make_megatron_order")


@pytest.fixture(scope="module")
def peer(recipe: Any) -> Any:
    return recipe.oracle()


def drawn_sizes(rng: np.random.Generator) -> list[int]:
    """Few or many sequences, short or long, some of them empty."""
    count = int(rng.integers(1, 9) if rng.random() < 0.5 else rng.integers(9, 300))
    sizes = rng.integers(0, int(rng.choice([3, 12, 60, 400])), count)
    if rng.random() < 0.3:
        sizes[rng.random(count) < 0.4] = 0
    sizes[rng.integers(count)] += 1
    return [int(size) for size in sizes]


@pytest.mark.parametrize("seed", range(cases(10, 1000)))
@pytest.mark.filterwarnings("ignore")
def test_documents_samples_shuffles_and_tokens(recipe: Any, peer: Any, tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = drawn_sizes(rng)
    first = int(rng.integers(0, len(sizes))) if rng.random() < 0.4 else 0
    end = int(rng.integers(first, len(sizes))) + 1 if rng.random() < 0.4 else len(sizes)
    sizes[end - 1] += not sum(sizes[first:end])
    tokens = sum(sizes[first:end])
    size = int(rng.integers(1, 1 + max(2, min(70, 2 * tokens // 3))))
    options = {
        "sequence_length": size,
        "seed": int(rng.integers(0, 2**32)),
        "add_extra_token": bool(rng.random() < 0.7),
        "drop_last_partial": bool(rng.random() < 0.7),
    }
    epochs = 5 * rng.random()
    wanted = None if rng.random() < 0.15 else int(epochs * tokens / size)
    if not options["drop_last_partial"]:
        # Nothing of the sizes drawn here is wrong in float32.
        options["float32_ceil"] = bool(rng.random() < 0.5)
    order = GPTOrder(
        np.array(sizes[first:end], np.int32), GPTSampling(num_samples=wanted, **options), first_sequence=first
    )
    options.pop("float32_ceil", None)
    dataset = recipe.write(peer, tmp_path / "x", sizes)
    try:
        theirs = recipe.gpt_dataset(peer, dataset, range(first, end), wanted, **options)
    except AssertionError:
        # Megatron cannot end in an empty sequence (B2); ours ends with the last token there is.
        assert options["add_extra_token"]
        assert not options["drop_last_partial"]
        assert sizes[order.document_index[-1]] == 0
        rows = order.sample_index
        assert rows.min() >= 0
        assert rows[-1, 1] == sizes[order.document_index[rows[-1, 0]]] - 1
        assert order.sample_index.shape[0] == -(-(order.num_epochs * tokens - 1) // size) + 1
        return
    for name in ("document_index", "sample_index", "shuffle_index"):
        ours, expected = getattr(order, name), getattr(theirs, name)
        assert ours.dtype == expected.dtype, name
        assert np.array_equal(ours, expected), name
    assert order.num_samples == len(theirs)
    if not len(theirs):
        return
    stream = np.concatenate([dataset.get(i) for i in range(len(sizes))])
    begins = np.cumsum([0, *sizes])
    pieces = order.locate(np.arange(order.num_samples))
    some = range(order.num_samples) if order.num_samples < 40 else rng.integers(0, order.num_samples, 40).tolist()
    for i in some:
        text, documents, *_ = theirs._query_document_sample_shuffle_indices(i)
        part = slice(pieces.offsets[i], pieces.offsets[i + 1])
        assert np.array_equal(pieces.sequences[part], documents)
        at = begins[pieces.sequences[part]] + pieces.begins[part]
        found = [stream[begin : begin + n] for begin, n in zip(at, pieces.lengths[part], strict=True)]
        mine = np.concatenate(found)
        assert len(mine) == pieces.num_tokens[i]
        assert np.array_equal(mine, text[: len(mine)])
        assert (text[len(mine) :] == theirs._pad_token_id).all()


@pytest.mark.parametrize("seed", range(cases(10, 1000)))
def test_sample_index_is_that_of_the_compiled_helper(peer: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = np.array(drawn_sizes(rng), np.int32)
    epochs = int(rng.integers(1, 4))
    entries = rng.permutation(np.tile(np.arange(len(sizes), dtype=np.int32), epochs))
    size, extra = int(rng.integers(2, 80)), bool(rng.integers(2))
    arguments = (sizes, entries, size, epochs, int(sizes.sum()), True, extra)
    expected = peer.helpers.build_sample_idx(*arguments)
    assert np.array_equal(build_sample_idx(*arguments), expected)


@pytest.mark.parametrize("tokens", [134_217_729, 134_217_730, 134_217_731, 2**27 + 8193])
def test_float32_ceil(peer: Any, tokens: int) -> None:
    """Megatron's compiled helper counts in float32; we do so only when asked to."""
    sizes = np.array([tokens - 5, 5], np.int32)
    arguments = (sizes, np.array([1, 0], np.int32), 8192, 1, tokens, False, True)
    expected = peer.helpers.build_sample_idx(*arguments)
    assert np.array_equal(build_sample_idx(*arguments, float32_ceil=True), expected)
    assert len(build_sample_idx(*arguments)) == -(-(tokens - 1) // 8192) + 1


@pytest.mark.skipif(not FULL, reason="3 GB of rows: with HEADRACE_FULL=1")
def test_float32_ceil_with_phantom_samples(peer: Any) -> None:
    """2^40 + 70,000 tokens: seven samples too many, each of them the last token alone."""
    sizes = np.full(1024, 2**30, np.int32)
    sizes[-1] += 70_000
    arguments = (sizes, np.arange(1024, dtype=np.int32), 8192, 1, int(sizes.sum(dtype=np.int64)), False, True)
    expected = peer.helpers.build_sample_idx(*arguments)
    ours = build_sample_idx(*arguments, float32_ceil=True)
    assert np.array_equal(ours, expected)
    assert (ours[-8:] == ours[-1]).all()
    assert len(ours) - len(build_sample_idx(*arguments)) == 7


@pytest.mark.parametrize("split", ["969,30,1", "949,50,1", "99,1,0", "1,1,1", "0.98/0.02", "3", "0,0,7"])
def test_core_splits(peer: Any, split: str) -> None:
    shares = peer.config.parse_and_normalize_split(split)
    assert parse_split(split) == tuple(shares)
    ends = peer.config.convert_split_vector_to_split_matrix(shares)
    for count in range(0, 20_001, cases(7, 1)):
        expected = tuple(end and tuple(int(round(x * float(count))) for x in end) for end in ends)  # noqa: RUF046
        assert split_ranges(split, count, era="core") == expected


def blends(number: int) -> list[tuple[list[float], int]]:
    made = []
    for seed in range(number):
        rng = np.random.default_rng(seed)
        count = int(rng.choice([1, 2, 3, 10, 63, 64, 65, 200]))
        kind = rng.integers(4)
        weights = [np.ones(count), rng.random(count), rng.random(count) ** 6, rng.integers(1, 5, count).astype(float)]
        made.append(((weights[kind] + 1e-9).tolist(), int(rng.integers(0, 4000))))
    return made


@pytest.mark.parametrize(("weights", "size"), blends(cases(10, 200)))
def test_blends(peer: Any, weights: list[float], size: int) -> None:
    shares = normalised_weights(weights)
    assert shares == peer.utils.normalize(weights)
    expected = np.zeros(size, np.int16), np.zeros(size, np.int64)
    peer.helpers.build_blending_indices(*expected, shares, len(weights), size, False)
    found = build_blending_indices(shares, size)
    assert [array.dtype for array in found] == [array.dtype for array in expected]
    assert all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("seed", range(cases(10, 200)))
def test_exhaustive_blends(peer: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, int(rng.choice([2, 9, 100])), int(rng.choice([1, 2, 5, 64, 150])))
    expected = np.zeros(sizes.sum(), np.int16), np.zeros(sizes.sum(), np.int64)
    peer.helpers.build_exhaustive_blending_indices(*expected, sizes, len(sizes))
    found = build_exhaustive_blending_indices(sizes.tolist())
    assert all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("seed", range(cases(10, 200)))
def test_blend_sizes(peer: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shares = normalised_weights((rng.random(int(rng.integers(1, 30))) + 1e-6).tolist())
    size = int(rng.integers(0, 3_000_000))
    targets = peer.builder._get_size_per_split_per_dataset(shares, [size])
    built = peer.builder._get_size_per_split_per_dataset(shares, [size], surplus=0.005)
    expected = [number for (number,) in built], sum(number for (number,) in targets)
    assert tuple(blend_sizes(shares, size)) == expected


@pytest.mark.parametrize(
    "words", [["0.3", "A", "0.7", "B"], ["A"], ["A", "B"], ["A", "B", "C"], ["30", "x y", "7e1", " B "], ["A", "2"]]
)
def test_blend_text(peer: Any, words: list[str]) -> None:
    assert parse_blend(words) == peer.utils.get_blend_from_list(words)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 1000, 2**18 + 1, 2**18 + 2])
@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1])
def test_randperm(length: int, seed: int) -> None:
    expected = torch.randperm(length, generator=torch.Generator().manual_seed(seed)).numpy()
    assert np.array_equal(torch_randperm(length, seed), expected)


@pytest.mark.skipif(not FULL, reason="5 GB and half a minute each: with HEADRACE_FULL=1")
@pytest.mark.parametrize("length", [214_748_363, 214_748_364])
def test_randperm_of_very_many(length: int) -> None:
    """Where torch begins to draw 64 bits."""
    pytest.importorskip("numba")
    expected = torch.randperm(length, generator=torch.Generator().manual_seed(5)).numpy()
    assert np.array_equal(torch_randperm(length, 5), expected)


@pytest.mark.filterwarnings("ignore")
def test_the_golden_files_are_what_megatron_makes(recipe: Any, tmp_path: Path) -> None:
    recipe.make(tmp_path)
    names = sorted(path.name for path in (GOLDEN / "megatron_order").iterdir())
    assert names == sorted(path.name for path in tmp_path.iterdir())
    for name in names:
        made, known = ((folder / name).read_text() for folder in (tmp_path, GOLDEN / "megatron_order"))
        assert made == known or _same(json.loads(made), json.loads(known)), name


def _same(made: Any, known: Any) -> bool:
    """Whether all is equal, but for the last digit of weights that NumPy drew: its powers depend on the processor."""
    if isinstance(known, dict):
        return made.keys() == known.keys() and all(_same(made[name], known[name]) for name in known)
    if isinstance(known, list):
        return len(made) == len(known) and all(map(_same, made, known))
    return bool(made == known) or (isinstance(known, float) and math.isclose(made, known, rel_tol=4e-16))
