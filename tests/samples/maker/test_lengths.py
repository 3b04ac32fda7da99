"""Filters and cuts: counted, in pairs, at the borders of turns."""

from __future__ import annotations

import pytest

from recipes_made import NO, USER, YES, make, rows, texts, trained

SFT, SEQ, DPO, GRPO = (f"type: {kind}\ninputs: a\n" for kind in ("sft", "seq", "dpo", "grpo"))
TURN = "<|start|>user\nHi<|end|>\n<|start|>assistant\nYes<|end|>\n"
TALK = {"messages": [{"role": "system", "content": "S"}, USER, YES, USER, YES, USER, NO]}
HEAD = "<|start|>system\nS<|end|>\n"


def test_records_are_filtered_by_length() -> None:
    records = [{"text": "a" * size} for size in range(1, 7)]
    made = make(SEQ + "filters: {min_chars: 2, max_chars: 5}", records)
    assert [len(row) for row in rows(made, "tokens")] == [2, 3, 4, 5]
    assert made.counts.dropped == {"max_chars": 1, "min_chars": 1}
    made = make(SEQ + "filters: {min_tokens: 2, max_tokens: 3}", records)
    assert made.counts.dropped == {"max_tokens": 3, "min_tokens": 1}
    sums = made.counts.tokens["tokens"]
    assert (sums.made, sums.kept, sums.dropped) == (21, 5, {"max_tokens": 15, "min_tokens": 1})


@pytest.mark.parametrize(
    ("truncate", "expected"),
    [("keep_start", ["abc"]), ("keep_end", ["def"]), ("drop", []), ("error", [])],
)
def test_text_is_cut(truncate: str, expected: list[str]) -> None:
    made = make(SEQ + f"length: {{max_tokens: 3, truncate: {truncate}}}", [{"text": "abcdef"}])
    assert texts(made, "tokens") == expected
    assert len(made.bad) == (truncate == "error")
    assert made.counts.dropped == ({"too_long": 1} if truncate == "drop" else {})
    assert made.counts.notes == ({"truncated_records": 1} if expected else {})


def test_a_cut_that_leaves_nothing_to_learn_is_a_counted_drop() -> None:
    record = {"prompt": "abcdef", "completion": "g"}
    made = make(SFT + "length: {max_tokens: 3, truncate: keep_start}", [record])
    assert made.counts.dropped == {"supervision_cut": 1}
    assert made.counts.tokens["tokens"].dropped == {"supervision_cut": 8}
    assert trained(make(SFT + "length: {max_tokens: 3, truncate: keep_end}", [record])) == ["g<eos>"]
    made = make(SFT + "length: {max_tokens: 3, truncate: keep_start, on_supervision_cut: error}", [record])
    assert "none of its 2 trained tokens" in made.bad[0].message


def num_tokens(talk: dict[str, list[dict[str, str]]]) -> int:
    return len(rows(make(SFT, [talk]), "tokens")[0])


def test_whole_exchanges_are_taken_away() -> None:
    whole = num_tokens(TALK)
    for truncate, expected, answers in (
        ("keep_last_turns", HEAD + TURN + TURN.replace("Yes", "No"), "Yes<|end|>|No<|end|>"),
        ("keep_first_turns", HEAD + TURN + TURN, "Yes<|end|>|Yes<|end|>"),
    ):
        made = make(SFT + f"length: {{max_tokens: {whole - 1}, truncate: {truncate}}}", [TALK])
        assert texts(made, "tokens") == [expected]
        assert trained(made) == [answers]
        assert made.counts.notes == {"shortened_records": 1}
        assert made.counts.tokens["tokens"].truncated == whole - len(rows(made, "tokens")[0])
    made = make(SFT + "length: {max_tokens: 5, truncate: keep_last_turns}", [TALK])
    assert made.counts.dropped == {"too_long": 1}
    assert made.counts.tokens["tokens"].dropped == {"too_long": whole}


def test_the_ends_of_a_shortened_record_are_counted_once() -> None:
    ends = "ends: {bos: always}\n"
    whole = make(SFT + ends, [TALK]).arrays["tokens"].lengths.tolist()[0]
    made = make(SFT + ends + f"length: {{max_tokens: {whole - 1}, truncate: keep_last_turns}}", [TALK])
    assert texts(made, "tokens")[0].startswith("<bos>" + HEAD)
    assert (made.counts.bos, made.counts.notes) == (1, {"shortened_records": 1})


def test_a_pair_keeps_the_same_prompt() -> None:
    """The longer of both decides how many exchanges are left."""
    prompt = [USER, YES, USER, YES, USER]
    record = {"prompt": prompt, "chosen": [YES], "rejected": [{"role": "assistant", "content": "No" * 20}]}
    short = {"prompt": prompt[2:], "chosen": record["chosen"], "rejected": record["rejected"]}
    [limit] = make(DPO, [short]).arrays["rejected"].lengths.tolist()
    made = make(DPO + f"length: {{max_tokens: {limit}, truncate: keep_last_turns}}", [record])
    assert texts(made, "rejected") == texts(make(DPO, [short]), "rejected")
    assert texts(made, "chosen") == texts(make(DPO, [short]), "chosen")
    sums = made.counts.tokens
    assert sums["chosen"].truncated == sums["rejected"].truncated > 0
    made = make(DPO + "length: {max_tokens: 30}", [record])
    assert made.counts.dropped == {"too_long": 1}


def test_a_group_is_cut_response_by_response() -> None:
    record = {"prompt": "ab", "responses": ["cdef", "g"], "rewards": [1, 0]}
    made = make(GRPO + "length: {max_tokens: 3, truncate: keep_start}", [record])
    assert texts(made, "responses") == ["cdeg<eos>"]
    assert rows(made, "response_lengths") == [[3, 2]]
    assert rows(made, "rewards") == [[1.0, 0.0]]
