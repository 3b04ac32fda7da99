"""The output folder of a run whose output is the URL of an object store.

    SCRATCH/.headrace/...       the work folder, as in a local output folder; see `output_folder`
    URL/...                     the files that are complete; see `headrace.engine.uploading`

The scratch folder lies in ``$HEADRACE_CACHE/outputs`` or ``~/.cache/headrace/outputs``, by a hash of the URL. A shard
is uploaded and removed there once a checkpoint knows that it is complete, so that about one shard lies on the disk. A
killed run continues from its scratch folder. If that is lost, it starts over, and uploads only what has no receipt.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.engine.job import Phase, decoded_plan
from headrace.engine.shared_objects import remove_killed, save_plan
from headrace.engine.uploading import PLAN, Upload
from headrace.engine.work_folder import JOB_NAME, upload_scratch
from headrace.errors import HeadraceError, OutputError, StoreAwayError, StoreError
from headrace.io import AnyPath, Storage, atomic_write, output_errors, path_at, reader_of
from headrace.io.objects.writer import ObjectWriter
from headrace.preparing.output_folder import RUN_NAME, OutputFolder, differences_in_words
from headrace.stores import MANIFEST_NAME, Manifest, load_manifest


class UploadedFolder(OutputFolder):
    """Claims a scratch folder on this host for one run, and a URL for its output, as a context manager.

    Args:
        url: the URL.
        storage: how the store is reached; None goes by the environment.
        restart: whether to discard an unfinished run, here and at the URL.

    Raises:
        OutputError: something else is at the URL, another run is using the scratch folder, or the system or the store
            refuses access.
    """

    _MADE_AGAIN = ""

    def __init__(self, url: str, storage: Storage | None, *, restart: bool) -> None:
        self.upload = Upload(str(path_at(url)), ObjectWriter(storage))
        super().__init__(upload_scratch(self.upload.url), overwrite=False, restart=restart, name=self.upload.url)
        self.send = self._send
        self._is_first = False
        """Whether no earlier run has left something at the URL that could be continued."""

    def refuse_planned(self) -> None:
        """See `OutputFolder.refuse_planned`."""
        url = self.upload.url
        if not self._restart and self.upload.writer.read(f"{url}/{PLAN}") is not None:
            raise OutputError(
                f"{url}: a run is planned for this place: complete it with headrace job finish {url}, or give --restart"
                " to discard it"
            )

    def clear_left(self) -> None:
        """See `OutputFolder.clear_left`: what lies at the URL, and the scratch folders of its tasks."""
        self.upload.clear()
        remove_killed(self.upload.url)

    def load(self) -> Manifest:
        """See `OutputFolder.load`."""
        return load_manifest(self._remote)

    def begin(self, run: Mapping[str, Any], *, is_made: Callable[[Manifest], bool]) -> str:
        """See `OutputFolder.begin`; the run is claimed at the URL, too."""
        notice = super().begin(run, is_made=is_made)
        if notice:
            self.upload.clear()
            return notice
        described = (self.work / RUN_NAME).read_bytes()
        before = self.upload.unfinished()
        if self._restart and before is not None:
            self.upload.discard()
            before = None
        other = self.upload.claim(described)
        if other is not None:
            raise OutputError(
                f"{self.upload.url}: an unfinished run with other options writes to this place:"
                f" {differences_in_words(_read(other), json.loads(described))}. Give the same command to continue it,"
                " or --restart to discard it"
            )
        if before is None and self.upload.others():
            # A run that ended between our first look and the claim has left its output.
            self.upload.clear()
            raise OutputError(f"{self.upload.url}: another run has written to this place meanwhile; name another one")
        self._is_first = before is None
        return ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        with contextlib.suppress(OSError):
            self.path.rmdir()  # if there is no work folder left to continue from

    def _leave(self) -> None:
        if self._is_first and not self._keep:
            # There is nothing to continue from here, so nothing stays there either.
            with contextlib.suppress(HeadraceError):
                self.upload.discard()
        super()._leave()

    def save_plan(
        self,
        kind: str,
        plan: object,
        software: Mapping[str, str],
        *,
        files: Mapping[str, bytes],
        made: Sequence[str] = (),
        phases: Sequence[Phase] = (),
    ) -> None:
        """See `OutputFolder.save_plan`. Nothing stays on this host."""
        paths = {name: self.work / name for name in made}
        save_plan(self.upload.url, self.upload.writer, kind, plan, software, files=files, made=paths, phases=phases)
        self.leave_to_others()

    def leave_to_others(self) -> None:
        """See `OutputFolder.leave_to_others`."""
        super().leave_to_others()
        self._is_first = False

    def resume(self) -> Manifest | None:
        """See `OutputFolder.resume`. This host goes on from its own checkpoint, if that is of the same job."""
        run = self.upload.unfinished()
        plan = self.upload.writer.read(f"{self.upload.url}/{PLAN}")
        # A process that was killed at its very end may have left the plan of a run that is complete.
        if run is None or plan is None or (self._remote / MANIFEST_NAME).exists():
            manifest = load_manifest(self._remote)
            self.clear_left()
            self._keep = False
            return manifest
        name = decoded_plan(plan, f"{self.upload.url}/{PLAN}").name.encode()
        marked = self.work / JOB_NAME
        with output_errors(self.work, "use as the work folder"):
            if not marked.exists() or marked.read_bytes() != name or self._unfinished() is None:
                self._clear()
                atomic_write(self.work / RUN_NAME, run)
                atomic_write(marked, name)
        return super().resume()

    @property
    def _remote(self) -> AnyPath:
        """The URL, as nobody has looked it up yet."""
        return path_at(self.upload.url, reader_of(self.upload.writer.storage))

    def _send(self, moves: Mapping[str, str]) -> None:
        """Upload complete files, by their names in the work folder, and remove them there."""
        for source, target in moves.items():
            path = self.work / source
            if path.exists():
                self.upload.send(target, {target: path})
                path.unlink()
            elif self.upload.receipt(target) is None:
                raise OutputError(f"{path}: the file is lost, and was not uploaded either; {_AGAIN}")

    def _move(self) -> None:
        moves = dict(self._commit()["moves"])
        # The manifests of domains are in it before that of the whole store, which appears last.
        manifests = sorted((source for source in moves if Path(source).name == MANIFEST_NAME), key=_depth, reverse=True)
        files = {source: target for source, target in moves.items() if source not in manifests}
        written = {moves[source]: self.work / source for source in manifests}
        if not self.upload.is_finished(written):  # a run that was killed after that may have removed the receipts
            self.upload.read_receipts()
            self._send(files)
        self.upload.finish(list(files.values()), written)
        self._is_first = False

    def _unfinished(self) -> dict[str, Any] | None:
        """See `OutputFolder`. A run that another host has completed or discarded is not to be continued here."""
        found = super()._unfinished()
        if found is None or self.upload.unfinished() is None or (self._remote / MANIFEST_NAME).exists():
            return None
        return found

    def _whole_output(self) -> Manifest | None:
        remote = self._remote
        if not (remote / MANIFEST_NAME).exists():
            return None
        try:
            manifest = load_manifest(remote)
        except StoreAwayError:
            raise
        except StoreError as error:
            raise OutputError(f"{error}; name another place, or remove it") from error
        return manifest if manifest.is_complete(remote) else None

    def _check_content(self) -> None:
        names = self.upload.others()
        if not names or (MANIFEST_NAME not in names and self.upload.unfinished() is not None):
            return
        what = (
            "holds the output of an earlier run" if MANIFEST_NAME in names else f"is not empty: it holds {names[0]!r}"
        )
        raise OutputError(
            f"{self.upload.url}: the place {what}; name another place, or remove what is there: outputs in object"
            " stores are not replaced"
        )


def send_alone(url: str, files: Mapping[str, Path]) -> None:
    """Upload complete files by their names below the URL of an output, for a process that does one task; in any thread.

    Raises:
        OutputError: one cannot be written, or another run writes other content to the same place.
    """
    upload = Upload(url, ObjectWriter(), looks=False)
    for name, path in files.items():
        upload.send(name, {name: path})


_AGAIN = "give --restart to begin anew"


def _depth(name: str) -> int:
    return name.count("/")


def _read(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
