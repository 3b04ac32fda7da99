"""The ten lines of docs/watching.md for W&B, TensorBoard and MLflow write what they say, with the packages themselves.

None of them is part of the extra `interop`: each test is skipped where its package is missing. wandb is offline.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import corpora
import headrace

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

PAGE = Path(__file__).parents[2] / "docs" / "watching.md"
NAMES = {
    "data/step",
    "data/samples",
    "data/tokens_per_s",
    "data/wait_share",
    "data/mix/a",
    "data/plan/b",
    "data/epochs/a",
}
STEPS = [0, 1, 2]


def snippet(name: str) -> Any:
    """The function of this name in the page."""
    text = PAGE.read_text(encoding="utf-8")
    [block] = re.findall(rf"^```python\n((?:(?!^```)[\s\S])*?^def {name}[\s\S]*?)^```$", text, re.MULTILINE)
    [function] = re.findall(rf"^def {name}\(.*?(?=^\S)", block, re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(function, namespace)
    return namespace[name]


def train(on_step: Any, corpus: list[corpora.Corpus]) -> list[dict[str, float]]:
    """Three steps; what was reported for each."""
    reports: list[dict[str, float]] = []

    def both(report: dict[str, float]) -> None:
        reports.append(dict(report))
        on_step(report)

    datasets = {name: headrace.WindowDataset(corpus[0].store, seq_len=8) for name in "ab"}
    run = headrace.Run(headrace.Blend(datasets, weights={"a": 1, "b": 1}), global_batch_size=8, samples=24)
    for _ in headrace.Loader(run, micro_batch_size=8, metrics=headrace.Metrics(on_step=both, every_s=0)):
        pass
    assert [report["step"] for report in reports] == STEPS
    assert {f"data/{name}" for name in reports[0]} >= NAMES
    return reports


def test_tensorboard(corpus: list[corpora.Corpus], tmp_path: Path) -> None:
    pytest.importorskip(
        "tensorboard", reason="tensorboard is not installed: `make interop` puts it into .venv/torchtitan"
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        reports = train(snippet("to_tensorboard")(writer), corpus)
    written = EventAccumulator(str(tmp_path)).Reload()
    for name in reports[0]:
        events = written.Scalars(f"data/{name}")
        assert [event.step for event in events] == STEPS
        assert [event.value for event in events] == pytest.approx([report[name] for report in reports], rel=1e-6)


def test_mlflow(corpus: list[corpora.Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: `make interop` puts it into .venv/trackers")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a local folder, in newer versions only if asked for
    mlflow.set_tracking_uri(tmp_path.as_uri())
    mlflow.set_experiment("headrace")
    with mlflow.start_run() as started:
        reports = train(snippet("to_mlflow")(mlflow), corpus)
    client = mlflow.MlflowClient()
    for name in reports[0]:
        history = {one.step: one.value for one in client.get_metric_history(started.info.run_id, f"data/{name}")}
        assert history == {step: report[name] for step, report in zip(STEPS, reports, strict=True)}


def records_of(log: bytes) -> Iterator[bytes]:
    """The records of a log of LevelDB: blocks of 32 KB of parts, each with a checksum, a size and a kind."""
    whole, place = b"", 7  # behind the header of the file
    while place + 7 <= len(log):
        if (left := 2**15 - place % 2**15) < 7:
            place += left
            continue
        size, kind = struct.unpack_from("<HB", log, place + 4)
        whole += log[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # all of a record, or its last part
            yield whole
            whole = b""


def test_wandb(corpus: list[corpora.Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: `make interop` puts it into .venv/trackers")
    from wandb.proto.wandb_internal_pb2 import Record

    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path))
    with wandb.init(project="headrace", mode="offline", dir=tmp_path, settings=wandb.Settings(silent=True)) as run:
        reports = train(snippet("to_wandb")(run), corpus)
    wandb.teardown()  # its process has written the file when it has ended
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    logged = {}
    for data in records_of(file.read_bytes()):
        record = Record.FromString(data)
        if record.HasField("history"):
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            logged[row["_step"]] = {key: value for key, value in row.items() if key.startswith("data/")}
    assert logged == {
        step: {f"data/{name}": value for name, value in report.items()}
        for step, report in zip(STEPS, reports, strict=True)
    }
