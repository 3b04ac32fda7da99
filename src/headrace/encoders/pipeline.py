"""The hooks of one task encoder, run as functions: of one sample, of some to be packed, of some to be batched."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Hashable, Sequence
from operator import index
from typing import Any, Final, NamedTuple

import msgspec

from headrace.encoders.calls import CALL, Call, CallKey, SavedGenerators, in_main_thread, seed_of
from headrace.encoders.hooks import Hook, encoder_recipe, hooks_of
from headrace.encoders.task_encoder import TaskEncoder
from headrace.errors import ConfigError, SkipSample


class Output(NamedTuple):
    """What one sample, or one pack, became: the place that it has now, and the encoded sample."""

    place: CallKey
    sample: Any


class Selection(NamedTuple):
    """Which of n samples go into packs: the numbers of each pack's, in its order, and of those that are left."""

    packs: list[list[int]]
    left: list[int]


class HookFailure(Exception):  # noqa: N818 -- it never leaves the library: who runs the pipeline raises ``error``
    """A hook raised ``error``; whether another sample may stand in for it is asked of ``hook``."""

    def __init__(self, hook: Hook, error: Exception) -> None:
        super().__init__(hook, error)
        self.hook = hook
        self.error = error


class EncoderPipeline:
    """A task encoder, ready to run. Pure: a result depends on the arguments and the place, not on what ran before.

    Within ``with pipeline:`` many calls share the cost of saving the global generators; without it each call
    pays it. In threads other than the main one global generators cannot be seeded: `check_thread`.

    Args:
        encoder: the task encoder.
        packing: whether ``select_samples_to_pack`` and ``pack_selected_samples`` are used.
        batch_size: samples of a batch, None where ``batch_group_criterion`` says it, or where nothing is batched.

    Raises:
        ConfigError: what `hooks_of` refuses; packing without its hooks.
    """

    def __init__(
        self, encoder: TaskEncoder[Any, Any, Any, Any], *, packing: bool = False, batch_size: int | None = None
    ) -> None:
        self.encoder = encoder
        self.hooks = hooks_of(encoder)
        self.packing = packing
        self.batch_size = batch_size
        if packing and not self.hooks["pack_selected_samples"].is_overridden:
            raise ConfigError(
                f"{self._kind}: packing takes select_samples_to_pack and pack_selected_samples, which it does not"
                " override; override them, or leave packing out"
            )
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}; it is at least 1, or None")
        before = self.hooks["preencode_sample"]
        self._encode = before if before.is_overridden else self.hooks["encode_sample"]
        self._after = self.hooks["postencode_sample"]
        length = self.hooks["sample_length"]
        self._length = length if length.may_draw else msgspec.structs.replace(length, seeds=())
        self._generators = SavedGenerators()

    @property
    def groups(self) -> bool:
        """Whether batches are made of samples of one key."""
        return self.hooks["batch_group_criterion"].is_overridden

    @property
    def not_fixed(self) -> list[str]:
        """Why a sample may give another number of outputs than one; empty where it always gives exactly one."""
        reasons = [f"{self._encode.name} is a generator"] if self._encode.is_generator else []
        packing = ("select_samples_to_pack", "pack_selected_samples")
        reasons += [f"{name} packs samples" for name in packing if self.hooks[name].is_overridden][:1]
        if self.groups:
            reasons.append("batch_group_criterion groups samples")
        if self.hooks["encode_batch"].is_generator:
            reasons.append("encode_batch is a generator")
        return reasons

    @property
    def used(self) -> tuple[Hook, ...]:
        """The hooks that are called, but for those of the base class, and for cookers.

        Lengths decide packs alone: of others they are looked at by who asks.
        """
        found = (hook for hook in self.hooks.values() if hook.is_overridden)
        return tuple(hook for hook in found if self.packing or hook.name != "sample_length")

    @property
    def recipe(self) -> dict[str, Any]:
        """JSON-safe: what of the pipeline decides its results; what hooks do is told by their names and version."""
        return {
            **encoder_recipe(self.encoder),
            "hooks": sorted(hook.name for hook in self.used),
            "packing": self.packing,
            "batch_size": self.batch_size,
            "stages": 1,
        }

    def check_thread(self, *others: Hook) -> None:
        """Raise ConfigError in a thread where a hook may draw from global generators, which the process shares."""
        if in_main_thread():
            return
        for hook in (*self.used, *others):
            if hook.may_draw:
                says = "says that it draws random numbers" if hook.stateless else "is not marked @stateless"
                raise ConfigError(
                    f"{self._kind}.{hook.name} {says}, and runs in a thread: global generators belong to the process,"
                    " so the numbers would depend on what other threads draw. Read in worker processes,"
                    " Reading(num_workers=2), or when asked, Reading(num_threads=0); or mark the hook @stateless, and"
                    " draw from a generator of its own, numpy.random.default_rng(self.current_seed)"
                )

    def __enter__(self) -> EncoderPipeline:
        self._generators.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._generators.__exit__(*raised)

    def encode(self, make: Callable[[], Any], place: CallKey, cook: Hook | None = None) -> list[Output]:
        """One sample made and encoded: none, one or several outputs.

        `SkipSample` after some outputs of a generator ends it there, and in ``postencode_sample`` leaves out that
        one of several, as in Energon.

        Args:
            make: makes the sample: decodes and cooks it.
            place: its own; output k has the place with ``output=k``.
            cook: the cooker that ``make`` runs, to be seeded for; None where there is none.

        Raises:
            HookFailure: something failed.
        """
        with self:
            sample = self._call(READING if cook is None else cook, "cook", place, make)
            if not self._encode.is_overridden:
                encoded = [Output(place, sample)]
            else:
                made = self._outputs(self._encode, "encode", place, sample)
                encoded = [Output(place._replace(output=number), one) for number, one in enumerate(made)]
            if self.packing or not self._after.is_overridden:
                return encoded
            after: list[Output] = []
            for one in encoded:
                try:
                    sample = self._postencoded(one)
                except HookFailure as failure:
                    if len(encoded) > 1 and isinstance(failure.error, SkipSample):
                        continue
                    raise
                # Numbers of outputs have no gaps: keys are looked up by them.
                after.append(Output(one.place._replace(output=len(after)), sample))
            return after

    def _postencoded(self, one: Output) -> Any:
        return self._call(self._after, "postencode_sample", one.place, self._after.call, one.sample)

    def select(self, samples: Sequence[Any], place: CallKey) -> Selection:
        """Which samples go into packs together.

        Args:
            samples: encoded ones.
            place: of the first of them.

        Raises:
            HookFailure: the hook failed; it gave something else than lists of samples that it was given, or one twice.
        """
        hook = self.hooks["select_samples_to_pack"]
        given = list(samples)
        chosen = self._call(hook, "select_samples_to_pack", place, hook.call, list(given))
        numbers = {id(sample): number for number, sample in enumerate(given)}
        try:
            packs = [[self._number(sample, numbers) for sample in pack] for pack in chosen]
        except (ConfigError, TypeError) as error:
            raise HookFailure(hook, error) from error
        return Selection([pack for pack in packs if pack], sorted(numbers.values()))

    def _number(self, sample: Any, numbers: dict[int, int]) -> int:
        try:
            return numbers.pop(id(sample))
        except KeyError:
            raise ConfigError(
                f"{self._kind}.select_samples_to_pack chose a sample twice, or one that it was not given"
                f" ({sample!r:.80}); it returns lists of the very samples that it gets"
            ) from None

    def pack(
        self, samples: Sequence[Output], on_failure: Callable[[int, HookFailure], None] | None = None
    ) -> list[Output]:
        """Chosen samples as packs, mostly one; each sample goes through ``postencode_sample`` first.

        Args:
            samples: encoded ones, at least one.
            on_failure: takes the number of a sample that fails there, and how; if it returns, the pack does without,
                as long as another sample is left. None: the failure is raised.

        Raises:
            HookFailure: a hook failed.
        """
        hook = self.hooks["pack_selected_samples"]
        with self:
            inner = []
            for number, one in enumerate(samples):
                try:
                    inner.append(self._postencoded(one) if self._after.is_overridden else one.sample)
                except HookFailure as failure:
                    if on_failure is None:
                        raise
                    on_failure(number, failure)
                    if not inner and number + 1 == len(samples):
                        raise
            place = samples[0].place
            made = self._outputs(hook, "pack_selected_samples", place, inner)
            return [Output(place._replace(part=number), one) for number, one in enumerate(made)]

    def group(self, one: Output) -> tuple[Hashable, int]:
        """The key of the samples that a sample is batched with, and how many make a batch.

        Raises:
            HookFailure: the hook failed; it gave no pair, a key that cannot be hashed, a size beside ``batch_size``, or
                none where there is no ``batch_size`` either.
        """
        key, size = self.criterion(one)
        try:
            return key, self._checked_size(key, size)
        except ConfigError as error:
            raise HookFailure(self.hooks["batch_group_criterion"], error) from error

    def criterion(self, one: Output) -> tuple[Hashable, int | None]:
        """The same as the hook says it, without a size where that is given elsewhere.

        Raises:
            HookFailure: the hook failed; it gave no pair, a key that cannot be hashed, or a size below 1.
        """
        hook = self.hooks["batch_group_criterion"]
        found = self._call(hook, "batch_group_criterion", one.place, hook.call, one.sample)
        try:
            return self._checked_group(found)
        except ConfigError as error:
            raise HookFailure(hook, error) from error

    def length(self, one: Output) -> int:
        """How long a sample is. The hook is seeded only if it says that it draws: lengths are facts of the sample.

        Raises:
            HookFailure: the hook failed, or gave something else than a number of at least 0.
        """
        hook = self._length
        found = self._call(hook, "sample_length", one.place, hook.call, one.sample)
        try:
            length = index(found)
        except TypeError:
            length = -1
        if length < 0:
            error = ConfigError(f"{self._kind}.sample_length gave {found!r:.80}; it gives a number of at least 0")
            raise HookFailure(hook, error)
        return length

    def _checked_group(self, found: Any) -> tuple[Hashable, int | None]:
        where = f"{self._kind}.batch_group_criterion"
        if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[0], Hashable):
            raise ConfigError(f"{where} gave {found!r:.80}; it gives (key, batch size or None), the key hashable")
        key, given = found
        try:
            size = None if given is None else index(given)
        except TypeError:
            size = 0
        if size is not None and size < 1:
            raise ConfigError(f"{where} gave the size {given!r} for {key!r:.80}; it is a number of at least 1")
        return key, size

    def _checked_size(self, key: Hashable, size: int | None) -> int:
        if size is not None and self.batch_size is None:
            return size
        if size is None and self.batch_size is not None:
            return self.batch_size
        raise ConfigError(
            f"{self._kind}.batch_group_criterion gave the size {size} for {key!r:.80}, and batch_size is"
            f" {self.batch_size}; exactly one of the two says how many samples make a batch"
        )

    def batch(self, samples: Sequence[Any], place: CallKey) -> list[Any]:
        """Samples as batches, mostly one.

        Args:
            samples: encoded ones, at least one.
            place: of the first of them.

        Raises:
            HookFailure: a hook failed.
        """
        with self:
            hook = self.hooks["batch"]
            made = self._call(hook, "batch", place, hook.call, list(samples), is_batch=True)
            hook = self.hooks["encode_batch"]
            if not hook.is_overridden:
                return [made]
            return self._outputs(hook, "encode_batch", place, made, is_batch=True)

    def _outputs(self, hook: Hook, stage: str, place: CallKey, given: Any, *, is_batch: bool = False) -> list[Any]:
        """What a hook gives, each output of a generator with seeds of its own."""
        found = self._call(hook, stage, place, hook.call, given, is_batch=is_batch)
        if not inspect.isgenerator(found):
            return [found]
        outputs: list[Any] = []
        known: set[int] = set()
        while True:
            try:
                made = self._call(hook, stage, place, next, found, _END, is_batch=is_batch, number=len(outputs))
            except HookFailure as failure:
                if outputs and isinstance(failure.error, SkipSample):
                    return outputs
                raise
            if made is _END:
                return outputs
            # One object given twice is two samples, each with a key of its own.
            outputs.append(copy.copy(made) if id(made) in known else made)
            known.add(id(made))

    def _call(
        self,
        hook: Hook,
        stage: str,
        place: CallKey,
        function: Callable[..., Any],
        *given: Any,
        is_batch: bool = False,
        number: int = 0,
    ) -> Any:
        seed = seed_of(place, stage, number)
        token = CALL.set(Call(place.position, place.position if is_batch else None, seed))
        try:
            if not hook.seeds:
                return function(*given)
            if self._generators.is_open:
                self._generators.seed(seed, hook.seeds)
                return function(*given)
            with self._generators as generators:
                generators.seed(seed, hook.seeds)
                return function(*given)
        except Exception as error:
            raise HookFailure(hook, error) from error
        finally:
            CALL.reset(token)

    @property
    def _kind(self) -> str:
        return type(self.encoder).__name__

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.encoder, self.packing, self.batch_size)


_END = object()


READING: Final = Hook(
    name="read",
    call=lambda make: make(),
    is_overridden=False,
    is_generator=False,
    stateless=False,
    seeds=(),
    may_draw=False,
    failure_tolerance=None,
)
"""What makes samples where no code of the user's does: of its errors `SampleError` alone is of the sample."""


def _again(encoder: TaskEncoder[Any, Any, Any, Any], packing: bool, batch_size: int | None) -> EncoderPipeline:
    return EncoderPipeline(encoder, packing=packing, batch_size=batch_size)
