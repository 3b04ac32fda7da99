"""The options of masking, and the protocols of the template and the tokeniser that it uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.config import check_fields
from headrace.errors import ConfigError
from headrace.samples.templates.messages import Rendered

Turns = Literal["all", "last"]
EndOfTurn = Literal["train", "mask", "last"]
Reasoning = Literal["train", "mask"]
Straddle = Literal["mask", "train"]
Unstable = Literal["error", "drop", "last_turn", "split"]
GenerationTags = Literal["checked", "trusted", "exact", "ignore"]
Policy = Literal["error", "drop", "allow"]


class MaskOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tokens of a conversation are trained, and what happens to records with findings.

    A message's own flags override these options. The options ``on_...`` and ``unstable`` say what happens to a record
    with a finding: ``error`` refuses it, ``drop`` drops and counts it, ``allow`` only counts it.

    Attributes:
        roles: Roles whose messages are trained.
        turns: Whether all of these messages are trained, or only the last one.
        train_on_prompt: Train everything except messages that are flagged otherwise.
        end_of_turn: Whether the token that ends a trained turn is trained, is not, or is in the last trained turn only.
        reasoning: Whether what a message thinks before it answers is trained.
        empty_reasoning: Whether a reasoning block without a thought, which the template wrote and not the record, is
            trained.
        straddle: Whether a token with trained and untrained bytes is trained (as in Hugging Face) or not (as in
            Axolotl).
        generation_tags: How the template's ``{% generation %}`` blocks are used. ``checked``: they say where the turns
            are, cut to our convention (header out, end of turn in, nothing after it), and the turns are compared with
            their prefixes as for other templates. ``trusted``: the same without the comparison. ``exact``: exactly what
            is in them is trained and nothing is compared, as in Hugging Face. ``ignore``: they are not used.
        unstable: The template writes a turn differently when more turns follow, such as by stripping thoughts.
            ``last_turn`` trains the record on its last turn only. ``split``, the default, makes samples that show each
            turn as it was written. It is exact, since every turn is trained once, but repeats the beginnings of
            conversations; recipes count these tokens as ``split_tokens``.
        on_prompt_mismatch: The template's generation prompt is not how its assistant turns begin.
        on_opened_thought: The generation prompt opens a thought, or writes an empty one, and the template writes none
            in a turn without reasoning, whatever its arguments (DeepSeek-R1, MiniMax-M2). If it is allowed, the turn
            begins where the thought would. Only counted by default; manifests name it only if it is set.
        on_no_supervised: Nothing is trained.
        on_all_supervised: Everything is trained, though some of the messages should not be.
        on_doubled_bos: The text begins with two BOS.
        on_missing_bos: In samples of a recipe, the tokeniser begins texts with BOS, the template writes none, and none
            was added. Only counted by default, since Hugging Face and TRL add none either.
        on_untrained_end: The end of a turn should be trained and is not, or there is no token for it.
        on_empty_turn: A trained turn is empty, usually because the template does not write tool calls.
        on_unwritten_message: The template writes nothing of a message: an unknown role, a system message in the middle,
            parts that it does not read. If it leaves out only some of a message, such as a text, its reasoning, or a
            field, that is counted.
        on_unwritten_tool_calls: The template does not write a call of a tool: it writes none, or only the first. This
            and the next two are errors by default, and manifests name them only if they are set.
        on_unwritten_tools: The template does not write a tool of the record.
        on_unwritten_parts: The template shows nothing for a part of a content that is not text, such as a picture.

    Raises:
        ConfigError: If an option has an unknown value.
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
    on_opened_thought: Policy | msgspec.UnsetType = msgspec.UNSET
    on_unwritten_tool_calls: Policy | msgspec.UnsetType = msgspec.UNSET
    on_unwritten_tools: Policy | msgspec.UnsetType = msgspec.UNSET
    on_unwritten_parts: Policy | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.roles, tuple) or not all(isinstance(role, str) and role for role in self.roles):
            raise ConfigError(f"roles is {self.roles!r}; expected names such as ('assistant',)")
        if not self.roles and not self.train_on_prompt:
            raise ConfigError("roles is empty, so nothing would be trained: name a role, or set train_on_prompt")


class Template(Protocol):
    """A chat template, such as `headrace.samples.templates.ChatTemplate`."""

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """``bos_token``, ``eos_token`` and other special tokens, by name."""

    @property
    def end_of_turn(self) -> str | None:
        """The text that ends an assistant's turn, if it is known."""

    @property
    def arguments(self) -> Sequence[tuple[str, Any]]:
        """Names and values of further arguments that may change the text."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> Rendered:
        """Return the text of the messages.

        Raises:
            InputError: If the template refuses the messages.
        """


class TextEncoder(Protocol):
    """A tokeniser, such as those of `headrace.preparing.backends`."""

    def encode(self, texts: list[str], /) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the ids of all texts in one array, and the number of tokens of each text."""
