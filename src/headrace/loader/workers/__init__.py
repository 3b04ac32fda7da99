"""Worker processes that read tasks, such as spans of a run, in order. Workers that die or hang are replaced.

    pool           tasks in, results out, in the same order, whatever happens to the workers
      -> server        where workers come from: forks of a server, or processes that start anew
      -> worker        the code that runs in a worker
        -> messages      what it returns, the socket that this goes through, and the memory that large tensors lie in

May import: cache, engine, datasets, encoders, io, plan.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
