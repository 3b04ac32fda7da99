"""A process that imports for others ends when it is closed, whoever else has what it listens to."""

from __future__ import annotations

import os
import signal
import threading

import warm
from counts import PATIENCE_S


def test_it_ends_although_a_fork_of_this_process_lives() -> None:
    """As a worker of a loader does that nobody has collected yet: it has the socket too."""
    process = warm.Warm(["json"])
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    closing = threading.Thread(target=process.close)
    closing.start()
    closing.join(PATIENCE_S)
    was_open = closing.is_alive()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    closing.join()
    assert not was_open
