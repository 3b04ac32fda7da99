"""The place of the job of a dataset at the URL of an object store.

Nothing is written beside the job before all new files are ready. Then the info file is removed, without which no reader
opens the dataset; the others are written, and a new info file last. If the process is killed in between, any other one,
on any host, carries out the rest.
"""

from __future__ import annotations

from headrace.engine.job import NewPlan, PlanFile, decoded_plan
from headrace.engine.shared import Shared
from headrace.engine.shared_objects import opened, save_plan
from headrace.engine.uploading import PLAN, Upload
from headrace.io import Storage
from headrace.io.objects.writer import ObjectWriter


class ObjectPlace:
    """The `Place` of a dataset at a URL.

    Args:
        url: the URL of its ``.nv-meta``.
        storage: how the store is reached; None goes by the environment.
    """

    def __init__(self, url: str, storage: Storage | None) -> None:
        self._storage = storage
        self._upload = Upload(url, ObjectWriter(storage))

    def planned(self) -> PlanFile | None:
        """See `Place`."""
        url = f"{self._upload.url}/{PLAN}"
        data = self._upload.writer.read(url)
        return None if data is None else decoded_plan(data, url)

    def save(self, new: NewPlan) -> None:
        """See `Place`."""
        save_plan(self._upload.url, self._upload.writer, new)

    def shared(self) -> Shared:
        """See `Place`."""
        return opened(self._upload.url, self._storage)

    def clear(self) -> None:
        """See `Place`."""
        self._upload.clear()
