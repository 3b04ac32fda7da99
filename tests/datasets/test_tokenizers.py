"""Blends of stores whose manifests name different tokenisers are refused; those without a manifest are not compared."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

import corpora
import headrace
from headrace import Blend, ConfigError, WindowDataset
from headrace.compat.megatron import GPTBlend, GPTDataset
from headrace.datasets import FilledDataset
from headrace.stores import IndexedStore, TokenizerInfo, save_manifest
from headrace.testing.shards import vouch_for

ONE, OTHER = "1" * 32, "2" * 32


def store(folder: Path, fingerprint: str, vocab_size: int = 300) -> Path:
    """A store of 100 tokens; with a fingerprint its manifest names a tokeniser."""
    corpora.write(folder / "text_document", [np.arange(100)])
    if fingerprint:
        with IndexedStore(folder / "text_document") as shard:
            manifest = vouch_for(folder, [shard])
        info = TokenizerInfo(source=f"{fingerprint[:2]}/tokenizer.json", xxh3_128=fingerprint, vocab_size=vocab_size)
        save_manifest(folder, msgspec.structs.replace(manifest, tokenizer=info))
    return folder


def windows(folder: Path) -> WindowDataset:
    return WindowDataset(headrace.open(folder), seq_len=5)


def gpt(folder: Path) -> GPTDataset:
    return GPTDataset(folder / "text_document", sequence_length=5, num_samples=8)


def blend(first: Path, second: Path, **options: bool) -> Blend:
    return Blend({"web": windows(first), "code": windows(second)}, weights={"web": 1, "code": 1}, **options)


def test_two_tokenisers_are_refused_and_named(tmp_path: Path) -> None:
    one, other = store(tmp_path / "one", ONE, 300), store(tmp_path / "other", OTHER, 5000)
    message = (
        rf"'web' \({one}\) of 11/tokenizer.json, 300 ids, xxh3 {ONE}, "
        rf"'code' \({other}\) of 22/tokenizer.json, 5,000 ids, xxh3 {OTHER}; .*allow_different_tokenizers=True"
    )
    with pytest.raises(ConfigError, match=message):
        blend(one, other)
    allowed = blend(one, other, allow_different_tokenizers=True)
    # Who blends it once more says so for himself; the leaves are named by their place in the tree.
    with pytest.raises(ConfigError, match=r"'all/web' .*'all/code' "):
        Blend({"all": allowed}, weights={"all": 1})
    assert Blend({"all": allowed}, weights={"all": 1}, allow_different_tokenizers=True).num_samples is None
    # A shard that is opened by its prefix is one that the manifest beside it lists.
    with pytest.raises(ConfigError, match="different tokenisers"):
        blend(one, other / "text_document")


def test_the_same_tokeniser_and_stores_that_say_none(tmp_path: Path) -> None:
    one, same = store(tmp_path / "one", ONE), store(tmp_path / "same", ONE)
    bare, other = store(tmp_path / "bare", ""), store(tmp_path / "other", OTHER)
    blend(one, same)
    blend(one, bare)
    blend(bare, other)
    with pytest.raises(ConfigError, match=rf"'a' \({one}\).*'c' \({other}\)"):
        Blend({"a": windows(one), "b": windows(bare), "c": windows(other)}, weights={"a": 1, "b": 1, "c": 1})
    # With the same hash and another size the tokens that were added differ.
    more = store(tmp_path / "more", ONE, 301)
    with pytest.raises(ConfigError, match=r"300 ids.*301 ids"):
        blend(one, more)
    # A damaged manifest beside a pair is for `check` to find.
    (other / "headrace.json").write_text("{")
    blend(one, other / "text_document")


def test_datasets_within_datasets(tmp_path: Path) -> None:
    one, other = store(tmp_path / "one", ONE), store(tmp_path / "other", OTHER)
    first, second = (FilledDataset(gpt(place), multiple_of=2) for place in (one, other))
    with pytest.raises(ConfigError, match="different tokenisers"):
        Blend({"a": first, "b": second}, weights={"a": 1, "b": 1})


def test_megatrons_blend(tmp_path: Path) -> None:
    words = ["1", str(store(tmp_path / "one", ONE)), "1", str(store(tmp_path / "other", OTHER))]

    def build(prefix: str, num_samples: int | None) -> GPTDataset:
        return GPTDataset(f"{prefix}/text_document", sequence_length=5, num_samples=num_samples)

    with pytest.raises(ConfigError, match=r"'dataset 0' .*'dataset 1' .*allow_different_tokenizers"):
        GPTBlend.of(words, num_samples=8, build=build)
    for blend, wanted in ((words, 8), (words[1::2], None)):
        made = GPTBlend.of(blend, num_samples=wanted, build=build, allow_different_tokenizers=True)
        assert len(made) >= 8
