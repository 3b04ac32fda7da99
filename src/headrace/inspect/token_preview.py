"""Previews of token stores: the documents or packs that a user wants to see, and how they are chosen."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.config import check_choice
from headrace.copying import is_copy
from headrace.datasets.packed_sequences import StoreLengths, make_plan
from headrace.errors import ConfigError, HeadraceError, StoreError
from headrace.inspect.blocks import ShownSequence
from headrace.inspect.description import ShownKeys, describe_store, find_manifest, spread_blocks, spread_documents
from headrace.inspect.figures import count, plural
from headrace.inspect.origins import find_origins, place_in_input
from headrace.inspect.shown import (
    MAX_SAMPLES,
    Preview,
    PreviewOptions,
    ShownSample,
    TokenOrder,
    chosen,
)
from headrace.inspect.token_texts import FoundTokenizer, IdTexts, TokenTexts, find_texts, sequence_of
from headrace.plan.packing import PackPlan
from headrace.stores import Dialect, Manifest, Store, open_tokens as open_store


class RecordKeys:
    """Reads documents of a store, with the keys that are shown."""

    def __init__(self, store: Store, keys: ShownKeys, texts: TokenTexts, sources: Mapping[int, str]) -> None:
        self._store, self._keys, self._texts, self._sources = store, keys, texts, sources

    def document(self, number: int, max_tokens: int) -> ShownSample:
        """Read one document, with at most ``max_tokens`` tokens of each sequence.

        Raises:
            StoreError: the lengths of the keys contradict each other.
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
        """Read the tokens ``[begin, end)`` of a document as a piece of a pack, whose positions begin at 0."""
        tokens, mask = self._tokens(document, self._keys.main)
        marks = None if mask is None else mask[begin:end]
        return self._sequence(
            self._keys.main, document, tokens[begin:end], marks, max_tokens, begin=begin, positions=None
        )

    def _sequence(
        self, name: str, number: int, tokens: NDArray[Any], mask: NDArray[Any] | None, max_tokens: int, **more: Any
    ) -> ShownSequence:
        if "position_ids" in self._keys.beside and "positions" not in more:
            more["positions"] = self._parallel(number, "position_ids", tokens)
        more["source"] = self._sources.get(number, "")
        return sequence_of(self._texts, name, number, tokens, mask=mask, most=max_tokens, **more)

    def _group(self, number: int, max_tokens: int) -> list[ShownSequence]:
        """Return a prompt and the responses to it."""
        prompt, _ = self._tokens(number, "prompts")
        tokens, mask = self._tokens(number, "responses")
        rewards = self._value(number, "rewards").tolist() if "rewards" in self._keys.beside else []
        lengths = [len(tokens)]
        if "response_lengths" in self._keys.beside:
            lengths = self._value(number, "response_lengths").tolist()
        if sum(lengths) != len(tokens) or min(lengths, default=0) < 0 or (rewards and len(rewards) < len(lengths)):
            raise StoreError(
                f"{self._store.path}: document {number} has {len(tokens):,} tokens of responses, but {len(lengths)} "
                f"responses of {sum(lengths):,} tokens together, and {len(rewards)} rewards: prepare the store again"
            )
        found = [self._sequence("prompt", number, prompt, None, max_tokens)]
        begin = 0
        for response, length in enumerate(lengths):
            rows = slice(begin, begin + length)
            name = f"response {response}" if "response_lengths" in self._keys.beside else "responses"
            reward = float(rewards[response]) if rewards and name != "responses" else None
            marks = None if mask is None else mask[rows]
            found.append(self._sequence(name, number, tokens[rows], marks, max_tokens, reward=reward))
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
                f"{self._store.path}: document {number} has {len(tokens):,} tokens, but {len(values):,} values of "
                f"{key!r}, which should have one for each token: prepare the store again"
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
                f"{self._store.path}: document {number}: its columns are not a JSON object: {error}"
            ) from error


MOST_LENGTHS = 1 << 24
"""The most documents whose lengths are compared; reading these takes about a second."""
MOST_MASKS = 1 << 14
"""The most documents whose masks are read if the store does not count trained tokens."""
NUM_SUPERVISED = "num_supervised"


def among(num_documents: int, most: int) -> str:
    """Return the words for the documents that are compared, if they are not all."""
    if num_documents <= most:
        return ""
    return f" among {count(most)} of {count(num_documents)} documents, in blocks that are evenly spread"


def trained_shares(
    store: Store, main: Store, keys: ShownKeys, dialect: Dialect | None
) -> tuple[NDArray[np.int64], NDArray[np.float64], str] | None:
    """Return documents, the share of each that is trained, and how they were chosen; None without a loss mask.

    Empty documents are left out. This reads the index, and up to `MOST_MASKS` masks if the store does not count
    trained tokens.
    """
    mask = keys.masks[keys.main]
    if mask is None:
        return None
    counts = mask == "loss_mask" and NUM_SUPERVISED in store.keys
    most = MOST_LENGTHS if counts else MOST_MASKS
    documents = spread_documents(store.num_documents, most)
    lengths = StoreLengths(main).spans(documents)[1]
    if counts:
        with open_store(store.path, key=NUM_SUPERVISED, dialect=dialect) as supervised:
            blocks = [supervised.fetch(*block) for block in spread_blocks(store.num_documents, most)]
        trained = np.concatenate(blocks).astype(np.int64)
    else:
        trained = np.array([np.count_nonzero(store.document(one, mask)) for one in documents.tolist()], np.int64)
    has_tokens = lengths > 0
    return documents[has_tokens], trained[has_tokens] / lengths[has_tokens], among(store.num_documents, most)


def choose(
    store: Store, main: Store, keys: ShownKeys, plan: PackPlan | None, options: PreviewOptions
) -> tuple[Sequence[int], str]:
    """Choose the numbers of the samples to show, in order, and say how they were chosen.

    The text is empty for samples that were named, and for the first ones. ``main`` is the store with the main key of
    those that are shown as its own.

    Raises:
        ConfigError: there is no such sample, or too many were asked for; two options say which are shown; the order is
            not one of tokens; or the store has no loss mask.
    """
    noun, total = ("document", store.num_documents) if plan is None else ("pack", len(plan))
    named, order = options.get("samples"), options.get("order")
    if order is not None:
        check_choice("`order`", order, get_args(TokenOrder))
        if named is not None:
            raise ConfigError(f"`order` and `samples` both say which {noun}s are shown: choose one")
        if plan is not None and order != "random":
            raise ConfigError(f"`order={order}` chooses documents: leave out `packing`, or use `order=random`")
    if named is not None and len(named) > MAX_SAMPLES:
        raise ConfigError(f"{len(named):,} {noun}s were asked for; at most {MAX_SAMPLES:,} are shown at once")
    first = chosen(store.path, noun, total, options)
    if order is None:
        return first, ""
    if order == "random":
        seed = options.get("seed", 0)
        drawn = random.Random(seed).sample(range(total), len(first))
        return drawn, f"{count(len(drawn))} at random, seed {seed}"
    if order == "longest":
        documents = spread_documents(total, MOST_LENGTHS)
        longest = np.argsort(-StoreLengths(main).spans(documents)[1], kind="stable")[: len(first)]
        return documents[longest].tolist(), f"the longest{among(total, MOST_LENGTHS)}"
    found = trained_shares(store, main, keys, options.get("dialect"))
    if found is None:
        raise ConfigError(f"{store.path} has no loss mask, which `order=least_trained` needs")
    documents, shares, words = found
    return documents[np.argsort(shares, kind="stable")[: len(first)]].tolist(), f"the least trained{words}"


MOST_LEFT_OUT = 20
"""The most bad records that are listed; any others are counted."""


def preview_tokens(name: str, options: PreviewOptions) -> Preview:
    """Return some samples of a store, with the text, mask, role and position of each token.

    Raises:
        StoreError: there is no store, or its tokeniser is missing.
        ConfigError: there is no such sample or key, the tokeniser is another one, or options contradict each other.
    """
    packing, dialect = options.get("packing"), options.get("dialect")
    num, limit = options.get("num", 3), options.get("limit")
    max_tokens = 2048 if limit is None else limit
    found = FoundTokenizer(IdTexts(), None)
    if not options.get("ids"):
        found = find_texts(name, given=options.get("tokenizer"), is_any=options.get("any_tokenizer", False))
    with open_store(name, dialect=dialect) as store:
        keys = ShownKeys.of(name, store.keys, options.get("key"))
        if packing is not None and keys.kind not in ("seq", "sft"):
            raise ConfigError(
                f"{name}: records of type {keys.kind} cannot be packed; choose one key, such as `key={keys.main}`, or"
                " leave `packing` out"
            )
        manifest = find_manifest(name)
        main = store if keys.main == store.keys[0] else open_store(store.path, key=keys.main, dialect=dialect)
        plan = None if packing is None else make_plan(main, StoreLengths(main), packing, None)
        if max_tokens < 1 or num < 1:
            raise ConfigError(f"`num` and `limit` must be at least 1, found {num} and {max_tokens}")
        numbers, chosen_by = choose(store, main, keys, plan, options)
        documents = numbers if plan is None else plan.items(np.array(numbers, np.int64)).documents.tolist()
        reader = RecordKeys(store, keys, found.texts, _sources(name, manifest, sorted({*documents})))
        samples = (
            [reader.document(number, max_tokens) for number in numbers]
            if plan is None
            else _packs(reader, plan, numbers, max_tokens)
        )
        return Preview(
            path=name,
            format=store.format,
            kind=keys.kind,
            keys=keys.names,
            num_documents=store.num_documents,
            tokenizer=found.source,
            note=found.note,
            seq_len=None if packing is None else packing.seq_len,
            num_samples=store.num_documents if plan is None else len(plan),
            chosen_by=chosen_by,
            samples=tuple(samples),
            left_out=() if manifest is None else _left_out(manifest),
            figures=describe_store(name, dialect=dialect) if options.get("with_figures") else None,
        )


def _sources(path: str, manifest: Manifest | None, documents: Sequence[int]) -> dict[int, str]:
    """Return the file and line that each document comes from, if the store keeps them."""
    if not documents or manifest is None:
        return {}
    if not (manifest.provenance or is_copy(manifest) or manifest.options.get("domain")):
        return {}
    try:
        origins = find_origins(path, documents, with_texts=False)
    except HeadraceError as error:
        return dict.fromkeys(documents, f"not known: {error}")
    places = (f"{origin.input}, {place_in_input(origin)}" for origin in origins)
    return dict(zip(documents, places, strict=True))


def _left_out(manifest: Manifest) -> tuple[str, ...]:
    """Return lines about what the run that made the store left out: by reason, then bad records by place."""
    lines = [
        f"{plural(number, 'document')} dropped: {reason}"
        for reason, number in sorted(manifest.ledger.documents.dropped.items())
        if number
    ]
    shown = manifest.errors[:MOST_LEFT_OUT]
    lines += [f"bad record: {entry.file}, {entry.unit} {count(entry.line)}: {entry.message}" for entry in shown]
    more = len(manifest.errors) - len(shown)
    return (*lines, *([f"{plural(more, 'more bad record')}: headrace.json lists them"] if more else []))


def _packs(reader: RecordKeys, plan: PackPlan, packs: Sequence[int], max_tokens: int) -> list[ShownSample]:
    items = plan.items(np.array(packs, np.int64))
    found = []
    for row, pack in enumerate(packs):
        left = max_tokens
        pieces: list[ShownSequence] = []
        for item in range(int(items.offsets[row]), int(items.offsets[row + 1])):
            begin, length = int(items.begins[item]), int(items.lengths[item])
            piece = reader.piece(int(items.documents[item]), begin, begin + length, left)
            left -= piece.num_shown
            pieces.append(piece)
        used = sum(piece.num_tokens for piece in pieces)
        found.append(ShownSample(number=pack, sequences=tuple(pieces), num_pads=plan.packing.seq_len - used))
    return found
