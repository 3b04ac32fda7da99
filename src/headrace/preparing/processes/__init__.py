"""Worker processes: how they are started, given tasks, and replaced if they end.

    forking     forks of this process, which inherit all that it has loaded; only a process with one thread is forked
    serving     what a worker answers, its errors, and results that it leaves on disk
    executor    tasks -> worker processes -> results in the order of the tasks

What the tasks are, the rest of the room decides.
"""
