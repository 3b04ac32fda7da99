"""What is asked for: which records, rendered, masked, cut and stored how. Typed, and the only place of its defaults.

    type: sft                       # seq | sft | dpo | grpo | prompt
    inputs: [data/chat.jsonl]
    tokenizer: model/
    template: chatml                # or none: that of the tokeniser's folder
    mask: {turns: last}
    length: {max_tokens: 4096, truncate: keep_last_turns}
    output: {format: indexed}

`load_recipe` reads it from YAML or JSON, and AstrAI's configurations too.

Samples put together field by field: the form in which AstrAI's configurations say what a record is.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from headrace.plan.packing.options import Packing
from headrace.samples.conversation import Completion, Conversation, Group, Preference, Prompt, Text
from headrace.samples.layouts import LayoutOptions, Sample
from headrace.samples.masking.options import MaskOptions
from headrace.samples.masking.truncation import OverLong

Action = Literal["train", "mask"]
SectionAction = Literal["train", "mask", "$role", "value"]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one field gives to a sequence. The texts of all sections are encoded as one, never one by one."""

    field: str

    action: SectionAction
    """``train`` or ``mask`` all of it; ``$role``: what ``role_actions`` says of each message's role; ``value``: the
    field holds numbers, not text."""

    template: bool = False
    """The field is a list of messages, which the chat template renders as one conversation."""

    add_special_tokens: bool | None = None
    """Whether the tokeniser puts its own tokens around the text; None: where the first section is text."""


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one key of the store is made of."""

    sections: tuple[Section, ...] = ()

    list_field: bool = False
    """The field holds a list, each element of it is a sequence: the responses to a prompt."""

    mask_key: str | None = None
    """Key of the mask; None: that of the source, with ``_mask``."""

    @property
    def is_value(self) -> bool:
        """Whether it holds numbers."""
        return any(section.action == "value" for section in self.sections)


def mask_key(key: str, source: Source) -> str:
    """The key under which the mask of a source is stored."""
    return source.mask_key or f"{key}_mask"


def lengths_key(key: str) -> str:
    """The key under which the lengths of a list of sequences are stored: ``response_lengths`` of ``responses``."""
    return f"{key.removesuffix('s')}_lengths"


TrainType = Literal["seq", "sft", "dpo", "grpo", "prompt", "keys"]
"""``keys`` stores whatever the ``sources`` name."""

MAKES: dict[str, tuple[type[Sample], ...]] = {
    "seq": (Text, Conversation, Completion),
    "sft": (Conversation, Completion, Text),
    "dpo": (Preference,),
    "grpo": (Group,),
    "prompt": (Prompt,),
    "keys": (),
}
"""The samples of which each training type can be made."""

AUTO = "auto"
EACH = "each"


class InputSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files of records of one layout."""

    paths: str | tuple[str, ...]
    """Files, folders, globs and braces."""

    layout: str = AUTO
    """The name of a layout; ``auto`` recognises it by the first records, and says so; ``each`` recognises that of every
    record by itself, for files of mixed layouts."""

    fields: dict[str, str] = {}
    """Fields of the data by the name that the layout gives them; a path such as ``data.turns`` goes into objects."""

    roles: dict[str, str] = {}
    """Roles of the data by the name that templates give them, besides the usual aliases."""

    parts: Literal["keep", "join"] = "keep"
    """Content that is a list of parts is handed to the template as it is; or text parts become one string."""

    arguments: Literal["keep", "parse"] = "keep"
    """The arguments of calls that are strings are handed to the template as they are; or as the objects whose JSON
    they are."""

    drop_nulls: bool = False
    """Leave out fields that are null, at any depth: structs of Parquet and Arrow hold every field of every record."""

    @property
    def options(self) -> LayoutOptions:
        """What the layout needs to know."""
        return LayoutOptions(fields=self.fields, roles=self.roles, parts=self.parts, arguments=self.arguments)


class TemplateSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which chat template, and what it sees besides the record."""

    path: str | None = None
    """A tokeniser's folder, a ``.jinja`` file or the name of one of ours; None: the folder of ``tokenizer``."""

    name: str | None = None
    """Which of several templates of a folder."""

    kwargs: dict[str, Any] = {}
    """Further arguments of the template, such as ``enable_thinking``; a record's ``chat_template_kwargs`` win."""

    now: datetime | None = None
    """The time for templates that print a date; None: when the run began, which the manifest keeps."""


class EndSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tokens at both ends of a sequence. What a chat template writes there itself is never added again."""

    append_eos: bool | None = None
    """End text, completions and answers that are strings with the end-of-sequence token, which is trained where what
    stands before it is. None: yes, except for type ``seq`` and for ``sections``."""

    prepend_bos: bool | None = False
    """Begin with the begin-of-sequence token, where the text does not begin with it already; null: if there is one.
    With ``sections``: where one of them is of a template."""

    eos: str | None = None
    """The token; None: ``eos_token`` of the template or of ``tokenizer_config.json``, or where that does not name it
    the only usual one of the vocabulary, which a notice says."""

    bos: str | None = None
    """The token; None: as ``eos``."""

    response_end: Literal["turn", "all"] = "turn"
    """A response rendered by a template ends with the token that ends the turn; or with all that the template writes
    behind it."""


class LengthSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a sequence may be: a document; prompt and answer together; in a group, the prompt and each response."""

    max_tokens: int | None = None

    truncate: OverLong = "drop"
    """What a longer one becomes: a bad record; nothing; its begin or its end; its first or last whole exchanges."""

    on_supervision_cut: Literal["error", "drop"] = "drop"
    """What becomes of a record of whose trained tokens the cut leaves none."""

    first_tokens: int | None = None
    """Before all this, cut every sequence to its first so many tokens."""


class RecordFilters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which records are kept. Limits are inclusive, and of all sequences of a record together, before any cut."""

    min_chars: int | None = None
    """Characters of the text that is encoded, the template's included."""

    max_chars: int | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None

    max_records: int | None = None
    """Keep the first so many records that can be kept, in the order of the input. Whoever writes the store counts."""


class OutputSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is stored, and as what."""

    format: Literal["indexed", "keyed", "hdf5", "jsonl"] = "indexed"

    dtypes: dict[str, str] = {}
    """dtype by key. Default: ids uint16 or int32 by the vocabulary, masks uint8, rewards float32."""

    names: dict[str, str] = {}
    """Other names for keys: ``{tokens: sequence}``."""

    shard_tokens: int | None = 1 << 30
    """A shard ends before the document that would take it over this many tokens, all keys together."""

    domain_key: str | None = None
    """A field of the record: each of its values becomes a store of its own."""

    num_supervised: bool = True
    """For type sft, store the number of trained tokens of each document, so that nobody reads masks to know it."""

    position_ids: Literal["none", "doc_reset", "continuous"] = "none"
    """Store ``position_ids`` too: 0, 1, 2 ... in each document, or through the shard. Derived when they are not."""


class ErrorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a record that cannot be used does to the run."""

    on_error: Literal["stop", "skip"] = "stop"
    max_errors: int | float = 100
    """With ``skip``: the run fails above this many, or, below 1.0 and a float, above this share of all."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is asked for. See the module."""

    type: TrainType
    version: Literal[1] = 1
    inputs: tuple[InputSpec, ...] = ()
    tokenizer: str | None = None
    """A ``tokenizer.json``, or a folder that holds one."""

    template: TemplateSpec | None = None
    """None: that of the tokeniser's folder, where the records are conversations."""

    strings: Literal["text", "chat"] = "text"
    """A prompt and answer that are strings stay text, as in TRL; or become messages of the user and the assistant."""

    mask: MaskOptions = MaskOptions()
    header: Action = "mask"
    """Whether what a template writes before a trained turn, such as ``<|im_start|>assistant``, is trained too."""

    ends: EndSpec = EndSpec()
    length: LengthSpec = LengthSpec()
    filters: RecordFilters = RecordFilters()
    packing: Packing | None = None
    """How the documents are to be packed when they are read; nothing is packed when they are stored."""

    sections: tuple[Section, ...] = ()
    """In place of a layout: the fields of which each document is made."""

    sources: dict[str, Source] = {}
    """In place of a layout: the fields of which each key is made."""

    role_actions: dict[str, Action] = {}
    """For action ``$role``; where it is empty and ``default_action`` is not given, ``mask.roles`` are trained."""

    default_action: Action | None = None
    """For roles that ``role_actions`` does not name; None is ``mask``."""

    output: OutputSpec = OutputSpec()
    errors: ErrorSpec = ErrorSpec()

    @property
    def by_sections(self) -> bool:
        """Whether records are read field by field, and not by a layout."""
        return bool(self.sections or self.sources)

    @property
    def appends_eos(self) -> bool:
        """Whether text is ended with the end-of-sequence token."""
        if self.ends.append_eos is None:
            return self.type != "seq" and not self.by_sections
        return self.ends.append_eos

    def trains(self, role: str) -> bool:
        """What action ``$role`` does with a message of this role."""
        if not self.role_actions and self.default_action is None:
            return role in self.mask.roles
        return self.role_actions.get(role, self.default_action) == "train"
