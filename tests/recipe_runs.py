"""Runs of recipes for tests: a model's folder, records of every layout, recipes, and what a store then holds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import headrace
import recipes_made
from headrace.preparing import PrepareOptions, RecordOptions, TokenOptions
from headrace.samples.recipe import parse_recipe
from headrace.stores import Manifest

THINKING = (
    "{% for m in messages %}<|start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last and m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
"""What was thought is shown for the last turn alone, as many templates do."""

SFT = "type: sft\ninputs: data\ntokenizer: model\n"
SFT_SAID = "type: sft\ninputs: [{paths: data, layout: messages}]\ntokenizer: model\n"
DPO = "type: dpo\ninputs: data\ntokenizer: model\n"
GRPO = "type: grpo\ninputs: data\ntokenizer: model\n"

Talk = list[dict[str, Any]]


def make_model(folder: Path, template: str = recipes_made.TEMPLATE) -> Path:
    """A tokeniser's folder with a chat template."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes(recipes_made.tokenizer_json())
    config = {**recipes_made.TOKENS, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def talk(number: int, turns: int = 1) -> Talk:
    """Some messages, of a length that depends on the number."""
    found: Talk = []
    for turn in range(turns):
        found.append({"role": "user", "content": f"Q{number}.{turn} " + "why? " * (number * 7 % 5)})
        answer = {"role": "assistant", "content": "so it is, " * (number * 3 % 7) + f"A{number}"}
        found.append({**answer, "reasoning_content": f"hm {turn}"} if number % 3 == 0 else answer)
    return found


def conversations(count: int) -> list[dict[str, Any]]:
    """Conversations of one to four turns, of three sources, the same 40 again and again."""
    return [
        {"id": f"r{number}", "source": ("web", "code", "books")[number % 7 % 3], "messages": talk(n, 1 + n % 4)}
        for number, n in ((number, number % 40) for number in range(count))
    ]


def pairs(count: int) -> list[dict[str, Any]]:
    """Preference pairs."""
    return [
        {
            "prompt": [talk(number)[0]],
            "chosen": [{"role": "assistant", "content": "yes " * (number % 5 * 4 + 1)}],
            "rejected": [{"role": "assistant", "content": "no " * (number % 3 * 4 + 1)}],
            "source": ("web", "code")[number % 2],
        }
        for number in range(count)
    ]


def groups(count: int) -> list[dict[str, Any]]:
    """Prompts with two to four answers and their rewards."""
    return [
        {
            "prompt": [talk(number)[0]],
            "responses": [[{"role": "assistant", "content": "ok " * (n + 1)}] for n in range(2 + number % 3)],
            "rewards": [n / 4 - number % 2 for n in range(2 + number % 3)],
            "source": ("web", "code")[number % 2],
        }
        for number in range(count)
    ]


def write_lines(path: Path, records: Iterable[Any]) -> Path:
    """JSON Lines; what is a string is a line as it is."""
    lines = (one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in records)
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def prepare(recipe: str, folder: Path, output: Path, **options: Any) -> Manifest:
    """A run of a recipe whose paths are of this folder."""
    return headrace.prepare([], output, recipe=parse_recipe(in_folder(recipe, folder)), options=options_of(**options))


def options_of(*, backend: Any = "tokenizers", id_field: str | None = None, **options: Any) -> PrepareOptions:
    """The options of a run with one worker."""
    tokens, records = TokenOptions(backend=backend), RecordOptions(id_field=id_field)
    return PrepareOptions(**{"workers": 1, **options}, tokens=tokens, records=records)


def in_folder(recipe: str, folder: Path) -> str:
    """The recipe with paths of this folder."""
    for name in ("inputs: data", "paths: data", "tokenizer: model"):
        key, _, value = name.partition(" ")
        recipe = recipe.replace(name, f"{key} {folder / value}")
    return recipe


def documents(path: Path, key: str) -> list[list[Any]]:
    """Of one key the values of all documents of a store."""
    with headrace.open(path) as store:
        return [store.document(number, key).tolist() for number in range(len(store))]


def made(recipe: str, records: Sequence[Any], key: str, template: str = recipes_made.TEMPLATE) -> list[list[Any]]:
    """The same by the maker alone, record by record."""
    if "inputs" not in recipe and "{" not in recipe[:1]:
        recipe += "inputs: data\n"
    chat = recipes_made.ChatTemplate.from_text(template, special_tokens=recipes_made.TOKENS)
    maker = recipes_made.maker(recipe, records, chat=chat)
    return [row for record in records for row in recipes_made.rows(maker.make([record]), key)]
