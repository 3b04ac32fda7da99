"""``headrace check``: any flipped bit of any store has a place, and exit code 1; with ``--pack`` packs are checked."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import numpy as np
import pytest

import corpora
import headrace
import made
import recipe_runs
import shards_made
from copies_made import drawn
from counts import cases
from headrace import inspect
from headrace.copying import merge
from headrace.datasets import PackedSequenceDataset, Sample
from headrace.datasets.packed_sequences import plan_name
from headrace.inspect.store_checks import _check_sums
from headrace.plan import IntArray
from headrace.plan.packing import PackItems
from headrace.preparing import OutputOptions, PrepareOptions, TokenOptions, prepare
from headrace.preparing.energon import EnergonOptions, SplitChoice, prepare_energon
from headrace.preparing.shards import ShardOptions
from headrace.testing.damage import other_byte
from tars_made import write_tar

PROVENANCE = "provenance/rows.npy"
NAMES = ("text_document.bin", "text_document.idx", "headrace.json")


@pytest.fixture(scope="module")
def prepared(whole: Path) -> Path:
    return whole


def test_a_whole_store(run: Any, whole: Path) -> None:
    result = run("check", whole)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{whole}: whole: 4 files, ")
    assert "100 documents" in result.stdout
    assert "ids below 100" in result.stdout
    assert run("check", whole, "--quiet").output == ""


@pytest.mark.parametrize("name", [*NAMES, PROVENANCE])
@pytest.mark.parametrize("change", ["cut", "grow", "empty"])
def test_other_sizes(run: Any, store: Path, name: str, change: str) -> None:
    whole = (store / name).read_bytes()
    (store / name).write_bytes({"cut": whole[:-1], "grow": whole + b"\0", "empty": b""}[change])
    assert run("check", store).exit_code == 1


def test_the_place_of_a_fault(run: Any, of_json: Any, store: Path) -> None:
    path = store / "text_document.bin"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    problems = of_json("check", store, code=1)["problems"]
    assert problems[0]["path"] == str(path)
    assert problems[0]["place"]
    lines = run("check", store).stdout.splitlines()
    assert lines[-1].startswith(f"{store}: {len(problems)} fault")
    quiet = run("check", store, "--quiet")
    assert (quiet.exit_code, quiet.stdout.splitlines()) == (1, lines[:-1])


@pytest.mark.parametrize("missing", [*NAMES[:2], PROVENANCE])
def test_a_missing_file_is_a_fault(run: Any, store: Path, missing: str) -> None:
    (store / missing).unlink()
    result = run("check", store)
    assert result.exit_code == 1
    assert missing in result.stdout


@pytest.mark.parametrize("layout", ["indexed", "keyed"])
def test_ids_of_every_key(run: Any, of_json: Any, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "VOCAB_SIZE", 20)
    folder = made.two_keys(tmp_path / "store", layout)
    assert run("check", folder).exit_code == 0
    monkeypatch.setattr(
        "headrace.inspect.store_checks.load_tokenizer", lambda _: SimpleNamespace(known=SimpleNamespace(vocab_size=6))
    )
    found = of_json("check", folder, "--tokenizer", "any", code=1)
    at_fault = {Path(problem["path"]).name.partition("_")[0].removesuffix(".bin") for problem in found["problems"]}
    assert at_fault == {"title", "body"}


def test_a_keyed_store_that_no_manifest_vouches_for(run: Any, tmp_path: Path) -> None:
    folder = made.two_keys(tmp_path / "store", "keyed")
    (folder / "headrace.json").unlink()
    result = run("check", folder)
    assert "6 files" in result.stdout
    assert "only the structure was checked" in result.stdout
    (folder / "shard_0001" / "meta.json").write_bytes(b"{")
    result = run("check", folder)
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{folder / 'shard_0001' / 'meta.json'}: not the meta.json of a keyed store")


def test_faults_that_differ_in_a_name_alone_are_told_together(
    run: Any, of_json: Any, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(10):
        for end in (".bin", ".idx"):
            shutil.copy(whole / f"text_document{end}", folder / f"part_{number}{end}")
        with (folder / f"part_{number}.bin").open("ab") as file:
            file.write(b"\0" * 2 * number)
    told = run("check", folder).stdout.splitlines()
    assert [line.partition(": ")[0].rpartition("/")[2] for line in told[:3]] == [f"part_{n}.bin" for n in (1, 2, 3)]
    assert told[3:] == ["  and 6 more like it (--json lists all)", f"{folder}: 9 faults"]
    found = of_json("check", folder, code=1)
    assert (len(found["problems"]), found["files"]) == (9, 20)


WAYS: Mapping[str, str] = {
    "greedy": "strategy=greedy,over_long=split",
    "best_fit": "over_long=split",
    "left": "over_long=truncate_left",
    "right": "over_long=truncate_right",
    "drop": "strategy=first_fit,over_long=drop",
    "repack": "strategy=best_fit_split,repack=true",
    "window": "strategy=best_fit_split,window_documents=30",
    "documents": "strategy=best_fit_split,max_documents=3",
    "multiple": "strategy=best_fit_split,segment_multiple=8",
    "wrapped": "strategy=wrapped",
}
MULTIPLE = headrace.Packing(seq_len=64, strategy="best_fit_split", segment_multiple=8)


@pytest.mark.parametrize("way", WAYS)
def test_right_packs(of_json: Any, whole: Path, way: str) -> None:
    found = of_json("check", whole, "--pack", f"64,{WAYS[way]}")
    assert (found["ok"], found["problems"]) == (True, [])
    packs = found["packs"]
    assert (packs["key"], packs["kept_plan"], packs["packing"]["max_seq_len"]) == ("text", None, 64)
    assert packs["packs"] == packs["ledger"]["num_packs"] > 20


def test_packs_for_people(run: Any, of_json: Any, whole: Path) -> None:
    result = run("check", whole, "--pack", "64,strategy=wrapped")
    assert result.exit_code == 0
    second, first = result.stdout.splitlines()
    assert first.startswith(f"{whole}: whole: ")
    said = "127 packs of 64 tokens right (wrapped): fill 99.532%, 74 split, 0.00% of the tokens lost"
    assert second == f"{whole}: {said}"
    assert run("check", whole, "--pack", "64,strategy=wrapped", "--quiet").output == ""
    assert "packs" not in of_json("check", whole)


Change = Callable[[Sample], None]
CHANGES: dict[str, tuple[Change, str]] = {
    "a token": (lambda sample: add(sample, "input_ids", 1, 1), "input_ids"),
    "a label": (lambda sample: add(sample, "labels", 1, 1), "labels"),
    "a label at a border": (lambda sample: sample["labels"][1].__setitem__(63, 5), "at the last token"),
    "a document": (lambda sample: add(sample, "document_ids", 1, 1000), "document_ids"),
    "a position": (lambda sample: add(sample, "position_ids", 1, 1), "position_ids"),
    "a mask": (lambda sample: sample["loss_mask"][1].__setitem__(2, False), "loss_mask"),
}


def add(sample: Sample, name: str, row: int, number: int) -> None:
    """Change a whole row, so that most relations within the field stay."""
    sample[name][row] += number


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], None]:
    """Lets a change happen to all samples that are read."""
    read = PackedSequenceDataset.read

    def changed(change: Change) -> None:
        def wrong(self: PackedSequenceDataset, addresses: IntArray) -> Sample:
            sample = read(self, addresses)
            change(sample)
            return sample

        monkeypatch.setattr(PackedSequenceDataset, "read", wrong)

    return changed


@pytest.mark.parametrize("change", CHANGES)
def test_a_fault_of_the_layout(run: Any, whole: Path, change: str, spoil: Callable[[Change], None]) -> None:
    function, named = CHANGES[change]
    spoil(function)
    result = run("check", whole, "--pack", f"64,{WAYS['right']}")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert all(line.startswith(f"{whole}: pack 1: ") for line in lines[:-1])
    assert any(named in line for line in lines)


def test_pads_that_belong_to_a_document(run: Any, whole: Path, spoil: Callable[[Change], None]) -> None:
    """The fields agree with each other; only the plan tells that the pads are a segment of their own."""

    def wrong(sample: Sample) -> None:
        row = int(np.flatnonzero((sample["document_ids"] == -1).any(axis=1))[0])
        first = int(np.flatnonzero(sample["document_ids"][row] == -1)[0])
        sample["position_ids"][row, first:] += sample["position_ids"][row, first - 1] + 1

    spoil(wrong)
    result = run("check", whole, "--pack", f"64,{WAYS['right']}")
    assert (result.exit_code, "cu_seqlens" in result.stdout) == (1, True)


def test_many_faults_are_counted(run: Any, whole: Path, spoil: Callable[[Change], None]) -> None:
    spoil(lambda sample: sample["loss_mask"].fill(True))
    lines = run("check", whole, "--pack", f"64,{WAYS['right']}").stdout.splitlines()
    assert len(lines) == 6
    assert lines[-2] == f"{whole}: 55 more packs at fault"


def too_many(items: PackItems) -> PackItems:
    items.lengths[0] += 64
    return items


def none(items: PackItems) -> PackItems:
    items.lengths[-1] = 0
    return items


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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (too_many, "pack 0: its pieces take 128 places, but it has only 64"),
        (none, "0 tokens"),
        (moved, ""),
        (twice, ""),
    ],
)
def test_packs_that_cannot_be(
    run: Any, whole: Path, change: Callable[[PackItems], PackItems], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = PackedSequenceDataset.items
    monkeypatch.setattr(PackedSequenceDataset, "items", lambda self, addresses: change(items(self, addresses)))
    result = run("check", whole, "--pack", f"64,{WAYS['best_fit']}")
    assert result.exit_code == 1
    assert said in result.stdout
    assert "exactly once" in result.stdout


def test_a_ledger_that_is_wrong(run: Any, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = PackedSequenceDataset.ledger.fget  # type: ignore[attr-defined]
    for name in ("raw_tokens", "packed_tokens", "truncated_tokens", "dropped_tokens", "num_packs", "pad_tokens"):

        def wrong(self: PackedSequenceDataset, name: str = name) -> Any:
            found = ledger(self)
            return msgspec.structs.replace(found, **{name: getattr(found, name) + 1})

        monkeypatch.setattr(PackedSequenceDataset, "ledger", property(wrong))
        result = run("check", whole, "--pack", f"64,{WAYS['right']}")
        assert result.exit_code == 1
        assert "of the ledger is" in result.stdout


def test_kept_plans(whole: Path, tmp_path: Path) -> None:
    def check() -> Any:
        return inspect.check(whole, packing=MULTIPLE, plan_folder=tmp_path)

    with headrace.open(whole) as store:
        place = tmp_path / plan_name(store, MULTIPLE)
    assert check().packs.kept_plan is None
    assert check().packs.kept_plan == str(place)
    files = sorted(place.iterdir())
    assert len(files) > 2
    for file in files:
        content = file.read_bytes()
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 2]) + content[middle + 1 :]
        for change in (content[:middle], b"", content + b"\0", flipped):
            file.write_bytes(change)
            found = check()
            assert (found.ok, found.packs.packs) == (False, 0), change[:200]
            assert str(place) in found.problems[0].path
            assert f"remove {place}: the plan is then made anew" in found.problems[0].message
        file.write_bytes(content)
    assert check().ok


def test_a_store_of_several_pairs_is_packed_as_a_run_does(tmp_path: Path) -> None:
    """Its fingerprint, by which plans are kept, and its mask are those of all keys together."""
    folder, plans, packing = (
        made.two_keys(tmp_path / "store", "indexed"),
        tmp_path / "plans",
        headrace.Packing(seq_len=8),
    )
    with headrace.open(folder) as store:
        PackedSequenceDataset(store, packing, plan_folder=plans)
        place = plans / plan_name(store, packing)
    found = inspect.check(folder, packing=packing, plan_folder=plans)
    assert (found.ok, found.packs.key, found.packs.kept_plan) == (True, "title", str(place))
    one = inspect.check(folder, packing=packing, plan_folder=plans, key="body")
    assert (one.ok, one.packs.key, one.packs.kept_plan) == (True, "body", None)


def test_a_plan_in_the_cache_folder(of_json: Any, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with headrace.open(whole) as store:
        PackedSequenceDataset(store, MULTIPLE, plan_folder=tmp_path / "packs")
        name = plan_name(store, MULTIPLE)
    found = of_json("check", whole, "--pack", f"64,{WAYS['multiple']}")
    assert found["packs"]["kept_plan"] == str(tmp_path / "packs" / name)


def test_a_store_that_is_not_whole_is_not_packed(run: Any, of_json: Any, store: Path) -> None:
    with (store / "text_document.bin").open("ab") as file:
        file.write(b"\0\0")
    lines = run("check", store, "--pack", 64).stdout.splitlines()
    assert lines[-2].startswith(f"{store}: its packs were not checked")
    assert of_json("check", store, "--pack", 64, code=1)["packs"] is None


def test_the_key_that_is_packed(of_json: Any, tmp_path: Path) -> None:
    folder = made.two_keys(tmp_path / "store", "keyed")
    for chosen, name, tokens in (((), "title", 3), (("--key", "body"), "body", 10)):
        found = of_json("check", folder, "--pack", 8, *chosen)
        assert (found["ok"], found["packs"]["key"], found["packs"]["ledger"]["raw_tokens"]) == (True, name, tokens)


TOKENS: Final = TokenOptions(append_eod=True, backend="tokenizers")


def of_text(**output: Any) -> Callable[[Path, Path, Path], Path]:
    def make(folder: Path, corpus: Path, tokenizer: Path) -> Path:
        options = PrepareOptions(tokens=TOKENS, output=OutputOptions(**output), workers=1)
        prepare([corpus], folder / "out", tokenizer=tokenizer, options=options)
        return folder / "out"

    return make


def domains(folder: Path, corpus: Path, tokenizer: Path) -> Path:
    recipe_runs.make_model(folder / "model")
    recipe_runs.write_lines(folder / "data" / "a.jsonl", recipe_runs.conversations(30))
    recipe_runs.prepare(recipe_runs.SFT + "output: {domain_key: source}\n", folder, folder / "out")
    return folder / "out"


def new_tars(folder: Path, corpus: Path, tokenizer: Path) -> Path:
    (folder / "in").mkdir()
    for number in range(12):
        (folder / "in" / f"{number}.jpg").write_bytes(shards_made.image(number))
        (folder / "in" / f"{number}.txt").write_text(f"number {number}")
    with shards_made.inline():
        shards_made.prepare(folder / "in", folder / "out", ShardOptions())
    return folder / "out"


def tars_in_place(folder: Path, corpus: Path, tokenizer: Path) -> Path:
    for shard in range(2):
        write_tar(folder / "ds" / f"{shard}.tar", [(f"{shard}{n}.txt", b"some text" * 30) for n in range(5)])
    options = EnergonOptions(split=SplitChoice(ratio=(1, 1, 0)), workers=1)
    prepare_energon(folder / "ds", options=options)
    return folder / "ds"


def a_plan(folder: Path, corpus: Path, tokenizer: Path) -> Path:
    corpora.write(folder / "a", [np.arange(length) for length in (50, 3, 20, 7, 9, 31, 12)])
    store, packing = headrace.open(folder / "a"), headrace.Packing(seq_len=20, over_long="split")
    headrace.PackedSequenceDataset(store, packing, plan_folder=folder / "plans")
    return folder / "plans" / plan_name(store, packing)


def merged(folder: Path, corpus: Path, tokenizer: Path) -> Path:
    merge([drawn(folder / "a", 1, 20), drawn(folder / "b", 2, 20)], folder / "out")
    return folder / "out"


def raw(folder: Path, corpus: Path, tokenizer: Path) -> Path:
    drawn(folder / "raw" / "a", 1, 20)
    return folder / "raw"


STORES: Final[dict[str, Callable[[Path, Path, Path], Path]]] = {
    "plain": of_text(),
    "in shards": of_text(shard_tokens=9000),
    "keyed": of_text(format="keyed"),
    "domains": domains,
    "new tars": new_tars,
    "tars in place": tars_in_place,
    "a kept plan": a_plan,
    "merged": merged,
    "raw": raw,
}
UNVOUCHED: Final = {
    "new tars": {"dataset.yaml", "split.yaml"},
    "tars in place": {"0.tar", "1.tar", "dataset.yaml", "split.yaml"},
    "raw": {"a.bin", "a.idx"},
}
"""What is people's to edit, or would have to be read for nothing but its hash."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.mark.parametrize("name", STORES)
def test_a_flipped_bit_in_every_file(name: str, tmp_path: Path, corpus: Path, tokenizer: Path, run: Any) -> None:
    root = STORES[name](tmp_path, corpus, tokenizer)
    whole = json.loads(run("check", root, "--json").stdout)
    assert whole["ok"]
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    unvouched = {Path(file).name for file in whole.get("unvouched", ())}
    if whole.get("hashed") is False and "unvouched" not in whole:
        unvouched = {file.name for file in files}
    assert unvouched == UNVOUCHED.get(name, set())
    rng = random.Random(name)
    for file in files:
        if file.name in unvouched:
            continue
        content = file.read_bytes()
        for _ in range(cases(1, 40)):
            at, bit = rng.randrange(len(content)), rng.randrange(8)
            with other_byte(file, at, content[at] ^ 1 << bit):
                found = run("check", root, "--json")
            assert found.exit_code in (1, 4), f"bit {bit} of byte {at:,} of {file.relative_to(root)}"
            assert file.name in found.output, f"bit {bit} of byte {at:,} of {file.relative_to(root)}: {found.output}"
    shutil.rmtree(tmp_path)


def test_a_damaged_state_is_told_and_made_anew(tmp_path: Path, corpus: Path, tokenizer: Path, run: Any) -> None:
    root = tars_in_place(tmp_path, corpus, tokenizer)
    (root / ".nv-meta" / "headrace.json").write_text("[" * 100_000)
    assert "damaged" in run("check", root).stdout
    assert prepare_energon(root, options=EnergonOptions(workers=1)).read == 2
    assert run("check", root).exit_code == 0
