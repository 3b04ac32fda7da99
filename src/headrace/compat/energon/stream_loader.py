"""The loader of a tree of wrappers, and the wrappers that watch it: logs of samples, stacks of a slow step, garbage.

See `headrace.compat.energon.streams`.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.compat.energon.streams import MakeLoader, SavableDataset, Wrapper
from headrace.compat.energon.workers import WorkerConfig

_log = logging.getLogger("headrace")


class LogSampleStream(Wrapper):
    """The same samples: nothing is logged, since `headrace trace` computes what a step was fed."""

    def __init__(self, dataset: Any, mode: str = "train", worker_config: WorkerConfig | None = None, **_: Any) -> None:
        super().__init__(dataset, worker_config=worker_config)


class WatchdogStream(Wrapper):
    """The same samples; if one takes longer than ``timeout_seconds``, the stacks of all threads are logged once.

    This is for wrappers, which run in this process. A loader without worker processes watches its batches itself, and
    one with worker processes replaces a worker that hangs.

    Args:
        dataset: the samples.
        worker_config: that of the dataset.
        timeout_seconds: how long a sample may take; None for ever.
        initial_timeout_seconds, fail_on_timeout: Energon's; not used.
    """

    def __init__(
        self,
        dataset: Any,
        worker_config: WorkerConfig | None = None,
        timeout_seconds: float | None = 60,
        initial_timeout_seconds: float | None = None,
        fail_on_timeout: bool = False,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.timeout_seconds = timeout_seconds

    @classmethod
    def _watchdog_trigger(cls, timeout_seconds: float) -> None:
        stacks = "".join("".join(traceback.format_stack(frame)) for frame in sys._current_frames().values())
        _log.warning("a sample takes more than %s s; all threads are at:\n%s", timeout_seconds, stacks)

    @classmethod
    def watched(cls, samples: Iterator[Any], timeout_seconds: float) -> Iterator[Any]:
        """The same samples, watched."""
        while True:
            # A thread for each sample takes some 50 us, and leaves none that the fork of a worker would have to avoid.
            timer = threading.Timer(timeout_seconds, cls._watchdog_trigger, (timeout_seconds,))
            timer.daemon = True
            timer.start()
            try:
                sample = next(samples)
            except StopIteration:
                return
            finally:
                timer.cancel()
            yield sample

    def __iter__(self) -> Iterator[Any]:
        samples = iter(self.dataset)
        return samples if self.timeout_seconds is None else self.watched(samples, self.timeout_seconds)


class GcStream(Wrapper):
    """The same samples: the garbage collector is left alone."""

    def __init__(self, dataset: Any, *, worker_config: WorkerConfig | None = None, **_: Any) -> None:
        super().__init__(dataset, worker_config=worker_config)


class StreamsLoader:
    """A loader over wrappers, with the methods of `EnergonLoader`. Its state holds that of each leaf.

    Args:
        dataset: the outermost wrapper.
        make: makes the loader of a leaf.
    """

    def __init__(self, dataset: SavableDataset[Any], make: MakeLoader) -> None:
        self.dataset = dataset
        dataset.use(make)

    @property
    def worker_config(self) -> WorkerConfig:
        """The configuration of the outermost wrapper."""
        return self.dataset.worker_config

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def save_state_rank(self) -> dict[str, Any]:
        """The state of this rank."""
        return self.dataset.save_state()

    def restore_state_rank(self, state: Mapping[str, Any] | None) -> None:
        """Take over a state of `save_state_rank`; None begins again."""
        if state is None:
            self.dataset.reset_state_deep()
        else:
            self.dataset.restore_state(state)

    state_dict = save_state_rank
    load_state_dict = restore_state_rank

    def can_restore_sample(self) -> bool:
        """Whether `restore_sample` can make samples again."""
        return self.dataset.can_restore_sample()

    def restore_sample(self, key: Any) -> Any:
        """Make a sample or batch again from its restore key."""
        return self.dataset.restore_sample(key)

    def config(self) -> dict[str, Any]:
        """What the wrappers are."""
        return self.dataset.config()

    def close(self) -> None:
        """End the workers of the leaves."""
        self.dataset.close()
