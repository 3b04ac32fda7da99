"""Which file is slow: readers time one file alone now and then, and the meter of the loader compares the files.

    FileTimer   reads spans; of some of them it first reads one file alone  --> FileTime   (in threads and workers)
    ShardTimes  medians of the times of each file                           --> the slowest shard of a report

A span is read in one go, from all files that its samples lie in, so its time says nothing of any one of them. Reading
the bytes of one file first does, and the span then finds these bytes at hand. It is done so seldom that it takes a
four-hundredth of the time of reading.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from time import perf_counter
from typing import Any, Final

import numpy as np

from headrace.datasets import Run
from headrace.datasets.dataset import Tell
from headrace.errors import ConfigError, HeadraceError
from headrace.loader.spans import BatchSpan, FileTime, ReadRows, SpanRows

TIMED_SHARE: Final = 0.0025
"""The most that timing files alone may take of the time of reading."""

TIMED_BYTES: Final = 1 << 20
"""The most bytes of a file that are read to time it."""

TIMED_SAMPLES: Final = 64
"""The most samples of a span whose places in the files are looked up."""

SLOW_TIMES: Final = 2.0
"""How many times as long as those of the other files the bytes of a file take if it is named."""

SLOW_S: Final = 0.001
"""The least time that a read of a file takes if the file is named. Whatever is faster holds up nobody."""

KEPT_TIMES: Final = 5
KEPT_FILES: Final = 1 << 14
FEWEST_TIMES: Final = 3


class FileTimer:
    """Reads spans as another function does, and times one file alone now and then.

    Several threads may call it, or it is pickled and sent to a worker. A time that two threads lose is no loss.

    Args:
        read: reads a span.
    """

    def __init__(self, read: ReadRows) -> None:
        self._read = read
        self._read_s = self._timing_s = 0.0
        self._turn = 0
        self._unplaced: set[int] = set()

    def __call__(self, run: Run, span: BatchSpan, out: Any, tell: Tell | None = None) -> SpanRows:
        """Return the samples of a span, with the time of a file if one was timed; raises what the function raises."""
        begin = perf_counter()
        timed, timing_s = None, 0.0
        # The first span is never timed, so that the first batch comes at once.
        if self._timing_s < TIMED_SHARE * self._read_s:
            timed = self._timed(run, span)
            timing_s = perf_counter() - begin
            self._timing_s += timing_s
        rows = self._read(run, span, out, tell)
        self._read_s += perf_counter() - begin
        if timed is None:
            return rows
        return rows._replace(timed=timed, times=rows.times._replace(read=rows.times.read + timing_s))

    def _timed(self, run: Run, span: BatchSpan) -> FileTime | None:
        """Read what the span needs of one of its files; None if it is not known where its samples lie."""
        located, self._turn = span.located, self._turn + 1
        if not len(located.positions):
            return None
        picked = self._turn % len(located.positions)
        source = int(located.sources[picked])
        if source in self._unplaced:
            return None
        addresses = located.addresses[located.sources == source]
        first = int(np.count_nonzero(located.sources[:picked] == source))
        try:
            found = run.datasets[source].extents(np.roll(addresses, -first)[:TIMED_SAMPLES])
            extents = found[self._turn % len(found)] if found else None
            if extents is None or not len(extents.files):
                return None
            mine = extents.files == extents.files[np.argmin(extents.rows)]
            reader, file = extents.store.data_file(int(extents.files[np.argmin(extents.rows)]))
            begins, lengths = extents.begins[mine], (extents.ends - extents.begins)[mine]
            fits = max(1, int(np.searchsorted(np.cumsum(lengths), TIMED_BYTES, side="right")))
            lengths = np.minimum(lengths[:fits], TIMED_BYTES)
            begin = perf_counter()
            num_bytes = len(reader.read_ranges(file, begins[:fits], lengths))
            return FileTime(file, perf_counter() - begin, num_bytes) if num_bytes else None
        except ConfigError:
            self._unplaced.add(source)
        except HeadraceError:
            # The span meets the same error when it is read, and says where.
            pass
        return None


class _File:
    """The last times of one file, and the sums of all."""

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=KEPT_TIMES)
        self.rates: deque[float] = deque(maxlen=KEPT_TIMES)
        self.rate = self.sum_s = 0.0
        self.sum_bytes = 0

    def add(self, seconds: float, num_bytes: int) -> None:
        self.sum_s += seconds
        self.sum_bytes += num_bytes
        self.seconds.append(seconds)
        self.rates.append(seconds / num_bytes)
        # A single read that is held up by something else does not make a file slow.
        self.rate = median(self.rates) if len(self.rates) >= FEWEST_TIMES else 0.0


class ShardTimes:
    """The times of files that were read alone, and the file whose bytes take longest. Keeps 16,384 files at most."""

    def __init__(self) -> None:
        self._files: dict[str, _File | None] = {}
        self._sum_s, self._sum_bytes = 0.0, 0
        self._slowest = ""

    def add(self, timed: FileTime) -> None:
        """Add a time. The first one of each file is left out, since the file may be opened for it."""
        if timed.file not in self._files:
            if len(self._files) < KEPT_FILES:
                self._files[timed.file] = None
            return
        file = self._files[timed.file]
        if file is None:
            file = self._files[timed.file] = _File()
        file.add(timed.seconds, timed.num_bytes)
        self._sum_s += timed.seconds
        self._sum_bytes += timed.num_bytes
        slowest = self._files.get(self._slowest)
        if file is slowest:
            # It may have become faster than another one.
            rates = {name: one.rate for name, one in self._files.items() if one is not None}
            self._slowest = max(rates, key=lambda name: rates[name])
        elif slowest is None or file.rate > slowest.rate:
            self._slowest = timed.file

    def names(self) -> dict[str, float]:
        """Return ``slowest_shard/FILE`` and how many times as long as others its bytes take; empty if none is slow."""
        file = self._files.get(self._slowest)
        if file is None or not file.rate or median(file.seconds) < SLOW_S:
            return {}
        other_s, other_bytes = self._sum_s - file.sum_s, self._sum_bytes - file.sum_bytes
        times = file.rate / (other_s / other_bytes) if other_bytes and other_s > 0 else 0.0
        return {f"slowest_shard/{self._slowest}": round(times, 1)} if times >= SLOW_TIMES else {}
