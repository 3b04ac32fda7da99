"""What holds for the tests of all stores."""

from __future__ import annotations

from counts import cases
from headrace.testing.stores import StoreContract

StoreContract.flip_every = cases(5, 1)
StoreContract.range_every = cases(17, 3)
