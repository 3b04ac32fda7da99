"""Memory of samples that were let go is used again."""

from __future__ import annotations

from typing import Final

import numpy as np

_BYTES: Final = 8 << 20
"""More than the parts of most samples; glibc takes the hint from blocks of up to 32 MiB."""


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, up to twice ``_BYTES``; nothing but time changes.

    Glibc gives memory back to the system as soon as 128 KiB are free at the end of its heap, until a larger block was
    freed once. A batch of images that is let go and the next one that is read then cost a fault and 4 KiB of zeros
    for each page, about as much as to copy the bytes themselves. Costs some microseconds.
    """
    np.empty(_BYTES, np.uint8)
