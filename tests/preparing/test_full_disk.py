"""A disk that is full: the error names the path, nothing opens, and with space again the same command completes."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import faults
import headrace
from counts import PATIENCE_S, cases
from headrace.errors import OutputError, StoreError
from headrace.preparing import OutputOptions, RecordOptions, TextOptions, TokenOptions, prepare_text
from headrace.preparing.output_folder import WORK_NAME

TOKENS = TokenOptions(append_eod=True, backend="tokenizers")
CASES = {
    "plain": TextOptions(tokens=TOKENS, task_bytes=6000, output=OutputOptions(shard_tokens=9000)),
    "keyed, ids, no duplicates": TextOptions(
        tokens=TOKENS,
        task_bytes=6000,
        deduplicate=True,
        records=RecordOptions(id_field="id"),
        output=OutputOptions(format="keyed", shard_tokens=9000),
    ),
}


@pytest.fixture
def small_run() -> Iterator[None]:
    with faults.small_run():
        yield


def writes(action: Callable[[], object]) -> list[int]:
    """The changes of an action that need space."""
    return [moment for moment, kind in enumerate(faults.list_changes(action)) if kind in faults.TAKING_SPACE]


@pytest.mark.usefixtures("small_run")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(1)
def test_no_space_from_any_write_on(kit: Any, tmp_path: Path, case: str) -> None:
    faults.write_inputs(tmp_path / "in", with_bad=False)
    output = tmp_path / "out"

    def action() -> object:
        return faults.prepare(tmp_path / "in", output, kit.tokenizer, CASES[case], workers=2)

    moments = writes(action)
    wanted = faults.content(output)
    for moment in random.Random(case).sample(moments, cases(4, len(moments))):
        shutil.rmtree(output)
        with faults.full_disk(moment), pytest.raises(OutputError, match=rf"{output}.*: No space left on device"):
            action()
        with pytest.raises(StoreError):
            headrace.open(output)
        action()
        assert faults.content(output) == wanted, f"full from change {moment:,} on"


@pytest.mark.usefixtures("small_run")
def test_an_old_output_survives_a_full_disk(kit: Any, tmp_path: Path) -> None:
    """Until the new one is complete nothing of the old one is touched."""
    faults.write_inputs(tmp_path / "in", with_bad=False)
    output = tmp_path / "out"
    options = CASES["plain"]

    def action(shard_tokens: int | None) -> object:
        other = OutputOptions(shard_tokens=shard_tokens)
        return faults.prepare(tmp_path / "in", output, kit.tokenizer, options, workers=1, output=other, overwrite=True)

    action(None)
    old = faults.content(output)
    moments = writes(lambda: action(8000))
    new = faults.content(output)
    action(None)
    for moment in [*random.Random(0).sample(moments, cases(2, 60)), *moments[-2:]]:
        with faults.full_disk(moment), pytest.raises(OutputError, match="No space left on device"):
            action(8000)
        if not (output / WORK_NAME / "commit.json").exists():
            shutil.rmtree(output / WORK_NAME, ignore_errors=True)
        if all((output / name).exists() and (output / name).read_bytes() == data for name, data in old.items()):
            with headrace.open(output) as store:
                assert store.num_documents > 0
        else:  # the new one was complete, and only its move was refused
            with pytest.raises(OutputError, match="earlier run"):
                faults.prepare(tmp_path / "in", output, kit.tokenizer, options, workers=1)
            assert faults.content(output) == new
            action(None)


LIMITED = TextOptions(tokens=TokenOptions(backend="tokenizers"), workers=1, task_bytes=100_000)


@pytest.fixture(scope="module")
def wanted(kit: Any, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("wanted") / "out"
    prepare_text([corpus / "part-0.jsonl"], output, tokenizer=kit.tokenizer, options=LIMITED)
    return faults.content(output)


@pytest.mark.parametrize(
    ("limit_bytes", "refused"), [(1_000, "tokenizer.json"), (60_000, ".piece"), (300_000, "text_document")]
)
@pytest.mark.sampled(1)
def test_files_that_may_not_grow(
    kit: Any, corpus: Path, tmp_path: Path, wanted: dict[str, bytes], limit_bytes: int, refused: str
) -> None:
    """A limit of the system for real processes: the tokeniser's copy is over it, the pieces, or the store alone."""
    program = (
        "import resource, sys\n"
        "from headrace.errors import OutputError\n"
        "from headrace.preparing import TextOptions, TokenOptions, prepare_text\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))\n"
        "options = TextOptions(tokens=TokenOptions(backend='tokenizers'), workers=2, task_bytes=100_000)\n"
        "try: prepare_text([sys.argv[1]], sys.argv[2], tokenizer=sys.argv[3], options=options)\n"
        "except OutputError as error: print(error)\n"
    )
    output = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", program, str(corpus / "part-0.jsonl"), str(output), str(kit.tokenizer)],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert refused in done.stdout
    assert "File too large" in done.stdout
    if output.exists():
        with pytest.raises(StoreError):
            headrace.open(output)
    prepare_text([corpus / "part-0.jsonl"], output, tokenizer=kit.tokenizer, options=LIMITED)
    assert faults.content(output) == wanted
