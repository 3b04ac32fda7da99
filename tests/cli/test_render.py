"""``headrace render``: one record step by step, kept, cut, dropped or refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import previews_made
from headrace.inspect import Rendering, render
from recipes_made import NO, TEMPLATE, USER, YES, make

TURN = "<|start|>user\nHi<|end|>\n<|start|>assistant\nYes<|end|>\n"

EVIDENCE = r"""
  tokens    bytes     turn  role       region       trained  why                                       text
  0 to 3    0 to 14   0     user       header       no       text of the template, no turn of its own  <|start|>user\n
  3 to 5    14 to 16  0     user       content      no       by the role of its message                Hi
  5 to 6    16 to 23  0     user       end of turn  no       by the role of its message                <|end|>
  6 to 7    23 to 24  0     user       after        no       after the end of the turn                 \n
  7 to 10   24 to 43  1     assistant  header       no       text of the template, no turn of its own  <|start|>assistant\n
  10 to 13  43 to 46  1     assistant  content      yes      by the role of its message                Yes
  13 to 14  46 to 53  1     assistant  end of turn  yes      by the role of its message                <|end|>
  14 to 15  53 to 54  1     assistant  after        no       after the end of the turn                 \n
"""  # noqa: E501


def lines(run: Any, *arguments: Any) -> list[str]:
    result = run("render", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    text: str = result.stdout
    return text.splitlines()


def test_for_people(run: Any, tmp_path: Path) -> None:
    recipe = previews_made.recipe(tmp_path, "sft", "ends: {bos: always}\n")
    assert lines(run, recipe, "--record", 2) == [
        f"{tmp_path}/input.jsonl, line 3: record 2",
        f"  recipe    {recipe}, type sft",
        "  layout    messages (all of the first 3 records have messages)",
        f"  template  {tmp_path}/model/tokenizer_config.json",
        "  stored    1 document: tokens 16, loss_mask 16, num_supervised 1",
        "",
        "record",
        """      {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]}""",
        "",
        "messages: 2 messages",
        "  0 user",
        "      Hi",
        "  1 assistant",
        "      Yes",
        "",
        "tokens: 15 tokens, 4 trained (26.7%)",
        "  [[trained]] not trained",
        "       user       0  <|start|>user⏎",
        "                     Hi<|end|>⏎",
        "  assistant       7  <|start|>assistant⏎",
        "                     [[Yes<|end|>]]⏎",
        "  added before it: <bos>",
        *EVIDENCE.splitlines(),
    ]


@pytest.mark.parametrize("kind", list(previews_made.RECORDS))
def test_what_is_shown_is_what_is_stored(tmp_path: Path, kind: str) -> None:
    recipe = previews_made.recipe(tmp_path, kind)
    for number, record in enumerate(previews_made.RECORDS[kind]):
        rendering = render(recipe, number)
        made = make(f"type: {kind}\ninputs: a", [record])
        assert rendering.outcome == "kept"
        assert rendering.stored == {key: len(values) for key, (values, _) in made.arrays.items()}
        for key, mask in (("tokens", "loss_mask"), ("chosen", "chosen_mask"), ("responses", "masks"), ("prompts", "")):
            sequences = [one for one in rendering.sequences if one.shown.name.removesuffix("s").startswith(key[:-1])]
            if key not in made.arrays or (key == "tokens" and kind == "seq"):
                continue
            ids, marks = _kept(sequences, from_answer=key == "responses")
            assert ids == made.arrays[key].values.tolist()
            if mask:
                assert marks == made.arrays[mask].values.tolist()
        for sequence in rendering.sequences:
            _check_evidence(sequence)


def _kept(sequences: list[Any], *, from_answer: bool) -> tuple[list[int], list[int]]:
    """What is stored, put together from what is shown; of a response, what is behind its prompt."""
    ids: list[int] = []
    marks: list[int] = []
    for sequence in sequences:
        parts = [part for part in sequence.shown.stretches if part.is_kept]
        if from_answer:
            first = next(number for number, part in enumerate(parts) if part.is_trained)
            parts = parts[first:]
        for part in parts:
            ids += part.ids
            marks += [int(bool(part.is_trained))] * len(part.ids)
    return ids, marks


def _check_evidence(sequence: Any) -> None:
    """Rows follow one another without a gap, in tokens and in bytes, and their texts are the text."""
    rows = sequence.evidence
    assert [row.begin for row in rows] == [0, *(row.end for row in rows[:-1])]
    assert [row.begin_bytes for row in rows] == [0, *(row.end_bytes for row in rows[:-1])]
    assert rows[-1].end == sequence.shown.num_tokens
    assert "".join(row.text for row in rows) == sequence.text
    assert "".join(part.text for part in sequence.shown.stretches) == sequence.text
    assert sum(row.end - row.begin for row in rows if row.is_trained) == sequence.shown.num_trained


def shown(rendering: Rendering) -> str:
    """The text, what is not stored in braces."""
    return "".join(
        part.text if part.is_kept else f"{{{part.text}}}" for part in rendering.sequences[0].shown.stretches
    ).replace("}{", "")


def test_what_a_limit_cuts(tmp_path: Path) -> None:
    talk = [{"messages": [USER, YES, USER, NO]}]
    first, second = TURN, TURN.replace("Yes", "No")

    def rendered(length: str) -> Rendering:
        return render(previews_made.recipe(tmp_path, "sft", f"length: {{{length}}}\n", talk), 0)

    assert shown(rendered("max_tokens: 29")) == first + second
    assert shown(rendered("max_tokens: 20, truncate: keep_last_turns")) == f"{{{first}}}{second}"
    assert shown(rendered("max_tokens: 20, truncate: keep_first_turns")) == f"{first}{{{second}}}"
    assert shown(rendered("max_tokens: 15, truncate: keep_start")) == f"{first}{{{second}}}"
    assert shown(rendered("max_tokens: 14, truncate: keep_end")) == f"{{{first}}}{second}"
    assert shown(rendered("first_tokens: 15")) == f"{first}{{{second}}}"
    talk = [{"messages": [USER, YES, USER, YES]}]
    assert shown(rendered("max_tokens: 20, truncate: keep_last_turns")) == f"{{{first}}}{first}"
    kept = rendered("max_tokens: 20, truncate: keep_last_turns")
    assert (kept.sequences[0].num_stored, kept.notes) == (15, {"shortened_records": 1})
    dropped = rendered("max_tokens: 10")
    assert (dropped.outcome, dropped.reason, dropped.num_documents) == ("dropped", "too_long", 0)
    assert shown(dropped) == first + first
    # All that is trained is cut off: what is left shows why the record is dropped.
    unsupervised = rendered("max_tokens: 7, truncate: keep_start")
    assert (unsupervised.outcome, unsupervised.reason) == ("dropped", "supervision_cut")
    assert shown(unsupervised).startswith("<|start|>user\nHi<|end|>\n{<|start|>assistant")


def test_a_system_message_is_kept_from_a_cut(tmp_path: Path) -> None:
    talk = [{"messages": [{"role": "system", "content": "S"}, USER, YES, USER, NO]}]
    recipe = previews_made.recipe(tmp_path, "sft", "length: {max_tokens: 22, truncate: keep_last_turns}\n", talk)
    assert shown(render(recipe, 0)).startswith("<|start|>system\nS<|end|>\n{" + TURN + "}<|start|>user")


def test_added_ends_and_sections(run: Any, tmp_path: Path) -> None:
    recipe = previews_made.recipe(tmp_path, "sft", "", [{"prompt": "a", "completion": "b"}])
    [sequence] = render(recipe, 0).sequences
    assert (sequence.added_before, sequence.added_after, sequence.num_stored) == ((), ("<eos>",), 3)
    sections = "sections: [{field: q, action: mask}, {field: a, action: train}]\n"
    recipe = previews_made.recipe(tmp_path, "sft", sections, [{"q": "Was? é", "a": "Ja"}])
    found = lines(run, recipe, "--record", 0)
    assert "  layout    the recipe has sections, which are read field by field" in found
    assert "       0  Was? é[[Ja]]" in found


def test_a_token_across_a_border(tmp_path: Path) -> None:
    # "us" is one token of the vocabulary, half of it prompt and half of it answer.
    recipe = previews_made.recipe(tmp_path, "sft", "", [{"prompt": "u", "completion": "s!"}])
    rendering = render(recipe, 0)
    assert [(row.text, row.is_trained, row.why) for row in rendering.sequences[0].evidence] == [
        ("us", False, "the token has trained and untrained bytes"),
        ("!", True, "by the role of its message"),
    ]
    assert rendering.notes == {"straddling_tokens": 1}


def test_groups_and_columns(run: Any, tmp_path: Path) -> None:
    found = lines(run, previews_made.recipe(tmp_path, "grpo"), "--record", 0)
    assert "response 1: 1 message, reward -0.5" in found
    assert "response 1: 13 tokens, 3 trained (23.1%)" in found
    assert "  assistant      10  [[No<|end|>]]" in found
    prompt = lines(run, previews_made.recipe(tmp_path, "prompt"), "--record", 0)
    assert r'  reward_model  {"ground_truth": "\u001b[2J"}' in prompt


def test_flags_tools_and_fields_of_messages(run: Any, tmp_path: Path) -> None:
    record = {
        "messages": [USER, YES | {"train": False, "name": "x"}, USER, NO],
        "tools": [{"name": "t"}],
        "chat_template_kwargs": {"enable_thinking": True},
    }
    allowed = "mask: {on_unwritten_tools: allow}\n"
    found = lines(run, previews_made.recipe(tmp_path, "sft", allowed, [record]), "--record", 0)
    assert "  1 assistant (train: false)" in found
    assert '      name: "x"' in found
    assert '  tools: [{"name": "t"}]' in found
    assert '  template arguments: {"enable_thinking": true}' in found
    assert any("by the flag of its message" in line and "Yes" in line for line in found)


def test_a_record_that_is_refused_is_shown_as_far_as_it_comes(run: Any, tmp_path: Path) -> None:
    nothing = previews_made.recipe(tmp_path, "sft", "mask: {roles: [tool]}\n")
    rendering = render(nothing, 2)
    assert rendering.outcome == "bad"
    assert "none of its 15 tokens is trained" in rendering.message
    assert shown(rendering) == TURN
    assert rendering.sequences[0].num_stored is None
    # A template that changes or takes away a text of an earlier turn: the rendered text tells what happened.
    recipe = previews_made.recipe(tmp_path, "sft", "mask: {unstable: error}\n", [{"messages": [USER, YES, USER, NO]}])
    config = tmp_path / "model" / "tokenizer_config.json"
    for earlier, said in (
        ("''", "nothing of message 1 (assistant)"),
        ("m.content ~ '!'", "message 1 (assistant) differently"),
    ):
        changed = TEMPLATE.replace(
            "{{ m.content }}", f"{{{{ m.content if loop.last or m.role == 'user' else {earlier} }}}}"
        )
        config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": changed}))
        found = lines(run, recipe, "--record", 0)
        assert any(line.startswith(f"  refused   the template writes {said}") for line in found)
        assert "  rendered:" in found
        assert "      No<|end|>⏎" in found
    wrong = previews_made.recipe(tmp_path, "sft", "", [{"messages": [USER, YES]}, {"messages": "Hi"}, [1]])
    wrong.write_text(wrong.read_text().replace("inputs: ", "inputs:\n  - layout: messages\n    paths: "))
    assert render(wrong, 0).outcome == "kept"
    for number, said in ((1, "allowed is a list"), (2, "it must be an object")):
        assert render(wrong, number).outcome == "bad"
        assert said in render(wrong, number).message


def test_numbers_count_over_inputs_and_bad_lines(run: Any, tmp_path: Path) -> None:
    recipe = previews_made.recipe(tmp_path, "sft")
    with gzip.open(tmp_path / "more.jsonl.gz", "wt") as file:
        file.write("\n{broken\n\n" + json.dumps({"messages": [USER, NO]}) + "\n")
    both = f"inputs: ['{tmp_path}/*.jsonl', '{tmp_path}/*.gz']"
    recipe.write_text(recipe.read_text().replace(f"inputs: {tmp_path}/input.jsonl", both))
    found = render(recipe, 4)
    assert (found.input, found.place) == (f"{tmp_path}/more.jsonl.gz", "line 4")
    assert shown(found) == TURN.replace("Yes", "No")
    bad = run("render", recipe, "--record", 3)
    assert bad.exit_code == 3
    assert "more.jsonl.gz, line 2: malformed JSON" in bad.stderr
    for number in (5, -1):
        assert run("render", recipe, "--record", number).exit_code == 2
    assert "the inputs have only 5 records, counted from 0" in run("render", recipe, "--record", 5).stderr
    assert "the recipe has 2 inputs" in run("render", recipe, "--record", 0, "--input", tmp_path / "input.jsonl").stderr


def test_another_input(run: Any, tmp_path: Path) -> None:
    recipe = previews_made.recipe(tmp_path, "sft")
    parquet.write_table(pyarrow.Table.from_pylist([{"messages": [USER, NO]}]), tmp_path / "other.parquet")
    found = lines(run, recipe, "--record", 0, "--input", tmp_path / "other.parquet")
    assert found[0] == f"{tmp_path}/other.parquet, row 0: record 0"
    assert "                     [[No<|end|>]]⏎" in found


def test_recipes_that_cannot_be_used(run: Any, tmp_path: Path) -> None:
    recipe = previews_made.recipe(tmp_path, "sft")
    text = recipe.read_text()
    for changed, named in (
        (text.replace("type: sft", "type: stf"), "type"),
        ("\n".join(line for line in text.splitlines() if "tokenizer" not in line), "no tokeniser"),
        (text + "template: chatlm\n", "did you mean 'chatml'"),
    ):
        recipe.write_text(changed)
        result = run("render", recipe, "--record", 0)
        assert (result.exit_code, named in result.stderr) == (2, True), result.stderr
    recipe.write_text(text)
    (tmp_path / "model" / "tokenizer_config.json").unlink()
    assert "there is no chat template" in run("render", recipe, "--record", 0).stderr
    recipe.write_text(text + "template: chatml\n")
    ours = render(recipe, 2)
    assert (ours.template, ours.outcome) == ("suite:chatml", "kept")


def test_a_tokeniser_that_the_recipe_does_not_name(run: Any, tmp_path: Path) -> None:
    """Its folder says which special tokens there are."""
    more = "template: mistral-v7\nmask: {on_untrained_end: allow}\n"
    recipe = previews_made.recipe(tmp_path, "sft", more, [{"messages": [USER, YES]}])
    lines = recipe.read_text().splitlines()
    recipe.write_text("\n".join(line for line in lines if not line.startswith("tokenizer")))
    done = run("render", recipe, "--record", 0, "--tokenizer", tmp_path / "model", "--json")
    assert json.loads(done.stdout)["sequences"][0]["text"].startswith("<bos>")


def test_tokenisers_that_are_not_byte_level(tmp_path: Path) -> None:
    recipe = previews_made.recipe(
        tmp_path, "sft", "ends: {append_eos: false}\n", [{"prompt": "a é", "completion": " b😀"}]
    )
    (tmp_path / "model" / "tokenizer.json").write_text(previews_made.fallback().to_str())
    [sequence] = render(recipe, 0).sequences
    assert "".join(part.text for part in sequence.shown.stretches) == sequence.text == "a é b😀"
    assert [(row.text, row.is_trained) for row in sequence.evidence] == [("a é", False), (" b😀", True)]
    texts = [text for part in sequence.shown.stretches for text in part.texts]
    assert texts == ["a", "", " ", "é", "", " b", "😀", "", "", ""]


def test_a_record_is_the_same_however_far_it_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [{"messages": [USER, {"role": "assistant", "content": str(number)}]} for number in range(150)]
    recipe = previews_made.recipe(tmp_path, "sft", "", records)
    monkeypatch.setattr("headrace.inspect.rendering.TELL_EVERY", 1)

    def noting(read: list[int]) -> Any:
        return lambda phase, *, text, speeds: read.append(speeds["records"])

    read: list[int] = []
    far = render(recipe, 140, on_progress=noting(read))
    assert far.sequences[0].text.count("140") == 1
    assert far.layout_why == "all of the first 100 records have messages"
    assert read == list(range(1, 142))
    near: list[int] = []
    render(recipe, 0, on_progress=noting(near))
    assert near[-1] == 100
    assert np.array_equal(np.unique(np.diff(near)), [1])


@pytest.mark.parametrize(("policy", "outcome"), [("guard", "bad"), ("encode", "kept"), ("literal", "kept")])
def test_special_tokens_in_texts(run: Any, tmp_path: Path, policy: str, outcome: str) -> None:
    records = [{"messages": [{"role": "user", "content": "Hi<|end|>"}, YES]}]
    recipe = previews_made.recipe(tmp_path, "sft", f"special_tokens_in_text: {policy}\n", records)
    rendering = render(recipe, 0)
    assert rendering.outcome == outcome
    assert rendering.notes == {"special token <|end|> (user)": 1}
    assert "  counted   special token <|end|> (user) 1" in lines(run, recipe, "--record", 0)
    if outcome == "kept":
        num_tokens = {"encode": 4, "literal": 10}[policy] + 12
        assert rendering.stored["tokens"] == num_tokens
        assert shown(rendering) == TURN.replace("Hi", "Hi<|end|>")
