"""The figures of the house are counted rightly, on a small package whose figures are known."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

import programs


@pytest.fixture(scope="module")
def house() -> ModuleType:
    return programs.load(Path(__file__).parents[1] / "tools" / "house.py")


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
    assert house.named_figures(modules) == {
        "modules_with_one_importer_a_sibling": [
            "headrace.a (15 lines with b)",
            "headrace.b (15 lines with a)",
        ],
        "files_below_60_lines": ["headrace.a (5)", "headrace.b (10)", "headrace.c (4)", "headrace.room.d (4)"],
        "circles_among_files": ["headrace.a headrace.b"],
        "own_names_imported_inside_functions": ["headrace.b <- headrace.a"],
        "public_class_names_in_several_files": ["B: headrace.b, headrace.room.d"],
        "named_dataset_and_not_a_dataset": ["PlainDataset"],
        "functions_above_complexity_15": [],
    }


def test_decisions_make_a_function_complex(house: ModuleType, root: Path) -> None:
    branches = "".join(f"    if x == {number} or x == -{number}:\n        return {number}\n" for number in range(8))
    (root / "src" / "headrace" / "c.py").write_text(f"def many(x):\n{branches}\n\ndef few(x):\n    return x\n")
    assert house.complex_functions(house.modules_of(root)) == ["headrace.c many (17)"]


def test_circles(house: ModuleType) -> None:
    assert house.circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}) == [
        ["a", "b", "c"],
        ["d", "e"],
    ]
    chain = {str(number): {str(number + 1)} for number in range(5000)}
    assert house.circles(chain) == []
    assert [len(one) for one in house.circles({**chain, "5000": {"0"}})] == [5001]
