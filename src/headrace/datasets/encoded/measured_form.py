"""Whether facts, encoder and form of a measured source belong together."""

from __future__ import annotations

from headrace.datasets.encoded.measured_units import Form
from headrace.datasets.encoded.samples import Media
from headrace.datasets.measuring.chunk import facts_recipe
from headrace.datasets.measuring.facts import MeasuredFacts
from headrace.encoders import EncoderPipeline
from headrace.errors import ConfigError, StaleCacheError
from headrace.plan.measured import Grouping
from headrace.plan.packing import Packing


def check_facts(facts: MeasuredFacts, dataset: Media, pipeline: EncoderPipeline) -> None:
    """Raise StaleCacheError: the facts are of another dataset or encoder."""
    summary, encoder = facts.summary, facts_recipe(pipeline)
    problems = []
    if summary.dataset != dataset.fingerprint or summary.samples != len(dataset):
        problems.append(f"of another dataset ({summary.samples:,} samples; {dataset!r} has the fingerprint"
                        f" {dataset.fingerprint}, measured was {summary.dataset})")  # fmt: skip
    if summary.encoder != encoder:
        names = [name for name in {**summary.encoder, **encoder} if summary.encoder.get(name) != encoder.get(name)]
        pairs = [f"{name} {summary.encoder.get(name)!r} and not {encoder.get(name)!r}" for name in names]
        problems.append(f"of another encoder: {', '.join(pairs)}")
    if problems:
        raise StaleCacheError(
            f"{facts.path}: these facts are {'; '.join(problems)}. Measure this one: `headrace measure`, or"
            " headrace.measure(dataset, encoder)",
            tuple(problems),
        )


def form_of(form: Form | None, pipeline: EncoderPipeline, facts: MeasuredFacts) -> Form | None:
    """The form that was given, or that of the encoder's groups.

    Raises:
        ConfigError: it does not go with the hooks of the encoder.
    """
    kind = type(pipeline.encoder).__name__
    if form is not None and not isinstance(form, Grouping | Packing):
        raise ConfigError(f"form is {form!r:.80}; expected a Packing, a Grouping, or None for single outputs")
    if pipeline.packing and not isinstance(form, Packing):
        raise ConfigError(
            f"{kind} packs: say how long packs are, form=headrace.Packing(max_seq_len=4096); found form={form!r:.80}"
        )
    if pipeline.packing and pipeline.groups:
        raise ConfigError(
            f"{kind} packs and groups its packs, and measured sources do one of the two: take a framed source, or leave"
            " one of pack_selected_samples and batch_group_criterion out"
        )
    if not isinstance(form, Packing):
        return facts.grouping() if form is None and pipeline.groups else form
    if not pipeline.packing:
        raise ConfigError(
            f"{kind} does not override pack_selected_samples, which makes a pack of what was chosen for it"
        )
    if form.cuts or form.over_long not in ("error", "drop"):
        raise ConfigError(
            f"strategy={form.strategy!r}, over_long={form.over_long!r} cuts samples, and outputs of an encoder are"
            " packed whole: take over_long='error' or 'drop' with best_fit, first_fit or greedy, and cut in"
            " preencode_sample"
        )
    return form
