"""Tokenisers, chat templates and recipes at URLs, in a store in memory: what the local run writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import faults
import recipe_runs
from headrace.errors import ConfigError
from headrace.preparing import RecipeOptions, TextOptions, TokenOptions, estimate_text, prepare_recipe, prepare_text
from headrace.preparing.recipes import read_recipe
from headrace.samples.recipe import parse_recipe
from headrace.stores import load_manifest
from memory_stores import MemoryBucket

OPTIONS = TextOptions(tokens=TokenOptions(append_eod=True, backend="tokenizers"), workers=1)


def data(folder: Path) -> dict[str, bytes]:
    """All files but the manifest, in which the names of the inputs are."""
    return {name: content for name, content in faults.content(folder).items() if name != "headrace.json"}


@pytest.mark.parametrize("name", ["tok", "tok/tokenizer.json"])
def test_a_tokeniser_at_a_url(kit: Any, bucket: MemoryBucket, tmp_path: Path, name: str) -> None:
    bucket.put("tok/tokenizer.json", kit.tokenizer.read_bytes())
    faults.write_inputs(tmp_path / "in", with_bad=False)
    wanted = prepare_text([tmp_path / "in"], tmp_path / "local", tokenizer=kit.tokenizer, options=OPTIONS)
    url = f"{bucket.url}/{name}"
    made = prepare_text([tmp_path / "in"], tmp_path / "made", tokenizer=url, options=OPTIONS)
    assert data(tmp_path / "made") == data(tmp_path / "local")
    assert made.tokenizer is not None
    assert wanted.tokenizer is not None
    assert made.tokenizer.source == url
    assert made.tokenizer.xxh3_128 == wanted.tokenizer.xxh3_128
    tokens = wanted.ledger.tokens
    assert estimate_text([tmp_path / "in"], tokenizer=url).tokens == tokens.kept - tokens.eod


def test_tokenisers_that_are_not_there(bucket: MemoryBucket, tmp_path: Path) -> None:
    bucket.put("tok/config.json", b"{}")
    faults.write_inputs(tmp_path / "in", with_bad=False)
    for url, message in (
        (f"{bucket.url}/tok", "the folder holds no tokenizer.json"),
        (f"{bucket.url}/other", "does not exist"),
        ("hf://org/model", "the scheme hf:// is not supported"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            prepare_text([tmp_path / "in"], tmp_path / "made", tokenizer=url, options=OPTIONS)
        assert url in str(caught.value)
        assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "template", ["template: {name: thinking}\n", "template: chats/other.jinja\n", "template: chatml\n"]
)
def test_a_recipe_at_a_url(
    bucket: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    """Its tokeniser and its template lie beside it; the records here are local, see tests/remote for others."""
    model = recipe_runs.make_model(tmp_path / "model")
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "thinking.jinja").write_text(recipe_runs.THINKING)
    (tmp_path / "chats").mkdir()
    (tmp_path / "chats" / "other.jinja").write_text(recipe_runs.THINKING)
    records = tmp_path / "data.jsonl"
    recipe_runs.write_lines(records, recipe_runs.conversations(50))
    text = f"type: sft\ninputs: {records}\ntokenizer: model\n{template}"
    (tmp_path / "recipe.yaml").write_text(text)
    folder = bucket.upload(model, "recipes/model").rpartition("/")[0]
    bucket.upload(tmp_path / "chats", "recipes/chats")
    bucket.put("recipes/recipe.yaml", text.encode())
    monkeypatch.chdir(tmp_path)
    options = RecipeOptions(workers=1, backend="tokenizers")
    prepare_recipe("recipe.yaml", "local", options=options)
    for path in (model / "tokenizer.json", tmp_path / "chats" / "other.jinja"):
        path.unlink()  # nothing is read beside the process
    made = prepare_recipe(f"{folder}/recipe.yaml", "made", options=options)
    assert data(tmp_path / "made") == data(tmp_path / "local")
    ours, wanted = made.options["template"], load_manifest(tmp_path / "local").options["template"]
    assert ours["text"] == wanted["text"]
    assert ours["source"] == (wanted["source"] if "chatml" in template else f"{folder}/{wanted['source']}")
    assert made.options["recipe"]["tokenizer"] == f"{folder}/model"


def test_paths_in_a_recipe_at_a_url(bucket: MemoryBucket) -> None:
    text = (
        "type: sft\ninputs: [a.jsonl, {paths: [../b/*.jsonl, /data/c.jsonl, 'gs://other/d', '-']}]\n"
        "tokenizer: ./model\ntemplate: {path: nowhere.jinja}\n"
    )
    bucket.put("x/recipe.yaml", text.encode())
    recipe = read_recipe(f"{bucket.url}/x/recipe.yaml")
    assert recipe.inputs[0].paths == f"{bucket.url}/x/a.jsonl"
    assert recipe.inputs[1].paths == (f"{bucket.url}/b/*.jsonl", "/data/c.jsonl", "gs://other/d", "-")
    assert recipe.tokenizer == f"{bucket.url}/x/model"
    assert recipe.template is not None
    assert recipe.template.path == f"{bucket.url}/x/nowhere.jinja"


def test_recipes_that_cannot_be_read(bucket: MemoryBucket, tmp_path: Path) -> None:
    bucket.put("bad.yaml", b"\xff")
    bucket.put("typo.yaml", b"type: sfft")
    with pytest.raises(ConfigError, match=f"recipe '{bucket.url}/none.yaml' does not exist"):
        prepare_recipe(f"{bucket.url}/none.yaml", tmp_path / "made")
    with pytest.raises(ConfigError, match=f"recipe '{bucket.url}/bad.yaml' cannot be read"):
        prepare_recipe(f"{bucket.url}/bad.yaml", tmp_path / "made")
    with pytest.raises(ConfigError, match=f"{bucket.url}/typo.yaml: type"):
        prepare_recipe(f"{bucket.url}/typo.yaml", tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_local_recipe_is_read_as_before(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("type: sft\ninputs: data\ntokenizer: model\n")
    assert read_recipe(tmp_path / "recipe.yaml") == parse_recipe((tmp_path / "recipe.yaml").read_text())
