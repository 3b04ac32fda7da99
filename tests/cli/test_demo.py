"""``headrace demo``: whole, small, with real kills; its proof notices every difference, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
import torch
from tokenizers import Tokenizer

import warm
from headrace.cli import demo, demo_rank
from headrace.errors import WorkerError

EXPECTED = {step: [(4 * step + i, f"hash-{4 * step + i}") for i in range(4)] for step in range(4)}


@pytest.mark.parametrize(
    ("job", "step", "samples", "found"),
    [
        (
            0,
            1,
            [(4, "hash-4"), (5, "hash-5"), (6, "other"), (7, "hash-7")],
            [r"step 1.*missing: \[6\]", r"bytes.*\[6\]"],
        ),
        (0, 2, [(8, "other")], [r"step 2.*bytes.*\[8\]"]),
        (0, 1, [(4, "hash-4"), (5, "hash-5"), (6, "hash-6")], [r"missing: \[7\]"]),
        (1, 3, [*EXPECTED[3], (12, "hash-12")], [r"come again: \[12\]"]),
        (1, 3, [*EXPECTED[3], (3, "hash-3")], [r"not those.*\[3\]"]),
        (1, 2, [], [r"step 2.*missing: \[8, 9, 10, 11\]"]),
        (1, 1, [(4, "hash-4")], [r"step 1.*trained again.*\[4\]"]),
        (1, 4, [(16, "hash-16")], [r"step 4.*not those of the uninterrupted run"]),
    ],
)
def test_any_change_is_a_difference(job: int, step: int, samples: list[tuple[int, str]], found: list[str]) -> None:
    """Of a job that was killed in step 3 and one that went on from step 2."""
    killed = {step: EXPECTED[step] for step in (0, 1, 2)} | {3: [(12, "hash-12")]}
    resumed = {step: EXPECTED[step] for step in (2, 3)}
    assert demo.differences(EXPECTED, killed, resumed, 2) == []
    (killed, resumed)[job][step] = samples
    said = demo.differences(EXPECTED, killed, resumed, 2)
    assert [bool(re.search(*pair)) for pair in zip(found, said, strict=True)] == [True] * len(found), said


def test_one_changed_bit_changes_the_hash() -> None:
    tokens = torch.arange(20).reshape(2, 10)
    changed = tokens.clone()
    changed[1, 3] ^= 1
    positions = torch.tensor([5, 6])

    def hashed(input_ids: torch.Tensor, labels: torch.Tensor) -> list[tuple[int, str]]:
        return demo_rank.hashed({"sample_positions": positions, "input_ids": input_ids, "labels": labels})

    first = hashed(tokens, tokens)
    assert [position for position, _ in first] == [5, 6]
    for other in (hashed(changed, tokens), hashed(tokens, changed)):
        assert other[0] == first[0]
        assert other[1] != first[1]
        assert demo.total({0: other}) != demo.total({0: first})
    assert demo.total({0: first}) == demo.total({0: first[::-1]}) != demo.total({1: first})


def test_a_torn_line_of_a_log_is_left_out(tmp_path: Path) -> None:
    whole = '{"step": 0, "samples": [[0, "a"], [1, "b"]]}\n'
    demo_rank.log_of(tmp_path, "killed", 0).write_text(whole + '{"step": 1, "samples": [[2, "')
    demo_rank.log_of(tmp_path, "killed", 11).write_text('{"step": 0, "samples": [[2, "c"]]}\n')
    demo_rank.log_of(tmp_path, "resumed", 0).write_text(whole)
    assert demo_rank.read_log(tmp_path, "killed") == {0: [(0, "a"), (1, "b"), (2, "c")]}


def test_gathered_text_and_its_tokeniser(tmp_path: Path) -> None:
    texts = demo.gather()
    assert sorted(texts) == sorted(demo.LATER_WEIGHTS)
    sizes = {name: sum(len(one["text"]) for one in some) for name, some in texts.items()}
    assert all(demo.SOURCE_BYTES <= num < 1.5 * demo.SOURCE_BYTES for num in sizes.values()), sizes
    assert texts["network"][0]["path"] == "asyncio/__init__.py"
    demo.train_tokenizer([one["text"][:2_000] for one in texts["modules"]], tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == demo_rank.VOCAB_SIZE
    text = "def main() -> None:\n    return 'größer'\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.fixture
def small(warm_torch: warm.Warm, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A short run of little text; ranks are processes of their own, which have torch already. Yields all of them."""
    started: list[Any] = []

    def popen(command: list[str], *, env: dict[str, str], stderr: BinaryIO) -> warm.Started:
        assert command[:3] == [sys.executable, "-m", demo_rank.__name__]
        arguments = [str(demo_rank.__file__), *command[3:]]
        started.append(warm_torch.start(arguments, environment=env, output=1, errors=stderr.fileno(), passed=-1))
        return started[-1]

    monkeypatch.setattr(demo, "subprocess", SimpleNamespace(Popen=popen))
    for name, value in {"SOURCE_BYTES": 60_000, "STEPS": 40, "KILL_IN_STEP": 12, "EDIT_AT_STEP": 30}.items():
        monkeypatch.setattr(demo, name, value)
    yield started
    for process in started:
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)


def test_killed_edited_and_resumed(small: list[Any], run: Any, of_json: Any, tmp_path: Path) -> None:
    result = run("demo", tmp_path / "new")
    assert result.exit_code == 0, result.output
    assert [process.returncode for process in small] == [-9, -9, 0, 0, 0]
    for said in (
        "gathered ", "tokens in the stores modules, packages, network", "trained on 2 ranks; kill -9",
        "from step 30 on modules 25%, packages 25%, network 50%", "resumed on 3 ranks in step ",
        "has the same 480 samples", "network",
    ):  # fmt: skip
        assert said in result.output, said
    fed, whole = re.findall(r"[0-9a-f]{32}", result.stdout)
    assert fed == whole
    assert of_json("account", tmp_path / "new/run.json")["fed"]["samples"] == 480
    step = of_json("trace", "step", 35, "--run", tmp_path / "new/run.json")
    assert [one["source"] for one in step["samples"]].count("network") == 6
    refused = run("demo", tmp_path / "new")
    assert (refused.exit_code, "is not empty" in refused.stderr) == (6, True)


def test_a_wrong_sample_fails(small: list[Any], of_json: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a folder, all is temporary."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    right = demo.uninterrupted

    def wrong(given: Any) -> demo_rank.Samples:
        found = right(given)
        position, digest = found[3][1]
        return found | {3: [found[3][0], (position, digest[::-1]), *found[3][2:]]}

    monkeypatch.setattr(demo, "uninterrupted", wrong)
    found = of_json("demo", code=1)
    assert [line.startswith("step 3: ") for line in found["differences"]] == [True, True]
    assert found["hashes"]["fed"] != found["hashes"]["whole"]
    assert (found["folder"], list(tmp_path.iterdir())) == (None, [])


@pytest.mark.usefixtures("small")
def test_a_failing_rank_is_reported(tmp_path: Path) -> None:
    """Without a run each rank fails; the message holds the rank's own error."""
    with pytest.raises(WorkerError, match=r"rank 0 of 1 ended with code 1:[\s\S]*run.json"):
        demo.train(tmp_path, "killed", 1, kill_in_step=3)


def test_without_torch(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run("demo", tmp_path / "new")
    assert (result.exit_code, "pip install 'headrace[torch]'" in result.stderr) == (8, True)
    assert not (tmp_path / "new").exists()


def test_as_a_user_starts_it(tmp_path: Path) -> None:
    """In processes of their own, with the full numbers."""
    command = [sys.executable, "-m", "headrace", "demo", "--json"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["differences"], found["steps"], found["ranks"]) == ([], 100, [2, 3])
    assert list(tmp_path.iterdir()) == []
