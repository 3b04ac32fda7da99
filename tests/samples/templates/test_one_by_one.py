"""What the source of a template shows about how it writes messages: never more than renderings confirm."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import talks
from counts import cases
from headrace.errors import InputError
from headrace.samples.templates import ChatTemplate, find, suite_names

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


def template(name: str) -> ChatTemplate:
    return ChatTemplate.load(name, now=talks.NOW)


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
