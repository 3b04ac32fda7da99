"""The keys of a store that belong together, and their values of single documents, for people to look at."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.cli.views.shown import Kind, ShownSample, ShownSequence
from headrace.cli.views.stretches import stretches
from headrace.cli.views.token_texts import TokenTexts
from headrace.datasets.loss_masks import mask_name
from headrace.datasets.sft_records import TOKEN_KEYS
from headrace.errors import ConfigError, StoreError
from headrace.stores import Store


class ShownKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown: keys of tokens, each with the key of its loss mask where there is one, and what stands beside."""

    kind: Kind
    masks: dict[str, str | None]
    """By key of tokens."""

    beside: tuple[str, ...] = ()
    """``position_ids``, ``response_lengths``, ``rewards``, ``columns``, ``label``: those that there are."""

    @property
    def main(self) -> str:
        """The first key of tokens."""
        return next(iter(self.masks))

    @property
    def names(self) -> tuple[str, ...]:
        """All keys that are read."""
        return (*self.masks, *(mask for mask in self.masks.values() if mask is not None), *self.beside)

    @classmethod
    def of(cls, store: Store, key: str | None) -> ShownKeys:
        """What the names of a store's keys say; ``key`` alone, if it is given.

        Raises:
            ConfigError: there is no such key.
        """
        names = set(store.keys)
        if key is not None and key not in names:
            raise ConfigError(f"{store.path}: no key {key!r}; its keys are {', '.join(map(repr, store.keys))}")
        if key is None and names >= {"chosen", "rejected"}:
            return cls(
                kind="dpo", masks={side: mask_name(side, names, is_main=False) for side in ("chosen", "rejected")}
            )
        if key is None and names >= {"prompts", "responses"}:
            return cls(
                kind="grpo",
                masks={"prompts": None, "responses": mask_name("responses", names, is_main=False)},
                beside=_there(names, "response_lengths", "rewards"),
            )
        if key is None and "prompts" in names:
            return cls(kind="prompt", masks={"prompts": None}, beside=_there(names, "columns"))
        main = key or next((name for name in TOKEN_KEYS if name in names), store.keys[0])
        mask = mask_name(main, names, is_main=main in (*TOKEN_KEYS, store.keys[0]))
        beside = _there(names, "position_ids", "label") if key is None else ()
        return cls(kind="seq" if mask is None else "sft", masks={main: mask}, beside=beside)


def _there(names: set[str], *wanted: str) -> tuple[str, ...]:
    return tuple(name for name in wanted if name in names)


class RecordKeys:
    """Reads documents of a store, of the keys that are shown."""

    def __init__(self, store: Store, keys: ShownKeys, texts: TokenTexts) -> None:
        self._store = store
        self._keys = keys
        self._texts = texts

    def document(self, number: int, max_tokens: int) -> ShownSample:
        """One document, at most so many tokens of each sequence.

        Raises:
            StoreError: keys that do not fit together.
        """
        if self._keys.kind == "grpo":
            return ShownSample(number=number, sequences=tuple(self._group(number, max_tokens)))
        return ShownSample(
            number=number,
            sequences=tuple(
                self._sequence(key, number, *self._tokens(number, key), max_tokens) for key in self._keys.masks
            ),
            columns=self._columns(number),
            label=bool(self._value(number, "label")[0]) if "label" in self._keys.beside else None,
        )

    def piece(self, document: int, begin: int, end: int, max_tokens: int) -> ShownSequence:
        """The tokens ``[begin, end)`` of a document, which in a pack have positions of their own."""
        key = self._keys.main
        tokens, mask = self._tokens(document, key)
        shown = slice(begin, min(end, begin + max_tokens))
        trained = None if mask is None else mask[begin:end]
        return ShownSequence(
            name=key,
            document=document,
            begin=begin,
            num_tokens=end - begin,
            num_trained=None if trained is None else int(np.count_nonzero(trained)),
            stretches=stretches(self._texts, tokens[shown], mask=None if mask is None else mask[shown]),
        )

    def _sequence(
        self, name: str, number: int, tokens: NDArray[Any], mask: NDArray[Any] | None, max_tokens: int
    ) -> ShownSequence:
        positions = None
        if "position_ids" in self._keys.beside:
            positions = self._parallel(number, "position_ids", tokens)[:max_tokens]
        return ShownSequence(
            name=name,
            document=number,
            num_tokens=len(tokens),
            num_trained=None if mask is None else int(np.count_nonzero(mask)),
            stretches=stretches(
                self._texts,
                tokens[:max_tokens],
                mask=None if mask is None else mask[:max_tokens],
                positions=positions,
            ),
        )

    def _group(self, number: int, max_tokens: int) -> list[ShownSequence]:
        """A prompt and the responses to it."""
        prompt, _ = self._tokens(number, "prompts")
        tokens, mask = self._tokens(number, "responses")
        rewards = self._value(number, "rewards").tolist() if "rewards" in self._keys.beside else []
        lengths = [len(tokens)]
        if "response_lengths" in self._keys.beside:
            lengths = self._value(number, "response_lengths").tolist()
        if sum(lengths) != len(tokens) or min(lengths, default=0) < 0 or (rewards and len(rewards) < len(lengths)):
            raise StoreError(
                f"{self._store.path}: document {number} has {len(tokens):,} tokens of responses, {len(lengths)} "
                f"responses of {sum(lengths):,} tokens, and {len(rewards)} rewards: prepare the store again"
            )
        found = [self._sequence("prompt", number, prompt, None, max_tokens)]
        begin = 0
        for response, length in enumerate(lengths):
            rows = slice(begin, begin + length)
            name = f"response {response}" if "response_lengths" in self._keys.beside else "responses"
            shown = self._sequence(name, number, tokens[rows], None if mask is None else mask[rows], max_tokens)
            reward = float(rewards[response]) if rewards and name != "responses" else None
            found.append(msgspec.structs.replace(shown, reward=reward))
            begin += length
        return found

    def _tokens(self, number: int, key: str) -> tuple[NDArray[Any], NDArray[Any] | None]:
        tokens = self._value(number, key)
        mask = self._keys.masks[key]
        return tokens, None if mask is None else self._parallel(number, mask, tokens)

    def _parallel(self, number: int, key: str, tokens: NDArray[Any]) -> NDArray[Any]:
        values = self._value(number, key)
        if len(values) != len(tokens):
            raise StoreError(
                f"{self._store.path}: document {number} has {len(tokens):,} tokens and {len(values):,} values of "
                f"{key!r}, which has one for each token: prepare the store again"
            )
        return values

    def _value(self, number: int, key: str) -> NDArray[Any]:
        return self._store.document(number, key)

    def _columns(self, number: int) -> dict[str, Any] | None:
        if "columns" not in self._keys.beside:
            return None
        data = self._value(number, "columns").tobytes()
        try:
            return msgspec.json.decode(data, type=dict[str, Any]) if data else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StoreError(
                f"{self._store.path}: document {number}: its columns are no JSON object: {error}"
            ) from error
