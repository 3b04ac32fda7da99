"""Which tokens are at the ends where a recipe does not say, BOS that a template leaves out, and the time it sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import headrace
import recipe_runs as runs
import recipes_made
from headrace.cli import main
from headrace.errors import ConfigError, InputError
from headrace.preparing import PrepareOptions, TokenOptions
from headrace.samples.recipe import parse_recipe
from headrace.stores import load_manifest

pytestmark = pytest.mark.usefixtures("small_run")
EOS, BOS = recipes_made.SPECIAL.index("<eos>"), recipes_made.SPECIAL.index("<bos>")
PAIRS = [{"prompt": f"Q{number}", "completion": f"A{number}"} for number in range(12)]
TALKS = [{"messages": [{"role": "user", "content": f"Q{number}"}, recipes_made.YES]} for number in range(12)]
TIMED = "{{ strftime_now('%d.%m.%Y') }}" + recipes_made.TEMPLATE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runs.make_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepare(text: str, records: list[Any], *keys: str) -> tuple[list[list[int]], dict[str, int], list[str]]:
    """Tokens of all documents (of each key), what was noted of them, and the notices of the run."""
    runs.write_lines(Path("data/a.jsonl"), records)
    notices: list[str] = []
    options = PrepareOptions(tokens=TokenOptions(backend="tokenizers"), workers=1, overwrite=True)
    manifest = headrace.prepare([], "out", recipe=parse_recipe(text), options=options, on_notice=notices.append)
    documents = [row for key in keys or ["tokens"] for row in runs.documents(Path("out"), key)]
    return documents, manifest.ledger.samples.notes, notices[1:]


def num_bos() -> int:
    """How many the run has added."""
    return load_manifest("out").ledger.tokens.bos


def configure(**changes: Any) -> None:
    """Another configuration of the tokeniser; None leaves a key out."""
    path = Path("model/tokenizer_config.json")
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "left out"}))


# End of sequence, begin of sequence: the configuration, or the only usual one.


def test_the_only_usual_token_of_the_vocabulary_is_taken_and_said(folder: Path) -> None:
    configure(eos_token="left out", bos_token="left out")
    documents, _, notices = prepare(runs.SFT, PAIRS)
    assert {document[-1] for document in documents} == {EOS}
    [notice] = notices
    assert notice.startswith("'<eos>' ends a sequence: neither the chat template nor tokenizer_config.json names eos")
    assert "`ends: {eos: TOKEN}`" in notice
    documents, _, notices = prepare(runs.SFT + "ends: {bos: always, append_eos: false}\n", PAIRS)
    assert {document[0] for document in documents} == {BOS}
    assert [notice.partition(":")[0] for notice in notices] == ["'<bos>' begins a sequence"]
    # Nothing is said where it is not used: conversations end as their template ends them.
    assert prepare(runs.SFT, TALKS)[2] == []


def test_what_the_configuration_says_comes_first(folder: Path) -> None:
    configure(eos_token="<|end|>")
    documents, _, notices = prepare(runs.SFT, PAIRS)
    assert {document[-1] for document in documents} == {recipes_made.SPECIAL.index("<|end|>")}
    assert notices == []
    # That there is none is said, too.
    configure(eos_token=None)
    with pytest.raises(ConfigError, match="sequence"):
        prepare(runs.SFT, PAIRS)


def test_of_several_usual_ones_none_is_taken(folder: Path) -> None:
    configure(eos_token="left out")
    tokenizer = json.loads(Path("model/tokenizer.json").read_text())
    text = json.dumps(tokenizer).replace("<|start|>", "<|endoftext|>")
    Path("model/tokenizer.json").write_text(text)
    with pytest.raises(ConfigError, match=r"`ends.*TOKEN\}`"):
        prepare(runs.SFT, PAIRS)
    assert {document[-1] for document in prepare(runs.SFT + "ends: {eos: <eos>}\n", PAIRS)[0]} == {EOS}


# A template that writes no BOS where the tokeniser would put one.


def with_bos(way: str) -> None:
    if way == "post-processor":
        Path("model/tokenizer.json").write_bytes(recipes_made.tokenizer_json(around="<bos> $A"))
    else:
        configure(add_bos_token=True)


@pytest.mark.parametrize("way", ["post-processor", "configuration"])
def test_a_missing_bos_is_counted_and_said_once(folder: Path, way: str) -> None:
    assert prepare(runs.SFT, TALKS)[1:] == ({}, [])
    with_bos(way)
    documents, notes, notices = prepare(runs.SFT, TALKS)
    assert documents == runs.made(runs.SFT, TALKS, "tokens")  # nothing is added
    assert notes["missing_bos"] == len(TALKS)
    [notice] = notices
    assert notice.startswith("12 sequences of the first 12 records do not begin with BOS, although the tokeniser")
    assert "`ends: {bos: always}` adds it" in notice


@pytest.mark.parametrize("way", ["post-processor", "configuration"])
def test_a_bos_that_is_there_or_added_is_not_missing(folder: Path, way: str) -> None:
    with_bos(way)
    documents, notes, notices = prepare(runs.SFT + "ends: {bos: always}\n", TALKS)
    assert {document[0] for document in documents} == {BOS}
    assert (notes, notices) == ({}, [])
    runs.make_model(folder / "model", "{{ bos_token }}" + recipes_made.TEMPLATE)
    with_bos(way)
    documents, notes, notices = prepare(runs.SFT, TALKS)
    assert {document[0] for document in documents} == {BOS}
    assert (notes, notices) == ({}, [])


def test_the_policies_of_a_missing_bos(folder: Path) -> None:
    with_bos("post-processor")
    with pytest.raises(InputError, match=rf"BOS.*{BOS}.*`ends"):
        prepare(runs.SFT + "mask: {on_missing_bos: error}\n", TALKS)
    runs.make_model(folder / "model", "{% if 'Q0' in messages[0].content %}{{ bos_token }}{% endif %}" + TIMED)
    with_bos("post-processor")
    assert len(prepare(runs.SFT + "mask: {on_missing_bos: drop}\n", TALKS)[0]) == 1
    assert load_manifest("out").ledger.documents.dropped == {"missing_bos": len(TALKS) - 1}


@pytest.mark.parametrize("kind", ["dpo", "grpo", "prompt"])
def test_other_types_count_the_sequences_that_begin_a_text(folder: Path, kind: str) -> None:
    with_bos("post-processor")
    records = {"dpo": runs.pairs(4), "grpo": runs.groups(4), "prompt": [{"prompt": runs.talk(n)[:1]} for n in range(4)]}
    _, notes, _ = prepare(f"type: {kind}\ninputs: data\ntokenizer: model\n", records[kind], STRINGS[kind][1][0])
    assert notes["missing_bos"] == {"dpo": 8, "grpo": 4, "prompt": 4}[kind]


# Strings, which no template begins.


STRINGS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "seq": ({"text": "a"}, ["tokens"]),
    "sft": ({"prompt": "a", "completion": "b"}, ["tokens"]),
    "dpo": ({"prompt": "a", "chosen": "b", "rejected": "c"}, ["chosen", "rejected"]),
    "prompt": ({"prompt": "a"}, ["prompts"]),
    "grpo": ({"prompt": "a", "responses": ["b", "c"], "rewards": [0, 1]}, ["prompts"]),
    "kto": ({"prompt": "a", "completion": "b", "label": True}, ["tokens"]),
}


@pytest.mark.parametrize("way", ["post-processor", "configuration"])
@pytest.mark.parametrize("kind", STRINGS)
def test_strings_begin_as_the_tokeniser_begins_them(folder: Path, kind: str, way: str) -> None:
    record, keys = STRINGS[kind]
    text = f"type: {'sft' if kind == 'kto' else kind}\ninputs: data\ntokenizer: model\n"

    def begun(more: str = "") -> tuple[list[list[int]], dict[str, int], list[str]]:
        return prepare(text + more, [record] * 3, *keys)

    plain, notes, notices = begun()
    assert (notes, num_bos(), notices) == ({}, 0, [])
    with_bos(way)
    documents, notes, notices = begun()
    assert documents == [[BOS, *row] for row in plain]
    assert (notes, num_bos()) == ({}, len(documents))
    assert notices == ["texts begin with '<bos>', as the tokeniser begins them; `ends: {bos: never}` leaves it out"]
    for more in ("ends: {bos: always}", "ends: {bos: <bos>}"):
        assert begun(more) == (documents, {}, [])
        assert num_bos() == len(documents)
    found, notes, notices = begun("ends: {bos: never}")
    assert (found, notes, num_bos()) == (plain, {"missing_bos": len(documents)}, 0)
    assert [one.partition(" of")[0] for one in notices] == [f"{len(documents)} sequences"]
    with pytest.raises(InputError, match=r"BOS.*1"):
        begun("ends: {bos: never}\nmask: {on_missing_bos: error}")


def test_bos_is_never_trained_and_never_doubled(folder: Path) -> None:
    with_bos("post-processor")
    documents, _, _ = prepare(runs.SFT, [{"prompt": "<bos>Q", "completion": "A"}, {"prompt": "Q", "completion": "A"}])
    assert documents[0] == documents[1]
    assert documents[0].count(BOS) == num_bos() == 1
    assert {row[0] for row in runs.documents(Path("out"), "loss_mask")} == {0}


def test_a_configuration_that_says_no_comes_before_the_post_processor(folder: Path) -> None:
    plain = prepare(runs.SFT, PAIRS)
    with_bos("post-processor")
    configure(add_bos_token=False)
    assert prepare(runs.SFT, PAIRS) == plain


def test_a_tokeniser_may_begin_texts_with_several_tokens(folder: Path) -> None:
    """As GLM does: ``[gMASK]<sop>``."""
    plain, _, _ = prepare(runs.SFT, PAIRS)
    Path("model/tokenizer.json").write_bytes(recipes_made.tokenizer_json(around="<eos> <bos> $A"))
    assert prepare(runs.SFT, PAIRS)[0] == [[EOS, BOS, *row] for row in plain]
    assert prepare(runs.SFT, TALKS)[1] == {"missing_bos": len(TALKS)}
    runs.make_model(folder / "model", "<eos><bos>" + recipes_made.TEMPLATE)
    Path("model/tokenizer.json").write_bytes(recipes_made.tokenizer_json(around="<eos> <bos> $A"))
    assert prepare(runs.SFT, TALKS)[1] == {}


def test_sections_begin_as_other_texts_do(folder: Path) -> None:
    text = "type: sft\nsections: [{field: prompt, action: mask%s}, {field: completion, action: train}]\n"
    text += "inputs: data\ntokenizer: model\n"
    plain, _, _ = prepare(text % "", PAIRS)
    for way in ("configuration", "post-processor"):
        with_bos(way)
        assert prepare(text % "", PAIRS)[:2] == ([[BOS, *row] for row in plain], {})
        left_out = ", add_special_tokens: false"
        assert prepare(text % left_out, PAIRS)[:2] == (plain, {"missing_bos": 12})
        assert prepare(text % left_out + "ends: {bos: always}", PAIRS)[:2] == ([[BOS, *row] for row in plain], {})
        assert prepare(text % "" + "ends: {bos: never}", PAIRS)[:2] == (plain, {"missing_bos": 12})


def test_other_words_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends\.bos.*'alway'.*auto.*always.*never"):
        prepare(runs.SFT + "ends: {bos: alway}\n", PAIRS)


# The time that a template prints.


def test_the_time_is_said_on_the_command_line(folder: Path) -> None:
    runs.make_model(folder / "model", TIMED)
    runs.write_lines(folder / "data" / "a.jsonl", TALKS)
    (folder / "r.yaml").write_text(runs.SFT)
    args = ["prepare", "--recipe", "r.yaml", "-o", "out", "--backend", "tokenizers", "--quiet"]
    result = CliRunner().invoke(main, [*args, "--now", "2025-12-24"])
    assert result.exit_code == 0, result.output
    assert load_manifest("out").options["recipe"]["template"]["now"] == "2025-12-24T00:00:00"
    result = CliRunner().invoke(main, ["render", "r.yaml", "--record", "2", "--now", "2025-12-24T18:30", "--json"])
    assert json.loads(result.stdout)["sequences"][0]["text"].startswith("24.12.2025")
    (folder / "said.yaml").write_text(runs.SFT + "template: {now: 2020-01-01T00:00:00}\n")
    for command, message in (
        ([*args, "--now", "tomorrow"], "--now tomorrow: write a time such as 2026-03-01 or 2026-03-01T23:59"),
        (["render", "said.yaml", "--record", "0", "--now", "2025-12-24"], "said.yaml sets template.now to 2020-01-01"),
        (
            ["prepare", "data", "-o", "o", "--tokenizer", "model", "--now", "2025-12-24"],
            "give --recipe FILE as well",
        ),
    ):
        result = CliRunner().invoke(main, command)
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize("number", [EOS, [EOS, 10**6]])
def test_ends_that_only_the_generation_config_declares(folder: Path, number: Any) -> None:
    """Before it stands a token that also opens messages, so nothing else tells where a turn ends."""
    template = recipes_made.TEMPLATE.replace("<|end|>\n", "<|start|>end<eos>\n")
    configure(eos_token="<bos>", chat_template=template)
    with pytest.raises(InputError, match="special"):
        prepare(runs.SFT, TALKS)
    Path("model/generation_config.json").write_text(json.dumps({"eos_token_id": number}))
    documents, _, _ = prepare(runs.SFT, TALKS)
    masks = runs.documents(Path("out"), "loss_mask")
    assert all(mask[document.index(EOS, -3)] == 1 for document, mask in zip(documents, masks, strict=True))


def test_what_is_chosen_for_records_is_noted_and_said(folder: Path) -> None:
    """An argument of the template, ends that it does not write, and thoughts that its prompt opens."""
    recipe = "type: sft\ntokenizer: model\ntemplate: {path: chat.jinja}\ninputs: {paths: data}"
    chosen = recipes_made.TEMPLATE.replace("assistant\n{%", "assistant\n{{ 'deep' if deep is not defined or deep }}{%")
    Path("chat.jinja").write_text(chosen)
    _, notes, notices = prepare(recipe, TALKS)
    assert notes == {"template argument deep=false": 12}
    assert "12 of the first 12 records are rendered with deep=false" in notices[0]
    assert "`template: {kwargs: {deep: false}}` renders all records so" in notices[0]
    _, notes, notices = prepare(recipe.replace("jinja}", "jinja, kwargs: {deep: false}}"), TALKS)
    assert (notes, notices) == ({}, [])
    Path("chat.jinja").write_text(recipes_made.TEMPLATE.replace("<|end|>", ""))
    Path("model/generation_config.json").write_text(json.dumps({"eos_token_id": [EOS]}))
    documents, notes, notices = prepare(recipe, TALKS)
    assert notes == {"appended_ends": 12}
    assert all(document[-1] == EOS for document in documents)
    assert "get a token that ends them, of generation_config.json" in notices[0]
    Path("chat.jinja").write_text(recipes_made.TEMPLATE.replace("assistant\n{%", "assistant\n<think>{%"))
    _, notes, notices = prepare(recipe, TALKS)
    assert notes == {"opened_thought": 12}
    assert "begin where the template's generation prompt opens a thought" in notices[0]
    with pytest.raises(InputError, match=r"\{on_prompt_mismatch"):
        prepare(recipe + "\nmask: {on_opened_thought: error}", TALKS)
