"""Writes what all commands print with ``--json``, and what planned jobs keep.

    python tests/golden/make_commands.py tests/golden/commands.json

The commands are those of `commands_made`; nothing but Headrace is needed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import commands_made


def main() -> None:
    """Write one file, with a line for each command."""
    path = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        found = commands_made.made()
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items()]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        os.chdir(path.parent)


if __name__ == "__main__":
    main()
