"""Look up what a ``dataset.yaml`` names: a sample type, and functions of the dataset's own files.

Such functions are ``sample_loader.py:sample_loader`` and ``sample_loader.py:part_filter``.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from headrace.config import nearest
from headrace.errors import ConfigError
from headrace.samples.media import types
from headrace.samples.media.sample import CrudeSample, Sample

SAMPLE_TYPES: dict[str, type[Sample]] = {
    cls.__name__: cls
    for cls in (
        types.CaptioningSample,
        types.ImageClassificationSample,
        types.ImageSample,
        types.InterleavedSample,
        types.MultiChoiceVQASample,
        types.OCRSample,
        types.SimilarityInterleavedSample,
        types.TextSample,
        types.VQAOCRSample,
        types.VQASample,
        types.VidQASample,
    )
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
    fields = {field.name: field for field in dataclasses.fields(SAMPLE_TYPES[name]) if not field.name.startswith("__")}
    for field in field_map:
        if field not in fields:
            raise ConfigError(f"{name} has no field {field!r}; it has {', '.join(fields)}")
    for known in fields.values():
        is_needed = known.default is dataclasses.MISSING and known.default_factory is dataclasses.MISSING
        if is_needed and known.name not in field_map:
            raise ConfigError(f"the field map has no {known.name!r}, which {name} needs")


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
