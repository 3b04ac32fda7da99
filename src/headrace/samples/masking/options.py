"""What masking is given: which messages are trained, and the faces of a template and of a tokeniser.

What masking needs of others: a template that renders, and a tokeniser that encodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.samples.conversation import Conversation
from headrace.samples.templates.messages import Rendered

Turns = Literal["all", "last"]
EndOfTurn = Literal["train", "mask", "last"]
Reasoning = Literal["train", "mask"]
Straddle = Literal["mask", "train"]
Unstable = Literal["error", "drop", "last_turn", "split"]
GenerationTags = Literal["checked", "trusted", "exact", "ignore"]
Policy = Literal["error", "drop", "allow"]


class MaskOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tokens of a conversation are trained. A message's own flags come before all of it.

    ``roles``: whose messages are trained; ``turns``: all of them, or the last one only.
    ``train_on_prompt``: everything is trained but messages that are flagged otherwise.
    ``end_of_turn``: the token that ends a trained turn is trained, is not, or is in the last trained turn only.
    ``reasoning``: what a message thinks before it answers; ``empty_reasoning``: a block without a thought in it, which
    the template wrote and not the record.
    ``straddle``: a token with trained and untrained bytes is not trained (as Axolotl), or is (as Hugging Face).
    ``generation_tags``: what ``{% generation %}`` blocks of a template are good for:
        ``checked``  they say where the turns are, cut to our convention (header out, end of turn in, nothing after it),
                     and the turns are compared with their prefixes as those of other templates are;
        ``trusted``  the same without the comparison;
        ``exact``    what stands in them is trained, no more and no less, and nothing is compared: as Hugging Face;
        ``ignore``   nothing.
    ``unstable``: the template writes a turn otherwise when more turns follow (thinking that is stripped). The record is
    refused, dropped, trained on its last turn only, or split into samples that show their turns as they were written
    (the default, since it is exact: every turn is trained once; it costs the tokens of the beginnings that are written
    anew, counted as ``split_tokens`` by whoever makes a store).

    The rest say what becomes of a record, an error, a counted drop, or a count and no more:
    ``on_prompt_mismatch``   the template's generation prompt is not how its assistant turns begin;
    ``on_no_supervised``     nothing is trained;
    ``on_all_supervised``    everything is, though some of the messages should not be;
    ``on_doubled_bos``       it begins with two BOS;
    ``on_missing_bos``       of samples of a recipe: the tokeniser begins texts with BOS, the template does not, and
                             none was added. Counted by default, since Hugging Face and TRL add none either;
    ``on_untrained_end``     the end of a turn should be trained and is not, or there is no token for it;
    ``on_empty_turn``        a trained turn is empty, mostly since the template does not write calls of tools;
    ``on_unwritten_message`` the template writes nothing of a message: an unknown role, a system message in the middle,
                             parts that it does not read. What it leaves out of a message that it writes is counted.

    Raises:
        ConfigError: an unknown value.
    """

    roles: tuple[str, ...] = ("assistant",)
    turns: Turns = "all"
    train_on_prompt: bool = False
    end_of_turn: EndOfTurn = "train"
    reasoning: Reasoning = "train"
    empty_reasoning: Reasoning = "mask"
    straddle: Straddle = "mask"
    generation_tags: GenerationTags = "checked"
    unstable: Unstable = "split"
    on_prompt_mismatch: Policy = "error"
    on_no_supervised: Policy = "error"
    on_all_supervised: Policy = "error"
    on_doubled_bos: Policy = "error"
    on_missing_bos: Policy = "allow"
    on_untrained_end: Policy = "error"
    on_empty_turn: Policy = "error"
    on_unwritten_message: Policy = "error"

    def __post_init__(self) -> None:
        """Check each value."""
        for name, kind in _ALLOWED.items():
            check_choice(name, getattr(self, name), kind)
        if not isinstance(self.roles, tuple) or not all(isinstance(role, str) and role for role in self.roles):
            raise ConfigError(f"roles is {self.roles!r}; expected names such as ('assistant',)")
        if not self.roles and not self.train_on_prompt:
            raise ConfigError("roles is empty, so that nothing would be trained: name a role, or set train_on_prompt")


def check_choice(name: str, value: object, kind: object) -> None:
    """Raises :class:`ConfigError` unless ``value`` is one of the literals of ``kind``."""
    allowed = get_args(kind)
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}; allowed are {', '.join(map(repr, allowed))}")


_ALLOWED = {
    "turns": Turns,
    "end_of_turn": EndOfTurn,
    "reasoning": Reasoning,
    "empty_reasoning": Reasoning,
    "straddle": Straddle,
    "generation_tags": GenerationTags,
    "unstable": Unstable,
    "on_prompt_mismatch": Policy,
    "on_no_supervised": Policy,
    "on_all_supervised": Policy,
    "on_doubled_bos": Policy,
    "on_missing_bos": Policy,
    "on_untrained_end": Policy,
    "on_empty_turn": Policy,
    "on_unwritten_message": Policy,
}


class Template(Protocol):
    """A chat template; `headrace.samples.templates.ChatTemplate` is one."""

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """``bos_token``, ``eos_token`` and the like, by name."""

    @property
    def end_of_turn(self) -> str | None:
        """The text that ends an assistant's turn, where it is known."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        **template_kwargs: Any,
    ) -> Rendered:
        """The text of the messages. Raises :class:`InputError` where the template refuses them."""


@runtime_checkable
class RendersAhead(Protocol):
    """A template that renders many conversations for less than one by one, such as `ChatTemplate`."""

    def render_ahead(self, conversations: Iterable[Conversation], *, prompts: bool = True) -> None:
        """Render what masking will ask for of these conversations."""


class TextEncoder(Protocol):
    """A tokeniser, as `headrace.prepare.backends` has them."""

    def encode(self, texts: list[str], /) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """All ids of all texts in a row, and the number of tokens of each text."""
