"""Which documents share a pack: plans over the lengths alone, made in seconds for 10^8 documents.

    lengths --> pieces --> strategy --> PackPlan: pack -> its pieces, in order
                    |
                    +--> PackingLedger: every token of every document, in packs or lost for a reason

A *piece* is the part of a document that goes into one pack as one segment. Most documents are a single piece. If
over-long documents are split, a document becomes *full pieces* of ``seq_len`` tokens and at most one shorter piece; if
they are truncated, the piece is what is left of the document. The piece that is not a full one is called the document's
*own piece*. A *unit* is ``segment_multiple`` tokens, and the size of a piece is counted in units.

A strategy sees only sizes. ``best_fit`` works on the histogram of the lengths, so that its cost depends on the number
of distinct lengths. Documents are then assigned to places in the packs with one counting sort and one scatter.

May import: plan, errors.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
