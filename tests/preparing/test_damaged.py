"""Work folders of `prepare` that were damaged between two runs: the same bytes in the end, or an error by name."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import faults
from counts import cases
from headrace.errors import OutputError
from headrace.preparing import OutputOptions, TextOptions, TokenOptions
from headrace.preparing.output_folder import COMMIT_NAME, RUN_NAME, STATE_NAME, WORK_NAME, load_state, save_state
from headrace.testing.damage import endured

OPTIONS = TextOptions(
    tokens=TokenOptions(append_eod=True, backend="tokenizers"),
    task_bytes=6000,
    output=OutputOptions(shard_tokens=9000),
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs") / "in"
    faults.write_inputs(folder, with_bad=False)
    return folder


def stopped(tmp_path: Path, run: Any, name: str) -> Path:
    """The output folder of a run that was ended when the file ``name`` was in its work folder."""
    with faults.small_run():
        moments = faults.list_changes(functools.partial(run, tmp_path / "whole"))
    for moment in reversed(range(len(moments))):
        output = tmp_path / f"stopped-{moment}"
        with faults.small_run(), faults.interrupted(moment, lambda: None):
            run(output)
        if (output / WORK_NAME / name).exists():
            return output
        shutil.rmtree(output, ignore_errors=True)
    raise AssertionError(f"no run ends with {name}")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [STATE_NAME, RUN_NAME, COMMIT_NAME])
def test_what_a_run_left_is_not_believed(tmp_path: Path, inputs: Path, kit: Any, name: str) -> None:
    """Of 261 damaged states 17 went on with other data."""

    def run(output: Path) -> None:
        faults.prepare(inputs, output, kit.tokenizer, OPTIONS, workers=1)

    output = stopped(tmp_path, run, name)

    def use() -> dict[str, bytes]:
        again = tmp_path / "again"
        shutil.rmtree(again, ignore_errors=True)
        shutil.copytree(output, again)
        with faults.small_run():
            run(again)
        return faults.content(again)

    assert endured(output / WORK_NAME / name, use, count=cases(2, 500), vouched=True) == {}


def test_a_state_says_when_it_is_damaged(tmp_path: Path) -> None:
    from headrace.preparing.ledger import LedgerState
    from headrace.preparing.output_folder import RunState

    state = RunState(ledger=LedgerState(reached=[7], lines=[], hashes=[]), task_index=7)
    save_state(tmp_path, state)
    assert load_state(tmp_path) == state
    path = tmp_path / STATE_NAME
    content = path.read_bytes()
    for damage in (content.replace(b"\x07", b"\x08", 1), content[:-1], b"", b"\x91" * 200_000, content[:-8]):
        path.write_bytes(damage)
        with pytest.raises(OutputError, match=r"state: damaged, or of another version .*; --restart starts over"):
            load_state(tmp_path)
    path.write_bytes(msgspec.msgpack.encode(state))  # as before there was a hash
    with pytest.raises(OutputError, match="damaged, or of another version"):
        load_state(tmp_path)
