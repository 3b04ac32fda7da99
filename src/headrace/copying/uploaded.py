"""The destination of a copy at the URL of an object store, where each task puts its shard; the manifests come last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from headrace.engine.job import NewPlan, Phase
from headrace.engine.shared import Shared
from headrace.engine.shared_objects import opened, remove_killed, save_plan
from headrace.engine.uploading import Upload
from headrace.errors import OutputError
from headrace.io import AnyPath, Storage, hash_bytes, path_at, reader_of
from headrace.io.objects.writer import ObjectWriter
from headrace.stores import MANIFEST_NAME, Manifest, encoded_manifest


class ObjectDestination:
    """A URL that one copy goes to; see `CopyPlace`.

    Args:
        url: a place with no objects below it, or with those of an unfinished copy that is the same.
        storage: how the store is reached.
    """

    was_committed = False

    def __init__(self, url: str, storage: Storage | None) -> None:
        self._storage = storage
        self._upload = Upload(str(path_at(url)), ObjectWriter(storage))

    @property
    def path(self) -> AnyPath:
        """The URL, as nobody has looked it up yet."""
        return path_at(self._upload.url, reader_of(self._upload.writer.storage))

    def check(self) -> None:
        """See `CopyPlace`."""
        if self._upload.unfinished() is None and (names := self._upload.others()):
            raise OutputError(
                f"{self._upload.url}: the place exists and holds {names[0]!r}; name another one: what is in object"
                " stores is not replaced"
            )

    def plan(self, kind: str, plan: msgspec.Struct, phase: Phase) -> bool:
        """See `CopyPlace`."""
        self.check()
        upload = self._upload
        is_first = upload.unfinished() is None
        described = msgspec.json.encode({"kind": kind, "plan": hash_bytes(msgspec.json.encode(plan))})
        if upload.claim(described) is not None:
            raise OutputError(
                f"{upload.url}: a copy of other sources, or with other options, was begun there and not completed:"
                f" complete it with headrace job finish {upload.url}, or remove what is below the URL"
            )
        if is_first and upload.others():
            # A copy that ended between our first look and the claim has left its output.
            upload.clear()
            self.check()
        save_plan(upload.url, upload.writer, NewPlan(kind, plan, [phase]))
        return is_first

    def shared(self) -> Shared:
        """See `CopyPlace`."""
        return opened(self._upload.url, self._storage)

    def finish(self, gather: Callable[[Path], None], manifests: Mapping[str, Manifest]) -> None:
        """See `CopyPlace`."""
        gather(Path())
        for name, manifest in manifests.items():
            url = f"{self._upload.url}/{name}/{MANIFEST_NAME}" if name else f"{self._upload.url}/{MANIFEST_NAME}"
            if self._upload.writer.create(url, encoded_manifest(manifest)) is not None:
                raise OutputError(
                    f"{url}: another store is there, which this copy does not replace; name another place, or remove it"
                )
        self._upload.clear()

    def clear(self) -> None:
        """See `CopyPlace`."""
        self._upload.clear()
        remove_killed(self._upload.url)

    def discard(self) -> None:
        """See `CopyPlace`."""
        self._upload.discard()
