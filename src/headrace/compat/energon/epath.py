"""``EPath``: the paths of Energon. Files are local; a path of an object store can be named and joined, and not read."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from headrace.datasets.metadataset import Metadataset, load_dataset
from headrace.errors import ConfigError
from headrace.io import read_small
from headrace.stores.energon.config_file import read_config

DEFAULT_PROFILE_NAME: Final = "__filesystem__"
"""The profile of ``msc://`` that means local files."""

_URL: Final = re.compile(r"([a-z]+)://([^/]+?)(?:/(.*))?", re.DOTALL)


class EPath(os.PathLike[str]):
    """An absolute path, with the methods of Energon's class. Folders come into being when a file is written.

    ``dss://NAME@VERSION/...`` lies below the folder that the environment variable NVDATASET_CACHE_DIR names.

    Args:
        path: a path, ``file://...``, ``msc://PROFILE/...`` or ``dss://...``.

    Raises:
        ConfigError: another scheme. What reads or writes an object store raises it too.

    Example:
        >>> path = headrace.compat.energon.EPath("/data/sets") / "web" / "../code"
        >>> str(path), path.name
        ('/data/sets/code', 'code')
    """

    __slots__ = ("internal_path", "profile")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.profile = DEFAULT_PROFILE_NAME
        if isinstance(path, EPath):
            self.internal_path: PurePosixPath = path.internal_path
            self.profile = path.profile
            return
        text = os.fspath(path)
        found = _URL.fullmatch(text) if isinstance(path, str) else None
        if found is not None:
            self.profile, text = _place(text, found[1], found[2], found[3] or "")
        self.internal_path = PurePosixPath(_normal(text))

    def _at(self, path: str | PurePosixPath) -> EPath:
        """A path of the same profile."""
        found = EPath(self)
        found.internal_path = PurePosixPath(_normal(str(path)))
        return found

    def __fspath__(self) -> str:
        return str(self._path) if self.is_local() else self.url

    @property
    def _path(self) -> Path:
        """The local path. Raises ConfigError if there is none."""
        if self.profile == DEFAULT_PROFILE_NAME:
            return Path(self.internal_path)
        if self.profile == _DSS:
            folder = os.environ.get("NVDATASET_CACHE_DIR")
            if folder is None:
                raise ConfigError(f"{self.url}: set NVDATASET_CACHE_DIR to the folder that holds these datasets")
            name, _, version = self.internal_path.parts[1].rpartition("@")
            return Path(folder, name, version, *self.internal_path.parts[2:])
        raise ConfigError(f"{self.url}: is of an object store; copy or mount the data, and use its local path")

    @property
    def name(self) -> str:
        """The last component."""
        return self.internal_path.name

    @property
    def display_name(self) -> str:
        """The last component."""
        return self.name

    @property
    def parent(self) -> EPath:
        """The folder."""
        return self._at(self.internal_path.parent)

    @property
    def url(self) -> str:
        """The path as text: with its scheme, unless it is a local file."""
        if self.profile == DEFAULT_PROFILE_NAME:
            return str(self.internal_path)
        if self.profile == _DSS:
            return f"dss:/{self.internal_path}"
        return f"msc://{self.profile}{self.internal_path}"

    def is_local(self) -> bool:
        """Whether the file system is local."""
        return self.profile in (DEFAULT_PROFILE_NAME, _DSS)

    def local_path(self) -> Path:
        """The same as a ``pathlib.Path``."""
        return self._path

    def absolute(self) -> EPath:
        """The path, which is absolute."""
        return self

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self._path.is_dir()

    def is_file(self) -> bool:
        """Whether it is a file."""
        return self._path.is_file()

    def exists(self) -> bool:
        """Whether there is anything."""
        return self._path.exists()

    def mkdir(self, exist_ok: bool = True, parents: bool = False) -> None:
        """Make the folder."""
        self._path.mkdir(exist_ok=exist_ok, parents=parents)

    def open(
        self, mode: str = "r", block_size: int | None = None, prefetch_file: bool = False, **options: Any
    ) -> IO[Any]:
        """Open the file; to write, its folder is made first. ``block_size`` and ``prefetch_file`` are Energon's.

        ``options`` are those of the built-in ``open``.
        """
        if "r" not in mode:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        return self._path.open(mode, **options)

    def read_text(self) -> str:
        """The content as text."""
        return self._path.read_text()

    def read_bytes(self) -> bytes:
        """The content."""
        return self._path.read_bytes()

    def write_text(self, text: str) -> None:
        """Write text, in a folder that is made if needed."""
        with self.open("w") as file:
            file.write(text)

    def write_bytes(self, data: bytes) -> None:
        """Write bytes, in a folder that is made if needed."""
        with self.open("wb") as file:
            file.write(data)

    def copy(self, target: EPath) -> None:
        """Copy a file, or all files of a folder."""
        if self.is_file():
            target._path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._path, target._path)
        else:
            for one in self.walk():
                one.copy(target / one.relative_to(self))

    def move(self, target: EPath) -> None:
        """Copy, then remove."""
        self.copy(target)
        self.unlink()

    def unlink(self) -> None:
        """Remove the file."""
        self._path.unlink()

    def size(self) -> int:
        """The size of the file in bytes."""
        return self._path.stat().st_size

    def stat(self) -> os.stat_result:
        """What the file system says about the file."""
        return self._path.stat()

    def walk(self) -> Iterator[EPath]:
        """Yield all files below, through symbolic links too."""
        for folder, _, names in os.walk(self._path, followlinks=True):
            for name in names:
                yield self / str(Path(folder, name).relative_to(self._path))

    def glob(self, pattern: str) -> Iterator[EPath]:
        """Yield the files below that match a pattern; ``**`` goes through symbolic links too."""
        for one in self.walk():
            if _matches(PurePosixPath(one.relative_to(self)).parts, PurePosixPath(pattern).parts):
                yield one

    def with_suffix(self, suffix: str) -> EPath:
        """The path with another suffix."""
        return self._at(self.internal_path.with_suffix(suffix))

    def relative_to(self, other: EPath) -> str:
        """The path relative to a folder, as text."""
        return str(self.internal_path.relative_to(other.internal_path))

    def __truediv__(self, other: str | os.PathLike[str]) -> EPath:
        if isinstance(other, EPath):
            return other
        text = os.fspath(other)
        return EPath(text) if text.startswith("/") or "://" in text else self._at(self.internal_path / text)

    def __lt__(self, other: EPath) -> bool:
        return self.internal_path < other.internal_path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EPath) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"EPath({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return EPath, (self.url,)


_DSS: Final = "dss"


def _place(text: str, protocol: str, profile: str, rest: str) -> tuple[str, str]:
    """Return the profile of a URL, and the path in it."""
    if protocol == "file":
        return DEFAULT_PROFILE_NAME, f"{profile}/{rest}"
    if protocol == "rclone":
        warnings.warn("rclone:// is deprecated in Energon; write msc://", FutureWarning, stacklevel=4)
        protocol = "msc"
    if protocol == "msc":
        return (DEFAULT_PROFILE_NAME if profile == "default" else profile), f"/{rest}"
    if protocol == "dss":
        name, at, version = profile.rpartition("@")
        if not (name and at and version):
            raise ConfigError(f"{text}: expected dss://NAME@VERSION/..., with the version of the dataset")
        return _DSS, f"/{profile}/{rest}"
    raise ConfigError(f"{text}: the scheme {protocol}:// is not one of file, msc and dss")


def _normal(text: str) -> str:
    path = os.path.abspath(text)  # noqa: PTH100 -- pathlib keeps ``..``
    return path if not path.startswith("//") else path[1:]


def _matches(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[number:], pattern[1:]) for number in range(len(parts) + 1))
    return bool(parts) and PurePosixPath(parts[0]).match(pattern[0]) and _matches(parts[1:], pattern[1:])


def load_metadataset(path: str | os.PathLike[str] | Mapping[str, Any]) -> Metadataset:
    """Load a metadataset, or the content of one, with paths that may be ``dss://...``.

    Folders of plain files may be ``filesystem+dss://...``.

    Raises:
        StoreError, ConfigError: as `headrace.datasets.metadataset.load_dataset`.
    """
    if isinstance(path, Mapping):
        return load_dataset(_localized(path))
    file = Path(path)
    if file.suffix in (".yaml", ".yml") and file.is_file() and b"dss://" in read_small(file):
        return load_dataset(_localized(read_config(file)), path=file)
    return load_dataset(path)


def _localized(value: Any) -> Any:
    """Return the content of a file with local paths in place of ``dss://``."""
    if isinstance(value, Mapping):
        return {name: _localized(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_localized(one) for one in value]
    if isinstance(value, str) and value.startswith("dss://"):
        return str(EPath(value).local_path())
    if isinstance(value, str) and value.startswith("filesystem+dss://"):
        return f"filesystem://{EPath(value.removeprefix('filesystem+')).local_path()}"
    return value


NVDATASET_CACHE_DIR: Final = EPath(os.environ["NVDATASET_CACHE_DIR"]) if "NVDATASET_CACHE_DIR" in os.environ else None
"""The folder of ``dss://`` at the start of the process."""
