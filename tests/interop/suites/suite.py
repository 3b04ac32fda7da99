"""What a suite is, and the pytest plugin that every run of a suite loads beside the shim."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import threading
from collections.abc import Generator, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest

HERE = Path(__file__).parent
PASSING = HERE / "passing"

REPORT = "HEADRACE_SUITES_REPORT"
"""The environment variable that names the file of results."""

VARIANT = "HEADRACE_SUITES_VARIANT"
"""The environment variable that names the variant, for the shims."""

SECONDS_A_TEST = 600


class Suite(NamedTuple):
    """The tests of a peer.

    Attributes:
        name: the folder of the checkout below HEADRACE_SUITES, and the module of the shim in this package.
        tests: files and folders with tests, relative to the checkout.
        left_out: files that are not run, with the reason.
        variants: the variants whose passing tests are committed.
        options: further arguments of pytest.
        with_torchvision: files that import torchvision, which is on the path of this suite alone.
    """

    name: str
    tests: tuple[str, ...]
    left_out: Mapping[str, str] = MappingProxyType({})
    variants: tuple[str, ...] = ("names", "documented")
    options: tuple[str, ...] = ()
    with_torchvision: tuple[str, ...] = ()


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes empty modules in place of packages that a peer imports and that its tests of data do not use."""

    def __init__(self, *packages: str) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Find any module of these packages."""
        if name.split(".")[0] not in self._packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Make a module that has every name."""
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__version__ = [], spec, "0.0"
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
"""Those that torchvision registers when it is imported, compiled for CUDA or not."""


def load_torchvision() -> None:
    """Import torchvision; beside a torch for CPUs its operators cannot be loaded, and are declared without code.

    Its wheels on package indexes are built for CUDA. Its transforms need none of the operators.
    """
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return  # `run.py` leaves out the files that need it
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
        import torch

        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        _declared.append(torch.library.Library("torchvision", "FRAGMENT"))
        for operator in _OPERATORS:
            _declared[0].define(operator)
        importlib.import_module("torchvision")


_declared: list[Any] = []


def variant() -> str:
    """The variant that this process runs."""
    return os.environ[VARIANT]


def passing_file(suite: str, variant: str) -> Path:
    """The file with the identifiers of the tests that pass, one a line, sorted."""
    return PASSING / f"{suite}-{variant}.txt"


class Touching:
    """Whether code of Headrace ran since `begin`, in this process and in threads that began since.

    Python tells each call of a function. After the first one of Headrace it tells no more, so that tests are hardly
    slower.
    """

    found = False

    def begin(self) -> None:
        """Watch the calls of a test."""
        self.found = False
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def end(self) -> None:
        """Watch no more."""
        threading.setprofile(None)
        sys.setprofile(None)

    def _called(self, frame: Any, event: str, _: Any) -> None:
        # The methods that `dataclasses` makes have no file, and the names of their module.
        if event == "call" and str(frame.f_globals.get("__name__")).startswith("headrace."):
            self.found = True
            self.end()


_touching = Touching()


def _record(node: str, outcome: str, reason: str) -> None:
    found = {"test": node, "outcome": outcome, "reason": reason, "touches": _touching.found}
    with Path(os.environ[REPORT]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")


def _reason(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return (lines[0] if crash is not None else lines[-1])[:300] if lines else ""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record each test once: its failure wherever it is, otherwise the result of its call."""
    if report.outcome == "failed":
        _record(report.nodeid, "failed", _reason(report))
    elif report.outcome == "skipped":
        _record(report.nodeid, "skipped", _reason(report))
    elif report.when == "call":
        _record(report.nodeid, "passed", "")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record a module that cannot be imported."""
    if report.failed:
        _record(report.nodeid, "not collected", _reason(report))


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"the test took more than {SECONDS_A_TEST} seconds")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """End a test that hangs, and watch whether it calls Headrace."""
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS_A_TEST)
    _touching.begin()
    try:
        return (yield)
    finally:
        _touching.end()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
