"""`resolve` makes the plan of a run from a recipe: it finds files, layouts, tokeniser, template, keys and library.

Samples of the first records are made already here, so that a recipe that cannot be followed fails at once. Their texts
serve for the proof of the library.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.engine.forking import apart
from headrace.errors import ConfigError, InputError, RenderLimitError
from headrace.io import AnyPath, Storage, as_read_back, path_at, reader_of
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
from headrace.preparing.backends.tokenizer import LoadedTokenizer, load_tokenizer
from headrace.preparing.columns import DOMAIN, Column, Kind
from headrace.preparing.options import PrepareOptions
from headrace.preparing.recipes.inputs import RecipeInputs, find_recipe_inputs
from headrace.preparing.record_encoder import end_notices, find_end_names, make_maker
from headrace.preparing.run import NUM_DOCUMENTS, Unproved, most_characters
from headrace.preparing.run_plan import OnProgress, RecipeSetup, RunPlan, show_compared
from headrace.preparing.sources import choose_task_bytes
from headrace.samples.layouts import NUM_RECORDS
from headrace.samples.maker import SampleMaker
from headrace.samples.maker.noticing import recipes_that_take, unused_options
from headrace.samples.masking.options import MaskOptions
from headrace.samples.masking.results import APPENDED_END, OPENED_THOUGHT, SWITCHED
from headrace.samples.masking.token_spans import SpanEncoder
from headrace.samples.recipe import Recipe, StoreKey, TemplateSpec
from headrace.samples.templates import ChatTemplate, TemplateSetup
from headrace.samples.tokenizer import TokenizerFile
from headrace.stores.foreign_ranges import load_h5py
from headrace.stores.foreign_writers import check_jsonl_dtype
from headrace.stores.indexed.layout import dtype_code
from headrace.stores.keyed.layout import check_key, key_dtype


def resolve(
    recipe: Recipe,
    options: PrepareOptions,
    *,
    tokenizer: str | os.PathLike[str] | None,
    storage: Storage | None,
    stdin: Callable[[], Path | None],
    earlier: Mapping[str, Any],
    on_progress: OnProgress,
    on_notice: Callable[[str], None],
) -> Unproved:
    """Make the plan of a run.

    Args:
        recipe: a recipe that has inputs.
        options: the options of the run, see `recipe_options`.
        tokenizer: the tokeniser, if the recipe names none.
        storage: how the stores of URLs are reached.
        stdin: copies standard input to a file, if that is an input.
        earlier: the description of an unfinished run in the same folder; its time is used for a template that asks for
            the time.
        on_progress: called with the phases before the first record is stored.
        on_notice: called with the layouts that were recognised, and other notices for the user.

    Returns:
        The plan, and the texts of the first records.

    Raises:
        ConfigError: something that the recipe names does not exist, or its parts do not fit together.
        InputError: a file cannot be read.
        MissingExtraError: a package is not installed.
    """
    show_compared(on_progress, "tokenizer")(0, 0)
    loaded, folder = find_tokenizer(recipe, tokenizer, storage)
    recipe, template = find_template(recipe, folder, earlier, storage)
    choice, encoder = choose_library(loaded.file, options, show_compared(on_progress, "probe"))
    inputs = find_recipe_inputs(
        recipe,
        RunPlan.record_spec(options),
        stdin=stdin(),
        storage=storage,
        keep_faulty=options.errors.on_error == "skip",
        num_records=NUM_RECORDS if choice.name == REFERENCE else NUM_DOCUMENTS,
        max_record_bytes=options.records.max_record_bytes,
        on_notice=on_notice,
    )
    known = loaded.known
    names = find_end_names(known, folder, template)
    making = RecipeSetup(
        recipe=msgspec.json.encode(inputs.recipe),
        sources=inputs.sources,
        template=None if template is None else msgspec.json.encode(template),
        special_tokens=names.tokens,
        before_text=known.before_text,
        generation_ends=names.generation_ends,
    )
    # A library may start threads when it encodes, and workers are forks only of a process that has a single one.
    made = apart(lambda tell: make_first(making, inputs, encoder, tell), on_notice)
    begin = "".join(map(loaded.token_text, known.before_text)) if recipe.ends.bos == "auto" else ""
    for notice in end_notices(names, made.counts, sum(map(len, inputs.first_records)), begin):
        on_notice(notice)
    plan = RunPlan(
        files=inputs.files,
        options=options,
        tokenizer=known,
        eod=None,
        bos=None,
        choice=choice,
        task_bytes=options.task_bytes or choose_task_bytes(sum(file.text_bytes for file in inputs.files)),
        columns=_columns(inputs.recipe, made.keys, made.dtypes),
        recipe=making,
        described=as_read_back({"recipe": inputs.recipe, "template": template}),
        max_records=inputs.recipe.filters.max_records,
    )
    _check_layout(plan)
    return Unproved(plan, made.texts, encoder)


def find_tokenizer(
    recipe: Recipe, given: str | os.PathLike[str] | None, storage: Storage | None = None
) -> tuple[LoadedTokenizer, AnyPath]:
    """The tokeniser of a recipe, or ``given`` if the recipe names none, and its folder; both may be at a URL.

    Raises:
        ConfigError: there is no tokeniser, or there are two different ones.
    """
    if given is not None and recipe.tokenizer is not None and os.fspath(given) != recipe.tokenizer:
        raise ConfigError(
            f"the recipe says tokenizer: {recipe.tokenizer}, but {os.fspath(given)!r} was given as well: give only one"
        )
    name = given if given is not None else recipe.tokenizer
    if name is None:
        raise ConfigError("no tokeniser: write `tokenizer: FOLDER` in the recipe, or give --tokenizer PATH")
    loaded = load_tokenizer(name, storage)
    place = path_at(name, reader_of(storage))
    if place.is_dir():
        return loaded, place
    # By the slash at its end a folder of a web server is known.
    return loaded, place.parent if isinstance(place, Path) else place.at(f"{place.parent}/")


def find_template(
    recipe: Recipe, folder: AnyPath, earlier: Mapping[str, Any], storage: Storage | None = None
) -> tuple[Recipe, TemplateSetup | None]:
    """The template, if there is one, and the recipe with the time that the template sees, if it asks for the time."""
    spec = recipe.template or TemplateSpec()
    try:
        if spec.path is None:
            template = ChatTemplate.load(folder, name=spec.name)
        else:
            place = path_at(spec.path, reader_of(storage))
            template = ChatTemplate.load(
                spec.path if isinstance(place, Path) else place,
                name=spec.name,
                tokenizer=None if place.is_dir() else folder,
            )
    except ConfigError:
        if recipe.template is not None and (spec.path is not None or spec.name is not None):
            raise
        return recipe, None  # a record that needs a template will be refused
    setup = template.setup
    if not setup.asks_for_time:
        return recipe, msgspec.structs.replace(setup, now=None)
    now = spec.now
    if now is None:
        before = (((earlier.get("recipe") or {}).get("template")) or {}).get("now")
        now = datetime.now().replace(microsecond=0) if before is None else datetime.fromisoformat(before)
    recipe = msgspec.structs.replace(recipe, template=msgspec.structs.replace(spec, now=now))
    return recipe, msgspec.structs.replace(setup, now=now)


def _columns(recipe: Recipe, keys: tuple[StoreKey, ...], dtypes: Mapping[str, np.dtype[Any]]) -> tuple[Column, ...]:
    names = {key.name: key.stored for key in keys}
    columns = []
    for key in keys:
        kind: Kind = "ids" if key.kind == "ids" else "mask" if key.kind == "mask" else "value"
        if key.kind == "positions" and recipe.output.position_ids == "continuous":
            kind = "positions"
        parallel_to = "" if key.parallel_to is None else names[key.parallel_to]
        columns.append(Column(key.stored, dtypes[key.name].name, kind, parallel_to))
    return (*columns, *([DOMAIN] if recipe.output.domain_key is not None else []))


def _check_layout(plan: RunPlan) -> None:
    """Refuse before the run what the layout cannot hold.

    Raises:
        ConfigError: the layout cannot store a key because of its dtype or its name.
        MissingExtraError: h5py is not installed.
    """
    layout = plan.options.output.format
    for column in plan.columns:
        if column.kind == "domain":
            continue
        try:
            if layout == "indexed":
                dtype_code(column.dtype, ids=column.kind == "ids")
            else:
                check_key(column.key)
                dtype = key_dtype(column.dtype)
                if layout == "jsonl":
                    check_jsonl_dtype(dtype)
        except ConfigError as error:
            raise ConfigError(f"key {column.key!r} cannot be stored as {layout}: {error}") from None
    if layout == "hdf5":
        load_h5py("output.format hdf5")


_OFFSETS = (
    "the spans of tokens are the offsets of tokenizers: which bytes of a text a token is cannot be told by its id"
)


def choose_library(
    file: TokenizerFile, options: PrepareOptions, on_compared: OnCompared
) -> tuple[Choice, ProvedEncoder]:
    """Choose the library before any text is read. Special tokens in texts of recipes are encoded as tokens."""
    wanted = options.tokens.backend
    if wanted == REFERENCE or SpanEncoder(file).sums_lengths:
        return choose_backend(file, wanted=wanted, special="encode", on_compared=on_compared)
    choice, encoder = choose_backend(file, wanted=REFERENCE, special="encode")
    reasons = {"all others" if wanted == "auto" else wanted: _OFFSETS}
    return msgspec.structs.replace(choice, reasons=reasons), encoder


class FirstSamples(NamedTuple):
    """What the first records were made into."""

    keys: tuple[StoreKey, ...]
    dtypes: Mapping[str, np.dtype[Any]]
    counts: Mapping[str, int]
    texts: list[str]
    """What the library encoded, if that is to be proved."""


def make_first(
    making: RecipeSetup,
    inputs: RecipeInputs,
    encoder: ProvedEncoder,
    on_notice: Callable[[str], None],
) -> FirstSamples:
    """Make the first records of each input, so that errors show now."""
    is_reference = encoder.name == REFERENCE
    recorder = None if is_reference else _Recorder(encoder.backend, most_characters(inputs.files))
    maker: SampleMaker | None = None
    counts: Counter[str] = Counter()
    num_records, has_chats = 0, False
    for number, records in enumerate(inputs.first_records):
        maker = make_maker(making, encoder.file, source=number, encoder=recorder)
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
                lambda mask, source=number: make_maker(_with_mask(making, mask), encoder.file, source=source),  # type: ignore[misc]
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
    return FirstSamples(maker.keys, maker.dtypes, counts, texts)


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
