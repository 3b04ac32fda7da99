"""Our own chat templates, written in the style of the public families, with what is known about each family.

Markers and line ends are those of the family; the Jinja and the prose around lists of tools are ours. Each template
comes twice, with the same text: ``chatml`` without and ``chatml-generation`` with ``{% generation %}`` blocks. To train
an existing model, use its own template from its tokeniser's folder; if that has no blocks, ours of the family often
fits.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

_TALK = ("user", "assistant")
_SYSTEM = ("system", *_TALK)
_TOOLS = (*_SYSTEM, "tool")
_LAST_TURN_THINKS = "reasoning is shown in the last turn and left out of earlier ones"
_EOS_AT_END = "the text ends with eos_token unless a generation prompt is asked for"
_LAST_USER = "{what} before the last user message, which differs in every prefix"


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a family's template.

    Attributes:
        special_tokens: The special tokens that the template prints, as the family has them.
        end_of_turn: The text that ends an assistant's turn, or ``"eos_token"``; None if only the next header does.
        roles: The roles that it knows; if it accepts any role, the usual ones.
        features: Any of ``tools``, ``thinking``, ``documents``, ``images``, ``date``.
        unstable: Why the text of the first messages, with a generation prompt, may not be the beginning of the whole
            text; empty if it always is.
        any_order: Whether roles may come in any order; otherwise user and assistant alternate.
        file: The file of the suite, if it is not named like the family.
    """

    special_tokens: dict[str, str]
    end_of_turn: str | None
    roles: tuple[str, ...] = _SYSTEM
    features: tuple[str, ...] = ()
    unstable: str = ""
    any_order: bool = True
    file: str | None = None


def _of(bos: str | None, eos: str | None, end_of_turn: str | None, **more: Any) -> Family:
    named = {"bos_token": bos, "eos_token": eos}
    tokens = {name: token for name, token in named.items() if token is not None}
    return Family(special_tokens=tokens, end_of_turn=end_of_turn, **more)


_IM_END = "<|im_end|>"
_LLAMA3 = ("<|begin_of_text|>", "<|eot_id|>", "<|eot_id|>")
_DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "eos_token")  # noqa: RUF001 - its own bars
_SPM = ("<s>", "</s>", "eos_token")
_COHERE = ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>")
_ENDOFTEXT = "<|endoftext|>"

FAMILIES: dict[str, Family] = {
    "alpaca": _of(*_SPM),
    "baichuan2": _of(None, "</s>", "eos_token"),
    "chatml": _of(None, _IM_END, _IM_END, roles=_TOOLS),
    "chatml-default-system": _of(None, _IM_END, _IM_END, roles=_TOOLS),
    "command-a": _of(*_COHERE),
    "command-r": _of(*_COHERE),
    "deepseek-r1": _of(
        *_DEEPSEEK,
        roles=_TOOLS,
        features=("tools", "thinking"),
        unstable="every generation prompt opens the reasoning, and only turns after the last user message have one",
    ),
    "deepseek-r1-keep": _of(*_DEEPSEEK, roles=_TOOLS, features=("tools", "thinking")),
    "deepseek-v2": _of(*_DEEPSEEK),
    "deepseek-v3": _of(*_DEEPSEEK, roles=_TOOLS, features=("tools",)),
    "exaone": _of("[BOS]", "[|endofturn|]", "[|endofturn|]"),
    "falcon": _of(None, _ENDOFTEXT, None),
    "gemma": _of("<bos>", "<eos>", "<end_of_turn>", roles=_TALK, any_order=False),
    "gemma3": _of("<bos>", "<eos>", "<end_of_turn>", features=("images",), any_order=False),
    "glm4": _of(None, _ENDOFTEXT, None, roles=_TOOLS, features=("tools",)),
    "glm4.5": _of(None, _ENDOFTEXT, None, roles=_TOOLS, features=("tools", "thinking"), unstable=_LAST_TURN_THINKS),
    "glm4.5-keep": _of(None, _ENDOFTEXT, None, roles=_TOOLS, features=("tools", "thinking")),
    "gpt-oss": _of(
        "<|startoftext|>",
        "<|return|>",
        "<|return|>",
        roles=("system", "developer", "user", "assistant", "tool"),
        features=("tools", "thinking", "date"),
        unstable="the last turn shows its reasoning and ends with a token of its own, earlier ones do not",
    ),
    "gpt-oss-keep": _of(
        "<|startoftext|>",
        "<|return|>",
        "<|return|>",
        roles=("system", "developer", "user", "assistant", "tool"),
        features=("tools", "thinking", "date"),
    ),
    "granite": _of(None, "<|end_of_text|>", "<|end_of_text|>", roles=_TOOLS, features=("tools", "documents")),
    "hermes": _of(None, _IM_END, _IM_END, roles=_TOOLS, features=("tools",)),
    "internlm2": _of("<s>", "</s>", _IM_END),
    "jamba": _of("<|startoftext|>", _ENDOFTEXT, "<|eom|>"),
    "kimi-k2": _of("[BOS]", _IM_END, _IM_END, roles=_TOOLS, features=("tools",)),
    "lfm2": _of("<|startoftext|>", _IM_END, _IM_END, roles=_TOOLS, features=("tools",)),
    "llama2": _of(*_SPM, any_order=False),
    "llama3": _of(*_LLAMA3, roles=_TOOLS),
    "llama3.1": _of(*_LLAMA3, roles=_TOOLS, features=("tools",)),
    "llama3.2": _of(*_LLAMA3, roles=_TOOLS, features=("tools", "date")),
    "llama4": _of("<|begin_of_text|>", "<|eot|>", "<|eot|>", roles=_TOOLS),
    "magistral": _of(
        *_SPM,
        roles=_TOOLS,
        features=("tools", "thinking"),
        unstable=_LAST_USER.format(what="with tools: these stand"),
    ),
    "mistral-nemo": _of(
        *_SPM, roles=_TOOLS, features=("tools",), unstable=_LAST_USER.format(what="the system prompt and tools stand")
    ),
    "mistral-v1": _of(*_SPM, any_order=False),
    "mistral-v3": _of(
        *_SPM, roles=_TOOLS, features=("tools",), unstable=_LAST_USER.format(what="the system prompt and tools stand")
    ),
    "mistral-v7": _of(
        *_SPM, roles=_TOOLS, features=("tools",), unstable=_LAST_USER.format(what="with tools: these stand")
    ),
    "mixtral": _of(*_SPM, roles=_TALK, any_order=False),
    "nemotron": _of("<s>", "<SPECIAL_12>", "<SPECIAL_12>"),
    "olmo2": _of(_ENDOFTEXT, _ENDOFTEXT, "eos_token"),
    "openchat": _of("<s>", "<|end_of_turn|>", "<|end_of_turn|>"),
    "phi3": _of("<s>", _ENDOFTEXT, "<|end|>", unstable=_EOS_AT_END),
    "phi4": _of(_ENDOFTEXT, _IM_END, _IM_END),
    "phi4-mini": _of(_ENDOFTEXT, _ENDOFTEXT, "<|end|>", roles=_TOOLS, features=("tools",), unstable=_EOS_AT_END),
    "qwen2": _of(None, _IM_END, _IM_END, file="chatml-default-system"),
    "qwen2.5": _of(None, _IM_END, _IM_END, roles=_TOOLS, features=("tools",)),
    "qwen3": _of(None, _IM_END, _IM_END, roles=_TOOLS, features=("tools", "thinking"), unstable=_LAST_TURN_THINKS),
    "qwen3-keep": _of(None, _IM_END, _IM_END, roles=_TOOLS, features=("tools", "thinking")),
    "qwen3-coder": _of(None, _IM_END, _IM_END, roles=_TOOLS, features=("tools",)),
    "seed-oss": _of("<seed:bos>", "<seed:eos>", "eos_token", features=("thinking",)),
    "solar": _of(*_SPM),
    "stablelm": _of(_ENDOFTEXT, _ENDOFTEXT, _ENDOFTEXT),
    "tulu3": _of("<|begin_of_text|>", "<|end_of_text|>", "eos_token"),
    "vicuna": _of(*_SPM),
    "yi": _of(None, _IM_END, _IM_END),
    "zephyr": _of(*_SPM),
}

_GENERATION = "-generation"
_BLOCK = re.compile(r"\{%(-?)\s*((?:end)?generation)\s*(-?)%\}")


class SuiteTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """One template of the suite: its name and text, whether it has ``{% generation %}`` blocks, and its family."""

    name: str
    text: str
    has_generation: bool
    family: Family

    @property
    def special_tokens(self) -> dict[str, str]:
        """The special tokens that the template sees if no tokeniser names others."""
        return self.family.special_tokens

    def ends_turn(self, special_tokens: dict[str, str]) -> str | None:
        """Return the text that ends an assistant's turn with these special tokens; None if only a next header does."""
        end = self.family.end_of_turn
        return special_tokens.get(end) if end == "eos_token" else end


def suite_names(*, generation: bool | None = None) -> list[str]:
    """Return the names of all templates, sorted.

    ``generation`` selects those with (or without) ``{% generation %}`` blocks.
    """
    names = [] if generation is True else list(FAMILIES)
    if generation is not False:
        names += [name + _GENERATION for name in FAMILIES]
    return sorted(names)


@cache
def find(name: str) -> SuiteTemplate | None:
    """Return the template with this name, or None."""
    has_generation = name.endswith(_GENERATION)
    plain_name = name.removesuffix(_GENERATION)
    family = FAMILIES.get(plain_name)
    if family is None:
        return None
    file = files("headrace.samples.templates") / "suite" / f"{family.file or plain_name}.jinja"
    text = file.read_text(encoding="utf-8")
    if not has_generation:
        # A comment trims the same spaces as the block that it replaces, so the text is the same.
        text = _BLOCK.sub(r"{#\1 \2 \3#}", text)
    return SuiteTemplate(name=name, text=text, has_generation=has_generation, family=family)
