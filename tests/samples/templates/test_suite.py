"""The templates of the suite: what is said of each holds, and their texts are those that Transformers renders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import talks
from counts import cases
from headrace.errors import InputError
from headrace.samples.templates import ChatTemplate, Rendered, find, suite_names
from headrace.samples.templates.suite import FAMILIES

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/chat_templates/renderings.json").read_text(encoding="utf-8"))
STABLE = sorted(name for name, family in FAMILIES.items() if not family.unstable)

# A conversation of which a prefix is not how the whole begins, for each family that says so.
UNSTABLE: dict[str, dict[str, Any]] = {
    "deepseek-r1": {"messages": talks.THINKING},
    "glm4.5": {"messages": talks.THINKING},
    "gpt-oss": {"messages": talks.TWO},
    "magistral": {"messages": talks.CALLED, "tools": talks.TOOLS},
    "mistral-nemo": {"messages": talks.SYSTEM},
    "mistral-v3": {"messages": talks.SYSTEM},
    "mistral-v7": {"messages": talks.CALLED, "tools": talks.TOOLS},
    "phi3": {"messages": talks.TWO},
    "phi4-mini": {"messages": talks.TWO},
    "qwen3": {"messages": talks.THINKING},
}


def template(name: str) -> ChatTemplate:
    return ChatTemplate.load(name, now=talks.NOW)


def turns(name: str, messages: talks.Talk, **options: Any) -> Iterator[tuple[str, str, Rendered]]:
    """For each assistant's turn: the text before it with a generation prompt, the text with it, and the whole."""
    compiled = template(name)
    whole = compiled.render(messages, **options)
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            before = compiled.render(messages[:number], add_generation_prompt=True, **options).text
            yield before, compiled.render(messages[: number + 1], **options).text, whole


@pytest.mark.parametrize("name", suite_names())
def test_texts_are_those_of_transformers(name: str) -> None:
    family = FAMILIES[name.removesuffix("-generation")]
    golden = GOLDEN[name.removesuffix("-generation") + "-generation"]
    conversations = talks.fixed(family)
    assert golden.keys() == conversations.keys()
    compiled = template(name)
    for talk, arguments in conversations.items():
        options = dict(arguments)
        assert compiled.render(options.pop("messages"), **options).text == golden[talk], talk


def test_each_template_comes_twice() -> None:
    assert len(FAMILIES) >= 30
    assert sorted(GOLDEN) == suite_names(generation=True)
    assert suite_names(generation=False) == sorted(FAMILIES)
    assert not template("chatml").has_generation
    assert template("chatml-generation").has_generation
    assert find("chatmll") is None
    assert find("generation") is None


def test_every_file_belongs_to_a_family() -> None:
    folder = Path(talks.__file__).parents[1] / "src/headrace/samples/templates/suite"
    assert {path.stem for path in folder.iterdir()} == {family.file or name for name, family in FAMILIES.items()}


@pytest.mark.parametrize("name", STABLE)
@settings(max_examples=cases(4, 60), deadline=None)
@given(data=st.data())
@pytest.mark.sampled(17)
def test_prefixes_are_how_the_whole_begins(name: str, data: st.DataObject) -> None:
    messages = data.draw(talks.talks(FAMILIES[name]))
    spans = iter(template(name + "-generation").render(messages).generation_spans)
    for before, after, whole in turns(name, messages):
        assert after.startswith(before)
        assert whole.text.startswith(after)
        begin, end = next(spans)
        # What the model writes begins where the generation prompt ends, and the block says the same.
        assert begin == len(before)
        assert end <= len(after)


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - set(STABLE)))
def test_what_is_called_unstable_is(name: str) -> None:
    arguments = dict(UNSTABLE[name])
    found = list(turns(name, arguments.pop("messages"), **arguments))
    assert not all(after.startswith(before) and whole.text.startswith(after) for before, after, whole in found)


def test_roles_must_take_turns_where_a_family_says_so() -> None:
    for name, family in FAMILIES.items():
        if not family.any_order:
            with pytest.raises(InputError, match="assistant"):
                template(name).render([talks.user("a"), talks.user("b")])
    with pytest.raises(InputError, match="system"):
        template("gemma").render(talks.SYSTEM)


def test_special_tokens_of_a_tokeniser_win(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "^", "eos_token": {"content": "$"}}')
    compiled = ChatTemplate.load("zephyr-generation", tokenizer=tmp_path)
    assert compiled.render(talks.ONE).text == "<|user|>\nHi there$\n<|assistant|>\nHello!$\n"
    assert compiled.end_of_turn == "$"
    assert compiled.source == "suite:zephyr-generation"


def test_the_table_of_the_docs_is_the_suite() -> None:
    page = (Path(talks.__file__).parents[1] / "docs/chat-templates.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in page.splitlines()
        if line.startswith("| `")
    ]
    table = {row[0].strip("`"): row for row in rows if row[0].strip("`") in FAMILIES}
    assert table.keys() == FAMILIES.keys()
    for name, family in FAMILIES.items():
        assert table[name][-1] == (f"no: {family.unstable}" if family.unstable else "hold"), name
        known = [*(["system"] if "system" in family.roles else []), *family.features]
        assert table[name][-2] == ", ".join(known), name
