"""What data calls the speakers, and what templates call them."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from headrace.errors import InputError
from headrace.samples.layouts.fields import describe

ALIASES = {
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "chatbot": "assistant",
    "observation": "tool",
    "tool_response": "tool",
    "function_response": "tool",
    "function_call": "function_call",
    "tool_call": "function_call",
}
"""Every other role is handed to the template as it is. ``function_call`` becomes an assistant's message whose content,
the JSON of a call or of several, is moved into ``tool_calls``."""

CALL = "function_call"


def read_calls(content: object, place: str) -> list[dict[str, Any]]:
    """The ``tool_calls`` that the text of a ``function_call`` turn says.

    Raises:
        InputError: it is not the JSON of an object with ``name`` and ``arguments``, nor of a list of them.
    """
    value = content
    if isinstance(content, str):
        try:
            value = msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError):
            value = None
    calls = value if isinstance(value, list) else [value]
    read = []
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise InputError(
                f"{place} is {describe(content)}; a call of a function is the JSON of an object with 'name' and "
                "'arguments', or of a list of such objects (where it is plain text, say `roles: {function_call: "
                "assistant}`)"
            )
        arguments = call.get("arguments", {})
        if isinstance(arguments, str):
            with contextlib.suppress(msgspec.DecodeError, RecursionError):  # some tools take one string
                arguments = msgspec.json.decode(arguments)
        read.append({"type": "function", "function": {"name": call["name"], "arguments": arguments}})
    if not read:
        raise InputError(f"{place} is an empty list: a call of a function was expected")
    return read


def parse_arguments(calls: object, place: str) -> object:
    """The ``tool_calls`` with each ``arguments`` that is a string as the object whose JSON the string is.

    Raises:
        InputError: a string is no JSON.
    """
    if not isinstance(calls, list | tuple):
        return calls
    read: list[Any] = []
    for number, call in enumerate(calls):
        inner = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(inner, dict) or not isinstance(inner.get("arguments"), str):
            read.append(call)
            continue
        try:
            parsed = {**inner, "arguments": msgspec.json.decode(inner["arguments"] or "{}")}
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputError(
                f"the arguments of call {number} of {place} are {describe(inner['arguments'])}, which is no JSON "
                f"({error}); `arguments: keep` hands them on as they are"
            ) from None
        read.append({**call, "function": parsed} if "function" in call else parsed)
    return read
