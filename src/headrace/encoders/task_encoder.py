"""The base class of task encoders, two ready-made ones, and `stateless`, by which a hook says what it promises."""

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
    """Mark a hook whose result depends only on its arguments and its random numbers, so that it can be called again.

    The decorator only marks the function. The pipeline seeds the global generators before each call, from the seed of
    the run, the position and the output; nothing depends on the process.

    Args:
        fn: the hook, if the decorator is written without parentheses.
        restore_seeds: which random numbers the hook draws. True: from any global generator. Names, such as
            ``("numpy", "torch")``: from these. False: none, but the generators are still seeded where that is safe.
            ``()``: none, and no time is spent on seeds.
        failure_tolerance: how many samples in a row may fail in this hook; 0 for no bound. It overrides the
            ``tolerance`` of `ErrorPolicy`.

    Raises:
        ConfigError: there is no such generator, or the tolerance is below 0.

    Example:
        >>> from headrace.encoders import DefaultTaskEncoder, stateless
        >>> class Noisy(DefaultTaskEncoder):
        ...     @stateless(restore_seeds=("numpy",))
        ...     def encode_sample(self, sample):
        ...         return sample + np.random.randint(0, 3, len(sample))
    """
    if fn is None:
        return lambda given: stateless(given, restore_seeds=restore_seeds, failure_tolerance=failure_tolerance)  # type: ignore[call-overload]
    fn.__stateless__ = True
    fn.__restore_seeds__ = _checked(restore_seeds)
    if failure_tolerance is not None:
        if failure_tolerance < 0:
            raise ConfigError(f"failure_tolerance is {failure_tolerance}; allowed are 0, which is no bound, and above")
        fn.__failure_tolerance__ = failure_tolerance
    return fn


def _checked(restore_seeds: bool | Sequence[str]) -> bool | tuple[str, ...]:
    if isinstance(restore_seeds, bool):
        return restore_seeds
    names = (restore_seeds,) if isinstance(restore_seeds, str) else tuple(restore_seeds)
    unknown = [name for name in names if name not in GENERATORS]
    if unknown:
        raise ConfigError(f"restore_seeds names {unknown}; allowed are {', '.join(GENERATORS)}, or True for all")
    return names


def get_stateless(fn: Any) -> bool:
    """Whether a function or method is marked ``@stateless``."""
    return bool(getattr(fn, "__stateless__", False))


def get_failure_tolerance(fn: Any, default: int | None = None) -> int | None:
    """Return how many samples in a row may fail in a function or method, or ``default`` if it does not say."""
    found: int | None = getattr(fn, "__failure_tolerance__", default)
    return found


def generators_of(fn: Any) -> tuple[str, ...]:
    """Return the names of the generators to seed for a function: all, unless it is marked with some."""
    said = getattr(fn, "__restore_seeds__", True)
    return GENERATORS if isinstance(said, bool) else said


def may_draw(fn: Any) -> bool:
    """Whether a function may draw from global generators: it is marked so, or not marked at all."""
    return not get_stateless(fn) or bool(getattr(fn, "__restore_seeds__", False))


T_sample = TypeVar("T_sample")
T_encoded_sample = TypeVar("T_encoded_sample")
T_raw_batch = TypeVar("T_raw_batch")
T_batch = TypeVar("T_batch")


class TaskEncoder(Generic[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """Base class of task encoders, which turn the samples of a dataset into batches for one task.

    The names and the meaning of the hooks are Energon's. Override those that you need: ``encode_sample``; or, with
    packing, ``preencode_sample`` and ``postencode_sample``, which run before and after it. Mark each hook with
    ``@stateless``. A hook that is not marked may hold state, and then no sample can be made again. Most encoders derive
    from `DefaultTaskEncoder`.

    Attributes:
        cookers: functions that make samples from crude ones; the first that matches the subflavors of a dataset is
            used.
        decoder: decodes the parts of a sample; None passes bytes.
        version: the version of your hooks. The code of hooks is not compared, so change the version whenever their
            results change.

    Example:
        >>> from headrace.encoders import TaskEncoder, stateless
        >>> class Captions(TaskEncoder):
        ...     version = "1"
        ...
        ...     @stateless
        ...     def encode_sample(self, sample):
        ...         return {"text": sample.caption, "height": sample.image.shape[-2]}
        >>> dataset = headrace.datasets.EncodedDataset(headrace.MediaDataset.open("shards", "train"), Captions())
        >>> batch = next(iter(headrace.Loader(headrace.Run(dataset, global_batch_size=4), micro_batch_size=4)))
        >>> len(batch["text"]), len(batch["height"])
        (4, 4)
    """

    cookers: Sequence[Cooker] = ()
    decoder: SampleDecoder | None = SampleDecoder()
    version: str = ""
    __default_failure_tolerance__: ClassVar[int] = 100

    @stateless(restore_seeds=())
    def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: Mapping[str, Any]) -> Any:
        """Return a sample made from a crude one.

        Args:
            sample: the parts, in a dict.
            cooker: the cooker that was chosen for the dataset.
            aux: the auxiliary stores by name, and ``primary`` and ``cache`` if the cooker asks for them.
        """
        others = {name: store for name, store in aux.items() if name not in ("primary", "cache")}
        return cooker(sample, primary=aux.get("primary"), cache=aux.get("cache"), aux=others)

    @stateless(restore_seeds=())
    def encode_sample(self, sample: T_sample) -> Any:
        """Return the encoded sample. As a generator, it yields any number of them."""
        return sample

    @stateless(restore_seeds=())
    def preencode_sample(self, sample: T_sample) -> Any:
        """Return the sample after the first part of encoding, before packing. May be a generator."""
        return sample

    @stateless(restore_seeds=())
    def postencode_sample(self, sample: Any) -> Any:
        """Return the sample after the second part of encoding, for each sample that was selected for a pack."""
        return sample

    @stateless(restore_seeds=())
    def sample_length(self, sample: Any) -> int:
        """Return the length of an encoded sample, in tokens or another unit, for `headrace measure` and `BestFit`."""
        raise ConfigError(f"{type(self).__name__}: sample_length must be overridden to know how long samples are")

    @stateless(restore_seeds=())
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """Return lists of samples that go into packs together, each sample at most once. The others wait for more."""
        raise ConfigError(f"{type(self).__name__}: select_samples_to_pack must be overridden to pack")

    @stateless(restore_seeds=())
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """Return one sample packed from several. As a generator, it yields any number of packs."""
        raise ConfigError(f"{type(self).__name__}: pack_selected_samples must be overridden to pack")

    @stateless(restore_seeds=())
    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:
        """Return (key, batch size). Samples of one key are batched together; the size is None if it is set outside."""
        raise ConfigError(f"{type(self).__name__}: batch_group_criterion must be overridden to group")

    @stateless(restore_seeds=())
    def batch(self, samples: list[Any]) -> Any:
        """Return the batch, of the samples' own type: arrays padded with zeros and stacked, all else in lists."""
        return batched(samples, type(samples[0]))

    @stateless(restore_seeds=())
    def encode_batch(self, batch: T_raw_batch) -> Any:
        """Return the batch in the form that the model needs."""
        return batch

    @property
    def current_sample_index(self) -> int:
        """A number that no other sample has, the same on any number of workers. In a batch, that of its first sample.

        Raises:
            ConfigError: no hook is running.
        """
        return current("current_sample_index").sample_index

    @property
    def current_batch_index(self) -> int:
        """A number for the batch. Only ``batch`` and ``encode_batch`` know it.

        Raises:
            ConfigError: another hook is running, or none.
        """
        found = current("current_batch_index").batch_index
        if found is None:
            raise ConfigError(
                "current_batch_index is known only in batch and encode_batch, since samples are batched after they are"
                " encoded; use current_sample_index"
            )
        return found

    @property
    def current_seed(self) -> int:
        """A 64-bit seed for a generator of the hook's own, which is safe in threads.

        Use it as ``numpy.random.default_rng(self.current_seed)``.

        Raises:
            ConfigError: no hook is running.
        """
        return current("current_seed").seed


class DefaultTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """A task encoder that works without overriding anything: samples keep their fields, and batches stack them.

    It can convert samples and batches to other types, by the names of their fields. A type is a dataclass, a named
    tuple or ``dict``. Fields that the type does not have are left out; fields that it needs must exist.

    Args:
        encoded_sample_type: the type that ``encode_sample`` returns; None leaves samples as they are.
        raw_batch_type: the type that ``batch`` returns; None means the type of the samples.
        batch_type: the type that ``encode_batch`` returns; None leaves batches as they are.

    Example:
        >>> from headrace.encoders import DefaultTaskEncoder, stateless
        >>> class Halved(DefaultTaskEncoder):
        ...     @stateless
        ...     def encode_sample(self, sample):
        ...         return {"image": sample.image[:, :16, :16], "caption": sample.caption}
        >>> dataset = headrace.datasets.EncodedDataset(headrace.MediaDataset.open("shards", "train"), Halved())
        >>> tuple(dataset[0]["image"].shape)
        (3, 16, 16)
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
        """Return the sample as ``encoded_sample_type``."""
        kind = self._encoded_sample_type
        return sample if kind is None or isinstance(sample, kind) else made(kind, fields_of(sample), "encode_sample")

    @stateless(restore_seeds=())
    def batch(self, samples: list[Any]) -> Any:
        """Return the samples as one ``raw_batch_type``, see `batched`."""
        return batched(samples, self._raw_batch_type or type(samples[0]))

    @stateless(restore_seeds=())
    def encode_batch(self, batch: T_raw_batch) -> Any:
        """Return the batch as ``batch_type``."""
        kind = self._batch_type
        return batch if kind is None or isinstance(batch, kind) else made(kind, fields_of(batch), "encode_batch")


class AugmentTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """A task encoder that wraps another one. Override a hook and call ``super()`` to add to it.

    A hook that is not overridden is the wrapped encoder's own, with its promises. Energon's class passes on only three
    hooks.

    Args:
        task_encoder: the encoder to wrap.

    Example:
        >>> from headrace.encoders import AugmentTaskEncoder, DefaultTaskEncoder, stateless
        >>> class Mirrored(AugmentTaskEncoder):
        ...     @stateless
        ...     def encode_sample(self, sample):
        ...         sample = super().encode_sample(sample)
        ...         sample.image = sample.image.flip(-1)
        ...         return sample
        >>> encoder = Mirrored(DefaultTaskEncoder())
        >>> media = headrace.MediaDataset.open("shards", "train")
        >>> left = media[0].image[0, 0, 0]
        >>> bool(headrace.datasets.EncodedDataset(media, encoder)[0].image[0, 0, -1] == left)
        True
    """

    def __init__(self, task_encoder: TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]) -> None:
        self._task_encoder = task_encoder
        kinds = type(self).__mro__
        own = {name for kind in kinds[: kinds.index(AugmentTaskEncoder)] for name in vars(kind)}
        for name in ("cookers", "decoder", "version"):
            if name not in own:
                setattr(self, name, getattr(task_encoder, name))

    def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: Mapping[str, Any]) -> Any:
        """Call the hook of the wrapped encoder."""
        return self._task_encoder.cook_crude_sample(sample, cooker, aux)

    def encode_sample(self, sample: T_sample) -> Any:
        """Call the hook of the wrapped encoder."""
        return self._task_encoder.encode_sample(sample)

    def preencode_sample(self, sample: T_sample) -> Any:
        """Call the hook of the wrapped encoder."""
        return self._task_encoder.preencode_sample(sample)

    def postencode_sample(self, sample: Any) -> Any:
        """Call the hook of the wrapped encoder."""
        return self._task_encoder.postencode_sample(sample)

    def sample_length(self, sample: Any) -> int:
        """Call the hook of the wrapped encoder."""
        return self._task_encoder.sample_length(sample)

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """Call the hook of the wrapped encoder."""
        return self._task_encoder.select_samples_to_pack(samples)

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """Call the hook of the wrapped encoder."""
        return self._task_encoder.pack_selected_samples(samples)

    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:
        """Call the hook of the wrapped encoder."""
        return self._task_encoder.batch_group_criterion(sample)

    def batch(self, samples: list[Any]) -> Any:
        """Call the hook of the wrapped encoder."""
        return self._task_encoder.batch(samples)

    def encode_batch(self, batch: T_raw_batch) -> Any:
        """Call the hook of the wrapped encoder."""
        return self._task_encoder.encode_batch(batch)
