"""The names of a package, imported when they are first used: who needs one of them does not pay for the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazily(
    package: str, homes: Mapping[str, str], rooms: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package whose public names live in the modules ``homes[name]``.

    ``rooms`` are packages within it, which are imported when they are first named, too.

    The package names the same imports under ``TYPE_CHECKING``, and takes these two only where no type checker looks:
    it would take a ``__getattr__`` for any name. No module in the package may be called like one of the names.
    """

    def get(name: str) -> Any:
        if name in rooms:
            return import_module(f"{package}.{name}")
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return get, names
