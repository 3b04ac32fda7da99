"""Templates of anybody end within a bound of time and of memory, whatever they do, and what they render is the same."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

import recipe_runs
import recipes_made
from counts import cases
from headrace.errors import ConfigError, HeadraceError, InputError
from headrace.preparing import prepare
from headrace.samples.recipe import parse_recipe
from headrace.samples.templates import ChatTemplate, find, limited, suite_names
from headrace.samples.templates.sandbox import CompiledTemplate

HI = [{"role": "user", "content": "Hi"}]
TALK = [*HI, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]


def helper_pid() -> int:
    process = limited._HELPER._process
    assert process is not None
    return process.pid


ENDLESS = {  # the first ones in every run, all with HEADRACE_FULL=1
    "slice": "{{ [1] | slice(10 ** 9) | list | length }}",
    "slice of a constant, when it is compiled": "{{ [1] | slice(1000000000) | list }}",
    "range": "{% for i in range(9999) %}{% set x = range(99999) | list %}{% endfor %}",
    "in": "{% set l = range(99999) | list %}{% for i in range(99999) %}{% if -1 in l %}{% endif %}{% endfor %}",
    "upper": "{% set s = 'a' * 60000000 %}{% for i in range(99999) %}{% set x = s | upper %}{% endfor %}",
    "doubled": "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "joined": "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "ljust": "{{ 'a'.ljust(10 ** 12) }}",
    "center, when it is compiled": "{{ 'a' | center(100000000000) }}",
    "percent": "{{ '%9999999999d' % 1 }}",
    "format": "{{ '%99999999999d' | format(1) }}",
    "replace": "{% set s = 'a' * 60000000 %}{{ s.replace('a', s) }}",
    "join": "{{ range(99999) | join('a' * 60000000) }}",
    "tojson": "{{ [[[[[[[[1]]]]]]]] | tojson(indent=1000000000) }}",
    "set": "{% set s %}{% for i in range(9999999) %}" + "0123456789" * 900 + "{% endfor %}{% endset %}",
    "macro": "{% macro m() %}{% for i in range(99999) %}{{ 'a' * 60000 }}{% endfor %}{% endmacro %}{{ m() }}",
    "filter": "{% filter upper %}{% for i in range(99999) %}{{ 'a' * 60000 }}{% endfor %}{% endfilter %}",
    "batch": "{{ [1] | batch(10 ** 10, 'x') | list | length }}",
    "indent": "{{ ('a\\n' * 9999999) | indent(10 ** 9) }}",
    "wordwrap": "{{ ('a ' * 30000000) | wordwrap(1) | length }}",
    "power of lists": "{% set n = namespace(l=[1]) %}{% for i in range(60) %}{% set n.l = n.l + n.l %}{% endfor %}",
}


@pytest.mark.parametrize("name", [*ENDLESS][: cases(7, len(ENDLESS))])
def test_nothing_runs_on_or_takes_all_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited, "MAX_SECONDS", 0.2)
    text = ENDLESS[name]
    with pytest.raises(HeadraceError, match="'default'") as caught:
        ChatTemplate.from_text(text).render(HI)
    # A bound that depends on the machine ends the run; one that does not makes a bad record.
    is_of_machine = "seconds of CPU time" in str(caught.value) or "bytes of memory" in str(caught.value)
    assert isinstance(caught.value, ConfigError) == is_of_machine
    assert ChatTemplate.from_text("{{ messages[0].content }}").render(HI).text == "Hi"


def test_what_is_rendered_is_the_same_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = [
        {"role": "user", "content": "\ud800 \U0001f600 \0", "n": 1 << 80, "parts": (1, 2.5), "x": {"a": [None, True]}},
        {"role": "assistant", "content": ["a", {"type": "text", "text": "b"}], "tool_calls": [{"function": {"a": 1}}]},
    ]
    text = (
        "{% for m in messages %}{{ m.role }}: {% generation %}{{ m.content }}{% endgeneration %}{{ m | tojson }}"
        "{{ m.parts }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    setup = ChatTemplate.from_text(text).setup
    here = ChatTemplate(setup)
    monkeypatch.setattr(here, "_default", CompiledTemplate(setup, text, "default"))
    for messages in (HI, TALK, odd):
        assert ChatTemplate(setup).render(messages, now="x") == here.render(messages, now="x")


@pytest.mark.parametrize("text", ["{{ messages[0].x.y }}", "{{ raise_exception('no') }}", "\n{{ 1 / 0 }}"])
def test_errors_are_the_same_in_both(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = ChatTemplate.from_text(text).setup
    here = ChatTemplate(setup)
    monkeypatch.setattr(here, "_default", CompiledTemplate(setup, text, "default"))
    with pytest.raises(InputError) as one:
        here.render(HI)
    with pytest.raises(InputError) as other:
        ChatTemplate(setup).render(HI)
    assert str(one.value) == str(other.value)


def test_templates_of_the_suite_are_rendered_in_this_process() -> None:
    assert all(isinstance(ChatTemplate.load(name)._default, CompiledTemplate) for name in suite_names()[:4])
    ours = find("chatml")
    assert ours is not None
    renamed = msgspec.structs.replace(ChatTemplate.load("chatml").setup, text=ours.text + " ", source="suite:chatml")
    assert not isinstance(ChatTemplate(renamed)._default, CompiledTemplate)


def test_a_helper_that_was_killed_is_started_again() -> None:
    template = ChatTemplate.from_text("{{ messages[0].content }}")
    before = helper_pid()
    os.kill(before, signal.SIGKILL)
    assert template.render(HI).text == "Hi"
    assert helper_pid() != before


def test_a_forked_process_has_a_helper_of_its_own() -> None:
    template = ChatTemplate.from_text("{{ messages[0].content }}")
    template.render(HI)
    child = os.fork()
    if not child:
        try:
            is_right = template.render(HI).text == "Hi"
            limited._HELPER.end()
            os._exit(0 if is_right else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert template.render(HI).text == "Hi"


def test_a_template_of_which_the_helper_ended_renders_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited, "MAX_SECONDS", 0.4)
    text = (
        "{% if messages[-1].content == 'burn' %}{{ [1] | slice(10 ** 9) | list }}{% endif %}{{ messages[0].content }}"
    )
    template = ChatTemplate.from_text(text)
    for _ in range(2):
        assert template.render(TALK).text == "Hi"
        with pytest.raises(ConfigError, match=r"0\.4.*CPU"):
            template.render([{"role": "user", "content": "burn"}])


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def test_values_that_no_template_can_be_given_are_errors() -> None:
    template = ChatTemplate.load("chatml")
    circle: dict[str, Any] = {}
    circle["a"] = circle
    bomb: Any = "x"
    for _ in range(40):
        bomb = [bomb, bomb]
    for value, named in ((circle, "itself"), (deep(900), "256"), (bomb, "200,000")):
        with pytest.raises(InputError, match=named):
            template.render(HI, extra=value)
        with pytest.raises(InputError, match=named):
            template.render([{**HI[0], "extra": value}])
    assert template.render(HI, extra=deep(200)).text == template.render(HI).text


DOUBLED = ", ".join(f"b{n}: &b{n} [*b{n - 1}, *b{n - 1}]" for n in range(1, 60))


def test_loops_in_too_many_loops_are_an_error() -> None:
    with pytest.raises(ConfigError, match="compiled"):
        ChatTemplate.from_text("{% for i in [1] %}" * 30 + "{% endfor %}" * 30)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("errors: {on_error: skip, max_errors: .nan}", r"errors\.max_errors.*nan"),
        ("errors: {on_error: skip, max_errors: .inf}", r"errors\.max_errors.*inf"),
        ("template: {path: chatml, kwargs: &a {x: *a}}", r"template\.kwargs.*256.*itself"),
        (f"template: {{path: chatml, kwargs: {'{a: ' * 300}1{'}' * 300}}}", r"template\.kwargs.*256"),
        (f"template: {{path: chatml, kwargs: {'{a: ' * 900}1{'}' * 900}}}", r"template\.kwargs.*256"),
        (f"template: {{path: chatml, kwargs: {{b0: &b0 [1, 1], {DOUBLED}}}}}", r"template\.kwargs.*200,000"),
        ("filters: &a {min_chars: [*a]}", "filters.*256"),
        (f"inputs: {'[' * 5000}{']' * 5000}", "YAML.*JSON|256"),
    ],
)
def test_values_that_no_recipe_can_hold_are_errors(lines: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_recipe(f"type: sft\n{lines}")


def test_a_run_says_which_line_takes_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited, "MAX_SECONDS", 0.2)
    monkeypatch.chdir(tmp_path)
    burns = "{% if m.content == 'burn' %}{{ [1] | slice(10 ** 9) | list }}{% endif %}"
    template = "{% for m in messages %}" + burns + "{% endfor %}" + recipes_made.TEMPLATE
    recipe_runs.make_model(tmp_path / "model", template)
    records = recipe_runs.conversations(150)
    records[17]["messages"][0]["content"] = "burn"
    lines = "".join(json.dumps(record) + "\n" for record in records)
    Path("data.jsonl").write_text(lines)
    recipe = parse_recipe("type: sft\ninputs: data.jsonl\ntokenizer: model\nerrors: {on_error: skip}")
    with pytest.raises(HeadraceError, match=r"17.*0\.2.*CPU"):
        prepare([], "store", recipe=recipe)
