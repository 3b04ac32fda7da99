"""Every example runs as its reader would run it, without a warning, and says what it claims."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

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
