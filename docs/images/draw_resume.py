"""Draws `resume.svg`: a run, and the same run killed and resumed on other ranks, as their loaders gave them.

    python docs/images/draw_resume.py docs/images/resume.svg

Both runs are real: a small store is written to a temporary folder and read by one loader for each rank. The numbers in
the picture are the samples of the store.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from colorsys import hls_to_rgb
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from headrace.loader import Ranks
from headrace.stores import IndexedWriter

GLOBAL_BATCH_SIZE = 8
NUM_STEPS, KILLED_AFTER = 6, 3
RANKS, RANKS_AFTER = 4, 2
CELL_W, CELL_H, GAP = 30, 20, 22
LEFT, TOP, STEP_W = 112, 34, 4 * CELL_W + GAP
"""Pixels: a step is as wide as the four samples of a rank after the change."""

Step = list[list[int]]
"""The samples of each rank."""


def run_over(folder: Path) -> headrace.Run:
    """A shuffled run over 64 windows."""
    with IndexedWriter(folder / "tokens", dtype="uint16") as writer:
        writer.add_documents(np.arange(64 * 8 + 1, dtype=np.uint16), np.array([64 * 8 + 1]))
        writer.finish()
    windows = headrace.WindowDataset(headrace.open(folder / "tokens"), seq_len=8)
    return headrace.Run(windows, global_batch_size=GLOBAL_BATCH_SIZE, order=headrace.Order(seed=1), epochs=1)


def steps(run: headrace.Run, num_ranks: int, state: dict[str, Any] | None, count: int) -> tuple[list[Step], Any]:
    """The next steps, as each rank's loader gives them, and the state after them."""
    given: list[list[list[int]]] = []
    for rank in range(num_ranks):
        loader = headrace.Loader(run, micro_batch_size=GLOBAL_BATCH_SIZE // num_ranks, ranks=Ranks(rank, num_ranks))
        if state is not None:
            loader.load_state_dict(state)
        # Token 8 i is the first one of window i.
        given.append([(batch["input_ids"][:, 0] // 8).tolist() for batch in islice(loader, count)])
        after = json.loads(json.dumps(loader.state_dict()))
        loader.close()
    return [[of[step] for of in given] for step in range(count)], after


def picture(whole: list[Step], killed: list[Step], resumed: list[Step], state_bytes: int) -> Iterator[str]:
    """The lines of the file."""
    strip_h = RANKS * CELL_H
    second = TOP + strip_h + 62
    width, height = LEFT + NUM_STEPS * STEP_W + 6, second + strip_h + 36
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="12">'
    )
    yield f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>'
    for step in range(NUM_STEPS):
        yield text(LEFT + step * STEP_W + 2 * CELL_W, 18, f"step {step}", anchor="middle", fill="#57606a")
    yield from strip(whole, TOP, 0)
    yield from names(TOP, "never killed", RANKS)
    yield from strip(killed, second, 0)
    yield from names(second, "killed, then resumed", RANKS)
    yield from strip(resumed, second, KILLED_AFTER)
    x = LEFT + KILLED_AFTER * STEP_W - GAP / 2
    yield f'<path d="M{x} {second - 26} V{second + strip_h + 6}" stroke="#cf222e" stroke-width="2"/>'
    yield text(x - 8, second - 14, f"kill -9 of all {RANKS} ranks", anchor="end", fill="#cf222e")
    yield text(
        x + 8, second - 14, f"resumed on {RANKS_AFTER} ranks, from a state of {state_bytes} bytes", fill="#1a7f37"
    )
    note = "Each step gets the same samples in the same order, however many ranks read them."
    yield text(LEFT, height - 12, note, fill="#57606a")
    yield "</svg>"


def names(top: int, title: str, num_ranks: int) -> Iterator[str]:
    """The title of a strip, and the name of each row."""
    yield text(LEFT - 100, top - 8, title, weight="600")
    for rank in range(num_ranks):
        yield text(LEFT - 12, top + rank * CELL_H + 14, f"rank {rank}", anchor="end", fill="#57606a")


def strip(found: list[Step], top: int, first_step: int) -> Iterator[str]:
    """The steps as cells: a row for each rank."""
    for number, of_ranks in enumerate(found, start=first_step):
        height = RANKS * CELL_H / len(of_ranks)
        for rank, samples in enumerate(of_ranks):
            for place, sample in enumerate(samples):
                # Two samples a rank are drawn as wide as four.
                w = 4 * CELL_W / len(samples)
                x, y = LEFT + number * STEP_W + place * w, top + rank * height
                red, green, blue = (round(255 * part) for part in hls_to_rgb(sample * 47 % 360 / 360, 0.84, 0.6))
                color = f"#{red:02x}{green:02x}{blue:02x}"
                yield (
                    f'<rect x="{x:g}" y="{y:g}" width="{w - 2:g}" height="{height - 2:g}" rx="3" fill="{color}"/>'
                    + text(x + w / 2 - 1, y + height / 2 + 3, str(sample), anchor="middle")
                )


def text(x: float, y: float, words: str, *, anchor: str = "start", fill: str = "#1f2328", weight: str = "400") -> str:
    """Words at a place."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{fill}" font-weight="{weight}">{words}</text>'


def drawn() -> str:
    """The picture, of runs that are made now."""
    with tempfile.TemporaryDirectory() as folder:
        run = run_over(Path(folder))
        whole, _ = steps(run, RANKS, None, NUM_STEPS)
        killed, state = steps(run, RANKS, None, KILLED_AFTER)
        resumed, _ = steps(run, RANKS_AFTER, state, NUM_STEPS - KILLED_AFTER)
    return "\n".join(picture(whole, killed, resumed, len(json.dumps(state)))) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(drawn(), encoding="utf-8")
