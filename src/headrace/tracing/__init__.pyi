from headrace.tracing.accounting import (
    EpochAccount as EpochAccount,
    ExclusionAccount as ExclusionAccount,
    Fed as Fed,
    RunAccount as RunAccount,
    SourceAccount as SourceAccount,
    account as account,
)
from headrace.tracing.bill import PlannedCache as PlannedCache, ReadingPlan as ReadingPlan, reading_plan as reading_plan
from headrace.tracing.curves import (
    MixCurve as MixCurve,
    MixMark as MixMark,
    MixPoint as MixPoint,
    mix_curve as mix_curve,
)
from headrace.tracing.differences import (
    RunDifference as RunDifference,
    first_difference as first_difference,
    read_state as read_state,
)
from headrace.tracing.file_edits import (
    FileEdit as FileEdit,
    edit_run_file as edit_run_file,
    skip_in_run_file as skip_in_run_file,
    undo_in_run_file as undo_in_run_file,
)
from headrace.tracing.framed import (
    FramedHistory as FramedHistory,
    TracedUnit as TracedUnit,
    framed_history as framed_history,
)
from headrace.tracing.grids import (
    GridCell as GridCell,
    HeldCounts as HeldCounts,
    StepGrid as StepGrid,
    step_grid as step_grid,
)
from headrace.tracing.history import (
    History as History,
    Times as Times,
    Topology as Topology,
    Traced as Traced,
    history_of as history_of,
    trace_sample as trace_sample,
    trace_step as trace_step,
)
from headrace.tracing.run_file import RunFile as RunFile, read_run_file as read_run_file, save_run as save_run
from headrace.tracing.sources import Sources as Sources, filed_run as filed_run
