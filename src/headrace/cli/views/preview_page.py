"""A preview as a page."""

from __future__ import annotations

from headrace.cli.figures import count, plural
from headrace.cli.views.page import (
    LEGEND,
    SEARCH,
    SEARCH_POLICY,
    SEARCH_SCRIPT,
    escaped,
    histogram_svg,
    page,
    pairs_html,
    sequence_html,
    shares_svg,
)
from headrace.cli.views.shown import Figures, Preview, Shares, ShownSample
from headrace.cli.views.terminal import as_json, sample_heading, sequence_heading


def preview_page(preview: Preview) -> str:
    """One HTML file: figures of the store, if the preview has them, and its samples."""
    parts = [
        f"<h1>{escaped(preview.path)}</h1>",
        f'<p class="soft">{_shown(preview)}</p>',
    ]
    if preview.note:
        parts.append(f"<p>{escaped(preview.note)}</p>")
    parts.append(pairs_html(_pairs(preview)))
    if preview.figures is not None and preview.figures.histogram:
        drawn = histogram_svg(preview.figures.histogram)
        parts += ["<h2>Lengths</h2>", '<p class="soft">documents by their tokens, from</p>']
        parts.append(f'<div class="scroll">{drawn}</div>')
    if preview.figures is not None and preview.figures.shares is not None:
        parts += ["<h2>Trained share</h2>", f'<p class="soft">{escaped(_shares_words(preview.figures.shares))}</p>']
        parts.append(f'<div class="scroll">{shares_svg(preview.figures.shares.documents)}</div>')
    if preview.left_out:
        parts += ["<h2>Left out</h2>", *(f"<p>{escaped(line)}</p>" for line in preview.left_out)]
    parts += ["<h2>Samples</h2>", SEARCH, LEGEND]
    parts += [_sample_html(preview, sample) for sample in preview.samples]
    return page(f"{preview.path} - headrace preview", [*parts, SEARCH_SCRIPT], policy=SEARCH_POLICY)


def _shares_words(shares: Shares) -> str:
    return f"documents by the share of their tokens that is trained, up to{f'; {shares.words}' if shares.words else ''}"


def _shown(preview: Preview) -> str:
    unit = "documents" if preview.max_seq_len is None else f"packs of {count(preview.max_seq_len)} tokens"
    shown = f"{count(len(preview.samples))} of {count(preview.num_samples)} {unit}"
    by = f", {escaped(preview.chosen_by)}" if preview.chosen_by else ""
    return f"{preview.kind}, {plural(preview.num_documents, 'document')}, shown: {shown}{by}"


def _pairs(preview: Preview) -> list[tuple[str, str]]:
    pairs = [("format", preview.format), ("keys", ", ".join(preview.keys))]
    if preview.tokenizer is not None:
        pairs.append(("tokeniser", preview.tokenizer))
    return pairs + ([] if preview.figures is None else figure_pairs(preview.figures))


def figure_pairs(figures: Figures) -> list[tuple[str, str]]:
    """The numbers of a store, in words."""
    pairs = [("tokens", f"{count(figures.tokens)} of {figures.key!r}")]
    lengths = figures.tokens_per_document
    if lengths is not None:
        middle = f"median {lengths.median:,.0f}, mean {lengths.mean:,.1f}"
        pairs.append(("per document", f"min {count(lengths.min)}, {middle}, max {count(lengths.max)} tokens"))
    if figures.trained is not None:
        share = figures.trained.trained / max(figures.trained.tokens, 1)
        of = "" if figures.trained.is_all else f" of the first {count(figures.trained.tokens)}"
        pairs.append(("trained", f"{count(figures.trained.trained)} tokens{of} ({share:.2%})"))
    if figures.packs is not None:
        lost = f", {plural(figures.packs.lost_tokens, 'token')} lost" if figures.packs.lost_tokens else ""
        pairs.append(
            ("packs", f"{count(figures.packs.packs)} ({figures.packs.strategy}), fill {figures.packs.fill:.3%}{lost}")
        )
    return pairs


def _sample_html(preview: Preview, sample: ShownSample) -> str:
    is_pack = preview.max_seq_len is not None
    has_several = is_pack or len(sample.sequences) > 1
    sequences = "".join(
        sequence_html(sequence, sequence_heading(sequence, is_piece=is_pack) if has_several else "")
        for sequence in sample.sequences
    )
    body = f'<div class="pair">{sequences}</div>' if preview.kind == "dpo" else sequences
    if sample.columns:
        body += pairs_html([(name, as_json(value)) for name, value in sample.columns.items()])
    if sample.num_pads:
        body += f'<p class="soft">{plural(sample.num_pads, "pad")}</p>'
    return f"<section><h3>{escaped(sample_heading(preview, sample))}</h3>{body}</section>"
