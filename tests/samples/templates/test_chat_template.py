"""Rendering: what templates see, what they give, how they fail, and which arguments they have."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import talks
from counts import cases
from headrace.errors import ConfigError, InputError
from headrace.samples import Conversation
from headrace.samples.templates import ChatTemplate, Rendered, TemplateSetup, find, suite_names
from headrace.samples.templates.suite import FAMILIES

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


def test_a_conversation_refused_within_a_tag_changes_no_other() -> None:
    """The tag has macros escape what is added to them, and a refusal leaves it before its end."""
    text = (
        "{% macro said() %}He said: {% endmacro %}{% set content = messages[0].content %}"
        "{% autoescape true %}{{ raise_exception('no') if content == 'no' }}{% endautoescape %}{{ said() + content }}"
    )
    template = ChatTemplate.from_text(text)
    with pytest.raises(InputError, match="no"):
        template.render([{"role": "user", "content": "no"}])
    assert template.render([{"role": "user", "content": "a < b"}]).text == "He said: a < b"


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


# The templates of the suite: what is said of each holds, and their texts are those that Transformers renders.


GOLDEN = json.loads((Path(__file__).parents[2] / "golden/chat_templates/renderings.json").read_text(encoding="utf-8"))
STABLE = sorted(name for name, family in FAMILIES.items() if not family.unstable)

# A conversation of which a prefix is not how the whole begins, for each family that says so.
UNSTABLE: dict[str, dict[str, Any]] = {
    "deepseek-r1": {"messages": talks.THINKING},
    "glm4.5": {"messages": talks.THINKING},
    "gpt-oss": {"messages": talks.TWO},
    "magistral": {"messages": talks.CALLED, "tools": talks.TOOLS},
    "mistral-nemo": {"messages": talks.SYSTEM},
    "mistral-v3": {"messages": talks.SYSTEM},
    "mistral-v7": {"messages": talks.CALLED, "tools": talks.TOOLS},
    "phi3": {"messages": talks.TWO},
    "phi4-mini": {"messages": talks.TWO},
    "qwen3": {"messages": talks.THINKING},
}


def template(name: str) -> ChatTemplate:
    return ChatTemplate.load(name, now=talks.NOW)


def turns(name: str, messages: talks.Talk, **options: Any) -> Iterator[tuple[str, str, Rendered]]:
    """For each assistant's turn: the text before it with a generation prompt, the text with it, and the whole."""
    compiled = template(name)
    whole = compiled.render(messages, **options)
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            before = compiled.render(messages[:number], add_generation_prompt=True, **options).text
            yield before, compiled.render(messages[: number + 1], **options).text, whole


@pytest.mark.parametrize("name", suite_names())
def test_texts_are_those_of_transformers(name: str) -> None:
    family = FAMILIES[name.removesuffix("-generation")]
    golden = GOLDEN[name.removesuffix("-generation") + "-generation"]
    conversations = talks.fixed(family)
    assert golden.keys() == conversations.keys()
    compiled = template(name)
    for talk, arguments in conversations.items():
        options = dict(arguments)
        assert compiled.render(options.pop("messages"), **options).text == golden[talk], talk


def test_each_template_comes_twice() -> None:
    assert len(FAMILIES) >= 30
    assert sorted(GOLDEN) == suite_names(generation=True)
    assert suite_names(generation=False) == sorted(FAMILIES)
    assert not template("chatml").has_generation
    assert template("chatml-generation").has_generation
    assert find("chatmll") is None
    assert find("generation") is None


def test_every_file_belongs_to_a_family() -> None:
    folder = Path(talks.__file__).parents[1] / "src/headrace/samples/templates/suite"
    assert {path.stem for path in folder.iterdir()} == {family.file or name for name, family in FAMILIES.items()}


@pytest.mark.parametrize("name", STABLE)
@settings(max_examples=cases(4, 60), deadline=None)
@given(data=st.data())
@pytest.mark.sampled(17)
def test_prefixes_are_how_the_whole_begins(name: str, data: st.DataObject) -> None:
    messages = data.draw(talks.talks(FAMILIES[name]))
    spans = iter(template(name + "-generation").render(messages).generation_spans)
    for before, after, whole in turns(name, messages):
        assert after.startswith(before)
        assert whole.text.startswith(after)
        begin, end = next(spans)
        # What the model writes begins where the generation prompt ends, and the block says the same.
        assert begin == len(before)
        assert end <= len(after)


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - set(STABLE)))
def test_what_is_called_unstable_is(name: str) -> None:
    arguments = dict(UNSTABLE[name])
    found = list(turns(name, arguments.pop("messages"), **arguments))
    assert not all(after.startswith(before) and whole.text.startswith(after) for before, after, whole in found)


def test_roles_must_take_turns_where_a_family_says_so() -> None:
    for name, family in FAMILIES.items():
        if not family.any_order:
            with pytest.raises(InputError, match="assistant"):
                template(name).render([talks.user("a"), talks.user("b")])
    with pytest.raises(InputError, match="system"):
        template("gemma").render(talks.SYSTEM)


def test_special_tokens_of_a_tokeniser_win(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "^", "eos_token": {"content": "$"}}')
    compiled = ChatTemplate.load("zephyr-generation", tokenizer=tmp_path)
    assert compiled.render(talks.ONE).text == "<|user|>\nHi there$\n<|assistant|>\nHello!$\n"
    assert compiled.end_of_turn == "$"
    assert compiled.source == "suite:zephyr-generation"


def test_the_table_of_the_docs_is_the_suite() -> None:
    page = (Path(talks.__file__).parents[1] / "docs/chat-templates.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in page.splitlines()
        if line.startswith("| `")
    ]
    table = {row[0].strip("`"): row for row in rows if row[0].strip("`") in FAMILIES}
    assert table.keys() == FAMILIES.keys()
    for name, family in FAMILIES.items():
        assert table[name][-1] == (f"no: {family.unstable}" if family.unstable else "hold"), name
        known = [*(["system"] if "system" in family.roles else []), *family.features]
        assert table[name][-2] == ", ".join(known), name


# What the source of a template shows about how it writes messages: never more than renderings confirm.


BODY = "{{ '<' + message.role + '>' + message.content + '</>' }}"
LOOP = "{% for message in messages %}" + BODY + "{% endfor %}"
PROMPT = "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"

SHOWN = [
    LOOP + PROMPT,
    "{{ bos_token }}{% if messages[0].role == 'system' %}S{% endif %}" + LOOP + PROMPT,
    "{% set rest = messages %}{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% endif %}"
    "{% for message in rest %}" + BODY + "{% endfor %}" + PROMPT,
    "{% set ns = namespace(n=0) %}{% for message in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}"
    "{% if loop.first or loop.index0 % 2 or loop.previtem.role == 'user' %}x{% endif %}"
    + BODY
    + "{% for part in 'ab' %}{% if loop.last %}{% break %}{% endif %}{% endfor %}{% endfor %}"
    + PROMPT,
    "{% macro said(m) %}{{ m.content }}{% endmacro %}{% for m in messages %}{{ m.role }}{{ said(m) }}{% endfor %}"
    + PROMPT,
]
HIDDEN = [
    LOOP.replace(BODY, BODY + "{% if loop.last %}!{% endif %}") + PROMPT,
    LOOP.replace(BODY, BODY + "{% if loop['last'] %}!{% endif %}") + PROMPT,
    LOOP.replace(BODY, BODY + "{{ loop.length }}") + PROMPT,
    LOOP.replace(BODY, BODY + "{{ loop.nextitem }}") + PROMPT,
    LOOP.replace(BODY, BODY + "{{ messages[-1].role }}") + PROMPT,
    LOOP.replace(BODY, BODY + "{{ messages[loop.index0 - 1].role }}") + PROMPT,
    LOOP.replace(BODY, BODY + "{% for other in messages %}.{% endfor %}") + PROMPT,
    LOOP.replace(BODY, BODY + "{% macro m() %}{{ loop.last }}{% endmacro %}{{ m() }}") + PROMPT,
    LOOP.replace(BODY, BODY + "{% if message.content == 'stop' %}{% break %}{% endif %}") + PROMPT,
    LOOP.replace(BODY, "{% if add_generation_prompt %}?{% endif %}" + BODY) + PROMPT,
    "{{ messages | length }}" + LOOP + PROMPT,
    "{% set n = messages | length %}" + LOOP + PROMPT,
    "{% set ns = namespace() %}{% set ns.all = messages %}{% for m in messages %}{{ ns.all }}{% endfor %}" + PROMPT,
    "{% set all = messages %}{% set all = messages | reverse | list %}{% for m in all %}{{ m }}{% endfor %}" + PROMPT,
    "{% set all = messages %}{% set all = [] %}{% for m in all %}{{ m }}{% endfor %}" + PROMPT,
    "{% set all = messages %}{% set all = 'abcdefg' | list %}{% for m in all %}{{ m }}{% endfor %}" + PROMPT,
    "{% for message in messages if message.role != 'system' %}" + BODY + "{% endfor %}" + PROMPT,
    "{% for message in messages recursive %}" + BODY + "{% endfor %}" + PROMPT,
    "{% for message in messages | reverse %}" + BODY + "{% endfor %}" + PROMPT,
    "{% if true %}" + LOOP + "{% endif %}" + PROMPT,
    LOOP + LOOP + PROMPT,
    LOOP + "{% if add_generation_prompt and messages[0].role == 'user' %}<assistant>{% endif %}",
    "{% set ns = namespace(n='') %}{% for m in messages %}{% set ns.n = m.role %}{% endfor %}{{ ns.n }}" + PROMPT,
    "{% macro end() %}{{ messages }}{% endmacro %}" + LOOP + "{{ end() }}" + PROMPT,
    "{% set messages = messages[1:] %}" + LOOP + PROMPT,
]
TALK = [talks.system("S"), *talks.TWO, talks.user("Three"), talks.assistant("3")]


@pytest.mark.parametrize("text", SHOWN)
def test_shown(text: str) -> None:
    for messages in (TALK, TALK[1:]):
        assert_right(ChatTemplate.from_text(text, special_tokens={"bos_token": "<s>"}), messages, is_shown=True)


@pytest.mark.parametrize("text", HIDDEN)
def test_not_shown(text: str) -> None:
    assert ChatTemplate.from_text(text).render(TALK).message_begins == ()


def test_a_role_that_looks_ahead() -> None:
    """A branch of a role rules out conversations with that role, and no others."""
    branch = "{% if message.role == 'tool' and x is not defined %}{{ loop.last }}{% else %}" + BODY + "{% endif %}"
    template = ChatTemplate.from_text(LOOP.replace(BODY, branch) + PROMPT)
    assert_right(template, TALK, is_shown=True)
    assert template.render([*TALK, talks.result("21")]).message_begins == ()
    renamed = "{% set message = messages[0] %}" + branch
    assert ChatTemplate.from_text(LOOP.replace(BODY, renamed) + PROMPT).render(TALK).message_begins == ()
    either = branch.replace("message.role == 'tool'", "message.role == 'tool' or message.content == ''")
    assert ChatTemplate.from_text(LOOP.replace(BODY, either) + PROMPT).render(TALK).message_begins == ()


def test_most_of_the_suite() -> None:
    shown = {name for name in suite_names(generation=False) if template(name).render(talks.ONE).message_begins}
    assert {"chatml", "llama3", "gemma", "qwen2.5", "zephyr", "llama2", "phi3"} <= shown
    assert not shown & {"qwen3", "deepseek-r1", "gpt-oss", "mistral-v3", "mistral-nemo", "glm4.5", "tulu3"}


@pytest.mark.parametrize("name", suite_names())
@pytest.mark.sampled(12)
def test_renderings_confirm_it(name: str) -> None:
    suite = find(name)
    assert suite is not None

    @settings(max_examples=cases(4, 200), deadline=None)
    @given(talks.talks(suite.family), st.booleans())
    def check(messages: talks.Talk, has_tools: bool) -> None:
        tools = talks.TOOLS if has_tools and "tools" in suite.family.features else None
        try:
            assert_right(template(name), messages, tools=tools)
        except InputError:
            return

    check()


def assert_right(made: ChatTemplate, messages: talks.Talk, *, is_shown: bool = False, **more: Any) -> None:
    """Text before each message, with the generation prompt, is what the messages before it become."""
    whole = made.render(messages, **more)
    begins = whole.message_begins
    assert len(begins) == (len(messages) if begins or is_shown else 0)
    if not begins:
        return
    first = made.render(messages[:1], add_generation_prompt=True, **more).text
    prompt = first[begins[1] :]
    for number in range(1, len(messages)):
        before = made.render(messages[:number], add_generation_prompt=True, **more).text
        assert before == whole.text[: begins[number]] + prompt
