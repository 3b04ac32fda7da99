"""Outputs in real object stores: the bytes of the local run, after kills and through faults, and nothing else."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

import headrace
import servers
from counts import cases
from fault_proxy import FaultProxy
from headrace import preparing
from headrace.copying import CopyOptions
from headrace.errors import OutputError
from headrace.io import FetchPolicy
from headrace.io.objects import writer
from headrace.io.objects.writer import ObjectWriter
from headrace.preparing import OutputOptions, PrepareOptions, TokenOptions
from headrace.stores import IndexedWriter
from stored import QUICK, files, objects

pytestmark = pytest.mark.remote

OPTIONS = PrepareOptions(
    tokens=TokenOptions(backend="tokenizers"), workers=2, task_bytes=20_000, output=OutputOptions(shard_tokens=30_000)
)
PART_BYTES = 5 << 20
"""The smallest parts that S3 takes."""

SCRIPT = f"""
import sys
import headrace
from headrace.copying import CopyOptions
from headrace.io.objects import writer
from headrace.preparing import OutputOptions, PrepareOptions, TokenOptions, prepare

if __name__ == "__main__":
    writer.WHOLE_BYTES = writer.PART_BYTES = {PART_BYTES}
    what, inputs, output = sys.argv[1:]
    if what == "merge":
        headrace.merge([inputs + "/big"], output, options=CopyOptions(shards=4_000_000))
    else:
        shards = OutputOptions(shard_tokens=30_000)
        options = PrepareOptions(tokens=TokenOptions(backend="tokenizers"), workers=2, task_bytes=20_000, output=shards)
        prepare([inputs + "/in"], output, tokenizer=inputs + "/model", options=options)
"""
"""What a process does that may be killed. The shards that it merges are uploaded in two parts each."""


@pytest.fixture(scope="session", autouse=True)
def _big(inputs: Path) -> None:
    """A store beside them whose shards are uploaded in parts."""
    (inputs / "big").mkdir()
    with IndexedWriter(inputs / "big" / "text_document", dtype="uint16") as made:
        tokens = np.random.default_rng(5).integers(0, 1 << 16, 8_000_000, dtype=np.uint16)
        made.add_documents(tokens, np.full(80, 100_000))
        made.finish()


BOTH = pytest.mark.parametrize("remote_bucket", ["weed", "gcs"], indirect=True)
ALL = pytest.mark.parametrize("remote_bucket", ["weed", "azurite", "gcs"], indirect=True)


def prepare(inputs: Path, output: str | Path, storage: headrace.Storage | None = None) -> None:
    preparing.prepare([inputs / "in"], output, tokenizer=inputs / "model", options=OPTIONS, storage=storage)


@pytest.mark.sampled(2)
@ALL
def test_prepare_and_copies(remote_bucket: servers.Bucket, inputs: Path, tmp_path: Path) -> None:
    """Inputs, sources and outputs in the store."""
    url, storage = f"{remote_bucket.url}/{tmp_path.name}", remote_bucket.storage
    prepare(inputs, tmp_path / "web")
    prepare(inputs, f"{url}/web", storage)
    wanted = files(tmp_path / "web")
    assert objects(remote_bucket, f"{url}/web") == wanted

    remote_bucket.upload(inputs / "in", f"{tmp_path.name}/in")
    preparing.prepare(
        [f"{url}/in/*.jsonl"], f"{url}/again", tokenizer=inputs / "model", options=OPTIONS, storage=storage
    )
    ours = objects(remote_bucket, f"{url}/again")
    names = [name for name in wanted if name.startswith("text")]
    assert {name: ours.get(name) for name in names} == {name: wanted[name] for name in names}

    shards = CopyOptions(shards=50_000)
    headrace.merge([f"{url}/web", f"{url}/again"], f"{url}/merged", storage=storage, options=shards)
    headrace.merge([tmp_path / "web", tmp_path / "web"], tmp_path / "merged", options=shards)
    ours, wanted = objects(remote_bucket, f"{url}/merged"), files(tmp_path / "merged")
    names = [name for name in wanted if name.startswith("text")]
    assert {name: ours.get(name) for name in names} == {name: wanted[name] for name in names}


def killed_run(
    proxy: FaultProxy, what: str, inputs: Path, url: str, cache: Path, kill_at: int | None
) -> tuple[int, str]:
    """Run in a process that is killed when it sends its write request number ``kill_at``; exit code and output."""
    script = cache.parent / "run.py"
    script.write_text(SCRIPT)
    around = servers.environment(proxy.endpoint, url.partition(":")[0])
    environ = {**os.environ, **around, "HEADRACE_CACHE": str(cache)}
    command = [sys.executable, str(script), what, str(inputs), url]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    proxy.writes = 0

    def kill(number: int) -> None:
        if number == kill_at:
            process.kill()

    proxy.on_write = kill
    try:
        words, _ = process.communicate()
    finally:
        proxy.on_write = lambda number: None
    return process.returncode, words


@BOTH
@pytest.mark.parametrize("what", ["in order", "merge"])
def test_killed_runs_end_in_the_same_objects(
    remote_bucket: servers.Bucket, proxy: FaultProxy, inputs: Path, tmp_path: Path, what: str
) -> None:
    """Each is killed several times, at requests drawn at random, some of them in the middle of an upload in parts."""
    if what == "merge":
        headrace.merge([inputs / "big"], tmp_path / "local", options=CopyOptions(shards=4_000_000))
    else:
        prepare(inputs, tmp_path / "local")
    wanted = files(tmp_path / "local")
    cache = tmp_path / "cache"
    code, words = killed_run(proxy, what, inputs, f"{remote_bucket.url}/{tmp_path.name}/whole", cache, None)
    assert code == 0, words
    assert objects(remote_bucket, f"{remote_bucket.url}/{tmp_path.name}/whole") == wanted
    num_writes = proxy.writes
    rng = random.Random(7)
    for number in range(cases(1, 40)):
        url = f"{remote_bucket.url}/{tmp_path.name}/{number}"
        for moment in sorted(rng.sample(range(1, num_writes), 3), reverse=True):
            code, words = killed_run(proxy, what, inputs, url, cache, moment)
            assert code in (-9, 0), words
        code, words = killed_run(proxy, what, inputs, url, cache, None)
        assert code == 0, words
        assert servers.SECRET not in words
        assert objects(remote_bucket, url) == wanted
        assert not list((cache / "outputs").iterdir())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.io.objects.lookups.FetchPolicy", lambda: QUICK)


@BOTH
def test_faults_of_writes(
    remote_bucket: servers.Bucket,
    proxy: FaultProxy,
    inputs: Path,
    tmp_path: Path,
    quick: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One request in twenty fails, also after the store has done what was asked."""
    prepare(inputs, tmp_path / "local")
    wanted = files(tmp_path / "local")
    storage = msgspec.structs.replace(remote_bucket.storage, endpoint=proxy.endpoint)
    proxy.share = proxy.write_share = 0.05
    proxy.all_requests = True
    with caplog.at_level(logging.WARNING, "headrace"):
        for number in range(cases(2 if remote_bucket.scheme == "s3" else 1, 40)):
            url = f"{remote_bucket.url}/{tmp_path.name}/{number}"
            prepare(inputs, url, storage)
            assert objects(remote_bucket, url) == wanted
    assert sum(proxy.made.values()) > 3
    assert "trying again in" in caplog.text
    assert servers.SECRET not in caplog.text


@BOTH
def test_faults_of_uploads_in_parts(
    remote_bucket: servers.Bucket, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "WHOLE_BYTES", PART_BYTES)
    monkeypatch.setattr(writer, "PART_BYTES", PART_BYTES)
    data = random.Random(1).randbytes(3 * PART_BYTES + 7)
    (tmp_path / "file").write_bytes(data)
    proxy.write_share = 0.4
    ours = ObjectWriter(msgspec.structs.replace(remote_bucket.storage, endpoint=proxy.endpoint), QUICK)
    url = f"{remote_bucket.url}/{tmp_path.name}"
    for number in range(cases(4, 40)):
        ours.put_files({f"{url}/{number}": tmp_path / "file"})
        assert ObjectWriter(remote_bucket.storage).read(f"{url}/{number}") == data
    assert sum(proxy.made.values()) > 3
    assert ours.stats.uploads >= 4


@ALL
def test_one_of_several_creates_an_object(remote_bucket: servers.Bucket, folder_key: str) -> None:
    contents = [b"content %d" % number for number in range(6)]
    with ThreadPoolExecutor(len(contents)) as pool:
        for attempt in range(3):
            url = f"{remote_bucket.url}/{folder_key}/{attempt}"
            found = list(
                pool.map(lambda data, url=url: ObjectWriter(remote_bucket.storage).create(url, data), contents)
            )
            [winner] = [data for data, there in zip(contents, found, strict=True) if there is None]
            assert [there or winner for there in found] == [winner] * len(contents)
            assert ObjectWriter(remote_bucket.storage).read(url) == winner


@ALL
def test_objects_that_are_not_there_do_not_keep_others(remote_bucket: servers.Bucket, folder_key: str) -> None:
    url = f"{remote_bucket.url}/{folder_key}"
    ours, there = ObjectWriter(remote_bucket.storage), {f"{url}/{number}": b"content" for number in range(30)}
    ours.put(there)
    ours.delete([f"{url}/missing", *there, f"{url}/missing too"])
    assert ours.statuses(url) == {}
    assert ours.stats.deletes == (1 if remote_bucket.scheme == "s3" else 32)


@BOTH
def test_puts_are_counted(remote_bucket: servers.Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    storage = msgspec.structs.replace(remote_bucket.storage, endpoint=proxy.endpoint)
    proxy.write_share = 0.2
    ours = ObjectWriter(storage, QUICK)
    for number in range(40):
        url = f"{remote_bucket.url}/{tmp_path.name}/{number}"
        assert ours.create(url, b"content %d" % number) is None
        assert ours.create(url, b"content %d" % number) is None
        assert ours.create(url, b"another") == b"content %d" % number
    stats = ours.stats
    assert proxy.writes == stats.puts == 120 + stats.retries
    assert stats.retries == sum(proxy.made.values()) > 5


@pytest.mark.soak
def test_a_store_that_stays_away_ends_in_an_error_and_the_run_goes_on_later(
    weed: servers.Bucket, proxy: FaultProxy, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = FetchPolicy(deadline_s=1, first_delay_s=0.05, most_delay_s=0.2)
    monkeypatch.setattr("headrace.io.objects.lookups.FetchPolicy", lambda: policy)
    storage = msgspec.structs.replace(weed.storage, endpoint=proxy.endpoint)
    url = f"{weed.url}/{tmp_path.name}/web"

    def leave(number: int) -> None:
        proxy.is_away = number >= 12

    proxy.on_write = leave
    with pytest.raises(OutputError, match=rf"{url}/\S+:.*attempts") as caught:
        prepare(inputs, url, storage)
    assert servers.SECRET not in str(caught.value)
    proxy.on_write = lambda number: None
    proxy.is_away = False
    prepare(inputs, url, storage)
    prepare(inputs, tmp_path / "local")
    assert objects(weed, url) == files(tmp_path / "local")
