"""Conversations for the tests of chat templates and masks: fixed ones, and strategies for hypothesis."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from hypothesis import strategies as st

from headrace.samples.templates import Family

Talk = list[dict[str, Any]]

NOW = datetime(2025, 3, 9, 12, 30)
"""The time of every rendering, so that dates do not change with the day."""

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather at a place.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "A city <name> & country."},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                    "days": {"type": "array", "items": {"type": "integer"}},
                },
                "required": ["place"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object"}}},
]
DOCUMENTS = [{"title": "A", "text": "Wheels turn."}, {"title": "B", "text": "Water falls.\n"}]


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


def call(name: str, arguments: Any, number: int = 0) -> dict[str, Any]:
    return {"id": f"call{number:05d}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: str, number: int = 0, name: str = "weather") -> dict[str, Any]:
    return {"role": "tool", "name": name, "tool_call_id": f"call{number:05d}", "content": content}


ONE = [user("Hi there"), assistant("Hello!")]
TWO = [user("Hi there"), assistant("Hello!"), user("And now?"), assistant("Bye.\n\nReally.")]
SPACES = [user("  Hi\t\n"), assistant("\n Hello ! \n\n"), user(" "), assistant("é̄ 😀 {{ x }} {% if %} {# no #}")]
SYSTEM = [system("Be brief."), *TWO]
THINKING = [
    user("2 + 2?"),
    assistant("4", reasoning_content="Two and two."),
    user("Sure?"),
    assistant("Yes, 4.", reasoning_content="I checked.\nTwice."),
]
THOUGHT_IN_TEXT = [user("2 + 2?"), assistant("<think>\nTwo and two.\n</think>\n\n4")]
CALLED = [
    user("Warm in Bern?"),
    assistant(None, tool_calls=[call("weather", {"place": "Bern", "days": [1, 2]})]),
    result('{"degrees": 21}'),
    assistant("It is 21 degrees."),
    user("Thanks"),
    assistant("You are welcome."),
]


def fixed(family: Family) -> dict[str, dict[str, Any]]:
    """Name -> arguments of `render`: conversations that the family knows, with all that it can show."""
    talks: dict[str, dict[str, Any]] = {
        "one": {"messages": ONE},
        "two": {"messages": TWO},
        "spaces": {"messages": SPACES},
        "prompt": {"messages": TWO[:3], "add_generation_prompt": True},
    }
    if "system" in family.roles:
        talks["system"] = {"messages": SYSTEM}
        talks["system prompt"] = {"messages": SYSTEM[:4], "add_generation_prompt": True}
    if "thinking" in family.features:
        talks["thinking"] = {"messages": THINKING}
        talks["thought in text"] = {"messages": THOUGHT_IN_TEXT}
    if "tools" in family.features:
        talks["tools"] = {"messages": CALLED, "tools": TOOLS}
        talks["tools, system"] = {"messages": [system("Be brief."), *CALLED], "tools": TOOLS}
        talks["tools, prompt"] = {"messages": CALLED[:3], "tools": TOOLS, "add_generation_prompt": True}
    if "documents" in family.features:
        talks["documents"] = {"messages": ONE, "documents": DOCUMENTS}
    return talks


PIECES = [
    "{{ x }}",
    "{%",
    "#}",
    "<|im_end|>",
    "</s>",
    "</think>",
    "<think>",
    "[INST]",
    "\n\n",
    " ",
    "\t",
    "é̄",
    "😀",
    "ok",
]


def texts(*, least: int = 0) -> st.SearchStrategy[str]:
    """Text over all of Unicode but surrogates, with markers, braces and odd spaces strewn in."""
    character = st.characters(exclude_categories=("Cs",))
    return st.lists(st.one_of(st.sampled_from(PIECES), st.text(character, max_size=6)), min_size=least, max_size=5).map(
        "".join
    )


@st.composite
def talks(draw: st.DrawFn, family: Family) -> Talk:
    """A conversation of the family's roles: perhaps a system message, then user and assistant in turn."""
    messages: Talk = []
    if "system" in family.roles and draw(st.booleans()):
        messages.append(system(draw(texts())))
    for _ in range(draw(st.integers(1, 3))):
        messages.append(user(draw(texts())))
        reasoning = draw(st.none() | texts()) if "thinking" in family.features else None
        messages.append(assistant(draw(texts())) | ({} if reasoning is None else {"reasoning_content": reasoning}))
    return messages
