"""The hooks of a task encoder and what they promise, the base class of task encoders, and two ready-made ones.

`stateless` marks what a hook promises, and `Hook` holds it. A `Call` of a hook has a place and a seed, and the hook can
ask about it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar, overload

import msgspec

from headrace.errors import ConfigError
from headrace.plan.keys import CallKey, seed_of
from headrace.plan.recipe import recorded_name
from headrace.samples.media import Cooker, SampleDecoder
from headrace.samples.media.batch import batched, fields_of, made

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


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """One hook of a task encoder, and what it promises.

    Attributes:
        name: the name of the method, such as ``encode_sample``.
        call: the method.
        is_overridden: whether the user overrides it, so that it has to be called.
        is_generator: whether it is a generator function.
        stateless: whether it is marked ``@stateless``.
        seeds: the names of the global generators that are seeded for it.
        may_draw: whether it may draw from them: it says so, or is not marked.
        failure_tolerance: how many samples in a row may fail in it, 0 for no bound; None if it does not say.
    """

    name: str
    call: Callable[..., Any]
    is_overridden: bool
    is_generator: bool
    stateless: bool
    seeds: tuple[str, ...]
    may_draw: bool
    failure_tolerance: int | None


def function_hook(name: str, function: Callable[..., Any], *, is_overridden: bool = True) -> Hook:
    """Return a function, such as a cooker, as a hook."""
    return Hook(
        name=name,
        call=function,
        is_overridden=is_overridden,
        is_generator=inspect.isgeneratorfunction(function),
        stateless=get_stateless(function),
        seeds=generators_of(function),
        may_draw=may_draw(function),
        failure_tolerance=get_failure_tolerance(function),
    )


STAGES: Final = {
    name: number
    for number, name in enumerate(
        (
            "cook",
            "encode",
            "select_samples_to_pack",
            "postencode_sample",
            "pack_selected_samples",
            "batch_group_criterion",
            "batch",
            "encode_batch",
            "sample_length",
        )
    )
}
"""A number for each hook, so that each has random numbers of its own. The numbers are part of the order."""


class Call(NamedTuple):
    """A call of a hook: what the hook may ask about it.

    ``stage`` is the hook's number in `STAGES`, and ``number`` counts the outputs of a generator.
    """

    place: CallKey
    stage: int
    is_batch: bool = False
    number: int = 0


CALL: ContextVar[Call | None] = ContextVar("headrace_call", default=None)
"""The call that runs in this thread. It is ambient, since Energon's encoders ask for it by themselves, as in
``self.current_seed``. The encoder cannot hold it: several threads call hooks of one encoder, and an
`AugmentTaskEncoder` wraps another one. Only `EncoderPipeline` sets it, and only `TaskEncoder` asks for it."""


def current(what: str) -> Call:
    """Return the call that is running. Raises ConfigError if there is none."""
    call = CALL.get()
    if call is None:
        raise ConfigError(f"{what} is known only within a hook of a task encoder, while a pipeline calls it")
    return call


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
        cache: where large values wait until a later hook uses them, if the loader has one; None without.

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
    cache: Any = None
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
        """Return the length of an encoded sample, in tokens or another unit, for `headrace measure` and for packs."""
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
        return current("current_sample_index").place.position

    @property
    def current_batch_index(self) -> int:
        """A number for the batch. Only ``batch`` and ``encode_batch`` know it.

        Raises:
            ConfigError: another hook is running, or none.
        """
        found = current("current_batch_index")
        if not found.is_batch:
            raise ConfigError(
                "current_batch_index is known only in batch and encode_batch, since samples are batched after they are"
                " encoded; use current_sample_index"
            )
        return found.place.position

    @property
    def current_seed(self) -> int:
        """A 64-bit seed for a generator of the hook's own, which is safe in threads.

        Use it as ``numpy.random.default_rng(self.current_seed)``.

        Raises:
            ConfigError: no hook is running.
        """
        call = current("current_seed")
        return seed_of(call.place, call.stage, call.number)


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


MANY: Final = ("encode_sample", "preencode_sample", "pack_selected_samples", "encode_batch")
"""Hooks that may be generators."""

# Hooks that return one result.
ONE: Final = (
    "cook_crude_sample",
    "postencode_sample",
    "sample_length",
    "select_samples_to_pack",
    "batch_group_criterion",
    "batch",
)


def _of_wrapped(name: str) -> Callable[..., Any]:
    def hook(self: AugmentTaskEncoder[Any, Any, Any, Any], *given: Any, **named: Any) -> Any:
        """Call the hook of the wrapped encoder."""
        return getattr(self._task_encoder, name)(*given, **named)

    hook.__name__ = name
    return hook


for _name in (*ONE, *MANY):
    setattr(AugmentTaskEncoder, _name, _of_wrapped(_name))


def checked_encoder(encoder: Any) -> TaskEncoder[Any, Any, Any, Any]:
    """Return a task encoder unchanged. Raises ConfigError for anything else."""
    if not isinstance(encoder, TaskEncoder):
        raise ConfigError(f"task encoder is {encoder!r:.80}; expected a TaskEncoder, such as DefaultTaskEncoder()")
    return encoder


def hook_of(encoder: TaskEncoder[Any, Any, Any, Any], name: str) -> Hook:
    """Return a hook by its name. If an `AugmentTaskEncoder` does not override it, it is that of the wrapped encoder."""
    found = getattr(encoder, name)
    function = getattr(found, "__func__", found)
    if isinstance(encoder, AugmentTaskEncoder) and function is getattr(AugmentTaskEncoder, name):
        return hook_of(encoder._task_encoder, name)
    return function_hook(name, found, is_overridden=function is not getattr(TaskEncoder, name))


def hooks_of(encoder: TaskEncoder[Any, Any, Any, Any]) -> dict[str, Hook]:
    """Return all hooks by name, checked.

    Raises:
        ConfigError: ``encoder`` is not a task encoder; a hook is a generator where one result is expected;
            ``encode_sample`` and ``preencode_sample`` are both overridden; or packing lacks one of its hooks, and
            ``sample_length`` does not stand in for it.
    """
    kind = type(checked_encoder(encoder)).__name__
    hooks = {name: hook_of(encoder, name) for name in (*ONE, *MANY)}
    for name in ONE:
        if hooks[name].is_generator:
            raise ConfigError(
                f"{kind}.{name} is a generator, but must return one result; generators may be {', '.join(MANY)}"
            )
    plain = getattr(hooks["encode_sample"].call, "__func__", None) is DefaultTaskEncoder.encode_sample
    if hooks["preencode_sample"].is_overridden and hooks["encode_sample"].is_overridden and not plain:
        raise ConfigError(
            f"{kind} overrides both encode_sample and preencode_sample; override encode_sample alone, or"
            " preencode_sample for the part before packing and postencode_sample for the part after it"
        )
    halves = [name for name in ("select_samples_to_pack", "pack_selected_samples") if hooks[name].is_overridden]
    if len(halves) == 1 and not (halves == ["pack_selected_samples"] and hooks["sample_length"].is_overridden):
        raise ConfigError(
            f"{kind} overrides {halves[0]} alone; packing needs pack_selected_samples, and either"
            " select_samples_to_pack or sample_length, by which best fit selects"
        )
    return hooks


class BoundCooker:
    """A cooker that is called through ``cook_crude_sample`` of a task encoder. It pickles if the encoder does."""

    def __init__(self, encoder: TaskEncoder[Any, Any, Any, Any], cooker: Cooker) -> None:
        self._encoder = encoder
        self._cooker = cooker
        self.__cooker_need_primary__ = cooker.need_primary
        self.__cooker_need_cache__ = cooker.need_cache
        hook = hook_of(encoder, "cook_crude_sample").call
        for name in ("__stateless__", "__restore_seeds__", "__failure_tolerance__"):
            if hasattr(hook, name):
                setattr(self, name, getattr(hook, name))
        self.__module__ = hook.__module__
        self.__qualname__ = f"{hook.__qualname__}({getattr(cooker.cook, '__qualname__', cooker.cook)})"

    def __call__(self, crude: Any, **aux: Any) -> Any:
        """Return the sample that the hook makes from a crude one."""
        return self._encoder.cook_crude_sample(crude, self._cooker, aux)

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundCooker, (self._encoder, self._cooker)


def bound_cookers(encoder: TaskEncoder[Any, Any, Any, Any]) -> tuple[Cooker, ...]:
    """Return the cookers of a task encoder, called through its ``cook_crude_sample`` if that is overridden."""
    cookers = tuple(encoder.cookers)
    if not hook_of(encoder, "cook_crude_sample").is_overridden:
        return cookers
    return tuple(Cooker(BoundCooker(encoder, cooker), cooker.has_subflavors) for cooker in cookers)


def encoder_recipe(encoder: TaskEncoder[Any, Any, Any, Any]) -> Mapping[str, Any]:
    """Return what identifies an encoder, safe for JSON: name and version, and those of an encoder that it wraps."""
    kind = type(encoder)
    recipe: dict[str, Any] = {"encoder": recorded_name(kind), "version": encoder.version}
    if isinstance(encoder, AugmentTaskEncoder):
        recipe["within"] = encoder_recipe(encoder._task_encoder)
    return recipe
