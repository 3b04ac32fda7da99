"""`serve`: the server of the pages, on this machine only."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from headrace.errors import OutputError
from headrace.ui.app import application
from headrace.ui.places import Places

HOST: Final = "127.0.0.1"
"""Only this machine; from elsewhere through ``ssh -L``."""

PORT: Final = 8421
"""The port that is used if it is free; else any other one."""


def serve(places: Places, *, port: int | None = None, on_ready: Callable[[str], None]) -> None:
    """Serve the pages until the process is told to end.

    Args:
        places: what may be looked at.
        port: the port; by default 8421, or another one if that is taken.
        on_ready: called with the URL once the pages can be opened.

    Raises:
        OutputError: the port cannot be used.
    """
    listening = _listen(port)
    token = secrets.token_urlsafe(24)
    url = f"http://{HOST}:{listening.getsockname()[1]}/{token}/"
    config = uvicorn.Config(
        application(places, token=token),
        log_level="error",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=3,
        server_header=False,
        proxy_headers=False,
    )
    on_ready(url)
    with listening:
        uvicorn.Server(config).run(sockets=[listening])


def _listen(port: int | None) -> socket.socket:
    for wanted in (PORT, 0) if port is None else (port,):
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, wanted))
        except (OSError, OverflowError) as error:
            listening.close()
            problem = error
            continue
        listening.listen()
        return listening
    raise OutputError(f"port {port} of {HOST} cannot be used: {problem}; give another one with --port")
