"""Names of caches: the text that they hash, to the byte."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from counts import cases
from headrace.compat.megatron.caches import (
    CacheDescription,
    GPTFacts,
    describe_blend,
    describe_gpt,
    gpt_facts,
    read_description,
    split_matrix,
)
from headrace.errors import ConfigError, StoreError

GOLDEN = Path(__file__).parents[1] / "golden" / "megatron_cache" / "cache"
DESCRIPTIONS = sorted(GOLDEN.glob("*-description.txt"))
FACTS: dict[str, Any] = {
    "dataset_path": "data/web",
    "num_samples": 25,
    "index_split": "train",
    "random_seed": 1234,
    "sequence_length": 16,
    "split": "60,30,10",
}
TOKENIZER = {"class": "Tüte", "tokenizer_path": ["a", "b"], "n": "1"}


def written(description: CacheDescription, folder: Path) -> str:
    path = folder / description.file_name("description.txt")
    path.write_text(description.text)
    return str(path)


@pytest.mark.parametrize("path", DESCRIPTIONS, ids=lambda path: path.name[:8])
def test_megatrons_own(path: Path) -> None:
    text = path.read_text()
    found = read_description(str(path))
    assert (found.text, found.file_name("description.txt"), found.era) == (text, path.name, "core")
    if found.is_blend:
        members = [CacheDescription(identifiers=each) for each in found.identifiers["datasets"]]
        assert all((GOLDEN / member.file_name("description.txt")).exists() for member in members)
        weights, size = found.identifiers["weights"], found.identifiers["size"]
        made = describe_blend(members, part=found.part, weights=weights, size=size)
    else:
        made = describe_gpt(gpt_facts(found, str(path)), tokenizer=TOKENIZER)
    assert made.text == text


def test_golden_is_there() -> None:
    assert len(DESCRIPTIONS) == 9


@settings(max_examples=cases(12, 2000))
@given(
    st.fixed_dictionaries(
        {
            "dataset_path": st.text(min_size=1),
            "num_samples": st.none() | st.integers(0, 1 << 60),
            "index_split": st.sampled_from(["train", "valid", "test"]),
            "random_seed": st.integers(0, 2**32 - 1),
            "sequence_length": st.integers(1, 1 << 20),
            "split": st.none() | st.sampled_from(["1", "969, 30, 1", "0,0,1", "99,1", ".3 .3 .4"]),
        }
    ),
    st.sampled_from(["core", "core_v0.5", "core_v0.4"]),
    st.dictionaries(st.text(), st.text() | st.lists(st.text()) | st.none()),
)
def test_what_is_described_is_read_back(facts: dict[str, Any], era: Any, tokenizer: dict[str, Any]) -> None:
    made = describe_gpt(GPTFacts(**facts), tokenizer=None if era == "core_v0.4" else tokenizer, era=era)
    blend = describe_blend([made], part=facts["index_split"], weights=[3], size=None)
    with TemporaryDirectory() as folder:
        found = read_description(written(made, Path(folder)))
        assert read_description(written(blend, Path(folder))) == blend
    assert found == made
    assert gpt_facts(found, "") == GPTFacts(**facts)
    # Keys and names are those of the tags core_v0.4.0 to core_v0.6.0, by their source.
    rest = ["random_seed", "sequence_length"]
    rest = ["split", *rest] if era == "core_v0.4" else [*rest, "split", "split_matrix", "tokenizer"]
    path = "path_prefix" if era == "core_v0.4" else "dataset_path"
    assert list(made.identifiers) == ["class", path, "num_samples", "index_split", *rest]
    part = [facts["index_split"]] * (era == "core")
    assert made.stem == "-".join([made.md5, "GPTDataset", *part])
    assert list(blend.identifiers) == ["class", "datasets", *["split" for _ in part], "weights", "size"]


@pytest.mark.parametrize(
    ("split", "matrix"),
    [
        ("0,1,0", "[null, [0.0, 1.0], null]"),
        ("969, 30, 1", "[[0, 0.969], [0.969, 0.999], [0.999, 1.0]]"),
        ("1,1,1", "[[0, 0.3333333333333333], [0.3333333333333333, 0.6666666666666666], [0.6666666666666666, 1.0]]"),
    ],
)
def test_the_split_matrix(split: str, matrix: str) -> None:
    assert json.dumps(split_matrix(split)) == matrix


GOOD = describe_gpt(GPTFacts(**FACTS), tokenizer=TOKENIZER)


def renamed(text: str, kind: str = "GPTDataset", part: str = "-train") -> tuple[str, str]:
    return text, f"{hashlib.md5(text.encode()).hexdigest()}-{kind}{part}-description.txt"


@pytest.mark.parametrize(
    ("text", "name", "named"),
    [
        (GOOD.text, "description.txt", "description"),
        (GOOD.text[:-9], GOOD.file_name("description.txt"), "hashes"),
        (*renamed("{"), "JSON"),
        (*renamed(GOOD.text, "OtherDataset"), "'OtherDataset'"),
        (*renamed("[]"), "'GPTDataset'"),
        (*renamed(GOOD.text, part="-valid"), r"-GPTDataset-train-description\.txt"),
    ],
)
def test_descriptions_that_are_none(tmp_path: Path, text: str, name: str, named: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(StoreError, match=named):
        read_description(str(tmp_path / name))


@pytest.mark.parametrize("change", [{"num_samples": "3"}, {"index_split": "dev"}, {"random_seed": 1.5}])
def test_facts_of_another_type(change: dict[str, Any]) -> None:
    bad = CacheDescription(identifiers={**GOOD.identifiers, **change})
    with pytest.raises(StoreError, match=f"at.*{next(iter(change))}"):
        gpt_facts(bad, "at")
    with pytest.raises(StoreError, match="sequence_length"):
        gpt_facts(CacheDescription(identifiers={**FACTS, "class": "x", "sequence_length": None}), "at")


def test_an_unknown_era() -> None:
    with pytest.raises(ConfigError, match=r"'v1'.*'core'.*'core_v0"):
        describe_gpt(GPTFacts(**FACTS), tokenizer=None, era="v1")  # type: ignore[arg-type]
