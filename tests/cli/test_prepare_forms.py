"""The subcommands of ``headrace prepare``, and the bare form, which finds the one that is meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from headrace.cli.prepare import command
from headrace.cli.prepare_options import Subcommand

RECIPE = """
type: sft
inputs: pairs.jsonl
tokenizer: {tokenizer}
ends: {{append_eos: false}}
"""


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[str, list[str], dict[str, Any]]:
    """The subcommand that these arguments call, its inputs, and the options that are given."""
    seen: list[Any] = []
    for name, subcommand in command.commands.items():

        def stand_in(name: str = name, **values: Any) -> None:
            context = click.get_current_context()
            given = [
                one for one in values if context.get_parameter_source(one) is not click.core.ParameterSource.DEFAULT
            ]
            inputs = list(values["inputs"])
            seen.append((name, inputs, {one: values[one] for one in given if one != "inputs"}))

        monkeypatch.setattr(subcommand, "callback", stand_in)
    command.main(list(arguments), standalone_mode=False, help_option_names=["-h", "--help"])
    assert len(seen) == 1
    found: tuple[str, list[str], dict[str, Any]] = seen[0]
    return found


@pytest.mark.parametrize(
    ("bare", "named"),
    [
        ("a b --tokenizer t -o out --append-eod -q", "text a b --tokenizer t -o out --append-eod -q"),
        ("-q --field x --field y a --output=out --tokenizer t", "text a -o out --tokenizer t --field x --field y -q"),
        ("a -o out --tokenizer t --join --field --field x", "text a -o out --tokenizer t --join --field --field x"),
        ("-o out -- -a", "text -o out -- -a"),
        ("- -o out --shard-tokens -1", "text - -o out --shard-tokens -1"),
        ("a --recipe r -o out --now 2026-03-01", "recipe r a -o out --now 2026-03-01"),
        ("--recipe r --format hdf5 --json", "recipe r --format hdf5 --json"),
        ("a --format tar -o out --part a=row --part b=row", "media a -o out --part a=row --part b=row"),
        ("a --format=tar --force-overwrite --single", "media a --overwrite --single"),
        ("a --tar-index-only --num-workers 3", "energon a --tar-index-only --workers 3"),
        ("tars --split-ratio 8,1,1", "energon tars --split-ratio 8,1,1"),
        ("texts.jsonl", "energon texts.jsonl"),
        ("texts.jsonl -o out", "text texts.jsonl -o out"),
        ("tars -o out", "text tars -o out"),
    ],
)
def test_the_bare_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: str, named: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tars").mkdir()
    Path("tars/a.tar").touch()
    Path("texts.jsonl").touch()
    found = called(monkeypatch, *bare.split())
    assert found == called(monkeypatch, *named.split())
    assert found[0] == named.split()[0]


def test_a_path_that_is_called_like_a_subcommand(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in command.commands:
        Path(name).mkdir()
    Path("energon/a.tar").touch()
    assert called(monkeypatch, "text", "-o", "out", "--tokenizer", "t")[:2] == ("text", ["text"])
    assert called(monkeypatch, "energon")[:2] == ("energon", ["energon"])
    assert called(monkeypatch, "media", "--format", "tar")[:2] == ("media", ["media"])
    assert capsys.readouterr().err == ""
    assert called(monkeypatch, "text", "more", "-o", "out")[:2] == ("text", ["more"])
    assert capsys.readouterr().err == "note: text is the subcommand here; for the path write ./text\n"
    assert run("prepare", "media", "--help").stdout.startswith("Usage: main prepare media [OPTIONS] INPUT...")
    assert "No such option '--bogus'" in run("prepare", "media", "--bogus").stderr


def test_a_recipe(run: Any, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.jsonl").write_text(json.dumps({"prompt": "w1 ", "completion": "w2"}) + "\n")
    Path("recipe.yaml").write_text(RECIPE.format(tokenizer=tokenizer))
    assert json.loads(run("prepare", "recipe", "recipe.yaml", "-o", "named", "--json").stdout)["tokens"] == 2
    assert run("prepare", "--recipe", "recipe.yaml", "-o", "bare", "--quiet").exit_code == 0
    for file in Path("named").rglob("*.bin"):
        assert file.read_bytes() == Path("bare", file.relative_to("named")).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "text a --root x",
            "--root is for media in tar shards (headrace prepare media), not for texts (headrace prepare text)",
        ),
        ("text a --now x", "--now is for a recipe (headrace prepare recipe), not for texts"),
        ("--recipe r --min-chars 5", "not for a recipe (headrace prepare recipe): `filters: {min_chars: N}`"),
        ("recipe r --format tar", "'tar' is not one of 'indexed', 'keyed', 'hdf5', 'jsonl'"),
        ("media a --duplicates keep", "'keep' is not one of 'error', 'drop'"),
        (
            "energon a -o out",
            "--output is for texts (headrace prepare text) and a recipe (headrace prepare recipe) and",
        ),
        ("energon a --shufle", "No such option '--shufle'"),
    ],
)
def test_refusals(run: Any, arguments: str, message: str) -> None:
    result = run("prepare", *arguments.split(), "--json")
    assert result.exit_code == 2
    assert message in result.stderr
    assert message in json.loads(result.stdout)["error"]["message"]


@pytest.mark.parametrize("name", ["text", "recipe", "media", "energon"])
def test_help_is_in_groups(run: Any, name: str) -> None:
    shown = run("prepare", name, "--help").stdout
    subcommand = command.commands[name]
    assert isinstance(subcommand, Subcommand)
    assert len(subcommand.params) <= 31
    for heading in ("Errors", "Run", "Common options"):
        assert f"\n{heading}:\n" in shown
    assert "\nOptions:\n" not in shown
    for param in subcommand.params:
        if isinstance(param, click.Option) and not param.hidden:
            assert shown.count(f" {param.opts[-1]}") >= 1
