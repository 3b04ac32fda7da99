"""The forms of units: what the outputs of a task encoder are made into, and which hooks that needs.

a unit is               framed                      measured
one output              Singles, ShuffleBuffer      None
a batch of one group    GroupBatches                Grouping
a pack, by lengths      BestFit                     Packing
a pack, as selected     HookPacks, Selected
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

import msgspec

from headrace.datasets.encoded.samples import Encoder
from headrace.encoders import EncoderPipeline
from headrace.encoders.task_encoder import hooks_of
from headrace.errors import ConfigError
from headrace.plan.framed import BestFit, FramedForm, GroupBatches, HookPacks, Selected, ShuffleBuffer, Singles
from headrace.plan.measured import Grouping
from headrace.plan.packing import Packing
from headrace.plan.recipe import recorded_name

MeasuredForm = Grouping | Packing
Form = FramedForm | MeasuredForm


def is_packs(form: Form | None) -> bool:
    """Whether a unit is a pack of outputs."""
    return isinstance(form, BestFit | HookPacks | Selected | Packing)


def is_groups(form: Form | None) -> bool:
    """Whether a unit is a whole batch of outputs of one group."""
    return isinstance(form, GroupBatches | Grouping)


def form_by_hooks(encoder: Encoder, batch_size: int | None) -> FramedForm:
    """Return the framed form that the hooks of an encoder ask for. Raises ConfigError for packs to be grouped."""
    hooks = hooks_of(encoder)
    kind = type(encoder).__name__
    groups, packs = (hooks[name].is_overridden for name in ("batch_group_criterion", "pack_selected_samples"))
    if groups and packs:
        raise ConfigError(
            f"{kind} overrides batch_group_criterion and pack_selected_samples: packs cannot be grouped; choose with"
            " form=, GroupBatches() for groups of outputs that are not packed, or remove one of the two hooks"
        )
    if packs and not hooks["select_samples_to_pack"].is_overridden:
        raise ConfigError(
            f"{kind} packs, and does not override select_samples_to_pack: set the length of a pack, form=BestFit(4096)"
        )
    if packs:
        return HookPacks()
    return GroupBatches(batch_size) if groups else Singles()


def check_form(form: Form | None, pipeline: EncoderPipeline, allowed: Any) -> None:
    """Check a form against the hooks of an encoder.

    Args:
        form: the form; None is single outputs of a measured source.
        pipeline: the hooks, and the size of batches if one was given.
        allowed: the union of the forms that the source may have.

    Raises:
        ConfigError: the source cannot have the form; a hook that it needs is not overridden; a hook, or the size of
            batches, does not go with it.
    """
    kind = type(pipeline.encoder).__name__
    if not isinstance(form, allowed):
        names = [one.__name__ for one in get_args(allowed) if one is not type(None)]
        raise ConfigError(f"form is {form!r:.80}; expected {', '.join(names)}, or None")
    match form:
        case None | Grouping() if pipeline.packing:
            raise ConfigError(
                f"{kind} packs: set the length of packs, form=headrace.Packing(seq_len=4096); found form={form!r:.80}"
            )
        case Packing():
            _check_packing(form, pipeline, kind)
        case BestFit() if not pipeline.hooks["sample_length"].is_overridden:
            raise ConfigError(
                f"BestFit packs by lengths: override {kind}.sample_length, which returns a sample's length"
            )
        case GroupBatches() if not pipeline.groups:
            raise ConfigError(f"GroupBatches needs groups: override {kind}.batch_group_criterion, which returns them")
        case GroupBatches() if form.size != pipeline.batch_size:
            raise ConfigError(
                f"form is {form} and batch_size {pipeline.batch_size}: pass the size of groups as batch_size, and"
                " leave form out"
            )
    if isinstance(form, FramedForm) and pipeline.hooks["encode_batch"].is_generator:
        raise ConfigError(
            f"{kind}.encode_batch is a generator: the number of its batches would move all later steps; return one"
            " batch, or yield several outputs of a sample in encode_sample, or of a pack in pack_selected_samples"
        )
    if pipeline.batch_size is not None and not is_groups(form):
        raise ConfigError(
            f"batch_size is {pipeline.batch_size}, but units are not batches: batch_size is for groups; for all others"
            " the loader makes batches, micro_batch_size=..."
        )


def _check_packing(form: Packing, pipeline: EncoderPipeline, kind: str) -> None:
    """Raise ConfigError unless an encoder makes packs, and the packs of a measured source hold whole outputs."""
    if not pipeline.packing:
        raise ConfigError(
            f"{kind} does not override pack_selected_samples, which makes a pack of the outputs chosen for it"
        )
    if pipeline.groups:
        raise ConfigError(
            f"{kind} packs and groups its packs, and measured sources do one of the two: use a framed source, or"
            " remove one of pack_selected_samples and batch_group_criterion"
        )
    if form.cuts or form.over_long not in ("error", "drop"):
        raise ConfigError(
            f"strategy={form.strategy!r}, over_long={form.over_long!r} cuts samples, and outputs of an encoder are"
            " packed whole: use over_long='error' or 'drop' with best_fit, first_fit or greedy, and cut in"
            " preencode_sample"
        )


def form_recipe(form: Form | None) -> dict[str, Any]:
    """Return a form as recipes record it; JSON-safe, and for measured sources as `recorded_form` reads it."""
    if form is None:
        return {}
    if isinstance(form, MeasuredForm):
        kind = "grouping" if isinstance(form, Grouping) else "packing"
        return {kind: msgspec.to_builtins(form, str_keys=True)}
    values = {field.name: getattr(form, field.name) for field in fields(form)}
    named = {name: recorded_name(value) if callable(value) else value for name, value in values.items()}
    return {"kind": type(form).__name__, **named}


def recorded_form(recipe: Mapping[str, Any]) -> MeasuredForm | None:
    """Return the form of a measured source from its recipe."""
    if "grouping" in recipe:
        return msgspec.convert(recipe["grouping"], Grouping, str_keys=True)
    return msgspec.convert(recipe["packing"], Packing, str_keys=True) if recipe else None


def form_words(form: FramedForm) -> str:
    """Return in words what a unit is."""
    match form:
        case Singles():
            return "each output is a unit"
        case ShuffleBuffer(num_items=size):
            return f"each output is a unit, through a shuffle buffer of {size:,}"
        case GroupBatches(size=size):
            return f"a unit is a batch of one group, of {'its own size' if size is None else f'{size:,} samples'}"
        case BestFit(max_length=length):
            return f"a unit is a pack of {length:,}, by best fit"
        case Selected(select=select):
            return f"a unit is a pack, as {recorded_name(select)} chooses"
    return "a unit is a pack, as select_samples_to_pack chooses"
