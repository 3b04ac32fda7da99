"""The servers of these tests end with the tests, also if these are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import counts
import servers

pytestmark = pytest.mark.remote

PROGRAM = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import servers
with servers.weed(Path(sys.argv[2])) as bucket:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    print(*children.split(), flush=True)
    sys.stdin.read()
"""


def test_a_server_ends_when_the_tests_are_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(Path(servers.__file__).parent), str(tmp_path)]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdin is not None
    with program.stdout, program.stdin:
        [server] = map(int, program.stdout.readline().split())
        os.kill(server, 0)
        program.send_signal(signal.SIGKILL)
        program.wait()
    until = time.monotonic() + counts.PATIENCE_S
    while is_running(server) and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_running(server)


def is_running(process: int) -> bool:
    """Whether a process runs: one that has ended may wait for a parent that looks."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
