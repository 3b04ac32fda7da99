"""A wrong path, key, column or name of a source is told with the nearest right one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.config import nearest_path
from headrace.errors import ConfigError, StateError, StoreError
from headrace.preparing import prepare_text
from headrace.stores import TarStore, open_tokens
from headrace.tracing.run_file import read_run_file


def test_the_nearest_path(tmp_path: Path) -> None:
    (tmp_path / "data/train").mkdir(parents=True)
    for name in ("data/train/part-0.jsonl", "web_text_document.bin", "web_text_document.idx"):
        (tmp_path / name).touch()
    for wrong, near in {
        "data/train/part0.jsonl": "data/train/part-0.jsonl",
        "data/trian/part-0.jsonl": "data/train",
        "dta": "data",
        "web_text_documents": "web_text_document",
        "web_text_document.ixd": "web_text_document.idx",
    }.items():
        assert nearest_path(tmp_path / wrong) == f"; did you mean {str(tmp_path / near)!r}?", wrong
    for wrong in ("quite/another", "data/train/part-0.jsonl/below", "x" * 300, "nul\0"):
        assert nearest_path(f"{tmp_path}/{wrong}") == "", wrong
    assert nearest_path("s3://bucket/key") == ""


PATHS = """
info storf
check storf
preview storf
where storf 0
merge storf -o out
split storf out --parts 2
ls shards.tr
prepare text in.json -o out --tokenizer tokenizer.json
prepare text in.jsonl -o out --tokenizer tokeniser.json
prepare recipe recipes.yaml -o out
prepare energon shard
run show rum.json
account rum.json
"""


@pytest.mark.parametrize("line", PATHS.strip().splitlines())
def test_commands_name_the_nearest_path(
    run: Any, prepared: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store").symlink_to(prepared)
    (tmp_path / "tokenizer.json").symlink_to(tokenizer)
    (tmp_path / "shards").mkdir()
    for name in ("in.jsonl", "recipe.yaml", "run.json", "shards.tar"):
        (tmp_path / name).touch()
    result = run(*line.split())
    assert result.exit_code > 1
    assert "; did you mean '" in result.stderr, result.stderr
    assert not (tmp_path / "out").exists()


def test_keys_columns_and_sources(prepared: Path, tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no key 'text'.*; did you mean 'texts'\?"):
        raise headrace.config.unknown_name("store", "key", "text", ["texts", "ids"])
    with pytest.raises(ConfigError, match=r"dialect is 'megatrom'; did you mean 'megatron'\?"):
        open_tokens(prepared, dialect="megatrom")  # type: ignore[arg-type]
    windows = headrace.WindowDataset.open(prepared, seq_len=8)
    with pytest.raises(ConfigError, match=r"numbers \['code', 'wbe'\]; did you mean 'web'\?"):
        headrace.Blend({"web": windows, "code": windows}, weights={"wbe": 1, "code": 1})
    stages = [headrace.datasets.Stage(weights={"wbe": 1.0})]
    with pytest.raises(ConfigError, match=r"weights of \['wbe'\]; did you mean 'web'\?; the sources are"):
        headrace.datasets.ScheduledBlend({"web": windows, "code": windows}, stages)
    (tmp_path / "in.jsonl").write_text(json.dumps({"texts": "w1"}) + "\n")
    with pytest.raises(ConfigError, match=r"has the field 'text'; did you mean 'texts'\?; their fields are: 'texts'"):
        prepare_text([tmp_path / "in.jsonl"], tmp_path / "out", tokenizer=tokenizer)
    with pytest.raises(StoreError, match=r"did you mean '.*in\.jsonl'\?"):
        TarStore(tmp_path / "in.json")
    with pytest.raises(StateError, match=r"did you mean '.*in\.jsonl'\?"):
        read_run_file(tmp_path / "in.json")
