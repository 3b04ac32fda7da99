"""Rendering: what templates see, what they give, and how they fail."""

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
    text = (
        "{% for m in messages %}\n    {% if m.role == 'user' %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\nend\n"
    )
    assert render(text).text == "Hi\nend"


def test_json_is_not_escaped_for_html() -> None:
    value = {"b": "<é&'>", "a": [1, None]}
    assert render("{{ x | tojson }}", x=value).text == '{"b": "<é&\'>", "a": [1, null]}'
    assert render("{{ x | tojson(sort_keys=true, indent=1) }}", x={"b": 1, "a": 2}).text == '{\n "a": 2,\n "b": 1\n}'
    assert render("{{ x | tojson(ensure_ascii=true, separators=(',', ':')) }}", x=value).text == (
        '{"b":"<\\u00e9&\'>","a":[1,null]}'
    )


def test_loops_can_be_left_and_dicts_and_namespaces_made() -> None:
    assert render("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}").text == "012"
    assert render("{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}").text == "2"
    assert render("{{ dict(a=1) }}{{ dict.fromkeys('x') }}").text == "{'a': 1}{'x': None}"


def test_time_is_fixed() -> None:
    now = datetime(2024, 2, 29, 1, 2)
    template = ChatTemplate.from_text("{{ strftime_now('%d %b %Y %H:%M') }}", now=now)
    assert template.render(HI).text == "29 Feb 2024 01:02"
    assert template.now == now
    current = ChatTemplate.from_text("{{ strftime_now('%Y-%m-%d %H:%M:%S') }}")
    assert current.now is not None
    assert current.render(HI).text == current.now.strftime("%Y-%m-%d %H:%M:%S")
    assert ChatTemplate.from_text("no time").now is None


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
    with pytest.raises(ConfigError, match="line 2: this generation block stands in a macro"):
        ChatTemplate.from_text(text)


def test_a_block_is_not_left_by_break() -> None:
    with pytest.raises(ConfigError, match="line 2: a break or continue leaves the generation block that it stands in"):
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
        with pytest.raises(InputError, match=f"template arguments hold {name}"):
            template.render_conversation(bad)
    with pytest.raises(InputError, match="template arguments hold messages"):
        template.render(HI, messages=HI)


def test_many_conversations_keep_their_places() -> None:
    template = ChatTemplate.load("llama2")
    good, bad = Conversation(messages=HI), Conversation(messages=[*HI, *HI])
    first, second, third = template.render_many([good, bad, good])
    assert first == third == template.render(HI)
    assert isinstance(second, InputError)
    assert "user first; found user as message 1" in str(second)


def test_tools_take_the_template_made_for_them() -> None:
    template = ChatTemplate(TemplateSetup(text="plain", tool_use="tools"))
    assert template.render(HI).text == "plain"
    assert template.render(HI, tools=[]).text == "tools"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n{{ raise_exception('no: ' + messages[0].role) }}", "line 2: it refuses this conversation: no: user"),
        ("a\nb\n{{ messages[0].content + 1 }}", "line 3: TypeError: can only concatenate str"),
        ("{{ messages[0].nothing.more }}", "line 1: 'dict object' has no attribute 'nothing'"),
        ("\n\n{{ x.y }}", "line 3: 'x' is undefined"),
        ("{{ 1 / 0 }}", "line 1: ZeroDivisionError"),
        ("{% macro m(x) %}\n{{ x.y.z }}{% endmacro %}\n\n{{ m(1) }}", "line 2: 'int object' has no attribute 'y'"),
    ],
)
def test_failures_name_template_line_and_reason(text: str, message: str) -> None:
    with pytest.raises(InputError, match="chat template 'default' of text, ") as caught:
        render(text)
    assert message in str(caught.value)


def test_what_is_no_template_is_refused_at_once() -> None:
    with pytest.raises(
        ConfigError, match=r"chat template 'default' of text, line 1: it is not a Jinja template: .*endfor"
    ):
        ChatTemplate.from_text("{% for m in messages %}\n")
    with pytest.raises(ConfigError, match="not a Jinja template: No filter named 'nothing'"):
        ChatTemplate.from_text("{{ 1 | nothing }}")


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "the conversation is empty"),
        ("Hi", "the messages are a str; they must be a list of dicts"),
        (["Hi"], "message 0 is a str, 'Hi'; it must be a dict"),
        ([*HI, None], "message 1 is a NoneType"),
    ],
)
def test_messages_are_a_list_of_dicts(messages: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        render("x", messages)


def test_tools_and_documents_are_lists_of_dicts() -> None:
    with pytest.raises(InputError, match="entry 1 of tools is a str; it must be a dict"):
        render("x", tools=[{}, "f"])
    with pytest.raises(InputError, match="documents are a str"):
        render("x", documents="D")


def test_the_final_message_goes_on() -> None:
    chatml = ChatTemplate.load("chatml")
    messages = [*HI, {"role": "assistant", "content": "It is "}]
    assert chatml.render(messages, continue_final_message=True).text == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nIt is "
    )
    # A template that trims has taken the space away, and nothing of its own is left behind it.
    assert ChatTemplate.load("llama3").render(messages, continue_final_message=True).text.endswith("\n\nIt is")
    assert messages[-1]["content"] == "It is "
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}]}
    ]
    assert ChatTemplate.load("gemma3").render(parts, continue_final_message=True).text.endswith("user\nab")
    thought = [{"role": "assistant", "content": "c", "reasoning": "hm"}]
    shown = render(
        "{{ messages[0].reasoning_content }}:{{ messages[0].content }}", thought, continue_final_message="reasoning"
    )
    assert shown.text == "hm"


@pytest.mark.parametrize(
    ("text", "messages", "field", "message"),
    [
        (
            "{{ messages[0].content }}",
            [{"role": "a"}],
            True,
            "the final message has no 'content' to continue; it has 'role'",
        ),
        ("{{ messages[0].role }}", [{"role": "a", "content": "b"}], True, "the template does not read 'content'"),
        (
            "{{ messages[0].content | upper }}",
            [{"role": "a", "content": "b"}],
            True,
            "leaves out or changes parts of 'b'",
        ),
        (
            "{{ messages[0].content }}",
            [{"role": "a", "content": [{"type": "image"}]}],
            True,
            "hold no text to continue",
        ),
        ("{{ messages[0].content }}", [{"role": "a", "content": 3}], True, "'content' of the final message is a int"),
    ],
)
def test_what_cannot_go_on_says_why(text: str, messages: Any, field: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        render(text, messages, continue_final_message=field)


def test_going_on_and_beginning_anew_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="choose one"):
        render("x", add_generation_prompt=True, continue_final_message=True)


def test_another_process_makes_the_same_template() -> None:
    template = ChatTemplate.load("llama3.2-generation")
    again = pickle.loads(pickle.dumps(template))
    decoded = ChatTemplate(msgspec.json.decode(msgspec.json.encode(template.setup), type=TemplateSetup))
    for other in (again, decoded):
        assert other.render(talks.SYSTEM) == template.render(talks.SYSTEM)
        assert other.fingerprint == template.fingerprint
        assert other.now == template.now
    assert repr(again) == "ChatTemplate('suite:llama3.2-generation', name='llama3.2-generation', has_generation=True)"


def test_the_fingerprint_holds_all_that_decides_the_text() -> None:
    setup = TemplateSetup(text="{{ bos_token }}", special_tokens={"bos_token": "a", "eos_token": "b"})
    base = ChatTemplate(setup).fingerprint
    turned = msgspec.structs.replace(setup, special_tokens={"eos_token": "b", "bos_token": "a"}, source="elsewhere")
    assert ChatTemplate(turned).fingerprint == base
    timed = msgspec.structs.replace(setup, text="{{ strftime_now('%Y') }}", now=talks.NOW)
    prints = {
        base,
        ChatTemplate(msgspec.structs.replace(setup, special_tokens={"bos_token": "c"})).fingerprint,
        ChatTemplate(msgspec.structs.replace(setup, tool_use="x")).fingerprint,
        ChatTemplate(timed).fingerprint,
        ChatTemplate(msgspec.structs.replace(timed, now=datetime(2020, 1, 1))).fingerprint,
    }
    assert len(prints) == 5
    # A time that the text does not depend on is no difference.
    assert ChatTemplate(msgspec.structs.replace(setup, now=talks.NOW)).fingerprint == base
