"""Energon's own tests, with ``headrace.compat.energon`` in place of ``megatron.energon``."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from suites.suite import Suite, variant

SUITE = Suite(name="energon", tests=("tests",))

PEER = "megatron.energon"
OURS = "headrace.compat.energon"


class Missing:
    """A name that Headrace lacks. Only the tests that use it fail, not all tests of the file that imports it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"{self._name} has no equivalent in {OURS}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{self._name} has no equivalent in {OURS}")

    def __getitem__(self, _: Any) -> Missing:
        return self

    def __mro_entries__(self, _: Any) -> tuple[type, ...]:
        return (Lacking,)


class Lacking:
    """The base of a test's class in place of one that Headrace lacks."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} derives from a class that has no equivalent in {OURS}")


class Renamed(ModuleType):
    """A module of Energon's whose names are those of Headrace's module."""

    def __setattr__(self, name: str, value: Any) -> None:
        # An import sets a submodule as an attribute, but ``edataclass`` is the function and not the module.
        if not (isinstance(value, Renamed) and hasattr(importlib.import_module(OURS), name)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(importlib.import_module(OURS), name)
        except AttributeError:
            return Missing(f"{self.__name__}.{name}")


class Renaming(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds each module that the checkout of Energon has as a `Renamed`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != PEER and not name.startswith(f"{PEER}."):
            return None
        path = Path("src", *name.split("."))  # pytest runs in the checkout
        if not path.is_dir() and not path.with_suffix(".py").exists():
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=path.is_dir())

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Renamed(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def pytest_configure() -> None:
    """Put Headrace in place of Energon."""
    if variant() != "itself":
        sys.meta_path.insert(0, Renaming())
