"""Forecast of packing: the figures of each strategy's plan for a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from headrace.plan.packing.lengths import ArrayLengths, Lengths
from headrace.plan.packing.options import OverLong, Packing, Strategy
from headrace.plan.packing.pack_plan import PackingLedger
from headrace.plan.packing.planner import plan_packs


class StrategyForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one strategy for the documents of a source, as the ledger of its plan would state them."""

    strategy: Strategy
    over_long: OverLong
    """What happens to over-long documents; strategies that do not split are forecast with ``truncate_right``."""

    documents: int
    """How many documents were counted, from the first one on."""

    packs: int
    fill: float
    """The share of the places in packs that hold tokens."""

    documents_per_pack: float
    """The mean number of documents with tokens in a pack; a split document counts once."""

    cut_documents: int
    """Documents that are split or truncated."""

    cut_share: float
    """The share of the documents that are split or truncated."""

    lost_tokens: int
    lost_share: float
    """The share of the tokens that is in no pack."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of every strategy for the documents of a source."""

    seq_len: int = msgspec.field(name="max_seq_len")  # the name in reports as JSON
    documents: int
    tokens: int
    over_long_documents: int
    """Documents that are longer than a pack."""

    longest: int
    strategies: tuple[StrategyForecast, ...]


STRATEGIES: Final[dict[Strategy, OverLong]] = {
    "greedy": "truncate_right",
    "best_fit": "truncate_right",
    "best_fit_split": "split",
    "first_fit": "truncate_right",
    "wrapped": "split",
}
"""What each strategy does here with documents longer than a pack."""


def forecast(
    lengths: Lengths,
    seq_len: int,
    *,
    first_fit_documents: int,
    on_progress: Callable[..., None] = lambda *done, **text: None,
) -> Forecast:
    """Return the figures of all strategies: those of the ledgers of their plans, which are made one after another.

    Takes about 200 ns of CPU a document and the memory of a plan, see `plan_packs`. ``first_fit`` takes 1 to 3 us a
    document, and so counts only the first ``first_fit_documents``. ``on_progress`` is called before each plan, with the
    number of those made, the number of all, and the strategy as ``text``.

    Raises:
        ConfigError: ``seq_len`` is out of range, or a length is below 0.
    """
    found: list[PackingLedger] = []
    for strategy, over_long in STRATEGIES.items():
        on_progress(len(found), len(STRATEGIES), text=strategy)
        some = lengths
        if strategy == "first_fit" and len(lengths) > first_fit_documents:
            some = ArrayLengths(lengths.spans(np.arange(first_fit_documents, dtype=np.int64))[1])
        found.append(plan_packs(some, Packing(seq_len=seq_len, strategy=strategy, over_long=over_long)).ledger)
    whole = found[0]
    return Forecast(
        seq_len=seq_len,
        documents=whole.raw_documents,
        tokens=whole.raw_tokens,
        over_long_documents=whole.truncated_documents,
        longest=max((int(chunk.max(initial=0)) for chunk in lengths.chunks()), default=0),
        strategies=tuple(
            StrategyForecast(
                strategy=strategy,
                over_long=STRATEGIES[strategy],
                documents=one.raw_documents,
                packs=one.num_packs,
                fill=one.fill,
                documents_per_pack=(one.raw_documents - one.empty_documents) / max(1, one.num_packs),
                cut_documents=(cut := one.split_documents + one.truncated_documents),
                cut_share=cut / max(1, one.raw_documents),
                lost_tokens=one.lost_tokens,
                lost_share=one.lost_share,
            )
            for strategy, one in zip(STRATEGIES, found, strict=True)
        ),
    )
