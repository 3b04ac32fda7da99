"""The tokens at the ends of a sequence: BOS, EOS, and those that the tokeniser's post-processor adds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headrace.config import nearest
from headrace.errors import ConfigError

Ids = NDArray[np.uint32]
_NONE: Ids = np.zeros(0, np.uint32)

BEGIN_TOKEN = "begin_token"
"""The name, among special tokens, of the token with which the tokeniser's configuration begins every text."""


class Ends(NamedTuple):
    """The tokens that one sequence gets at its ends."""

    before: Ids = _NONE
    """Never trained. Not added if the sequence already begins with it."""

    after: Ids = _NONE
    """Not added if the sequence already ends in it."""

    is_trained: bool = False
    """Whether ``after`` is trained."""

    usual: int | None = None
    """The token with which the tokeniser itself begins a text, if its absence is to be reported."""

    @property
    def is_empty(self) -> bool:
        """Whether the sequence gets no tokens."""
        return not len(self.before) and not len(self.after)


class EndTokens:
    """The ids of BOS and EOS of one tokeniser, looked up once.

    Args:
        tokenizer_json: The tokeniser with its post-processor.
        special_tokens: ``bos_token`` and ``eos_token``, as the tokeniser's configuration and the chat template name
            them.
        bos: The token to use as BOS instead; None uses ``bos_token``.
        eos: The token to use as EOS instead; None uses ``eos_token``.

    Raises:
        ConfigError: If ``bos`` or ``eos`` is not in the vocabulary.
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
        """Return the begin-of-sequence token, (1,), or no token, (0,).

        ``wanted`` True or False asks for it or not; None asks for it if it is known.

        Raises:
            ConfigError: If the token is wanted and not known.
        """
        if wanted is False or (wanted is None and self._bos is None):
            return _NONE
        return self._known(self._bos, "bos", "begin")

    @property
    def eos(self) -> Ids:
        """(1,) the end-of-sequence token.

        Raises:
            ConfigError: If the token is not known.
        """
        return self._known(self._eos, "eos", "end")

    @property
    def around(self) -> tuple[Ids, Ids]:
        """The tokens that the tokeniser itself adds before and after a text.

        Raises:
            ConfigError: If the post-processor does anything other than add tokens around the text.
        """
        if self._around is None:
            text = "a"
            plain = self._tokenizer.encode(text, add_special_tokens=False).ids
            full = self._tokenizer.encode(text, add_special_tokens=True).ids
            places = [at for at in range(len(full) - len(plain) + 1) if full[at : at + len(plain)] == plain]
            if len(places) != 1:
                raise ConfigError(
                    "add_special_tokens: the tokeniser's post-processor does more than add tokens around a text; use "
                    "add_special_tokens: false, and ends.prepend_bos or ends.append_eos"
                )
            at = places[0]
            self._around = (np.array(full[:at], np.uint32), np.array(full[at + len(plain) :], np.uint32))
        return self._around

    @cached_property
    def usual_bos(self) -> int | None:
        """The begin-of-sequence token that the post-processor or the configuration puts before a text.

        None if they put no token there, or another one.
        """
        try:
            before = self.around[0]
        except ConfigError:
            before = _NONE
        if len(before) == 1 and self._bos in (None, int(before[0])):
            return int(before[0])
        return self._begin

    def _find(self, wanted: str | None, usual: str | None, name: str) -> int | None:
        if wanted is None:
            found: int | None = None if usual is None else self._tokenizer.token_to_id(usual)
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
                f"the token for the {end} of a sequence is not known: neither the chat template nor "
                f"tokenizer_config.json names {name}_token. Name it with `ends: {{{name}: TOKEN}}`"
                + (", or use `ends: {append_eos: false}`" if name == "eos" else "")
            )
        return np.array([number], np.uint32)


def add_ends(ids: Ids, mask: NDArray[np.uint8], ends: Ends) -> tuple[Ids, NDArray[np.uint8], int, int]:
    """Return the sequence with its end tokens, its mask, and the numbers of tokens added before and after it."""
    before = ends.before if len(ends.before) and not np.array_equal(ids[: len(ends.before)], ends.before) else _NONE
    after = ends.after if len(ends.after) and not np.array_equal(ids[-len(ends.after) :], ends.after) else _NONE
    if len(before) or len(after):
        trained = np.full(len(after), ends.is_trained, np.uint8)
        mask = np.concatenate((np.zeros(len(before), np.uint8), mask, trained))
        ids = np.concatenate((before, ids, after))
    return ids, mask, len(before), len(after)
