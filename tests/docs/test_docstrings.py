"""The examples in docstrings run, and print what is written there."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import headrace


def is_importable(name: str) -> bool:
    """Faces for trainers import the package that they are called after, if it is installed."""
    return not name.startswith("headrace.integrations.") or find_spec(name.rpartition(".")[2]) is not None


NAMES = (module.name for module in pkgutil.walk_packages(headrace.__path__, "headrace."))
MODULES = sorted(filter(is_importable, NAMES))
FINDER = doctest.DocTestFinder(exclude_empty=True)


def examples(name: str) -> list[doctest.DocTest]:
    """The examples of a module, each with the names that it may use."""
    namespace = {"headrace": headrace, "np": np}
    found = FINDER.find(importlib.import_module(name), extraglobs=namespace)
    return [test for test in found if test.examples]


def has_examples(name: str) -> bool:
    if name.endswith("__main__"):
        return False
    try:
        return bool(examples(name))
    except headrace.errors.MissingExtraError:
        # The face of a trainer that only `make interop` has, which runs its tests.
        assert name.startswith("headrace.integrations.")
        return False


WITH_EXAMPLES = [name for name in MODULES if has_examples(name)]


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run(name: str, docstring_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    shutil.copytree(docstring_template, tmp_path / "folder")
    monkeypatch.chdir(tmp_path / "folder")
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for test in examples(name):
        runner.run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize("name", sorted(headrace.__all__))
def test_public_names_have_an_example(name: str) -> None:
    thing = getattr(headrace, name)
    if not callable(thing) or (inspect.isclass(thing) and issubclass(thing, Exception)):
        return
    assert ">>> " in (thing.__doc__ or ""), f"headrace.{name} has no example"
