"""What workers hand over is the batch itself; memory of batches that are gone is used again."""

from __future__ import annotations

import gc
import itertools
import pickle
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from headrace import Loader, MediaDataset, Order, Run
from headrace.loader import Reading
from headrace.loader.memory import SPARE, Blocks
from headrace.loader.ragged import read_ragged
from headrace.loader.spans import (
    SPAN_BYTES_AWAY,
    SPAN_ROWS,
    SPAN_ROWS_HERE,
    SPAN_SECONDS,
    BatchSpan,
    Cost,
    Pace,
    SpanRows,
)
from headrace.loader.workers import messages
from headrace.loader.workers.messages import LARGE_BYTES, BlockTable, Channel, Message, WorkerMemory, dumped
from headrace.samples.media import CaptioningSample, SampleDecoder, SourceInfo
from headrace.stores import open as open_store
from headrace.stores.tar.writer import TarWriter
from media_made import encoded, pixels

READINGS = [Reading(num_threads=0), Reading(num_threads=2), Reading(num_workers=2)]
COUNT = 70


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(7),
        torch.arange(6.0).view(2, 3).t(),
        torch.zeros(1).expand(4),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(2, requires_grad=True),
        torch.zeros(0, 3),
        torch.arange(LARGE_BYTES, dtype=torch.uint8),
        torch.tensor(3),
    ],
    ids=["plain", "turned", "expanded", "bfloat16", "grad", "empty", "large", "scalar"],
)
def test_a_tensor_anywhere_in_a_message(tensor: torch.Tensor) -> None:
    """Samples of a framed run are handed over as they are, with tensors within."""
    message = [("a", {"within": [tensor]}), tensor]
    data = dumped(message)
    as_bytes = not tensor.requires_grad
    assert (b"rebuild_tensor" in data) != as_bytes, "without a storage of torch's around it"
    found = pickle.loads(data)
    for one in (found[0][1]["within"][0], found[1]):
        assert alike(one, tensor)
        assert one.requires_grad == tensor.requires_grad
    if tensor.is_leaf and not tensor.requires_grad:
        found[1].fill_(1)


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return type(other) is torch.Tensor and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return (
            type(one) is type(other)
            and len(one) == len(other)
            and all(alike(a, b) for a, b in zip(one, other, strict=True))
        )
    return type(one) is type(other) and bool(one == other)


def handed_over(made: Any, memory: WorkerMemory, table: BlockTable, *, is_begun: bool = False) -> Any:
    """What the loader has of what a worker made."""
    if not is_begun:
        memory.begin(table.offer(0))
    message, descriptors = Message.of(0, made, memory)
    sent = pickle.dumps(message)
    assert len(sent) < 2 * LARGE_BYTES, "little goes through the socket"
    return pickle.loads(sent).read(table, descriptors)


@pytest.mark.parametrize("size", [0, 3, LARGE_BYTES // 4 - 1, LARGE_BYTES // 4, LARGE_BYTES])
def test_a_message_is_its_batch_again(size: int) -> None:
    source = SourceInfo(dataset_path="d", index=3, shard_name="s.tar", file_names=("a.jpg", "a.txt"))
    batch = {
        "floats": torch.arange(size, dtype=torch.float32),
        "expanded": torch.arange(3).expand(2, 3),
        "half": torch.ones(4, dtype=torch.bfloat16),
        "needs": torch.ones(2, requires_grad=True).detach(),
        "texts": ["a", "b" * size],
        "bytes": [b"x" * size, b""],
        "inside": [torch.arange(5), {"deep": torch.arange(size)}],
        "__sources__": [(source,), None],
        "count": 7,
    }
    found = handed_over(SpanRows(batch), WorkerMemory(), BlockTable(1)).columns
    assert alike(batch, found)
    for name in ("floats", "expanded", "half"):
        found[name] += 1  # theirs to change


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "one.tar"
    with TarWriter(path) as tar:
        for number in range(COUNT):
            # Most are alike, so that they are decoded beside each other; some batches have one that is not.
            image = Image.fromarray(pixels(80 + (number == 20), 100, seed=number))
            tar.add(f"{number:03d}", {"jpg": encoded(image, "JPEG"), "txt": b"text %d" % number})
    return path


def run_of(path: Path, form: str | None, *, crude: bool = False) -> Run:
    decoder = None if form is None else SampleDecoder(image_decode=form)
    if crude:
        data = MediaDataset(open_store(path), decoder=decoder)
    else:
        fields = {"image": "jpg", "caption": "txt"}
        data = MediaDataset(open_store(path), CaptioningSample, fields, decoder=decoder)
    return Run(data, global_batch_size=4, order=Order(kind="none"), epochs=1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("reading", READINGS, ids=["asked", "threads", "workers"])
def test_batches_are_alike_however_they_are_read(pictures: Path, reading: Reading) -> None:
    kinds = [(None, True), ("rgb8", False), ("torchrgb", False), ("chwrgb8", True), ("pil", False)]
    # Processes are dear: of workers the two ways to hand over are looked at.
    for form, crude in kinds[:2] if reading.num_workers else kinds:
        run = run_of(pictures, form, crude=crude)
        loader = Loader(run, micro_batch_size=4, reading=reading)
        first = 0
        held = []
        for batch in loader:
            held.append(batch)  # all at once: none may be in the memory of another
        for batch in held:
            positions = batch.pop("sample_positions").tolist()
            assert positions == list(range(first, min(first + 4, COUNT)))
            wanted = run.datasets[0].collate(run.datasets[0].__getitems__(positions))
            wanted = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in wanted.items()}
            assert batch.keys() == wanted.keys()
            assert alike(wanted, {name: batch[name] for name in wanted})
            first += 4
        assert first >= COUNT
        loader.close()


def test_a_micro_batch_of_another_dtype_keeps_it(pictures: Path) -> None:
    class Mixed(MediaDataset):
        def samples(self, addresses: Any, watch: Any = None) -> list[Any]:
            found = super().samples(addresses, watch)
            for address, sample in zip(addresses.tolist(), found, strict=True):
                sample.image = (
                    np.full(2, 0.5) if address // 4 % 2 else None if address // 4 % 3 else np.ones(3, np.uint8)
                )
            return found

    data = Mixed(open_store(pictures), CaptioningSample, {"image": "jpg", "caption": "txt"}, decoder=None)
    loader = Loader(Run(data, global_batch_size=4, order=Order(kind="none"), epochs=1), micro_batch_size=4)
    kinds = [batch["image"].dtype if isinstance(batch["image"], torch.Tensor) else None for batch in loader]
    wanted = [torch.float64 if at % 2 else None if at % 3 else torch.uint8 for at in range(len(kinds))]
    assert kinds == wanted


def test_blocks_have_one_holder() -> None:
    blocks = Blocks()
    first = blocks.take(1000)
    assert blocks.take(1000) is not first
    view = first[10:20].reshape(2, 5)
    tensor = torch.from_numpy(view[1:])
    begin = first.ctypes.data
    del first, view
    others = [blocks.take(1000) for _ in range(4)]
    assert all(other.ctypes.data != begin for other in others)
    del tensor
    assert blocks.take(900).ctypes.data == begin  # large enough, and not twice too large
    assert blocks.take(300).ctypes.data != begin
    del others
    gc.collect()
    blocks.take(10)
    assert len(blocks._blocks) <= 4  # and does not keep what nobody asks for


def test_large_blocks_are_made_of_large_pages() -> None:
    blocks = Blocks()
    block = blocks.take(9_000_001)
    assert len(block) == 9_000_001
    assert block.ctypes.data % (2 << 20) == 0
    block[:] = 7
    begin = block.ctypes.data
    held = block[5:].view(np.uint8).reshape(-1, 4)
    del block
    other = blocks.take(9_000_001)
    assert other.ctypes.data != begin
    del held
    assert blocks.take(9_000_001).ctypes.data == begin


def test_spans_of_tokens_double_up_to_their_bytes() -> None:
    pace = Pace(4, SPAN_BYTES_AWAY // 64)
    assert [pace.take() for _ in range(6)] == [1, 2, 4, 8, 16, 16]
    pace.learn(16, Cost(9.0, 1 << 40))  # of tokens that is no news
    assert pace.take() == 16
    assert [Pace(4, 1).take() for _ in range(2)] == [1, 1]
    huge = Pace(4, SPAN_BYTES_AWAY)
    assert [huge.take() for _ in range(3)] == [1, 1, 1]


def test_spans_of_media_grow_as_they_turn_out_to_be_small() -> None:
    pace = Pace(16, None)
    assert [pace.take() for _ in range(3)] == [1, 1, 1]
    for _ in range(12):
        taken = pace.take()
        pace.learn(taken, Cost(taken * SPAN_SECONDS / 1000, taken * SPAN_BYTES_AWAY // 1000))
    assert pace.take() == SPAN_ROWS // 16
    pace.learn(32, Cost(SPAN_SECONDS * 8, 0))  # slow ones: a quarter of a micro-batch would do
    assert pace.take() == 4
    pace.learn(4, Cost(0.0, SPAN_BYTES_AWAY * 40))
    assert pace.take() == 1
    assert pace.take() == 1
    # What was costly is forgotten by halves: each was ten times too much, which is less than one after four.
    found = []
    for _ in range(10):
        pace.learn(pace.take(), Cost(0.0, 0))
        found.append(pace.take())
    assert found == [1, 1, 1, 1, 2, 4, 8, 16, 32, 32]
    here = Pace(16, None, is_here=True)
    for _ in range(9):
        here.learn(here.take(), Cost(0.0, 0))
    assert here.take() == SPAN_ROWS_HERE // 16
    wide = Pace(SPAN_ROWS * 2, None)
    wide.learn(1, Cost(0.0, 0))
    assert wide.take() == 1


def test_images_are_sent_in_the_memory_they_were_stacked_in(pictures: Path) -> None:
    run = run_of(pictures, "rgb8")
    located = run.locate(np.arange(8, dtype=np.int64))
    span, memory, table = BatchSpan(located, [8], [0], [8]), WorkerMemory(), BlockTable(1)
    memory.begin(table.offer(0))
    rows = messages.read_message(read_ragged, run, "int64", span, lambda address: None, memory)
    image = rows.columns["image"]
    found = handed_over(rows, memory, table, is_begun=True).columns["image"]
    assert torch.equal(found, image)
    image[0] = 7
    assert torch.equal(found, image), "it is the same memory"


def test_tensors_within_lie_in_blocks_too() -> None:
    """Samples of a framed run have them anywhere; one that is twice in a message is one tensor."""
    large = torch.arange(LARGE_BYTES, dtype=torch.int32).reshape(-1, 8)
    memory, table = WorkerMemory(), BlockTable(1)
    found = handed_over([{"within": [large, large.t()]}, large, large.numpy()], memory, table)
    assert torch.equal(found[1], large)
    assert torch.equal(torch.from_numpy(found[2]), large)
    assert found[0]["within"][0] is found[1]
    assert torch.equal(found[0]["within"][1], large.t())
    assert table._blocks[0][0].lent_to() is not None
    del found
    assert table._blocks[0][0].lent_to() is None


def test_what_does_not_fit_into_a_socket_is_sent_while_the_loader_waits() -> None:
    ours, theirs = map(Channel, socket.socketpair())
    data = bytes(5 << 20)
    for _ in range(2):
        ours.post(data)
    assert ours.receive(0) is None
    received: list[Any] = []
    thread = threading.Thread(target=lambda: received.extend((theirs.receive(), theirs.receive(), theirs.send(b"x"))))
    thread.start()
    answer = None
    while answer is None:
        answer = ours.receive(0.01)
    thread.join()
    assert answer == (b"x", [])
    assert [len(one[0]) for one in received[:2]] == [5 << 20] * 2
    theirs.close()
    with pytest.raises(EOFError):
        ours.receive()
    ours.close()


def test_a_block_is_used_by_one_message_at_a_time() -> None:
    """The loader offers a block once no batch refers to it, the largest first, and keeps few that are not used."""
    memory, table = WorkerMemory(), BlockTable(1)
    tasks = itertools.count()

    def made(*sizes: int) -> list[torch.Tensor]:
        task = next(tasks)
        memory.begin(table.offer(task))
        memory.allocate(sizes[0])[:] = task
        tensors = [torch.full((size,), 100 + task, dtype=torch.uint8) for size in sizes]
        message, descriptors = Message.of(task, tensors, memory)
        found: list[torch.Tensor] = message.read(table, descriptors)
        return found

    first, second = made(LARGE_BYTES), made(LARGE_BYTES)
    assert first[0].data_ptr() != second[0].data_ptr()
    place = second[0].data_ptr()
    view = second[0][5:].view(-1, 1)
    del second
    assert made(LARGE_BYTES)[0].data_ptr() not in (first[0].data_ptr(), place)
    assert set(view.flatten().tolist()) == {101}
    assert set(first[0].tolist()) == {100}
    del view
    gc.collect()
    found = made(2 * LARGE_BYTES, LARGE_BYTES)  # larger than all
    assert [set(one.tolist()) for one in found] == [{103}, {103}]
    del found
    for _ in range(5):
        made(2 * LARGE_BYTES, LARGE_BYTES)
    assert len(memory.blocks) <= 2 + SPARE  # the first batch, the one in use, and the spare ones
    assert memory.blocks.keys() == table._blocks[0].keys()


def test_workers_use_the_memory_of_batches_that_are_gone(pictures: Path) -> None:
    """Batches that are held, or views of them, stay as they are while the memory of others is used again."""
    fields, decoder = {"image": "jpg", "caption": "txt"}, SampleDecoder(image_decode="rgb8")
    data = MediaDataset(open_store(pictures), CaptioningSample, fields, decoder=decoder)
    run = Run(data, global_batch_size=4, order=Order(seed=1), epochs=9)
    loader = Loader(run, micro_batch_size=4, reading=Reading(num_workers=2, start_method="fork"))
    expected = {
        int(position): batch["image"][row]
        for batch in Loader(run, micro_batch_size=4, reading=Reading(num_threads=0))
        if isinstance(batch["image"], torch.Tensor)
        for row, position in enumerate(batch["sample_positions"])
    }
    held: list[tuple[int, torch.Tensor]] = []
    places = set()
    for number, batch in enumerate(loader):
        images = batch["image"]
        if not isinstance(images, torch.Tensor):
            continue
        places.add(images.untyped_storage().data_ptr())
        for row, position in enumerate(batch["sample_positions"].tolist()):
            assert torch.equal(images[row], expected[position])
        if number % 11 == 0:
            held.append((int(batch["sample_positions"][1]), images[1, 2:4]))
        del batch, images
    loader.close()
    assert len(places) < 9 * COUNT // 4 // 2
    for position, part in held:
        assert torch.equal(part, expected[position][2:4])
