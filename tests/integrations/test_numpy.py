"""Batches as NumPy arrays: those of a `Loader`, without torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
import records_made
from headrace import (
    Blend,
    ConfigError,
    GroupDataset,
    Loader,
    NumpyLoader,
    Order,
    PackedSequenceDataset,
    Packing,
    PromptDataset,
    Run,
    SFTDataset,
    StateError,
    WindowDataset,
)
from headrace.loader import Balance, Ranks

ORDER = Order(seed=3)


def windows(corpus: list[corpora.Corpus], **options: Any) -> Run:
    options = {"samples": 50, "global_batch_size": [(0, 8), (2, 5)], **options}
    return Run(WindowDataset(corpus[0].store, seq_len=8), order=ORDER, **options)


def packs(corpus: list[corpora.Corpus]) -> Run:
    data = PackedSequenceDataset(corpus[0].store, Packing(seq_len=32, strategy="best_fit_split"))
    return Run(data, global_batch_size=6, samples=20, order=ORDER)


def blend(corpus: list[corpora.Corpus]) -> Run:
    data = {name: WindowDataset(one.store, seq_len=8) for name, one in zip("ab", corpus[:2], strict=True)}
    return Run(Blend(data, weights={"a": 3, "b": 1}), global_batch_size=8, samples=44, order=ORDER)


KINDS = {"windows": windows, "packs": packs, "blend": blend}


def arrays(batches: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: np.asarray(value).tolist() for name, value in batch.items()} for batch in batches]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_and_states_are_those_of_a_loader(kind: str, corpus: list[corpora.Corpus]) -> None:
    run = KINDS[kind](corpus)
    for rank, world_size in ((0, 1), (0, 3), (2, 3)):
        torchs = Loader(run, micro_batch_size=2, ranks=Ranks(rank, world_size))
        ours = NumpyLoader(run, micro_batch_size=2, rank=rank, world_size=world_size)
        assert len(ours) == len(torchs)
        for theirs, batch in zip(torchs, ours, strict=True):
            assert batch.keys() == theirs.keys()
            for name, value in batch.items():
                assert type(value) is (np.ndarray if hasattr(theirs[name], "numpy") else int)
                assert (value == np.asarray(theirs[name])).all()
                assert np.asarray(value).dtype == np.asarray(theirs[name]).dtype
            assert (ours.get_state(), ours.position, ours.step) == (torchs.state_dict(), torchs.position, torchs.step)


def test_records(tmp_path: Path) -> None:
    sft = SFTDataset(records_made.store(tmp_path / "sft", records_made.sft(1, 20)))
    prompts = PromptDataset(records_made.store(tmp_path / "prompts", records_made.prompts(1, 20)))
    groups = GroupDataset(records_made.store(tmp_path / "groups", records_made.groups(1, 20)))
    for data, micro_batch_size in ((sft, 2), (prompts, 2), (groups, 1)):
        run = Run(data, global_batch_size=5, samples=13, order=ORDER)
        for ranks in (Ranks(0, 1), Ranks(3, 4)):
            ours = NumpyLoader(run, micro_batch_size=micro_batch_size, rank=ranks.rank, world_size=ranks.world_size)
            assert arrays(ours) == arrays(Loader(run, micro_batch_size=micro_batch_size, ranks=ranks))


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_goes_on_in_either_at_any_ranks(kind: str, corpus: list[corpora.Corpus]) -> None:
    run = KINDS[kind](corpus)
    for stop in (1, 3, 6):
        first = NumpyLoader(run, micro_batch_size=3)
        assert len(list(islice(first, stop))) == stop
        for rank, world_size in ((0, 1), (0, 2), (1, 2)):
            torchs = Loader(run, micro_batch_size=2, ranks=Ranks(rank, world_size))
            torchs.load_state_dict(first.get_state())
            ours = NumpyLoader(run, micro_batch_size=2, rank=rank, world_size=world_size)
            ours.set_state(first.get_state())
            assert arrays(ours) == arrays(torchs)


def test_a_batch_is_the_loops_own(corpus: list[corpora.Corpus]) -> None:
    run = windows(corpus)
    changed = []
    for batch in NumpyLoader(run, micro_batch_size=3):
        changed.append(arrays([batch])[0])
        for name in ("input_ids", "labels", "sample_positions"):
            batch[name][...] = -7
    assert changed == arrays(NumpyLoader(run, micro_batch_size=3))


def test_the_end_and_old_iterators(corpus: list[corpora.Corpus]) -> None:
    loader = NumpyLoader(windows(corpus), micro_batch_size=4)
    old = iter(loader)
    next(old)
    newest = iter(loader)
    with pytest.raises(StateError, match="outdated"):
        next(old)
    assert len(list(newest)) == len(loader) - 1
    with pytest.raises(StateError, match=r"position.*50"):
        iter(loader)
    again = NumpyLoader(windows(corpus), micro_batch_size=4)
    again.set_state(loader.get_state())
    assert list(again) == []
    longer = NumpyLoader(windows(corpus, samples=60), micro_batch_size=4)
    longer.set_state(loader.get_state())
    assert sum(len(batch["labels"]) for batch in longer) == 10


def test_errors_of_reading_come_at_their_batch(corpus: list[corpora.Corpus], monkeypatch: pytest.MonkeyPatch) -> None:
    run = windows(corpus)
    read, calls = run.read, iter(range(100))

    def failing(located: Any) -> Any:
        if next(calls) == 3:
            raise OSError("gone")
        return read(located)

    monkeypatch.setattr(run, "read", failing)
    loader = NumpyLoader(run, micro_batch_size=4)
    found: list[Any] = []
    with pytest.raises(OSError, match="gone"):
        found.extend(loader)
    assert len(found) == 3
    assert loader.position == 12
    assert len(list(loader)) == len(loader) - 3


def test_what_is_refused(corpus: list[corpora.Corpus]) -> None:
    run = windows(corpus)
    for data, options, named in (
        (run, {"micro_batch_size": 0}, "micro_batch_size.*1"),
        (run, {"micro_batch_size": 2, "rank": 2, "world_size": 2}, "2.*2"),
        (corpus[0].store, {"micro_batch_size": 1}, "expected"),
    ):
        with pytest.raises(ConfigError, match=named):
            NumpyLoader(data, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="endless"):
        len(NumpyLoader(windows(corpus, samples=None), micro_batch_size=1))
    begun = NumpyLoader(Run(run.data, global_batch_size=8, order=Order(seed=4)), micro_batch_size=8)
    next(iter(begun))
    balanced = Loader(packs(corpus), micro_batch_size=2, balance=Balance())
    next(iter(balanced))
    for mine, state, named in ((run, begun.get_state(), "order"), (packs(corpus), balanced.state_dict(), "balance")):
        loader = NumpyLoader(mine, micro_batch_size=2)
        with pytest.raises(StateError, match=named):
            loader.set_state(state)
        assert loader.position == 0


def test_torch_need_not_be_there(corpus: list[corpora.Corpus], tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["torch"] = None
import headrace
cache = headrace.Cache({str(tmp_path)!r}, limit="1MB", block="4KiB")
data = headrace.WindowDataset(headrace.open({str(corpus[0].store.path)!r}, cache=cache), seq_len=8)
packs = headrace.PackedSequenceDataset(data.store, headrace.Packing(seq_len=32, strategy="best_fit_split"))
for one in (data, packs):
    loader = headrace.NumpyLoader(headrace.Run(one, global_batch_size=4, samples=8), micro_batch_size=2)
    for batch in loader:
        print(*batch["sample_positions"].tolist())
    loader.set_state(loader.get_state())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(position) for position in range(8)] * 2
