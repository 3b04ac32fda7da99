"""Options that do not go together, and documents that a policy refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.plan.packing import Packing, plan_packs
from packs_plainly import ChunkedLengths


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seq_len": 0}, r"seq_len is 0; allowed are 1 to 4,194,304"),
        ({"seq_len": (1 << 22) + 1}, r"seq_len is 4194305; allowed are 1 to 4,194,304"),
        ({"seq_len": 8, "strategy": "bfd"}, r"strategy is 'bfd'; allowed are 'greedy', 'best_fit', 'best_fit_sp"),
        ({"seq_len": 8, "over_long": "cut"}, r"over_long is 'cut'; allowed are 'error', 'split', 'truncate_left'"),
        ({"seq_len": 8, "window_documents": 0}, r"window_documents is 0; it is at least 1, or None"),
        ({"seq_len": 8, "segment_multiple": 0}, r"segment_multiple is 0; it must be at least 1 and divide seq_len"),
        ({"seq_len": 8, "segment_multiple": 3}, r"segment_multiple is 3; .* seq_len 8"),
        ({"seq_len": 8, "segment_multiple": 16}, r"segment_multiple is 16"),
        (
            {"seq_len": 8, "strategy": "wrapped", "over_long": "drop"},
            r"the strategy 'wrapped' splits documents: over_long='drop'",
        ),
        (
            {"seq_len": 8, "strategy": "best_fit_split", "over_long": "truncate_left"},
            r"the strategy 'best_fit_split' splits documents: over_long='truncate_left' does not go with it",
        ),
        (
            {"seq_len": 8, "repack": True, "strategy": "greedy"},
            r"repack lets documents of equal length change places, .* use one of these",
        ),
        (
            {"seq_len": 8, "repack": True, "strategy": "first_fit"},
            r"repack lets documents of equal length change places",
        ),
        ({"seq_len": 8, "repack": True, "strategy": "wrapped"}, r"repack lets documents of equal length change places"),
        ({"seq_len": 8, "repack": True, "window_documents": 5}, r"repack lets documents of equal length change places"),
        (
            {"seq_len": 8, "strategy": "wrapped", "window_documents": 5},
            r"the strategy 'wrapped' allows neither window_documents",
        ),
        (
            {"seq_len": 8, "strategy": "wrapped", "segment_multiple": 2},
            r"the strategy 'wrapped' allows neither .* nor segment_multiple",
        ),
        ({"seq_len": 8, "strategy": "wrapped", "max_documents": 2}, r"the strategy 'wrapped' .* nor max_documents"),
        ({"seq_len": 8, "max_documents": 0}, r"max_documents is 0; it is at least 1, or None"),
        ({"seq_len": 8, "max_documents": 1.5}, r"max_documents is 1\.5; expected a whole number"),
    ],
)
def test_refused_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Packing(**options)
    # From a file, too: the check is part of decoding.
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(options), type=Packing)


@pytest.mark.parametrize(
    "options",
    [
        {"seq_len": 1},
        {"seq_len": 1 << 22, "segment_multiple": 1 << 22},
        {"seq_len": 8, "strategy": "wrapped", "over_long": "error"},
        {"seq_len": 8, "strategy": "best_fit_split", "repack": True, "segment_multiple": 8},
        {"seq_len": 8, "window_documents": 1},
    ],
)
def test_allowed_options(options: dict[str, Any]) -> None:
    packing = Packing(**options)
    assert msgspec.json.decode(msgspec.json.encode(packing), type=Packing) == packing
    assert len(plan_packs(np.array([1, 1]), packing)) >= 1


@pytest.mark.parametrize("strategy", ["greedy", "best_fit", "first_fit"])
@pytest.mark.parametrize("window", [None, 2])
def test_over_long_documents_without_a_policy(strategy: Any, window: int | None) -> None:
    packing = Packing(seq_len=1000, strategy=strategy, window_documents=window)
    lengths = [5, 1000, 0, 1001, 7, 40_000, 1002]
    message = (
        r"3 of 7 documents are longer than seq_len=1,000: the first is document 3 with 1,001 tokens, and the longest"
    )
    with pytest.raises(ConfigError, match=message) as caught:
        plan_packs(np.array(lengths), packing)
    assert "the longest has 40,000" in str(caught.value)
    for policy in ("split", "truncate_right", "truncate_left", "drop"):
        assert f"'{policy}'" in str(caught.value)
    with pytest.raises(ConfigError, match=message):  # the first of them in another chunk than the others
        plan_packs(ChunkedLengths(lengths, [1, 3]), packing)
    assert len(plan_packs(np.array(lengths[:3]), packing)) == 2


def test_negative_lengths() -> None:
    for strategy in ("greedy", "best_fit", "best_fit_split", "first_fit", "wrapped"):
        with pytest.raises(ConfigError, match=r"a document has -3 tokens; lengths must be at least 0"):
            plan_packs(np.array([4, -1, -3]), Packing(seq_len=8, strategy=strategy))  # type: ignore[arg-type]


def test_a_cap_is_part_of_a_packing_only_if_it_is_set() -> None:
    unset = Packing(seq_len=8)
    assert Packing(seq_len=8, max_documents=None) == unset == msgspec.convert({"max_seq_len": 8}, Packing)
    assert "max_documents" not in msgspec.to_builtins(unset)
    capped = Packing(seq_len=8, max_documents=2)
    assert msgspec.to_builtins(capped) == {**msgspec.to_builtins(unset), "max_documents": 2}
    assert msgspec.convert(msgspec.to_builtins(capped), Packing) == capped
