"""The hooks of a task encoder: which ones it overrides, and what each promises."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from headrace.encoders.task_encoder import (
    AugmentTaskEncoder,
    DefaultTaskEncoder,
    TaskEncoder,
    generators_of,
    get_failure_tolerance,
    get_stateless,
    may_draw,
)
from headrace.errors import ConfigError
from headrace.plan.recorded_names import recorded_name
from headrace.samples.media import Cooker

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
