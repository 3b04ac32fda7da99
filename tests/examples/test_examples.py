"""Every example runs as its reader would run it, without a warning, and says what it claims."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "megatron_provider.py": ["train 400 samples, the first is [", "valid 40 samples", "test None"],
    "pack.py": ["packs of 256 tokens (best_fit)", "loss at first"],
    "blend.py": ["90.000 % code: blend, endless", "code/small: 360 of the first 1,600", "counts over the whole run: ["],
    "corpus.py": ["headrace-example-"],
    "prepare_corpus.py": [
        "'bad': 1, 'duplicate': 3, 'filter:functions only': ",
        "line 20: malformed JSON",
        "document 2 is line ",
    ],
    "torch_dataset.py": ["windows of 64 tokens every 32", "batches"],
    "torchrun_ddp.py": ["rank 0 of 2: 30 micro-batches in 10 steps", "rank 1 of 2: 30 micro-batches in 10 steps"],
    "train_loop.py": ["before the stop: [", "loss at first"],
    "what_was_fed.py": ["step 340 is the positions 2720 to 2727", "epoch 0, sample"],
}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run(name: str, folder: Path) -> str:
    """What the example prints."""
    command = [sys.executable, *(TORCHRUN if name.startswith("torchrun") else ["-W", "error"]), str(EXAMPLES / name)]
    environment = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_here_and_short() -> None:
    files = sorted(EXAMPLES.glob("*.py"))
    assert [file.name for file in files] == sorted(SAYS)
    for file in files:
        assert len(file.read_text().splitlines()) < 60, file


@pytest.mark.parametrize("name", sorted(SAYS))
def test_example(name: str, tmp_path: Path) -> None:
    output = run(name, tmp_path)
    for said in SAYS[name]:
        assert said in output
    if name == "train_loop.py":
        before, after = (line.partition(": ")[2].strip() for line in output.splitlines()[:2])
        assert before == after, "a resumed run repeats the losses of the steps after its checkpoint"
