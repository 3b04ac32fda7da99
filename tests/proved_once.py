"""The proof of a library for a tokeniser, made once a process: a second of work that most tests say nothing about.

What the proof itself does is tested in ``tests/preparing/backends``, where nothing is remembered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.preparing.backends import ProvedEncoder, libraries, proof
from headrace.samples.tokenizer import TokenizerFile

_REASONS: dict[tuple[Any, ...], str] = {}
"""Why a library is not used; empty if it is."""

_TRY = proof._try


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Within, what was found for the same library, tokeniser and policy is not sought again."""

    def found(name: str, file: TokenizerFile, special: Any, on_compared: Any) -> ProvedEncoder | str:
        key = (name, libraries.CANDIDATES[name], file.content, special)
        if key not in _REASONS:
            tried = _TRY(name, file, special, on_compared)
            _REASONS[key] = tried if isinstance(tried, str) else ""
        return _REASONS[key] or ProvedEncoder(name, file, special)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "_try", found)
        yield
