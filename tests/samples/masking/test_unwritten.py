"""What a record says and its rendering does not show: whatever is lost is found, and nothing that is written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import masks_made
import talks
from counts import cases
from headrace.errors import InputError
from headrace.samples import Conversation
from headrace.samples.masking.renders import Renders
from headrace.samples.masking.unwritten import find_unwritten
from headrace.samples.templates import suite_names
from talks import assistant, user


def said(message: dict[str, Any]) -> dict[tuple[str, int | None], str]:
    """The words of each thing that a message says, none of which stands anywhere else."""
    calls = enumerate(message.get("tool_calls", ()))
    words: dict[tuple[str, int | None], Any] = {
        ("tool_calls", number): call["function"]["arguments"]["place"] for number, call in calls
    }
    words |= {(name, None): message.get(name) for name in ("content", "reasoning_content", "mood")}
    return {thing: text for thing, text in words.items() if text}


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Questions, calls of tools with their results, thoughts, and fields that no template knows; all texts differ."""
    names = iter(f"Word{number}q" for number in range(1000))

    def maybe(**fields: Any) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if draw(st.booleans())}

    messages: talks.Talk = [talks.system(next(names))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 2))):
        messages.append(user(next(names)) | maybe(mood=next(names)))
        calls = [
            talks.call(draw(st.sampled_from(["weather", "now"])), {"place": next(names)}, number)
            for number in range(draw(st.integers(0, 3)))
        ]
        if calls:
            content = draw(st.sampled_from([next(names), "", None]))
            messages.append(assistant(content, tool_calls=calls) | maybe(reasoning_content=next(names)))
            messages += [talks.result(next(names), number) for number in range(len(calls))]
        messages.append(assistant(next(names)) | maybe(reasoning_content=next(names)))
    tools = [
        {"type": "function", "function": {"name": name, "description": next(names), "parameters": {}}}
        for name in ("weather", "now")[: draw(st.integers(0, 2))]
    ]
    return Conversation(messages=messages, tools=tools or None)


@pytest.mark.parametrize("name", suite_names(generation=False))
def test_whatever_the_templates_of_the_suite_lose_is_found_and_nothing_else(name: str) -> None:
    @settings(max_examples=cases(12, 2_000), deadline=None)
    @given(conversations())
    def check(conversation: Conversation) -> None:
        renders = Renders(masks_made.template(name), conversation)
        messages, tools = conversation.messages, conversation.tools or []
        try:
            text = renders.text(len(messages))
        except InputError:
            return
        lost = find_unwritten(renders, {}, proved=False)
        whole = {one.message for one in lost if one.name == "unwritten_message"}
        found = {(one.message, one.field, one.item) for one in lost if one.field not in ("name", "tool_call_id")}
        for number, message in enumerate(messages):
            is_written = any(words in text for words in said(message).values())
            assert not (is_written and number in whole)
            assert is_written or message["role"] == "tool" or not message["content"] or number in whole
        expected = {
            (number, *thing)
            for number, message in enumerate(messages)
            for thing, words in said(message).items()
            if words not in text and (number not in whole or thing == ("content", None))
        }
        expected |= {
            (-1, "tools", number) for number, tool in enumerate(tools) if tool["function"]["description"] not in text
        }
        assert found == expected

    check()


SEES_NAMES = masks_made.ChatTemplate.from_text(
    "{% for m in messages %}{{ m.name | default('someone') }}: {{ m.content }}"
    "{% if m.tool_calls %}{% set c = m.tool_calls[0] %}{{ c.id }} {{ c.function.name | upper }}"
    " {{ c.function.arguments | tojson }}{% endif %}"
    "{% if m.role == 'tool' %}{% for p in messages if p.tool_calls and p.tool_calls[0].id == m.tool_call_id %}"
    "{{ p.tool_calls[0].function.name }}{% else %}{{ raise_exception('no call') }}{% endfor %}{% endif %}{% endfor %}"
)


def names(*messages: dict[str, Any], tools: Any = None) -> list[tuple[str, int, str, int | None]]:
    renders = Renders(SEES_NAMES, Conversation(messages=list(messages), tools=tools))
    return [(one.name, one.message, one.field, one.item) for one in find_unwritten(renders, {}, proved=False)]


def test_things_that_only_a_comparison_shows() -> None:
    """Fields without a text, values that are the default, equal calls, and ids that a template looks up."""
    assert names(user("a") | {"name": "someone"}) == []
    assert names(user("a") | {"turn": 1, "is_last": False}) == [
        ("unwritten_fields", 0, "turn", None),
        ("unwritten_fields", 0, "is_last", None),
    ]
    assert names(user("a") | {"scores": [], "meta": {"type": "x", "note": " "}, "none": None}) == []
    called = assistant("", tool_calls=[talks.call("now", {}, 1), talks.call("now", {}, 1)])
    assert names(user("a"), called, talks.result("noon", 1, "now")) == [("unwritten_tool_calls", 1, "tool_calls", 1)]
    bare = {"function": {"name": "now", "arguments": {"days": 1}}}
    twice = assistant("", tool_calls=[bare, bare])
    assert names(user("a"), twice) == [("unwritten_tool_calls", 1, "tool_calls", 1)]
    assert names(user("a"), tools=talks.TOOLS) == [("unwritten_tools", -1, "tools", number) for number in (0, 1)]
    older = assistant("b") | {"function_call": {"name": "now", "arguments": "{}"}}
    assert names(user("a"), older) == [("unwritten_tool_calls", 1, "function_call", None)]


def test_templates_that_refuse_other_texts() -> None:
    """Then only what stays the same, or contents that occur nowhere, are known to be lost."""
    text = (
        "{% for m in messages %}{{ raise_exception('?') if m.content not in ('a', 'b', 'c') }}"
        "{{ raise_exception('?') if m.tool_calls and m.tool_calls[0].id != '7' }}"
        "{% if m.role != 'tool' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    messages = [user("a"), assistant("b", tool_calls=[{"id": "7"}, {"id": "8"}]), {"role": "tool", "content": "c"}]
    renders = Renders(masks_made.ChatTemplate.from_text(text), Conversation(messages=messages))
    lost = find_unwritten(renders, {}, proved=False)
    assert [(one.name, one.message, one.item) for one in lost] == [
        ("unwritten_message", 2, None),
        ("unwritten_tool_calls", 1, 1),
    ]


def test_reasoning_is_counted_where_it_is_trained_or_never_shown() -> None:
    """A thought that later texts leave out is trained in a text of its own; a prompt shows it to nobody."""
    conversation = Conversation(messages=talks.THINKING)
    assert masks_made.masker("qwen3").mask_batch([conversation]).counts == {"split_records": 1}
    flagged = Conversation(messages=talks.THINKING, train=(None, False, None, None))
    assert masks_made.masker("qwen3").mask_batch([flagged]).counts == {"unwritten_reasoning": 1}
    assert masks_made.masker("chatml").mask_batch([conversation]).counts == {"unwritten_reasoning": 2}


def test_a_plain_conversation_needs_no_second_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    masker = masks_made.masker("chatml")
    masker.mask(Conversation(messages=talks.TWO))
    num_rendered = 0
    render = Renders.render

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_rendered
        num_rendered += 1
        return render(*args, **kwargs)

    monkeypatch.setattr(Renders, "render", counted)
    masker.mask(Conversation(messages=talks.TWO))
    assert num_rendered == 1
    masker.mask(Conversation(messages=[user("a") | {"name": "b", "age": 7}, assistant("c")]))
    assert num_rendered == 4  # the text, one with stand-ins, and one in which all that was not found is changed
