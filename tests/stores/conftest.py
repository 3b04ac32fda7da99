"""What holds for the tests of all stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from counts import cases
from headrace.testing.stores import StoreContract

StoreContract.flip_every = cases(11, 1)
StoreContract.range_every = cases(41, 3)


@pytest.fixture(autouse=True)
def no_fsync() -> Iterator[None]:
    """What these tests write need not survive the machine; a kill loses nothing that the system has taken.

    Like `cores_of_loaders` this does not take `monkeypatch`, which would then begin before all other fixtures.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda fd: None)
        yield
