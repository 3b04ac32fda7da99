"""Batches: nothing lost, nothing shared; truncation; the evidence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import masks_made
import talks
from counts import cases
from headrace.errors import ConfigError, InputError
from headrace.samples import Conversation, TrainSpan
from headrace.samples.masking import DroppedError, Masked, Region, Truncation, Why, truncate
from headrace.samples.masking.truncation import exchanges, shortened
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
    assert whole.records.tolist() == [0, 0, 1, 1, 4, 5, 5]
    assert set(whole.records.tolist()) | {2, 3} == set(range(len(several)))
    assert int(whole.lengths.sum()) == len(whole.ids) == len(whole.loss_mask)
    assert int(whole.num_supervised.sum()) == int(whole.loss_mask.sum())
    assert (whole.ids.dtype, whole.loss_mask.dtype) == (np.uint32, np.uint8)
    alone = [masker.mask_batch([conversation]) for conversation in conversations]
    assert np.array_equal(whole.ids, np.concatenate([batch.ids for batch in alone]))
    assert np.array_equal(whole.loss_mask, np.concatenate([batch.loss_mask for batch in alone]))
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


def sample_of(messages: talks.Talk, truncation: Truncation | None = None, **options: Any) -> Masked:
    (sample,) = masks_made.masker("chatml", **options).mask(
        Conversation(messages=messages), truncation=truncation, evidence=True
    )
    return sample


def test_truncation_by_tokens() -> None:
    whole = sample_of(talks.TWO)
    length = len(whole.ids)
    for most in range(1, length + 2):
        for over_long, kept in (("keep_start", slice(0, most)), ("keep_end", slice(max(length - most, 0), length))):
            truncation = Truncation(max_tokens=most, over_long=over_long)  # type: ignore[arg-type]
            if not whole.loss_mask[kept].any():
                with pytest.raises(DroppedError) as dropped:
                    truncate(whole, truncation)
                assert dropped.value.reason == "supervision_cut"
                continue
            cut = truncate(whole, truncation)
            assert cut.ids.tolist() == whole.ids[kept].tolist()
            assert cut.loss_mask.tolist() == whole.loss_mask[kept].tolist()
            assert cut.evidence is not None
            assert [token.id for token in cut.evidence.tokens(cut)] == cut.ids.tolist()


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"max_tokens": 3}, InputError, "max_tokens.*3"),
        ({"max_tokens": 3, "over_long": "drop"}, DroppedError, "max_tokens.*3"),
        ({"max_tokens": 3, "over_long": "keep_start", "on_supervision_cut": "error"}, InputError, "trained"),
        ({"max_tokens": 0}, ConfigError, "max_tokens.*0"),
        ({"max_tokens": 1, "over_long": "cut"}, ConfigError, "over_long.*'cut'.*'error'"),
    ],
)
def test_truncations_that_are_refused(options: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        sample_of(talks.TWO, Truncation(**options))


def test_turns_are_those_of_a_conversation() -> None:
    with pytest.raises(ConfigError, match="conversation"):
        truncate(sample_of(talks.TWO), Truncation(max_tokens=3, over_long="keep_last_turns"))


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
def test_truncation_by_turns(over_long: Any) -> None:
    """The most exchanges that fit, as if the record had no others."""
    first = over_long == "keep_first_turns"
    conversation = Conversation(messages=LONG)
    masker = masks_made.masker("chatml")
    fitting = [masker.mask(shortened(conversation, count, first=first))[0] for count in (1, 2, 3)]
    for most in range(1, len(fitting[2].ids) + 1):
        batch = masker.mask_batch([conversation], truncation=Truncation(max_tokens=most, over_long=over_long))
        expected = [sample for sample in fitting if len(sample.ids) <= most][-1:]
        found, wanted = (
            [(sample.ids.tolist(), sample.loss_mask.tolist()) for sample in samples]
            for samples in (batch.samples(), expected)
        )
        assert found == wanted
        if not expected:
            assert [found.reason for found in batch.dropped] == ["too_long"]
            assert batch.dropped[0].num_tokens == len(fitting[2].ids)
        else:
            assert batch.counts["truncated_tokens"] == len(fitting[2].ids) - len(expected[0].ids)
    flagged = Conversation(messages=LONG, train=(*[False] * 9, True) if first else (None, None, True, *[False] * 7))
    (dropped,) = masker.mask_batch([flagged], truncation=Truncation(max_tokens=60, over_long=over_long)).dropped
    assert dropped.reason == "supervision_cut"


@settings(max_examples=cases(16, 1_000), deadline=None)
@given(st.data(), st.sampled_from(sorted(FAMILIES)))
def test_truncation_of_any_conversation(data: st.DataObject, family: str) -> None:
    """Tokens in = kept + cut + dropped, and no sample is too long."""
    masker = masks_made.masker(family, **masks_made.LENIENT)
    conversation = Conversation(messages=data.draw(talks.talks(FAMILIES[family])))
    whole = masker.mask_batch([conversation])
    if not len(whole):
        return
    most = data.draw(st.integers(max(int(whole.lengths.max()) - 40, 1), int(whole.lengths.max())))
    over_long: Any = data.draw(st.sampled_from(["keep_start", "keep_end", "keep_first_turns", "keep_last_turns"]))
    batch = masker.mask_batch([conversation], truncation=Truncation(max_tokens=most, over_long=over_long))
    assert not batch.refused or whole.refused or over_long.endswith("turns")
    assert all(length <= most for length in batch.lengths.tolist())
    if not batch.refused:
        kept, dropped = int(batch.lengths.sum()), sum(found.num_tokens for found in batch.dropped)
        assert kept + batch.counts["truncated_tokens"] + dropped == int(whole.lengths.sum())
