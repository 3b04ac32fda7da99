"""`headrace.inspect` returns what the commands print with ``--json``, and refuses what is for paths of another kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace import ConfigError, Packing, inspect
from tars_made import write_tar


@pytest.fixture(scope="module")
def paths(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A path of each kind."""
    root = tmp_path_factory.mktemp("kinds")
    write_tar(root / "a.tar", [(f"{number}.txt", b"text %d" % number) for number in range(5)])
    mix = {"splits": {"train": {"path": str(prepared), "windows": {"window_tokens": 16}}}}
    (root / "mix.yaml").write_text(json.dumps(mix))
    return {"tokens": str(prepared), "samples": str(root / "a.tar"), "metadataset": str(root / "mix.yaml")}


def printed(run: Any, *arguments: Any) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


@pytest.mark.parametrize("kind", ["tokens", "samples", "metadataset"])
def test_answers_are_what_is_printed(run: Any, paths: dict[str, str], kind: str) -> None:
    path = paths[kind]
    assert inspect.kind_of(path) == kind
    assert inspect.describe(path).to_dict() == printed(run, "info", path)
    assert run("info", path).stdout.splitlines() == inspect.describe(path).lines()
    checked = inspect.check(path)
    assert {**checked.to_dict(), "seconds": 0} == {**printed(run, "check", path), "seconds": 0}
    assert (checked.ok, checked.fault_lines()) == (True, [])
    assert run("check", path).stdout.splitlines()[:-1] == checked.lines()[:-1]
    figures = {"with_figures": True} if kind == "tokens" else {}
    assert inspect.preview(path, num=2, **figures).to_dict() == printed(run, "preview", path, "--num", 2)


def test_origins_are_what_is_printed(run: Any, paths: dict[str, str]) -> None:
    found = inspect.where(paths["tokens"], [3, 70])
    assert found.to_dict() == printed(run, "where", paths["tokens"], 3, 70)
    assert run("where", paths["tokens"], 3, 70).stdout.splitlines() == found.lines()
    with pytest.raises(ConfigError, match="'three' is not the number of a document"):
        inspect.where(paths["tokens"], "three")


def test_packs_are_a_part_of_the_answer(run: Any, paths: dict[str, str]) -> None:
    packing = Packing(seq_len=64, over_long="truncate_right")
    found = inspect.check(paths["tokens"], packing=packing).to_dict()
    arguments = ("check", paths["tokens"], "--pack", 64, "--pack-over-long", "truncate_right")
    assert found["packs"] == printed(run, *arguments)["packs"]
    assert inspect.describe(paths["tokens"], packs=[64]).to_dict() == printed(
        run, "info", paths["tokens"], "--pack", 64
    )


REFUSED = [
    ("check", "tokens", {"decode": True}, "`decode` is for samples with named parts"),
    ("check", "samples", {"key": "text"}, "`key` is for stores of tokens; this one holds samples"),
    ("check", "metadataset", {"split_config": "x"}, "`split_config` does not apply"),
    ("check", "samples", {"workers": 2}, "`workers=2`: give a number of processes"),
    ("check", "tokens", {"key": "text"}, "the options of packs need the length of a pack: add `packing=N`"),
    ("preview", "tokens", {"order": "none"}, "`order` is for metadatasets"),
    ("preview", "samples", {"random": 0}, "`random` is for stores of tokens"),
    ("preview", "tokens", {"nmu": 3}, "nmu is unknown; did you mean 'num'?"),
    ("preview", "samples", {"num": 0}, "`num=0`: from 1 to 1,000 samples are shown at once"),
    ("describe", "samples", {"steps": 3}, "`steps` and `global_batch_size` are for metadatasets"),
]


@pytest.mark.parametrize(("function", "kind", "options", "said"), REFUSED)
def test_what_is_refused(paths: dict[str, str], function: str, kind: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        getattr(inspect, function)(paths[kind], **options)
    assert said in str(caught.value)


def test_options_that_ask_for_nothing_are_for_all_kinds(paths: dict[str, str]) -> None:
    assert inspect.check(paths["tokens"], decode=False, workers=None).ok
