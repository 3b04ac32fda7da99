"""Follows three walks through the code: which files and functions a document, a position and a packed sample meet.

    python tools/walk.py [document|position|packed] [--root CHECKOUT] [--calls] [--json]

    document    one line of JSONL to tokens on disk: prepare(...)
    position    one position of a run to a batch of windows: next(iter(headrace.Loader(...)))
    packed      samples of tar shards through a task encoder to the first batch of packs

Each walk runs in a process of its own: a position and a packed sample twice, of which the second time is counted, so
that what is compiled or cached once is left out; a document once, since workers are forks only of a process without
threads. Counted are calls of functions of the package, the files that they are in, and how often a call or a
return leads from one file to another. The figures serve to compare two commits.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any

WALKS = ("document", "position", "packed")


class Follower:
    """Notes each call within the package, in this process and in those that are forked from it."""

    def __init__(self, package: Path, log: Path) -> None:
        self._package = f"{package}{os.sep}"
        self._log = log

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """A profile function: ``call`` and ``return`` of Python functions, generators included."""
        if event not in ("call", "return"):
            return
        name = frame.f_code.co_filename
        # The bodies of modules and classes run once, when they are imported.
        if not name.startswith(self._package) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return
        function = frame.f_code.co_qualname.replace(".<locals>", "")
        kind = "c" if event == "call" else "r"
        # Opened for each line: forked workers close the files of their parent.
        with self._log.open("a") as file:
            file.write(f"{kind} {os.getpid()}:{get_ident()} {name[len(self._package) :]} {function}\n")


def follow(package: Path, work: Callable[[], object], log: Path) -> None:
    """Run something with every call noted."""
    import threading

    follower = Follower(package, log)
    threading.setprofile(follower)
    sys.setprofile(follower)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def figures(log: Path) -> dict[str, Any]:
    """Calls, files and changes of file, of all threads; and the functions of each, in the order of their first calls.

    Threads run at the same time, so no order holds between the calls of two.
    """
    stacks: dict[str, list[str]] = {}
    called: dict[str, dict[str, None]] = {}
    calls = changes = 0
    for line in log.read_text().splitlines():
        kind, thread, file, function = line.split(" ", 3)
        stack = stacks.setdefault(thread, [])
        if kind == "c":
            calls += 1
            called.setdefault(thread, {}).setdefault(f"{file} {function}")
            changes += bool(stack) and stack[-1] != file
            stack.append(file)
        elif stack:
            left = stack.pop()
            changes += bool(stack) and stack[-1] != left
    threads = [list(functions) for functions in called.values()]
    files = {one.split(" ")[0] for functions in threads for one in functions}
    return {"files": len(files), "calls": calls, "changes_of_file": changes, "threads": threads}


def main() -> None:
    """Print the figures of the walks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("walk", nargs="*", choices=[*WALKS, []], help="all by default")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument(
        "--calls", action="store_true", help="the functions of each thread, in the order of their first calls"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--apart", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.apart is not None:
        walk_here(options.walk[0], options.apart)
        return
    found = {name: walk(name, options.root.resolve()) for name in options.walk or WALKS}
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, one in found.items():
        print(f"{name:10} {one['files']:4} files  {one['calls']:6,} calls  {one['changes_of_file']:6,} changes of file")
        if options.calls:
            for number, functions in enumerate(one["threads"]):
                print(f"    thread {number}")
                print("".join(f"        {function}\n" for function in functions))


def walk(name: str, root: Path) -> dict[str, Any]:
    """The figures of one walk through the package of a checkout, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="headrace-walk-") as folder:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, name, "--apart", folder],
            env={**os.environ, "PYTHONPATH": str(root / "src"), "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"the walk of a {name} failed:\n{done.stderr}")
        return figures(Path(folder) / "log")


def walk_here(name: str, folder: Path) -> None:
    """One walk in this process, noted in ``folder/log``."""
    import headrace

    os.chdir(folder)
    work = {"document": _document, "position": _position, "packed": _packed}[name]()
    if name != "document":
        work("first")
    follow(Path(headrace.__file__).parent, lambda: work("second"), folder / "log")


TEXTS = [f"word{number} word{number + 1} word{number + 2}" for number in range(40)]
Work = Callable[[str], object]


def _document() -> Work:
    from tokenizers import Tokenizer, models, pre_tokenizers

    from headrace.preparing import PrepareOptions, prepare

    vocabulary = {f"word{number}": number for number in range(50)}
    tokenizer = Tokenizer(models.WordLevel({**vocabulary, "<|endoftext|>": 50}, unk_token="word0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save("tokenizer.json")
    Path("texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:1]))
    options = PrepareOptions(workers=1)
    return lambda output: prepare(["texts.jsonl"], output, tokenizer="tokenizer.json", options=options)


def _position() -> Work:
    import numpy as np

    import headrace
    from headrace.stores import KeyedWriter

    with KeyedWriter("store", dtypes={"tokens": "uint16"}) as writer:
        ids = np.arange(4000) % 1000
        writer.add_documents({"tokens": ids}, {"tokens": np.full(40, 100)})
        writer.finish()

    def work(_: str) -> object:
        dataset = headrace.WindowDataset(headrace.open("store"), seq_len=32)
        run = headrace.Run(dataset, global_batch_size=4, order=headrace.Order(seed=1))
        return next(iter(headrace.Loader(run, micro_batch_size=2)))

    return work


def _packed() -> Work:
    import io
    import tarfile

    import numpy as np

    import headrace
    from headrace.datasets import Framed, FramedRun
    from headrace.encoders import Cooker, TaskEncoder, stateless

    with tarfile.open("texts.tar", "w") as tar:
        for number, text in enumerate(TEXTS):
            data = json.dumps({"text": text}).encode()
            entry = tarfile.TarInfo(f"{number:03d}.json")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))

    @stateless
    def cook(crude: dict[str, Any]) -> dict[str, Any]:
        return {name: crude[name] for name in ("__key__", "__restore_key__")} | {"text": crude["json"]["text"]}

    class Packing(TaskEncoder):  # type: ignore[misc,type-arg]
        cookers = [Cooker(cook)]  # noqa: RUF012

        @stateless
        def preencode_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
            return {**sample, "tokens": np.frombuffer(sample["text"].encode(), np.uint8)}

        @stateless
        def sample_length(self, sample: dict[str, Any]) -> int:
            return len(sample["tokens"])

        @stateless
        def pack_selected_samples(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
            return {"tokens": np.concatenate([sample["tokens"] for sample in samples]), "documents": len(samples)}

    def work(_: str) -> object:
        texts = headrace.MediaDataset.open("texts.tar")
        packs = Framed(texts, Packing(), form=headrace.Packing(seq_len=128), frame_positions=8)
        run = FramedRun(packs, global_batch_size=2, order=headrace.Order(seed=1))
        return next(iter(headrace.Loader(run, micro_batch_size=2)))

    return work


if __name__ == "__main__":
    main()
