"""Make a store of the records of a recipe, whatever their layouts. Only runs of recipes load this file.

`read_recipe`, `with_inputs` and `with_options` say what the recipe is. `resolve` makes the plan of a run from it: it
finds files, layouts, tokeniser, template, keys and library. Samples of the first records are made already here, so that
a recipe that cannot be followed fails at once. Their texts serve for the proof of the library.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.engine.forking import apart
from headrace.engine.job import Show
from headrace.errors import ConfigError, InputError, RenderLimitError
from headrace.io import AnyPath, Storage, as_read_back, check_readable, path_at, reader_of
from headrace.io.finding import real_name
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
from headrace.preparing.ledger import described, error_entry
from headrace.preparing.options import ErrorOptions, OutputOptions, PrepareOptions
from headrace.preparing.record_encoder import end_notices, find_end_names, make_maker
from headrace.preparing.run import MAX_TEXT_BYTES, NUM_DOCUMENTS, Unproved, most_characters
from headrace.preparing.run_plan import RecipeSetup, RunPlan, show_compared
from headrace.preparing.sources import RecordSpec, SourceFile, Span, choose_task_bytes, find_inputs, open_span
from headrace.preparing.sources.find import Wanted, check_fields
from headrace.samples.layouts import LAYOUTS, NUM_RECORDS
from headrace.samples.layouts.turns import EACH, InputSpec
from headrace.samples.maker import SampleMaker
from headrace.samples.maker.noticing import recipes_that_take, unused_options
from headrace.samples.masking.options import MaskOptions
from headrace.samples.masking.results import APPENDED_END, OPENED_THOUGHT, SWITCHED
from headrace.samples.masking.token_spans import SpanEncoder
from headrace.samples.recipe import Recipe, StoreKey, TemplateSpec, load_recipe, resolve_layout
from headrace.samples.templates import ChatTemplate, TemplateSetup, suite_names
from headrace.samples.tokenizer import TokenizerFile
from headrace.stores.foreign_ranges import load_h5py
from headrace.stores.foreign_writers import check_jsonl_dtype
from headrace.stores.indexed.layout import dtype_code
from headrace.stores.keyed.layout import check_key, key_dtype


def read_recipe(path: str | os.PathLike[str], storage: Storage | None = None) -> Recipe:
    """Read a recipe as `load_recipe` does, also from a URL, to whose folder relative paths in the recipe refer then.

    A template that is not there by its name may be one of our suite, as with a local recipe.

    Args:
        path: the path of the file, or its URL.
        storage: how the store of a URL is reached; None goes by the environment.

    Raises:
        ConfigError: as `load_recipe`.
        StoreError: the store of the URL cannot be reached.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("chats.yaml").write_text("{type: sft, inputs: chats.jsonl, tokenizer: chat-tokenizer}")
        >>> headrace.preparing.read_recipe("chats.yaml").inputs[0].paths
        'chats.jsonl'
    """
    check_readable(path)
    place = path_at(path, reader_of(storage))
    recipe = load_recipe(place)
    if isinstance(place, Path):
        return recipe
    folder = str(place.parent)
    inputs = []
    for spec in recipe.inputs:
        paths = tuple(_placed(one, folder) for one in _paths(spec))
        inputs.append(msgspec.structs.replace(spec, paths=paths[0] if isinstance(spec.paths, str) else paths))
    tokenizer = None if recipe.tokenizer is None else _placed(recipe.tokenizer, folder)
    template = recipe.template
    if template is not None and template.path is not None:
        found = _placed(template.path, folder)
        if template.path not in suite_names() or path_at(found, reader_of(storage)).exists():
            template = msgspec.structs.replace(template, path=found)
    return msgspec.structs.replace(recipe, inputs=tuple(inputs), tokenizer=tokenizer, template=template)


def _placed(path: str, folder: str) -> str:
    """Return a path that a recipe in a folder at a URL names: the URL of a relative one, all others as they are."""
    if path == "-" or path.startswith("/") or "://" in path:
        return path
    slash = "/" if path.endswith("/") else ""
    return f"{path_at(folder) / path}{slash}"


class RecipeInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a recipe, as they were found."""

    recipe: Recipe
    """The recipe, with every layout resolved."""

    files: tuple[SourceFile, ...]
    sources: tuple[int, ...]
    """For each file the number of the recipe's input that named it."""

    first_records: tuple[tuple[Any, ...], ...]
    """The first records of each input of the recipe."""


def with_inputs(recipe: Recipe, inputs: Sequence[str | os.PathLike[str]]) -> Recipe:
    """Replace the files of a recipe by ``inputs``, if there are any.

    Raises:
        ConfigError: the recipe has several inputs, or there are no inputs at all.
    """
    if inputs:
        if len(recipe.inputs) > 1:
            raise ConfigError(
                f"the recipe has {len(recipe.inputs)} inputs, each with a layout of its own, so it is not clear which "
                "of them other files would replace: name the files in the recipe"
            )
        spec = recipe.inputs[0] if recipe.inputs else InputSpec()
        paths = tuple(os.fspath(path) for path in inputs)
        return msgspec.structs.replace(recipe, inputs=(msgspec.structs.replace(spec, paths=paths),))
    if not recipe.inputs:
        raise ConfigError("no input: name files in the recipe, `inputs: [data.jsonl]`, or on the command line")
    return recipe


def reads_stdin(recipe: Recipe) -> bool:
    """Whether standard input is among the inputs."""
    return any("-" in _paths(spec) for spec in recipe.inputs)


def find_recipe_inputs(
    recipe: Recipe,
    options: PrepareOptions,
    *,
    stdin: Path | None,
    storage: Storage | None,
    num_records: int,
    on_notice: Callable[[str], None],
) -> RecipeInputs:
    """Find all files, read the first records of each input, and resolve the layouts that the recipe leaves open.

    Raises:
        ConfigError: see `find_inputs`; or no layout fits the records, or several do.
        InputError: see `find_inputs`; or there is no record by which to recognise a layout.
    """
    spec, keep_faulty = RunPlan.record_spec(options), options.errors.on_error == "skip"
    files: list[SourceFile] = []
    sources: list[int] = []
    seen: dict[str, str] = {}
    first_records = []
    for number, entry in enumerate(recipe.inputs):
        found = find_inputs(_paths(entry), spec=spec, stdin=stdin, keep_faulty=keep_faulty, storage=storage)
        for file in found:
            real = real_name(file.path)
            if real in seen:
                raise ConfigError(f"{file.name}: the same file comes from two inputs of the recipe: name it once")
            seen[real] = file.name
        records, bad = _first_records(found, spec, num_records)
        if not recipe.by_sections and entry.layout == "auto" and not records:
            raise InputError(bad or f"no records in {len(found):,} files of inputs[{number}]. Nothing was written.")
        recipe, recognised = resolve_layout(recipe, records, source=number)
        if recognised is not None:
            others = f" (would fit as well: {', '.join(recognised.alternatives)})" if recognised.alternatives else ""
            on_notice(f"inputs[{number}] is of the layout {recognised.layout}: {recognised.why}{others}")
        check_fields(found, spec, _needed(recipe, number))
        files += found
        sources += [number] * len(found)
        first_records.append(tuple(records))
    return RecipeInputs(recipe=recipe, files=tuple(files), sources=tuple(sources), first_records=tuple(first_records))


def _needed(recipe: Recipe, number: int) -> list[Wanted]:
    """What `check_fields` wants of the files of an input."""
    spec = recipe.inputs[number]
    if recipe.by_sections:
        sections = [source.sections for source in recipe.sources.values() if source.sections] or [recipe.sections]
        groups, what = [[section.field for section in group] for group in sections], "the sections need it"
    else:
        groups = [] if spec.layout == EACH else [[field] for field in LAYOUTS[spec.layout].required]
        what = f"the layout {spec.layout} needs it"
    advice = f"{what}: name the right one with `fields`, or give such files an input of their own"
    return [([spec.fields.get(field, field) for field in group], advice) for group in groups]


def _first_records(files: Sequence[SourceFile], spec: RecordSpec, num_records: int) -> tuple[list[Any], str]:
    """The first good records, up to a number of records and bytes, and the first bad record among them, in words."""
    records: list[Any] = []
    bad, num_bytes = "", 0
    for file in files:
        for block in open_span(file, Span(0, 0, file.extent), spec).blocks():
            records += (block.records or [])[: num_records - len(records)]
            num_bytes += block.input_bytes
            if block.bad and not bad:
                entry = error_entry(file, spec.sample_by, block.bad[0].line, block.bad[0].message)
                bad = f"{described(entry)} Nothing was written."
            if len(records) >= num_records or num_bytes >= MAX_TEXT_BYTES:
                return records, bad
    return records, bad


def all_paths(recipe: Recipe) -> list[str | None]:
    """Return all paths and URLs that a recipe names; None for what it leaves open."""
    template = None if recipe.template is None else recipe.template.path
    return [*(path for spec in recipe.inputs for path in _paths(spec)), recipe.tokenizer, template]


def _paths(spec: InputSpec) -> tuple[str, ...]:
    return (spec.paths,) if isinstance(spec.paths, str) else spec.paths


_INSTEAD = {
    "fields": "`fields:` of the input gives fields their names",
    "join": "`sections:` joins fields",
    "sample_by": "a text file is one record",
    "append_eod": "`ends: {append_eos: true}`",
    "eod": "`ends: {eos: TOKEN}`",
    "bos": "`ends: {bos: auto}`, always, never or a token",
    "special_tokens_in_text": "`special_tokens_in_text: ...` of the recipe",
    "min_chars": "`filters: {min_chars: N}`",
    "max_chars": "`filters: {max_chars: N}`",
    "min_tokens": "`filters: {min_tokens: N}`",
    "max_tokens": "`filters: {max_tokens: N}`, or `length: {max_tokens: N}` to cut",
}
"""Options for text alone, and what a recipe says instead of each."""


def with_options(recipe: Recipe, options: PrepareOptions, given: Collection[str] = ()) -> Recipe:
    """Return the recipe with what options say about its output and errors.

    Args:
        recipe: a recipe.
        options: those of the run. An option counts as given if it differs from its default.
        given: the names of options that were given, even if they have their defaults.

    Raises:
        ConfigError: an option is for text alone, or the recipe says something else.

    Example:
        >>> from headrace.preparing.recipes import with_options
        >>> from headrace.samples.recipe import parse_recipe
        >>> options = headrace.preparing.PrepareOptions(output=headrace.preparing.OutputOptions(format="jsonl"))
        >>> with_options(parse_recipe("{type: seq, inputs: a.jsonl}"), options).output.format
        'jsonl'
    """
    for group in ("records", "tokens", "filters"):
        for name in _given(options, group, given):
            if name in _INSTEAD:
                raise ConfigError(f"`{name}` is for text, not for a recipe: {_INSTEAD[name]}")
    for group in ("output", "errors"):
        part, values = getattr(recipe, group), _given(options, group, given)
        for name, value in values.items():
            found, default = getattr(part, name), getattr(type(part)(), name)
            if found not in (default, value):
                raise ConfigError(
                    f"the recipe says {group}.{name}: {found}, but the options say {value}: set it in one place"
                )
        recipe = msgspec.structs.replace(recipe, **{group: msgspec.structs.replace(part, **values)})
    return recipe


def recipe_options(recipe: Recipe, options: PrepareOptions) -> PrepareOptions:
    """Return the options of a run of a recipe: whole records are read, and the recipe decides output and errors."""
    return msgspec.structs.replace(
        options,
        records=msgspec.structs.replace(options.records, fields=()),
        tokens=msgspec.structs.replace(options.tokens, special_tokens_in_text="encode"),
        output=OutputOptions(format=recipe.output.format, shard_tokens=recipe.output.shard_tokens),
        errors=ErrorOptions(on_error=recipe.errors.on_error, max_errors=recipe.errors.max_errors),
    )


def _given(options: PrepareOptions, group: str, given: Collection[str]) -> dict[str, Any]:
    """The options of a group that were given, by their names."""
    values, default = msgspec.structs.asdict(getattr(options, group)), getattr(PrepareOptions(), group)
    return {name: value for name, value in values.items() if name in given or value != getattr(default, name)}


def resolve(
    recipe: Recipe,
    options: PrepareOptions,
    *,
    tokenizer: str | os.PathLike[str] | None,
    storage: Storage | None,
    stdin: Callable[[], Path | None],
    earlier: Mapping[str, Any],
    show: Show,
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
        show: is told of the phases before the first record is stored, of the layouts that were recognised, and of what
            else a user should know.

    Returns:
        The plan, and the texts of the first records.

    Raises:
        ConfigError: something that the recipe names does not exist, or its parts do not fit together.
        InputError: a file cannot be read.
        MissingExtraError: a package is not installed.
    """
    show_compared(show, "tokenizer")(0, 0)
    loaded, folder = find_tokenizer(recipe, tokenizer, storage)
    recipe, template = find_template(recipe, folder, earlier, storage)
    choice, encoder = choose_library(loaded.file, options, show_compared(show, "probe"))
    inputs = find_recipe_inputs(
        recipe,
        options,
        stdin=stdin(),
        storage=storage,
        num_records=NUM_RECORDS if choice.name == REFERENCE else NUM_DOCUMENTS,
        on_notice=show.notice,
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
    made = apart(lambda tell: make_first(making, inputs, encoder, tell), show.notice)
    begin = "".join(map(loaded.token_text, known.before_text)) if recipe.ends.bos == "auto" else ""
    for notice in end_notices(names, made.counts, made.num_records, begin):
        show.notice(notice)
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
    num_records: int
    texts: list[str]
    """What the library encoded, if that is to be proved."""


def make_first(
    making: RecipeSetup,
    inputs: RecipeInputs,
    encoder: ProvedEncoder,
    on_notice: Callable[[str], None],
) -> FirstSamples:
    """Make the first records of each input, so that errors show now; more of them while a proof still needs texts."""
    is_reference = encoder.name == REFERENCE
    recorder = None if is_reference else _Recorder(encoder.backend, most_characters(inputs.files))
    maker: SampleMaker | None = None
    counts: Counter[str] = Counter()
    total, has_chats = 0, False
    for number, records in enumerate(inputs.first_records):
        maker = make_maker(making, encoder.file, source=number, encoder=recorder)
        found: Counter[str] = Counter()
        bad: list[int] = []
        num_made = num_tokens = 0
        while num_made < len(records) and (not num_made or (recorder is not None and recorder.has_room)):
            some = records[num_made : num_made + NUM_RECORDS]
            try:
                made = maker.make(some)
            except RenderLimitError as error:
                record = num_made + error.record
                raise ConfigError(f"inputs[{number}], record {record} of the first: {error}") from None
            found.update({**made.counts.notes, "eos": made.counts.eos, "bos": made.counts.bos})
            bad += [num_made + one.record for one in made.bad]
            num_tokens += sum(sums.made for sums in made.counts.tokens.values())
            num_made += len(some)
        total += num_made
        has_chats = has_chats or maker.has_chats(records)
        about = _about_templates(found, num_made, num_tokens)
        for notice in (*maker.notices(records[:NUM_RECORDS]), *about):
            on_notice(f"inputs[{number}]: {notice}")
        if bad:
            for line in recipes_that_take(
                records[bad[0]],
                maker.recipe.mask,
                lambda mask, source=number: make_maker(_with_mask(making, mask), encoder.file, source=source),  # type: ignore[misc]
            ):
                on_notice(f"inputs[{number}], record {bad[0]} is refused; {line}")
        counts.update(found)
    if maker is None:
        raise ConfigError("the recipe has no inputs")
    if unused := unused_options(maker.recipe, has_chats=has_chats):
        num_read = sum(map(len, inputs.first_records))
        raise ConfigError(
            f"{', '.join(unused)}: no sample would change by this, since the recipe is of type {maker.recipe.type}"
            + ("" if has_chats else f" and none of the first {num_read:,} records is a conversation")
            + ": leave it out"
        )
    texts = [] if recorder is None else recorder.texts
    return FirstSamples(maker.keys, maker.dtypes, counts, total, texts)


def _about_templates(notes: Mapping[str, int], num_records: int, num_tokens: int) -> Iterator[str]:
    """Notices about what was chosen for single records, from the notes of the first ones; see `Marker.mark`."""
    if notes.get("split_records"):
        yield (
            f"{notes['split_records']:,} of the first {num_records:,} records are split into several samples, since the"
            f" template writes a turn differently when more messages follow: {notes.get('split_tokens', 0):,} of"
            f" {num_tokens:,} tokens are repeated. `mask: {{unstable: last_turn}}` trains only the last turn; a"
            " template that keeps its turns needs no split"
        )
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

    @property
    def has_room(self) -> bool:
        """Whether the proof needs more texts."""
        return self._room > 0

    def encode(self, texts: list[str], /) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode each text by itself, see `Backend.encode`.

        Raises:
            InputError: the library fails or refuses a text; the proof finds out which.
        """
        for text in texts:
            if self.has_room:
                self.texts.append(text)
            self._room -= len(text)
        try:
            encoded = encode_safely(self._backend, texts)
        except (RefusedTextError, BackendFailedError) as error:
            raise InputError(f"{self._backend.name} refuses a text: {error}") from error
        return encoded.ids, encoded.lengths
