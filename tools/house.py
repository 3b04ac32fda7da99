"""Measures the size and structure of the code: files, folders, imports and public names.

    python tools/house.py [--root CHECKOUT] [--names] [--json]

The tool counts in the package at ``CHECKOUT/src/headrace``, by default in this checkout: the code lines of each room
beside its budget, of all hand-written text but comments, docstrings and the suite of chat templates. It also imports
the package in separate processes, to see which modules are loaded. The figures serve to compare two commits.
"""

from __future__ import annotations

import argparse
import ast
import collections
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PACKAGE = "headrace"
SMALL_LINES = 60
MAX_COMPLEXITY = 15

BUDGETS = {
    "errors, config, environment": 500,
    "io": 2_300,
    "plan": 6_950,
    "stores": 8_700,
    "samples": 8_300,
    "encoders": 900,
    "engine": 2_100,
    "preparing": 7_000,
    "copying": 1_300,
    "cache": 650,
    "datasets": 7_600,
    "tracing": 2_300,
    "loader": 4_300,
    "testing": 1_000,
    "compat": 4_400,
    "integrations": 1_700,
    "inspect": 4_500,
    "cli": 2_100,
    "ui": 1_500,
}
"""The most code lines of each room when the house is rebuilt; what lies beside the rooms counts with the first line."""
ALL_BUDGET = 68_000
TEXTS = {
    ".css": ("/*", "*/"),
    ".html": ("<!--", "-->"),
    ".jinja": ("{#", "#}"),
    ".js": ("/*", "*/"),
    ".pyi": ("#", "\n"),
}
"""Hand-written files that are not Python: how their comments begin and end."""
NOT_COUNTED = "samples/templates/suite/"

LOADED = """
import sys
import tempfile
{imports}
own = [m for name, m in sys.modules.items() if name.split(".")[0] == "headrace" and getattr(m, "__file__", None)]
print(len(own), sum(len(open(m.__file__).readlines()) for m in own))
"""
CPU_MS = """
import gc, time
import torch, torch.utils.data
gc.collect()
begin = time.process_time()
{imports}
print(round(1000 * (time.process_time() - begin)))
"""
"""Without torch, and without the garbage collection that importing torch leaves due."""

RUN_ALONE = "from headrace.datasets import Run"
TOKEN_BATCH = "import headrace\nheadrace.WindowDataset, headrace.Run, headrace.Loader"


class Module(NamedTuple):
    """A file of the package."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        """The number of lines."""
        return self.text.count("\n")

    @property
    def code_lines(self) -> int:
        """The number of lines with more than white space, comments and docstrings."""
        return _code_lines(self.text, self.tree)

    @property
    def is_package(self) -> bool:
        """Whether the file is the ``__init__.py`` of a folder."""
        return self.path.name == "__init__.py"

    @property
    def package(self) -> str:
        """The package that relative imports of the file start from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


class Import(NamedTuple):
    """An import of one module of the package by another.

    ``inside`` says whether it stands inside a function, and ``for_types`` whether it is for type checkers only.
    """

    target: str
    inside: bool
    for_types: bool


def modules_of(root: Path) -> dict[str, Module]:
    """All files of the package, by name."""
    source = root / "src"
    found = {}
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = list(path.relative_to(source).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text("utf-8")
        found[name] = Module(name, path, text, ast.parse(text))
    return found


def _code_lines(text: str, tree: ast.Module) -> int:
    lines: set[int] = set()
    nothing = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in nothing:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def room_lines(root: Path) -> dict[str, int]:
    """The code lines of each room of `BUDGETS`, and of all together."""
    source = root / "src" / PACKAGE
    found = dict.fromkeys(BUDGETS, 0)
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        if name.startswith(NOT_COUNTED) or (path.suffix != ".py" and path.suffix not in TEXTS):
            continue
        text = path.read_text("utf-8")
        room = name.partition("/")[0]
        lines = _code_lines(text, ast.parse(text)) if path.suffix == ".py" else _text_lines(text, *TEXTS[path.suffix])
        found[room if room in found else next(iter(found))] += lines
    return {**found, "all": sum(found.values())}


def _text_lines(text: str, begin: str, end: str) -> int:
    """The number of lines with more than white space and comments."""
    parts = text.split(begin)
    code = parts[0] + "".join(part.partition(end)[2] for part in parts[1:])
    return sum(bool(line.strip()) for line in code.split("\n"))


def imports_of(module: Module, modules: dict[str, Module]) -> Iterator[Import]:
    """Yield the imports of a file within the package: modules, or the package that a name is imported from."""

    def walk(node: ast.AST, inside: bool, for_types: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue  # holds no import, and is most of a tree
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                for statement in child.body:
                    yield from walk(ast.Module([statement], []), inside, True)
                for statement in child.orelse:
                    yield from walk(ast.Module([statement], []), inside, for_types)
                continue
            if isinstance(child, ast.Import | ast.ImportFrom):
                for target in _targets(child, module, modules):
                    yield Import(target, inside, for_types)
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from walk(child, inside or is_function, for_types)

    yield from walk(module.tree, False, False)


def _targets(node: ast.Import | ast.ImportFrom, module: Module, modules: dict[str, Module]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
        return
    base = node.module or ""
    if node.level:
        parts = module.package.split(".")
        base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
    for alias in node.names:
        if f"{base}.{alias.name}" in modules:
            yield f"{base}.{alias.name}"
        elif base in modules:
            yield base


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The groups of files that import each other, directly or through others (strongly connected components)."""
    order: list[str] = []
    seen: set[str] = set()
    backwards: dict[str, set[str]] = collections.defaultdict(set)
    for name, targets in edges.items():
        for target in targets:
            backwards[target].add(name)

    def visit(start: str, graph: dict[str, set[str]], done: set[str], out: list[str]) -> None:
        stack = [(start, iter(sorted(graph.get(start, ()))))]
        done.add(start)
        while stack:
            name, rest = stack[-1]
            following = next((candidate for candidate in rest if candidate not in done), None)
            if following is None:
                out.append(name)
                stack.pop()
            else:
                done.add(following)
                stack.append((following, iter(sorted(graph.get(following, ())))))

    for name in sorted(edges):
        if name not in seen:
            visit(name, edges, seen, order)
    found, done = [], set[str]()
    for name in reversed(order):
        if name not in done:
            group: list[str] = []
            visit(name, backwards, done, group)
            if len(group) > 1:
                found.append(sorted(group))
    return found


def class_figures(modules: dict[str, Module]) -> tuple[dict[str, list[str]], list[str]]:
    """Public class names that exist in several files, and classes called ``...Dataset`` that are not a ``Dataset``."""
    where: dict[str, list[str]] = collections.defaultdict(list)
    bases: dict[str, set[str]] = collections.defaultdict(set)
    for module in modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                bases[node.name] |= {ast.unparse(base).split("[")[0].rpartition(".")[2] for base in node.bases}
                if not node.name.startswith("_"):
                    where[node.name].append(module.name)

    def is_dataset(name: str, seen: frozenset[str] = frozenset()) -> bool:
        return name == "Dataset" or any(is_dataset(base, seen | {name}) for base in bases[name] if base not in seen)

    several = {name: places for name, places in sorted(where.items()) if len(places) > 1}
    named = sorted(name for name in where if name.endswith("Dataset") and not is_dataset(name))
    return several, named


def run_apart(root: Path, program: str, variables: Mapping[str, str] | None = None) -> str:
    """Run a program in a separate process with the package of this checkout, and return what it prints."""
    environment = {**os.environ, **(variables or {}), "PYTHONPATH": str(root / "src")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the package cannot be measured; the program failed:\n{done.stderr}")
    return done.stdout


def import_cpu_ms(root: Path, imports: str) -> int:
    """CPU milliseconds of some imports, with bytecode cached and torch imported before; the best of five."""
    with tempfile.TemporaryDirectory(prefix="headrace-house-") as cache:
        bytecode = {"PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
        return min(int(run_apart(root, CPU_MS.format(imports=imports), bytecode)) for _ in range(5))


def complex_functions(modules: dict[str, Module]) -> list[str]:
    """The functions with a complexity above 15, which is 1 plus the number of decisions."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return [
        f"{module.name} {node.name} ({_complexity(node)})"
        for module in modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, functions) and _complexity(node) > MAX_COMPLEXITY
    ]


def _complexity(function: ast.AST) -> int:
    decisions = (
        ast.If | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler | ast.IfExp | ast.match_case | ast.Assert
    )
    total = 1
    for node in ast.walk(function):
        if isinstance(node, decisions):
            total += 1
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            total += 1 + len(node.ifs)
    return total


def prepare_options(root: Path) -> int:
    """The largest number of options of a ``headrace prepare`` subcommand."""
    program = (
        "from headrace.cli import main\nimport click, json\n"
        "def count(c, ctx):\n"
        "    if isinstance(c, click.Group):\n"
        "        return max(count(c.get_command(ctx, n), ctx) for n in c.list_commands(ctx))\n"
        "    return sum(isinstance(p, click.Option) for p in c.get_params(click.Context(c)))\n"
        "ctx = click.Context(main)\nprint(count(main.get_command(ctx, 'prepare'), ctx))"
    )
    return int(run_apart(root, program))


def named_figures(modules: dict[str, Module]) -> dict[str, list[str]]:
    """What is counted by name: files, circles, imports, classes and functions that are too many."""
    imported = {name: list(imports_of(module, modules)) for name, module in modules.items()}
    importers: dict[str, set[str]] = collections.defaultdict(set)
    for name, found in imported.items():
        for imported_module in found:
            if imported_module.target != name:
                importers[imported_module.target].add(name)
    edges = {
        # Imports inside functions and for types count too: they hide a circle but do not remove it.
        name: {imported_module.target for imported_module in found if imported_module.target != name}
        for name, found in imported.items()
    }
    several, not_datasets = class_figures(modules)
    return {
        "modules_with_one_importer_a_sibling": [
            f"{name} ({modules[by].lines + module.lines} lines with {by.rpartition('.')[2]})"
            for name, module in modules.items()
            if not module.is_package and len(importers[name]) == 1
            for by in importers[name]
            if not modules[by].is_package and modules[by].path.parent == module.path.parent
        ],
        "files_below_60_lines": [
            f"{name} ({module.lines})"
            for name, module in modules.items()
            if module.lines < SMALL_LINES and not module.is_package
        ],
        "circles_among_files": [" ".join(group) for group in circles(edges)],
        "own_names_imported_inside_functions": [
            f"{name} <- {imported_module.target}"
            for name, found in imported.items()
            for imported_module in found
            if imported_module.inside
        ],
        "public_class_names_in_several_files": [f"{name}: {', '.join(places)}" for name, places in several.items()],
        "named_dataset_and_not_a_dataset": not_datasets,
        "functions_above_complexity_15": complex_functions(modules),
    }


def figures(root: Path) -> dict[str, int | float | list[str]]:
    """All figures, by name: a number, or the names that are counted."""
    modules = modules_of(root)
    folders = collections.Counter(module.path.parent for module in modules.values())
    run_modules, run_lines = run_apart(root, LOADED.format(imports=RUN_ALONE)).split()
    batch_modules, batch_lines = run_apart(root, LOADED.format(imports=TOKEN_BATCH)).split()
    public = run_apart(root, "import headrace\nprint(len(headrace.__all__))")
    return {
        "files": len(modules),
        "lines": sum(module.lines for module in modules.values()),
        "code_lines": sum(module.code_lines for module in modules.values()),
        "files_in_largest_folder": max(folders.values()),
        "files_in_median_folder": statistics.median(folders.values()),
        "deepest_folder_below_package": max(len(f.relative_to(root / "src" / PACKAGE).parts) for f in folders),
        **named_figures(modules),
        "modules_loaded_by_run": int(run_modules),
        "lines_loaded_by_run": int(run_lines),
        "modules_loaded_by_windows_run_loader": int(batch_modules),
        "lines_loaded_by_windows_run_loader": int(batch_lines),
        "cpu_ms_of_importing_windows_run_loader": import_cpu_ms(root, TOKEN_BATCH),
        "options_of_prepare": prepare_options(root),
        "public_names_at_the_top": int(public),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--names", action="store_true", help="list what is counted by name")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found = figures(options.root.resolve())
    counts = {name: len(value) if isinstance(value, list) else value for name, value in found.items()}
    rooms = room_lines(options.root.resolve())
    if options.json:
        print(json.dumps({**(found if options.names else counts), "rooms": rooms}, indent=2))
        return
    for room, lines in rooms.items():
        print(f"{room:{max(map(len, rooms))}}  {lines:>10,}  of {BUDGETS.get(room, ALL_BUDGET):>10,}")
    print()
    width = max(map(len, found))
    for name, value in counts.items():
        print(f"{name.replace('_', ' '):{width}}  {value:>10,}")
        listed = found[name]
        if options.names and isinstance(listed, list):
            print("".join(f"    {one}\n" for one in listed), end="")


if __name__ == "__main__":
    main()
