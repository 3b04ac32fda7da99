"""Functions that the user names as ``module:function``: finding them, and telling when their source has changed."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.io import hash_bytes


def load_function(name: str) -> Callable[..., Any]:
    """Import ``package.module:function``; like ``python -m``, with the current folder in front of all others.

    The folder stays in ``sys.path``, so that worker processes which take over ``sys.path`` find the same function.

    Raises:
        ConfigError: not of this form, no such module or name, the import fails, or it is no function.
    """
    module_name, colon, path = name.partition(":")
    if not colon or not _is_dotted(module_name) or not _is_dotted(path):
        raise ConfigError(f"{name!r} names no function: write module:function, such as my_filters:is_english")
    found: Any = _load_module(module_name, name)
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            known = [key for key, value in vars(found).items() if callable(value)] if hasattr(found, "__dict__") else []
            where = getattr(sys.modules[module_name], "__file__", None) or module_name
            raise ConfigError(f"{name!r}: {where} has no {attribute!r}{_nearest(attribute, known)}")
        found = getattr(found, attribute)
    if not callable(found):
        raise ConfigError(f"{name!r} is no function but of type {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def function_fingerprint(name: str) -> str:
    """Hex digest of the source of a function's module, as named and as defined, to tell when it has changed.

    What these modules import is not part of it.

    Raises:
        ConfigError: as `load_function`.
    """
    function = load_function(name)
    modules = {name.partition(":")[0], getattr(inspect.unwrap(function), "__module__", None) or ""}
    return hash_bytes(b"".join(sorted(_content(module).encode() for module in modules if module in sys.modules)))


def _load_module(module_name: str, name: str) -> Any:
    folder = str(Path.cwd())
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(missing + "."):
            hint = _nearest(missing, _modules_here())
            raise ConfigError(
                f"{name!r}: there is no module {missing!r}, neither in the current folder nor installed{hint}"
            ) from None
        raise ConfigError(f"{name!r}: the module cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:  # whatever the user's module does
        raise ConfigError(f"{name!r}: the module cannot be imported: {type(error).__name__}: {error}") from error


def _modules_here() -> list[str]:
    with os.scandir() as entries:
        return [entry.name.removesuffix(".py") for entry in entries if entry.name.endswith(".py") or entry.is_dir()]


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _content(module_name: str) -> str:
    """The hash of a module's file; of its name where it has none, as built-in ones."""
    file = getattr(sys.modules[module_name], "__file__", None)
    try:
        return hash_bytes(Path(file).read_bytes()) if file else f"{module_name} of Python {sys.version}"
    except OSError:  # inside a zip
        return str(file)
