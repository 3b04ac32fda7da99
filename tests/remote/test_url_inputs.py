"""Everything that `prepare` reads, in real object stores: the bytes of the local run."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

import energon_made
import headrace
import recipe_runs
import servers
import shards_made
from counts import cases
from fault_proxy import FaultProxy
from headrace.cli import main
from headrace.preparing.energon import EnergonOptions, SplitChoice, prepare_energon
from headrace.preparing.shards import PartSpec, ShardOptions, ShardOutput, ShardSource
from headrace.stores.energon import EnergonStore
from stored import QUICK, files, objects

pytestmark = pytest.mark.remote

NUM_PICTURES = 50
MEDIA = ShardOptions(
    source=ShardSource(parts=tuple(map(PartSpec.parse, ("image=path:file", "json=row"))), key_field="id"),
    output=ShardOutput(samples_per_shard=15, shuffle=2),
    workers=2,
)


def run(*words: str) -> str:
    done = CliRunner().invoke(main, list(words))
    assert done.exit_code == 0, done.output
    assert servers.SECRET not in done.output
    return done.output


def data(folder: Path) -> dict[str, bytes]:
    """All files of an output that do not name its inputs."""
    return {name: content for name, content in files(folder).items() if name != "headrace.json"}


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
        run("prepare", "--recipe", str(tmp_path / "recipe.yaml"), "-o", str(tmp_path / name))
    assert data(tmp_path / "local") == data(tmp_path / "file") == data(tmp_path / "folder")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files, of which one takes several GETs, and a table that names them."""
    folder = tmp_path_factory.mktemp("pictures")
    shards_made.write_pictures(folder, NUM_PICTURES)
    (folder / "pictures" / "020.jpg").write_bytes(shards_made.JPG + random.Random(1).randbytes(9_000_000))
    shards_made.write_table(folder / "t.jsonl", shards_made.rows(NUM_PICTURES))
    return folder


def killed(proxy: FaultProxy, words: list[str], folder: Path, kill_at: int | None) -> tuple[int, str]:
    """Run a command in a process that is killed at a request of this number; its exit code and output."""
    environ = {**os.environ, **servers.environment(proxy.endpoint), "HEADRACE_CACHE": str(folder / "cache")}
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", *words],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    whole, numbers = FaultProxy.fault, itertools.count(1)

    def fault(method: str, is_range: bool) -> str | None:
        if next(numbers) == kill_at:
            process.kill()
        return whole(proxy, method, is_range)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proxy, "fault", fault)
        said, _ = process.communicate()
    return process.returncode, said


def secrets_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and servers.SECRET.encode() in path.read_bytes()]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shards, one of which has large contents."""
    folder = tmp_path_factory.mktemp("shards")
    for number in range(6):
        members = [(f"{number}_{n}.{part}", bytes(20_000 * n)) for n in range(1, 8) for part in ("bin", "txt")]
        energon_made.write_tar(folder / f"shards/{number}.tar", members)
    energon_made.write_tar(folder / "large.tar", [(f"large{n}.bin", bytes(4_000_000)) for n in range(4)])
    return folder


ENERGON = EnergonOptions(split=SplitChoice(ratio=(1, 1)))


def same_dataset(bucket: servers.Bucket, url: str, shards: Path, folder: Path) -> None:
    """Compare all files at a URL with what the local command makes of the same shards."""
    shutil.copytree(shards, folder)
    prepare_energon(folder, options=ENERGON)
    found, wanted = objects(bucket, url), files(folder)
    assert found.keys() == wanted.keys()
    state = ".nv-meta/headrace.json"  # with times and ETags
    assert {name for name, content in found.items() if content != wanted[name]} == {state}
    assert all(servers.SECRET.encode() not in content for content in found.values())
    with (
        EnergonStore(url, using=headrace.io.ObjectReader(bucket.storage), split_part="train") as ours,
        EnergonStore(folder, split_part="train") as theirs,
    ):
        assert [sample.parts for sample in ours.read(np.arange(len(ours)))] == [
            sample.parts for sample in theirs.read(np.arange(len(theirs)))
        ]


@pytest.mark.parametrize("server", ["weed", "azurite", "gcs"])
def test_energon(server: str, shards: Path, folder_key: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    bucket: servers.Bucket = request.getfixturevalue(server)
    url = bucket.upload(shards, folder_key)
    report = prepare_energon(url, options=ENERGON, storage=bucket.storage)
    assert report.read == 7
    same_dataset(bucket, url, shards, tmp_path / "local")
    again = prepare_energon(url, options=ENERGON, storage=bucket.storage)
    assert (again.unchanged, again.written) == (7, ())


def test_energon_with_faults(
    weed: servers.Bucket,
    proxy: FaultProxy,
    shards: Path,
    folder_key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("headrace.io.objects.lookups.FetchPolicy", lambda: QUICK)
    storage = msgspec.structs.replace(weed.storage, endpoint=proxy.endpoint)
    proxy.share = proxy.write_share = 0.2
    proxy.all_requests = True
    for number in range(cases(2, 20)):
        url = weed.upload(shards, f"{folder_key}/{number}")
        prepare_energon(url, options=ENERGON, storage=storage)
        same_dataset(weed, url, shards, tmp_path / str(number))
    assert sum(proxy.made.values()) > 3
    assert servers.SECRET not in caplog.text


def test_energon_of_killed_runs(
    weed: servers.Bucket, proxy: FaultProxy, shards: Path, folder_key: str, tmp_path: Path
) -> None:
    rng = random.Random(5)
    for number in range(cases(1, 20)):
        url = weed.upload(shards, f"{folder_key}/{number}")
        words = ["prepare", "energon", url, "--split-ratio", "1,1"]
        for moment in sorted(rng.sample(range(2, 50), 3), reverse=True):
            code, said = killed(proxy, words, tmp_path, moment)
            assert code in (-9, 0), said
            assert not secrets_in(tmp_path)
        code, said = killed(proxy, words, tmp_path, None)
        assert code == 0, said
        assert servers.SECRET not in said
        same_dataset(weed, url, shards, tmp_path / str(number))
        assert not list((tmp_path / "cache" / "outputs").iterdir())
