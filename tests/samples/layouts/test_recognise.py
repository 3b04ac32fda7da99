"""Layouts are recognised by the first records, and said; what is ambiguous is refused."""

from __future__ import annotations

from typing import Any

import pytest

import layouts_made
import recipes_made
from headrace.errors import ConfigError, InputError
from headrace.samples import Conversation, Preference
from headrace.samples.layouts import LAYOUTS, InputSpec, make_layout, recognise
from headrace.samples.maker import SampleMaker
from headrace.samples.recipe import parse_recipe
from headrace.samples.templates import ChatTemplate

USER = {"role": "user", "content": "Hi"}
YES, NO = {"role": "assistant", "content": "Yes"}, {"role": "assistant", "content": "No"}


RECORDS = {name: made(1).record for name, made in layouts_made.MADE.items()}
RECORDS["messages"] |= {"id": 7, "source": "web"}


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_is_recognised_by_itself(name: str) -> None:
    found = recognise([RECORDS[name]] * 3)
    assert found.layout == name
    assert found.why.startswith("all of the first 3 records have ")
    assert all(field in found.why for field in LAYOUTS[name].required)
    make_layout(name).convert(RECORDS[name])


def test_what_is_wanted_decides() -> None:
    """UltraFeedback has the prompt, both conversations, and the chosen one again."""
    record = {"prompt": "Hi", "messages": [USER, YES], "chosen": [USER, YES], "rejected": [USER, NO]}
    with pytest.raises(ConfigError, match="preference"):
        recognise([record])
    assert recognise([record], makes=(Preference,)).layout == "preference"
    assert recognise([record], makes=(Conversation,)).layout == "messages"
    assert recognise([record], makes=(Preference,)).alternatives == ("messages",)


def test_names_of_fields() -> None:
    record = {"dialog": [USER, YES]}
    with pytest.raises(ConfigError, match="'dialog'"):
        recognise([record])
    assert recognise([record], InputSpec(fields={"messages": "dialog"})).why == "the record has dialog"


@pytest.mark.parametrize(
    ("records", "named"),
    [
        ([], "record"),
        ([{"txt": "a"}], r"0.*'txt'.*\{text: txt\}.*messages"),
        ([{"message": [USER]}], r"\{messages: message\}"),
        ([{"messages": "Hi"}], "messages.*'Hi'"),
        ([{"prompt": "a", "chosen": "b"}], "field.*missing"),
        ([{"text": "a"}, {"messages": [USER]}], "0.*text.*1.*'text'.*text"),
        ([{"text": "a"}, 5], "1.*object"),
        ([5], "0.*int"),
        ([RECORDS["messages"], RECORDS["alpaca"]], "layout"),
    ],
)
def test_what_cannot_be_recognised(records: list[Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        recognise(records)


def test_only_the_first_records_are_looked_at() -> None:
    assert recognise([{"text": "a"}] * 100 + [{"other": 1}]).layout == "text"


def test_each_record_by_its_own_layout() -> None:
    recipe = parse_recipe("type: sft\ninputs: {paths: a, layout: each}\nends: {append_eos: false}")
    maker = SampleMaker(recipe, recipes_made.tokenizer_json(), template=ChatTemplate.load("chatml"))
    names = ("messages", "conversations", "alpaca", "completion", "response", "text")
    records = [*(RECORDS[name] for name in names), RECORDS["kto"], RECORDS["messages"] | RECORDS["conversations"], {}]
    samples = [maker.sample(record) for record in records[:6]]
    assert samples == [make_layout(name).convert(RECORDS[name]) for name in names]
    for number, (bad, named) in enumerate(
        zip(maker.make(records[6:]).bad, ("kto", "several", "no layout"), strict=True)
    ):
        assert (bad.record, named in bad.message) == (number, True), bad.message


@pytest.mark.parametrize(("said", "name"), [("sharegpt", "conversations"), ("OpenAI", "messages")])
def test_names_of_other_tools(said: str, name: str) -> None:
    assert make_layout(said).name == name
    assert parse_recipe(f"type: sft\ninputs: {{paths: a, layout: {said}}}").inputs[0].layout == name


@pytest.mark.parametrize("said", ["share-gpt", "shargpt", "open_ai", "mesages"])
def test_names_that_are_near_are_suggested(said: str) -> None:
    with pytest.raises(ConfigError, match="messages"):
        make_layout(said)


CALL = {"type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
CALLS = {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}]}


def test_arguments_as_a_string_are_noted_and_parsed() -> None:
    text = "{% for m in messages %}{{ m.role }}{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}"
    nulls = {"messages": [USER, {**YES, "tool_calls": [{"function": {"name": "f", "arguments": {"a": None}}}]}]}
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, YES]}

    def maker(more: str = "") -> SampleMaker:
        recipe = parse_recipe(f"type: sft\ninputs: {{paths: a, layout: messages{more}}}\nends: {{append_eos: false}}")
        return SampleMaker(recipe, recipes_made.tokenizer_json(), template=ChatTemplate.from_text(text))

    records = [CALLS, nulls, parts]
    found = maker().notices(records)
    assert ["arguments: parse" in found[0], "drop_nulls: true" in found[1], "parts: join" in found[2]] == [True] * 3
    assert maker(", arguments: parse, drop_nulls: true, parts: join").notices(records) == []
    sample = maker(", arguments: parse").sample(CALLS)
    assert sample.messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": [1]}
    assert CALL["function"] == {"name": "f", "arguments": '{"a": [1]}'}
    broken = {**CALL, "function": {"name": "f", "arguments": "{"}}
    with pytest.raises(InputError, match=r"0.*JSON"):
        maker(", arguments: parse").sample({"messages": [USER, {**YES, "tool_calls": [broken]}]})
