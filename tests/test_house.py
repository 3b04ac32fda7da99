"""The figures of the house are counted rightly, on a small package whose figures are known."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).parents[1] / "tools" / "house.py"


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "house", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "__init__.py": '"""The package."""\n',
        "a.py": "from headrace.b import B\nfrom headrace import c\n\n\nclass PlainDataset(B): ...\n",
        "b.py": (
            "def late():\n    from headrace.a import PlainDataset\n    return PlainDataset\n\n\n"
            "# a comment\nclass B:\n    '''A docstring\n    of two lines.'''\n"
            "    value = 1 if late() and late() else 2\n"
        ),
        "c.py": "class Dataset: ...\n\n\nclass RealDataset(Dataset): ...\n",
        "room/__init__.py": "",
        "room/d.py": "from ..c import Dataset as Base\n\n\nclass B(Base): ...\n",
    }
    for name, text in files.items():
        path = tmp_path / "src" / "headrace" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_the_figures_of_a_small_package(house: ModuleType, root: Path) -> None:
    modules = house.modules_of(root)
    assert sorted(modules) == [f"headrace{name}" for name in ("", ".a", ".b", ".c", ".room", ".room.d")]
    assert modules["headrace.b"].lines == 10
    assert modules["headrace.b"].code_lines == 5
    imported = {name: list(house.imports_of(module, modules)) for name, module in modules.items()}
    assert [one.target for one in imported["headrace.a"]] == ["headrace.b", "headrace.c"]
    assert [one.target for one in imported["headrace.room.d"]] == ["headrace.c"]
    assert [(one.target, one.inside) for one in imported["headrace.b"]] == [("headrace.a", True)]
    edges = {name: {one.target for one in found} for name, found in imported.items()}
    assert house.circles(edges) == [["headrace.a", "headrace.b"]]
    several, not_datasets = house.class_figures(modules)
    assert several == {"B": ["headrace.b", "headrace.room.d"]}
    assert not_datasets == ["PlainDataset"]
    assert house.num_complex(modules) == 0


def test_circles(house: ModuleType) -> None:
    assert house.circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}) == [
        ["a", "b", "c"],
        ["d", "e"],
    ]
    chain = {str(number): {str(number + 1)} for number in range(5000)}
    assert house.circles(chain) == []
    assert [len(one) for one in house.circles({**chain, "5000": {"0"}})] == [5001]
