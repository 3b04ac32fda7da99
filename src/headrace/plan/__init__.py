"""Where every sample of a run comes from, computed with int64 arithmetic: no I/O, no state, no torch.

    step N, rank r, micro-step j
       |  BatchSchedule, Share     the slots [b, b + m) of the micro-batch
       v
    slot
       |  Draw                     in a blend, slots are permuted within the step
       v
    position
       |  Plan: tree of nodes      (source, rank within the source)
       |  Order                    (source, epoch, sample index); a permutation in each epoch
       v
    sample

All of these steps can be undone, so that the plan also answers at which positions a sample is seen.

    RunRecipe   everything that decides the order of samples, with a hash for each part
    Cursor      how far a run has come, which is its whole state

A *piece* of a `BatchSchedule` is a stretch of steps with one global batch size; a piece of a document, in
`plan.packing`, is the part of a split document that lies in one pack.

May import: errors.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
