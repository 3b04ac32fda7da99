"""Worker processes that read tasks, such as spans of a run, in order. Workers that die or hang are replaced.

    pool           tasks in, results out, in the same order, whatever happens to the workers; sets of workers
      -> watch         a thread that watches the workers while the loader waits
      -> processes     how torch's ``DataLoader`` starts worker processes, and how they end
    worker         the code that runs in a worker
      -> messages      what it returns
      -> blocks        the shared memory that large tensors of a message lie in
      -> user_globals  the globals that must be the same there as in the program

May import: cache, datasets, encoders, io, plan.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
