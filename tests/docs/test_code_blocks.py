"""What README and docs show is true: their Python and `headrace` commands run, and print what is written there.

The blocks of a file run in order, in one namespace and in a folder of its own, see `template`.

In ``python`` blocks the lines that begin with ``# >`` are what the block prints, wherever it is wrapped. In ``sh``
blocks the lines that begin with ``headrace`` run. Blocks marked ``no-run`` need what a test has not got, such as eight
processes.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner

import headrace
from headrace.cli import main

ROOT = Path(__file__).parents[2]
HEADRACE = str(Path(sysconfig.get_path("scripts")) / "headrace")
FILES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
SEPARATE = {"docs/prepare.md"}
"""Files whose blocks show ways to do the same thing: each has a folder of its own."""

FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


class Block(NamedTuple):
    """One fenced block of a file."""

    file: str
    line: int
    kind: str
    code: str


def blocks(file: str) -> list[Block]:
    """The blocks to run."""
    text = (ROOT / file).read_text(encoding="utf-8")
    found = [
        Block(file, text.count("\n", 0, match.start()) + 2, match[1].strip(), match[2])
        for match in FENCE.finditer(text)
    ]
    return [block for block in found if block.kind in ("python", "sh")]


@pytest.fixture
def _own_modules(tmp_path: Path) -> Iterator[None]:
    """What blocks import from their folder is not for the tests after them."""
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.usefixtures("warm_workers", "_own_modules")
@pytest.mark.parametrize("file", [file for file in FILES if blocks(file)])
def test_blocks(
    file: str,
    template: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, block in enumerate(blocks(file)):
        folder = tmp_path / (str(number) if file in SEPARATE else "one")
        if not folder.exists():
            shutil.copytree(template, folder)
        monkeypatch.chdir(folder)
        if block.kind == "sh":
            run_commands(block)
            continue
        capsys.readouterr()
        # Newlines in front, so that a traceback names the line of the file.
        exec(compile("\n" * (block.line - 1) + block.code, str(ROOT / file), "exec", dont_inherit=True), namespace)
        claimed = " ".join(line[3:] for line in block.code.splitlines() if line.startswith("# >")).split()
        if claimed:
            assert capsys.readouterr().out.split() == claimed, f"{file}, line {block.line}"


def run_commands(block: Block) -> None:
    """Each ``headrace`` line of a block; it must succeed. In this process, but for those of the README."""
    for line in block.code.replace("\\\n", " ").splitlines():
        if not line.startswith("headrace "):
            continue
        command = shlex.split(line, comments=True)
        if block.file == "README.md":
            done = subprocess.run([HEADRACE, *command[1:]], capture_output=True, text=True, check=False)
            code, said = done.returncode, done.stdout + done.stderr
        else:
            result = CliRunner().invoke(main, command[1:])
            code, said = result.exit_code, f"{result.output}{result.exception or ''}"
        assert code == 0, f"{block.file}, line {block.line}: {line}\n{said}"


def test_blocks_are_found_and_run() -> None:
    kinds = [block.kind for file in FILES for block in blocks(file)]
    assert kinds.count("python") > 20
    assert sum(block.code.count("\n# > ") for file in FILES for block in blocks(file)) > 20, "outputs are compared"
    assert kinds.count("sh") >= 3
    fences = [(file, match) for file in FILES for match in FENCE.finditer((ROOT / file).read_text())]
    # A page about a trainer shows what only that trainer runs, and some blocks need a bucket; tests/interop and
    # tests/remote run such things.
    skipped = [file for file, match in fences if "no-run" in match[1] and "s3://" not in match[2]]
    of_trainers = ("docs/one-line.md", "docs/migrate/arriving.md")
    trainers = [file for file in skipped if "integrations" in str(file) or file in of_trainers]
    assert len(skipped) - len(trainers) <= 5, "most of what is shown must run"
    assert max(Counter(trainers).values()) <= 3


def test_a_wrong_claim_is_noticed(
    template: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    for code, error in (("print(1)\n# > 2\n", AssertionError), ("1 / 0\n", ZeroDivisionError)):
        (tmp_path / "wrong.md").write_text(f"text\n\n```python\n{code}```\n")
        with pytest.raises(error):
            test_blocks("wrong.md", template, tmp_path, monkeypatch, capsys)
    with pytest.raises(AssertionError, match="nowhere"):
        run_commands(Block("wrong.md", 1, "sh", "headrace info nowhere\n"))


@pytest.mark.parametrize("file", FILES)
def test_links_lead_somewhere(file: str) -> None:
    for target in LINK.findall((ROOT / file).read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (ROOT / file).parent.joinpath(target).exists(), f"{file}: {target}"


def test_every_page_is_on_the_map() -> None:
    listed = set(LINK.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").glob("**/*.md")}
    assert pages - {"index.md"} <= listed


def test_every_page_has_a_place_in_the_tree_of_the_site() -> None:
    """`mkdocs.yml` lists every page once, and none that is not there; `make docs` builds it and follows all links."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- (?:[^:\n]+: )?([\w/-]+\.md)$", text.split("\nnav:\n")[1], re.MULTILINE)
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").glob("**/*.md")}
    made = {"examples.md", "changelog.md", "contributing.md", "security.md"}
    assert sorted(page for page in listed if not page.startswith("reference/")) == sorted(pages | made)


def test_the_file_tree_is_true() -> None:
    """Every path in the tree exists, and no room, page or folder is left out."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tree = next(match[2] for match in FENCE.finditer(text) if match[1] == "tree")
    listed: set[Path] = set()
    stack: list[tuple[int, Path]] = [(-1, ROOT)]
    for line in filter(str.strip, tree.splitlines()):
        indent = len(line) - len(line.lstrip())
        while stack[-1][0] >= indent:
            stack.pop()
        path = stack[-1][1] / line.split()[0]
        assert path.exists(), f"{path.relative_to(ROOT)} does not exist"
        stack.append((indent, path))
        listed.add(path)
    wanted = [path for path in (ROOT / "src" / "headrace").iterdir() if path.is_dir() or path.name == "errors.py"]
    wanted += [ROOT / name for name in ("benchmarks", "docs", "examples", "src/headrace", "tests")]
    missing = {str(path.relative_to(ROOT)) for path in wanted if "__pycache__" not in path.name and path not in listed}
    assert not missing


def is_importable(name: str) -> bool:
    """Faces for trainers import the package that they are called after, if it is installed."""
    return not name.startswith("headrace.integrations.") or find_spec(name.rpartition(".")[2]) is not None


NAMES = (module.name for module in pkgutil.walk_packages(headrace.__path__, "headrace."))
MODULES = sorted(filter(is_importable, NAMES))
FINDER = doctest.DocTestFinder(exclude_empty=True)


def examples(name: str) -> list[doctest.DocTest]:
    """The examples of a module, each with the names that it may use."""
    namespace = {"headrace": headrace, "np": np}
    found = FINDER.find(importlib.import_module(name), extraglobs=namespace)
    return [test for test in found if test.examples]


def has_examples(name: str) -> bool:
    if name.endswith("__main__"):
        return False
    try:
        return bool(examples(name))
    except headrace.errors.MissingExtraError:
        # The face of a trainer that only `make interop` has, which runs its tests.
        assert name.startswith("headrace.integrations.")
        return False


WITH_EXAMPLES = [name for name in MODULES if has_examples(name)]


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run(name: str, docstring_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    shutil.copytree(docstring_template, tmp_path / "folder")
    monkeypatch.chdir(tmp_path / "folder")
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for test in examples(name):
        runner.run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize("name", sorted(headrace.__all__))
def test_public_names_have_an_example(name: str) -> None:
    thing = getattr(headrace, name)
    if not callable(thing) or (inspect.isclass(thing) and issubclass(thing, Exception)):
        return
    assert ">>> " in (thing.__doc__ or ""), f"headrace.{name} has no example"
