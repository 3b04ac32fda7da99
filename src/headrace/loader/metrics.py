"""What a loader costs the training step, how full its batches are, and where the run stands: measured while it feeds.

    reader     StageTimes   how long each stage took for the batches of one hand-over
    feed       HandOver     the same, with the sources of the samples           (`headrace.loader.faults`)
    Meter      waits        the time from asking for a batch to getting it, split in the stages of its reader
      -> names   one dict of numbers, the same for JSON Lines, Prometheus and ``on_step``
      -> verdict in words, for one rank or for all

A wait is timed once a hand-over: the micro-batches after the first one are at hand. The stages of a reader that works
ahead take longer than the wait; the wait is then split in proportion to them. What is left of it is the hand-over.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from socket import SHUT_RDWR
from threading import Event, Thread
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Final
from weakref import finalize

import msgspec
import numpy as np
import torch

from headrace.config import check_fields
from headrace.datasets import Run
from headrace.datasets.waits import RankWaits, verdict_of
from headrace.errors import ConfigError, OutputError
from headrace.loader.faults import FaultCounter, Given, HandOver, report_path
from headrace.loader.ranks import Ranks, gathered
from headrace.loader.reading import METRICS_THREAD
from headrace.loader.shard_times import ShardTimes
from headrace.loader.spans import Batch
from headrace.plan import IntArray
from headrace.plan.chaptered.chapters import spans_of
from headrace.plan.segments import IGNORED_LABEL

if TYPE_CHECKING:
    from http.server import HTTPServer

    from headrace.datasets import FramedRun
    from headrace.loader.task_reader import TaskReader

_log = logging.getLogger("headrace")

_CACHE: Final = "cache_"
_CACHE_NAMES: Final = ("hits", "misses", "fetched_bytes", "read_bytes", "evicted_blocks")
_ADDS_UP: Final = ("faults", "replaced_workers", _CACHE)
"""What names begin with whose numbers are sums since the loader was made, or the cache was opened."""


class Metrics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a loader tells what it measures; see docs/watching.md for the names.

    A report is made at the end of a step, once ``every_s`` have gone by, and is about the time since the one before. At
    the end of an iteration there is one for the rest, and the verdict is printed on stderr: by rank 0, and by each rank
    that is data-bound.

    Attributes:
        jsonl: a file to which each report is appended, as a line. ``{rank}`` in the name is replaced by the rank.
        prometheus: the port at which the newest report is served, on all interfaces and under any path, in the text
            format of Prometheus. Each process adds its LOCAL_RANK to it.
        on_step: called with each report, a dict of numbers.
        every_s: the shortest time between two reports; 0 reports each step.

    Raises:
        ConfigError: a value is not allowed.

    Example:
        >>> dataset = headrace.WindowDataset(headrace.open("stores/web"), seq_len=128)
        >>> run = headrace.Run(dataset, global_batch_size=8, samples=32)
        >>> found = []
        >>> metrics = headrace.Metrics(on_step=found.append, every_s=0)
        >>> for batch in headrace.Loader(run, micro_batch_size=4, metrics=metrics):
        ...     pass  # here your training step
        >>> [(one["step"], one["samples"], one["tokens"]) for one in found]
        [(0, 8, 1024), (1, 8, 1024), (2, 8, 1024), (3, 8, 1024)]
    """

    jsonl: str | os.PathLike[str] | None = None
    prometheus: Annotated[int, msgspec.Meta(gt=0, lt=1 << 16)] | None = None
    on_step: Callable[[dict[str, float]], Any] | None = None
    every_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 1.0

    def __post_init__(self) -> None:
        """Raise ConfigError for a port or a time that cannot be, and for a callable that is none."""
        check_fields(self)
        if self.on_step is not None and not callable(self.on_step):
            raise ConfigError(f"on_step is a function that takes a dict, found {self.on_step!r:.80}")


class _Contents:
    """Counts what is in batches: bytes, places of tokens, tokens that are no pads, and those that are trained."""

    def __init__(self) -> None:
        self.samples = self.num_bytes = self.places = self.tokens = self.supervised = 0
        self.has_labels = False

    def add(self, batch: Batch, num_samples: int) -> None:
        """Count a batch. Where it does not say which places are pads, all are tokens."""
        self.samples += num_samples
        tensors = [value for value in batch.values() if isinstance(value, torch.Tensor)]
        # A row that is expanded has a stride of 0, and takes no memory.
        self.num_bytes += sum(value.nbytes for value in tensors if 0 not in value.stride())
        ids = batch.get("input_ids")
        if not isinstance(ids, torch.Tensor):
            return
        self.places += ids.numel()
        mask, documents, labels = (batch.get(name) for name in ("attention_mask", "document_ids", "labels"))
        if isinstance(mask, torch.Tensor) and mask.shape == ids.shape:
            self.tokens += int(np.count_nonzero(mask.numpy()))
        elif isinstance(documents, torch.Tensor):
            self.tokens += int(np.count_nonzero(documents.numpy() >= 0))
        else:
            self.tokens += ids.numel()
        supervised = batch.get("num_supervised_tokens")
        if supervised is None and isinstance(labels, torch.Tensor):
            supervised = int(np.count_nonzero(labels.numpy() != IGNORED_LABEL))
        self.has_labels |= supervised is not None
        self.supervised += supervised or 0


class Meter:
    """Measures one loader.

    Args:
        metrics: where the reports go.
        ranks: the rank.
        counting: the faults of the loader.
    """

    def __init__(self, metrics: Metrics, ranks: Ranks, counting: FaultCounter) -> None:
        self._metrics = metrics
        self._ranks = ranks
        self._counting = counting
        path = report_path(metrics.jsonl, ranks.rank, ranks.world_size, what="metrics", instead="metrics-{rank}.jsonl")
        self._file = None if path is None else Path(path)
        self._page = None if metrics.prometheus is None else Page(metrics.prometheus, ranks.rank)
        self._total = RankWaits(rank=ranks.rank)
        self._new = RankWaits(rank=ranks.rank)
        self._contents = _Contents()
        self._mix = _Mix()
        self._shards = ShardTimes()
        self._run: Run | FramedRun
        self._reader: TaskReader[Any, Any]
        self._since: float | None = None
        self._asked = -1

    def watched(
        self, stream: Iterator[Given], run: Run | FramedRun, reader: TaskReader[Any, Any], position: int
    ) -> Iterator[Given]:
        """Yield what a stream yields from a position on, and report after steps."""
        # This is called for micro-batches of some microseconds, so it looks at little but the clock. Batches of one
        # shape are counted from one of them a report; packs, which differ in their pads, from one a hand-over. None is
        # kept once it was handed over: it is its loop that lets it go.
        self._run, self._reader = run, reader
        traits = run.traits if isinstance(run, Run) else None
        counts_all = traits is None or traits.is_ragged
        counts_first = counts_all or (traits is not None and traits.is_packed)
        clock, every_s = perf_counter, self._metrics.every_s
        self._mix.begin_at(position, self._counting.num_delivered)
        after: int | None = None
        held: list[Given] = []
        due, asked = 0.0, clock()
        try:
            for given in stream:
                if given.handed is not None:
                    if self._since is None:
                        self._since = clock()
                        self._new.start_s += self._since - asked
                        due = self._since + every_s
                    else:
                        self._new.waited(clock() - asked, given.handed.times)
                    self._handed_over(given.handed)
                if counts_all or (counts_first and given.handed is not None) or not self._contents.samples:
                    self._contents.add(given.batch, given.num_samples)
                after = given.after
                held.append(given)
                del given
                yield held.pop()
                asked = clock()
                if asked >= due:
                    due = self._report_after(after)
                    asked = clock()
        finally:
            # While the interpreter ends, nothing can be relied on.
            if after is not None and not sys.is_finalizing():
                self._end(after)

    def _handed_over(self, handed: HandOver) -> None:
        if isinstance(self._run, Run) and len(self._run.datasets) > 1:
            self._mix.hand_over(handed, self._counting.num_delivered)
        if handed.timed is not None:
            self._shards.add(handed.timed)

    def verdict(self) -> str:
        """Say whether this rank waited for data, see `verdict_of`."""
        return verdict_of([self._sums()])

    def gather_verdict(self) -> str:
        """Say whether any rank waited for data; every process has to call it.

        Raises:
            StateError: there are several ranks and no process group.
        """
        what = "what they waited: ask each rank for its own verdict()"
        texts = gathered(self._ranks, msgspec.json.encode(self._sums()), what)
        # Processes of one model-parallel group have the same rank; they count once.
        ranks = {one.rank: one for one in (msgspec.json.decode(text, type=RankWaits) for text in texts)}
        return verdict_of([ranks[rank] for rank in sorted(ranks)])

    def _sums(self) -> RankWaits:
        found = RankWaits(rank=self._ranks.rank)
        found.add(self._total)
        found.add(self._new)
        if self._since is not None:
            found.seconds += perf_counter() - self._since
        return found

    def _report_after(self, after: int) -> float:
        """Report if a step ends at a position. Returns when the next report is due."""
        # Replayed batches do not go on, and may stand within a step.
        self._asked, asked = after, self._asked
        if after in (self._run.length, asked) or self._run.schedule.locate(after)[1] == after:
            self._report(after)
            return perf_counter() + self._metrics.every_s
        return 0.0

    def _report(self, position: int) -> None:
        now = perf_counter()
        new = self._new
        new.seconds += 0.0 if self._since is None else now - self._since
        new.samples = self._mix.count(self._run, position, self._counting.num_delivered)
        self._total.add(new)
        names = self._names(position)
        self._new, self._contents = RankWaits(rank=self._ranks.rank), _Contents()
        if self._file is not None:
            _append(self._file, names)
        if self._page is not None:
            self._page.show(names, self._total)
        if self._metrics.on_step is not None:
            self._metrics.on_step(names)
        # What the reports themselves take is not time of the training.
        self._since = perf_counter()

    def _end(self, position: int) -> None:
        if self._counting.num_delivered > self._mix.reported:
            self._report(position)
        self._since = None
        said = self.verdict()
        if self._file is not None:
            _append(self._file, {"rank": self._ranks.rank, "verdict": said})
        if self._ranks.rank == 0 or said.startswith("data-bound"):
            print(f"headrace: rank {self._ranks.rank}: {said}", file=sys.stderr, flush=True)

    def _names(self, position: int) -> dict[str, float]:
        """Return the numbers of a report under their names, see docs/watching.md."""
        new, contents, run, reader = self._new, self._contents, self._run, self._reader
        scale = new.samples / contents.samples if contents.samples else 0.0
        num_bytes = round(scale * contents.num_bytes)
        found: dict[str, float] = {
            "step": run.schedule.step_of(max(position - 1, 0)),
            "position": position,
            "rank": self._ranks.rank,
            "seconds": new.seconds,
            "start_s": new.start_s,
            "samples": new.samples,
            "wait_s": new.wait_s,
            **{f"wait_{stage}_s": seconds for stage, seconds in new.stages.items()},
            "wait_share": new.wait_share,
            "queue_depth": reader.num_ready,
            "replaced_workers": reader.num_replaced,
            "bytes": num_bytes,
            "bytes_per_s": num_bytes / new.seconds if new.seconds else 0.0,
        }
        if contents.places:
            tokens = round(scale * contents.tokens)
            found["tokens"] = tokens
            found["tokens_per_s"] = tokens / new.seconds if new.seconds else 0.0
            found["fill"] = contents.tokens / contents.places
            if contents.has_labels and contents.tokens:
                found["supervised_share"] = contents.supervised / contents.tokens
        if reader.cache is not None:
            stats = reader.cache.stats
            found.update({f"{_CACHE}{name}": getattr(stats, name) for name in _CACHE_NAMES})
        found.update({f"faults/{reason}": count for reason, count in self._counting.ledger().substituted.items()})
        found.update(self._shards.names())
        if isinstance(run, Run):
            found.update({f"epochs/{path}": epochs for path, epochs in _epochs(run, position).items()})
            found.update(self._mix.names(run))
        return found


def _append(path: Path, line: Mapping[str, Any]) -> None:
    try:
        with path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
    except OSError as error:
        raise OutputError(f"{path}: the metrics cannot be written: {error}") from error


class _Mix:
    """Counts the samples of each source that one rank yielded, beside what was planned for all ranks meanwhile.

    Numbers of delivered samples are those since the loader was made.
    """

    def __init__(self) -> None:
        self.reported = 0
        self._sources: IntArray | None = None
        self._first = 0
        self._counted = 0
        self._position = 0
        self._num_positions = 0
        self._came: Counter[int] = Counter()
        self._planned: dict[str, float] = {}

    def begin_at(self, position: int, num_delivered: int) -> None:
        """Begin another iteration."""
        self._position = position
        self.hand_over(None, num_delivered)

    def hand_over(self, handed: HandOver | None, num_delivered: int) -> None:
        """Begin with the samples of another hand-over, none of which was delivered yet."""
        self._count(num_delivered)
        self._sources = None if handed is None else handed.sources
        self._first = self._counted = num_delivered

    def count(self, run: Run | FramedRun, position: int, num_delivered: int) -> int:
        """Return how many samples came since the last call, and add what was planned up to a position."""
        self._count(num_delivered)
        found, self.reported = num_delivered - self.reported, num_delivered
        if isinstance(run, Run) and len(run.datasets) > 1 and position > self._position:
            for path, share in _planned(run, self._position, position):
                self._planned[path] = self._planned.get(path, 0.0) + share
            self._num_positions += position - self._position
        self._position = position
        return found

    def names(self, run: Run) -> dict[str, float]:
        """Return the shares of the sources as they came and as they were planned; none for a single source."""
        came: Counter[str] = Counter()
        for source, count in self._came.items():
            came[run.paths[source]] += count
        num_samples = came.total()
        if not num_samples or not self._num_positions:
            return {}
        return {
            **{f"mix/{path}": came[path] / num_samples for path in self._planned},
            **{f"plan/{path}": samples / self._num_positions for path, samples in self._planned.items()},
        }

    def _count(self, num_delivered: int) -> None:
        """Count the sources of what was delivered since the last call."""
        if self._sources is not None:
            counts = np.bincount(self._sources[self._counted - self._first : num_delivered - self._first])
            self._came.update({source: count for source, count in enumerate(counts.tolist()) if count})
        self._counted = num_delivered


def _planned(run: Run, begin: int, end: int) -> Iterator[tuple[str, float]]:
    """Yield how many samples of each source are planned between two positions, by path, chapter by chapter."""
    for chapter, first, last in spans_of(run.plan.chapters, begin, end):
        for path, share in chapter.shares.items():
            yield path, float(share) * (last - first)


def _epochs(run: Run, position: int) -> dict[str, float]:
    """Return how many epochs each source has come through before a position; not for sources without an end."""
    plan = run.plan
    endless = {path for path, one in zip(run.paths, run.datasets, strict=True) if one.traits.is_endless}
    found = {}
    ranks = plan.reached(position)
    for number, path in plan.chapter_at(max(position - 1, 0)).paths.items():
        section, items = plan.sequences[number].section_at(ranks[number])
        found[path] = section.series.first_epoch + section.place(items) / section.series.num_samples
    return {path or "run": epochs for path, epochs in found.items() if path not in endless}


_LABELS: Final = {"faults": "reason", "slowest_shard": "file"}
"""What Prometheus calls the second half of a name; of all others it is a source."""


class Page:
    """Serves the newest report in the text format of Prometheus, from a thread that sleeps until it is asked.

    Raises:
        OutputError: the port cannot be used.
    """

    def __init__(self, port: int, rank: int) -> None:
        self._rank = rank
        self._text = [b""]
        port += int(os.environ.get("LOCAL_RANK", "0"))
        try:
            server = _server(port, self._text)
        except OSError as error:
            raise OutputError(f"port {port} cannot serve metrics: {error}") from error
        stopped = Event()
        Thread(target=_serve, args=(server, stopped), name=METRICS_THREAD, daemon=True).start()
        # The thread does not keep the page alive; when that is gone, the port is free again.
        finalize(self, _stop, server, stopped)

    def show(self, names: Mapping[str, float], total: RankWaits) -> None:
        """Show a report. What adds up is a counter, summed since the loader was made."""
        sums = {
            "seconds": total.seconds,
            "start_s": total.start_s,
            "samples": total.samples,
            "wait_s": total.wait_s,
            **{f"wait_{stage}_s": seconds for stage, seconds in total.stages.items()},
        }
        lines: dict[str, list[str]] = {}
        for name, value in names.items():
            what, _, of = name.partition("/")
            label = "" if not of else f',{_LABELS.get(what, "source")}="{_escaped(of)}"'
            kind = "counter" if name in sums or what.startswith(_ADDS_UP) else "gauge"
            metric = f"headrace_{what}_total" if kind == "counter" else f"headrace_{what}"
            block = lines.setdefault(metric, [f"# TYPE {metric} {kind}"])
            block.append(f'{metric}{{rank="{self._rank}"{label}}} {sums.get(name, value)!r}')
        self._text[0] = "".join(f"{line}\n" for block in lines.values() for line in block).encode()


def _server(port: int, text: Sequence[bytes]) -> HTTPServer:
    # Loaded here, since few runs need it.
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(text[0])))
            self.end_headers()
            self.wfile.write(text[0])

        def log_message(self, *_: Any) -> None:
            """Say nothing; the terminal belongs to the training."""

    return HTTPServer(("", port), Handler)


def _serve(server: HTTPServer, stopped: Event) -> None:
    # In place of `serve_forever`, which would wake up twice a second.
    while not stopped.is_set():
        server.handle_request()
    server.server_close()


def _stop(server: HTTPServer, stopped: Event) -> None:
    stopped.set()
    with suppress(OSError):
        server.socket.shutdown(SHUT_RDWR)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def replayed(stream: Iterator[Given], number: str) -> Iterator[Given]:
    """Yield the first micro-batches of a stream, and then the same ones again and again, as a perfect loader would.

    The position stays that after the first round: nothing more is fed. Changes that the consumer made to the tensors
    stay in them.

    Raises:
        ConfigError: ``number`` is not a number above 0.
    """
    if not number.isdecimal() or not int(number):
        raise ConfigError(f"HEADRACE_REPLAY is {number!r}; expected how many batches to replay, such as 10")
    _log.warning(
        "HEADRACE_REPLAY=%s: this loader yields its first %s batches for ever, to show what a perfect loader would "
        "gain. The step does not go on, and what is trained is worthless: unset it for a real run",
        number,
        number,
    )
    kept = []
    for given in islice(stream, int(number)):
        kept.append(given._replace(batch=dict(given.batch), faults=None, handed=None))
        yield given
    while kept:
        for given in kept:
            yield given._replace(batch=dict(given.batch), after=kept[-1].after)
