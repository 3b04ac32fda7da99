"""A dataset at the URL of an object store: how its files are read, and the `Place` of its job.

Nothing is written beside the job before all new files are ready. Then the info file is removed, without which no reader
opens the dataset; the others are written, and a new info file last. If the process is killed in between, any other one,
on any host, carries out the rest.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import msgspec

from headrace.engine.job import NewPlan, decoded_plan
from headrace.engine.shared import Shared
from headrace.engine.shared_objects import opened, save_plan
from headrace.engine.uploading import PLAN, Upload
from headrace.io import Storage
from headrace.io.objects.writer import ObjectWriter
from headrace.preparing.energon.place import KIND
from headrace.preparing.energon.plan import ReadPlan
from headrace.stores.energon.config_file import META_FOLDER


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
