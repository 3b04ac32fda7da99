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
from types import TracebackType
from typing import Any

from headrace.engine.job import NewPlan
from headrace.engine.shared import Shared
from headrace.engine.shared_objects import opened, own_folder, remove_killed, remove_with, save_plan
from headrace.engine.uploading import PLAN, Upload
from headrace.errors import OutputError
from headrace.io import AnyPath, Storage, path_at, reader_of
from headrace.io.objects.writer import ObjectWriter
from headrace.preparing.outputs.place import RUN_NAME, described_run, differences_in_words, whole_output
from headrace.stores import MANIFEST_NAME, Manifest, load_manifest


class OutputUrl:
    """A URL that one run writes to; see `OutputPlace`.

    Once it was entered, it has a folder on this host for files on their way.

    Args:
        url: the URL.
        storage: how the store is reached; None goes by the environment.
        stores: where the stores of the output are below it, see `output_at`.
        restart: see `output_at`.

    Raises:
        OutputError: something else is at the URL.
        StoreError: the store cannot be reached.
    """

    def __init__(self, url: str, storage: Storage | None, stores: Sequence[str], *, restart: bool | None) -> None:
        self._upload = Upload(str(path_at(url)), ObjectWriter(storage))
        self._storage = storage
        self._stores = stores
        self._restart = restart
        self._found: list[Manifest] | None = None
        self.is_continued = False
        self.work = Path()

    def __enter__(self) -> OutputUrl:
        self._found = whole_output(self.output, self._stores)
        if self._found is None:
            self._check_content()
        if not self.work.name:
            self.work = own_folder(self._upload.url)
            remove_with(self, self.work)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held; the folder on this host goes with this object."""

    @property
    def output(self) -> AnyPath:
        """The URL, as nobody has looked it up yet."""
        return path_at(self._upload.url, reader_of(self._storage))

    @property
    def earlier(self) -> Mapping[str, Any]:
        """See `OutputPlace`."""
        if self._found is not None:
            return self._found[0].options
        return {} if self._restart else _decoded(self._upload.unfinished() or b"")

    def look(self) -> str:
        """See `OutputPlace`."""
        self._check_content()
        return ""

    def begin(self, run: Mapping[str, Any], *, is_made: Callable[[list[Manifest]], bool]) -> str:
        """See `OutputPlace`."""
        upload = self._upload
        if self._found is not None:
            if is_made(self._found):
                upload.clear()
                return "the output is complete already: the same inputs and options made it, so there is nothing to do"
            self._check_content()
        described = described_run(run)
        before = upload.unfinished()
        if self._restart and before is not None:
            upload.discard()
            before = None
        if (other := upload.claim(described)) is not None:
            discard = "remove what is below the URL" if self._restart is None else "give --restart"
            raise OutputError(
                f"{upload.url}: an unfinished run with other options writes to this place:"
                f" {differences_in_words(_decoded(other), _decoded(described))}. Give the same command to continue it,"
                f" or {discard} to discard it"
            )
        if before is None and upload.others():
            # A run that ended between our first look and the claim has left its output.
            upload.clear()
            raise OutputError(f"{upload.url}: another run has written to this place meanwhile; name another one")
        self.is_continued = before is not None
        (self.work / RUN_NAME).write_bytes(described)
        return ""

    def save_plan(self, new: NewPlan) -> None:
        """See `OutputPlace`."""
        save_plan(self._upload.url, self._upload.writer, new, self.work)

    def shared(self) -> Shared:
        """See `OutputPlace`."""
        return opened(self._upload.url, self._storage)

    def resume(self) -> list[Manifest] | None:
        """See `OutputPlace`."""
        is_planned = self._upload.writer.read(f"{self._upload.url}/{PLAN}") is not None
        # A process that was killed at its very end may have left the plan of a run that is complete.
        is_over = (self.output / self._stores[-1] / MANIFEST_NAME).exists()
        if is_planned and not is_over and self._upload.unfinished() is not None:
            return None
        manifests = [load_manifest(self.output / name) for name in self._stores]
        self.clear_left()
        return manifests

    def put(self, gather: Callable[[Path], None], names: Iterable[str], made: Mapping[str, str]) -> None:
        """See `OutputPlace`: the files are at the URL already."""
        gather(Path())
        writer = self._upload.writer
        places = {f"{self._upload.url}/{name}": self.work / path for path, name in made.items()}
        manifests = {url: path for url, path in places.items() if path.name == MANIFEST_NAME}
        writer.put_files({url: path for url, path in places.items() if url not in manifests})
        for url, path in manifests.items():
            data = path.read_bytes()
            if writer.create(url, data) not in (None, data):
                raise OutputError(
                    f"{url}: another store is there, which this run does not replace; name another place, or remove it"
                )
        self._upload.clear()

    def discard(self) -> None:
        """See `OutputPlace`."""
        self._upload.discard()

    def clear_left(self) -> None:
        """See `OutputPlace`: what lies at the URL, and the folders of tasks that were killed on this host."""
        self._upload.clear()
        remove_killed(self._upload.url)

    def _check_content(self) -> None:
        names = self._upload.others()
        is_over = Path(self._stores[-1], MANIFEST_NAME).as_posix() in names
        if not names or (not is_over and self._upload.unfinished() is not None):
            return
        what = "holds the output of an earlier run" if is_over else f"is not empty: it holds {names[0]!r}"
        raise OutputError(
            f"{self._upload.url}: the place {what}; name another place, or remove what is there: outputs in object"
            " stores are not replaced"
        )


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
