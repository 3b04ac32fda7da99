"""What a step of a run was fed, and when a sample comes: questions to a run, or to the file that it leaves behind.

    Run ------- history_of -------------+
    run.json -- read_run_file, Sources -+--> History: a step -> its samples; a sample, key or document -> its steps
    FramedRun, journals -- framed_history ---> FramedHistory: the same for units
    Run ------- account ---------------------> RunAccount: what was fed before a step, and how often
    Run -------- mix_curve ------------------> MixCurve: the mix over the steps, as planned and as it comes
    History ---- step_grid ------------------> StepGrid: a step as micro-batches, ranks by micro-steps
    Run, Run -- first_difference ------------> RunDifference: the first step that is fed otherwise, and why
    Run, FramedRun ------- save_run ---------> run.json -- Run.load --> Run, over the same data
    run.json ------------- edit_run_file ----> run.json

Nothing is replayed: the order is a function, and `Trace` evaluates it in both directions. Only lengths for bucketing,
plans of packs and keys are read, and frames of framed runs are encoded again.

May import: datasets, encoders, stores, samples, plan, io, errors.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
