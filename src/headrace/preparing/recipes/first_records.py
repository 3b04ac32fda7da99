"""`make_first` makes samples of the first records, and keeps their texts for the proof of the library that encodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, InputError, RenderLimitError
from headrace.preparing.backends import (
    REFERENCE,
    Backend,
    Choice,
    OnCompared,
    ProvedEncoder,
    RefusedTextError,
    choose_backend,
)
from headrace.preparing.backends.comparison import BackendFailedError, encode_safely
from headrace.preparing.backends.tokenizer import TextTokenizer
from headrace.preparing.first_documents import most_characters
from headrace.preparing.messages import RecipeSetup
from headrace.preparing.options import PrepareOptions
from headrace.preparing.recipes.inputs import RecipeInputs
from headrace.preparing.record_encoder import make_maker
from headrace.samples.layouts import NUM_RECORDS
from headrace.samples.maker import SampleMaker
from headrace.samples.maker.noticing import recipes_that_take, unused_options
from headrace.samples.masking.options import MaskOptions
from headrace.samples.masking.results import APPENDED_END, OPENED_THOUGHT, SWITCHED
from headrace.samples.masking.token_spans import SpanEncoder
from headrace.samples.recipe import Recipe, StoreKey

_OFFSETS = (
    "the spans of tokens are the offsets of tokenizers: which bytes of a text a token is cannot be told by its id"
)


def choose_library(loaded: TextTokenizer, options: PrepareOptions, on_compared: OnCompared) -> Choice:
    """Choose the library before any text is read. Special tokens in texts of recipes are encoded as tokens."""
    wanted = options.tokens.backend
    if wanted == REFERENCE or SpanEncoder(loaded.json).sums_lengths:
        return choose_backend(loaded.json, wanted=wanted, special="encode", on_compared=on_compared)
    choice = choose_backend(loaded.json, wanted=REFERENCE, special="encode")
    return msgspec.structs.replace(choice, reasons={"all others" if wanted == "auto" else wanted: _OFFSETS})


class FirstSamples(NamedTuple):
    """What the first records were made into."""

    keys: tuple[StoreKey, ...]
    dtypes: Mapping[str, np.dtype[Any]]
    counts: Mapping[str, int]
    texts: list[str]
    """What the library encoded, if that is to be proved."""

    encoder: ProvedEncoder | None
    """The library, if it is to be proved."""


def make_first(
    making: RecipeSetup,
    inputs: RecipeInputs,
    loaded: TextTokenizer,
    choice: Choice,
    on_notice: Callable[[str], None],
) -> FirstSamples:
    """Make the first records of each input, so that errors show now."""
    encoder = None if choice.name == REFERENCE else ProvedEncoder(choice.name, loaded.json, "encode")
    recorder = None if encoder is None else _Recorder(encoder.backend, most_characters(inputs.files))
    maker: SampleMaker | None = None
    counts: Counter[str] = Counter()
    num_records, has_chats = 0, False
    for number, records in enumerate(inputs.first_records):
        maker = make_maker(making, loaded.json, source=number, encoder=recorder)
        try:
            made_first = maker.make(records)
            found = made_first.counts
        except RenderLimitError as error:
            raise ConfigError(f"inputs[{number}], record {error.record} of the first: {error}") from None
        num_records += len(records)
        has_chats = has_chats or maker.has_chats(records)
        for notice in maker.notices(records[:NUM_RECORDS]):
            on_notice(f"inputs[{number}]: {notice}")
        if found.notes.get("split_records"):
            tokens = sum(sums.made for sums in found.tokens.values())
            on_notice(
                f"inputs[{number}]: {found.notes['split_records']:,} of the first {len(records):,} records are split"
                " into several samples, since the template writes a turn differently when more messages follow: "
                f"{found.notes.get('split_tokens', 0):,} of {tokens:,} tokens are repeated. `mask: {{unstable: "
                "last_turn}` trains only the last turn; a template that keeps its turns needs no split"
            )
        for notice in _about_templates(found.notes, len(records)):
            on_notice(f"inputs[{number}]: {notice}")
        if made_first.bad:
            bad = made_first.bad[0]
            for line in recipes_that_take(
                records[bad.record],
                maker.recipe.mask,
                lambda mask, source=number: make_maker(_with_mask(making, mask), loaded.json, source=source),  # type: ignore[misc]
            ):
                on_notice(f"inputs[{number}], record {bad.record} is refused; {line}")
        counts.update({**found.notes, "eos": found.eos, "bos": found.bos})
    if maker is None:
        raise ConfigError("the recipe has no inputs")
    if unused := unused_options(maker.recipe, has_chats=has_chats):
        raise ConfigError(
            f"{', '.join(unused)}: no sample would change by this, since the recipe is of type {maker.recipe.type}"
            + ("" if has_chats else f" and none of the first {num_records:,} records is a conversation")
            + ": leave it out"
        )
    texts = [] if recorder is None else recorder.texts
    return FirstSamples(maker.keys, maker.dtypes, counts, texts, encoder)


def _about_templates(notes: Mapping[str, int], num_records: int) -> Iterator[str]:
    """Notices about what was chosen for single records, from the notes of the first ones; see `Marker.mark`."""
    for note, number in notes.items():
        argument = note.removeprefix(SWITCHED)
        if argument != note:
            name, _, value = argument.partition("=")
            yield (
                f"{number:,} of the first {num_records:,} records are rendered with {argument}, since the template's "
                "generation prompt, or the end of a turn, is otherwise not how it writes them. "
                f"`template: {{kwargs: {{{name}: {value}}}}}` renders all records so; a value in the recipe or in a "
                "record is never changed"
            )
    if notes.get(APPENDED_END):
        yield (
            f"{notes[APPENDED_END]:,} last turns of samples get a token that ends them, of generation_config.json, "
            "since the template writes no end there; `mask: {on_untrained_end: allow}` leaves it out"
        )
    if notes.get(OPENED_THOUGHT):
        yield (
            f"{notes[OPENED_THOUGHT]:,} turns begin where the template's generation prompt opens a thought, and have "
            "none: ask the trained model without that thought, or set `mask: {on_opened_thought: error}`"
        )


def _with_mask(making: RecipeSetup, mask: MaskOptions) -> RecipeSetup:
    recipe = msgspec.structs.replace(msgspec.json.decode(making.recipe, type=Recipe), mask=mask)
    return msgspec.structs.replace(making, recipe=msgspec.json.encode(recipe))


class _Recorder:
    """Encodes with a library that is not proved yet, and keeps the texts for its proof."""

    def __init__(self, backend: Backend, most_characters: int) -> None:
        self.texts: list[str] = []
        self._backend = backend
        self._room = most_characters

    def encode(self, texts: list[str], /) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode each text by itself, see `Backend.encode`.

        Raises:
            InputError: the library fails or refuses a text; the proof finds out which.
        """
        for text in texts:
            if self._room > 0:
                self.texts.append(text)
            self._room -= len(text)
        try:
            encoded = encode_safely(self._backend, texts)
        except (RefusedTextError, BackendFailedError) as error:
            raise InputError(f"{self._backend.name} refuses a text: {error}") from error
        return encoded.ids, encoded.lengths
