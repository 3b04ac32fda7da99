"""Writes the golden states: of a run of every kind its file, its saved states, and what comes after them.

    python tests/golden/make_states.py tests/golden/states

The runs are those of `states_made`; nothing but Headrace is needed. The README beside says what is in each file.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import states_made


def main() -> None:
    """Write a file for each kind."""
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        for kind, make in {**states_made.KINDS, **states_made.EDITED}.items():
            text = states_made.written(states_made.golden(make()))
            (folder / states_made.file_name(kind)).write_text(text)
        os.chdir(folder)


if __name__ == "__main__":
    main()
