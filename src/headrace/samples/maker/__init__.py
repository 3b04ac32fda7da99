"""Make what is stored from records: `SampleMaker` follows a recipe, block by block.

    records (dicts)
      -> layout or sections    a sample
      -> shapes                the texts of the sample, each with what is trained
                               (single | pair | prompt | group | sections)
      -> sequences             ids and masks: all texts are encoded together, get their end tokens, are checked and cut
      -> block                 documents, records that are dropped or bad, sums that balance
      -> MadeDocuments         ragged arrays by key

Each training type is one shape. The writers of stores use `MadeDocuments` and know none of them.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
