"""``headrace demo``: training is killed, edited and resumed on other ranks, with proof that no sample differs.

    text        Python's own standard library, as documents of three sources, and a small tokeniser trained on them
    tokens      a store of each source
    training    on 2 ranks, which are killed; the run gets other weights and the third source from a later step on, and
                goes on on 3 ranks (`demo_rank` is one rank, and logs a hash of each sample that it is fed)
    proof       the hashes of an uninterrupted run on 1 rank are the same, and the account of the run adds up

Nothing is downloaded, and all files are in one folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import click

import headrace
from headrace import inspect, tracing
from headrace.cli import demo_rank
from headrace.cli.command import Found, command
from headrace.cli.demo_rank import Samples
from headrace.errors import OutputError, WorkerError, load_extra
from headrace.inspect.figures import count, size

NETWORK = {"asyncio", "email", "http", "urllib", "wsgiref", "xmlrpc"}
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "_vendor"}
SOURCE_BYTES = 1_000_000
EOD = "<|endoftext|>"
SEQ_LEN, GLOBAL_BATCH_SIZE, STEPS = 128, 12, 100
KILL_IN_STEP, EDIT_AT_STEP = 60, 80
KILLED_RANKS, RESUMED_RANKS = 2, 3
WEIGHTS = {"modules": 2, "packages": 1}
LATER_WEIGHTS = {"modules": 1, "packages": 1, "network": 2}
LIMIT_S = 600

Tell = Callable[[str], None]


@command("demo", "Kill, edit and resume a training run, with proof.")
def demo(folder: Annotated[str | None, "[DIR]"] = None) -> Found:
    """Show what Headrace does on real text: train, kill all ranks, change the mix, go on on other ranks, and prove that
    no sample differs from those of an uninterrupted run.

    The text is Python's own standard library, and the tokeniser is trained on it. It takes about half a minute on two
    cores, and needs torch. If a sample differs, the exit code is 1.

    All files are in DIR, which must be new or empty, and stay there. Without DIR they are in a temporary folder, which
    is removed at the end.
    """
    place = Path(folder or tempfile.mkdtemp(prefix="headrace-demo-")).absolute()
    began = time.monotonic()

    def tell(text: str) -> None:
        click.echo(f"{time.monotonic() - began:5.1f} s  {text}", err=True)

    try:
        found = _shown(place, tell)
    finally:
        if folder is None:
            shutil.rmtree(place)
    found |= {"folder": None if folder is None else str(place), "seconds": round(time.monotonic() - began, 1)}
    proof = [
        "NOT proved: an uninterrupted run on 1 rank has other samples",
        *(f"  {difference}" for difference in found["differences"]),
    ]
    if not found["differences"]:
        proof = [f"proved: an uninterrupted run on 1 rank has the same {count(found['samples'])} samples, step by step"]
    proof += [f"  hash of what was fed {found['hashes']['fed']}", f"  of the uninterrupted {found['hashes']['whole']}"]
    run_file = demo_rank.RUN_FILE if folder is None else str(place / demo_rank.RUN_FILE)
    end = "All files were temporary and are removed; headrace demo DIR keeps them."
    if folder is not None:
        end = f"All files are in {folder}. Look at them: headrace ui {folder}; headrace account {run_file}"
    blocks = [*proof, "", *inspect.account_blocks(run_file, found["account"]), "", end]
    return Found(found, blocks, is_faulty=bool(found["differences"]))


def _shown(folder: Path, tell: Tell) -> dict[str, Any]:
    """Do everything in a folder, and return what ``--json`` prints.

    Raises:
        OutputError: the folder holds something.
        MissingExtraError: torch is not installed.
        WorkerError: a rank ended with an error, or took too long.
    """
    if folder.exists() and any(folder.iterdir()):
        raise OutputError(f"{folder} is not empty: give headrace demo a new folder, or none for a temporary one")
    tell(f"all files are in {folder}")
    torch = load_extra("torch", "headrace demo trains a model, which needs torch: pip install 'headrace[torch]'")
    prepare(folder, tell)
    run_file = folder / demo_rank.RUN_FILE
    run = first_run(folder)
    headrace.tracing.save_run(run, run_file)
    tell(
        f"a run of {STEPS} steps, each of {GLOBAL_BATCH_SIZE} samples of {SEQ_LEN} tokens: {_shares(WEIGHTS)}, shuffled"
    )

    train(folder, "killed", KILLED_RANKS, kill_in_step=KILL_IN_STEP)
    killed = demo_rank.read_log(folder, "killed")
    state = torch.load(folder / demo_rank.CHECKPOINT, weights_only=True)["loader"]
    resumed_at = state["step"]
    tell(f"trained on {KILLED_RANKS} ranks; kill -9 to all in step {max(killed)}; a checkpoint has step {resumed_at}")
    run = edited(run, folder)
    headrace.tracing.save_run(run, run_file, position=state["position"])
    tell(f"run.edit: from step {EDIT_AT_STEP} on {_shares(LATER_WEIGHTS)}; network is new")
    train(folder, "resumed", RESUMED_RANKS)
    resumed = demo_rank.read_log(folder, "resumed")
    tell(f"resumed on {RESUMED_RANKS} ranks in step {min(resumed, default=resumed_at)}, and trained to the end")

    expected = uninterrupted(run)
    fed = {step: killed.get(step, []) for step in range(resumed_at)} | resumed
    account = tracing.account(run)
    found = differences(expected, killed, resumed, resumed_at)
    num_fed = sum(map(len, fed.values()))
    if account.fed.samples != num_fed:
        found.append(f"the account says {count(account.fed.samples)} samples, and {count(num_fed)} were fed")
    return {
        "steps": STEPS,
        "samples": num_fed,
        "ranks": [KILLED_RANKS, RESUMED_RANKS],
        "killed_in_step": max(killed),
        "resumed_at_step": resumed_at,
        "edited_at_step": EDIT_AT_STEP,
        "hashes": {"fed": total(fed), "whole": total(expected)},
        "differences": found,
        "account": account,
    }


def prepare(folder: Path, tell: Tell) -> None:
    """Write texts, a tokeniser and a store for each source: ``modules``, ``packages`` and ``network``."""
    texts = gather()
    (folder / "data").mkdir(parents=True)
    for name, files in texts.items():
        lines = [json.dumps(file) + "\n" for file in files]
        (folder / "data" / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    documents = [file["text"] for files in texts.values() for file in files]
    num_bytes = sum(len(text.encode()) for text in documents)
    tell(f"gathered {count(len(documents))} documents, {size(num_bytes)}, from Python's standard library")
    tokenizer = folder / "tokenizer.json"
    train_tokenizer(documents, tokenizer)
    tell(f"trained a byte-level BPE tokeniser of {count(demo_rank.VOCAB_SIZE)} ids")
    options = headrace.preparing.PrepareOptions(tokens=headrace.preparing.TokenOptions(append_eod=True), workers=1)
    num_tokens = 0
    for name in texts:
        manifest = headrace.prepare(
            folder / "data" / f"{name}.jsonl", folder / name, tokenizer=tokenizer, options=options
        )
        num_tokens += manifest.ledger.tokens.kept
    tell(f"headrace prepare: {count(num_tokens)} tokens in the stores {', '.join(texts)}; their ledgers balance")


def gather() -> dict[str, list[dict[str, str]]]:
    """Return the documents of each source: files of the standard library in the order of their names."""
    library = Path(sysconfig.get_path("stdlib"))
    found: dict[str, list[dict[str, str]]] = {name: [] for name in LATER_WEIGHTS}
    left = dict.fromkeys(found, SOURCE_BYTES)
    for entry in sorted(library.iterdir()):
        is_package = entry.is_dir() and entry.name not in SKIPPED
        name = "modules" if not is_package else "network" if entry.name in NETWORK else "packages"
        for path in sorted(entry.rglob("*.py")) if is_package else [entry] * (entry.suffix == ".py"):
            if left[name] > 0 and not SKIPPED & {*path.relative_to(library).parts}:
                text = path.read_text(encoding="utf-8", errors="replace")
                found[name].append({"path": path.relative_to(library).as_posix(), "text": text})
                left[name] -= len(text)
    return found


def train_tokenizer(texts: list[str], output: Path) -> None:
    """Train a byte-level BPE tokeniser, and write it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=demo_rank.VOCAB_SIZE,
        special_tokens=[EOD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(output))


def first_run(folder: Path) -> headrace.Run:
    """Return a shuffled run over two of the stores, blended by tokens. It does not know the number of ranks."""
    blend = headrace.Blend({name: _windows(folder, name) for name in WEIGHTS}, weights=WEIGHTS, unit="tokens")
    return headrace.Run(
        blend,
        global_batch_size=GLOBAL_BATCH_SIZE,
        order=headrace.Order(seed=7),
        samples=STEPS * GLOBAL_BATCH_SIZE,
    )


def edited(run: headrace.Run, folder: Path) -> headrace.Run:
    """Return the run with other weights and the third store from a step on."""
    added = {name: _windows(folder, name) for name in LATER_WEIGHTS.keys() - WEIGHTS.keys()}
    return run.edit(EDIT_AT_STEP, weights=LATER_WEIGHTS, add=added, reason="more about networks towards the end")


def _windows(folder: Path, name: str) -> headrace.WindowDataset:
    return headrace.WindowDataset.open(folder / name, seq_len=SEQ_LEN)


def _shares(weights: dict[str, int]) -> str:
    return ", ".join(f"{name} {weight / sum(weights.values()):.0%}" for name, weight in weights.items())


def train(folder: Path, job: str, num_ranks: int, *, kill_in_step: int | None = None) -> None:
    """Train on some ranks to the end, or kill all of them with SIGKILL in a step. No process is left in either case.

    Raises:
        WorkerError: a rank ended with an error, the message has its last words; or the job takes too long.
    """
    logs = [demo_rank.log_of(folder, job, rank) for rank in range(num_ranks)]
    ranks = []
    end = time.monotonic() + LIMIT_S
    try:
        for rank, log in enumerate(logs):
            environment = {"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
            with log.with_suffix(".stderr").open("wb") as stderr:
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "headrace.cli.demo_rank", str(folder), job],
                        env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
                        stderr=stderr,
                    )
                )
        while None in (codes := [rank.poll() for rank in ranks]) or any(codes):
            for rank, code in enumerate(codes):
                if code:
                    said = logs[rank].with_suffix(".stderr").read_text(errors="replace")[-2000:]
                    raise WorkerError(f"rank {rank} of {num_ranks} ended with code {code}:\n{said}")
            if kill_in_step is not None and kill_in_step in demo_rank.read_log(folder, job):
                return
            if time.monotonic() > end:
                raise WorkerError(f"the training on {num_ranks} ranks took more than {LIMIT_S} s")
            time.sleep(0.02)
        if kill_in_step is not None:
            raise WorkerError("the training ended before it could be killed: run the demo again")
    finally:
        for process in ranks:
            process.kill()
        for process in ranks:
            process.wait()


def uninterrupted(run: headrace.Run) -> Samples:
    """Return the samples of every step, from a loader on one rank that gives each step as one batch."""
    loader = headrace.Loader(run, micro_batch_size=GLOBAL_BATCH_SIZE, ranks=headrace.loader.Ranks(0, 1))
    return {step: demo_rank.hashed(batch) for step, batch in enumerate(loader)}


def differences(expected: Samples, killed: Samples, resumed: Samples, resumed_at: int) -> list[str]:
    """Return how two jobs together differ from the uninterrupted run; nothing if they do not.

    Steps of the killed job after its last checkpoint are lost to the model. They may be incomplete, but not wrong.
    """
    found = []
    for step in sorted(expected.keys() | killed.keys() | resumed.keys()):
        wanted, before, after = (Counter(job.get(step, ())) for job in (expected, killed, resumed))
        fed, again = (before, after) if step < resumed_at else (after, Counter())
        wrong = (before | fed) - wanted
        for samples, what in (
            (wanted - fed, "missing"),
            (wrong, "not those of the uninterrupted run, have other bytes, or come again"),
            (again, "trained again, although a checkpoint after them was saved"),
        ):
            if samples:
                positions = sorted(position for position, _ in samples)
                found.append(f"step {step}: these positions are {what}: {positions}")
    return found


def total(samples: Samples) -> str:
    """Return one hash of all samples, whatever rank was fed them."""
    import xxhash

    everything = sorted((step, *sample) for step, some in samples.items() for sample in some)
    return xxhash.xxh3_128_hexdigest(json.dumps(everything).encode())
