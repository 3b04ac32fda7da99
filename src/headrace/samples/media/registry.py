"""What a `dataset.yaml` names: the sample type, and functions of the user.

Functions that a ``dataset.yaml`` names: ``sample_loader.py:sample_loader`` and ``sample_loader.py:part_filter``.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Callable
from typing import Any

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
    """The sample type of ``__module__`` and ``__class__`` as a ``dataset.yaml`` writes them.

    Names of Energon's (``megatron.energon`` and below it, and Headrace's own) are looked up in a table by their last
    part; nothing is imported for them. The names of Energon's older dataset classes (``CaptioningWebdataset``,
    ``CrudeWebdataset``) mean the sample type that they yield.

    Args:
        module: ``__module__``.
        name: ``__class__``.
        trust_code: import any other module. It runs that module's code: only for datasets whose makers you trust.

    Returns:
        A subclass of ``Sample`` (with ``trust_code``, maybe another dataclass of the same fields) or ``CrudeSample``.

    Raises:
        ConfigError: the name is unknown; the module is another and is not trusted, or has no such sample type.
    """
    if any(module == own or module.startswith(own + ".") for own in _OWN_MODULES):
        known: dict[str, Any] = {**SAMPLE_TYPES, "CrudeSample": CrudeSample, **_FACTORY_NAMES}
        if name in known:
            return known[name]  # type: ignore[no-any-return]
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        names = ", ".join([*SAMPLE_TYPES, "CrudeSample"])
        raise ConfigError(f"{module} has no sample type {name!r}; known are {names}{hint}")
    if not trust_code:
        raise ConfigError(
            f"the sample type {module}.{name} lies in a module that is not imported, because importing runs its code; "
            "say trust_code=True if you trust whoever wrote the dataset, or give the sample type yourself"
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the sample type {module}.{name} cannot be imported: {error}") from error
    if isinstance(found, type) and (issubclass(found, CrudeSample) or dataclasses.is_dataclass(found)):
        return found  # type: ignore[return-value]
    raise ConfigError(f"{module}.{name} is {found!r:.80}, not a sample type (a dataclass that derives from Sample)")


def load_function(reference: str, default: str, read: Callable[[str], str], *, trust_code: bool) -> Callable[..., Any]:
    """The function that ``FILE.py:NAME`` names. Running the file is running the code of whoever wrote the dataset.

    Args:
        reference: ``FILE.py:NAME``, or ``FILE.py`` alone.
        default: the name where the reference has none.
        read: text of a file, given its name relative to the dataset's ``.nv-meta``; called only if trusted.
        trust_code: the user's word that the code may run.

    Raises:
        ConfigError: not trusted; the file does not compile or fails; it has no such function.
    """
    file, _, name = reference.partition(":")
    name = name or default
    if not trust_code:
        raise ConfigError(
            f"the dataset asks for the function {name} of its own file {file}, which is not run unless you say "
            "trust_code=True; read it first, or give sample type and field map yourself"
        )
    module: dict[str, Any] = {"__name__": f"headrace_loader_{file.removesuffix('.py')}", "__file__": file}
    try:
        exec(compile(read(file), file, "exec"), module)
    except (SyntaxError, ImportError, NameError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} of the dataset fails: {type(error).__name__}: {error}") from error
    function = module.get(name)
    if not callable(function):
        there = sorted(key for key, value in module.items() if callable(value) and not key.startswith("_"))
        raise ConfigError(f"{file} of the dataset has no function {name!r}; it has {', '.join(there) or 'none'}")
    return function  # type: ignore[no-any-return]
