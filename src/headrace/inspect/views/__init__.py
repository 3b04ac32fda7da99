"""What the pages of ``headrace ui`` show and no command prints, as plain frozen structs.

    overview(paths)                what is below some paths            Overview, of OverviewEntry
    search(path, text)             documents or samples with a text    SearchResult, of SearchHit
    find_document(path, ...)       a document by its id or its line    FoundDocument
    fed_sample(run, position)      a sample as the model sees it       FedSample
    live_report(path)              what a training waits for, now      LiveReport

Nothing here takes longer with more data. A search is a scan that ends at a bound, and goes on from there when asked.
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
