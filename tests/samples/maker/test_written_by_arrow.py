"""Records as Arrow and OpenAI write them: null contents, null fields, and lists of messages as JSON text."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from headrace.samples.layouts.fields import NullFields
from headrace.samples.templates import ChatTemplate
from recipes_made import NO, TOKENS, USER, YES, make, texts, trained

SFT, DPO, GROUP, PROMPT = (f"type: {kind}\ninputs: {{paths: a}}\n" for kind in ("sft", "dpo", "grpo", "prompt"))
CALL: dict[str, Any] = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TALK = [USER, CALLED, {"role": "tool", "content": "7"}, YES]
HEAD = "{% for m in messages %}{% if m.role != 'assistant' %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% else %}"
TAIL = "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
WRITES_CALLS = (
    "{% for c in m.tool_calls or [] %}call {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
)


def chat(answer: str) -> ChatTemplate:
    return ChatTemplate.from_text(HEAD + answer + TAIL, special_tokens=TOKENS)


TURN = "<|start|>assistant\n"
NULLS = {
    "asks for none": (
        f"{{% if m.content is none %}}{TURN}{WRITES_CALLS}<|end|>"
        f"{{% else %}}{TURN}{{{{ m.content }}}}<|end|>{{% endif %}}"
    ),
    "asks for a content": f"{TURN}{WRITES_CALLS}{{{{ m.content or '' }}}}<|end|>",
    "would write None": f"{TURN}{WRITES_CALLS}{{{{ m.content }}}}<|end|>",
    "would write null": (
        f"{TURN}{WRITES_CALLS}{{% if m.content is string %}}{{{{ m.content }}}}"
        f"{{% elif m.content is defined %}}{{{{ m.content | tojson }}}}{{% endif %}}<|end|>"
    ),
    "adds it": f"{TURN}{WRITES_CALLS}{{% if m.content %}}{{{{ '' + m.content }}}}{{% endif %}}<|end|>",
    "needs it if it is defined": f"{TURN}{WRITES_CALLS}{{{{ m.content + '' if m.content is defined else '' }}}}<|end|>",
}


@pytest.mark.parametrize("answer", NULLS)
@pytest.mark.parametrize("question", ["Hi", "None", "null"])
def test_a_content_that_is_null(answer: str, question: str) -> None:
    """It is none, as transformers gives it to templates; the word None is never trained."""
    talk = [{"role": "user", "content": question}, *TALK[1:]]
    made = make(SFT, [{"messages": talk}], chat=chat(NULLS[answer]))
    assert not made.bad, made.bad
    [text] = texts(made, "tokens")
    assert not re.search("None|null", text.replace(f"user\n{question}", ""))
    assert trained(made) == ['call f {"a": 1}<|end|>|Yes<|end|>']


def test_messages_as_json_text() -> None:
    """Mixed calls have no type in Arrow."""
    given: list[tuple[str, dict[str, Any]]] = [
        (SFT, {"messages": [USER, YES]}),
        (SFT, {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes"}]}),
        (SFT, {"prompt": [USER], "completion": [YES]}),
        (DPO, {"prompt": [USER], "chosen": [YES], "rejected": [NO]}),
        (DPO, {"chosen": [USER, YES], "rejected": [USER, NO]}),
        (GROUP, {"prompt": [USER], "responses": [[YES], [NO]], "rewards": [1, 0]}),
        (PROMPT, {"prompt": [USER]}),
    ]
    for recipe, record in given:
        packed = {name: json.dumps(value) for name, value in record.items()}
        expected, made = make(recipe, [record]), make(recipe, [packed])
        assert not made.bad, made.bad
        assert len(made) == len(expected) == 1
        for key, (values, lengths) in expected.arrays.items():
            if key != "columns":
                assert made.arrays[key].values.tolist() == values.tolist()
                assert made.arrays[key].lengths.tolist() == lengths.tolist()
    # Text that begins as JSON does, and is no list of messages, stays text.
    made = make(SFT, [{"prompt": "[1, 2]", "completion": "[{]"}])
    assert texts(made, "tokens") == ["[1, 2][{]<eos>"]


def test_arguments_within_quotes_are_counted_in_every_record() -> None:
    quoted = {**CALL, "function": {"name": "f", "arguments": '{"a": "ü"}'}}
    talk = {"messages": [USER, {**CALLED, "tool_calls": [quoted, quoted]}]}
    plain = {"messages": [USER, YES]}
    made = make(SFT, [plain] * 150 + [talk] * 3, chat=chat(NULLS["asks for a content"]))
    assert made.counts.notes == {"quoted_arguments": 6}
    assert trained(made)[-1].startswith(r'call f "{\"a\": \"ü\"}"')
    as_is = chat(NULLS["asks for a content"].replace(" | tojson", ""))
    assert "quoted_arguments" not in make(SFT, [plain, talk], chat=as_is).counts.notes


TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": ["string", "null"], "default": None, "enum": ["x", None], "description": None},
                "b": {"const": None},
                "c": {"type": "string"},
                "d": {
                    "type": "object",
                    "properties": {"e": {"type": "string"}, "f": {"nullable": True}, "content": None},
                },
                "g": None,
            },
        },
    },
}


def test_nulls_that_say_something_stay() -> None:
    nulls = NullFields([TOOL])
    found = nulls.without({"tools": [TOOL], "x": None, "y": [{"z": None}]})
    properties = found["tools"][0]["function"]["parameters"]["properties"]
    assert properties["a"] == {"type": ["string", "null"], "default": None, "enum": ["x", None]}
    assert properties["b"] == {"const": None}
    assert properties["d"]["properties"] == {"e": {"type": "string"}, "f": {"nullable": True}}
    assert "g" not in properties
    assert {name: found[name] for name in found if name != "tools"} == {"y": [{}]}

    def arguments(given: dict[str, Any], name: str = "f") -> Any:
        call = {"function": {"name": name, "arguments": given}, "id": None}
        return nulls.without({"tool_calls": [call]})["tool_calls"][0]["function"]["arguments"]

    assert nulls.num_arguments == 0
    # Arrow fills in an argument that another tool has, or that was not given.
    assert arguments({"a": None, "c": None, "d": {"e": None, "f": None}, "other": None}) == {
        "a": None,
        "d": {"f": None},
    }
    assert nulls.num_arguments == 3
    # Of a tool that nobody describes nothing is known.
    assert arguments({"a": None}, "unknown") == {"a": None}


def test_arguments_that_are_left_out_are_counted() -> None:
    calls = [{"function": {"name": "f", "arguments": {"a": None, "c": None}}, "id": None}]
    record = {"messages": [USER, {**CALLED, "tool_calls": calls}], "tools": json.dumps([TOOL])}
    tools = "{% if tools %}{{ tools[0].function.parameters.properties | tojson }}{% endif %}"
    template = ChatTemplate.from_text(tools + HEAD + NULLS["asks for none"] + TAIL, special_tokens=TOKENS)
    recipe = SFT.replace("paths: a", "paths: a, drop_nulls: true") + "mask: {on_unwritten_tools: allow}"
    made = make(recipe, [record] * 2, chat=template)
    assert not made.bad, made.bad
    assert trained(made) == ['call f {"a": null}<|end|>'] * 2
    assert made.counts.notes["dropped_null_arguments"] == 2
    without = make(recipe.replace("true", "false"), [record] * 2, chat=template)
    assert trained(without) == ['call f {"a": null, "c": null}<|end|>'] * 2
    assert without.counts.notes["null_fields"] == 4, "a message and the tools of each"
