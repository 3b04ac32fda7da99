"""What a step of a run was fed, and when a sample comes: questions to a run, or to the file that it leaves behind.

    Run ------- history_of -------------+
    run.json -- read_run_file, Sources -+--> History: a step -> its samples; a sample, key or document -> its steps
    FramedRun, journals -- framed_history ---> FramedHistory: the same for units
    Run ------- account ---------------------> RunAccount: what was fed before a step, and how often
    Run -------- mix_curve ------------------> MixCurve: the mix over the steps, as planned and as it comes
    History ---- step_grid ------------------> StepGrid: a step as micro-batches, ranks by micro-steps
    Run, Run -- first_difference ------------> RunDifference: the first step that is fed otherwise, and why
    Run, FramedRun ------- save_run ---------> run.json -- Run.load --> Run, over the same data
    state, state -- state_difference --------> StateDifference: whether two states are of one run
    run.json ------------- edit_run_file ----> run.json

Nothing is replayed: the order is a function, and `Trace` evaluates it in both directions. Only lengths for bucketing,
plans of packs and keys are read, and frames of framed runs are encoded again.

May import: datasets, encoders, stores, samples, plan, io, errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import homes, lazily

if TYPE_CHECKING:
    from headrace.tracing.accounting import EpochAccount, ExclusionAccount, Fed, RunAccount, SourceAccount, account
    from headrace.tracing.bill import PlannedCache, ReadingPlan, reading_plan
    from headrace.tracing.curves import MixCurve, MixMark, MixPoint, mix_curve
    from headrace.tracing.differences import (
        RunDifference,
        StateDifference,
        first_difference,
        read_state,
        state_difference,
    )
    from headrace.tracing.file_edits import FileEdit, edit_run_file, skip_in_run_file, undo_in_run_file
    from headrace.tracing.framed import FramedHistory, TracedUnit, framed_history
    from headrace.tracing.grids import GridCell, HeldCounts, StepGrid, step_grid
    from headrace.tracing.history import History, Times, Topology, Traced, history_of, ledgers, trace_sample, trace_step
    from headrace.tracing.run_file import RunFile, read_run_file, save_run
    from headrace.tracing.sources import Sources, filed_run

_HOMES = homes(
    {
        "headrace.tracing.accounting": "account EpochAccount ExclusionAccount Fed RunAccount SourceAccount",
        "headrace.tracing.bill": "PlannedCache reading_plan ReadingPlan",
        "headrace.tracing.curves": "mix_curve MixCurve MixMark MixPoint",
        "headrace.tracing.differences": "first_difference read_state RunDifference state_difference StateDifference",
        "headrace.tracing.file_edits": "edit_run_file FileEdit skip_in_run_file undo_in_run_file",
        "headrace.tracing.framed": "framed_history FramedHistory TracedUnit",
        "headrace.tracing.grids": "GridCell HeldCounts step_grid StepGrid",
        "headrace.tracing.history": "History history_of ledgers trace_sample trace_step Times Topology Traced",
        "headrace.tracing.run_file": "read_run_file RunFile save_run",
        "headrace.tracing.sources": "filed_run Sources",
    }
)

__all__ = [
    "EpochAccount",
    "ExclusionAccount",
    "Fed",
    "FileEdit",
    "FramedHistory",
    "GridCell",
    "HeldCounts",
    "History",
    "MixCurve",
    "MixMark",
    "MixPoint",
    "PlannedCache",
    "ReadingPlan",
    "RunAccount",
    "RunDifference",
    "RunFile",
    "SourceAccount",
    "Sources",
    "StateDifference",
    "StepGrid",
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
    "mix_curve",
    "read_run_file",
    "read_state",
    "reading_plan",
    "save_run",
    "skip_in_run_file",
    "state_difference",
    "step_grid",
    "trace_sample",
    "trace_step",
    "undo_in_run_file",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
