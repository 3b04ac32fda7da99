"""Replaces and removes files, which may be objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from headrace.io.atomic import atomic_write, output_errors
from headrace.io.places import AnyPath

if TYPE_CHECKING:
    from headrace.io.remote import RemotePath


def replace_file(path: AnyPath, data: bytes) -> None:
    """Write a whole file or object, which appears complete or not at all, in the place of what was there.

    Raises:
        OutputError: the system or the store refuses it.
        ConfigError: it is the URL of a web server.
    """
    if isinstance(path, Path):
        atomic_write(path, data)
    else:
        _change(path, lambda writer: writer.put({str(path): data}))


def move_file(made: Path, path: AnyPath) -> None:
    """Put a file of the same disk into the place of what was there; at a URL, upload it. One that is gone was moved.

    Raises:
        OutputError: the system or the store refuses it.
        ConfigError: it is the URL of a web server.
    """
    if not isinstance(path, Path):
        _change(path, lambda writer: writer.put_files({str(path): made}))
    elif made.exists():
        with output_errors(path, "replace"):
            made.rename(path)


def remove_file(path: AnyPath) -> None:
    """Remove a file or object, which need not be there; raises as `replace_file` does."""
    if isinstance(path, Path):
        with output_errors(path, "remove"):
            path.unlink(missing_ok=True)
    else:
        _change(path, lambda writer: writer.delete([str(path)]))


def _change(path: RemotePath, change: Callable[[Any], Any]) -> None:
    """Change an object, and forget what was looked up."""
    change(resolve_name("headrace.io.objects.writer:writer_of")(path))  # loaded when the first URL comes
    path.objects.forget()
