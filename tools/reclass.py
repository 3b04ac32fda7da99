# ruff: noqa: D103, F841, B023
"""Rename classes and functions where they are defined, by a table, in all files that import them. For the rebuilding.

    python tools/reclass.py TABLE

Lines are ``module Old New``, the module without ``headrace.``. Bindings are followed through re-exports, so that two
classes of one name are told apart.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"


def name_of(path: Path) -> str:
    """Dotted name of a file of the package, else of its path."""
    base = SOURCE if path.is_relative_to(SOURCE) else ROOT
    parts = list(path.relative_to(base).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = [p for d in ("src", "tests", "examples", "benchmarks", "tools") for p in sorted((ROOT / d).rglob("*.py"))]
TREES = {p: ast.parse(p.read_text()) for p in FILES}
MODULES = {name_of(p): p for p in FILES if p.is_relative_to(SOURCE)}


def imports(path: Path):
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("headrace"):
            for alias in node.names:
                yield node.module, alias.name, alias.asname or alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("headrace"):
                    yield alias.name, None, alias.asname or alias.name.split(".")[0]


DEFINED = {
    module: {n.name for n in TREES[path].body if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    for module, path in MODULES.items()
}


def resolve(module: str, name: str, seen=()):
    """The module that defines a name, and the name there."""
    if module not in MODULES or (module, name) in seen:
        return None
    if name in DEFINED[module]:
        return module, name
    for source, one, bound in imports(MODULES[module]):
        if bound == name and one is not None:
            if f"{source}.{one}" in MODULES:
                return f"{source}.{one}", None
            return resolve(source, one, (*seen, (module, name)))
    return None


def main() -> None:
    table = {}
    for line in Path(sys.argv[1]).read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            module, old, new = line.split()
            module = f"headrace.{module}"
            if old not in DEFINED.get(module, ()):
                raise SystemExit(f"{module} does not define {old}")
            if new in DEFINED[module]:
                raise SystemExit(f"{module} has {new} already")
            table[module, old] = new
    for path in FILES:
        me = name_of(path)
        local = {old: new for (module, old), new in table.items() if module == me}
        aliases: dict[str, str] = {}  # names bound as something else: the import alone changes
        modules: dict[str, str] = {}
        for source, one, bound in imports(path):
            if one is None:
                modules[bound] = source if bound != source.split(".")[0] else bound
                continue
            if f"{source}.{one}" in MODULES:
                modules[bound] = f"{source}.{one}"
                continue
            found = resolve(source, one)
            if found in table:
                (aliases if bound != one else local)[one] = table[found]
        text = path.read_text()
        if not local and not aliases and not modules:
            continue
        out = []
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        lines = text.splitlines(keepends=True)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        edits = []

        def chain(index: int) -> str | None:
            """The module that a dotted prefix before this token names."""
            names = []
            at = index
            while at >= 2 and tokens[at - 1].string == "." and tokens[at - 2].type == tokenize.NAME:
                names.insert(0, tokens[at - 2].string)
                at -= 2
            if not names or (at >= 1 and tokens[at - 1].string == "."):
                return None
            base = modules.get(names[0])
            return None if base is None else ".".join([base, *names[1:]])

        for index, token in enumerate(tokens):
            begin, end = (starts[r - 1] + c for r, c in (token.start, token.end))
            if token.type == tokenize.NAME:
                before = tokens[index - 1].string if index else ""
                if before == ".":
                    owner = chain(index)
                    found = resolve(owner, token.string) if owner else None
                    if found in table:
                        edits.append((begin, end, table[found]))
                elif token.string in local:
                    edits.append((begin, end, local[token.string]))
                elif token.string in aliases and index + 1 < len(tokens) and tokens[index + 1].string == "as":
                    edits.append((begin, end, aliases[token.string]))
            elif token.type in (tokenize.STRING, tokenize.COMMENT) and local:
                whole = text[begin:end]
                new = whole
                for old, to in local.items():
                    if re.fullmatch(rf"""['"]{old}['"]""", whole):
                        new = whole.replace(old, to)
                    else:
                        new = re.sub(rf"(`+(?:\w+\.)*){old}\b(?=[^`\n]*`)", rf"\g<1>{to}", new)
                if new != whole:
                    edits.append((begin, end, new))
        for begin, end, new in sorted(edits, reverse=True):
            text = text[:begin] + new + text[end:]
        if edits:
            path.write_text(text)
            print(path.relative_to(ROOT), len(edits))


main()
