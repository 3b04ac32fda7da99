"""Megatron's caches written and read: the golden ones byte for byte, and stale ones refused with what differs."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.compat.megatron import GPTBlend, GPTDataset, export_cache
from headrace.compat.megatron.caches import CacheReading, CacheVerdict, cache_at, check_cache, find_descriptions
from headrace.errors import ConfigError, OutputError, StoreError

GOLDEN = Path(__file__).parents[1] / "golden" / "megatron_cache"
TOKENIZER = {"class": "Tüte", "tokenizer_path": ["a", "b"], "n": "1"}
KEEP = {"drop_last_partial_validation_sequence": False}
TRAIN = "bcb2920e883e4c70d54391dab1f3d247"
"""25 samples of data/web: two epochs, the last one apart."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of data and caches; the paths in them are relative to it."""
    copied = shutil.copytree(GOLDEN, tmp_path / "place")
    monkeypatch.chdir(copied)
    return Path(copied)


def description(md5: str) -> Path:
    [path] = Path("cache").glob(f"{md5}-*-description.txt")
    return path


def files(folder: str | Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def check(**reading: Any) -> dict[str, CacheVerdict]:
    return {path.name[:8]: check_cache(path, CacheReading(**reading)) for path in find_descriptions(Path("cache"))}


def verdict(path: str | Path, **reading: Any) -> CacheVerdict:
    return check_cache(path, CacheReading(**reading))


def refused(path: str | Path, **reading: Any) -> str:
    """What the check says of a cache that it refuses: its first problem, and the cause."""
    found = verdict(path, **reading)
    assert not found.ok
    return f"{found.problems[0]}; {found.cause}" if found.cause else str(found.problems[0])


def dataset(prefix: str = "data/web", **options: Any) -> GPTDataset:
    return GPTDataset(prefix, **{"sequence_length": 16, "num_samples": 25, "split": "60,30,10", **options})


@pytest.mark.usefixtures("place")
def test_ours_are_megatrons_to_the_byte() -> None:
    """All nine caches of megatron-core's builder: a split, a weighted blend, a blend of training data alone."""
    for part, wanted in (("train", 25), ("valid", 4), ("test", None)):
        export_cache(dataset(num_samples=wanted, split_part=part, **KEEP), tokenizer=TOKENIZER, path_to_cache="ours")
    weighted = GPTBlend.of(
        "0.7 data/web 0.3 data/code",
        num_samples=40,
        build=lambda prefix, wanted: dataset(prefix, num_samples=wanted, split="1, 0, 0"),
    )
    made = export_cache(weighted, tokenizer=TOKENIZER, path_to_cache="ours")
    assert [(each.of, each.samples, each.written) for each in made] == [
        ("data/web", 54, True),
        ("data/code", 24, True),
        ("a blend of 2 datasets", 40, True),
    ]
    once = GPTBlend.of(
        ["data/web", "data/code"],
        num_samples=None,
        build=lambda prefix, wanted: dataset(prefix, num_samples=wanted, split="1,0,0"),
    )
    export_cache(once, tokenizer=TOKENIZER, path_to_cache="ours", one_part=True)
    assert files("ours") == files("cache")
    assert not any(each.written for each in export_cache(weighted, tokenizer=TOKENIZER, path_to_cache="cache"))


@pytest.mark.usefixtures("place")
def test_all_are_right_with_the_options_of_the_run() -> None:
    verdicts = check(**KEEP)
    assert len(verdicts) == 9
    assert all(verdict.ok and verdict.is_own_order for verdict in verdicts.values())
    [wrong] = [verdict for verdict in check().values() if not verdict.ok]
    assert (wrong.part, wrong.of) == ("valid", "data/web")
    assert [str(problem).partition("sample_index")[2] for problem in wrong.problems][:1] == [
        ".npy: 7 rows; expected 6: one for each sample, and the end"
    ]
    assert wrong.cause.startswith(
        "it fits add_extra_token_to_sequence=True and drop_last_partial_validation_sequence=F"
    )


def test_b6_data_replaced_at_the_same_path(place: Path) -> None:
    """Megatron reads the new data by the old indices, across the ends of sequences."""
    for suffix in (".bin", ".idx"):
        shutil.copy(f"data/code{suffix}", f"data/web{suffix}")
        later = (place / "cache" / f"{TRAIN}-GPTDataset-train-document_index.npy").stat().st_mtime + 5
        os.utime(f"data/web{suffix}", (later, later))
    assert refused(description(TRAIN)) == (
        f"cache/{TRAIN}-GPTDataset-train-document_index.npy: 14 entries; expected 4 epochs of 4 sequences; it fits no"
        " other options either: it does not belong to these data (data/web, written after it), or it is damaged"
    )
    assert not any(verdict.ok for verdict in check(**KEEP).values() if verdict.of == "data/web")
    assert all(verdict.ok for verdict in check(**KEEP).values() if verdict.of == "data/code")


@pytest.mark.usefixtures("place")
def test_b6_one_sequence_got_longer() -> None:
    """As many sequences and samples as before: only the rows of the sample index tell."""
    with headrace.open("data/web", documents="sequences") as store:
        documents = [np.array(store.document(number)) for number in range(len(store))]
    documents[3] = np.append(documents[3], 1)
    builder = headrace.compat.megatron.IndexedDatasetBuilder("data/web.bin", dtype=np.uint16)
    for tokens in documents:
        builder.add_document(tokens, [len(tokens)])
    builder.finalize("data/web.idx")
    said = refused(description(TRAIN))
    assert re.search(r"sample_index.npy: row \d+: entry \d+ at token \d+; expected entry \d+ at token", said)


@pytest.mark.usefixtures("place")
def test_b6_another_extra_token_has_the_same_name() -> None:
    without = dataset(add_extra_token_to_sequence=False)
    [made] = export_cache(without, tokenizer=TOKENIZER, path_to_cache="other")
    assert Path(made.description).name == description(TRAIN).name
    assert "it fits add_extra_token_to_sequence=False and drop_last" in refused(made.description)
    assert verdict(made.description, add_extra_token_to_sequence=False).samples == len(without)
    with pytest.raises(OutputError, match="another cache of this name exists"):
        export_cache(without, tokenizer=TOKENIZER, path_to_cache="cache")
    assert verdict(description(TRAIN)).is_own_order
    assert export_cache(without, tokenizer=TOKENIZER, path_to_cache="cache", replace=True)[0].written


@pytest.mark.usefixtures("place")
def test_another_whole_order_passes_and_is_named() -> None:
    """Shuffles that the seed does not give, as another NumPy or a fork made them."""
    path = Path(f"cache/{TRAIN}-GPTDataset-train-shuffle_index.npy")
    shuffled = np.load(path)
    shuffled[[0, 1]] = shuffled[[1, 0]]
    np.save(path, shuffled)
    found = verdict(description(TRAIN))
    assert (found.ok, found.is_own_order, found.samples) == (True, False, len(dataset()))


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("suffix", ["document_index.npy", "sample_index.npy", "shuffle_index.npy"])
def test_torn_and_missing_files(suffix: str) -> None:
    path = Path(f"cache/{TRAIN}-GPTDataset-train-{suffix}")
    path.write_bytes(path.read_bytes()[:-3])
    assert f"{suffix}: incomplete" in refused(description(TRAIN))
    path.unlink()
    assert f"{suffix}: missing" in refused(description(TRAIN))
    assert verdict(description(TRAIN)).problems[0].path == str(path)


@pytest.mark.usefixtures("place")
def test_blends_that_do_not_fit() -> None:
    weighted, once = blends()
    member = cache_at(weighted)
    assert member.description.is_blend
    chosen = np.load(member.path("dataset_index.npy"))
    chosen[3] = 7
    np.save(member.path("dataset_index.npy"), chosen)
    assert "dataset_index.npy: entry 3: dataset 7; there are 2 datasets" in refused(weighted)
    # As many samples in another dataset: its own cache is refused first.
    shutil.copy("data/code.bin", "data/web.bin")
    shutil.copy("data/code.idx", "data/web.idx")
    assert "GPTDataset-train-document_index" in refused(once)
    for path in Path("cache").glob("*-GPTDataset-train-description.txt"):
        path.unlink()
    assert "GPTDataset-train-description.txt: cannot be read: No such file" in refused(once)


def blends() -> list[Path]:
    """That by weights, and that of every sample once."""
    found = [path for path in find_descriptions(Path("cache")) if "Blended" in path.name]
    return sorted(found, key=lambda path: '"size": null' in path.read_text())


@pytest.mark.usefixtures("place")
def test_a_blend_of_datasets_whose_caches_were_made_anew() -> None:
    """The data are others, and their own cache is right again: only the lengths tell."""
    for suffix in (".bin", ".idx"):
        shutil.copy(f"data/code{suffix}", f"data/web{suffix}")
    anew = dataset(num_samples=None, split="1,0,0")
    export_cache(anew, tokenizer=TOKENIZER, path_to_cache="cache", one_part=True, replace=True)
    assert "the blend is of datasets with [27, 12] samples; they have [12, 12]" in refused(blends()[1])


@pytest.mark.usefixtures("place")
def test_another_whole_blend_passes_and_is_named() -> None:
    path = blends()[0]
    arrays = [cache_at(path).path(f"{name}.npy") for name in ("dataset_index", "dataset_sample_index")]
    chosen = np.load(arrays[0])
    turn = next(i for i in range(39) if chosen[i] != chosen[i + 1])
    for file in arrays:
        values = np.load(file)
        values[[turn, turn + 1]] = values[[turn + 1, turn]]
        file.unlink()
        np.save(file, values)
    found = verdict(path)
    assert (found.ok, found.is_own_order, found.samples) == (True, False, 40)


def test_moved_data(place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    path = place / description_name()
    assert "data/web" in refused(path)
    assert verdict(path, moved={"other/": "x", "data/": f"{place}/data/"}).samples == 33


def description_name() -> str:
    return f"cache/{TRAIN}-GPTDataset-train-description.txt"


@pytest.mark.usefixtures("place")
def test_beside_the_data() -> None:
    [made] = export_cache(dataset(), tokenizer=TOKENIZER)
    assert made.description == f"data/web/cache/GPTDataset_indices/{TRAIN}-GPTDataset-train-description.txt"
    assert find_descriptions(Path("data/web")) == [Path(made.description)]
    assert verdict(made.description).samples == 33
    blend = GPTBlend([dataset(), dataset("data/code", split="1")], weights=[1, 1], size=20)
    assert [each.of for each in export_cache(blend, tokenizer=TOKENIZER)] == ["data/web", "data/code"]
    old = export_cache(dataset(), tokenizer=None, era="core_v0.4", class_name="Mine", path_to_cache="old")[0]
    assert verdict(old.description).samples == 33
    with pytest.raises(StoreError, match="nothing: no caches found; looked for"):
        find_descriptions(Path("nothing"))


@pytest.mark.usefixtures("place")
def test_what_megatron_has_no_cache_of() -> None:
    with pytest.raises(ConfigError, match="dialect 'neox'"):
        export_cache(dataset(dialect="neox"), tokenizer=TOKENIZER)
    with pytest.raises(ConfigError, match="last_epoch='together'"):
        export_cache(dataset(last_epoch="together"), tokenizer=TOKENIZER)
    with pytest.raises(ConfigError, match="Megatron has caches only for GPTDataset and blends of it"):
        export_cache(headrace.WindowDataset(headrace.open("data/web"), seq_len=8), tokenizer=TOKENIZER)
    store = headrace.open("data/web")
    with pytest.raises(ConfigError, match="Megatron reads sequences"):
        export_cache(dataset(store), tokenizer=TOKENIZER)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Megatron reads single pairs"):
        export_cache(dataset(headrace.open("data/", documents="sequences")), tokenizer=TOKENIZER)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the tokenizer is None and the era 'core'"):
        export_cache(dataset(), tokenizer=None)
    with pytest.raises(ConfigError, match="cannot be written as JSON: "):
        export_cache(dataset(), tokenizer={"x": object()})
    with pytest.raises(ConfigError, match="data of one part only have split='1,0,0', found '60,30,10'"):
        export_cache(dataset(), tokenizer=TOKENIZER, one_part=True)
    parts = GPTBlend([dataset(), dataset(split_part="valid", num_samples=4)])
    with pytest.raises(ConfigError, match="all datasets of a Megatron blend belong to one part, found train, valid"):
        export_cache(parts, tokenizer=TOKENIZER, path_to_cache="x")
    assert not Path("x").exists()
    assert not Path("data/web/cache").exists()
