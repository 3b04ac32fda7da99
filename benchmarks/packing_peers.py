"""The peers that `packing.py` measures, each in a separate process.

    python benchmarks/packing_peers.py --one ENGINE lengths.npy MAX_SEQ_LEN

``torchtune``, ``trl bfd`` and ``trl bfd_split`` run the packages' own code, from tokens in memory
(torchtune: Python lists; TRL: an Arrow table) to packed samples in memory. ``first-fit`` and ``lpfhp`` are plans from
lengths only, written here after the published methods: first-fit in the order of arrival, as axolotl's sampler packs,
and Graphcore's longest-pack-first over a histogram (arXiv 2107.02027). Both are in NumPy and Python; axolotl compiles
its loop with numba, to about the same speed.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.int64]

GROUP_DOCUMENTS = 100_000
"""The number of documents that axolotl packs together, as one group."""

MOST_DOCUMENTS = 200
"""The most documents in one pack: axolotl's default, also used for LPFHP."""

VOCAB_SIZE = 50_000


def first_fit(lengths: Lengths, max_seq_len: int) -> tuple[Lengths, Lengths]:
    """Put each document, in order, into the first pack of its group with room; return packs as (lengths, bounds)."""
    parts, bounds, num_documents = [], [np.zeros(1, dtype=np.int64)], 0
    for begin in range(0, len(lengths), GROUP_DOCUMENTS):
        group = lengths[begin : begin + GROUP_DOCUMENTS]
        chosen = _first_fit(group, max_seq_len)
        parts.append(group[np.argsort(chosen, kind="stable")])
        bounds.append(np.cumsum(np.bincount(chosen)) + num_documents)
        num_documents += len(group)
    return np.concatenate(parts), np.concatenate(bounds)


def _first_fit(lengths: Lengths, max_seq_len: int) -> Lengths:
    room = np.full(len(lengths), max_seq_len)
    count = np.zeros(len(lengths), dtype=np.int64)
    chosen = np.empty(len(lengths), dtype=np.int64)
    num_packs = 1
    for document, length in enumerate(lengths.tolist()):
        # One more pack than needed, since an empty pack always has room.
        pack = int(np.argmax(room[: num_packs + 1] >= length))
        num_packs = max(num_packs, pack + 1)
        room[pack] -= length
        count[pack] += 1
        if count[pack] == MOST_DOCUMENTS:
            room[pack] = 0
        chosen[document] = pack
    return chosen


def lpfhp(lengths: Lengths, max_seq_len: int) -> tuple[Lengths, Lengths]:
    """Pack by longest-pack-first over the histogram; return packs as (lengths, bounds)."""
    counts = np.bincount(lengths, minlength=max_seq_len + 1)
    # Maps the room left to kinds of packs: their number, and the lengths in each.
    kinds: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
    for length in range(max_seq_len, 0, -1):
        left = int(counts[length])
        room = length
        while left:
            # Take the fullest packs that have room, or new ones. Packs with the most documents allowed are closed.
            while room < max_seq_len and not kinds[room]:
                room += 1
            number, held = kinds[room].pop() if room < max_seq_len else (left, [])
            # As many documents of this length as fit into a pack, or as are left for the last pack.
            each = min(room // length, MOST_DOCUMENTS - len(held), left)
            taken = min(number, left // each)
            if taken < number and held:
                kinds[room].append((number - taken, held))
            grown = held + [length] * each
            kinds[room - each * length if len(grown) < MOST_DOCUMENTS else 0].append((taken, grown))
            left -= taken * each
            # The room that remains may be enough for more documents of this length.
            room = max(length, room - each * length)
    every = [kind for same_room in kinds.values() for kind in same_room]
    flat = np.concatenate([np.tile(held, number) for number, held in every])
    sizes = np.repeat([len(held) for _, held in every], [number for number, _ in every])
    return flat, np.concatenate([[0], np.cumsum(sizes)])


def torchtune(lengths: Lengths, max_seq_len: int) -> dict[str, Any]:
    """Run torchtune's ``PackedDataset`` over lists of tokens."""
    # A progress bar that moves at every document is not part of packing. tqdm reads this when it is imported.
    os.environ["TQDM_DISABLE"] = "1"
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "interop"))
    import oracles

    made = oracles.torchtune_packed_dataset()
    tokens = np.random.default_rng(0).integers(0, VOCAB_SIZE, int(lengths.sum())).tolist()
    ends = np.cumsum(lengths).tolist()
    samples = []
    for end, length in zip(ends, lengths.tolist(), strict=True):
        document = tokens[end - length : end]
        samples.append({"tokens": document, "labels": document})
    del tokens
    return _constructed(lengths, max_seq_len, lambda: len(made(samples, max_seq_len=max_seq_len)))


def trl(lengths: Lengths, max_seq_len: int, strategy: str, batch_size: int) -> dict[str, Any]:
    """Run TRL's ``pack_dataset`` over a column of tokens."""
    import pyarrow
    from trl.data_utils import pack_dataset

    import datasets

    datasets.disable_progress_bars()
    tokens = np.random.default_rng(0).integers(0, VOCAB_SIZE, int(lengths.sum()))
    ends = np.concatenate([[0], np.cumsum(lengths)])
    column = pyarrow.LargeListArray.from_arrays(ends, tokens)
    table = datasets.Dataset(pyarrow.table({"input_ids": column}))
    options = {"batch_size": batch_size, "keep_in_memory": True, "load_from_cache_file": False}
    return _constructed(lengths, max_seq_len, lambda: len(pack_dataset(table, max_seq_len, strategy, options)))


def _constructed(lengths: Lengths, max_seq_len: int, construct: Callable[[], int]) -> dict[str, Any]:
    """Measure the way from tokens to samples; ``construct`` returns the number of packs."""
    cpu = time.process_time()
    num_packs = construct()
    cpu = time.process_time() - cpu
    num_tokens = int(lengths.sum())
    return {"tokens_per_cpu_s": num_tokens / cpu, "cpu_s": cpu, "fill": num_tokens / (num_packs * max_seq_len)}


def planned(lengths: Lengths, max_seq_len: int, plan: Callable[[Lengths, int], tuple[Lengths, Lengths]]) -> Any:
    """Measure the way from lengths to packs."""
    cpu = time.process_time()
    flat, bounds = plan(lengths, max_seq_len)
    cpu = time.process_time() - cpu
    return {
        "docs_per_cpu_s": len(lengths) / cpu,
        "cpu_s": cpu,
        "fill": checked_fill(lengths, flat, bounds, max_seq_len),
    }


def checked_fill(lengths: NDArray[Any], flat: NDArray[Any], bounds: NDArray[Any], max_seq_len: int) -> float:
    """The fill of packs, given as (documents,) lengths and (packs + 1,) bounds. Checks that they are complete."""
    sums = np.add.reduceat(flat, bounds[:-1].astype(np.int64), dtype=np.int64)
    if int(sums.max()) > max_seq_len or int(bounds[-1]) != len(lengths):
        raise SystemExit(
            f"the largest pack has {sums.max()} tokens, and {bounds[-1]} of {len(lengths)} documents are packed"
        )
    if not np.array_equal(np.bincount(flat), np.bincount(lengths)):
        raise SystemExit("the packs do not hold the documents of the input")
    return int(sums.sum()) / (len(sums) * max_seq_len)


def main() -> None:
    warnings.simplefilter("ignore")
    _, _, engine, path, max_seq_len = sys.argv
    size = int(max_seq_len)
    lengths = np.clip(np.load(path), 1, size).astype(np.int64)
    if engine in ("first-fit", "lpfhp"):
        found = planned(lengths, size, first_fit if engine == "first-fit" else lpfhp)
    elif engine == "torchtune":
        found = torchtune(lengths, size)
    else:
        _, strategy, *whole = engine.split()
        found = trl(lengths, size, strategy, len(lengths) if whole else 1_000)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
