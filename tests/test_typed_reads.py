"""Threads that read a type for the first time, all at once: msgspec before 0.23 crashed, and hosts of a job with it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import types
from threading import Barrier, Thread

import msgspec

sys.setswitchinterval(1e-6)
TYPES = '''
from __future__ import annotations
import msgspec

class Inner(msgspec.Struct):
    number: int
    names: tuple[str, ...]

class Outer(msgspec.Struct):
    inner: Inner
    more: tuple[Inner, ...]
    numbers: dict[str, list[int]]
'''
inner = {"number": 1, "names": ["a"]}
data = msgspec.msgpack.encode({"inner": inner, "more": [inner], "numbers": {"b": [1]}})


def read(barrier: Barrier, kind: type) -> None:
    barrier.wait()
    assert msgspec.msgpack.decode(data, type=kind).inner.number == 1


for number in range(100):
    module = sys.modules["made"] = types.ModuleType("made")
    exec(TYPES, module.__dict__)
    barrier = Barrier(4)
    threads = [Thread(target=read, args=(barrier, module.Outer)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_read_a_type_for_the_first_time() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
