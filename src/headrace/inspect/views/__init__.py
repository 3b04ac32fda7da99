"""What the pages of ``headrace ui`` show and no command prints, as plain frozen structs.

    overview(paths)                what is below some paths            Overview, of OverviewEntry
    outline(path)                  a store at a glance                 StoreOutline, SampleOutline
    search(path, text)             documents or samples with a text    SearchHit and SearchProgress, one by one
    find_document(path, ...)       a document by its id or its line    FoundDocument
    fed_sample(run, position)      a sample as the model sees it       FedSample
    live_report(path)              what a training waits for, now      LiveReport
    tried_mix(description, ...)    a mix with other weights            TriedMix

Nothing here takes longer with more data: a store of 10^9 documents is opened, and some thousand of its documents are
looked at, which the answer says. A search is a scan that tells how far it is and ends at a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import lazily

if TYPE_CHECKING:
    from headrace.inspect.views.feds import FedSample, FedSegment, fed_sample, look_at_fed
    from headrace.inspect.views.finding import FoundDocument, SearchHit, SearchProgress, find_document, search
    from headrace.inspect.views.lives import LiveMix, LivePoint, LiveRank, LiveReport, SlowShard, live_report
    from headrace.inspect.views.mixes import TriedMix, TriedNode, mix_paths, tried_mix
    from headrace.inspect.views.outlines import (
        DomainShare,
        InputShare,
        SampleOutline,
        StoreOutline,
        kept_outline,
        num_documents,
        outline,
    )
    from headrace.inspect.views.overviews import (
        Overview,
        OverviewEntry,
        entry_at,
        found_places,
        metrics_files,
        overview,
    )

_HOMES = {
    "DomainShare": "headrace.inspect.views.outlines",
    "FedSample": "headrace.inspect.views.feds",
    "FedSegment": "headrace.inspect.views.feds",
    "FoundDocument": "headrace.inspect.views.finding",
    "InputShare": "headrace.inspect.views.outlines",
    "LiveMix": "headrace.inspect.views.lives",
    "LivePoint": "headrace.inspect.views.lives",
    "LiveRank": "headrace.inspect.views.lives",
    "LiveReport": "headrace.inspect.views.lives",
    "Overview": "headrace.inspect.views.overviews",
    "OverviewEntry": "headrace.inspect.views.overviews",
    "SampleOutline": "headrace.inspect.views.outlines",
    "SearchHit": "headrace.inspect.views.finding",
    "SearchProgress": "headrace.inspect.views.finding",
    "SlowShard": "headrace.inspect.views.lives",
    "StoreOutline": "headrace.inspect.views.outlines",
    "TriedMix": "headrace.inspect.views.mixes",
    "TriedNode": "headrace.inspect.views.mixes",
    "entry_at": "headrace.inspect.views.overviews",
    "fed_sample": "headrace.inspect.views.feds",
    "find_document": "headrace.inspect.views.finding",
    "found_places": "headrace.inspect.views.overviews",
    "kept_outline": "headrace.inspect.views.outlines",
    "live_report": "headrace.inspect.views.lives",
    "look_at_fed": "headrace.inspect.views.feds",
    "metrics_files": "headrace.inspect.views.overviews",
    "mix_paths": "headrace.inspect.views.mixes",
    "num_documents": "headrace.inspect.views.outlines",
    "outline": "headrace.inspect.views.outlines",
    "overview": "headrace.inspect.views.overviews",
    "search": "headrace.inspect.views.finding",
    "tried_mix": "headrace.inspect.views.mixes",
}

__all__ = [
    "DomainShare",
    "FedSample",
    "FedSegment",
    "FoundDocument",
    "InputShare",
    "LiveMix",
    "LivePoint",
    "LiveRank",
    "LiveReport",
    "Overview",
    "OverviewEntry",
    "SampleOutline",
    "SearchHit",
    "SearchProgress",
    "SlowShard",
    "StoreOutline",
    "TriedMix",
    "TriedNode",
    "entry_at",
    "fed_sample",
    "find_document",
    "found_places",
    "kept_outline",
    "live_report",
    "look_at_fed",
    "metrics_files",
    "mix_paths",
    "num_documents",
    "outline",
    "overview",
    "search",
    "tried_mix",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
