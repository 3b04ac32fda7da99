"""Task encoders: the base class with hooks to override, and what a hook promises, and the two that are built in.

What a hook promises: that its result is a function of its arguments and of the random numbers it is given.

A task encoder that maps fields by their names.

A task encoder around another.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar, overload

from headrace.encoders.calls import current
from headrace.encoders.mapping import batched, fields_of, made
from headrace.errors import ConfigError
from headrace.samples.media import Cooker, SampleDecoder

F = TypeVar("F", bound=Callable[..., Any])

GENERATORS: Final = ("numpy", "random", "torch")
"""The global generators that are seeded for a hook."""


@overload
def stateless(fn: F) -> F: ...


@overload
def stateless(
    *, restore_seeds: bool | Sequence[str] = False, failure_tolerance: int | None = None
) -> Callable[[F], F]: ...


def stateless(
    fn: Any = None, *, restore_seeds: bool | Sequence[str] = False, failure_tolerance: int | None = None
) -> Any:
    """Mark a hook whose result depends on its arguments alone, so that it can be called again.

    The function itself stays as it is. Its seeds are set by whoever runs the hooks, from seed, position and output:
    nothing of a process is kept.

    Args:
        fn: the hook, where the decorator is written without parentheses.
        restore_seeds: the hook draws random numbers: True from any global generator, or the names of those that it
            draws from, ``("numpy", "torch")``. False: it draws none; they are seeded all the same where that is safe.
            ``()``: it draws none, and nothing is spent on seeds.
        failure_tolerance: how many samples in a row may fail in this hook; 0 for no bound of its own.

    Raises:
        ConfigError: no such generator, or a tolerance below 0.
    """
    if fn is None:
        return lambda given: stateless(given, restore_seeds=restore_seeds, failure_tolerance=failure_tolerance)  # type: ignore[call-overload]
    fn.__stateless__ = True
    fn.__restore_seeds__ = _checked(restore_seeds)
    if failure_tolerance is not None:
        if failure_tolerance < 0:
            raise ConfigError(f"failure_tolerance is {failure_tolerance}; 0 is no bound, else it is at least 1")
        fn.__failure_tolerance__ = failure_tolerance
    return fn


def _checked(restore_seeds: bool | Sequence[str]) -> bool | tuple[str, ...]:
    if isinstance(restore_seeds, bool):
        return restore_seeds
    names = (restore_seeds,) if isinstance(restore_seeds, str) else tuple(restore_seeds)
    unknown = [name for name in names if name not in GENERATORS]
    if unknown:
        raise ConfigError(f"restore_seeds names {unknown}; there are {', '.join(GENERATORS)}, or True for all")
    return names


def get_stateless(fn: Any) -> bool:
    """Whether a function or method is marked."""
    return bool(getattr(fn, "__stateless__", False))


def get_failure_tolerance(fn: Any, default: int | None = None) -> int | None:
    """How many samples in a row may fail in it."""
    found: int | None = getattr(fn, "__failure_tolerance__", default)
    return found


def generators_of(fn: Any) -> tuple[str, ...]:
    """The generators to seed for it: all, unless it says which."""
    said = getattr(fn, "__restore_seeds__", True)
    return GENERATORS if isinstance(said, bool) else said


def may_draw(fn: Any) -> bool:
    """Whether it says that it draws from global generators, or says nothing."""
    return not get_stateless(fn) or bool(getattr(fn, "__restore_seeds__", False))


T_sample = TypeVar("T_sample")
T_encoded_sample = TypeVar("T_encoded_sample")
T_raw_batch = TypeVar("T_raw_batch")
T_batch = TypeVar("T_batch")


class TaskEncoder(Generic[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """What makes samples of a dataset into batches for one task. Names and meaning of the hooks are Energon's.

    Override what is needed: ``encode_sample``, or ``preencode_sample`` before packing and ``postencode_sample`` after.
    Hooks are marked with ``@stateless``; one that is not may hold state, and then no sample can be made again.

    Attributes:
        cookers: for crude samples; the first that matches the subflavors of a dataset is used.
        decoder: how parts become values; None hands out bytes.
        version: of what the hooks do. They are known by their names alone: write another one here whenever their
            results change.
    """

    cookers: Sequence[Cooker] = ()
    decoder: SampleDecoder | None = SampleDecoder()
    version: str = ""
    __default_failure_tolerance__: ClassVar[int] = 100

    @stateless(restore_seeds=())
    def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: Mapping[str, Any]) -> Any:
        """A sample of a crude one.

        Args:
            sample: the parts, in a dict.
            cooker: the one that was chosen for the dataset.
            aux: the auxiliary stores by name, and ``primary`` and ``cache`` where the cooker wants them.
        """
        others = {name: store for name, store in aux.items() if name not in ("primary", "cache")}
        return cooker(sample, primary=aux.get("primary"), cache=aux.get("cache"), aux=others)

    @stateless(restore_seeds=())
    def encode_sample(self, sample: T_sample) -> Any:
        """An encoded sample; a generator gives none, one or several."""
        return sample

    @stateless(restore_seeds=())
    def preencode_sample(self, sample: T_sample) -> Any:
        """The first half of encoding, before samples are chosen for packs; may be a generator."""
        return sample

    @stateless(restore_seeds=())
    def postencode_sample(self, sample: Any) -> Any:
        """The second half, for each sample of a pack; one for one."""
        return sample

    @stateless(restore_seeds=())
    def sample_length(self, sample: Any) -> int:
        """How long an encoded sample is, in tokens or what else fills a pack: for `headrace measure` and `BestFit`."""
        raise ConfigError(f"{type(self).__name__}: sample_length must be overridden to know how long samples are")

    @stateless(restore_seeds=())
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """Which of some samples go into packs together; each at most once. What is left waits for more."""
        raise ConfigError(f"{type(self).__name__}: select_samples_to_pack must be overridden to pack")

    @stateless(restore_seeds=())
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """One sample of some; a generator gives several."""
        raise ConfigError(f"{type(self).__name__}: pack_selected_samples must be overridden to pack")

    @stateless(restore_seeds=())
    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:
        """Samples of one key are batched together: (key, batch size), the size None where it is given elsewhere."""
        raise ConfigError(f"{type(self).__name__}: batch_group_criterion must be overridden to group")

    @stateless(restore_seeds=())
    def batch(self, samples: list[Any]) -> Any:
        """Samples as one, of the type that they have: arrays padded with zeros and stacked, all else in lists."""
        return batched(samples, type(samples[0]))

    @stateless(restore_seeds=())
    def encode_batch(self, batch: T_raw_batch) -> Any:
        """A batch as the model wants it."""
        return batch

    @property
    def current_sample_index(self) -> int:
        """A number for the sample in hand, no other has it; the same on any number of workers. In a batch, its first.

        Raises:
            ConfigError: no hook is running.
        """
        return current("current_sample_index").sample_index

    @property
    def current_batch_index(self) -> int:
        """A number for the batch in hand. Raises ConfigError: this is not a hook for batches."""
        found = current("current_batch_index").batch_index
        if found is None:
            raise ConfigError(
                "current_batch_index is known in batch and encode_batch: which batch a sample comes into is decided"
                " after it is encoded; use current_sample_index"
            )
        return found

    @property
    def current_seed(self) -> int:
        """64 bits for a generator of the hook's own, ``numpy.random.default_rng(self.current_seed)``: safe in threads.

        Raises:
            ConfigError: no hook is running.
        """
        return current("current_seed").seed


class DefaultTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """Makes samples, then batches, of the types that are given; where none is, they stay as they are.

    A type is a dataclass, a named tuple or ``dict``. Fields that it lacks are left out, and one that it needs must be
    there under its name.

    Args:
        encoded_sample_type: of ``encode_sample``.
        raw_batch_type: of ``batch``; None: that of the samples.
        batch_type: of ``encode_batch``.
    """

    def __init__(
        self,
        *,
        encoded_sample_type: type[Any] | None = None,
        raw_batch_type: type[Any] | None = None,
        batch_type: type[Any] | None = None,
    ) -> None:
        self._encoded_sample_type = encoded_sample_type
        self._raw_batch_type = raw_batch_type
        self._batch_type = batch_type

    @stateless(restore_seeds=())
    def encode_sample(self, sample: T_sample) -> Any:
        """The sample as ``encoded_sample_type``."""
        kind = self._encoded_sample_type
        return sample if kind is None or isinstance(sample, kind) else made(kind, fields_of(sample), "encode_sample")

    @stateless(restore_seeds=())
    def batch(self, samples: list[Any]) -> Any:
        """The samples as ``raw_batch_type``: see `batched`."""
        return batched(samples, self._raw_batch_type or type(samples[0]))

    @stateless(restore_seeds=())
    def encode_batch(self, batch: T_raw_batch) -> Any:
        """The batch as ``batch_type``."""
        kind = self._batch_type
        return batch if kind is None or isinstance(batch, kind) else made(kind, fields_of(batch), "encode_batch")


class AugmentTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """Does what another task encoder does; override a hook and call ``super()`` to add to it.

    A hook that is not overridden is the other's own, with what it promises. Energon's class hands on three hooks only.

    Args:
        task_encoder: the other.
    """

    def __init__(self, task_encoder: TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]) -> None:
        self._task_encoder = task_encoder
        kinds = type(self).__mro__
        own = {name for kind in kinds[: kinds.index(AugmentTaskEncoder)] for name in vars(kind)}
        for name in ("cookers", "decoder", "version"):
            if name not in own:
                setattr(self, name, getattr(task_encoder, name))

    def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: Mapping[str, Any]) -> Any:
        """The other's."""
        return self._task_encoder.cook_crude_sample(sample, cooker, aux)

    def encode_sample(self, sample: T_sample) -> Any:
        """The other's."""
        return self._task_encoder.encode_sample(sample)

    def preencode_sample(self, sample: T_sample) -> Any:
        """The other's."""
        return self._task_encoder.preencode_sample(sample)

    def postencode_sample(self, sample: Any) -> Any:
        """The other's."""
        return self._task_encoder.postencode_sample(sample)

    def sample_length(self, sample: Any) -> int:
        """The other's."""
        return self._task_encoder.sample_length(sample)

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """The other's."""
        return self._task_encoder.select_samples_to_pack(samples)

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """The other's."""
        return self._task_encoder.pack_selected_samples(samples)

    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:
        """The other's."""
        return self._task_encoder.batch_group_criterion(sample)

    def batch(self, samples: list[Any]) -> Any:
        """The other's."""
        return self._task_encoder.batch(samples)

    def encode_batch(self, batch: T_raw_batch) -> Any:
        """The other's."""
        return self._task_encoder.encode_batch(batch)
