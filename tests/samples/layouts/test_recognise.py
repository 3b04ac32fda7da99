"""Layouts are recognised by the first records, and said; what is ambiguous is refused."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.samples import Conversation, Preference, Text
from headrace.samples.layouts import LAYOUTS, LayoutOptions, make_layout, recognise

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
        ([{"text": "a"}, 5], r"record 1 does not \(it is no object\)"),
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
