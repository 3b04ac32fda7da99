"""Templates whose own arguments decide how a turn is written, which write its end with the next message, or never."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import recipes_made
from headrace.errors import InputError
from headrace.samples import Conversation
from headrace.samples.masking import MaskOptions
from headrace.samples.masking.marking import Marker
from headrace.samples.templates import ChatTemplate
from talks import assistant, call, result, user

SPECIAL = ["<s>", "<|user|>", "<|bot|>", "<|tool|>", "<|end|>", "<|eos|>"]
PLAIN = [user("one"), assistant("two"), user("three"), assistant("four")]
THOUGHT = [user("one"), assistant("two", reasoning_content="hm")]
MIXED = [*PLAIN[:3], assistant("four", reasoning_content="hm")]
CALLED = [user("one"), assistant("", tool_calls=[call("now", {"at": "two"})]), result("three"), assistant("four")]

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
    [whole], counts = marked(NEXT, CALLED, ends=ends)
    assert whole == '<|user|>one<|bot|>[(call){"at": "two"}<|tool|>]three<|bot|>[four<|user|>]'
    [whole], _ = marked(NEXT, CALLED[:2], ends=ends)
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
