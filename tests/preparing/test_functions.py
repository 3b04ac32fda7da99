"""``module:function``: found as ``python -m`` finds modules, or refused with what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.preparing.filters import function_fingerprint, load_function


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module, a package and broken ones; all forgotten afterwards."""
    (tmp_path / "quality.py").write_text(
        "import os.path\n\ndef is_good(record):\n    return True\n\nLIMIT = 3\n\n"
        "class Kinds:\n    @staticmethod\n    def is_code(record):\n        return False\n"
    )
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "inner.py").write_text("from quality import is_good\n\ndef other(record):\n    return 'x'\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "torn.py").write_text("def f(:\n")
    (tmp_path / "leaves.py").write_text("raise SystemExit(1)\n")
    (tmp_path / "lacking.py").write_text("import no_such_module_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_loads(here: Path) -> None:
    assert load_function("quality:is_good")({}) is True
    assert load_function("quality:Kinds.is_code")({}) is False
    assert load_function("pack.inner:other")({}) == "x"
    assert load_function("os.path:exists") is os.path.exists
    assert sys.path[0] == str(here)
    assert sys.path.count(str(here)) == 1


def test_other_processes_find_it_by_the_same_path(here: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    load_function("quality:is_good")
    code = f"import sys; sys.path[:] = {sys.path!r}; import quality; print(quality.is_good({{}}))"
    folder = tmp_path_factory.mktemp("elsewhere")
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quality", "'quality' does not name a function: write module:function"),
        ("quality:", "does not name a function"),
        (":is_good", "does not name a function"),
        ("quality.py:is_good:x", "does not name a function"),
        ("./quality:is_good", "does not name a function"),
        ("quality:is good", "does not name a function"),
        ("qualty:is_good", "there is no module 'qualty', .* installed; did you mean 'quality'?"),
        ("pack.innr:other", "there is no module 'pack.innr'"),
        ("nothing_like_it.a:b", "there is no module 'nothing_like_it', neither in the current folder nor installed$"),
        ("quality:is_god", r"quality\.py has no 'is_god'; did you mean 'is_good'\?"),
        ("quality:Kinds.is_cod", r"has no 'is_cod'; did you mean 'is_code'\?"),
        ("quality:zzz", r"quality\.py has no 'zzz'$"),
        ("quality:LIMIT", "is not a function but of type int"),
        ("quality:LIMIT.x", "has no 'x'"),
        ("broken:f", "the module cannot be imported: ZeroDivisionError: division by zero"),
        ("torn:f", "the module cannot be imported: SyntaxError"),
        ("leaves:f", "the module cannot be imported: SystemExit: 1"),
        ("lacking:f", "the module cannot be imported: No module named 'no_such_module_at_all'"),
    ],
)
def test_refuses(here: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_function(name)
    assert repr(name) in str(caught.value)


def test_the_fingerprint_follows_the_source(here: Path) -> None:
    first = function_fingerprint("quality:is_good")
    assert first == function_fingerprint("quality:is_good")
    # The name is not part of it, the file is; a function from elsewhere counts with both files.
    assert first == function_fingerprint("quality:Kinds.is_code")
    through = function_fingerprint("pack.inner:is_good")
    own = function_fingerprint("pack.inner:other")
    assert len({first, through, own}) == 3
    with (here / "quality.py").open("a") as file:
        file.write("# changed\n")
    assert function_fingerprint("quality:is_good") != first
    assert function_fingerprint("pack.inner:is_good") != through
    assert function_fingerprint("pack.inner:other") == own


def test_the_fingerprint_of_what_has_no_source(here: Path) -> None:
    assert function_fingerprint("builtins:bool") == function_fingerprint("builtins:len")
    assert function_fingerprint("builtins:bool") != function_fingerprint("quality:is_good")
