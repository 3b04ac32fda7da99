"""Rendering, spans and loading against Transformers' own, and our families against the templates that TRL ships."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import talks
from counts import cases
from headrace.errors import ConfigError, InputError
from headrace.samples.templates import ChatTemplate, TemplateSetup, special_tokens, suite_names
from headrace.samples.templates.suite import FAMILIES

pytestmark = pytest.mark.interop

GOLDEN = Path(__file__).parents[1] / "golden"


class _Fixed(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return talks.NOW


@pytest.fixture(autouse=True, scope="module")
def _dated(hf: Any) -> Iterator[None]:
    from transformers.utils import chat_template_utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat_template_utils, "datetime", _Fixed)
        yield


def tokenizer(hf: Any, text: str, tokens: dict[str, str]) -> Any:
    """A tokeniser of bytes, so that every character has a token of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytewise = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytewise.decoder = decoders.ByteLevel()
    return hf.PreTrainedTokenizerFast(tokenizer_object=bytewise, chat_template=text, **tokens)


def theirs(made: Any, messages: talks.Talk, **options: Any) -> str | None:
    """Their text, or None where they refuse.

    A content that is null is none, as their renderer has it; their tokenisers leave it out before. That is what we do
    for templates that would write the word.
    """

    def text_of(render: Callable[[], Any]) -> str | None:
        try:
            return str(render())
        except Exception:  # of any kind: what counts is that there is no text
            return None

    without = text_of(lambda: made.apply_chat_template(messages, tokenize=False, **options))
    if all(message.get("content", "") is not None for message in messages):
        return without
    from transformers.utils.chat_template_utils import render_jinja_template

    more = {"chat_template": made.chat_template, **made.special_tokens_map, **options}
    whole = text_of(lambda: render_jinja_template(conversations=[messages], **more)[0][0])
    filled = [{**message, "content": message.get("content") or ""} for message in messages]
    empty = text_of(lambda: made.apply_chat_template(filled, tokenize=False, **options))
    if whole is None or (empty is None and re.search("None|null", whole)):
        return without
    is_written = any(whole.count(word) > (empty or "").count(word) for word in ("None", "null"))
    return without if is_written else whole


def ours(template: ChatTemplate, messages: talks.Talk, **options: Any) -> str | None:
    try:
        return template.render(messages, **options).text
    except (InputError, ConfigError):
        return None


@st.composite
def requests(draw: st.DrawFn, name: str) -> tuple[talks.Talk, dict[str, Any]]:
    """A conversation and options, mostly such as the family takes, sometimes not."""
    family = FAMILIES[name]
    messages = draw(talks.talks(family))
    if "tools" in family.features and draw(st.booleans()):
        arguments = draw(st.sampled_from([{"place": "Bern", "days": [1]}, {}, '{"place": "Bern"}']))
        called = talks.assistant(draw(st.none() | talks.texts()), tool_calls=[talks.call("weather", arguments)])
        messages = [talks.user(draw(talks.texts())), called, talks.result(draw(talks.texts())), *messages[-1:]]
    messages = messages[: draw(st.integers(1, len(messages)))]
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["tools"] = talks.TOOLS
    if draw(st.booleans()):
        options["documents"] = talks.DOCUMENTS
    if draw(st.integers(0, 3)) == 0:
        options["enable_thinking"] = draw(st.booleans())
    ending = draw(st.sampled_from(["none", "prompt", "continue"]))
    if ending == "prompt":
        options["add_generation_prompt"] = True
    elif ending == "continue":
        options["continue_final_message"] = draw(st.sampled_from([True, "reasoning_content"]))
    return messages, options


@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", suite_names(generation=True))
def test_texts_are_equal(hf: Any, name: str) -> None:
    template = ChatTemplate.load(name, now=talks.NOW)
    plain = ChatTemplate.load(name.removesuffix("-generation"), now=talks.NOW)
    made = tokenizer(hf, template.setup.text, template.special_tokens)

    @settings(max_examples=cases(12, 400), deadline=None)
    @given(requests(name.removesuffix("-generation")))
    def check(request: tuple[talks.Talk, dict[str, Any]]) -> None:
        messages, options = request
        expected = theirs(made, messages, **options)
        assert ours(template, messages, **options) == expected
        assert ours(plain, messages, **options) == expected

    check()


@pytest.mark.parametrize("name", suite_names(generation=True))
def test_spans_are_those_of_the_assistant_mask(hf: Any, name: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    template = ChatTemplate.load(name, now=talks.NOW)
    # The special tokens are arguments here and no tokens, so that each byte of the text has a token of its own.
    made = tokenizer(hf, template.setup.text, {})

    @settings(max_examples=cases(6, 200), deadline=None)
    @given(talks.talks(FAMILIES[name.removesuffix("-generation")]))
    def check(messages: talks.Talk) -> None:
        rendered = template.render(messages)
        _, (spans,) = render_jinja_template(
            conversations=[messages],
            chat_template=template.setup.text,
            return_assistant_tokens_mask=True,
            **template.special_tokens,
        )
        assert rendered.generation_spans == tuple(spans)
        if template.end_of_turn is None:
            return  # of a last character of several bytes, Transformers' mask takes the first byte only
        encoded = made.apply_chat_template(
            messages, return_assistant_tokens_mask=True, return_dict=True, **template.special_tokens
        )
        expected = [0] * len(encoded["input_ids"])
        for begin, end in rendered.generation_spans:
            first, last = len(rendered.text[:begin].encode()), len(rendered.text[:end].encode())
            expected[first:last] = [1] * (last - first)
        assert encoded["assistant_masks"] == expected

    check()


PIECES = [
    "{{ messages[0].content }}",
    "{{- messages[-1]['content'] -}}",
    "{% for m in messages %}",
    "{%- for m in messages if m.role == 'user' -%}",
    "{% endfor %}",
    "{%- endfor -%}",
    "{% if add_generation_prompt %}",
    "{% else %}",
    "{% endif %}",
    "{% generation %}",
    "{%- endgeneration -%}",
    "{%+ generation +%}",
    "{% endgeneration %}",
    "{% set x = messages | length %}",
    "{{ x }}",
    "{{ loop.index }}",
    "{% break %}",
    "{{ messages | tojson }}",
    "{{ m.role | default('?') }}",
    "{{ messages[0].content * 2 }}",
    "{{ [1, 2] * 2 }}",
    "{# c #}",
    "\n",
    "  ",
    "text\n",
]


def nested(pieces: list[str]) -> bool:
    """Whether a generation block stands in another one."""
    depth = deepest = 0
    for piece in pieces:
        if "generation" in piece and "add_generation_prompt" not in piece:
            depth += -1 if "endgeneration" in piece else 1
        deepest = max(deepest, depth)
    return deepest > 1


def test_any_template_renders_the_same(hf: Any) -> None:
    """Templates put together at random: where Transformers gives a text and spans, so do we, and the same ones."""
    from transformers.utils.chat_template_utils import render_jinja_template

    compared = 0

    @settings(max_examples=cases(200, 40_000), deadline=None)
    @given(st.lists(st.sampled_from(PIECES), max_size=9))
    def check(pieces: list[str]) -> None:
        nonlocal compared
        text = "".join(pieces)
        try:
            (expected,), (spans,) = render_jinja_template(
                conversations=[talks.TWO], chat_template=text, return_assistant_tokens_mask=True
            )
        except Exception:
            return
        if nested(pieces):
            return  # whose place Transformers does not count from the right beginning: refused here
        rendered = ChatTemplate.from_text(text).render(talks.TWO)
        compared += 1
        assert rendered.text == expected
        assert rendered.generation_spans == tuple(spans)

    check()
    assert compared > cases(10, 1_000)


# Ours and theirs, and conversations in which they differ on purpose: the prose around tools, default system prompts.
PUBLISHED = {
    "command-r": "cohere",
    "gemma": "gemma",
    "gemma3": "gemma3",
    "glm4.5": "glm4moe",
    "lfm2": "lfm2_v2",
    "llama3": "llama3",
    "llama3.1": "llama3_1",
    "llama3.2": "llama3_2",
    "phi3": "phi3_5",
    "qwen2.5": "qwen2_5",
    "qwen3": "qwen3",
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_families_are_rendered_as_published(hf: Any, name: str) -> None:
    trl = pytest.importorskip("trl")
    template = ChatTemplate.load(name, now=talks.NOW)
    source = Path(trl.__file__).parent / "chat_templates" / f"{PUBLISHED[name]}.jinja"
    if not source.exists():
        pytest.skip(f"this TRL has no {source.name}")
    published = ChatTemplate(
        TemplateSetup(text=source.read_text(encoding="utf-8"), special_tokens=template.special_tokens, now=talks.NOW)
    )
    compared = 0
    for talk, arguments in talks.fixed(FAMILIES[name]).items():
        options = dict(arguments)
        messages = options.pop("messages")
        # Calls and results without the list of tools, whose prose is our own; a system prompt where ours has another.
        options.pop("tools", None)
        if name == "qwen2.5" and messages[0]["role"] != "system":
            messages = [talks.system("Be brief."), *messages]
        if name == "lfm2" and talk.startswith("tools"):
            continue  # strings of arguments in other quotes
        assert template.render(messages, **options).text == published.render(messages, **options).text, talk
        compared += 1
    assert compared >= 4


def test_any_published_template_gives_the_same_text(hf: Any) -> None:
    """The templates that TRL ships, as foreign ones: our engine against Transformers'."""
    trl = pytest.importorskip("trl")
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    files = sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))
    family = FAMILIES["qwen3"]
    compared = 0
    for file in files:
        text = file.read_text(encoding="utf-8")
        made = tokenizer(hf, text, tokens)
        template = ChatTemplate.from_text(text, special_tokens=tokens, now=talks.NOW)
        for talk, arguments in talks.fixed(family).items():
            options = dict(arguments)
            messages = options.pop("messages")
            expected = theirs(made, messages, **options)
            assert ours(template, messages, **options) == expected, (file.name, talk)
            compared += expected is not None
    assert compared > 5 * len(files)


NAMED = [{"name": "default", "template": "cd {{ bos_token }}"}, {"name": "tool_use", "template": "ct"}]
FOLDERS: list[dict[str, Any]] = [
    {"config": {"chat_template": "c {{ bos_token }}{{ eos_token }}", "bos_token": "<s>", "eos_token": "</s>"}},
    {"config": {"chat_template": NAMED, "bos_token": "<s>"}},
    {"config": {"chat_template": "c"}, "jinja": "j {{ bos_token }}", "map": {"bos_token": {"content": "<s>"}}},
    {"config": {"chat_template": NAMED}, "jinja": "j", "more": {"tool_use": "t", "rag": "r"}},
    {"config": {"chat_template": NAMED}, "more": {"default": "only d"}},
    {"config": {}, "jinja": "j", "more": {"default": "d wins"}},
    {"config": {"chat_template": "c {{ bos_token }}", "bos_token": "a"}, "map": {"bos_token": "<s>"}},
    {
        "config": {"chat_template": "c {{ bos_token }}", "bos_token": "a", "added_tokens_decoder": {}},
        "map": {"bos_token": "<s>"},
    },
    {
        "config": {
            "chat_template": "c {{ image_token }}{{ audio_token }}{{ bos_token }}",
            "image_token": "<i>",
            "extra_special_tokens": {"audio_token": "<a>"},
            "bos_token": {"__type": "AddedToken", "content": "<s>"},
        }
    },
    {"config": {"chat_template": "c\r\nx {{ bos_token is defined }}\n"}},
    {"config": {}, "jinja": "c\r\nx {{ pad_token }}\n", "map": {"pad_token": "<p>", "mask_token": "<m>"}},
]


@pytest.mark.parametrize("number", range(len(FOLDERS)))
def test_folders_are_read_alike(hf: Any, tmp_path: Path, number: int) -> None:
    folder = FOLDERS[number]
    tokenizer(hf, "x", {}).backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **folder["config"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if "map" in folder:
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(folder["map"]))
    if "jinja" in folder:
        (tmp_path / "chat_template.jinja").write_bytes(folder["jinja"].encode())
    for name, text in folder.get("more", {}).items():
        (tmp_path / "additional_chat_templates").mkdir(exist_ok=True)
        (tmp_path / "additional_chat_templates" / f"{name}.jinja").write_text(text)
    made = hf.AutoTokenizer.from_pretrained(tmp_path)
    template = ChatTemplate.load(tmp_path)
    assert special_tokens(tmp_path) == made.special_tokens_map
    for options in ({}, {"tools": []}, {"tools": talks.TOOLS}):
        assert template.render(talks.ONE, **options).text == theirs(made, talks.ONE, **options)
    if isinstance(made.chat_template, dict):
        for name in made.chat_template:
            named = ChatTemplate.load(tmp_path, name=name)
            assert named.render(talks.ONE).text == theirs(made, talks.ONE, chat_template=name)


def test_the_golden_file_is_made_again(hf: Any, tmp_path: Path) -> None:
    script = GOLDEN / "make_chat_templates.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, capture_output=True)
    made = (tmp_path / "renderings.json").read_bytes()
    assert made == (GOLDEN / "chat_templates/renderings.json").read_bytes()
