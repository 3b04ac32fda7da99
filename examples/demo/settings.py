"""The settings and the run of the demo, which the training processes and the proof share."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import headrace

WEIGHTS = {"modules": 2.0, "packages": 1.0}
LATER_WEIGHTS = {"modules": 1.0, "packages": 1.0, "network": 2.0}
REASON = "more about networks towards the end"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The numbers of a demo run."""

    vocab_size: int = 4096
    seq_len: int = 128
    global_batch_size: int = 12
    micro_batch_size: int = 2
    steps: int = 100
    checkpoint_every_steps: int = 8
    width: int = 64
    edit_at_step: int | None = None
    """The step from which the run has other weights and a third source; None before somebody wants that."""

    def save(self, folder: Path) -> None:
        """Write ``settings.json``."""
        (folder / "settings.json").write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Settings:
        """Read ``settings.json``."""
        return cls(**json.loads((folder / "settings.json").read_text()))


def make_run(folder: Path, settings: Settings) -> headrace.Run:
    """A shuffled run over two stores, blended 2 to 1 by tokens. It does not depend on the number of ranks.

    If it is edited, a third store joins it at a step, and the weights change.
    """
    blend = headrace.Blend({name: windows(folder, settings, name) for name in WEIGHTS}, weights=WEIGHTS, unit="tokens")
    run = headrace.Run(
        blend,
        global_batch_size=settings.global_batch_size,
        order=headrace.Order(seed=7),
        samples=settings.steps * settings.global_batch_size,
    )
    if settings.edit_at_step is None:
        return run
    added = {name: windows(folder, settings, name) for name in LATER_WEIGHTS.keys() - WEIGHTS.keys()}
    return run.edit(settings.edit_at_step, weights=LATER_WEIGHTS, add=added, reason=REASON)


def windows(folder: Path, settings: Settings, name: str) -> headrace.WindowDataset:
    """The windows of a store."""
    return headrace.WindowDataset(headrace.open(folder / name), seq_len=settings.seq_len)
