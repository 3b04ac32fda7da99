"""The data-parallel rank, from wherever it is known, and the agreement of all processes on one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import corpora
import warm
from counts import PATIENCE_S
from headrace import ConfigError, StateError
from headrace.loader import Ranks, ranks
from headrace.plan import Share

WORKER = Path(__file__).parent / "agreeing.py"


def test_torchruns_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert Ranks.detect() == Ranks(0, 1)
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(ConfigError, match=r"RANK.*WORLD_SIZE"):
        Ranks.detect()
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert Ranks.detect() == Ranks(3, 8)
    with pytest.raises(ConfigError, match="model_parallel_size=2"):
        Ranks.detect(model_parallel_size=2)


@pytest.mark.parametrize(("variable", "value"), [("RANK", "first"), ("RANK", ""), ("WORLD_SIZE", "8.0")])
def test_a_variable_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=rf"{variable}"):
        Ranks.detect()


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0)])
def test_impossible_ranks_are_refused(rank: int, world_size: int) -> None:
    with pytest.raises(ConfigError, match=r"ranks.*0"):
        Ranks(rank, world_size)


def processes(process: warm.Warm, tmp_path: Path, num: int, case: str) -> list[warm.Ended]:
    """``num`` processes of one gloo group over a small store."""
    corpora.make(tmp_path / "store", 5, 50)
    command = [str(WORKER), str(tmp_path / "store" / "shard-0"), str(tmp_path / "meeting")]
    return warm.together(process, [[*command, str(rank), str(num), case] for rank in range(num)], tmp_path, PATIENCE_S)


def test_peers_of_a_data_parallel_rank_get_the_same_bytes(tmp_path: Path, warm_torch: warm.Warm) -> None:
    """A 2 x 2 mesh of data- and tensor-parallel ranks, and the group of its data-parallel dimension."""
    ended = processes(warm_torch, tmp_path, 4, "mesh")
    assert [code for code, _, _ in ended] == [0] * 4, ended
    said = [json.loads(output) for _, output, _ in ended]
    assert [one["mesh"] for one in said] == [one["group"] for one in said] == [[0, 2], [0, 2], [1, 2], [1, 2]]
    assert said[0]["rows"] == said[1]["rows"]
    assert said[2]["rows"] == said[3]["rows"]
    assert said[0]["rows"] != said[2]["rows"]
    assert said[0]["flat"] == [0, 4]
    assert "name the data-parallel ones" in said[0]["unnamed"]
    assert "no dimension" in said[0]["unknown"]


def test_all_ranks_say_the_same_of_what_they_waited(tmp_path: Path, warm_torch: warm.Warm) -> None:
    ended = processes(warm_torch, tmp_path, 2, "verdict")
    assert [code for code, _, _ in ended] == [0] * 2, ended
    one, other = (json.loads(output)["verdict"] for _, output, _ in ended)
    assert one == other
    assert "and most by rank " in one


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("recipe", "recipe.order.seed: 0 in [0]; 1 in [1]"),
        ("generation", "generation of the file: 4 in [0]; 5 in [1]"),
        ("position", "position: 0 in [0]; 8 in [1]"),
        ("micro-batch", "micro_batch_size: 2 in [0]; 3 in [1]"),
        ("world size", "world_size: 2 in [0]; 3 in [1]"),
        ("samples", "length (samples, epochs, drop_last): 240 in [0]; 160 in [1]"),
        ("drop_last", "length (samples, epochs, drop_last): 245 in [0]; 240 in [1]"),
        ("schedule", "recipe.batch.pieces: [[0,8],[20,8]] in [0]; [[0,8],[20,16]] in [1]"),
        ("edit", 'edits: [] in [0]; [[20,"skip"]] in [1]'),
        ("lengths", 'balance.lengths.: "'),
        ("cost", "assignment of the step: "),
        ("dealing", "dealing.block: 4096 in [0]; 8192 in [1]"),
        ("restart", "restart: false in [0]; true in [1]"),
        ("trainer's epochs", "epochs of the loader: 4 in [0]; 2 in [1]"),
        ("same rank", "have the data-parallel ranks [0, 0] of 2"),
    ],
)
def test_a_mismatch_between_processes_is_refused(
    tmp_path: Path, warm_torch: warm.Warm, case: str, message: str
) -> None:
    for code, _, errors in processes(warm_torch, tmp_path, 2, case):
        assert code != 0
        assert message in errors, errors


def test_ranks_may_read_differently(tmp_path: Path, warm_torch: warm.Warm) -> None:
    ended = processes(warm_torch, tmp_path, 2, "reading")
    assert [code for code, _, _ in ended] == [0] * 2, ended


def test_of_many_processes_and_large_recipes_a_part_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {str(source): {"words": "x" * 1_000} for source in range(99)}
    recipe: dict[str, Any] = {"order": {"seed": 1}, "dataset": sources}
    other = {**recipe, "dataset": {**sources, "98": {"words": "y"}}}
    hashes = [ranks._AGREED.pack(bytes([rank > 9]) * 24, rank) for rank in range(30)]
    texts = [ranks.told({"recipe": other if rank > 9 else recipe}) for rank in range(30)]
    assert len(texts[0]) < 8_000
    monkeypatch.setattr(ranks, "is_alone", lambda: False)
    monkeypatch.setattr(ranks, "all_gathered", lambda _: hashes)
    monkeypatch.setattr(ranks, "all_gathered_texts", lambda _: texts)
    with pytest.raises(StateError) as found:
        ranks.agree(Share(0, 30, 1), lambda: {"recipe": recipe})
    [line] = [one for one in str(found.value).splitlines() if one.startswith("  ")]
    assert line.startswith('  recipe.dataset.98: "')
    assert line.endswith(" in [10, 11, 12, 13, 14, 15, 16, 17, 18, 19,...")


def test_the_process_group_gives_the_rank(tmp_path: Path, warm_torch: warm.Warm) -> None:
    ended = processes(warm_torch, tmp_path, 2, "detect")
    assert [code for code, _, _ in ended] == [0] * 2, ended
    said = [json.loads(output) for _, output, _ in ended]
    assert [one["detected"] for one in said] == [[0, 2], [1, 2]]
    assert ["contradict the process group" in one["contradiction"] for one in said] == [True, True]
    assert said[0]["rows"] != said[1]["rows"]
