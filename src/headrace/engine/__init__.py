"""Offline work in a folder, with workers, that survives a kill.

    job          tasks that any process on any host may do; receipts tell which are done
    planning     the plan of a job: how it is written, where it lies, and how the job is opened from it
    executors    where they are done: on this host, by Slurm, by Ray
    doing        how a process does them: in worker processes, one task at a time each
    serving      what a worker answers: results, progress, failures
    shared       what all processes of a job share: a folder, or objects below a URL
    work_folder  the folder in which one process plans or ends a job at a time

A task is a pure function of what its order holds: it may be done twice, by anyone, with the same result. This package
knows nothing about documents or tokens. It imports only ``headrace.io`` and ``headrace.errors``.
"""
