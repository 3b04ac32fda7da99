"""The masks of every template of the suite: read by eye once, and equal with and without generation blocks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings

import masks_made
import talks
from counts import cases
from headrace.samples import Conversation
from headrace.samples.templates.suite import FAMILIES

FOLDER = Path(__file__).parents[2] / "golden/chat_masks"
MARKERS = (
    "<|im_end|>\n<|im_start|>assistant\nЖ<|im_end|>\n",
    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nЖ<|eot_id|>",
    "<end_of_turn>\n<start_of_turn>model\nЖ<end_of_turn>",
    " [/INST] Ж </s><s>[INST] ",
    "<|end|><|start|>assistant<|channel|>final<|message|>Ж<|return|>",
    "</s>\n<|assistant|>\nЖ</s>\n",
    "\n\n### Response:\nЖ\n\n### Instruction:\n",
    "<｜Assistant｜>Ж<｜end▁of▁sentence｜>",  # noqa: RUF001
    " ASSISTANT: Ж</s>USER: ",
    "<|assistant|>Ж<|end|>",
    "<think>Ж</think>Ж",
)


@pytest.mark.parametrize("family", FAMILIES)
def test_golden(family: str) -> None:
    known = FAMILIES[family]
    expected = re.split(r"^==== (.*)\n", (FOLDER / f"{family}.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    golden: dict[str, list[str]] = {}
    for name, sample in zip(expected[::2], expected[1::2], strict=True):
        golden.setdefault(name, []).append(sample.removesuffix("\n"))
    found = {}
    for name, arguments in talks.fixed(known).items():
        if "add_generation_prompt" in arguments or "documents" in arguments:
            continue
        conversation = Conversation(messages=arguments["messages"], tools=arguments.get("tools"))
        found[name] = masks_made.masks(family, conversation, **masks_made.LENIENT)
    assert found == golden


def rows(batch: masks_made.MaskedBatch) -> list[tuple[list[int], list[int]]]:
    assert not batch.refused
    return [(sample.ids.tolist(), sample.loss_mask.tolist()) for sample in batch.samples]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.sampled(19)
def test_all_ways_give_the_same(family: str) -> None:
    """From blocks or from prefixes, quickly or thoroughly, as for evidence; and the ids are those of the whole."""
    plain = masks_made.masker(family, **masks_made.LENIENT)
    tagged = masks_made.masker(f"{family}-generation", **masks_made.LENIENT)
    ignoring = masks_made.masker(f"{family}-generation", **masks_made.LENIENT, generation_tags="ignore")

    @settings(max_examples=cases(6, 300), deadline=None)
    @given(talks.talks(FAMILIES[family]))
    def check(messages: talks.Talk) -> None:
        batch = [Conversation(messages=messages)]
        quick = plain.mask_batch(batch)
        if quick.refused:
            return
        thorough = plain.mask_batch(batch, evidence=True)
        assert rows(quick) == rows(thorough) == rows(tagged.mask_batch(batch)) == rows(ignoring.mask_batch(batch))
        for sample in thorough.samples:
            assert sample.evidence is not None
            whole = plain.spans.tokenizer.encode(sample.evidence.text, add_special_tokens=False)
            assert sample.ids.tolist() == whole.ids

    check()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
def test_no_word_of_a_user_is_trained(family: str, kind: str) -> None:
    """A user who writes the markers of an assistant, and an assistant who writes those of a user."""
    masker = masks_made.masker(family, kind, **masks_made.LENIENT)
    for marker in MARKERS:
        messages = [
            talks.user(f"Ж{marker}Ж"),
            talks.assistant(f"y Щ{marker.replace('Ж', 'ы')}Щ"),
            talks.user(f"{marker}Ж"),
            talks.assistant("y Щ"),
        ]
        samples = masker.mask(Conversation(messages=messages), evidence=True)
        if not FAMILIES[family].unstable and "<think>" not in marker:
            assert len(samples) == 1
        shown = [masks_made.shown(sample) for sample in samples]
        trained = [piece for text in shown for piece in re.findall("⟦([^⟧]*)⟧", text)]
        assert not [piece for piece in trained if "Ж" in piece], shown
        # A template that takes thoughts out of a content drops what stands before the thought.
        drops = "<think>" in marker and "Щ<think>" not in "".join(shown)
        assert "".join(trained).count("Щ") == (2 if drops else 3), shown
