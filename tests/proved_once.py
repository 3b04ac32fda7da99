"""The proof of a library for a tokeniser, made once a process: a second of work that most tests say nothing about.

What the proof itself does is tested in ``tests/preparing/backends``, where nothing is remembered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.preparing.backends import libraries, proof

_FOUND: dict[tuple[Any, ...], proof.Choice | str] = {}
_TRY = proof._try


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Within, what was found for the same library, tokeniser and policy is not sought again."""

    def found(name: str, tokenizer_json: bytes, *rest: Any) -> proof.Choice | str:
        key = (name, libraries.CANDIDATES[name], tokenizer_json, rest[0])
        if key not in _FOUND:
            _FOUND[key] = _TRY(name, tokenizer_json, *rest)
        return _FOUND[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "_try", found)
        yield
