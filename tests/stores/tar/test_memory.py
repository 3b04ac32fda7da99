"""Samples that were let go leave their memory to those that are read next."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.stores.kept_arrays import write_offsets
from headrace.stores.tar.index import index_path
from headrace.stores.tar.scan import scan_shard
from tars_made import write_tar

SIZE, COUNT, ROUNDS = 60_000, 32, 20

_READ = """
import resource, sys
import numpy as np
from headrace.stores.tar.store import TarShards
count, rounds = int(sys.argv[2]), int(sys.argv[3])
shards = TarShards(sys.argv[1], ["0.tar"], np.array([count]))
zeros, numbers = np.zeros(count, np.int64), np.arange(count)
def read():
    for _ in range(rounds):
        shards.read(zeros, numbers, None)
read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
read()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's malloc")
def test_a_page_is_not_faulted_in_for_every_batch(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "0.tar", [(f"{number}.jpg", bytes(SIZE)) for number in range(COUNT)])
    write_offsets(index_path(tar), scan_shard(tar).offsets)
    arguments = [str(tmp_path), str(COUNT), str(ROUNDS)]
    done = subprocess.run([sys.executable, "-c", _READ, *arguments], capture_output=True, text=True, check=True)
    pages = SIZE // 4096 * COUNT
    assert int(done.stdout) < 2 * pages  # of the 20 times as many that are read
