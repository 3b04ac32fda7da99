"""Records -> what is stored: `SampleMaker` makes what a recipe asks for, block by block.

    records (dicts)
      -> layout or sections    a sample
      -> shape                 the texts that it asks for, each with what is trained
                               (single | pair | rollouts | sections)
      -> sequences             ids and masks: all texts encoded together, ended, judged, cut
      -> block                 documents; records dropped or bad; sums that balance
      -> Made                  ragged arrays by key

One file a training type; whoever writes a store takes `MadeDocuments` and needs to know none of them.
"""

from __future__ import annotations

from headrace.samples.maker.block import MadeDocuments, MakerCounts, Ragged, TokenSums
from headrace.samples.maker.maker import DEFAULT_DOMAIN, Explained, SampleMaker

__all__ = ["DEFAULT_DOMAIN", "Explained", "MadeDocuments", "MakerCounts", "Ragged", "SampleMaker", "TokenSums"]
