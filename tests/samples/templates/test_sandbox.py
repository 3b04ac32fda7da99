"""Templates are data: they reach nothing of Python's, and they come to an end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.errors import InputError
from headrace.samples.templates import ChatTemplate, TemplateSetup

HI = [{"role": "user", "content": "Hi"}]


def fails(text: str, named: str, **limits: Any) -> None:
    template = ChatTemplate(msgspec.structs.replace(TemplateSetup(text=text), **limits))
    with pytest.raises(InputError, match=named):
        template.render(HI)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages[0].__init__ }}",
        "{{ (messages | map(attribute='__class__') | list)[0] }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{a.__class__}'.format_map({'a': 1}) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__self__ }}",
        "{{ dict.__class__ }}",
        "{{ dict.items }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self.__init__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ messages[0].pop('role') }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(__class__=1) }}",
        "{{ namespace({'_x': 1}) }}",
        "{% include 'x' %}",
        "{% import 'x' as y %}{{ y }}",
        "{% extends 'x' %}",
    ],
)
def test_nothing_of_python_is_reached(text: str) -> None:
    template = ChatTemplate.from_text(text)
    try:
        rendered = template.render(HI)
    except InputError:
        return
    # jinja2 turns some of these into nothing at all, which is as good.
    assert rendered.text == ""


def test_dangerous_names_are_refused_and_not_only_empty() -> None:
    fails("{{ ''.__class__.x }}", "'__class__'")
    fails("{{ messages.append(1) }}", "unsafe|callable")
    fails("{% set ns = namespace() %}{% set ns._x = 1 %}", "'_x'")
    fails("{{ namespace(_x=1) }}", "'_x'")


@pytest.mark.parametrize("text", ["{{ lipsum() }}", "{{ [1, 2] | random }}"])
def test_text_that_differs_from_run_to_run_is_refused(text: str) -> None:
    fails(text, "random")


@pytest.mark.parametrize(
    "text",
    [
        "{% for i in range(9999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(99999) | map('string') %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for i in [[], []] recursive %}{% if loop.depth < 60 %}{{ loop([[], []]) }}{% endif %}{% endfor %}",
        "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call m() %}" * 40 + "{% endcall %}" * 40,
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_loops_and_macros_end(text: str) -> None:
    fails(text, "20,000|recursive", max_steps=20_000)


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'abc' * 10 ** 9 }}",
        "{{ 10 ** 9 * 'abc' }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ (1, 2) * (10 ** 9) }}",
        "{{ 10 ** (10 ** 10) }}",
        "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{{ range(10 ** 6) }}",
    ],
)
def test_products_powers_and_ranges_are_bounded(text: str) -> None:
    fails(text, "allowed|Range")


def test_small_products_are_computed() -> None:
    text = "{{ 'ab' * 3 }} {{ 2 ** 10 }} {{ 2 * 3.5 }} {{ 2 ** 0.5 > 1 }} {{ -1 * 'x' }}{{ [1] * 2 }}"
    assert ChatTemplate.from_text(text).render(HI).text == "ababab 1024 7.0 True [1, 1]"


def test_the_text_is_bounded() -> None:
    fails("{% for i in range(1000) %}0123456789{% endfor %}", "5,000", max_chars=5000)
    whole = ChatTemplate(TemplateSetup(text="{% for i in range(500) %}0123456789{% endfor %}", max_chars=5000))
    assert len(whole.render(HI).text) == 5000


def test_a_failure_leaves_the_template_as_it_was() -> None:
    template = ChatTemplate.load("llama2-generation")
    good = [*HI, {"role": "assistant", "content": "Yo"}]
    before = template.render(good)
    with pytest.raises(InputError):
        template.render([*good, {"role": "assistant", "content": "again"}])
    assert template.render(good) == before
