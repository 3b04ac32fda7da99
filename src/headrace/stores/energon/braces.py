"""Expands braces as Energon does, by the rules of its package ``braceexpand``.

They are not those of `headrace.io.expand_braces`, which reads what a user types: here braces nest, ranges have steps,
count down and run over letters, a backslash escapes, and braces that do not match are an error. The names in a split
file mean what Energon makes of them.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from itertools import islice, product
from typing import Final

from headrace.errors import StoreError

MAX_EXPANDED: Final = 1_000_000
"""More names than this from one pattern is taken for a slip of the pen."""

_LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase
_NUMBERS: Final = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?", re.ASCII)
_CHARACTERS: Final = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?", re.ASCII)
_ESCAPED: Final = re.compile(r"\\(.)")


def expand(pattern: str, where: str) -> list[str]:
    """The names that a pattern stands for, the last braces fastest.

        >>> expand("s{08..10}{a,b{1..2}}", "split.yaml")
        ['s08a', 's08b1', 's08b2', 's09a', 's09b1', 's09b2', 's10a', 's10b1', 's10b2']

    Raises:
        StoreError: braces that do not match, or over ``MAX_EXPANDED`` names; names ``where``.
    """
    if "{" not in pattern and "}" not in pattern and "\\" not in pattern:
        return [pattern]
    names = list(islice(_expanded(pattern, pattern, where), MAX_EXPANDED + 1))
    if len(names) > MAX_EXPANDED:
        raise StoreError(f"{where}: {pattern!r} stands for over {MAX_EXPANDED:,} names")
    return names


def collapse(names: list[str]) -> list[str]:
    """The names with runs of them as ranges, in their order, as Energon writes a split file.

    One number in the name may count up by one, with as many digits throughout.

        >>> collapse(["a_08.tar", "a_09.tar", "a_10.tar", "b.tar"])
        ['a_{08..10}.tar', 'b.tar']
    """
    found: list[str] = []
    at = 0
    while at < len(names):
        begin, pieces, slot = at, _pieces(names[at]), None
        at += 1
        last = pieces
        while at < len(names):
            following = _pieces(names[at])
            counted = _counted(last, following)
            if counted is None or slot not in (None, counted):
                break
            slot, last = counted, following
            at += 1
        if slot is None:
            found.append(names[begin])
        else:
            found.append("".join([*pieces[:slot], f"{{{pieces[slot]}..{last[slot]}}}", *pieces[slot + 1 :]]))
    return found


def _pieces(name: str) -> list[str]:
    """Text and runs of digits by turns; the runs are at odd places."""
    return re.split(r"(\d+)", name)


def _counted(before: list[str], after: list[str]) -> int | None:
    """The place of the one number that is greater by one, with as many digits."""
    if len(before) != len(after) or before[::2] != after[::2]:
        return None
    # Compared by value, as there: 01 and 1 are the same number.
    differing = [place for place in range(1, len(before), 2) if int(before[place]) != int(after[place])]
    if len(differing) != 1:
        return None
    place = differing[0]
    counts = len(before[place]) == len(after[place]) and int(after[place]) == int(before[place]) + 1
    return place if counts else None


def _expanded(pattern: str, whole: str, where: str) -> Iterator[str]:
    """Every name of a pattern. Choices are taken one at a time, so that a bound can stop them."""
    choices: list[list[str]] = []
    literal = 0
    for begin, end in _outer_braces(pattern, whole, where):
        choices.append([pattern[literal:begin]])
        choices.append(_choices(pattern[begin + 1 : end], whole, where))
        literal = end + 1
    choices.append([pattern[literal:]])
    total = 1
    for choice in choices:
        total *= len(choice)
    if total > MAX_EXPANDED:
        raise StoreError(f"{where}: {whole!r} stands for {total:,} names; at most {MAX_EXPANDED:,} are allowed")
    for parts in product(*choices):
        # Each level takes its escapes off, so those within braces count twice, as there.
        yield _ESCAPED.sub(r"\1", "".join(parts))


def _outer_braces(pattern: str, whole: str, where: str) -> Iterator[tuple[int, int]]:
    depth = begin = at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            at += 2
            continue
        if character == "{":
            if depth == 0:
                begin = at
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                yield begin, at
        at += 1
    if depth:
        raise StoreError(f"{where}: the braces of {whole!r} do not match; a brace of a name is written \\{{ or \\}}")


def _choices(inside: str, whole: str, where: str) -> list[str]:
    if counted := _NUMBERS.fullmatch(inside):
        return _numbers(counted[1], counted[2], counted[3], whole, where)
    if lettered := _CHARACTERS.fullmatch(inside):
        first, last, step = lettered[1], lettered[2], int(lettered[3] or 1) or 1
        begin, end = _LETTERS.index(first), _LETTERS.index(last)
        return [_LETTERS[at] for at in _steps(begin, end, step)]
    items = list(_items(inside))
    if len(items) == 1:  # neither a range nor a list: the braces are part of the name
        return ["{" + name + "}" for name in _expanded(inside, whole, where)]
    return [name for item in items for name in _expanded(item, whole, where)]


def _numbers(first: str, last: str, step: str | None, whole: str, where: str) -> list[str]:
    padded = any(text not in ("0", "-0") and text.startswith(("0", "-0")) for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    numbers = _steps(int(first), int(last), int(step or 1) or 1)
    if len(numbers) > MAX_EXPANDED:
        raise StoreError(f"{where}: {whole!r} stands for over {MAX_EXPANDED:,} names")
    return [f"{number:0{width}d}" for number in numbers]


def _steps(first: int, last: int, step: int) -> range:
    return range(first, last + 1, step) if first < last else range(first, last - 1, -step)


def _items(inside: str) -> Iterator[str]:
    """What commas outside of inner braces set apart."""
    depth = begin = at = 0
    while at < len(inside):
        character = inside[at]
        if character == "\\":
            at += 2
            continue
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            yield inside[begin:at]
            begin = at + 1
        at += 1
    yield inside[begin:]
