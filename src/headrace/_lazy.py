"""Lazy public names of a package: each module is imported when one of its names is first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from pkgutil import resolve_name
from typing import Any

PROVIDED: dict[str, str] = {}
"""What the package gives to its rooms from rooms above them: name -> ``module:object``, set by ``headrace`` itself."""


def provided(name: str) -> Any:
    """Return what the package provides under a name. Its module is imported when it is first used."""
    return resolve_name(PROVIDED[name])


def homes(names: Mapping[str, str]) -> dict[str, str]:
    """Return the module of each name, given the names of each module with spaces between them."""
    return {name: module for module, of_module in names.items() for name in of_module.split()}


def lazily(
    package: str, homes: Mapping[str, str], rooms: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package whose public names live in the modules ``homes[name]``.

    If the object has another name in its module, its home is written ``"module:other"``. ``rooms`` are packages within
    the package, which are also imported when they are first named.

    The package repeats the imports under ``TYPE_CHECKING`` and assigns these two functions only outside of it: to a
    type checker, a ``__getattr__`` would mean that any name exists. No module in the package may have the name of one
    of the public names, since the import system would put the module in its place.
    """

    def get(name: str) -> Any:
        if name in rooms:
            return import_module(f"{package}.{name}")
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, other = home.partition(":")
        value = getattr(import_module(module), other or name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return get, names
