"""The peers that `sft.py` measures, each in a separate process.

    python benchmarks/sft_peers.py --one trl|datasets talks.jsonl TOKENIZER_FOLDER OUTPUT

Both read the JSONL with `datasets`, render with the template of the folder, and keep ids and assistants' masks as Arrow
files. `trl` is the data preparation of TRL's ``SFTTrainer``, with ``assistant_only_loss``. `datasets` passes whole
batches to ``apply_chat_template``, which TRL does not do. The time without imports and without loading the tokeniser is
printed as JSON. The results are then written to ``OUTPUT.npz``, unless ``OUTPUT`` is ``-``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import numpy as np
from transformers import AutoTokenizer

import datasets


def trl(data: Any, tokenizer: Any) -> Any:
    """Return a dataset with the columns ``input_ids`` and ``labels``."""
    from trl.trainer.sft_trainer import SFTTrainer

    arguments = types.SimpleNamespace(
        assistant_only_loss=True,
        dataset_num_proc=None,
        dataset_text_field="text",
        max_length=None,
        shuffle_dataset=False,
    )
    trainer: Any = types.SimpleNamespace(
        _tokenizer=tokenizer, chat_template=tokenizer.chat_template, completion_only_loss=False
    )
    return SFTTrainer._prepare_dataset(trainer, data, tokenizer, arguments, False, None, "train")


def batched(data: Any, tokenizer: Any) -> Any:
    """Return a dataset with the columns ``input_ids`` and ``assistant_masks``."""

    def encode(batch: dict[str, Any]) -> dict[str, Any]:
        made = tokenizer.apply_chat_template(
            batch["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        return {name: made[name] for name in ("input_ids", "assistant_masks")}

    return data.map(encode, batched=True, remove_columns=data.column_names)


def write(made: Any, output: str) -> None:
    """Write ids, masks and lengths, for the comparison."""
    rows = made["input_ids"]
    if "labels" in made.column_names:
        masks = [np.array(row) != -100 for row in made["labels"]]
    else:
        masks = [np.array(row) == 1 for row in made["assistant_masks"]]
    np.savez(
        f"{output}.npz",
        ids=np.concatenate([np.array(row, np.int64) for row in rows]),
        mask=np.concatenate(masks),
        lengths=np.array([len(row) for row in rows]),
    )


def main() -> None:
    _, _, engine, source, folder, output = sys.argv
    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    make = {"trl": trl, "datasets": batched}[engine]
    with tempfile.TemporaryDirectory(dir=None if output == "-" else Path(output).parent) as cache:

        def run(path: str, name: str) -> Any:
            data = datasets.load_dataset("json", data_files=path, split="train", cache_dir=f"{cache}/{name}")
            return make(data, tokenizer)

        if output != "-":
            # Imports and look-ups on the first use do not count as work for a conversation.
            first = Path(cache, "first.jsonl")
            with Path(source).open("rb") as file:
                first.write_bytes(b"".join(file.readline() for _ in range(8)))
            run(str(first), "first")
        begin, cpu = time.perf_counter(), time.process_time()
        made = run(source, "whole")
        usage = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - begin}
        if output != "-":
            write(made, output)
    print(json.dumps(usage))


if __name__ == "__main__":
    main()
