from headrace.samples.maker.block import (
    MadeDocuments as MadeDocuments,
    MakerCounts as MakerCounts,
    Ragged as Ragged,
    TokenSums as TokenSums,
)
from headrace.samples.maker.maker import (
    DEFAULT_DOMAIN as DEFAULT_DOMAIN,
    Explained as Explained,
    SampleMaker as SampleMaker,
)
