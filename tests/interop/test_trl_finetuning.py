"""From the same records to tokens and labels: a recipe and its store beside the data path of TRL's trainers.

Equal are the ids, and the labels but for these, which are chosen:

* what a template writes behind the end of a turn (ChatML's line feed) TRL trains where it goes by the prompt, not by
  ``{% generation %}``; nobody asks a model to write that, since it has stopped;
* a token across the border of prompt and answer is trained there; here with ``straddle: train``. Where a merge there
  changes tokens before it, which are of the prompt alone, TRL trains these too; here they are never trained;
* ``human`` and ``gpt`` become ``user`` and ``assistant`` here;
* the first token of a record is no label here: nothing predicts it;
* a record without a trained token is an error here, unless a cut did it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy

import headrace
import layouts_made
import masks_made
import recipe_runs
from headrace.preparing import PrepareOptions, prepare
from headrace.samples.recipe import parse_recipe

pytestmark = pytest.mark.interop

COUNT = 24
TEMPLATES = ["chatml-generation", "llama3-generation", "tulu3-generation"]
IGNORED = -100


class Kit:
    """One model's folder, for both."""

    def __init__(self, folder: Path, template: str) -> None:
        import transformers
        import trl

        import datasets

        datasets.disable_progress_bars()
        transformers.logging.set_verbosity_error()
        self.trl, self.transformers, self.datasets = trl, transformers, datasets
        self.folder = folder
        loaded = masks_made.template(template)
        tokens = {"eos_token": "</s>", "pad_token": "<unk>", **loaded.special_tokens}
        (folder / "tokenizer.json").write_bytes(masks_made.tokenizer_json("bytes"))
        (folder / "tokenizer_config.json").write_text(json.dumps({**tokens, "chat_template": loaded.setup.text}))
        made = Tokenizer.from_str(masks_made.tokenizer_json("bytes").decode())
        self.tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=made, chat_template=loaded.setup.text, **tokens
        )

    def model(self) -> Any:
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
        config = self.transformers.LlamaConfig(vocab_size=len(self.tokenizer), **sizes)
        return self.transformers.LlamaForCausalLM(config)

    def trainer(self, records: list[dict[str, Any]], kind: str = "SFT", **options: Any) -> Any:
        """A trainer of TRL with these records."""
        config = getattr(self.trl, f"{kind}Config")(
            output_dir=str(self.folder / "out"), report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
            save_strategy="no", dataloader_pin_memory=False, **{"max_length": None, **options},
        )  # fmt: skip
        return getattr(self.trl, f"{kind}Trainer")(
            model=self.model(),
            args=config,
            processing_class=self.tokenizer,
            train_dataset=self.datasets.Dataset.from_list(records),
            **({"ref_model": self.model()} if kind == "DPO" else {}),
        )

    def store(self, records: list[dict[str, Any]], recipe: str) -> headrace.stores.Store:
        """The same records by a recipe."""
        data = recipe_runs.write_lines(self.folder / "data.jsonl", records)
        recipe += f"\ninputs: {data}\ntokenizer: {self.folder}\n"
        prepare(
            [], self.folder / "store", recipe=parse_recipe(recipe), options=PrepareOptions(workers=1, overwrite=True)
        )
        return headrace.open(self.folder / "store")


@pytest.fixture
def kit(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Kit]:
    """With the template that a test asks for, or ChatML."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # First: without TRL's own `datasets` that name would find a folder of these tests.
        pytest.importorskip("trl.trainer.sft_trainer")
        pytest.importorskip("trl.trainer.dpo_trainer")
        yield Kit(tmp_path, getattr(request, "param", TEMPLATES[0]))


def records_of(layout: str, count: int = COUNT) -> list[dict[str, Any]]:
    return [layouts_made.MADE[layout](number).record for number in range(count)]


def theirs(trainer: Any) -> list[tuple[list[int], list[int]]]:
    return [(row["input_ids"], row["labels"]) for row in trainer.train_dataset]


def ours(store: headrace.stores.Store) -> list[tuple[list[int], list[int]]]:
    dataset = headrace.SFTDataset(store, labels="same")
    items = (dataset[number] for number in range(len(dataset)))
    return [(item["input_ids"].tolist(), item["labels"].tolist()) for item in items]


def without_first(rows: list[tuple[list[int], list[int]]]) -> list[tuple[list[int], list[int]]]:
    return [(ids, [IGNORED, *labels[1:]]) for ids, labels in rows]


@pytest.mark.parametrize("kit", TEMPLATES, indirect=True)
def test_assistant_only_loss(kit: Kit) -> None:
    records = records_of("messages")
    trainer = kit.trainer(records, assistant_only_loss=True)
    assert ours(kit.store(records, "type: sft")) == theirs(trainer)


def test_conversations_of_from_and_value(kit: Kit) -> None:
    """There human and gpt reach the template by these names, and there is no assistant-only loss."""
    records = [{"conversations": record["conversations"]} for record in records_of("conversations")]
    found = ours(kit.store(records, "type: sft"))
    for record in records:
        for message, role in zip(record["conversations"], ("user", "assistant"), strict=True):
            message["from"] = role
    assert [ids for ids, _ in found] == [ids for ids, _ in theirs(kit.trainer(records))]


@pytest.mark.parametrize("mode", ["keep_start", "keep_end"])
def test_cuts(kit: Kit, mode: str) -> None:
    """The same records are left out, too: those of which a cut leaves no label."""
    records = records_of("messages")
    trainer = kit.trainer(records, assistant_only_loss=True, max_length=22, truncation_mode=mode)
    wanted = without_first(theirs(trainer))
    assert ours(kit.store(records, f"type: sft\nlength: {{max_tokens: 22, truncate: {mode}}}")) == wanted
    assert len(wanted) == COUNT if mode == "keep_end" else 0 < len(wanted) < COUNT


def test_text(kit: Kit) -> None:
    records = records_of("text")
    store = kit.store(records, "type: sft\nmask: {on_all_supervised: allow}")
    assert ours(store) == without_first(theirs(kit.trainer(records)))


def test_prompts_and_completions(kit: Kit) -> None:
    records = records_of("completion")
    assert ours(kit.store(records, "type: sft")) == theirs(kit.trainer(records))


def test_a_token_across_the_border(kit: Kit) -> None:
    """``us`` + ``er`` is one token of the whole."""
    records = [{"prompt": f"{number} the us", "completion": "er and"} for number in range(4)]
    wanted = theirs(kit.trainer(records))
    assert ours(kit.store(records, "type: sft\nmask: {straddle: train}")) == wanted
    found = ours(kit.store(records, "type: sft"))
    for (ids, labels), (their_ids, their_labels) in zip(found, wanted, strict=True):
        assert ids == their_ids
        [place] = [place for place, pair in enumerate(zip(labels, their_labels, strict=True)) if pair[0] != pair[1]]
        assert kit.tokenizer.convert_ids_to_tokens(ids[place]) == "Ġuser"
        assert labels[place] == IGNORED


def test_prompts_and_completions_of_messages(kit: Kit) -> None:
    """By the prompt TRL trains all that is behind it; by blocks what we train."""
    records = [
        {"prompt": record["messages"][:-1], "completion": record["messages"][-1:]} for record in records_of("messages")
    ]
    found = ours(kit.store(records, "type: sft"))
    assert found == theirs(kit.trainer(records, assistant_only_loss=True))
    behind = kit.tokenizer.encode("\n")
    assert [(ids, [*labels[:-1], *behind]) for ids, labels in found] == theirs(kit.trainer(records))


@pytest.mark.parametrize("form", ["strings", "messages", "implicit prompt"])
def test_preferences(kit: Kit, form: str) -> None:
    strings = [layouts_made.preference(number).record for number in range(1, COUNT, 2)]
    asked = [layouts_made.ranked_messages(number).record for number in range(COUNT)]
    both = [{side: [*one["messages"], one[side]] for side in ("chosen", "rejected")} for one in asked]
    records = {
        "strings": strings,
        "messages": [
            {"prompt": one["messages"], "chosen": [one["chosen"]], "rejected": [one["rejected"]]} for one in asked
        ],
        "implicit prompt": both,
    }[form]
    store = kit.store(records, "type: dpo")
    behind = 0 if form == "strings" else 1  # the line feed
    rows = list(kit.trainer(records, "DPO").train_dataset)
    assert len(rows) == len(store)
    for number, row in enumerate(rows):
        for side in ("chosen", "rejected"):
            tokens = store.document(number, side).tolist()
            mask = store.document(number, f"{side}_mask").tolist()
            assert tokens == row["prompt_ids"] + row[f"{side}_ids"]
            answer = len(row[f"{side}_ids"])
            assert mask == [0] * len(row["prompt_ids"]) + [1] * (answer - behind) + [0] * behind


def test_its_trainer_takes_a_store_and_has_the_loss_of_our_loop(kit: Kit) -> None:
    """One step over all records, in micro-batches: the same loss, by labels of the whole step."""
    store = kit.store(records_of("messages", 8), "type: sft")
    rows = [{"input_ids": ids, "labels": labels} for ids, labels in ours(store)]
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_steps": 1, "logging_steps": 1}
    trainer = kit.trainer(rows, learning_rate=0.0, **options)
    assert theirs(trainer) == ours(store)
    trainer.train()
    [logged] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    model = kit.model()
    run = headrace.Run(headrace.SFTDataset(store), global_batch_size=8, epochs=1)
    loss = 0.0
    for batch in headrace.Loader(run, micro_batch_size=3):
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        summed = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
        loss += summed.item() / batch["step_supervised_tokens"]
    assert loss == pytest.approx(float(logged), rel=1e-5)
