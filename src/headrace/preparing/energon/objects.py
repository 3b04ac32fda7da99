"""A dataset at the URL of an object store: how its files are read, and the `Place` of its job.

Nothing is written beside the job before all new files are ready. Then the info file is removed, without which no reader
opens the dataset; the others are written, and a new info file last. If the process is killed in between, any other one,
on any host, carries out the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import msgspec

from headrace.engine.job import NewPlan, decoded_plan
from headrace.engine.shared import Shared
from headrace.engine.shared_objects import opened, save_plan
from headrace.engine.uploading import PLAN, Upload
from headrace.io import ObjectReader, RemotePath, Storage
from headrace.io.objects.writer import ObjectWriter
from headrace.io.remote import Status
from headrace.preparing.energon.place import KIND
from headrace.preparing.energon.plan import ReadPlan
from headrace.preparing.energon.scanning import FoundFile, ShardScan
from headrace.stores.energon.config_file import META_FOLDER
from headrace.stores.energon.sqlite_index import MediaRow


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


class ObjectPlace:
    """The `Place` of a dataset at a URL. Of processes that make new files at the same time, all take those of one.

    Args:
        url: the dataset.
        storage: how the store is reached; None goes by the environment.
    """

    def __init__(self, url: str, storage: Storage | None) -> None:
        self._storage = storage
        self._upload = Upload(f"{url}/{META_FOLDER}", ObjectWriter(storage))

    def claimed(self) -> AbstractContextManager[object]:
        """See `Place`."""
        return nullcontext()

    def planned(self) -> ReadPlan | None:
        """See `Place`."""
        url = f"{self._upload.url}/{PLAN}"
        data = self._upload.writer.read(url)
        return None if data is None else msgspec.json.decode(decoded_plan(data, url).plan, type=ReadPlan)

    def save(self, plan: ReadPlan) -> None:
        """See `Place`."""
        save_plan(self._upload.url, self._upload.writer, NewPlan(KIND, plan, [plan.phase, plan.merging]))

    def shared(self) -> Shared:
        """See `Place`."""
        return opened(self._upload.url, self._storage)

    def clear(self) -> None:
        """See `Place`."""
        self._upload.clear()
