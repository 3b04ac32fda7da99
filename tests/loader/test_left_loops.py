"""A program that ends while a loop over a loader is not through says nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import corpora

PROGRAM = """
import atexit
import sys
import threading


@atexit.register
def check():  # registered first, it comes last
    if left := [one.name for one in threading.enumerate() if one.name == "headrace-read"]:
        print(left)


import headrace
from headrace.loader import Reading

if __name__ == "__main__":
    run = headrace.Run(headrace.WindowDataset(headrace.open(sys.argv[1]), seq_len=4), global_batch_size=2)
    batches = iter(headrace.Loader(run, micro_batch_size=2, reading=eval(sys.argv[2])))
    for _ in range(5):
        next(batches)
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "reading",
    ["None", "Reading(num_threads=0)", "Reading(num_threads=3)", "Reading(ahead='40MB')", "Reading(num_workers=2)"],
)
def test_nothing_is_said_when_the_program_ends(reading: str, tmp_path: Path) -> None:
    """No thread that reads is left then: one that makes tensors while the interpreter ends can abort it."""
    corpora.make(tmp_path / "store", 1, 40, max_length=20)
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "store"), reading]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


ENDLESS = """
import sys
import threading

import torch

import headrace
from headrace.compat import energon
from headrace.datasets import MapDataset
from headrace.loader import Reading

works = threading.Event()


def work(*_):
    works.set()
    while True:
        torch.ones(100_000).add(1).clone()


class Endless(energon.FileStore):
    __getitem__ = get_path = work


if sys.argv[2] == "cache":
    pool = energon.FileStoreCachePool(parent_cache_dir=sys.argv[1], num_workers=2)
    kept = pool.get_lazy(Endless(), "a")
else:
    data = MapDataset(headrace.WindowDataset(headrace.open(sys.argv[1]), seq_len=4), work)
    loader = headrace.Loader(headrace.Run(data, global_batch_size=2), micro_batch_size=2, reading=eval(sys.argv[2]))
    threading.Thread(target=lambda: list(loader), daemon=True).start()
works.wait()
print("ends")
"""


@pytest.mark.parametrize("reading", ["Reading(num_threads=3)", "Reading(ahead='40MB', num_threads=2)", "cache"])
def test_a_thread_that_works_when_the_program_ends_does_not_abort_it(reading: str, tmp_path: Path) -> None:
    corpora.make(tmp_path / "store", 1, 40, max_length=20)
    command = [sys.executable, "-c", ENDLESS, str(tmp_path / "store"), reading]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
