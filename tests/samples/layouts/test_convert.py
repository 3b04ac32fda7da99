"""Each layout, record by record: what it becomes, and what is said of one that it is not."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ConfigError, InputError
from headrace.samples import Completion, Conversation, Group, Preference, Prompt, Text, TrainSpan
from headrace.samples.layouts import LAYOUTS, LayoutOptions, make_layout, without_nulls

USER = {"role": "user", "content": "Hi"}
ASSISTANT = {"role": "assistant", "content": "Yo"}
SYSTEM = {"role": "system", "content": "Be kind"}
TOOL = {"type": "function", "function": {"name": "f"}}


def chat(*messages: dict[str, Any], **more: Any) -> Conversation:
    return Conversation(messages=list(messages), **more)


CASES: list[tuple[str, dict[str, Any], Any]] = [
    ("messages", {"messages": [USER, ASSISTANT]}, chat(USER, ASSISTANT)),
    ("messages", {"messages": [USER], "system": "Be kind"}, chat(SYSTEM, USER)),
    (
        "messages",
        {"messages": [ASSISTANT | {"train": False}], "system": "Be kind"},
        chat(SYSTEM, ASSISTANT, train=(None, False)),
    ),
    ("messages", {"messages": [SYSTEM, USER], "system": "Be kind"}, chat(SYSTEM, USER)),
    ("messages", {"messages": [USER], "tools": [TOOL]}, chat(USER, tools=[TOOL])),
    ("messages", {"messages": [USER], "tools": '[{"name": "f"}]'}, chat(USER, tools=[{"name": "f"}])),
    ("messages", {"messages": [USER], "tools": "[]", "system": None}, chat(USER)),
    ("messages", {"messages": [USER], "chat_template_kwargs": {"a": 1}}, chat(USER, template_kwargs={"a": 1})),
    ("messages", {"messages": [USER], "chat_template_kwargs": '{"a": 1}'}, chat(USER, template_kwargs={"a": 1})),
    ("messages", {"messages": [USER | {"name": "A"}]}, chat(USER | {"name": "A"})),
    (
        "messages",
        {"messages": [{"role": "assistant", "tool_calls": [1]}]},
        chat({"role": "assistant", "tool_calls": [1]}),
    ),
    (
        "messages",
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [1], "name": None}]},
        chat({"role": "assistant", "content": None, "tool_calls": [1]}),
    ),
    (
        "messages",
        {"messages": [USER | {"train": False}, ASSISTANT | {"masked": False}, ASSISTANT | {"weight": 0}, USER]},
        chat(USER, ASSISTANT, ASSISTANT, USER, train=(False, True, False, None)),
    ),
    (
        "messages",
        {"messages": [ASSISTANT | {"train_detail": [{"begin_offset": 1, "end_offset": 1, "train": False}]}]},
        chat(ASSISTANT, train_spans=((TrainSpan(begin=1, end=2, train=False),),)),
    ),
    (
        "messages",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]},
        chat({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}),
    ),
    (
        "messages",
        {
            "messages": [
                {"role": "assistant", "content": [{"type": "text", "text": "ab"}, {"text": "cd", "train": False}]}
            ]
        },
        chat({"role": "assistant", "content": "abcd"}, train_spans=((TrainSpan(begin=2, end=4, train=False),),)),
    ),
    (
        "conversations",
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]},
        chat(USER, ASSISTANT),
    ),
    ("conversations", {"conversations": [USER, ASSISTANT]}, chat(USER, ASSISTANT)),
    ("messages", {"messages": [USER | {"from": "web", "value": 3}]}, chat(USER | {"from": "web", "value": 3})),
    (
        "conversations",
        {
            "conversations": [
                {"from": "human", "value": "Hi"},
                {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
                {"from": "observation", "value": "2"},
            ]
        },
        chat(
            USER,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
            },
            {"role": "tool", "content": "2"},
        ),
    ),
    ("text", {"text": "a b"}, Text(text="a b")),
    ("completion", {"prompt": "a", "completion": "b"}, Completion(prompt="a", completion="b")),
    (
        "completion",
        {"prompt": [USER], "completion": [ASSISTANT]},
        Completion(prompt=chat(USER), completion=chat(ASSISTANT)),
    ),
    ("completion", {"prompt": [USER], "completion": "Yo"}, Completion(prompt=chat(USER), completion=chat(ASSISTANT))),
    ("response", {"prompt": "a", "response": "b"}, Completion(prompt="a", completion="b")),
    ("kto", {"prompt": "a", "completion": "b", "label": False}, Completion(prompt="a", completion="b", label=False)),
    ("kto", {"prompt": "a", "completion": "b", "label": 0}, Completion(prompt="a", completion="b", label=False)),
    ("kto", {"prompt": "a", "completion": "b", "label": 1.0}, Completion(prompt="a", completion="b", label=True)),
    ("alpaca", {"instruction": "Hi", "input": "", "output": "Yo"}, chat(USER, ASSISTANT)),
    (
        "alpaca",
        {"instruction": "Add", "input": "1 2", "output": "3", "system": "Be kind", "history": [["Hi", "Yo"]]},
        chat(SYSTEM, USER, ASSISTANT, {"role": "user", "content": "Add\n1 2"}, {"role": "assistant", "content": "3"}),
    ),
    ("preference", {"prompt": "a", "chosen": "b", "rejected": "c"}, Preference(prompt="a", chosen="b", rejected="c")),
    (
        "preference",
        {"chosen": "sky is blue", "rejected": "sky is red"},
        Preference(prompt="sky is", chosen=" blue", rejected=" red"),
    ),
    (
        "preference",
        {"prompt": [USER], "chosen": "Yo", "rejected": "No"},
        Preference(prompt=chat(USER), chosen=chat(ASSISTANT), rejected=chat({"role": "assistant", "content": "No"})),
    ),
    ("intel", {"system": "", "question": "Hi", "chosen": "Yo", "rejected": "No"}, None),
    ("argilla", {"instruction": "Hi", "chosen_response": "Yo", "rejected_response": "No"}, None),
    ("ranked_alpaca", {"instruction": "Hi", "input": "", "chosen": "Yo", "rejected": "No"}, None),
    (
        "ranked",
        {
            "conversations": [{"from": "human", "value": "Hi"}],
            "chosen": {"from": "gpt", "value": "Yo"},
            "rejected": {"from": "gpt", "value": "No"},
        },
        None,
    ),
    (
        "ranked_messages",
        {"messages": [USER], "chosen": ASSISTANT, "rejected": [{"role": "assistant", "content": "No"}]},
        None,
    ),
    (
        "preference",
        {"chosen": [USER, ASSISTANT], "rejected": [USER, {"role": "assistant", "content": "No"}]},
        None,
    ),
    (
        "preference",
        {"prompt": "Hi", "chosen": [USER, ASSISTANT], "rejected": [USER, {"role": "assistant", "content": "No"}]},
        None,
    ),
    (
        "preference",
        {"prompt": [USER], "chosen": [USER, ASSISTANT], "rejected": [USER, {"role": "assistant", "content": "No"}]},
        None,
    ),
    ("preference", {"prompt": "Hi", "chosen": [ASSISTANT], "rejected": [{"role": "assistant", "content": "No"}]}, None),
    (
        "prompt",
        {"prompt": [USER], "data_source": "gsm8k", "reward_model": {"style": "rule", "ground_truth": "3"}},
        Prompt(
            prompt=chat(USER),
            columns={
                "prompt": [USER],
                "data_source": "gsm8k",
                "reward_model": {"style": "rule", "ground_truth": "3"},
            },
        ),
    ),
    ("prompt", {"prompt": "Hi"}, Prompt(prompt="Hi")),
    (
        "group",
        {"prompt": "a", "responses": ["b", "c"], "rewards": [1, 0.3]},
        Group(prompt="a", responses=["b", "c"], rewards=[1.0, 0.3]),
    ),
    (
        "group",
        {"prompt": [USER], "responses": ["Yo", ASSISTANT], "rewards": [1, True]},
        Group(prompt=chat(USER), responses=[chat(ASSISTANT)] * 2, rewards=[1.0, 1.0]),
    ),
]
NO = Preference(prompt=chat(USER), chosen=chat(ASSISTANT), rejected=chat({"role": "assistant", "content": "No"}))


@pytest.mark.parametrize(("name", "record", "expected"), CASES)
def test_convert(name: str, record: dict[str, Any], expected: Any) -> None:
    layout = make_layout(name)
    assert layout.fits(record)
    found = layout.convert(record)
    assert found == (NO if expected is None else expected)
    assert isinstance(found, layout.makes)


def test_every_layout_is_tested() -> None:
    assert {name for name, _, _ in CASES} == set(LAYOUTS)


BAD: list[tuple[str, dict[str, Any], str]] = [
    (
        "messages",
        {"message": []},
        r"field 'messages' is missing: .* the fields are: 'message'; did you mean 'message'\?",
    ),
    ("messages", {"messages": None}, "field 'messages' is null"),
    ("messages", {"messages": "Hi"}, "messages is the string 'Hi'; allowed is a list of messages"),
    ("messages", {"messages": []}, "'messages' is an empty list"),
    ("messages", {"messages": ["Hi"]}, r"messages\[0\] is the string 'Hi'; allowed is a message"),
    ("messages", {"messages": [USER, {"content": "x"}]}, r"the role \('role' or 'from'\) of messages\[1\] is null"),
    ("messages", {"messages": [{"role": "user"}]}, r"content .* of messages\[0\] is missing"),
    (
        "messages",
        {"messages": [{"role": "user", "content": 3}]},
        "is the number 3; allowed is a string, null, or a list",
    ),
    ("messages", {"messages": [{"role": "user", "content": "\ud800"}]}, r"unpaired surrogate \\ud800 at character 0"),
    (
        "messages",
        {"messages": [USER | {"train": "yes"}]},
        r"'train' of messages\[0\] is the string 'yes'; allowed is true",
    ),
    ("messages", {"messages": [USER | {"weight": 0.5}]}, "is the number 0.5; allowed is 0 or 1"),
    (
        "messages",
        {"messages": [USER | {"train": True, "masked": True}]},
        "contradicts itself: train is True, masked is True",
    ),
    ("messages", {"messages": [SYSTEM], "system": "Be bad"}, "different system prompts: .*'Be bad'.*'Be kind'"),
    ("messages", {"messages": [USER], "tools": "[1"}, "tools is the string .*; allowed is a list, or the JSON of one"),
    ("messages", {"messages": [USER], "tools": [1]}, "tool 0 of 'tools' is the number 1"),
    ("messages", {"messages": [USER], "chat_template_kwargs": [1]}, "chat_template_kwargs is a list of 1"),
    (
        "conversations",
        {"conversations": [{"from": "function_call", "value": "f(x)"}]},
        r"is the string 'f\(x\)'; a call",
    ),
    (
        "conversations",
        {"conversations": [{"from": "function_call", "value": "[]"}]},
        "an empty list: at least one call",
    ),
    ("text", {"text": 5}, "text is the number 5; allowed is a string"),
    (
        "completion",
        {"prompt": "a", "completion": [ASSISTANT]},
        "if the answer is messages, the prompt must be messages too",
    ),
    ("completion", {"prompt": [], "completion": [ASSISTANT]}, "'prompt' is an empty list"),
    ("completion", {"prompt": "a", "completion": "b", "tools": [TOOL]}, "'tools' is for conversations"),
    (
        "kto",
        {"prompt": "a", "completion": "b", "label": 2},
        "label is the number 2; allowed is true or false, or 1 or 0",
    ),
    ("alpaca", {"instruction": "a", "output": "b", "history": [["x"]]}, r"history\[0\] is a list of 1; allowed is"),
    ("preference", {"chosen": "a", "rejected": "a"}, "the same text"),
    ("preference", {"prompt": "p", "chosen": "a", "rejected": "a"}, "are the same: there is nothing"),
    ("preference", {"chosen": "", "rejected": "a"}, "chosen is empty"),
    ("preference", {"chosen": [USER], "rejected": [ASSISTANT]}, "share no first message"),
    ("preference", {"chosen": [USER], "rejected": [USER]}, "the same messages"),
    ("preference", {"chosen": "a", "rejected": [USER]}, "both must be strings, or both lists"),
    ("preference", {"prompt": "x", "chosen": [USER, ASSISTANT], "rejected": [USER]}, "not the first user message"),
    ("preference", {"prompt": [USER], "chosen": [], "rejected": [ASSISTANT]}, "'chosen' has no message"),
    (
        "ranked",
        {"conversations": [USER], "chosen": "a", "rejected": ASSISTANT},
        "chosen is the string 'a'; allowed is one",
    ),
    ("group", {"prompt": "a", "responses": ["b"], "rewards": [1, 2]}, "1 responses and 2 rewards"),
    ("group", {"prompt": "a", "responses": [], "rewards": []}, "'responses' is an empty list"),
    (
        "group",
        {"prompt": "a", "responses": ["b"], "rewards": ["x"]},
        r"rewards\[0\] is the string 'x'; allowed is a number",
    ),
    ("group", {"prompt": "a", "responses": ["b"], "rewards": [float("nan")]}, "allowed is a finite number"),
    ("group", {"prompt": "a", "responses": ["b"], "rewards": [10**400]}, "allowed is a finite number"),
    (
        "group",
        {"prompt": "a", "responses": [ASSISTANT], "rewards": [1]},
        r"responses\[0\] is an object .* prompt is a string",
    ),
    ("group", {"prompt": "a", "responses": "b", "rewards": [1]}, "responses is the string 'b'; allowed is a list"),
]


@pytest.mark.parametrize(("name", "record", "message"), BAD)
def test_bad_records_are_named(name: str, record: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_layout(name).convert(record)


def detail(*spans: tuple[Any, Any, Any]) -> dict[str, Any]:
    names = ("begin_offset", "end_offset", "train")
    return {"messages": [USER | {"train_detail": [dict(zip(names, span, strict=True)) for span in spans]}]}


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 2, True)], "goes from character 0 to 2, both included; the content has 2 characters"),
        ([(1, 0, True)], "goes from character 1 to 0"),
        ([(0, 1, True), (1, 1, False)], "the spans at characters 0 and 1 overlap"),
        ([(0, "1", True)], "both must be integers"),
        ([(0, 1, "no")], "allowed is true or false"),
    ],
)
def test_bad_spans_are_named(spans: list[tuple[Any, Any, Any]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_layout("messages").convert(detail(*spans))


def test_spans_are_sorted() -> None:
    found = make_layout("messages").convert(detail((1, 1, False), (0, 0, True)))
    assert isinstance(found, Conversation)
    assert [(span.begin, span.end) for span in found.train_spans[0]] == [(0, 1), (1, 2)]


def test_names_of_fields_and_roles() -> None:
    options = LayoutOptions(
        fields={"messages": "data.dialog", "role": "wer", "content": "was", "train": "lernen"}, roles={"Kunde": "user"}
    )
    record = {"data": {"dialog": [{"wer": "Kunde", "was": "Hi", "lernen": True, "role": "kept"}]}}
    found = make_layout("messages", options).convert(record)
    assert found == chat(USER | {"role": "user"}, train=(True,))
    assert make_layout("text", LayoutOptions(fields={"text": "a.b"})).convert({"a.b": "whole"}) == Text(text="whole")
    with pytest.raises(InputError, match=r"field 'data.dialog' is missing"):
        make_layout("messages", options).convert({"data": 5})


def test_a_role_of_the_user_comes_before_the_usual_ones() -> None:
    options = LayoutOptions(roles={"function_call": "assistant"})
    found = make_layout("conversations", options).convert(
        {"conversations": [{"from": "function_call", "value": "f(x)"}]}
    )
    assert found == chat({"role": "assistant", "content": "f(x)"})


def test_parts_may_be_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    layout = make_layout("messages", LayoutOptions(parts="join"))
    assert layout.convert({"messages": [{"role": "user", "content": parts}]}) == chat({"role": "user", "content": "ab"})
    with pytest.raises(InputError, match=r"part 0 of .* of type 'image'; `parts: join` .* each must be of type 'text'"):
        layout.convert({"messages": [{"role": "user", "content": [{"type": "image"}]}]})


def test_an_unknown_layout() -> None:
    with pytest.raises(ConfigError, match=r"'mesages' is unknown; did you mean 'messages'\?; allowed are messages, "):
        make_layout("mesages")


def test_the_record_is_left_as_it_was() -> None:
    record = {"messages": [ASSISTANT | {"train": True, "weight": None}], "system": "s"}
    before = str(record)
    make_layout("messages").convert(record)
    assert str(record) == before


def test_nulls_are_left_out_at_any_depth() -> None:
    assert without_nulls({"a": None, "b": [{"c": None, "d": 0}], "e": ""}) == {"b": [{"d": 0}], "e": ""}
