"""In which fields two recipes of runs differ, in words. It is imported when a state or a run is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.plan.recipe import RunRecipe, canonical


def differences(here: RunRecipe, saved: RunRecipe) -> list[str]:
    """Return a line for each field that differs; see `RunRecipe.differences`."""
    edited = ["chapters" in recipe.blend for recipe in (here, saved)]
    if edited[0] != edited[1]:
        return [f"{'this run' if edited[0] else 'the saved run'} was edited, and the other was not"]
    return list(_differences("", msgspec.to_builtins(here), msgspec.to_builtins(saved)))


_MISSING = object()


def _differences(path: str, here: Any, saved: Any) -> Iterator[str]:
    if isinstance(here, dict) and isinstance(saved, dict):
        for name in sorted(here.keys() | saved.keys()):
            place = ".".join(part for part in (path, name) if part)
            if name == "shares" and (lines := _of_shares(path, here, saved)) is not None:
                yield from lines
            else:
                yield from _differences(place, here.get(name, _MISSING), saved.get(name, _MISSING))
    elif isinstance(here, (list, tuple)) and isinstance(saved, (list, tuple)) and len(here) == len(saved):
        for i, pair in enumerate(zip(here, saved, strict=True)):
            yield from _differences(f"{path}[{i}]", *pair)
    elif here is not saved and _plain(here) != _plain(saved):
        yield f"{path}: {_show(here)} here, {_show(saved)} in the saved recipe"


def _of_shares(path: str, here: dict[str, Any], saved: dict[str, Any]) -> list[str] | None:
    """Return the differences of the shares of a branch, in percent with the names of its children.

    Returns None if the values are not shares. Shares are integers with the sum 2^31 unless they are counts of samples:
    a weight of 0.3 becomes 644245094.
    """
    both: tuple[Any, Any] = here.get("shares"), saved.get("shares")
    if not all(_are_shares(shares) for shares in both) or len(both[0]) != len(both[1]):
        return None
    children = here.get("children")
    names = [_child_name(child, i) for i, child in enumerate(children or [None] * len(both[0]))]
    parts = [[100 * share / sum(shares) for share in shares] for shares in both]
    lines = []
    for name, part, old in zip(names, *parts, strict=True):
        if part != old:
            digits = next(digits for digits in (4, 7, 10, 13, 17) if f"{part:.{digits}g}" != f"{old:.{digits}g}")
            lines.append(f"{path}: {name} {old:.{digits}g} % -> {part:.{digits}g} %")
    if parts[0] == parts[1] and list(both[0]) != list(both[1]):
        lines.append(f"{path}: {sum(both[1]):,} samples a pass -> {sum(both[0]):,}")
    return lines


def _child_name(child: Any, number: int) -> str:
    """Return the name of a child: that of a node of a plan, or of what a run was fed."""
    if isinstance(child, list | tuple) and child:
        return str(child[0])
    return str(child.get("path", number)) if isinstance(child, dict) else str(number)


def _are_shares(found: Any) -> bool:
    return isinstance(found, list | tuple) and all(isinstance(share, int) for share in found) and sum(found) > 0


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _show(value: Any) -> str:
    return "absent" if value is _MISSING else canonical(value).decode()
