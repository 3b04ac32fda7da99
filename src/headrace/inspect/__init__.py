"""What commands and pages show, as plain frozen structs. The code that prints or draws them reads no store.

    describe(path)            what is there               Description, SampleDescription, ...       headrace info
    check(path)               whether it is whole         Verdict, SampleVerdict, MixVerdict, ...   headrace check
    preview(path)             documents or samples        Preview, SamplePreview, MixPreview        headrace preview
    where(path, number)       the line of the input       DocumentOrigins, SampleOrigins            headrace where
    render(recipe, record)    one record, step by step    Rendering                                 headrace render

Each answer is an `Answer`: ``to_dict()`` is what the command prints with ``--json``, and of descriptions, verdicts and
origins, ``lines()`` is what it prints without. Files by topic:

    questions            describe, check and preview: what is at the path, and which options are for it
    description, store_checks, token_preview                    of stores of tokens
    sample_description, sample_checks, sample_preview           of samples with named parts
    metadataset, kept    of mixes; of what ``headrace measure`` and plans of packs keep
    shown                what previews hold; `samples` reads parts, `token_texts` turns ids into texts
    origins, rendering   where samples and documents come from (`document_origins`); what a recipe makes of a record
    run_files            the file of a run, and what an edit of it changes
    lines                previews and renderings as lines of a terminal, with pictures; `figures` formats numbers
    views/               what only the pages of ``headrace ui`` show

Nothing that a ``dataset.yaml`` names is imported, and pickles are not read. Pictures need Pillow, video and sound need
PyAV; without them, a line says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._lazy import lazily

if TYPE_CHECKING:
    from headrace.inspect.answers import Answer, OnProgress, PathKind, check_fit, check_quarantine, kind_of
    from headrace.inspect.description import Description, PackFigures, describe_store, pack_figures
    from headrace.inspect.document_origins import DocumentOrigins
    from headrace.inspect.kept import KeptVerdict, MeasuredDescription, check_kept, describe_facts
    from headrace.inspect.lines import (
        Style,
        choose_images,
        drawer,
        parts_heading,
        parts_lines,
        preview_lines,
        rendering_lines,
    )
    from headrace.inspect.metadataset import MetadatasetDescription, MixVerdict, check_mix, describe_metadataset
    from headrace.inspect.origins import SampleOrigins, find_shards, where, with_inputs
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
    from headrace.inspect.sample_checks import SampleCheck, SampleVerdict, check_samples, leave_out_bad
    from headrace.inspect.sample_description import SampleDescription, describe_samples, listed
    from headrace.inspect.sample_preview import (
        MixPreview,
        OpenPreview,
        SamplePreview,
        look_at_sample,
        open_mix,
        open_samples,
    )
    from headrace.inspect.samples import SampleOptions, find_part, need_samples, read_part
    from headrace.inspect.shown import MAX_SAMPLES, Preview, PreviewOptions, Rendering
    from headrace.inspect.store_checks import Verdict, check_packs, check_store
    from headrace.inspect.token_preview import preview_tokens

_HOMES = {
    "Answer": "headrace.inspect.answers",
    "CHECK_FITS": "headrace.inspect.questions",
    "CheckOptions": "headrace.inspect.questions",
    "Description": "headrace.inspect.description",
    "DocumentOrigins": "headrace.inspect.document_origins",
    "KeptVerdict": "headrace.inspect.kept",
    "MAX_SAMPLES": "headrace.inspect.shown",
    "MeasuredDescription": "headrace.inspect.kept",
    "MetadatasetDescription": "headrace.inspect.metadataset",
    "MixPreview": "headrace.inspect.sample_preview",
    "MixVerdict": "headrace.inspect.metadataset",
    "OnProgress": "headrace.inspect.answers",
    "OpenPreview": "headrace.inspect.sample_preview",
    "PREVIEW_FITS": "headrace.inspect.questions",
    "PackFigures": "headrace.inspect.description",
    "PathKind": "headrace.inspect.answers",
    "Preview": "headrace.inspect.shown",
    "PreviewOptions": "headrace.inspect.shown",
    "Rendering": "headrace.inspect.shown",
    "SampleCheck": "headrace.inspect.sample_checks",
    "SampleDescription": "headrace.inspect.sample_description",
    "SampleOptions": "headrace.inspect.samples",
    "SampleOrigins": "headrace.inspect.origins",
    "SamplePreview": "headrace.inspect.sample_preview",
    "SampleVerdict": "headrace.inspect.sample_checks",
    "Style": "headrace.inspect.lines",
    "ToldChange": "headrace.inspect.run_files",
    "ToldFile": "headrace.inspect.run_files",
    "Verdict": "headrace.inspect.store_checks",
    "check": "headrace.inspect.questions",
    "check_fit": "headrace.inspect.answers",
    "check_quarantine": "headrace.inspect.answers",
    "check_kept": "headrace.inspect.kept",
    "check_mix": "headrace.inspect.metadataset",
    "check_packs": "headrace.inspect.store_checks",
    "check_samples": "headrace.inspect.sample_checks",
    "check_store": "headrace.inspect.store_checks",
    "choose_images": "headrace.inspect.lines",
    "describe": "headrace.inspect.questions",
    "describe_facts": "headrace.inspect.kept",
    "describe_metadataset": "headrace.inspect.metadataset",
    "describe_samples": "headrace.inspect.sample_description",
    "describe_store": "headrace.inspect.description",
    "drawer": "headrace.inspect.lines",
    "edit_lines": "headrace.inspect.run_files",
    "find_part": "headrace.inspect.samples",
    "find_shards": "headrace.inspect.origins",
    "kind_of": "headrace.inspect.answers",
    "leave_out_bad": "headrace.inspect.sample_checks",
    "listed": "headrace.inspect.sample_description",
    "look_at_sample": "headrace.inspect.sample_preview",
    "need_samples": "headrace.inspect.samples",
    "open_mix": "headrace.inspect.sample_preview",
    "open_preview": "headrace.inspect.questions",
    "open_samples": "headrace.inspect.sample_preview",
    "pack_figures": "headrace.inspect.description",
    "parts_heading": "headrace.inspect.lines",
    "parts_lines": "headrace.inspect.lines",
    "preview": "headrace.inspect.questions",
    "preview_lines": "headrace.inspect.lines",
    "preview_tokens": "headrace.inspect.token_preview",
    "read_part": "headrace.inspect.samples",
    "render": "headrace.inspect.rendering",
    "rendering_lines": "headrace.inspect.lines",
    "tell_change": "headrace.inspect.run_files",
    "tell_run_file": "headrace.inspect.run_files",
    "where": "headrace.inspect.origins",
    "with_inputs": "headrace.inspect.origins",
}

__all__ = [
    "CHECK_FITS",
    "MAX_SAMPLES",
    "PREVIEW_FITS",
    "Answer",
    "CheckOptions",
    "Description",
    "DocumentOrigins",
    "KeptVerdict",
    "MeasuredDescription",
    "MetadatasetDescription",
    "MixPreview",
    "MixVerdict",
    "OnProgress",
    "OpenPreview",
    "PackFigures",
    "PathKind",
    "Preview",
    "PreviewOptions",
    "Rendering",
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
    "check_kept",
    "check_mix",
    "check_packs",
    "check_quarantine",
    "check_samples",
    "check_store",
    "choose_images",
    "describe",
    "describe_facts",
    "describe_metadataset",
    "describe_samples",
    "describe_store",
    "drawer",
    "edit_lines",
    "find_part",
    "find_shards",
    "kind_of",
    "leave_out_bad",
    "listed",
    "look_at_sample",
    "need_samples",
    "open_mix",
    "open_preview",
    "open_samples",
    "pack_figures",
    "parts_heading",
    "parts_lines",
    "preview",
    "preview_lines",
    "preview_tokens",
    "read_part",
    "render",
    "rendering_lines",
    "tell_change",
    "tell_run_file",
    "where",
    "with_inputs",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazily(__name__, _HOMES, rooms=["views"])
