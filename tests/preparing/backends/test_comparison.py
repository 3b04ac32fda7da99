"""Where a fast library and the reference tokeniser part is found and named."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.preparing.backends import comparison
from headrace.preparing.backends.backend import EncodedTexts, RefusedTextError
from headrace.preparing.backends.comparison import compare
from headrace.preparing.backends.libraries import load_backend
from headrace.preparing.backends.reference import TokenizersBackend


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch_characters", [1 << 20, 3_000, 1])
def test_compare_names_the_first_text_that_differs(
    batch_characters: int, family: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "BATCH_CHARACTERS", batch_characters)
    content = family.make("gpt2")
    texts = family.documents(500)
    reference = TokenizersBackend(content, "encode")
    assert compare(load_backend("gigatoken", content, "encode"), reference, texts) is None

    def change(batch: list[str], encoded: EncodedTexts) -> EncodedTexts:
        ids = encoded.ids.copy()
        for index, text in enumerate(batch):
            if text in (texts[321], texts[400]) and text:
                ids[int(encoded.lengths[:index].sum())] += 1
        return EncodedTexts(ids, encoded.lengths)

    found = compare(family.odd(content, change), reference, texts)
    assert found is not None
    assert found.index == 321
    assert found.message.startswith(f"token 0 of a text of {len(texts[321])} characters, near ")


def test_compare_goes_on_behind_a_text_that_both_refuse(family: Any) -> None:
    reference = TokenizersBackend(family.make("gpt2"), "encode")

    class Refusing:
        name, version = "refusing", "0"

        def __init__(self, refused: str, changed: str = "?") -> None:
            self.refused, self.changed = refused, changed

        def encode(self, texts: list[str]) -> EncodedTexts:
            if self.refused in texts:
                raise RefusedTextError("not this one", texts.index(self.refused))
            return reference.encode([text + "." if text == self.changed else text for text in texts])

    texts = ["a", "b", "c", "d"]
    assert compare(Refusing("b"), Refusing("b"), texts) is None
    found = compare(Refusing("b", "c"), Refusing("b"), texts)
    assert found is not None
    assert found.index == 2
    found = compare(Refusing("b"), Refusing("c"), texts)
    assert found is not None
    assert (found.index, found.message) == (1, "refusing fails on 'b', which refusing takes: not this one")
    found = compare(Refusing("?"), Refusing("c"), texts)
    assert found is not None
    assert (found.index, found.message) == (2, "refusing refuses 'c', which refusing takes: not this one")
