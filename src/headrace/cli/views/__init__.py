"""What is stored, and what a recipe makes of a record, for people to look at.

    store  -> preview     -> Preview     documents or packs: their text, what is trained, roles, borders
    recipe -> rendering   -> Rendering   one record on its way: layout, messages, text, tokens, evidence
              token_texts, roles, stretches    ids -> texts, whose turn they are, runs of tokens that are alike
    both   -> terminal    lines, in colour or with marks
           -> page        one HTML file that needs nothing else
           -> msgspec.to_builtins, for JSON

Structures are plain and frozen; whoever draws them reads no store.
"""

from __future__ import annotations

from headrace.cli.views.preview import PreviewOptions, preview_store
from headrace.cli.views.preview_page import preview_page
from headrace.cli.views.rendering import render_record
from headrace.cli.views.rendering_page import rendering_page
from headrace.cli.views.shown import Figures, Preview, ShownSample, ShownSequence, Stretch
from headrace.cli.views.steps import EvidenceRow, Rendering

__all__ = [
    "EvidenceRow",
    "Figures",
    "Preview",
    "PreviewOptions",
    "Rendering",
    "ShownSample",
    "ShownSequence",
    "Stretch",
    "preview_page",
    "preview_store",
    "render_record",
    "rendering_page",
]
