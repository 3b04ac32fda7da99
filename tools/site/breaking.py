"""Compares the public names with those of the last tag, and fails if one is gone or has become incompatible.

    python tools/site/breaking.py

What is public is what has an entry in the reference. Before 1.0 a release may break names: the changelog of the section
that is to be released then has the word **breaking** in a line with the name, and the name is let pass.
"""

from __future__ import annotations

import re
import subprocess
from typing import Any

import griffe
from pages import ROOT, entries, loaded


def last_tag() -> str | None:
    """Return the newest tag of a release before this commit, or None."""
    command = ["git", "-C", str(ROOT), "describe", "--tags", "--abbrev=0", "--match", "v*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def public(package: Any) -> set[str]:
    """Return the public names, each with its module."""
    return {f"{module}.{name}" for module, names in entries(package).items() for name in names}


def targets(package: Any, names: set[str]) -> tuple[str, ...]:
    """Return where the public names are defined."""
    found = [package[name.removeprefix("headrace.")] for name in sorted(names)]
    return tuple(one.final_target.path if one.is_alias else one.path for one in found)


def broken(tag: str) -> list[str]:
    """Return what the names of the tag have that these have not, a line for each."""
    old, new = loaded(tag), loaded()
    gone = sorted(public(old) - public(new))
    kept = targets(new, public(old) & public(new))
    found = [f"{name}: gone" for name in gone]
    for breakage in griffe.find_breaking_changes(old, new):
        path = breakage.obj.path
        if any(path == target or path.startswith((f"{target}.", f"{target}(")) for target in kept):
            found.append(re.sub(r"\x1b\[[0-9;]*m", "", breakage.explain(griffe.ExplanationStyle.ONE_LINE)))
    return found


def allowed(problem: str) -> bool:
    """Whether the changelog says that this name breaks."""
    section = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    named = {
        word for line in section.splitlines() if "**breaking**" in line for word in re.findall(r"`([\w.]+)`", line)
    }
    return any(re.search(rf"\b{re.escape(name)}\b", problem) for name in named)


if __name__ == "__main__":
    tag = last_tag()
    if tag is None:
        print("there is no tag v* yet: no public names to compare with")
    else:
        problems = [problem for problem in broken(tag) if not allowed(problem)]
        if problems:
            raise SystemExit(
                "\n".join([*problems, f"These names worked in {tag}: keep them, or say so in CHANGELOG.md"])
            )
        print(f"all public names of {tag} are there and take what they took")
