"""The numbers of a store of samples for people."""

from __future__ import annotations

import json

from headrace.cli.figures import count, listing, plural, size, table
from headrace.cli.media.description import SampleDescription, TypeInfo
from headrace.cli.views.safe_text import safe_text


def description_lines(found: SampleDescription) -> list[str]:
    """All that ``headrace info`` prints of a store of samples."""
    pairs = [
        ("format", f"{found.format}, {plural(found.shards, 'shard')}"),
        ("samples", count(found.samples) + (f", {count(found.left_out)} bad ones left out" if found.left_out else "")),
        ("on disk", size(found.bytes)),
    ]
    if found.energon_version is not None:
        pairs.append(("prepared by", f"energon {found.energon_version}"))
    if found.uuid is not None:
        pairs.append(("uuid", found.uuid))
    if found.type is not None:
        pairs += _type_pairs(found.type)
    elif found.format == "energon":
        pairs.append(("sample type", "not said: there is no dataset.yaml"))
    if found.media is not None:
        kinds = ", ".join(f"{count(number)} {kind}" for kind, number in found.media.entries.items()) or "none"
        by = "; ".join(f"{strategy.lower()}: {patterns}" for strategy, patterns in found.media.filters)
        pairs.append(("media facts", kinds + (f" (by {by})" if by else "")))
    if found.index is not None:
        pairs.append(("index.sqlite", ", ".join(found.index) or "no tables"))
    lines = [safe_text(found.path), *listing([(name, safe_text(value)) for name, value in pairs])]
    if found.type is not None and found.type.field_map is not None:
        fields = [(safe_text(field), safe_text(part)) for field, part in found.type.field_map.items()]
        lines += ["", "fields", *listing(fields)]
    return lines + _split_lines(found) + _part_lines(found)


def _type_pairs(found: TypeInfo) -> list[tuple[str, str]]:
    said = f"crude, {found.class_name}" if found.kind == "crude" else found.sample_type or found.class_name
    pairs = [("sample type", f"{said} ({found.file})")]
    if found.sample_loader is not None:
        pairs.append(("loader", f"{found.sample_loader}, which is code and was not run"))
    if found.part_filter is not None:
        pairs.append(("part filter", found.part_filter))
    if found.subflavors:
        pairs.append(("subflavors", json.dumps(found.subflavors, ensure_ascii=False, default=str)))
    return pairs


def _split_lines(found: SampleDescription) -> list[str]:
    if found.splits is None:
        return []
    total = sum(part.samples for part in found.splits)
    rows = [("split", "samples", "share", "shards", "samples excluded", "shards excluded")]
    for part in found.splits:
        share = f"{part.samples / max(total, 1):.1%}"
        excluded = count(part.excluded), count(part.excluded_shards)
        rows.append((safe_text(part.name), count(part.samples), share, count(part.shards), *excluded))
    return ["", "splits", *table(rows)]


def _part_lines(found: SampleDescription) -> list[str]:
    if not found.parts:
        return []
    of = "all samples" if found.looked_at == found.samples else f"{count(found.looked_at)} samples, evenly spread"
    rows = [("part", "samples", "share", "mean", "min", "max")]
    for part in found.parts:
        sizes = size(part.bytes / part.samples), size(part.min), size(part.max)
        share = f"{part.samples / found.looked_at:.1%}"
        rows.append((safe_text(part.name) or "(no name)", count(part.samples), share, *sizes))
    return ["", f"parts of {of}", *table(rows)]
