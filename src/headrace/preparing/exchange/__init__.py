"""How the tasks of a run exchange documents: those of one bucket come together, and those with the same text.

    parts        documents as frames of bytes, and files of which each reader reads one part
      buckets      the buckets of a shuffled run: dealt, and sorted
      duplicates   hashes of texts; the set of those that were seen, or what tasks find of them, a range each

A local run deals documents in its own process. The tasks of a planned run each write parts for all others instead, so
that no process has to move, or to remember, what all tasks made.
"""
