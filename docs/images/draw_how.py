"""Draws the pictures of docs/in-pictures.md: `position.svg`, `chapters.svg`, `packs.svg` and `lanes.svg`.

    python docs/images/draw_how.py docs/images

All numbers in them are those that Headrace gives: of a blend of small stores, of a plan of packs, and of lanes.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from colorsys import hls_to_rgb
from pathlib import Path

import numpy as np

import headrace
from headrace.plan.framed import Lanes
from headrace.plan.packing import plan_packs
from headrace.stores import IndexedWriter

GREY, BLACK, RED = "#57606a", "#1f2328", "#cf222e"
HUES = {"web": 210, "code": 30, "math": 130}


def colour(hue: float, light: float = 0.84) -> str:
    """A pale colour."""
    red, green, blue = (round(255 * part) for part in hls_to_rgb(hue % 360 / 360, light, 0.6))
    return f"#{red:02x}{green:02x}{blue:02x}"


def text(x: float, y: float, words: str, *, anchor: str = "start", fill: str = BLACK, weight: str = "400") -> str:
    """Words at a place."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{fill}" font-weight="{weight}">{words}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, words: str = "") -> str:
    """A rectangle with words in its middle."""
    rect = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill}"/>'
    return rect + (text(x + width / 2, y + height / 2 + 4, words, anchor="middle") if words else "")


def arrow(x: float, y: float, length: float) -> str:
    """An arrow to the right."""
    path = f"M{x:g} {y:g} h{length:g} m-5 -4 l5 4 l-5 4"
    return f'<path d="{path}" stroke="{GREY}" fill="none"/>'


def whole(width: float, height: float, lines: Iterator[str]) -> str:
    """The file of a picture."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="system-ui, sans-serif" font-size="12">'
    )
    background = f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#ffffff"/>'
    return "\n".join([head, background, *lines, "</svg>"]) + "\n"


def windows(folder: Path, name: str, count: int) -> headrace.WindowDataset:
    """A store of so many windows of 8 tokens."""
    with IndexedWriter(folder / name, dtype="uint16") as writer:
        writer.add_documents(np.arange(count * 8 + 1, dtype=np.uint16), np.array([count * 8 + 1]))
        writer.finish()
    return headrace.WindowDataset(headrace.open(folder / name), seq_len=8)


def run_over(folder: Path) -> headrace.Run:
    """A run over two sources."""
    sources = {"web": windows(folder, "web", 40), "code": windows(folder, "code", 12)}
    mix = headrace.Blend(sources, weights={"web": 3, "code": 1})
    return headrace.Run(mix, global_batch_size=4, order=headrace.Order(seed=1), samples=160)


def position_picture(run: headrace.Run) -> str:
    """From positions to samples: each column is computed from the one before it."""
    columns = ("position", "step and place", "source and draw", "epoch and rank", "sample", "tokens")
    lefts, widths = (20, 120, 254, 396, 538, 648), (76, 110, 118, 118, 86, 116)
    lengths = {"web": 40, "code": 12}
    steps = (0, 15)
    traced = [[sample for step in range(16) for sample in headrace.tracing.trace_step(run, step)]][0]

    def lines() -> Iterator[str]:
        for left, width, title in zip(lefts, widths, columns, strict=True):
            yield text(left + width / 2, 24, title, anchor="middle", fill=GREY)
        y = 38.0
        for step in steps:
            for place in range(4):
                position = step * 4 + place
                sample = traced[position]
                draw = sum(one.source == sample.source for one in traced[:position])
                first = sample.index * 8
                cells = (
                    f"{position}",
                    f"step {step}, place {place}",
                    f"{sample.source}, draw {draw}",
                    f"epoch {sample.epoch}, rank {draw - sample.epoch * lengths[sample.source]}",
                    f"{sample.index}",
                    f"{first} ... {first + 8}",
                )
                fill = colour(HUES[sample.source])
                for number, (left, width, words) in enumerate(zip(lefts, widths, cells, strict=True)):
                    yield box(left, y, width, 22, fill if number > 1 else "#eaeef2", words)
                    if number:
                        yield arrow(
                            lefts[number - 1] + widths[number - 1] + 4,
                            y + 11,
                            left - 8 - lefts[number - 1] - widths[number - 1],
                        )
                y += 27
            y += 12
        labels = ("divide", "blend by weight", "divide by its length", "permute", "locate")
        for number, words in enumerate(labels):
            middle = (lefts[number] + widths[number] + lefts[number + 1]) / 2
            yield text(middle, y + 6, words, anchor="middle", fill=GREY)

    return whole(784, 38 + 2 * (4 * 27 + 12) + 22, lines())


def chapters_picture(run: headrace.Run, folder: Path) -> str:
    """What each step of an edited run is fed, and how far each source is."""
    math = windows(folder, "math", 16)
    edited = run.edit(12, weights={"web": 1, "code": 1}, reason="decay mix")
    edited = edited.edit(24, weights={"web": 1, "code": 1, "math": 2}, add={"math": math}, reason="add math")
    left, cell, base = 92, 17, 40
    fed = [headrace.tracing.trace_step(edited, step) for step in range(40)]

    def lines() -> Iterator[str]:
        yield text(left - 10, base + 44, "fed at a step", anchor="end", fill=GREY)
        for number, (first, words) in enumerate(
            ((0, "web 3 : code 1"), (12, "web 1 : code 1"), (24, "web 1 : code 1 : math 2"))
        ):
            yield text(left + first * cell + 4, base - 10, f"chapter {number}: {words}", weight="600")
        for step, samples in enumerate(fed):
            y = float(base)
            for source, count in sorted(
                Counter(sample.source for sample in samples).items(), key=lambda pair: list(HUES).index(pair[0])
            ):
                yield box(left + step * cell, y, cell - 2, count * 18 - 2, colour(HUES[source]))
                y += count * 18
        for number, source in enumerate(HUES):
            y = base + 92 + number * 26
            yield text(left - 10, y + 13, source, anchor="end")
            epochs = [[sample.epoch for sample in samples if sample.source == source] for samples in fed]
            before = -1
            for step, found in enumerate(epochs):
                if not found:
                    continue
                yield box(left + step * cell, y, cell - 2, 18, colour(HUES[source], 0.9 - 0.09 * (found[-1] % 4)))
                if found[-1] != before:
                    yield text(left + step * cell + 3, y + 13, f"{found[-1]}")
                    before = found[-1]
        for step in (12, 24):
            path = f"M{left + step * cell - 1:g} {base - 24} V{base + 166}"
            yield f'<path d="{path}" stroke="{RED}" stroke-dasharray="3 3"/>'
        words = "Below: the epoch of each source. An edit changes the mix from its step on, and every source goes on."
        yield text(left, base + 186, words, fill=GREY)

    return whole(left + 40 * cell + 20, base + 200, lines())


def packs_picture() -> str:
    """A plan of packs: documents in their order, and where best fit puts them."""
    lengths = np.random.default_rng(4).integers(30, 330, 22)
    packing = headrace.Packing(seq_len=512)
    plan = plan_packs(lengths, packing)
    items = plan.items(np.arange(len(plan)))
    scale, left = 0.42, 84

    def lines() -> Iterator[str]:
        yield text(left - 10, 33, "documents", anchor="end", fill=GREY)
        x, y = float(left), 20.0
        for number, length in enumerate(lengths):
            if x + length * scale > 860:
                x, y = float(left), y + 24
            yield box(x, y, length * scale - 2, 20, colour(number * 47), f"{number}")
            x += length * scale
        y += 44
        for pack in range(len(plan)):
            column, row = divmod(pack, (len(plan) + 2) // 3)
            x0, y0 = left + column * 262, y + row * 26
            yield text(x0 - 8, y0 + 14, f"pack {pack}" if not column else "", anchor="end", fill=GREY)
            x = float(x0)
            for at in range(int(items.offsets[pack]), int(items.offsets[pack + 1])):
                document = int(items.documents[at])
                yield box(x, y0, lengths[document] * scale - 2, 20, colour(document * 47), f"{document}")
                x += float(lengths[document]) * scale
            rest = x0 + 512 * scale - x
            if rest > 3:
                outline = 'rx="3" fill="none" stroke="#d0d7de"'
                yield f'<rect x="{x:g}" y="{y0:g}" width="{rest - 2:g}" height="20" {outline}/>'
        words = f"{len(plan)} packs of 512 tokens, {lengths.sum() / (512 * len(plan)):.1%} full, known before the run."
        yield text(left, y + 26 * ((len(plan) + 2) // 3) + 14, f"Best fit over all documents: {words}", fill=GREY)

    rows = 1 + int((lengths.sum() * scale) // (860 - left))
    return whole(884, 20 + 24 * rows + 24 + 26 * ((len(plan) + 2) // 3) + 30, lines())


def lanes_picture() -> str:
    """How positions are dealt to lanes and frames, and which units of the batches these make."""
    lanes = Lanes(num_lanes=4, frame_positions=5)
    left, cell = 84, 30
    units = left + 10 * cell + 92

    def lines() -> Iterator[str]:
        yield text(left, 24, "positions, a frame at a time", fill=GREY)
        for step in range(4):
            yield text(units + 34 + step * 74, 24, f"step {step}", anchor="middle", fill=GREY)
        for lane in range(4):
            y = 36 + lane * 30
            yield text(left - 10, y + 15, f"lane {lane}", anchor="end", fill=GREY)
            for frame in range(2):
                begin = lanes.begin(lane, frame)
                for number, position in enumerate(lanes.positions(lane, frame).tolist()):
                    x = left + (begin + number) * cell + frame * 16
                    yield box(x, y, cell - 2, 22, colour(lane * 83 + 20, 0.88 - 0.1 * frame), f"{position}")
            yield arrow(left + 10 * cell + 30, y + 11, 48)
            for unit in range(4):
                yield box(units + unit * 74, y, 68, 22, colour(lane * 83 + 20), f"unit {unit * 4 + lane}")
        yield text(left, 176, "A lane encodes a frame of its positions, and makes units of it alone.", fill=GREY)
        words = "Unit u of lane l is number 4 u + l, so each place in the batch always has the same lane."
        yield text(left, 194, words, fill=GREY)

    return whole(units + 310, 208, lines())


def drawn() -> dict[str, str]:
    """All pictures, by the names of their files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = run_over(folder)
        return {
            "position.svg": position_picture(run),
            "chapters.svg": chapters_picture(run, folder),
            "packs.svg": packs_picture(),
            "lanes.svg": lanes_picture(),
        }


if __name__ == "__main__":
    for file, picture in drawn().items():
        (Path(sys.argv[1]) / file).write_text(picture, encoding="utf-8")
