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
    ("options", "named"),
    [
        ({"seq_len": 0}, "seq_len.*0.*4,194,304"),
        ({"seq_len": (1 << 22) + 1}, "4194305.*4,194,304"),
        ({"seq_len": 8, "strategy": "bfd"}, "'bfd'.*'greedy'"),
        ({"seq_len": 8, "over_long": "cut"}, "'cut'.*'truncate_left'"),
        ({"seq_len": 8, "window_documents": 0}, "window_documents.*0"),
        ({"seq_len": 8, "segment_multiple": 0}, "segment_multiple.*0.*seq_len"),
        ({"seq_len": 8, "segment_multiple": 3}, "segment_multiple.*3.*seq_len.*8"),
        ({"seq_len": 8, "segment_multiple": 16}, "segment_multiple.*16"),
        ({"seq_len": 8, "strategy": "wrapped", "over_long": "drop"}, "'wrapped'.*'drop'"),
        (
            {"seq_len": 8, "strategy": "best_fit_split", "over_long": "truncate_left"},
            "'best_fit_split'.*'truncate_left'",
        ),
        ({"seq_len": 8, "repack": True, "strategy": "greedy"}, "repack"),
        ({"seq_len": 8, "repack": True, "strategy": "first_fit"}, "repack"),
        ({"seq_len": 8, "repack": True, "strategy": "wrapped"}, "repack"),
        ({"seq_len": 8, "repack": True, "window_documents": 5}, "repack"),
        ({"seq_len": 8, "strategy": "wrapped", "window_documents": 5}, "'wrapped'.*window_documents"),
        ({"seq_len": 8, "strategy": "wrapped", "segment_multiple": 2}, "'wrapped'.*segment_multiple"),
        ({"seq_len": 8, "strategy": "wrapped", "max_documents": 2}, "'wrapped'.*max_documents"),
        ({"seq_len": 8, "max_documents": 0}, "max_documents.*0"),
        ({"seq_len": 8, "max_documents": 1.5}, r"max_documents.*1\.5"),
    ],
)
def test_refused_options(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
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
    # How many of all, the room, the first and its tokens, the longest, and the policies that there are.
    named = r"3.*7.*1,000.*3.*1,001.*40,000.*'split'.*'truncate_right'.*'truncate_left'.*'drop'"
    for source in (np.array(lengths), ChunkedLengths(lengths, [1, 3])):
        with pytest.raises(ConfigError, match=named):
            plan_packs(source, packing)
    assert len(plan_packs(np.array(lengths[:3]), packing)) == 2


def test_negative_lengths() -> None:
    for strategy in ("greedy", "best_fit", "best_fit_split", "first_fit", "wrapped"):
        with pytest.raises(ConfigError, match=r"document.*-3.*0"):
            plan_packs(np.array([4, -1, -3]), Packing(seq_len=8, strategy=strategy))  # type: ignore[arg-type]


def test_a_cap_is_part_of_a_packing_only_if_it_is_set() -> None:
    unset = Packing(seq_len=8)
    assert Packing(seq_len=8, max_documents=None) == unset == msgspec.convert({"max_seq_len": 8}, Packing)
    assert "max_documents" not in msgspec.to_builtins(unset)
    capped = Packing(seq_len=8, max_documents=2)
    assert msgspec.to_builtins(capped) == {**msgspec.to_builtins(unset), "max_documents": 2}
    assert msgspec.convert(msgspec.to_builtins(capped), Packing) == capped
