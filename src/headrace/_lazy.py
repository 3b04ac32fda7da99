"""The public names of a package, which stand in its stub; each module is imported when one of them is first used."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pkgutil import get_data, resolve_name
from typing import Any, Final

PROVIDED: dict[str, str] = {}
"""What the package gives to its rooms from rooms above them: name -> ``module:object``, set by ``headrace`` itself."""


def provided(name: str) -> Any:
    """Return what the package provides under a name. Its module is imported when it is first used."""
    return resolve_name(PROVIDED[name])


def face(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names stand in its ``__init__.pyi`` alone.

    That file, which type checkers read as well, has only imports ``from MODULE import NAME as NAME``, and lines
    ``OTHER = NAME`` for a name that is imported without ``as``. A module is imported when one of its names is first
    used. Rooms of the package (``from PACKAGE import ROOM as ROOM``) are found in the same way, and are not in
    ``__all__``. No module in the package may have the name of a public name, since the import system would put the
    module in its place.
    """
    stub = (get_data(package, "__init__.pyi") or b"").decode()
    homes: dict[str, tuple[str, str]] = {}
    found: dict[str, tuple[str, str]] = {}
    for module, several, one in _IMPORT.findall(stub):
        for own, name in _NAME.findall(several or one):
            found[own] = module, own
            if name:
                homes[name] = module, own
    homes |= {name: found[own] for name, own in _OTHER_NAME.findall(stub)}
    public = sorted(name for name, (module, _) in homes.items() if module != package)

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, own = homes[name]
        if module == package:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(module), own)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: list(public), public


_IMPORT: Final = re.compile(r"^from (\S+) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)
_NAME: Final = re.compile(r"(\w+)(?: as (\w+))?")
_OTHER_NAME: Final = re.compile(r"^(\w+) = (\w+)$", re.MULTILINE)
