"""Names with braces in Energon's files: `expand` reads them, `collapse` writes them.

They are expanded by the rules of ``braceexpand``, as in Energon. These differ from those of
`headrace.io.expand_braces`, which is for patterns that a user types: braces nest, ranges have steps, count down and run
over letters, a backslash escapes, and braces that do not match are an error.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from itertools import islice, product
from typing import Final

from headrace.errors import StoreError

MAX_EXPANDED: Final = 1_000_000
"""A pattern that stands for more names than this is taken for a typing error."""

_LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase
_NUMBERS: Final = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?", re.ASCII)
_CHARACTERS: Final = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?", re.ASCII)
_ESCAPED: Final = re.compile(r"\\(.)")


def expand(pattern: str, where: str) -> list[str]:
    """Return the names that a pattern stands for; the last braces vary fastest.

        >>> expand("s{08..10}{a,b{1..2}}", "split.yaml")
        ['s08a', 's08b1', 's08b2', 's09a', 's09b1', 's09b2', 's10a', 's10b1', 's10b2']

    Raises:
        StoreError: the braces do not match, or there are more than ``MAX_EXPANDED`` names; the message names ``where``.
    """
    if "{" not in pattern and "}" not in pattern and "\\" not in pattern:
        return [pattern]
    names = list(islice(_expanded(pattern, pattern, where), MAX_EXPANDED + 1))
    if len(names) > MAX_EXPANDED:
        raise StoreError(f"{where}: {pattern!r} stands for over {MAX_EXPANDED:,} names, which is the limit")
    return names


def collapse(names: list[str]) -> list[str]:
    """Return the names, in order, with runs of them as ranges, as Energon writes a split file.

    Within a run, one number in the name counts up by one, always with the same number of digits.

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
    """Split a name into text and runs of digits, which alternate; the runs have odd indices."""
    return re.split(r"(\d+)", name)


def _counted(before: list[str], after: list[str]) -> int | None:
    """Return the index of the only number that differs, if it is greater by one with the same number of digits."""
    if len(before) != len(after) or before[::2] != after[::2]:
        return None
    # Numbers are compared by value, as in Energon: 01 and 1 are the same number.
    differing = [place for place in range(1, len(before), 2) if int(before[place]) != int(after[place])]
    if len(differing) != 1:
        return None
    place = differing[0]
    counts = len(before[place]) == len(after[place]) and int(after[place]) == int(before[place]) + 1
    return place if counts else None


def _expanded(pattern: str, whole: str, where: str) -> Iterator[str]:
    """Yield every name of a pattern, one at a time, so that the caller can stop."""
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
        # Each level removes its escapes, so escapes within braces are removed twice, as in braceexpand.
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
        raise StoreError(f"{where}: the braces of {whole!r} do not match; write \\{{ or \\}} for a brace in a name")


def _choices(inside: str, whole: str, where: str) -> list[str]:
    if counted := _NUMBERS.fullmatch(inside):
        return _numbers(counted[1], counted[2], counted[3], whole, where)
    if lettered := _CHARACTERS.fullmatch(inside):
        first, last, step = lettered[1], lettered[2], int(lettered[3] or 1) or 1
        begin, end = _LETTERS.index(first), _LETTERS.index(last)
        return [_LETTERS[at] for at in _steps(begin, end, step)]
    items = list(_items(inside))
    if len(items) == 1:  # neither a range nor a list, so the braces are part of the name
        return ["{" + name + "}" for name in _expanded(inside, whole, where)]
    return [name for item in items for name in _expanded(item, whole, where)]


def _numbers(first: str, last: str, step: str | None, whole: str, where: str) -> list[str]:
    padded = any(text not in ("0", "-0") and text.startswith(("0", "-0")) for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    numbers = _steps(int(first), int(last), int(step or 1) or 1)
    if len(numbers) > MAX_EXPANDED:
        raise StoreError(f"{where}: {whole!r} stands for over {MAX_EXPANDED:,} names, which is the limit")
    return [f"{number:0{width}d}" for number in numbers]


def _steps(first: int, last: int, step: int) -> range:
    return range(first, last + 1, step) if first < last else range(first, last - 1, -step)


def _items(inside: str) -> Iterator[str]:
    """Yield the items that are separated by commas outside inner braces."""
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
