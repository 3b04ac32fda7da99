"""Sources in object stores: loaded when the first URL comes."""

from __future__ import annotations

from headrace.copying.sources import HashingMixin
from headrace.io.objects import ObjectReader


class HashingObjectReader(HashingMixin, ObjectReader):
    """Reads objects, and hashes them."""
