"""How far a run is: one moving line on a terminal, now and then a plain line elsewhere, always on standard error."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType
from typing import TextIO

LINE_EVERY_S = 0.2
PLAIN_EVERY_S = 30.0
_CLEAR = "\r\x1b[K"


class ProgressLine:
    """Shows the latest text; as a context manager it leaves the terminal clean.

    Off a terminal the first line comes after ``PLAIN_EVERY_S`` seconds, so that short runs say nothing.
    """

    def __init__(self, *, quiet: bool, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self.is_terminal = self._stream.isatty()
        self._begin_s = self._shown_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begin_s

    @property
    def is_due(self) -> bool:
        """Whether it is time to `show` again; texts are made only then."""
        every_s = LINE_EVERY_S if self.is_terminal else PLAIN_EVERY_S
        return not self._quiet and time.monotonic() - self._shown_s >= every_s

    def show(self, text: str) -> None:
        """Put this text on the line."""
        if self._quiet:
            return
        self._shown_s = time.monotonic()
        if self.is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(_CLEAR + text[:width])
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def clear(self) -> None:
        """Take the line away, so that something else can be printed."""
        if self.is_terminal and not self._quiet:
            self._stream.write(_CLEAR)
            self._stream.flush()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
