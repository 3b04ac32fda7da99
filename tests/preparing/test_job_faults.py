"""Planned runs on "hosts" that share a folder: killed at any change on disk, with a full disk, and as if it were NFS.

The workers run inside this process, see `faults`; `test_machines` has real clusters.
"""

from __future__ import annotations

import contextlib
import random
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

import faults
from counts import cases, spread
from headrace.errors import HeadraceError, OutputError
from headrace.kinds import open_job
from headrace.preparing import ErrorOptions, OutputOptions, PrepareOptions, RecordOptions, TokenOptions, plan, prepare
from jobs_by_hand import do_some, finish, small_jobs
from nfs import Nfs

TOKENS = TokenOptions(append_eod=True, backend="tokenizers")
CASES = {
    "plain": PrepareOptions(tokens=TOKENS, task_bytes=3000, workers=1),
    "no duplicates, bad records": PrepareOptions(
        tokens=TOKENS,
        task_bytes=3000,
        workers=1,
        deduplicate=True,
        records=RecordOptions(id_field="id"),
        output=OutputOptions(shard_tokens=4000),
        errors=ErrorOptions(on_error="skip"),
    ),
}


LINE = r"a\.jsonl, line (8|41|42|91): "
"""Where the bad records are that stop a run: any of them may be found first."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    faults.write_inputs(folder / "good", with_bad=False)
    faults.write_inputs(folder / "bad", with_bad=True)
    return {"plain": folder / "good", "no duplicates, bad records": folder / "bad"}


@pytest.fixture(scope="module")
def wanted(kit: Any, inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What local runs make."""
    folder = tmp_path_factory.mktemp("wanted")
    with small_jobs():
        for name, options in CASES.items():
            prepare([inputs[name]], folder / name, tokenizer=kit.tokenizer, options=options)
    return {name: faults.content(folder / name) for name in CASES}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("action", [do_some, finish])
def test_killed_at_any_change(
    name: str, action: Any, kit: Any, inputs: dict[str, Path], wanted: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    with small_jobs():

        def planned(number: int) -> Path:
            output = tmp_path / f"{number}"
            plan([inputs[name]], output, tokenizer=kit.tokenizer, options=CASES[name])
            if action is finish:
                do_some(output)
            return output

        first = planned(0)
        changes = len(faults.list_changes(lambda: action(first)))
        finish(first)
        assert faults.content(first) == wanted[name]
        for moment in sorted(spread(changes, cases(7, 400))):
            output = planned(moment + 1)
            faults.run_killed(lambda output=output: action(output), moment)
            do_some(output, seed=moment)
            finish(output)
            assert faults.content(output) == wanted[name], f"killed before change {moment} of {changes}"


@pytest.mark.parametrize("action", [do_some, finish])
def test_a_full_disk(
    action: Any, kit: Any, inputs: dict[str, Path], wanted: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    name = "plain"
    with small_jobs():
        for moment in sorted(spread(120, cases(8, 120))):
            output = tmp_path / f"{moment}"
            plan([inputs[name]], output, tokenizer=kit.tokenizer, options=CASES[name])
            if action is finish:
                do_some(output)
            with faults.full_disk(moment), contextlib.suppress(OutputError):
                action(output)
            finish(output)
            assert faults.content(output) == wanted[name]


def test_hosts_that_share_a_folder_like_nfs(
    kit: Any, inputs: dict[str, Path], wanted: dict[str, dict[str, bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    @settings(max_examples=cases(5, 60))
    @given(seed=st.integers(0, 1 << 32), has_links=st.booleans(), name=st.sampled_from(sorted(CASES)))
    def prepared(seed: int, has_links: bool, name: str) -> None:
        chance = random.Random(seed)
        output = tmp_path_factory.mktemp("nfs") / "out"
        nfs = Nfs(seed, has_links=has_links)
        with nfs.mounted("login"):
            plan([inputs[name]], output, tokenizer=kit.tokenizer, options=CASES[name])
        for turn in range(chance.randint(1, 8)):
            host, most = f"node{chance.randrange(3)}", chance.randint(1, 9)

            def act(host: str = host, turn: int = turn, most: int = most) -> None:
                with nfs.mounted(host):
                    do_some(output, seed=turn, most=most)

            # Some hosts die on the way.
            faults.run_killed(act, chance.choice([chance.randrange(200), 1 << 30]))
        with nfs.mounted("node0"):
            finish(output)
        assert faults.content(output) == wanted[name]

    with small_jobs():
        prepared()


def test_inputs_that_changed_since_the_plan(kit: Any, tmp_path: Path) -> None:
    faults.write_inputs(tmp_path / "in", with_bad=False)
    output = tmp_path / "out"
    with small_jobs():
        plan([tmp_path / "in"], output, tokenizer=kit.tokenizer, options=CASES["plain"])
        with (tmp_path / "in" / "a.jsonl").open("a") as file:
            file.write('{"text": "one more"}\n')
        with pytest.raises(HeadraceError, match=r"a\.jsonl"):
            do_some(output)


def test_a_bad_record_is_told_of_as_by_a_local_run(kit: Any, inputs: dict[str, Path], tmp_path: Path) -> None:
    """All processes stop at it and name its line, and a plan that skips it keeps what is done."""
    bad = inputs["no duplicates, bad records"]
    output, stops = tmp_path / "out", CASES["plain"]
    with small_jobs():
        local = faults.error_of(lambda: prepare([bad], tmp_path / "local", tokenizer=kit.tokenizer, options=stops))
        plan([bad], output, tokenizer=kit.tokenizer, options=stops)
        for _ in range(2):  # the one that meets it, and another
            error = faults.error_of(lambda: do_some(output))
            assert re.search(rf"task \d+ failed on host .*{LINE}", str(error))
        kept = f"What is done so far is kept in {output}/.headrace"
        assert re.search(
            rf"{LINE}.*{kept}; correct or remove this record", str(faults.error_of(lambda: finish(output)))
        )
        assert re.search(rf"{LINE}.*Nothing was written; correct or remove this record", str(local))
        skips = msgspec.structs.replace(stops, errors=ErrorOptions(on_error="skip"))
        plan([bad], output, tokenizer=kit.tokenizer, options=skips)
        receipts = open_job(output).receipts(open_job(output).phase())  # type: ignore[arg-type]
        receipts.refresh()
        assert receipts.done, "what was done is done"
        do_some(output)
        finish(output)
        prepare([bad], tmp_path / "skipped", tokenizer=kit.tokenizer, options=skips)
    assert faults.content(output) == faults.content(tmp_path / "skipped")
