"""The arguments of a template that its source shows."""

from __future__ import annotations

from headrace.samples.templates import ChatTemplate, TemplateSetup

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
