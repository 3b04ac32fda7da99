"""Plans of packs over the documents of a store: made, kept in a cache folder, and found again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.io import cache_folder
from headrace.plan import IntArray
from headrace.plan.packing import CHUNK, PLAN_VERSION, Packing, PackPlan, PackPlanMeta, plan_packs
from headrace.stores import Store, find_cache, keep_arrays, kept_name

KEPT_DOCUMENTS = 1_000_000
"""Plans of more documents are kept by default: making one again takes over a tenth of a second."""


class StoreLengths:
    """The lengths of a store's documents, in the form that a planner reads. Holds nothing in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __len__(self) -> int:
        return self._store.num_documents

    def chunks(self) -> Iterator[IntArray]:
        """Yield the lengths of some documents at a time."""
        return self._store.length_chunks(CHUNK)

    def spans(self, documents: IntArray) -> tuple[IntArray, IntArray]:
        """Return two (n,) int64 arrays: where documents begin in the token stream, and their lengths."""
        bounds = self._store.document_begins(np.concatenate([documents, documents + 1]))
        begins = bounds[: len(documents)]
        return begins, bounds[len(documents) :] - begins


def make_plan(store: Store, lengths: StoreLengths, packing: Packing, folder: Path | None) -> PackPlan:
    """Return the plan of a store's packs: a kept one, memory-mapped, or a new one, which is then kept.

    If ``folder`` is None, plans of over ``KEPT_DOCUMENTS`` documents are kept in the cache folder, if it can be
    written.

    Raises:
        ConfigError: as `plan_packs`.
        StoreError: a kept plan is damaged.
        OutputError: ``folder`` cannot be written.
    """
    asked = folder is not None
    if folder is None:
        if store.num_documents <= KEPT_DOCUMENTS:
            return plan_packs(lengths, packing)
        folder = cache_folder("packs")
        if folder is None:
            return plan_packs(lengths, packing)
    name = plan_name(store, packing)
    try:
        found = find_cache(folder, name)
    except StoreError as error:
        # The default cache is optional: a user who may not read it does without.
        if asked or not isinstance(error.__cause__, PermissionError):
            raise
        return plan_packs(lengths, packing)
    if found is not None:
        try:
            meta = _meta(store, found[1])
        except (msgspec.DecodeError, UnicodeError, ConfigError, ValueError) as error:
            raise StoreError(f"{folder / name}: {error}; remove it, and it will be made again") from error
        return PackPlan(meta, found[0], lengths)
    plan = plan_packs(lengths, packing)
    try:
        keep_arrays(folder, name, plan.arrays, msgspec.json.encode(plan.meta))
    except HeadraceError:
        # Without the default cache only time is lost; a folder that the user named must be writable.
        if asked:
            raise
        return plan
    # Map the file instead of keeping the arrays, so that the processes of a machine share one copy.
    kept = find_cache(folder, name)
    return plan if kept is None else PackPlan(plan.meta, kept[0], lengths)


def _meta(store: Store, data: bytes) -> PackPlanMeta:
    meta = msgspec.json.decode(data, type=PackPlanMeta)
    if (meta.num_documents, meta.ledger.raw_tokens) != (store.num_documents, store.num_tokens):
        raise ValueError(
            f"the plan is over {meta.num_documents:,} documents of {meta.ledger.raw_tokens:,} tokens, and "
            f"{store.path} has {store.num_documents:,} documents of {store.num_tokens:,} tokens"
        )
    return meta


def plan_name(store: Store, packing: Packing) -> str:
    """Return the name of a kept plan: 128 bits over the store's content, the packing and the plan version."""
    return kept_name("packs", PLAN_VERSION, store.fingerprint, store.num_documents, msgspec.to_builtins(packing))
