"""What a turn trains is its content and its end: of templates whose every character is known by construction.

A template is drawn from families (how headers, ends and joints are written, what is stripped from earlier turns), and
written twice: in Jinja, and as segments that say what each stretch of the text is. These judge every trained byte,
under any options.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import AddedToken, Tokenizer

import masks_made
import talks
from counts import cases
from headrace.samples import Conversation
from headrace.samples.masking import MaskOptions
from headrace.samples.masking.marking import Marker
from headrace.samples.templates import ChatTemplate
from talks import assistant, system, user

ROLES = ("system", "user", "assistant")
SPECIAL = ["<|start|>", "<|mid|>", "<|eot|>", "<|close|>", "<|bos|>", "<|system|>", "<|user|>", "<|assistant|>"]


class Made(NamedTuple):
    """A template by what it writes."""

    headers: dict[str, str]
    preamble: str = ""
    """Before all messages."""
    end: str = "<|eot|>"
    """Behind each message."""
    joint: str = ""
    """Behind that."""
    closing: str = ""
    """At the end, where no generation prompt is asked for."""
    next_header: Literal["asked", "always", "never"] = "asked"
    opens_thought: bool = False
    """The generation prompt goes on with ``<think>``."""
    strips: Literal["nothing", "earlier", "unless last"] = "nothing"
    """Thoughts are taken off all answers but the last; off all but one that ends the text without a prompt."""
    is_before: bool = False
    """End and joint are written before each message but the first, and before the generation prompt."""

    @property
    def jinja(self) -> str:
        def quoted(text: str) -> str:
            return "{{ " + repr(text) + " }}"

        end = quoted(self.end + self.joint)
        header = "{% if r == 'user' %}USER{% elif r == 'system' %}SYSTEM{% else %}ASSISTANT{% endif %}"
        for role in ROLES:
            header = header.replace(role.upper(), quoted(self.headers[role]))
        content = "{{ m.content }}"
        if self.strips != "nothing":
            last = "loop.index0 == ns.last"
            if self.strips == "unless last":
                last = "(loop.last and not add_generation_prompt)"
            content = (
                "{% if m.role != 'assistant' or " + last + " %}{{ m.content }}{% else %}"
                "{{ m.content.split('</think>')[-1] }}{% endif %}"
            )
        asked = quoted(self.headers["assistant"]) + ("<think>" if self.opens_thought else "")
        if self.is_before:
            asked = end + asked
        tail = {
            "asked": "{% if add_generation_prompt %}" + asked + "{% else %}" + quoted(self.closing) + "{% endif %}",
            "always": asked,
            "never": quoted(self.closing),
        }[self.next_header]
        before = "{% if not loop.first %}" + end + "{% endif %}" if self.is_before else ""
        behind = "" if self.is_before else end
        return (
            quoted(self.preamble)
            + "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'assistant' %}"
            + "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{% set r = m.role %}"
            + before
            + header
            + content
            + behind
            + "{% endfor %}"
            + tail
        )

    def segments(self, messages: talks.Talk) -> list[tuple[str, str, int]]:
        """Text, what it is, and the message: of the whole without a generation prompt."""
        found = [(self.preamble, "preamble", -1)]
        last = max((number for number, one in enumerate(messages) if one["role"] == "assistant"), default=-1)
        for number, message in enumerate(messages):
            if self.is_before and number:
                found.append((self.end + self.joint, "between", number - 1))
            content = message["content"]
            keeps = number == (len(messages) - 1 if self.strips == "unless last" else last)
            if message["role"] == "assistant" and self.strips != "nothing" and not keeps:
                content = content.split("</think>")[-1]
            header = self.headers[message["role"]]
            # Without a generation prompt the space behind a header is left to the word.
            word = header[len(header.rstrip(" ")) :] if self.next_header == "never" else ""
            header = header.removesuffix(word)
            found += [(header, "header", number), (word + content, message["role"], number)]
            if not self.is_before:
                # What stands before the only token that ends a turn is written to get there.
                is_way = not self.end and self.closing and number == len(messages) - 1
                end = f"end of {message['role']}"
                found += [(self.end, end, number), (self.joint, end if is_way else "joint", number)]
        if self.next_header == "always":
            thought = "<think>" if self.opens_thought else ""
            before = self.end + self.joint if self.is_before else ""
            found.append((before + self.headers["assistant"] + thought, "header", len(messages)))
        else:
            found.append((self.closing, "closing", -1))
        return [one for one in found if one[0]]


STYLES = [
    {role: f"<|start|>{role}<|mid|>" for role in ROLES},
    {role: f"<|start|><|{role}|>" for role in ROLES},
    {role: f"<|{role}|>\n" for role in ROLES},
    {role: f"<|start|>{role}\n" for role in ROLES},
    {role: f"{role.title()}: " for role in ROLES},
]


@st.composite
def templates(draw: st.DrawFn) -> Made:
    headers = draw(st.sampled_from(STYLES))
    end = draw(st.sampled_from(["<|eot|>", "<|eot|>", " <|eot|>", ""]))
    default = headers["system"] + "Be." + end + "\n"
    next_header: Any = draw(st.sampled_from(["asked", "asked", "always", "always", "never"]))
    return Made(
        headers=headers,
        preamble=draw(st.sampled_from(["", "<|bos|>", default, "<|bos|>" + default])),
        end=end,
        joint=draw(st.sampled_from(["", "\n", "\n\n"])),
        closing=draw(st.sampled_from(["", "", "<|close|>", "\n<|close|>"])),
        next_header=next_header,
        opens_thought=draw(st.integers(0, 5)) == 0,
        strips=draw(st.sampled_from(["nothing", "nothing", "earlier", "unless last"])),
        # Before a header that is always written, an end stands behind every message: that is the other case.
        is_before=next_header != "always" and draw(st.integers(0, 5)) == 0,
    )


def tokenizer_json() -> bytes:
    made: Any = Tokenizer.from_str(masks_made.tokenizer_json().decode())
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return bytes(made.to_str().encode())


TOKENIZER = tokenizer_json()
DECLARED = [{}, {"eos_token": "<|eot|>"}, {"eos_token": "<|close|>"}, {"bos_token": "<|bos|>", "eos_token": "<|eot|>"}]


def masked(
    made: Made, messages: talks.Talk, declared: dict[str, str] | None = None, **options: Any
) -> masks_made.MaskedBatch:
    template = ChatTemplate.from_text(made.jinja, special_tokens=declared or {})
    masker = masks_made.Masker(template, TOKENIZER, options=MaskOptions(**options))
    conversation = Conversation(messages=messages)
    batch = masker.mask_batch([conversation], evidence=True)
    quick = masker.mask_batch([conversation])
    assert quick.loss_mask == batch.loss_mask
    assert quick.counts == batch.counts
    return batch


def trained(made: Made, messages: talks.Talk, batch: masks_made.MaskedBatch) -> list[dict[int, str]]:
    """Of each sample, the trained text of each message; fails where a trained byte is nobody's content or end."""
    samples = []
    for sample in batch.samples:
        assert sample.evidence is not None
        text = sample.evidence.text
        count = next(n for n in range(len(messages), 0, -1) if text == joined(made, messages[:n]))
        kinds: list[tuple[str, int]] = []
        for piece, kind, number in made.segments(messages[:count]):
            kinds += [(kind, number)] * len(piece.encode())
        found: dict[int, bytearray] = {}
        for token in sample.evidence.tokens(sample):
            if token.is_trained:
                for place in range(token.begin_bytes, token.end_bytes):
                    kind, number = kinds[place]
                    is_closing = kind == "closing" and messages[count - 1]["role"] == "assistant"
                    assert kind in ("assistant", "end of assistant") or is_closing, masks_made.shown(sample)
                    owner = count - 1 if is_closing else number
                    found.setdefault(owner, bytearray()).append(text.encode()[place])
        samples.append({number: bytes(text).decode("utf-8", "replace") for number, text in found.items()})
    return samples


def joined(made: Made, messages: talks.Talk) -> str:
    return "".join(piece for piece, _, _ in made.segments(messages))


@st.composite
def conversations(draw: st.DrawFn) -> talks.Talk:
    """Roles in any order, with an assistant; thoughts in the content; texts that hold the template's own markers."""
    texts = st.sampled_from(["Hi", "so?", "Yes.", "a b", "<|eot|>", "assistant", "<|start|>assistant<|mid|>", "é 7\n"])
    messages: talks.Talk = [system(draw(texts))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages += [user(draw(texts)) for _ in range(draw(st.sampled_from([1, 1, 1, 2])))]
        thought = draw(st.sampled_from(["", "", "<think>hm</think>"]))
        messages += [assistant(thought + draw(texts)) for _ in range(draw(st.sampled_from([1, 1, 1, 2])))]
    return messages


POLICIES: dict[str, list[Any]] = {
    "unstable": ["error", "split", "split", "last_turn", "drop"],
    "on_prompt_mismatch": ["error", "allow", "allow", "drop"],
    "on_untrained_end": ["error", "allow", "allow"],
    "end_of_turn": ["train", "train", "mask", "last"],
    "turns": ["all", "all", "last"],
    "reasoning": ["train", "mask"],
    "empty_reasoning": ["mask", "train"],
}


@settings(max_examples=cases(12, 20_000), deadline=None)
@given(templates(), conversations(), st.sampled_from(DECLARED), st.data())
def test_every_trained_byte_is_an_assistants(
    made: Made, messages: talks.Talk, declared: dict[str, str], data: st.DataObject
) -> None:
    chosen = {name: data.draw(st.sampled_from(values), label=name) for name, values in POLICIES.items()}
    options = {"on_empty_turn": "allow", "on_no_supervised": "allow", "on_all_supervised": "allow", **chosen}
    batch = masked(made, messages, declared, **options)
    samples = trained(made, messages, batch)
    if batch.counts["straddling_tokens"]:
        return
    if chosen["turns"] == "all" and chosen["unstable"] == "split" and chosen["reasoning"] == "train":
        # Each turn that was taken is trained once, whole.
        for number, message in enumerate(messages) if samples else ():
            texts = [one[number] for one in samples if number in one]
            if message["role"] == "assistant":
                assert len(texts) == 1, texts
                # What the prompt says already is no part of the turn.
                said = message["content"].removeprefix("<think>" if made.opens_thought else "")
                assert said.strip() in texts[0]


TWO = [user("Hi"), assistant("Yes"), user("So?"), assistant("No")]
THOUGHTS = [user("Hi"), assistant("<think>1</think>Yes"), user("So?"), assistant("<think>2</think>No")]


@pytest.mark.parametrize("is_before", [False, True])
def test_a_thought_that_is_stripped_where_a_prompt_is_asked_for_and_none_is_written(is_before: bool) -> None:
    """Two answers in a row: with a prompt asked for, the first is written without its thought, and nothing is added."""
    made = Made(STYLES[0], next_header="never", strips="unless last", opens_thought=True, is_before=is_before)
    twice = [user("Hi"), assistant("<think>hm</think>Hi"), assistant("<think>hm</think>Hi")]
    batch = masked(made, twice, unstable="split", on_untrained_end="allow")
    end = "" if is_before else "<|eot|>"
    assert trained(made, twice, batch) == [{1: "<think>hm</think>Hi" + end}, {2: "<think>hm</think>Hi" + end}]


@pytest.mark.parametrize("headers", STYLES[:4])
@pytest.mark.parametrize("joint", ["", "\n"])
@pytest.mark.parametrize("preamble", ["", "<|bos|>", "<|start|>system<|mid|>Be.<|eot|>"])
def test_headers_that_are_always_written(headers: dict[str, str], joint: str, preamble: str) -> None:
    made = Made(headers, preamble=preamble, joint=joint, next_header="always")
    declared = {"eos_token": "<|eot|>"} if preamble.startswith("<|start|>") else {}
    assert trained(made, TWO, masked(made, TWO, declared)) == [{1: "Yes<|eot|>", 3: "No<|eot|>"}]
    silent = made._replace(end="", preamble="")
    assert "ends without a special token" in masked(silent, TWO).refused[0].message
    assert trained(silent, TWO, masked(silent, TWO, on_untrained_end="allow")) == [{1: "Yes", 3: "No"}]


def test_ends_that_only_the_next_message_writes() -> None:
    """The end of the last turn is missing, and those before it are of the next header."""
    made = Made(STYLES[0], is_before=True)
    assert "ends without a special token" in masked(made, TWO).refused[0].message
    assert trained(made, TWO, masked(made, TWO, on_untrained_end="allow")) == [{1: "Yes", 3: "No"}]


def test_ends_that_are_written_at_the_very_end_only() -> None:
    made = Made(STYLES[4], end="", joint="\n", closing="<|close|>")
    assert "differently when more messages follow" in masked(made, TWO, unstable="error").refused[0].message
    for options in ({"unstable": "split"}, {"unstable": "split", "on_prompt_mismatch": "allow"}):
        samples = trained(made, TWO, masked(made, TWO, **options))
        assert [sorted(one) for one in samples] == [[1], [3]]
        assert all("<|close|>" in text for one in samples for text in one.values())


def test_a_template_without_a_generation_prompt_refuses_the_record() -> None:
    refuses = "{% if add_generation_prompt %}{{ raise_exception('no prompt') }}{% endif %}"
    template = ChatTemplate.from_text(refuses + Made(STYLES[0]).jinja)
    [refused] = masks_made.Masker(template, TOKENIZER).mask_batch([Conversation(messages=TWO)]).refused
    assert "no prompt" in refused.message


@pytest.mark.parametrize("strips", ["earlier", "unless last"])
@pytest.mark.parametrize("mismatch", ["error", "allow"])
def test_thoughts_that_are_stripped_from_earlier_turns(strips: Any, mismatch: Any) -> None:
    """Also where the prompt of the last turn still has those of the turn before, as LFM2.5 writes it."""
    made = Made(STYLES[0], joint="\n", strips=strips)
    refused = masked(made, THOUGHTS, unstable="error", on_prompt_mismatch=mismatch).refused[0]
    assert "differently when more messages follow" in refused.message
    batch = masked(made, THOUGHTS, unstable="split", on_prompt_mismatch=mismatch)
    assert trained(made, THOUGHTS, batch) == [{1: "<think>1</think>Yes<|eot|>"}, {3: "<think>2</think>No<|eot|>"}]
    rewritten = {"rewritten_histories": 1} if strips == "earlier" else {}
    assert batch.counts == {"split_records": 1, **rewritten}
    last = masked(made, THOUGHTS, unstable="last_turn", on_prompt_mismatch=mismatch)
    assert trained(made, THOUGHTS, last) == [{3: "<think>2</think>No<|eot|>"}]
    both = [user("Hi"), assistant("<think>1</think>Yes"), assistant("<think>2</think>No")]
    batch = masked(made, both, unstable="split", on_prompt_mismatch=mismatch)
    assert trained(made, both, batch) == [{1: "<think>1</think>Yes<|eot|>"}, {2: "<think>2</think>No<|eot|>"}]


KIMI = (
    "{% for m in messages %}<|start|>{{ m.role }}<|mid|>"
    "{% if m.role == 'assistant' %}<|start|>text<|mid|>{{ m.content }}<|close|>text<|mid|>{% else %}{{ m.content }}"
    "{% endif %}<|close|>message<|mid|><|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|mid|>{% endif %}"
)


@pytest.mark.parametrize("ends", [("<|eot|>",), ("<|close|>", "<|eot|>"), ("<|start|>", "<|eot|>", "<|user|>")])
@pytest.mark.parametrize("is_generation", [False, True])
def test_the_last_declared_end_before_the_next_header_ends_a_turn(ends: tuple[str, ...], is_generation: bool) -> None:
    """Also where tags are closed before it, with tokens that open messages. What a header opens with ends no turn."""
    if not is_generation and "<|start|>" in ends:
        return
    declared = ((), ends) if is_generation else (ends, ())
    marker = Marker(ChatTemplate.from_text(KIMI), MaskOptions(), SPECIAL, *declared)
    [[marked]] = marker.mark([Conversation(messages=TWO)], with_all=False)
    trained = [marked.text[one.begin : one.end] for one in marked.pieces if one.is_trained]
    written = "<|start|>text<|mid|>{}<|close|>text<|mid|><|close|>message<|mid|>"
    assert trained == [written.format("Yes"), "<|eot|>", written.format("No"), "<|eot|>"]


@pytest.mark.parametrize("headers", STYLES[:3])
@pytest.mark.parametrize("strips", ["nothing", "earlier", "unless last"])
@pytest.mark.parametrize("unstable", ["split", "last_turn"])
def test_contents_of_special_tokens_are_not_found_in_the_header(
    headers: dict[str, str], strips: Any, unstable: str
) -> None:
    """Two answers in a row behind headers of special tokens: the end of the question was trained as an answer."""
    made = Made(headers, end=" <|eot|>", closing="\n<|close|>", next_header="never", strips=strips, is_before=True)
    options = {"unstable": unstable, "on_untrained_end": "allow", "on_empty_turn": "allow"}
    messages = [user("Hi"), assistant("<think>hm</think>x"), assistant("<think>hm</think>y"), user("Hi")]
    messages.append(assistant("<|eot|>"))
    samples = trained(made, messages, masked(made, messages, {"eos_token": "<|eot|>"}, **options))
    assert samples[-1][4] == "<|eot|>"


STRADDLES: list[Any] = ["mask", "train"]


def test_a_space_that_ends_a_header_straddles_and_one_that_a_model_writes_does_not() -> None:
    answer = "{{ m.content if m.role == 'user' else HEADER + m.content + '<|eot|>' }}"
    template = "{% for m in messages %}" + answer + "{% endfor %}"
    for header, counts in (("Bot: ", {"straddling_tokens": 1}), (" ", {})):
        tokenizer: Any = Tokenizer.from_str(TOKENIZER.decode())
        tokenizer.add_tokens([AddedToken(" ab", normalized=False)])
        made = ChatTemplate.from_text(template.replace("HEADER", repr(header)), special_tokens={"eos_token": "<|eot|>"})
        for straddle in STRADDLES:
            masker = masks_made.Masker(made, tokenizer.to_str().encode(), options=MaskOptions(straddle=straddle))
            batch = masker.mask_batch([Conversation(messages=[user("Hi"), assistant("ab")])], evidence=True)
            [sample] = batch.samples
            shown = masks_made.shown(sample)
            is_whole = header == " " or straddle == "train"
            assert batch.counts == counts
            assert shown.endswith(f"{header.rstrip()}⟦ ab<|eot|>⟧" if is_whole else "Bot: ab⟦<|eot|>⟧")
