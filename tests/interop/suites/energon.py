"""Energon's own tests, with ``headrace.compat.energon`` in place of ``megatron.energon``."""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import io
import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from suites.suite import Suite, load_torchvision, variant

SUITE = Suite(
    name="energon",
    tests=("tests",),
    with_torchvision=("tests/test_av_decoder.py", "tests/test_transforms.py"),
)

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


RENAMED = {"--num-workers": "--workers", "--force-overwrite": "--overwrite", "--split-parts": "--split-part"}
RENAMED |= {"--media-metadata-by-glob": "--media-metadata", "--parallel": "--workers", "--non-interactive": "--quiet"}
"""Options of Energon's that have another name, as docs/migrate/energon.md says."""


def ours(args: Any) -> list[str]:
    """The arguments of a command of Energon, for Headrace."""
    found: list[str] = []
    for arg in map(str, args):
        if arg in ("--media-metadata-by-header", "--media-metadata-by-extension"):
            found += ["--media-metadata", arg.rpartition("-")[2]]
        elif arg == "--fix-duplicates":
            found += ["--duplicates", "keep"]
        elif arg not in ("--no-progress", "--progress"):
            found.append(RENAMED.get(arg, arg))
    return found


class Command:
    """A command of Headrace in place of one of Energon, for click's test runner."""

    def __init__(self, name: str, *words: str) -> None:
        self.name = name
        self._words = words

    def main(self, args: Any = (), **_: Any) -> None:
        """Run the command, as click does: it ends with an exit code."""
        code = 0
        try:
            importlib.import_module("headrace.cli").main([*self._words, *ours(args)], prog_name="headrace")
        except SystemExit as ended:
            code = ended.code
        if variant() == "documented" and not code:
            self._say(list(args))
        sys.exit(code)

    def _say(self, args: list[str]) -> None:
        """Print the words that scripts look for in Energon's output, and would take from exit code and ``--json``."""
        print("Done")
        if self.name in ("info", "prepare") and args:
            found = self._as_json("info", args[0])
            print(f"Found {found['samples']} samples, {found['shards']} shards")
        if self.name == "preview":
            for sample in self._as_json("preview", *args)["samples"]:
                print(f"__key__ ({str}): {sample['key']!r}")

    def _as_json(self, *words: str) -> Any:
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
            importlib.import_module("headrace.cli").main([*ours(words), "--json"], prog_name="headrace")
        return json.loads(printed.getvalue())


COMMANDS = {
    "tools.prepare.command": Command("prepare", "prepare", "energon"),
    "cli.main.prepare_media_command": Command("prepare-media", "prepare", "energon", "--media-only"),
    "tools.info.command": Command("info", "info"),
    "tools.lint.command": Command("lint", "check", "--decode"),
    "tools.preview.command": Command("preview", "preview"),
}
"""The commands as docs/migrate/energon.md names them."""


IN_OUR_ORDER = ("test_redist",)
"""Tests of what Energon's own order does not offer: a state that serves other numbers of ranks."""


class Redist(Command):
    """What docs/migrate/energon.md says instead of ``checkpoint redist``: every rank gets the same state."""

    def main(self, args: Any = (), **_: Any) -> None:
        """Copy the state of a rank to the new ranks."""
        *options, target = args
        state = next(Path(option) for option in options if option.endswith(".pt"))
        for rank in range(int(options[options.index("--new-world-size") + 1])):
            shutil.copyfile(state, Path(target, f"state_rank{rank}.pt"))
        sys.exit(0)


class Jsonl:
    """``headrace prepare energon FILE.jsonl`` in place of the method of Energon's factory."""

    @staticmethod
    def prepare_dataset(path: Any) -> int:
        """Write the index of a file."""
        return int(importlib.import_module("headrace.preparing.energon").prepare_energon(Path(path)).samples)


def media_filter(strategy: str) -> Any:
    """What says which files are media."""
    return importlib.import_module("headrace.preparing.energon").MediaFilter(strategy=strategy)


def prepare_folder(path: Any, media: Any, **_: Any) -> Any:
    """``headrace prepare energon --media-only`` of a folder of plain files."""
    preparing = importlib.import_module("headrace.preparing.energon")
    return preparing.prepare_energon(
        Path(path), options=preparing.EnergonOptions(media=media, media_only=True, workers=1, overwrite=True)
    ).media


INSTEAD = {
    "CrudeJsonlDatasetFactory": Jsonl,
    "MediaFilterConfig": media_filter,
    "MediaFilterStrategy": SimpleNamespace(EXTENSION="EXTENSION"),
    "prepare_filesystem_dataset": prepare_folder,
}
"""What docs/migrate/energon.md names in place of names that are not here."""


def documented(name: str, ours: Any) -> Any:
    """Return a name of ours as docs/migrate/energon.md says to use it."""
    if name in ("get_train_dataset", "get_val_dataset"):
        return functools.partial(in_its_order, ours)
    return ours


def in_its_order(function: Any, *given: Any, **options: Any) -> Any:
    """Open data in Energon's own order, where that exists, and run the code that the data name."""
    from headrace.errors import ConfigError

    options.setdefault("trust_code", True)
    in_ours = any(test in os.environ.get("PYTEST_CURRENT_TEST", "") for test in IN_OUR_ORDER)
    if in_ours:
        return function(*given, **options)
    try:
        return function(*given, order="energon", **options)
    except ConfigError as error:
        if "order='energon'" not in str(error):
            raise
        return function(*given, **options)


class Renamed(ModuleType):
    """A module of Energon's whose names are those of Headrace's module."""

    def __setattr__(self, name: str, value: Any) -> None:
        # An import sets a submodule as an attribute, but ``edataclass`` is the function and not the module.
        if not (isinstance(value, Renamed) and hasattr(importlib.import_module(OURS), name)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        place = f"{self.__name__}.{name}".removeprefix(f"{PEER}.")
        if place == "tools.checkpoint.command_redist" and variant() == "documented":
            return Redist("redist")
        if name in INSTEAD and variant() == "documented":
            return INSTEAD[name]
        if place in COMMANDS:
            return COMMANDS[place]
        try:
            ours = getattr(importlib.import_module(OURS), name)
            return documented(name, ours) if variant() == "documented" else ours
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
    load_torchvision()
    if variant() != "itself":
        sys.meta_path.insert(0, Renaming())
