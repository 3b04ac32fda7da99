"""The folders that the examples of README, docs and docstrings run in.

Those of README and docs hold

    data/part-0.jsonl, data/part-1.jsonl     text
    data/web.bin, data/web.idx               the same, as a bare pair
    images/                                  20 pictures, each with its caption
    tokenizer.json                           one id a word
    my_filters.py                            the function of docs/prepare.md
    stores/web, stores/code                  prepared

Those of docstrings hold, in addition

    stores/chats, stores/preferences, stores/prompts     prepared by recipes
    stores/rollouts                                      groups of responses with rewards
    shards                                               the pictures as tar shards
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

from headrace.cli import main
from headrace.preparing import PrepareOptions, TokenOptions, prepare
from headrace.samples.recipe import parse_recipe
from headrace.stores import KeyedWriter

ROOT = Path(__file__).parents[2]
WORDS = ["<|endoftext|>", "[UNK]", *(f"word{number}" for number in range(998))]
FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder as a reader has it before the first block."""
    folder = tmp_path_factory.mktemp("docs") / "template"
    draw = np.random.default_rng(0)
    words = np.array(WORDS[2:])
    for name, num_documents in (("data", 400), ("more", 160)):
        (folder / name).mkdir(parents=True)
        texts = [" ".join(words[draw.integers(0, len(words), draw.integers(1, 500))]) for _ in range(num_documents)]
        for part in range(2):
            rows = list(enumerate(texts))[part::2]
            lines = [json.dumps({"id": number, "text": text}) + "\n" for number, text in rows]
            (folder / name / f"part-{part}.jsonl").write_text("".join(lines))
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, output in (("data", "web"), ("more", "code")):
        options = PrepareOptions(tokens=TokenOptions(append_eod=True), workers=1)
        prepare([folder / name], folder / "stores" / output, tokenizer=folder / "tokenizer.json", options=options)
    page = (ROOT / "docs/prepare.md").read_text(encoding="utf-8")
    [code] = [match[2] for match in FENCE.finditer(page) if match[2].startswith("# my_filters.py")]
    (folder / "my_filters.py").write_text(code)
    for suffix in (".bin", ".idx"):
        shutil.copy(folder / "stores" / "web" / f"text_document{suffix}", folder / "data" / f"web{suffix}")
    shutil.rmtree(folder / "more")
    (folder / "images").mkdir()
    for number in range(20):
        pixels = draw.integers(0, 256, (24 + number, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number:03}.jpg")
        (folder / "images" / f"{number:03}.txt").write_text(f"a picture of {WORDS[number + 2]}")
    return folder


RECORDS = {
    "chats": {
        "messages": [{"role": "user", "content": "word1 word2"}, {"role": "assistant", "content": "word3 word4"}]
    },
    "preferences": {"prompt": "word1 word2", "chosen": "word3 word4", "rejected": "word5"},
    "prompts": {"prompt": [{"role": "user", "content": "word1 word2"}], "answer": "word3"},
}
TYPES = {"chats": "sft", "preferences": "dpo", "prompts": "prompt"}


@pytest.fixture(scope="session")
def docstring_template(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with records for fine-tuning, preferences and rollouts, and with tar shards."""
    folder = tmp_path_factory.mktemp("docstrings") / "template"
    shutil.copytree(template, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    (folder / "chat-tokenizer").mkdir()
    tokenizer.save(str(folder / "chat-tokenizer" / "tokenizer.json"))
    for name, record in RECORDS.items():
        (folder / f"{name}.jsonl").write_text((json.dumps(record) + "\n") * 40)
        recipe = {"type": TYPES[name], "inputs": str(folder / f"{name}.jsonl"), "template": "chatml"}
        recipe |= {"tokenizer": str(folder / "chat-tokenizer")}
        if name == "preferences":
            recipe["strings"] = "chat"
        prepare(
            [], folder / "stores" / name, recipe=parse_recipe(json.dumps(recipe)), options=PrepareOptions(workers=1)
        )
    record = {"prompts": [2, 3, 4], "responses": [5, 6, 7], "masks": [1, 1, 1], "response_lengths": [2, 1]}
    dtypes = {"prompts": "int32", "responses": "int32", "masks": "uint8", "response_lengths": "int32"}
    with KeyedWriter(folder / "stores" / "rollouts", dtypes=dtypes | {"rewards": "float32"}) as writer:
        values = {key: np.tile(value, 40) for key, value in {**record, "rewards": [1.0, 0.0]}.items()}
        writer.add_documents(values, {key: np.full(40, len(every) // 40) for key, every in values.items()})
        writer.finish()
    arguments = ["media", str(folder / "images"), "--output", str(folder / "shards"), "--split-ratio", "1,0,0"]
    arguments += ["--sample-type", "CaptioningSample", "--field-map", '{"image": "jpg", "caption": "txt"}']
    done = CliRunner().invoke(main, ["prepare", *arguments])
    assert done.exit_code == 0, done.output
    return folder
