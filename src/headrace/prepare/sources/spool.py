"""Standard input as a file, so that it can be read again after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from headrace.errors import ConfigError, InputError
from headrace.io import AtomicFile

PIECE_BYTES = 1 << 20


def spool_stdin(stream: BinaryIO, path: Path) -> int:
    """Copy a stream to a file, which appears whole or not at all; the number of its bytes.

    Memory: one MiB. Hand the path to `find_inputs` as ``stdin``.

    Raises:
        ConfigError: the stream is a terminal.
        InputError: it cannot be read, or holds nothing.
        OutputError: the system refuses to write the file.
    """
    if stream.isatty():
        raise ConfigError("input '-' is standard input, which is a terminal here: pipe data into it, or name files")
    with AtomicFile(path) as file:
        while True:
            try:
                piece = stream.read(PIECE_BYTES)
            except OSError as error:
                raise InputError(f"standard input cannot be read: {error.strerror or error}") from error
            if not piece:
                break
            file.write(piece)
        if not file.size:
            raise InputError("standard input is empty: what should have written to it?")
        return file.size
