"""Names of caches: the text that they hash, to the byte."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_the_text() -> None:
    """Key by key as megatron-core 0.16.1 writes it."""
    made = describe_gpt(GPTFacts(**{**FACTS, "num_samples": None, "split": None}), tokenizer={"class": "é"})
    text = (
        '{\n    "class": "GPTDataset",\n    "dataset_path": "data/web",\n    "num_samples": null,\n'
        '    "index_split": "train",\n    "random_seed": 1234,\n    "sequence_length": 16,\n    "split": null,\n'
        '    "split_matrix": null,\n    "tokenizer": {\n        "class": "\\u00e9"\n    }\n}'
    )
    assert made.text == text
    assert made.file_name("x.npy") == f"{hashlib.md5(text.encode()).hexdigest()}-GPTDataset-train-x.npy"


def test_older_eras(tmp_path: Path) -> None:
    """The keys and names of the tags core_v0.4.0 to core_v0.6.0, by their source."""
    old = describe_gpt(GPTFacts(**FACTS), tokenizer=None, era="core_v0.4")
    assert list(old.identifiers) == [
        *("class", "path_prefix", "num_samples", "index_split", "split", "random_seed", "sequence_length")
    ]
    assert old.file_name("description.txt") == f"{old.md5}-GPTDataset-description.txt"
    middle = describe_gpt(GPTFacts(**FACTS), tokenizer=TOKENIZER, era="core_v0.5")
    assert middle.text == describe_gpt(GPTFacts(**FACTS), tokenizer=TOKENIZER).text
    assert middle.stem == f"{middle.md5}-GPTDataset"
    for each in (old, middle):
        blend = describe_blend([each, each], part="train", weights=[0.5, 0.5], size=9)
        assert list(blend.identifiers) == ["class", "datasets", "weights", "size"]
        for made in (each, blend):
            assert read_description(written(made, tmp_path)) == made
    assert gpt_facts(old, "") == gpt_facts(middle, "") == GPTFacts(**FACTS)


@settings(max_examples=cases(24, 2000))
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


@pytest.mark.parametrize(
    ("split", "matrix"),
    [
        ("1,0,0", "[[0, 1.0], null, null]"),
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
    ("text", "name", "message"),
    [
        (GOOD.text, "description.txt", "this is not the description of a cache"),
        (GOOD.text[:-9], GOOD.file_name("description.txt"), "incomplete or changed: its name hashes another text"),
        (*renamed("{"), "not valid JSON"),
        (*renamed(GOOD.text, "OtherDataset"), "does not describe the class 'OtherDataset'"),
        (*renamed("[]"), "does not describe the class 'GPTDataset'"),
        (*renamed(GOOD.text, part="-valid"), "by its content, its name should be .*-GPTDataset-train-description.txt"),
    ],
)
def test_descriptions_that_are_none(tmp_path: Path, text: str, name: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(StoreError, match=message):
        read_description(str(tmp_path / name))


@pytest.mark.parametrize("change", [{"num_samples": "3"}, {"index_split": "dev"}, {"random_seed": 1.5}])
def test_facts_of_another_type(change: dict[str, Any]) -> None:
    bad = CacheDescription(identifiers={**GOOD.identifiers, **change})
    with pytest.raises(StoreError, match=f"at.*{next(iter(change))}"):
        gpt_facts(bad, "at")
    with pytest.raises(StoreError, match="sequence_length"):
        gpt_facts(CacheDescription(identifiers={**FACTS, "class": "x", "sequence_length": None}), "at")


def test_an_unknown_era() -> None:
    with pytest.raises(ConfigError, match="the era is 'v1'; allowed are 'core', 'core_v0"):
        describe_gpt(GPTFacts(**FACTS), tokenizer=None, era="v1")  # type: ignore[arg-type]
