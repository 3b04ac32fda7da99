"""The tokens that are put at the ends of a sequence: of the tokeniser's own rule, and BOS and EOS."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headrace.errors import ConfigError
from headrace.samples.layouts import nearest

Ids = NDArray[np.uint32]
_NONE: Ids = np.zeros(0, np.uint32)

BEGIN_TOKEN = "begin_token"
"""The name, among special tokens, of the one that the tokeniser's configuration begins every text with."""


class Ends(NamedTuple):
    """What one sequence gets."""

    before: Ids = _NONE
    """Not trained. Not added where the sequence begins with it."""

    after: Ids = _NONE
    """Not added where the sequence ends in it."""

    is_trained: bool = False
    """Whether ``after`` is trained."""

    usual: int | None = None
    """The token that the tokeniser itself begins a text with, where somebody should be told if it is missing."""

    @property
    def is_empty(self) -> bool:
        """Whether it gets nothing."""
        return not len(self.before) and not len(self.after)


class EndTokens:
    """The ids of BOS and EOS of one tokeniser, looked up once.

    Args:
        tokenizer_json: the tokeniser with its post-processor.
        special_tokens: ``bos_token`` and ``eos_token``, as its configuration and the chat template have them.
        bos: the token to take in their place; None takes theirs.
        eos: as ``bos``.

    Raises:
        ConfigError: a token that was named is not in the vocabulary.
    """

    def __init__(
        self, tokenizer_json: bytes, special_tokens: Mapping[str, str], *, bos: str | None, eos: str | None
    ) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer_json.decode())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._bos = self._find(bos, special_tokens.get("bos_token"), "bos")
        self._eos = self._find(eos, special_tokens.get("eos_token"), "eos")
        self._begin = self._find(None, special_tokens.get(BEGIN_TOKEN), "bos")
        self._around: tuple[Ids, Ids] | None = None

    def wanted_bos(self, wanted: bool | None) -> Ids:
        """(1,) the begin-of-sequence token, or (0,) where it is not wanted; None: where it is known.

        Raises:
            ConfigError: it is wanted, and not known.
        """
        if wanted is False or (wanted is None and self._bos is None):
            return _NONE
        return self._known(self._bos, "bos", "begin")

    @property
    def eos(self) -> Ids:
        """(1,) the end-of-sequence token.

        Raises:
            ConfigError: it is not known.
        """
        return self._known(self._eos, "eos", "end")

    @property
    def around(self) -> tuple[Ids, Ids]:
        """What the tokeniser itself puts before and behind a text.

        Raises:
            ConfigError: it does something else to a text than to put tokens around it.
        """
        if self._around is None:
            text = "a"
            plain = self._tokenizer.encode(text, add_special_tokens=False).ids
            full = self._tokenizer.encode(text, add_special_tokens=True).ids
            places = [at for at in range(len(full) - len(plain) + 1) if full[at : at + len(plain)] == plain]
            if len(places) != 1:
                raise ConfigError(
                    "add_special_tokens: the tokeniser's post-processor does more than to put tokens around a text; "
                    "say add_special_tokens: false, and ends.prepend_bos or ends.append_eos"
                )
            at = places[0]
            self._around = (np.array(full[:at], np.uint32), np.array(full[at + len(plain) :], np.uint32))
        return self._around

    @cached_property
    def usual_bos(self) -> int | None:
        """The begin-of-sequence token that tokenising a text puts before it, by post-processor or configuration.

        None where it puts none, or something else.
        """
        try:
            before = self.around[0]
        except ConfigError:
            before = _NONE
        if len(before) == 1 and self._bos in (None, int(before[0])):
            return int(before[0])
        return self._begin

    def _find(self, wanted: str | None, given: str | None, name: str) -> int | None:
        if wanted is None:
            found: int | None = None if given is None else self._tokenizer.token_to_id(given)
            return found
        found = self._tokenizer.token_to_id(wanted)
        if found is None:
            vocabulary = [token.content for token in self._tokenizer.get_added_tokens_decoder().values()]
            raise ConfigError(
                f"ends.{name} is {wanted!r}, which the tokeniser does not have{nearest(wanted, vocabulary)}; its added "
                f"tokens are {', '.join(map(repr, vocabulary[:20])) or 'none'}"
            )
        return found

    @staticmethod
    def _known(number: int | None, name: str, end: str) -> Ids:
        if number is None:
            raise ConfigError(
                f"which token is the {end} of a sequence is not known: neither chat template nor tokenizer_config.json "
                f"says {name}_token. Name it with `ends: {{{name}: TOKEN}}`"
                + (", or say `ends: {append_eos: false}`" if name == "eos" else "")
            )
        return np.array([number], np.uint32)


def add_ends(ids: Ids, mask: NDArray[np.uint8], ends: Ends) -> tuple[Ids, NDArray[np.uint8], int, int]:
    """The sequence with its ends, its mask, and how many tokens were put before and behind it."""
    before = ends.before if len(ends.before) and not np.array_equal(ids[: len(ends.before)], ends.before) else _NONE
    after = ends.after if len(ends.after) and not np.array_equal(ids[-len(ends.after) :], ends.after) else _NONE
    if len(before) or len(after):
        trained = np.full(len(after), ends.is_trained, np.uint8)
        mask = np.concatenate((np.zeros(len(before), np.uint8), mask, trained))
        ids = np.concatenate((before, ids, after))
    return ids, mask, len(before), len(after)
