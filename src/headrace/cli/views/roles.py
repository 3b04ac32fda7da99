"""Whose turn each token is, as far as special tokens tell it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.cli.views.token_texts import Group, TokenTexts

ROLES = frozenset(
    (
        *("system", "developer", "user", "human", "assistant", "model", "chatbot", "bot", "ai"),
        *("tool", "function", "observation", "ipython", "environment"),
    )
)
"""Names of roles, as templates write them."""

_FILLERS = frozenset(("im", "start", "begin", "of", "turn", "token", "header", "id", "role", "prompt"))
_BRACKETS = {"[INST]": "user", "[/INST]": "assistant"}
_MOST_CHARS = 24


def roles_of(vocabulary: TokenTexts, ids: Sequence[int], groups: Sequence[Group]) -> list[str]:
    """A role for each token, empty before the first that is told.

    Told are turns that begin with an added token which names the role, as ``<|user|>``, or which the name follows, up
    to the end of the line or the next added token, as ``<|im_start|>user``. Templates whose turns begin with plain
    text, as ``USER:``, tell nothing here.
    """
    roles: list[str] = []
    role = ""
    for number, group in enumerate(groups):
        if group.end - group.begin == 1 and ids[group.begin] in vocabulary.added:
            role = (
                _named(vocabulary.added[ids[group.begin]])
                or _following(vocabulary, ids, groups[number + 1 : number + 1 + _MOST_CHARS])
                or role
            )
        roles += [role] * (group.end - group.begin)
    return roles


def _named(token: str) -> str:
    """The role that the name of a token says, or nothing: ``<|USER_TOKEN|>`` says user, ``<|end_of_user|>`` nothing."""
    if token in _BRACKETS:
        return _BRACKETS[token]
    words = [word for word in re.findall("[a-z]+", token.lower()) if word not in _FILLERS]
    return words[0] if len(words) == 1 and words[0] in ROLES and "/" not in token else ""


def _following(vocabulary: TokenTexts, ids: Sequence[int], groups: Sequence[Group]) -> str:
    text = ""
    for group in groups:
        if ids[group.begin] in vocabulary.added:
            break
        text += group.text
        if "\n" in text or len(text) > _MOST_CHARS:
            break
    else:
        return ""
    name = text.partition("\n")[0].strip().lower()
    return name if name in ROLES else ""
