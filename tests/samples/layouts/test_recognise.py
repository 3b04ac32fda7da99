"""Layouts are recognised by the first records, and said; what is ambiguous is refused."""

from __future__ import annotations

from typing import Any

import pytest

import recipes_made
from headrace.errors import ConfigError, InputError
from headrace.samples import Conversation, Preference, Text
from headrace.samples.layouts import LAYOUTS, LayoutOptions, make_layout, recognise
from headrace.samples.maker import SampleMaker
from headrace.samples.recipe import parse_recipe
from headrace.samples.templates import ChatTemplate

USER = {"role": "user", "content": "Hi"}
YES, NO = {"role": "assistant", "content": "Yes"}, {"role": "assistant", "content": "No"}
RECORDS: dict[str, dict[str, Any]] = {
    "messages": {"messages": [USER, YES], "id": 7, "source": "web"},
    "conversations": {"conversations": [{"from": "human", "value": "Hi"}], "system": "s"},
    "text": {"text": "a", "url": "u"},
    "completion": {"prompt": "a", "completion": "b"},
    "response": {"prompt": "a", "response": "b"},
    "alpaca": {"instruction": "a", "input": "", "output": "b"},
    "kto": {"prompt": "a", "completion": "b", "label": True},
    "preference": {"prompt": "a", "chosen": "b", "rejected": "c"},
    "intel": {"system": "", "question": "a", "chosen": "b", "rejected": "c"},
    "argilla": {"instruction": "a", "chosen_response": "b", "rejected_response": "c"},
    "ranked_alpaca": {"instruction": "a", "input": "", "chosen": "b", "rejected": "c"},
    "ranked": {"conversations": [{"from": "human", "value": "Hi"}], "chosen": YES, "rejected": NO},
    "ranked_messages": {"messages": [USER], "chosen": YES, "rejected": NO},
    "prompt": {"prompt": [USER], "data_source": "x", "ability": "math", "reward_model": {}, "extra_info": {}},
    "group": {"prompt": "a", "responses": ["b"], "rewards": [1.0]},
}


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
    with pytest.raises(
        ConfigError, match=r"fit several layouts: messages: .*; preference \(.*Choose one, .*layout: messages"
    ):
        recognise([record])
    assert recognise([record], makes=(Preference,)).layout == "preference"
    assert recognise([record], makes=(Conversation,)).layout == "messages"
    assert recognise([record], makes=(Preference,)).alternatives == ("messages",)


def test_names_of_fields() -> None:
    record = {"dialog": [USER, YES]}
    with pytest.raises(ConfigError, match="its fields are: 'dialog'"):
        recognise([record])
    assert recognise([record], LayoutOptions(fields={"messages": "dialog"})).why == "the record has dialog"


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "there is no record"),
        (
            [{"txt": "a"}],
            r"record 0 fits no layout; its fields are: 'txt'.*fields: \{text: txt\}.*The layouts are: messages:",
        ),
        ([{"message": [USER]}], r"fields: \{messages: message\}"),
        ([{"messages": "Hi"}], "The nearest layout is messages: messages is the string 'Hi'; allowed is a list"),
        ([{"prompt": "a", "chosen": "b"}], "field '.*' is missing"),
        (
            [{"text": "a"}, {"messages": [USER]}],
            "record 0 fits text, record 1 does not .field 'text' is missing.*layout: text",
        ),
        ([{"text": "a"}, 5], r"record 1 does not \(it is not an object\)"),
        ([5], "record 0 is a int"),
    ],
)
def test_what_cannot_be_recognised(records: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recognise(records)


def test_what_cannot_be_used() -> None:
    with pytest.raises(
        ConfigError, match=r"of the layout text \(.*\), which cannot be used here; allowed are preference, intel"
    ):
        recognise([{"text": "a"}], makes=(Preference,))
    assert recognise([{"text": "a"}], makes=(Text,)).layout == "text"


def test_only_the_first_records_are_looked_at() -> None:
    assert recognise([{"text": "a"}] * 100 + [{"other": 1}]).layout == "text"


def test_each_record_by_its_own_layout() -> None:
    recipe = parse_recipe("type: sft\ninputs: {paths: a, layout: each}\nends: {append_eos: false}")
    maker = SampleMaker(recipe, recipes_made.tokenizer_json(), template=ChatTemplate.load("chatml"))
    names = ("messages", "conversations", "alpaca", "completion", "response", "text")
    records = [*(RECORDS[name] for name in names), RECORDS["kto"], RECORDS["messages"] | RECORDS["conversations"], {}]
    samples = [maker.sample(record) for record in records[:6]]
    assert samples == [make_layout(name).convert(RECORDS[name]) for name in names]
    found = [(bad.record, bad.message[:30]) for bad in maker.make(records[6:]).bad]
    assert found == [
        (0, "the record is of the layout kt"),
        (1, "the records fit several layout"),
        (2, "the record fits no layout; its"),
    ]


def test_mixed_layouts_say_what_reads_them() -> None:
    with pytest.raises(ConfigError, match="layout: each"):
        recognise([RECORDS["messages"], RECORDS["alpaca"]])


@pytest.mark.parametrize(("said", "name"), [("sharegpt", "conversations"), ("OpenAI", "messages")])
def test_names_of_other_tools(said: str, name: str) -> None:
    assert make_layout(said).name == name
    assert parse_recipe(f"type: sft\ninputs: {{paths: a, layout: {said}}}").inputs[0].layout == name


@pytest.mark.parametrize("said", ["share-gpt", "shargpt", "open_ai", "mesages"])
def test_names_that_are_near_are_suggested(said: str) -> None:
    with pytest.raises(ConfigError, match=r"did you mean '(sharegpt|openai|messages)'"):
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
    with pytest.raises(InputError, match=r"arguments of call 0 .*not JSON .*arguments: keep"):
        maker(", arguments: parse").sample({"messages": [USER, {**YES, "tool_calls": [broken]}]})
