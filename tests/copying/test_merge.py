"""`headrace.merge`: order, bytes, keys, tokenisers, and what does not go together."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import faults
import headrace
import made
import prepared_made
import recipe_runs as runs
from copies_made import GOLDEN, content, documents, drawn, files, pair, pair_bytes
from headrace.compat.megatron import IndexedDatasetBuilder
from headrace.copying import CopyOptions, copied_documents
from headrace.errors import ConfigError, InputError, OutputError, StoreError
from headrace.io import AtomicFile
from headrace.stores import KeyedWriter, Ledger, SampleLedger, load_manifest, save_manifest


@pytest.mark.parametrize("name", ["uint16", "multimodal"])
def test_c3_merged_golden_files_are_megatrons(tmp_path: Path, name: str) -> None:
    source = GOLDEN / "indexed" / name
    headrace.merge([source, source], tmp_path / "out")
    assert pair_bytes(tmp_path / "out" / "text_document") == pair_bytes(GOLDEN / "merge" / name)
    headrace.merge([GOLDEN / "indexed" / "empty"], tmp_path / "empty")
    assert pair_bytes(tmp_path / "empty" / "text_document") == pair_bytes(GOLDEN / "indexed" / "empty")


@pytest.mark.parametrize("seed", range(6))
def test_the_bytes_are_those_of_add_index(tmp_path: Path, seed: int) -> None:
    sources = [drawn(tmp_path / f"part-{number}", seed * 10 + number, number * 9) for number in range(4)]
    report = headrace.merge(sources, tmp_path / "out")
    builder = IndexedDatasetBuilder(tmp_path / "other.bin", dtype="uint16")
    for source in sources:
        builder.add_index(source)
    builder.finalize(tmp_path / "other.idx")
    assert pair_bytes(tmp_path / "out" / "text_document") == pair_bytes(tmp_path / "other")
    found = documents(tmp_path / "out")
    assert (report.documents, report.tokens) == (54, sum(map(len, found)))
    ledger = load_manifest(tmp_path / "out").ledger
    assert (ledger.documents.kept, ledger.documents.empty, ledger.tokens.kept) == (54, found.count([]), report.tokens)
    assert list(headrace.open(tmp_path / "out").check()) == []


def test_a_folder_of_pairs_in_three_orders(tmp_path: Path) -> None:
    """C3: Megatron's tool sorts by name, part-10 before part-9; `headrace.open` reads part-9 first."""
    for number in (9, 10, 11):
        pair(tmp_path / "in" / f"part-{number}", [[[number]]])
    found = {}
    for sort_by in ("given", "name", "natural"):
        report = headrace.merge([tmp_path / "in"], tmp_path / sort_by, sort_by=sort_by)
        found[sort_by] = [tokens for (tokens,) in documents(tmp_path / sort_by)]
        assert bool(report.warnings) == (sort_by == "given")
    assert found == {"given": [9, 10, 11], "name": [10, 11, 9], "natural": [9, 10, 11]}
    assert documents(tmp_path / "in") == documents(tmp_path / "given")
    [warning] = headrace.merge([tmp_path / "in"], tmp_path / "x", dry_run=True).warnings
    assert "--order name" in warning
    assert not (tmp_path / "x").exists()
    for number in (10, 11):
        pair(tmp_path / "padded" / f"part-{number}", [[[number]]])
    assert headrace.merge([tmp_path / "padded"], tmp_path / "x").warnings == ()


def test_the_manifest_leads_back(tmp_path: Path) -> None:
    sources = [drawn(tmp_path / str(number), number, 7) for number in range(3)]
    report = headrace.merge(sources, tmp_path / "out", options=CopyOptions(shards=20))
    manifest = load_manifest(tmp_path / "out")
    assert len(manifest.outputs) > 2
    assert [Path(file.path).name for file in manifest.inputs] == [
        f"{n}.{kind}" for n in range(3) for kind in ("bin", "idx")
    ]
    assert manifest.inputs == report.inputs
    assert manifest.ledger.documents.read == manifest.ledger.documents.kept == 21
    out = documents(tmp_path / "out")
    assert manifest.ledger.documents.empty == out.count([])
    for document, found in enumerate(copied_documents(manifest, range(21))):
        assert out[document] == documents(Path(found.source.path))[found.document]
    with pytest.raises(StoreError, match=r"document.*21"):
        copied_documents(manifest, [21])


@pytest.mark.parametrize("layout", ["indexed", "keyed"])
def test_several_keys_stay_side_by_side(tmp_path: Path, layout: str) -> None:
    for name in "ab":
        made.two_keys(tmp_path / name, layout)
    headrace.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    one = content(tmp_path / "a")
    assert content(tmp_path / "out") == {key: found * 2 for key, found in one.items()}
    assert set(one) == {"title", "body"}


def tokenised(folder: Path, **changes: object) -> Path:
    """A prepared store whose manifest names another tokeniser."""
    made.one_key(folder)
    manifest = load_manifest(folder)
    assert manifest.tokenizer is not None
    info = msgspec.structs.replace(manifest.tokenizer, **changes)
    save_manifest(folder, msgspec.structs.replace(manifest, tokenizer=info))
    return folder


def test_tokenisers_must_be_one(tmp_path: Path) -> None:
    one, same = tokenised(tmp_path / "one"), tokenised(tmp_path / "same", source="elsewhere.json")
    other, no_eod = tokenised(tmp_path / "other", xxh3_128="22"), tokenised(tmp_path / "no_eod", eod=None)
    headrace.merge([one, same], tmp_path / "a")
    assert load_manifest(tmp_path / "a").tokenizer == load_manifest(one).tokenizer
    with pytest.raises(ConfigError, match=r"tokenizer.json"):
        headrace.merge([one, other], tmp_path / "b")
    assert not (tmp_path / "b").exists()
    report = headrace.merge([one, other], tmp_path / "b", options=CopyOptions(allow_different_tokenizers=True))
    assert load_manifest(tmp_path / "b").tokenizer is None
    assert "the result names no tokeniser" in report.warnings[0]
    report = headrace.merge([one, no_eod], tmp_path / "c")
    tokenizer = load_manifest(tmp_path / "c").tokenizer
    assert tokenizer is not None
    assert (tokenizer.eod, tokenizer.xxh3_128) == (None, "11")
    assert "the same eod token" in report.warnings[0]
    report = headrace.merge([one, pair(tmp_path / "bare", [[[1]]])], tmp_path / "d")
    assert load_manifest(tmp_path / "d").tokenizer is None
    assert "bare does not say which tokeniser" in report.warnings[0]


def test_what_does_not_go_together(tmp_path: Path) -> None:
    small, large = pair(tmp_path / "small", [[[1]]]), pair(tmp_path / "large", [[[2], [70_000]]], "int32")
    two = made.two_keys(tmp_path / "two", "keyed")
    for sources, message in [
        ([small, large], "'text'.*small.*uint16.*large.*int32.*--dtype"),
        ([small, two], "small.*indexed.*two.*keyed.*--format"),
        ([made.two_keys(tmp_path / "pairs", "indexed"), small], "'title', 'body'.*small.*'tokens'"),
        ([small, GOLDEN / "indexed" / "multimodal"], "uint16.*multimodal.*int32"),
        ([large, GOLDEN / "indexed" / "multimodal"], "multimodal.*large.*--drop"),
        ([], "one"),
        ("x", "list"),
    ]:
        with pytest.raises(ConfigError, match=message):
            headrace.merge(sources, tmp_path / "out")
    with pytest.raises(InputError, match=r"'text'.*0.*70000"):
        headrace.merge([small, large], tmp_path / "out", options=CopyOptions(dtype="uint16"))
    with pytest.raises(StoreError, match="nothing"):
        headrace.merge([tmp_path / "nowhere"], tmp_path / "out")
    with pytest.raises(ConfigError, match="sort_by='size'"):
        headrace.merge([small], tmp_path / "out", sort_by="size")  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
    headrace.merge([small, large], tmp_path / "out", options=CopyOptions(dtype="int32"))
    assert documents(tmp_path / "out") == [[1], [2, 70_000]]
    options = CopyOptions(drop_modes=True)
    report = headrace.merge([large, GOLDEN / "indexed" / "multimodal"], tmp_path / "plain", options=options)
    assert "left out" in report.warnings[0]
    assert headrace.stores.IndexedStore(tmp_path / "plain" / "text_document").modes is None


@pytest.mark.parametrize(
    "options", [{"shards": 0}, {"shards": True}, {"shards": "two"}, {"format": "x"}, {"dialect": "x"}]
)
def test_options_that_cannot_be(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        CopyOptions(**options)  # type: ignore[arg-type]


def test_a_flipped_bit_in_a_source_is_noticed(tmp_path: Path) -> None:
    folder = made.one_key(tmp_path / "a")
    for name, at, message in [
        ("text_document.bin", 200, "changed"),
        ("text_document.idx", -480, "changed"),  # a document ends a sequence later
        ("text_document.idx", 200, "damaged"),
    ]:
        whole = (folder / name).read_bytes()
        changed = bytearray(whole)
        changed[at] ^= 1
        (folder / name).write_bytes(changed)
        with pytest.raises(StoreError, match=rf"{name}.*{message}"):
            headrace.merge([folder], tmp_path / "out")
        assert not (tmp_path / "out").exists()
        (folder / name).write_bytes(whole)
    headrace.merge([folder / "text_document"], tmp_path / "out")


def test_a_source_without_a_manifest_is_hashed_all_the_same(tmp_path: Path) -> None:
    source = pair(tmp_path / "a", [[[1, 2]], [[3]]])
    with source.with_suffix(".bin").open("ab") as file:
        file.write(b"trailing")  # Megatron reads such files, and so do we
    report = headrace.merge([source], tmp_path / "out")
    wanted = [headrace.io.file_sum(f"{source}{suffix}") for suffix in (".bin", ".idx")]
    assert [(file.size, file.xxh3_128) for file in report.inputs] == [(one.size, one.xxh3_128) for one in wanted]


def test_where_the_output_goes(tmp_path: Path) -> None:
    source = pair(tmp_path / "in" / "a", [[[1]]])
    out = tmp_path / "new" / "out"
    headrace.merge([source], out)
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    other = pair(tmp_path / "b", [[[2]]])
    with pytest.raises(OutputError, match=r"earlier run.*--overwrite"):
        headrace.merge([other], out)
    headrace.merge([other], out, options=CopyOptions(overwrite=True))
    assert documents(out) == [[2]]
    with pytest.raises(OutputError, match=r"text_document.bin"):
        headrace.merge([out], out, options=CopyOptions(overwrite=True))
    (out / "notes.txt").write_text("mine")
    (out / "headrace.json").write_text("{}")
    headrace.merge([source], out, options=CopyOptions(overwrite=True))
    assert documents(out) == [[1]]
    assert (out / "notes.txt").read_text() == "mine"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(OutputError, match="folder"):
        headrace.merge([source], tmp_path / "full")
    with pytest.raises(OutputError, match=r"a\.bin: cannot use as the output folder: Not a directory"):
        headrace.merge([source], f"{source}.bin")
    (tmp_path / "empty").mkdir()
    headrace.merge([source], tmp_path / "empty")
    assert documents(tmp_path / "empty") == [[1]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.bin", "b.idx", "empty", "full", "in", "new"]


def test_a_file_that_no_manifest_lists_is_not_replaced(tmp_path: Path) -> None:
    source, out, replace = pair(tmp_path / "a", [[[1]]]), tmp_path / "out", CopyOptions(overwrite=True)
    headrace.convert(source, out, format="keyed")
    (out / "text_document.bin").write_text("mine")
    for _ in range(2):
        with pytest.raises(OutputError, match=r"text_document\.bin, which no headrace\.json lists.*move it away"):
            headrace.merge([source], out, options=replace)
        assert (out / "text_document.bin").read_text() == "mine"
        assert documents(out) == [[1]]
    (out / "text_document.bin").unlink()
    headrace.merge([source], out, options=replace)
    assert sorted(path.name for path in out.iterdir()) == ["headrace.json", "text_document.bin", "text_document.idx"]


def test_only_the_output_of_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    source, out, replace = drawn(tmp_path / "a", 1, 40), tmp_path / "out", CopyOptions(overwrite=True)
    headrace.split(source, out, into="8,2")
    headrace.merge([source], out / "web")
    before = files(out)
    for again in (
        lambda: headrace.merge([source], out, options=replace),
        lambda: headrace.split(source, out, into=2, options=replace),
    ):
        with pytest.raises(OutputError, match=r"out: holds web/headrace\.json, of a store that is no output"):
            again()
    assert files(out) == before
    shutil.rmtree(out / "web")
    headrace.merge([source], out, options=replace)  # the parts of a split are the output of an earlier run
    assert sorted(path.name for path in out.iterdir()) == ["headrace.json", "text_document.bin", "text_document.idx"]
    headrace.split(source, out, into=2, options=replace)
    assert sorted(path.name for path in out.iterdir()) == ["part_00000", "part_00001"]


def test_other_dialects_are_read(tmp_path: Path) -> None:
    dialects = GOLDEN / "indexed_dialects"
    wanted = [[1, 2, 3], [4, 5], [], [6]]
    for name in ("tnt-megatron", "aleph-alpha"):
        headrace.merge([dialects / name], tmp_path / name)
        assert documents(tmp_path / name) == documents(dialects / name)
    headrace.merge([dialects / "tnt-fairseq"], tmp_path / "fairseq", options=CopyOptions(dialect="fairseq"))
    assert documents(tmp_path / "fairseq") == wanted
    assert load_manifest(tmp_path / "fairseq").options["copy"]["sources"][0]["dialect"] == "fairseq"
    with pytest.raises(ConfigError, match=r"uint32.*--dtype.*int32"):
        headrace.merge([dialects / "fairseq-uint32"], tmp_path / "out")
    headrace.merge([dialects / "fairseq-uint32"], tmp_path / "out", options=CopyOptions(dtype="int32"))
    assert documents(tmp_path / "out") == wanted
    with pytest.raises(StoreError, match="documents"):
        headrace.merge([dialects / "neox-merged"], tmp_path / "neox")
    with pytest.warns(UserWarning, match="documents"):
        headrace.merge([dialects / "neox-merged"], tmp_path / "neox", options=CopyOptions(documents="sequences"))
    assert len(headrace.open(tmp_path / "neox")) == headrace.open(tmp_path / "neox" / "text_document").num_sequences  # type: ignore[attr-defined]


def test_many_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the documents are cut on the way, the files are the same."""
    sources = [drawn(tmp_path / str(number), number, 50) for number in range(2)]
    headrace.merge(sources, tmp_path / "whole")
    monkeypatch.setattr("headrace.copying.sources.CHUNK_DOCUMENTS", 7)
    monkeypatch.setattr("headrace.copying.sources.CHUNK_TOKENS", 11)
    monkeypatch.setattr("headrace.engine.doing.REPORT_S", 0.0)
    seen = []
    headrace.merge(sources, tmp_path / "cut", on_progress=seen.append)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    copied = [progress.counts.get("documents", 0) for progress in seen]
    assert len(copied) > 14
    assert copied == sorted(copied)
    assert copied[-1] == 100
    assert seen[-1].counts["bytes"] == seen[-1].total_bytes


@pytest.mark.parametrize("name", ["title_document.bin", "body_document.bin"])
def test_a_wrong_write_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What is on the disk is read back: the hash is not that of the bytes that were written."""
    source = made.two_keys(tmp_path / "a", "indexed")
    write = AtomicFile.write

    def flipped(file: AtomicFile, data: bytes) -> None:
        write(file, data)
        if file.path.name == name and len(memoryview(data)):
            os.pwrite(file._fd, b"\7", 0)

    monkeypatch.setattr(AtomicFile, "write", flipped)
    with pytest.raises(OutputError, match=rf"{name}"):
        headrace.merge([source], tmp_path / "new" / "folder" / "out")
    assert [path.name for path in (tmp_path / "new" / "folder" / "out").iterdir()] == [".headrace"]
    monkeypatch.undo()
    headrace.merge([source], tmp_path / "new" / "folder" / "out")
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["out"]


def test_documents_that_get_lost_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are whole, but not of these documents."""
    source = pair(tmp_path / "a", [[[1, 2, 3]], [[4]]])
    real = headrace.copying.formats.SequenceFiles.add

    def shifted(self: object, tokens: object, lengths: np.ndarray, *rest: object) -> None:
        real(self, tokens, lengths[::-1], *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(headrace.copying.formats.SequenceFiles, "add", shifted)
    with pytest.raises(OutputError, match="sources"):
        headrace.merge([source], tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".headrace"]


def test_keys_of_different_numbers_of_documents(tmp_path: Path) -> None:
    with KeyedWriter(tmp_path / "k", dtypes={"a": "uint16", "b": "uint16"}) as writer:
        tokens = {"a": np.arange(3, dtype=np.uint16), "b": np.arange(2, dtype=np.uint16)}
        writer.add_documents(tokens, {"a": np.array([1, 2]), "b": np.array([1, 1])})
        writer.finish()
    meta = tmp_path / "k" / "meta.json"
    meta.write_text(meta.read_text().replace(', "offsets": [0, 1, 2]', ""))
    with pytest.raises(StoreError, match=r"'a'.*2.*'b'"):
        headrace.merge([tmp_path / "k"], tmp_path / "out")


# Copies of the stores of recipes count as the first manifest did; finished files are those of an earlier version.


KINDS: dict[str, tuple[str, list[Any], tuple[str, ...]]] = {
    "sft": (runs.SFT + "output: {position_ids: doc_reset}\n", runs.conversations(30), ("loss_mask",)),
    "dpo": (runs.DPO, runs.pairs(30), ("chosen_mask", "rejected_mask")),
    "grpo": (runs.GRPO + "output: {names: {masks: trained}}\n", runs.groups(30), ("trained",)),
}


@pytest.fixture
def small_run() -> Iterator[None]:
    with faults.small_run():
        yield


def samples(ledger: Ledger) -> SampleLedger:
    assert ledger.samples is not None
    return ledger.samples


@pytest.mark.usefixtures("small_run")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", ["indexed", "keyed", "jsonl"])
@pytest.mark.parametrize("kind", KINDS)
def test_copies_count_as_the_first_manifest_did(tmp_path: Path, kind: str, layout: str) -> None:
    recipe, records, masks = KINDS[kind]
    runs.make_model(tmp_path / "model")
    runs.write_lines(tmp_path / "data" / "a.jsonl", records)
    recipe = recipe.replace("output: {", "output: {format: %s, " % layout)  # noqa: UP031 - braces
    recipe += "" if "output" in recipe else f"output: {{format: {layout}}}\n"
    first = runs.prepare(recipe, tmp_path, tmp_path / "first").ledger
    assert samples(first).supervised > 0

    headrace.convert(tmp_path / "first", tmp_path / "keyed", format="keyed")
    copy = load_manifest(tmp_path / "keyed")
    assert copy.ledger.tokens.kept == first.tokens.kept
    assert {key: one.kept for key, one in samples(copy.ledger).keys.items()} == {
        key: one.kept for key, one in samples(first).keys.items()
    }
    assert samples(copy.ledger).supervised == samples(first).supervised
    assert {key for shard in copy.outputs for key, info in shard.keys.items() if info.mask} == set(masks)

    # Parts, of copies of a copy, each with its own share; and together again.
    headrace.split(tmp_path / "keyed", tmp_path / "parts", into=3)
    parts = [load_manifest(place).ledger for place in sorted((tmp_path / "parts").iterdir()) if place.is_dir()]
    assert len(parts) == 3
    assert sum(part.tokens.kept for part in parts) == first.tokens.kept
    for number, part in enumerate(parts):
        with headrace.open(sorted((tmp_path / "parts").iterdir())[number]) as store:
            trained = sum(int(np.count_nonzero(store.document(at, key))) for at in range(len(store)) for key in masks)
        assert samples(part).supervised == trained
    places = [tmp_path / "first", tmp_path / "keyed"]
    headrace.merge(places, tmp_path / "both", options=CopyOptions(format="indexed"))
    both = load_manifest(tmp_path / "both").ledger
    assert (both.tokens.kept, samples(both).supervised) == (2 * first.tokens.kept, 2 * samples(first).supervised)


EARLIER = Path(__file__).parents[1] / "golden" / "prepared.json"


@pytest.mark.usefixtures("warm_workers")
def test_finished_files_are_those_of_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found, known = prepared_made.made(), json.loads(EARLIER.read_text())
    assert sorted(found) == sorted(known)
    for name, kept in known.items():
        assert found[name] == kept, name
