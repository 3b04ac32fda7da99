"""Marked and encoded conversations: nothing lost, nothing shared; truncation; the evidence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import masks_made
import talks
from counts import cases
from headrace.errors import InputError
from headrace.samples import Conversation, TrainSpan
from headrace.samples.maker import SampleMaker
from headrace.samples.maker.maker import exchanges, shortened
from headrace.samples.maker.sequences import MadeSequence, Sequencer
from headrace.samples.masking import DroppedError, EncodedText, MaskOptions, Region, Why
from headrace.samples.masking.renders import Renders
from headrace.samples.masking.unwritten import find_unwritten
from headrace.samples.recipe import LengthSpec, make_recipe
from headrace.samples.recipe.recipe import OverLong
from headrace.samples.templates import suite_names
from headrace.samples.templates.suite import FAMILIES
from talks import assistant, system, user

BAD: talks.Talk = []


def test_a_batch_is_its_conversations() -> None:
    """Split, dropped, refused and plain ones together, cut into batches anywhere."""
    masker = masks_made.masker("qwen3", unstable="split", on_no_supervised="drop")
    several = [talks.TWO, talks.THINKING, [user("a")], BAD, talks.ONE, talks.SPACES]
    conversations = [Conversation(messages=messages) for messages in several]
    whole = masker.mask_batch(conversations)
    assert [found.record for found in whole.refused] == [3]
    assert [(found.record, found.reason) for found in whole.dropped] == [(2, "no_supervised")]
    assert whole.dropped[0].num_tokens > 0
    assert whole.records == [0, 0, 1, 1, 4, 5, 5]
    assert all(len(sample.ids) == len(sample.loss_mask) for sample in whole.samples)
    assert {(sample.ids.dtype, sample.loss_mask.dtype) for sample in whole.samples} == {
        (np.dtype(np.uint32), np.dtype(np.uint8))
    }
    alone = [masker.mask_batch([conversation]) for conversation in conversations]
    assert whole.ids == [token for batch in alone for token in batch.ids]
    assert whole.loss_mask == [mark for batch in alone for mark in batch.loss_mask]
    assert whole.counts == sum((batch.counts for batch in alone), start=type(whole.counts)())
    assert len(masker.mask_batch([])) == len(masker.mask_batch([conversations[3]])) == 0


def test_a_refused_record_leaves_no_counts() -> None:
    masker = masks_made.masker("chatml", on_empty_turn="allow", on_no_supervised="error")
    conversation = Conversation(messages=[user("a"), assistant(""), assistant("b")], train=(None, None, False))
    broken = Conversation(messages=[user("a"), assistant("")])
    assert masker.mask_batch([conversation, broken]).counts == {"empty_turn": 2}
    shouts = "{% for m in messages %}<|im_start|>{{ m.content | upper }}<|im_end|>{% endfor %}"
    shouting = masks_made.masker(shouts, on_empty_turn="allow")
    spans = ((), (), (), (TrainSpan(begin=0, end=1, train=True),))
    messages = [user("a"), assistant(""), user("b"), assistant("c")]
    batch = shouting.mask_batch([Conversation(messages=messages, train_spans=spans)])
    assert "has spans to train" in batch.refused[0].message
    assert batch.counts == {}


def test_evidence() -> None:
    (sample,) = masks_made.masker("qwen3").mask(
        Conversation(messages=[system("S"), user("a"), assistant("b", reasoning_content="t")]), evidence=True
    )
    assert sample.evidence is not None
    text = sample.evidence.text.encode()
    seen = []
    for token in sample.evidence.tokens(sample):
        piece = text[token.begin_bytes : token.end_bytes].decode()
        if not seen or seen[-1][1:] != (token.role, token.region, token.is_trained):
            seen.append((piece, token.role, token.region, token.is_trained))
        else:
            seen[-1] = (seen[-1][0] + piece, *seen[-1][1:])
        assert token.words
    assert seen == [
        ("<|im_start|>system\n", "system", Region.HEADER, False),
        ("S", "system", Region.CONTENT, False),
        ("<|im_end|>", "system", Region.END_OF_TURN, False),
        ("\n", "system", Region.AFTER, False),
        ("<|im_start|>user\n", "user", Region.HEADER, False),
        ("a", "user", Region.CONTENT, False),
        ("<|im_end|>", "user", Region.END_OF_TURN, False),
        ("\n", "user", Region.AFTER, False),
        ("<|im_start|>assistant\n", "assistant", Region.HEADER, False),
        ("<think>\nt\n</think>\n\n", "assistant", Region.REASONING, True),
        ("b", "assistant", Region.CONTENT, True),
        ("<|im_end|>", "assistant", Region.END_OF_TURN, True),
        ("\n", "assistant", Region.AFTER, False),
    ]
    whys = {token.region: token.why for token in sample.evidence.tokens(sample) if token.role == "assistant"}
    assert whys == {
        Region.HEADER: Why.PROMPT,
        Region.REASONING: Why.ROLE,
        Region.CONTENT: Why.ROLE,
        Region.END_OF_TURN: Why.ROLE,
        Region.AFTER: Why.AFTER,
    }
    (straddling,) = masks_made.masker("jamba").mask(Conversation(messages=[user("a"), assistant("é")]), evidence=True)
    assert straddling.evidence is not None
    found = [token for token in straddling.evidence.tokens(straddling) if token.why == Why.STRADDLE]
    assert [token.is_trained for token in found] == [False]
    trained = masks_made.masker("jamba", straddle="train")
    assert trained.mask_batch([Conversation(messages=[user("a"), assistant("é")])]).counts == {"straddling_tokens": 1}
    assert masks_made.masks("jamba", [user("a"), assistant("é")], straddle="train")[0].endswith("⟦ é<|eom|>⟧")


def cut(sample: EncodedText, most: int, truncate: OverLong, on_supervision_cut: Any = "drop") -> MadeSequence:
    length = LengthSpec(max_tokens=most, truncate=truncate, on_supervision_cut=on_supervision_cut)
    whole = MadeSequence("tokens", sample.ids, sample.loss_mask, sample.num_supervised, len(sample.ids))
    found = Sequencer(masks_made.masker("chatml").spans, MaskOptions(), length, None).cut(whole)
    assert found.num_truncated == len(sample.ids) - len(found.ids)
    assert found.num_supervised == np.count_nonzero(found.mask)
    return found


def test_truncation_by_tokens() -> None:
    (whole,) = masks_made.masker("chatml").mask(Conversation(messages=talks.TWO))
    length = len(whole.ids)
    for most in range(1, length + 2):
        ways: dict[OverLong, slice] = {"keep_start": slice(0, most), "keep_end": slice(max(length - most, 0), length)}
        for over_long, kept in ways.items():
            if not whole.loss_mask[kept].any():
                with pytest.raises(DroppedError) as dropped:
                    cut(whole, most, over_long)
                assert dropped.value.reason == "supervision_cut"
                continue
            found = cut(whole, most, over_long)
            assert found.ids.tolist() == whole.ids[kept].tolist()
            assert found.mask.tolist() == whole.loss_mask[kept].tolist()


@pytest.mark.parametrize(
    ("over_long", "on_supervision_cut", "error", "named"),
    [
        ("error", "drop", InputError, "max_tokens is 3: raise max_tokens, or choose truncate: drop"),
        ("drop", "drop", DroppedError, "max_tokens.*3"),
        ("keep_start", "error", InputError, "trained.*another truncate, or on_supervision_cut: drop"),
    ],
)
def test_truncations_that_are_refused(
    over_long: OverLong, on_supervision_cut: Any, error: type[Exception], named: str
) -> None:
    (whole,) = masks_made.masker("chatml").mask(Conversation(messages=talks.TWO))
    with pytest.raises(error, match=named):
        cut(whole, 3, over_long, on_supervision_cut)


LONG = [system("S"), user("one"), assistant("1", tool_calls=[]), user("two"), user("more"), assistant("2")]
LONG += [{"role": "tool", "content": "r"}, assistant("3"), user("last"), assistant("4")]


def test_exchanges() -> None:
    assert exchanges(Conversation(messages=LONG)) == [1, 3, 8]
    assert exchanges(Conversation(messages=LONG[2:])) == [0, 1, 6]
    assert exchanges(Conversation(messages=LONG[1:3])) == [0]
    assert exchanges(Conversation(messages=LONG[:1])) == []
    flags = Conversation(messages=LONG, train=tuple(bool(number % 2) for number in range(len(LONG))))
    first, last = shortened(flags, 1, first=True), shortened(flags, 1, first=False)
    assert [message["content"] for message in first.messages] == ["S", "one", "1"]
    assert [message["content"] for message in last.messages] == ["S", "last", "4"]
    assert first.train == (False, True, False)
    assert last.train == (False, False, True)


@pytest.mark.parametrize("over_long", ["keep_first_turns", "keep_last_turns"])
def test_truncation_by_turns(over_long: str) -> None:
    """The most exchanges that fit, as if the record had no others."""
    first = over_long == "keep_first_turns"
    conversation = Conversation(messages=LONG)
    masker = masks_made.masker("chatml")
    fitting = [masker.mask(shortened(conversation, count, first=first))[0] for count in (1, 2, 3)]
    for most in range(1, len(fitting[2].ids) + 1):
        made = made_by_recipe(most, over_long, "chatml").make([{"messages": LONG}])
        expected = [sample for sample in fitting if len(sample.ids) <= most][-1:]
        assert made.arrays["tokens"].values.tolist() == [token for one in expected for token in one.ids.tolist()]
        assert made.arrays["loss_mask"].values.tolist() == [mark for one in expected for mark in one.loss_mask.tolist()]
        if not expected:
            assert [(one.reason, one.num_tokens) for one in made.dropped] == [("too_long", len(fitting[2].ids))]
        else:
            assert made.counts.tokens["tokens"].truncated == len(fitting[2].ids) - len(expected[0].ids)


def made_by_recipe(most: int, over_long: str, family: str, **options: Any) -> SampleMaker:
    recipe = make_recipe(
        {
            "type": "sft",
            "inputs": {"paths": "a", "layout": "messages"},
            "ends": {"append_eos": False, "bos": "never"},
            "special_tokens_in_text": "encode",
            "mask": options,
            "length": {"max_tokens": most, "truncate": over_long},
        }
    )
    return SampleMaker(recipe, masks_made.tokenizer_json(), template=masks_made.template(family))


@settings(max_examples=cases(16, 1_000), deadline=None)
@given(st.data(), st.sampled_from(sorted(FAMILIES)))
def test_truncation_of_any_conversation(data: st.DataObject, family: str) -> None:
    """Tokens in = kept + cut + dropped, and no sample is too long."""
    messages = data.draw(talks.talks(FAMILIES[family]))
    lengths = [
        len(one.ids)
        for one in masks_made.masker(family, **masks_made.LENIENT).mask_batch([Conversation(messages=messages)]).samples
    ]
    if not lengths:
        return
    most = data.draw(st.integers(max(max(lengths) - 40, 1), max(lengths)))
    over_long = data.draw(st.sampled_from(["keep_start", "keep_end", "keep_first_turns", "keep_last_turns"]))
    made = made_by_recipe(most, over_long, family, **masks_made.LENIENT).make([{"messages": messages}])
    assert not made.bad or over_long.endswith("turns")
    assert all(length <= most for length in made.arrays["tokens"].lengths.tolist())
    if not made.bad:
        assert made.counts.tokens["tokens"].made == sum(lengths)


# The masks of every template of the suite: read by eye once, and equal with and without generation blocks.


FOLDER = Path(__file__).parents[2] / "golden/chat_masks"
MARKERS = (
    "<|im_end|>\n<|im_start|>assistant\nЖ<|im_end|>\n",
    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nЖ<|eot_id|>",
    "<end_of_turn>\n<start_of_turn>model\nЖ<end_of_turn>",
    " [/INST] Ж </s><s>[INST] ",
    "<|end|><|start|>assistant<|channel|>final<|message|>Ж<|return|>",
    "</s>\n<|assistant|>\nЖ</s>\n",
    "\n\n### Response:\nЖ\n\n### Instruction:\n",
    "<｜Assistant｜>Ж<｜end▁of▁sentence｜>",  # noqa: RUF001
    " ASSISTANT: Ж</s>USER: ",
    "<|assistant|>Ж<|end|>",
    "<think>Ж</think>Ж",
)


@pytest.mark.parametrize("family", FAMILIES)
def test_golden(family: str) -> None:
    known = FAMILIES[family]
    expected = re.split(r"^==== (.*)\n", (FOLDER / f"{family}.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    golden: dict[str, list[str]] = {}
    for name, sample in zip(expected[::2], expected[1::2], strict=True):
        golden.setdefault(name, []).append(sample.removesuffix("\n"))
    found = {}
    for name, arguments in talks.fixed(known).items():
        if "add_generation_prompt" in arguments or "documents" in arguments:
            continue
        conversation = Conversation(messages=arguments["messages"], tools=arguments.get("tools"))
        found[name] = masks_made.masks(family, conversation, **masks_made.LENIENT)
    assert found == golden


def rows(batch: masks_made.MaskedBatch) -> list[tuple[list[int], list[int]]]:
    assert not batch.refused
    return [(sample.ids.tolist(), sample.loss_mask.tolist()) for sample in batch.samples]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.sampled(19)
def test_all_ways_give_the_same(family: str) -> None:
    """From blocks or from prefixes, quickly or thoroughly, as for evidence; and the ids are those of the whole."""
    plain = masks_made.masker(family, **masks_made.LENIENT)
    tagged = masks_made.masker(f"{family}-generation", **masks_made.LENIENT)
    ignoring = masks_made.masker(f"{family}-generation", **masks_made.LENIENT, generation_tags="ignore")

    @settings(max_examples=cases(6, 300), deadline=None)
    @given(talks.talks(FAMILIES[family]))
    def check(messages: talks.Talk) -> None:
        batch = [Conversation(messages=messages)]
        quick = plain.mask_batch(batch)
        if quick.refused:
            return
        thorough = plain.mask_batch(batch, evidence=True)
        assert rows(quick) == rows(thorough) == rows(tagged.mask_batch(batch)) == rows(ignoring.mask_batch(batch))
        for sample in thorough.samples:
            assert sample.evidence is not None
            whole = plain.spans.tokenizer.encode(sample.evidence.text, add_special_tokens=False)
            assert sample.ids.tolist() == whole.ids

    check()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
def test_no_word_of_a_user_is_trained(family: str, kind: str) -> None:
    """A user who writes the markers of an assistant, and an assistant who writes those of a user."""
    masker = masks_made.masker(family, kind, **masks_made.LENIENT)
    for marker in MARKERS:
        messages = [
            talks.user(f"Ж{marker}Ж"),
            talks.assistant(f"y Щ{marker.replace('Ж', 'ы')}Щ"),
            talks.user(f"{marker}Ж"),
            talks.assistant("y Щ"),
        ]
        samples = masker.mask(Conversation(messages=messages), evidence=True)
        if not FAMILIES[family].unstable and "<think>" not in marker:
            assert len(samples) == 1
        shown = [masks_made.shown(sample) for sample in samples]
        trained = [piece for text in shown for piece in re.findall("⟦([^⟧]*)⟧", text)]
        assert not [piece for piece in trained if "Ж" in piece], shown
        # A template that takes thoughts out of a content drops what stands before the thought.
        drops = "<think>" in marker and "Щ<think>" not in "".join(shown)
        assert "".join(trained).count("Щ") == (2 if drops else 3), shown


# What a record says and its rendering does not show: whatever is lost is found, and nothing that is written.


def said(message: dict[str, Any]) -> dict[tuple[str, int | None], str]:
    """The words of each thing that a message says, none of which stands anywhere else."""
    calls = enumerate(message.get("tool_calls", ()))
    words: dict[tuple[str, int | None], Any] = {
        ("tool_calls", number): call["function"]["arguments"]["place"] for number, call in calls
    }
    words |= {(name, None): message.get(name) for name in ("content", "reasoning_content", "mood")}
    return {thing: text for thing, text in words.items() if text}


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Questions, calls of tools with their results, thoughts, and fields that no template knows; all texts differ."""
    names = iter(f"Word{number}q" for number in range(1000))

    def maybe(**fields: Any) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if draw(st.booleans())}

    messages: talks.Talk = [talks.system(next(names))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 2))):
        messages.append(user(next(names)) | maybe(mood=next(names)))
        calls = [
            talks.call(draw(st.sampled_from(["weather", "now"])), {"place": next(names)}, number)
            for number in range(draw(st.integers(0, 3)))
        ]
        if calls:
            content = draw(st.sampled_from([next(names), "", None]))
            messages.append(assistant(content, tool_calls=calls) | maybe(reasoning_content=next(names)))
            messages += [talks.result(next(names), number) for number in range(len(calls))]
        messages.append(assistant(next(names)) | maybe(reasoning_content=next(names)))
    tools = [
        {"type": "function", "function": {"name": name, "description": next(names), "parameters": {}}}
        for name in ("weather", "now")[: draw(st.integers(0, 2))]
    ]
    return Conversation(messages=messages, tools=tools or None)


@pytest.mark.parametrize("name", suite_names(generation=False))
def test_whatever_the_templates_of_the_suite_lose_is_found_and_nothing_else(name: str) -> None:
    @settings(max_examples=cases(12, 2_000), deadline=None)
    @given(conversations())
    def check(conversation: Conversation) -> None:
        renders = Renders(masks_made.template(name), conversation)
        messages, tools = conversation.messages, conversation.tools or []
        try:
            text = renders.text(len(messages))
        except InputError:
            return
        lost = find_unwritten(renders, {}, proved=False)
        whole = {one.message for one in lost if one.name == "unwritten_message"}
        found = {(one.message, one.field, one.item) for one in lost if one.field not in ("name", "tool_call_id")}
        for number, message in enumerate(messages):
            is_written = any(words in text for words in said(message).values())
            assert not (is_written and number in whole)
            assert is_written or message["role"] == "tool" or not message["content"] or number in whole
        expected = {
            (number, *thing)
            for number, message in enumerate(messages)
            for thing, words in said(message).items()
            if words not in text and (number not in whole or thing == ("content", None))
        }
        expected |= {
            (-1, "tools", number) for number, tool in enumerate(tools) if tool["function"]["description"] not in text
        }
        assert found == expected

    check()


SEES_NAMES = masks_made.ChatTemplate.from_text(
    "{% for m in messages %}{{ m.name | default('someone') }}: {{ m.content }}"
    "{% if m.tool_calls %}{% set c = m.tool_calls[0] %}{{ c.id }} {{ c.function.name | upper }}"
    " {{ c.function.arguments | tojson }}{% endif %}"
    "{% if m.role == 'tool' %}{% for p in messages if p.tool_calls and p.tool_calls[0].id == m.tool_call_id %}"
    "{{ p.tool_calls[0].function.name }}{% else %}{{ raise_exception('no call') }}{% endfor %}{% endif %}{% endfor %}"
)


def names(*messages: dict[str, Any], tools: Any = None) -> list[tuple[str, int, str, int | None]]:
    renders = Renders(SEES_NAMES, Conversation(messages=list(messages), tools=tools))
    return [(one.name, one.message, one.field, one.item) for one in find_unwritten(renders, {}, proved=False)]


def test_things_that_only_a_comparison_shows() -> None:
    """Fields without a text, values that are the default, equal calls, and ids that a template looks up."""
    assert names(user("a") | {"name": "someone"}) == []
    assert names(user("a") | {"turn": 1, "is_last": False}) == [
        ("unwritten_fields", 0, "turn", None),
        ("unwritten_fields", 0, "is_last", None),
    ]
    assert names(user("a") | {"scores": [], "meta": {"type": "x", "note": " "}, "none": None}) == []
    called = assistant("", tool_calls=[talks.call("now", {}, 1), talks.call("now", {}, 1)])
    assert names(user("a"), called, talks.result("noon", 1, "now")) == [("unwritten_tool_calls", 1, "tool_calls", 1)]
    bare = {"function": {"name": "now", "arguments": {"days": 1}}}
    twice = assistant("", tool_calls=[bare, bare])
    assert names(user("a"), twice) == [("unwritten_tool_calls", 1, "tool_calls", 1)]
    assert names(user("a"), tools=talks.TOOLS) == [("unwritten_tools", -1, "tools", number) for number in (0, 1)]
    older = assistant("b") | {"function_call": {"name": "now", "arguments": "{}"}}
    assert names(user("a"), older) == [("unwritten_tool_calls", 1, "function_call", None)]


def test_templates_that_refuse_other_texts() -> None:
    """Then only what stays the same, or contents that occur nowhere, are known to be lost."""
    text = (
        "{% for m in messages %}{{ raise_exception('?') if m.content not in ('a', 'b', 'c') }}"
        "{{ raise_exception('?') if m.tool_calls and m.tool_calls[0].id != '7' }}"
        "{% if m.role != 'tool' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    messages = [user("a"), assistant("b", tool_calls=[{"id": "7"}, {"id": "8"}]), {"role": "tool", "content": "c"}]
    renders = Renders(masks_made.ChatTemplate.from_text(text), Conversation(messages=messages))
    lost = find_unwritten(renders, {}, proved=False)
    assert [(one.name, one.message, one.item) for one in lost] == [
        ("unwritten_message", 2, None),
        ("unwritten_tool_calls", 1, 1),
    ]


def test_reasoning_is_counted_where_it_is_trained_or_never_shown() -> None:
    """A thought that later texts leave out is trained in a text of its own; a prompt shows it to nobody."""
    conversation = Conversation(messages=talks.THINKING)
    assert masks_made.masker("qwen3").mask_batch([conversation]).counts == {"split_records": 1}
    flagged = Conversation(messages=talks.THINKING, train=(None, False, None, None))
    assert masks_made.masker("qwen3").mask_batch([flagged]).counts == {"unwritten_reasoning": 1}
    assert masks_made.masker("chatml").mask_batch([conversation]).counts == {"unwritten_reasoning": 2}


def test_a_plain_conversation_needs_no_second_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    masker = masks_made.masker("chatml")
    masker.mask(Conversation(messages=talks.TWO))
    num_rendered = 0
    render = Renders.render

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_rendered
        num_rendered += 1
        return render(*args, **kwargs)

    monkeypatch.setattr(Renders, "render", counted)
    masker.mask(Conversation(messages=talks.TWO))
    assert num_rendered == 1
    masker.mask(Conversation(messages=[user("a") | {"name": "b", "age": 7}, assistant("c")]))
    assert num_rendered == 4  # the text, one with stand-ins, and one in which all that was not found is changed
