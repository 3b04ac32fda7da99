"""Run the peers' own tests against Headrace; see the docstring of this package.

    python tests/interop/suites/run.py [suite ...] [--variant NAME] [--update] [--why] [-k EXPRESSION]

Exits with 1 if a test that is committed as passing did not pass. A suite that is not at hand is named and left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from suites.suite import REPORT, VARIANT, Suite, passing_file

SUITES = ("energon", "megatron", "astrai", "astrai_seed", "torchtune", "trl")
"""The modules of this package that hold a `SUITE`."""


class Result(NamedTuple):
    """The result of one test."""

    outcome: str
    reason: str
    touches: bool = False

    def named(self, test: str) -> str:
        """The line of a test that passes, in `passing`."""
        return test if self.touches else f"{test}{APART}"


APART = "\tapart"
"""Behind the identifier of a test that passes without calling Headrace, so that it says nothing about it."""

TORCHVISION = Path(__file__).parents[3] / ".venv" / "torchvision"
"""The folder in which ``make suites`` installs torchvision, apart from the packages that would import it."""


def run(suite: Suite, variant: str, checkout: Path, chosen: str | None) -> dict[str, Result]:
    """Run a suite in a process of its own. Returns the results by the identifiers of the tests."""
    apart = [str(TORCHVISION)] if suite.with_torchvision else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.jsonl")
        report.touch()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *apart, os.environ.get("PYTHONPATH", "")]),
            REPORT: str(report),
            "OMP_NUM_THREADS": "1",  # small tensors, and often no idle core
            VARIANT: variant,
        }
        command = [
            *(
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-c",
                os.devnull,
                "--continue-on-collection-errors",
                f"--rootdir={checkout}",
                "--tb=short",
            ),
            *("-p", "no:cacheprovider", "-p", "suites.suite", "-p", f"suites.{suite.name}"),
            *(f"--ignore={checkout / path}" for path in suite.left_out),
            *(() if chosen is None else ("-k", chosen)),
            *suite.options,
            *suite.tests,
        ]
        log = Path(tempfile.gettempdir(), f"headrace-suite-{suite.name}-{variant}.log")
        with log.open("w") as file:
            ended = subprocess.run(command, cwd=checkout, env=environment, stdout=file, stderr=file, check=False)
        if ended.returncode not in (0, 1, 2, 5):
            print(f"{suite.name} ({variant}): pytest ended with {ended.returncode}; its output is in {log}")
        results: dict[str, Result] = {}
        for line in report.read_text(encoding="utf-8").splitlines():
            found = json.loads(line)
            before = results.get(found["test"], Result("passed", ""))
            if before.outcome == "passed":
                touches = before.touches or found["touches"]
                results[found["test"]] = Result(found["outcome"], found["reason"], touches)
    return results


def report(suite: Suite, variant: str, results: dict[str, Result], *, why: bool) -> list[str]:
    """Print the counts of each module. Returns the lines of the tests that pass, sorted."""
    good = {test: result for test, result in results.items() if result.outcome == "passed"}
    passed = sorted(result.named(test) for test, result in good.items())
    touching = sum(result.touches for result in good.values())
    by_module: dict[str, list[Result]] = defaultdict(list)
    for test, result in results.items():
        by_module[test.partition("::")[0]].append(result)
    said = "" if variant == "itself" else f"; {touching} of them call Headrace"
    print(f"\n{suite.name}, {variant}: {len(passed)} tests pass{said}")
    for module, found in sorted(by_module.items()):
        reasons = [result.reason for result in found if result.outcome == "not collected"]
        count = sum(result.outcome == "passed" for result in found)
        calling = (
            "" if variant == "itself" else f", {sum(one.outcome == 'passed' and one.touches for one in found)} call it"
        )
        said = f"cannot be imported: {reasons[0]}" if reasons else f"{count} of {len(found)}{calling}"
        print(f"  {module}: {said}")
    for path, reason in suite.left_out.items():
        print(f"  {path}: left out, {reason}")
    if why:
        for test, result in sorted(results.items()):
            if result.outcome != "passed":
                print(f"  {result.outcome} {test}: {result.reason}")
    return passed


def compared(suite: Suite, variant: str, passed: list[str], *, update: bool) -> bool:
    """Whether all tests that are committed as passing still pass; with ``update``, commit these instead."""
    path = passing_file(suite.name, variant)
    known = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    if update:
        if suite.with_torchvision and not TORCHVISION.is_dir():
            print(f"  {path.name} stays as it is, since it lists tests that need torchvision")
            return False
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{test}\n" for test in passed), encoding="utf-8")
        return True
    left_out = [test for test in known if test.partition("::")[0] in suite.left_out]
    if left_out:
        print(f"  {len(left_out)} tests of {path.name} are left out here")
    if not any(line.endswith(APART) for line in known):  # written before tests were counted apart
        passed = [line.removesuffix(APART) for line in passed]
    lost = sorted(set(known) - set(passed) - set(left_out))
    for test in lost:
        print(f"  LOST {test}")
    if new := sorted(set(passed) - set(known)):
        print(f"  {len(new)} tests pass that are not in {path.name}; add them with --update")
    return not lost


def main() -> int:
    """Run what is at hand."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("suites", nargs="*", default=SUITES, help=f"default: {', '.join(SUITES)}")
    arguments.add_argument("--variant", help="only this variant: itself, names or documented")
    arguments.add_argument("--update", action="store_true", help="write the identifiers of the tests that pass")
    arguments.add_argument("--why", action="store_true", help="print why the others do not pass")
    arguments.add_argument("-k", dest="chosen", help="only the tests that pytest's -k chooses")
    options = arguments.parse_args()
    folder = os.environ.get("HEADRACE_SUITES")
    if folder is None:
        print("suites: nothing is at hand; set HEADRACE_SUITES to a folder with checkouts of " + ", ".join(SUITES))
        return 0
    if options.update and options.chosen:
        print("suites: --update needs all tests; leave out -k")
        return 2
    good = True
    for name in options.suites:
        suite = importlib.import_module(f"suites.{name}").SUITE
        checkout = Path(folder, name).resolve()
        if suite.with_torchvision and not TORCHVISION.is_dir():
            without = dict.fromkeys(suite.with_torchvision, "since torchvision cannot be had here")
            suite = suite._replace(left_out={**suite.left_out, **without})
        if not checkout.is_dir():
            print(f"\n{name}: not at hand; {checkout} does not exist")
            continue
        for variant in (options.variant,) if options.variant else suite.variants:
            results = run(suite, variant, checkout, options.chosen)
            passed = report(suite, variant, results, why=options.why)
            if variant != "itself" and not options.chosen:
                good &= compared(suite, variant, passed, update=options.update)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
