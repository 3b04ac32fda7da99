"""Small tokenisers of all families, trained on the spot, and texts of many scripts."""

from __future__ import annotations

import itertools
import json
import random
import sysconfig
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from headrace.preparing.backends import comparison
from headrace.preparing.backends.reference import EncodedTexts, SpecialPolicy, TokenizersBackend
from headrace.samples.tokenizer import TokenizerFile

EOD = "<|endoftext|>"

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PROSE = (
    "It's the end of the world as we know it, and they've said so 12,345 times.\n"
    "Der Fluß fließt über die Brücke, größer als zuvor; niemand weiß warum.\n"
    "Быстрая коричневая лиса прыгает через ленивую собаку.\n"
    "敏捷的棕色狐狸跳过懒狗。\n素早い茶色の狐がのろまな犬を飛び越える。\n"
    "다람쥐 헌 쳇바퀴에 타고파.\nנחש בצל פתאום מצא גבעה\nصِف خَلقَ خَودِ كَمِثلِ الشَمسِ\n"
    "तेज भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है।\n😀 👨‍👩‍👧 🇩🇪 e\u0301te\u0301 été\n\n\n  indented\n\ttabbed  twice\n"
)


class RememberedReference(TokenizersBackend):
    """The reference tokeniser, which encodes a text once a session: those of the probe are most of a proof's cost."""

    _known: ClassVar[dict[tuple[bytes, str, tuple[str, ...]], EncodedTexts]] = {}

    def __init__(self, file: TokenizerFile, special: SpecialPolicy) -> None:
        super().__init__(file, special)
        self._loaded_with = file.content, special

    def encode(self, texts: list[str]) -> EncodedTexts:
        key = (*self._loaded_with, tuple(texts))
        if key not in self._known:
            self._known[key] = super().encode(texts)
            for array in self._known[key]:
                array.setflags(write=False)
        return self._known[key]


class Odd:
    """The reference tokeniser, but for what a test does to it."""

    name = "fastokens"
    version = "0"

    def __init__(self, file: TokenizerFile, change: Callable[[list[str], EncodedTexts], EncodedTexts]) -> None:
        self._reference = RememberedReference(file, "encode")
        self._change = change

    def encode(self, texts: list[str]) -> EncodedTexts:
        return self._change(texts, self._reference.encode(texts))


class Family:
    """What tests of the backends use, in one fixture (a conftest cannot be imported)."""

    eod = EOD
    odd = Odd

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts
        self._made: dict[str, bytes] = {}

    def make(self, name: str, added: list[AddedToken] | None = None) -> bytes:
        """The ``tokenizer.json`` of a family, with a few special tokens or with those given."""
        if name not in self._made:
            self._made[name] = _TRAINED[name](self.texts).to_str().encode()
        if added is None:
            added = [AddedToken(EOD, special=True, normalized=False), AddedToken("<|im_start|>", special=True)]
        tokenizer = Tokenizer.from_str(self._made[name].decode())
        for token in added:
            tokenizer.add_special_tokens([token]) if token.special else tokenizer.add_tokens([token])
        return tokenizer.to_str().encode()

    def change(self, content: bytes, changer: Callable[[dict[str, Any]], None]) -> bytes:
        """The same with something else in its JSON."""
        changed = json.loads(content)
        changer(changed)
        return json.dumps(changed).encode()

    def documents(self, count: int, seed: int = 1) -> list[str]:
        """Pieces of the texts, of 0 to 1,000 characters."""
        rng = random.Random(seed)
        found = []
        for _ in range(count):
            text = rng.choice(self.texts)
            begin = rng.randrange(max(len(text), 1))
            found.append(text[begin : begin + rng.randrange(1000)])
        return found


def _train(tokenizer: Tokenizer, trainer: Any, texts: list[str]) -> Tokenizer:
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _byte_level(texts: list[str], pattern: str | None, normalizer: Any = None, **options: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**options))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    return _train(tokenizer, trainer, texts)


def _metaspace(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return _train(tokenizer, trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>"], show_progress=False), texts)


def _llama2(texts: list[str]) -> Tokenizer:
    """As Llama 2: a space before each text, nothing splits it, characters out of the vocabulary become bytes."""
    made = json.loads(_metaspace(texts).to_str())
    vocabulary = made["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    made["model"] |= {"byte_fallback": True, "fuse_unk": True}
    made["normalizer"] = json.loads(
        '{"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},'
        ' {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}'
    )
    made["pre_tokenizer"] = None
    return Tokenizer.from_str(json.dumps(made))


def _wordpiece(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=["[UNK]", "[CLS]"], show_progress=False)
    return _train(tokenizer, trainer, texts)


def _unigram(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=600, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    return _train(tokenizer, trainer, texts)


_TRAINED: dict[str, Callable[[list[str]], Tokenizer]] = {
    "gpt2": lambda texts: _byte_level(texts, None),
    "cl100k": lambda texts: _byte_level(texts, CL100K),
    "o200k": lambda texts: _byte_level(texts, O200K),
    "llama3": lambda texts: _byte_level(texts, CL100K, ignore_merges=True),
    "qwen2": lambda texts: _byte_level(texts, QWEN2, normalizers.NFC()),
    "llama2": _llama2,
    "metaspace": _metaspace,
    "wordpiece": _wordpiece,
    "unigram": _unigram,
}


@pytest.fixture(autouse=True)
def nothing_kept(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test makes its own probes."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path_factory.getbasetemp() / f"cache-{uuid.uuid4().hex}"))


@pytest.fixture(scope="module", autouse=True)
def proofs() -> Iterator[None]:
    """Here each is made; only what the reference tokeniser says is remembered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "TokenizersBackend", RememberedReference)
        yield


@pytest.fixture(scope="session")
def family() -> Family:
    folder = Path(sysconfig.get_path("stdlib"))
    sources = [path.read_text("utf-8", "replace")[:8000] for path in sorted(folder.glob("*.py"))[:16]]
    return Family([*sources, *itertools.repeat(PROSE, 8)])
