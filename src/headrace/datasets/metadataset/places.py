"""Where the paths of a metadataset lead: relative to its file, absolute, or with a protocol."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from headrace.datasets.media.file_stores import FILESYSTEM
from headrace.errors import ConfigError

_PROTOCOL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


def place(text: str, base: Path, where: str) -> str:
    """The path of a dataset, relative ones from the folder ``base``.

    Raises:
        ConfigError: it is not on a disk of this machine.
    """
    found = _PROTOCOL.fullmatch(text)
    if found is None:
        return os.path.normpath(base / text)
    protocol, rest = found[1].lower(), found[2]
    if protocol == "file":
        return os.path.normpath(rest.removeprefix("localhost"))
    if protocol == "filesystem":
        raise ConfigError(f"{where}: {text} is a folder of files, which only aux can name; a dataset is a path")
    raise ConfigError(
        f"{where}: {text} cannot be read: only file:// is known here; copy or mount it, and give its path"
    )


def aux_place(text: str, base: Path, where: str) -> str:
    """The path of auxiliary files; ``filesystem://FOLDER`` stays what it is, with an absolute folder.

    Raises:
        ConfigError: as `place`.
    """
    if text.lower().startswith(FILESYSTEM):
        return FILESYSTEM + place(text[len(FILESYSTEM) :], base, where)
    return place(text, base, where)
