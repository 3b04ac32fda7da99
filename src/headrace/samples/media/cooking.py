"""Cookers: the user's functions that make a sample of a crude one, chosen by the subflavors of its dataset.

@cooker(need_cache=True)
def caption(crude: dict, *, cache) -> CaptioningSample:
    return CaptioningSample(**basic_sample_keys(crude), image=crude["jpg"], caption=crude["json"]["text"])

Cooker(caption, has_subflavors={"kind": "captions"})
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

import msgspec

from headrace.errors import ConfigError
from headrace.samples.media.sample import BASE_FIELDS, SourceInfo

F = TypeVar("F", bound=Callable[..., Any])


@overload
def cooker(fn: F) -> F: ...


@overload
def cooker(*, need_primary: bool = False, need_cache: bool = False) -> Callable[[F], F]: ...


def cooker(fn: Any = None, *, need_primary: bool = False, need_cache: bool = False) -> Any:
    """Mark a function as a cooker, and say what else it wants to be called with.

    Args:
        fn: the function, where the decorator is written without parentheses.
        need_primary: call it with ``primary=``, the store of the dataset itself, for other samples of it.
        need_cache: call it with ``cache=``, where large things wait until they are used.
    """
    if fn is None:
        return functools.partial(cooker, need_primary=need_primary, need_cache=need_cache)

    @functools.wraps(fn)
    def marked(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    marked.__cooker_need_primary__ = need_primary  # type: ignore[attr-defined]
    marked.__cooker_need_cache__ = need_cache  # type: ignore[attr-defined]
    return marked


class Cooker(msgspec.Struct, frozen=True):
    """A function that cooks crude samples, and which datasets it is for.

    Attributes:
        cook: ``fn(crude, [primary=], [cache=], **aux)`` -> a sample; what it wants is said by ``@cooker``.
        has_subflavors: the datasets that it cooks have these subflavors, and may have more; None or {}: any dataset.
    """

    cook: Callable[..., Any]
    has_subflavors: dict[str, Any] | None = None

    @property
    def need_primary(self) -> bool:
        """Whether it wants the store of the dataset."""
        return bool(getattr(self.cook, "__cooker_need_primary__", False))

    @property
    def need_cache(self) -> bool:
        """Whether it wants a cache."""
        return bool(getattr(self.cook, "__cooker_need_cache__", False))

    def is_match(self, subflavors: Mapping[str, Any] | None) -> bool:
        """Whether it cooks a dataset of these subflavors; None is a dataset that says nothing of itself."""
        there = subflavors or {}
        return all(key in there and there[key] == value for key, value in (self.has_subflavors or {}).items())

    def __call__(
        self, crude: Mapping[str, Any], *, primary: Any = None, cache: Any = None, aux: Mapping[str, Any] | None = None
    ) -> Any:
        """Cook one sample.

        Args:
            crude: the crude sample.
            primary: the store of the dataset; handed on only if wanted.
            cache: the cache; handed on only if wanted.
            aux: auxiliary stores, handed on each under its name.

        Raises:
            ConfigError: it wants a store or a cache that is not there, or an auxiliary store has the name of one.
        """
        given = dict(aux or {})
        for name, wanted, there in (("primary", self.need_primary, primary), ("cache", self.need_cache, cache)):
            if name in given:
                raise ConfigError(f"an auxiliary store is named {name!r}, which cookers use otherwise; rename it")
            if wanted and there is None:
                raise ConfigError(f"the cooker {_name(self.cook)} wants {name}=, and there is none; pass one")
            if wanted:
                given[name] = there
        return self.cook(crude, **given)


def choose_cooker(cookers: Sequence[Cooker], subflavors: Mapping[str, Any] | None, dataset: str) -> Cooker:
    """The first cooker that matches the subflavors of a dataset; chosen once a dataset.

    Raises:
        ConfigError: there is none; names the dataset, its subflavors and what each cooker asks for.
    """
    for candidate in cookers:
        if candidate.is_match(subflavors):
            return candidate
    has = f"its subflavors are {dict(subflavors)!r}" if subflavors else "it has no subflavors"
    if not cookers:
        raise ConfigError(
            f"{dataset}: its samples are crude, and there are no cookers; give at least one Cooker(fn), or set "
            "sample_type and field_map in dataset.yaml"
        )
    asked = "; ".join(f"{_name(one.cook)} asks for {one.has_subflavors!r}" for one in cookers)
    raise ConfigError(f"{dataset}: no cooker matches: {has}; {asked}")


def basic_sample_keys(
    crude_sample: Mapping[str, Any], additional_source_info: tuple[SourceInfo, ...] = ()
) -> dict[str, Any]:
    """Key, restore key, subflavors and sources of a crude sample, to hand on to the sample cooked from it.

    Args:
        crude_sample: the crude sample.
        additional_source_info: what else the sample was made of; put behind its sources.
    """
    fields = {name: crude_sample[name] for name in BASE_FIELDS if name in crude_sample}
    if additional_source_info:
        fields["__sources__"] = (*(fields.get("__sources__") or ()), *additional_source_info)
    return fields


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", None) or repr(fn)
