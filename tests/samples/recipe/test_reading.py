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
    assert recipe.inputs[1].roles == {"Kunde": "user"}
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
    short, long = (make_recipe({"type": "sft", "inputs": given}) for given in ("a", {"paths": "a"}))
    assert short.inputs == long.inputs
    template = make_recipe({"type": "sft", "template": "chatml"}).template
    assert template is not None
    assert template.path == "chatml"


TYPOS = [
    ("typ: sft", "typ.*'type'"),
    ("type: sf", "type.*'sf'.*'sft'.*'seq'"),
    ("type: sft\nmask: {turn: last}", r"mask\.turn.*'turns'"),
    ("type: sft\nlength: {max_tokens: many}", r"length\.max_tokens.*'many'"),
    ("type: sft\nlength: {max_tokens: 1.5}", r"length\.max_tokens.*1\.5"),
    ("type: sft\ninputs: [{path: a}]", r"inputs\[0\]\.path.*'paths'"),
    ("type: sft\ninputs: [{layout: text}]", r"inputs\[0\]\.paths"),
    ("type: sft\ninputs: [{paths: a, layout: mesages}]", r"inputs\[0\]\.layout.*'mesages'.*'messages'"),
    ("type: sft\noutput: {dtypes: {token: int32}}", r"output\.dtypes.*'token'.*'tokens'"),
    ("type: sft\noutput: {dtypes: {tokens: in32}}", r"output\.dtypes\.tokens.*'in32'.*'int32'"),
    ("type: sft\noutput: {names: {token: a}}", r"output\.names.*'token'.*'tokens'"),
    ("type: sft\npacking: {max_seq_len: 8, strategy: best}", r"packing\.strategy.*'best'.*'greedy'"),
    ("type: sft\nversion: 2", "version.*2.*1"),
]
CONTRADICTIONS = [
    ("type: dpo\ninputs: [{paths: a, layout: messages}]", "layout.*messages.*dpo.*preference.*seq"),
    ("type: grpo\ninputs: [{paths: a, layout: prompt}]", "group.*prompt"),
    ("type: sft\ninputs: [{paths: ''}]", r"inputs\[0\]\.paths"),
    ("type: sft\ninputs: [{paths: a, layout: text}]\nsections: [{field: a, action: train}]", "both"),
    ("type: sft\ninputs: [{paths: a, layout: kto}, {paths: b, layout: messages}]", "kto.*label"),
    ("type: sft\nlength: {max_tokens: 0}", r"length\.max_tokens.*0.*1"),
    ("type: sft\nfilters: {min_chars: 5, max_chars: 4}", r"min_chars.*5.*filters\.max_chars"),
    ("type: sft\nerrors: {max_errors: 1.5}", "share.*1"),
    ("type: sft\nmask: {roles: []}", "mask.*roles"),
    ("type: sft\nsections: [{field: a, action: train}]\nsources: {b: {}}", "sections.*sources"),
    ("type: dpo\nsections: [{field: a, action: train}]", "dpo.*sources"),
    ("type: keys", "sources"),
    ("type: sft\nsections: [{field: a, action: $role}]", "roles"),
    ("type: sft\nsections: [{field: a, action: value}]", "sources"),
    ("type: sft\nrole_actions: {user: mask}", r"mask\.roles"),
    ("type: dpo\nsources: {chose: {sections: [{field: a, action: train}]}}", "'chosen'.*'chose'"),
    ("type: keys\nsources: {a: {list_field: true, sections: []}}", "0.*sections"),
    ("type: keys\nsources: {a: {mask_key: m, sections: [{field: x, action: value}]}}", "mask"),
    ("type: dpo\noutput: {position_ids: doc_reset}", "seq.*sft"),
    ("type: dpo\npacking: {max_seq_len: 8}", "packing.*seq.*sft"),
    ("type: grpo\noutput: {dtypes: {rewards: int32}}", "rewards"),
    ("type: sft\noutput: {dtypes: {loss_mask: float32}}", "integers"),
    ("type: sft\noutput: {names: {tokens: loss_mask}}", "name"),
    ("type: sft\noutput: {names: {tokens: ../x}}", "name"),
    ("type: grpo\nlength: {truncate: keep_last_turns}", "seq.*sft.*dpo"),
    ("type: dpo\nlength: {truncate: keep_first_turns}", "answers"),
]
NO_RECIPES = [
    ("- a", "recipe"),
    ("", "recipe"),
    ("a: [", "YAML.*JSON"),
    ('{\n  "input": {},   // sections\n  "output": {}\n}', "2.*JSON.*//"),
    ("type: sft\ntype: dpo", "'type'.*2"),
    ("type: !!python/name:os.system x", "YAML.*JSON"),
    ("[" * 3000, "YAML.*JSON"),
]


@pytest.mark.parametrize(("text", "named"), [*TYPOS, *CONTRADICTIONS, *NO_RECIPES])
def test_what_is_no_recipe_is_named(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        parse_recipe(text, name="my.yaml")
    assert str(caught.value).startswith("my.yaml")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exist"):
        load_recipe(tmp_path / "r.yaml")
    (tmp_path / "r.yaml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot"):
        load_recipe(tmp_path / "r.yaml")


def test_the_layout_is_found_for_the_type() -> None:
    chosen: dict[str, Any] = {"prompt": "a", "chosen": "b", "rejected": "c"}
    recipe, found = resolve_layout(parse_recipe("type: dpo\ninputs: a"), [chosen])
    assert found is not None
    assert (recipe.inputs[0].layout, found.layout) == ("preference", "preference")
    assert resolve_layout(recipe, [chosen]) == (recipe, None)
    with pytest.raises(ConfigError, match=r"inputs\[0\]"):
        resolve_layout(parse_recipe("type: sft\ninputs: a"), [chosen])


def test_nulls_are_dropped_before_the_layout_is_looked_for() -> None:
    record = {"text": "a", "messages": None}
    assert resolve_layout(parse_recipe("type: seq\ninputs: {paths: a, drop_nulls: true}"), [record])[1] is not None
