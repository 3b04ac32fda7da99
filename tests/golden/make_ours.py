"""Writes the golden files that Headrace itself makes, with nothing else.

    python tests/golden/make_ours.py states      a run of every kind: its file, its saved states, what comes after them
    python tests/golden/make_ours.py faces       states and samples of loaders and samplers under the names of others
    python tests/golden/make_ours.py prepared    hashes of what `prepare`, `merge`, `split` and `convert` finish
    python tests/golden/make_ours.py commands    what commands print with ``--json``, and what planned jobs keep

What is written is made by `states_made`, `faces_made`, `prepared_made` and `commands_made`, and lies beside this file,
whose README says what is in it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).absolute().parent
sys.path.insert(0, str(HERE.parent))


def states() -> dict[str, str]:
    """A file for each kind."""
    import states_made

    kinds = {**states_made.KINDS, **states_made.EDITED}
    made = {kind: states_made.written(states_made.golden(make())) for kind, make in kinds.items()}
    return {f"states/{states_made.file_name(kind)}": text for kind, text in made.items()}


def faces() -> dict[str, str]:
    """A file of the loaders, and one of AstrAI's."""
    import faces_made

    loaders = {kind: faces_made.of_loader(kind) for kind in faces_made.LOADERS}
    found = {"energon": loaders, "astrai": faces_made.astrai()}
    return {f"faces/{name}.json": json.dumps(content) + "\n" for name, content in found.items()}


def prepared() -> dict[str, str]:
    import prepared_made

    return {"prepared.json": json.dumps(prepared_made.made(), indent=1) + "\n"}


def commands() -> dict[str, str]:
    """A line for each command."""
    import commands_made

    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in commands_made.made().items()]
    return {"commands.json": "{\n" + ",\n".join(lines) + "\n}\n"}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        for file, text in {one.__name__: one for one in (states, faces, prepared, commands)}[sys.argv[1]]().items():
            (HERE / file).write_text(text)
        os.chdir(HERE)
