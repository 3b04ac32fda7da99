"""Move public names to other packages, or rename them, by a table, in all files that git tracks.

    python tools/rename.py TABLE

The table has lines ``old.package.Name: new.package.Name``, without ``headrace.``; an empty package is the top level. It
rewrites ``from headrace.old.package import Name``, ``headrace.old.package.Name`` in code and prose, and, where the last
part changes, every such name in the files that import it. The packages' own lists of names are left to an editor.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from regroup import TEXT, Bound, bounds_of

ROOT = Path(__file__).resolve().parents[1]


def read_table(path: Path) -> dict[tuple[str, str], tuple[str, str]]:
    """(package, name) -> (package, name)."""
    table = {}
    for line in path.read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            old, new = (f"headrace.{part.strip()}".rpartition(".") for part in line.split(":"))
            table[old[0], old[2]] = new[0], new[2]
    return table


def code(text: str, table: dict[tuple[str, str], tuple[str, str]]) -> str:
    """A file of Python: its imports from packages, and names that were imported and have another name now."""
    tree = ast.parse(text)
    edits: list[tuple[int, int, int, int, str]] = []
    swaps: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.level:
            continue
        before = bounds_of(node)
        after = []
        for one in before:
            package, name = table.get((one.module, one.name), (one.module, one.name))
            bound = name if one.bound == one.name else one.bound
            if bound != one.bound:
                swaps[one.bound] = bound
            after.append(Bound(package, name, bound))
        if before != after:
            indent = "\n" + " " * node.col_offset
            end = (node.end_lineno or 0, node.end_col_offset or 0)
            edits.append((node.lineno, node.col_offset, *end, indent.join(dict.fromkeys(b.text() for b in after))))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in swaps:
            end = (node.end_lineno or 0, node.end_col_offset or 0)
            edits.append((node.lineno, node.col_offset, *end, swaps[node.id]))
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    for begin, column, stop, end_column, new in sorted(set(edits), reverse=True):
        head, tail = lines[begin - 1][:column], lines[stop - 1][end_column:]
        lines[begin - 1 : stop] = [head + new.encode() + tail]
        lines[begin:begin] = [b""] * (stop - begin)
    return b"".join(lines).decode()


def main() -> None:
    """Do it."""
    table = read_table(Path(sys.argv[1]))
    dotted = {f"{package}.{name}": f"{new}.{new_name}" for (package, name), (new, new_name) in table.items()}
    longest = "|".join(re.escape(name) for name in sorted(dotted, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w.])({longest})(?!\w)")
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        path = ROOT / name
        inits = path.name == "__init__.py" and path.is_relative_to(ROOT / "src")
        if path.suffix not in TEXT or not path.is_file() or inits or {"golden", "tables"} & set(path.parts):
            continue
        text = path.read_text("utf-8")
        after = code(text, table) if path.suffix == ".py" else text
        if name != "CHANGELOG.md":
            after = pattern.sub(lambda found: dotted[found[1]], after)
        if path.suffix == ".md":
            blocks = re.compile(r"(```python\n)(.*?)(\n *```)", re.S)
            after = blocks.sub(lambda found: found[1] + _block(found[2], table) + found[3], after)
        if after != text:
            path.write_text(after, "utf-8")


def _block(text: str, table: dict[tuple[str, str], tuple[str, str]]) -> str:
    try:
        return code(text + "\n", table).rstrip("\n")
    except SyntaxError:
        return text


if __name__ == "__main__":
    main()
