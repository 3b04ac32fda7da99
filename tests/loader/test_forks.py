"""A loader in the middle of its loop that is copied, pickled, or met again in a fork of its process."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import framed_encoders
from counts import PATIENCE_S
from headrace import Loader, MediaDataset, Order, Run, StateError
from headrace.compat import energon
from headrace.datasets.encoded import EncodedDataset, Framed, FramedRun
from headrace.encoders import Cooker, TaskEncoder, stateless
from headrace.loader import Reading
from headrace.loader.reading import check_process

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

READINGS = [Reading(num_threads=0), Reading(num_threads=2), Reading(ahead="1MB"), Reading(num_workers=2)]
IDS = ["here", "threads", "ahead", "workers"]
WAYS: list[Callable[[Any], Any]] = [lambda loader: pickle.loads(pickle.dumps(loader)), copy.deepcopy]


class Plain(TaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(framed_encoders.cook),)

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return sample


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return framed_encoders.numbers(tmp_path_factory.mktemp("forks") / "a", 40)


def taken(loader: Any, most: int) -> list[int]:
    return [int(n) for _, batch in zip(range(most), loader, strict=False) for n in batch["n"]]


@pytest.mark.parametrize("reading", READINGS, ids=IDS)
@pytest.mark.parametrize("is_framed", [False, True], ids=["fixed", "framed"])
def test_a_copy_goes_on_where_the_loader_is(place: Path, reading: Reading, is_framed: bool, tmp_path: Path) -> None:
    run: Any
    if is_framed:
        data = Framed(MediaDataset.open(place), Plain(), frame_positions=3)
        run = FramedRun(data, global_batch_size=4, order=Order(kind="full", seed=5))
    else:
        run = Run(EncodedDataset.open(place, Plain()), global_batch_size=4, order=Order(seed=5), epochs=1)
    journal = tmp_path / "journal.bin" if is_framed else None
    loader = Loader(run, micro_batch_size=4, reading=reading, journal=journal)
    batches = iter(loader)
    fresh = [way(loader) for way in WAYS]
    taken(batches, 3)
    copies = [way(loader) for way in WAYS]
    rest = taken(batches, 4)
    loader.close()
    copies += [way(loader) for way in WAYS]
    for number, one in enumerate(copies):
        assert one.position == (12 if number < 2 else 28)
        found = taken(iter(one), 4)
        assert number > 1 or found == rest
        one.close()
    assert [one.position for one in fresh] == [0, 0]
    assert len(rest) == 16


@pytest.mark.parametrize("order", ["shards", "energon"])
def test_a_copy_of_the_loader_under_energons_names(place: Path, order: Any) -> None:
    data = energon.get_train_dataset(
        place,
        batch_size=4,
        task_encoder=Plain(),
        worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=0),
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        order=order,
    )
    loader = energon.get_savable_loader(data)
    batches = iter(loader)
    next(batches)
    copies = [way(loader) for way in WAYS]
    wanted = next(batches)["__key__"]
    assert [next(iter(one))["__key__"] for one in copies] == [wanted, wanted]


PROGRAM = """
import os
import sys
import time

import headrace
from headrace.loader import Reading
from headrace.samples.media import TextSample


def upper(sample):
    sample.text = sample.text.upper()
    return sample


if __name__ == "__main__":
    path, reading, ending = sys.argv[1:]
    text = headrace.MediaDataset.open(path, sample_type=TextSample, field_map={"text": "txt"})
    run = headrace.Run(headrace.MapDataset(text, upper), global_batch_size=4, epochs=1)
    loader = headrace.Loader(run, micro_batch_size=4, reading=eval(reading))
    batches = iter(loader)
    found = next(batches)["text"]
    child = os.fork()
    if child == 0:
        for again in (batches, loader) if loader.reading.num_workers else (batches,):
            try:
                next(iter(again))
            except headrace.StateError as error:
                print("refused", "copy.deepcopy" in str(error), flush=True)
        del batches, again
        loader.close()
        print("the child has", sum(len(batch["text"]) for batch in loader), flush=True)
        os._exit(0) if ending == "at once" else sys.exit(0)
    os.waitpid(child, 0)
    for batch in batches:
        found += batch["text"]
    print("the parent has", len(set(found)), loader._feed.queue().num_replaced)
"""


@pytest.mark.parametrize("ending", ["at once", "as programs do"])
@pytest.mark.parametrize("reading", READINGS[1:], ids=IDS[1:])
def test_a_fork_leaves_the_loader_to_its_parent(reading: Reading, ending: str, tmp_path: Path) -> None:
    from headrace.stores.tar.writer import TarWriter

    with TarWriter(tmp_path / "n.tar") as tar:
        for number in range(80):
            tar.add(f"{number:04d}", {"txt": b"n%d" % number})
    (tmp_path / "program.py").write_text(PROGRAM)
    words = f"Reading(num_threads={reading.num_threads}, num_workers={reading.num_workers}, ahead={reading.ahead!r})"
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "n.tar"), words, ending]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    refused = ["refused True"] * (2 if reading.num_workers else 1)
    assert done.stdout.splitlines() == [*refused, "the child has 76", "the parent has 80 0"]
    assert (done.returncode, done.stderr) == (0, "")


def test_the_error_names_both_processes() -> None:
    with pytest.raises(StateError, match=r"began to read in process -1, and this is a fork of it, process \d+"):
        check_process(-1)
