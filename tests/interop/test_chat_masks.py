"""Masks against Transformers' own and TRL's training templates; ids against `apply_chat_template(tokenize=True)`.

Equal with ``generation_tags="exact"`` and ``straddle="train"``, which is their rule. What differs by default, and why:

* their blocks take what stands behind the end of a turn (Qwen's line feed, Phi-3's last ``<|endoftext|>``): nobody asks
  a model to write that, since it has stopped; we do not train it;
* where a block holds the header or a part of it (DeepSeek, Qwen-2.5's line feed), we leave the prompt out;
* an empty ``<think>`` block, which the template wrote and not the record, is not trained;
* a token with trained and untrained bytes is not trained.
"""

from __future__ import annotations

import re
from importlib import resources
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from jinja2 import UndefinedError
from tokenizers import Tokenizer

import masks_made
import talks
from counts import cases
from headrace.errors import InputError
from headrace.samples import Conversation
from headrace.samples.masking import MaskOptions
from headrace.samples.masking.marking import Marker
from headrace.samples.masking.token_spans import byte_places
from headrace.samples.templates import ChatTemplate, suite_names
from headrace.samples.templates.suite import FAMILIES

pytestmark = pytest.mark.interop

EXACT: dict[str, Any] = {
    "generation_tags": "exact",
    "straddle": "train",
    "on_all_supervised": "allow",
    "on_doubled_bos": "allow",
    **masks_made.LENIENT,
}


def theirs(hf: Any, template: ChatTemplate, kind: str) -> Any:
    made = Tokenizer.from_str(masks_made.tokenizer_json(kind).decode())
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=made, chat_template=template.setup.text, **template.special_tokens
    )


def encoded(made: Any, messages: talks.Talk, **more: Any) -> tuple[list[int], list[int]]:
    found = made.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, **more
    )
    return found["input_ids"], found["assistant_masks"]


def dated(name: str) -> bool:
    return "date" in FAMILIES[name.removesuffix("-generation")].features


@pytest.mark.sampled(30)
@pytest.mark.parametrize("kind", ["bytes", "sentencepiece", "unigram"])
@pytest.mark.parametrize("name", [name for name in suite_names(generation=True) if not dated(name)])
def test_masks_of_blocks_are_transformers(hf: Any, name: str, kind: str) -> None:
    template = masks_made.template(name)
    made = theirs(hf, template, kind)
    masker = masks_made.masker(name, kind, **EXACT)

    @settings(max_examples=cases(4, 200), deadline=None)
    @given(talks.talks(FAMILIES[name.removesuffix("-generation")]))
    def check(messages: talks.Talk) -> None:
        batch = masker.mask_batch([Conversation(messages=messages)], evidence=True)
        if batch.refused:
            return
        ids, mask = encoded(made, messages)
        (sample,) = batch.samples
        assert sample.ids.tolist() == ids
        # Where a block begins or ends in a character that is several tokens, Transformers trains one of them.
        assert sample.evidence is not None
        characters = set(byte_places(sample.evidence.text).tolist())
        begins, ends = sample.evidence.begins.tolist(), sample.evidence.ends.tolist()
        for place in np.flatnonzero(sample.loss_mask != np.array(mask)).tolist():
            assert sample.loss_mask[place] == 1
            is_part = begins[place] not in characters or ends[place] not in characters
            assert is_part or begins[place] in (begins[:place][-1:] + begins[place + 1 :][:1])

    check()


# Without TRL this file is still collected, and its tests are left out by their mark.
TRAINING = sorted(
    path.name.removesuffix("_training.jinja")
    for path in ((resources.files("trl") / "chat_templates").iterdir() if find_spec("trl") else ())
    if path.name.endswith("_training.jinja")
)
"""The families that TRL has a template for, from which its assistant-only loss takes its masks."""
# What of these cannot be made with the special tokens or messages of this test.
OTHERS = re.compile("_vl|idefics|llava|smolvlm|muse|diffusion")


def trl_template(name: str) -> ChatTemplate:
    file = resources.files("trl") / "chat_templates" / f"{name}_training.jinja"
    tokens = {"bos_token": "<s>", "eos_token": "</s>" if "phi" not in name else "<|endoftext|>"}
    return ChatTemplate.from_text(file.read_text(encoding="utf-8"), special_tokens=tokens, now=talks.NOW)


@pytest.mark.parametrize("name", [name for name in TRAINING if not OTHERS.search(name)])
def test_masks_of_trl(hf: Any, name: str) -> None:
    """As TRL trains, with its rule; by our rule a part of that, and less by the four differences alone."""
    template = trl_template(name)
    made = theirs(hf, template, "bytes")
    exact = masks_made.Masker(template, masks_made.tokenizer_json(), options=MaskOptions(**EXACT))
    options = masks_made.LENIENT | {"generation_tags": "trusted"}
    ours = masks_made.Masker(template, masks_made.tokenizer_json(), options=MaskOptions(**options))
    for messages in (talks.ONE, talks.TWO, talks.THINKING, talks.CALLED[:4]):
        conversation = Conversation(messages=messages)
        try:
            (sample,) = exact.mask(conversation, evidence=True)
        except InputError:
            continue
        try:
            ids, mask = encoded(made, messages)
        except (TypeError, UndefinedError):
            # Tokenisers of transformers leave out a content that is null, for which this template asks.
            assert any(message["content"] is None for message in messages)
            continue
        if "strftime_now" not in template.setup.text:
            assert sample.ids.tolist() == ids
            assert sample.loss_mask.tolist() == mask
        (by_rule,) = ours.mask(conversation, evidence=True)
        assert by_rule.evidence is not None
        less = []
        for token, here, there in zip(
            by_rule.evidence.tokens(by_rule), by_rule.loss_mask.tolist(), sample.loss_mask.tolist(), strict=True
        ):
            piece = by_rule.evidence.text.encode()[token.begin_bytes : token.end_bytes].decode("utf-8", "replace")
            assert here <= there or piece in masks_made.special_tokens(), (name, piece)
            less += [piece] if here < there else []
        rest = re.sub(r"<think>|</think>|\s", "", "".join(less))
        prompt = template.render(messages[:1], add_generation_prompt=True).text
        assert not rest or rest in ("<|endoftext|>", "</s>") or all(piece in prompt for piece in less), (name, less)


def test_ids_are_those_of_transformers(hf: Any) -> None:
    """Also where no mask is compared: templates without blocks, tools."""
    for name in suite_names(generation=False):
        family = FAMILIES[name]
        if "date" in family.features:
            continue
        template = masks_made.template(name)
        made = theirs(hf, template, "bytes")
        masker = masks_made.masker(name, **masks_made.LENIENT)
        for arguments in talks.fixed(family).values():
            if "add_generation_prompt" in arguments or "documents" in arguments:
                continue
            batch = masker.mask_batch([Conversation(messages=arguments["messages"], tools=arguments.get("tools"))])
            expected = made.apply_chat_template(**_named(arguments), tokenize=True, return_dict=True)["input_ids"]
            last = batch.samples[-1]
            assert last.ids.tolist() == expected, name


def _named(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"conversation": arguments["messages"], "tools": arguments.get("tools")}


WORD = re.compile(r"w[a-z]\d+[a-z]w")
KINDS: dict[str, talks.Talk] = {
    "plain": [talks.user("wu0aw"), talks.assistant("wa1aw wa1bw"), talks.user("wu2aw"), talks.assistant("wa3aw")],
    "thinking": [
        talks.user("wu0aw"),
        talks.assistant("wa1aw", reasoning_content="wa1rw wa1sw"),
        talks.user("wu2aw"),
        talks.assistant("wa3aw"),
        talks.user("wu4aw"),
        talks.assistant("wa5aw", reasoning_content="wa5rw"),
    ],
    "tools": [
        talks.user("wu0aw"),
        talks.assistant("", tool_calls=[talks.call("weather", {"place": "wa1cw"})]),
        talks.result("wu2aw"),
        talks.assistant("wa3aw"),
        talks.user("wu4aw"),
        talks.assistant("wa5aw"),
    ],
}
"""Every word of an assistant begins with ``wa`` and is its own; all others must not be trained."""
ALL = sorted(
    path.name.removesuffix(".jinja")
    for path in ((resources.files("trl") / "chat_templates").iterdir() if find_spec("trl") else ())
    if path.name.endswith(".jinja") and not re.search("idefics|smolvlm", path.name)  # these want contents in parts
)
ENDS = {"<|observation|>": ("<|endoftext|>", "<|user|>", "<|observation|>"), "<turn|>": ("<turn|>", "<|tool_response>")}
"""What ``generation_config.json`` of GLM and Gemma 4 declares, by a token of their templates."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ALL)
def test_the_defaults_take_templates_of_trl(name: str, kind: str) -> None:
    """Each word of an assistant is trained once, after a text that the template gives a model to go on from."""
    text = (resources.files("trl") / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")
    template = ChatTemplate.from_text(text, special_tokens={"bos_token": "<s>", "eos_token": "</s>"}, now=talks.NOW)
    special = sorted({*re.findall(r"<\|[a-zA-Z_]+\|?>|<[a-z_]+\|>|<｜[^｜]+｜>|<end_of_turn>", text), "</s>"})  # noqa: RUF001
    ends = next((ends for token, ends in ENDS.items() if token in text), ())
    marker = Marker(
        template, MaskOptions(on_unwritten_tool_calls="allow", on_unwritten_tools="allow"), special, (), ends
    )
    tools = talks.TOOLS[:1] if kind == "tools" else None
    try:
        whole = template.render(KINDS[kind], tools=tools).text
    except InputError:
        pytest.skip("the template refuses such conversations")
    last = {word for message in KINDS[kind][-2:] for word in WORD.findall(str(message))}
    if not last <= set(WORD.findall(whole)) or (kind == "tools" and "wa1cw" not in whole):
        pytest.skip("the template does not write them")
    [texts] = marker.mark([Conversation(messages=KINDS[kind], tools=tools)], with_all=False)
    trained = [
        word
        for marked in texts
        for piece in marked.pieces
        if piece.is_trained
        for word in WORD.findall(marked.text[piece.begin : piece.end])
    ]
    assert all(word.startswith("wa") for word in trained)
    assert len(trained) == len(set(trained))
    assert {word for word in WORD.findall(str(KINDS[kind])) if word.startswith("wa")} == set(trained)
    assert all(marked.text[begin:end].strip() in special for marked in texts for begin, end in marked.ends)
