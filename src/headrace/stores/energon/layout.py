"""Names of the files of an Energon dataset, and which kind of dataset lies at a path."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

META_FOLDER: Final = ".nv-meta"
INFO_NAME: Final = ".info.json"
OLD_INFO_NAME: Final = ".info.yaml"
SPLIT_NAME: Final = "split.yaml"
JSON_SPLIT_NAME: Final = "split.json"
DATASET_NAME: Final = "dataset.yaml"
INDEX_NAME: Final = "index.sqlite"
UUID_NAME: Final = "index.uuid"

Kind = Literal["webdataset", "filesystem"]


def folder_kind(root: Path) -> Kind | None:
    """What lies in a folder by its ``.nv-meta``, as Energon tells it; None where it has none, or an empty one."""
    meta = root / META_FOLDER
    if (meta / INFO_NAME).is_file() or (meta / OLD_INFO_NAME).is_file():
        return "webdataset"
    return "filesystem" if (meta / INDEX_NAME).is_file() else None
