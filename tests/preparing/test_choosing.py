"""`headrace.prepare` calls the function that fits its arguments, and refuses arguments that do not fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import ConfigError
from headrace.preparing import RecipeOptions, ShardOptions, TextOptions, choosing
from headrace.preparing.energon import EnergonOptions


@pytest.mark.parametrize(
    ("given", "called"),
    [
        ({"tokenizer": "t"}, "prepare_text"),
        ({"tokenizer": "t", "options": TextOptions(deduplicate=True)}, "prepare_text"),
        ({"recipe": "r.yaml"}, "prepare_recipe"),
        ({"recipe": "r.yaml", "tokenizer": "t", "options": RecipeOptions(deduplicate=True)}, "prepare_recipe"),
        ({"options": ShardOptions()}, "prepare_shards"),
    ],
)
@pytest.mark.parametrize("inputs", ["a", Path("a"), ["a"], []])
def test_the_function_that_is_called(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], called: str, inputs: Any
) -> None:
    seen: list[Any] = []
    for name in ("prepare_text", "prepare_recipe", "prepare_shards"):
        monkeypatch.setattr(choosing, name, lambda *args, name=name, **rest: seen.append((name, args, rest)))
    headrace.prepare(inputs, "out", **given, on_progress=print, on_notice=repr)
    ((name, places, rest),) = seen
    wanted = list(inputs) if isinstance(inputs, list) else [inputs]
    assert name == called
    assert places == (("r.yaml", "out") if called == "prepare_recipe" else (wanted, "out"))
    assert rest.get("inputs", wanted) == wanted
    assert (rest["on_progress"], rest["on_notice"], rest["options"]) == (print, repr, given.get("options"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "neither tokenizer nor recipe is given: give tokenizer= for text, recipe= for records, or"),
        ({"options": TextOptions()}, "neither tokenizer nor recipe is given, and options are TextOptions: give"),
        ({"options": EnergonOptions()}, "headrace.preparing.prepare_energon"),
        (
            {"tokenizer": "t", "options": ShardOptions()},
            "options are ShardOptions, but text, which tokenizer= asks for",
        ),
        ({"tokenizer": "t", "options": RecipeOptions()}, "RecipeOptions with recipe="),
        ({"recipe": "r", "options": TextOptions()}, "options are TextOptions, but a recipe takes RecipeOptions."),
    ],
)
def test_arguments_that_do_not_fit(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        headrace.prepare(["a"], "out", **given)
    assert message in str(caught.value)


def test_media(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("text")
    (tmp_path / "in/a.json").write_text(json.dumps({"a": 1}))
    manifest = headrace.prepare(tmp_path / "in", tmp_path / "out", options=ShardOptions(workers=1))
    assert manifest.ledger.documents.kept == len(headrace.open(tmp_path / "out")) == 1
