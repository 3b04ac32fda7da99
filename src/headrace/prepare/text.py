"""Text of any kind -> tokens in a store, with manifest and table of origins: `prepare_text`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import msgspec

from headrace.io import check_local
from headrace.prepare.backends import choose_backend
from headrace.prepare.first_documents import prove_first_documents
from headrace.prepare.options import TextOptions, check_options
from headrace.prepare.output_folder import STDIN_NAME, OutputFolder
from headrace.prepare.run_plan import RunPlan, TextProgress, show_compared
from headrace.prepare.running import run_in
from headrace.prepare.sources import choose_task_bytes, find_inputs, spool_stdin
from headrace.prepare.tokenizer import load_tokenizer
from headrace.stores import Manifest


def prepare_text(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str],
    options: TextOptions | None = None,
    on_progress: Callable[[TextProgress], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
    stdin: BinaryIO | None = None,
) -> Manifest:
    """Tokenise text into shards in a folder, and describe them in its ``headrace.json``.

    The bytes written depend on inputs, tokeniser and options alone, never on the number of workers. Everything appears
    at the end at once, or nothing does. A run that was ended, by whatever it was, is continued by the same call.

    Args:
        inputs: files, folders, globs, braces and ``-``, see `sources.find_inputs`.
        output: a new or empty folder, or one with an unfinished run.
        tokenizer: a ``tokenizer.json``, or a folder that holds one.
        options: see `TextOptions`.
        on_progress: called a few times a second.
        on_notice: called with what a user should know: a run is continued, a tokeniser was not equal to the truth.
        stdin: what ``-`` stands for; by default standard input.

    Raises:
        ConfigError: inputs, tokeniser or options cannot be.
        InputError: a record or file is bad; names file and line.
        OutputError: the folder is taken, or the system refuses a write.
        WorkerError: several worker processes ended in the same task.
        MissingExtraError: the input or the tokeniser asked for needs a package that is not installed.
    """
    check_local(inputs, output, tokenizer)
    options = options or TextOptions()
    check_options(options)
    show = on_progress or (lambda progress: None)
    show(TextProgress(phase="tokenizer"))
    loaded = load_tokenizer(tokenizer)
    eod = loaded.find_eod(options.tokens.eod)[0] if options.tokens.append_eod else None
    bos = loaded.find_bos(options.tokens.bos)[0] if options.tokens.prepend_bos else None
    spec = RunPlan.record_spec(options)
    notice = on_notice or (lambda message: None)
    with OutputFolder(output, overwrite=options.overwrite, restart=options.restart) as folder:
        stdin_path = None
        if any(os.fspath(name) == "-" for name in inputs):
            stdin_path = folder.work / STDIN_NAME
            spool_stdin(stdin or sys.stdin.buffer, stdin_path)
        files = find_inputs(inputs, spec=spec, stdin=stdin_path, keep_faulty=options.errors.on_error == "skip")
        special = options.tokens.special_tokens_in_text
        choice = choose_backend(
            loaded.json, wanted=options.tokens.backend, special=special, on_compared=show_compared(show, "probe")
        )
        proof = prove_first_documents(choice, files, spec, options, loaded.json, show_compared(show, "prove"))
        plan = RunPlan(
            files=tuple(files),
            options=options,
            tokenizer=loaded,
            eod=eod,
            bos=bos,
            choice=proof.choice,
            first_documents=proof.num_texts,
            task_bytes=options.task_bytes or choose_task_bytes(sum(file.text_bytes for file in files)),
        )
        return run_in(
            folder, plan, encoder=proof.encoder, deciding=_deciding(options), on_progress=show, on_notice=notice
        )


def _deciding(options: TextOptions) -> dict[str, Any]:
    """The options that decide bytes. What an error does is not among them: records before it are as they are."""
    names = ("records", "tokens", "filters", "deduplicate", "output")
    return {name: msgspec.to_builtins(getattr(options, name)) for name in names}
