"""Mixes as they stand in ``golden/energon_order/orders.json``, read by our order."""

from __future__ import annotations

from itertools import islice
from typing import Any

from headrace.plan.energon import EnergonMixing, EnergonOrder, EnergonSource, EnergonTopology
from headrace.plan.subset import SubsetRange


def order_of(case: dict[str, Any], counts: dict[str, list[int]]) -> EnergonOrder:
    sources = [
        EnergonSource(
            shard_counts=tuple(counts[source["name"]]),
            subset=SubsetRange.of(source["subset"]) if "subset" in source else None,
            weight=source.get("weight", 1.0),
            repetitions=source.get("repetitions"),
            shuffle_over_epochs=case.get("shuffle_over_epochs", 1),
        )
        for source in case["sources"]
    ]
    topology = EnergonTopology(**{name: case[name] for name in ("world_size", "num_workers", "seed_offset")})
    return EnergonOrder(
        sources, topology=topology, mixing=EnergonMixing(**case["mixing"]) if "mixing" in case else None
    )


def read(case: dict[str, Any], counts: dict[str, list[int]]) -> list[Any]:
    """As many as the file has, and one more where it should be the end."""
    order, names = order_of(case, counts), [source["name"] for source in case["sources"]]
    number = len(case["samples"]) + (len(case["samples"]) < 150)
    if case["batch_size"] is None and case.get("limit") is None:
        read = islice(order.batches(case["rank"], batch_size=1), number)
        return [f"{names[one.source]}{one.sample_index}" for [one] in read]
    batches = order.batches(
        case["rank"],
        batch_size=case["batch_size"] or 1,
        drop_last=case.get("drop_last", False),
        limit=case.get("limit"),
    )
    found = [[f"{names[one.source]}{one.sample_index}" for one in batch] for batch in islice(batches, number)]
    return found if case["batch_size"] is not None else [one for batch in found for one in batch]
