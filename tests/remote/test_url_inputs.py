"""Everything that `prepare` reads, in real object stores: the bytes of the local run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import recipe_runs
import servers
from headrace.cli import main

pytestmark = pytest.mark.remote


@pytest.fixture
def around(weed: servers.Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment says how the store is reached, as for the commands."""
    for name, value in servers.environment(str(weed.storage.endpoint)).items():
        monkeypatch.setenv(name, value)


def run(*words: str) -> str:
    done = CliRunner().invoke(main, list(words))
    assert done.exit_code == 0, done.output
    assert servers.SECRET not in done.output
    return done.output


def data(folder: Path) -> dict[str, bytes]:
    """All files of an output that do not name its inputs."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name != "headrace.json"}


def test_a_recipe_with_all_that_it_names(
    weed: servers.Bucket, around: None, folder_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = tmp_path / "recipes"
    local.mkdir()
    recipe_runs.make_model(local / "model")
    (local / "chat.jinja").write_text(recipe_runs.THINKING)
    for number in range(2):
        recipe_runs.write_lines(local / "data" / f"{number}.jsonl", recipe_runs.conversations(60))
    text = "type: sft\ninputs: [{paths: 'data/*.jsonl'}]\ntokenizer: model\ntemplate: chat.jinja\n"
    (local / "recipe.yaml").write_text(text)
    url = weed.upload(local, folder_key)
    monkeypatch.chdir(local)
    run("prepare", "--recipe", "recipe.yaml", "-o", str(tmp_path / "local"))
    monkeypatch.chdir(tmp_path)
    run("prepare", "--recipe", f"{url}/recipe.yaml", "-o", str(tmp_path / "made"))
    assert data(tmp_path / "made") == data(tmp_path / "local")
    manifest = json.loads((tmp_path / "made" / "headrace.json").read_text())
    assert manifest["tokenizer"]["source"] == f"{url}/model"
    assert "A0" in run("preview", str(tmp_path / "made"))
    assert "A0" in run("render", f"{url}/recipe.yaml", "--record", "0")
    assert "ok" in run("check", str(tmp_path / "made"), "--tokenizer", f"{url}/model/tokenizer.json")


def test_a_tokeniser_of_a_web_server(http_files: servers.Bucket, folder_key: str, tmp_path: Path) -> None:
    model = recipe_runs.make_model(tmp_path / "model")
    recipe_runs.write_lines(tmp_path / "data.jsonl", recipe_runs.conversations(30))
    url = http_files.upload(model, folder_key)
    for name, tokenizer in (("local", str(model)), ("file", f"{url}/tokenizer.json"), ("folder", f"{url}/")):
        (tmp_path / "recipe.yaml").write_text(f"type: sft\ninputs: {tmp_path}/data.jsonl\ntokenizer: {tokenizer}\n")
        run("prepare", "recipe", str(tmp_path / "recipe.yaml"), "-o", str(tmp_path / name))
    assert data(tmp_path / "local") == data(tmp_path / "file") == data(tmp_path / "folder")
