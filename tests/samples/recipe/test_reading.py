"""Recipes are read strictly: unknown keys and words are named with their path, and the nearest valid one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.errors import ConfigError
from headrace.plan.packing import Packing
from headrace.samples.recipe import Recipe, load_recipe, make_recipe, parse_recipe, resolve_layout, store_keys
from recipes_made import NO, USER, YES, make, rows, texts, trained

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


# AstrAI's own configurations load unchanged; what differs from what it does is listed in docs/recipes.md.


SEQ = {
    "input": {"sections": [{"field": "text", "action": "train"}]},
    "preprocessing": {"max_seq_len": 8192, "min_chars": 3},
}
CHAT = {
    "input": {"sections": [{"field": "messages", "action": "$role", "template": True}]},
    "mask": {"system": "mask", "user": "mask", "assistant": "train"},
    "mask_default": "mask",
    "output": {"dtype": {"loss_mask": "bool"}, "position_ids_mode": "doc_reset"},
}
INSTRUCTION = {
    "input": {
        "sections": [
            {"field": "prompt", "action": "mask", "add_special_tokens": True},
            {"field": "response", "action": "train"},
        ]
    }
}
DPO = {
    "input": {
        "sources": {
            "chosen": {"sections": [{"field": "chosen", "action": "$role", "template": True}]},
            "rejected": {"sections": [{"field": "rejected", "action": "$role", "template": True}]},
        }
    },
    "mask": {"user": "mask", "assistant": "train"},
}
GRPO = {
    "input": {
        "sources": {
            "prompts": {"sections": [{"field": "prompt", "action": "mask", "template": True}]},
            "responses": {
                "sections": [{"field": "responses", "action": "train"}],
                "list_field": True,
                "mask_key": "masks",
            },
            "rewards": {"sections": [{"field": "rewards", "action": "value"}]},
        }
    },
    "output": {"dtype": {"rewards": "float32"}},
}


def read(config: dict[str, Any]) -> Recipe:
    return parse_recipe(json.dumps(config))


def keys(config: dict[str, Any]) -> list[str]:
    return [key.stored for key in store_keys(read(config))]


def with_(config: dict[str, Any], **sections: Any) -> dict[str, Any]:
    return {**config, **{name: {**config.get(name, {}), **value} for name, value in sections.items()}}


def test_text() -> None:
    recipe = read(SEQ)
    assert recipe.type == "seq"
    assert (recipe.length.max_tokens, recipe.length.truncate) == (8192, "keep_start")
    assert (recipe.filters.min_chars, recipe.filters.max_chars) == (3, 2_000_000)
    made = make(recipe, [{"text": "abc"}, {"text": "ab"}, {"text": " "}, {}])
    assert texts(made, "sequence") == ["abc"]
    assert rows(made, "position_ids") == [[0, 1, 2]]
    assert list(made.arrays) == ["sequence", "position_ids"]
    assert made.counts.dropped == {"min_chars": 1, "empty": 2}
    assert made.arrays["sequence"].values.dtype == "int32"


def test_chat_is_rendered_whole_and_the_header_is_not_trained() -> None:
    made = make(read(CHAT), [{"messages": [USER, YES, USER, NO]}, {"messages": []}])
    assert texts(made, "sequence")[0].startswith("<bos><|start|>user\nHi<|end|>\n<|start|>assistant\nYes<|end|>\n")
    assert trained(made, "sequence") == ["Yes<|end|>|No<|end|>"]
    assert {key: str(values.dtype) for key, (values, _) in made.arrays.items()} == {
        "sequence": "int32",
        "loss_mask": "bool",
        "position_ids": "int32",
    }
    assert rows(made, "position_ids")[0] == list(range(made.counts.tokens["tokens"].kept))
    assert made.counts.dropped == {"empty": 1}


@pytest.mark.parametrize(
    ("mask", "default", "expected"),
    [
        ({"user": "train"}, "mask", "Hi<|end|>"),
        ({"user": "mask"}, "train", "Yes<|end|>"),
        ({}, "train", "Hi<|end|>|Yes<|end|>"),
    ],
)
def test_the_roles_decide(mask: dict[str, str], default: str, expected: str) -> None:
    made = make(read({**CHAT, "mask": mask, "mask_default": default}), [{"messages": [USER, YES]}])
    assert trained(made, "sequence") == [expected]


def test_nothing_to_train_is_a_counted_drop() -> None:
    made = make(read({**CHAT, "mask": {}}), [{"messages": [USER, YES]}])
    assert made.counts.dropped == {"no_supervised": 1}


def test_instruction_is_encoded_as_one_text() -> None:
    recipe = read(INSTRUCTION)
    assert recipe.type == "sft"
    made = make(recipe, [{"prompt": "Hi", "response": "Yo"}, {"prompt": "Hi"}], around="<bos> $A <eos>")
    assert texts(made, "sequence") == ["<bos>HiYo<eos>"]
    assert trained(made, "sequence") == ["Yo<eos>"]
    assert made.counts.dropped == {"no_supervised": 1}
    assert keys(INSTRUCTION) == ["sequence", "loss_mask", "position_ids"]


def test_the_first_section_of_text_asks_for_the_tokens_around_it() -> None:
    for asked, expected in ((None, "<bos>abc"), (False, "abc")):
        section = {"field": "text", "action": "train"} | ({} if asked is None else {"add_special_tokens": asked})
        config = {**SEQ, "input": {"sections": [section]}}
        assert texts(make(read(config), [{"text": "abc"}], around="<bos> $A"), "sequence") == [expected]


def test_what_a_message_says_of_itself_comes_first() -> None:
    made = make(read(CHAT), [{"messages": [USER | {"train": True}, YES | {"train": False}]}])
    assert trained(made, "sequence") == ["Hi<|end|>"]


def test_the_mask_is_stored_where_all_is_trained() -> None:
    both = {"input": {"sections": [{"field": "a", "action": "mask"}, {"field": "b", "action": "train"}]}}
    made = make(read(both), [{"b": "xy"}, {"a": "u", "b": "v"}])
    assert rows(made, "loss_mask") == [[1, 1], [0, 1]]


def test_dpo() -> None:
    recipe = read(DPO)
    assert recipe.type == "dpo"
    made = make(recipe, [{"chosen": [USER, YES], "rejected": [USER, NO]}, {"chosen": [USER, YES], "rejected": []}])
    assert list(made.arrays) == ["chosen", "chosen_mask", "rejected", "rejected_mask"]
    assert trained(made, "chosen", "chosen_mask") == ["Yes<|end|>"]
    assert trained(made, "rejected", "rejected_mask") == ["No<|end|>"]
    assert made.counts.dropped == {"no_rejected": 1}


def test_rewards_are_never_rounded_away() -> None:
    del (config := with_(GRPO))["output"]
    made = make(read(config), [{"prompt": [USER], "responses": ["a"], "rewards": [0.8]}])
    assert made.arrays["rewards"].values.dtype == "float32"
    assert texts(made, "responses") == ["a"]
    with pytest.raises(ConfigError, match="rewards"):
        read(with_(GRPO, output={"dtype": {"rewards": "int32"}}))


SPLIT = Packing(seq_len=10, strategy="best_fit_split")


@pytest.mark.parametrize(
    ("limits", "length", "packing"),
    [
        ({}, (2048, "keep_start", None), None),
        ({"max_packed_len": 100}, (100, "keep_start", None), None),
        ({"max_packed_len": 100, "truncation_mode": "keep_end"}, (100, "keep_end", 2048), None),
        ({"packing_strategy": "bfd"}, (2048, "keep_start", None), Packing(seq_len=8192)),
        ({"packing_strategy": "bfd_split", "max_packed_len": 10}, (2048, "keep_start", None), SPLIT),
    ],
)
def test_lengths_and_packing(limits: dict[str, Any], length: tuple[Any, ...], packing: Packing | None) -> None:
    recipe = read(with_(SEQ, preprocessing={"max_seq_len": 2048, **limits}))
    assert (recipe.length.max_tokens, recipe.length.truncate, recipe.length.first_tokens) == length
    assert recipe.packing == packing


def test_output() -> None:
    output = {"domain_key": "d", "storage_format": "h5", "max_tokens_per_shard": 7, "position_ids_mode": "none"}
    recipe = read(with_(SEQ, output=output, preprocessing={"max_items": 3}))
    assert (recipe.output.format, recipe.output.shard_tokens, recipe.output.domain_key) == ("hdf5", 7, "d")
    assert recipe.filters.max_records == 3
    assert keys(with_(SEQ, output=output)) == ["sequence"]
    made = make(recipe, [{"text": "abc"} | domain for domain in ({"d": "wiki"}, {}, {"d": 5}, {"d": "../x"})])
    assert made.domains == ["wiki", "__default__", "__default__"]
    assert "cannot name a folder" in made.bad[0].message


def test_other_keys_are_stored_as_named() -> None:
    config = {"input": {"sources": {"a": {"sections": [{"field": "x", "action": "train"}]}, "b": {"sections": []}}}}
    assert read(config).type == "keys"
    assert keys(config) == ["a", "a_mask"]


def test_a_data_set_with_its_tokeniser(tmp_path: Path) -> None:
    (tmp_path / "dataset_config.json").write_text(json.dumps({**CHAT, "tokenizer_path": "model"}))
    assert load_recipe(tmp_path / "dataset_config.json").tokenizer == "model"


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({**SEQ, "outptu": {}}, "outptu.*'output'"),
        (with_(SEQ, preprocessing={"max_sec_len": 1}), r"preprocessing\.max_sec_len.*'max_seq_len'"),
        (with_(SEQ, output={"dtype": {"sequence": "int12"}}), r"output\.dtypes\.sequence.*'int12'"),
        (with_(SEQ, output={"storage_format": "hd5"}), r"output\.storage_format.*'hd5'.*'h5'"),
        (with_(SEQ, preprocessing={"max_seq_len": 0}), "max_seq_len.*0"),
        ({"input": {"sections": [{"field": "a", "action": "trian"}]}}, r"input\.sections\[0\]\.action.*'trian'"),
        ({"version": 1, "input": {}, "output": {}}, 'sections.*sources.*"field".*"text"'),
        ({**CHAT, "mask": {"user": "no"}}, r"mask\.user.*'no'"),
    ],
)
def test_what_it_takes_in_silence_is_named(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read(config)


def test_the_same_can_be_said_in_our_own_words() -> None:
    ours = make_recipe(
        {
            "type": "sft",
            "sections": [{"field": "messages", "action": "$role", "template": True}],
            "role_actions": {"system": "mask", "user": "mask", "assistant": "train"},
            "default_action": "mask",
            "mask": {"on_no_supervised": "drop", "on_all_supervised": "allow"},
            "ends": {"append_eos": False, "bos": "known"},
            "length": {"max_tokens": 2048, "truncate": "keep_start"},
            "output": {
                "format": "keyed",
                "dtypes": {"sequence": "int32", "loss_mask": "bool"},
                "names": {"tokens": "sequence"},
                "shard_tokens": 100_000_000,
                "num_supervised": False,
                "position_ids": "doc_reset",
            },
        }
    )
    assert ours == read(CHAT)
