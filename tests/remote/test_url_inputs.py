"""Everything that `prepare` reads, in real object stores: the bytes of the local run."""

from __future__ import annotations

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
import media_made
import recipe_runs
import servers
import shards_made
from counts import PATIENCE_S, cases
from fault_proxy import FaultProxy
from headrace.cli import main
from headrace.errors import InputError
from headrace.io import FetchPolicy
from headrace.io.objects.writer import ObjectWriter
from headrace.preparing.energon import EnergonOptions, MediaFilter, SplitChoice, prepare_energon
from headrace.preparing.shards import PartSpec, ShardOptions, ShardOutput, ShardSource, prepare_shards
from headrace.stores.energon import EnergonStore, FilesystemStore

pytestmark = pytest.mark.remote

QUICK = FetchPolicy(first_delay_s=0.005, most_delay_s=0.05, deadline_s=PATIENCE_S)
NUM_PICTURES = 50
MEDIA = ShardOptions(
    source=ShardSource(parts=tuple(map(PartSpec.parse, ("image=path:file", "json=row"))), key_field="id"),
    output=ShardOutput(samples_per_shard=15, shuffle=2),
    workers=2,
)


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


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files, of which one takes several GETs, and a table that names them."""
    folder = tmp_path_factory.mktemp("pictures")
    shards_made.write_pictures(folder, NUM_PICTURES)
    (folder / "pictures" / "020.jpg").write_bytes(shards_made.JPG + random.Random(1).randbytes(9_000_000))
    shards_made.write_table(folder / "t.jsonl", shards_made.rows(NUM_PICTURES))
    return folder


@pytest.mark.parametrize("server", ["weed", "azurite"])
def test_media(server: str, pictures: Path, folder_key: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    bucket: servers.Bucket = request.getfixturevalue(server)
    url = bucket.upload(pictures, folder_key)
    for name, inputs in (("table", "t.jsonl"), ("folder", "pictures")):
        options = MEDIA if name == "table" else msgspec.structs.replace(MEDIA, source=ShardSource())
        prepare_shards([pictures / inputs], tmp_path / f"local-{name}", options=options)
        prepare_shards([f"{url}/{inputs}"], tmp_path / name, options=options, storage=bucket.storage)
        assert data(tmp_path / name) == data(tmp_path / f"local-{name}")
        assert servers.SECRET not in (tmp_path / name / "headrace.json").read_text()


def test_media_by_the_command(weed: servers.Bucket, around: None, folder_key: str, tmp_path: Path) -> None:
    """Also planned for other processes; an object that is missing is said, or counted."""
    shards_made.write_pictures(tmp_path / "in", 20)
    shards_made.write_table(tmp_path / "in" / "t.jsonl", shards_made.rows(21))
    url = weed.upload(tmp_path / "in", folder_key)
    words = ["prepare", "media", f"{url}/t.jsonl", "--part", "jpg=path:file", "--key-field", "id", "-o"]
    refused = CliRunner().invoke(main, [*words, str(tmp_path / "made")])
    assert refused.exit_code == InputError.exit_code
    assert f"t.jsonl, line 21: the file 'pictures/020.jpg' below {url} cannot be read: there is no such object" in (
        refused.output
    )
    assert "bad 1" in run(*words, str(tmp_path / "made"), "--on-error", "skip")
    run(*words, str(tmp_path / "planned"), "--on-error", "skip", "--executor", "plan")
    run("prepare", "task", str(tmp_path / "planned"))
    run("prepare", "task", str(tmp_path / "planned"))
    run("prepare", "finish", str(tmp_path / "planned"))
    assert data(tmp_path / "planned") == data(tmp_path / "made")
    assert f"{url}/t.jsonl, line 8" in run("where", str(tmp_path / "made"), "s7")
    assert "about 1," in run(*words[:-1], "--dry-run", "--on-error", "skip")
    stopped = CliRunner().invoke(main, [*words[:-1], "--dry-run"])
    assert (stopped.exit_code, "there is no such object" in stopped.output) == (1, True)


def test_media_with_faults(
    weed: servers.Bucket,
    proxy: FaultProxy,
    pictures: Path,
    folder_key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One request in twenty fails."""
    monkeypatch.setattr("headrace.io.objects.lookups.FetchPolicy", lambda: QUICK)
    url = weed.upload(pictures, folder_key)
    storage = msgspec.structs.replace(weed.storage, endpoint=proxy.endpoint)
    prepare_shards([pictures / "t.jsonl"], tmp_path / "local", options=MEDIA)
    proxy.share = 0.05
    proxy.all_requests = True
    for number in range(cases(1, 20)):
        prepare_shards([f"{url}/t.jsonl"], tmp_path / str(number), options=MEDIA, storage=storage)
        assert data(tmp_path / str(number)) == data(tmp_path / "local")
    assert sum(proxy.made.values()) > 3
    assert servers.SECRET not in caplog.text


SCRIPT = """
import sys
from headrace.cli import main

if __name__ == "__main__":
    main(sys.argv[1:])
"""


def killed(proxy: FaultProxy, words: list[str], folder: Path, kill_at: int | None) -> tuple[int, str, int]:
    """Run a command in a process that is killed at a request of this number; exit code, output, number of requests."""
    environ = {**os.environ, **servers.environment(proxy.endpoint), "HEADRACE_CACHE": str(folder / "cache")}
    (folder / "command.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(folder / "command.py"), *words],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    whole, number = FaultProxy.fault, 0

    def fault(method: str, is_range: bool) -> str | None:
        nonlocal number
        number += 1
        if number == kill_at:
            process.kill()
        return whole(proxy, method, is_range)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proxy, "fault", fault)
        said, _ = process.communicate()
    return process.returncode, said, number


def secrets_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and servers.SECRET.encode() in path.read_bytes()]


def test_media_of_killed_runs(
    weed: servers.Bucket, proxy: FaultProxy, pictures: Path, folder_key: str, tmp_path: Path
) -> None:
    url = weed.upload(pictures, folder_key)
    words = ["prepare", "media", f"{url}/t.jsonl", "--part", "image=path:file", "--part", "json=row", "--shuffle", "2"]
    words += ["--key-field", "id", "--samples-per-shard", "15", "--workers", "2", "-o"]
    run(*[word.replace(url, str(pictures)) for word in words], str(tmp_path / "local"))
    code, said, num_requests = killed(proxy, [*words, str(tmp_path / "whole")], tmp_path, None)
    assert code == 0, said
    rng, num_deaths = random.Random(3), 0
    for number in range(cases(1, 20)):
        out = tmp_path / str(number)
        # A run that goes on sends fewer requests, and may be done before its moment.
        for moment in (*(rng.randrange(2, num_requests) for _ in range(2)), None):
            code, said, _ = killed(proxy, [*words, str(out)], tmp_path, moment)
            assert code == 0 or (moment is not None and code == -9), said
            assert (code == 0) == (out / "headrace.json").exists()
            assert servers.SECRET not in said
            assert not secrets_in(tmp_path)
            num_deaths += code != 0
            if code == 0:
                break
        assert data(out) == data(tmp_path / "local")
    assert num_deaths > 0


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
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    reader = ObjectWriter(bucket.storage)
    found = {name: reader.read(f"{url}/{name}") or b"" for name in reader.sizes(url)}
    assert found.keys() == files.keys()
    state = ".nv-meta/headrace.json"  # with times and ETags
    assert {name for name, data in found.items() if data != files[name]} == {state}
    assert all(servers.SECRET.encode() not in data for data in found.values())
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


def test_energon_by_the_command(
    weed: servers.Bucket, around: None, shards: Path, folder_key: str, tmp_path: Path
) -> None:
    url = weed.upload(shards, folder_key)
    assert "7 read, 0 unchanged" in run("prepare", url, "--split-ratio", "1,1")
    same_dataset(weed, url, shards, tmp_path / "local")
    assert "energon, 7 shards\n  samples       46\n" in run("info", url)
    run("check", url)
    run("prepare", "plan", url, "--split-ratio", "1,1", "--overwrite")
    assert "7 tasks done here" in run("job", "task", url)
    run("job", "finish", url)
    same_dataset(weed, url, shards, tmp_path / "local again")


@pytest.mark.parametrize("server", ["weed", "azurite", "gcs"])
def test_energon_of_lines_and_of_files(
    server: str, folder_key: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The files of the local run, which then open."""
    bucket: servers.Bucket = request.getfixturevalue(server)
    lines = b"".join(b'{"i": %d, "text": "%s"}\n' % (n, b"x" * (n % 900)) for n in range(5000))
    energon_made.write_files(tmp_path / "all", {"x.jsonl": lines, **media_made.files()})
    url = bucket.upload(tmp_path / "all", folder_key)
    by_header = EnergonOptions(media=MediaFilter(strategy="HEADER"), media_only=True)
    for name, options in (("x.jsonl", EnergonOptions()), ("", by_header)):
        made = prepare_energon(f"{url}/{name}".rstrip("/"), options=options, storage=bucket.storage)
        local = prepare_energon(tmp_path / "all" / name, options=options)
        assert (made.samples, made.media) == (local.samples, local.media)
    reader = ObjectWriter(bucket.storage)
    assert reader.read(f"{url}/x.jsonl.idx") == (tmp_path / "all/x.jsonl.idx").read_bytes()
    with headrace.open(url, storage=bucket.storage) as ours, headrace.open(tmp_path / "all") as theirs:
        assert isinstance(ours, FilesystemStore)
        assert isinstance(theirs, FilesystemStore)
        assert ours.fingerprint == theirs.fingerprint
        assert list(ours.index.media()) == list(theirs.index.media())  # type: ignore[union-attr]
        assert list(ours.check()) == []
    assert not any(".headrace" in name for name in reader.sizes(url))


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
            code, said, _ = killed(proxy, words, tmp_path, moment)
            assert code in (-9, 0), said
            assert not secrets_in(tmp_path)
        code, said, _ = killed(proxy, words, tmp_path, None)
        assert code == 0, said
        assert servers.SECRET not in said
        same_dataset(weed, url, shards, tmp_path / str(number))
        assert not list((tmp_path / "cache" / "outputs").iterdir())
