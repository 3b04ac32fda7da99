"""Functions that a ``dataset.yaml`` names: ``sample_loader.py:sample_loader`` and ``sample_loader.py:part_filter``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import ConfigError


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
