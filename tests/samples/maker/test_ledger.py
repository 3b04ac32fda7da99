"""All records and tokens are accounted for, however blocks are cut; and a sum that is wrong is noticed."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace
from tokenizers import Tokenizer

from counts import cases
from headrace.errors import HeadraceError, InputError
from headrace.preparing.ledger import added
from headrace.samples.layouts.fields import NullFields
from headrace.samples.maker import MadeDocuments, MakerCounts
from headrace.samples.maker.block import SampleBlock
from headrace.samples.maker.sequences import Sequencer
from headrace.samples.masking.token_spans import SpanEncoder
from headrace.samples.templates import ChatTemplate
from recipes_made import NO, TOKENS, USER, YES, make, maker, texts, tokenizer_json, trained

words = st.sampled_from(["", "Hi", "us", "er", "é", "👍", "<|end|>", "<eos>", "<|start|>assistant\n", "x" * 12])
drawn_texts = st.lists(words, max_size=4).map("".join)
messages = st.lists(
    st.builds(
        lambda role, content, train: {"role": role, "content": content} | ({} if train is None else {"train": train}),
        st.sampled_from(["user", "assistant", "system"]),
        drawn_texts,
        st.sampled_from([None, None, None, True, False]),
    ),
    min_size=1,
    max_size=5,
)


def groups(size: int) -> st.SearchStrategy[dict[str, Any]]:
    responses = st.lists(drawn_texts, min_size=size, max_size=size)
    rewards = st.lists(st.floats(-1, 1, width=32), min_size=size, max_size=size)
    return st.fixed_dictionaries({"prompt": drawn_texts, "responses": responses, "rewards": rewards})


RECORDS: dict[str, tuple[str, Any]] = {
    "seq": ("text", st.fixed_dictionaries({"text": drawn_texts})),
    "sft": ("messages", st.fixed_dictionaries({"messages": messages})),
    "sft, text": ("completion", st.fixed_dictionaries({"prompt": drawn_texts, "completion": drawn_texts})),
    "dpo": ("preference", st.fixed_dictionaries({"prompt": messages, "chosen": drawn_texts, "rejected": drawn_texts})),
    "grpo": ("group", st.integers(1, 3).flatmap(groups)),
    "prompt": ("prompt", st.fixed_dictionaries({"prompt": drawn_texts, "n": st.integers(0, 9)})),
}
POLICIES = "mask: {on_no_supervised: %s, on_all_supervised: %s, unstable: split}\n"
TRUNCATE = ["keep_start", "keep_end", "drop", "error", "keep_last_turns"]


@st.composite
def recipes(draw: st.DrawFn, kind: str) -> str:
    truncate = draw(st.sampled_from(TRUNCATE if kind in ("seq", "sft", "sft, text", "dpo") else TRUNCATE[:4]))
    policy = st.sampled_from(["drop", "error", "allow"])
    return (
        f"type: {kind.split(',')[0]}\ninputs: {{paths: a, layout: {RECORDS[kind][0]}}}\n"
        + POLICIES % (draw(policy), draw(policy))
        + f"length: {{max_tokens: {draw(st.integers(1, 60))}, truncate: {truncate}}}\n"
        + f"ends: {{append_eos: {draw(st.sampled_from(['true', 'false', 'null']))}, "
        + f"bos: {draw(st.sampled_from(['auto', 'always', 'never']))}}}\n"
        + f"filters: {{min_chars: {draw(st.integers(0, 3))}, max_tokens: {draw(st.integers(20, 200))}}}\n"
    )


def check(made: MadeDocuments, records: list[Any]) -> None:
    """What must hold of any block, computed anew from the arrays."""
    counts = made.counts
    counts.balance()
    kept, dropped, bad = set(made.records.tolist()), {d.record for d in made.dropped}, {b.record for b in made.bad}
    assert sorted([*kept, *dropped, *bad]) == list(range(len(records)))
    assert (counts.kept, sum(counts.dropped.values()), counts.bad) == (len(kept), len(dropped), len(bad))
    for values, lengths in made.arrays.values():
        assert len(lengths) == len(made)
        assert int(lengths.sum()) == len(values)
    masks = {"tokens": "loss_mask", "chosen": "chosen_mask", "rejected": "rejected_mask", "responses": "masks"}
    for key, mask in masks.items():
        if mask in made.arrays:
            assert np.array_equal(made.arrays[key].lengths, made.arrays[mask].lengths)
            assert set(made.arrays[mask].values.tolist()) <= {0, 1}
    assert sum(entry.num_tokens for entry in made.dropped) == sum(
        sum(sums.dropped.values()) for sums in counts.tokens.values()
    )
    for key, sums in counts.tokens.items():
        assert sums.kept == len(made.arrays[key].values)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", RECORDS)
@settings(max_examples=cases(16, 1500), deadline=None)
@given(st.data())
def test_everything_is_accounted_for_however_it_is_cut(kind: str, data: st.DataObject) -> None:
    recipe = data.draw(recipes(kind))
    records = data.draw(st.lists(RECORDS[kind][1], max_size=5))
    one = maker(recipe)
    made = one.make(records)
    check(made, records)
    place = data.draw(st.integers(0, len(records)))
    first, second = one.make(records[:place]), maker(recipe).make(records[place:])
    for key, (values, lengths) in made.arrays.items():
        parts = [block.arrays[key] for block in (first, second)]
        assert np.array_equal(np.concatenate([part.values for part in parts]), values)
        assert np.array_equal(np.concatenate([part.lengths for part in parts]), lengths)
    both = added(first.counts, second.counts)
    both.balance()
    for counts in (both, made.counts):
        counts.dropped, counts.notes = dict(sorted(counts.dropped.items())), dict(sorted(counts.notes.items()))
        counts.tokens = {key: sums for key, sums in sorted(counts.tokens.items()) if sums.made}
    assert both == made.counts


@settings(max_examples=cases(12, 2000), deadline=None)
@given(st.lists(messages, min_size=1, max_size=3))
def test_only_what_an_assistant_says_is_trained(talks: list[Any]) -> None:
    """Whatever the others write, the template's own markers too: by the text between the bytes of trained tokens."""
    records = [{"messages": [{k: v for k, v in m.items() if k != "train"} for m in talk]} for talk in talks]
    records = [
        {"messages": [m | {"content": m["content"] + str(n)} for n, m in enumerate(r["messages"])]} for r in records
    ]
    made = maker("type: sft\ninputs: {paths: a, layout: messages}\nmask: {on_no_supervised: allow}").make(records)
    check(made, records)
    tokenizer = Tokenizer.from_str(tokenizer_json().decode())
    values, lengths = made.arrays["tokens"]
    begin = 0
    for record, length in zip(made.records.tolist(), lengths.tolist(), strict=True):
        rows = slice(begin, begin + length)
        begin += length
        said = [m["content"] + "<|end|>" for m in records[record]["messages"] if m["role"] == "assistant"]
        chosen = values[rows][made.arrays["loss_mask"].values[rows] == 1].tolist()
        assert tokenizer.decode(chosen, skip_special_tokens=False) == "".join(said)


SUMS = (
    "type: sft\ninputs: {paths: a, layout: completion}\nlength: {max_tokens: 6, truncate: keep_end}\n"
    "filters: {max_tokens: 20}"
)
BLOCK = [{"prompt": "a" * size, "completion": "b"} for size in (1, 9, 30)]


def test_the_sums_of_a_block() -> None:
    made = maker(SUMS).make(BLOCK)
    assert made.counts == MakerCounts(
        records=3,
        kept=2,
        dropped={"max_tokens": 1},
        documents=2,
        tokens={"tokens": type(made.counts.tokens["tokens"])(made=46, kept=9, truncated=5, dropped={"max_tokens": 32})},
        supervised=4,
        eos=2,
        notes={"truncated_records": 1},
    )


@pytest.mark.parametrize("what", ["cut", "encode", "records"])
def test_a_wrong_sum_is_noticed(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A cut that loses a token, tokens that vanish behind the encoder, a record that vanishes."""
    one = maker(SUMS)
    if what == "cut":
        cut = Sequencer.cut
        monkeypatch.setattr(Sequencer, "cut", lambda *given: replace(cut(*given), ids=cut(*given).ids[1:]))
    elif what == "encode":
        finish = Sequencer.finish
        monkeypatch.setattr(Sequencer, "finish", lambda *given: (lambda f: replace(f, ids=f.ids[:-1]))(finish(*given)))
    else:
        take = SampleBlock.take
        monkeypatch.setattr(SampleBlock, "take", lambda self, record, *given: record and take(self, record, *given))
    with pytest.raises(HeadraceError, match="balance"):
        one.make(BLOCK)


def test_a_text_that_the_tokeniser_refuses_is_a_bad_record(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = SpanEncoder.encode

    def refusing(self: SpanEncoder, given: list[str]) -> Any:
        if any("POISON" in text for text in given):
            raise InputError("the tokeniser refuses a text")
        return encode(self, given)

    monkeypatch.setattr(SpanEncoder, "encode", refusing)
    made = maker("type: seq\ninputs: {paths: a, layout: text}").make([{"text": "a"}, {"text": "POISON"}, {"text": "b"}])
    assert made.records.tolist() == [0, 2]
    assert made.bad[0].message == "the tokeniser refuses a text"


def test_trained_tokens_are_counted_again_where_tokens_are_cut_off_or_added(monkeypatch: pytest.MonkeyPatch) -> None:
    take, seen = SampleBlock.take, 0

    def counted(self: SampleBlock, record: int, made: Any, kept: Any, *args: Any) -> None:
        nonlocal seen
        for one in (*made, *kept):
            assert one.num_supervised == np.count_nonzero(one.mask)
            seen += one.num_truncated > 0
        take(self, record, made, kept, *args)

    monkeypatch.setattr(SampleBlock, "take", counted)
    completion = "type: sft\ninputs: {paths: a, layout: completion}\nlength: {max_tokens: 6, truncate: %s}"
    talk = [{"prompt": "abc", "completion": "d" * size} for size in (1, 3, 9)]
    for truncate in ("keep_start", "keep_end"):
        made = maker(completion % truncate).make(talk)
        ends = np.cumsum(made.arrays["loss_mask"].lengths)
        sums = [int(part.sum()) for part in np.split(made.arrays["loss_mask"].values, ends[:-1])]
        assert made.arrays["num_supervised"].values.tolist() == sums
    group = {"prompt": "abc", "responses": ["d" * 3, "e" * 9], "rewards": [1, 0]}
    maker("type: grpo\ninputs: {paths: a, layout: group}").make([group])
    assert seen == 4


def test_both_limits_cut() -> None:
    both = "type: sft\ninputs: {paths: a, layout: completion}\nlength: {first_tokens: %d, max_tokens: %d, truncate: %s}"
    talk = [{"prompt": "", "completion": "abcdef"}]
    for first, most, truncate, kept in (
        (5, 3, "keep_end", "cde"),
        (3, 5, "keep_end", "abc"),
        (9, 3, "keep_start", "abc"),
    ):
        values, lengths = maker(both % (first, most, truncate)).make(talk).arrays["tokens"]
        tokenizer = Tokenizer.from_str(tokenizer_json().decode())
        assert (tokenizer.decode(values.tolist()), lengths.tolist()) == (kept, [len(kept)])


# Records as Arrow and OpenAI write them: null contents, null fields, and lists of messages as JSON text.


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
