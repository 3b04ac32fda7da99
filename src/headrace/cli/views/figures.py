"""Numbers of a whole store, for a page: lengths, how much is trained, how full packs are."""

from __future__ import annotations

import numpy as np

from headrace.cli.description import describe_key
from headrace.cli.views.choosing import NUM_SUPERVISED, trained_shares
from headrace.cli.views.reading import ShownKeys
from headrace.cli.views.shown import Figures, PackFill, Shares, Trained
from headrace.plan.packing import PackPlan
from headrace.stores import Dialect, Store
from headrace.stores import open_tokens as open_store

MOST_MARKS = 1 << 28
"""Of a loss mask so many values are read, at about a gigabyte a second."""

_CHUNK = 1 << 22


def figures_of(store: Store, keys: ShownKeys, plan: PackPlan | None, *, dialect: Dialect | None) -> Figures:
    """All figures. O(documents), and one pass over the masks where no counts are stored."""
    main = store if keys.main == store.keys[0] else open_store(store.path, key=keys.main, dialect=dialect)
    described = describe_key(keys.main, main)
    packs = None
    if plan is not None:
        ledger = plan.ledger
        packs = PackFill(
            strategy=plan.packing.strategy, packs=len(plan), fill=ledger.fill, lost_tokens=ledger.lost_tokens
        )
    return Figures(
        key=keys.main,
        tokens=described.tokens,
        tokens_per_document=described.tokens_per_document,
        histogram=described.histogram,
        trained=_trained(store, keys, described.tokens),
        shares=_shares(store, keys, dialect),
        packs=packs,
    )


def _trained(store: Store, keys: ShownKeys, num_tokens: int) -> Trained | None:
    masks = [mask for mask in keys.masks.values() if mask is not None]
    if not masks:
        return None
    if masks == ["loss_mask"] and NUM_SUPERVISED in store.keys:
        with open_store(store.path, key=NUM_SUPERVISED) as counts:
            trained = sum(int(counts.fetch(begin, end).sum()) for begin, end in _chunks(counts.num_tokens))
        return Trained(trained=trained, tokens=num_tokens, is_all=True)
    trained = tokens = 0
    is_all = True
    for mask in masks:
        with open_store(store.path, key=mask) as marks:
            most = min(marks.num_tokens, MOST_MARKS // len(masks))
            trained += sum(int(np.count_nonzero(marks.fetch(begin, end))) for begin, end in _chunks(most))
            tokens += most
            is_all = is_all and most == marks.num_tokens
    return Trained(trained=trained, tokens=tokens, is_all=is_all)


def _shares(store: Store, keys: ShownKeys, dialect: Dialect | None) -> Shares | None:
    found = trained_shares(store, keys, dialect)
    if found is None:
        return None
    bins = np.ceil(np.round(found[1] * 10, 9)).astype(np.int64)
    return Shares(documents=tuple(np.bincount(bins, minlength=11).tolist()), words=found[2].strip())


def _chunks(size: int) -> list[tuple[int, int]]:
    return [(begin, min(begin + _CHUNK, size)) for begin in range(0, size, _CHUNK)]
