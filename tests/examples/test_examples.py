"""Every example runs as its reader would run it, without a warning, and says what it claims."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
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
from counts import PATIENCE_S

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "megatron_provider.py": ["train 400 samples, the first is [", "valid 40 samples", "test None"],
    "one_line_trainer.py": ["16 steps, the last 8 after the stop", "came twice in 2 epochs: True", "loss at first"],
    "one_line_loop.py": ["epoch 0, samples [34, 7, 10, 27, 25, 4, 29, 13]", "the same as without the stop: True"],
    "arrive_from_the_trainer.py": ["the Trainer alone: True", "without it again, too: True"],
    "pack.py": ["packs of 256 tokens (best_fit)", "loss at first"],
    "blend.py": ["90.000 % code: blend, endless", "code/small: 360 of the first 1,600", "counts over the whole run: ["],
    "caption_pretraining.py": ["loss after 320 samples 0.", "rank 1 of 2 continues with the samples ['0066', '0114', "],
    "caption_tars.py": ["0000, (3, 24, 32), a red picture", "40 samples were seen, 40 different ones"],
    "change_the_mix.py": ["at step 30 with 70 more steps", "small 75.0%, large 25.0% (the decay", "; 30 deferred"],
    "chats.py": ["headrace-example-"],
    "corpus.py": ["headrace-example-"],
    "dpo.py": ["of the layout preference", "loss at first 0.693", "margin of the chosen answer at first 0.0"],
    "energon_encoder.py": ["of the last batch filled", "rank 1 of 2 continues with the packs [162, 163]"],
    "grpo_prompts.py": ["'data_source': 'sums', 'ground_truth': '", "mean reward of the first", "outstanding 0"],
    "jax_loop.py": ["on arrays (8, 64)", "rank 1 of 2 continues with [164, 165, 166, 167]"],
    "lightning_trainer.py": ["the first fed 120 samples, the second went on at 120, to 319", "loss at first"],
    "megatron_external.py": ["step 6, loss", "step 12, loss", ", position 96"],
    "prepare_corpus.py": ["'bad': 1, 'duplicate': 3, 'filter:", "line 20: malformed JSON", "document 2 is line "],
    "prompts.py": ["stopped with ", "filtered    ", "outstanding 0"],
    "ray_prepare.py": ["encode: ", "duplicates: ", "the bytes of a run on one host: True"],
    "sft_loop.py": ["of the layout messages", "ASCII string b.<|im_end|>'", "loss at first"],
    "sft_trainer.py": ["of the layout messages", "loss at first"],
    "stateful_loader.py": ["epoch 1: [12, 13, 14, 15]\n", "epoch 1: [20, 21, 22, 23]\n"],
    "text_and_images.py": ["step 0: 2 pictures of 8, (8, 8, 34, 3)", "step 2: 2 pictures of 8"],
    "torch_dataset.py": ["windows of 64 tokens every 32", "batches"],
    "torchtitan_config.py": ["rank 0 of 2: 16 batches of 2, 30 samples", "rank 1 of 2: 16 batches of 2, 30 samples"],
    "torchrun_ddp.py": ["rank 0 of 2: 30 micro-batches in 10 steps", "rank 1 of 2: 30 micro-batches in 10 steps"],
    "train_from_a_bucket.py": ["step 19: torch.Size([8, 64])\ncache: ", "100.0 % of ", "hits, 0 bytes fetched for"],
    "train_loop.py": ["before the stop: [", "loss at first"],
    "transformers_trainer.py": ["30 steps, the last 10 after the stop", "loss at first", "loss of the other files"],
    "trial.py": ["headrace-example-", ": data, images and tokenizer.json"],
    "what_was_fed.py": ["step 340 is the positions 2720 to 2727", "epoch 0, sample"],
}
ELSEWHERE = {
    **dict.fromkeys(
        [
            *("jax_loop.py", "lightning_trainer.py", "megatron_external.py", "ray_prepare.py", "sft_trainer.py"),
            *("transformers_trainer.py", "one_line_trainer.py", "arrive_from_the_trainer.py"),
        ],
        pytest.mark.interop,
    ),
    "torchtitan_config.py": [
        pytest.mark.interop,
        pytest.mark.skipif(find_spec("torchtitan") is None, reason="torchtitan is not installed: see `make interop`"),
    ],
    **dict.fromkeys(["blend.py", "pack.py", "torchrun_ddp.py", "what_was_fed.py"], pytest.mark.soak),
}
"""Examples with packages that only `make interop` has, or that are installed by hand, and the longest ones."""
LEARNS = {
    "dpo.py": 0.5,
    "jax_loop.py": 0.95,
    "lightning_trainer.py": 0.98,
    "one_line_trainer.py": 0.8,
    "sft_loop.py": 0.7,
    "sft_trainer.py": 0.8,
    "transformers_trainer.py": 0.8,
}
"""What the last loss may be at most of the first."""
OWN_PROCESS = {
    "lightning_trainer.py": [],
    "megatron_external.py": [],
    "ray_prepare.py": [],
    "torchtitan_config.py": [],
    "torchrun_ddp.py": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
}
"""How examples are started that start others of their own, which may warn."""


@pytest.fixture(scope="module")
def interpreter() -> Iterator[warm.Warm]:
    """With the large packages that most examples import, and every warning an error."""
    modules = ["headrace.loader", "torch._dynamo", "pyarrow.parquet", "tokenizers"]
    process = warm.Warm(modules, ("-W", "error"))
    yield process
    process.close()


def run(name: str, folder: Path, interpreter: warm.Warm) -> str:
    """What the example prints."""
    # Workers make sockets in TMPDIR, and the path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="example-") as temporary:
        environment = {**os.environ, "TMPDIR": temporary, "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
        return _run(name, folder, interpreter, environment)


def _run(name: str, folder: Path, interpreter: warm.Warm, environment: dict[str, str]) -> str:
    if name in OWN_PROCESS:
        environment["HOME"] = environment["TMPDIR"]  # where Ray keeps what it makes for a user
        command = [sys.executable, *OWN_PROCESS[name], str(EXAMPLES / name)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout
    with (folder / "output").open("wb") as output, (folder / "errors").open("wb") as errors:
        process = interpreter.start(
            [str(EXAMPLES / name)], environment=environment, output=output.fileno(), errors=errors.fileno(), passed=-1
        )
        try:
            code = process.wait(PATIENCE_S)
        finally:
            process.kill()
    assert code == 0, (folder / "errors").read_text()
    return (folder / "output").read_text()


def test_every_example_is_here_and_short() -> None:
    files = sorted(EXAMPLES.glob("*.py"))
    assert [file.name for file in files] == sorted(SAYS)
    scripts = list(EXAMPLES.glob("*.sh"))
    assert [script.name for script in scripts] == ["slurm_prepare.sh"]
    for file in [*files, *scripts]:
        assert len(file.read_text().splitlines()) < 60, file


@pytest.mark.parametrize("name", [pytest.param(name, marks=ELSEWHERE.get(name, ())) for name in sorted(SAYS)])
def test_example(name: str, tmp_path: Path, interpreter: warm.Warm) -> None:
    output = run(name, tmp_path, interpreter)
    for said in SAYS[name]:
        assert said in output
    if name == "train_loop.py":
        before, after = (line.partition(": ")[2].strip() for line in output.splitlines()[:2])
        assert before == after, "a resumed run repeats the losses of the steps after its checkpoint"
    if name == "megatron_external.py":
        repeated = [line for line in output.splitlines() if line.startswith(("step 5,", "step 6,"))]
        assert repeated[:2] == repeated[2:], "a resumed run repeats the steps after its checkpoint"
    if name in LEARNS:
        first, last = (float(found) for found in re.findall(r"at (?:first|last) ([\d.]+)", output)[:2])
        assert last < first * LEARNS[name], output


PROGRAMS = {
    "sbatch": """#!/bin/bash
script=${*: -1}
if [[ $script == *task.sh ]]; then
    bash "$script" >&2
    echo 1
else
    (while [ ! -e "${script%/*}/submitted/000000" ]; do sleep 0.05; done; bash "$script") > /dev/null 2>&1 &
    echo 2
fi
""",
    "squeue": "#!/bin/sh\necho 2\n",
    "scontrol": "#!/bin/sh\n",
    "sleep": """#!/bin/bash
PATH=${PATH#*:}
if [ "$1" = 5 ]; then
    for _ in {1..9000}; do [ -e out/headrace.json ] && break; sleep 0.1; done
else
    sleep "$1"
fi
""",
}
"""Stands for Slurm: the array is done while it is submitted, and the job behind it after that. The script, which waits
for the output, sleeps until it is there."""


def test_slurm_prepare(tmp_path: Path, interpreter: warm.Warm) -> None:
    """`tests/preparing/test_machines.py` runs it on a real Slurm."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "CPUS": "2"}
    folder = Path(_run("corpus.py", tmp_path, interpreter, environment).strip())
    (tmp_path / "bin").mkdir()
    for name, program in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(program)
        (tmp_path / "bin" / name).chmod(0o755)
    paths = [str(tmp_path / "bin"), sysconfig.get_path("scripts"), os.environ["PATH"]]
    done = subprocess.run(
        ["bash", str(EXAMPLES / "slurm_prepare.sh"), "out", str(folder / "tokenizer.json"), str(folder / "text/small")],
        cwd=tmp_path, env={**environment, "PATH": os.pathsep.join(paths)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "array 1 of 1 jobs does the tasks, then job 2 goes on" in done.stdout
    local = {file.name: file.read_bytes() for file in (folder / "small").glob("*.bin")}
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").glob("*.bin")} == local


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


@pytest.mark.parametrize(
    ("life", "step", "samples", "found"),
    [
        (0, 1, [(4, "hash-4"), (5, "hash-5"), (6, "other"), (7, "hash-7")], "position 6.*other"),
        (0, 2, [(8, "other")], "step 2.*killed.*position 8.*other"),
        (0, 1, [(4, "hash-4"), (5, "hash-5"), (6, "hash-6")], r"\[7\].*missing"),
        (1, 3, [*EXPECTED[3].items(), (12, "hash-12")], r"\[12\].*more than once"),
        (1, 3, [*EXPECTED[3].items(), (3, "hash-3")], r"\[3\].*not belong"),
        (1, 2, [], r"step 2.*resumed.*\[8, 9, 10, 11\].*missing"),
        (1, 1, [(4, "hash-4")], "step 1.*again"),
        (1, 4, [(16, "hash-16")], "step 4.*uninterrupted"),
    ],
)
def test_any_change_is_a_difference(life: int, step: int, samples: list[tuple[int, str]], found: str) -> None:
    both = lives()
    both[life].samples[step] = samples
    [said] = differences(EXPECTED, *both, 2)
    assert re.search(found, said)


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
    with pytest.raises(DemoError, match="earlier"):
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
    with pytest.raises(DemoError, match="uninterrupted"):
        demo.prove(settings, resumed_at)


@pytest.mark.usefixtures("warm_ranks")
def test_a_failing_rank_is_reported(tmp_path: Path) -> None:
    """Without settings every rank fails; the message holds the rank's own error, and no process is left."""
    with (
        pytest.raises(DemoError, match=r"0.*1.*1:[\s\S]*settings.json"),
        Job(tmp_path, "killed", 1) as job,
    ):
        job.wait()
    with pytest.raises(ProcessLookupError):
        os.kill(job.pid, 0)
