"""Merge and move modules of the package by a table, and mend all that names them. Deleted when the house is rebuilt.

    python tools/regroup.py TABLE [--check]

The table has a line for each new module, names without ``headrace.``:

    stores.indexed.format: stores.indexed_layout stores.indexed_index     # merged, in this order where it is free
    plan.mixing: plan.mixing plan.weight_ramp                             # one that stays takes another in
    rename stores.indexed_index: _read=_read_index                        # of a name that two of them have
    package stores.indexed: Megatron's indexed datasets: ...              # a new folder, with its docstring

It writes the new files, removes the old ones, and rewrites imports and dotted names in all files that git tracks. The
docstring of a merged module is that of its first part; the others' are printed, for an editor. Where two parts have the
same private name with another meaning it stops and says so, before anything is written. ``--check`` stops there too.
"""

from __future__ import annotations

import argparse
import ast
import collections
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import house

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PACKAGE = "headrace"
TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".cfg", ".txt", ".json", ".ipynb", ""}


class Table(NamedTuple):
    """What becomes of what; full dotted names."""

    parts: dict[str, list[str]]
    renames: dict[str, dict[str, str]]
    packages: dict[str, str]

    @property
    def new_of(self) -> dict[str, str]:
        """Old module -> new module, of those that get another name."""
        return {old: new for new, olds in self.parts.items() for old in olds if old != new}


def read_table(path: Path) -> Table:
    """The table of a file."""
    table = Table({}, {}, {})
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.split("   #")[0].strip()
        if not line or line.startswith("#"):
            continue
        head, _, rest = line.partition(":")
        if head.startswith("rename "):
            pairs = dict(pair.split("=") for pair in rest.split())
            table.renames.setdefault(f"{PACKAGE}.{head.split()[1]}", {}).update(pairs)
        elif head.startswith("package "):
            table.packages[f"{PACKAGE}.{head.split()[1]}"] = rest.strip()
        else:
            new = f"{PACKAGE}.{head.strip()}"
            if new in table.parts:
                raise SystemExit(f"{path}:{number}: {new} is there twice")
            table.parts[new] = [f"{PACKAGE}.{name}" for name in rest.split()]
    counts = collections.Counter(old for olds in table.parts.values() for old in olds)
    if moved := sorted(set(table.new_of) & set(table.parts)):
        raise SystemExit(f"old names of one and new names of another, do these in two tables: {', '.join(moved)}")
    if several := [old for old, count in counts.items() if count > 1]:
        raise SystemExit(f"in two new modules: {', '.join(several)}")
    return table


def path_of(module: str) -> Path:
    """The file of a module that is there."""
    base = SOURCE.joinpath(*module.split("."))
    return base / "__init__.py" if base.is_dir() and not base.with_suffix(".py").exists() else base.with_suffix(".py")


class Bound(NamedTuple):
    """A name that an import binds: ``from module import name as bound``; of ``import module`` the name is empty."""

    module: str
    name: str
    bound: str

    def text(self) -> str:
        """As a statement."""
        if not self.name:
            as_name = f" as {self.bound}" if self.bound != self.module else ""
            return f"import {self.module}{as_name}"
        as_name = f" as {self.bound}" if self.bound != self.name else ""
        return f"from {self.module} import {self.name}{as_name}"


class Part(NamedTuple):
    """A module, taken apart."""

    module: str
    docstring: str
    imports: list[Bound]
    for_types: list[Bound]
    statements: list[tuple[tuple[str, ...], str]]
    """The names that each binds, and its text with the comments before it."""


def bounds_of(node: ast.Import | ast.ImportFrom) -> list[Bound]:
    """What an import binds."""
    if isinstance(node, ast.Import):
        return [Bound(one.name, "", one.asname or one.name) for one in node.names]
    if node.level:
        raise SystemExit(f"a relative import of {node.module}")
    return [Bound(node.module or "", one.name, one.asname or one.name) for one in node.names]


def is_types_block(node: ast.stmt) -> bool:
    """Whether this is ``if TYPE_CHECKING:`` with nothing but imports."""
    return (
        isinstance(node, ast.If)
        and ast.unparse(node.test) == "TYPE_CHECKING"
        and not node.orelse
        and all(isinstance(one, ast.Import | ast.ImportFrom) for one in node.body)
    )


def bound_names(node: ast.stmt) -> tuple[str, ...]:
    """Names of the module that a statement binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return (node.name,)
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    if isinstance(node, ast.If | ast.Try | ast.With):
        names = [
            name for one in ast.walk(node) if one is not node and isinstance(one, ast.stmt) for name in bound_names(one)
        ]
    return tuple(names)


def take_apart(module: str, renames: dict[str, str]) -> Part:
    """A module as imports and statements."""
    text = renamed(path_of(module).read_text("utf-8"), renames)
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    part = Part(module, ast.get_docstring(tree, clean=False) or "", [], [], [])
    end = 0
    for number, node in enumerate(tree.body):
        begin = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))]) - 1
        stop = node.end_lineno or node.lineno
        before, own = "".join(lines[end:begin]), "".join(lines[begin:stop])
        end = stop
        if number == 0 and part.docstring and isinstance(node, ast.Expr):
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            part.imports.extend(bounds_of(node))
            if "# noqa" in own or before.strip():
                print(f"note: {module}: a comment at an import is lost: {before.strip()} {own.strip()}")
        elif is_types_block(node):
            assert isinstance(node, ast.If)
            part.for_types.extend(b for one in node.body for b in bounds_of(one))  # type: ignore[arg-type]
        elif part.statements and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            names, said = part.statements[-1]  # the docstring of a constant
            part.statements[-1] = (names, said + before + own)
        else:
            part.statements.append((bound_names(node), before + own))
    if rest := "".join(lines[end:]).strip():
        part.statements.append(((), "\n" + rest + "\n"))
    return part


def renamed(text: str, renames: dict[str, str]) -> str:
    """The text with names of the module renamed, wherever they stand as a name."""
    if not renames:
        return text
    lines = text.splitlines(keepends=True)
    places: list[tuple[int, int, str]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.id in renames:
            places.append((node.lineno, node.col_offset, node.id))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in renames:
            line = lines[node.lineno - 1]
            places.append((node.lineno, len(line[: line.index(node.name)].encode()), node.name))
    for number, column, name in sorted(places, reverse=True):
        raw = lines[number - 1].encode()
        lines[number - 1] = (raw[:column] + renames[name].encode() + raw[column + len(name.encode()) :]).decode()
    return "".join(lines)


class Mender:
    """Rewrites what other files say of modules that have another name now."""

    def __init__(self, table: Table) -> None:
        self._new = table.new_of
        self._renames = table.renames
        # A package may have a function with the name of one of its modules: that is what is meant.
        self._given = {module.name: _given(module) for module in house.modules_of(ROOT).values() if module.is_package}
        longest = sorted(self._new, key=len, reverse=True)
        dotted = "|".join(re.escape(name) for name in longest) or "(?!)"
        self._dotted = re.compile(rf"(?<![\w.])({dotted})(?![\w])(?!\.py\b)")
        paths = "|".join(re.escape(name.replace(".", "/")) for name in longest) or "(?!)"
        self._paths = re.compile(rf"({paths})\.py\b")

    def bound(self, one: Bound) -> Bound:
        """Where an import takes its name from now; of a module that is imported as a name the new module."""
        whole = f"{one.module}.{one.name}" if one.name else one.module
        if whole in self._new and one.name not in self._given.get(one.module, ()):
            new = self._new[whole]
            if not one.name:
                return Bound(new, "", one.bound if one.bound != one.module else new)
            package, _, name = new.rpartition(".")
            return Bound(package, name, name if one.bound == one.name else one.bound)
        if one.module in self._new or one.module in self._renames:
            name = self._renames.get(one.module, {}).get(one.name, one.name)
            bound = name if one.bound == one.name else one.bound
            return Bound(self._new.get(one.module, one.module), name, bound)
        return one

    def code(self, text: str, own: str = "", kept: Iterable[str] = ()) -> str:
        """A file of Python. ``own`` is its new module: what it imports of that falls away, and is named directly."""
        tree = ast.parse(text)
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        taken = {node.id for node in names} | arguments
        assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)} | arguments
        edits: list[tuple[int, int, int, int, str]] = []
        swaps: dict[str, str] = {}
        gone: set[str] = set()
        for node in ast.walk(tree):
            if not isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.ImportFrom) and node.level):
                continue
            before = bounds_of(node)
            after = [self.bound(one) for one in before]
            ours = [own and own in (one.module, f"{one.module}.{one.name}") for one in after]
            if before == after and not any(ours):
                continue
            statements = []
            for old, new in zip(before, after, strict=True):
                whole = f"{new.module}.{new.name}" if new.name else new.module
                if own and new.module == own and new.name:
                    if new.bound != new.name:
                        swaps[new.bound] = new.name
                    continue
                if own and whole == own:
                    gone.add(old.bound)
                    continue
                if old.bound != new.bound and old.name:
                    if new.bound in taken or old.bound in assigned:
                        new = Bound(new.module, new.name, old.bound)
                    else:
                        swaps[old.bound] = new.bound
                elif old.bound != new.bound and not old.name and "." in old.bound:
                    swaps[old.bound] = new.bound
                statements.append(new.text())
            indent = " " * node.col_offset
            edits.append((*_place(node), f"\n{indent}".join(statements) or ("pass" if indent else "")))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                name = ast.unparse(node.value) if isinstance(node.value, ast.Name | ast.Attribute) else ""
                if name in gone:  # of the module itself now
                    edits.append((*_place(node), node.attr))
                elif name in swaps and "." in name:
                    edits.append((*_place(node.value), swaps[name]))
            elif isinstance(node, ast.Name) and node.id in swaps:
                edits.append((*_place(node), swaps[node.id]))
        return self.words(_edited(text, edits))

    def words(self, text: str) -> str:
        """Dotted names and paths, in strings and prose."""
        text = self._dotted.sub(lambda found: self._new[found[1]], text)
        return self._paths.sub(lambda found: self._new[found[1].replace("/", ".")].replace(".", "/") + ".py", text)


def _given(package: house.Module) -> set[str]:
    """Names that a package gives besides its modules."""
    found = set()
    for node in ast.walk(package.tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            found |= {
                one.bound for one in bounds_of(node) if f"{one.module}.{one.name}" != f"{package.name}.{one.bound}"
            }
    return found


def _place(node: ast.expr | ast.stmt) -> tuple[int, int, int, int]:
    return node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0


def _edited(text: str, edits: list[tuple[int, int, int, int, str]]) -> str:
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    for begin, column, end, end_column, new in sorted(set(edits), reverse=True):
        head, tail = lines[begin - 1][:column], lines[end - 1][end_column:]
        lines[begin - 1 : end] = [head + new.encode() + tail]
        lines[begin:begin] = [b""] * (end - begin)
    return b"".join(lines).decode()


def merged(new: str, parts: list[Part], mender: Mender) -> tuple[str, list[str]]:
    """The text of a new module, and what is in the way."""
    problems: list[str] = []
    imports: dict[str, Bound] = {}
    for_types: dict[str, Bound] = {}
    of_itself: list[Bound] = []
    own = {name for part in parts for names, _ in part.statements for name in names}
    for part in parts:
        for kind, found in ((imports, part.imports), (for_types, part.for_types)):
            for one in found:
                after = mender.bound(one)
                whole = f"{after.module}.{after.name}" if after.name else after.module
                if (after.module == new and after.name) or whole == new:
                    of_itself.append(one)  # as it is: what it binds is looked for below
                    continue
                if one.name and after.bound in own:
                    problems.append(f"{new}: {part.module} imports {after.bound}, which another part defines")
                known = kind.setdefault(after.bound, after)
                if known != after:
                    problems.append(f"{new}: {after.bound} is {known.text()}, and {after.text()}")
    for name in imports:
        for_types.pop(name, None)
    texts: list[str] = []
    seen: dict[str, tuple[str, str]] = {}
    for part in _ordered(parts, new, mender):
        for names, text in part.statements:
            known_texts = {seen[name][1].strip() for name in names if name in seen}
            if known_texts == {text.strip()}:
                continue  # such as a logger, or a type variable
            for name in names:
                if name in seen and seen[name][0] != part.module:
                    problems.append(f"{new}: {name} is of {seen[name][0]} and of {part.module}")
                seen[name] = (part.module, text)
            texts.append(text)
    head = [f'"""{parts[0].docstring}"""\n', "\nfrom __future__ import annotations\n\n"]
    head += [one.text() + "\n" for one in (*imports.values(), *dict.fromkeys(of_itself))]
    if for_types:
        if "TYPE_CHECKING" not in imports:
            head.append("from typing import TYPE_CHECKING\n")
        head.append("\nif TYPE_CHECKING:\n" + "".join(f"    {one.text()}\n" for one in for_types.values()))
    return "".join(head) + "".join(texts), problems


def _ordered(parts: list[Part], new: str, mender: Mender) -> list[Part]:
    """So that what a part needs comes before it, as far as it is so."""
    by_module = {part.module: part for part in parts}
    done: dict[str, Part] = {}

    def visit(part: Part, above: frozenset[str]) -> None:
        if part.module in done or part.module in above:
            return
        for one in part.imports:
            for name in (one.module, f"{one.module}.{one.name}"):
                if name in by_module:
                    visit(by_module[name], above | {part.module})
        done[part.module] = part

    for part in parts:
        visit(part, frozenset())
    return list(done.values())


def new_circles(table: Table) -> list[str]:
    """Groups of new modules that would import each other, and did not before."""
    modules = house.modules_of(ROOT)
    edges: dict[str, set[str]] = {}
    after: dict[str, set[str]] = collections.defaultdict(set)
    why: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    for name, module in modules.items():
        found = {one.target for one in house.imports_of(module, modules) if not one.inside and not one.for_types}
        edges[name] = found - {name}
        new = table.new_of.get(name, name)
        for target in found:
            target_new = table.new_of.get(target, target)
            if target_new != new:
                after[new].add(target_new)
                why[new, target_new].add(f"{name} -> {target}")
    before = [set(one) for one in house.circles(edges)]
    said = []
    for group in house.circles(after):
        if not any(set(group) <= {table.new_of.get(name, name) for name in one} for one in before):
            pairs = sorted(pair for pair in why if set(pair) <= set(group))
            said += [f"a circle: {' '.join(group)}"]
            said += [f"    {a} imports {b}: {', '.join(sorted(why[a, b]))}" for a, b in pairs]
    return said


def tracked() -> Iterator[Path]:
    """The text files that git tracks."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        path = ROOT / name
        if path.suffix in TEXT and path.is_file() and "golden" not in path.parts and not path.is_symlink():
            yield path


def main() -> None:
    """Do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    table = read_table(options.table)
    olds = {old for olds in table.parts.values() for old in olds}
    if missing := [old for old in sorted(olds) if not path_of(old).exists()]:
        raise SystemExit(f"not there: {', '.join(missing)}")
    if there := [new for new in table.parts if path_of(new).exists() and new not in olds]:
        raise SystemExit(f"there already, and no part of itself: {', '.join(there)}")
    mender = Mender(table)
    written: dict[Path, str] = {}
    problems = new_circles(table)
    for new, names in table.parts.items():
        parts = [take_apart(name, table.renames.get(name, {})) for name in names]
        if len(parts) == 1:
            text = renamed(path_of(names[0]).read_text("utf-8"), table.renames.get(names[0], {}))
        else:
            text, found = merged(new, parts, mender)
            problems += found
            for part in parts[1:]:
                print(f"--- {new}: of {part.module}:\n{part.docstring}")
        target = SOURCE.joinpath(*new.split("."))
        is_package = len(names) == 1 and path_of(names[0]).name == "__init__.py"
        path = target / "__init__.py" if is_package else target.with_suffix(".py")
        written[path] = mender.code(text, own=new)
    if problems:
        raise SystemExit("\n".join(problems))
    if options.check:
        return
    for package, docstring in table.packages.items():
        path = SOURCE.joinpath(*package.split("."), "__init__.py")
        written.setdefault(path, f'"""{docstring}"""\n')
    removed = {path_of(old) for old in olds} - set(written)
    for path in tracked():
        if path in removed or path in written or path == options.table.resolve():
            continue
        text = path.read_text("utf-8")
        after = mender.code(text) if path.suffix == ".py" else mender.words(text)
        if after != text:
            path.write_text(after, "utf-8")
    for path in removed:
        path.unlink()
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    subprocess.run(["git", "add", "-A"], cwd=ROOT, check=True)
    for command in (["check", "--quiet", "--fix"], ["format", "--quiet"]):
        subprocess.run(
            [str(Path(sys.executable).with_name("ruff")), *command, "."], cwd=ROOT, check=False, stdout=sys.stderr
        )


if __name__ == "__main__":
    main()
