"""Mutants: small random changes of the package that its tests catch, to see that they still do when tests change.

    python tools/mutants/run.py make --seed 1 --number 150      draws mutants until that many are caught
    python tools/mutants/run.py check                           says how many of those that still exist are caught

A mutant is one line of a file and what it is replaced by. It exists as long as its file holds that line once. Beside it
is the test that caught it. `check` runs this test first; if it is gone, or no longer catches the mutant, the tests of
the file's room are run. Both work on copies of the checkout in a temporary folder, with the interpreter that runs this
script, and take hours.

The mutants are in ``mutants.json``. `make` adds to those that are there.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path("src/headrace")
KEPT = Path(__file__).with_name("mutants.json")
LIMIT_S = 240
SWAPS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Mod: "//", ast.And: "or", ast.Or: "and",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
"""Operators, and what stands in their place."""
WORDS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Add: "+", ast.Sub: "-",
    ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.And: "and", ast.Or: "or", ast.Is: "is", ast.IsNot: "is not",
    ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip


class Mutant(NamedTuple):
    """One changed line of a file, and the test that caught it, or "" before it is known."""

    file: str
    line: str
    mutated: str
    test: str = ""

    def apply(self, root: Path) -> bool:
        """Change the file below ``root``. Returns False if it does not hold the line once."""
        path = root / self.file
        lines = path.read_text("utf-8").split("\n") if path.exists() else []
        if lines.count(self.line) != 1:
            return False
        lines[lines.index(self.line)] = self.mutated
        path.write_text("\n".join(lines), "utf-8")
        return True

    @property
    def room(self) -> str:
        """The first folder of the file below the package."""
        return Path(self.file).relative_to(SOURCE).parts[0].removesuffix(".py")


def changes(text: str) -> Iterator[tuple[int, int, int, str]]:
    """Yield all changes of a file: number of the line from 0, where the change begins and ends in it, and the text."""
    lines = text.split("\n")
    tree = ast.parse(text)
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.Raise):  # the words of errors are not what is held
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for node in ast.walk(tree):
        number = getattr(node, "lineno", 0) - 1
        if number < 0 or number + 1 in skipped:
            continue
        if isinstance(node, ast.Constant) and type(node.value) in (int, bool) and node.lineno == node.end_lineno:
            mutated = repr(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
            yield number, node.col_offset, node.end_col_offset or 0, mutated
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield number, node.col_offset, node.col_offset + 4, ""
        else:
            yield from _swaps(node, lines)


def _swaps(node: ast.AST, lines: list[str]) -> Iterator[tuple[int, int, int, str]]:
    if isinstance(node, ast.Compare):
        pairs = [(type(node.ops[0]), node.left, node.comparators[0])]
    elif isinstance(node, ast.BinOp):
        pairs = [(type(node.op), node.left, node.right)]
    elif isinstance(node, ast.BoolOp):
        pairs = [(type(node.op), node.values[0], node.values[1])]
    else:
        return
    for kind, left, right in pairs:
        if kind not in SWAPS or left.end_lineno != right.lineno or left.end_col_offset is None:
            continue
        between = lines[right.lineno - 1][left.end_col_offset : right.col_offset]
        if between.count(WORDS[kind]) == 1:
            begin = left.end_col_offset + between.index(WORDS[kind])
            yield right.lineno - 1, begin, begin + len(WORDS[kind]), SWAPS[kind]


def drawn(seed: int) -> Iterator[Mutant]:
    """Yield mutants of the package without end: the files by the number of their changes, each change once."""
    found = []
    for path in sorted((ROOT / SOURCE).rglob("*.py")):
        text = path.read_text("utf-8")
        lines = text.split("\n")
        for number, begin, end, put in changes(text):
            line = lines[number]
            if line.isascii() and lines.count(line) == 1:  # columns of a tree are bytes
                found.append(Mutant(str(path.relative_to(ROOT)), line, line[:begin] + put + line[end:]))
    random.Random(seed).shuffle(found)
    yield from found


def near_tests(file: str) -> list[str]:
    """Test files that may catch a change of a file, the nearest first: those called like it, those that import it."""
    path = Path(file).relative_to(SOURCE)
    module = ".".join(("headrace", *path.with_suffix("").parts)).removesuffix(".__init__")
    room = ROOT / "tests" / path.parts[0].removesuffix(".py")
    names = [one for one in sorted(room.rglob("test_*.py")) if path.stem.strip("_") in one.stem]
    imports = re.compile(rf"\b(from|import) {re.escape(module)}\b")
    texts = {one: one.read_text("utf-8") for one in sorted((ROOT / "tests").rglob("test_*.py"))}
    importing = [one for one, text in texts.items() if imports.search(text) and "interop" not in one.parts]
    defined = re.findall(r"^(?:class|def) ([A-Za-z]\w+)", (ROOT / file).read_text("utf-8"), re.MULTILINE)
    naming = [
        one for one in sorted(room.rglob("test_*.py")) if any(re.search(rf"\b{name}\b", texts[one]) for name in defined)
    ]
    return [str(one.relative_to(ROOT)) for one in dict.fromkeys([*names, *importing, *naming])]


class Place:
    """A copy of the checkout, in which one mutant at a time is tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in tracked.splitlines():
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def catching(self, mutant: Mutant, tests: list[str]) -> str:
        """Return the first of some tests that fails with the mutant, "" if none does; one that hangs has failed."""
        path = self.folder / mutant.file
        before = path.read_bytes()
        if not mutant.apply(self.folder):
            raise ValueError(f"{mutant.file} does not hold the line once: {mutant.line}")
        try:
            for test in tests:
                if found := self._failing(test):
                    return found
        finally:
            path.write_bytes(before)
        return ""

    def _failing(self, test: str) -> str:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", test]
        variables = {**os.environ, "PYTHONPATH": str(self.folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            command, cwd=self.folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            return test
        if process.returncode in (0, 5):
            return ""
        failed = re.search(r"^(?:FAILED|ERROR) (\S+?(?:::\S+?)?)(?:\[| - |$)", said, re.MULTILINE)
        return failed.group(1) if failed else test


def read() -> list[Mutant]:
    """The mutants that are kept."""
    return [Mutant(**one) for one in json.loads(KEPT.read_text("utf-8"))] if KEPT.exists() else []


def write(mutants: list[Mutant]) -> None:
    """Keep mutants, sorted by file."""
    rows = [json.dumps(mutant._asdict()) for mutant in sorted(mutants)]
    KEPT.write_text("[\n" + ",\n".join(rows) + "\n]\n", "utf-8")


def make(seed: int, number: int, folder: Path, at_once: int) -> None:
    """Draw mutants until ``number`` are caught by tests near them."""
    kept = read()
    known = {(one.file, one.line) for one in kept}
    places: SimpleQueue[Place] = SimpleQueue()
    for index in range(at_once):
        places.put(Place(folder / str(index)))

    def tried(mutant: Mutant) -> Mutant:
        place = places.get()
        try:
            return mutant._replace(test=place.catching(mutant, near_tests(mutant.file)[:4]))
        finally:
            places.put(place)

    candidates = (one for one in drawn(seed) if (one.file, one.line) not in known)
    with ThreadPoolExecutor(at_once) as threads:
        while len(kept) < number:
            for found in threads.map(tried, [next(candidates) for _ in range(at_once)]):
                print(
                    f"{len(kept)}: {found.file}: {found.mutated.strip()}: {found.test or 'not caught near it'}",
                    flush=True,
                )
                if found.test:
                    kept.append(found)
                    write(kept)


def check(folder: Path, at_once: int) -> int:
    """Try all kept mutants that still exist. Returns the number of those that are no longer caught."""
    mutants = read()
    places: SimpleQueue[Place] = SimpleQueue()
    for index in range(at_once):
        places.put(Place(folder / str(index)))

    def is_there(mutant: Mutant) -> bool:
        path = ROOT / mutant.file
        return path.exists() and path.read_text("utf-8").split("\n").count(mutant.line) == 1

    def tried(mutant: Mutant) -> tuple[Mutant, str]:
        place = places.get()
        file = mutant.test.partition("::")[0]
        tests = [mutant.test] if (ROOT / file).exists() else []
        try:
            return mutant, place.catching(mutant, [*tests, *near_tests(mutant.file), f"tests/{mutant.room}"])
        finally:
            places.put(place)

    there = [mutant for mutant in mutants if is_there(mutant)]
    lost = 0
    with ThreadPoolExecutor(at_once) as threads:
        for number, (mutant, test) in enumerate(threads.map(tried, there)):
            lost += not test
            print(
                f"{number + 1} of {len(there)}: {mutant.file}: {mutant.mutated.strip()}: {test or 'LOST'}", flush=True
            )
    caught = 100 * (len(there) - lost) / max(1, len(there))
    print(f"{len(mutants)} mutants, {len(there)} still exist, {len(there) - lost} of them are caught ({caught:.1f} %)")
    return lost


def main() -> None:
    """Make mutants, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "check"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=150)
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-mutants-") as folder:
        if options.what == "make":
            make(options.seed, options.number, Path(folder), options.at_once)
        else:
            lost = check(Path(folder), options.at_once)
            sys.exit(50 * lost > len(read()))


if __name__ == "__main__":
    main()
