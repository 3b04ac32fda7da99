"""Samples as lines for a terminal, each a card; pictures are drawn by someone else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headrace.cli.figures import count, duration, plural, size
from headrace.cli.media.parts import Picture, ShownPart
from headrace.cli.media.preview import MixFacts, SamplePreview, StorePreview
from headrace.cli.media.samples import Boxes, LookedAtSample, ShownSample, with_boxes
from headrace.cli.views.safe_text import safe_lines, safe_text

if TYPE_CHECKING:
    from headrace.cli.media.mix_preview import MixPreview

Draw = Callable[[Picture], str]
"""A picture -> what a terminal shows it by."""


def preview_lines(found: StorePreview | MixPreview, draw: Draw | None) -> Iterator[str]:
    """All that ``headrace preview`` prints of samples."""
    yield heading(found.facts)
    yield how_many(found)
    for sample in found:
        yield ""
        yield sample_heading(sample.shown)
        yield from sample_lines(sample, draw)


def how_many(found: StorePreview | MixPreview) -> str:
    """How many samples are shown, and of how many."""
    if found.facts.num_samples is None:
        return f"{plural(len(found.numbers), 'sample')} of a mix without an end"
    of_passes = " a pass" if isinstance(found.facts, MixFacts) else ""
    return f"{count(len(found.numbers))} of {plural(found.facts.num_samples, 'sample')}{of_passes}"


def heading(preview: SamplePreview | MixFacts) -> str:
    """What lies where, in a line."""
    return safe_text(f"{preview.path}: {what(preview)}")


def what(preview: SamplePreview | MixFacts) -> str:
    """What the store is, or the mix."""
    if isinstance(preview, MixFacts):
        order = f"order {preview.order}, seed {preview.seed}"
        return f"{preview.format}, split {preview.split_part}, {plural(len(preview.sources), 'source')}, {order}"
    part = "" if preview.split_part is None else f", part {preview.split_part}"
    kind = "" if preview.sample_type is None else f", {preview.sample_type}"
    return f"{preview.format}{part}, {plural(preview.num_shards, 'shard')}{kind}"


def sample_heading(shown: ShownSample) -> str:
    """Number, key and place of a sample; in a mix its position there, and its source, too."""
    if shown.place is not None:
        shard = f", {shown.shard}, {count(shown.index)}" if shown.shard else ""
        at = f"position {count(shown.place.position)}: {shown.place.source or '.'}, epoch {count(shown.place.epoch)}"
        return safe_text(f"{at}, sample {count(shown.number)}: {shown.key}  ({shown.place.path}{shard})")
    return safe_text(f"sample {count(shown.number)}: {shown.key}  ({shown.shard}, {count(shown.index)})")


def sample_lines(sample: LookedAtSample, draw: Draw | None) -> Iterator[str]:
    """The parts of a sample, and its fields."""
    for part in sample.shown.parts:
        yield from part_lines(part)
        if draw is not None and part.name in sample.pictures:
            yield draw(with_boxes(sample, part.name))
    for boxes in sample.shown.boxes:
        yield f"  {boxes_line(boxes)}"
    for field, value in sample.shown.fields.items():
        yield f"  {safe_text(field)} = {safe_text(value)}"


def part_lines(part: ShownPart) -> Iterator[str]:
    """One part: a line about it, and its text."""
    yield f"  {part_line(part)}"
    if part.text and part.kind != "bytes":
        for line in safe_lines(part.text) if part.kind == "text" else map(safe_text, part.text.split("\n")):
            yield f"      {line}"
    if part.left_out:
        yield f"      ... {plural(part.left_out, 'character')} more"


def part_line(part: ShownPart) -> str:
    """Name, kind, facts and size of a part in a line."""
    said = f": {part.text} ..." if part.kind == "bytes" and part.text else ""
    error = f": cannot be shown: {part.error}" if part.error else ""
    facts = "".join(f", {fact}" for fact in facts_of(part))
    return safe_text(f"{part.name or '(no name)'}: {part.kind}{facts}, {size(part.size)}{said}{error}")


def facts_of(part: ShownPart) -> list[str]:
    """The facts of a part as people say them: ``640 x 480``, ``2.0 s``, ``25 frames a second``."""
    facts = part.facts
    said = []
    for begin in ("", "video_"):
        if f"{begin}width" in facts:
            said.append(f"{facts[f'{begin}width']} x {facts[f'{begin}height']}")
    seconds = facts.get("video_duration", facts.get("audio_duration"))
    if isinstance(seconds, int | float):
        said.append(duration(seconds))
    if "video_fps" in facts:
        said.append(f"{facts['video_fps']:.4g} frames/s")
    if "audio_sample_rate" in facts:
        channels = facts.get("audio_channels", 1)
        said.append(f"sound {facts['audio_sample_rate']} Hz, {channels} channel{'' if channels == 1 else 's'}")
    if "dtype" in facts:
        said.append(f"{facts['dtype']} {facts['shape']}")
    return said


def boxes_line(boxes: Boxes) -> str:
    """How many boxes there are, and their first texts."""
    texts = f": {' | '.join(boxes.texts[:8])}{' ...' if len(boxes.texts) > 8 else ''}" if boxes.texts else ""
    number = len(boxes.boxes) + boxes.left_out
    return safe_text(f"{count(number)} {'box' if number == 1 else 'boxes'} of {boxes.kind} on {boxes.picture}{texts}")
