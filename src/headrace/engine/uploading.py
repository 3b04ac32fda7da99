"""An output in an object store: its files are made on this host, and uploaded one after another.

    URL/.headrace/run.json        what decides the bytes of the output; created once, and removed last
                  receipts/NAME   the receipt of files that are complete; created once
    URL/...                       the files
    URL/headrace.json             the manifest, created once when everything that it lists is there

As long as there is a ``run.json`` and no manifest, the output is not complete, and nothing opens it as a store. A run
that is killed continues: what a receipt names is not uploaded again. Several processes may write the same output at the
same time: they write the same bytes, and one of them creates each receipt and the manifest. Any other run finds another
``run.json``, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.errors import OutputError, StoreError
from headrace.io import file_sum, path_at
from headrace.io.objects.writer import ObjectWriter

WORK_NAME: Final = ".headrace"
RUN: Final = f"{WORK_NAME}/run.json"
PLAN: Final = f"{WORK_NAME}/plan.json"
"""The plan, if processes on any hosts do the tasks, see `headrace.engine.shared_objects`."""
_RECEIPTS: Final = f"{WORK_NAME}/receipts/"


class UploadedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is complete in the store."""

    name: str
    size: int
    xxh3_128: str


class UploadReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """Files that are complete in the store, and what else the run has to know of them: JSON."""

    files: tuple[UploadedFile, ...]
    value: Any = None


class Upload:
    """The output at a URL.

    Args:
        url: the URL, without a slash at its end.
        writer: what reaches the store.
        looks: whether to look which receipts are there before anything is sent.
    """

    def __init__(self, url: str, writer: ObjectWriter, *, looks: bool = True) -> None:
        self.url = url
        self.writer = writer
        self._receipts: dict[str, UploadReceipt | None] = {}
        """The receipts that are known to exist; None for those that were not read."""
        self._is_listed = not looks

    def others(self) -> list[str]:
        """Return the names of all objects below the URL, except those that belong to a run."""
        names = self._names()
        return [name for name in names if not name.startswith(f"{WORK_NAME}/")]

    def claim(self, run: bytes) -> bytes | None:
        """Say that this run writes the output: the first one does, and every other that is the same.

        Returns:
            None, or the description of another run that has not completed its output.

        Raises:
            OutputError: the store replaces what it must not, see `ObjectWriter.check_creation`.
        """
        other = self.writer.create(self._at(RUN), run)
        if other is None:
            self.writer.check_creation(self._at(RUN), run)
        return other

    def unfinished(self) -> bytes | None:
        """Return the description of a run that has not completed its output; None if there is none."""
        return self.writer.read(self._at(RUN))

    def receipt(self, name: str) -> UploadReceipt | None:
        """Return a receipt; None if there is none.

        Raises:
            StoreError: it cannot be read, or is damaged.
        """
        if not self._is_listed:
            self._names()
        if name not in self._receipts:
            return None
        found = self._receipts[name]
        if found is None:
            url = self._at(_RECEIPTS + name)
            data = self.writer.read(url)
            if data is None:
                del self._receipts[name]
                return None
            found = self._receipts[name] = _decoded(url, data)
        return found

    def read_receipts(self) -> None:
        """Read all receipts that are there, many at a time.

        Raises:
            StoreError: one cannot be read, or is damaged.
        """
        below = self._at(_RECEIPTS.rstrip("/"))
        found = {f"{below}/{name}": status for name, status in self.writer.statuses(below).items()}
        for url, data in self.writer.read_all(found).items():
            self._receipts[url.removeprefix(f"{below}/")] = _decoded(url, data)
        self._is_listed = True

    def send(self, name: str, files: Mapping[str, Path], value: Any = None) -> UploadReceipt:
        """Upload complete files, and create their receipt; what has one is not uploaded again.

        Args:
            name: name of the receipt.
            files: the files on this host, by their names below the URL.
            value: what else the receipt says.

        Raises:
            OutputError: a file cannot be written, or another run writes other content to the same place.
        """
        made = UploadReceipt(
            files=tuple(
                UploadedFile(name=target, size=found.size, xxh3_128=found.xxh3_128)
                for target, found in ((target, file_sum(path)) for target, path in files.items())
            ),
            value=value,
        )
        found = self.receipt(name)
        if found is None:
            self.writer.put_files({self._at(target): path for target, path in files.items()})
            url = self._at(_RECEIPTS + name)
            data = self.writer.create(url, msgspec.json.encode(made))
            found = made if data is None else _decoded(url, data)
            self._receipts[name] = found
        if found.files != made.files:
            raise OutputError(
                f"{self.url}: {name} is there with other content than this run makes: another run writes to the same"
                " place, or inputs have changed; name another place"
            )
        return found

    def is_finished(self, manifests: Mapping[str, Path]) -> bool:
        """Return whether the last of these manifests, by their names below the URL, is there."""
        target, path = list(manifests.items())[-1]
        return self.writer.read(self._at(target)) == path.read_bytes()

    def finish(self, names: Sequence[str], manifests: Mapping[str, Path]) -> None:
        """Create the manifests, once everything that they list is there, and remove what belongs to the run.

        Args:
            names: the receipts of all files of the output.
            manifests: the manifests, by their names below the URL, in the order in which they appear.

        Raises:
            OutputError: a file is not there, or another manifest is.
        """
        if not self.is_finished(manifests):
            self._check(names)
            for target, path in manifests.items():
                if self.writer.create(self._at(target), path.read_bytes()) is not None:
                    raise OutputError(
                        f"{self._at(target)}: another store is there, which this run does not replace; name another"
                        " place, or remove it"
                    )
        self.clear()

    def clear(self) -> None:
        """Remove what belongs to runs that are over: plan, receipts, and results of tasks.

        The plan goes first, so that no other process begins a task any more.
        """
        self._remove(f"{WORK_NAME}/")

    def discard(self) -> None:
        """Remove everything that a run without a manifest has written; its description goes last."""
        self._remove("")

    def _remove(self, below: str) -> None:
        names = [name for name in self._names() if name.startswith(below) and name != RUN]
        if PLAN in names:
            self.writer.delete([self._at(PLAN)])
        self.writer.delete([self._at(name) for name in names])
        self.writer.delete([self._at(RUN)])
        self._receipts.clear()

    def _check(self, names: Sequence[str]) -> None:
        """Raise OutputError unless all files are there, in their sizes."""
        self.read_receipts()
        sizes = self.writer.sizes(self.url)
        for name in names:
            receipt = self.receipt(name)
            if receipt is None:
                raise OutputError(f"{self._at(name)}: was uploaded, and its receipt is not there any more; {_AGAIN}")
            for file in receipt.files:
                if sizes.get(file.name) != file.size:
                    size = sizes.get(file.name)
                    found = "is not there any more" if size is None else f"has {size:,} bytes, and had {file.size:,}"
                    raise OutputError(f"{self._at(file.name)}: was uploaded, and {found}; {_AGAIN}")

    def _names(self) -> list[str]:
        names = list(self.writer.sizes(self.url))
        known = self._receipts
        self._receipts = {
            name.removeprefix(_RECEIPTS): known.get(name.removeprefix(_RECEIPTS))
            for name in names
            if name.startswith(_RECEIPTS)
        }
        self._is_listed = True
        return names

    def _at(self, name: str) -> str:
        return f"{self.url}/{name}"


def upload_at(url: str) -> Upload:
    """Return what can be written below a URL, which is reached by what the environment says."""
    return Upload(str(path_at(url)), ObjectWriter())


_AGAIN: Final = "remove what is below the URL, and run again"


def _decoded(url: str, data: bytes) -> UploadReceipt:
    try:
        return msgspec.json.decode(data, type=UploadReceipt)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{url}: damaged, or of another version of Headrace: {error}") from error
