"""Mutants: small random changes of the package that its tests catch, to see that they still do when tests change.

    python tools/mutants/run.py make --seed 1 --number 150      draws mutants until that many are caught
    python tools/mutants/run.py check                           says how many of those that still exist are caught

A mutant is one line of a file and what it is replaced by. It exists as long as its file holds that line once. Beside it
is the test that caught it. `check` runs this test first. If it is gone, or no longer catches the mutant, tests are
looked for as `make` does it: the whole suite runs once with a probe at each of the lines, which notes the tests that
reach it (tests that count what is written, or compile the line, fail with a probe; that is of no consequence), and then
some of these run with the mutant: those of its room, and those that reach few other lines. All this happens in copies
of the checkout in a temporary folder, with the interpreter that runs this script. A run of the suite and ten seconds a
mutant are to be expected.

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
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path("src/headrace")
KEPT = Path(__file__).with_name("mutants.json")
START_S = 60
"""Seconds that a run of tests may take beside five times what its tests took alone; one that takes longer hangs."""
TESTS_S = 20
MOST_TESTS = 16
"""So many tests that reach a line run with its mutant, as long as they took no more seconds than this together."""
PROBE = '''"""Notes which tests reach a line."""
import os
seen = set()
def hit(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").split("[")[0].split(" (")[0]
    if test and (number, test) not in seen:
        seen.add((number, test))
        file = os.open(os.environ["HEADRACE_PROBES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{number}\\t{test}\\n".encode())
        os.close(file)
'''
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
        text = path.read_text("utf-8")
        if not is_in(self, text):
            return False
        path.write_text("\n".join(self.mutated if line == self.line else line for line in text.split("\n")), "utf-8")
        return True


def is_in(mutant: Mutant, text: str) -> bool:
    """Whether the text of a file holds the line of a mutant once."""
    return text.split("\n").count(mutant.line) == 1


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
    """Yield all mutants of the package, in an order that the seed decides."""
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


class Place:
    """A copy of the checkout, in which one mutant at a time is tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in tracked.splitlines():
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def catching(self, mutant: Mutant, tests: Sequence[str], limit_s: float) -> str:
        """Return the first of some tests that fails with the mutant; one that hangs has failed.

        Returns "" if none fails, or if one is not there.
        """
        path = self.folder / mutant.file
        before = path.read_bytes()
        if not mutant.apply(self.folder):
            raise ValueError(f"{mutant.file} does not hold the line once: {mutant.line}")
        try:
            process = self.pytest("-x", "-n", "0", *tests)
            try:
                said, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
                return tests[0]
        finally:
            path.write_bytes(before)
        if re.search(r"^ERROR: (?:file or directory )?not found: ", said, re.MULTILINE):
            return ""  # a test that is gone catches nothing
        failed = re.search(r"^(?:FAILED|ERROR) (\S+?(?:::\S+?)?)(?:\[| - |$)", said, re.MULTILINE)
        return "" if process.returncode in (0, 5) else failed.group(1) if failed else tests[0]

    def pytest(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Begin a run of pytest over the copy, in a process group of its own."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        own = {"PYTHONPATH": str(self.folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(
            command, cwd=self.folder, env={**os.environ, **own, **variables}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def reaching(self, mutants: Sequence[Mutant], at_once: int) -> list[dict[str, float]]:
        """Return for each mutant the tests that reach its line and are to be tried, and how many seconds each took."""
        by_file = defaultdict(list)
        for number, mutant in enumerate(mutants):
            by_file[mutant.file].append((number, mutant.line))
        before = {file: (self.folder / file).read_text("utf-8") for file in by_file}
        for file, lines in by_file.items():
            (self.folder / file).write_text(probed(before[file], lines), "utf-8")
        (self.folder / "src/headrace_probe.py").write_text(PROBE, "utf-8")
        notes, times = self.folder / "probes.txt", self.folder / "times.xml"
        notes.touch()
        process = self.pytest("-n", str(at_once), "--junitxml", str(times), HEADRACE_PROBES=str(notes))
        print(process.communicate()[0][-2000:], flush=True)
        for file, text in before.items():
            (self.folder / file).write_text(text, "utf-8")
        took: dict[str, float] = defaultdict(float)
        for case in ElementTree.parse(times).iter("testcase"):
            took[f"{case.get('classname')}.{case.get('name', '').split('[')[0]}"] += float(case.get("time", 0))
        found: list[dict[str, float]] = [{} for _ in mutants]
        for line in notes.read_text("utf-8").splitlines():
            number, _, test = line.partition("\t")
            if (self.folder / test.partition("::")[0]).is_file():
                found[int(number)][test] = took[test.replace("/", ".").replace(".py::", ".").replace("::", ".")]
        lines_of = Counter(test for tests in found for test in tests)
        return [_likely(mutant, tests, lines_of) for mutant, tests in zip(mutants, found, strict=True)]


def _likely(mutant: Mutant, tests: dict[str, float], lines_of: Counter[str]) -> dict[str, float]:
    """Return the tests that are to be tried with a mutant, of those that reach it."""
    file = Path(mutant.file).relative_to(SOURCE)
    room = f"tests/{file.parts[0].removesuffix('.py')}"

    def rank(test: str) -> tuple[bool, bool, float]:
        name = Path(test.partition("::")[0]).stem
        return file.stem.strip("_") not in name, not test.startswith(room), lines_of[test] + 4 * tests[test]

    chosen: dict[str, float] = {}
    for test in sorted(tests, key=rank):
        if not chosen or (len(chosen) < MOST_TESTS and sum(chosen.values()) + tests[test] < TESTS_S):
            chosen[test] = tests[test]
    return chosen


def probed(text: str, lines: Sequence[tuple[int, str]]) -> str:
    """Return the text of a file with a probe before the innermost statement of each numbered line."""
    at = {text.split("\n").index(line) + 1: number for number, line in lines}
    tree = ast.parse(text)
    for node in list(ast.walk(tree)):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                setattr(node, field, [one for each in block for one in (*_probes(each, at), each)])
    return ast.unparse(ast.fix_missing_locations(tree))


def _probes(statement: ast.stmt, at: dict[int, int]) -> Iterator[ast.stmt]:
    """Yield the probes that belong before a statement: those of its lines that are in no statement within it."""
    if not isinstance(statement, ast.stmt) or getattr(statement, "module", None) == "__future__":
        return
    inner = {
        line
        for node in ast.walk(statement)
        if node is not statement and isinstance(node, ast.stmt)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1):
        if line in at and line not in inner:
            yield from ast.parse(f"__import__('headrace_probe').hit({at[line]})").body


def read() -> list[Mutant]:
    """The mutants that are kept."""
    return [Mutant(**one) for one in json.loads(KEPT.read_text("utf-8"))] if KEPT.exists() else []


def write(mutants: list[Mutant]) -> None:
    """Keep mutants, sorted by file."""
    rows = [json.dumps(mutant._asdict()) for mutant in sorted(mutants)]
    KEPT.write_text("[\n" + ",\n".join(rows) + "\n]\n", "utf-8")


def make(seed: int, number: int, places: list[Place]) -> None:
    """Draw mutants until ``number`` are caught by tests that reach them."""
    kept = read()
    known = {(one.file, one.line) for one in kept}
    candidates = (one for one in drawn(seed) if (one.file, one.line) not in known)
    while len(kept) < number:
        mutants = list({(one.file, one.line): one for one in islice(candidates, 2 * (number - len(kept)))}.values())
        if not mutants:
            raise SystemExit(f"the package has no more changes; {len(kept)} mutants are kept")
        reaching = places[0].reaching(mutants, len(places))
        for mutant, tests, test in tried_all(list(zip(mutants, reaching, strict=True)), places):
            print(
                f"{len(kept)}: {mutant.file}: {mutant.mutated.strip()}: {test or f'not caught by {len(tests)}'}",
                flush=True,
            )
            if test:
                kept.append(mutant._replace(test=test))
                write(kept)
            if len(kept) == number:
                break


def tried_all(
    mutants: list[tuple[Mutant, dict[str, float]]], places: list[Place]
) -> Iterator[tuple[Mutant, dict[str, float], str]]:
    """Yield each mutant, the tests that it was to be tried with, and the one that caught it, or ""."""
    free: SimpleQueue[Place] = SimpleQueue()
    for place in places:
        free.put(place)

    def tried(one: tuple[Mutant, dict[str, float]]) -> str:
        mutant, tests = one
        place = free.get()
        try:
            return place.catching(mutant, list(tests), START_S + 5 * sum(tests.values())) if tests else ""
        finally:
            free.put(place)

    with ThreadPoolExecutor(len(places)) as threads:
        for (mutant, tests), test in zip(mutants, threads.map(tried, mutants), strict=True):
            yield mutant, tests, test


def check(places: list[Place]) -> bool:
    """Try all kept mutants that still exist. Returns whether at least 98 % of them are caught."""
    mutants = read()
    there = [one for one in mutants if (ROOT / one.file).exists() and is_in(one, (ROOT / one.file).read_text("utf-8"))]
    known = [(one, {one.test: TESTS_S} if (ROOT / one.test.partition("::")[0]).exists() else {}) for one in there]
    missed = []
    for mutant, _, test in tried_all(known, places):
        print(f"{mutant.file}: {mutant.mutated.strip()}: {test or 'not by the test that caught it'}", flush=True)
        if not test:
            missed.append(mutant)
    lost = len(missed)
    if missed:
        reaching = places[0].reaching(missed, len(places))
        for mutant, tests, test in tried_all(list(zip(missed, reaching, strict=True)), places):
            print(f"{mutant.file}: {mutant.mutated.strip()}: {test or f'LOST, by {len(tests)}'}", flush=True)
            if test:
                lost -= 1
                mutants[mutants.index(mutant)] = mutant._replace(test=test)
        write(mutants)
    caught = f"{len(there) - lost} of them are caught ({100 * (len(there) - lost) / max(1, len(there)):.1f} %)"
    print(f"{len(mutants)} mutants, {len(there)} still exist, {caught}")
    return 50 * lost <= len(there)


def main() -> None:
    """Make mutants, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "check"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=150)
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-mutants-") as folder:
        places = [Place(Path(folder, str(index))) for index in range(options.at_once)]
        if options.what == "make":
            make(options.seed, options.number, places)
        else:
            sys.exit(not check(places))


if __name__ == "__main__":
    main()
