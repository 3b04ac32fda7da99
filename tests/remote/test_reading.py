"""A URL wherever a path stands in reading: commands, metadatasets, Megatron's datasets, workers; no secret anywhere."""

from __future__ import annotations

import gc
import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

import corpora
import headrace
import prepared_made
import servers
from headrace.cli import main
from headrace.compat import megatron
from headrace.errors import HeadraceError
from headrace.io import FetchPolicy, ObjectReader
from headrace.tracing import save_run

pytestmark = pytest.mark.remote


def test_megatron(weed: servers.Bucket, tmp_path: Path, around: None) -> None:
    corpora.make(tmp_path / "web", 1, 100)
    url = weed.upload(tmp_path / "web", f"{tmp_path.name}/web") + "/shard-0"
    ours = megatron.GPTDataset(url, sequence_length=32, num_samples=50)
    wanted = megatron.GPTDataset(str(tmp_path / "web/shard-0"), sequence_length=32, num_samples=50)
    assert all(np.array_equal(ours[at]["tokens"], wanted[at]["tokens"]) for at in range(50))
    assert megatron.IndexedDataset.exists(url)
    indexed = megatron.IndexedDataset(url)
    assert np.array_equal(indexed[3], megatron.IndexedDataset(str(tmp_path / "web/shard-0"))[3])


def test_a_run_file_names_the_url_and_no_secret(weed: servers.Bucket, tmp_path: Path, around: None) -> None:
    corpora.make(tmp_path / "web", 1, 60)
    url = weed.upload(tmp_path / "web", f"{tmp_path.name}/web") + "/shard-0"
    store = headrace.open(url, storage=weed.storage)
    run = headrace.Run(headrace.WindowDataset(store, seq_len=32), global_batch_size=4, samples=32)  # type: ignore[arg-type]
    save_run(run, tmp_path / "run.json")
    text = (tmp_path / "run.json").read_text()
    assert url in text
    assert servers.SECRET not in text
    assert servers.ACCESS_KEY not in text
    done = CliRunner().invoke(main, ["trace", "step", "1", "--run", str(tmp_path / "run.json"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)


def test_no_secret_in_any_words(weed: servers.Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weed.put(f"{tmp_path.name}/x.bin", b"x" * 1000)
    url = f"{weed.url}/{tmp_path.name}/x.bin"
    options = {"access_key_id": servers.ACCESS_KEY, "secret_access_key": servers.SECRET + "x"}
    wrong = msgspec.structs.replace(weed.storage, options=options)
    nowhere = msgspec.structs.replace(weed.storage, endpoint="http://127.0.0.1:9")
    policy = FetchPolicy(deadline_s=0.3, first_delay_s=0.05)
    said = [repr(weed.storage), repr(ObjectReader(weed.storage)), repr(ObjectReader(weed.storage).path_at(url))]
    with caplog.at_level(logging.DEBUG):
        for storage in (wrong, nowhere):
            with pytest.raises(HeadraceError) as caught:
                ObjectReader(storage, policy=policy).read(url, 0, 10)
            said += [
                str(caught.value),
                repr(caught.value),
                repr(caught.value.__cause__),
                repr(caught.value.__context__),
            ]
        headrace.io.ObjectReader(weed.storage).keep(url)
    said.append(caplog.text)
    kept = Path(os.environ["HEADRACE_CACHE"]).rglob("*")
    said += [path.read_bytes().decode("latin-1") for path in kept if path.is_file()]
    assert "check the credentials" in said[3]
    assert not any(servers.SECRET in words for words in said)


def test_threads_that_keep_the_same_object(weed: servers.Bucket, tmp_path: Path) -> None:
    """The file of the first stays, since it may be open already, and nothing else is left."""
    weed.put(f"{tmp_path.name}/x.idx", bytes(range(256)) * 50)
    reader = ObjectReader(weed.storage)
    url = f"{weed.url}/{tmp_path.name}/x.idx"

    def kept(_: int) -> bytes:
        reader.keep(url)
        return reader.read(url, 5, 20).tobytes()

    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(kept, range(64))) == {bytes(range(5, 25))}
    assert len(list(Path(os.environ["HEADRACE_CACHE"], "objects").iterdir())) == 1


def test_nothing_is_left_when_a_cache_cannot_be_written(
    weed: servers.Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpora.make(tmp_path / "web", 1, 60)
    url = weed.upload(tmp_path / "web", f"{tmp_path.name}/web") + "/shard-0"
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    store = headrace.open(url, storage=weed.storage)
    assert len(store) == 60
    del store
    gc.collect()


@pytest.mark.parametrize("name", ["text-shards", "text-keyed", "sft", "tar-split"])
def test_what_prepare_made(
    name: str, weed: servers.Bucket, tmp_path: Path, around: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a manifest vouches for is checked through the store, byte for byte, and a changed byte is found."""
    monkeypatch.chdir(tmp_path)
    prepared_made.write_inputs(tmp_path)
    prepared_made.make(name)
    local = tmp_path / "made" / name
    url = weed.upload(local, f"{tmp_path.name}/{name}")

    def done(*words: str) -> Result:
        return CliRunner().invoke(main, words)

    whole = done("check", url)
    assert whole.exit_code == 0, whole.output
    assert "only the structure was checked" not in whole.output
    place = "0" if name != "tar-split" else next(iter(headrace.open(url, storage=weed.storage))).key  # type: ignore[union-attr]
    assert done("where", url, place).output == done("where", str(local), place).output.replace(str(local), url)
    assert done("info", url, "--json").output == done("info", str(local), "--json").output.replace(str(local), url)
    assert done("preview", url).exit_code == 0

    file = next(file for file in sorted(local.rglob("*")) if file.suffix in (".bin", ".tar"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    weed.put(f"{tmp_path.name}/{name}/{file.relative_to(local).as_posix()}", bytes(data))
    broken = done("check", url)
    assert broken.exit_code == 1, broken.output
    assert file.name in broken.output
