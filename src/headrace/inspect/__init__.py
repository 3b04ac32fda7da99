"""What commands and pages show, as plain frozen structs. The code that prints or draws them reads no store.

    description          the numbers of a store, and what each packing strategy makes of it   headrace info
    store_checks         whether a store and its packs are intact                             headrace check
    shown                what previews hold: samples, sequences, stretches of tokens
      token_texts          ids -> the text of each token, and the role of its turn
      documents            the keys of a store that belong together, and which documents are shown
      preview              a store -> `Preview`                                               headrace preview
      rendering            a recipe and a record -> `Rendering`, step by step                 headrace render
    origins              which line of which input a document comes from                      headrace where
    samples              samples with keys and named parts: tar shards and other media        headrace cat
      sample_description, sample_checks, sample_preview                               headrace info, check, preview
    metadataset          the numbers of a mix, and its checks
    lines, sample_lines  the same as lines of a terminal; `figures` formats numbers, `terminal_images` draws pictures
    pages                the same as one HTML file that needs nothing else

Nothing that a ``dataset.yaml`` names is imported, and pickles are not read. Pictures need Pillow, video and sound need
PyAV; without them, a line says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import lazily

if TYPE_CHECKING:
    from headrace.inspect.description import Description, PackFigures, describe, pack_figures
    from headrace.inspect.metadataset import MetadatasetNumbers, MixVerdict, check_mix, metadataset_numbers
    from headrace.inspect.origins import DocumentOrigin, SampleOrigin, find_origins, find_sample_origins
    from headrace.inspect.pages import preview_page, rendering_page
    from headrace.inspect.preview import PreviewOptions, preview_store
    from headrace.inspect.rendering import render_record
    from headrace.inspect.sample_checks import SampleCheck, SampleVerdict, check_samples
    from headrace.inspect.sample_description import SampleDescription, describe_samples
    from headrace.inspect.sample_preview import SamplePreview, SamplePreviewOptions, open_preview
    from headrace.inspect.shown import (
        EvidenceRow,
        Preview,
        Rendering,
        ShownSample,
        ShownSequence,
        StoreFigures,
        Stretch,
    )
    from headrace.inspect.store_checks import PackVerdict, Verdict, check_packs, check_store

_HOMES = {
    "Description": "headrace.inspect.description",
    "EvidenceRow": "headrace.inspect.shown",
    "StoreFigures": "headrace.inspect.shown",
    "MetadatasetNumbers": "headrace.inspect.metadataset",
    "MixVerdict": "headrace.inspect.metadataset",
    "DocumentOrigin": "headrace.inspect.origins",
    "PackFigures": "headrace.inspect.description",
    "PackVerdict": "headrace.inspect.store_checks",
    "Preview": "headrace.inspect.shown",
    "PreviewOptions": "headrace.inspect.preview",
    "Rendering": "headrace.inspect.shown",
    "SampleCheck": "headrace.inspect.sample_checks",
    "SampleDescription": "headrace.inspect.sample_description",
    "SampleOrigin": "headrace.inspect.origins",
    "SamplePreview": "headrace.inspect.sample_preview",
    "SamplePreviewOptions": "headrace.inspect.sample_preview",
    "SampleVerdict": "headrace.inspect.sample_checks",
    "ShownSample": "headrace.inspect.shown",
    "ShownSequence": "headrace.inspect.shown",
    "Stretch": "headrace.inspect.shown",
    "Verdict": "headrace.inspect.store_checks",
    "check_mix": "headrace.inspect.metadataset",
    "check_packs": "headrace.inspect.store_checks",
    "check_samples": "headrace.inspect.sample_checks",
    "check_store": "headrace.inspect.store_checks",
    "describe": "headrace.inspect.description",
    "describe_samples": "headrace.inspect.sample_description",
    "find_origins": "headrace.inspect.origins",
    "find_sample_origins": "headrace.inspect.origins",
    "metadataset_numbers": "headrace.inspect.metadataset",
    "open_preview": "headrace.inspect.sample_preview",
    "pack_figures": "headrace.inspect.description",
    "preview_page": "headrace.inspect.pages",
    "preview_store": "headrace.inspect.preview",
    "render_record": "headrace.inspect.rendering",
    "rendering_page": "headrace.inspect.pages",
}

__all__ = [
    "Description",
    "DocumentOrigin",
    "EvidenceRow",
    "MetadatasetNumbers",
    "MixVerdict",
    "PackFigures",
    "PackVerdict",
    "Preview",
    "PreviewOptions",
    "Rendering",
    "SampleCheck",
    "SampleDescription",
    "SampleOrigin",
    "SamplePreview",
    "SamplePreviewOptions",
    "SampleVerdict",
    "ShownSample",
    "ShownSequence",
    "StoreFigures",
    "Stretch",
    "Verdict",
    "check_mix",
    "check_packs",
    "check_samples",
    "check_store",
    "describe",
    "describe_samples",
    "find_origins",
    "find_sample_origins",
    "metadataset_numbers",
    "open_preview",
    "pack_figures",
    "preview_page",
    "preview_store",
    "render_record",
    "rendering_page",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES)
