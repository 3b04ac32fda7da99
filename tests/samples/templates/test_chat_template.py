"""Rendering: what templates see, what they give, how they fail, and which arguments they have."""

from __future__ import annotations

import pickle
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
import pytest

import talks
from headrace.errors import ConfigError, InputError
from headrace.samples import Conversation
from headrace.samples.templates import ChatTemplate, Rendered, TemplateSetup

HI = [{"role": "user", "content": "Hi"}]


def render(text: str, messages: Any = HI, **options: Any) -> Rendered:
    return ChatTemplate.from_text(text).render(messages, **options)


def test_whitespace_is_trimmed_as_hugging_face_does() -> None:
    text = "{% for m in messages %}\n   {% if m.role == 'user' %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}\nend\n"
    assert render(text).text == "Hi\nend"


def test_json_is_not_escaped_for_html() -> None:
    value = {"b": "<é&'>", "a": [1, None]}
    assert render("{{ x | tojson }}", x=value).text == '{"b": "<é&\'>", "a": [1, null]}'
    assert render("{{ x | tojson(sort_keys=true, indent=1) }}", x={"b": 1, "a": 2}).text == '{\n "a": 2,\n "b": 1\n}'
    compact = render("{{ x | tojson(ensure_ascii=true, separators=(',', ':')) }}", x=value)
    assert compact.text == '{"b":"<\\u00e9&\'>","a":[1,null]}'


def test_loops_can_be_left_and_dicts_and_namespaces_made() -> None:
    assert render("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}").text == "012"
    assert render("{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}").text == "2"
    assert render("{{ dict(a=1) }}{{ dict.fromkeys('x') }}").text == "{'a': 1}{'x': None}"


def test_time_is_fixed() -> None:
    now = datetime(2024, 2, 29, 1, 2)
    template = ChatTemplate.from_text("{{ strftime_now('%d %b %Y %H:%M') }}", now=now)
    assert template.render(HI).text == "29 Feb 2024 01:02"
    assert template.setup.now == now
    current = ChatTemplate.from_text("{{ strftime_now('%Y-%m-%d %H:%M:%S') }}")
    assert current.setup.now is not None
    assert current.render(HI).text == current.setup.now.strftime("%Y-%m-%d %H:%M:%S")
    assert ChatTemplate.from_text("no time").setup.now is None


def test_generation_blocks_give_exact_spans() -> None:
    text = (
        "é{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
        "{% generation %}{% set x = 1 %}{{ m.content }}"
        "{% for p in m.more %}({{ p }}){% endfor %}."
        "{% endgeneration %}{{ x is defined }}{% endif %}{% endfor %}"
    )
    messages = [*HI, {"role": "assistant", "content": "😀a", "more": ["b", "c"]}, {"role": "assistant", "content": ""}]
    rendered = render(text, messages)
    assert rendered.text == "é<user><assistant>😀a(b)(c).False<assistant>.False"
    assert [rendered.text[begin:end] for begin, end in rendered.generation_spans] == ["😀a(b)(c).", "."]
    assert rendered.has_generation
    # The same object renders again, each time from the beginning.
    template = ChatTemplate.from_text(text)
    assert template.render(messages) == template.render(messages) == rendered


@pytest.mark.parametrize(
    "text",
    [
        "\n{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ m() }}",
        "\n{% set x %}{% generation %}x{% endgeneration %}{% endset %}{{ x }}",
        "\n{% filter upper %}{% generation %}x{% endgeneration %}{% endfilter %}",
        "\n{% generation %}{% generation %}x{% endgeneration %}{% endgeneration %}",
        "\n{% for m in messages recursive %}{% generation %}x{% endgeneration %}{% endfor %}",
        "{% macro m() %}{{ caller() }}{% endmacro %}\n{% call m() %}{% generation %}x{% endgeneration %}{% endcall %}",
    ],
)
def test_a_block_whose_place_cannot_be_known_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"2.*generation"):
        ChatTemplate.from_text(text)


def test_a_block_is_not_left_by_break() -> None:
    with pytest.raises(ConfigError, match=r"2.*generation"):
        ChatTemplate.from_text("{% for m in messages %}{% generation %}\n{% break %}{% endgeneration %}{% endfor %}")
    inner = "{% generation %}{% for i in range(9) %}{{ i }}{% break %}{% endfor %}{% endgeneration %}."
    assert render(inner).generation_spans == ((0, 1),)


def test_fields_that_are_none_are_missing_and_reasoning_has_all_its_names() -> None:
    text = "{% for m in messages %}{{ m | tojson }}{% endfor %}"
    assert render(text, [{"role": "a", "name": None, "x": {"y": None}}]).text == '{"role": "a", "x": {"y": null}}'
    for name in ("reasoning_content", "thinking", "reasoning"):
        shown = render("{{ messages[0].reasoning_content }} {{ messages[0].thinking }}", [{"role": "a", name: "why"}])
        assert shown.text == "why why"
    both = [{"role": "a", "thinking": "t", "reasoning_content": "r"}]
    assert render(text, both).text == '{"thinking": "t", "role": "a", "reasoning_content": "r"}'


def test_templates_see_plain_values() -> None:
    class Word(str):
        __slots__ = ()

    values = [np.float32(0.5), np.bool_(False), Word("w"), (1, 2), b"\0", np.zeros(2)]
    assert render("{{ x }}", x=values).text == "[0.5, False, 'w', (1, 2), '<bytes>', '<ndarray>']"
    messages = [{"role": "user", "content": [{"type": "image", "image": object()}]}]
    assert render("{{ messages[0].content[0].image }}", messages).text == "<object>"
    assert isinstance(messages[0]["content"][0]["image"], object)


def test_methods_of_a_message_win_over_its_fields() -> None:
    messages = [{"role": "a", "items": 1, "_x": 2}]
    text = "{% for k, v in messages[0].items() %}{{ k }}={{ v }} {% endfor %}"
    assert render(text + "{{ messages[0]['items'] }}{{ messages[0]._x }}", messages).text == "role=a items=1 _x=2 12"


def test_arguments_reach_the_template_and_win_over_special_tokens() -> None:
    template = ChatTemplate.from_text("{{ bos_token }}{{ think }}", special_tokens={"bos_token": "^"})
    assert template.render(HI, think=True).text == "^True"
    assert template.render(HI, bos_token="!").text == "!"
    shown = render("{{ tools | tojson }}{{ documents | length }}", tools=[{"a": 1}], documents=talks.DOCUMENTS)
    assert shown.text == '[{"a": 1}]2'


def test_conversations_bring_their_tools_and_arguments() -> None:
    template = ChatTemplate.from_text("{{ tools is none }} {{ think }} {{ documents | length if documents }}")
    conversation = Conversation(messages=HI, tools=[], template_kwargs={"think": 1, "documents": [{}, {}]})
    assert template.render_conversation(conversation).text == "False 1 2"
    for name in ("messages", "tools", "add_generation_prompt", "continue_final_message"):
        bad = Conversation(messages=HI, template_kwargs={name: 1})
        with pytest.raises(InputError, match=rf"{name}"):
            template.render_conversation(bad)
    with pytest.raises(InputError, match="arguments"):
        template.render(HI, messages=HI)


def test_a_refused_conversation_leaves_nothing_behind() -> None:
    template = ChatTemplate.load("llama2")
    good, bad = Conversation(messages=HI), Conversation(messages=[*HI, *HI])
    first = template.render_conversation(good)
    with pytest.raises(InputError, match="user first; found user as message 1"):
        template.render_conversation(bad)
    assert first == template.render_conversation(good) == template.render(HI)


def test_tools_take_the_template_made_for_them() -> None:
    template = ChatTemplate(TemplateSetup(text="plain", tool_use="tools"))
    assert template.render(HI).text == "plain"
    assert template.render(HI, tools=[]).text == "tools"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a\n{{ raise_exception('no: ' + messages[0].role) }}", "'default'.*2.*user"),
        ("a\nb\n{{ messages[0].content + 1 }}", "'default'.*3.*TypeError"),
        ("{{ messages[0].nothing.more }}", "'default'.*1.*'nothing'"),
        ("\n\n{{ x.y }}", "'default'.*3.*'x'"),
        ("{{ 1 / 0 }}", "'default'.*1.*ZeroDivisionError"),
        ("{% macro m(x) %}\n{{ x.y.z }}{% endmacro %}\n\n{{ m(1) }}", "'default'.*2.*'y'"),
    ],
)
def test_failures_name_template_line_and_reason(text: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        render(text)


def test_what_is_no_template_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"'default'.*1"):
        ChatTemplate.from_text("{% for m in messages %}\n")
    with pytest.raises(ConfigError, match="'nothing'"):
        ChatTemplate.from_text("{{ 1 | nothing }}")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"messages": []}, "empty"),
        ({"messages": "Hi"}, "messages.*str"),
        ({"messages": ["Hi"]}, "0.*str.*'Hi'"),
        ({"messages": [*HI, None]}, "1.*NoneType"),
        ({"tools": [{}, "f"]}, "1.*tools"),
        ({"documents": "D"}, "documents"),
    ],
)
def test_what_is_given_are_lists_of_dicts(given: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        render("x", **given)


def test_the_final_message_goes_on() -> None:
    chatml = ChatTemplate.load("chatml")
    messages = [*HI, {"role": "assistant", "content": "It is "}]
    assert chatml.render(messages, continue_final_message=True).text == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nIt is "
    )
    # A template that trims has taken the space away, and nothing of its own is left behind it.
    assert ChatTemplate.load("llama3").render(messages, continue_final_message=True).text.endswith("\n\nIt is")
    assert messages[-1]["content"] == "It is "
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}]
    parts = [{"role": "user", "content": content}]
    assert ChatTemplate.load("gemma3").render(parts, continue_final_message=True).text.endswith("user\nab")
    thought = [{"role": "assistant", "content": "c", "reasoning": "hm"}]
    text = "{{ messages[0].reasoning_content }}:{{ messages[0].content }}"
    shown = render(text, thought, continue_final_message="reasoning")
    assert shown.text == "hm"


@pytest.mark.parametrize(
    ("expression", "message", "named"),
    [
        ("content", {"role": "a"}, "'content'.*'role'"),
        ("role", {"role": "a", "content": "b"}, "'content'"),
        ("content | upper", {"role": "a", "content": "b"}, "'b'"),
        ("content", {"role": "a", "content": [{"type": "image"}]}, "text"),
        ("content", {"role": "a", "content": 3}, "'content'.*int"),
    ],
)
def test_what_cannot_go_on_says_why(expression: str, message: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        render(f"{{{{ messages[0].{expression} }}}}", [message], continue_final_message=True)


def test_going_on_and_beginning_anew_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="choose"):
        render("x", add_generation_prompt=True, continue_final_message=True)


def test_another_process_makes_the_same_template() -> None:
    template = ChatTemplate.load("llama3.2-generation")
    again = pickle.loads(pickle.dumps(template))
    decoded = ChatTemplate(msgspec.json.decode(msgspec.json.encode(template.setup), type=TemplateSetup))
    for other in (again, decoded):
        assert other.render(talks.SYSTEM) == template.render(talks.SYSTEM)
        assert other.setup == template.setup


TEXT = (
    "{% set short = brief | default(false) %}{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if mode == 'plain' or mode in ['deep', 'deeper'] %}{{ tools }}{% endif %}"
    "{% if not short %}{{ loop }}{% endif %}"
)


def test_arguments() -> None:
    template = ChatTemplate.from_text(TEXT, special_tokens={"bos_token": "<s>"})
    found: dict[str, list[object]] = {}
    for name, value in template.arguments:
        found.setdefault(name, []).append(value)
    assert sorted(found.pop("mode")) == ["deep", "deeper", "plain"]  # type: ignore[type-var]
    assert found.pop("brief") == [False, True]
    # Names that the template sets itself have no effect; the conversation and its tokens are no arguments.
    assert found.keys() <= {"short", "m"}
    both = ChatTemplate(TemplateSetup(text=TEXT, tool_use="{{ other }}"))
    assert {name for name, _ in both.arguments} >= {"mode", "other"}
    assert ChatTemplate.load("chatml").arguments
