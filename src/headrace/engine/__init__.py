"""Offline work in a folder, with workers, that survives a kill.

    tasks -> processes ... worker processes, one task at a time each
                 serving     what a worker answers: results, progress, failures
             -> results, in the order of the tasks

    job          a plan, whose tasks any process on any host may do; receipts, doing, executors, slurm, ray
    shared       what these processes share: a folder, or objects below a URL
    work_folder  the folder in which one process works at a time
    uploading    an output in an object store: receipts, and a manifest that comes last

A task is a pure function of what its order holds: it may be done twice, by anyone, with the same result. This package
knows nothing about documents or tokens. It imports only ``headrace.io`` and ``headrace.errors``.
"""
