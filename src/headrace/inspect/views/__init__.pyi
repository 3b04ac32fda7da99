from headrace.inspect.metadataset import mix_paths as mix_paths
from headrace.inspect.views.feds import FedSample as FedSample, FedSegment as FedSegment, fed_sample as fed_sample
from headrace.inspect.views.finding import (
    FoundDocument as FoundDocument,
    SearchHit as SearchHit,
    SearchResult as SearchResult,
    find_document as find_document,
    search as search,
)
from headrace.inspect.views.lives import LiveReport as LiveReport, live_report as live_report
from headrace.inspect.views.overviews import (
    Overview as Overview,
    OverviewEntry as OverviewEntry,
    entry_at as entry_at,
    found_places as found_places,
    metrics_files as metrics_files,
    overview as overview,
)
