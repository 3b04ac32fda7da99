"""The pieces of ``make demo``, and a small training that is killed and resumed."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import BinaryIO

import numpy as np
import pytest
from gather import gather, train_tokenizer
from launch import DemoError, Job
from proof import Log, differences, sample_hashes, uninterrupted
from settings import LATER_WEIGHTS, Settings, make_run
from tokenizers import Tokenizer

import corpora
import warm

MAIN = Path(__file__).parents[2] / "examples" / "demo" / "__main__.py"
EXPECTED = {step: {4 * step + i: f"hash-{4 * step + i}" for i in range(4)} for step in range(4)}


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    """The demo's ``__main__``, under a name of its own."""
    spec = importlib.util.spec_from_file_location("demo_main", MAIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lives() -> tuple[Log, Log]:
    """Killed in step 3, resumed from the checkpoint of step 2."""
    first, second = Log(), Log()
    first.samples = {step: list(EXPECTED[step].items()) for step in (0, 1, 2)} | {3: [(12, "hash-12")]}
    second.samples = {step: list(EXPECTED[step].items()) for step in (2, 3)}
    return first, second


def test_equal_lives_have_no_differences() -> None:
    assert differences(EXPECTED, *lives(), 2) == []


@pytest.mark.parametrize(
    ("life", "step", "samples", "found"),
    [
        (0, 1, [(4, "hash-4"), (5, "hash-5"), (6, "other"), (7, "hash-7")], "position 6 has the bytes other"),
        (0, 2, [(8, "other")], "step 2 of the killed run: position 8 has the bytes other"),
        (0, 1, [(4, "hash-4"), (5, "hash-5"), (6, "hash-6")], r"the positions \[7\] are missing"),
        (1, 3, [*EXPECTED[3].items(), (12, "hash-12")], r"the positions \[12\] came more than once"),
        (1, 3, [*EXPECTED[3].items(), (3, "hash-3")], r"the positions \[3\] do not belong"),
        (1, 2, [], r"step 2 of the resumed run: the positions \[8, 9, 10, 11\] are missing"),
        (1, 1, [(4, "hash-4")], "step 1: trained again"),
        (1, 4, [(16, "hash-16")], "step 4: not in the uninterrupted run"),
    ],
)
def test_any_change_is_a_difference(life: int, step: int, samples: list[tuple[int, str]], found: str) -> None:
    both = lives()
    both[life].samples[step] = samples
    said = differences(EXPECTED, *both, 2)
    assert len(said) == 1
    assert re.search(found, said[0])


def test_one_changed_bit_changes_the_hash() -> None:
    tokens = np.arange(20, dtype=np.int64).reshape(2, 10)
    changed = tokens.copy()
    changed[1, 3] ^= 1
    hashes = sample_hashes(tokens, tokens)
    assert len(set(hashes)) == 2
    for other in (sample_hashes(changed, tokens), sample_hashes(tokens, changed)):
        assert other[0] == hashes[0]
        assert other[1] != hashes[1]


def test_a_torn_line_of_a_log_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    lines = '{"step": 0, "positions": [0, 1], "hashes": ["a", "b"]}\n{"step": 0, "loss": 2.5}\n{"step": 1, "posi'
    (tmp_path / "logs" / "killed-rank-0.jsonl").write_text(lines)
    log = Log.read(tmp_path, "killed")
    assert log.samples == {0: [(0, "a"), (1, "b")]}
    assert log.losses == {0: 2.5}


def test_gathered_text_and_its_tokeniser(tmp_path: Path) -> None:
    written = gather(tmp_path / "text", max_bytes=300_000)
    assert sorted(written) == sorted(LATER_WEIGHTS)
    files = [file for name in written for file in written[name]]
    assert 100_000 < sum(file.stat().st_size for file in files) < 400_000
    train_tokenizer(files, tmp_path / "tokenizer.json", vocab_size=600, sample_bytes=60_000)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 600
    text = "def main() -> None:\n    return 'größer'\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_only_its_own_folder_is_made_anew(demo: ModuleType, tmp_path: Path) -> None:
    demo.clean(tmp_path / "new")
    (tmp_path / "new" / "left-over").touch()
    demo.clean(tmp_path / "new")
    assert [file.name for file in (tmp_path / "new").iterdir()] == [demo.MARK]
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").touch()
    with pytest.raises(DemoError, match="an earlier demo did not make"):
        demo.clean(tmp_path / "theirs")


@pytest.fixture
def warm_ranks(warm_torch: warm.Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are processes of their own, but have torch already."""

    def popen(command: list[str], *, env: dict[str, str], stderr: BinaryIO, process_group: int) -> warm.Started:
        return warm_torch.start(
            command[1:], environment=env, output=1, errors=stderr.fileno(), passed=-1, group=process_group
        )

    monkeypatch.setattr("launch.subprocess", SimpleNamespace(Popen=popen))


@pytest.mark.usefixtures("warm_ranks")
def test_killed_and_resumed_training(demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's own training, edit and proof, small; then the same proof over a log with one wrong hash."""
    settings = Settings(vocab_size=100, seq_len=8, steps=60, checkpoint_every_steps=3, width=4)
    for seed, name in enumerate(LATER_WEIGHTS):
        draw = np.random.default_rng(seed)
        corpora.write(tmp_path / name / "text_document", [draw.integers(0, 100, 50) for _ in range(60)])
    settings.save(tmp_path)
    monkeypatch.setattr(demo, "FOLDER", tmp_path)
    monkeypatch.setattr(demo, "KILL_AFTER_STEP", 4)
    monkeypatch.setattr(demo, "EDIT_AT_STEP", 40)
    resumed_at, settings = demo.train(settings)
    assert 3 <= resumed_at < settings.steps
    run = make_run(tmp_path, settings)
    first, second = Log.read(tmp_path, "killed"), Log.read(tmp_path, "resumed")
    expected = uninterrupted(run)
    assert [sorted(hashes) for hashes in expected.values()] == [run.positions(step).tolist() for step in range(60)]
    assert differences(expected, first, second, resumed_at) == []
    assert min(second.samples) == resumed_at
    assert second.losses[59] > 0
    sources = [run.lookup(run.positions(step)).sources.tolist() for step in (39, 40)]
    assert [source.count(2) for source in sources] == [0, 6], "the third source comes with the edit"
    demo.tell_account(settings)

    log = next((tmp_path / "logs").glob("resumed-rank-2.jsonl"))
    digest = second.samples[59][-1][1]
    log.write_text(log.read_text().replace(digest, digest[::-1]))
    with pytest.raises(DemoError, match="differ from those of the uninterrupted run"):
        demo.prove(settings, resumed_at)


@pytest.mark.usefixtures("warm_ranks")
def test_a_failing_rank_is_reported(tmp_path: Path) -> None:
    """Without settings every rank fails; the message holds the rank's own error, and no process is left."""
    with (
        pytest.raises(DemoError, match=r"rank 0 of 1 ended with code 1:[\s\S]*settings.json"),
        Job(tmp_path, "killed", 1) as job,
    ):
        job.wait()
    with pytest.raises(ProcessLookupError):
        os.kill(job.pid, 0)
