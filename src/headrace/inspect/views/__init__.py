"""What the pages of ``headrace ui`` show and no command prints, as plain frozen structs.

    overview(paths)                what is below some paths            Overview, of OverviewEntry
    search(path, text)             documents or samples with a text    SearchHit and SearchProgress, one by one
    find_document(path, ...)       a document by its id or its line    FoundDocument
    fed_sample(run, position)      a sample as the model sees it       FedSample
    live_report(path)              what a training waits for, now      LiveReport
    tried_mix(description, ...)    a mix with other weights            TriedMix

Nothing here takes longer with more data. A search is a scan that tells how far it is and ends at a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import homes, lazily

if TYPE_CHECKING:
    from headrace.inspect.metadataset import TriedMix, mix_paths, tried_mix
    from headrace.inspect.views.feds import FedSample, FedSegment, fed_sample
    from headrace.inspect.views.finding import FoundDocument, SearchHit, SearchProgress, find_document, search
    from headrace.inspect.views.lives import LiveReport, live_report
    from headrace.inspect.views.overviews import (
        Overview,
        OverviewEntry,
        entry_at,
        found_places,
        metrics_files,
        overview,
    )

_HOMES = homes(
    {
        "headrace.inspect.views.feds": "FedSample FedSegment fed_sample",
        "headrace.inspect.views.finding": "FoundDocument SearchHit SearchProgress find_document search",
        "headrace.inspect.views.lives": "LiveReport live_report",
        "headrace.inspect.metadataset": "TriedMix mix_paths tried_mix",
        "headrace.inspect.views.overviews": "Overview OverviewEntry entry_at found_places metrics_files overview",
    }
)

__all__ = [
    "FedSample",
    "FedSegment",
    "FoundDocument",
    "LiveReport",
    "Overview",
    "OverviewEntry",
    "SearchHit",
    "SearchProgress",
    "TriedMix",
    "entry_at",
    "fed_sample",
    "find_document",
    "found_places",
    "live_report",
    "metrics_files",
    "mix_paths",
    "overview",
    "search",
    "tried_mix",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
