"""What of stored tokens is shown: texts, stretches and roles, and pieces that tile; pictures in terminals."""

from __future__ import annotations

import io
import re
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image
from tokenizers import Tokenizer

import media_made
import previews_made
from counts import cases
from headrace.inspect.figures import LINE_END, safe_lines, safe_text
from headrace.inspect.rendering import kept_tokens
from headrace.inspect.store_checks import Tiling, kept_range
from headrace.inspect.terminal import blocks, drawer
from headrace.inspect.token_texts import ByteTexts, DecodedTexts, IdTexts, open_texts, roles_of, runs, stretches
from headrace.plan.packing import OverLong, Packing, PackItems, plan_packs
from recipes_made import tokenizer_json

BYTES = Tokenizer.from_str(tokenizer_json().decode())
TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\\"), max_size=12)


def unescaped(text: str) -> bytes:
    """The bytes of a text in which some are written out."""
    return re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes.fromhex(found[1].decode()), text.encode())


@given(TEXTS, st.data())
@settings(max_examples=cases(16, 80))
def test_no_byte_is_lost_whatever_is_trained(text: str, data: st.DataObject) -> None:
    ids = np.array(BYTES.encode(text).ids, np.int64)
    mask = np.array(data.draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids))), np.uint8)
    found = stretches(open_texts(BYTES), ids, mask=mask)
    assert [number for stretch in found for number in stretch.ids] == ids.tolist()
    assert [stretch.is_trained for stretch in found for _ in stretch.ids] == (mask == 1).tolist()
    assert all(len(stretch.texts) == len(stretch.ids) for stretch in found)
    assert b"".join(unescaped(stretch.text) for stretch in found) == text.encode()
    assert [stretch.begin for stretch in found] == [0, *(stretch.end for stretch in found)][: len(found)]
    if mask.all():
        assert "".join(stretch.text for stretch in found) == text


def test_a_character_of_several_tokens() -> None:
    ids = np.array(BYTES.encode("a😀").ids)
    (whole,) = stretches(open_texts(BYTES), ids, mask=np.ones(5))
    assert whole.texts == ("a", "😀", "", "", "")
    parts = stretches(open_texts(BYTES), ids, mask=np.array([0, 0, 0, 1, 1]))
    assert [part.texts for part in parts] == [("a", "\\xf0", "\\x9f"), ("\\x98", "\\x80")]
    # A document may be cut in the middle of one, and bytes may be no text at all.
    assert [part.text for part in stretches(open_texts(BYTES), ids[:3])] == ["a\\xf0\\x9f"]
    assert [part.texts for part in stretches(open_texts(BYTES), ids[[2, 0]])] == [("\\x9f", "a")]


def test_ids_without_a_token() -> None:
    (found,) = stretches(open_texts(BYTES), np.array([-1, 70_000, 1 << 40]))
    assert found.text == "<no token -1><no token 70000><no token 1099511627776>"
    assert stretches(open_texts(BYTES), np.zeros(0, np.int64)) == ()
    (numbers,) = stretches(IdTexts(), np.array([3, 70_000]))
    assert numbers.text == "3 70000 "


@given(st.lists(st.sampled_from(["a", "b", " ", "é", "😀", "\n"]), max_size=10).map("".join))
@settings(max_examples=cases(12, 60))
def test_tokenisers_that_are_not_byte_level(text: str) -> None:
    tokenizer = previews_made.fallback()
    vocabulary = open_texts(tokenizer)
    assert isinstance(vocabulary, DecodedTexts)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert "".join(group.text for group in vocabulary.groups(ids)) == tokenizer.decode(ids, skip_special_tokens=False)


def test_a_byte_fallback_that_is_parted() -> None:
    vocabulary = open_texts(previews_made.fallback())
    ids = np.array(previews_made.fallback().encode("a é").ids)
    assert [part.text for part in stretches(vocabulary, ids)] == ["a é"]
    mask = np.zeros(len(ids), np.uint8)
    mask[-1] = 1
    assert [part.text for part in stretches(vocabulary, ids, mask=mask)][-1] == "<0xA9>"
    special = stretches(vocabulary, np.array([258 + 1, 1, 999]))
    assert [part.text for part in special] == ["a", "</s>", "<no token 999>"]
    assert [part.is_special for part in special] == [False, True, False]


def roles(tokens: list[str], text: str) -> list[str]:
    tokenizer = Tokenizer.from_str(tokenizer_json().decode())
    tokenizer.add_special_tokens(tokens)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    vocabulary = ByteTexts(tokenizer)
    found = roles_of(vocabulary, ids, vocabulary.groups(ids))
    return [found[begin] for begin, _ in runs(found)]


@pytest.mark.parametrize(
    ("tokens", "text", "expected"),
    [
        (["<|im_start|>"], "<|im_start|>user\nHi\n<|im_start|>assistant\n", ["user", "assistant"]),
        (["<|user|>", "<|assistant|>"], "x<|user|>Hi<|assistant|>user", ["", "user", "assistant"]),
        (["<|sh|>", "<|eh|>"], "<|sh|>system<|eh|>\n\nuser\n<|sh|>user<|eh|>", ["system", "user"]),
        (["[INST]", "[/INST]"], "<bos>[INST] Hi[/INST] Yes<eos>", ["", "user", "assistant"]),
        (["<start_of_turn>", "<end_of_turn>"], "<start_of_turn>model\nuser\n<end_of_turn>\n", ["model"]),
        (["<|USER_TOKEN|>", "<|end_of_user|>", "</user>"], "<|USER_TOKEN|>a<|end_of_user|></user>b", ["user"]),
        (["<|user|>", "</assistant>"], "<|user|>Hi</assistant>", ["user"]),
        (["<|tool_call|>"], "<|tool_call|>tools are fine\n<eos>user is not a header", [""]),
        ([], "user: Hi\nassistant: Yes", [""]),
    ],
)
def test_roles(tokens: list[str], text: str, expected: list[str]) -> None:
    assert roles(tokens, text) == expected


def test_positions_part_segments() -> None:
    found = stretches(IdTexts(), np.array([5, 6, 7, 8]), positions=np.array([3, 4, 0, 1]))
    assert [(part.begin, part.position, part.ids) for part in found] == [(0, 3, (5, 6)), (2, 0, (7, 8))]


@given(st.text(max_size=30))
@settings(max_examples=cases(15, 150))
def test_text_is_harmless(text: str) -> None:
    safe = safe_text(text)
    assert all(character.isprintable() or character in "\u200c\u200d\u3000" for character in safe)
    lines = safe_lines(text)
    assert len(lines) == text.count("\n") + 1
    assert all(line.endswith(LINE_END) for line in lines[:-1])
    assert not any("\n" in line or "\x1b" in line for line in lines)
    if text.isprintable():
        assert safe == text


def test_what_is_written_out() -> None:
    assert safe_text("\x1b[2J\x07\r\t\u202e\ue000\U000e0001") == "\\x1b[2J\\x07\\r\\t\\u202e\\ue000\\U000e0001"


@given(st.lists(st.integers(0, 3), max_size=12), st.data())
@settings(max_examples=cases(15, 150))
def test_stored_tokens_are_found(values: list[int], data: st.DataObject) -> None:
    whole = np.array(values, np.uint32)
    first, second, third, fourth = sorted(data.draw(st.lists(st.integers(0, len(values)), min_size=4, max_size=4)))
    before = data.draw(st.lists(st.just(9), max_size=2))
    is_one = data.draw(st.booleans())
    middle = whole[first:fourth] if is_one else np.concatenate([whole[:second], whole[third:]])
    after = data.draw(st.lists(st.just(8), max_size=2)) if is_one else []
    stored = np.array([*before, *middle.tolist(), *after], np.uint16)
    found = kept_tokens(whole, stored, from_end=data.draw(st.booleans()))
    assert found is not None
    assert [*found.before, *whole[found.is_kept].tolist(), *found.after] == stored.tolist()


def test_which_of_several_places() -> None:
    whole, part = np.array([1, 2, 1, 2]), np.array([1, 2])
    for from_end, expected in ((False, [True, True, False, False]), (True, [False, False, True, True])):
        found = kept_tokens(whole, part, from_end=from_end)
        assert found is not None
        assert found.is_kept.tolist() == expected
    assert kept_tokens(whole, np.array([7, 7, 7, 7, 7]), from_end=False) is None
    # 2^24 as bytes is 1 with its bytes moved; values are compared, not bytes.
    assert kept_tokens(np.array([0, 1 << 24, 0]), np.array([5, 5, 5, 1, 5, 5, 5]), from_end=False) is None


# Pictures in terminals: half blocks to the colour.


SIZES = st.tuples(st.integers(1, 700), st.integers(1, 700))


def picture(size: tuple[int, int] = (600, 400)) -> Any:
    return Image.fromarray(media_made.pixels(size[1], size[0]))


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize("environment", [{"TERM": "xterm-kitty"}, {}])
def test_when_pictures_are_drawn(environment: dict[str, str]) -> None:
    assert drawer(None, Stream(True), environment) is not None
    assert drawer(None, Stream(False), environment) is None
    assert drawer(None, Stream(True), {**environment, "NO_COLOR": "1"}) is None
    assert drawer(None, Stream(True), {"TERM": "dumb"}) is None
    assert drawer("none", Stream(True), environment) is None
    draw = drawer("blocks", Stream(False), environment)
    assert draw is not None
    assert "▀" in draw(picture((40, 20)))


@given(SIZES, st.booleans())
@settings(max_examples=cases(10, 500), deadline=None)
def test_blocks_are_a_rectangle(size: tuple[int, int], has_all_colours: bool) -> None:
    lines = blocks(picture(size), has_all_colours=has_all_colours).split("\n")
    assert 1 <= len(lines) <= 24
    widths = {len(re.sub("\x1b\\[[0-9;]*m", "", line)) for line in lines}
    assert len(widths) == 1
    assert 1 <= widths.pop() - 6 <= 48
    assert all(line.endswith("\x1b[0m") for line in lines)
    colours = re.findall(r"\x1b\[38;5;(\d+);48;5;(\d+)m", "".join(lines))
    assert bool(colours) != has_all_colours
    assert all(16 <= int(number) <= 255 for pair in colours for number in pair)


def test_colours_of_blocks() -> None:
    pixels = np.zeros((2, 1, 3), np.uint8)
    pixels[0, 0] = [255, 128, 0]
    image = Image.fromarray(pixels)
    assert blocks(image, has_all_colours=True) == "      \x1b[38;2;255;128;0;48;2;0;0;0m▀\x1b[0m"
    assert blocks(image, has_all_colours=False) == f"      \x1b[38;5;{16 + 36 * 5 + 6 * 2};48;5;16m▀\x1b[0m"
    white = Image.fromarray(np.full((2, 1, 3), 255, np.uint8))
    assert "38;5;231;48;5;231" in blocks(white, has_all_colours=False)


# Pieces tile a document, or it is noticed.


Piece = tuple[int, int]


def is_wrong(pieces: list[Piece], begin: int, end: int) -> bool:
    tiling = Tiling(3)
    none = np.zeros(len(pieces), dtype=np.int64)
    begins = np.array([piece[0] for piece in pieces], dtype=np.int64)
    lengths = np.array([piece[1] - piece[0] for piece in pieces], dtype=np.int64)
    tiling.add(PackItems(none, none + 1, begins, lengths, none, none != 0))
    return bool(tiling.is_wrong(1, np.array([begin]), np.array([end]))[0])


@settings(max_examples=cases(20, 2000))
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), max_size=5), st.integers(0, 6), st.integers(0, 12))
def test_against_counting_each_token(drawn: list[Piece], begin: int, length: int) -> None:
    pieces = [(first, first + size) for first, size in drawn]
    seen = [token for first, end in pieces for token in range(first, end)]
    expected = sorted(seen) != list(range(begin, begin + length))
    assert is_wrong(pieces, begin, begin + length) == expected


@settings(max_examples=cases(12, 500))
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.randoms())
def test_pieces_in_any_order(sizes: list[int], random: np.random.Generator) -> None:
    ends = np.cumsum(sizes).tolist()
    pieces = list(zip([0, *ends], ends, strict=False))
    random.shuffle(pieces)  # type: ignore[arg-type]
    assert not is_wrong(pieces, 0, ends[-1])
    assert is_wrong(pieces[1:], 0, ends[-1])
    assert is_wrong([*pieces, pieces[0]], 0, ends[-1])


@pytest.mark.parametrize("over_long", [one for one in get_args(OverLong) if one != "error"])
def test_what_is_kept_is_what_the_plan_packs(over_long: OverLong) -> None:
    lengths = np.array([0, 3, 8, 9, 16, 30])
    plan = plan_packs(lengths, Packing(seq_len=8, over_long=over_long))
    begins, ends = kept_range(lengths, plan.packing)
    items = plan.items(np.arange(len(plan)))
    assert np.bincount(items.documents, items.lengths, len(lengths)).tolist() == (ends - begins).tolist()
    for document in np.flatnonzero(ends > begins):
        assert items.begins[items.documents == document].min() == begins[document]
