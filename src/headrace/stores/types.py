"""Types and names that all of this room shares."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
TokenArray = NDArray[Any]
MAIN = "tokens"
"""What the main key of every store is called, besides its own name."""

KeyList = list[str] | tuple[str, ...]
"""Several keys. Not ``Sequence[str]``, which a single ``str`` is, too."""
