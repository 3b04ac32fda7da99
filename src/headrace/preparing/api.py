"""`prepare_text` writes a store from texts, and `plan_text` plans that; `estimate_text` tells what it would write."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import msgspec

from headrace.errors import ConfigError
from headrace.io import Storage, check_readable, check_storage
from headrace.preparing.backends import Choice, ProvedEncoder, choose_backend
from headrace.preparing.backends.first_documents import prove_first_documents
from headrace.preparing.backends.tokenizer import TextTokenizer, load_tokenizer
from headrace.preparing.estimate import Estimate, estimate_plan
from headrace.preparing.options import (
    TextOptions,
    TokenOptions,
    check_options,
)
from headrace.preparing.output_folder import STDIN_NAME, OutputPlace, output_at
from headrace.preparing.run import STDIN_IS_HERE, do_run, plan_run
from headrace.preparing.run_plan import OnProgress, RunPlan, show_compared
from headrace.preparing.sources import SourceFile, choose_task_bytes, find_inputs, spool_stdin
from headrace.preparing.sources.find import check_fields
from headrace.stores import Manifest


def prepare_text(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str],
    options: TextOptions | None = None,
    storage: Storage | None = None,
    on_progress: OnProgress | None = None,
    on_notice: Callable[[str], None] | None = None,
    stdin: BinaryIO | None = None,
) -> Manifest:
    """Tokenise text into shards in a folder, and describe them in its ``headrace.json``.

    The bytes written depend on inputs, tokeniser and options alone, never on the number of workers. All files appear
    together at the end, or none does. If a run was interrupted or killed, the same call continues it.

    Args:
        inputs: files, folders, globs, braces and ``-``, see `sources.find_inputs`; also URLs.
        output: a new or empty folder, or one with an unfinished run; or such a place at a URL, see
            `headrace.preparing.output_url`.
        tokenizer: a ``tokenizer.json``, or a folder that holds one; also a URL.
        options: see `TextOptions`.
        storage: how the stores of URLs are reached; None goes by the environment.
        on_progress: called a few times a second.
        on_notice: called with what a user should know: that a run is continued, or that a fast library gave wrong ids
            and is no longer used.
        stdin: the stream that ``-`` reads; by default standard input.

    Returns:
        The manifest, as it was written.

    Raises:
        ConfigError: inputs, tokeniser or options are not valid.
        InputError: a record or file is bad; the message names file and line.
        OutputError: the folder is in use or holds something else, or the system refuses a write.
        WorkerError: several worker processes ended in the same task.
        MissingExtraError: the input or the tokeniser asked for needs a package that is not installed.

    Example:
        >>> manifest = headrace.preparing.prepare_text(["data/*.jsonl"], "texts", tokenizer="tokenizer.json")
        >>> manifest.ledger.documents.kept == len(headrace.open("texts"))
        True
    """
    check_storage(storage, inputs, output, tokenizer)
    options = options or TextOptions()
    check_options(options)
    show = on_progress or (lambda progress: None)
    notice = on_notice or (lambda message: None)
    folder = output_at(output, overwrite=options.overwrite, restart=options.restart, storage=storage)
    with folder:
        plan, encoder = _resolved_text(inputs, folder, tokenizer, options, show, stdin, storage)
        _tell_missing(plan, notice)
        planned = plan_run(folder, plan, _deciding(options), notice)
    if isinstance(planned, Manifest):
        return planned
    return do_run(folder, planned, storage, encoder, on_progress=show, on_notice=notice)


def plan_text(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str],
    options: TextOptions | None = None,
    on_progress: OnProgress | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> Manifest | None:
    """Plan a run of `prepare_text` in its output folder, for processes on any hosts to do its tasks, see `open_job`.

    The output is the same, byte for byte. If the run is planned or complete already, this does nothing.

    Args:
        inputs: see `prepare_text`; not ``-``. All hosts reach URLs by what their environment says.
        output: a folder that all hosts can write to, or a URL; inputs must have the same paths on all of them.
        tokenizer: see `prepare_text`.
        options: see `TextOptions`.
        on_progress: called a few times a second.
        on_notice: called with what a user should know.

    Returns:
        The manifest if the output is complete already; None if the run is planned.

    Raises:
        ConfigError, InputError, OutputError, MissingExtraError: as `prepare_text`.

    Example:
        >>> headrace.preparing.plan_text(["data/*.jsonl"], "shared", tokenizer="tokenizer.json")
        >>> job = headrace.kinds.open_job("shared")
        >>> job.phase().name.partition("-")[0]
        'encode'
    """
    check_readable(inputs, output, tokenizer)
    options = options or TextOptions()
    check_options(options)
    if any(os.fspath(name) == "-" for name in inputs):
        raise ConfigError(STDIN_IS_HERE)
    show = on_progress or (lambda progress: None)
    notice = on_notice or (lambda message: None)
    with output_at(output, overwrite=options.overwrite, restart=options.restart) as folder:
        plan, _ = _resolved_text(inputs, folder, tokenizer, options, show, None)
        _tell_missing(plan, notice)
        planned = plan_run(folder, plan, _deciding(options), notice)
    return planned if isinstance(planned, Manifest) else None


def _resolved_text(
    inputs: Sequence[str | os.PathLike[str]],
    folder: OutputPlace,
    tokenizer: str | os.PathLike[str],
    options: TextOptions,
    show: OnProgress,
    stdin: BinaryIO | None,
    storage: Storage | None = None,
) -> tuple[RunPlan, ProvedEncoder | None]:
    """Return the plan of a run, and an encoder that is loaded already if there is one."""
    show_compared(show, "tokenizer")(0, 0)
    loaded = load_tokenizer(tokenizer, storage)
    ends = _ends(loaded, options.tokens)
    spec = RunPlan.record_spec(options)
    stdin_path = None
    if any(os.fspath(name) == "-" for name in inputs):
        stdin_path = folder.work / STDIN_NAME
        spool_stdin(stdin or sys.stdin.buffer, stdin_path)
    keep_faulty = options.errors.on_error == "skip"
    files = find_inputs(inputs, spec=spec, stdin=stdin_path, keep_faulty=keep_faulty, storage=storage)
    special = options.tokens.special_tokens_in_text
    choice = choose_backend(
        loaded.json, wanted=options.tokens.backend, special=special, on_compared=show_compared(show, "probe")
    )
    proof = prove_first_documents(choice, files, spec, options, loaded.json, show_compared(show, "prove"))
    return _text_plan(loaded, ends, files, options, proof.choice, proof.num_texts), proof.encoder


def estimate_text(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    tokenizer: str | os.PathLike[str],
    options: TextOptions | None = None,
    storage: Storage | None = None,
) -> Estimate:
    """Tokenise the beginning of the inputs, in this process, and scale it up.

    The first 8 MiB of text are encoded, one file after another, so changes behind them go unnoticed. Smaller inputs are
    read whole, and the numbers are then exact.

    Raises:
        ConfigError: inputs, tokeniser or options are not valid, or standard input is among the inputs.
        InputError: a file cannot be read, or there are no records. Bad records are counted and raise nothing.
        MissingExtraError: the input or the tokeniser needs a package that is not installed.
    """
    check_storage(storage, inputs, tokenizer)
    options = options or TextOptions()
    check_options(options)
    if any(os.fspath(name) == "-" for name in inputs):
        raise ConfigError("input '-': standard input cannot be sampled; a dry run needs files")
    loaded = load_tokenizer(tokenizer, storage)
    ends = _ends(loaded, options.tokens)
    spec, keep_faulty = RunPlan.record_spec(options), options.errors.on_error == "skip"
    files = find_inputs(inputs, spec=spec, keep_faulty=keep_faulty, storage=storage)
    special = options.tokens.special_tokens_in_text
    choice = choose_backend(loaded.json, wanted=options.tokens.backend, special=special)
    return estimate_plan(_text_plan(loaded, ends, files, options, choice))


def _ends(loaded: TextTokenizer, tokens: TokenOptions) -> tuple[int | None, int | None]:
    """The tokens that end and begin a document; None where none is added."""
    eod = loaded.find_eod(tokens.eod)[0] if tokens.append_eod else None
    return eod, loaded.find_bos(tokens.bos)


def _tell_missing(plan: RunPlan, on_notice: Callable[[str], None]) -> None:
    if plan.missing_bos is not None:
        on_notice(
            f"no BOS is added, although the tokeniser begins texts with "
            f"{plan.tokenizer.token_text(plan.missing_bos)!r}: Megatron adds none either. `--bos auto` adds it; "
            "documents that do not begin with it are counted as missing_bos"
        )


def _text_plan(
    loaded: TextTokenizer,
    ends: tuple[int | None, int | None],
    files: Sequence[SourceFile],
    options: TextOptions,
    choice: Choice,
    num_proved: int = 0,
) -> RunPlan:
    check_fields(files, RunPlan.record_spec(options))
    return RunPlan(
        files=tuple(files),
        options=options,
        tokenizer=loaded,
        eod=ends[0],
        bos=ends[1],
        choice=choice,
        first_documents=num_proved,
        task_bytes=options.task_bytes or choose_task_bytes(sum(file.text_bytes for file in files)),
    )


def _deciding(options: TextOptions) -> dict[str, Any]:
    """The options that decide bytes. How errors are treated is not part of it: it changes no record that was read."""
    names = ("records", "tokens", "filters", "deduplicate", "output")
    return {name: msgspec.to_builtins(getattr(options, name)) for name in names}
