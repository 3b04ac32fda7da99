"""Index caches beside megatron-core: it starts from ours without building, byte for byte its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counts import cases
from headrace.compat.megatron import GPTBlend, GPTDataset, export_cache
from interop import golden_scripts, megatron_peer
from interop.golden_scripts import GOLDEN, files
from interop.megatron_peer import data_path, write_drawn

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]


class Tokenizer(megatron_peer.Tokenizer):
    unique_identifiers: dict[str, Any] = {"class": "Tüte", "tokenizer_path": ["a", "b"], "n": "1"}  # noqa: RUF012


def build(wanted: list[Any], cache: Path | None, **options: Any) -> list[Any]:
    """The three datasets of Megatron's builder."""
    place = None if cache is None else str(cache)
    return megatron_peer.build(wanted, path_to_cache=place, tokenizer=Tokenizer(), **options)


def write(prefix: Path, rng: np.random.Generator) -> None:
    """Thirty to seventy documents without empty sequences."""
    write_drawn(prefix, rng, fewest=30, shortest=1)


@pytest.fixture
def forbid(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it, and Megatron can no longer build or save an index."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("Megatron builds")

    def forbid() -> None:
        monkeypatch.setattr(np, "save", fail)
        for name in ("build_sample_idx", "build_blending_indices", "build_exhaustive_blending_indices"):
            monkeypatch.setattr(megatron_peer.core("datasets.helpers"), name, fail)
        for name in ("_build_document_index", "_build_shuffle_index"):
            monkeypatch.setattr(megatron_peer.core("datasets.gpt_dataset"), name, fail)

    return forbid


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("seed", range(cases(12, 200)))
def test_one_dataset(tmp_path: Path, forbid: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    write(tmp_path / "x", rng)
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
    theirs = build(wanted, None if beside else tmp_path / "theirs", **options)
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
    again = build(wanted, None if beside else tmp_path / "ours", **options)
    for one, other in zip(again, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert torch.equal(one[len(one) - 1]["tokens"], other[len(other) - 1]["tokens"])


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("seed", range(cases(8, 100)))
def test_blends(tmp_path: Path, forbid: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    prefixes = [str(tmp_path / name) for name in "abc"[: int(rng.integers(1, 4))]]
    for prefix in prefixes:
        write(Path(prefix), rng)
    per_part = bool(rng.random() < 0.4)
    weighted = len(prefixes) == 1 or rng.random() < 0.6
    weights = [float(weight) for weight in rng.integers(1, 9, len(prefixes))] if weighted else None
    wanted = int(rng.integers(1, 300)) if weights is not None or rng.random() < 0.5 else None
    options: dict[str, Any] = {"random_seed": seed, "sequence_length": 5, "split": None if per_part else "1,0,0"}
    options |= {"blend_per_split": [(prefixes, weights), None, None]} if per_part else {"blend": (prefixes, weights)}
    theirs = build([wanted] * 3, tmp_path / "theirs", **options)[0]
    ours = GPTBlend.of(
        data_path(prefixes, weights),
        num_samples=wanted,
        build=lambda prefix, n: GPTDataset(prefix, sequence_length=5, num_samples=n, seed=seed),
        one_part=per_part,
    )
    export_cache(ours, tokenizer=Tokenizer.unique_identifiers, path_to_cache=tmp_path / "ours", one_part=per_part)
    assert files(tmp_path / "ours") == files(tmp_path / "theirs")
    forbid()
    again = build([wanted] * 3, tmp_path / "ours", **options)[0]
    assert torch.equal(again[len(again) - 1]["tokens"], theirs[len(theirs) - 1]["tokens"])
    is_blend = len(prefixes) > 1 or not per_part
    assert len(files(tmp_path / "theirs")) == 4 * len(prefixes) + 3 * is_blend


def test_without_a_cache_megatron_would_build(tmp_path: Path, forbid: Any) -> None:
    """What the tests above forbid is what Megatron needs when it finds nothing."""
    write(tmp_path / "x", np.random.default_rng(0))
    forbid()
    options: dict[str, Any] = {"random_seed": 1, "sequence_length": 8, "blend": ([str(tmp_path / "x")], None)}
    with pytest.raises(AssertionError, match="Megatron"):
        build([100] * 3, tmp_path / "cache", split="1,0,0", **options)


def test_golden_files_are_made_anew(tmp_path: Path) -> None:
    golden_scripts.script("make_megatron_cache").make(tmp_path)
    for folder in ("data", "cache"):
        assert files(tmp_path / folder) == files(GOLDEN / "megatron_cache" / folder)
