"""The output of a run at the URL of an object store, where tasks put its files; the manifests come last.

URL/.headrace/run.json      what decides the bytes of the output; created once, and removed last
              plan.json     the plan, see `headrace.engine.shared_objects`
              job-NAME/     what tasks have done
URL/...                     the files; they are a store once there is a manifest
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.engine.shared_objects import JobUrl, own_folder, remove_killed, remove_with
from headrace.engine.work_folder import RUN_NAME, WORK_NAME
from headrace.errors import OutputError
from headrace.io import AnyPath, RemotePath, path_at, reader_of
from headrace.preparing.outputs.folder import OutputFolder, described_run, differences_in_words, whole_output
from headrace.stores import MANIFEST_NAME, Manifest, load_manifest


class OutputUrl(OutputFolder):
    """A URL that one run writes to.

    Once it was entered, it has a folder on this host for files on their way.

    Args:
        url: the URL, with what reaches its store.
        stores: where the stores of the output are below it, see `output_at`.
        restart: see `output_at`.

    Raises:
        OutputError: something else is at the URL.
        StoreError: the store cannot be reached.
    """

    _job: JobUrl

    def __init__(self, url: RemotePath, stores: Sequence[str], *, restart: bool | None) -> None:
        self._url = str(url)
        self._job = JobUrl(url / WORK_NAME)
        self._stores = stores
        self._restart = restart
        self._found: list[Manifest] | None = None
        self._completed = None
        self.is_continued = False
        self.work = Path()

    def __enter__(self) -> OutputUrl:
        self._found = whole_output(self.output, self._stores)
        if self._found is None:
            self._check_content()
        if not self.work.name:
            self.work = own_folder(self._url)
            remove_with(self, self.work)
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is held; the folder on this host goes with this object."""

    @property
    def output(self) -> AnyPath:
        """The URL, as nobody has looked it up yet."""
        return path_at(self._url, reader_of(self._job.writer.storage))

    def look(self) -> str:
        """See `OutputFolder`."""
        self._check_content()
        return ""

    def begin(self, run: Mapping[str, Any], *, is_made: Callable[[list[Manifest]], bool]) -> str:
        """See `OutputFolder`."""
        if self._found is not None:
            if is_made(self._found):
                self._job.clear()
                return "the output is complete already: the same inputs and options made it, so there is nothing to do"
            self._check_content()
        described = described_run(run)
        before = self._unfinished()
        if self._restart and before is not None:
            self.discard()
            before = None
        if (other := self._claim(described)) is not None:
            discard = "remove what is below the URL" if self._restart is None else "give --restart"
            raise OutputError(
                f"{self._url}: an unfinished run with other options writes to this place:"
                f" {differences_in_words(other, json.loads(described))}. Give the same command to continue it,"
                f" or {discard} to discard it"
            )
        if before is None and self._others():
            # A run that ended between our first look and the claim has left its output.
            self._job.clear()
            raise OutputError(f"{self._url}: another run has written to this place meanwhile; name another one")
        self.is_continued = before is not None
        (self.work / RUN_NAME).write_bytes(described)
        return ""

    def resume(self) -> list[Manifest] | None:
        """See `OutputFolder`."""
        is_planned = self._job.planned() is not None
        # A process that was killed at its very end may have left the plan of a run that is complete.
        is_over = (self.output / self._stores[-1] / MANIFEST_NAME).exists()
        if is_planned and not is_over and self._unfinished() is not None:
            return None
        manifests = [load_manifest(self.output / name) for name in self._stores]
        self.clear_left()
        return manifests

    def put(self, gather: Callable[[Path], None], names: Iterable[str], made: Mapping[str, str]) -> None:
        """See `OutputFolder`: the files are at the URL already."""
        gather(Path())
        writer = self._job.writer
        places = {f"{self._url}/{name}": self.work / path for path, name in made.items()}
        manifests = {url: path for url, path in places.items() if path.name == MANIFEST_NAME}
        writer.put_files({url: path for url, path in places.items() if url not in manifests})
        for url, path in manifests.items():
            data = path.read_bytes()
            if writer.create(url, data) not in (None, data):
                raise OutputError(
                    f"{url}: another store is there, which this run does not replace; name another place, or remove it"
                )
        self._job.clear()

    def discard(self) -> None:
        """See `OutputFolder`."""
        self._job.remove_below(self._url)

    def clear_left(self) -> None:
        """See `OutputFolder`: what lies at the URL, and the folders of tasks that were killed on this host."""
        self._job.clear()
        remove_killed(self._url)

    def _check_content(self) -> None:
        names = self._others()
        is_over = Path(self._stores[-1], MANIFEST_NAME).as_posix() in names
        if not names or (not is_over and self._unfinished() is not None):
            return
        what = "holds the output of an earlier run" if is_over else f"is not empty: it holds {names[0]!r}"
        raise OutputError(
            f"{self._url}: the place {what}; name another place, or remove what is there: outputs in object"
            " stores are not replaced"
        )

    def _others(self) -> list[str]:
        """Return the names of all objects below the URL, except those that belong to a run."""
        return [name for name in self._job.writer.statuses(self._url) if not name.startswith(f"{WORK_NAME}/")]

    def _claim(self, run: bytes) -> dict[str, Any] | None:
        """Say that this run writes the output: the first one does, and every other that is the same.

        Returns:
            None, or the description of another run that has not completed its output.

        Raises:
            OutputError: the store replaces what it must not, see `ObjectWriter.check_creation`.
        """
        writer, url = self._job.writer, f"{self._job.url}/{RUN_NAME}"
        other = writer.create(url, run)
        if other is None:
            writer.check_creation(url, run)
        return None if other is None else _decoded(other)

    def _unfinished(self) -> dict[str, Any] | None:
        """Return the description of a run that has not completed its output; None if there is none."""
        data = self._job.writer.read(f"{self._job.url}/{RUN_NAME}")
        return None if data is None else _decoded(data)


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
