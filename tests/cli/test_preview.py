"""``headrace preview``: lines and pages of each kind of store, and what it refuses; data is never markup."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from rich.cells import cell_len

import previews_made
import recipe_runs
from counts import cases
from headrace.inspect import Preview, Rendering, Style, lines as shown_lines, preview, token_preview as choosing
from headrace.inspect.blocks import ShownSequence, Stretch
from headrace.inspect.description import spread_blocks
from headrace.inspect.figures import size
from headrace.inspect.shown import RecordPart, ShownSample
from headrace.plan.packing import Packing
from headrace.preparing import prepare
from headrace.samples.recipe import parse_recipe
from headrace.ui import page_of
from page_checked import CheckedPage
from recipes_made import USER, YES
from token_shards import write_keyed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return previews_made.model(tmp_path_factory.mktemp("made") / "model")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("stores")
    return {kind: previews_made.store(folder / kind, kind) for kind in previews_made.RECORDS}


def lines(run: Any, *arguments: Any) -> list[str]:
    result = run("preview", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    text: str = result.stdout
    return text.splitlines()


def test_a_conversation(run: Any, stores: dict[str, Path], model: Path) -> None:
    assert lines(run, stores["sft"], "--tokenizer", model, "--documents", "2,0") == [
        f"{stores['sft']}: sft, keyed, keys tokens, loss_mask",
        f"2 of 3 documents, tokeniser {model}",
        "[[trained]] not trained",
        "",
        "document 2: 15 tokens, 4 trained (26.7%)",
        "       user       0  <|start|>user⏎",
        "                     Hi<|end|>⏎",
        "  assistant       7  <|start|>assistant⏎",
        "                     [[Yes<|end|>]]⏎",
        "",
        "document 0: 107 tokens, 28 trained (26.2%)",
        "       user       0  <|start|>user⏎",
        r"""                     Grüße 😀\tok </div><script>alert(1)</script> "&amp;" \x1b[31mred\u202eabc<|end|>⏎""",
        "  assistant      75  <|start|>assistant⏎",
        "                     [[Ja, 敏捷的 😀!⏎]]",
        "                     [[Na klar<|end|>]]⏎",
    ]


def test_a_pair(run: Any, stores: dict[str, Path], model: Path) -> None:
    found = lines(run, stores["dpo"], "--tokenizer", model)
    assert found[4] == "document 0: 29 tokens, 7 trained (24.1%)"
    assert found[5] == "  -- chosen: 15 tokens, 4 trained (26.7%)"
    assert found[9] == "                     [[Yes<|end|>]]⏎"
    assert found[10] == "  -- rejected: 14 tokens, 3 trained (21.4%)"
    alone = lines(run, stores["dpo"], "--tokenizer", model, "--key", "rejected")
    assert alone[0].endswith("sft, keyed, keys rejected, rejected_mask")
    assert alone[5:] == found[11:]


def test_a_group_and_a_prompt(run: Any, stores: dict[str, Path], model: Path) -> None:
    found = lines(run, stores["grpo"], "--tokenizer", model)
    assert found[4:6] == ["document 0: 17 tokens, 7 trained (41.2%)", "  -- prompt: 10 tokens"]
    assert found[9:] == [
        "  -- response 0: 4 tokens, 4 trained (100.0%), reward 1",
        "       0  [[Yes<|end|>]]",
        "  -- response 1: 3 tokens, 3 trained (100.0%), reward -0.5",
        "       0  [[No<|end|>]]",
    ]
    assert lines(run, stores["prompt"], "--tokenizer", model)[-2:] == [
        '  data_source: "made"',
        r'  reward_model: {"ground_truth": "\u001b[2J"}',
    ]


def test_packs(run: Any, of_json: Any, stores: dict[str, Path], model: Path) -> None:
    found = lines(run, stores["sft"], "--tokenizer", model, "--pack", 48, "--documents", 1)
    assert found[1] == f"1 of 2 packs of 48 tokens, tokeniser {model}"
    assert found[4:6] == [
        "pack 1: 2 documents, 44 tokens, 11 trained (25.0%), 4 pads, fill 91.67%",
        "  -- document 1, tokens 0 to 29, 7 trained (24.1%)",
    ]
    assert found[14] == "  -- document 2, tokens 0 to 15, 4 trained (26.7%)"
    assert found[15].split()[:2] == ["user", "0"]  # positions begin anew
    assert found[-1] == "  4 pads"
    split = of_json("preview", stores["sft"], "--ids", "--pack", "48,strategy=best_fit_split")
    assert (split["num_samples"], split["figures"]["documents"]) == (4, 3)


def test_packs_hold_the_tokens_of_their_documents(stores: dict[str, Path]) -> None:
    packing = Packing(seq_len=32, strategy="wrapped")
    documents = preview(stores["sft"], ids=True)
    packs = preview(stores["sft"], ids=True, packing=packing, num=10)
    pieces: dict[int, list[tuple[int, bool | None]]] = {}
    for pack in packs.samples:
        assert pack.num_tokens + pack.num_pads == 32
        for piece in pack.sequences:
            assert piece.begin == len(pieces.get(piece.document, []))
            tokens = [(number, part.is_trained) for part in piece.stretches for number in part.ids]
            pieces.setdefault(piece.document, []).extend(tokens)
    for document in documents.samples:
        whole = [(number, part.is_trained) for part in document.sequences[0].stretches for number in part.ids]
        assert pieces[document.number] == whole


def test_long_documents_are_shown_from_their_begin(run: Any, stores: dict[str, Path], model: Path) -> None:
    found = lines(run, stores["sft"], "--tokenizer", model, "--documents", "1-2", "--limit", 10)
    assert found[4] == "document 1: 29 tokens, 7 trained (24.1%)"
    assert found[8] == "  ... 19 tokens more"
    packed = lines(run, stores["sft"], "--tokenizer", model, "--pack", 48, "--documents", 1, "--limit", 30)
    assert packed[-2:] == ["  ... 14 tokens more", "  4 pads"]


def test_colours(stores: dict[str, Path], model: Path) -> None:
    found = preview(stores["sft"], samples=(2,), tokenizer=str(model))
    assert list(shown_lines(found.shown(), Style(True)))[-1] == (
        "                     \x1b[30;42mYes\x1b[0m\x1b[30;42m<|end|>\x1b[0m⏎"
    )
    hard = preview(stores["sft"], samples=(0,), tokenizer=str(model))
    text = "".join(shown_lines(hard.shown(), Style(True)))
    for ours in ("30;42", "0", "2", "1"):
        text = text.replace(f"\x1b[{ours}m", "")
    assert text.isprintable()  # nothing of the data reaches the terminal as it is


def test_when_there_are_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Style.of(Terminal()).is_coloured
    assert not Style.of(io.StringIO()).is_coloured
    monkeypatch.setenv("TERM", "dumb")
    assert not Style.of(Terminal()).is_coloured
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Style.of(Terminal()).is_coloured


def test_how_much_is_trained(stores: dict[str, Path], tmp_path: Path) -> None:
    def trained(path: Path) -> list[tuple[int, int, bool]]:
        figures = preview(path, ids=True, with_figures=True).figures
        assert figures is not None
        found = [key.supervised for key in figures.keys if key.supervised is not None]
        return [(one.trained, one.tokens, one.is_all) for one in found]

    assert trained(stores["sft"]) == [(39, 151, True)]
    uncounted = previews_made.store(tmp_path / "uncounted", "sft", recipe="output: {num_supervised: false}")
    assert trained(uncounted) == [(39, 151, True)]
    assert trained(stores["dpo"]) == [(4, 15, True), (3, 14, True)]
    assert trained(stores["grpo"]) == [(7, 7, True)]
    assert trained(stores["seq"]) == []


def test_the_tokeniser_of_the_manifest(run: Any, prepared: Path, tokenizer: Path, model: Path, store: Path) -> None:
    found = lines(run, prepared, "--documents", 3)
    assert found[1] == f"1 of 100 documents, tokeniser {tokenizer}"
    assert found[-1].startswith("       0  w0 w1 w2 w0 w1 w2")
    assert found[-1].endswith("<|endoftext|>")
    other = run("preview", prepared, "--tokenizer", model)
    assert (other.exit_code, "--any-tokenizer" in other.stderr) == (2, True)
    assert f"was made with another tokeniser: {tokenizer}" in other.stderr
    forced = run("preview", prepared, "--tokenizer", model, "--any-tokenizer")
    assert "note: read with a tokeniser that the store was not made with" in forced.stdout
    assert run("preview", prepared, "--tokenizer", model / "none").exit_code == 2
    assert run("preview", prepared, "--any-tokenizer").exit_code == 2


def test_a_tokeniser_that_is_gone_or_changed(run: Any, tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    own = tmp_path / "tokenizer.json"
    own.write_bytes(tokenizer.read_bytes())
    assert run("prepare", corpus, "-o", tmp_path / "store", "--tokenizer", own, "--workers", 1, "-q").exit_code == 0
    own.write_text(tokenizer.read_text().replace("w97", "v97"))
    changed = run("preview", tmp_path / "store")
    assert (changed.exit_code, "it has changed since" in changed.stderr) == (4, True)
    own.unlink()
    gone = run("preview", tmp_path / "store")
    assert (gone.exit_code, "its tokeniser cannot be read" in gone.stderr) == (4, True)
    assert "       0  2 3 " in run("preview", tmp_path / "store", "--ids", "--documents", 2).stdout
    assert run("preview", tmp_path / "store", "--tokenizer", tokenizer).exit_code == 0


def test_without_a_mask_and_a_tokeniser(run: Any, stores: dict[str, Path], model: Path) -> None:
    shown = lines(run, stores["seq"], "--tokenizer", model, "--num", 1)
    assert shown[2:] == ["", "document 0: 11 tokens", "       0  Hello⏎", "          world"]
    found = lines(run, stores["seq"])
    assert found[2] == "note: the store does not name its tokeniser, so ids are shown: give --tokenizer"


def test_borders_by_positions_and_labels(run: Any, tmp_path: Path, model: Path) -> None:
    write_keyed(
        tmp_path / "flat",
        sequence=("int32", [np.array([20, 21, 22, 23, 24])]),
        position_ids=("int32", [np.array([0, 1, 2, 0, 1])]),
    )
    assert lines(run, tmp_path / "flat", "--ids")[-2:] == ["       0  20 21 22 ", "       0  23 24 "]
    wanted = previews_made.store(
        tmp_path / "kto",
        "sft",
        [{"prompt": "a", "completion": "b", "label": False}],
    )
    assert "document 0: 3 tokens, 2 trained (66.7%), not wanted" in lines(run, wanted, "--tokenizer", model)


FOUR = ("uint16", [np.array([4])])


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (
            {"tokens": ("uint16", [np.array([4, 5, 6])]), "loss_mask": ("uint8", [np.array([1, 0])])},
            "document 0 has 3 tokens, but 2 values of 'loss_mask'",
        ),
        (
            {"prompts": FOUR, "responses": ("uint16", [np.array([5, 6])]), "response_lengths": FOUR},
            "1 responses of 4 tokens together",
        ),
        ({"prompts": FOUR, "columns": ("uint8", [np.array([91])])}, "JSON object"),
    ],
)
def test_stores_that_do_not_fit(run: Any, tmp_path: Path, keys: dict[str, Any], named: str) -> None:
    write_keyed(tmp_path / "store", **keys)
    result = run("preview", tmp_path / "store", "--ids")
    assert (result.exit_code, named in result.stderr) == (4, True), result.stderr


def test_pairs_are_not_packed(run: Any, stores: dict[str, Path]) -> None:
    packed = run("preview", stores["dpo"], "--pack", 48, "--ids")
    assert (packed.exit_code, "--key chosen" in packed.stderr) == (2, True)
    assert run("preview", stores["dpo"], "--pack", 48, "--ids", "--key", "chosen").exit_code == 0


def test_an_empty_document(run: Any, tmp_path: Path) -> None:
    write_keyed(tmp_path / "store", tokens=("uint16", [np.array([], np.uint16), np.array([7])]))
    found = lines(run, tmp_path / "store", "--ids")
    assert found[2:] == ["", "document 0: 0 tokens", "", "document 1: 1 token", "       0  7 "]


def test_text_wraps_at_the_width_with_a_hanging_indent(stores: dict[str, Path], model: Path) -> None:
    found = preview(stores["sft"], samples=(0,), tokenizer=str(model))
    whole = list(shown_lines(found.shown(), Style(is_coloured=False)))
    wrapped = list(shown_lines(found.shown(), Style(is_coloured=False, width=48)))
    text = [line for line in wrapped[4:] if line.strip()]
    assert max(map(cell_len, text[1:])) <= 48 < max(map(cell_len, whole[5:]))
    # Nothing is lost or added but the breaks, and what goes on stands further to the right than what begins.
    margin = whole[6].index("Gr")
    joined: list[str] = []
    for line in wrapped[5:]:
        if line.startswith(" " * margin + "  "):
            joined[-1] += line[margin + 2 :]
        else:
            joined.append(line)
    assert [line.replace("]][[", "") for line in joined] == whole[5:]


@pytest.mark.parametrize("width", [1, 20, 27, 1000])
def test_any_width_ends(stores: dict[str, Path], model: Path, width: int) -> None:
    found = preview(stores["sft"], tokenizer=str(model))
    for is_coloured in (False, True):
        assert list(shown_lines(found.shown(), Style(is_coloured=is_coloured, width=width)))


def test_which_are_shown(run: Any, of_json: Any, tmp_path: Path) -> None:
    lengths = [3, 9, 1, 7, 7, 0, 5]
    trained = [1, 0, 1, 7, 2, 0, 4]
    folder = tmp_path / "store"
    tokens = [np.arange(length, dtype=np.int32) for length in lengths]
    masks = [(row < number).astype(np.int32) for row, number in zip(tokens, trained, strict=True)]
    write_keyed(folder, tokens=("int32", tokens), loss_mask=("int32", masks))

    def shown(*options: Any) -> list[int]:
        found = of_json("preview", folder, "--ids", "--num", 4, *options)
        return [sample["number"] for sample in found["samples"]]

    assert shown("--order", "longest") == [1, 3, 4, 6]
    assert shown("--order", "least_trained") == [1, 4, 0, 6]
    by_chance = shown("--order", "random", "--seed", 5)
    assert by_chance == shown("--order", "random", "--seed", 5) != shown("--order", "random", "--seed", 6)
    assert len(set(by_chance)) == 4
    assert "chosen: the longest" in run("preview", folder, "--ids", "--order", "longest").stdout


def test_large_stores_are_looked_at_in_part(monkeypatch: pytest.MonkeyPatch, stores: dict[str, Path]) -> None:
    blocks = spread_blocks(1 << 40, 1 << 24)
    assert sum(end - begin for begin, end in blocks) == 1 << 24
    assert "16,777,216 of 1,099,511,627,776 documents, in blocks" in choosing.among(1 << 40, 1 << 24)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(blocks))
    assert (spread_blocks(5, 8), choosing.among(5, 8)) == ([(0, 5)], "")


def test_sources_and_what_is_left_out(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe_runs.make_model(tmp_path / "model")
    records = [{"messages": [USER, YES]}, {"messages": [USER]}, {"messages": 7}, {"messages": [USER, YES]}]
    Path("chat.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    recipe = parse_recipe(
        "type: sft\ninputs: {paths: chat.jsonl, layout: messages}\ntokenizer: model\n"
        "mask: {on_no_supervised: drop}\nerrors: {on_error: skip}"
    )
    prepare([], "store", recipe=recipe)
    run("preview", "store", "--html", "page.html")
    text = run("preview", "store").stdout
    assert "document 0: " in text
    assert ", from chat.jsonl, line 1" in text
    assert ", from chat.jsonl, line 4" in text
    dropped = "  1 document dropped: bad\n  1 document dropped: no_supervised\n"
    assert f"left out\n{dropped}  bad record: chat.jsonl, line 3: messages is the number 7" in text
    page = Path("page.html").read_text()
    assert "from chat.jsonl, line 4" in page
    assert "bad record: chat.jsonl, line 3" in page
    assert "by &#39;loss_mask&#39;" in page


def checked(text: str) -> CheckedPage:
    assert text.startswith('<!doctype html>\n<html lang="en">')
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:\"" in text
    assert not any(mark in text.lower() for mark in ("<script", "http:", "https:", "@import", "url(", "\x1b"))
    return CheckedPage(text)


@pytest.mark.parametrize("kind", list(previews_made.RECORDS))
def test_every_kind(tmp_path: Path, kind: str) -> None:
    path = previews_made.store(tmp_path / "store", kind)
    model = str(previews_made.model(tmp_path / "model"))
    found = preview(path, tokenizer=model, with_figures=True)
    checker = checked(page_of(found))
    said = "".join(checker.texts["i"])
    for sample in found.samples:
        for sequence in sample.sequences:
            for stretch in sequence.stretches:
                if stretch.text.isprintable():
                    assert stretch.text in said
    trained = sum(bool(part.is_trained) for one in found.samples for row in one.sequences for part in row.stretches)
    has_mask = kind in ("sft", "dpo", "grpo")
    assert checker.num_trained == trained + has_mask, "the legend has one, too"
    figures = found.figures
    assert figures is not None
    assert str(figures.tokens) in checker.texts["dd"]
    bars = [bar for key in figures.keys for bar in key.histogram]
    drawn = checker.texts["title"][1:]
    assert [text.split("documents: ")[1].split(",")[0] for text in drawn] == [str(bar.documents) for bar in bars]


def test_a_page_of_packs(tmp_path: Path) -> None:
    path = previews_made.store(tmp_path / "store", "sft")
    packing = Packing(seq_len=48, over_long="truncate_right")
    checker = checked(page_of(preview(path, ids=True, packing=packing, with_figures=True)))
    assert "4 pads" in checker.texts["p"]


def test_what_a_user_writes_is_text(tmp_path: Path) -> None:
    path = previews_made.store(tmp_path / "<b>", "sft")
    model = previews_made.model(tmp_path / "model")
    text = page_of(preview(path, tokenizer=str(model), limit=200))
    checker = checked(text)
    assert "<script>alert(1)</script>" in "".join(checker.texts["i"])
    assert "\\x1b[31mred\\u202eabc" in "".join(checker.texts["i"])
    assert str(path) in checker.texts["h1"]


@given(st.text(max_size=40))
@example("</i></span></pre></h3><script>alert(1)</script>")
@example('" onload="alert(1)')
@settings(max_examples=cases(12, 60))
def test_any_text(text: str) -> None:
    stretch = Stretch(begin=0, position=0, ids=(1,), texts=(text,), role=text, is_trained=True)
    sequence = ShownSequence(name=text, document=0, num_tokens=3, stretches=(stretch,))
    part = RecordPart(name=text, messages=[{"role": text, "content": text, text: [text]}], tools=[text], rendered=text)
    words = ("recipe", "input", "place", "layout", "layout_why", "template", "reason", "message")
    rendering = Rendering(
        type="sft",
        record=0,
        source={text: text},
        parts=(part,),
        columns={text: text},
        outcome="bad",
        sequences=(),
        **dict.fromkeys(words, text),
    )
    rendered = checked(page_of(rendering))
    names = ("path", "kind", "format", "tokenizer", "note", "chosen_by")
    sample = ShownSample(number=0, sequences=(sequence,), columns={text: text})
    shown = Preview(
        **dict.fromkeys(names, text), keys=(text,), num_documents=1, num_samples=1, samples=(sample,), left_out=(text,)
    )
    checker = checked(page_of(shown))
    if text.isprintable() and text:
        assert checker.texts["i"] == checker.texts["b"] == [text]
        assert checker.texts["h1"] == [text]
        assert "\n" + text in rendered.texts["pre"]


def test_the_command_writes_it(run: Any, tmp_path: Path) -> None:
    path = previews_made.store(tmp_path / "store", "sft")
    target = tmp_path / "page.html"
    result = run("preview", path, "--ids", "--html", target)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{target}: {size(target.stat().st_size)}\n"
    checked(target.read_text(encoding="utf-8"))
    assert run("preview", path, "--ids", "--html", target, "--json").stdout.startswith("{")
    assert run("preview", path, "--ids", "--html", tmp_path / "no" / "page.html").exit_code == 6


def test_pages_of_records(run: Any, tmp_path: Path) -> None:
    recipe = previews_made.recipe(tmp_path, "sft")
    target = tmp_path / "page.html"
    assert run("render", recipe, "--record", 0, "--html", target).exit_code == 0
    checker = checked(target.read_text(encoding="utf-8"))
    assert "after the end of the turn" in checker.texts["td"]
    assert "<script>alert(1)</script>" in "".join(checker.texts["pre"])
