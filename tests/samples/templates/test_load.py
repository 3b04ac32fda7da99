"""Where templates and special tokens come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, InputError
from headrace.samples.templates import ChatTemplate, special_tokens

HI = [{"role": "user", "content": "Hi"}]


def write(folder: Path, **files: Any) -> Path:
    """`config`, `map` and `old` are JSON; `jinja` is the file of its own, `more` those beside it."""
    names = {"config": "tokenizer_config.json", "map": "special_tokens_map.json", "old": "chat_template.json"}
    for key, name in names.items():
        if key in files:
            (folder / name).write_text(json.dumps(files[key]))
    if "jinja" in files:
        (folder / "chat_template.jinja").write_text(files["jinja"])
    for name, text in files.get("more", {}).items():
        (folder / "additional_chat_templates").mkdir(exist_ok=True)
        (folder / "additional_chat_templates" / f"{name}.jinja").write_text(text)
    return folder


def test_files_win_over_the_configuration_and_that_over_the_old_file(tmp_path: Path) -> None:
    write(tmp_path, old={"chat_template": "old"})
    old = ChatTemplate.load(tmp_path)
    assert (old.render(HI).text, old.source) == ("old", str(tmp_path / "chat_template.json"))
    write(tmp_path, config={"chat_template": "config", "bos_token": "^"})
    config = ChatTemplate.load(tmp_path)
    assert (config.render(HI).text, config.source) == ("config", str(tmp_path / "tokenizer_config.json"))
    write(tmp_path, jinja="file {{ bos_token }}")
    file = ChatTemplate.load(tmp_path)
    assert (file.render(HI).text, file.source) == ("file ^", str(tmp_path / "chat_template.jinja"))


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": name, "template": name[0]} for name in ("default", "tool_use", "rag")]
    write(tmp_path, config={"chat_template": named})
    template = ChatTemplate.load(tmp_path)
    assert template.render(HI).text == "d"
    assert template.render(HI, tools=[]).text == "t"
    assert ChatTemplate.load(tmp_path, name="default").render(HI, tools=[]).text == "d"
    assert ChatTemplate.load(str(tmp_path), name="rag").render(HI, tools=[]).text == "r"
    with pytest.raises(ConfigError, match=r"'nope'.*'default'.*'rag'"):
        ChatTemplate.load(tmp_path, name="nope")
    # Files of their own hide all of the configuration, the default among it.
    write(tmp_path, more={"rag": "R"})
    with pytest.raises(ConfigError, match=r"'rag'.*`name`"):
        ChatTemplate.load(tmp_path)
    rag = ChatTemplate.load(tmp_path, name="rag")
    assert (rag.setup.name, rag.source) == ("rag", str(tmp_path / "additional_chat_templates/rag.jinja"))
    write(tmp_path, jinja="D")
    assert ChatTemplate.load(tmp_path).render(HI, tools=[]).text == "D"
    assert ChatTemplate.load(tmp_path, name="rag").render(HI).text == "R"
    write(tmp_path, more={"default": "of the folder"})
    assert ChatTemplate.load(tmp_path).render(HI).text == "of the folder"


def test_a_file_is_a_template_with_the_tokens_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_bytes("{{ bos_token }}é\r\nx\n".encode())
    write(tmp_path, config={"bos_token": "^"})
    assert ChatTemplate.load(path).render(HI).text == "^é\nx"
    other = tmp_path / "other"
    other.mkdir()
    write(other, config={"bos_token": "!"})
    assert ChatTemplate.load(path, tokenizer=other).render(HI).text == "!é\nx"
    (other / "tokenizer.json").write_text("{}")
    assert ChatTemplate.load(path, tokenizer=other / "tokenizer.json").render(HI).text == "!é\nx"
    assert ChatTemplate.load(path, tokenizer=other).setup.name == "default"


@pytest.mark.parametrize(
    ("config", "more", "tokens"),
    [
        ({}, {}, {}),
        ({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None}, {}, ("<s>", "</s>")),
        # Without an added_tokens_decoder the file is an old one, and the map wins.
        ({"bos_token": "a", "eos_token": "b"}, {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}, ("<s>", "</s>")),
        ({"bos_token": "<s>", "eos_token": "</s>", "added_tokens_decoder": {}}, {"bos_token": "x"}, ("<s>", "</s>")),
        ({"special_tokens": {"bos_token": "<s>", "eos_token": "x"}, "eos_token": "</s>"}, {}, ("<s>", "</s>")),
        ({"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "X"}, {}, ("<s>", "</s>")),
    ],
)
def test_special_tokens(tmp_path: Path, config: Any, more: Any, tokens: Any) -> None:
    write(tmp_path, config=config, **({"map": more} if more else {}))
    assert special_tokens(tmp_path) == dict(zip(("bos_token", "eos_token"), tokens, strict=False))


def test_tokens_of_the_model_are_special_too(tmp_path: Path) -> None:
    write(tmp_path, config={"image_token": "<i>", "extra_special_tokens": {"audio": "<a>"}, "fim_token": 3})
    assert special_tokens(tmp_path) == {"image_token": "<i>", "audio": "<a>"}


def test_what_is_not_there_says_what_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"chat_template.jinja"):
        ChatTemplate.load(tmp_path)
    with pytest.raises(ConfigError, match=r"'chatlm'.*'chatml'"):
        ChatTemplate.load("chatlm")
    with pytest.raises(ConfigError, match=r"'chatml'.*'rag'"):
        ChatTemplate.load("chatml", name="rag")
    with pytest.raises(ConfigError, match=r"tokeniser's.*tokenizer\.json"):
        ChatTemplate.load("chatml", tokenizer=tmp_path / "nothing")
    path = write(tmp_path, jinja="x", config={}) / "chat_template.jinja"
    with pytest.raises(ConfigError, match="'rag'"):
        ChatTemplate.load(path, name="rag")
    with pytest.raises(ConfigError, match="folder"):
        ChatTemplate.load(tmp_path / "tokenizer_config.json")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path, config={"chat_template": 3})
    with pytest.raises(InputError, match=r"tokenizer_config.json.*chat_template.*3"):
        ChatTemplate.load(tmp_path)
    for text in ("{", "[]"):
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(InputError, match=r"tokenizer_config.json.*JSON"):
            ChatTemplate.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(InputError, match=r"chat_template.jinja.*2.*UTF-8"):
        ChatTemplate.load(tmp_path)


def test_a_folder_of_the_name_of_one_of_ours_is_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chatml").mkdir()
    write(tmp_path / "chatml", jinja="mine")
    monkeypatch.chdir(tmp_path)
    assert ChatTemplate.load("chatml").render(HI).text == "mine"


def test_a_folder_without_special_tokens_leaves_a_family_its_own(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    alone = ChatTemplate.load("mistral-v7").render(HI).text
    assert alone.startswith("<s>")
    assert ChatTemplate.load("mistral-v7", tokenizer=tmp_path).render(HI).text == alone
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "[B]", "eos_token": "[E]"}')
    assert ChatTemplate.load("mistral-v7", tokenizer=tmp_path).render(HI).text.startswith("[B]")
