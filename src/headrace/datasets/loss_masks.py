"""The loss mask of a store: which key it is, what share of the tokens it trains, and the messages about it."""

from __future__ import annotations

import logging
from collections.abc import Set
from typing import Final, Literal

import msgspec
import numpy as np

from headrace.errors import ConfigError, HeadraceError
from headrace.stores import ShardedStore, Store
from headrace.stores.manifest import manifest_of

AUTO: Final = "auto"
"""Value of ``loss_mask_key``: the loss mask of the store, if it has one."""

Labels = Literal["next", "same"]
"""Whether the label at a place is the next token, or the token itself, for models that shift labels themselves."""

LOOKED_AT_TOKENS = 1 << 20
"""Most values of a mask that are read to estimate its share, if the manifest holds no count."""

_STRETCHES = 64
_MASK = "loss_mask"
_log = logging.getLogger("headrace")


class SupervisedShare(msgspec.Struct, frozen=True):
    """How many of ``tokens`` a mask trains; ``is_all`` is true if ``tokens`` counts all tokens of the store."""

    trained: int
    tokens: int
    is_all: bool

    def __str__(self) -> str:
        share = f"{self.trained / self.tokens:.1%}" if self.tokens else "none"
        return f"{share} of the tokens" if self.is_all else f"about {share} of the tokens ({self.tokens:,} looked at)"


def mask_name(key: str, names: Set[str], *, is_main: bool) -> str | None:
    """Return the loss mask of a key, by the names that `headrace prepare` and AstrAI use; None if there is none."""
    wanted = [f"{key}_mask"] + ["masks"] * (key == "responses") + [_MASK] * is_main
    return next((name for name in wanted if name in names and name != key), None)


def mask_of(store: Store) -> str | None:
    """Return the loss mask of a store's main key; None if it has none."""
    return mask_name(store.keys[0], set(store.keys), is_main=True)


def used_mask(store: Store, wanted: str | None) -> str | None:
    """Return the key of the mask that decides the labels: the store's own for ``"auto"``, else ``wanted``.

    If a store of one key was opened without the mask that the manifest beside it lists, a warning says so.

    Raises:
        ConfigError: there is no such key, or it does not have one value for each token.
    """
    key = mask_of(store) if wanted == AUTO else wanted
    if key is None:
        if wanted == AUTO and len(store.keys) == 1:
            _warn_left_out(store)
        return None
    try:
        for shard in store.shards if isinstance(store, ShardedStore) else (store,):
            shard.fetch(0, min(1, shard.num_tokens), key)
    except ConfigError as error:
        advice = "; loss_mask_key=None trains on every token" if wanted == AUTO else ""
        raise ConfigError(f"{error}{advice}") from error
    return key


def check_store(store: Store) -> None:
    """Raise ConfigError for anything but an open store of tokens."""
    if not isinstance(store, Store):
        raise ConfigError(f"store is {store!r}; expected an open store, such as headrace.open(path)")


def supervised_share(store: Store, mask: str, *, tokens: str | None = None) -> SupervisedShare:
    """Return what share of a store's tokens a mask trains: counted in the manifest, else from at most 2^20 values.

    Args:
        store: holds the tokens, or the mask alone.
        mask: key of the mask.
        tokens: key of the tokens that it masks; by default the main key.

    Raises:
        HeadraceError: the mask cannot be read.
    """
    counted = _counted(store, mask, tokens or store.keys[0])
    if counted is not None:
        return SupervisedShare(counted, store.num_tokens, is_all=True)
    num_tokens = store.num_tokens
    if num_tokens <= LOOKED_AT_TOKENS:
        begins, length = np.zeros(1, dtype=np.int64), num_tokens
    else:
        # Stretches spread evenly over the store, since the share may change from one end to the other.
        length = LOOKED_AT_TOKENS // _STRETCHES
        begins = np.linspace(0, num_tokens - length, _STRETCHES).astype(np.int64)
    pieces = store.pieces(begins, np.full_like(begins, length), mask if mask in store.keys else None)
    trained = sum(int(np.count_nonzero(piece)) for piece in pieces)
    return SupervisedShare(trained, length * len(begins), is_all=num_tokens <= LOOKED_AT_TOKENS)


def shown_mask(store: Store, key: str | None) -> str:
    """Return the end of a dataset's description: what share its mask trains, or that the store's mask is not used."""
    if key is None:
        mask = mask_of(store)
        return "" if mask is None else f", the store's {mask!r} is not used: masked tokens are trained on too"
    try:
        share = str(supervised_share(store, key))
    except (HeadraceError, OSError):
        share = "an unknown share of the tokens"
    return f", {share} supervised by {key!r}"


def warn_unused_mask(store: Store, who: str) -> None:
    """Warn that the store's mask is not used, where samples are those of another system that has no such mask."""
    if len(store.keys) == 1:
        _warn_left_out(store)
    mask = mask_of(store)
    if mask is not None:
        _log.warning(
            "%s: %s does not use the loss mask %r of this store, so that masked tokens are trained on too: use "
            "PackedSequenceDataset, WindowDataset or SFTDataset to apply it",
            store.path, who, mask,
        )  # fmt: skip


def _warn_left_out(store: Store) -> None:
    """Warn if a key was opened alone, and thus without the mask that the manifest of its store lists."""
    found = manifest_of(store)
    keys = () if found is None else found[1].keys
    masks = [key for key in keys if key == "masks" or key.endswith("_mask")]
    if masks and store.keys[0] not in masks:
        _log.warning(
            "%s was opened without its loss mask, and every token is trained on; the manifest in %s lists %s: open that"
            " folder without key= for WindowDataset or PackedSequenceDataset, or pass loss_mask_key=None if intended",
            store.path, "" if found is None else found[0], ", ".join(map(repr, masks)),
        )  # fmt: skip


def _counted(store: Store, mask: str, key: str) -> int | None:
    """Return the trained tokens that the manifest counts, if it describes this whole store and this mask alone."""
    found = manifest_of(store)
    samples = None if found is None else found[1].ledger.samples
    if found is None or samples is None or not samples.supervised:
        return None
    # The manifest keeps one sum over all masks.
    masks = [name for name in found[1].keys if name == "masks" or name.endswith("_mask")]
    tokens = samples.keys.get(key)
    is_whole = tokens is not None and tokens.kept == store.num_tokens
    return samples.supervised if masks == [mask] and is_whole else None
