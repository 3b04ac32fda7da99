"""The tokeniser that made a store, found by its manifest, and proved to be that one."""

from __future__ import annotations

from typing import NamedTuple

from headrace.cli.views.token_texts import IdTexts, TokenTexts, open_texts
from headrace.errors import ConfigError, StoreError
from headrace.prepare.tokenizer import load_tokenizer
from headrace.stores import TokenizerInfo


class Found(NamedTuple):
    """A vocabulary, where it came from, and what a reader should know."""

    texts: TokenTexts
    source: str | None
    note: str = ""


def find_texts(made_by: TokenizerInfo | None, *, given: str | None, is_any: bool, path: str) -> Found:
    """The vocabulary to read a store with; without any, ids stand in place of texts.

    Args:
        made_by: what the manifest says.
        given: a ``tokenizer.json``, or its folder, as the user says it; None takes the one that the manifest names.
        is_any: take it although it is another one than the store was made with.
        path: the store, for messages.

    Raises:
        ConfigError: it cannot be read, or is not the one that the store was made with.
        StoreError: the one that the manifest names is not there, or was changed.
    """
    if given is None and made_by is None:
        return Found(IdTexts(), None, "the store does not say its tokeniser, so that ids are shown: give --tokenizer")
    name = given if given is not None else made_by.source if made_by is not None else ""
    try:
        tokenizer = load_tokenizer(name)
    except ConfigError as error:
        if given is not None:
            raise
        raise StoreError(
            f"{path}: its tokeniser cannot be read: {error}. Give --tokenizer PATH, or --ids to see numbers"
        ) from None
    if made_by is None or tokenizer.fingerprint == made_by.xxh3_128:
        return Found(open_texts(tokenizer.instance()), name)
    message = (
        f"{path} was made with another tokeniser: {made_by.source}, xxh3 {made_by.xxh3_128}; {name} has xxh3 "
        f"{tokenizer.fingerprint}"
    )
    if not is_any:
        if given is None:
            raise StoreError(f"{message}: it was changed since. Give the old one with --tokenizer PATH")
        raise ConfigError(f"{message}. Give that one, or --any-tokenizer to read the store with this one all the same")
    return Found(
        open_texts(tokenizer.instance()), name, f"read with another tokeniser than the store was made with: {name}"
    )
