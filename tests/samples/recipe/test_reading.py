"""Recipes are read strictly: unknown keys and words are named with their path, and the nearest valid one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.errors import ConfigError
from headrace.plan.packing import Packing
from headrace.samples.recipe import Recipe, load_recipe, make_recipe, parse_recipe, resolve_layout, store_keys

FULL = """
type: sft
version: 1
inputs:
  - a.jsonl
  - paths: [b.parquet, "c/*.jsonl"]
    layout: conversations
    fields: {conversations: data.turns}
    roles: {Kunde: user}
    parts: join
    drop_nulls: true
tokenizer: model/
template: {path: chatml, kwargs: {enable_thinking: false}, now: 2025-01-31T12:00:00}
strings: chat
mask: {roles: [assistant, tool], turns: last, on_no_supervised: drop}
ends: {append_eos: true, bos: known, eos: "</s>"}
length: {max_tokens: 4096, truncate: keep_last_turns}
filters: {min_chars: 10, max_tokens: 100000}
packing: {max_seq_len: 4096, strategy: best_fit}
output: {format: keyed, dtypes: {tokens: int32}, names: {tokens: sequence}, position_ids: doc_reset}
errors: {on_error: skip, max_errors: 0.01}
"""


def test_everything_can_be_said() -> None:
    recipe = parse_recipe(FULL)
    assert [source.paths for source in recipe.inputs] == ["a.jsonl", ("b.parquet", "c/*.jsonl")]
    assert recipe.inputs[0].layout == "auto"
    assert recipe.inputs[1].options.roles == {"Kunde": "user"}
    assert recipe.template is not None
    assert recipe.template.now is not None
    assert recipe.template.now.isoformat() == "2025-01-31T12:00:00"
    assert recipe.mask.roles == ("assistant", "tool")
    assert recipe.packing == Packing(seq_len=4096)
    keys = {key.stored: (key.kind, key.parallel_to, key.dtype) for key in store_keys(recipe)}
    assert keys == {
        "sequence": ("ids", None, "int32"),
        "loss_mask": ("mask", "tokens", "uint8"),
        "num_supervised": ("count", None, "int32"),
        "position_ids": ("positions", "tokens", "int32"),
    }


def test_a_recipe_survives_the_way_to_another_process() -> None:
    recipe = parse_recipe(FULL)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(recipe), type=Recipe) == recipe
    assert msgspec.json.decode(msgspec.json.encode(recipe), type=Recipe) == recipe
    assert make_recipe(msgspec.to_builtins(recipe, builtin_types=())) == recipe


def test_yaml_and_json_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("type: dpo\ninputs: a.jsonl\n")
    (tmp_path / "r.json").write_text('{"type": "dpo", "inputs": ["a.jsonl"]}')
    assert load_recipe(tmp_path / "r.yaml") == load_recipe(tmp_path / "r.json")


def test_short_forms() -> None:
    assert (
        make_recipe({"type": "sft", "inputs": {"paths": "a"}}).inputs
        == make_recipe({"type": "sft", "inputs": "a"}).inputs
    )
    template = make_recipe({"type": "sft", "template": "chatml"}).template
    assert template is not None
    assert template.path == "chatml"


TYPOS = [
    ("typ: sft", r"typ is unknown; did you mean 'type'\?; allowed here are type, version"),
    ("type: sf", r"type is 'sf'; did you mean 'sft'\?; allowed are 'seq', 'sft', 'dpo', 'grpo', 'prompt', 'keys'"),
    ("type: sft\nmask: {turn: last}", r"mask.turn is unknown; did you mean 'turns'\?"),
    ("type: sft\nmask: {turns: lst}", r"mask.turns is 'lst'; did you mean 'last'\?; allowed are 'all', 'last'"),
    ("type: sft\nlength: {max_token: 5}", r"length.max_token is unknown; did you mean 'max_tokens'\?"),
    (
        "type: sft\nlength: {max_tokens: many}",
        "length.max_tokens is the string 'many'; expected a whole number or nul",
    ),
    ("type: sft\nlength: {max_tokens: 1.5}", "length.max_tokens is the number 1.5; expected"),
    ("type: sft\ninputs: [{path: a}]", r"inputs\[0\].path is unknown; did you mean 'paths'\?"),
    ("type: sft\ninputs: [{layout: text}]", r"inputs\[0\].paths is missing"),
    (
        "type: sft\ninputs: [{paths: a, layout: mesages}]",
        r"inputs\[0\].layout: layout 'mesages' is unknown; did you mean 'messages'",
    ),
    ("type: sft\nsections: [{field: a, action: trian}]", r"sections\[0\].action is 'trian'; did you mean 'train'\?"),
    ("type: dpo\nsources: {chosen: {section: []}}", r"sources.chosen.section is unknown; did you mean 'sections'\?"),
    ("type: sft\noutput: {format: index}", r"output.format is 'index'; did you mean 'indexed'\?"),
    (
        "type: sft\noutput: {dtypes: {token: int32}}",
        r"output.dtypes has 'token'; did you mean 'tokens'\?; the keys are tokens, ",
    ),
    ("type: sft\noutput: {dtypes: {tokens: in32}}", r"output.dtypes.tokens is 'in32'; did you mean 'int32'\?"),
    ("type: sft\noutput: {names: {token: a}}", r"output.names has 'token'; did you mean 'tokens'\?"),
    (
        "type: sft\npacking: {max_seq_len: 8, strategy: best}",
        "packing.strategy is 'best'.*allowed are 'greedy', 'best_fit'",
    ),
    ("type: sft\nversion: 2", "version is 2; allowed are 1"),
]


@pytest.mark.parametrize(("text", "message"), TYPOS)
def test_typos_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_recipe(text, name="my.yaml")
    assert str(caught.value).startswith("my.yaml")


CONTRADICTIONS = [
    (
        "type: dpo\ninputs: [{paths: a, layout: messages}]",
        r"layout is messages, from which type dpo cannot be made; .*preference.*use type: seq",
    ),
    ("type: grpo\ninputs: [{paths: a, layout: prompt}]", "allowed are group .or use type: prompt"),
    ("type: sft\ninputs: [{paths: ''}]", r"inputs\[0\].paths is empty"),
    (
        "type: sft\ninputs: [{paths: a, layout: text}]\nsections: [{field: a, action: train}]",
        "both describe the records",
    ),
    ("type: sft\ninputs: [{paths: a, layout: kto}, {paths: b, layout: messages}]", "layout kto, which stores a label"),
    ("type: sft\nlength: {max_tokens: 0}", "length.max_tokens is 0: it must be at least 1"),
    ("type: sft\nfilters: {min_chars: 5, max_chars: 4}", "min_chars is 5, above filters.max_chars"),
    ("type: sft\nerrors: {max_errors: 1.5}", "a share must be below 1"),
    ("type: sft\nmask: {roles: []}", "mask: roles is empty"),
    ("type: sft\nsections: [{field: a, action: train}]\nsources: {b: {}}", "choose one"),
    ("type: dpo\nsections: [{field: a, action: train}]", "type dpo has several: use sources"),
    ("type: keys", "no sources that name the keys"),
    ("type: sft\nsections: [{field: a, action: $role}]", "only messages have roles"),
    ("type: sft\nsections: [{field: a, action: value}]", "use sources"),
    ("type: sft\nrole_actions: {user: mask}", "use mask.roles"),
    ("type: dpo\nsources: {chose: {sections: [{field: a, action: train}]}}", r"no 'chosen'; did you mean 'chose'\?"),
    ("type: keys\nsources: {a: {list_field: true, sections: []}}", "has 0 sections: one is allowed"),
    ("type: keys\nsources: {a: {mask_key: m, sections: [{field: x, action: value}]}}", "it has no mask"),
    ("type: dpo\noutput: {position_ids: doc_reset}", "only types seq and sft"),
    ("type: dpo\npacking: {max_seq_len: 8}", "packing is for types seq and sft"),
    ("type: grpo\noutput: {dtypes: {rewards: int32}}", "would round the rewards"),
    ("type: sft\noutput: {dtypes: {loss_mask: float32}}", "the values are integers"),
    ("type: sft\noutput: {names: {tokens: loss_mask}}", "each needs a plain name of its own"),
    ("type: sft\noutput: {names: {tokens: ../x}}", "each needs a plain name of its own"),
    ("type: grpo\nlength: {truncate: keep_last_turns}", "for conversations of types seq, sft and dpo"),
    ("type: dpo\nlength: {truncate: keep_first_turns}", "would remove the answers"),
]


@pytest.mark.parametrize(("text", "message"), CONTRADICTIONS)
def test_contradictions_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_recipe(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "holds no recipe"),
        ("", "holds no recipe"),
        ("a: [", "neither YAML nor JSON"),
        ("type: sft\ntype: dpo", "the key 'type' occurs twice, the second time in line 2"),
        ("type: !!python/name:os.system x", "neither YAML nor JSON"),
        ("[" * 3000, "neither YAML nor JSON"),
    ],
)
def test_what_is_no_recipe(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_recipe(text)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_recipe(tmp_path / "r.yaml")
    (tmp_path / "r.yaml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_recipe(tmp_path / "r.yaml")


def test_the_layout_is_found_for_the_type() -> None:
    chosen: dict[str, Any] = {"prompt": "a", "chosen": "b", "rejected": "c"}
    recipe, found = resolve_layout(parse_recipe("type: dpo\ninputs: a"), [chosen])
    assert found is not None
    assert (recipe.inputs[0].layout, found.layout) == ("preference", "preference")
    assert resolve_layout(recipe, [chosen]) == (recipe, None)
    with pytest.raises(ConfigError, match=r"inputs\[0\], for type sft: the records are of the layout preference"):
        resolve_layout(parse_recipe("type: sft\ninputs: a"), [chosen])


def test_nulls_are_dropped_before_the_layout_is_looked_for() -> None:
    record = {"text": "a", "messages": None}
    assert resolve_layout(parse_recipe("type: seq\ninputs: {paths: a, drop_nulls: true}"), [record])[1] is not None
