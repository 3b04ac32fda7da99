from headrace.copying.formats import (
    FORMATS as FORMATS,
    CopyOptions as CopyOptions,
    FormatName as FormatName,
    Shards as Shards,
    SortBy as SortBy,
)
from headrace.copying.orders import CopiedStore as CopiedStore, CopyReport as CopyReport
from headrace.copying.plan import (
    CopiedDocument as CopiedDocument,
    copied_documents as copied_documents,
    is_copy as is_copy,
)
from headrace.copying.tools import convert as convert, merge as merge, split as split
