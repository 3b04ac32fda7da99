"""One rank of the training of `headrace demo`, with torchrun's variables in its environment.

    RANK=0 WORLD_SIZE=2 python -m headrace.cli.demo_rank DIR JOB

It trains on the run in ``run.json``, from the last checkpoint if there is one, and logs position and hash of each
sample before the model sees it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import headrace

RUN_FILE, CHECKPOINT = "run.json", "checkpoint.pt"
VOCAB_SIZE, WIDTH, LEARNING_RATE = 2048, 32, 0.1
MICRO_BATCH_SIZE = 2
CHECKPOINT_EVERY_STEPS = 8

Samples = dict[int, list[tuple[int, str]]]
"""Step -> position and hash of each sample that the step was fed."""


def main(folder: Path, job: str) -> None:
    """Train to the end of the run."""
    import torch
    from torch import distributed, nn

    parent, rank, num_ranks = os.getppid(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    meeting = (folder / f"{job}.meeting").as_uri()
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=num_ranks)
    loader = headrace.Loader(headrace.Run.load(folder / RUN_FILE), micro_batch_size=MICRO_BATCH_SIZE)
    model: Any = nn.Sequential(nn.Embedding(VOCAB_SIZE, WIDTH), nn.Linear(WIDTH, VOCAB_SIZE))
    if (folder / CHECKPOINT).exists():
        saved = torch.load(folder / CHECKPOINT, weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
    step = loader.step
    with log_of(folder, job, rank).open("a", buffering=1) as log:
        for batch in loader:
            log.write(json.dumps({"step": step, "samples": hashed(batch)}) + "\n")
            logits = model(batch["input_ids"]).flatten(0, 1)
            loss: Any = nn.functional.cross_entropy(logits, batch["labels"].flatten())
            loss.backward()
            if loader.step == step:
                continue  # more micro-batches of this step are to come
            for parameter in model.parameters():
                distributed.all_reduce(parameter.grad)
                parameter.data -= LEARNING_RATE / num_ranks * parameter.grad
                parameter.grad = None
            step = loader.step
            if rank == 0 and step % CHECKPOINT_EVERY_STEPS == 0:
                # Under another name first, so that the checkpoint is always whole.
                torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, folder / "checkpoint.part")
                (folder / "checkpoint.part").replace(folder / CHECKPOINT)
            if os.getppid() != parent:
                sys.exit("the demo has ended")
    distributed.barrier()  # no rank leaves while another still needs it


def hashed(batch: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return the position of each sample of a batch, and a hash of the bytes of its tokens and labels."""
    import xxhash

    rows = zip(batch["sample_positions"].tolist(), batch["input_ids"].numpy(), batch["labels"].numpy(), strict=True)
    return [
        (position, xxhash.xxh3_128_hexdigest(tokens.tobytes() + labels.tobytes())) for position, tokens, labels in rows
    ]


def log_of(folder: Path, job: str, rank: int) -> Path:
    """Return the log of a rank: a line of JSON for each micro-batch."""
    return folder / f"{job}-rank-{rank}.jsonl"


def read_log(folder: Path, job: str) -> Samples:
    """Return what all ranks of a job logged before they ended."""
    found: Samples = {}
    for path in sorted(folder.glob(log_of(folder, job, 0).name.replace("0", "*"))):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):  # else the kill came in the middle of this line
                entry = json.loads(line)
                samples = [(position, digest) for position, digest in entry["samples"]]
                found.setdefault(entry["step"], []).extend(samples)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
    # Everything is written. Threads of libraries have been seen to abort a process while the interpreter shuts down.
    os._exit(0)
