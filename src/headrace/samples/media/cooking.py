"""Cookers: the user's functions that turn crude samples into samples, chosen by the subflavors of the dataset.

@cooker(need_cache=True)
def caption(crude: dict, *, cache) -> CaptioningSample:
    return CaptioningSample(**basic_sample_keys(crude), image=crude["jpg"], caption=crude["json"]["text"])

Cooker(caption, has_subflavors={"kind": "captions"})
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import GenericAlias
from typing import Any, ClassVar, TypeVar, overload

import msgspec

from headrace.errors import ConfigError
from headrace.samples.media.sample import BASE_FIELDS, SourceInfo

F = TypeVar("F", bound=Callable[..., Any])


@overload
def cooker(fn: F) -> F: ...


@overload
def cooker(*, need_primary: bool = False, need_cache: bool = False) -> Callable[[F], F]: ...


def cooker(fn: Any = None, *, need_primary: bool = False, need_cache: bool = False) -> Any:
    """Mark a function as a cooker, and say which further arguments it needs.

    Args:
        fn: The function, if the decorator is written without parentheses.
        need_primary: Pass ``primary=``, the store of the dataset itself, from which it can read other samples.
        need_cache: Pass ``cache=``, where large values wait until they are used.
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
    """A function that cooks crude samples, and the datasets for which it is used.

    Attributes:
        cook: ``fn(crude, [primary=], [cache=], **aux)``, which returns a sample; ``@cooker`` says what it needs.
        has_subflavors: It cooks datasets that have these subflavors, and possibly more; None or {} means any dataset.

    Example:
        >>> from headrace.samples.media import Cooker, TextSample, basic_sample_keys
        >>> def cook_text(crude):
        ...     return TextSample(**basic_sample_keys(crude), text=crude["txt"])
        >>> cooker = Cooker(cook_text, has_subflavors={"kind": "text"})
        >>> cooker.is_match({"kind": "text", "language": "en"})
        True
        >>> cooker({"__key__": "a", "__restore_key__": (), "txt": "Hello."}).text
        'Hello.'
    """

    cook: Callable[..., Any]
    has_subflavors: dict[str, Any] | None = None

    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)

    @property
    def need_primary(self) -> bool:
        """Whether the function needs the store of the dataset."""
        return bool(getattr(self.cook, "__cooker_need_primary__", False))

    @property
    def need_cache(self) -> bool:
        """Whether the function needs a cache."""
        return bool(getattr(self.cook, "__cooker_need_cache__", False))

    def is_match(self, subflavors: Mapping[str, Any] | None) -> bool:
        """Return whether this cooks a dataset with these subflavors; None means that the dataset has none."""
        found = subflavors or {}
        return all(key in found and found[key] == value for key, value in (self.has_subflavors or {}).items())

    def __call__(
        self, crude: Mapping[str, Any], *, primary: Any = None, cache: Any = None, aux: Mapping[str, Any] | None = None
    ) -> Any:
        """Cook one sample.

        Args:
            crude: The crude sample.
            primary: The store of the dataset; passed on only if needed.
            cache: The cache; passed on only if needed.
            aux: Auxiliary stores, each passed on under its name.

        Raises:
            ConfigError: If the function needs a store or a cache that was not passed, or an auxiliary store has a
                reserved name.
        """
        if not self.need_primary:
            return self.bound(cache=cache, aux=aux)(crude)
        if primary is None:
            raise self._lacks("primary")
        return self.bound(cache=cache, aux=aux)(crude, primary=primary)

    def bound(self, *, cache: Any = None, aux: Mapping[str, Any] | None = None) -> Callable[..., Any]:
        """Return the function with the arguments that are the same for all samples of a dataset.

        It still takes the crude sample, and ``primary`` if that is needed. Arguments and errors are those of a call.
        """
        arguments = dict(aux or {})
        for name in ("primary", "cache"):
            if name in arguments:
                raise ConfigError(f"an auxiliary store is named {name!r}, which has another meaning here; rename it")
        if self.need_cache:
            if cache is None:
                raise self._lacks("cache")
            arguments["cache"] = cache
        return functools.partial(self.cook, **arguments)

    def _lacks(self, name: str) -> ConfigError:
        return ConfigError(f"the cooker {_name(self.cook)} needs {name}=, but there is none; pass one")


def choose_cooker(cookers: Sequence[Cooker], subflavors: Mapping[str, Any] | None, dataset: str) -> Cooker:
    """Return the first cooker that matches the subflavors of a dataset; it is chosen once for each dataset.

    Raises:
        ConfigError: If no cooker matches; names the dataset, its subflavors and what each cooker asks for.
    """
    for candidate in cookers:
        if candidate.is_match(subflavors):
            return candidate
    has = f"its subflavors are {dict(subflavors)!r}" if subflavors else "it has no subflavors"
    if not cookers:
        raise ConfigError(
            f"{dataset}: its samples are crude, but there are no cookers; pass at least one Cooker(fn), or set "
            "sample_type and field_map in dataset.yaml"
        )
    asked = "; ".join(f"{_name(one.cook)} asks for {one.has_subflavors!r}" for one in cookers)
    raise ConfigError(f"{dataset}: no cooker matches: {has}; {asked}")


def basic_sample_keys(
    crude_sample: Mapping[str, Any], additional_source_info: tuple[SourceInfo, ...] = ()
) -> dict[str, Any]:
    """Return key, restore key, subflavors and sources of a crude sample, for the sample that is cooked from it.

    Args:
        crude_sample: The crude sample.
        additional_source_info: Further sources of the sample, appended to its own.
    """
    fields = {name: crude_sample[name] for name in BASE_FIELDS if name in crude_sample}
    if additional_source_info:
        fields["__sources__"] = (*(fields.get("__sources__") or ()), *additional_source_info)
    return fields


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", None) or repr(fn)
