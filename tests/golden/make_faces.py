"""Writes the golden faces: states and samples of loaders and samplers under the names of others.

    python tests/golden/make_faces.py tests/golden/faces

They are those of `faces_made`; nothing but Headrace is needed. The README beside says what is in each file.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import faces_made


def main() -> None:
    """Write a file of the loaders, and one of AstrAI's."""
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        found = {"energon": {kind: faces_made.of_loader(kind) for kind in faces_made.LOADERS}}
        for name, content in {**found, "astrai": faces_made.astrai()}.items():
            (folder / f"{name}.json").write_text(json.dumps(content) + "\n")
        os.chdir(folder)


if __name__ == "__main__":
    main()
