"""The destination of a copy at the URL of an object store.

Each shard is written and read back on this host, uploaded with a receipt, and removed here, so that one shard lies on
the disk at a time. The manifests come last. A copy that is killed continues with the shards that have no receipt; see
`headrace.engine.uploading`.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from headrace.copying.copier import MadeShard
from headrace.engine.job import Phase, decoded_plan
from headrace.engine.shared_objects import save_plan
from headrace.engine.uploading import PLAN, Upload
from headrace.engine.work_folder import JOB_NAME, ClaimedFolder, upload_scratch
from headrace.errors import ConfigError, HeadraceError, InputError, OutputError, StoreError
from headrace.io import AnyPath, Storage, output_errors, path_at, reader_of
from headrace.io.objects.writer import ObjectWriter
from headrace.stores import MANIFEST_NAME, Manifest, save_manifest


class UploadedDestination:
    """Reserves a URL for one copy, as a context manager.

    Args:
        url: a place with no objects below it, or with those of an unfinished copy that is the same.
        copy: what decides the bytes of the copy, as JSON.
        storage: how the store is reached.

    Raises:
        OutputError: something else is there, or the store refuses access.
    """

    def __init__(self, url: str, copy: bytes, storage: Storage | None) -> None:
        self.upload = Upload(str(path_at(url)), ObjectWriter(storage))
        self._copy = copy
        self._scratch = upload_scratch(self.upload.url)
        self._claimed = ClaimedFolder(self._scratch, f"{url}: another copy on this host is writing to this destination")
        self._is_first = False
        self._receipts: list[str] = []

    @property
    def path(self) -> AnyPath:
        """The URL, as nobody has looked it up yet."""
        return path_at(self.upload.url, reader_of(self.upload.writer.storage))

    def check(self) -> None:
        """Refuse a place that is not free, without changing anything.

        Raises:
            OutputError: there are objects that do not belong to this copy.
        """
        found = self.upload.unfinished()
        if found is not None and found != self._copy:
            raise OutputError(
                f"{self.upload.url}: a copy of other sources, or with other options, was begun there and not completed:"
                " give its command again, or remove what is below the URL"
            )
        if found is None:
            self._check_free()

    @property
    def is_taken(self) -> bool:
        """Whether there is something that no unfinished copy has written."""
        return self.upload.unfinished() is None and bool(self.upload.others())

    def save_plan(self, kind: str, plan: object, phase: Phase) -> None:
        """Write the plan of this copy, and leave it to processes on any hosts; see `shared_objects.save_plan`."""
        save_plan(self.upload.url, self.upload.writer, kind, plan, {}, files={}, phases=[phase])

    def clear(self) -> None:
        """Remove what a copy that is complete has left, there and on this host.

        Raises:
            OutputError: another copy on this host is writing to this destination.
        """
        self.upload.clear()
        if self._scratch.exists():
            self._claimed.claim()
            self._leave()

    def made(self, number: int) -> MadeShard | None:
        """Return what is known of a shard, by its number among all, that was uploaded; None if it was not."""
        name = f"shard-{number:06d}"
        self._receipts.append(name)
        receipt = self.upload.receipt(name)
        return None if receipt is None else msgspec.convert(receipt.value, MadeShard)

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder for one shard, which is empty, and removed at the end."""
        place = self._scratch / "shard"
        with output_errors(place, "make the folder"):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def send(self, number: int, store: str, place: Path, shard: MadeShard) -> None:
        """Upload a shard of a store, which is in a folder of its own."""
        send_shard(self.upload, number, store, place, shard)

    def finish(self, manifests: dict[str, Manifest]) -> list[Manifest]:
        """Write the manifests of the stores, by their names, after all shards; return them with their hashes."""
        written, found = {}, []
        for store, manifest in manifests.items():
            place = self._scratch / "manifests" / store
            with output_errors(place, "make the folder"):
                place.mkdir(parents=True, exist_ok=True)
            found.append(save_manifest(place, manifest))
            written[f"{store}/{MANIFEST_NAME}" if store else MANIFEST_NAME] = place / MANIFEST_NAME
        self.upload.finish(self._receipts, written)
        self._is_first = False
        return found

    def __enter__(self) -> UploadedDestination:
        try:
            with output_errors(self._scratch, "use as the scratch folder"):
                self._claimed.make(self._scratch.parent)
                self._claimed.claim()
                self._claimed.clear()
                self._mark()
            is_first = self.upload.unfinished() is None
            if self.upload.claim(self._copy) is not None:
                self.check()  # says which copy was quicker
            if is_first:
                # A copy that ended between our first look and the claim has left its output.
                try:
                    self._check_free()
                except OutputError:
                    self.upload.clear()
                    raise
            self._is_first = is_first
            self.upload.read_receipts()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The same copy would fail again because of its sources, so nothing of it stays.
        if self._is_first and isinstance(error, InputError | StoreError | ConfigError):
            with contextlib.suppress(HeadraceError):
                self.upload.discard()
        self._leave()

    def _mark(self) -> None:
        """Say which job the scratch folder belongs to, so that it is removed if another host completes that."""
        where = f"{self.upload.url}/{PLAN}"
        if (plan := self.upload.writer.read(where)) is not None:
            (self._scratch / JOB_NAME).write_bytes(decoded_plan(plan, where).name.encode())

    def _check_free(self) -> None:
        if names := self.upload.others():
            raise OutputError(
                f"{self.upload.url}: the place exists and holds {names[0]!r}; name another one: what is in object"
                " stores is not replaced"
            )

    def _leave(self) -> None:
        self._claimed.leave(lambda: shutil.rmtree(self._scratch, ignore_errors=True))


def send_shard(upload: Upload, number: int, store: str, place: Path, shard: MadeShard) -> None:
    """Upload a shard of a store, by its number among all, from a folder of its own.

    Raises:
        OutputError: it cannot be written, or another copy writes other content to the same place.
    """
    files = sorted(path for path in place.rglob("*") if path.is_file())
    below = f"{store}/" if store else ""
    named = {below + path.relative_to(place).as_posix(): path for path in files}
    upload.send(f"shard-{number:06d}", named, msgspec.to_builtins(shard))


def send_alone(url: str, number: int, store: str, place: Path, shard: MadeShard) -> None:
    """Do as `send_shard` does, for a process that knows nothing of the other shards; in any thread."""
    send_shard(Upload(url, ObjectWriter(), looks=False), number, store, place, shard)


def described_copy(
    tool: str, kept: object, sources: Sequence[object], files: Sequence[tuple[str, int, str]], plan: str
) -> bytes:
    """Return what decides the bytes of a copy, as JSON.

    Args:
        tool: name of the tool.
        kept: its options.
        sources: what the manifest keeps of each source.
        files: path, size, and time or ETag of each file of the sources.
        plan: hash of what is written where.
    """
    found = {"copy": 1, "tool": tool, "options": kept, "sources": sources, "files": files, "plan": plan}
    return msgspec.json.encode(found, order="sorted")
