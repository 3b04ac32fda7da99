"""`ObjectWriter` writes, reads and removes whole objects: all that an output in an object store is made of.

    small file      one PUT; with ``create`` one that leaves an object which is there as it is (``If-None-Match: *``)
    file from 64 MiB on     parts of 32 MiB, several at a time; the object appears when all are there
    killed upload   its parts stay, hidden and billed, until a rule of the bucket's life cycle removes them

Every object appears whole or not at all. Requests are tried again, bounded and counted as those of reading are, see
`headrace.io.objects.client`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Final

import msgspec

from headrace.errors import ConfigError, OutputError, StoreError
from headrace.io.atomic import AtomicFile
from headrace.io.objects.client import (
    MAX_IN_FLIGHT,
    Delete,
    FetchPolicy,
    FetchReply,
    FetchRequest,
    FetchStats,
    Put,
    submit,
)
from headrace.io.objects.lookups import Objects, parts_of
from headrace.io.remote import RemotePath, Status, bucket_of
from headrace.io.storage import Storage

WHOLE_BYTES: Final = 64 << 20
"""A file of at least so many bytes is sent in parts."""

PART_BYTES: Final = 32 << 20
MAX_PARTS: Final = 9_000
"""Stores allow 10,000; the parts of a larger file are larger."""

DELETES_AT_ONCE: Final = 1000
_OBJECTS_OF_A_DELETE: Final = {"s3": DELETES_AT_ONCE}
"""By scheme, where it is more than one. An object that is not there fails in GCS and Azure, and would end a request for
several before the others are removed."""

_CREATIONS: Final = 8


def part_bytes(size: int) -> int:
    """Return the size of the parts of a file; 0 if it is sent whole.

    >>> [part_bytes(size) for size in (1000, 1 << 30, 1 << 40)]
    [0, 33554432, 134217728]
    """
    if size < WHOLE_BYTES:
        return 0
    least = PART_BYTES
    while size > least * MAX_PARTS:
        least *= 2
    return least


class ObjectWriter:
    """Writes objects of all stores that one `Storage` reaches.

    Args:
        storage: how the stores are reached; None goes by the environment.
        policy: how long requests are tried.
    """

    def __init__(self, storage: Storage | None = None, policy: FetchPolicy | None = None) -> None:
        # What it has looked up is not remembered: objects are written here.
        self._objects = Objects(storage, policy)

    @property
    def storage(self) -> Storage:
        """How the stores are reached."""
        return self._objects.storage

    @property
    def stats(self) -> FetchStats:
        """What was asked of object stores so far."""
        return self._objects.stats

    def create(self, url: str, data: bytes) -> bytes | None:
        """Create an object, unless one is there.

        Returns:
            None if the object has this content now, whoever wrote it; otherwise the content that it has.

        Raises:
            OutputError: it cannot be written.
            StoreError: what is there cannot be read.
        """
        for attempt in range(1, _CREATIONS + 1):
            if self._finish(url, self._begin(Put(url=url, data=data, create=True))).status is not None:
                return None
            # An answer may have been lost, so that our own attempt before this one has created it.
            found = self.read(url)
            if found is not None:
                return None if found == data else found
            # Another writer is about to create it, and has not done so yet.
            time.sleep(self._objects.policy.delay(attempt))
        raise OutputError(
            f"{url}: cannot be created: the store says {_CREATIONS} times that it is there, and it is not"
        )

    def check_creation(self, url: str, data: bytes) -> None:
        """Find out whether the store keeps to it that an object is created once; some servers overwrite it silently.

        Args:
            url: an object that this writer has created.
            data: its content. In a store that does not keep to it, the object is removed.

        Raises:
            OutputError: the store does not keep to it, or the object cannot be written.
        """
        if self._finish(url, self._begin(Put(url=url, data=data, create=True))).status is not None:
            self.delete([url])
            raise OutputError(
                f"{url}: this store replaces an object that a PUT with If-None-Match: * must leave as it is, so that"
                " two runs could overwrite each other's output: write to a store with conditional writes, or"
                " to a local folder, and upload that"
            )

    def put_files(self, files: Mapping[str, Path]) -> dict[str, Status]:
        """Write files to their URLs, all at the same time, and return what each object is.

        Raises:
            OutputError: one cannot be written.
        """
        begun = {}
        for url, path in files.items():
            begun[url] = self._begin(Put(url=url, path=str(path), part_bytes=part_bytes(path.stat().st_size)))
        done = {url: self._finish(url, future).status for url, future in begun.items()}
        return {url: status for url, status in done.items() if status is not None}

    def put(self, data: Mapping[str, bytes]) -> None:
        """Write objects, by their URLs, each whole, all at the same time.

        Raises:
            OutputError: one cannot be written.
        """
        for url, future in [(url, self._begin(Put(url=url, data=content))) for url, content in data.items()]:
            self._finish(url, future)

    def read(self, url: str) -> bytes | None:
        """Return the content of an object; None if there is none.

        Raises:
            StoreError: it cannot be read.
        """
        self._objects.forget()
        status = self._objects.status(url)
        if status is None:
            return None
        return b"".join(self._objects.in_turn(parts_of(url, status)))

    def listed(self, url: str) -> dict[str, Status]:
        """Return the objects right below a folder, by their names there, sorted.

        Raises:
            StoreError: they cannot be listed.
        """
        self._objects.forget()
        found = {one.removeprefix(f"{url}/"): self._objects.status(one) for one in self._objects.listing(url)[1]}
        return {name: status for name, status in found.items() if status is not None}

    def read_all(
        self, objects: Mapping[str, Status], on_error: Callable[[str, StoreError], None] | None = None
    ) -> dict[str, bytes]:
        """Return the contents of small objects, by their URLs, given what `listed` says of them; many at a time.

        Args:
            objects: the objects.
            on_error: called for each that cannot be read, was removed or has changed; without it that is raised.

        Raises:
            StoreError: one cannot be read, was removed or has changed.
        """
        for url, status in objects.items():
            self._objects.expect(url, status)
        found: dict[str, bytes] = {}
        urls = list(objects)
        for at in range(0, len(urls), MAX_IN_FLIGHT):
            some = urls[at : at + MAX_IN_FLIGHT]
            begun = {
                url: self._objects.begin_ranges(url, [(0, objects[url].size)]) for url in some if objects[url].size
            }
            for url in some:
                try:
                    found[url] = bytes(self._objects.finish(url, begun[url]).data[0]) if url in begun else b""
                except StoreError as error:
                    if on_error is None:
                        raise
                    on_error(url, error)
        return found

    def fetch(self, url: str, path: Path) -> None:
        """Bring an object to a local path, where it appears whole.

        Raises:
            StoreError: it is not there, or cannot be read.
            OutputError: the system refuses the write.
        """
        status = self._objects.status(url)
        if status is None:  # perhaps its folder was listed before it was there
            self._objects.forget()
            status = self._objects.status(url)
        if status is None:
            raise StoreError(f"{url}: is not there any more")
        with AtomicFile(path) as file:
            for data in self._objects.in_turn(parts_of(url, status)):
                file.write(data)

    def statuses(self, url: str) -> dict[str, Status]:
        """Return what all objects below a folder are, by their names there, sorted; raises as `listed` does."""
        self._objects.forget()
        found = {one.removeprefix(f"{url}/"): self._objects.status(one) for one in self._objects.below(url)}
        return {name: status for name, status in found.items() if status is not None}

    def delete(self, urls: Iterable[str]) -> None:
        """Remove objects, begun in this order; those that are not there do not matter.

        Raises:
            OutputError: one cannot be removed.
        """
        left = list(urls)
        for at in range(0, len(left), DELETES_AT_ONCE):
            some = left[at : at + DELETES_AT_ONCE]
            each = _OBJECTS_OF_A_DELETE.get(bucket_of(some[0]).scheme, 1)
            parts = [some[first : first + each] for first in range(0, len(some), each)]
            begun = [(part[0], self._begin(Delete(part[0], part))) for part in parts]
            for url, future in begun:
                self._finish(url, future)

    def _begin(self, what: Put | Delete) -> Future[FetchReply]:
        usual = self._objects.policy
        # What is sent whole and is not small has more time.
        times = 1 + len(what.data) // PART_BYTES if isinstance(what, Put) else 1
        policy = msgspec.structs.replace(usual, attempt_s=times * usual.attempt_s, deadline_s=times * usual.deadline_s)
        return submit(FetchRequest(what=what, storage=self.storage, policy=policy))

    def _finish(self, url: str, future: Future[FetchReply]) -> FetchReply:
        try:
            return self._objects.finish(url, future)
        except StoreError as error:
            raise OutputError(str(error)) from None


def writer_of(path: RemotePath) -> ObjectWriter:
    """Return what writes to the store of a path, as that is reached.

    Raises:
        ConfigError: it is the URL of a web server.
    """
    if str(path).startswith("http"):
        raise ConfigError(f"{path}: objects are written to s3://, gs:// and az://, not to a web server")
    known = path.objects
    return ObjectWriter(known.storage, known.policy) if isinstance(known, Objects) else ObjectWriter()
