"""The peers that `prepare.py` measures, each in a separate process.

    python benchmarks/prepare_peers.py --one gigatoken  texts.jsonl tokenizer.json - PROCESSES
    python benchmarks/prepare_peers.py --one megatron   texts.jsonl tokenizer.json OUTPUT PROCESSES
    python benchmarks/prepare_peers.py --one datatrove  FOLDER      tokenizer.json OUTPUT PROCESSES

`gigatoken` and `fastokens` encode texts that are already in memory, in batches of a megabyte, with which they are
fastest, and discard the ids. The time without start-up and reading is printed as JSON. The other two are whole
pipelines from files to a store, and are measured from outside.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import corpus
import numpy as np

BATCH_CHARACTERS = 1_000_000
CHUNK_LINES = 32
"""The number of lines that Megatron's tool passes to a process at once."""


def from_memory(name: str, source: Path, tokenizer: Path, num_processes: int) -> dict[str, Any]:
    """Run as many processes as the pipelines have, each with its own caches and a share of the texts."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(num_processes)
    with context.Pool(num_processes, initializer=_hold, initargs=(barrier,)) as pool:
        shares = [(name, source, tokenizer, number, num_processes) for number in range(num_processes)]
        results = pool.starmap(_encode_share, shares, chunksize=1)
    return {
        "cpu_s": sum(cpu for cpu, _, _ in results),
        "wall_s": max(wall for _, wall, _ in results),
        "tokens": sum(tokens for _, _, tokens in results),
    }


def _hold(barrier: Any) -> None:
    globals()["_barrier"] = barrier


def _encode_share(name: str, source: Path, tokenizer: Path, number: int, count: int) -> tuple[float, float, int]:
    """CPU and wall seconds, and the number of tokens, including the end of each document."""
    with source.open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in list(file)[number::count]]
    batches = list(_batches(texts))
    encode = ENCODERS[name](tokenizer.read_text("utf-8"))
    globals()["_barrier"].wait()
    begin, cpu = time.perf_counter(), time.process_time()
    tokens = sum(map(encode, batches))
    return time.process_time() - cpu, time.perf_counter() - begin, tokens + len(texts)


def _batches(texts: list[str]) -> Iterator[list[str]]:
    batch, size = [], 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    yield batch


def _gigatoken(content: str) -> Callable[[list[str]], int]:
    import gigatoken

    tokenizer = gigatoken.Tokenizer.from_json(content.encode())
    return lambda texts: len(np.asarray(tokenizer.encode_batch(texts, parallel=False).layout.content.data))


def _fastokens(content: str) -> Callable[[list[str]], int]:
    os.environ |= {"RAYON_NUM_THREADS": "1", "FASTOKENS_BPE_THREADS": "1"}
    import fastokens

    tokenizer = fastokens.Tokenizer.from_json_str(content)
    return lambda texts: len(tokenizer.encode_batch_flat(texts, add_special_tokens=False)[0]) // 4


ENCODERS = {"gigatoken": _gigatoken, "fastokens": _fastokens}


def megatron(source: Path, tokenizer: Path, output: Path, num_processes: int) -> None:
    """Encode line by line with `tokenizers` in a pool, into megatron-core's builder, as Megatron-LM's tool does."""
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    output.mkdir()
    builder = IndexedDatasetBuilder(str(output / "text_document.bin"), dtype=DType.optimal_dtype(corpus.VOCAB_SIZE))
    pool = multiprocessing.Pool(num_processes, initializer=_load_line_encoder, initargs=(tokenizer,))
    with source.open(encoding="utf-8") as file:
        for ids in pool.imap(_encode_line, file, CHUNK_LINES):
            builder.add_document(ids, [len(ids)])
    pool.close()
    pool.join()
    builder.finalize(str(output / "text_document.idx"))


def _load_line_encoder(tokenizer: Path) -> None:
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(str(tokenizer))
    globals().update(_tokenizer=loaded, _end=loaded.token_to_id(corpus.END))


def _encode_line(line: str) -> list[int]:
    loaded: Any = globals()["_tokenizer"]
    return [*loaded.encode(json.loads(line)["text"]).ids, globals()["_end"]]


def datatrove(source: Path, tokenizer: Path, output: Path, num_processes: int) -> None:
    """Run datatrove with one file of the folder for each task."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    write = DocumentTokenizer(
        str(output), tokenizer_name_or_path=str(tokenizer), eos_token=corpus.END, shuffle_documents=False
    )
    LocalPipelineExecutor(
        pipeline=[JsonlReader(str(source)), write],
        tasks=num_processes,
        workers=num_processes,
        logging_dir=str(output / "logs"),
        start_method="fork",  # the default leaves processes that are not waited for, so their time would not be counted
    ).run()


def main() -> None:
    _, _, engine, source, tokenizer, output, processes = sys.argv
    if engine in ENCODERS:
        print(json.dumps(from_memory(engine, Path(source), Path(tokenizer), int(processes))))
        return
    pipelines = {"megatron": megatron, "datatrove": datatrove}
    pipelines[engine](Path(source), Path(tokenizer), Path(output), int(processes))


if __name__ == "__main__":
    main()
