"""Preparation on real clusters of Slurm and Ray, which run on this host: the bytes are those of a local run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import slurm_cluster
from counts import PATIENCE_S

pytestmark = pytest.mark.soak

PREPARE = [sys.executable, "-m", "headrace", "prepare"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 2 MB of text in JSON lines, and a tokeniser."""
    folder = tmp_path_factory.mktemp("data")
    texts = [
        path.read_text("utf-8", "replace") for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:80]
    ]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts[:20], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    for number in range(3):
        lines = [json.dumps({"text": text}) + "\n" for text in texts[number::3]]
        (folder / f"{number}.jsonl").write_text("".join(lines))
    return folder


def arguments(data: Path, output: Path, *more: str) -> list[str]:
    inputs = [str(path) for path in sorted(data.glob("*.jsonl"))]
    return [*PREPARE, *inputs, "--tokenizer", str(data / "tokenizer.json"), "-o", str(output), *more]


@pytest.fixture(scope="module")
def wanted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What local runs make: in the order of the input, and shuffled."""
    folder = tmp_path_factory.mktemp("local")
    for name, more in (("plain", []), ("shuffled", ["--shuffle", "5"])):
        subprocess.run(arguments(data, folder / name, "-q", *more), check=True)
    return {name: content(folder / name) for name in ("plain", "shuffled")}


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_cluster.Slurm]:
    if missing := slurm_cluster.missing():
        pytest.skip(f"Slurm is not installed: no {', '.join(missing)}; on Debian, apt install slurmctld slurmd munge")
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm"), num_nodes=2) as started:
        yield started


def test_slurm_runs_arrays_and_what_is_behind_them(
    slurm: slurm_cluster.Slurm, data: Path, wanted: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    more = ["--shuffle", "5", "--executor", "slurm", "--time", "00:10:00", "--tasks-per-job", "3", "--json"]
    done = subprocess.run(
        arguments(data, tmp_path / "out", *more), env=slurm.environment, capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    assert len(told["jobs"]) == 2
    assert told["num_tasks"] > 3
    again = subprocess.run(
        [*PREPARE, "finish", str(tmp_path / "out"), "--executor", "slurm"], env=slurm.environment, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert "is still at work: nothing was submitted" in again.stderr
    slurm.wait_until_empty(PATIENCE_S)
    assert content(tmp_path / "out") == wanted["shuffled"]


def test_slurm_requeues_and_loses_nodes(
    slurm: slurm_cluster.Slurm, data: Path, wanted: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """Slurm waits for two minutes before it begins a job again."""
    output = tmp_path / "out"
    subprocess.run(
        arguments(data, output, "--executor", "slurm", "--array-parallel", "2", "-q"), env=slurm.environment, check=True
    )
    array = slurm.queued()[0].split("_")[0].split()[0]
    until = time.monotonic() + PATIENCE_S
    while not any("RUNNING" in one for one in slurm.queued()):
        assert time.monotonic() < until
        time.sleep(0.05)
    subprocess.run(["scontrol", "requeue", f"{array}_0"], env=slurm.environment, check=False, capture_output=True)
    slurm.run("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=test")
    time.sleep(1)
    slurm.run("scontrol", "update", "NodeName=node2", "State=RESUME")
    slurm.wait_until_empty(PATIENCE_S)
    subprocess.run([*PREPARE, "finish", str(output), "-q"], env=slurm.environment, check=True)
    assert content(output) == wanted["plain"]


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'headrace[ray]'")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        yield cluster
    finally:
        cluster.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_ray_loses_a_node_and_its_driver(
    ray_cluster: Any, data: Path, wanted: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    lost = ray_cluster.add_node(num_cpus=1)
    command = arguments(data, output, "--shuffle", "5", "--executor", "ray", "--address", ray_cluster.address, "-q")
    first = subprocess.Popen(command)
    receipts = output / ".headrace"
    until = time.monotonic() + PATIENCE_S
    while not list(receipts.glob("phase-*/receipts/*/*.json")):
        assert time.monotonic() < until
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    ray_cluster.remove_node(lost, allow_graceful=False)
    subprocess.run(command, check=True)
    assert content(output) == wanted["shuffled"]
