"""Look up what a ``dataset.yaml`` names: a sample type, and functions of the dataset's own files.

Such functions are ``sample_loader.py:sample_loader`` and ``sample_loader.py:part_filter``.

Cookers: the user's functions that turn crude samples into samples, chosen by the subflavors of the dataset.

@cooker(need_cache=True)
def caption(crude: dict, *, cache) -> CaptioningSample:
    return CaptioningSample(**basic_sample_keys(crude), image=crude["jpg"], caption=crude["json"]["text"])

Cooker(caption, has_subflavors={"kind": "captions"})
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from types import GenericAlias
from typing import Any, ClassVar, TypeVar, overload

import msgspec

from headrace.config import nearest
from headrace.errors import ConfigError
from headrace.samples.media import types
from headrace.samples.media.mapper import check_fields_of
from headrace.samples.media.sample import BASE_FIELDS, CrudeSample, Sample, SourceInfo

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


SAMPLE_TYPES: dict[str, type[Sample]] = {
    name: kind
    for name, kind in sorted(vars(types).items())
    if isinstance(kind, type) and issubclass(kind, Sample) and kind is not Sample
}
"""Sample types by name, sorted."""

_FACTORY_NAMES = {
    **{name.removesuffix("Sample") + "Webdataset": cls for name, cls in SAMPLE_TYPES.items()},
    "CrudeWebdataset": CrudeSample,
}
_OWN_MODULES = ("megatron.energon", "headrace")


def resolve_sample_type(module: str, name: str, *, trust_code: bool = False) -> type[Sample] | type[CrudeSample]:
    """Return the sample type that ``__module__`` and ``__class__`` of a ``dataset.yaml`` name.

    Names of Energon (in ``megatron.energon`` and below) and of Headrace are looked up in a table by their last part,
    and nothing is imported for them. The names of Energon's older dataset classes (``CaptioningWebdataset``,
    ``CrudeWebdataset``) stand for the sample type that they yield.

    Args:
        module: ``__module__``.
        name: ``__class__``.
        trust_code: Import any other module. This runs the module's code, so set it only for datasets whose makers you
            trust.

    Returns:
        A subclass of ``Sample`` (with ``trust_code``, possibly another dataclass with the same fields) or
        ``CrudeSample``.

    Raises:
        ConfigError: If the name is unknown, or the module is another one and is not trusted or has no such sample type.
    """
    if any(module == own or module.startswith(own + ".") for own in _OWN_MODULES):
        known: dict[str, Any] = {**SAMPLE_TYPES, "CrudeSample": CrudeSample, **_FACTORY_NAMES}
        if name in known:
            return known[name]  # type: ignore[no-any-return]
        names = ", ".join([*SAMPLE_TYPES, "CrudeSample"])
        raise ConfigError(f"{module} has no sample type {name!r}; known are {names}{nearest(name, known)}")
    if not trust_code:
        raise ConfigError(
            f"the sample type {module}.{name} is in a module that is not imported, because importing runs its code; "
            "set trust_code=True if you trust whoever wrote the dataset, or pass the sample type yourself"
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the sample type {module}.{name} cannot be imported: {error}") from error
    if isinstance(found, type) and (issubclass(found, CrudeSample) or dataclasses.is_dataclass(found)):
        return found  # type: ignore[return-value]
    raise ConfigError(f"{module}.{name} is {found!r:.80}, not a sample type (a dataclass that derives from Sample)")


def check_field_map(name: str, field_map: Mapping[str, str]) -> None:
    """Check that a field map has the required fields of a sample type, and no unknown ones.

    Raises:
        ConfigError: If there is no sample type of this name, or a field is unknown or missing.
    """
    if name not in SAMPLE_TYPES:
        known_types = ", ".join(SAMPLE_TYPES)
        raise ConfigError(f"no sample type {name!r}; known types are {known_types}{nearest(name, SAMPLE_TYPES)}")
    check_fields_of(SAMPLE_TYPES[name], field_map)


def load_function(reference: str, default: str, read: Callable[[str], str], *, trust_code: bool) -> Callable[..., Any]:
    """Return the function that ``FILE.py:NAME`` names. This runs the code of whoever wrote the dataset.

    Args:
        reference: ``FILE.py:NAME``, or ``FILE.py`` alone.
        default: The name of the function if the reference has none.
        read: Returns the text of a file by its name relative to the dataset's ``.nv-meta``; called only if trusted.
        trust_code: Whether the user allows the code to run.

    Raises:
        ConfigError: If the code is not trusted, does not compile or fails, or has no such function.
    """
    file, _, name = reference.partition(":")
    name = name or default
    if not trust_code:
        raise ConfigError(
            f"the dataset asks for the function {name} of its own file {file}, which is not run unless you set "
            "trust_code=True; read it first, or pass sample type and field map yourself"
        )
    module: dict[str, Any] = {"__name__": f"headrace_loader_{file.removesuffix('.py')}", "__file__": file}
    try:
        exec(compile(read(file), file, "exec"), module)
    except (SyntaxError, ImportError, NameError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} of the dataset fails: {type(error).__name__}: {error}") from error
    function = module.get(name)
    if not callable(function):
        names = sorted(key for key, value in module.items() if callable(value) and not key.startswith("_"))
        raise ConfigError(f"{file} of the dataset has no function {name!r}; it has {', '.join(names) or 'none'}")
    return function  # type: ignore[no-any-return]
