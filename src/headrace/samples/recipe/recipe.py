"""The structs of a recipe: which records are read, and how they are rendered, masked, cut and stored under which keys.

    type: sft                       # seq | sft | dpo | grpo | prompt
    inputs: [data/chat.jsonl]
    tokenizer: model/
    template: chatml                # or leave it out: that of the tokeniser's folder
    mask: {turns: last}
    length: {max_tokens: 4096, truncate: keep_last_turns}
    output: {format: indexed}

`load_recipe` reads a recipe from YAML or JSON, and from AstrAI's configurations. These structs are the only place of
the defaults. `Section` and `Source` describe samples field by field, as AstrAI's configurations do.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from headrace.config import NotNegative, Positive
from headrace.errors import ConfigError
from headrace.plan.packing.options import Packing
from headrace.samples.conversation import Completion, Conversation, Group, Preference, Prompt, Text
from headrace.samples.layouts import InputSpec, Sample
from headrace.samples.masking.options import MaskOptions
from headrace.samples.masking.truncation import OverLong

Action = Literal["train", "mask"]
SectionAction = Literal["train", "mask", "$role", "value"]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a sequence that one field holds. The texts of all sections are encoded together, as one text."""

    field: str

    action: SectionAction
    """``train`` or ``mask`` applies to the whole field. ``$role`` applies the entry of ``role_actions`` for each
    message's role. ``value`` says that the field holds numbers, not text.
    """

    template: bool = False
    """Whether the field is a list of messages, which the chat template renders as one conversation."""

    add_special_tokens: bool | None = None
    """Whether the tokeniser adds its special tokens around the text; None: if the first section is text."""


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of which one key of the store is made."""

    sections: tuple[Section, ...] = ()

    list_field: bool = False
    """Whether the field holds a list of which each element is a sequence, such as the responses to a prompt."""

    mask_key: str | None = None
    """The key of the mask; None: the key of the source and ``_mask``."""

    @property
    def is_value(self) -> bool:
        """Whether the source holds numbers."""
        return any(section.action == "value" for section in self.sections)


def mask_key(key: str, source: Source) -> str:
    """Return the key under which the mask of a source is stored."""
    return source.mask_key or f"{key}_mask"


def lengths_key(key: str) -> str:
    """Return the key for the lengths of a list of sequences: ``response_lengths`` for ``responses``."""
    return f"{key.removesuffix('s')}_lengths"


TrainType = Literal["seq", "sft", "dpo", "grpo", "prompt", "keys"]
"""The kinds of data that a recipe makes; ``keys`` stores whatever ``sources`` names."""

MAKES: dict[str, tuple[type[Sample], ...]] = {
    "seq": (Text, Conversation, Completion),
    "sft": (Conversation, Completion, Text),
    "dpo": (Preference,),
    "grpo": (Group,),
    "prompt": (Prompt,),
    "keys": (),
}
"""The samples from which each training type can be made."""

SpecialTokensInText = Literal["guard", "encode", "literal", "error"]


class TemplateSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which chat template is used, and what it sees in addition to the record."""

    path: str | None = None
    """A tokeniser's folder, a ``.jinja`` file or the name of a template of the suite; None: the folder of
    ``tokenizer``.
    """

    name: str | None = None
    """Which template to use if a folder has several."""

    kwargs: dict[str, Any] = {}
    """Further arguments of the template, such as ``enable_thinking``; a record's ``chat_template_kwargs`` win."""

    now: datetime | None = None
    """The time for templates that print a date; None: the time at which the run began, which the manifest keeps."""


class EndSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tokens at both ends of a sequence. What the chat template writes there itself is never added again."""

    append_eos: bool | None = None
    """Whether text, completions and answers that are strings end with the end-of-sequence token. The token is trained
    if what comes before it is. None: yes, except for type ``seq`` and for ``sections``.
    """

    eos: str | None = None
    """The end-of-sequence token. None: ``eos_token`` of the template or of ``tokenizer_config.json``; if these name
    none, the only usual one of the vocabulary, which a notice reports.
    """

    bos: str = "auto"
    """Which sequences get the begin-of-sequence token, unless they already begin with it. ``auto``: text that no
    template wrote begins as the tokeniser begins it, by its post-processor or ``add_bos_token``. ``always``: every
    sequence, with a token that is found as ``eos`` is. ``never``: none. A token: every sequence, with this token.
    ``known``: as ``always`` if a token is found, as ``never`` otherwise; sections of text are left to
    ``add_special_tokens`` alone. This is what AstrAI does.
    """

    response_end: Literal["turn", "all"] = "turn"
    """Whether a rendered response ends with the token that ends the turn, or with everything that the template writes
    after it.
    """


class LengthSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The longest allowed sequence: a document, a prompt with its answer, or each prompt and response of a group."""

    max_tokens: Positive | None = None

    truncate: OverLong = "drop"
    """What happens to a longer sequence: ``error`` makes it a bad record, ``drop`` leaves it out, ``keep_start`` and
    ``keep_end`` keep its first or last tokens, ``keep_first_turns`` and ``keep_last_turns`` its first or last whole
    exchanges.
    """

    on_supervision_cut: Literal["error", "drop"] = "drop"
    """What happens to a record if the cut leaves none of its trained tokens."""

    first_tokens: Positive | None = None
    """Cut every sequence to this many of its first tokens, before anything else."""


class RecordFilters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which records are kept. Limits are inclusive and apply to all sequences of a record together, before any cut."""

    min_chars: NotNegative | None = None
    """Characters of the text that is encoded, including what the template writes."""

    max_chars: NotNegative | None = None
    min_tokens: NotNegative | None = None
    max_tokens: NotNegative | None = None

    max_records: Positive | None = None
    """Keep the first so many records that can be kept, in the order of the input. The store's writer counts them."""


class OutputSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is stored, and in which format."""

    format: Literal["indexed", "keyed", "hdf5", "jsonl"] = "indexed"

    dtypes: dict[str, str] = {}
    """The dtype of each key. Default: uint16 or int32 for ids, by the size of the vocabulary; uint8 for masks, float32
    for rewards.
    """

    names: dict[str, str] = {}
    """Other names for keys: ``{tokens: sequence}``."""

    shard_tokens: Positive | None = 1 << 30
    """A shard ends before the document that would take it over this many tokens, with all keys counted together."""

    domain_key: str | None = None
    """A field of the record; each of its values becomes a separate store."""

    num_supervised: bool = True
    """For type sft, whether the number of trained tokens of each document is stored, so that nobody needs to read masks
    for it.
    """

    position_ids: Literal["none", "doc_reset", "continuous"] = "none"
    """Whether ``position_ids`` are stored: 0, 1, 2 ... in each document, or continued through the shard. Otherwise they
    are derived.
    """


class ErrorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a run treats records that cannot be used."""

    on_error: Literal["stop", "skip"] = "stop"
    max_errors: NotNegative | Annotated[float, msgspec.Meta(ge=0)] = 100
    """With ``skip``, the run fails if more records are bad: an integer is a number, a float below 1.0 a share of all
    records.
    """


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides how records become a store; `headrace.samples.recipe.recipe` has an example in YAML."""

    type: TrainType
    version: Literal[1] = 1
    inputs: tuple[InputSpec, ...] = ()
    tokenizer: str | None = None
    """A ``tokenizer.json``, or a folder that contains one."""

    template: TemplateSpec | None = None
    """None: the template of the tokeniser's folder, if the records are conversations."""

    strings: Literal["text", "chat"] = "text"
    """Whether a prompt and an answer that are strings stay text, as in TRL, or become a user's and an assistant's
    message.
    """

    special_tokens_in_text: SpecialTokensInText | msgspec.UnsetType = msgspec.UNSET
    """What a special token in a text of the record becomes, such as ``<|im_end|>`` in a user's message. ``guard``, the
    default, makes the record a bad one if the template begins or ends turns with the token, and encodes all others as
    tokens, as transformers and servers do. ``encode`` encodes all as tokens, ``literal`` makes them ordinary text,
    ``error`` makes every such record a bad one. All are counted by token and role.
    """

    mask: MaskOptions = MaskOptions()
    header: Action = "mask"
    """Whether what a template writes before a trained turn, such as ``<|im_start|>assistant``, is trained too."""

    ends: EndSpec = EndSpec()
    length: LengthSpec = LengthSpec()
    filters: RecordFilters = RecordFilters()
    packing: Packing | None = None
    """How the documents are to be packed when they are read; they are stored unpacked."""

    sections: tuple[Section, ...] = ()
    """The fields of which each document is made, instead of a layout."""

    sources: dict[str, Source] = {}
    """The fields of which each key is made, instead of a layout."""

    role_actions: dict[str, Action] = {}
    """The action for messages of each role, for action ``$role``. If it is empty and ``default_action`` is not set,
    ``mask.roles`` are trained.
    """

    default_action: Action | None = None
    """The action for roles that ``role_actions`` does not name; None means ``mask``."""

    output: OutputSpec = OutputSpec()
    errors: ErrorSpec = ErrorSpec()

    @property
    def by_sections(self) -> bool:
        """Whether records are read field by field instead of by a layout."""
        return bool(self.sections or self.sources)

    @property
    def appends_eos(self) -> bool:
        """Whether text ends with the end-of-sequence token."""
        if self.ends.append_eos is None:
            return self.type != "seq" and not self.by_sections
        return self.ends.append_eos

    def trains(self, role: str) -> bool:
        """Return whether action ``$role`` trains a message of this role."""
        if not self.role_actions and self.default_action is None:
            return role in self.mask.roles
        return self.role_actions.get(role, self.default_action) == "train"


KeyKind = Literal["ids", "mask", "positions", "lengths", "reward", "value", "bytes", "count", "label"]

DTYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64"),
)
"""The dtypes that a key may be stored in."""

_DEFAULTS: dict[KeyKind, str] = {
    "mask": "uint8",
    "positions": "int32",
    "lengths": "int32",
    "reward": "float32",
    "value": "float32",
    "bytes": "uint8",
    "count": "int32",
    "label": "uint8",
}


class StoreKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the store."""

    name: str
    """Our name of the key."""

    stored: str
    """The key's name in the store, after ``output.names``."""

    kind: KeyKind
    parallel_to: str | None = None
    """The key of ids for each of whose values this key holds one."""

    dtype: str | None
    """None: chosen by the size of the vocabulary."""

    def resolve(self, vocab_size: int) -> np.dtype[np.generic]:
        """Return the dtype for ids below ``vocab_size``; without a requested dtype, the one that Megatron would choose.

        Raises:
            ConfigError: If the requested dtype cannot hold the ids.
        """
        if self.dtype is None:
            return np.dtype(np.uint16 if vocab_size < 65_500 else np.int32)
        dtype = np.dtype(self.dtype)
        if self.kind == "ids" and vocab_size - 1 > np.iinfo(dtype).max:
            raise ConfigError(
                f"output.dtypes.{self.stored} is {dtype}, which holds ids up to {np.iinfo(dtype).max:,}, but the "
                f"tokeniser has ids up to {vocab_size - 1:,}: choose a wider dtype, or remove the entry"
            )
        return dtype


def store_keys(recipe: Recipe) -> tuple[StoreKey, ...]:
    """Return the keys of a recipe's store, the main one first."""
    return tuple(_key(recipe, *entry) for entry in _listed(recipe))


def _listed(recipe: Recipe) -> list[tuple[str, KeyKind, str | None]]:
    if recipe.sources:
        return _of_sources(recipe)
    keys: dict[str, list[tuple[str, KeyKind, str | None]]] = {
        "seq": [("tokens", "ids", None)],
        "sft": [("tokens", "ids", None), ("loss_mask", "mask", "tokens")],
        "dpo": [
            ("chosen", "ids", None),
            ("chosen_mask", "mask", "chosen"),
            ("rejected", "ids", None),
            ("rejected_mask", "mask", "rejected"),
        ],
        "grpo": [
            ("prompts", "ids", None),
            ("responses", "ids", None),
            ("masks", "mask", "responses"),
            ("response_lengths", "lengths", None),
            ("rewards", "reward", None),
        ],
        "prompt": [("prompts", "ids", None), ("columns", "bytes", None)],
        "keys": [],
    }
    listed = keys[recipe.type]
    if recipe.type == "sft" and recipe.output.num_supervised:
        listed.append(("num_supervised", "count", None))
    if recipe.output.position_ids != "none":
        listed.append(("position_ids", "positions", "tokens"))
    if any(source.layout == "kto" for source in recipe.inputs):
        listed.append(("label", "label", None))
    return listed


def _of_sources(recipe: Recipe) -> list[tuple[str, KeyKind, str | None]]:
    listed: list[tuple[str, KeyKind, str | None]] = []
    for key, source in recipe.sources.items():
        if source.is_value:
            listed.append((key, "reward" if key == "rewards" else "value", None))
        elif source.sections:
            listed += [(key, "ids", None), (mask_key(key, source), "mask", key)]
            if source.list_field:
                listed.append((lengths_key(key), "lengths", None))
    return sorted(listed, key=lambda entry: entry[1] in ("reward", "value"))  # the main key holds ids


def _key(recipe: Recipe, name: str, kind: KeyKind, parallel_to: str | None) -> StoreKey:
    stored = recipe.output.names.get(name, name)
    dtype = recipe.output.dtypes.get(stored, recipe.output.dtypes.get(name)) or _DEFAULTS.get(kind)
    return StoreKey(name=name, stored=stored, kind=kind, parallel_to=parallel_to, dtype=dtype)
