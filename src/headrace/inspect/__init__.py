"""What commands and pages show, as plain frozen structs. The code that prints or draws them reads no store.

    describe(path)            what is there               Description, SampleDescription, ...       headrace info
    check(path)               whether it is whole         Verdict, SampleVerdict, MixVerdict, ...   headrace check
    preview(path)             documents or samples        Preview, SamplePreview, MixPreview        headrace preview
    where(path, number)       the line of the input       DocumentOrigins, SampleOrigins            headrace where
    render(recipe, record)    one record, step by step    Rendering                                 headrace render

Each answer is an `Answer`: ``to_dict()`` is what the command prints with ``--json``. ``shown()`` are the blocks that
it shows, of which `lines` makes lines of a terminal, and ``headrace.ui`` pages. Files by topic:

    blocks, terminal     what is shown: facts, tables, texts, tokens, media; lines with colours and pictures
    questions            describe, check and preview: what is at the path, and which options are for it
    description, store_checks, token_preview                    of stores of tokens
    sample_description, sample_checks, sample_preview           of samples with named parts
    metadataset, kept    of mixes; of what ``headrace measure`` and plans of packs keep
    shown                what previews hold; `samples` reads parts, `token_texts` turns ids into texts
    origins, rendering   where samples and documents come from; what a recipe makes of a record
    run_files            the file of a run, and what an edit of it changes
    figures              numbers and texts for people
    views/               what only the pages of ``headrace ui`` show

Nothing that a ``dataset.yaml`` names is imported, and pickles are not read. Pictures need Pillow, video and sound need
PyAV; without them, a line says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import homes, lazily

if TYPE_CHECKING:
    from headrace.inspect.answers import Answer, Checked, Report, check_fit, check_quarantine, kind_of
    from headrace.inspect.description import Description, PackFigures, describe_store
    from headrace.inspect.kept import KeptVerdict, MeasuredDescription
    from headrace.inspect.metadataset import MetadatasetDescription, MixVerdict
    from headrace.inspect.origins import DocumentOrigins, SampleOrigins, find_shards, where, with_inputs
    from headrace.inspect.questions import (
        CHECK_FITS,
        PREVIEW_FITS,
        CheckOptions,
        check,
        describe,
        open_preview,
        preview,
    )
    from headrace.inspect.rendering import render
    from headrace.inspect.run_files import ToldChange, ToldFile, edit_lines, tell_change, tell_run_file
    from headrace.inspect.sample_checks import SampleCheck, SampleVerdict, leave_out_bad
    from headrace.inspect.sample_description import SampleDescription, listed
    from headrace.inspect.sample_preview import MixPreview, OpenPreview, SamplePreview, look_at_sample
    from headrace.inspect.samples import SampleOptions, find_part, need_samples, read_part
    from headrace.inspect.shown import MAX_SAMPLES, Preview, PreviewOptions, Rendering
    from headrace.inspect.store_checks import Verdict
    from headrace.inspect.terminal import Style, choose_images, drawer, lines

_HOMES = homes(
    {
        "headrace.inspect.answers": "Answer Checked Report check_fit check_quarantine kind_of",
        "headrace.inspect.description": "Description PackFigures describe_store",
        "headrace.inspect.kept": "KeptVerdict MeasuredDescription",
        "headrace.inspect.metadataset": "MetadatasetDescription MixVerdict",
        "headrace.inspect.origins": "DocumentOrigins SampleOrigins find_shards where with_inputs",
        "headrace.inspect.questions": "CHECK_FITS CheckOptions PREVIEW_FITS check describe open_preview preview",
        "headrace.inspect.rendering": "render",
        "headrace.inspect.run_files": "ToldChange ToldFile edit_lines tell_change tell_run_file",
        "headrace.inspect.sample_checks": "SampleCheck SampleVerdict leave_out_bad",
        "headrace.inspect.sample_description": "SampleDescription listed",
        "headrace.inspect.sample_preview": "MixPreview OpenPreview SamplePreview look_at_sample",
        "headrace.inspect.samples": "SampleOptions find_part need_samples read_part",
        "headrace.inspect.shown": "MAX_SAMPLES Preview PreviewOptions Rendering",
        "headrace.inspect.store_checks": "Verdict",
        "headrace.inspect.terminal": "Style choose_images drawer lines",
    }
)

__all__ = [
    "CHECK_FITS",
    "MAX_SAMPLES",
    "PREVIEW_FITS",
    "Answer",
    "CheckOptions",
    "Checked",
    "Description",
    "DocumentOrigins",
    "KeptVerdict",
    "MeasuredDescription",
    "MetadatasetDescription",
    "MixPreview",
    "MixVerdict",
    "OpenPreview",
    "PackFigures",
    "Preview",
    "PreviewOptions",
    "Rendering",
    "Report",
    "SampleCheck",
    "SampleDescription",
    "SampleOptions",
    "SampleOrigins",
    "SamplePreview",
    "SampleVerdict",
    "Style",
    "ToldChange",
    "ToldFile",
    "Verdict",
    "check",
    "check_fit",
    "check_quarantine",
    "choose_images",
    "describe",
    "describe_store",
    "drawer",
    "edit_lines",
    "find_part",
    "find_shards",
    "kind_of",
    "leave_out_bad",
    "lines",
    "listed",
    "look_at_sample",
    "need_samples",
    "open_preview",
    "preview",
    "read_part",
    "render",
    "tell_change",
    "tell_run_file",
    "where",
    "with_inputs",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES, rooms=["views"])
