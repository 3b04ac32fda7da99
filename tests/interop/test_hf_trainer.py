"""Trainers of Hugging Face over a run: killed, resumed on other ranks, and as if nothing had happened.

A tiny model is trained through the trainer itself, in one process or in two of a gloo group. `hf_training` is what each
of them runs.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import headrace
import hf_training
import warm
from counts import PATIENCE_S
from ports import free_port

pytestmark = pytest.mark.interop

PROGRAM = Path(hf_training.__file__)
MICRO = 2
MODULES = ["transformers.trainer", "transformers.models.llama.modeling_llama", "headrace.integrations.transformers"]
MODULES += [f"trl.trainer.{name}_trainer" for name in ("sft", "dpo", "kto", "reward", "grpo")] + ["torch._dynamo"]


@pytest.fixture(scope="module")
def process() -> Iterator[warm.Warm]:
    """What has imported the trainers."""
    pytest.importorskip("trl.trainer.sft_trainer")
    started = warm.Warm(MODULES, ("-W", "ignore"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def folder(hf_stores: Path) -> Path:
    return hf_stores


class Life(NamedTuple):
    """What one life of a training did: step -> the rows of all ranks, and step -> loss."""

    codes: list[int]
    rows: dict[int, list[list[int]]]
    losses: dict[int, float]
    eval_losses: list[float]
    accounts: list[dict[str, Any]]
    """Of the prompts, as each rank has them at the end."""


class Job(NamedTuple):
    """A training in a folder."""

    process: warm.Warm
    name: str
    kind: str
    folder: Path
    out: Path
    sizes: dict[str, Any] = {}  # noqa: RUF012 -- never changed

    def live(self, life: int, world_size: int, *, kill_at: int = -1, save_steps: int = 2) -> Life:
        """Train from the last checkpoint on, or from the beginning in the first life."""
        port = free_port()
        programs = []
        for rank in range(world_size):
            variables = {"HF_HUB_OFFLINE": 1, "CI": 1}
            if world_size > 1:
                variables |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size}
                variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_WORLD_SIZE": world_size}
            asked = {
                "environment": {name: str(value) for name, value in variables.items()},
                "name": self.name,
                "kind": self.kind,
                "folder": str(self.folder),
                "out": str(self.out),
                "rank": rank,
                "life": life,
                "resume": life > 0,
                "kill_at": kill_at if rank == world_size - 1 else -1,
                "save_steps": save_steps,
                "per_device_train_batch_size": MICRO,
                "gradient_accumulation_steps": hf_training.STEP // (MICRO * world_size),
                **self.sizes,
            }
            programs.append([str(PROGRAM), json.dumps(asked)])
        ended = warm.together(self.process, programs, self.out, PATIENCE_S)
        if kill_at < 0:
            assert [one.code for one in ended] == [0] * world_size, ended
        rows: dict[int, list[list[int]]] = defaultdict(list)
        losses: dict[int, float] = {}
        eval_losses, accounts = [], []
        for path in self.out.glob(f"life-{life}-*.jsonl"):
            for line in path.read_text().splitlines():
                said = json.loads(line)
                if "loss" in said:
                    losses[said["step"] - 1] = float(said["loss"])
                elif "eval_loss" in said:
                    eval_losses.append(said["eval_loss"])
                elif "account" in said:
                    accounts.append(said["account"])
                else:
                    rows[said["step"]] += said["rows"]
        every = {step: sorted(rows[step]) for step in sorted(rows)}
        return Life([one.code for one in ended], every, losses, eval_losses, accounts)


@cache
def _uninterrupted(process: warm.Warm, name: str, kind: str, folder: Path) -> Life:
    out = folder / f"whole-{name}-{kind}"
    out.mkdir()
    return Job(process, name, kind, folder, out).live(0, 1)


CASES = [
    ("Trainer", "windows", 1, 2),
    ("Trainer", "blend", 2, 1),
    ("Trainer", "packs", 2, 1),
    ("SFTTrainer", "packs", 1, 2),
    ("SFTTrainer", "records", 2, 1),
    ("DPOTrainer", "pairs", 2, 1),
    ("RewardTrainer", "pairs", 1, 2),
    ("KTOTrainer", "answers", 2, 1),
]


@pytest.mark.parametrize(("name", "kind", "before", "after"), CASES)
def test_killed_and_resumed_on_another_world_size(
    name: str, kind: str, before: int, after: int, process: warm.Warm, folder: Path, tmp_path: Path
) -> None:
    """Each step has the samples and the loss of a training without a kill, in one process.

    KTO estimates its KL term over the answers of a micro-batch on all ranks, so that its losses depend on their number.
    """
    whole = _uninterrupted(process, name, kind, folder)
    steps = list(range(hf_training.STEPS))
    assert list(whole.rows) == list(whole.losses) == steps
    run = hf_training.run_of(kind, folder)
    if kind in ("windows", "blend"):
        for step in steps:
            assert whole.rows[step] == sorted(run.step(step)["input_ids"].tolist())
    if kind == "answers":
        for step in steps:
            samples = run.samples(run.locate(run.positions(step)))
            wanted = [[int(sample["label"]), *sample["input_ids"].tolist()] for sample in samples]
            assert whole.rows[step] == sorted(wanted)
    micro_steps = hf_training.STEP // (MICRO * before)
    # After the first checkpoint, which is that of step 2.
    kill_at = random.SystemRandom().randrange(2 * micro_steps, hf_training.STEPS * micro_steps - micro_steps + 1)
    job = Job(process, name, kind, folder, tmp_path)
    killed = job.live(0, before, kill_at=kill_at)
    assert -9 in killed.codes, (kill_at, killed.codes)
    resumed = job.live(1, after)
    last = steps[-1]
    assert list(resumed.rows) == list(range(min(resumed.rows), last + 1))
    assert min(resumed.rows) % 2 == 0, "checkpoints are those of every second step"
    for step in range(min(resumed.rows)):
        assert killed.rows[step] == whole.rows[step], (step, kill_at)
    for step, rows in resumed.rows.items():
        assert rows == whole.rows[step], (step, kill_at)
    if name != "KTOTrainer":
        for step, loss in [*killed.losses.items(), *resumed.losses.items()]:
            assert loss == pytest.approx(whole.losses[step], rel=1e-4), (step, kill_at)
        assert resumed.eval_losses == pytest.approx(whole.eval_losses, rel=1e-4)
    assert len(resumed.eval_losses) == len(whole.eval_losses) == 1
    for folder_of_step in tmp_path.glob("checkpoint-*"):
        run_of_checkpoint = json.loads((folder_of_step / "headrace_state.json").read_text())
        assert run_of_checkpoint["state"]["position"] == min(
            int(folder_of_step.name.split("-")[1]) * hf_training.STEP, run.length
        )


OWN_CASES = [
    ("Trainer", "own list", {"dataloader_num_workers": 2}),
    ("Trainer", "own", {}),
    ("SFTTrainer", "own", {}),
    ("DPOTrainer", "own", {"dataloader_num_workers": 2, "dataloader_persistent_workers": True}),
    ("RewardTrainer", "own", {}),
    ("KTOTrainer", "own", {}),
    ("GRPOTrainer", "own", {}),
    ("accelerate", "own list", {"dataloader_num_workers": 2}),
]


@pytest.mark.parametrize(("name", "kind", "sizes"), OWN_CASES)
def test_own_datasets_are_exact(
    name: str, kind: str, sizes: dict[str, Any], process: warm.Warm, folder: Path, tmp_path: Path
) -> None:
    """By `headrace.exact`: 2 processes that are killed, 1 that is killed, then 3, in the steps of an undisturbed one.

    Two epochs, as the trainer makes its dataset, tokenised and packed by itself. Losses of KTO depend on the number of
    ranks, and GRPO draws its completions.
    """
    (tmp_path / "whole").mkdir()
    whole = Job(process, name, kind, folder, tmp_path / "whole").live(0, 1, save_steps=100)
    is_grpo = name == "GRPOTrainer"
    steps = range(len(whole.losses))
    assert len(steps) == 8
    assert list(whole.rows) == list(steps)[:: 2 if is_grpo else 1]
    if name == "Trainer":
        rows = sorted(row["input_ids"] for row in hf_training.own_rows(name))
        for epoch in (steps[:4], steps[4:]):
            assert sorted(row for step in epoch for row in whole.rows[step]) == rows
        assert whole.rows[0] != whole.rows[4]
    (tmp_path / "lives").mkdir()
    job = Job(process, name, kind, folder, tmp_path / "lives", sizes)
    draw = random.SystemRandom()
    # Steps take 3 micro-steps in two processes, 6 in one, and after the first checkpoint comes a kill.
    kills = [draw.randrange(2 * 3 + 1, 5 * 3), draw.randrange(2 * 3 + 1, 3 * 6), -1]
    # A generation lasts for two steps, and is resumed in its middle, too.
    every = 1 if is_grpo else 2
    lives = [job.live(life, size, kill_at=kills[life], save_steps=every) for life, size in enumerate((2, 1, 3))]
    assert [-9 in one.codes for one in lives] == [True, True, False], ([one.codes for one in lives], kills)
    begins = [min(one.rows) for one in lives]
    assert begins[0] == 0 < begins[1] <= begins[2]
    for life, end in zip(lives, [*begins[1:], len(steps)], strict=True):
        for step in range(min(life.rows), end):
            generation = step - step % 2 if is_grpo else step
            if step in life.rows or not is_grpo:
                assert life.rows[step] == whole.rows[generation], (step, kills)
        if name not in ("KTOTrainer", "GRPOTrainer"):
            assert life.losses == pytest.approx({step: whole.losses[step] for step in life.losses}, rel=1e-4), kills
    assert list(lives[-1].losses) == list(range(begins[-1], len(steps)))


def counted(name: str, lives: list[Life]) -> tuple[int, int]:
    """How many samples of two epochs were lost, and how many came once more, up to the step that was resumed."""
    begin = min(lives[1].rows)
    trained = Counter(
        tuple(row)
        for life, steps in zip(lives, (range(begin), lives[1].rows), strict=True)
        for step in steps
        for row in life.rows[step]
    )
    often = [trained[tuple(row["input_ids"])] for row in hf_training.own_rows(name)]
    return sum(max(0, 2 - count) for count in often), sum(max(0, count - 2) for count in often)


@pytest.mark.parametrize(
    ("name", "sizes", "kill_at", "counts"),
    [
        # github.com/huggingface/transformers/issues/22580: three times as many processes, and the same arguments.
        ("Trainer", [6, 6], 16, (23, 1)),
        # github.com/huggingface/accelerate/issues/3996: within the second epoch, as many samples a step as before.
        ("accelerate", [6, 2], 40, (14, 14)),
    ],
)
def test_public_reports(
    name: str,
    sizes: list[int],
    kill_at: int,
    counts: tuple[int, int],
    process: warm.Warm,
    folder: Path,
    tmp_path: Path,
) -> None:
    """What is lost and repeated in two epochs, after 1 process was killed and 3 went on: plainly, and by `exact`."""

    def live(kind: str, life: int, accumulation: int) -> Life:
        job = Job(process, name, kind, folder, tmp_path / kind, {"gradient_accumulation_steps": accumulation})
        job.out.mkdir(exist_ok=True)
        return job.live(life, 3 if life else 1, kill_at=-1 if life else kill_at)

    assert counted(name, [live("own plain list", life, sizes[life]) for life in (0, 1)]) == counts
    first = live("own list", 0, 6)

    if name == "Trainer":
        with pytest.raises(AssertionError, match=r"36.*gradient_accumulation_steps=2"):
            live("own list", 1, 6)
    assert counted(name, [first, live("own list", 1, 2)]) == (0, 0)


@pytest.mark.parametrize(("kind", "before", "after"), [("prompts", 2, 1), ("questions", 1, 2)])
def test_prompts_survive_a_kill_in_the_middle_of_a_generation(
    kind: str, before: int, after: int, process: warm.Warm, folder: Path, tmp_path: Path
) -> None:
    """A generation lasts for two steps; the second one after a resume has the prompts of the first again.

    Each prompt has one fate, and the account balances in every checkpoint and at the end. The rewards of questions are
    conversational: they get messages.
    """
    run = hf_training.run_of(kind, folder)
    job = Job(process, "GRPOTrainer", kind, folder, tmp_path)
    wanted = []
    for generation in range(hf_training.GENERATIONS):
        samples = run.samples(run.locate(run.positions(generation)))
        rows = [[sample["columns"]["number"], *sample["input_ids"].tolist()] for sample in samples]
        wanted.append(sorted(2 * rows))
    # Two processes take three micro-steps a step, one takes six. Checkpoints are those of steps 1, 2, 3, ...
    micro_steps = hf_training.STEP // (MICRO * before)
    kill_at = random.SystemRandom().randrange(3 * micro_steps, 4 * micro_steps)
    killed = job.live(0, before, kill_at=kill_at, save_steps=1)
    assert -9 in killed.codes
    assert [rows for _, rows in sorted(killed.rows.items())] == wanted[:2]
    every = {"num_dispatched": 0, "num_again": 0, "num_finished": 0, "num_responses": 0, "filtered": {}, "failed": {}}
    for step in (1, 2, 3):
        prompts = headrace.Prompts(run, group_size=2, ranks=headrace.loader.Ranks())
        saved = json.loads((tmp_path / f"checkpoint-{step}/headrace_state.json").read_text())
        prompts.load_state_dict(saved["state"])
        begun, done = (step + 1) // 2 * hf_training.PROMPTS, step // 2 * hf_training.PROMPTS
        found = {"num_dispatched": begun, "num_finished": done, "num_responses": 2 * done}
        assert msgspec.to_builtins(prompts.account()) == {**every, **found, "num_outstanding": begun - done}
    resumed = job.live(1, after, save_steps=1)
    assert resumed.rows == {3: wanted[1], 4: wanted[2], 6: wanted[3]}
    found = {"num_dispatched": 48, "num_again": 12, "num_finished": 48, "num_responses": 96, "num_outstanding": 0}
    assert resumed.accounts == [{**every, **found}] * after
