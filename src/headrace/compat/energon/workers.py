"""``WorkerConfig``, and what happens to samples that fail: Energon's error handlers as a policy of ours.

Arguments of Energon's that have no effect here are accepted with one warning that says why, see `warn_no_effect`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.config import whole
from headrace.encoders import ErrorPolicy, Fault
from headrace.errors import ConfigError
from headrace.loader import Ranks
from headrace.samples.media import CrudeSample, SourceInfo

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_log = logging.getLogger("headrace")

NO_EFFECT: Final[Mapping[str, str]] = {
    "checkpoint_every_sec": "a state is a position, so there are no checkpoints to take",
    "checkpoint_every_min_n_samples": "a state is a position, so there are no checkpoints to take",
    "n_checkpoints": "a state is a position, so there are no checkpoints to keep",
    "gc_collect_every_n_steps": "workers leave the garbage collector alone",
    "watchdog_initial_timeout_seconds": "the first batch has watchdog_timeout_seconds too",
    "fail_on_timeout": "a worker that hangs is replaced, with the same samples",
    "worker_debug_path": "nothing is logged; headrace trace computes what a step was fed",
    "worker_log_level": "nothing is logged; headrace trace computes what a step was fed",
    "worker_id_offset": "no worker owns a part of the data",
    "restore_error_handler": "a sample that cannot be restored raises its error",
    "handler": "as in Energon, which ignores it: use WorkerConfig(global_error_handler=)",
    "ignore_decoder_errors": "use errors=ErrorPolicy(on_error='substitute')",
    "reset_after_epoch": "each pass has the samples of another epoch; take a Subset for a fixed part",
}
"""Why an argument of Energon's has no effect here."""


def warn_no_effect(where: str, given: Mapping[str, Any], level: int = 3) -> None:
    """Warn once about all arguments of a call that are given and have no effect."""
    names = [name for name, value in given.items() if value is not None]
    if names:
        reasons = "; ".join(f"{name}: {NO_EFFECT[name]}" for name in names)
        warnings.warn(f"{where}: accepted, and without effect: {reasons}", stacklevel=level)


ErrorHandler = Callable[[Exception, Any, Any], None]
"""A function of the error, of what was being processed, and of its sources."""


def log_exception(error: Exception, sample: Any, sources: Any = None) -> None:
    """Log an error of a sample, and go on with another sample: Energon's own default."""
    key = sample.get("__key__") if isinstance(sample, Mapping) else getattr(sample, "__key__", None)
    _log.warning("sample %r failed, and another one stands in: %s: %s", key, type(error).__name__, error)


def reraise_exception(error: Exception, sample: Any, sources: Any = None) -> None:
    """Raise an error of a sample: the default here."""
    raise error


_UNUSED: Final = ("worker_debug_path", "worker_log_level", "worker_id_offset", "restore_error_handler")


class WorkerConfig(msgspec.Struct, forbid_unknown_fields=True):
    """The data-parallel rank of this process and its workers, with the attributes of Energon's class.

    Attributes can be set until a dataset is made. A dataset keeps the values that it was made with, and making a loader
    of it raises an error if they were changed since.

    Attributes:
        rank: the *data-parallel* rank. Processes that need the same data have the same rank.
        world_size: the number of data-parallel ranks.
        num_workers: the number of worker processes of this rank that read and decode. With 0, this process reads when
            a batch is requested.
        data_parallel_group: the process group over which one rank hands a state to the others.
        seed_offset: the seed of the run. Another seed is another order.
        agree: compare what all processes of the job run when a loader begins to iterate. Then all of them must iterate
            the loader, including those of all pipeline stages; see `headrace.loader.Ranks`. Only with ``agree`` does a
            pass over a framed source have the same number of batches on all ranks.
        global_error_handler: called for each sample that fails, with the error, a sample that has at least its key,
            and where it was read. If it returns, another sample stands in; what it raises ends the run. None raises
            the error.
        restore_error_handler, worker_debug_path, worker_log_level, worker_id_offset: Energon's; without effect here.

    Example:
        >>> headrace.compat.energon.WorkerConfig(rank=0, world_size=1, num_workers=0).ranks.world_size
        1
    """

    rank: int
    world_size: int
    num_workers: int
    data_parallel_group: Any = None
    seed_offset: int = 0
    agree: bool = False
    global_error_handler: ErrorHandler | None = None
    restore_error_handler: ErrorHandler | None = None
    worker_debug_path: str | None = None
    worker_log_level: int = 0
    worker_id_offset: int = 0

    def __post_init__(self) -> None:
        """Raise ConfigError as `check`, and warn of attributes without effect."""
        self.check()
        warn_no_effect("WorkerConfig", {name: getattr(self, name) or None for name in _UNUSED})

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in _UNUSED:
            warn_no_effect("WorkerConfig", {name: value or None})

    def check(self) -> None:
        """Raise ConfigError for a rank that is not one of ``world_size``, or workers below 0."""
        Ranks(self.rank, self.world_size)
        whole(self.num_workers, "num_workers", least=0)

    @classmethod
    def default_worker_config(
        cls,
        num_workers: int = 4,
        data_parallel_group: ProcessGroup | None = None,
        *,
        seed_offset: int = 0,
        **options: Any,
    ) -> WorkerConfig:
        """Take ranks from the process group or from ``torchrun``'s variables; without either, there is one rank.

        ``options`` are the other attributes.
        """
        ranks = Ranks.detect() if data_parallel_group is None else Ranks.from_group(data_parallel_group)
        return cls(ranks.rank, ranks.world_size, num_workers, data_parallel_group, seed_offset, **options)

    @property
    def ranks(self) -> Ranks:
        """The rank and the number of ranks, for a `headrace.Loader`."""
        return Ranks(self.rank, self.world_size, self.agree)

    def config(self) -> dict[str, Any]:
        """Ranks and workers by name, as in Energon."""
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "num_workers": self.num_workers,
            "data_parallel_group": self.data_parallel_group,
        }

    def policy(self, errors: ErrorPolicy | None) -> ErrorPolicy | None:
        """The policy that ``global_error_handler`` stands for; ``errors``, if it is given, says the rest."""
        handler = self.global_error_handler
        if handler is None:
            return errors
        if handler is reraise_exception:
            return ErrorPolicy() if errors is None else errors
        policy = ErrorPolicy(on_error="substitute") if errors is None else errors
        return msgspec.structs.replace(policy, on_fault=HandledFault(handler))


def check_worker_config(own: WorkerConfig, given: WorkerConfig | None) -> None:
    """Raise ConfigError if a dataset's own configuration is another than what is given, or has become of the user's."""
    if given is not None and given != own:
        raise ConfigError(
            f"worker_config is {given!r}, but the dataset was made with {own!r}, which decides: leave worker_config out"
            " for a loader, and change it only before a dataset is made with it"
        )


class HandledFault:
    """Calls an error handler of Energon's for a fault. It pickles if the handler does."""

    def __init__(self, handler: ErrorHandler) -> None:
        self._handler = handler

    def __call__(self, error: Exception, fault: Fault) -> None:
        """Call the handler; older ones take the error and the key alone."""
        sample = FailedSample(__key__=fault.key, __restore_key__=(), __shard__=fault.shard)
        sources = [
            SourceInfo(dataset_path=fault.source, index=fault.index, shard_name=fault.shard or "", file_names=())
        ]
        if _num_arguments(self._handler) == 2:
            self._handler(error, fault.key)  # type: ignore[call-arg]
            return
        self._handler(error, sample, sources)


class FailedSample(CrudeSample):
    """What a handler gets of a sample that failed: its key and shard, as keys and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@functools.cache
def _num_arguments(handler: Callable[..., Any]) -> int:
    try:
        return len(inspect.signature(handler).parameters)
    except (TypeError, ValueError):
        return 3
