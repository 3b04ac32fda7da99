"""Where templates and special tokens come from."""

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
from headrace.errors import ConfigError, HeadraceError, InputError, RenderLimitError
from headrace.preparing import prepare
from headrace.samples.conversation import Conversation
from headrace.samples.recipe import parse_recipe
from headrace.samples.templates import ChatTemplate, TemplateSetup, find, limited, special_tokens, suite_names
from headrace.samples.templates.sandbox import CompiledTemplate

HI = [{"role": "user", "content": "Hi"}]


def write(folder: Path, **files: Any) -> Path:
    """`config`, `map` and `old` are JSON; `jinja` is the file of its own, `more` those beside it."""
    names = {"config": "tokenizer_config.json", "map": "special_tokens_map.json", "old": "chat_template.json"}
    for key, name in names.items():
        if key in files:
            (folder / name).write_text(json.dumps(files[key]))
    if "jinja" in files:
        (folder / "chat_template.jinja").write_text(files["jinja"])
    for name, text in files.get("more", {}).items():
        (folder / "additional_chat_templates").mkdir(exist_ok=True)
        (folder / "additional_chat_templates" / f"{name}.jinja").write_text(text)
    return folder


def test_files_win_over_the_configuration_and_that_over_the_old_file(tmp_path: Path) -> None:
    write(tmp_path, old={"chat_template": "old"})
    old = ChatTemplate.load(tmp_path)
    assert (old.render(HI).text, old.source) == ("old", str(tmp_path / "chat_template.json"))
    write(tmp_path, config={"chat_template": "config", "bos_token": "^"})
    config = ChatTemplate.load(tmp_path)
    assert (config.render(HI).text, config.source) == ("config", str(tmp_path / "tokenizer_config.json"))
    write(tmp_path, jinja="file {{ bos_token }}")
    file = ChatTemplate.load(tmp_path)
    assert (file.render(HI).text, file.source) == ("file ^", str(tmp_path / "chat_template.jinja"))


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": name, "template": name[0]} for name in ("default", "tool_use", "rag")]
    write(tmp_path, config={"chat_template": named})
    template = ChatTemplate.load(tmp_path)
    assert template.render(HI).text == "d"
    assert template.render(HI, tools=[]).text == "t"
    assert ChatTemplate.load(tmp_path, name="default").render(HI, tools=[]).text == "d"
    assert ChatTemplate.load(str(tmp_path), name="rag").render(HI, tools=[]).text == "r"
    with pytest.raises(ConfigError, match=r"'nope'.*'default'.*'rag'"):
        ChatTemplate.load(tmp_path, name="nope")
    # Files of their own hide all of the configuration, the default among it.
    write(tmp_path, more={"rag": "R"})
    with pytest.raises(ConfigError, match=r"'rag'.*`name`"):
        ChatTemplate.load(tmp_path)
    rag = ChatTemplate.load(tmp_path, name="rag")
    assert (rag.setup.name, rag.source) == ("rag", str(tmp_path / "additional_chat_templates/rag.jinja"))
    write(tmp_path, jinja="D")
    assert ChatTemplate.load(tmp_path).render(HI, tools=[]).text == "D"
    assert ChatTemplate.load(tmp_path, name="rag").render(HI).text == "R"
    write(tmp_path, more={"default": "of the folder"})
    assert ChatTemplate.load(tmp_path).render(HI).text == "of the folder"


def test_a_file_is_a_template_with_the_tokens_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_bytes("{{ bos_token }}é\r\nx\n".encode())
    write(tmp_path, config={"bos_token": "^"})
    assert ChatTemplate.load(path).render(HI).text == "^é\nx"
    other = tmp_path / "other"
    other.mkdir()
    write(other, config={"bos_token": "!"})
    assert ChatTemplate.load(path, tokenizer=other).render(HI).text == "!é\nx"
    (other / "tokenizer.json").write_text("{}")
    assert ChatTemplate.load(path, tokenizer=other / "tokenizer.json").render(HI).text == "!é\nx"
    assert ChatTemplate.load(path, tokenizer=other).setup.name == "default"


@pytest.mark.parametrize(
    ("config", "more", "tokens"),
    [
        ({}, {}, {}),
        ({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None}, {}, ("<s>", "</s>")),
        # Without an added_tokens_decoder the file is an old one, and the map wins.
        ({"bos_token": "a", "eos_token": "b"}, {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}, ("<s>", "</s>")),
        ({"bos_token": "<s>", "eos_token": "</s>", "added_tokens_decoder": {}}, {"bos_token": "x"}, ("<s>", "</s>")),
        ({"special_tokens": {"bos_token": "<s>", "eos_token": "x"}, "eos_token": "</s>"}, {}, ("<s>", "</s>")),
        ({"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "X"}, {}, ("<s>", "</s>")),
    ],
)
def test_special_tokens(tmp_path: Path, config: Any, more: Any, tokens: Any) -> None:
    write(tmp_path, config=config, **({"map": more} if more else {}))
    assert special_tokens(tmp_path) == dict(zip(("bos_token", "eos_token"), tokens, strict=False))


def test_tokens_of_the_model_are_special_too(tmp_path: Path) -> None:
    write(tmp_path, config={"image_token": "<i>", "extra_special_tokens": {"audio": "<a>"}, "fim_token": 3})
    assert special_tokens(tmp_path) == {"image_token": "<i>", "audio": "<a>"}


def test_what_is_not_there_says_what_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"chat_template.jinja"):
        ChatTemplate.load(tmp_path)
    with pytest.raises(ConfigError, match=r"'chatlm'.*'chatml'"):
        ChatTemplate.load("chatlm")
    with pytest.raises(ConfigError, match=r"'chatml'.*'rag'"):
        ChatTemplate.load("chatml", name="rag")
    with pytest.raises(ConfigError, match=r"tokeniser's.*tokenizer\.json"):
        ChatTemplate.load("chatml", tokenizer=tmp_path / "nothing")
    path = write(tmp_path, jinja="x", config={}) / "chat_template.jinja"
    with pytest.raises(ConfigError, match="'rag'"):
        ChatTemplate.load(path, name="rag")
    with pytest.raises(ConfigError, match="folder"):
        ChatTemplate.load(tmp_path / "tokenizer_config.json")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path, config={"chat_template": 3})
    with pytest.raises(InputError, match=r"tokenizer_config.json.*chat_template.*3"):
        ChatTemplate.load(tmp_path)
    for text in ("{", "[]"):
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(InputError, match=r"tokenizer_config.json.*JSON"):
            ChatTemplate.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(InputError, match=r"chat_template.jinja.*2.*UTF-8"):
        ChatTemplate.load(tmp_path)


def test_a_folder_of_the_name_of_one_of_ours_is_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chatml").mkdir()
    write(tmp_path / "chatml", jinja="mine")
    monkeypatch.chdir(tmp_path)
    assert ChatTemplate.load("chatml").render(HI).text == "mine"


def test_a_folder_without_special_tokens_leaves_a_family_its_own(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    alone = ChatTemplate.load("mistral-v7").render(HI).text
    assert alone.startswith("<s>")
    assert ChatTemplate.load("mistral-v7", tokenizer=tmp_path).render(HI).text == alone
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "[B]", "eos_token": "[E]"}')
    assert ChatTemplate.load("mistral-v7", tokenizer=tmp_path).render(HI).text.startswith("[B]")


# Templates are data: they reach nothing of Python's, and they come to an end.


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


# Templates of anybody end within a bound of time and of memory, whatever they do, and what they render is the same.


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


def count_exchanges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the requests that go to the helper from now on."""
    sizes: list[int] = []
    ask = limited._HELPER.ask
    monkeypatch.setattr(limited._HELPER, "ask", lambda request: (sizes.append(len(request)), ask(request))[1])
    return sizes


BURNS = (
    "{% for m in messages %}{% if m.content == 'burn' %}{{ [1] | slice(10 ** 9) | list }}{% endif %}"
    "{% if m.content == 'fill' %}{{ 'a'.ljust(10 ** 12) }}{% endif %}"
    "{% if m.content == 'no' %}{{ raise_exception('no') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


def test_conversations_that_are_rendered_ahead_go_to_the_helper_together(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "\ud800"},
        {"role": "user", "content": "b"},
    ]
    talks = [Conversation(messages=[*said, {"role": "assistant", "content": f"{n}"}]) for n in range(20)]
    template, alone = ChatTemplate.from_text(BURNS), ChatTemplate.from_text(BURNS)
    sizes = count_exchanges(monkeypatch)
    template.render_ahead([(one, True) for one in talks])
    assert len(sizes) == 1
    asked = [
        (one.messages[:count], prompt) for one in talks for count, prompt in ((1, 0), (1, 1), (2, 0), (3, 1), (4, 0))
    ]
    found = [template.render(messages, add_generation_prompt=bool(prompt)) for messages, prompt in asked]
    assert len(sizes) == 1
    assert found == [alone.render(messages, add_generation_prompt=bool(prompt)) for messages, prompt in asked]
    assert len(sizes) == 1 + len(asked)
    template.render([{"role": "user", "content": "another"}])
    assert len(sizes) == 2 + len(asked), "what was not rendered ahead is rendered"


@pytest.mark.parametrize("bad", ["no", "burn", "fill"])
def test_what_fails_ahead_fails_by_itself_and_nothing_else_does(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited, "MAX_SECONDS", 0.2)
    talks = [Conversation(messages=[{"role": "user", "content": text}]) for text in ("a", "b", bad, "c")]
    template, alone = ChatTemplate.from_text(BURNS), ChatTemplate.from_text(BURNS)
    template.render_ahead([(one, False) for one in talks])
    for one in (*talks, *reversed(talks)):
        if one is not talks[2]:
            assert template.render(one.messages) == alone.render(one.messages)
            continue
        with pytest.raises(HeadraceError) as mine:
            template.render(one.messages)
        with pytest.raises(HeadraceError) as other:
            alone.render(one.messages)
        assert (type(mine.value), str(mine.value)) == (type(other.value), str(other.value))
        assert isinstance(mine.value, RenderLimitError) == (bad != "no")


def test_what_is_rendered_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited, "_MAX_AHEAD_BYTES", 5_000)
    talks = [Conversation(messages=[{"role": "user", "content": f"{n}" * 1_000}]) for n in range(9)]
    template = ChatTemplate.from_text("{{ messages[0].content * 20_000 }}")
    sizes = count_exchanges(monkeypatch)
    template.render_ahead([(one, False) for one in talks])
    assert [sum(sizes) // 1_000, len(template._default._ahead)] == [5, 1], "the helper ends after 16 MiB of text"  # type: ignore[union-attr]
    assert all(template.render(one.messages).text == one.messages[0]["content"] * 20_000 for one in talks[:2])


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
