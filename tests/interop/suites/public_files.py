"""Public code that imports Energon: which of its names Headrace lacks, and which arguments it refuses.

    HEADRACE_SUITES=/folder python tests/interop/suites/public_files.py     # reads /folder/public/REPOSITORY/**/*.py

Files are read as syntax trees and never run. A file counts as served if each name that it imports from Energon exists
in ``headrace.compat.energon``, and each keyword argument that it passes to such a name is accepted.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PEER = "megatron.energon"


class Found(NamedTuple):
    """What one file needs of Headrace and does not get."""

    path: Path
    lacking: list[str]
    refused: list[str]


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the local name and Energon's name of everything that a file imports from Energon."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and f"{node.module}.".startswith(f"{PEER}."):
            for alias in node.names:
                yield alias.asname or alias.name, alias.name


def attributes(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a file uses as ``megatron.energon.NAME``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == PEER and node.attr[0].isupper():
            yield node.attr


OPENING = (
    *(
        "split_config",
        "dataset_config",
        "subflavors",
        "subset",
        "sample_type",
        "field_map",
        "part_filter",
        "sample_loader",
    ),
    *("decoder", "auto_decode", "image_decode", "av_decode", "video_decode_audio", "guess_content", "handler"),
    *("ignore_decoder_errors", "cookers", "cache", "aux", "trust_code", "reader"),
)
"""What ``get_train_dataset`` and its like pass on to what opens the data, which a signature does not show."""


def refused(ours: Any, call: ast.Call) -> Iterator[str]:
    """Yield the keyword arguments of a call that a name of ours does not accept."""
    try:
        parameters = set(inspect.signature(ours).parameters)
    except (TypeError, ValueError):
        return
    if "options" in parameters and not isinstance(ours, type):
        parameters |= set(OPENING)
    elif any(one.kind is inspect.Parameter.VAR_KEYWORD for one in inspect.signature(ours).parameters.values()):
        return
    for keyword in call.keywords:
        if keyword.arg is not None and keyword.arg not in parameters:
            yield keyword.arg


def examined(path: Path, ours: Any) -> Found | None:
    """Return what a file lacks; None if it does not import Energon."""
    tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    names = dict(imported(tree))
    used = set(attributes(tree))
    plain = any(
        isinstance(node, ast.Import) and any(alias.name.startswith(PEER) for alias in node.names)
        for node in ast.walk(tree)
    )
    if not names and not used and not plain:
        return None
    lacking = sorted({name for name in (*names.values(), *used) if name != "*" and not hasattr(ours, name)})
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            name = names[node.func.id]
            if hasattr(ours, name):
                found += [f"{name}({argument}=)" for argument in refused(getattr(ours, name), node)]
    return Found(path, lacking, sorted(set(found)))


def survey(folder: Path) -> list[Found]:
    """Examine all files of all repositories."""
    import headrace.compat.energon as ours

    found = []
    for path in sorted(folder.rglob("*.py")):
        try:
            one = examined(path, ours)
        except SyntaxError:
            continue
        if one is not None:
            found.append(one)
    return found


def main() -> int:
    """Print the shares of each repository, and what is lacking most often."""
    folder = Path(os.environ.get("HEADRACE_SUITES", "."), "public")
    if not folder.is_dir():
        print(f"public files: not at hand; {folder} does not exist")
        return 0
    files = survey(folder)
    served = [one for one in files if not one.lacking and not one.refused]
    print(f"{len(served)} of {len(files)} public files ({100 * len(served) / max(1, len(files)):.0f} %) are served")
    for repository in sorted({one.path.relative_to(folder).parts[0] for one in files}):
        mine = [one for one in files if one.path.relative_to(folder).parts[0] == repository]
        print(f"  {repository}: {sum(one in served for one in mine)} of {len(mine)}")
    for kind, counts in (
        ("lacking", Counter(name for one in files for name in one.lacking)),
        ("refused", Counter(name for one in files for name in one.refused)),
    ):
        print(f"{kind}: " + (", ".join(f"{name} ({count})" for name, count in counts.most_common()) or "nothing"))
    if "--files" in sys.argv:
        for one in files:
            if one not in served:
                print(f"  {one.path.relative_to(folder)}: {', '.join([*one.lacking, *one.refused])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
