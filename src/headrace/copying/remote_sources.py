"""Sources in object stores: loaded when the first URL comes."""

from __future__ import annotations

from io import FileIO, RawIOBase
from pathlib import Path

from headrace.copying.sources import HashingMixin
from headrace.io import AnyPath
from headrace.io.objects import ObjectReader
from headrace.io.objects.files import ObjectFile


class HashingObjectReader(HashingMixin, ObjectReader):
    """Reads objects, and hashes them."""

    def _as_file(self, path: AnyPath) -> RawIOBase | FileIO:
        if isinstance(path, Path):
            return FileIO(path)
        local = self._local_name(str(path))  # an index is there already
        return (
            ObjectFile(str(path), self.objects.known(str(path)), self.objects.storage)
            if local is None
            else FileIO(local)
        )
