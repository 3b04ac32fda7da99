"""The arrows between rooms, what `import headrace` loads, and the public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

SOURCE = Path(headrace.__file__).parent
MAY_IMPORT = {
    "errors": set(),
    "_version": set(),
    "__main__": {"cli"},
    "io": {"errors"},
    "stores": {"io", "errors"},
    "plan": {"errors"},
    "samples": {"plan", "errors"},
    "prepare": {"stores", "samples", "plan", "io", "errors"},
    "copying": {"stores", "plan", "io", "errors"},
    "encoders": {"samples", "plan", "errors"},
    "datasets": {"stores", "samples", "plan", "encoders", "errors"},
    "loader": {"datasets", "encoders", "plan", "io", "errors"},
    "testing": {"loader", "datasets", "prepare", "copying", "stores", "samples", "plan", "io", "errors"},
    "cli": {
        *("loader", "datasets", "encoders", "prepare", "copying", "stores", "samples", "plan", "io", "errors"),
        "_version",
    },
}
WITHOUT_TORCH = set(MAY_IMPORT) - {"loader"}
HEAVY = ["torch", "pyarrow", "h5py", "tokenizers", "numba", "pytest", "hypothesis"]


def rooms() -> list[str]:
    return sorted(path.stem for path in SOURCE.iterdir() if path.name not in ("__init__.py", "__pycache__", "py.typed"))


def imports(file: Path, *, top_level: bool = False) -> set[str]:
    """Modules that a file imports, absolutely; at its top level only, or anywhere."""
    tree = ast.parse(file.read_text())
    nodes = tree.body if top_level else list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_every_room_is_known() -> None:
    assert rooms() == sorted(MAY_IMPORT)


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_arrows(room: str) -> None:
    place = SOURCE / room
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    assert files
    for file in files:
        used = {name.split(".")[1] for name in imports(file) if name.startswith("headrace.")}
        assert used <= MAY_IMPORT[room] | {room}, (
            f"{file.relative_to(SOURCE)} imports {used - MAY_IMPORT[room] - {room}}"
        )
        if room in WITHOUT_TORCH:
            heavy = {name.split(".")[0] for name in imports(file, top_level=True)}
            assert "torch" not in heavy, f"{file.relative_to(SOURCE)} imports torch at its top level"


def loaded(code: str) -> set[str]:
    script = f"import sys; {code}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_loads_nothing_heavy() -> None:
    assert not loaded("import headrace") & {*HEAVY, "numpy", "msgspec"}
    assert not loaded("import headrace; headrace.open; headrace.Run; headrace.Blend") & set(HEAVY)
    assert not loaded("import headrace.cli") & set(HEAVY)


def test_public_names_are_sorted_and_complete() -> None:
    names = headrace.__all__
    assert names == sorted(names)
    assert set(names) == {*headrace._HOMES, "__version__"}
    assert dir(headrace) == names
    for name in names:
        assert getattr(headrace, name) is not None
        if name in headrace._HOMES:
            assert name in __import__(headrace._HOMES[name], fromlist=["__all__"]).__dict__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        headrace.nothing  # noqa: B018


@pytest.mark.parametrize("room", sorted(name for name in MAY_IMPORT if (SOURCE / name).is_dir()))
def test_each_room_says_what_it_is(room: str) -> None:
    module = ast.parse((SOURCE / room / "__init__.py").read_text())
    assert len((ast.get_docstring(module) or "").splitlines()) > 1


def test_no_file_is_a_monster() -> None:
    for file in SOURCE.rglob("*.py"):
        assert len(file.read_text().splitlines()) <= 400, f"{file.relative_to(SOURCE)}: look for a natural cut"
