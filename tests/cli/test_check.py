"""``headrace check``: any flipped bit, a place, and exit code 1."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import made
from headrace.stores import IndexedWriter

PROVENANCE = "provenance/rows.npy"
NAMES = ("text_document.bin", "text_document.idx", "headrace.json")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.one_key(tmp_path_factory.mktemp("prepared") / "store")


def test_a_whole_store(run: Any, prepared: Path) -> None:
    result = run("check", prepared)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.startswith(f"{prepared}: whole: 4 files, ")
    assert "100 documents" in result.stdout
    assert "ids below 100" in result.stdout
    found = json.loads(run("check", prepared, "--json").stdout)
    assert (found["ok"], found["problems"], found["hashed"], found["vocab_size"]) == (True, [], True, 100)
    assert run("check", prepared, "--quiet").output == ""


@pytest.mark.parametrize("name", [*NAMES, PROVENANCE])
def test_any_flipped_bit_is_found(run: Any, store: Path, name: str) -> None:
    chance = random.Random(name)
    whole = (store / name).read_bytes()
    for _ in range(40):
        bit = chance.randrange(len(whole) * 8)
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (store / name).write_bytes(flipped)
        result = run("check", store)
        assert result.exit_code == 1, f"bit {bit}"
        # The place: a headrace.json that names other files than there are shows at those files.
        assert str(store) in result.stdout
        assert name in result.stdout or name == "headrace.json" or "text_document" in result.stdout
    (store / name).write_bytes(whole)
    assert run("check", store).exit_code == 0


@pytest.mark.parametrize("name", [*NAMES, PROVENANCE])
@pytest.mark.parametrize("change", ["cut", "grow", "empty"])
def test_other_sizes(run: Any, store: Path, name: str, change: str) -> None:
    whole = (store / name).read_bytes()
    (store / name).write_bytes({"cut": whole[:-1], "grow": whole + b"\0", "empty": b""}[change])
    assert run("check", store).exit_code == 1


def test_the_place_of_a_fault(run: Any, store: Path) -> None:
    path = store / "text_document.bin"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    found = json.loads(run("check", store, "--json").stdout)
    assert found["ok"] is False
    assert found["problems"][0]["path"] == str(path)
    assert found["problems"][0]["place"]
    result = run("check", store)
    assert result.stdout.splitlines()[-1] == f"{store}: {len(found['problems'])} fault" + "s" * (
        len(found["problems"]) > 1
    )
    quiet = run("check", store, "--quiet")
    assert quiet.exit_code == 1
    assert quiet.stdout.splitlines() == result.stdout.splitlines()[:-1]


def test_ids_out_of_the_vocabulary(run: Any, tokenizer: Path, tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "a", dtype=np.uint16) as writer:
        writer.add_documents(np.array([0, 99, 1, 100], np.uint16), np.array([2, 2]))
        writer.finish()
    without = run("check", tmp_path / "a")
    assert without.exit_code == 0
    assert "only the structure was checked" in without.stdout
    against = run("check", tmp_path / "a", "--tokenizer", tokenizer)
    assert against.exit_code == 1
    assert "document 1" in against.stdout
    assert "id 100" in against.stdout


@pytest.mark.parametrize("missing", [*NAMES[:2], PROVENANCE])
def test_a_missing_file_is_a_fault(run: Any, store: Path, missing: str) -> None:
    (store / missing).unlink()
    result = run("check", store)
    assert result.exit_code == 1
    assert missing in result.stdout


@pytest.mark.parametrize("layout", ["indexed", "keyed"])
def test_every_file_of_every_key(run: Any, tmp_path: Path, layout: str) -> None:
    folder = made.two_keys(tmp_path / "store", layout)
    found = json.loads(run("check", folder, "--json").stdout)
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert (found["ok"], found["documents"], found["tokens"], found["files"]) == (True, 3, 13, len(files))
    assert found["bytes"] == sum(file.stat().st_size for file in files if file.name != "headrace.json")
    for file in files:
        whole = file.read_bytes()
        for at in range(0, len(whole), 17):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            result = run("check", folder)
            assert result.exit_code == 1, f"{file.name}: byte {at}"
        file.write_bytes(whole)
        if whole and file.name != "headrace.json":
            file.unlink()
            result = run("check", folder)
            assert result.exit_code == 1
            assert file.name in result.stdout
            file.write_bytes(whole)
    assert run("check", folder, "--quiet").output == ""


@pytest.mark.parametrize("layout", ["indexed", "keyed"])
def test_ids_of_every_key(run: Any, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "VOCAB_SIZE", 20)
    folder = made.two_keys(tmp_path / "store", layout)
    assert run("check", folder).exit_code == 0
    monkeypatch.setattr("headrace.inspect.store_checks.load_tokenizer", lambda _: SimpleNamespace(vocab_size=6))
    found = json.loads(run("check", folder, "--tokenizer", "any", "--json").stdout)
    at_fault = {Path(problem["path"]).name.partition("_")[0].removesuffix(".bin") for problem in found["problems"]}
    assert at_fault == {"title", "body"}


def test_a_keyed_store_that_no_manifest_vouches_for(run: Any, tmp_path: Path) -> None:
    folder = made.two_keys(tmp_path / "store", "keyed")
    (folder / "headrace.json").unlink()
    result = run("check", folder)
    assert "4 files" not in result.stdout
    assert "6 files" in result.stdout
    assert "only the structure was checked" in result.stdout
    (folder / "shard_0001" / "meta.json").write_bytes(b"{")
    result = run("check", folder)
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{folder / 'shard_0001' / 'meta.json'}: not the meta.json of a keyed store")


def test_no_store_at_all(run: Any, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        result = run("check", path, "--json")
        assert result.exit_code == 4
        assert json.loads(result.stdout)["error"]["kind"] == "StoreError"


def test_every_shard_is_looked_at(run: Any, prepared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(3):
        for end in (".bin", ".idx"):
            shutil.copy(prepared / f"text_document{end}", folder / f"{number}{end}")
    for number in (0, 2):
        with (folder / f"{number}.bin").open("ab") as file:
            file.write(b"\0\0")
    found = json.loads(run("check", folder, "--json").stdout)
    assert [Path(problem["path"]).name for problem in found["problems"]] == ["0.bin", "2.bin"]
    assert found["files"] == 6


def test_faults_that_differ_in_a_name_alone_are_told_together(run: Any, prepared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(9):
        for end in (".bin", ".idx"):
            shutil.copy(prepared / f"text_document{end}", folder / f"part_{number}{end}")
        with (folder / f"part_{number}.bin").open("ab") as file:
            file.write(b"\0" * (2 + 2 * number))
    told = run("check", folder).stdout.splitlines()
    assert [line.partition(": ")[0].rpartition("/")[2] for line in told[:3]] == [f"part_{n}.bin" for n in range(3)]
    assert told[3:] == ["  and 6 more like it (--json lists all)", f"{folder}: 9 faults"]
    assert len(json.loads(run("check", folder, "--json").stdout)["problems"]) == 9
