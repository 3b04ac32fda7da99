"""What a run is recorded as: its recipe, and the ids of classes and functions in it.

`RunRecipe` holds everything that decides which bytes come when, in five parts with a hash each; and it says in words in
which fields two of them differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec

from headrace.errors import StateError

PARTS = ("format", "dataset", "blend", "order", "batch")

CONTENTS: Final = "store_contents"
"""The part with the contents of files that ``dataset`` knows by names, sizes and offsets only, and the field of recipes
that it is made of. Recipes of data whose contents are not known lack it."""

ORDER_FORMAT = {"order": 1, "blend": 1, "split": 2}
"""Versions of the algorithms behind the plan. A change that moves any sample raises one of them.

``split`` is 1 where every slot of a step takes the position of its own number, and 2 where slots are drawn.
"""


def order_format(*, is_drawn: bool) -> dict[str, Any]:
    """Return the versions of the algorithms that a run uses; ``is_drawn`` says whether the slots of its steps are."""
    return dict(ORDER_FORMAT) if is_drawn else {**ORDER_FORMAT, "split": 1}


class RunRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """JSON-safe descriptions of everything that decides the samples of a run.

    The parts are the algorithms (``format``), the sources and their content (``dataset``), the mix (``blend``), the
    ``order`` and the global batches (``batch``). Ranks, micro-batches, workers and read-ahead are not in it, since
    they never change the samples of a step.
    """

    format: dict[str, Any]
    dataset: dict[str, Any]
    blend: dict[str, Any]
    order: dict[str, Any]
    batch: dict[str, Any]

    def hashes(self) -> dict[str, str]:
        """Return a hash of each part: name -> 128 bits in hex; and one of the contents of files, if there are any."""
        parts = {part: getattr(self, part) for part in PARTS} | {"dataset": without_contents(self.dataset)}
        found = {part: sha256(canonical(value)).hexdigest()[:32] for part, value in parts.items()}
        return found | contents_hash(self.dataset)

    def digest(self) -> bytes:
        """Return the SHA-256 hash of the whole recipe, 32 bytes."""
        return sha256(canonical(msgspec.to_builtins(self))).digest()

    def to_json(self) -> bytes:
        """Return the recipe as an indented JSON document."""
        return msgspec.json.format(canonical(msgspec.to_builtins(self)), indent=2) + b"\n"

    @classmethod
    def from_json(cls, data: bytes | str) -> RunRecipe:
        """Return the recipe in a JSON document; raise StateError if ``data`` holds none."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StateError(f"this is not a saved recipe: {error}") from error

    def differences(self, saved: RunRecipe) -> list[str]:
        """Return a line for each field that differs, with its path, the value here and the value in ``saved``.

            dataset.stride: 128 here, 64 in the saved recipe
            blend: web 50 % -> 30 %

        The shares of a blend are shown in percent, first those of ``saved``.
        """
        edited = ["chapters" in recipe.blend for recipe in (self, saved)]
        if edited[0] != edited[1]:
            return [f"{'this run' if edited[0] else 'the saved run'} was edited, and the other was not"]
        return list(_differences("", msgspec.to_builtins(self), msgspec.to_builtins(saved)))


def differing_parts(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the parts whose hashes differ; the contents of files only if both know them, and the layouts are equal.

    Some stores at URLs do not know their contents.
    """
    found = [part for part in PARTS if one.get(part) != other.get(part)]
    are_others = CONTENTS in one and CONTENTS in other and one[CONTENTS] != other[CONTENTS]
    return [*found, CONTENTS] if are_others and "dataset" not in found else found


def without_contents(recipe: Any) -> Any:
    """Return the recipe of a dataset, or of several, without the contents of files."""
    if isinstance(recipe, Mapping):
        return {name: without_contents(value) for name, value in recipe.items() if name != CONTENTS}
    return [without_contents(value) for value in recipe] if isinstance(recipe, list | tuple) else recipe


def contents_hash(recipe: Any) -> dict[str, str]:
    """Return a hash of the contents of files in the recipe of a dataset, or of several; nothing if there are none."""
    contents = list(_contents(recipe))
    return {CONTENTS: sha256(canonical(contents)).hexdigest()[:32]} if contents else {}


def _contents(recipe: Any) -> Iterator[Any]:
    if isinstance(recipe, Mapping):
        for name in sorted(recipe):
            yield from [recipe[name]] if name == CONTENTS else _contents(recipe[name])
    elif isinstance(recipe, list | tuple):
        for value in recipe:
            yield from _contents(value)


def canonical(value: Any) -> bytes:
    """Return a value as JSON, the same for equal values."""
    return msgspec.json.encode(value, order="sorted")


OURS: Final = "headrace:"
"""How the ids of classes and functions of ours begin."""

_GUESTS: Final = "headrace.compat."


def recorded_name(thing: Any) -> str:
    """Return the id of a class or function, or of the class of an object that has no name of its own.

    Of one of ours it is ``headrace:TaskEncoder``, which holds wherever it is defined; of one in `headrace.compat` the
    package that bears its name comes first, ``headrace.compat.energon:FunctionEncoder``. For all others it is
    ``module.qualname``. The body of a function plays no part.
    """
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    module, name = str(named.__module__), named.__qualname__  # of a function that `exec` made it is None
    if module.startswith(_GUESTS):
        return f"{'.'.join(module.split('.')[:3])}:{name}"
    return f"{OURS}{name}" if module.startswith("headrace.") else f"{module}.{name}"


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
