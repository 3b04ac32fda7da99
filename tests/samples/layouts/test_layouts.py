"""Layouts: how they are recognised, what each record becomes, prompts that are not said, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import layouts_made
import recipes_made
from counts import cases
from headrace.errors import ConfigError, InputError
from headrace.samples import Completion, Conversation, Group, Preference, Prompt, Text, TrainSpan
from headrace.samples.layouts import LAYOUTS, InputSpec, make_layout, recognise, without_nulls
from headrace.samples.layouts.known import split_text
from headrace.samples.maker import SampleMaker
from headrace.samples.recipe import parse_recipe
from headrace.samples.templates import ChatTemplate

USER = {"role": "user", "content": "Hi"}
ASSISTANT = {"role": "assistant", "content": "Yo"}
OTHER = {"role": "assistant", "content": "No"}
SYSTEM = {"role": "system", "content": "Be kind"}
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
IMAGE = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}
HUMAN, GPT, BAD_GPT = {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}, {"from": "gpt", "value": "No"}


def chat(*messages: dict[str, Any], **more: Any) -> Conversation:
    return Conversation(messages=list(messages), **more)


def called(text: str) -> dict[str, Any]:
    return {"conversations": [HUMAN, {"from": "function_call", "value": text}, {"from": "observation", "value": "2"}]}


def detail(*spans: tuple[Any, Any, Any]) -> dict[str, Any]:
    names = ("begin_offset", "end_offset", "train")
    return {"messages": [USER | {"train_detail": [dict(zip(names, span, strict=True)) for span in spans]}]}


PARTS = {"role": "assistant", "content": [{"type": "text", "text": "ab"}, {"text": "cd", "train": False}]}
FLAGGED = [USER | {"train": False}, ASSISTANT | {"masked": False}, ASSISTANT | {"weight": 0}, USER]
MATH = {"data_source": "gsm8k", "reward_model": {"style": "rule", "ground_truth": "3"}}
ADD = {"instruction": "Add", "input": "1 2", "output": "3", "system": "Be kind", "history": [["Hi", "Yo"]]}
ADDED = chat(SYSTEM, USER, ASSISTANT, {"role": "user", "content": "Add\n1 2"}, {"role": "assistant", "content": "3"})
PAIR = Preference(prompt=chat(USER), chosen=chat(ASSISTANT), rejected=chat(OTHER))
GROUP = Group(prompt=chat(USER), responses=[chat(ASSISTANT)] * 2, rewards=[1.0, 1.0])
CASES: list[tuple[str, dict[str, Any], Any]] = [
    ("messages", {"messages": [USER, ASSISTANT]}, chat(USER, ASSISTANT)),
    ("messages", {"messages": [USER], "system": "Be kind"}, chat(SYSTEM, USER)),
    (
        "messages",
        {"messages": [OTHER | {"train": False}], "system": "Be kind"},
        chat(SYSTEM, OTHER, train=(None, False)),
    ),
    ("messages", {"messages": [SYSTEM, USER], "system": "Be kind"}, chat(SYSTEM, USER)),
    ("messages", {"messages": [USER], "tools": [TOOL]}, chat(USER, tools=[TOOL])),
    ("messages", {"messages": [USER], "tools": '[{"name": "f"}]'}, chat(USER, tools=[{"name": "f"}])),
    ("messages", {"messages": [USER], "tools": "[]", "system": None}, chat(USER)),
    ("messages", {"messages": [USER], "chat_template_kwargs": {"a": 1}}, chat(USER, template_kwargs={"a": 1})),
    ("messages", {"messages": [USER], "chat_template_kwargs": '{"a": 1}'}, chat(USER, template_kwargs={"a": 1})),
    (
        "messages",
        {"messages": [USER | {"name": "A", "from": "web", "value": 3}]},
        chat(USER | {"name": "A", "from": "web", "value": 3}),
    ),
    (
        "messages",
        {"messages": [{"role": "assistant", "tool_calls": [1]}]},
        chat({"role": "assistant", "tool_calls": [1]}),
    ),
    (
        "messages",
        {"messages": [{"role": "assistant", "content": None, "name": None}]},
        chat({"role": "assistant", "content": None}),
    ),
    ("messages", {"messages": FLAGGED}, chat(USER, ASSISTANT, ASSISTANT, USER, train=(False, True, False, None))),
    ("messages", detail((1, 1, False)), chat(USER, train_spans=((TrainSpan(begin=1, end=2, train=False),),))),
    ("messages", {"messages": [IMAGE]}, chat(IMAGE)),
    (
        "messages",
        {"messages": [PARTS]},
        chat({"role": "assistant", "content": "abcd"}, train_spans=((TrainSpan(begin=2, end=4, train=False),),)),
    ),
    ("conversations", {"conversations": [HUMAN, GPT]}, chat(USER, ASSISTANT)),
    ("conversations", {"conversations": [USER, ASSISTANT]}, chat(USER, ASSISTANT)),
    (
        "conversations",
        called('{"name": "f", "arguments": {"x": 1}}'),
        chat(USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "2"}),
    ),
    ("text", {"text": "a b"}, Text(text="a b")),
    ("completion", {"prompt": "a", "completion": "b"}, Completion(prompt="a", completion="b")),
    ("completion", {"prompt": [USER], "completion": [OTHER]}, Completion(prompt=chat(USER), completion=chat(OTHER))),
    ("completion", {"prompt": [USER], "completion": "No"}, Completion(prompt=chat(USER), completion=chat(OTHER))),
    ("response", {"prompt": "a", "response": "b"}, Completion(prompt="a", completion="b")),
    ("kto", {"prompt": "a", "completion": "b", "label": False}, Completion(prompt="a", completion="b", label=False)),
    ("kto", {"prompt": "a", "completion": "b", "label": 0}, Completion(prompt="a", completion="b", label=False)),
    ("kto", {"prompt": "a", "completion": "b", "label": 1.0}, Completion(prompt="a", completion="b", label=True)),
    ("alpaca", {"instruction": "Hi", "input": "", "output": "Yo"}, chat(USER, ASSISTANT)),
    ("alpaca", ADD, ADDED),
    ("preference", {"prompt": "a", "chosen": "b", "rejected": "c"}, Preference(prompt="a", chosen="b", rejected="c")),
    ("preference", {"chosen": "is it", "rejected": "is so"}, Preference(prompt="is", chosen=" it", rejected=" so")),
    ("preference", {"prompt": [USER], "chosen": "Yo", "rejected": "No"}, PAIR),
    ("intel", {"system": "", "question": "Hi", "chosen": "Yo", "rejected": "No"}, PAIR),
    ("argilla", {"instruction": "Hi", "chosen_response": "Yo", "rejected_response": "No"}, PAIR),
    ("ranked_alpaca", {"instruction": "Hi", "input": "", "chosen": "Yo", "rejected": "No"}, PAIR),
    ("ranked", {"conversations": [HUMAN], "chosen": GPT, "rejected": BAD_GPT}, PAIR),
    ("ranked_messages", {"messages": [USER], "chosen": ASSISTANT, "rejected": [OTHER]}, PAIR),
    ("preference", {"chosen": [USER, ASSISTANT], "rejected": [USER, OTHER]}, PAIR),
    ("preference", {"prompt": "Hi", "chosen": [USER, ASSISTANT], "rejected": [USER, OTHER]}, PAIR),
    ("preference", {"prompt": [USER], "chosen": [USER, ASSISTANT], "rejected": [USER, OTHER]}, PAIR),
    ("preference", {"prompt": "Hi", "chosen": [ASSISTANT], "rejected": [OTHER]}, PAIR),
    ("prompt", {"prompt": [USER], **MATH}, Prompt(prompt=chat(USER), columns={"prompt": [USER], **MATH})),
    ("prompt", {"prompt": "Hi"}, Prompt(prompt="Hi")),
    (
        "group",
        {"prompt": "a", "responses": ["b", "c"], "rewards": [1, 0.3]},
        Group(prompt="a", responses=["b", "c"], rewards=[1.0, 0.3]),
    ),
    ("group", {"prompt": [USER], "responses": ["Yo", ASSISTANT], "rewards": [1, True]}, GROUP),
]


@pytest.mark.parametrize(("name", "record", "expected"), CASES)
def test_convert(name: str, record: dict[str, Any], expected: Any) -> None:
    layout = make_layout(name)
    assert layout.fits(record)
    found = layout.convert(record)
    assert found == expected
    assert isinstance(found, layout.makes)


def test_every_layout_is_tested() -> None:
    assert {name for name, _, _ in CASES} == set(LAYOUTS)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("messages", {"message": []}, "'messages'.*'message'.*'message'"),
    ("messages", {"messages": None}, "'messages'.*null"),
    ("messages", {"messages": "Hi"}, "messages.*'Hi'"),
    ("messages", {"messages": []}, "'messages'.*empty"),
    ("messages", {"messages": ["Hi"]}, r"messages\[0\].*'Hi'"),
    ("messages", {"messages": [USER, {"content": "x"}]}, r"'role'.*'from'.*messages\[1\].*null"),
    ("messages", {"messages": [{"role": "user"}]}, r"content.*messages\[0\].*missing"),
    ("messages", {"messages": [{"role": "user", "content": 3}]}, "3.*string"),
    ("messages", {"messages": [{"role": "user", "content": "\ud800"}]}, r"\\ud800.*0"),
    ("messages", {"messages": [USER | {"train": "yes"}]}, r"'train'.*messages\[0\].*'yes'"),
    ("messages", {"messages": [USER | {"weight": 0.5}]}, r"0\.5.*0.*1"),
    ("messages", {"messages": [USER | {"train": True, "masked": True}]}, "train.*True.*masked.*True"),
    ("messages", {"messages": [SYSTEM], "system": "Be bad"}, "'Be bad'.*'Be kind'"),
    ("messages", {"messages": [USER], "tools": "[1"}, "tools.*list"),
    ("messages", {"messages": [USER], "tools": [1]}, "0.*'tools'.*1"),
    ("messages", {"messages": [USER], "chat_template_kwargs": [1]}, "chat_template_kwargs.*list"),
    ("messages", detail((0, 2, True)), "0.*2.*2"),
    ("messages", detail((1, 0, True)), "1.*0"),
    ("messages", detail((0, 1, True), (1, 1, False)), "0.*1.*overlap"),
    ("messages", detail((0, "1", True)), "integers"),
    ("messages", detail((0, 1, "no")), "true.*false"),
    ("conversations", called("f(x)"), r"'f\(x\)'"),
    ("conversations", called("[]"), "empty"),
    ("text", {"text": 5}, "text.*5"),
    ("completion", {"prompt": "a", "completion": [ASSISTANT]}, "prompt.*messages"),
    ("completion", {"prompt": [], "completion": [ASSISTANT]}, "'prompt'.*empty"),
    ("completion", {"prompt": "a", "completion": "b", "tools": [TOOL]}, "'tools'"),
    ("kto", {"prompt": "a", "completion": "b", "label": 2}, "label.*2.*true"),
    ("alpaca", {"instruction": "a", "output": "b", "history": [["x"]]}, r"history\[0\].*1"),
    ("preference", {"chosen": "a", "rejected": "a"}, "same.*text"),
    ("preference", {"prompt": "p", "chosen": "a", "rejected": "a"}, "same"),
    ("preference", {"chosen": "", "rejected": "a"}, "chosen.*empty"),
    ("preference", {"chosen": [USER], "rejected": [ASSISTANT]}, "first"),
    ("preference", {"chosen": [USER], "rejected": [USER]}, "same.*messages"),
    ("preference", {"chosen": "a", "rejected": [USER]}, "strings.*lists"),
    ("preference", {"prompt": "x", "chosen": [USER, ASSISTANT], "rejected": [USER]}, "first.*user"),
    ("preference", {"prompt": [USER], "chosen": [], "rejected": [ASSISTANT]}, "'chosen'"),
    ("ranked", {"conversations": [USER], "chosen": "a", "rejected": ASSISTANT}, "chosen.*'a'"),
    ("group", {"prompt": "a", "responses": ["b"], "rewards": [1, 2]}, "1.*2.*rewards"),
    ("group", {"prompt": "a", "responses": [], "rewards": []}, "'responses'.*empty"),
    ("group", {"prompt": "a", "responses": ["b"], "rewards": ["x"]}, r"rewards\[0\].*'x'"),
    ("group", {"prompt": "a", "responses": ["b"], "rewards": [float("nan")]}, "finite"),
    ("group", {"prompt": "a", "responses": ["b"], "rewards": [10**400]}, "finite"),
    ("group", {"prompt": "a", "responses": [ASSISTANT], "rewards": [1]}, r"responses\[0\].*prompt"),
    ("group", {"prompt": "a", "responses": "b", "rewards": [1]}, "responses.*'b'"),
]


@pytest.mark.parametrize(("name", "record", "named"), BAD)
def test_bad_records_are_named(name: str, record: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        make_layout(name).convert(record)


def test_spans_are_sorted() -> None:
    found = make_layout("messages").convert(detail((1, 1, False), (0, 0, True)))
    assert isinstance(found, Conversation)
    assert [(span.begin, span.end) for span in found.train_spans[0]] == [(0, 1), (1, 2)]


def test_names_of_fields_and_roles() -> None:
    options = InputSpec(
        fields={"messages": "data.dialog", "role": "wer", "content": "was", "train": "lernen"}, roles={"Kunde": "user"}
    )
    record = {"data": {"dialog": [{"wer": "Kunde", "was": "Hi", "lernen": True, "role": "kept"}]}}
    found = make_layout("messages", options).convert(record)
    assert found == chat(USER | {"role": "user"}, train=(True,))
    assert make_layout("text", InputSpec(fields={"text": "a.b"})).convert({"a.b": "whole"}) == Text(text="whole")
    with pytest.raises(InputError, match=r"'data.dialog'"):
        make_layout("messages", options).convert({"data": 5})


def test_a_role_of_the_user_comes_before_the_usual_ones() -> None:
    options = InputSpec(roles={"function_call": "assistant"})
    found = make_layout("conversations", options).convert(
        {"conversations": [{"from": "function_call", "value": "f(x)"}]}
    )
    assert found == chat({"role": "assistant", "content": "f(x)"})


def test_parts_may_be_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    layout = make_layout("messages", InputSpec(parts="join"))
    assert layout.convert({"messages": [{"role": "user", "content": parts}]}) == chat({"role": "user", "content": "ab"})
    with pytest.raises(InputError, match=r"0.*'image'.*`parts"):
        layout.convert({"messages": [{"role": "user", "content": [{"type": "image"}]}]})


def test_the_record_is_left_as_it_was() -> None:
    record = {"messages": [ASSISTANT | {"train": True, "weight": None}], "system": "s"}
    before = str(record)
    make_layout("messages").convert(record)
    assert str(record) == before


def test_nulls_are_left_out_at_any_depth() -> None:
    assert without_nulls({"a": None, "b": [{"c": None, "d": 0}], "e": ""}) == {"b": [{"d": 0}], "e": ""}


# Layouts are recognised by the first records, and said; what is ambiguous is refused.


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


CALL_AS_TEXT = {"type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
CALLS = {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL_AS_TEXT]}]}


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
    assert CALL_AS_TEXT["function"] == {"name": "f", "arguments": '{"a": [1]}'}
    broken = {**CALL_AS_TEXT, "function": {"name": "f", "arguments": "{"}}
    with pytest.raises(InputError, match=r"0.*JSON"):
        maker(", arguments: parse").sample({"messages": [USER, {**YES, "tool_calls": [broken]}]})


# The prompt that is not said: where chosen and rejected part.


texts = st.text("ae\u0301\U0001f600 \n", max_size=8)


@settings(max_examples=cases(30, 5000), deadline=None)
@given(texts, texts, texts)
def test_the_parts_make_the_whole(shared: str, left: str, right: str) -> None:
    chosen, rejected = shared + left, shared + right
    try:
        found = split_text(chosen, rejected)
    except InputError:
        assert chosen == rejected or not chosen or not rejected
        return
    assert isinstance(found.prompt, str)
    assert isinstance(found.chosen, str)
    assert isinstance(found.rejected, str)
    assert (found.prompt + found.chosen, found.prompt + found.rejected) == (chosen, rejected)
    assert found.chosen
    assert found.rejected


@settings(max_examples=cases(20, 3000), deadline=None)
@given(
    st.text("ab\u0301 ", max_size=6),
    st.text("ab\u0301 ", min_size=1, max_size=4),
    st.text("ab\u0301 ", min_size=1, max_size=4),
)
def test_a_text_is_cut_as_trl_cuts(shared: str, left: str, right: str) -> None:
    """The rule of TRL's extract_prompt, except that at the very beginning it would look at the last character."""
    chosen, rejected = shared + left, shared + right
    if chosen == rejected:
        return
    place = 0
    for place in range(min(len(chosen), len(rejected))):
        if chosen[place] != rejected[place]:
            place -= place > 0 and chosen[place - 1] == " "
            break
    assert split_text(chosen, rejected).prompt == chosen[:place]


# Whatever JSON a record is: it becomes a sample, or it is refused with a message. Nothing else is raised.


BESIDE = ("system", "tools", "chat_template_kwargs", "unmask", "prompt", "input", "history")
FIELDS = sorted({*BESIDE, *(field for layout in LAYOUTS.values() for field in layout.required)})
KEYS = ["role", "from", "content", "value", "train", "weight", "train_detail", "tool_calls", "type", "text", "name"]
ROLES = ["user", "assistant", "human", "gpt", "function_call"]
WORDS = [*ROLES, "", "Hi", '{"name": "f", "arguments": {}}', "[]", "\ud800"]
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=3)
messages = st.dictionaries(st.sampled_from(KEYS), scalars, max_size=4)
turns = st.lists(messages | scalars, max_size=3)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def near_records(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """A record with the fields of a layout, most of them of kinds that occur."""
    layout = LAYOUTS[name]
    record = {field: draw(anything | turns | st.lists(messages, max_size=3)) for field in layout.required}
    for field in BESIDE:
        if field not in record and draw(st.booleans()):
            record[field] = draw(anything)
    return record


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=cases(12, 2000), deadline=None)
@given(st.data())
def test_a_record_converts_or_is_refused(name: str, data: st.DataObject) -> None:
    record = data.draw(near_records(name))
    layout = make_layout(name, InputSpec(parts=data.draw(st.sampled_from(["keep", "join"]))))
    layout.fits(record)
    try:
        found = layout.convert(record)
    except InputError:
        return
    assert isinstance(found, layout.makes)
    if isinstance(found, Conversation):
        assert len(found.train) in (0, len(found.messages))
        assert len(found.train_spans) in (0, len(found.messages))
        assert all(isinstance(message["role"], str) for message in found.messages)
        for message, spans in zip(found.messages, found.train_spans, strict=False):
            assert all(0 <= span.begin < span.end <= len(message["content"]) for span in spans)


@settings(max_examples=cases(12, 2000), deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(FIELDS), anything | turns, max_size=5), max_size=3))
def test_records_are_recognised_or_refused(records: list[dict[str, Any]]) -> None:
    try:
        found = recognise(records)
    except ConfigError:
        return
    assert all(make_layout(found.layout).fits(record) for record in records)
