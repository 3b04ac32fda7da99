"""torchtune's tests of packed datasets, their collation and their masks, with ``headrace.compat.torchtune``.

torchtune's package imports torchao and torchvision, whose builds must fit that of torch. None of its packing uses them,
so empty modules stand for them.
"""

from __future__ import annotations

import sys

from headrace.compat.torchtune import PackedDataset
from suites.suite import Absent, Suite, variant

SUITE = Suite(
    name="torchtune",
    tests=(
        "tests/torchtune/datasets",
        "tests/torchtune/data/test_collate.py",
        "tests/torchtune/modules/test_attention_utils.py",
    ),
    variants=("names",),
    options=("--noconftest", "--continue-on-collection-errors"),
)


def pytest_configure() -> None:
    """Put our class in place of torchtune's, where users import it; ``ConcatDataset`` keeps its own check."""
    sys.meta_path.insert(0, Absent("torchao", "torchvision"))
    from torchtune import datasets
    from torchtune.datasets import _packed

    if variant() != "itself":
        datasets.PackedDataset = _packed.PackedDataset = PackedDataset
