"""What a step of a run was fed, and when a sample comes: questions to a run, or to the file that it leaves behind.

    Run ------- history_of -------------+
    run.json -- read_run_file, Sources -+--> History: a step -> its samples; a sample, key or document -> its steps
    FramedRun, journals -- framed_history ---> FramedHistory: the same for units
    Run ------- account ---------------------> RunAccount: what was fed before a step, and how often
    Run, Run -- first_difference ------------> RunDifference: the first step that is fed otherwise, and why
    Run, FramedRun ------- save_run ---------> run.json -- Run.load --> Run, over the same data
    run.json ------------- edit_run_file ----> run.json

Nothing is replayed: the order is a function, and `Trace` evaluates it in both directions. Only lengths for bucketing,
plans of packs and keys are read, and frames of framed runs are encoded again.

May import: datasets, encoders, stores, samples, plan, io, errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import lazily

if TYPE_CHECKING:
    from headrace.tracing.accounting import (
        ChapterAccount,
        EpochAccount,
        ExclusionAccount,
        Fed,
        RunAccount,
        ShareAccount,
        SourceAccount,
        account,
    )
    from headrace.tracing.answers import Times, Topology, Traced, TracedUnit
    from headrace.tracing.differences import RunDifference, first_difference
    from headrace.tracing.file_edits import FileEdit, edit_run_file, skip_in_run_file
    from headrace.tracing.framed import FramedHistory, framed_history
    from headrace.tracing.history import History, history_of, ledgers, trace_sample, trace_step
    from headrace.tracing.rebuilding import filed_run
    from headrace.tracing.run_file import RunFile, read_run_file, save_run
    from headrace.tracing.sources import Sources

_HOMES = {
    "ChapterAccount": "headrace.tracing.accounting",
    "EpochAccount": "headrace.tracing.accounting",
    "ExclusionAccount": "headrace.tracing.accounting",
    "Fed": "headrace.tracing.accounting",
    "FileEdit": "headrace.tracing.file_edits",
    "FramedHistory": "headrace.tracing.framed",
    "History": "headrace.tracing.history",
    "RunAccount": "headrace.tracing.accounting",
    "RunDifference": "headrace.tracing.differences",
    "RunFile": "headrace.tracing.run_file",
    "ShareAccount": "headrace.tracing.accounting",
    "SourceAccount": "headrace.tracing.accounting",
    "Sources": "headrace.tracing.sources",
    "Times": "headrace.tracing.answers",
    "Topology": "headrace.tracing.answers",
    "Traced": "headrace.tracing.answers",
    "TracedUnit": "headrace.tracing.answers",
    "account": "headrace.tracing.accounting",
    "filed_run": "headrace.tracing.rebuilding",
    "first_difference": "headrace.tracing.differences",
    "edit_run_file": "headrace.tracing.file_edits",
    "framed_history": "headrace.tracing.framed",
    "history_of": "headrace.tracing.history",
    "ledgers": "headrace.tracing.history",
    "read_run_file": "headrace.tracing.run_file",
    "save_run": "headrace.tracing.run_file",
    "skip_in_run_file": "headrace.tracing.file_edits",
    "trace_sample": "headrace.tracing.history",
    "trace_step": "headrace.tracing.history",
}

__all__ = [
    "ChapterAccount",
    "EpochAccount",
    "ExclusionAccount",
    "Fed",
    "FileEdit",
    "FramedHistory",
    "History",
    "RunAccount",
    "RunDifference",
    "RunFile",
    "ShareAccount",
    "SourceAccount",
    "Sources",
    "Times",
    "Topology",
    "Traced",
    "TracedUnit",
    "account",
    "edit_run_file",
    "filed_run",
    "first_difference",
    "framed_history",
    "history_of",
    "ledgers",
    "read_run_file",
    "save_run",
    "skip_in_run_file",
    "trace_sample",
    "trace_step",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
