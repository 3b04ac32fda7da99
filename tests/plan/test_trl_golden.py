"""Plans of best-fit decreasing as TRL makes them; `tests/golden/README.md` says how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.plan.packing import Packing, plan_packs

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "golden" / "packing" / "trl.json").read_text())


@pytest.mark.parametrize("case", GOLDEN)
def test_packs_and_their_order(case: dict[str, Any]) -> None:
    is_split = case["strategy"] == "bfd_split"
    packing = Packing(
        seq_len=case["seq_length"],
        strategy="best_fit_split" if is_split else "best_fit",
        over_long="split" if is_split else "truncate_right",
        window_documents=case["batch_size"] if case["batch_size"] < len(case["lengths"]) else None,
    )
    plan = plan_packs(np.array(case["lengths"], dtype=np.int64), packing)
    items = plan.items(np.arange(len(plan)))
    pieces = np.stack([items.documents, items.begins, items.lengths], axis=1)
    assert [some.tolist() for some in np.split(pieces, items.offsets[1:-1])] == case["packs"]
