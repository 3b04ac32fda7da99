"""AstrAI's raw records: tokenised when they are loaded, or when they are read, by the rules of `headrace prepare`.

    dataset_config.json, or a tokeniser alone -> TokenizeTransform -> apply(records) -> JsonlStore.load(transform=...)
    records of preferences and a tokeniser    -> PreferenceProcessor                 -> JsonlStore.load(processor=...)

This is for data that fit into memory. `headrace prepare` does the same once, on all cores, and says what it left out.
"""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.preparing.messages import RecipeSetup
from headrace.preparing.recipes import find_template, find_tokenizer
from headrace.preparing.record_encoder import find_end_names, make_maker
from headrace.samples.maker import MadeDocuments, SampleMaker
from headrace.samples.recipe import Recipe, load_recipe, make_recipe, parse_recipe
from headrace.samples.recipe.recipe import lengths_key

if TYPE_CHECKING:
    from torch import Tensor

CONFIG_NAME: Final = "dataset_config.json"
"""The configuration that AstrAI looks for beside ``*.jsonl``."""

MESSAGES_CONFIG: Final = {
    "input": {"sections": [{"field": "messages", "action": "$role", "template": True}]},
    "mask": {"system": "mask", "user": "mask", "assistant": "train"},
}
"""AstrAI's configuration of a folder that has none, if there is a tokeniser: conversations, of which the assistant's
turns are trained."""

_AT_ONCE = 1024
"""Records that are made into samples together."""


class TokenizeTransform:
    """Tokenises records in memory as a configuration of AstrAI says, for `JsonlStore`.

    Tokens and masks are those of `headrace prepare` with the same configuration. A record that the configuration leaves
    out, for example because nothing in it is trained, is counted in a warning.

    Args:
        config: a configuration as a dict, or an object of AstrAI's ``PipelineConfig``.
        tokenizer_path: the folder of a ``tokenizer.json``, with the chat template if the configuration needs one.

    Raises:
        ConfigError: the configuration or the tokeniser cannot be used.

    Example:
        >>> from pathlib import Path
        >>> from headrace.compat.astrai import TokenizeTransform
        >>> config = {"input": {"sections": [{"field": "text", "action": "train"}]}, "preprocessing": {"min_chars": 0}}
        >>> made = TokenizeTransform(config, "tokenizer.json").apply([{"text": "word1 word2"}])
        >>> [tokens.tolist() for tokens in made["sequence"]]
        [[3, 4]]
    """

    def __init__(self, config: Mapping[str, Any] | Any, tokenizer_path: str | os.PathLike[str]) -> None:
        values = config if isinstance(config, Mapping) else config.to_dict()
        self._use(parse_recipe(json.dumps(values), name="the configuration"), tokenizer_path)

    @classmethod
    def from_config_file(cls, config_path: str | os.PathLike[str]) -> TokenizeTransform:
        """Read a ``dataset_config.json``; its folder holds the tokeniser unless it names one (``tokenizer_path``)."""
        recipe = load_recipe(config_path)
        made = cls.__new__(cls)
        made._use(recipe, None if recipe.tokenizer is not None else Path(config_path).parent)
        return made

    def _use(self, recipe: Recipe, tokenizer: str | os.PathLike[str] | None) -> None:
        self.recipe = recipe
        self._maker = _maker(recipe, tokenizer)

    def apply(self, records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        """Return the tensors of each key, one for each record that is kept.

        Keys that hold lists of sequences, such as the ``responses`` of a group, have a list of tensors for each record.

        Raises:
            InputError: a record is bad, which AstrAI would leave out with a line in its log; or no record is kept.
        """
        made: dict[str, list[Any]] = {}
        dropped: Counter[str] = Counter()
        for begin in range(0, len(records), _AT_ONCE):
            block = self._maker.make(records[begin : begin + _AT_ONCE])
            if block.bad:
                bad = block.bad[0]
                raise InputError(f"record {begin + bad.record}: {bad.message}")
            dropped.update(record.reason for record in block.dropped)
            for key, rows in _rows(self._maker, block).items():
                made.setdefault(key, []).extend(rows)
        if dropped:
            reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(dropped.items()))
            found = f"{dropped.total()} of {len(records)} records are left out: {reasons} (see docs/recipes.md)"
            if dropped.total() == len(records):
                raise InputError(found)
            warnings.warn(found, stacklevel=2)
        if self.recipe.output.position_ids == "continuous":
            _count_on(made["position_ids"])
        return {key: [_tensors(row) for row in rows] for key, rows in made.items()}


class PreferenceProcessor:
    """Makes the tensors of one preference record, for ``JsonlStore.load(processor=...)``.

    A record has ``prompt``, or ``input`` as in AstrAI's older data, and ``chosen`` and ``rejected``: texts or messages.

    Args:
        tokenizer_path: the folder of a ``tokenizer.json`` with a chat template.
        max_len: tokens at which each answer is cut.

    Raises:
        ConfigError: the tokeniser cannot be used, or ``max_len`` is below 1.
    """

    def __init__(self, tokenizer_path: str | os.PathLike[str], max_len: int = 2048) -> None:
        length = {"max_tokens": max_len, "truncate": "keep_start"}
        inputs = {"paths": "records", "layout": "preference"}
        recipe = {"type": "dpo", "strings": "chat", "inputs": inputs, "length": length, "ends": {"append_eos": False}}
        self._maker = _maker(make_recipe(recipe), tokenizer_path)

    def __call__(self, record: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return ``chosen``, ``rejected`` int32 and ``chosen_mask``, ``rejected_mask`` bool, one value a token.

        Raises:
            InputError: the record is not such a pair, or nothing in it is trained. It is a ValueError.
        """
        known = {key: value for key, value in record.items() if key in ("prompt", "chosen", "rejected")}
        if "prompt" not in known and "input" in record:
            known["prompt"] = record["input"]
        block = self._maker.make([known])
        for refused in block.bad:
            raise InputError(f"the record is not a pair of answers: {refused.message}")
        for dropped in block.dropped:
            raise InputError(f"the record cannot be trained on: {dropped.reason}")
        rows = {key: _tensors(found[0]) for key, found in _rows(self._maker, block).items()}
        return {key: row.bool() if key.endswith("_mask") else row.int() for key, row in rows.items()}


def _maker(recipe: Recipe, tokenizer: str | os.PathLike[str] | None) -> SampleMaker:
    loaded, folder = find_tokenizer(recipe, tokenizer)
    recipe, template = find_template(recipe, folder, {})
    making = RecipeSetup(
        recipe=msgspec.json.encode(recipe),
        sources=(),
        template=None if template is None else msgspec.json.encode(template),
        special_tokens=find_end_names(loaded, folder, template).tokens,
        before_text=loaded.before_text,
    )
    return make_maker(making, loaded.json, source=0)


def _rows(maker: SampleMaker, made: MadeDocuments) -> dict[str, list[Any]]:
    """The arrays of each key by document; a list of arrays where the key holds a list of sequences."""
    rows: dict[str, list[Any]] = {}
    for name, (values, lengths) in made.arrays.items():
        rows[name] = _cut(values, lengths)
    names = {key.name: key.stored for key in maker.keys}
    for key in maker.keys:
        of_list = names.get(lengths_key(key.parallel_to or key.name))
        if key.kind in ("ids", "mask") and of_list is not None:
            pairs = zip(rows[key.stored], rows[of_list], strict=True)
            rows[key.stored] = [_cut(row, lengths) for row, lengths in pairs]
    for key in maker.keys:
        if key.kind == "lengths":
            del rows[key.stored]
    return rows


def _cut(values: NDArray[Any], lengths: NDArray[np.int64]) -> list[NDArray[Any]]:
    """The parts of these lengths; none if there are no lengths."""
    return np.split(values, np.cumsum(lengths)[:-1])[: len(lengths)]


def _count_on(positions: list[NDArray[Any]]) -> None:
    """Let the positions of each record go on where those of the record before it end."""
    begin = 0
    for number, row in enumerate(positions):
        positions[number] = row + begin
        begin += len(row)


def _tensors(row: Any) -> Any:
    import torch

    return [torch.from_numpy(part.copy()) for part in row] if isinstance(row, list) else torch.from_numpy(row.copy())
