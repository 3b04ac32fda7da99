"""The walks that tools/walk.py follows are counted rightly; `docs/test_how_it_works.py` follows them to their ends."""

from __future__ import annotations

from pathlib import Path

import programs


def test_calls_and_changes_of_file_are_counted(tmp_path: Path) -> None:
    walk = programs.load(Path(__file__).parents[1] / "tools" / "walk.py")
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text("def outer(inner):\n    helper()\n    return inner()\n\n\ndef helper(): ...\n")
    (package / "b.py").write_text("def inner():\n    return 1\n")
    names: dict[str, object] = {}
    for file in ("a.py", "b.py"):
        exec(compile((package / file).read_text(), str(package / file), "exec"), names)
    outer, inner = names["outer"], names["inner"]
    assert callable(outer)
    walk.follow(package, lambda: outer(inner), tmp_path / "log")
    found = walk.figures(tmp_path / "log")
    # Into b.py and back; the call that begins the walk comes from nowhere.
    assert found == {
        "files": 2,
        "calls": 3,
        "changes_of_file": 2,
        "threads": [["a.py outer", "a.py helper", "b.py inner"]],
    }
