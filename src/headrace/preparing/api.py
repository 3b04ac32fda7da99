"""`prepare` writes a store; `plan` plans that for any hosts, and `estimate` tells from a sample what it would write.

An estimate encodes the first 8 MiB of text, file after file, and scales what comes of them up to the bytes of all
files. What changes behind them is not seen. Nothing is written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec
import numpy as np

from headrace.engine.forking import may_fork
from headrace.engine.job import Show
from headrace.errors import ConfigError, InputError
from headrace.io import Storage, check_readable, check_storage, path_at, reader_of
from headrace.preparing.backends import REFERENCE, MismatchError, ProvedEncoder, choose_backend
from headrace.preparing.backends.tokenizer import load_tokenizer
from headrace.preparing.columns import Column
from headrace.preparing.ledger import BAD, Tally, check_left, check_tolerance, described, error_entry
from headrace.preparing.options import PrepareOptions, check_options, check_text_options, output_keys
from headrace.preparing.outputs.folder import STDIN_NAME, OutputFolder, do_here, output_at
from headrace.preparing.run import Unproved, first_texts, plan_run, prove_first_documents
from headrace.preparing.run_plan import OnProgress, RunPlan, show_compared, shown
from headrace.preparing.sources import Span, choose_task_bytes, find_inputs, open_span, spool_stdin
from headrace.preparing.sources.find import check_fields
from headrace.preparing.text_job import TextJob
from headrace.preparing.worker import load_encoder
from headrace.stores import ErrorEntry, Manifest, load_manifest, optimal_dtype

if TYPE_CHECKING:
    from headrace.preparing.shards import ShardOptions
    from headrace.samples.recipe import Recipe

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def prepare(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    recipe: Recipe | str | os.PathLike[str] | None = None,
    options: PrepareOptions | ShardOptions | None = None,
    storage: Storage | None = None,
    on_progress: OnProgress | None = None,
    on_notice: Callable[[str], None] | None = None,
    stdin: BinaryIO | None = None,
) -> Manifest:
    """Prepare a store in a folder: tokens of text, samples of records, or media in tar shards.

    ===================== ====================================
    what is given         what is written
    ===================== ====================================
    ``tokenizer``         tokens of text
    ``recipe``            samples of records, as a recipe says
    ``ShardOptions``      tar shards, see `prepare_shards`
    ===================== ====================================

    The bytes written depend on inputs, tokeniser, recipe and options alone, never on the number of workers. All files
    appear together at the end, or none does. If a run was interrupted or killed, the same call continues it.

    Args:
        inputs: a file, folder or glob, or several of them, see `sources.find_inputs`; also URLs, and ``-`` for standard
            input. With a recipe they replace the inputs that the recipe names; an empty list keeps those.
        output: a new or empty folder, or one with an unfinished run; or such a place at a URL, as
            ``s3://bucket/stores/web``, see `headrace.preparing.outputs.url`.
        tokenizer: a ``tokenizer.json``, or a folder that holds one; also a URL. With a recipe it is needed only if the
            recipe names none.
        recipe: a recipe, or the path or URL of its file, see `read_recipe`; a configuration of AstrAI is accepted too.
        options: `PrepareOptions` for text and for a recipe, `ShardOptions` for media.
        storage: how the stores of URLs, wherever they stand, are reached; None goes by the environment.
        on_progress: called a few times a second with a `headrace.engine.job.TaskProgress`.
        on_notice: called with what a user should know: that a run is continued, say, the layout of records, or that a
            fast library gave wrong ids and is no longer used.
        stdin: the stream that ``-`` reads; by default standard input.

    Returns:
        The manifest, as it was written.

    Raises:
        ConfigError: the arguments do not fit together, or one of them, or something that a recipe names, is not valid.
        InputError: a record or file is bad; the message names file and line.
        OutputError: the folder is in use or holds something else, or the system refuses a write.
        WorkerError: several worker processes ended in the same task.
        MissingExtraError: a package that is needed is not installed.

    Example:
        >>> manifest = headrace.prepare("data/*.jsonl", "prepared", tokenizer="tokenizer.json")
        >>> manifest.ledger.documents.kept == len(headrace.open("prepared"))
        True

        A recipe, which names its inputs and the tokeniser:

        >>> from pathlib import Path
        >>> lines = ["type: seq", "inputs: data/*.jsonl", "tokenizer: tokenizer.json"]
        >>> _ = Path("recipe.yaml").write_text("\\n".join(lines))
        >>> manifest = headrace.prepare([], "sequences", recipe="recipe.yaml")
        >>> manifest.ledger.documents.kept == len(headrace.open("sequences"))
        True
    """
    if tokenizer is None and recipe is None and options is not None:
        from headrace.preparing.shards import ShardOptions, prepare_shards

        if isinstance(options, ShardOptions):
            return prepare_shards(
                _several(inputs), output, options=options, storage=storage, on_progress=on_progress, on_notice=on_notice
            )
    asked, show = _asked(inputs, output, tokenizer, recipe, options, storage), shown(on_progress, on_notice)
    folder, planned, encoder = _planned(asked, output, storage, show, stdin)
    make = partial(TextJob, storage=storage, encoder=encoder)
    return do_here(folder, planned, make, workers=asked.options.workers, show=show)


def plan(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    recipe: Recipe | str | os.PathLike[str] | None = None,
    options: PrepareOptions | None = None,
    on_progress: OnProgress | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> Manifest | None:
    """Plan a run of `prepare` over text or records in its output folder, for processes on any hosts to do its tasks.

    See `headrace.kinds.open_job`. The output is the same, byte for byte. If the run is planned or complete already,
    this does nothing. `plan_shards` plans media.

    Args:
        inputs: see `prepare`; not ``-``. All hosts reach URLs by what their environment says.
        output: a folder that all hosts can write to, or a URL; inputs must have the same paths on all of them.
        tokenizer: see `prepare`.
        recipe: see `prepare`.
        options: see `PrepareOptions`.
        on_progress: called a few times a second.
        on_notice: called with what a user should know.

    Returns:
        The manifest if the output is complete already; None if the run is planned.

    Raises:
        ConfigError, InputError, OutputError, MissingExtraError: as `prepare`.

    Example:
        >>> headrace.preparing.plan(["data/*.jsonl"], "shared", tokenizer="tokenizer.json")
        >>> job = headrace.kinds.open_job("shared")
        >>> job.phase().name.partition("-")[0]
        'encode'
    """
    asked = _asked(inputs, output, tokenizer, recipe, options, None)
    if asked.reads_stdin:
        raise ConfigError("input '-': only this process can read its standard input; other hosts need files")
    folder, planned, _ = _planned(asked, output, None, shown(on_progress, on_notice), None)
    return load_manifest(folder.output) if planned is None else None


def estimate(
    inputs: Paths,
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    recipe: Recipe | str | os.PathLike[str] | None = None,
    options: PrepareOptions | None = None,
    storage: Storage | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> Estimate:
    """Prepare the beginning of the inputs of text or records, in this process, and scale it up. Nothing is written.

    The first 8 MiB of text are encoded, one file after another, so changes behind them go unnoticed. Smaller inputs are
    read whole, and the numbers are then exact. `estimate_shards` estimates media.

    Raises:
        ConfigError: as `prepare`; or standard input is among the inputs.
        InputError: a file cannot be read, or there are no records. Bad records are counted and raise nothing.
        MissingExtraError: as `prepare`.
    """
    asked = _asked(inputs, None, tokenizer, recipe, options, storage)
    if asked.reads_stdin:
        raise ConfigError("input '-': standard input cannot be sampled; a dry run needs files")
    found = asked.resolve(stdin=lambda: None, earlier={}, show=shown(None, on_notice))
    return estimate_plan(found.plan, found.encoder)


class _Asked(NamedTuple):
    """What a caller asked for, which was checked."""

    options: PrepareOptions
    reads_stdin: bool
    resolve: Callable[..., Unproved]
    """Makes the plan, given the last three arguments of `recipes.resolve`."""


def _several(inputs: Paths) -> Sequence[str | os.PathLike[str]]:
    return [inputs] if isinstance(inputs, str | os.PathLike) else inputs


def _asked(
    inputs: Paths,
    output: str | os.PathLike[str] | None,
    tokenizer: str | os.PathLike[str] | None,
    recipe: Recipe | str | os.PathLike[str] | None,
    options: PrepareOptions | ShardOptions | None,
    storage: Storage | None,
) -> _Asked:
    """Check the arguments of the functions above, and read the recipe.

    Raises:
        ConfigError: they do not fit together, or one of them is not valid.
    """
    places, options = _several(inputs), options or PrepareOptions()
    if not isinstance(options, PrepareOptions):
        raise ConfigError(
            f"options are {type(options).__name__}, but text and recipes take PrepareOptions. ShardOptions are for "
            "media, without tokenizer= and recipe=, and for plan_shards and estimate_shards"
        )
    if recipe is None:
        if tokenizer is None:
            raise ConfigError(
                "neither tokenizer nor recipe is given: give tokenizer= for text, recipe= for records, or prepare "
                "media with options=ShardOptions(). A folder of tars becomes an Energon dataset by "
                "headrace.preparing.prepare_energon"
            )
        check_storage(storage, places, output, tokenizer)
        check_text_options(options)
        reads_stdin = any(os.fspath(name) == "-" for name in places)
        return _Asked(options, reads_stdin, partial(_resolve_text, places, options, tokenizer, storage))
    # Processes that prepare text do not load what recipes need.
    from headrace.preparing import recipes

    check_readable(recipe, tokenizer, places, output)
    read = recipes.read_recipe(recipe, storage) if isinstance(recipe, str | os.PathLike) else recipe
    read = recipes.with_options(recipes.with_inputs(read, places), options)
    check_storage(storage, recipes.all_paths(read), output, recipe, tokenizer)
    options = recipes.recipe_options(read, options)
    check_options(options)
    resolve = partial(recipes.resolve, read, options, tokenizer=tokenizer, storage=storage)
    return _Asked(options, recipes.reads_stdin(read), resolve)


def _planned(
    asked: _Asked,
    output: str | os.PathLike[str],
    storage: Storage | None,
    show: Show,
    stdin: BinaryIO | None,
) -> tuple[OutputFolder, RunPlan | None, ProvedEncoder | None]:
    """Plan a run in its output, see `plan_run`; also return the encoder that workers inherit if they are forks."""
    place = path_at(output, reader_of(storage))
    with output_at(place, overwrite=asked.options.overwrite, restart=asked.options.restart) as folder:

        def spooled() -> Path | None:
            if not asked.reads_stdin:
                return None
            spool_stdin(stdin or sys.stdin.buffer, folder.work / STDIN_NAME)
            return folder.work / STDIN_NAME

        found = asked.resolve(stdin=spooled, earlier=folder.earlier, show=show)
        made = prove_first_documents(found, show_compared(show, "prove"))
        planned = plan_run(folder, made, found.encoder.file.content, show.notice)
    return folder, planned, found.encoder if may_fork() else None


def _resolve_text(
    inputs: Sequence[str | os.PathLike[str]],
    options: PrepareOptions,
    tokenizer: str | os.PathLike[str],
    storage: Storage | None,
    *,
    stdin: Callable[[], Path | None],
    earlier: Any,
    show: Show,
) -> Unproved:
    """Make the plan of a run over text, see `recipes.resolve`."""
    show_compared(show, "tokenizer")(0, 0)
    loaded = load_tokenizer(tokenizer, storage)
    tokens, spec = options.tokens, RunPlan.record_spec(options)
    eod = loaded.find_eod(tokens.eod) if tokens.append_eod else None
    bos = loaded.find_bos(tokens.bos)
    keep_faulty = options.errors.on_error == "skip"
    files = find_inputs(inputs, spec=spec, stdin=stdin(), keep_faulty=keep_faulty, storage=storage)
    check_fields(files, spec)
    choice, encoder = choose_backend(
        loaded.file,
        wanted=tokens.backend,
        special=tokens.special_tokens_in_text,
        on_compared=show_compared(show, "probe"),
    )
    made = RunPlan(
        files=tuple(files),
        options=options,
        tokenizer=loaded.known,
        eod=eod,
        bos=bos,
        eod_text=loaded.token_text(eod),
        bos_text=loaded.token_text(bos),
        choice=choice,
        columns=tuple(Column(key, optimal_dtype(loaded.known.vocab_size).name) for key in output_keys(options)),
        task_bytes=options.task_bytes or choose_task_bytes(sum(file.text_bytes for file in files)),
    )
    if made.missing_bos is not None:
        show.notice(
            f"no BOS is added, although the tokeniser begins texts with {loaded.token_text(made.missing_bos)!r}: "
            "Megatron adds none either. `--bos auto` adds it; documents that do not begin with it are counted as "
            "missing_bos"
        )
    return Unproved(made, first_texts(made), encoder)


SAMPLE_BYTES = 8 << 20
"""Characters of text that are encoded."""

_BLOCK_BYTES = 128 << 10
_INDEX_BYTES = {"indexed": 20, "keyed": 11, "hdf5": 800, "jsonl": 6}
"""Bytes for each key of a document beside its values: lengths, pointers and document indices (indexed), a number as
text in ``meta.json`` (keyed), the header of an array (HDF5), the punctuation around the key and its numbers (JSON
lines)."""

_ORDER_BYTES = 8
"""Bytes of a document in the table of origins, if documents have domains."""

_JSON_SHARE = 2.3
"""Bytes of a number in JSON divided by its bytes in binary: about 5 to 2 for ids, 2 to 1 for masks."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a run over these inputs would write. The numbers are those of the whole run, scaled up from the sample."""

    inputs: int
    input_bytes: int
    sampled_bytes: int
    """Bytes of the input files that were read, from the first one on."""
    sampled_documents: int
    is_exact: bool
    """Whether the sample was the whole input, so that documents and tokens are exact numbers."""
    bad_records: int
    """Bad records in the sample; this number is not scaled up."""
    first_error: str
    """The message of the first bad record, or empty."""
    documents: int
    tokens: int
    dtype: str
    output_bytes: int
    """Bytes of all output files, except the manifest and some headers."""
    backend: str
    fallback: str
    """Why ``tokenizers`` encodes although a faster library passed its first proof; else empty."""
    dropped: dict[str, int]
    """Documents of the sample that filters drop, for each reason. Only a run finds duplicates."""
    stops: str = ""
    """Why a run would end without output, as far as the sample shows; else empty."""


def estimate_plan(plan: RunPlan, encoder: ProvedEncoder) -> Estimate:
    """Estimate what a run of this plan would write, see `estimate`."""
    fallback = ""
    try:
        sample = _sample(plan, encoder)
    except MismatchError as error:
        fallback = str(error)
        encoder = ProvedEncoder(REFERENCE, encoder.file, plan.options.tokens.special_tokens_in_text)
        sample = _sample(plan, encoder)
    read = sample.tally
    if not read.documents.read:
        raise InputError(f"a sample of {len(plan.files):,} files holds no records: is this the right data?")
    scale = 1.0 if sample.is_whole else plan.total_bytes / max(1, sample.num_bytes)
    documents = round(read.documents.kept * scale)
    return Estimate(
        inputs=len(plan.files),
        input_bytes=plan.total_bytes,
        sampled_bytes=sample.num_bytes,
        sampled_documents=read.documents.kept,
        is_exact=sample.is_whole,
        bad_records=len(sample.errors),
        first_error=described(sample.errors[0]) if sample.errors else "",
        documents=documents,
        tokens=round(read.tokens.kept * scale),
        dtype=np.dtype(plan.columns[0].dtype).name,
        output_bytes=_output_bytes(plan, documents, round(sample.value_bytes * scale)),
        backend=encoder.name,
        fallback=fallback,
        dropped={name: number for name, number in sorted(read.documents.dropped.items()) if name != BAD},
        stops=_stops(plan, sample),
    )


def _stops(plan: RunPlan, sample: _Sample) -> str:
    """Return what a run would end with, if it would have no output."""
    try:
        num_read = sample.tally.documents.read if sample.is_whole else None
        check_tolerance(sample.errors, plan.options.errors, noun="record", num_read=num_read)
        if sample.is_whole:
            check_left(plan, sample.tally, sample.errors)
    except InputError as error:
        return str(error)
    return ""


def _output_bytes(plan: RunPlan, documents: int, value_bytes: int) -> int:
    layout = plan.options.output.format
    has_order = any(column.kind == "domain" for column in plan.columns)
    per_document = _INDEX_BYTES[layout] * len(plan.keys) + _ORDER_BYTES * has_order
    if layout == "jsonl":
        value_bytes = round(value_bytes * _JSON_SHARE)
        per_document += sum(map(len, plan.keys))
    return value_bytes + documents * per_document


@dataclass
class _Sample:
    """What was read and encoded."""

    num_bytes: int = 0
    value_bytes: int = 0
    is_whole: bool = True
    errors: list[ErrorEntry] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)


def _sample(plan: RunPlan, proved: ProvedEncoder) -> _Sample:
    """Read and encode the beginning of the inputs, in this process and with one library.

    Raises:
        MismatchError: the library differs from the reference tokeniser.
        InputError: a file cannot be read.
    """
    encoder = load_encoder(plan.setup(results="", tokenizer="", backend=proved.name), proved)
    found, left = _Sample(), SAMPLE_BYTES
    spec = plan.record_spec(plan.options)
    for number, file in enumerate(plan.files):
        reader = open_span(file, Span(number, 0, file.extent), spec, block_bytes=_BLOCK_BYTES)
        read_bytes = compressed_bytes = 0
        for block in reader.blocks():
            if left <= 0:
                found.is_whole = False
                found.num_bytes += compressed_bytes or read_bytes
                return found
            left -= sum(len(text) for texts in block.texts for text in texts) + block.num_lines
            read_bytes += block.input_bytes
            # Of a compressed file more was read ahead than came out of it.
            compressed_bytes = reader.compressed_bytes
            made = encoder.encode(block, number)
            found.errors += [error_entry(file, spec.sample_by, bad.line, bad.message) for bad in made.bad]
            found.tally += made.tally
            columns = zip(plan.columns, made.rows, strict=True)
            found.value_bytes += sum(values.nbytes for column, (values, _) in columns if column.kind != "domain")
        found.num_bytes += file.size_bytes
    return found
