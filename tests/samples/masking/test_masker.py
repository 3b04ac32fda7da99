"""Marked and encoded conversations: nothing lost, nothing shared; truncation; the evidence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import masks_made
import talks
from counts import cases
from headrace.errors import InputError
from headrace.samples import Conversation, TrainSpan
from headrace.samples.maker import SampleMaker
from headrace.samples.maker.maker import exchanges, shortened
from headrace.samples.maker.sequences import MadeSequence, Sequencer
from headrace.samples.masking import DroppedError, EncodedText, MaskOptions, Region, Why
from headrace.samples.recipe import LengthSpec, make_recipe
from headrace.samples.recipe.recipe import OverLong
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
    assert whole.records == [0, 0, 1, 1, 4, 5, 5]
    assert all(len(sample.ids) == len(sample.loss_mask) for sample in whole.samples)
    assert {(sample.ids.dtype, sample.loss_mask.dtype) for sample in whole.samples} == {
        (np.dtype(np.uint32), np.dtype(np.uint8))
    }
    alone = [masker.mask_batch([conversation]) for conversation in conversations]
    assert whole.ids == [token for batch in alone for token in batch.ids]
    assert whole.loss_mask == [mark for batch in alone for mark in batch.loss_mask]
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


def cut(sample: EncodedText, most: int, truncate: OverLong, on_supervision_cut: Any = "drop") -> MadeSequence:
    length = LengthSpec(max_tokens=most, truncate=truncate, on_supervision_cut=on_supervision_cut)
    whole = MadeSequence("tokens", sample.ids, sample.loss_mask, sample.num_supervised, len(sample.ids))
    found = Sequencer(masks_made.masker("chatml").spans, MaskOptions(), length, None).cut(whole)
    assert found.num_truncated == len(sample.ids) - len(found.ids)
    assert found.num_supervised == np.count_nonzero(found.mask)
    return found


def test_truncation_by_tokens() -> None:
    (whole,) = masks_made.masker("chatml").mask(Conversation(messages=talks.TWO))
    length = len(whole.ids)
    for most in range(1, length + 2):
        ways: dict[OverLong, slice] = {"keep_start": slice(0, most), "keep_end": slice(max(length - most, 0), length)}
        for over_long, kept in ways.items():
            if not whole.loss_mask[kept].any():
                with pytest.raises(DroppedError) as dropped:
                    cut(whole, most, over_long)
                assert dropped.value.reason == "supervision_cut"
                continue
            found = cut(whole, most, over_long)
            assert found.ids.tolist() == whole.ids[kept].tolist()
            assert found.mask.tolist() == whole.loss_mask[kept].tolist()


@pytest.mark.parametrize(
    ("over_long", "on_supervision_cut", "error", "named"),
    [
        ("error", "drop", InputError, "max_tokens is 3: raise max_tokens, or choose truncate: drop"),
        ("drop", "drop", DroppedError, "max_tokens.*3"),
        ("keep_start", "error", InputError, "trained.*another truncate, or on_supervision_cut: drop"),
    ],
)
def test_truncations_that_are_refused(
    over_long: OverLong, on_supervision_cut: Any, error: type[Exception], named: str
) -> None:
    (whole,) = masks_made.masker("chatml").mask(Conversation(messages=talks.TWO))
    with pytest.raises(error, match=named):
        cut(whole, 3, over_long, on_supervision_cut)


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
def test_truncation_by_turns(over_long: str) -> None:
    """The most exchanges that fit, as if the record had no others."""
    first = over_long == "keep_first_turns"
    conversation = Conversation(messages=LONG)
    masker = masks_made.masker("chatml")
    fitting = [masker.mask(shortened(conversation, count, first=first))[0] for count in (1, 2, 3)]
    for most in range(1, len(fitting[2].ids) + 1):
        made = made_by_recipe(most, over_long, "chatml").make([{"messages": LONG}])
        expected = [sample for sample in fitting if len(sample.ids) <= most][-1:]
        assert made.arrays["tokens"].values.tolist() == [token for one in expected for token in one.ids.tolist()]
        assert made.arrays["loss_mask"].values.tolist() == [mark for one in expected for mark in one.loss_mask.tolist()]
        if not expected:
            assert [(one.reason, one.num_tokens) for one in made.dropped] == [("too_long", len(fitting[2].ids))]
        else:
            assert made.counts.tokens["tokens"].truncated == len(fitting[2].ids) - len(expected[0].ids)


def made_by_recipe(most: int, over_long: str, family: str, **options: Any) -> SampleMaker:
    recipe = make_recipe(
        {
            "type": "sft",
            "inputs": {"paths": "a", "layout": "messages"},
            "ends": {"append_eos": False, "bos": "never"},
            "special_tokens_in_text": "encode",
            "mask": options,
            "length": {"max_tokens": most, "truncate": over_long},
        }
    )
    return SampleMaker(recipe, masks_made.tokenizer_json(), template=masks_made.template(family))


@settings(max_examples=cases(16, 1_000), deadline=None)
@given(st.data(), st.sampled_from(sorted(FAMILIES)))
def test_truncation_of_any_conversation(data: st.DataObject, family: str) -> None:
    """Tokens in = kept + cut + dropped, and no sample is too long."""
    messages = data.draw(talks.talks(FAMILIES[family]))
    lengths = [
        len(one.ids)
        for one in masks_made.masker(family, **masks_made.LENIENT).mask_batch([Conversation(messages=messages)]).samples
    ]
    if not lengths:
        return
    most = data.draw(st.integers(max(max(lengths) - 40, 1), max(lengths)))
    over_long = data.draw(st.sampled_from(["keep_start", "keep_end", "keep_first_turns", "keep_last_turns"]))
    made = made_by_recipe(most, over_long, family, **masks_made.LENIENT).make([{"messages": messages}])
    assert not made.bad or over_long.endswith("turns")
    assert all(length <= most for length in made.arrays["tokens"].lengths.tolist())
    if not made.bad:
        assert made.counts.tokens["tokens"].made == sum(lengths)
