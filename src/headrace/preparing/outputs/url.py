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
from headrace.preparing.outputs.folder import OutputFolder, described_run, whole_output
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
    _again = ""

    def __init__(self, url: RemotePath, stores: Sequence[str], *, restart: bool | None) -> None:
        self.name = str(url)
        self._job = JobUrl(url / WORK_NAME)
        self._stores = stores
        self._restart = restart
        self.work = Path()

    def __enter__(self) -> OutputUrl:
        self._found = whole_output(self.output, self._stores)
        if self._found is None:
            self._check_content()
        if not self.work.name:
            self.work = own_folder(self.name)
            remove_with(self, self.work)
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is held; the folder on this host goes with this object."""

    @property
    def output(self) -> AnyPath:
        """The URL, as nobody has looked it up yet."""
        return path_at(self.name, reader_of(self._job.writer.storage))

    def look(self) -> str:
        """See `OutputFolder`."""
        self._check_content()
        return ""

    def begin(self, run: Mapping[str, Any], *, is_made: Callable[[list[Manifest]], bool]) -> str:
        """See `OutputFolder`."""
        notice = super().begin(run, is_made=is_made)
        (self.work / RUN_NAME).write_bytes(described_run(run))
        return notice

    def _create(self, described: bytes, *, is_anew: bool) -> Mapping[str, Any] | None:
        """See `OutputFolder`: the first run writes the output, and every other that is the same.

        Raises:
            OutputError: the store replaces what it must not, see `ObjectWriter.check_creation`; or there is an output
                meanwhile.
        """
        if is_anew:
            self.discard()
        writer, url = self._job.writer, f"{self._job.url}/{RUN_NAME}"
        if (other := writer.create(url, described)) is not None:
            return _decoded(other)
        writer.check_creation(url, described)
        if self._others():
            # A run that ended between our first look and the claim has left its output.
            self._job.clear()
            raise OutputError(f"{self.name}: another run has written to this place meanwhile; name another one")
        return None

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
        places = {f"{self.name}/{name}": self.work / path for path, name in made.items()}
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
        self._job.remove_below(self.name)

    def clear_left(self) -> None:
        """See `OutputFolder`: what lies at the URL, and the folders of tasks that were killed on this host."""
        self._job.clear()
        remove_killed(self.name)

    def _check_content(self) -> None:
        names = self._others()
        is_over = Path(self._stores[-1], MANIFEST_NAME).as_posix() in names
        if not names or (not is_over and self._unfinished() is not None):
            return
        what = "holds the output of an earlier run" if is_over else f"is not empty: it holds {names[0]!r}"
        raise OutputError(
            f"{self.name}: the place {what}; name another place, or remove what is there: outputs in object"
            " stores are not replaced"
        )

    def _others(self) -> list[str]:
        """Return the names of all objects below the URL, except those that belong to a run."""
        return [name for name in self._job.writer.statuses(self.name) if not name.startswith(f"{WORK_NAME}/")]

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
