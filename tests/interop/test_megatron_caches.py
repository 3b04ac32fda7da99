"""Index caches beside megatron-core: it starts from ours without building, byte for byte its own."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from counts import cases
from headrace.compat.megatron import GPTBlend, GPTDataset, export_cache
from headrace.errors import OutputError

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]


class Tokenizer:
    vocab_size = 60_000
    eod = 3
    pad = 7
    unique_identifiers: dict[str, Any] = {"class": "Tüte", "tokenizer_path": ["a", "b"], "n": "1"}  # noqa: RUF012


class Peer(NamedTuple):
    gpt: Any
    indexed: Any
    builder: Any
    helpers: Any


@pytest.fixture(scope="module")
def peer() -> Peer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("megatron.core")
        from megatron.core.datasets import blended_megatron_dataset_builder, gpt_dataset, helpers, indexed_dataset

    return Peer(gpt_dataset, indexed_dataset, blended_megatron_dataset_builder, helpers)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one, which the builder asks for its rank."""
    meeting = f"file://{tmp_path / 'meeting'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def write(peer: Peer, prefix: Path, rng: np.random.Generator) -> None:
    """Thirty to seventy documents of one or two sequences, none of them empty."""
    builder = peer.indexed.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for _ in range(int(rng.integers(30, 70))):
        lengths = rng.integers(1, 30, rng.integers(1, 3))
        builder.add_document(torch.from_numpy(rng.integers(0, 12, lengths.sum()).astype(np.int64)), lengths.tolist())
    builder.finalize(f"{prefix}.idx")


def build(peer: Peer, wanted: list[Any], cache: Path | None, **options: Any) -> list[Any]:
    """The three datasets of Megatron's builder."""
    config = peer.gpt.GPTDatasetConfig(
        path_to_cache=None if cache is None else str(cache),
        tokenizer=Tokenizer(),
        create_attention_mask=False,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        **options,
    )
    config.mid_level_dataset_surplus = 0.005
    made = peer.builder.BlendedMegatronDatasetBuilder(peer.gpt.GPTDataset, wanted, lambda: True, config)
    return list(made.build())


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def forbid(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it, and Megatron can no longer build or save an index."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("Megatron builds")

    def forbid() -> None:
        monkeypatch.setattr(np, "save", fail)
        for name in ("build_sample_idx", "build_blending_indices", "build_exhaustive_blending_indices"):
            monkeypatch.setattr(peer.helpers, name, fail)
        for name in ("_build_document_index", "_build_shuffle_index"):
            monkeypatch.setattr(peer.gpt, name, fail)

    return forbid


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("seed", range(cases(12, 200)))
def test_one_dataset(peer: Peer, tmp_path: Path, forbid: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    write(peer, tmp_path / "x", rng)
    split = str(rng.choice(["1,0,0", "60,30,10", "1,1", "0,1,1"]))
    extra, drop = bool(rng.random() < 0.7), bool(rng.random() < 0.5)
    wanted = [None if rng.random() < 0.3 else int(rng.integers(1, 400)) for _ in range(3)]
    size = int(rng.integers(2, 12))
    data = str(tmp_path / "x")
    options: dict[str, Any] = {
        "random_seed": seed,
        "sequence_length": size,
        "blend": ([data], None),
        "split": split,
        "add_extra_token_to_sequence": extra,
        "drop_last_partial_validation_sequence": drop,
    }
    beside = seed % 3 == 0
    theirs = build(peer, wanted, None if beside else tmp_path / "theirs", **options)
    place = Path(data) / "cache" / "GPTDataset_indices" if beside else tmp_path / "theirs"
    made_by_them = files(place)
    if beside:
        place.rename(tmp_path / "theirs")
    for number, part in enumerate(("train", "valid", "test")):
        if theirs[number] is None:
            continue
        ours = GPTDataset(
            data,
            sequence_length=size,
            num_samples=wanted[number],
            seed=seed,
            split=split,
            split_part=part,  # type: ignore[arg-type]
            add_extra_token_to_sequence=extra,
            drop_last_partial_validation_sequence=drop,
        )
        [made] = export_cache(
            ours,
            tokenizer=Tokenizer.unique_identifiers,
            path_to_cache=None if beside else tmp_path / "ours",
        )
        assert made.written
    assert files(place if beside else tmp_path / "ours") == made_by_them
    forbid()
    again = build(peer, wanted, None if beside else tmp_path / "ours", **options)
    for one, other in zip(again, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert torch.equal(one[len(one) - 1]["tokens"], other[len(other) - 1]["tokens"])


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("seed", range(cases(8, 100)))
def test_blends(peer: Peer, tmp_path: Path, forbid: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    prefixes = [str(tmp_path / name) for name in "abc"[: int(rng.integers(1, 4))]]
    for prefix in prefixes:
        write(peer, Path(prefix), rng)
    per_part = bool(rng.random() < 0.4)
    weighted = len(prefixes) == 1 or rng.random() < 0.6
    weights = [float(weight) for weight in rng.integers(1, 9, len(prefixes))] if weighted else None
    wanted = int(rng.integers(1, 300)) if weights is not None or rng.random() < 0.5 else None
    options: dict[str, Any] = {"random_seed": seed, "sequence_length": 5, "split": None if per_part else "1,0,0"}
    options |= {"blend_per_split": [(prefixes, weights), None, None]} if per_part else {"blend": (prefixes, weights)}
    theirs = build(peer, [wanted] * 3, tmp_path / "theirs", **options)[0]
    words = prefixes if weights is None else [str(w) for pair in zip(weights, prefixes, strict=True) for w in pair]
    ours = GPTBlend.of(
        words,
        num_samples=wanted,
        build=lambda prefix, n: GPTDataset(prefix, sequence_length=5, num_samples=n, seed=seed),
        one_part=per_part,
    )
    export_cache(ours, tokenizer=Tokenizer.unique_identifiers, path_to_cache=tmp_path / "ours", one_part=per_part)
    assert files(tmp_path / "ours") == files(tmp_path / "theirs")
    forbid()
    again = build(peer, [wanted] * 3, tmp_path / "ours", **options)[0]
    assert torch.equal(again[len(again) - 1]["tokens"], theirs[len(theirs) - 1]["tokens"])
    is_blend = len(prefixes) > 1 or not per_part
    assert len(files(tmp_path / "theirs")) == 4 * len(prefixes) + 3 * is_blend


def test_without_a_cache_megatron_would_build(peer: Peer, tmp_path: Path, forbid: Any) -> None:
    """What the tests above forbid is what Megatron needs when it finds nothing."""
    write(peer, tmp_path / "x", np.random.default_rng(0))
    forbid()
    options: dict[str, Any] = {"random_seed": 1, "sequence_length": 8, "blend": ([str(tmp_path / "x")], None)}
    with pytest.raises(AssertionError, match="Megatron builds"):
        build(peer, [100] * 3, tmp_path / "cache", split="1,0,0", **options)


@pytest.mark.usefixtures("alone")
def test_b6_replaced_data_and_another_flag(peer: Peer, tmp_path: Path) -> None:
    """Megatron reads both caches without a word; here the order is that of the data, and the export names the cache."""
    rng = np.random.default_rng(0)
    write(peer, tmp_path / "x", rng)
    options: dict[str, Any] = {
        "random_seed": 1,
        "sequence_length": 8,
        "blend": ([str(tmp_path / "x")], None),
        "split": "1,0,0",
    }
    [theirs, _, _] = build(peer, [100] * 3, tmp_path / "cache", add_extra_token_to_sequence=False, **options)
    [stale, _, _] = build(peer, [100] * 3, tmp_path / "cache", **options)
    assert np.array_equal(stale.sample_index, theirs.sample_index)

    def refused() -> GPTDataset:
        ours = GPTDataset(str(tmp_path / "x"), sequence_length=8, num_samples=100, seed=1)
        with pytest.raises(OutputError, match="another cache"):
            export_cache(ours, tokenizer=Tokenizer.unique_identifiers, path_to_cache=tmp_path / "cache")
        return ours

    before = refused()
    write(peer, tmp_path / "x", rng)
    [stale, _, _] = build(peer, [100] * 3, tmp_path / "cache", **options)
    assert np.array_equal(stale.sample_index, theirs.sample_index)
    assert not np.array_equal(refused().sample_index, before.sample_index)


def test_golden_files_are_made_anew(peer: Peer, tmp_path: Path) -> None:
    """The script beside them writes the same bytes."""
    golden = Path(__file__).parents[1] / "golden"
    spec = importlib.util.spec_from_file_location("make_megatron_cache", golden / "make_megatron_cache.py")
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    recipe.make(tmp_path)
    for folder in ("data", "cache"):
        assert files(tmp_path / folder) == files(golden / "megatron_cache" / folder)
