"""Writes the golden hashes: of each file that `headrace prepare`, `merge`, `split` and `convert` finish.

    python tests/golden/make_prepared.py tests/golden/prepared.json

The commands are those of `prepared_made`; nothing but Headrace is needed. The README beside says what is in the file.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import prepared_made


def main() -> None:
    """Write one file."""
    path = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        path.write_text(json.dumps(prepared_made.made(), indent=1) + "\n")
        os.chdir(path.parent)


if __name__ == "__main__":
    main()
