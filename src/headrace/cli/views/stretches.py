"""Tokens with what is known of each -> stretches of those that are alike."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from headrace.cli.views.roles import roles_of
from headrace.cli.views.shown import Stretch
from headrace.cli.views.token_texts import TokenTexts, texts_of


def stretches(
    vocabulary: TokenTexts,
    ids: NDArray[Any],
    *,
    mask: NDArray[Any] | None = None,
    positions: NDArray[Any] | None = None,
) -> tuple[Stretch, ...]:
    """(n,) ids, with (n,) marks of those that are trained, and (n,) position ids, by default 0, 1, 2 ...

    A stretch ends where the role, the mask, or the segment changes, and around special tokens. O(n).
    """
    numbers: list[int] = ids.tolist()
    groups = vocabulary.groups(numbers)
    roles = roles_of(vocabulary, numbers, groups)
    trained: list[bool | None] = [None] * len(numbers) if mask is None else (mask != 0).tolist()
    places = list(range(len(numbers))) if positions is None else positions.tolist()
    alike = [
        # Of one segment are tokens whose positions count on.
        (is_trained, number in vocabulary.special, role, place - position)
        for place, (number, is_trained, role, position) in enumerate(zip(numbers, trained, roles, places, strict=True))
    ]
    texts = texts_of(groups, alike)
    return tuple(
        Stretch(
            begin=begin,
            position=places[begin],
            ids=tuple(numbers[begin:end]),
            texts=tuple(texts[begin:end]),
            is_trained=trained[begin],
            is_special=numbers[begin] in vocabulary.special,
            role=roles[begin],
        )
        for begin, end in runs(alike)
    )


def runs(values: Sequence[object]) -> list[tuple[int, int]]:
    """``[begin, end)`` of each run of equal values: (a, a, b) gives (0, 2), (2, 3)."""
    borders = [place for place in range(1, len(values)) if values[place] != values[place - 1]]
    edges = [0, *borders, len(values)] if values else []
    return list(itertools.pairwise(edges))
