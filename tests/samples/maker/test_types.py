"""Each training type, by small cases that can be read: what is stored, and what of it is trained."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.samples.maker import SampleMaker
from headrace.samples.maker.noticing import recipes_that_take
from headrace.samples.masking import MaskOptions
from headrace.samples.recipe import parse_recipe, resolve_layout
from headrace.samples.templates import ChatTemplate, chat_template, limited
from headrace.samples.templates.limited import LimitedTemplate
from recipes_made import NO, USER, YES, make, maker, rows, texts, tokenizer_json, trained

SFT, SEQ, DPO, GRPO, PROMPT = (f"type: {kind}\ninputs: a\n" for kind in ("sft", "seq", "dpo", "grpo", "prompt"))
CHAT = "<|start|>user\nHi<|end|>\n<|start|>assistant\nYes<|end|>\n"
ASKED = "<|start|>user\nHi<|end|>\n<|start|>assistant\n"


def test_text() -> None:
    made = make(SEQ, [{"text": "ab"}, {"text": ""}, {"text": "c"}])
    assert texts(made, "tokens") == ["ab", "c"]
    assert list(made.arrays) == ["tokens"]
    assert made.arrays["tokens"].values.dtype == np.uint16
    assert made.records.tolist() == [0, 2]
    assert [(entry.record, entry.reason) for entry in made.dropped] == [(1, "empty")]
    assert texts(make(SEQ + "ends: {append_eos: true, bos: always}", [{"text": "ab"}]), "tokens") == ["<bos>ab<eos>"]


RECORDS: dict[str, list[Any]] = {
    SFT: [{"messages": [USER, YES, USER, NO][: 2 + 2 * (n % 2)], "id": n} for n in range(40)],
    SEQ: [{"messages": [USER, YES]}, {"messages": []}, {"messages": [USER]}, {"messages": [YES, NO, "odd"]}],
    DPO: [
        {"chosen": [USER, YES, USER, YES], "rejected": [USER, YES, USER, NO]},
        {"chosen": [USER, YES], "rejected": [USER]},
    ],
    GRPO: [{"prompt": [USER], "responses": [[YES], [NO]], "rewards": [1, 0]}, {"prompt": [], "responses": []}],
    PROMPT: [{"prompt": [USER]}, {"prompt": [USER, YES, USER]}],
}


@pytest.mark.parametrize("recipe", [SFT, SEQ, DPO, GRPO, PROMPT])
@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "llama3.1-generation", "mistral-v7", "command-a", "phi3"])
def test_records_are_made_the_same_if_they_are_rendered_ahead(
    name: str, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All templates are rendered by the helper here, to which what a block needs goes together."""
    monkeypatch.setattr(chat_template, "_compiled", LimitedTemplate)
    asked: list[int] = []
    ask = limited._HELPER.ask
    monkeypatch.setattr(limited._HELPER, "ask", lambda request: (asked.append(1), ask(request))[1])
    records = RECORDS[recipe] * 10
    lenient = "mask: {on_untrained_end: allow, on_no_supervised: allow}\n"

    def made() -> tuple[Any, int]:
        one = maker(recipe + (lenient if recipe in (SFT, DPO, GRPO) else ""), records[:1], chat=ChatTemplate.load(name))
        one.make(records[:4])  # what is learnt of a template once
        asked.clear()
        found = one.make(records)
        counted = msgspec.to_builtins(found.counts)
        values = {key: rows(found, key) for key in found.arrays}
        return (values, found.records.tolist(), found.dropped, found.bad, counted), len(asked)

    together, num_together = made()
    monkeypatch.setattr(ChatTemplate, "render_ahead", lambda self, wanted: None)
    apart, num_apart = made()
    assert together == apart
    assert together[1], "some records are good"
    assert num_together < num_apart


def test_the_header_is_trained_where_it_is_asked_for() -> None:
    made = make(SFT + "header: train", [{"messages": [USER, YES, USER, NO]}])
    assert trained(made) == ["<|start|>assistant\nYes<|end|>|<|start|>assistant\nNo<|end|>"]


def test_a_record_is_explained() -> None:
    one = maker(DPO, [{"chosen": [USER, YES], "rejected": [USER, NO]}])
    chosen, rejected = one.explain({"chosen": [USER, YES], "rejected": [USER, NO]})
    assert (chosen.key, chosen.text, rejected.key) == ("chosen", CHAT, "rejected")
    assert chosen.sample.evidence is not None
    tokens = list(chosen.sample.evidence.tokens(chosen.sample))
    assert [token.role for token in tokens if token.is_trained] == ["assistant"] * 4
    assert {token.role for token in tokens} >= {"user", "assistant"}
    found = make(DPO, [{"chosen": [USER, YES], "rejected": [USER, NO]}])
    assert rows(found, "chosen") == [[token.id for token in tokens]]
    assert rows(found, "chosen_mask") == [[int(token.is_trained) for token in tokens]]
    plain = maker(SFT, [{"prompt": "a", "completion": "b"}]).explain({"prompt": "a", "completion": "b"})[0].sample
    assert plain.evidence is not None
    found = [(token.role, token.is_trained) for token in plain.evidence.tokens(plain)]
    assert found == [("prompt", False), ("answer", True)]


def test_strings_stay_text_or_become_chat() -> None:
    records = [{"prompt": "2+2=", "completion": "4"}]
    made = make(SFT, records)
    assert texts(made, "tokens") == ["2+2=4<eos>"]
    assert trained(made) == ["4<eos>"]
    assert trained(make(SFT + "ends: {append_eos: false}", records)) == ["4"]
    made = make(SFT + "strings: chat", [{"prompt": "Hi", "completion": "Yes"}])
    assert texts(made, "tokens") == [CHAT]
    assert trained(made) == ["Yes<|end|>"]


def test_a_completion_of_messages() -> None:
    made = make(SFT, [{"prompt": [USER, NO, USER], "completion": [YES]}])
    assert trained(made) == ["Yes<|end|>"], "the answer within the prompt is not trained"


def test_an_eos_that_is_there_is_not_added() -> None:
    made = make(SFT, [{"prompt": "a", "completion": "b<eos>"}])
    assert texts(made, "tokens") == ["ab<eos>"]
    assert made.counts.eos == 0


def test_a_response_that_ends_in_the_words_of_another_is_whole() -> None:
    made = make(GRPO, [{"prompt": [USER], "responses": [[YES, USER]], "rewards": [1]}])
    assert texts(made, "responses") == ["Yes<|end|>\n<|start|>user\nHi<|end|>\n"]
    assert trained(made, "responses", "masks") == ["Yes<|end|>"]


def test_kto_keeps_the_label() -> None:
    made = make(SFT, [{"prompt": "a", "completion": "b", "label": label} for label in (True, False)])
    assert rows(made, "label") == [[1], [0]]


def test_preferences() -> None:
    made = make(DPO, [{"chosen": [USER, NO, USER, YES], "rejected": [USER, NO, USER, NO]}])
    assert trained(made, "chosen", "chosen_mask") == ["Yes<|end|>"]
    assert trained(made, "rejected", "rejected_mask") == ["No<|end|>"]
    made = make(DPO, [{"prompt": "ab", "chosen": "c", "rejected": "d"}])
    assert texts(made, "rejected") == ["abd<eos>"]
    assert trained(made, "rejected", "rejected_mask") == ["d<eos>"]
    assert trained(make(DPO, [{"chosen": "abc", "rejected": "abd"}]), "chosen", "chosen_mask") == ["c<eos>"]


def columns(made: Any) -> list[dict[str, Any]]:
    return [msgspec.json.decode(bytes(row)) for row in rows(made, "columns")]


def test_prompts_keep_their_columns() -> None:
    extra = {"data_source": "gsm8k", "reward_model": {"style": "rule", "ground_truth": "7"}, "extra_info": {"index": 3}}
    made = make(PROMPT, [{"prompt": [USER], **extra}, {"prompt": [USER]}])
    assert texts(made, "prompts") == [ASKED, ASKED]
    assert columns(made) == [{"prompt": [USER], **extra}, {"prompt": [USER]}]
    made = make(PROMPT, [{"prompt": "2+2=", **extra}])
    assert (texts(made, "prompts"), columns(made)) == (["2+2="], [extra])


def test_prompts_keep_their_messages() -> None:
    """As a template gets them: for rewards that judge conversations."""
    system = {"role": "system", "content": "Answer."}
    shares = [{"from": "human", "value": "Hi"}]
    made = make(PROMPT, [{"prompt": shares, "system": "Answer."}, {"prompt": json.dumps([USER])}])
    assert columns(made) == [{"prompt": [system, USER], "system": "Answer."}, {"prompt": [USER]}]
    made = make(PROMPT + "strings: chat", [{"prompt": "Hi"}])
    assert (texts(made, "prompts"), columns(made)) == ([ASKED], [{"prompt": [USER]}])
    renamed = PROMPT.replace("inputs: a", "inputs: {paths: a, layout: prompt, fields: {prompt: asked}}")
    made = make(renamed, [{"asked": [USER]}, {"asked": [USER], "prompt": "mine"}])
    assert columns(made) == [{"prompt": [USER]}, {"prompt": "mine"}]


def test_groups() -> None:
    made = make(GRPO, [{"prompt": [USER], "responses": ["Yes", [NO, USER, YES]], "rewards": [1, -0.5]}])
    assert texts(made, "prompts") == [ASKED]
    second = "No<|end|>\n<|start|>user\nHi<|end|>\n<|start|>assistant\nYes<|end|>"
    assert texts(made, "responses") == ["Yes<|end|>" + second]
    assert trained(made, "responses", "masks") == ["Yes<|end|>No<|end|>|Yes<|end|>"]
    assert rows(made, "rewards") == [[1.0, -0.5]]
    assert sum(rows(made, "response_lengths")[0]) == len(rows(made, "responses")[0])
    made = make(GRPO + "ends: {response_end: all}", [{"prompt": [USER], "responses": ["Yes"], "rewards": [1]}])
    assert texts(made, "responses") == ["Yes<|end|>\n"]
    made = make(GRPO, [{"prompt": "2+2=", "responses": ["4", ""], "rewards": [1, 0]}])
    assert texts(made, "responses") == ["4<eos><eos>"]
    assert rows(made, "response_lengths") == [[2, 1]]


def test_a_token_across_the_border_of_a_response_is_not_lost() -> None:
    """``us`` + ``er`` is one token of the whole; the response is then encoded by itself, and counted."""
    made = make(GRPO, [{"prompt": "us", "responses": ["er"], "rewards": [1]}])
    assert (texts(made, "prompts"), texts(made, "responses")) == (["us"], ["er<eos>"])
    assert made.counts.notes["straddling_responses"] == 1
    made = make(SFT, [{"prompt": "us", "completion": "er"}])
    assert trained(made) == ["<eos>"]
    assert made.counts.notes["straddling_tokens"] == 1
    assert trained(make(SFT + "mask: {straddle: train}", [{"prompt": "a us", "completion": "er"}])) == ["user<eos>"]


def test_an_answer_whose_only_token_lies_across_the_border() -> None:
    [bad] = make(SFT + "ends: {append_eos: false}", [{"prompt": "é us", "completion": "er"}]).bad
    assert "`mask: {straddle: train}`" in bad.message


def test_template_arguments_of_the_recipe_and_of_the_record() -> None:
    chat = ChatTemplate.from_text("{{ a }}{{ b }}{% for m in messages %}[{{ m.content }}]{% endfor %}")
    recipe = "type: seq\ninputs: a\ntemplate: {kwargs: {a: 1, b: 2}}"
    made = make(recipe, [{"messages": [USER], "chat_template_kwargs": {"b": 3}}], chat=chat)
    assert texts(made, "tokens") == ["13[Hi]"]


def test_positions_names_and_dtypes() -> None:
    output = "output: {position_ids: doc_reset, names: {tokens: sequence}, dtypes: {sequence: int64, loss_mask: bool}}"
    made = make(SFT + output, [{"prompt": "a", "completion": "b"}] * 2)
    assert {key: str(values.dtype) for key, (values, _) in made.arrays.items()} == {
        "sequence": "int64",
        "loss_mask": "bool",
        "num_supervised": "int32",
        "position_ids": "int32",
    }
    assert rows(made, "position_ids") == [[0, 1, 2]] * 2


def test_what_a_dtype_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"uint8.*255.*2"):
        maker("type: seq\ninputs: {paths: a, layout: text}\noutput: {dtypes: {tokens: uint8}}")
    made = make(GRPO + "output: {dtypes: {rewards: float16}}", [{"prompt": "a", "responses": ["b"], "rewards": [1e9]}])
    assert "'rewards' has the value 1000000000.0, which float16 cannot hold" in made.bad[0].message
    recipe = (
        "type: keys\noutput: {dtypes: {n: int8}}\nsources: {a: {sections: [{field: t, action: train}]}, "
        "n: {sections: [{field: n, action: value}]}}"
    )
    made = make(recipe, [{"t": "x", "n": 5}, {"t": "x", "n": [1.5]}, {"t": "x", "n": 300}, {"t": "x", "n": "1"}])
    assert rows(made, "n") == [[5]]
    assert [entry.record for entry in made.bad] == [1, 2, 3]


def test_what_is_missing_is_said_before_anything_is_made() -> None:
    with pytest.raises(ConfigError, match=r"inputs\[0\].layout.*resolve_layout"):
        SampleMaker(parse_recipe(SFT), tokenizer_json())
    recipe = parse_recipe("type: sft\ninputs: {paths: a, layout: messages}")
    with pytest.raises(ConfigError, match="`template`"):
        SampleMaker(recipe, tokenizer_json()).make([{"messages": [USER]}])
    recipe = parse_recipe("type: sft\ninputs: {paths: a, layout: completion}")
    with pytest.raises(ConfigError, match=r"TOKEN\}.*append_eos"):
        SampleMaker(recipe, tokenizer_json()).make([{"prompt": "a", "completion": "b"}])
    with pytest.raises(ConfigError, match=r"ends.eos.*'<eod>'.*'<eos>'"):
        SampleMaker(parse_recipe("type: seq\ninputs: {paths: a, layout: text}\nends: {eos: <eod>}"), tokenizer_json())


ADDS = ChatTemplate.from_text(
    "{% for m in messages %}<|start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last and not m.thinking %}<think></think>{% endif %}"
    "{{ m.content | trim }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}",
    special_tokens={"eos_token": "<eos>"},
)
OPENS = ChatTemplate.from_text(
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n<think>{% endif %}",
    special_tokens={"eos_token": "<eos>"},
)


STRIPS = ChatTemplate.from_text(
    "{% for m in messages %}<|start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>{{ m.thinking }}</think>{% endif %}"
    "{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}",
    special_tokens={"eos_token": "<eos>"},
)
"""Leaves the thoughts out of earlier answers."""


@pytest.mark.parametrize("chat", [ADDS, OPENS])
@pytest.mark.parametrize("response", ["Yes", " Yes ", "a</think>Yes", "<think></think>Yes", "<think>a</think> No"])
def test_a_response_is_stored_as_it_was_sampled(chat: ChatTemplate, response: str) -> None:
    """Whatever the template would make of it: it adds a thought, strips one, or trims the text."""
    begin = "<|start|>assistant\n" + ("<think>" if chat is OPENS else "")
    records = [
        {"prompt": [USER], "responses": [one, "No"], "rewards": [1, 0]}
        for one in (response, {"role": "assistant", "content": response})
    ]
    made = make(GRPO, records, chat=chat)
    assert not made.bad, made.bad
    assert texts(made, "prompts") == [f"<|start|>user\nHi<|end|>\n{begin}"] * 2
    assert texts(made, "responses") == [f"{response}<|end|>No<|end|>"] * 2
    assert rows(made, "masks") == [[1] * len(row) for row in rows(made, "responses")]
    # Options of the recipe decide about its parts.
    masked = make(GRPO + "mask: {end_of_turn: mask}", records[:1], chat=chat)
    assert trained(masked, "responses", "masks") == [f"{response}|No"]


def test_the_template_writes_responses_with_a_flag() -> None:
    flagged = {"prompt": [USER], "responses": [[{**YES, "train": False}]], "rewards": [1]}
    made = make(GRPO + "mask: {on_no_supervised: allow}", [flagged], chat=ADDS)
    assert texts(made, "responses")[0].startswith("<think></think>Yes<|end|>")


def test_a_prompt_that_ends_in_a_begun_answer_is_continued() -> None:
    begun = {"role": "assistant", "content": "It is "}
    made = make(PROMPT, [{"prompt": [USER, begun]}, {"prompt": [USER]}])
    assert texts(made, "prompts") == [f"{ASKED}It is ", ASKED]
    assert made.counts.notes == {"continued_prompts": 1}
    made = make(GRPO, [{"prompt": [USER, begun], "responses": ["so", "not so"], "rewards": [1, 0]}])
    assert texts(made, "prompts") == [f"{ASKED}It is "]
    assert texts(made, "responses") == ["so<|end|>not so<|end|>"]
    assert made.counts.notes == {"continued_prompts": 1}


def test_pairs_that_become_the_same_tokens_are_refused() -> None:
    """Whatever makes them the same: a cut, a thought that is not written, white space that is trimmed."""
    cut = {"prompt": "p", "chosen": " " + "x" * 30 + "A", "rejected": " " + "x" * 30 + "B"}
    trimmed = {"prompt": [USER], "chosen": [YES | {"content": "Yes "}], "rejected": [YES]}
    thought = {"prompt": [USER], "chosen": [YES | {"thinking": "a"}], "rejected": [YES | {"thinking": "b"}]}
    good = {"prompt": "p", "chosen": "x", "rejected": "y"}
    limit = "length: {max_tokens: 20, truncate: keep_start}"
    for record, more, chat in ((cut, limit, None), (trimmed, "", ADDS), (thought, "", None)):
        made = make(DPO + more, [record] if record is not cut else [cut, good], chat=chat)
        assert made.bad[0].record == 0
        assert "chosen and rejected become the same " in made.bad[0].message
        assert made.counts.kept == (record is cut)
    sections = ", ".join(f"{name}: {{sections: [{{field: {name}, action: train}}]}}" for name in ("chosen", "rejected"))
    made = make(f"type: dpo\nsources: {{{sections}}}", [{"chosen": "a", "rejected": text} for text in "ab"])
    assert [one.record for one in made.bad] == [0]


@pytest.mark.parametrize("limit", [3, 9, 12, 20, 30, 60])
def test_both_sides_of_a_pair_keep_the_same_end_of_their_prompt(limit: int) -> None:
    record = {"prompt": "abcdefghij" * 4, "chosen": " x", "rejected": " yyyyyy"}
    made = make(DPO + f"length: {{max_tokens: {limit}, truncate: keep_end}}", [record])
    whole = record["prompt"]
    sides = {name: text.removesuffix("<eos>") for name in ("chosen", "rejected") for text in texts(made, name)}
    prompts = [sides["chosen"].removesuffix(" x"), sides["rejected"].removesuffix(" yyyyyy")]
    assert max(len(row) for name in sides for row in rows(made, name)) == min(limit, len(whole) + 8)
    if limit >= 9:
        assert prompts[0] == prompts[1] == whole[len(whole) - max(0, min(limit - 8, len(whole))) :]
    made_tokens = made.counts.tokens
    assert {name: made_tokens[name].made for name in sides} == {"chosen": 43, "rejected": 48}
    assert made.counts.notes.get("truncated_records", 0) == (limit < 48)


BAD: list[tuple[str, Any, str]] = [
    (SFT, {"messages": "Hi"}, "messages is the string"),
    (SFT, 5, "the number 5"),
    (SFT, {"messages": [USER]}, "none of its 7 tokens"),
    (PROMPT, {"prompt": "a", "x": "\ud800"}, "JSON"),
    (PROMPT, {"prompt": "a", "x": object()}, "JSON"),
]


@pytest.mark.parametrize(("recipe", "record", "message"), BAD)
def test_a_bad_record_is_named_and_leaves_the_others(recipe: str, record: Any, message: str) -> None:
    good: dict[str, Any] = {"messages": [USER, YES]} if recipe == SFT else {"prompt": "a"}
    layout = "messages" if recipe == SFT else "prompt"
    made = make(recipe.replace("inputs: a", f"inputs: {{paths: a, layout: {layout}}}"), [good, record, good])
    assert made.records.tolist() == [0, 2]
    assert [entry.record for entry in made.bad] == [1]
    assert message in made.bad[0].message
    assert (made.counts.kept, made.counts.bad) == (2, 1)


def test_text_that_cannot_be_encoded_is_found_wherever_it_comes_from() -> None:
    """A template may write other fields of a message than its content."""
    chat = ChatTemplate.from_text("{% for m in messages %}{{ m.name }}: {{ m.content }}\n{% endfor %}")
    records = [{"messages": [USER | {"name": name}]} for name in ("A", "\ud800")]
    made = make(SEQ, records, chat=chat)
    assert texts(made, "tokens") == ["A: Hi\n"]
    assert "the text is not Unicode text: unpaired surrogate" in made.bad[0].message


def test_domains_are_plain_names() -> None:
    records = [
        {"text": "a", "d": name}
        for name in ("wiki", "математика", "../x", "", " x", "a/b", "CON:", ".hidden", "x" * 101)
    ]
    made = make(SEQ + "output: {domain_key: d}", records)
    assert made.domains == ["wiki", "математика"]
    assert len(made.bad) == 7
    assert make(SEQ, [{"text": "a"}]).domains is None


def test_unstable_templates_split_a_record_into_documents() -> None:
    talk = {"messages": [USER, YES | {"thinking": "a"}, USER, NO | {"thinking": "b"}]}
    made = make(SFT + "mask: {unstable: split}", [talk, talk], chat=STRIPS)
    assert made.records.tolist() == [0, 0, 1, 1]
    assert trained(made)[:2] == ["<think>a</think>Yes<|end|>", "<think>b</think>No<|end|>"]
    assert (made.counts.kept, made.counts.documents, made.counts.notes["split_records"]) == (2, 4, 2)
    assert make(SFT, [talk], chat=STRIPS).records.tolist() == [0, 0]
    assert made.counts.notes["split_tokens"] == sum(made.arrays["tokens"].lengths[::2])


@pytest.mark.parametrize("how", ["drop", "keep_start"])
def test_a_sample_of_a_split_record_that_is_too_long_drops_no_other(how: str) -> None:
    long = USER | {"content": "Hi" * 20}
    talk = [USER, YES | {"thinking": "a"}, USER, NO | {"thinking": "b"}, long, YES | {"thinking": "c"}]
    lengths = make(SFT, [{"messages": talk}], chat=STRIPS).arrays["tokens"].lengths.tolist()
    assert lengths == sorted(set(lengths))
    made = make(SFT + f"length: {{max_tokens: {lengths[1]}, truncate: {how}}}", [{"messages": talk}], chat=STRIPS)
    assert trained(made) == ["<think>a</think>Yes<|end|>", "<think>b</think>No<|end|>"]
    reason = "too_long" if how == "drop" else "supervision_cut"
    assert made.counts.tokens["tokens"].dropped == {reason: lengths[2]}
    assert made.counts.notes == {"dropped_samples": 1, "split_records": 1, "split_tokens": lengths[0]}
    assert (made.counts.kept, made.counts.documents, made.counts.dropped) == (1, 2, {})
    # If none fits, the record is dropped.
    made = make(SFT + f"length: {{max_tokens: 3, truncate: {how}}}", [{"messages": talk}], chat=STRIPS)
    assert made.counts.dropped == {reason: 1}
    assert made.counts.tokens["tokens"].dropped == {reason: sum(lengths)}


@pytest.mark.parametrize("how", ["keep_first_turns", "keep_last_turns"])
def test_split_tokens_of_a_record_that_is_shortened(how: str) -> None:
    talk = [one for text in "abc" for one in (USER, YES | {"thinking": text})]
    lengths = make(SFT, [{"messages": talk}], chat=STRIPS).arrays["tokens"].lengths.tolist()
    made = make(SFT + f"length: {{max_tokens: {lengths[1]}, truncate: {how}}}", [{"messages": talk}], chat=STRIPS)
    assert made.arrays["tokens"].lengths.tolist() == lengths[:2]
    assert made.counts.notes == {"shortened_records": 1, "split_records": 1, "split_tokens": lengths[0]}


def test_a_refused_record_shows_the_options_that_would_take_it() -> None:
    talk = {"messages": [USER, YES | {"thinking": "a"}, USER, NO | {"thinking": "b"}]}
    recipe = parse_recipe(SFT + "mask: {unstable: error}")

    def make_other(mask: MaskOptions) -> SampleMaker:
        other = msgspec.structs.replace(recipe, mask=mask)
        return SampleMaker(resolve_layout(other, [talk])[0], tokenizer_json(), template=STRIPS)

    lines = recipes_that_take(talk, recipe.mask, make_other)
    assert lines[0].startswith("`mask: {unstable: split}`")
    assert lines[0].endswith("'<think>a</think>Yes<|end|>', '<think>b</think>No<|end|>'")
    assert lines[1].startswith("`mask: {unstable: last_turn}`")
    assert lines[1].endswith(": '<think>b</think>No<|end|>'")
    assert len(lines) <= 3
