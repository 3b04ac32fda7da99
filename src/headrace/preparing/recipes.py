"""`prepare_recipe` writes a store from records of any layout; `plan_recipe` plans that, `estimate_recipe` estimates it.

A recipe is resolved into the plan of a run: its files, layouts, tokeniser and template are found. The first records
of each input show which layout they have. They are also made into samples, so that a recipe that cannot be followed
fails at once.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.engine.forking import may_fork
from headrace.errors import ConfigError, InputError, RenderLimitError
from headrace.io import AnyPath, Storage, check_readable, check_storage, is_url, path_at, reader_of
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
from headrace.preparing.backends.first_documents import (
    MAX_TEXT_BYTES,
    NUM_DOCUMENTS,
    FirstProof,
    most_characters,
    prove_texts,
)
from headrace.preparing.columns import DOMAIN, Column, Kind
from headrace.preparing.estimate import Estimate, estimate_plan
from headrace.preparing.filters import FilterSpec
from headrace.preparing.jobs import plan_run
from headrace.preparing.messages import RecipeSetup
from headrace.preparing.options import (
    BackendName,
    DocumentRunOptions,
    ErrorOptions,
    OutputOptions,
    RecordOptions,
    TextOptions,
    TokenOptions,
    check_documents,
)
from headrace.preparing.output_folder import STDIN_NAME, OutputFolder, output_at
from headrace.preparing.record_encoder import end_notices, find_end_names, make_maker
from headrace.preparing.run import run_in
from headrace.preparing.run_plan import RecipePart, RunPlan, TextProgress, show_compared
from headrace.preparing.sources import (
    RecordSpec,
    SourceFile,
    Span,
    choose_task_bytes,
    find_inputs,
    open_span,
    spool_stdin,
)
from headrace.preparing.tokenizer import TextTokenizer, load_tokenizer
from headrace.samples.layouts import NUM_RECORDS
from headrace.samples.maker import SampleMaker
from headrace.samples.maker.noticing import recipes_that_take
from headrace.samples.masking.options import MaskOptions
from headrace.samples.masking.token_spans import SpanEncoder
from headrace.samples.recipe import (
    ErrorSpec,
    Recipe,
    StoreKey,
    TemplateSpec,
    load_recipe,
    parse_recipe,
    resolve_layout,
)
from headrace.samples.recipe.recipe import InputSpec
from headrace.samples.templates import ChatTemplate, TemplateSetup, suite_names
from headrace.stores import Manifest
from headrace.stores.hdf5.store import load_h5py
from headrace.stores.indexed.layout import dtype_code
from headrace.stores.json.store import check_jsonl_dtype
from headrace.stores.keyed.layout import check_key, key_dtype


class RecipeOptions(DocumentRunOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `prepare_recipe`: what the recipe leaves open because it does not define the samples.

    This is the only place that owns these defaults.

    Example:
        >>> from pathlib import Path
        >>> lines = ["type: seq", "inputs: data/*.jsonl", "tokenizer: tokenizer.json"]
        >>> _ = Path("shuffled.yaml").write_text("\\n".join(lines))
        >>> options = headrace.preparing.RecipeOptions(shuffle=7, deduplicate=True)
        >>> manifest = headrace.preparing.prepare_recipe("shuffled.yaml", "shuffled", options=options)
        >>> manifest.order.seed
        7
    """

    id_field: str | None = None
    """The field that names a record; the ids are then stored beside the documents."""

    max_record_bytes: int = 64 << 20
    """A longer line, or text, is a bad record."""

    function: str | None = None
    """``module:function`` that decides which records are kept, see `FilterSpec`."""

    shuffle: int | None = None
    """Seed of a uniform shuffle of all documents, within their domains; None keeps the order of the input."""

    backend: BackendName = "auto"
    """See `TokenOptions`."""


def prepare_recipe(
    recipe: Recipe | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    inputs: Sequence[str | os.PathLike[str]] = (),
    tokenizer: str | os.PathLike[str] | None = None,
    options: RecipeOptions | None = None,
    storage: Storage | None = None,
    on_progress: Callable[[TextProgress], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
    stdin: BinaryIO | None = None,
) -> Manifest:
    """Make the samples of a recipe, and store them in a folder with a ``headrace.json``.

    The guarantees are those of `prepare_text`: the bytes depend on inputs, recipe, tokeniser, template and options
    alone, all files appear together, and the same call continues a run that was interrupted or killed.

    Args:
        recipe: a recipe, or the path or URL of its file, see `read_recipe`; a configuration of AstrAI is accepted too.
        output: a new or empty folder, or one with an unfinished run; or such a place at a URL.
        inputs: files to read in place of those that the recipe names.
        tokenizer: the tokeniser, if the recipe names none; also a URL.
        options: see `RecipeOptions`.
        storage: how the stores of URLs, wherever they stand, are reached; None goes by the environment.
        on_progress: called a few times a second.
        on_notice: called with what a user should know, such as the layout of the records, or that a run is continued.
        stdin: the stream that ``-`` reads; by default standard input.

    Returns:
        The manifest, as it was written.

    Raises:
        ConfigError: the recipe, or something that it names, is not valid.
        InputError: a record or file is bad; the message names file and line.
        OutputError: the folder is in use or holds something else, or the system refuses a write.
        WorkerError: several worker processes ended in the same task.
        MissingExtraError: a package that is needed is not installed.

    Example:
        >>> from pathlib import Path
        >>> lines = ["type: seq", "inputs: data/*.jsonl", "tokenizer: tokenizer.json"]
        >>> _ = Path("recipe.yaml").write_text("\\n".join(lines))
        >>> manifest = headrace.preparing.prepare_recipe("recipe.yaml", "sequences")
        >>> manifest.ledger.documents.kept == len(headrace.open("sequences"))
        True
    """
    check_readable(recipe, tokenizer, inputs, output)
    show = on_progress or (lambda progress: None)
    notice = on_notice or (lambda message: None)
    given = recipe
    recipe, run_options = _resolved(recipe, inputs, options or RecipeOptions(), storage)
    check_storage(storage, _all_paths(recipe), output, given, tokenizer)
    overwrite, restart = run_options.overwrite, run_options.restart
    with output_at(output, overwrite=overwrite, restart=restart, storage=storage) as folder:
        plan, encoder = _resolved_recipe(recipe, folder, tokenizer, run_options, show, notice, stdin, storage)
        return run_in(folder, plan, encoder=encoder, deciding=deciding(plan), on_progress=show, on_notice=notice)


def plan_recipe(
    recipe: Recipe | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    inputs: Sequence[str | os.PathLike[str]] = (),
    tokenizer: str | os.PathLike[str] | None = None,
    options: RecipeOptions | None = None,
    on_progress: Callable[[TextProgress], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> Manifest | None:
    """Plan a run of `prepare_recipe` in its output folder, for processes on any hosts, see `plan_text`.

    Raises:
        ConfigError, InputError, OutputError, MissingExtraError: as `prepare_recipe`.
    """
    check_readable(recipe, output, tokenizer, inputs)
    show = on_progress or (lambda progress: None)
    notice = on_notice or (lambda message: None)
    recipe, run_options = _resolved(recipe, inputs, options or RecipeOptions())
    with output_at(output, overwrite=run_options.overwrite, restart=run_options.restart) as folder:
        plan, _ = _resolved_recipe(recipe, folder, tokenizer, run_options, show, notice, None)
        return plan_run(folder, plan, deciding(plan), notice)


def _resolved_recipe(
    recipe: Recipe,
    folder: OutputFolder,
    tokenizer: str | os.PathLike[str] | None,
    options: TextOptions,
    show: Callable[[TextProgress], None],
    notice: Callable[[str], None],
    stdin: BinaryIO | None,
    storage: Storage | None = None,
) -> tuple[RunPlan, ProvedEncoder | None]:
    stdin_path = None
    if reads_stdin(recipe):
        stdin_path = folder.work / STDIN_NAME
        spool_stdin(stdin or sys.stdin.buffer, stdin_path)
    return resolve(
        recipe,
        options,
        tokenizer=tokenizer,
        stdin=stdin_path,
        earlier=folder.earlier,
        storage=storage,
        on_progress=show,
        on_notice=notice,
    )


def estimate_recipe(
    recipe: Recipe | str | os.PathLike[str],
    *,
    inputs: Sequence[str | os.PathLike[str]] = (),
    tokenizer: str | os.PathLike[str] | None = None,
    options: RecipeOptions | None = None,
    storage: Storage | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> Estimate:
    """Estimate from a sample what a run of `prepare_recipe` would make, see `estimate_text`.

    Raises:
        ConfigError: as `prepare_recipe`; standard input is among the inputs.
        InputError: a file cannot be read, or there are no records. Bad records are counted.
        MissingExtraError: as `prepare_recipe`.
    """
    check_readable(recipe, tokenizer, inputs)
    recipe, run_options = _resolved(recipe, inputs, options or RecipeOptions(), storage)
    if reads_stdin(recipe):
        raise ConfigError("input '-': standard input cannot be sampled; a dry run needs files")
    plan, _ = resolve(
        recipe,
        run_options,
        tokenizer=tokenizer,
        stdin=None,
        earlier={},
        storage=storage,
        on_progress=lambda progress: None,
        on_notice=on_notice or (lambda message: None),
    )
    return estimate_plan(plan)


def _resolved(
    recipe: Recipe | str | os.PathLike[str],
    inputs: Sequence[str | os.PathLike[str]],
    options: RecipeOptions,
    storage: Storage | None = None,
) -> tuple[Recipe, TextOptions]:
    """The recipe with its inputs, and the options of the run as `TextOptions`."""
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe, storage)
    recipe = with_inputs(recipe, inputs)
    output = recipe.output
    run_options = TextOptions(
        records=RecordOptions(fields=(), id_field=options.id_field, max_record_bytes=options.max_record_bytes),
        tokens=TokenOptions(special_tokens_in_text="encode", backend=options.backend),
        filters=FilterSpec(function=options.function),
        deduplicate=options.deduplicate,
        output=OutputOptions(
            format=output.format,
            shard_tokens=output.shard_tokens,
            shuffle=options.shuffle,
        ),
        errors=ErrorOptions(on_error=recipe.errors.on_error, max_errors=recipe.errors.max_errors),
        workers=options.workers,
        task_bytes=options.task_bytes,
        overwrite=options.overwrite,
        restart=options.restart,
    )
    check_documents(run_options)
    return recipe, run_options


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
    if not is_url(path):
        return load_recipe(path)
    place = path_at(path, reader_of(storage))
    name = os.fspath(path)
    try:
        recipe = parse_recipe(place.read_text("utf-8"), name=name)
    except FileNotFoundError:
        raise ConfigError(f"recipe {name!r} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {name!r} cannot be read: {error}") from error
    folder = str(place.parent)
    inputs = []
    for spec in recipe.inputs:
        paths = tuple(_placed(one, folder) for one in _paths(spec))
        inputs.append(msgspec.structs.replace(spec, paths=paths[0] if isinstance(spec.paths, str) else paths))
    tokenizer = None if recipe.tokenizer is None else _placed(recipe.tokenizer, folder)
    template = recipe.template
    if template is not None and template.path is not None:
        found = _placed(template.path, folder)
        if template.path not in suite_names() or (is_url(found) and path_at(found, reader_of(storage)).exists()):
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
        spec = recipe.inputs[0] if recipe.inputs else InputSpec(paths="")
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
    spec: RecordSpec,
    *,
    stdin: Path | None,
    storage: Storage | None,
    keep_faulty: bool,
    num_records: int,
    max_record_bytes: int,
    on_notice: Callable[[str], None],
) -> RecipeInputs:
    """Find all files, read the first records of each input, and resolve the layouts that the recipe leaves open.

    Raises:
        ConfigError: see `find_inputs`; or no layout fits the records, or several do.
        InputError: see `find_inputs`; or there is no record by which to recognise a layout.
    """
    files: list[SourceFile] = []
    sources: list[int] = []
    seen: dict[str, str] = {}
    first_records = []
    for number, entry in enumerate(recipe.inputs):
        found = find_inputs(_paths(entry), spec=spec, stdin=stdin, keep_faulty=keep_faulty, storage=storage)
        for file in found:
            real = file.path if is_url(file.path) else os.path.realpath(file.path)
            if real in seen:
                raise ConfigError(f"{file.name}: the same file comes from two inputs of the recipe: name it once")
            seen[real] = file.name
        records, bad = _first_records(found, spec, num_records, max_record_bytes)
        if not recipe.by_sections and entry.layout == "auto" and not records:
            raise InputError(bad or f"no records in {len(found):,} files of inputs[{number}]. Nothing was written.")
        recipe, recognised = resolve_layout(recipe, records, source=number)
        if recognised is not None:
            others = f" (would fit as well: {', '.join(recognised.alternatives)})" if recognised.alternatives else ""
            on_notice(f"inputs[{number}] is of the layout {recognised.layout}: {recognised.why}{others}")
        files += found
        sources += [number] * len(found)
        first_records.append(tuple(records))
    return RecipeInputs(recipe=recipe, files=tuple(files), sources=tuple(sources), first_records=tuple(first_records))


def _all_paths(recipe: Recipe) -> list[str | None]:
    template = None if recipe.template is None else recipe.template.path
    return [*(path for spec in recipe.inputs for path in _paths(spec)), recipe.tokenizer, template]


def _paths(spec: InputSpec) -> tuple[str, ...]:
    return (spec.paths,) if isinstance(spec.paths, str) else spec.paths


def _first_records(
    files: Sequence[SourceFile], spec: RecordSpec, num_records: int, max_record_bytes: int
) -> tuple[list[Any], str]:
    """The first good records, up to a number of records and bytes, and the first bad record among them, in words."""
    records: list[Any] = []
    bad, num_bytes = "", 0
    for file in files:
        reader = open_span(file, Span(0, 0, file.extent), spec, max_record_bytes=max_record_bytes)
        for block in reader.blocks():
            records += (block.records or [])[: num_records - len(records)]
            num_bytes += block.input_bytes
            if block.bad and not bad:
                bad = f"{file.name}, {block.bad[0].line + 1:,}: {block.bad[0].message}"
            if len(records) >= num_records or num_bytes >= MAX_TEXT_BYTES:
                return records, bad
    return records, bad


_OFFSETS = (
    "the spans of tokens are the offsets of tokenizers: which bytes of a text a token is cannot be told by its id"
)


def resolve(
    recipe: Recipe,
    options: TextOptions,
    *,
    tokenizer: str | os.PathLike[str] | None,
    stdin: Path | None,
    earlier: Mapping[str, Any],
    storage: Storage | None,
    on_progress: Callable[[TextProgress], None],
    on_notice: Callable[[str], None],
) -> tuple[RunPlan, ProvedEncoder | None]:
    """Make the plan of a run.

    Args:
        recipe: a recipe that has inputs.
        options: the options of the run, which contain what the recipe says about output and errors.
        tokenizer: the tokeniser, if the recipe names none.
        stdin: the copy of standard input, if that is an input.
        earlier: the description of an unfinished run in the same folder; its time is used for a template that asks for
            the time.
        storage: how the stores of URLs are reached.
        on_progress: called with the phases before the first record is stored.
        on_notice: called with the layouts that were recognised, and other notices for the user.

    Returns:
        The plan, and the loaded encoder if workers are forks of this process.

    Raises:
        ConfigError: something that the recipe names does not exist, or its parts do not fit together.
        InputError: a file cannot be read.
        MissingExtraError: a package is not installed.
    """
    on_progress(TextProgress(phase="tokenizer"))
    loaded, folder = find_tokenizer(recipe, tokenizer, storage)
    recipe, template = find_template(recipe, folder, earlier, storage)
    choice = _choice(loaded, options, show_compared(on_progress, "probe"))
    inputs = find_recipe_inputs(
        recipe,
        RunPlan.record_spec(options),
        stdin=stdin,
        storage=storage,
        keep_faulty=options.errors.on_error == "skip",
        num_records=NUM_RECORDS if choice.name == REFERENCE else NUM_DOCUMENTS,
        max_record_bytes=options.records.max_record_bytes,
        on_notice=on_notice,
    )
    names = find_end_names(loaded, folder, template)
    making = RecipeSetup(
        recipe=msgspec.json.encode(inputs.recipe),
        sources=inputs.sources,
        template=None if template is None else msgspec.json.encode(template),
        special_tokens=names.tokens,
    )
    proof, made = _tried(making, inputs, loaded, choice, on_notice, show_compared(on_progress, "prove"))
    for notice in end_notices(names, made.counts, sum(map(len, inputs.first_records))):
        on_notice(notice)
    plan = RunPlan(
        files=inputs.files,
        options=options,
        tokenizer=loaded,
        eod=None,
        bos=None,
        choice=proof.choice,
        first_documents=proof.num_texts,
        task_bytes=options.task_bytes or choose_task_bytes(sum(file.text_bytes for file in inputs.files)),
        recipe=RecipePart(
            columns=_columns(inputs.recipe, made.keys, made.dtypes),
            making=making,
            described=_described(inputs.recipe, template, options),
            max_records=inputs.recipe.filters.max_records,
        ),
    )
    _check_layout(plan)
    return plan, proof.encoder


def deciding(plan: RunPlan) -> dict[str, Any]:
    """What decides the bytes of the run, for `run_in`. How errors are treated is not part of it."""
    if plan.recipe is None:
        raise ConfigError("the plan does not belong to a recipe")
    described = {name: value for name, value in plan.recipe.described.items() if name != "errors"}
    return {**described, "recipe": {**described["recipe"], "errors": msgspec.to_builtins(ErrorSpec())}}


def find_tokenizer(
    recipe: Recipe, given: str | os.PathLike[str] | None, storage: Storage | None = None
) -> tuple[TextTokenizer, AnyPath]:
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
            place = path_at(spec.path, reader_of(storage)) if is_url(spec.path) else Path(spec.path)
            template = ChatTemplate.load(
                place if is_url(spec.path) else spec.path,
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


def _choice(loaded: TextTokenizer, options: TextOptions, on_compared: OnCompared) -> Choice:
    """Choose the library before any text is read. Special tokens in texts of recipes are encoded as tokens."""
    wanted = options.tokens.backend
    if wanted == REFERENCE or SpanEncoder(loaded.json).sums_lengths:
        return choose_backend(loaded.json, wanted=wanted, special="encode", on_compared=on_compared)
    choice = choose_backend(loaded.json, wanted=REFERENCE, special="encode")
    return msgspec.structs.replace(choice, reasons={"all others" if wanted == "auto" else wanted: _OFFSETS})


class _Made(NamedTuple):
    """What the first records were made into."""

    keys: tuple[StoreKey, ...]
    dtypes: Mapping[str, np.dtype[Any]]
    counts: Mapping[str, int]


def _tried(
    making: RecipeSetup,
    inputs: RecipeInputs,
    loaded: TextTokenizer,
    choice: Choice,
    on_notice: Callable[[str], None],
    on_compared: OnCompared,
) -> tuple[FirstProof, _Made]:
    """Make the first records of each input, so that errors show now, and prove the library on their texts."""
    encoder, recorder = None, None
    if choice.name != REFERENCE or may_fork():
        encoder = ProvedEncoder(choice.name, loaded.json, "encode")
    if encoder is not None and choice.name != REFERENCE:
        recorder = _Recorder(encoder.backend, most_characters(inputs.files))
    maker: SampleMaker | None = None
    counts: Counter[str] = Counter()
    for number, records in enumerate(inputs.first_records):
        maker = make_maker(making, loaded.json, source=number, encoder=recorder)
        try:
            made_first = maker.make(records)
            found = made_first.counts
        except RenderLimitError as error:
            raise ConfigError(f"inputs[{number}], record {error.record} of the first: {error}") from None
        for notice in maker.notices(records[:NUM_RECORDS]):
            on_notice(f"inputs[{number}]: {notice}")
        if found.notes.get("split_records"):
            tokens = sum(sums.made for sums in found.tokens.values())
            on_notice(
                f"inputs[{number}]: {found.notes['split_records']:,} of the first {len(records):,} records are split"
                " into several samples, since the template writes a turn differently when more messages follow: "
                f"{found.notes['split_tokens']:,} of {tokens:,} tokens are repeated. `mask: {{unstable: last_turn}}` "
                "trains only the last turn; a template that keeps its turns needs no split"
            )
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
    made = _Made(maker.keys, maker.dtypes, counts)
    if encoder is None or recorder is None:
        return FirstProof(choice, 0, encoder), made
    return prove_texts(choice, recorder.texts, encoder, on_compared), made


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


def _described(recipe: Recipe, template: TemplateSetup | None, options: TextOptions) -> dict[str, Any]:
    """The recipe and options as the manifest lists them.

    They are encoded to JSON and decoded again, so that the result equals what is read back.
    """
    names = ("records", "filters", "deduplicate", "output", "errors")
    described = {name: getattr(options, name) for name in names}
    decoded: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode({"recipe": recipe, "template": template, **described})
    )
    return decoded
