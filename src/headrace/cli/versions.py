"""What ``headrace --version --verbose`` prints for the report of a bug: versions, and which extras are installed."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from headrace._version import __version__

_REQUIREMENT = re.compile(r"""^([\w.-]+).*?(?:; *extra *== *["']([\w-]+)["'])?$""")
_HIDDEN = ("all", "bench", "dev", "docs", "interop", "release", "suites")
"""Extras that hold other extras, or serve the development of Headrace."""


def version_lines() -> Iterator[str]:
    """The version, then Python and the system, the packages that are always needed, and a line for each extra."""
    yield f"headrace {__version__}"
    yield f"  python     {platform.python_version()} ({sys.executable})"
    yield f"  system     {platform.platform()}"
    packages = _packages()
    for name in packages.pop("", []):
        yield f"  {name:<10} {_installed(name)}"
    for extra, names in packages.items():
        if extra not in _HIDDEN:
            yield f"  [{extra}]".ljust(13) + ", ".join(f"{name} {_installed(name)}" for name in names)


def _packages() -> dict[str, list[str]]:
    """The packages of each extra; those that are always needed are below an empty name."""
    found: dict[str, list[str]] = {}
    for line in requires("headrace") or ():
        match = _REQUIREMENT.match(line)
        if match is not None and match[1] != "headrace":
            found.setdefault(match[2] or "", []).append(match[1])
    return found


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
