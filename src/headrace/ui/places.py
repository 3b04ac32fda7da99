"""`Places`: the paths that the user named, what is below them, and nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Final

import msgspec

from headrace.errors import ConfigError
from headrace.inspect import views
from headrace.inspect.views import Overview, OverviewEntry
from headrace.inspect.views.overviews import EntryKind

KEPT_S: Final = 2.0
"""How long a listing is kept: what appears later is found by the next page."""

PAIR: Final = (".bin", ".idx")
_MOST_LINKS: Final = 50_000


class NotNamedError(ConfigError):
    """A request names a path that is not below those that the user named."""


class Places:
    """The paths that may be looked at: those that were named, and what is below them.

    Args:
        paths: stores, metadatasets, files of runs, states, metrics, or folders of these. Metrics that are named with
            ``{rank}`` may be to come.

    Raises:
        ConfigError: nothing is at one of the paths.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(dict.fromkeys(paths))
        for path in self.paths:
            is_to_come = "{rank}" in path and Path(path).absolute().parent.is_dir()
            names = [*views.metrics_files(path), *(path + suffix for suffix in PAIR)]
            if not is_to_come and not any(Path(name).exists() for name in names):
                raise ConfigError(f"{path}: there is no such file or folder")
        self._roots = tuple(Path(path).resolve() for path in self.paths)
        self._lock = Lock()
        self._listed: tuple[float, dict[str, EntryKind]] = (0.0, {})
        self._linked: dict[str, tuple[float, str]] = {}

    def overview(self) -> Overview:
        """Return what is there at the moment."""
        found = views.overview(self.paths)
        return msgspec.structs.replace(found, entries=tuple(map(self._shown, found.entries)))

    def _shown(self, entry: OverviewEntry) -> OverviewEntry:
        """Return an entry; of one that is not opened, because files of it are links that lead outside, only that."""
        outside = self._link_outside(entry.path, entry.kind)
        if not outside:
            return entry
        problem = f"not opened: {outside} is a link that leads outside of the named paths"
        return OverviewEntry(path=entry.path, kind=entry.kind, problem=problem)

    def kinds(self) -> dict[str, EntryKind]:
        """Return path -> kind of everything that is there. It opens no store, and is kept for two seconds."""
        with self._lock:
            moment, found = self._listed
            if time.monotonic() - moment > KEPT_S or not found:
                found = views.found_places(self.paths)[0]
                self._listed = (time.monotonic(), found)
            return dict(found)

    def check(self, path: str, *kinds: EntryKind) -> str:
        """Return a path that a request names, if it is one of those that are there and of one of these kinds.

        Raises:
            NotNamedError: it is not, or files of the store are links that lead outside.
        """
        kind = self.kinds().get(path)
        if kind is None:
            raise NotNamedError(
                f"{path}: is gone, or not below a path that headrace ui was started with: {', '.join(self.paths)}"
            )
        if kind not in kinds:
            raise NotNamedError(
                f"{path}: is {_WORDS[kind]}; this page shows {' or '.join(_WORDS[one] for one in kinds)}"
            )
        if (outside := self._link_outside(path, kind)) != "":
            raise NotNamedError(f"{outside}: is a link that leads outside of the named paths; name its target, too")
        return path

    def may_open(self, path: str) -> bool:
        """Whether a path that a file names, such as the store of a run, is below the named paths."""
        place = Path(path).resolve()
        # A pair may be named by either of its files, or by what their names have in common.
        names = {str(place), *(str(Path(path + suffix).resolve()) for suffix in PAIR)}
        return any(
            place.is_relative_to(root) or names & {str(root), *(f"{root}{suffix}" for suffix in PAIR)}
            for root in self._roots
        )

    def _link_outside(self, path: str, kind: EntryKind) -> str:
        """Return a file of a store, or of metrics, that is a link to a place outside; empty if there is none."""
        if kind == "metrics" and path not in self.paths:
            files = (file for file in views.metrics_files(path) if Path(file).is_symlink())
            return next((file for file in files if not self.may_open(file)), "")
        if kind not in ("tokens", "samples"):
            return ""
        moment, outside = self._linked.get(path, (0.0, ""))
        if time.monotonic() - moment > KEPT_S or not moment:
            outside = self._find_link(path)
            self._linked[path] = (time.monotonic(), outside)
        return outside

    def _find_link(self, path: str) -> str:
        seen = 0
        for folder, folders, names in os.walk(path):
            for name in (*folders, *names):
                seen += 1
                file = Path(folder, name)
                if file.is_symlink() and not self.may_open(str(file)):
                    return str(file)
            if seen > _MOST_LINKS:
                return ""
        return ""


_WORDS: Final[dict[EntryKind, str]] = {
    "tokens": "a store of tokens",
    "samples": "a store of samples",
    "mix": "a metadataset",
    "run": "the file of a run",
    "state": "the state of a loader",
    "metrics": "metrics of a loader",
}
