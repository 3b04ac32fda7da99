"""The file that says what the folder of a cache is: its version, and the bytes of a block."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from headrace.errors import ConfigError
from headrace.io import atomic_write, json_bytes, output_errors, read_small

FOLDER_NAME: Final = "headrace-cache.json"

_VERSION: Final = 3


class _Folder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``headrace-cache.json``."""

    kind: Literal["headrace.cache"] = "headrace.cache"
    version: int = _VERSION
    block_bytes: int


def read_folder(folder: Path) -> int | None:
    """Return the bytes of the blocks in the folder of a cache; None if there is nothing yet.

    Raises:
        ConfigError: the folder is none of a cache, or of another version.
    """
    try:
        data = read_small(folder / FOLDER_NAME)
    except FileNotFoundError:
        try:
            found = next(folder.iterdir(), None)
        except FileNotFoundError:
            return None
        if found is not None and not found.name.startswith(f".{FOLDER_NAME}."):
            if (folder / FOLDER_NAME).exists():
                # Another process has made it meanwhile.
                return read_folder(folder)
            raise ConfigError(
                f"{folder}: holds {found.name} and no {FOLDER_NAME}, so it is no cache: name a folder of its own, since"
                " a cache removes what is in it"
            ) from None
        return None
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror or error}") from error
    try:
        return msgspec.json.decode(data, type=_Folder).block_bytes
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{folder / FOLDER_NAME}: {error}: it is damaged, or of another version of Headrace: remove the folder"
        ) from error


def make_folder(folder: Path, block_bytes: int) -> None:
    """Make the folder of a cache, unless it is there.

    Raises:
        ConfigError: it holds other files, or blocks of another size.
        OutputError: it cannot be written.
    """
    with output_errors(folder, "create"):
        folder.mkdir(parents=True, exist_ok=True)
    found = read_folder(folder)
    if found is None:
        atomic_write(folder / FOLDER_NAME, json_bytes(_Folder(block_bytes=block_bytes)))
        found = read_folder(folder)
    if found != block_bytes:
        raise ConfigError(
            f"{folder}: holds blocks of {found:,} bytes, and {block_bytes:,} are asked for: use block={found}, or clear"
            " the cache by removing the folder"
        )
    with output_errors(folder, "write into"):
        (folder / "blocks").mkdir(exist_ok=True)
