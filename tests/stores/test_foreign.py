"""Data of other programs: each door names whose they are, and the page that says how to move or open them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models

import headrace
from headrace.errors import HeadraceError, StoreError
from headrace.inspect import check, describe
from headrace.preparing import prepare, prepare_energon, prepare_shards
from headrace.stores import open_tokens
from headrace.stores.foreign_ranges import foreign_format

ROOT = Path(__file__).parents[2]
MDS = {"shards": [{"column_names": ["tokens"], "format": "mds", "samples": 1}], "version": 2}
LITDATA = {"chunks": [{"chunk_size": 10, "filename": "chunk-0-0.bin"}], "config": {"data_format": ["int"]}}


def put(folder: Path, **files: bytes) -> Path:
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name.replace("_dot_", ".").replace("__", "-")).write_bytes(data)
    return folder


def mds(folder: Path) -> Path:
    return put(folder, index_dot_json=json.dumps(MDS).encode(), shard_dot_00000_dot_mds=b"data")


def litdata(folder: Path) -> Path:
    return put(folder, index_dot_json=json.dumps(LITDATA).encode(), chunk__0__0_dot_bin=b"data")


def nanogpt(folder: Path) -> Path:
    tokens = np.arange(100, dtype=np.uint16).tobytes()
    return put(folder, train_dot_bin=tokens, val_dot_bin=tokens, meta_dot_pkl=b"x", prepare_dot_py=b"")


def llmc(folder: Path) -> Path:
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, 100
    return put(folder, fineweb_train_000001_dot_bin=header.tobytes() + np.arange(100, dtype=np.uint16).tobytes())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    Tokenizer(models.WordLevel({"w1": 0, "w2": 1, "[UNK]": 2}, unk_token="[UNK]")).save(str(path))
    return path


NOT_READ = "these are data of {program}, which Headrace does not read; docs/migrate/{page}.md says how to move them"
TOKENS = "these are tokens of {program}, which headrace.open reads in place"
PROGRAMS = {
    "MosaicML Streaming (MDS)": (mds, "mosaicml", ("index.json", "shard.00000.mds"), NOT_READ),
    "litdata": (litdata, "litdata", ("index.json", "chunk-0-0.bin", "chunk-0-0"), NOT_READ),
    "nanoGPT": (
        nanogpt,
        "nanogpt",
        ("train.bin", "val.bin", "train"),
        f"{TOKENS}, file by file, if it gets dtype= (--bin-dtype); docs/migrate/{{page}}.md says how",
    ),
    "llm.c": (
        llmc,
        "nanogpt",
        ("fineweb_train_000001.bin",),
        f"{TOKENS}; docs/migrate/{{page}}.md says how",
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_data_of_other_programs_are_named(tmp_path: Path, program: str, tokenizer: Path) -> None:
    """Those of llm.c are stores, so that only who prepares is told."""
    make, page, names, words = PROGRAMS[program]
    folder = make(tmp_path / "data")
    told = words.format(program=program, page=page)
    assert (ROOT / f"docs/migrate/{page}.md").is_file()
    assert foreign_format(folder) == told
    opened: dict[str, Callable[[], object]] = {
        "open": lambda: headrace.open(folder),
        "open_tokens": lambda: open_tokens(folder),
        "windows": lambda: headrace.WindowDataset.open(folder, seq_len=8),
        "describe": lambda: describe(folder),
        **{name: (lambda name=name: headrace.open(folder / name)) for name in names},  # type: ignore[misc]
    }
    prepared: dict[str, Callable[[], object]] = {
        "prepare": lambda: prepare([folder], tmp_path / "out", tokenizer=tokenizer),
        "prepare_shards": lambda: prepare_shards([folder], tmp_path / "out"),
        "prepare_energon": lambda: prepare_energon(folder),
    }
    before = sorted(tmp_path.rglob("*"))
    if program == "llm.c":
        for one in opened.values():
            one()
        assert check(folder).ok
        opened = {}
    for door, call in {**opened, **prepared}.items():
        with pytest.raises(HeadraceError) as caught:
            call()
        assert told in str(caught.value), door
    if opened:
        try:
            assert [problem for problem in check(folder).problems if told in problem.message]
        except StoreError as error:
            assert told in str(error)  # noqa: PT017 - a pair without its index is a problem, and others are errors
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("make", [mds, litdata, nanogpt])
def test_a_folder_of_splits_is_named_too(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    make(tmp_path / "data/train")
    told = foreign_format(tmp_path / "data/train")
    with pytest.raises(StoreError, match=r"docs/migrate/\w+\.md") as caught:
        headrace.open(tmp_path / "data")
    assert told in str(caught.value)


def test_nothing_else_is_named(tmp_path: Path, tokenizer: Path) -> None:
    """Texts beside nanoGPT's files are prepared, a pair whose index is missing is one, and other JSON is JSON."""
    folder = nanogpt(tmp_path / "shakespeare")
    (folder / "input.txt").write_text("w1 w2")
    assert prepare([folder], tmp_path / "out", tokenizer=tokenizer).ledger.documents.kept == 1
    put(tmp_path / "half", web_text_document_dot_bin=b"data")
    put(tmp_path / "json", index_dot_json=b'{"version": 2}')
    put(tmp_path / "list", index_dot_json=b"[1]")
    put(tmp_path / "broken", index_dot_json=b"{")
    put(tmp_path / "pair", train_dot_bin=b"data", train_dot_idx=b"index")
    for name in ("half", "json", "list", "broken", "pair", "nowhere"):
        assert foreign_format(tmp_path / name) == ""
        with pytest.raises(StoreError) as caught:
            headrace.open(tmp_path / name)
        assert "docs/migrate" not in str(caught.value)
