"""Fields that say what is trained: those of other trainers are followed, all others are counted."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import InputError
from headrace.samples.layouts.turns import FLAGS
from recipes_made import NO, USER, YES, make, maker, trained

SFT, DPO, SEQ, GROUP = (f"type: {kind}\ninputs: {{paths: a}}\n" for kind in ("sft", "dpo", "seq", "grpo"))
SYSTEM = {"role": "system", "content": "Be kind"}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("kind", [bool, int, float])
def test_names_of_all_trainers_are_followed(name: str, kind: type) -> None:
    """A turn with the flag that says no is not trained, in every type with a mask."""
    no, yes = kind(not FLAGS[name]), kind(FLAGS[name])
    talk = [USER, {**YES, name: no}, USER, {**NO, name: yes}]
    made = make(SFT, [{"messages": talk}])
    assert trained(made) == ["No<|end|>"]
    assert made.counts.notes == {}
    pair = {"chosen": [*talk[:3], {**YES, name: no}, USER, YES], "rejected": talk}
    made = make(DPO, [pair])
    assert trained(made, "chosen", "chosen_mask") == ["Yes<|end|>"]
    group = {"prompt": [USER], "responses": [talk[1:]], "rewards": [1.0]}
    assert trained(make(GROUP, [group]), "responses", "masks") == ["No<|end|>"]
    parts = {"role": "assistant", "content": [{"type": "text", "text": "a", name: no}, {"type": "text", "text": "b"}]}
    assert trained(make(SFT, [{"messages": [USER, parts]}])) == ["b<|end|>"]


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [0.5, 2, -1, [0, 1], "no"])
def test_other_weights_are_refused_by_name(name: str, value: Any) -> None:
    made = make(SFT, [{"messages": [USER, {**YES, name: value}]}])
    [bad] = made.bad
    assert bad.message.startswith(f"'{name}' of messages[1] is ")
    assert f"`fields: {{{name}: ANOTHER_NAME}}`" in bad.message
    other = SFT.replace("paths: a", f"paths: a, layout: messages, fields: {{{name}: another}}")
    assert trained(make(other, [{"messages": [USER, {**YES, name: value}]}])) == ["Yes<|end|>"]


def test_what_the_recipe_calls_a_flag_comes_before_its_usual_meaning() -> None:
    recipe = SFT.replace("paths: a", "paths: a, layout: messages, fields: {masked: loss}")
    made = make(recipe, [{"messages": [USER, {**YES, "loss": True}, USER, {**NO, "loss": False}]}])
    assert trained(made) == ["No<|end|>"]


def test_unmask_of_a_record_trains_all_roles_but_system() -> None:
    talk = {"messages": [SYSTEM, USER, {**YES, "train": False}, USER, NO]}
    assert trained(make(SFT, [{**talk, "unmask": True}])) == ["Hi<|end|>|Hi<|end|>|No<|end|>"]
    assert trained(make(SFT, [{**talk, "unmask": False}, talk])) == ["No<|end|>"] * 2
    alpaca = {"instruction": "Hi", "output": "Yes", "unmask": True}
    assert trained(make(SFT + "mask: {on_all_supervised: allow}", [alpaca])) == ["Hi<|end|>|Yes<|end|>"]
    with pytest.raises(InputError, match="'yes'"):
        maker(SFT, [talk]).sample({**talk, "unmask": "yes"})


def unread(made: Any) -> int:
    """The fields that look like flags; they are counted as fields that the template does not write, too."""
    return made.counts.notes.get("unread_flags", 0)


@pytest.mark.parametrize("value", [False, True, 0, 1.0])
def test_what_looks_like_a_flag_is_counted_and_said(value: Any) -> None:
    records = [
        {"messages": [USER, YES, USER, {**NO, "good": value}]},
        {"messages": [USER, {**YES, "train": True, "good": 1}]},
    ]
    made = make(SFT, records)
    assert unread(made) == 1
    [notice] = maker(SFT, records).notices(records)
    assert notice.startswith(f"message 3 of record 0 has 'good': {value!r}")
    assert "`fields: {train: good}`" in notice
    named = SFT.replace("paths: a", "paths: a, layout: messages, fields: {train: good}")
    assert make(named, [records[0]]).counts.notes == {}
    sections = "type: sft\nsections: [{field: messages, template: true, action: train}]\n"
    made = make(sections + "mask: {on_all_supervised: allow}", [{"messages": [{**USER, "good": value}]}])
    assert unread(made) == 1


def test_only_what_may_be_trained_is_counted() -> None:
    """The prompt of a pair or a group is rendered with each answer, and is never trained."""
    odd = {**YES, "good": False}
    pair = {"prompt": [USER, odd, USER], "chosen": [odd], "rejected": [NO]}
    assert unread(make(DPO, [pair])) == 1
    assert maker(DPO, [pair]).notices([{**pair, "chosen": [YES]}]) == []
    group = {"prompt": [USER, odd, USER], "responses": [[odd], [NO]], "rewards": [1.0, 0.0]}
    assert unread(make(GROUP, [group])) == 1
    prompt = {"prompt": [USER, odd, USER], "train": False}
    assert unread(make("type: prompt\ninputs: {paths: a}\n", [prompt])) == 0


@pytest.mark.parametrize(
    "flag", [{"train": False}, {"loss_mask": 0}, {"trainable": False}, {"masked": True}, {"weight": 0.0}]
)
@pytest.mark.parametrize(
    "record",
    [
        {"messages": [USER, YES]},
        {"text": "a"},
        {"prompt": "a", "completion": "b"},
        {"prompt": "a", "chosen": "b", "rejected": "c"},
    ],
)
def test_flags_of_records_are_counted_and_said(flag: dict[str, Any], record: dict[str, Any]) -> None:
    kind = DPO if "chosen" in record else SFT
    kind += "mask: {on_all_supervised: allow}\n"
    assert unread(make(kind, [{**record, **flag}, record])) == 1
    [notice] = maker(kind, [record]).notices([record, {**record, **flag}])
    [(name, value)] = flag.items()
    assert notice.startswith(f"record 1 has {name!r}: {value!r}")
    metadata = dict.fromkeys(flag, 0.3) | {"is_train": 0}
    assert make(kind, [{**record, **metadata}]).counts.notes == {}


def test_unmask_is_counted_where_it_is_not_followed() -> None:
    assert unread(make(SFT, [{"prompt": "a", "completion": "b", "unmask": True}])) == 1


def test_type_seq_says_that_it_trains_what_a_flag_forbids() -> None:
    span = [{"begin_offset": 0, "end_offset": 0, "train": False}]
    records = [{"messages": [USER, {**YES, "loss": False}, USER, {**NO, "train_detail": span}]}]
    assert make(SEQ, records).counts.notes == {"unread_flags": 2}
    [notice] = maker(SEQ, records).notices(records)
    assert notice.startswith("message 1 of record 0 has a flag")
