"""Sources in object stores: loaded when the first URL comes."""

from __future__ import annotations

from headrace.copying.sources import HashingMixin
from headrace.io import RemotePath
from headrace.io.objects import ObjectReader
from headrace.io.objects.reader import reader_for


class HashingObjectReader(HashingMixin, ObjectReader):
    """Reads objects, and hashes them."""


def hashing_reader(place: RemotePath) -> HashingMixin:
    """Return a reader that reaches the store as a path does."""
    known = reader_for([place], None)
    return HashingObjectReader(known.objects.storage)
