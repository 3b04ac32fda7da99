"""The class `EncoderPipeline`, which calls the hooks of a task encoder for one sample, a pack, or a batch.

The global generators of ``random``, NumPy and torch are seeded for a call and restored afterwards. They belong to the
process and not to a thread: seeding them in a second thread would change what the first one draws. So they are seeded
only in the main thread, which in a worker process is the one that reads.
"""

from __future__ import annotations

import copy
import inspect
import random
import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from functools import partial
from operator import call, index
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from headrace.encoders.task_encoder import CALL, STAGES, Call, Hook, TaskEncoder, encoder_recipe, hooks_of
from headrace.errors import ConfigError, SkipSample, raised
from headrace.plan.keys import CallKey, seed_of

T = TypeVar("T")

_MASK63 = (1 << 63) - 1
_NUMPY: Any = np.random
"""NumPy's global generator, as Any since some of its functions have no types."""


def in_main_thread() -> bool:
    """Whether this is the main thread, the only one that may seed the global generators."""
    return threading.current_thread() is threading.main_thread()


class SavedGenerators:
    """Saves the global generators and restores them after a ``with``, so that `seed` can set them within it.

    Entering and leaving costs about 85 us, so it is done once for many samples. It nests. In threads other than the
    main one it does nothing.

    >>> with SavedGenerators() as generators:
    ...     generators.seed(1, ("random",))
    """

    def __init__(self) -> None:
        self._depth = 0
        self._own = np.random.MT19937(0)
        self._random: Any = None
        self._numpy: Any = None
        self._torch: Any = None

    def __enter__(self) -> SavedGenerators:
        if in_main_thread():
            self._depth += 1
            if self._depth == 1:
                self._random = random.getstate()
                # NumPy's generator is replaced by another one. Beside it, NumPy keeps the second of a pair of normal
                # numbers, which only the state has.
                self._numpy = (_NUMPY.get_bit_generator(), _NUMPY.get_state(legacy=False))
                _NUMPY.set_bit_generator(self._own)
                self._keep_torch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not in_main_thread():
            return
        self._depth -= 1
        if self._depth:
            return
        random.setstate(self._random)
        generator, state = self._numpy
        _NUMPY.set_bit_generator(generator)
        if state["has_gauss"] and isinstance(generator, np.random.MT19937):
            _NUMPY.set_state(state)
        if self._torch is not None:
            sys.modules["torch"].default_generator.set_state(self._torch)
        self._random = self._numpy = self._torch = None

    def seed(self, seed: int, names: Sequence[str]) -> None:
        """Seed some generators with 64 bits; torch's only if it is imported, and never a GPU's. About 10 us for all."""
        if not self._depth or not in_main_thread():
            return
        if "random" in names:
            random.seed(seed)
        if "numpy" in names:
            # All three use the same algorithm. NumPy gets the high bits and torch the low ones; Python seeds with both
            # as an array, which is another method. So no two of them draw the same numbers.
            _NUMPY.seed(seed >> 32)
        if "torch" in names and self._keep_torch():
            sys.modules["torch"].default_generator.manual_seed(seed & _MASK63)

    def run(self, call: Call, seeds: Sequence[str], function: Callable[..., Any], *given: Any) -> Any:
        """Return the result of a function that runs as ``call``, with the generators ``seeds`` seeded for it."""
        token = CALL.set(call)
        try:
            if not seeds or not in_main_thread():
                return function(*given)
            with nullcontext() if self._depth else self:
                self.seed(seed_of(call.place, call.stage, call.number), seeds)
                return function(*given)
        finally:
            CALL.reset(token)

    def _keep_torch(self) -> bool:
        """Save the state of torch's generator once. Returns whether torch is imported, which a hook may do later."""
        generator = getattr(sys.modules.get("torch"), "default_generator", None)
        if generator is not None and self._torch is None:
            self._torch = generator.get_state()
        return generator is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return SavedGenerators, ()


class Output(NamedTuple):
    """An encoded sample or pack, and its place."""

    place: CallKey
    sample: Any


class Selection(NamedTuple):
    """Which of n samples go into packs: for each pack the numbers of its samples, in order, and those that are left."""

    packs: list[list[int]]
    left: list[int]


class HookFailure(Exception):  # noqa: N818 -- it never leaves the library: callers of the pipeline raise ``error``
    """A hook raised ``error``. What ``hook`` promises decides whether another sample may replace the failed one."""

    def __init__(self, hook: Hook, error: Exception) -> None:
        super().__init__(hook, error)
        self.hook = hook
        self.error = error


class EncoderPipeline:
    """Calls the hooks of a task encoder. A result depends only on the arguments and the place, not on earlier calls.

    Within ``with pipeline:`` many calls share the cost of saving the global generators; otherwise each call saves them.
    In threads other than the main one these generators cannot be seeded, see `check_thread`.

    Args:
        encoder: the task encoder.
        packing: whether ``select_samples_to_pack`` and ``pack_selected_samples`` are used.
        batch_size: samples of a batch; None if ``batch_group_criterion`` returns it, or if nothing is batched.

    Raises:
        ConfigError: the hooks of the encoder contradict each other, or lack those that packing needs.

    Example:
        >>> from headrace.encoders import CallKey, DefaultTaskEncoder, EncoderPipeline, stateless
        >>> class Doubled(DefaultTaskEncoder):
        ...     @stateless
        ...     def encode_sample(self, sample):
        ...         return {"tokens": sample["tokens"] * 2}
        >>> pipeline = EncoderPipeline(Doubled())
        >>> [output] = pipeline.encode(lambda: {"tokens": np.arange(3)}, CallKey(key=0, position=7))
        >>> output.sample["tokens"].tolist()
        [0, 2, 4]
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
                f"{self._kind}: packing needs select_samples_to_pack and pack_selected_samples, which it does not"
                " override; override them, or leave packing out"
            )
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}; it must be at least 1, or None")
        before = self.hooks["preencode_sample"]
        self._encode = before if before.is_overridden else self.hooks["encode_sample"]
        self._after = self.hooks["postencode_sample"]
        length = self.hooks["sample_length"]
        self._length = length if length.may_draw else msgspec.structs.replace(length, seeds=())
        self._generators = SavedGenerators()

    @property
    def groups(self) -> bool:
        """Whether ``batch_group_criterion`` groups samples into batches by a key."""
        return self.hooks["batch_group_criterion"].is_overridden

    @property
    def not_fixed(self) -> list[str]:
        """Reasons why a sample may have no output, or several; empty if it always has exactly one."""
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
        """The overridden hooks that are called; cookers are not among them.

        ``sample_length`` is among them only with packing, since otherwise no result depends on it.
        """
        found = (hook for hook in self.hooks.values() if hook.is_overridden)
        return tuple(hook for hook in found if self.packing or hook.name != "sample_length")

    @property
    def recipe(self) -> dict[str, Any]:
        """What decides the results, safe for JSON. Hooks are identified by their names and the encoder's version."""
        return {
            **encoder_recipe(self.encoder),
            "hooks": sorted(hook.name for hook in self.used),
            "packing": self.packing,
            "batch_size": self.batch_size,
            "stages": 1,
        }

    def check_thread(self, *others: Hook) -> None:
        """Raise ConfigError in a thread other than the main one if a hook may draw from the global generators.

        The threads of a process share these, so what a hook draws would depend on the other threads.
        """
        if in_main_thread():
            return
        for hook in (*self.used, *others):
            if hook.may_draw:
                says = "is marked as drawing random numbers" if hook.stateless else "is not marked @stateless"
                raise ConfigError(
                    f"{self._kind}.{hook.name} {says}, and would run in a thread: global generators belong to the"
                    " process, so the numbers would depend on what other threads draw. Read in worker processes with"
                    " Reading(num_workers=2), or without threads with Reading(num_threads=0); or mark the hook"
                    " @stateless, and draw from a generator of its own, numpy.random.default_rng(self.current_seed)"
                )

    def __enter__(self) -> EncoderPipeline:
        self._generators.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._generators.__exit__(*raised)

    def encode(self, make: Callable[[], Any], place: CallKey, cook: Hook | None = None) -> list[Output]:
        """Make and encode one sample. Returns no output, one, or several.

        As in Energon, `SkipSample` after some outputs of a generator ends the generator, and in ``postencode_sample``
        leaves out one of several outputs.

        Args:
            make: makes the sample: decodes and cooks it.
            place: the place of the sample; output k has the same place with ``output=k``.
            cook: the cooker that ``make`` calls, so that generators are seeded for it; None if there is none.

        Raises:
            HookFailure: ``make`` or a hook failed.
        """
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
            # The numbers of outputs must have no gaps, since restore keys are looked up by them.
            after.append(Output(one.place._replace(output=len(after)), sample))
        return after

    def _postencoded(self, one: Output) -> Any:
        return self._call(self._after, "postencode_sample", one.place, self._after.call, one.sample)

    def select(self, samples: Sequence[Any], place: CallKey) -> Selection:
        """Select the samples that go into packs together.

        Args:
            samples: encoded samples.
            place: the place of the first sample.

        Raises:
            HookFailure: the hook failed, or did not return lists of the samples that it got, each at most once.
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
                f"{self._kind}.select_samples_to_pack returned a sample twice, or one that it was not given"
                f" ({sample!r:.80}); it must return lists of the same objects that it gets"
            ) from None

    def pack(
        self, samples: Sequence[Output], on_failure: Callable[[int, HookFailure], None] | None = None
    ) -> list[Output]:
        """Make packs, usually one, from selected samples. Each sample goes through ``postencode_sample`` first.

        Args:
            samples: encoded samples, at least one.
            on_failure: called with the number of a sample that fails in ``postencode_sample``, and the failure. If it
                returns, the pack leaves the sample out, provided that others are left. With None, it is raised.

        Raises:
            HookFailure: a hook failed.
        """
        hook = self.hooks["pack_selected_samples"]
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
        """Return the key of the group that a sample is batched in, and how many samples make a batch.

        Raises:
            HookFailure: the hook failed, or returned no pair, or a key that cannot be hashed; or both the hook and
                ``batch_size`` give the size, or neither does.
        """
        key, size = self.criterion(one)
        try:
            return key, self._checked_size(key, size)
        except ConfigError as error:
            raise HookFailure(self.hooks["batch_group_criterion"], error) from error

    def criterion(self, one: Output) -> tuple[Hashable, int | None]:
        """Return what ``batch_group_criterion`` returned: the key, and the size or None.

        Raises:
            HookFailure: the hook failed, or returned no pair, a key that cannot be hashed, or a size below 1.
        """
        hook = self.hooks["batch_group_criterion"]
        found = self._call(hook, "batch_group_criterion", one.place, hook.call, one.sample)
        try:
            return self._checked_group(found)
        except ConfigError as error:
            raise HookFailure(hook, error) from error

    def length(self, one: Output) -> int:
        """Return the length of a sample, from ``sample_length``, which is seeded only if it may draw random numbers.

        Raises:
            HookFailure: the hook failed, or returned something other than an integer of at least 0.
        """
        hook = self._length
        found = self._call(hook, "sample_length", one.place, hook.call, one.sample)
        try:
            length = index(found)
        except TypeError:
            length = -1
        if length < 0:
            error = ConfigError(
                f"{self._kind}.sample_length returned {found!r:.80}; it must return an integer of at least 0"
            )
            raise HookFailure(hook, error)
        return length

    def facts(
        self, fact: Callable[[Output], T], samples: Sequence[Output], on_failure: Callable[[int, HookFailure], None]
    ) -> list[T | None]:
        """Return a ``fact`` of each sample, `length` or `group`.

        ``on_failure`` is called with the number of a sample whose hook failed, and the failure. If it returns, the fact
        is None.
        """
        found: list[T | None] = []
        for number, one in enumerate(samples):
            try:
                found.append(fact(one))
            except HookFailure as failure:
                on_failure(number, failure)
                found.append(None)
        return found

    def _checked_group(self, found: Any) -> tuple[Hashable, int | None]:
        where = f"{self._kind}.batch_group_criterion"
        if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[0], Hashable):
            raise ConfigError(
                f"{where} returned {found!r:.80}; it must return (key, batch size or None), with a hashable key"
            )
        key, given = found
        try:
            size = None if given is None else index(given)
        except TypeError:
            size = 0
        if size is not None and size < 1:
            raise ConfigError(
                f"{where} returned the batch size {given!r} for {key!r:.80}; it must be an integer of at least 1"
            )
        return key, size

    def _checked_size(self, key: Hashable, size: int | None) -> int:
        if size is not None and self.batch_size is None:
            return size
        if size is None and self.batch_size is not None:
            return self.batch_size
        raise ConfigError(
            f"{self._kind}.batch_group_criterion returned the batch size {size} for {key!r:.80}, and batch_size is"
            f" {self.batch_size}; exactly one of the two must say how many samples make a batch"
        )

    def batch(self, samples: Sequence[Any], place: CallKey) -> list[Any]:
        """Make batches, usually one, from samples.

        Args:
            samples: encoded samples, at least one.
            place: the place of the first sample.

        Raises:
            HookFailure: a hook failed.
        """
        hook = self.hooks["batch"]
        made = self._call(hook, "batch", place, hook.call, list(samples), is_batch=True)
        hook = self.hooks["encode_batch"]
        if not hook.is_overridden:
            return [made]
        return self._outputs(hook, "encode_batch", place, made, is_batch=True)

    def _outputs(self, hook: Hook, stage: str, place: CallKey, given: Any, *, is_batch: bool = False) -> list[Any]:
        """Return the outputs of a hook; each output of a generator has seeds of its own."""
        found = self._call(hook, stage, place, hook.call, given, is_batch=is_batch)
        if found is None:
            words = "returned None; return what it makes, or raise SkipSample to leave it out"
            raise HookFailure(hook, ConfigError(f"{self._kind}.{hook.name} {words}"))
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
            # An object that is yielded twice is two samples, each with a key of its own.
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
        try:
            return self._generators.run(Call(place, STAGES[stage], is_batch, number), hook.seeds, function, *given)
        except Exception as error:
            raise HookFailure(hook, raised(error)) from error

    @property
    def _kind(self) -> str:
        return type(self.encoder).__name__

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(EncoderPipeline, packing=self.packing, batch_size=self.batch_size), (self.encoder,)


_END = object()


READING: Final = Hook(
    name="read",
    call=call,  # by name, since it is sent to workers that start anew
    is_overridden=False,
    is_generator=False,
    stateless=False,
    seeds=(),
    may_draw=False,
    failure_tolerance=None,
)
"""Stands for the reading of samples without code of the user. Of its errors, only `SampleError` is the sample's."""
