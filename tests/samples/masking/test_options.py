"""What each option does, on the smallest conversations that show it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import masks_made
import recipes_made
import talks
from headrace.errors import ConfigError, InputError
from headrace.samples import Conversation, TrainSpan
from headrace.samples.masking import DroppedError, MaskOptions
from headrace.samples.masking.marking import Marker
from headrace.samples.templates import ChatTemplate
from talks import assistant, call, result, system, user

MESSAGES = [system("S"), user("a"), assistant("b"), user("c"), assistant("d")]
HEADERS = {role: f"<|im_start|>{role}\n" for role in ("system", "user", "assistant")}
BARE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def short(samples: list[str]) -> list[str]:
    """Without the text of the markers, which every line here has."""
    for role, header in HEADERS.items():
        samples = [sample.replace(header, f"{role[0]}:") for sample in samples]
    return [sample.replace("<|im_end|>", ".").replace("\n", "") for sample in samples]


def masks(messages: Any, **options: Any) -> list[str]:
    return short(masks_made.masks("chatml", messages, **options))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "s:S.u:a.a:⟦b.⟧u:c.a:⟦d.⟧"),
        ({"turns": "last"}, "s:S.u:a.a:b.u:c.a:⟦d.⟧"),
        ({"end_of_turn": "mask"}, "s:S.u:a.a:⟦b⟧.u:c.a:⟦d⟧."),
        ({"end_of_turn": "last"}, "s:S.u:a.a:⟦b⟧.u:c.a:⟦d.⟧"),
        ({"roles": ("user",)}, "s:S.u:⟦a.⟧a:b.u:⟦c.⟧a:d."),
        ({"roles": ("system", "assistant")}, "s:⟦S.⟧u:a.a:⟦b.⟧u:c.a:⟦d.⟧"),
        ({"roles": ("user",), "turns": "last"}, "s:S.u:a.a:b.u:⟦c.⟧a:d."),
        ({"train_on_prompt": True}, "⟦s:S.u:a.a:b.u:c.a:d.⟧"),
        ({"train_on_prompt": True, "roles": ()}, "⟦s:S.u:a.a:b.u:c.a:d.⟧"),
    ],
)
def test_what_is_trained(options: dict[str, Any], expected: str) -> None:
    assert masks(MESSAGES, **options) == [expected]
    for name in ("chatml-generation", BARE):
        assert short(masks_made.masks(name, MESSAGES, **options)) == [expected]


def test_flags_come_before_options() -> None:
    def flagged(*train: bool | None, **options: Any) -> list[str]:
        return masks(Conversation(messages=MESSAGES, train=train), **options)

    assert flagged(None, None, False, None, None) == ["s:S.u:a.a:b.u:c.a:⟦d.⟧"]
    assert flagged(None, True, None, None, False) == ["s:S.u:⟦a.⟧a:⟦b.⟧u:c.a:d."]
    assert flagged(None, None, True, None, None, turns="last") == ["s:S.u:a.a:⟦b.⟧u:c.a:⟦d.⟧"]
    assert flagged(None, False, False, None, None, train_on_prompt=True) == ["⟦s:S.u:⟧a.⟦a:⟧b.⟦u:c.a:d.⟧"]


def test_spans_of_a_content() -> None:
    def spanned(content: str, *spans: tuple[int, int, bool], name: str = "chatml", **more: Any) -> str:
        train_spans = ((), tuple(TrainSpan(begin=begin, end=end, train=train) for begin, end, train in spans))
        conversation = Conversation(messages=[user("a"), assistant(content)], train_spans=train_spans, **more)
        (found,) = short(masks_made.masks(name, conversation))
        return found.removeprefix("u:a.").removeprefix("a:")

    assert spanned("1 2 3", (1, 3, False)) == "⟦1⟧ 2⟦ 3.⟧"
    assert spanned("1 2 3", (1, 3, True)) == "1⟦ 2⟧ 3."
    assert spanned("1 2 3", (3, 5, True)) == "1 2⟦ 3.⟧"
    assert spanned("1 2 3", (3, 5, False)) == "⟦1 2⟧ 3."
    assert spanned("1 2 3", (0, 1, True), (3, 5, False)) == "⟦1⟧ 2 3."
    assert spanned("1 2 3", (1, 3, True), train=(None, True)) == "⟦1 2 3.⟧"
    assert spanned("x x x", (2, 3, True)) == "x ⟦x⟧ x."
    # The template trims: what the spans say is counted in the content as the record has it.
    llama = spanned(" 😀1 2 3\n", (2, 4, True), name="llama3")
    assert llama.endswith("😀⟦1 ⟧2 3<|eot_id|>")
    shouted = BARE.replace("m.content", "m.content | upper")
    conversation = Conversation(messages=[user("a"), assistant("b")], train_spans=((), _all("b")))
    with pytest.raises(InputError, match=r"1.*assistant"):
        masks_made.masks(shouted, conversation)


def _all(content: str) -> tuple[TrainSpan, ...]:
    return (TrainSpan(begin=0, end=len(content), train=True),)


def test_reasoning() -> None:
    messages = [user("a"), assistant("b", reasoning_content="hm </think> hm")]
    thought = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    for name in ("qwen3", "qwen3-generation"):
        empty = [user("a"), assistant("b")]
        no_thinking = Conversation(messages=empty, template_kwargs={"enable_thinking": False})
        for record, options, shown in [
            (messages, {}, "⟦<think>\nhm </think> hm\n</think>\n\nb<|im_end|>⟧\n"),
            (messages, {"reasoning": "mask"}, "<think>\nhm </think> hm\n</think>\n\n⟦b<|im_end|>⟧\n"),
            (empty, {}, "<think>\n\n</think>\n\n⟦b<|im_end|>⟧\n"),
            (empty, {"empty_reasoning": "train"}, "⟦<think>\n\n</think>\n\nb<|im_end|>⟧\n"),
            (no_thinking, {"empty_reasoning": "train"}, "<think>\n\n</think>\n\n⟦b<|im_end|>⟧\n"),
        ]:
            assert masks_made.masks(name, record, **options) == [thought + shown]
    inside = [user("a"), assistant("<think>hm</think>\nb")]
    assert short(masks_made.masks(BARE, inside, reasoning="mask")) == ["u:a.a:<think>hm</think>⟦b.⟧"]
    opened = BARE.replace("assistant\n{% endif %}", "assistant\n<think>{% endif %}").replace(
        "{{ m.content }}", "{{ '<think>' if m.role == 'assistant' }}{{ m.content }}"
    )
    inside = [user("a"), assistant("hm</think>b")]
    assert short(masks_made.masks(opened, inside, reasoning="mask")) == ["u:a.a:<think>hm</think>⟦b.⟧"]
    (channels,) = masks_made.masks("gpt-oss", [user("a"), assistant("final", thinking="final")], reasoning="mask")
    assert channels.endswith("final<|end|>⟦<|start|>assistant<|channel|>final<|message|>final<|return|>⟧")
    batch = masks_made.masker("chatml").mask_batch([Conversation(messages=messages)])
    assert batch.counts["unwritten_reasoning"] == 1


def test_unstable_templates() -> None:
    with pytest.raises(InputError, match=r"1.*differently"):
        masks_made.masks("qwen3", talks.THINKING, unstable="error")
    with pytest.raises(DroppedError) as dropped:
        masks_made.masks("qwen3", talks.THINKING, unstable="drop")
    assert dropped.value.reason == "unstable_template"
    last = masks_made.masks("qwen3", talks.THINKING, unstable="last_turn")
    split = masks_made.masks("qwen3", talks.THINKING, unstable="split")
    assert split[1:] == last
    assert masks_made.masks("qwen3", talks.THINKING) == split
    assert [text.count("⟦") for text in split] == [1, 1]
    assert split[0].endswith("⟦<think>\nTwo and two.\n</think>\n\n4<|im_end|>⟧\n")
    assert split[1].endswith("assistant\n⟦<think>\nI checked.\nTwice.\n</think>\n\nYes, 4.<|im_end|>⟧\n")
    # Calls of tools after the last question keep their thoughts: those turns need no sample of their own.
    called = assistant("b", reasoning_content="1", tool_calls=[talks.call("now", {})])
    steps = [user("a"), called, talks.result("noon"), assistant("c", reasoning_content="2")]
    (whole,) = masks_made.masks("qwen3", steps)
    assert whole.count("⟦<think>") == 2
    trusted = masks_made.masks("qwen3-generation", talks.THINKING, generation_tags="trusted")
    assert [text.count("⟦") for text in trusted] == [2]
    counts = masks_made.masker("qwen3", unstable="split").mask_batch([Conversation(messages=talks.THINKING)] * 2).counts
    assert counts["split_records"] == 2


def test_a_turn_that_closes_otherwise_is_unstable() -> None:
    """gpt-oss writes <|return|> at the very end, and <|end|> where more follows."""
    with pytest.raises(InputError, match="differently"):
        masks_made.masks("gpt-oss", talks.TWO, unstable="error")
    assert len(masks_made.masks("gpt-oss", talks.TWO, end_of_turn="mask")) == 1
    assert len(masks_made.masks("gpt-oss", talks.TWO, unstable="split")) == 2


def test_prompts_that_are_no_beginnings() -> None:
    text = BARE.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>{% endif %}")
    messages = [user("a"), assistant("<b")]
    assert short(masks_made.masks(text, messages)) == ["u:a.a:⟦<b.⟧"]
    strict = {"on_opened_thought": "error"}
    with pytest.raises(InputError, match=r"1.*on_prompt_mismatch"):
        masks_made.masks(text, messages, **strict)
    with pytest.raises(DroppedError) as dropped:
        masks_made.masks(text, messages, on_prompt_mismatch="drop", **strict)
    assert dropped.value.reason == "prompt_mismatch"
    # The content begins as the prompt goes on, and is trained all the same.
    assert short(masks_made.masks(text, messages, on_prompt_mismatch="allow")) == ["u:a.a:⟦<b.⟧"]
    batch = masks_made.masker(text, on_prompt_mismatch="allow").mask_batch([Conversation(messages=messages * 2)])
    assert batch.counts == {"prompt_mismatch": 2}


def test_templates_without_a_generation_prompt() -> None:
    text = BARE.split("{% if")[0]
    assert short(masks_made.masks(text, MESSAGES)) == ["s:S.u:a.a:⟦b.⟧u:c.a:⟦d.⟧"]
    first = [assistant("b"), user("a")]
    assert short(masks_made.masks(BARE, first)) == ["a:⟦b.⟧u:a."]
    (tools,) = masks_made.masks("mistral-v3", Conversation(messages=talks.CALLED[:4], tools=talks.TOOLS))
    assert "[/INST]⟦[TOOL_CALLS] [" in tools
    with pytest.raises(InputError, match="header"):
        masks_made.masks(text.replace("{{ m.content }}", ""), MESSAGES, on_unwritten_message="allow")


def test_generation_blocks_are_cut_to_the_convention() -> None:
    def tagged(block: str, **options: Any) -> list[str]:
        text = (
            "{% for m in messages %}{% if m.role == 'assistant' %}" + block + "{% else %}<|im_start|>user\n"
            "{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        )
        return short(masks_made.masks(text, MESSAGES[1:], **options))

    expected = ["u:a.a:⟦b.⟧u:c.a:⟦d.⟧"]
    inside = "{% generation %}<|im_start|>assistant\n{{ m.content }}<|im_end|>\n{% endgeneration %}"
    part = "<|im_start|>assistant{% generation %}{{ '\n' + m.content }}{% endgeneration %}<|im_end|>\n"
    two = "{% generation %}<|im_start|>assistant\n{% endgeneration %}{% generation %}{{ m.content }}<|im_end|>"
    for block in (inside, part, two + "{% endgeneration %}\n"):
        for tags in ("checked", "trusted", "ignore"):
            assert tagged(block, generation_tags=tags) == expected
    assert tagged(inside, generation_tags="exact") == ["u:a.⟦a:b.⟧u:c.⟦a:d.⟧"]
    assert tagged(part, generation_tags="exact", on_untrained_end="allow") == [
        "u:a.<|im_start|>assistant⟦b⟧.u:c.<|im_start|>assistant⟦d⟧."
    ]
    with pytest.raises(InputError, match="special"):
        tagged(part, generation_tags="exact")
    partly = "{% if m.content == 'b' %}{% generation %}b{% endgeneration %}{% else %}d{% endif %}<|im_end|>\n"
    with pytest.raises(InputError, match=r"3.*assistant"):
        tagged("<|im_start|>assistant\n" + partly.replace("b{% e", "b {% e"), on_unwritten_message="allow")


CALLED = [user("a"), assistant("Let me look.", tool_calls=[talks.call("now", {})])]
TOOLS = Conversation(messages=talks.ONE, tools=talks.TOOLS[:1])
BLIND = BARE.replace(
    "{{ m.content }}",
    "{{ m.content if m.content is string else m.content | map(attribute='text', default='') | join }}",
)
SEEN = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "a"}]}, assistant("b")]


@pytest.mark.parametrize(("begin", "end"), [("{% generation %}", "{% endgeneration %}"), ("", "")])
def test_a_header_in_a_generation_block_is_not_trained_where_the_prompt_differs(begin: str, end: str) -> None:
    """As in templates that open a thought in the prompt only, and begin their blocks with the header."""
    text = (
        "{% for m in messages %}{% if m.role == 'assistant' %}" + begin + "<|im_start|>assistant\n{{ m.content }}"
        "<|im_end|>" + end + "{% else %}<|im_start|>user\n{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    )
    batch = masks_made.masker(text, on_prompt_mismatch="allow").mask_batch([Conversation(messages=MESSAGES[1:])])
    assert batch.counts == {"prompt_mismatch": 2}
    assert short(masks_made.masks(text, MESSAGES[1:], on_prompt_mismatch="allow")) == ["u:a.a:⟦b.⟧u:c.a:⟦d.⟧"]


BOS = masks_made.ChatTemplate.from_text("{{ bos_token }}<s>" + BARE, special_tokens={"bos_token": "<s>"})
LOST_CALLS = {"on_unwritten_tool_calls": "allow"}


@pytest.mark.parametrize(
    ("template", "record", "policy", "others", "named"),
    [
        ("chatml", [user("a")], "on_no_supervised", {}, "none of its"),
        ("falcon", talks.ONE, "on_untrained_end", {}, "ends without a special token"),
        ("chatml", [user("a"), assistant("")], "on_empty_turn", {}, "says nothing"),
        ("llama3", talks.CALLED[:2], "on_empty_turn", LOST_CALLS, "tool calls"),
        ("llama3", CALLED, "on_unwritten_tool_calls", {}, "tool_calls[0] of message 1"),
        ("llama3", TOOLS, "on_unwritten_tools", {}, "tools[0] of the record"),
        (masks_made.ChatTemplate.from_text(BLIND), SEEN, "on_unwritten_parts", {}, "content[0] of message 0 (user)"),
        (BOS, [user("<s>a"), assistant("b")], "on_doubled_bos", {}, "two BOS"),
    ],
)
def test_policies(template: Any, record: Any, policy: str, others: dict[str, Any], named: str) -> None:
    conversation = record if isinstance(record, Conversation) else Conversation(messages=record)
    made = masks_made.template(template) if isinstance(template, str) else template
    reason = policy.removeprefix("on_")
    refused, dropped, allowed = (
        masks_made.Masker(
            made, masks_made.tokenizer_json(), options=MaskOptions(**{policy: choice}, **others)
        ).mask_batch([conversation])
        for choice in ("error", "drop", "allow")
    )
    assert named in refused.refused[0].message
    assert (dropped.dropped[0].reason, dropped.counts[reason]) == (reason, 0)
    assert (len(allowed), allowed.counts[reason]) == (1, 1)


def test_all_ones_are_refused() -> None:
    text = "{% generation %}{% for m in messages %}{{ m.content }}</s>{% endfor %}{% endgeneration %}"
    with pytest.raises(InputError, match="trained"):
        masks_made.masks(text, talks.ONE, generation_tags="exact")


def test_a_tokeniser_of_another_template() -> None:
    """What ends the turn is text there, and one token with what follows."""
    block = "{% generation %}{{ m.content }} {% endgeneration %}system\n"
    text = BARE.replace(
        "{{ m.content }}<|im_end|>\n", "{% if m.role == 'user' %}{{ m.content }}{% else %}" + block + "{% endif %}"
    )
    template = masks_made.ChatTemplate(masks_made.TemplateSetup(text=text, end_of_turn="sys"))

    def batch(policy: str) -> Any:
        options = MaskOptions(on_untrained_end=policy)  # type: ignore[arg-type]
        masker = masks_made.Masker(template, masks_made.tokenizer_json(), options=options)
        return masker.mask_batch([Conversation(messages=talks.ONE)])

    assert "the tokeniser joins it with text that is not trained" in batch("error").refused[0].message
    assert batch("drop").dropped[0].reason == "untrained_end"
    assert batch("allow").counts == {"untrained_end": 1, "straddling_tokens": 1}


def test_unknown_values_are_refused() -> None:
    for name in ("turns", "end_of_turn", "reasoning", "empty_reasoning", "straddle", "generation_tags", "unstable"):
        with pytest.raises(ConfigError, match=rf"{name}.*'maybe'"):
            MaskOptions(**{name: "maybe"})  # type: ignore[arg-type]
    for name in MaskOptions.__struct_fields__:
        if name.startswith("on_"):
            with pytest.raises(ConfigError, match=r"'error'.*'drop'.*'allow'"):
                MaskOptions(**{name: "maybe"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="empty"):
        MaskOptions(roles=())
    with pytest.raises(ConfigError, match="expected"):
        MaskOptions(roles=["assistant"])  # type: ignore[arg-type]


DROPS = BARE.replace(
    "<|im_start|>{{ m.role }}", "{% if m.role in ('user', 'assistant') %}<|im_start|>{{ m.role }}"
).replace("{{ m.content }}<|im_end|>\n", "{{ m.content if m.content is string else '' }}<|im_end|>\n{% endif %}")


@pytest.mark.parametrize(
    "dropped",
    [
        {"role": "User", "content": "Hm"},
        {"role": "developer", "content": "a"},
        system("S"),
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
    ],
)
def test_messages_that_the_template_drops(dropped: dict[str, Any]) -> None:
    """Also where what they say stands elsewhere in the text, and where other records of the kind were written."""
    whole, quick = masks_made.masker(DROPS), masks_made.masker(DROPS, on_unwritten_message="allow")
    fine = Conversation(messages=[user("a"), assistant("b"), user("c"), assistant("d")])
    messages = Conversation(messages=[user("a"), assistant("b"), dropped, user("c"), assistant("d")])
    for _ in range(2):
        batch = whole.mask_batch([fine, messages])
        assert batch.records == [0]
        assert f"writes nothing of message 2 ({dropped['role']})" in batch.refused[0].message
    assert quick.mask_batch([fine, messages]).counts == {"unwritten_message": 1}
    with pytest.raises(DroppedError) as found:
        masks_made.masks(DROPS, messages, on_unwritten_message="drop")
    assert found.value.reason == "unwritten_message"


def test_text_that_the_template_drops_is_counted() -> None:
    messages = [user("a"), assistant("Let me look.", tool_calls=[talks.call("now", {})])]
    called = "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% else %}{{ m.content }}{% endif %}"
    text = BARE.replace("{{ m.content }}", called)
    assert masks_made.masker(text).mask_batch([Conversation(messages=messages)]).counts == {"unwritten_content": 1}


@pytest.mark.parametrize("family", ["qwen3", "gpt-oss", "chatml"])
def test_turns_that_are_empty_behind_what_the_template_writes(family: str) -> None:
    """An empty block for a thought, or a channel, is nothing that the record says."""
    messages = [user("a"), assistant("")]
    with pytest.raises(InputError, match=r"1.*assistant"):
        masks_made.masks(family, messages)
    batch = masks_made.masker(family, on_empty_turn="allow").mask_batch([Conversation(messages=messages)])
    assert batch.counts == {"empty_turn": 1}


# Templates whose own arguments decide how a turn is written, which write its end with the next message, or never.


SPECIAL = ["<s>", "<|user|>", "<|bot|>", "<|tool|>", "<|end|>", "<|eos|>"]
PLAIN = [user("one"), assistant("two"), user("three"), assistant("four")]
THOUGHT = [user("one"), assistant("two", reasoning_content="hm")]
MIXED = [*PLAIN[:3], assistant("four", reasoning_content="hm")]
CALLING = [user("one"), assistant("", tool_calls=[call("now", {"at": "two"})]), result("three"), assistant("four")]

SWITCH = (
    "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}<|end|>{% else %}<|bot|>"
    "{% if m.reasoning_content and loop.last %}<think>\n{{ m.reasoning_content }}\n</think>{% else %}<think></think>"
    "{% endif %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>{{ '<think></think>' if deep is defined and not deep else '<think>\n' }}"
    "{% endif %}"
)
"""Like Nemotron 3: a prompt opens a thought unless an argument of the template says that there is none."""
NAMED = SWITCH.replace("if deep is defined and not deep", "if effort == 'none'")
LOSING = SWITCH.replace("if m.reasoning_content and", "if deep is not defined and m.reasoning_content and")
"""Loses thoughts with any value of its argument."""
OPENED = SWITCH.replace("{% else %}<think></think>", "").replace(
    "'<think></think>' if deep is defined and not deep else '<think>\n'", "'<think>\n'"
)
"""Like DeepSeek-R1: the prompt opens a thought, and no argument changes that."""
NEXT = (
    "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}{% elif m.role == 'tool' %}<|tool|>"
    "{{ m.content }}{% else %}<|bot|>{{ m.content }}{% for c in m.tool_calls or [] %}(call)"
    "{{ c.function.arguments | tojson }}{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|bot|>"
    "{% endif %}"
)
"""Like GLM: a turn ends where the next message begins."""
NEVER = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:"
    "{% endif %}"
)
"""Like Falcon: no turn has an end."""
AT_WILL = NEXT.replace("{% for c", "{{ '<|end|>' if is_training }}{% for c")
"""Like Hy3: an end is written if an argument asks for it."""


def marked(
    text: str, messages: list[dict[str, Any]], *, kwargs: Any = None, ends: tuple[str, ...] = (), **options: Any
) -> tuple[list[str], dict[str, int]]:
    """Return the samples with their trained stretches in brackets, and the counts."""
    template = ChatTemplate.from_text(text, special_tokens={"eos_token": "<|eos|>"})
    marker = Marker(template, MaskOptions(**options), SPECIAL, (), ends)
    conversation = Conversation(messages=messages, template_kwargs=kwargs or {})
    [texts] = marker.mark([conversation], with_all=False)
    counts = dict(marker.counts)
    assert [one.text for [own] in [marker.mark([conversation], with_all=True)] for one in own] == [
        one.text for one in texts
    ]
    shown = []
    for one in texts:
        found = ""
        for piece in one.pieces:
            part = one.text[piece.begin : piece.end]
            found += f"[{part}]" if piece.is_trained else part
        assert (one.pieces[0].begin, one.pieces[-1].end) == (0, len(one.text))
        assert all(left.end == right.begin for left, right in zip(one.pieces, one.pieces[1:], strict=False))
        shown.append(found.replace("][", ""))
    return shown, counts


@pytest.mark.parametrize(("text", "value"), [(SWITCH, "deep=false"), (NAMED, 'effort="none"')])
def test_the_argument_with_which_the_prompt_begins_the_turns_is_set(text: str, value: str) -> None:
    [whole], counts = marked(text, PLAIN)
    assert whole == (
        "<|user|>one<|end|><|bot|><think></think>[two<|end|>]<|user|>three<|end|><|bot|><think></think>[four<|end|>]"
    )
    assert counts == {f"template argument {value}": 1}
    # With a thought, the template is right as it is.
    [whole], counts = marked(text, THOUGHT)
    assert whole.endswith("<|bot|><think>\n[hm\n</think>two<|end|>]")
    assert counts == {}


def test_turns_that_need_different_arguments_are_samples_of_their_own() -> None:
    samples, counts = marked(SWITCH, MIXED)
    assert [one.count("[") for one in samples] == [1, 1]
    assert samples[0].endswith("<|bot|><think></think>[two<|end|>]")
    assert samples[1].endswith("<|bot|><think>\n[hm\n</think>four<|end|>]")
    assert counts == {"split_records": 1, "template argument deep=false": 1}
    with pytest.raises(InputError, match="generation"):
        marked(SWITCH, MIXED, unstable="error")


def test_an_argument_that_is_set_is_not_changed() -> None:
    with pytest.raises(InputError, match=r"false\}\}`") as refused:
        marked(SWITCH, PLAIN, kwargs={"deep": True})
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    _, counts = marked(SWITCH, PLAIN, kwargs={"deep": False})
    assert counts == {}


def test_no_argument_is_chosen_that_loses_a_thought() -> None:
    other = LOSING.replace("else '<think>\n'", "else '<think>x'")
    assert marked(other, PLAIN)[1] == {"template argument deep=false": 1}
    with pytest.raises(InputError, match=r"\{on_prompt_mismatch"):
        marked(other, THOUGHT)


def test_a_policy_that_was_chosen_holds() -> None:
    [whole], counts = marked(SWITCH, PLAIN[:2], on_prompt_mismatch="allow")
    assert whole.endswith("<|bot|><think></think>[two<|end|>]")
    assert counts == {"prompt_mismatch": 1}


def test_a_turn_begins_where_the_prompt_opens_a_thought_that_it_does_not_have() -> None:
    [whole], counts = marked(OPENED, PLAIN)
    assert whole == "<|user|>one<|end|><|bot|>[two<|end|>]<|user|>three<|end|><|bot|>[four<|end|>]"
    assert counts == {"opened_thought": 2}
    with pytest.raises(InputError, match="generation"):
        marked(OPENED, PLAIN, on_opened_thought="error")
    other = OPENED.replace("<think>\n'", "<think>\nNow'")
    with pytest.raises(InputError, match="generation"):
        marked(other, PLAIN)
    unwritten = OPENED.replace("if m.reasoning_content and loop.last", "if false")
    with pytest.raises(InputError, match="generation"):
        marked(unwritten, THOUGHT)


def test_a_turn_ends_where_the_next_message_begins() -> None:
    ends = ("<|eos|>", "<|user|>", "<|tool|>")
    [whole], counts = marked(NEXT, PLAIN, ends=ends)
    assert whole == "<|user|>one<|bot|>[two<|user|>]three<|bot|>[four<|user|>]"
    assert counts == {"appended_ends": 1}
    [whole], counts = marked(NEXT, CALLING, ends=ends)
    assert whole == '<|user|>one<|bot|>[(call){"at": "two"}<|tool|>]three<|bot|>[four<|user|>]'
    [whole], _ = marked(NEXT, CALLING[:2], ends=ends)
    assert whole == '<|user|>one<|bot|>[(call){"at": "two"}<|tool|>]'
    # Masks of recipes that allow turns without an end stay as they were.
    [whole], counts = marked(NEXT, PLAIN, ends=ends, on_untrained_end="allow")
    assert whole == "<|user|>one<|bot|>[two]<|user|>three<|bot|>[four]"
    assert counts == {"untrained_end": 2}
    [whole], _ = marked(NEXT, PLAIN, ends=ends, end_of_turn="mask")
    assert whole == "<|user|>one<|bot|>[two]<|user|>three<|bot|>[four]"
    with pytest.raises(InputError, match=r"\{on_untrained_end"):
        marked(NEXT, PLAIN)


def test_if_the_template_writes_no_end_each_turn_gets_one_in_a_sample_of_its_own() -> None:
    samples, counts = marked(NEVER, PLAIN, ends=("<|eos|>",))
    assert samples == [
        "user: one\nassistant:[ two<|eos|>]",
        "user: one\nassistant: two\nuser: three\nassistant:[ four<|eos|>]",
    ]
    assert counts == {"split_records": 1, "appended_ends": 2}
    with pytest.raises(InputError, match="special"):
        marked(NEVER, PLAIN)
    with pytest.raises(InputError, match="which"):
        marked(NEVER, PLAIN, ends=("<|eos|>",), unstable="error")


def test_an_argument_that_writes_an_end_is_set() -> None:
    [whole], counts = marked(AT_WILL, PLAIN)
    assert whole == "<|user|>one<|bot|>[two<|end|>]<|user|>three<|bot|>[four<|end|>]"
    assert counts == {"template argument is_training=true": 1}


def test_a_turn_of_several_generation_blocks_needs_a_prompt() -> None:
    text = (
        "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}<|end|>{% else %}{% generation %}"
        "{{ m.content }}{% endgeneration %}<|end|>{% generation %}{{ m.content }}<|eos|>{% endgeneration %}"
        "{% endif %}{% endfor %}"
    )
    with pytest.raises(InputError, match=r"2.*1.*generation_tags"):
        marked(text, PLAIN[:2])


ANSWERED = {"prompt": PLAIN[:1], "chosen": [assistant("two")], "rejected": [assistant("no")]}


def test_all_sequences_of_a_record_have_the_same_argument() -> None:
    text = SWITCH.replace("<|user|>", "<|start|>user\n").replace("<|bot|>", "<|start|>assistant\n")
    chat = ChatTemplate.from_text(text, special_tokens=recipes_made.TOKENS)
    made = recipes_made.make("type: dpo\ninputs: [{paths: x.jsonl}]", [ANSWERED], chat=chat)
    assert not made.bad
    assert made.counts.notes == {"template argument deep=false": 1}
    thinks = {**ANSWERED, "chosen": [assistant("two", reasoning_content="hm")]}
    [bad] = recipes_made.make("type: dpo\ninputs: [{paths: x.jsonl}]", [thinks], chat=chat).bad
    assert "generation prompt is not how" in bad.message
    group = {"prompt": PLAIN[:1], "responses": [[assistant("two")], [assistant("no")]], "rewards": [1.0, 0.0]}
    made = recipes_made.make("type: grpo\ninputs: [{paths: x.jsonl}]", [group], chat=chat)
    assert recipes_made.texts(made, "prompts") == ["<|start|>user\none<|end|><|start|>assistant\n<think></think>"]
    assert recipes_made.texts(made, "responses") == ["two<|end|>no<|end|>"]


def test_an_end_that_is_appended_is_a_token_of_the_sample() -> None:
    chat = ChatTemplate.from_text(recipes_made.TEMPLATE.replace("<|end|>", ""))
    recipe = recipes_made.parse_recipe("type: sft\ninputs: [{paths: x.jsonl}]")
    recipe, _ = recipes_made.resolve_layout(recipe, [{"messages": PLAIN[:2]}])
    maker = recipes_made.SampleMaker(recipe, recipes_made.tokenizer_json(), template=chat, generation_ends=["<eos>"])
    made = maker.make([{"messages": PLAIN[:2]}])
    assert recipes_made.texts(made, "tokens") == ["<|start|>user\none\n<|start|>assistant\ntwo<eos>"]
    assert recipes_made.trained(made) == ["two<eos>"]
    [explained] = maker.explain({"messages": PLAIN[:2]})
    assert explained.sample.ids.tolist() == recipes_made.rows(made, "tokens")[0]
