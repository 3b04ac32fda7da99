"""``headrace check --pack``: packs are made and checked, and every fault is found."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import made
from headrace.datasets import PackedSequenceDataset, Sample
from headrace.datasets.packed_sequences import plan_name
from headrace.inspect.store_checks import _check_sums
from headrace.plan import IntArray
from headrace.plan.packing import PackItems
from headrace.stores import IndexedWriter

WAYS: Mapping[str, tuple[str, ...]] = {
    "greedy": ("--pack-strategy", "greedy", "--pack-over-long", "split"),
    "best_fit": ("--pack-over-long", "split"),
    "left": ("--pack-over-long", "truncate_left"),
    "right": ("--pack-over-long", "truncate_right"),
    "drop": ("--pack-strategy", "first_fit", "--pack-over-long", "drop"),
    "repack": ("--pack-strategy", "best_fit_split", "--pack-repack"),
    "window": ("--pack-strategy", "best_fit_split", "--pack-window", "30"),
    "documents": ("--pack-strategy", "best_fit_split", "--pack-documents", "3"),
    "multiple": ("--pack-strategy", "best_fit_split", "--pack-multiple", "8"),
    "wrapped": ("--pack-strategy", "wrapped"),
}
MULTIPLE = headrace.Packing(seq_len=64, strategy="best_fit_split", segment_multiple=8)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.one_key(tmp_path_factory.mktemp("whole") / "store")


@pytest.mark.parametrize("way", WAYS)
def test_right_packs(run: Any, whole: Path, way: str) -> None:
    found = json.loads(run("check", whole, "--pack", 64, *WAYS[way], "--json").stdout)
    assert (found["ok"], found["problems"]) == (True, [])
    packs = found["packs"]
    assert (packs["key"], packs["kept_plan"], packs["packing"]["max_seq_len"]) == ("text", None, 64)
    assert packs["packs"] == packs["ledger"]["num_packs"] > 20


def test_for_people(run: Any, whole: Path) -> None:
    result = run("check", whole, "--pack", 64, "--pack-strategy", "wrapped")
    assert result.exit_code == 0
    first, second = result.stdout.splitlines()
    assert first.startswith(f"{whole}: whole: ")
    assert (
        second == f"{whole}: 127 packs of 64 tokens right (wrapped): fill 99.532%, 74 split, 0.00% of the tokens lost"
    )
    assert run("check", whole, "--pack", 64, "--pack-strategy", "wrapped", "--quiet").output == ""
    assert "packs" not in json.loads(run("check", whole, "--json").stdout)


Change = Callable[[Sample], None]
CHANGES: dict[str, tuple[Change, str]] = {
    "a token": (lambda sample: add(sample, "input_ids", 1, 1), "input_ids are not the tokens"),
    "a label": (lambda sample: add(sample, "labels", 1, 1), "labels is"),
    "a label at a border": (lambda sample: sample["labels"][1].__setitem__(63, 5), "at the last token"),
    "a document": (lambda sample: add(sample, "document_ids", 1, 1000), "document_ids are not those"),
    "a position": (lambda sample: add(sample, "position_ids", 1, 1), "position_ids is"),
    "a mask": (lambda sample: sample["loss_mask"][1].__setitem__(2, False), "loss_mask is False"),
}


def add(sample: Sample, name: str, row: int, number: int) -> None:
    """Change a whole row, so that most relations within the field stay."""
    sample[name][row] += number


@pytest.mark.parametrize("change", CHANGES)
def test_a_fault_of_the_layout(run: Any, whole: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, said = CHANGES[change]
    read = PackedSequenceDataset.read

    def wrong(self: PackedSequenceDataset, addresses: IntArray) -> Sample:
        sample = read(self, addresses)
        function(sample)
        return sample

    monkeypatch.setattr(PackedSequenceDataset, "read", wrong)
    result = run("check", whole, "--pack", 64, *WAYS["right"])
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert all(line.startswith(f"{whole}: pack 1: ") for line in lines[:-1])
    assert any(said in line for line in lines)


def test_pads_that_belong_to_a_document(run: Any, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fields agree with each other; only the plan tells that the pads are a segment of their own."""
    read = PackedSequenceDataset.read

    def wrong(self: PackedSequenceDataset, addresses: IntArray) -> Sample:
        sample = read(self, addresses)
        row = int(np.flatnonzero((sample["document_ids"] == -1).any(axis=1))[0])
        first = int(np.flatnonzero(sample["document_ids"][row] == -1)[0])
        sample["position_ids"][row, first:] += sample["position_ids"][row, first - 1] + 1
        return sample

    monkeypatch.setattr(PackedSequenceDataset, "read", wrong)
    result = run("check", whole, "--pack", 64, *WAYS["right"])
    assert result.exit_code == 1
    assert "cu_seqlens has the shape" in result.stdout


def test_many_faults_are_counted(run: Any, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = PackedSequenceDataset.read

    def wrong(self: PackedSequenceDataset, addresses: IntArray) -> Sample:
        sample = read(self, addresses)
        sample["loss_mask"][:] = True
        return sample

    monkeypatch.setattr(PackedSequenceDataset, "read", wrong)
    lines = run("check", whole, "--pack", 64, *WAYS["right"]).stdout.splitlines()
    assert len(lines) == 6
    assert lines[-2] == f"{whole}: 55 more packs at fault"


def too_many(items: PackItems) -> PackItems:
    items.lengths[0] += 64
    return items


def none(items: PackItems) -> PackItems:
    items.lengths[-1] = 0
    return items


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (too_many, "pack 0: its pieces take 128 places, but it has only 64"),
        (none, "a piece has 0 tokens; each must have"),
    ],
)
def test_packs_that_cannot_be(
    run: Any, whole: Path, change: Callable[[PackItems], PackItems], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = PackedSequenceDataset.items
    monkeypatch.setattr(PackedSequenceDataset, "items", lambda self, addresses: change(items(self, addresses)))
    result = run("check", whole, "--pack", 64, *WAYS["best_fit"])
    assert result.exit_code == 1
    assert said in result.stdout
    assert "exactly once" in result.stdout


def test_packs_of_too_many_documents(whole: Path) -> None:
    dataset = PackedSequenceDataset(headrace.open(whole), headrace.Packing(seq_len=64, over_long="split"))
    items = dataset.items(np.arange(len(dataset)))
    numbers = np.diff(items.offsets)
    found = list(_check_sums(headrace.Packing(seq_len=64, max_documents=1), items))
    assert [bool(one) for one in found] == (numbers > 1).tolist()
    assert found[int(numbers.argmax())] == [f"it has {numbers.max()} pieces, and max_documents is 1"]


def moved(items: PackItems) -> PackItems:
    """The borders of a document's two pieces moved by one token."""
    piece = int(np.flatnonzero(items.begins > 0)[0])
    items.begins[piece] += 1
    items.lengths[piece] -= 1
    return items


def twice(items: PackItems) -> PackItems:
    """A document in the place of another one of its length."""
    lengths = items.lengths.tolist()
    one, other = next(
        (i, j) for i in range(len(lengths)) for j in range(i) if lengths[i] == lengths[j] and items.begins[i] == 0
    )
    items.documents[one], items.begins[one] = items.documents[other], items.begins[other]
    items.starts[one], items.continues[one] = items.starts[other], items.continues[other]
    return items


@pytest.mark.parametrize("change", [moved, twice])
def test_a_document_that_is_lost_or_there_twice(
    run: Any, whole: Path, change: Callable[[PackItems], PackItems], monkeypatch: pytest.MonkeyPatch
) -> None:
    items = PackedSequenceDataset.items
    monkeypatch.setattr(PackedSequenceDataset, "items", lambda self, addresses: change(items(self, addresses)))
    result = run("check", whole, "--pack", 64, *WAYS["best_fit"])
    assert result.exit_code == 1
    assert "exactly once" in result.stdout


def test_a_ledger_that_is_wrong(run: Any, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import msgspec

    ledger = PackedSequenceDataset.ledger.fget  # type: ignore[attr-defined]
    for name in ("raw_tokens", "packed_tokens", "truncated_tokens", "dropped_tokens", "num_packs", "pad_tokens"):

        def wrong(self: PackedSequenceDataset, name: str = name) -> Any:
            found = ledger(self)
            return msgspec.structs.replace(found, **{name: getattr(found, name) + 1})

        monkeypatch.setattr(PackedSequenceDataset, "ledger", property(wrong))
        result = run("check", whole, "--pack", 64, *WAYS["right"])
        assert result.exit_code == 1
        assert "of the ledger is" in result.stdout


def test_kept_plans(run: Any, whole: Path, tmp_path: Path) -> None:
    asked = ("--pack", 64, *WAYS["multiple"], "--plan-folder", tmp_path, "--json")
    with headrace.open(whole) as store:
        place = tmp_path / plan_name(store, MULTIPLE)
    assert json.loads(run("check", whole, *asked).stdout)["packs"]["kept_plan"] is None
    assert json.loads(run("check", whole, *asked).stdout)["packs"]["kept_plan"] == str(place)
    files = sorted(place.iterdir())
    assert len(files) > 2
    for file in files:
        content = file.read_bytes()
        changes = [content[:-1], b"", content + b"\0"]
        # Any bit but those that lay the JSON out.
        bits = [at for at in range(0, len(content) * 8, 97) if file.suffix == ".npy" or content[at // 8] not in b" \n"]
        for bit in bits:
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            changes.append(bytes(flipped))
        for change in changes:
            if file.suffix == ".json" and same(change, content):
                continue
            file.write_bytes(change)
            result = run("check", whole, *asked)
            found = json.loads(result.stdout)
            assert (result.exit_code, found["ok"], found["packs"]["packs"]) == (1, False, 0), change[:200]
            assert str(place) in found["problems"][0]["path"]
            assert f"remove {place}: the plan is then made anew" in found["problems"][0]["message"]
        file.write_bytes(content)
    assert run("check", whole, *asked).exit_code == 0


def same(one: bytes, other: bytes) -> bool:
    """Whether two JSON files say the same."""
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def test_a_plan_in_the_cache_folder(run: Any, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with headrace.open(whole) as store:
        PackedSequenceDataset(store, MULTIPLE, plan_folder=tmp_path / "packs")
        name = plan_name(store, MULTIPLE)
    found = json.loads(run("check", whole, "--pack", 64, *WAYS["multiple"], "--json").stdout)
    assert found["packs"]["kept_plan"] == str(tmp_path / "packs" / name)


def test_a_store_that_is_not_whole_is_not_packed(run: Any, store: Path) -> None:
    with (store / "text_document.bin").open("ab") as file:
        file.write(b"\0\0")
    result = run("check", store, "--pack", 64)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == f"{store}: its packs were not checked, because the store has faults"
    assert json.loads(run("check", store, "--pack", 64, "--json").stdout)["packs"] is None


def test_the_key_that_is_packed(run: Any, tmp_path: Path) -> None:
    folder = made.two_keys(tmp_path / "store", "keyed")
    for chosen, name, tokens in (((), "title", 3), (("--key", "body"), "body", 10)):
        found = json.loads(run("check", folder, "--pack", 8, *chosen, "--json").stdout)
        assert (found["ok"], found["packs"]["key"], found["packs"]["ledger"]["raw_tokens"]) == (True, name, tokens)


def test_what_is_refused(run: Any, whole: Path, tmp_path: Path) -> None:
    for arguments, said in (
        (("--pack", 64), "documents are longer than seq_len=64"),
        (("--pack", 0), "seq_len is 0"),
        (("--pack", 64, "--pack-strategy", "best"), "allowed are 'greedy', 'best_fit'"),
        (("--pack-strategy", "greedy"), "add --pack N"),
        (("--pack-repack",), "add --pack N"),
        (("--key", "text"), "add --pack N"),
        (("--plan-folder", tmp_path), "add --pack N"),
        (("--pack", 64, "--key", "none"), "no key 'none'"),
    ):
        result = run("check", whole, *arguments)
        assert result.exit_code == 2, arguments
        assert said in result.stderr
    with IndexedWriter(tmp_path / "empty", dtype=np.uint16) as writer:
        writer.finish()
    result = run("check", tmp_path / "empty", "--pack", 64)
    assert (result.exit_code, "has no documents to pack" in result.stderr) == (2, True)
