"""Trains on text, kills all ranks, changes the mix, resumes on another number, and proves that no sample differs.

    gather      Python's own standard library as documents, and a small tokeniser trained on it
    prepare     headrace prepare, info, check
    launch      train on 2 ranks, kill them all, give the run new weights and a new source from a later step on, and
                resume on 3                                        (train, model, settings)
    proof       the samples of every step equal those of an uninterrupted run; the account of the run adds up

Nothing is downloaded, and no server is needed. The folder ``demo`` is made again each time.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch
from gather import gather, train_tokenizer
from launch import DemoError, Job
from proof import Log, differences, uninterrupted
from settings import LATER_WEIGHTS, WEIGHTS, Settings, make_run
from tokenizers import Tokenizer
from train import CHECKPOINT

from headrace.tracing import account

FOLDER = Path("demo")
MARK = "made-by-headrace-demo"
KILL_AFTER_STEP = 60
EDIT_AT_STEP = 80
KILLED_RANKS, RESUMED_RANKS = 2, 3


def main() -> None:
    started = time.monotonic()
    settings = Settings()
    clean(FOLDER)
    settings.save(FOLDER)
    prepare(settings)
    resumed_at, settings = train(settings)
    prove(settings, resumed_at)
    tell_account(settings)
    print(f"\nEverything was proved, in {time.monotonic() - started:.0f} s. The files are in {FOLDER}/")


def clean(folder: Path) -> None:
    """Make an empty folder, with a mark by which the next run knows that the demo made it."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise DemoError(f"an earlier demo did not make the folder {folder.absolute()}; move it away")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / MARK).touch()


def prepare(settings: Settings) -> None:
    title("Text to tokens")
    tokenizer = str(FOLDER / "tokenizer.json")
    with Timer() as timer:
        written = gather(FOLDER / "text", max_bytes=18_000_000)
        files = [file for name in written for file in written[name]]
        num_bytes = sum(file.stat().st_size for file in files)
        num_documents = sum(file.read_bytes().count(b"\n") for file in files)
    timer.say(f"gathered {num_documents:,} documents, {num_bytes / 1e6:.1f} MB, from Python's standard library")
    with Timer() as timer:
        train_tokenizer(files, Path(tokenizer), vocab_size=settings.vocab_size, sample_bytes=1_500_000)
    timer.say(f"trained a byte-level BPE tokeniser of {settings.vocab_size:,} ids")
    for name in LATER_WEIGHTS:
        inputs, output = str(FOLDER / "text" / name), str(FOLDER / name)
        with Timer() as timer:
            headrace_command("prepare", inputs, "--output", output, "--tokenizer", tokenizer, "--append-eod")
            says = headrace_command("info", output)
            headrace_command("check", output)
        tokens = next(line.split()[1] for line in says.splitlines() if line.split()[:1] == ["tokens"])
        timer.say(f"headrace prepare, info, check: {output} has {tokens} tokens and no faults")


def train(settings: Settings) -> tuple[int, Settings]:
    """Run a job that is killed, edit the run, and resume it; return the step at which the second job began."""
    title("Trained, killed, edited and resumed")
    with Timer() as timer, Job(FOLDER, "killed", KILLED_RANKS) as job:
        job.kill_after(KILL_AFTER_STEP)
    resumed_at: int = torch.load(FOLDER / CHECKPOINT, weights_only=True)["loader"]["step"]
    last = max(Log.read(FOLDER, "killed").samples)
    timer.say(f"{KILLED_RANKS} ranks: SIGKILL to all in step {last}; the last checkpoint is from step {resumed_at}")
    settings = replace(settings, edit_at_step=EDIT_AT_STEP)
    settings.save(FOLDER)
    say(f"the run was edited: from step {EDIT_AT_STEP} on, {shares(WEIGHTS)} becomes {shares(LATER_WEIGHTS)}")
    with Timer() as timer, Job(FOLDER, "resumed", RESUMED_RANKS) as job:
        job.wait()
    timer.say(f"{RESUMED_RANKS} ranks: continued from step {resumed_at} to the end")
    return resumed_at, settings


def prove(settings: Settings, resumed_at: int) -> None:
    """Raise DemoError unless both jobs together equal the uninterrupted run, and the model has learnt something."""
    title("Compared with an uninterrupted run on 1 rank")
    run = make_run(FOLDER, settings)
    first, second = Log.read(FOLDER, "killed"), Log.read(FOLDER, "resumed")
    with Timer() as timer:
        expected = uninterrupted(run)
        if found := differences(expected, first, second, resumed_at):
            raise DemoError("the samples differ from those of the uninterrupted run:\n  " + "\n  ".join(found[:20]))
    timer.say(
        f"all {len(expected)} steps have the same {run.length:,} samples, byte for byte; none is lost or repeated"
    )

    again = sorted(first.losses.keys() & second.losses.keys())
    if again:
        apart = max(abs(first.losses[step] - second.losses[step]) for step in again)
        say(
            f"steps {again[0]} to {again[-1]} ran before and after the kill; their losses differ by at most {apart:.0e}"
        )
    losses = [loss for _, loss in sorted((first.losses | second.losses).items())]
    before, after = mean(losses[:5]), mean(losses[-5:])
    if len(losses) != settings.steps or not after < before - 0.5:
        raise DemoError(
            f"the model has not learnt: {len(losses)} steps, the loss went from {before:.2f} to {after:.2f}"
        )
    say(f"the loss went from {before:.2f} to {after:.2f} (means of 5 steps)")

    step = settings.steps // 2
    sources = run.lookup(run.positions(step)).sources.tolist()
    fed = ", ".join(f"{sources.count(number)} of {path}" for number, path in enumerate(WEIGHTS))
    text = Tokenizer.from_file(str(FOLDER / "tokenizer.json")).decode(run.step(step)["input_ids"][0].tolist())
    say(f"step {step} was fed {fed}; its first sample holds {' '.join(text.split())[:48]!r}")


def tell_account(settings: Settings) -> None:
    """Raise DemoError unless the account of the run adds up to what was fed."""
    title("The account of the run")
    told = account(make_run(FOLDER, settings))
    first, second = Log.read(FOLDER, "killed"), Log.read(FOLDER, "resumed")
    fed = {position for log in (first, second) for samples in log.samples.values() for position, _ in samples}
    if not told.fed.samples == len(fed) == sum(source.fed.samples for source in told.sources):
        raise DemoError(f"{len(fed):,} samples were fed, and the account says {told.fed.samples:,}")
    for chapter in told.chapters:
        mix = ", ".join(
            f"{source} {chapter.share(source):.1%} ({planned:.1%} planned)"
            for source, planned in chapter.planned.items()
        )
        say(f"from step {chapter.step}: {chapter.samples:,} samples: {mix}")
    for source in told.sources:
        often = {0: "never", 1: "once", 2: "twice"}
        seen = ", ".join(
            f"{number:,} {often.get(times, str(times) + ' times')}" for times, number in source.seen.items()
        )
        say(f"{source.source}: of {source.num_samples:,} samples, {seen}; {source.fed.tokens:,} tokens were fed")


def headrace_command(*arguments: str) -> str:
    """Run a command, and return what it printed; raises DemoError if it failed."""
    command = Path(sysconfig.get_path("scripts")) / "headrace"
    done = subprocess.run([str(command), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DemoError(f"headrace {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


class Timer:
    """Measures the seconds of a block, for the line that reports it."""

    def __enter__(self) -> Timer:
        self._begin = time.monotonic()
        return self

    def __exit__(self, *exc: object) -> None:
        self.elapsed_s = time.monotonic() - self._begin

    def say(self, text: str) -> None:
        """Print a line of the report that begins with the seconds."""
        say(text, f"{self.elapsed_s:5.1f} s")


def shares(weights: dict[str, float]) -> str:
    return ", ".join(f"{name} {weight / sum(weights.values()):.0%}" for name, weight in weights.items())


def title(text: str) -> None:
    print(f"\n{text}")


def say(text: str, when: str = "") -> None:
    print(f"{when:>8}  {text}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except DemoError as error:
        sys.exit(f"\nFAILED: {error}")
    except KeyboardInterrupt:
        sys.exit("\ninterrupted")
