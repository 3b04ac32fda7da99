"""A recipe and the number of a record -> the record on its way, step by step."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from headrace.cli.prepare_recipe import with_now
from headrace.cli.views.parts import columns_of, parts_of
from headrace.cli.views.recipe_maker import open_maker
from headrace.cli.views.recipe_record import OnRecords, find_record
from headrace.cli.views.rendered_sequences import first_or_last, rendered_sequences, stored_rows
from headrace.cli.views.steps import Outcome, Part, Rendering
from headrace.errors import InputError
from headrace.prepare.resolving import with_inputs
from headrace.samples.conversation import Conversation
from headrace.samples.layouts import Sample
from headrace.samples.maker import Explained, Made, SampleMaker
from headrace.samples.masking import DroppedError
from headrace.samples.masking.results import SUPERVISION_CUT
from headrace.samples.recipe import LengthSpec, Recipe, load_recipe, resolve_layout
from headrace.samples.templates import ChatTemplate


def render_record(
    recipe_path: str | os.PathLike[str],
    number: int,
    *,
    input_path: str | None = None,
    tokenizer: str | None = None,
    now: str | None = None,
    on_records: OnRecords | None = None,
) -> Rendering:
    """Record ``number`` of a recipe's inputs: its layout, messages, text, tokens, mask, and the evidence for them.

    A record that the recipe drops or refuses is shown as far as it comes, with the reason.

    Args:
        recipe_path: of YAML or JSON.
        number: counted from 0 over all inputs.
        input_path: a file in place of the recipe's only input.
        tokenizer: where the recipe names none.
        now: the time that the template sees, of ISO 8601; by default the one there is.
        on_records: called with the number of records read so far.

    Raises:
        ConfigError: the recipe is wrong, or there is no such record.
        InputError: the record is no JSON.
    """
    recipe = load_recipe(recipe_path)
    if now is not None:
        recipe = with_now(recipe, now, os.fspath(recipe_path))
    recipe = with_inputs(recipe, [] if input_path is None else [input_path])
    found = find_record(recipe, number, on_records)
    layout, why = "", "the recipe says sections, field by field"
    if not recipe.by_sections:
        recipe, recognised = resolve_layout(recipe, found.first, source=found.source)
        layout = recipe.inputs[found.source].layout
        why = "the recipe says so" if recognised is None else recognised.why
        if recognised is not None and recognised.alternatives:
            why += f"; {', '.join(recognised.alternatives)} would fit too, and gave way"
    maker, encoder, template = open_maker(recipe, found.source, tokenizer)
    sample, explained = _explained(maker, found.record)
    made = maker.make([found.record])
    parts = () if sample is None else parts_of(sample)
    if not explained and template is not None:
        parts = tuple(_with_text(part, template, recipe) for part in parts)
    outcome, reason, message = _outcome(made)
    rows = stored_rows(maker, made)
    if reason == SUPERVISION_CUT:
        # Nothing is stored, and what the cut would leave is what the reader has to see.
        unlimited = open_maker(msgspec.structs.replace(recipe, length=LengthSpec()), found.source, tokenizer).maker
        rows = first_or_last(stored_rows(unlimited, unlimited.make([found.record])), recipe.length)
    return Rendering(
        recipe=os.fspath(recipe_path),
        type=recipe.type,
        input=found.input,
        record=number,
        place=found.place,
        layout=layout,
        layout_why=why,
        template="" if template is None else template.source,
        source=found.record,
        parts=parts,
        columns=None if sample is None else columns_of(sample),
        outcome=outcome,
        reason=reason,
        message=message,
        sequences=rendered_sequences(explained, rows, encoder, recipe.length),
        notes=made.counts.notes,
        stored={key: len(ragged.values) for key, ragged in made.arrays.items() if len(made)},
        num_documents=len(made),
    )


def _explained(maker: SampleMaker, record: Any) -> tuple[Sample | None, list[Explained]]:
    """As far as it comes; what stands in the way is found again when the record is made."""
    sample = None
    try:
        sample = maker.sample(record)
        return sample, maker.explain(record)
    except (InputError, DroppedError):
        return sample, []


def _outcome(made: Made) -> tuple[Outcome, str, str]:
    if made.bad:
        return "bad", "", made.bad[0].message
    if made.dropped:
        return "dropped", made.dropped[0].reason, made.dropped[0].message
    return "kept", "", ""


def _with_text(part: Part, template: ChatTemplate, recipe: Recipe) -> Part:
    """The part with its text, to be seen where it was refused later on."""
    if part.messages is None:
        return part
    kwargs = {**(recipe.template.kwargs if recipe.template is not None else {}), **part.template_kwargs}
    conversation = Conversation(messages=part.messages, tools=part.tools, template_kwargs=kwargs)
    try:
        return msgspec.structs.replace(part, rendered=template.render_conversation(conversation).text)
    except InputError:
        return part
