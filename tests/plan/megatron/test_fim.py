"""Fill in the middle on single samples: against what Megatron-LM itself made, and for what holds always."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from tokenizers.decoders import ByteLevel

import fim_toy
from counts import cases
from fim_toy import EOD, MIDDLE, PAD, PREFIX, SPLIT, SUFFIX
from headrace.errors import ConfigError
from headrace.plan.megatron import FillInTheMiddle, FIMTokens, KeyedDraws, TextCodec, fill_in_the_middle

GOLDEN = Path(__file__).parents[2] / "golden" / "megatron_fim" / "samples.json"


def change(sample: list[int], draws: Any, **options: Any) -> list[int]:
    """What becomes of a sample; the options' tokens are the toy's."""
    split = options.get("fragment_rate") is not None
    fim = FillInTheMiddle(tokens=fim_toy.tokens(split), **options)
    found = fill_in_the_middle(np.array(sample, dtype=np.uint16), fim, draws)
    assert found.dtype == np.int64
    return found.tolist()


def test_what_megatron_itself_made() -> None:
    """The same draws give the same samples, one dataset object's one after another."""
    changed = 0
    golden = json.loads(GOLDEN.read_text())
    for case in golden:
        options = {name: case[name] for name in ("rate", "spm_rate", "fragment_rate", "no_prefix")}
        draws = fim_toy.GeneratorDraws(case["seed"])
        for sample, made in zip(case["samples"], case["made"], strict=True):
            assert change(sample, draws, codec=fim_toy.CODEC, **options) == made
            changed += PREFIX in made
    assert len(golden) == 60
    assert changed > 150


samples = st.lists(st.sampled_from([*range(len(fim_toy.WORDS)), EOD, SPLIT]), min_size=1, max_size=40)
rates = st.sampled_from([0.0, 0.3, 1.0])


@settings(max_examples=cases(15, 3000), deadline=None)
@given(samples, st.integers(0, 2**64 - 1), rates, rates, st.sampled_from([None, 0.0, 0.5, 1.0]))
def test_nothing_is_lost_where_there_is_room(
    sample: list[int], key: int, rate: float, spm_rate: float, fragment_rate: float | None
) -> None:
    """With enough ends of documents behind, which only take room, all tokens are there, with a mark of each kind."""
    options = {"rate": rate, "spm_rate": spm_rate, "fragment_rate": fragment_rate}
    long = [*sample, *[EOD] * (3 * len(sample) + 10)]
    found = change(long, KeyedDraws(key), **options)
    assert len(found) == len(long)
    assert found == change(long, KeyedDraws(key), **options), "a function of the key"
    before, after = Counter(sample), Counter(found)
    for word in range(len(fim_toy.WORDS)):
        assert after[word] == before[word]
    assert after[PREFIX] == after[SUFFIX] == after[MIDDLE]
    assert after[SPLIT] <= before[SPLIT]
    if rate == 0:
        assert found == long
    elif fragment_rate is None:
        assert after[SPLIT] == before[SPLIT]


@settings(max_examples=cases(12, 2000), deadline=None)
@given(samples, st.integers(0, 2**64 - 1), st.booleans(), st.sampled_from([None, fim_toy.CODEC]))
def test_it_can_be_undone(sample: list[int], key: int, spm: bool, codec: TextCodec | None) -> None:
    """Prefix, middle and suffix put together again are the document, for every document of the sample."""
    words = [token for token in sample if token != SPLIT]
    long = [*words, *[EOD] * (5 * len(words) + 10)]
    found = change(long, KeyedDraws(key), rate=1.0, spm_rate=float(spm), codec=codec)
    documents = [part for part in " ".join(map(str, words)).split(str(EOD)) if part.strip()]
    texts = ["".join(fim_toy.WORDS[int(token)] for token in document.split()) for document in documents]
    undone = []
    while found and found[0] == PREFIX:
        end = found.index(EOD) if EOD in found else len(found)
        part, found = found[1:end], found[end + 1 :]
        at, middle = part.index(SUFFIX), part.index(MIDDLE)
        head, suffix, tail = part[:at], part[at + 1 : middle], part[middle + 1 :]
        assert not (spm and head)
        undone.append(fim_toy.decode([token for token in [*head, *tail, *suffix] if token != PAD]))
    assert [text for text in undone if text] == texts


def test_draws_have_their_rates() -> None:
    """Over keys, and over the draws of one key: within four standard deviations; 0 never, 1 always."""
    for rate in (0.0, 0.1, 0.5, 0.9, 1.0):
        across = sum(KeyedDraws(key).chance(rate) for key in range(4000))
        one = KeyedDraws(7)
        along = sum(one.chance(rate) for _ in range(4000))
        slack = 4 * (4000 * rate * (1 - rate)) ** 0.5
        assert abs(across - 4000 * rate) <= slack
        assert abs(along - 4000 * rate) <= slack
    found = np.array([KeyedDraws(key).cuts(4) for key in range(5000)])
    for column in found.T:
        assert np.bincount(column).tolist() == pytest.approx([1000] * 5, abs=120)
    pairs = np.bincount(found[:, 0] * 5 + found[:, 1], minlength=25)
    assert pairs.tolist() == pytest.approx([200] * 25, abs=60), "the two cuts are independent"
    assert KeyedDraws(1).cuts(0) == (0, 0)


@settings(max_examples=cases(12, 300), deadline=None)
@given(st.text(max_size=60), st.integers(0, 2**64 - 1))
def test_a_real_tokeniser_gives_all_characters_back(text: str, key: int) -> None:
    """Byte-level: any cut between characters can be encoded."""
    codec = byte_codec()
    ids = codec.encode(text)
    tokens = FIMTokens(prefix=300, middle=301, suffix=302, pad=303, eod=304)
    sample = np.array([*ids, *[304] * (len(ids) + 5)])
    found = fill_in_the_middle(
        sample, FillInTheMiddle(tokens=tokens, codec=codec, rate=1.0, spm_rate=1.0), KeyedDraws(key)
    )
    assert found[:2].tolist() == [300, 302]
    if ids:
        middle = found.tolist().index(301)
        suffix, rest = found[2:middle].tolist(), found[middle + 1 : found.tolist().index(304)].tolist()
        assert codec.decode(rest + suffix) == text


def byte_codec(**options: Any) -> TextCodec:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevel()
    tokenizer.add_special_tokens(["<s>"])
    begin = [("<s>", tokenizer.token_to_id("<s>"))]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=begin)
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=20)
    # As Transformers holds it.
    holder = SimpleNamespace(backend_tokenizer=tokenizer) if options else tokenizer
    return TextCodec.of(holder, **options)


def test_codec_of_a_tokeniser() -> None:
    """Whole texts, nothing added; special tokens in them stay unless they are to go; another process can have it."""
    codec = byte_codec()
    ids = codec.encode("hello<s>you")
    assert len(ids) == 9
    assert codec.decode(ids) == "hello<s>you"
    without = byte_codec(skip_special_tokens=True)
    assert without.decode(ids) == "helloyou"
    assert len({codec.name, without.name, byte_codec(name="mine").name}) == 3
    again = pickle.loads(pickle.dumps(codec))
    assert again.name == codec.name == byte_codec().name
    assert again.encode("hello") == codec.encode("hello")


MARKS = {"prefix": 1, "middle": 2, "suffix": 3, "pad": 4, "eod": 5}


@pytest.mark.parametrize(
    ("made", "wrong", "named"),
    [
        (FIMTokens, {"prefix": -1}, "'prefix'.*-1"),
        (FIMTokens, {"prefix": 2}, "different"),
        (FIMTokens, {"split": 5}, "different"),
        (FillInTheMiddle, {"rate": 1.5}, r"rate.*1\.5"),
        (FillInTheMiddle, {"spm_rate": -0.1}, r"spm_rate.*-0\.1"),
        (FillInTheMiddle, {"rate": float("nan")}, "rate.*nan"),
        (FillInTheMiddle, {"tokens": FIMTokens(**MARKS, split=6)}, r"tokens\.split.*6.*fragment_rate"),
        (FillInTheMiddle, {"no_prefix": "x"}, "no_prefix.*'x'.*codec"),
        (FillInTheMiddle, {"no_prefix": "", "codec": fim_toy.CODEC}, "empty"),
    ],
)
def test_wrong_tokens_and_options(made: type, wrong: dict[str, Any], named: str) -> None:
    right = MARKS if made is FIMTokens else {"tokens": FIMTokens(**MARKS)}
    with pytest.raises(ConfigError, match=named):
        made(**{**right, **wrong})


def test_without_a_token_that_splits_the_rate_of_fragments_has_no_effect() -> None:
    """Megatron's own tests set both for every dataset."""
    tokens = FIMTokens(**MARKS)
    plain, with_rate = (FillInTheMiddle(tokens=tokens, rate=0.5, fragment_rate=rate) for rate in (None, 1.0))
    assert plain.recipe == with_rate.recipe
    sample = np.arange(100, 140)
    made = [fill_in_the_middle(sample, fim, KeyedDraws(7)).tolist() for fim in (plain, with_rate)]
    assert made[0] == made[1]
