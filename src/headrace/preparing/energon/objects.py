"""A dataset at the URL of an object store: how its files are read, and the `Place` of its job.

Nothing is written beside the job before all new files are ready. Then the info file is removed, without which no reader
opens the dataset; the others are written, and a new info file last. If the process is killed in between, any other one,
on any host, carries out the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec
import numpy as np

from headrace.engine.planning import NewPlan
from headrace.engine.shared import Shared
from headrace.engine.shared_objects import JobUrl
from headrace.io import FetchPolicy, ObjectReader, RemotePath, Storage
from headrace.io.objects.writer import PART_BYTES, ObjectWriter
from headrace.io.remote import Status
from headrace.preparing.energon.place import KIND
from headrace.preparing.energon.plan import ReadPlan
from headrace.preparing.energon.scanning import FoundFile, ShardScan
from headrace.stores.energon.config_file import META_FOLDER, META_WORK_NAME
from headrace.stores.energon.jsonl import index_place, scan_lines
from headrace.stores.energon.sqlite_index import MediaRow
from headrace.stores.kept_arrays import ENTRY
from headrace.stores.tar.index import beside


def reading(plan: ReadPlan, storage: Storage | None) -> Callable[[FoundFile], ShardScan | MediaRow | None]:
    """Return what reads a file of a plan at a URL, in any thread, see `ReadPlan.read`.

    All answers must come from the object that was found; otherwise that raises StoreError.
    """
    reader = ObjectReader(storage)
    root = RemotePath(plan.root, reader.objects)

    def read(file: FoundFile) -> ShardScan | MediaRow | None:
        reader.objects.expect(str(root / file.name), Status(file.size, file.etag, file.mtime_ns))
        return plan.read(root, file, reader)

    return read


def write_remote_lines(root: RemotePath, storage: Storage | None) -> int:
    """Write the index of a ``.jsonl`` beside it, and return the number of records.

    Raises:
        InputError: a line is not a JSON object.
        StoreError: the object cannot be read, or changes meanwhile.
        OutputError: the index cannot be written.
    """
    reader = ObjectReader(storage)
    offsets = scan_lines(str(root), reader)
    data = np.ascontiguousarray(offsets, ENTRY).tobytes()
    # It is sent whole, so that nothing has to be found after a kill; a long one has more time.
    parts, usual = 1 + len(data) // PART_BYTES, FetchPolicy()
    policy = FetchPolicy(attempt_s=parts * usual.attempt_s, deadline_s=parts * usual.deadline_s)
    ObjectWriter(storage, policy).put({str(index_place(root, reader)): data})
    return len(offsets) - 1


class ObjectPlace:
    """The `Place` of a dataset at a URL. Of processes that make new files at the same time, all take those of one.

    Args:
        url: the dataset.
        storage: how the store is reached; None goes by the environment.
    """

    def __init__(self, url: str, storage: Storage | None) -> None:
        self._url = url
        self._storage = storage
        self._job = JobUrl(RemotePath(f"{url}/{META_FOLDER}/{META_WORK_NAME}", ObjectReader(storage).objects))

    def claimed(self) -> AbstractContextManager[object]:
        """See `Place`."""
        return nullcontext()

    def planned(self) -> ReadPlan | None:
        """See `Place`."""
        found = self._job.planned()
        return None if found is None else msgspec.json.decode(found.plan, type=ReadPlan)

    def save(self, plan: ReadPlan) -> None:
        """See `Place`."""
        self._job.save(NewPlan(KIND, plan))

    def shared(self) -> Shared:
        """See `Place`."""
        return self._job.shared()

    def put_index(self, scan: ShardScan) -> None:
        """See `Place`."""
        writer, url = ObjectWriter(self._storage), f"{self._url}/{beside(scan.tar.name)}"
        if writer.read(url) != scan.offsets:
            writer.put({url: scan.offsets})

    def put(self, name: str, made: Path) -> None:
        """See `Place`."""
        self._job.writer.put_files({f"{self._url}/{META_FOLDER}/{name}": made})

    def clear(self) -> None:
        """See `Place`."""
        self._job.clear()
