"""What commands print with ``--json`` is what version 0.1 printed, and what `headrace.inspect` returns."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import commands_made
from headrace import ConfigError, Packing, inspect
from tars_made import write_tar

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "commands.json").read_text())


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    here = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("commands"))
    try:
        return commands_made.made()
    finally:
        os.chdir(here)


def test_all_commands_are_known(printed: dict[str, Any]) -> None:
    assert list(printed) == list(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_command_prints_what_it_printed(printed: dict[str, Any], name: str) -> None:
    assert printed[name] == GOLDEN[name]


@pytest.fixture(scope="module")
def paths(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A path of each kind."""
    root = tmp_path_factory.mktemp("kinds")
    write_tar(root / "a.tar", [(f"{number}.txt", b"text %d" % number) for number in range(5)])
    mix = {"splits": {"train": {"path": str(prepared), "windows": {"window_tokens": 16}}}}
    (root / "mix.yaml").write_text(json.dumps(mix))
    return {"tokens": str(prepared), "samples": str(root / "a.tar"), "metadataset": str(root / "mix.yaml")}


@pytest.mark.parametrize("kind", ["tokens", "samples", "metadataset"])
def test_answers_are_what_is_printed(run: Any, of_json: Any, paths: dict[str, str], kind: str) -> None:
    path = paths[kind]
    assert inspect.kind_of(path) == kind
    assert inspect.describe(path).to_dict() == of_json("info", path)
    assert run("info", path).stdout.splitlines() == inspect.describe(path).lines()
    checked = inspect.check(path)
    assert {**checked.to_dict(), "seconds": 0} == {**of_json("check", path), "seconds": 0}
    assert (checked.ok, checked.fault_lines()) == (True, [])
    assert run("check", path).stdout.splitlines()[:-1] == checked.lines()[:-1]
    figures = {"with_figures": True} if kind == "tokens" else {}
    assert inspect.preview(path, num=2, **figures).to_dict() == of_json("preview", path, "--num", 2)


def test_origins_are_what_is_printed(run: Any, of_json: Any, paths: dict[str, str]) -> None:
    found = inspect.where(paths["tokens"], [3, 70])
    assert found.to_dict() == of_json("where", paths["tokens"], 3, 70)
    assert run("where", paths["tokens"], 3, 70).stdout.splitlines() == found.lines()
    with pytest.raises(ConfigError, match="'three'"):
        inspect.where(paths["tokens"], "three")


def test_packs_are_a_part_of_the_answer(of_json: Any, paths: dict[str, str]) -> None:
    packing = Packing(seq_len=64, over_long="truncate_right")
    found = inspect.check(paths["tokens"], packing=packing).to_dict()
    arguments = ("check", paths["tokens"], "--pack", "64,over_long=truncate_right")
    assert found["packs"] == of_json(*arguments)["packs"]
    assert inspect.describe(paths["tokens"], packs=[64]).to_dict() == of_json("info", paths["tokens"], "--pack", 64)


REFUSED = [
    ("check", "samples", {"key": "text"}, "`key`"),
    ("check", "samples", {"workers": 2}, "`workers=2`"),
    ("preview", "tokens", {"order": "none"}, "`order`"),
    ("preview", "samples", {"random": 0}, "`random`"),
    ("preview", "tokens", {"nmu": 3}, "nmu.*'num'"),
    ("preview", "samples", {"num": 0}, "`num=0`.*1,000"),
    ("describe", "samples", {"steps": 3}, "`steps`.*`global_batch_size`"),
]


@pytest.mark.parametrize(("function", "kind", "options", "named"), REFUSED)
def test_what_is_refused(paths: dict[str, str], function: str, kind: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        getattr(inspect, function)(paths[kind], **options)


def test_options_that_ask_for_nothing_are_for_all_kinds(paths: dict[str, str]) -> None:
    assert inspect.check(paths["tokens"], decode=False, workers=None).ok
